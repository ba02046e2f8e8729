//! Invisible and bidirectional Unicode characters.
//!
//! Not among them are characters that belong to the writing in their place: joiners, variation
//! selectors, and single marks of direction.

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
