//! Bytes in words.
//!
//! Knows nothing of: what they are a hash of.

/// Bytes as hexadecimal digits, small letters.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 15)]);
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        out.push(digit(byte >> 4));
        out.push(digit(*byte));
    }
    out
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
