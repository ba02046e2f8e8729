//! Characters that nobody sees, wherever they stand.
//!
//! Not among them is what belongs to writing in its place: joiners, variation selectors, and single marks of direction.
//!
//! Knows nothing of: what is done about them.

/// Whether a character is a control character, turns the direction of text, or cannot be seen. Tab and line breaks
/// are control characters, too.
pub fn is_hidden(letter: char) -> bool {
    match letter {
        // C0, DEL and C1.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => true,
        // What turns the direction: embeddings, overrides, isolates, and a mark that has no other use.
        '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Without a width, or blank where one expects a letter; line breaks that are none in most places.
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' => true,
        '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' => true,
        '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' => true,
        // Tags, and what is kept free behind them.
        '\u{e0000}'..='\u{e00ff}' => true,
        _ => false,
    }
}
