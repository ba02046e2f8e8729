//! Text from a peer for logs and error messages: bounded, without control characters.

/// Bounds a text from outside and escapes its control characters.
pub fn quote(text: &str, max_chars: usize) -> String {
    let mut quoted: String =
        text.trim().chars().take(max_chars).flat_map(char::escape_debug).collect();
    if text.trim().chars().count() > max_chars {
        quoted.push('…');
    }
    quoted
}
