//! Timestamps: Unix time, and their RFC 3339 form (UTC).

use std::time::{Duration, SystemTime};

/// Returns the Unix time.
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Formats a time in UTC, to the second, as the configuration writes it: `2026-11-21T04:20:12Z`.
pub fn format_rfc3339(moment: SystemTime) -> String {
    let mut out = String::with_capacity(24);
    push_seconds(&mut out, moment);
    out.push('Z');
    out
}

/// Rounds a duration for a reader: to a tenth of a second, and to a millisecond below one second.
pub fn seconds(duration: Duration) -> f64 {
    let places = if duration < Duration::from_secs(1) { 1_000.0 } else { 10.0 };
    (duration.as_secs_f64() * places).round() / places
}

/// Appends a time in UTC, to the millisecond, as in RFC 3339: `2026-11-21T04:20:12.007Z`.
pub fn push_millis(out: &mut String, moment: SystemTime) {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    push_seconds(out, moment);
    out.push('.');
    push_digits(out, i64::from(since.subsec_millis()), 3);
    out.push('Z');
}

/// Appends a time to the second. Written digit by digit: each line of the audit log has a time, and
/// `format!` would cost more than the rest of the line.
fn push_seconds(out: &mut String, moment: SystemTime) {
    let seconds = match moment.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |it| -it),
    };
    // Gregorian calendar in eras of 400 years that begin in March, so that the leap day is last.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + 400 * era + i64::from(month <= 2);
    let time = seconds.rem_euclid(86_400);
    match year {
        0..10_000 => push_digits(out, year, 4),
        // No clock reaches such a year, but a configuration may.
        _ => out.push_str(&format!("{year:04}")),
    }
    let rest =
        [('-', month), ('-', day), ('T', time / 3_600), (':', time / 60 % 60), (':', time % 60)];
    for (mark, number) in rest {
        out.push(mark);
        push_digits(out, number, 2);
    }
}

/// Appends the last `count` digits of a number that is not negative.
fn push_digits(out: &mut String, number: i64, count: u32) {
    for place in (0..count).rev() {
        // The value is a single decimal digit, so it fits.
        out.push(char::from(b'0' + (number / 10_i64.pow(place) % 10) as u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_rounded_to_what_interests_a_reader() {
        for (nanos, expected) in [
            (2_001_262_200, "2"),
            (2_050_000_000, "2.1"),
            (999_000_000, "0.999"),
            (50_400_000, "0.05"),
            (600_000_000_000, "600"),
        ] {
            assert_eq!(seconds(Duration::from_nanos(nanos)).to_string(), expected);
        }
    }

    #[test]
    fn a_moment_is_told_as_it_is_written() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_234_812, "2026-11-21T04:20:12Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(format_rfc3339(moment), expected);
        }
        let late = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_234_812_007);
        let mut words = String::new();
        push_millis(&mut words, late);
        assert_eq!(words, "2026-11-21T04:20:12.007Z");
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(format_rfc3339(before), "1969-12-31T23:59:59Z");
    }
}
