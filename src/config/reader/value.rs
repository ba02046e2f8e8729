//! What a single value may look like: durations, sizes, names, addresses, hashes, dates.
//!
//! Each parser either returns the typed value or a complaint that says what to write instead. It may quote the
//! value: where that came out of a variable, the reader asks again with what stands in the file.
//!
//! Knows nothing of: which key the value belongs to, and other values.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use hyper::Uri;
use hyper::http::uri::Authority;
use toml::de::DeValue;
use toml::value::{Datetime, Offset};

use crate::config::reader::report::{Complaint, did_you_mean};
use crate::config::reader::table_reader::{Parsed, Value, wrong_type};

// === Plain types ===

pub(crate) fn boolean(value: &Value<'_>) -> Parsed<bool> {
    value
        .get_ref()
        .as_bool()
        .ok_or_else(|| wrong_type("true or false", value.get_ref(), "write true or false"))
}

/// A string that may be handed to the system: not empty, without NUL.
pub(crate) fn text(value: &Value<'_>) -> Parsed<String> {
    let text = string(value)?;
    if text.is_empty() {
        return Err(Complaint::new(
            "an empty string means nothing here",
            "write a value, or remove the key",
        ));
    }
    no_nul(text)
}

/// A string that may be handed to the system, and may be empty.
pub(crate) fn text_or_empty(value: &Value<'_>) -> Parsed<String> {
    no_nul(string(value)?)
}

pub(crate) fn string<'a>(value: &'a Value<'_>) -> Parsed<&'a str> {
    let remedy = match value.get_ref() {
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) => "put it in quotes",
        _ => "write a string in quotes",
    };
    value.get_ref().as_str().ok_or_else(|| wrong_type("a string", value.get_ref(), remedy))
}

fn no_nul(text: &str) -> Parsed<String> {
    match text.contains('\0') {
        true => {
            Err(Complaint::new("a string for the system cannot hold NUL", "remove the \\u0000"))
        }
        false => Ok(text.to_owned()),
    }
}

/// One of a few words.
pub(crate) fn choice<T: Copy>(choices: &[(&str, T)]) -> impl Fn(&Value<'_>) -> Parsed<T> {
    move |value| {
        let word = string(value)?;
        let found = choices.iter().find(|(name, _)| *name == word);
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let remedy = did_you_mean(word, names.iter().copied());
            let remedy = remedy.unwrap_or_else(|| format!("one of: {}", names.join(", ")));
            Complaint::new(format!("{word:?} is not a choice here"), remedy)
        })
    }
}

// === Quantities ===

/// A whole number within bounds.
pub(crate) fn count(bounds: RangeInclusive<usize>) -> impl Fn(&Value<'_>) -> Parsed<usize> {
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
            _ => Err(Complaint::new(
                format!("{number} is out of bounds"),
                format!("write {min} to {max}"),
            )),
        }
    }
}

/// A length of time: a whole number with `ms`, `s`, `m` or `h`.
pub(crate) fn duration(value: &Value<'_>) -> Parsed<Duration> {
    let unitless = |n: &str| {
        Complaint::new(
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
        Complaint::new(
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
        Some(duration) if duration <= LONGEST => Ok(duration),
        _ => Err(Complaint::new(
            format!("{text:?} is longer than a year"),
            "write at most \"8760h\"",
        )),
    }
}

/// A number of bytes: a whole number alone, or with `KiB`, `MiB` or `GiB`.
pub(crate) fn size(value: &Value<'_>) -> Parsed<usize> {
    if let DeValue::Integer(_) = value.get_ref() {
        return count(1..=usize::MAX)(value);
    }
    let text = string(value)?;
    let malformed = || {
        Complaint::new(
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
        None => Err(Complaint::new(
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

fn zero() -> Complaint {
    Complaint::new(
        "zero never means unlimited",
        "write the limit that you want, or remove the key for the default",
    )
}

// === Addresses ===

/// The address and port to listen on.
pub(crate) fn socket(value: &Value<'_>) -> Parsed<SocketAddr> {
    let text = string(value)?;
    text.parse().map_err(|_| {
        let remedy = match text.rsplit_once(':') {
            Some(("localhost", port)) => format!("write the address itself: \"127.0.0.1:{port}\""),
            Some(("" | "*", port)) => {
                format!("write \"0.0.0.0:{port}\" to listen on every interface")
            }
            _ => "write it like \"127.0.0.1:8642\" or \"[::1]:8642\"".to_owned(),
        };
        Complaint::new(format!("{text:?} is not an IP address with a port"), remedy)
    })
}

/// The path of a URL, as clients send it.
pub(crate) fn path(value: &Value<'_>) -> Parsed<String> {
    let text = string(value)?;
    let uri = text.parse::<Uri>().ok();
    let plain = uri.is_some_and(|uri| uri.path() == text && uri.authority().is_none());
    match plain && text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err(Complaint::new(
            format!("{text:?} is not the path of a URL"),
            "write it like \"/mcp\"",
        )),
    }
}

/// A value of the `Host` header: a name, with a port if it is not the scheme's own.
pub(crate) fn host(value: &Value<'_>) -> Parsed<String> {
    let text = string(value)?;
    match text.parse::<Authority>() {
        Ok(host) if !text.contains(['@', '*']) && !host.host().is_empty() => {
            Ok(text.to_ascii_lowercase())
        }
        _ => {
            let remedy = "write it like \"mcp.example.com\" or \"mcp.example.com:8443\"";
            Err(Complaint::new(format!("{text:?} is not a host"), remedy))
        }
    }
}

/// A value of the `Origin` header.
pub(crate) fn origin(value: &Value<'_>) -> Parsed<String> {
    let text = string(value)?;
    let remedy = "write it like \"https://app.example.com\": each origin by itself, without a path";
    let wrong = || Complaint::new(format!("{text:?} is not an origin"), remedy);
    let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
    let good_scheme = !scheme.is_empty()
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    match host.parse::<Authority>() {
        Ok(_) if good_scheme && !host.contains(['@', '*']) => Ok(text.to_ascii_lowercase()),
        _ => Err(wrong()),
    }
}

/// A whole `http` or `https` URL.
pub(crate) fn url(value: &Value<'_>) -> Parsed<Uri> {
    let text = string(value)?;
    let example = "write it like \"https://mcp.example.com/mcp\"";
    if text.contains('#') {
        return Err(Complaint::new(
            "a URL's fragment is never sent",
            "remove the # and what follows",
        ));
    }
    // The URL itself is not repeated: it may hold what should not be shown.
    let uri: Uri = text.parse().map_err(|_| Complaint::new("this is not a URL", example))?;
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(Complaint::new(
            "a URL must not hold credentials",
            "put them in auth, with type = \"basic\"",
        ));
    }
    match uri.scheme_str() {
        Some("http" | "https") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err(Complaint::new("this is not an http or https URL", example)),
    }
}

// === Names ===

/// The name of an upstream, or its prefix.
pub(crate) fn is_upstream_name(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The name of a role, of a client, or the new name of an item.
pub(crate) fn is_plain_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

pub(crate) fn bad_upstream_name(name: &str) -> Complaint {
    let remedy = "a lower-case letter, then at most 31 of a-z, 0-9 and -";
    Complaint::new(format!("{name:?} cannot name an upstream"), remedy)
}

pub(crate) fn bad_plain_name(name: &str) -> Complaint {
    Complaint::new(
        format!("{name:?} cannot be used as a name"),
        "1 to 64 of A-Z, a-z, 0-9, _, . and -",
    )
}

/// What stands between an upstream's prefix and an item's name. It starts with `_` because no prefix
/// holds one: that is what makes joining unambiguous.
pub(crate) fn separator(value: &Value<'_>) -> Parsed<String> {
    let text = string(value)?;
    let legal = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    match legal && text.starts_with('_') && text.len() <= 8 {
        true => Ok(text.to_owned()),
        false => {
            let remedy = "start with _, then at most 7 of A-Z, a-z, 0-9, _ and -";
            Err(Complaint::new(format!("{text:?} cannot separate names"), remedy))
        }
    }
}

// === Keys and dates ===

/// The SHA-256 of a client's key, as 64 hexadecimal digits.
pub(crate) fn hash(value: &Value<'_>) -> Parsed<[u8; 32]> {
    let text = string(value)?;
    if EXAMPLE_HASHES.contains(&text.to_ascii_lowercase().as_str()) {
        return Err(Complaint::new(
            "this is the example's hash, and its key is public",
            MAKE_A_KEY,
        ));
    }
    decode_hex(text).ok_or_else(|| Complaint::new("this is not 64 hexadecimal digits", MAKE_A_KEY))
}

fn decode_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A moment, with its offset from UTC.
pub(crate) fn moment(value: &Value<'_>) -> Parsed<SystemTime> {
    let remedy = "write it without quotes, like 2027-06-30T00:00:00Z";
    let DeValue::Datetime(datetime) = value.get_ref() else {
        return Err(wrong_type("a date and time", value.get_ref(), remedy));
    };
    moment_of(datetime)
        .ok_or_else(|| Complaint::new("a moment needs date, time and offset", remedy))
}

/// The moment that a date, a time and an offset tell together.
pub(crate) fn moment_of(datetime: &Datetime) -> Option<SystemTime> {
    let (date, time, offset) = (datetime.date?, datetime.time?, datetime.offset?);
    let offset_minutes = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    // Days since 1970 in the Gregorian calendar, with years that begin in March, so that the leap day is the last.
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

/// Long enough for any purpose, short enough for any clock's arithmetic.
const LONGEST: Duration = Duration::from_hours(8760);

/// They stand in the example file; whoever copies it must not open a door with them.
pub(crate) const EXAMPLE_HASHES: [&str; 2] = [
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
];

const MAKE_A_KEY: &str =
    "make a key with `openssl rand -hex 32`, and its hash with `printf %s KEY | sha256sum`";
