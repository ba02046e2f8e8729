//! Strings and numbers that are valid JSON but that some clients cannot read, and dates.
//!
//! JSON allows half of a surrogate pair in a string (`"\ud800"`), and a number of any size
//! (`1e400`). Parsers in Rust and Python reject the whole message for the first, parsers in Rust
//! for the second, too.

use crate::definition::shape::Mismatch;
use weir_base::json;

/// Finds the first defect of a JSON text that some client could not read.
pub(super) fn unreadable(text: &[u8]) -> Option<Mismatch> {
    if memchr::memmem::find(text, b"\\u").is_some() && has_lone_surrogate(text) {
        return Some(Mismatch::LoneSurrogate);
    }
    has_huge_number(text).then_some(Mismatch::HugeNumber)
}

fn has_lone_surrogate(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let mut found = false;
    json::rewrite_strings(&text, |string| {
        let is_whole = |raw: &str| json::decode_string(&format!("\"{raw}\"")).is_some();
        found |= string.raw.contains("\\u") && !is_whole(string.raw);
        None
    });
    found
}

/// Whether a number outside of strings overflows a double.
fn has_huge_number(text: &[u8]) -> bool {
    let (mut at, mut is_in_string) = (0, false);
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' if is_in_string => at += 1,
            b'"' => is_in_string = !is_in_string,
            b'-' | b'0'..=b'9' if !is_in_string => {
                let is_number =
                    |byte: &&u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = text[at..].iter().take_while(is_number).count();
                let number = std::str::from_utf8(&text[at..at + length]).unwrap_or_default();
                // Every number of at most `MAX_PLAIN` characters without an exponent fits a double.
                let may_be_huge = length > MAX_PLAIN || number.contains(['e', 'E']);
                if may_be_huge && number.parse::<f64>().is_ok_and(f64::is_infinite) {
                    return true;
                }
                at += length;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    false
}

/// Whether a text is an RFC 3339 timestamp with an offset; the seconds may be missing.
pub(super) fn is_timestamp(text: &str) -> bool {
    let Some((date, rest)) = text.split_once('T') else { return false };
    let (time, offset) = match rest.strip_suffix('Z') {
        Some(time) => (time, None),
        None => match rest.rfind(['+', '-']) {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => return false,
        },
    };
    is_date(date) && is_time(time) && offset.is_none_or(|it| it.len() == 5 && is_time(it))
}

fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2))
    else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(is_leap),
        _ => 31,
    };
    (1..=12).contains(&month) && (1..=days).contains(&day)
}

fn is_time(text: &str) -> bool {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    let is_digits = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<_> = whole.split(':').collect();
    let below = |part: &str, end: u32| number(part, 2).is_some_and(|it| it < end);
    match parts[..] {
        [hour, minute] => below(hour, 24) && below(minute, 60) && fraction.is_none(),
        [hour, minute, second] => {
            below(hour, 24)
                && below(minute, 60)
                && below(second, 60)
                && fraction.is_none_or(is_digits)
        }
        _ => false,
    }
}

/// Parses a number of exactly `digits` digits.
fn number(text: &str, digits: usize) -> Option<u32> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Number of digits that fit into a double without an exponent.
const MAX_PLAIN: usize = 308;
