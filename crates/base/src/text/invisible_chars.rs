//! Invisible and bidirectional Unicode characters.
//!
//! Not among [`is_invisible`] are characters that belong to the writing in their place: joiners,
//! variation selectors, and single marks of direction.

/// Returns whether a character is a control character, changes the direction of text, or is
/// invisible. Tab and line breaks are control characters, too.
pub fn is_invisible(letter: char) -> bool {
    match letter {
        // C0, DEL and C1.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => true,
        // Bidirectional controls: embeddings, overrides, isolates, and a mark that has no other
        // use.
        '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Characters of zero width, or blank where a letter is expected; rarely supported line
        // breaks.
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' => true,
        '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' => true,
        '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' => true,
        // Tags, and the unassigned code points behind them.
        '\u{e0000}'..='\u{e00ff}' => true,
        _ => false,
    }
}

/// Returns whether a character is a single mark of direction, which some texts need.
pub fn is_mark_of_direction(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}')
}

/// Returns the visible form of a character.
pub fn visible_form(letter: char) -> String {
    format!("<U+{:04X}>", u32::from(letter))
}

/// Returns a text for a reviewer: each character is visible, or in its visible form. Joiners,
/// selectors and marks of direction have it, too, and all blanks except the space.
pub fn make_visible(text: &str) -> String {
    let is_drawn = |letter: char| match letter {
        '\u{200c}'..='\u{200f}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e0fff}' => true,
        // A blank of Braille, and characters for private use, which no font needs to have.
        '\u{2800}' | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}' => true,
        // Joins graphemes, or selects the form of Mongolian letters and of Khmer ones.
        '\u{180b}'..='\u{180f}' | '\u{16fe4}' | '\u{1bca0}'..='\u{1bca3}' => true,
        ' ' => false,
        _ => is_invisible(letter) || letter.is_whitespace(),
    };
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_drawn(letter) {
            true => out.push_str(&visible_form(letter)),
            false => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_for_a_reviewer_has_no_hidden_character() {
        for (text, expected) in [
            ("plain ü 漢 😀", "plain ü 漢 😀"),
            ("a\u{202e}b\u{200b}\u{e0041}", "a<U+202E>b<U+200B><U+E0041>"),
            ("a\u{200d}b\u{fe0f}\u{e0101}\u{200e}", "a<U+200D>b<U+FE0F><U+E0101><U+200E>"),
            ("a\u{a0}b\tc\rd\u{2003}\u{2800}", "a<U+00A0>b<U+0009>c<U+000D>d<U+2003><U+2800>"),
            ("\u{1b}[2J\u{e000}", "<U+001B>[2J<U+E000>"),
        ] {
            assert_eq!(make_visible(text), expected);
        }
    }
}
