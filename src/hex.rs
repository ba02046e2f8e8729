//! Lower-case hex encoding, and decoding of hashes.

/// Encodes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    push_hex(&mut out, bytes);
    out
}

/// Decodes exactly 64 hexadecimal digits, of either case.
pub fn decode_32_bytes(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Appends bytes to a text as lower-case hexadecimal digits.
pub fn push_hex(out: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
    // A hash is appended at once: each line of the audit log has one.
    for bytes in bytes.chunks(32) {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            pair.copy_from_slice(&[digit(byte >> 4), digit(*byte)]);
        }
        let digits = std::str::from_utf8(&digits[..2 * bytes.len()]);
        out.push_str(digits.expect("digits are ASCII"));
    }
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
