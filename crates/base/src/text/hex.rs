//! Lower-case hex encoding, and decoding of hashes and their parts.

/// Encodes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    push_hex(&mut out, bytes);
    out
}

/// Decodes exactly two hexadecimal digits a byte, of either case.
pub fn decode<const BYTES: usize>(digits: &str) -> Option<[u8; BYTES]> {
    if digits.len() != 2 * BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Appends bytes to a text as lower-case hexadecimal digits.
pub fn push_hex(out: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 15)]);
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]));
}

#[cfg(test)]
mod tests {
    use super::{decode, hex};

    #[test]
    fn each_byte_is_two_digits() {
        assert_eq!(hex(&[0, 9, 10, 0xfe, 255]), "00090afeff");
        assert_eq!(hex(&[]), "");
        assert_eq!(decode("00090aFEff"), Some([0, 9, 10, 0xfe, 255]));
        for bad in ["", "000", "00090", "000g", "+100", "é00"] {
            assert_eq!(decode::<2>(bad), None, "{bad}");
        }
    }
}
