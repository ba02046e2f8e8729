//! Text from a peer for logs and error messages: bounded, without control characters.

/// Bounds a text from outside and escapes its control characters.
pub fn quote(text: &str, max_chars: usize) -> String {
    let mut quoted = String::new();
    for character in text.trim().chars().take(max_chars) {
        match character {
            // Quoted texts stand between other quotes, so an apostrophe needs no escape.
            '\'' => quoted.push('\''),
            other => quoted.extend(other.escape_debug()),
        }
    }
    if text.trim().chars().count() > max_chars {
        quoted.push('…');
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_apostrophe_stays_and_what_a_terminal_would_execute_is_escaped() {
        assert_eq!(quote(" it's \"x\"\u{1b}[2J\n\u{202e}", 80), r#"it's \"x\"\u{1b}[2J\n\u{202e}"#);
        assert_eq!(quote("don't", 4), "don'…");
    }
}
