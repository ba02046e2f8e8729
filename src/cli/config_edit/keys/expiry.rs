//! Expiry of keys: `--expires` of `weir keys`.

use std::time::{Duration, SystemTime};

use toml_edit::Datetime;

use crate::cli::exit::Failure;
use weir_base::time::timestamp::format_rfc3339;
use weir_config as config;

/// Parses a point in time in the future, if one is given, as the configuration writes it.
pub(super) fn parse_expiry(
    text: Option<&str>,
    now: SystemTime,
) -> Result<Option<Datetime>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let malformed = || {
        Failure::Usage(format!(
            "--expires {text:?} is not a time: write it like 90d, 12h, 2027-06-30 or \
             2027-06-30T12:00:00Z"
        ))
    };
    let words = match text.strip_suffix(['d', 'h']) {
        Some(number) => {
            let unit = if text.ends_with('d') { 86_400 } else { 3_600 };
            let number: u64 = number.parse().map_err(|_| malformed())?;
            // Bounded, so that the year still has four digits.
            let seconds =
                number.checked_mul(unit).filter(|it| *it < LONGEST).ok_or_else(malformed)?;
            format_rfc3339(now + Duration::from_secs(seconds))
        }
        None if text.len() == "2027-06-30".len() => format!("{text}T00:00:00Z"),
        None => text.to_owned(),
    };
    let moment: Datetime = words.parse().map_err(|_| malformed())?;
    match config::date_time_of(&moment) {
        None => Err(malformed()),
        Some(end) if end <= now => {
            Err(Failure::Usage(format!("--expires {text}: this moment has passed")))
        }
        Some(_) => Ok(Some(moment)),
    }
}

/// Longest duration: a thousand years, in seconds.
const LONGEST: u64 = 1_000 * 365 * 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_from_now_or_a_date() {
        // 2026-11-21T04:20:12Z
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_234_812);
        for (text, expected) in [
            ("90d", Some("2027-02-19T04:20:12Z")),
            ("1h", Some("2026-11-21T05:20:12Z")),
            ("2027-06-30", Some("2027-06-30T00:00:00Z")),
            ("2027-06-30T12:00:00+02:00", Some("2027-06-30T12:00:00+02:00")),
            ("2026-11-21", None),
            ("2020-01-01T00:00:00Z", None),
            ("2027-06-30T12:00:00", None),
            ("2027-13-30", None),
            ("0d", None),
            ("90", None),
            ("-1d", None),
            ("99999999999999d", None),
            ("soon", None),
            ("", None),
        ] {
            let found = parse_expiry(Some(text), now).ok().flatten();
            let found = found.map(|moment| moment.to_string());
            assert_eq!(found.as_deref(), expected, "{text:?}");
        }
    }
}
