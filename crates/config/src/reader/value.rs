//! Parsers of single values: durations, sizes, names, addresses, hashes, dates.
//!
//! Each parser returns the typed value, or an error with a remedy. The error may quote the value:
//! for a value from a variable the reader parses the string of the file again, to get an error
//! without the variable's value.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use hyper::Uri;
use ipnet::IpNet;
use toml::de::DeValue;
use toml::value::{Datetime, Offset};

use crate::reader::report::{ValueError, did_you_mean};
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader, wrong_type};
use weir_base::text::hex;
use weir_downstream::host_check::{AllowedHost, Origin};
use weir_upstream::connect::egress::has_valid_port;

// === Plain types ===

pub(crate) fn boolean(value: &SpannedValue<'_>) -> Parsed<bool> {
    value
        .get_ref()
        .as_bool()
        .ok_or_else(|| wrong_type("true or false", value.get_ref(), "write true or false"))
}

/// Parses a string for the operating system: not empty, without NUL.
pub(crate) fn text(value: &SpannedValue<'_>) -> Parsed<String> {
    let text = string(value)?;
    if text.is_empty() {
        return Err(ValueError::new(
            "an empty string means nothing here",
            "write a value, or remove the key",
        ));
    }
    without_nul(text)
}

/// Parses a string for the operating system, which may be empty.
pub(crate) fn text_or_empty(value: &SpannedValue<'_>) -> Parsed<String> {
    without_nul(string(value)?)
}

pub(crate) fn string<'a>(value: &'a SpannedValue<'_>) -> Parsed<&'a str> {
    let remedy = match value.get_ref() {
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) => "put it in quotes",
        _ => "write a string in quotes",
    };
    value.get_ref().as_str().ok_or_else(|| wrong_type("a string", value.get_ref(), remedy))
}

fn without_nul(text: &str) -> Parsed<String> {
    match text.contains('\0') {
        true => {
            Err(ValueError::new("a string for the system cannot hold NUL", "remove the \\u0000"))
        }
        false => Ok(text.to_owned()),
    }
}

/// Parses one of a few words.
pub(crate) fn choice<T: Clone>(
    choices: Vec<(&'static str, T)>,
) -> impl Fn(&SpannedValue<'_>) -> Parsed<T> {
    move |value| {
        let word = string(value)?;
        let found = choices.iter().find(|(name, _)| *name == word);
        found.map(|(_, choice)| choice.clone()).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let remedy = did_you_mean(word, names.iter().copied());
            let remedy = remedy.unwrap_or_else(|| format!("one of: {}", names.join(", ")));
            ValueError::new(format!("{word:?} is not a choice here"), remedy)
        })
    }
}

// === Quantities ===

/// Parses a whole number within bounds.
pub(crate) fn count(bounds: RangeInclusive<usize>) -> impl Fn(&SpannedValue<'_>) -> Parsed<usize> {
    move |value| {
        let DeValue::Integer(number) = value.get_ref() else {
            return Err(wrong_type(
                "a whole number",
                value.get_ref(),
                "write a number without quotes",
            ));
        };
        let parsed = usize::from_str_radix(number.as_str(), number.radix()).ok();
        let (min, max) = (*bounds.start(), *bounds.end());
        match parsed {
            Some(0) => Err(zero()),
            Some(count) if bounds.contains(&count) => Ok(count),
            _ => Err(ValueError::new(
                format!("{number} is out of bounds"),
                format!("write {min} to {max}"),
            )),
        }
    }
}

/// Parses a duration: a whole number with `ms`, `s`, `m` or `h`.
pub(crate) fn duration(value: &SpannedValue<'_>) -> Parsed<Duration> {
    let unitless = |n: &str| {
        ValueError::new(
            "a duration needs a unit",
            format!("write \"{n}s\" for seconds; units are ms, s, m, h"),
        )
    };
    let text = match value.get_ref() {
        DeValue::Integer(number) if number.as_str() != "0" => {
            return Err(unitless(number.as_str()));
        }
        DeValue::Integer(_) => return Err(zero()),
        _ => string(value)?,
    };
    let malformed = || {
        ValueError::new(
            format!("{text:?} is not a duration"),
            "write it like \"250ms\", \"60s\", \"10m\" or \"1h\"",
        )
    };
    let (number, unit) = split_unit(text).ok_or_else(malformed)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" => return Err(unitless(text)),
        _ => return Err(malformed()),
    };
    match number.checked_mul(millis).map(Duration::from_millis) {
        Some(Duration::ZERO) => Err(zero()),
        Some(duration) if duration <= MAX_DURATION => Ok(duration),
        _ => Err(ValueError::new(
            format!("{text:?} is longer than a year"),
            "write at most \"8760h\"",
        )),
    }
}

/// Parses a number of bytes: a whole number alone, or with `KiB`, `MiB` or `GiB`.
pub(crate) fn size(value: &SpannedValue<'_>) -> Parsed<usize> {
    if let DeValue::Integer(_) = value.get_ref() {
        return count(1..=usize::MAX)(value);
    }
    let text = string(value)?;
    let malformed = || {
        ValueError::new(
            format!("{text:?} is not a size"),
            "write it like \"64KiB\", \"4MiB\", \"1GiB\", or 4096 for bytes",
        )
    };
    let (number, unit) = split_unit(text).ok_or_else(malformed)?;
    let shift = match unit {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(malformed()),
    };
    match number.checked_mul(1 << shift).and_then(|bytes| usize::try_from(bytes).ok()) {
        Some(0) => Err(zero()),
        Some(bytes) => Ok(bytes),
        None => Err(ValueError::new(
            format!("{text:?} is more than this machine can address"),
            "write a smaller size",
        )),
    }
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}

fn zero() -> ValueError {
    ValueError::new(
        "zero never means unlimited",
        "write the limit that you want, or remove the key for the default",
    )
}

// === Addresses ===

/// Parses an address and port to listen on.
pub(crate) fn socket(value: &SpannedValue<'_>) -> Parsed<SocketAddr> {
    let text = string(value)?;
    text.parse().map_err(|_| {
        let remedy = match text.rsplit_once(':') {
            Some(("localhost", port)) => format!("write the address itself: \"127.0.0.1:{port}\""),
            Some(("" | "*", port)) => {
                format!("write \"0.0.0.0:{port}\" to listen on every interface")
            }
            _ => "write it like \"127.0.0.1:8642\" or \"[::1]:8642\"".to_owned(),
        };
        ValueError::new(format!("{text:?} is not an IP address with a port"), remedy)
    })
}

/// Parses a network of addresses, or a single address.
pub(crate) fn network(value: &SpannedValue<'_>) -> Parsed<IpNet> {
    let text = string(value)?;
    let single = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(single).ok_or_else(|| {
        let what = format!("{text:?} is not a network of addresses");
        ValueError::new(what, "write it like \"10.0.0.0/8\" or \"2001:db8::/32\"")
    })
}

/// Parses the path of a URL, as clients send it.
pub(crate) fn path(value: &SpannedValue<'_>) -> Parsed<String> {
    let text = string(value)?;
    let uri = text.parse::<Uri>().ok();
    let plain = uri.is_some_and(|uri| uri.path() == text && uri.authority().is_none());
    match plain && text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err(ValueError::new(
            format!("{text:?} is not the path of a URL"),
            "write it like \"/mcp\"",
        )),
    }
}

/// Parses a value of the `Host` header: a name, with a port if it is not the scheme's default.
pub(crate) fn host(value: &SpannedValue<'_>) -> Parsed<String> {
    let text = string(value)?;
    match text.parse::<AllowedHost>() {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(_) => {
            let remedy = "write it like \"mcp.example.com\" or \"mcp.example.com:8443\"";
            Err(ValueError::new(format!("{text:?} is not a host"), remedy))
        }
    }
}

/// Parses a value of the `Origin` header.
pub(crate) fn origin(value: &SpannedValue<'_>) -> Parsed<String> {
    let text = string(value)?;
    let remedy = "write it like \"https://app.example.com\": each origin by itself, without a path";
    match text.parse::<Origin>() {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(_) => Err(ValueError::new(format!("{text:?} is not an origin"), remedy)),
    }
}

/// Parses an absolute `http` or `https` URL.
pub(crate) fn url(value: &SpannedValue<'_>) -> Parsed<Uri> {
    let text = string(value)?;
    let example = "write it like \"https://mcp.example.com/mcp\"";
    if text.contains('#') {
        return Err(ValueError::new(
            "a URL's fragment is never sent",
            "remove the # and what follows",
        ));
    }
    // The error does not repeat the URL, which may contain a secret.
    let uri: Uri = text.parse().map_err(|_| ValueError::new("this is not a URL", example))?;
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(ValueError::new(
            "a URL must not hold credentials",
            "put them in auth, with type = \"basic\"",
        ));
    }
    if !has_valid_port(&uri) {
        let remedy = "write one from 1 to 65535, or none with its colon";
        return Err(ValueError::new("the port in this URL is none", remedy));
    }
    match uri.scheme_str() {
        Some("http" | "https") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err(ValueError::new("this is not an http or https URL", example)),
    }
}

// === Names ===

/// True for a valid name of an upstream, or prefix.
pub(crate) fn is_upstream_name(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// True for a valid name of a role or client, or new name of an item.
pub fn is_plain_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

pub(crate) fn bad_upstream_name(name: &str) -> ValueError {
    let remedy = "a lower-case letter, then at most 31 of a-z, 0-9 and -";
    ValueError::new(format!("{name:?} cannot name an upstream"), remedy)
}

pub(crate) fn bad_plain_name(name: &str) -> ValueError {
    ValueError::new(
        format!("{name:?} cannot be used as a name"),
        "1 to 64 of A-Z, a-z, 0-9, _, . and -",
    )
}

/// Reads named tables, whose names are reported if they are not plain ones.
pub(crate) fn plainly_named_tables<'a, R>(
    t: &TableReader<'a>,
    key: &'a str,
    mut read: impl FnMut(&'a str, &TableReader<'a>) -> R,
) -> Vec<R> {
    t.named_tables(key, |name, t| {
        let name = name.get_ref();
        if !is_plain_name(name) {
            t.table_error(bad_plain_name(name));
        }
        read(name, t)
    })
}

/// Parses the separator between an upstream's prefix and an item's name. It starts with `_`, which
/// no prefix contains, so that joined names are unambiguous.
pub(crate) fn separator(value: &SpannedValue<'_>) -> Parsed<String> {
    let text = string(value)?;
    let legal = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    match legal && text.starts_with('_') && text.len() <= 8 {
        true => Ok(text.to_owned()),
        false => {
            let remedy = "start with _, then at most 7 of A-Z, a-z, 0-9, _ and -";
            Err(ValueError::new(format!("{text:?} cannot separate names"), remedy))
        }
    }
}

// === Keys and dates ===

/// Parses the SHA-256 of a client's key, as 64 hexadecimal digits.
pub(crate) fn hash(value: &SpannedValue<'_>) -> Parsed<[u8; 32]> {
    let text = string(value)?;
    if EXAMPLE_HASHES.contains(&text.to_ascii_lowercase().as_str()) {
        return Err(ValueError::new(
            "this is the example's hash, and its key is public",
            MAKE_A_KEY,
        ));
    }
    hex::decode(text)
        .ok_or_else(|| ValueError::new("this is not 64 hexadecimal digits", MAKE_A_KEY))
}

/// Parses a date and time with an offset from UTC.
pub(crate) fn date_time(value: &SpannedValue<'_>) -> Parsed<SystemTime> {
    let remedy = "write it without quotes, like 2027-06-30T00:00:00Z";
    let DeValue::Datetime(datetime) = value.get_ref() else {
        return Err(wrong_type("a date and time", value.get_ref(), remedy));
    };
    date_time_of(datetime)
        .ok_or_else(|| ValueError::new("a date, a time and an offset are required", remedy))
}

/// Returns the time of a date, a time and an offset; `None` if one of them is missing.
pub fn date_time_of(datetime: &Datetime) -> Option<SystemTime> {
    let (date, time, offset) = (datetime.date?, datetime.time?, datetime.offset?);
    let offset_minutes = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    // Days since 1970 in the Gregorian calendar, with years that begin in March, so that the leap
    // day is the last day of a year.
    let (month, day) = (i64::from(date.month), i64::from(date.day));
    let year = i64::from(date.year) - i64::from(month <= 2);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
            - 719_468;
    let minutes = (days * 24 + i64::from(time.hour)) * 60 + i64::from(time.minute) - offset_minutes;
    let seconds = minutes * 60 + i64::from(time.second.unwrap_or(0));
    let distance = Duration::from_secs(seconds.unsigned_abs());
    match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    }
}

/// Longest duration: arithmetic with times cannot overflow.
const MAX_DURATION: Duration = Duration::from_hours(8760);

/// Hashes of the example file. They are refused, because their keys are public.
pub(crate) const EXAMPLE_HASHES: [&str; 2] = [
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
];

const MAKE_A_KEY: &str =
    "make a key with `openssl rand -hex 32`, and its hash with `printf %s KEY | sha256sum`";
