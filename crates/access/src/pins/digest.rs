//! Digest of a definition: a hash of its canonical form.
//!
//! The canonical form is that of RFC 8785 (JCS): members sorted, no white space, one notation for
//! each string and number. So a server that only changes its JSON formatting has changed nothing.
//! Where JCS would map two different texts to one (integers beyond 2⁵³, numbers out of range), or
//! cannot process a text (a duplicate member), the text itself is used.
//!
//! The version of this formula is a part of the digest: digests of other versions are never equal.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use weir_base::json::{self, Object};
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::{decode, hex};

/// Digest of a definition. As text, `v1:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The text is not a digest of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is `v1:` and 64 hexadecimal digits")]
pub struct BadDigest;

impl Digest {
    /// Computes the digest of a JSON text.
    pub fn of(text: &Bytes) -> Self {
        Self::of_canonical(&canonical(text))
    }

    /// Computes the digest of a text in canonical form.
    pub(super) fn of_canonical(text: &[u8]) -> Self {
        Self(sha256(text))
    }

    /// Computes the digest of a plain text.
    pub(crate) fn of_text(text: &str) -> Self {
        Self::of(&json::quote(text))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}{}", hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        text.strip_prefix(VERSION).and_then(decode).map(Self).ok_or(BadDigest)
    }
}

/// Returns the canonical form of a JSON text.
pub(super) fn canonical(text: &Bytes) -> Vec<u8> {
    let mut canonical = Vec::with_capacity(text.len());
    write(text, &mut canonical);
    canonical
}

/// Appends the canonical form of a JSON text.
fn write(text: &Bytes, out: &mut Vec<u8>) {
    match text.trim_ascii().first() {
        Some(b'{') => match Object::parse_within(text.clone(), usize::MAX) {
            Ok(object) => write_object(&object, out),
            Err(_) => out.extend_from_slice(text),
        },
        Some(b'[') => {
            out.push(b'[');
            for (at, element) in json::elements(text).unwrap_or_default().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(&element, out);
            }
            out.push(b']');
        }
        _ => {
            let plain = std::str::from_utf8(text).unwrap_or_default().trim();
            match plain.starts_with('"') {
                true => match json::decode_string(plain) {
                    Some(string) => out.extend_from_slice(&json::quote(&string)),
                    None => out.extend_from_slice(plain.as_bytes()),
                },
                false => out.extend_from_slice(number(plain).as_bytes()),
            }
        }
    }
}

fn write_object(object: &Object, out: &mut Vec<u8>) {
    let mut members: Vec<(&str, Bytes)> = object.members().collect();
    // RFC 8785, 3.2.3: by UTF-16 code units.
    members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    out.push(b'{');
    for (at, (key, value)) in members.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&json::quote(key));
        out.push(b':');
        write(&value, out);
    }
    out.push(b'}');
}

/// Formats a number like ECMAScript (RFC 8785, 3.2.2.3); other words stay unchanged.
fn number(text: &str) -> String {
    let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let Some(value) = text.parse::<f64>().ok().filter(|value| is_number && value.is_finite())
    else {
        return text.to_owned();
    };
    let is_integer = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
    if is_integer && value.abs() > MAX_SAFE {
        return text.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    // The shortest digits of this number, and the position of the decimal point.
    let written = format!("{:e}", value.abs());
    let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    let count = digits.len() as i32;
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    let plain = if count <= point && point <= 21 {
        format!("{digits}{}", zeros(point - count))
    } else if 0 < point && point <= 21 {
        let (whole, rest) = digits.split_at(point as usize);
        format!("{whole}.{rest}")
    } else if -6 < point && point <= 0 {
        format!("0.{}{digits}", zeros(-point))
    } else {
        let (first, rest) = digits.split_at(1);
        let dot = if rest.is_empty() { "" } else { "." };
        format!("{first}{dot}{rest}e{:+}", point - 1)
    };
    format!("{}{plain}", if value < 0.0 { "-" } else { "" })
}

const VERSION: &str = "v1:";
/// Up to this value every integer has an exact double.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        String::from_utf8(super::canonical(&text.to_owned().into())).expect("text")
    }

    #[test]
    fn the_form_is_that_of_rfc_8785() {
        // Its own examples, 3.2.3 and appendix B.
        let sorted = r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#;
        let values: Vec<_> =
            canonical(sorted).split('"').skip(3).step_by(4).map(str::to_owned).collect();
        assert_eq!(
            values,
            [
                "Carriage Return",
                "One",
                "Control",
                "Latin Small Letter O With Diaeresis",
                "Euro Sign",
                "Emoji: Grinning Face",
                "Hebrew Letter Dalet With Dagesh",
            ]
        );
        for (text, expected) in [
            ("333333333.33333329", "333333333.3333333"),
            ("1E30", "1e+30"),
            ("4.50", "4.5"),
            ("2e-3", "0.002"),
            ("0.000000000000000000000000001", "1e-27"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("9007199254740992", "9007199254740992"),
            ("9007199254740993", "9007199254740993"),
            ("295147905179352830000", "295147905179352830000"),
            ("1e21", "1e+21"),
            ("1e20", "100000000000000000000"),
            ("9.999999999999997e22", "9.999999999999997e+22"),
            ("1e-6", "0.000001"),
            ("1e-7", "1e-7"),
            ("-1.5", "-1.5"),
            ("1e400", "1e400"),
            ("true", "true"),
            (" null ", "null"),
            (r#""\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/""#, r#""€$\u000f\nA'B\"\\\\\"/""#),
            (r#"{ "b" : [ 1.0 , {} ] , "\u0061" : 1e0 }"#, r#"{"a":1,"b":[1,{}]}"#),
            // Unreadable text is used unchanged.
            (r#"{"a":{"x":1,"x":2}}"#, r#"{"a":{"x":1,"x":2}}"#),
            (r#"["\ud800"]"#, r#"["\ud800"]"#),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn a_digest_is_written_and_read() {
        let digest = Digest::of(&r#"{"b":1,"a":"x"}"#.into());
        let text = "v1:d2c7cea6bd9c93b5a0ca5a1b8a4bb6ff0dcdc06e6d3d6bbbb4d3c1a1d7fa5f4b";
        assert_eq!(digest.to_string().len(), text.len());
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(digest, Digest::of(&r#" { "a" : "\u0078", "b": 1.0 }"#.into()));
        assert_ne!(digest, Digest::of(&r#"{"a":"x","b":2}"#.into()));
        for bad in ["", "v1:", "v2:00", &text[3..], &format!("{text}0"), &text.replace('d', "g")] {
            assert_eq!(bad.parse::<Digest>(), Err(BadDigest), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn one_value_has_one_digest(value in any::<f64>().prop_filter("finite", |it| it.is_finite())) {
            let plain = format!("{value}");
            let scientific = format!("{value:e}");
            if value.abs() < MAX_SAFE || plain.contains('.') {
                prop_assert_eq!(number(&plain), number(&scientific));
            } else {
                // Beyond 2⁵³ an integer that is written out is a text of its own.
                prop_assert_eq!(number(&plain), &*plain);
                prop_assert_eq!(number(&scientific).parse::<f64>(), Ok(value));
            }
            prop_assert_eq!(number(&plain).parse::<f64>(), Ok(value));
        }
    }
}
