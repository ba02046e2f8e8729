//! A moment in words.
//!
//! Knows nothing of: time zones, leap seconds, the clock.

use std::time::SystemTime;

/// A moment in UTC as the configuration writes it: `2026-11-21T04:20:12Z`.
pub fn to_words(moment: SystemTime) -> String {
    format!("{}Z", seconds_in_words(moment))
}

/// The same to the millisecond, as RFC 3339 has it: `2026-11-21T04:20:12.007Z`.
pub fn to_words_in_millis(moment: SystemTime) -> String {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:03}Z", seconds_in_words(moment), since.subsec_millis())
}

fn seconds_in_words(moment: SystemTime) -> String {
    let seconds = match moment.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |it| -it),
    };
    // The Gregorian calendar in eras of 400 years that begin in March, so that the leap day is the last.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + 400 * era + i64::from(month <= 2);
    let time = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
            assert_eq!(to_words(moment), expected);
        }
        let late = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_234_812_007);
        assert_eq!(to_words_in_millis(late), "2026-11-21T04:20:12.007Z");
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(to_words(before), "1969-12-31T23:59:59Z");
    }
}
