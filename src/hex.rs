//! Bytes in words.
//!
//! Knows nothing of: what they are a hash of.

/// Bytes as hexadecimal digits, small letters.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn each_byte_is_two_digits() {
        assert_eq!(hex(&[0, 9, 10, 0xfe, 255]), "00090afeff");
        assert_eq!(hex(&[]), "");
    }
}
