//! Format of generated API keys: `weir_`, 43 letters and digits, `_`, and 6 more as a checksum.
//!
//! The 43 characters are 256 random bits and slightly more: there are 62 letters and digits. The 6
//! are the CRC-32 of everything before the last `_`, so that secret scanners, and Weir itself, can
//! distinguish a key from a similar text or a truncated copy. The checksum does not protect the
//! key.
//!
//! Decision: docs/decisions/0014-identity-and-tokens.md

use zeroize::Zeroizing;

use weir_base::secrets::secret::Secret;

/// Generates an unguessable key.
pub fn new_key() -> Secret {
    let mut body = Zeroizing::new(String::with_capacity(PREFIX.len() + BODY_CHARS));
    body.push_str(PREFIX);
    while body.len() < PREFIX.len() + BODY_CHARS {
        let mut byte = [0];
        getrandom::fill(&mut byte).expect("the system has random numbers");
        // The last 8 of 256 values are drawn again: they would make the first digits slightly more
        // likely.
        if byte[0] < 248 {
            body.push(char::from(DIGITS[usize::from(byte[0] % 62)]));
        }
    }
    Secret::from(with_check(&body))
}

/// Returns whether a text begins like a generated key, but is not one.
pub(crate) fn is_mistyped(text: &str) -> bool {
    text.starts_with(PREFIX) && !is_key(text)
}

fn is_key(text: &str) -> bool {
    let Some((body, check)) = text.split_at_checked(PREFIX.len() + BODY_CHARS) else {
        return false;
    };
    let Some(digits) = body.strip_prefix(PREFIX) else { return false };
    digits.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && check.strip_prefix('_').is_some_and(|check| *check.as_bytes() == check_of(body))
}

fn with_check(body: &str) -> String {
    format!("{body}_{}", String::from_utf8_lossy(&check_of(body)))
}

fn check_of(body: &str) -> [u8; CHECK_CHARS] {
    let mut rest = crc32(body.as_bytes());
    let mut check = [b'0'; CHECK_CHARS];
    for digit in check.iter_mut().rev() {
        *digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    check
}

/// Computes the CRC-32 of ISO 3309 and zip with a table, because each request with a key pays for
/// it.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let low = crc.to_le_bytes()[0] ^ byte;
        (crc >> 8) ^ REMAINDERS[usize::from(low)]
    };
    !bytes.iter().fold(!0, step)
}

/// CRC remainder of each byte value.
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        let (mut crc, mut bit) = (value as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[value] = crc;
        value += 1;
    }
    table
};

/// Prefix of keys.
const PREFIX: &str = "weir_";
/// Number of random letters and digits: 62^43 is more than 2^256.
const BODY_CHARS: usize = 43;
const CHECK_CHARS: usize = 6;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};

    #[test]
    fn a_key_is_recognised_and_one_that_is_cut_or_mistyped_is_told() {
        let key = new_key();
        let key = key.expose();
        assert!(is_key(key) && !is_mistyped(key), "{} characters", key.len());
        assert_eq!(key.len(), 55);
        for at in 0..key.len() {
            let mut changed = key.as_bytes().to_vec();
            changed[at] = if changed[at] == b'x' { b'y' } else { b'x' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(!is_key(&changed) && (at < PREFIX.len() || is_mistyped(&changed)), "{at}");
            assert!(!is_key(&key[..at]) && (at < PREFIX.len() || is_mistyped(&key[..at])), "{at}");
        }
        assert!(is_mistyped(&format!("{key} ")) && is_mistyped(&format!("{key}x")));
        for other in ["", "weir", "9f86d081884c7d65", "Weir_x", "ey.J.x"] {
            assert!(!is_mistyped(other), "{other}");
        }
    }

    #[test]
    fn the_check_is_the_crc_that_others_compute() {
        // The check value of the algorithm's own catalogues, and one of base 62.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(with_check("123456789"), "123456789_3jZRME");
    }

    #[test]
    fn keys_differ_and_every_digit_is_as_likely_as_the_others() {
        let keys: HashSet<_> = (0..5_000).map(|_| new_key().expose().to_owned()).collect();
        assert_eq!(keys.len(), 5_000);
        let mut counts = BTreeMap::new();
        for digit in
            keys.iter().flat_map(|key| key[PREFIX.len()..PREFIX.len() + BODY_CHARS].chars())
        {
            *counts.entry(digit).or_insert(0) += 1;
        }
        // 3 468 of each are expected, with a deviation of 58.
        assert_eq!(counts.len(), 62);
        assert!(counts.values().all(|count| (3_100..3_850).contains(count)), "{counts:?}");
    }
}
