//! Detector of text that is invisible to people and read by models.
//!
//! Invisible are: control characters except tab and line breaks (ESC begins terminal commands),
//! bidirectional controls, tag characters, and characters of zero width. Some of the last belong to
//! the writing of languages and to emoji, and are allowed: a joiner between two letters that are
//! not ASCII, one variation selector behind a letter, and one mark of direction. Runs of them,
//! which can smuggle text, are not allowed.
//!
//! Invariants: visible text stays unchanged; checking rewritten text again finds nothing. Therefore
//! a joiner or selector counts as visible only if the character before it is visible, and so
//! remains after rewriting.

use super::HiddenText;
use weir_base::text::invisible_chars::{is_invisible, visible_form};

/// Result for a text with invisible characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InvisibleText {
    /// The first invisible character.
    pub(super) first: char,
    /// Rewritten text, if the setting rewrites it.
    pub(super) replacement: Option<String>,
}

/// Checks a text; `None` if it contains nothing invisible. `is_name` marks names, which must stay
/// distinct: characters are replaced in them, and not removed.
pub(super) fn inspect(text: &str, setting: HiddenText, is_name: bool) -> Option<InvisibleText> {
    if setting == HiddenText::Pass || !may_contain_hidden(text.as_bytes()) {
        return None;
    }
    let hidden_marks = hidden_marks(text);
    let first =
        text.chars().zip(&hidden_marks).find(|(_, hidden)| **hidden).map(|(letter, _)| letter)?;
    let strip = setting == HiddenText::Strip && !is_name;
    let replacement = matches!(setting, HiddenText::Escape | HiddenText::Strip).then(|| {
        let mut out = String::with_capacity(text.len());
        for (letter, hidden) in text.chars().zip(hidden_marks) {
            match hidden {
                false => out.push(letter),
                true if strip => {}
                true => out.push_str(&visible_form(letter)),
            }
        }
        out
    });
    Some(InvisibleText { first, replacement })
}

/// Returns whether a text, or JSON that contains it, could contain invisible characters: fast, with
/// false positives but no false negatives.
pub(super) fn may_contain_hidden(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        let end = text.len().min(at + BLOCK_BYTES);
        if let Some(block) = text[at..].first_chunk()
            && !is_unusual(block)
        {
            at = end;
            continue;
        }
        while at < end {
            let (byte, next) = (text[at], text.get(at + 1).copied().unwrap_or_default());
            if may_begin_hidden(byte, next) {
                return true;
            }
            // In plain text a backslash may precede anything.
            at += if (byte, next) == (b'\\', b'\\') { 2 } else { 1 };
        }
    }
    false
}

/// Returns whether a block has anything except printable ASCII without the escapes that may mean
/// invisible characters. The last byte is only the one behind the block. The test has no branch
/// (`|`, not `||`), so that the compiler vectorizes it.
fn is_unusual(block: &[u8; BLOCK_BYTES + 1]) -> bool {
    let pairs = block.iter().zip(&block[1..]);
    pairs.fold(false, |found, (byte, next)| {
        let is_escape = (*byte == b'\\') & ((*next == b'u') | (*next == b'b') | (*next == b'f'));
        found | !(b' '..0x7F).contains(byte) | is_escape
    })
}

/// Returns whether an invisible character may begin with this byte and the next one in UTF-8, or as
/// an escape in JSON.
fn may_begin_hidden(byte: u8, next: u8) -> bool {
    match byte {
        b'\\' => matches!(next, b'u' | b'b' | b'f'),
        // Other characters with these first bytes are common: accents and Greek, Arabic, emoji.
        0xCD => next == 0x8F,
        0xD8 => next == 0x9C,
        0xF0 => next == 0x9D,
        0xC2 | 0xE1 | 0xE2 | 0xE3 | 0xEF | 0xF3 | 0x7F => true,
        _ => byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r'),
    }
}

/// Bytes tested at once.
const BLOCK_BYTES: usize = 32;

/// Returns for each character whether it is invisible.
fn hidden_marks(text: &str) -> Vec<bool> {
    let mut letters = text.chars().peekable();
    let mut hidden_marks = Vec::with_capacity(text.len());
    // The previous character, if it is visible, and the last visible one.
    let mut before: Option<char> = None;
    let mut last: Option<char> = None;
    while let Some(letter) = letters.next() {
        let is_hidden = match class_of(letter) {
            CharClass::Plain => false,
            CharClass::Hidden => true,
            // One mark, also after the invisible characters behind it are removed.
            CharClass::Mark => last.is_some_and(|it| class_of(it) == CharClass::Mark),
            // One selector, behind the character that it varies.
            CharClass::Selector => before.is_none_or(|it| class_of(it) != CharClass::Plain),
            // One joiner, between two characters that it joins.
            CharClass::Joiner => {
                let joined = |it: char| !it.is_ascii() && !it.is_whitespace();
                let joins =
                    |it: char| matches!(class_of(it), CharClass::Plain | CharClass::Selector);
                let before = before.is_some_and(|it| joined(it) && joins(it));
                let ends = |it: char| matches!(class_of(it), CharClass::Plain | CharClass::Mark);
                let behind = letters.peek().is_some_and(|it| joined(*it) && ends(*it));
                !(before && behind)
            }
        };
        before = (!is_hidden).then_some(letter);
        last = before.or(last);
        hidden_marks.push(is_hidden);
    }
    hidden_marks
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Plain,
    Hidden,
    Joiner,
    Selector,
    /// Mark of the direction of the text beside it.
    Mark,
}

/// Returns whether a character is visible and does not affect the class of its neighbours.
pub(super) fn is_plain(letter: char) -> bool {
    class_of(letter) == CharClass::Plain
}

fn class_of(letter: char) -> CharClass {
    match letter {
        '\u{200c}' | '\u{200d}' => CharClass::Joiner,
        '\u{200e}' | '\u{200f}' => CharClass::Mark,
        '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => CharClass::Selector,
        '\t' | '\n' | '\r' => CharClass::Plain,
        _ if is_invisible(letter) => CharClass::Hidden,
        _ => CharClass::Plain,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Characters that are invisible, alone among ASCII.
    pub(crate) const HIDDEN: [char; 75] = [
        '\0',
        '\u{1}',
        '\u{2}',
        '\u{4}',
        '\u{7}',
        '\u{8}',
        '\u{b}',
        '\u{c}',
        '\u{e}',
        '\u{f}',
        '\u{10}',
        '\u{18}',
        '\u{1a}',
        '\u{1b}',
        '\u{1c}',
        '\u{1f}',
        '\u{7f}',
        '\u{80}',
        '\u{84}',
        '\u{85}',
        '\u{8d}',
        '\u{90}',
        '\u{98}',
        '\u{9b}',
        '\u{9d}',
        '\u{9f}',
        '\u{180e}',
        '\u{200b}',
        '\u{200c}',
        '\u{200d}',
        '\u{2028}',
        '\u{2029}',
        '\u{202a}',
        '\u{202b}',
        '\u{202c}',
        '\u{202d}',
        '\u{202e}',
        '\u{2060}',
        '\u{2061}',
        '\u{2062}',
        '\u{2063}',
        '\u{2064}',
        '\u{2066}',
        '\u{2067}',
        '\u{2068}',
        '\u{2069}',
        '\u{206a}',
        '\u{206f}',
        '\u{3164}',
        '\u{feff}',
        '\u{ffa0}',
        '\u{fff9}',
        '\u{fffa}',
        '\u{fffb}',
        '\u{e0000}',
        '\u{e0001}',
        '\u{e0020}',
        '\u{e0041}',
        '\u{e0061}',
        '\u{e007a}',
        '\u{e007e}',
        '\u{e007f}',
        '\u{206c}',
        '\u{81}',
        '\u{ad}',
        '\u{34f}',
        '\u{61c}',
        '\u{115f}',
        '\u{1160}',
        '\u{17b4}',
        '\u{17b5}',
        '\u{1d173}',
        '\u{1d17a}',
        '\u{e0080}',
        '\u{e00ff}',
    ];

    fn rewritten(text: &str, setting: HiddenText) -> String {
        let found = inspect(text, setting, false).and_then(|hidden| hidden.replacement);
        found.unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn what_nobody_sees_is_found_and_rewritten() {
        for letter in HIDDEN {
            let text = format!("a{letter}b");
            let code = u32::from(letter);
            assert_eq!(inspect(&text, HiddenText::Pass, false), None);
            for setting in [HiddenText::Flag, HiddenText::Refuse] {
                let found = inspect(&text, setting, false);
                assert_eq!(
                    found,
                    Some(InvisibleText { first: letter, replacement: None }),
                    "U+{code:04X}"
                );
            }
            assert_eq!(rewritten(&text, HiddenText::Strip), "ab", "U+{code:04X}");
            assert_eq!(rewritten(&text, HiddenText::Escape), format!("a<U+{code:04X}>b"));
            // Two names never become one.
            let name =
                inspect(&text, HiddenText::Strip, true).and_then(|hidden| hidden.replacement);
            assert_eq!(name, Some(format!("a<U+{code:04X}>b")));
        }
    }

    #[test]
    fn what_belongs_to_writing_is_not_hidden() {
        for text in [
            "plain\ttext\r\nover lines \\ \"quoted\"",
            "héllo wörld, «ça»",
            "👩\u{200d}👩\u{200d}👧 and 👁\u{fe0f}\u{200d}🗨\u{fe0f} and 1\u{fe0f}\u{20e3}",
            "می\u{200c}خواهم क\u{94d}\u{200d}ष",
            "葛\u{e0100}飾",
            "\u{200f}שלום\u{200e}",
            "סלע \u{200f}(\u{200e}ab\u{200f})",
            "ه\u{200d}\u{200f}",
        ] {
            assert_eq!(inspect(text, HiddenText::Refuse, false), None, "{text:?}");
        }
    }

    #[test]
    fn runs_with_which_text_is_smuggled_are_hidden() {
        for (text, seen) in [
            ("é\u{200d}\u{200c}\u{200d}é", "éé"),
            ("a\u{200d}b", "ab"),
            ("é\u{200d}", "é"),
            ("\u{fe0f}\u{200d}é", "é"),
            ("👍\u{fe0f}\u{fe01}\u{e0100}\u{e01ef}", "👍\u{fe0f}"),
            ("🏴\u{e0067}\u{e0062}\u{e007f}", "🏴"),
            ("\u{1b}[31mred\u{1b}[0m", "[31mred[0m"),
            // One mark stays where there were more, whatever stood between them.
            ("a\u{200e}\u{200f}\u{200f}b", "a\u{200e}b"),
            ("a\u{200f}\u{200b}\u{200f}b", "a\u{200f}b"),
            ("é\u{200d}\u{200e}\u{200d}\u{200e}é", "é\u{200d}\u{200e}é"),
        ] {
            assert_eq!(rewritten(text, HiddenText::Strip), seen, "{text:?}");
        }
    }

    fn letters() -> impl Strategy<Value = String> {
        let odd = prop::sample::select(HIDDEN.to_vec());
        let joining = prop::sample::select(vec![
            '\u{200c}',
            '\u{200d}',
            '\u{200e}',
            '\u{200f}',
            '\u{fe0f}',
            '\u{e0100}',
        ]);
        let letter = prop_oneof![
            odd,
            joining,
            any::<char>(),
            prop::sample::select(vec!['a', 'é', '👩', ' '])
        ];
        prop::collection::vec(letter, 0..24).prop_map(String::from_iter)
    }

    #[test]
    fn emoji_and_most_letters_cost_nothing() {
        for (text, expected) in [
            ("🏠 سلام \u{301}", false),
            ("\u{1d400}", true),
            ("a\\\u{61c}", true),
            ("a\\\u{202e}", true),
            (r"a\\u202e\n", false),
            (r"a\\\u202e", true),
            ("\u{631}\u{61c}", true),
        ] {
            assert_eq!(may_contain_hidden(text.as_bytes()), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn it_finds_what_looking_at_each_byte_would(
            plain in 0..100_usize,
            text in prop::collection::vec(
                prop_oneof![Just(b'a'), Just(b'\n'), Just(b'\\'), Just(b'u'), Just(0xC3), any::<u8>()],
                0..100,
            ),
        ) {
            let text = [vec![b'a'; plain], text].concat();
            let next = |at: usize| text.get(at + 1).copied().unwrap_or_default();
            let begins = |at: usize| may_begin_hidden(text[at], next(at));
            // Behind a backslash it may also be a part of an escaped backslash.
            let is_sure = |at: usize| begins(at) && (at == 0 || text[at - 1] != b'\\');
            if (0..text.len()).any(is_sure) {
                prop_assert!(may_contain_hidden(&text));
            }
            if !(0..text.len()).any(begins) {
                prop_assert!(!may_contain_hidden(&text));
            }
        }

        #[test]
        fn looking_again_finds_nothing(text in letters(), strip in any::<bool>(), is_name in any::<bool>()) {
            let setting = if strip { HiddenText::Strip } else { HiddenText::Escape };
            if let Some(hidden) = inspect(&text, setting, is_name) {
                let replacement = hidden.replacement.expect("it is rewritten");
                prop_assert_eq!(inspect(&replacement, setting, is_name), None);
                prop_assert_eq!(inspect(&replacement, HiddenText::Refuse, is_name), None);
            }
        }

        #[test]
        fn what_may_hide_nothing_hides_nothing(text in letters()) {
            let quoted = weir_base::json::quote(&text);
            if hidden_marks(&text).contains(&true) {
                prop_assert!(may_contain_hidden(text.as_bytes()));
                prop_assert!(may_contain_hidden(&quoted));
            }
        }
    }
}
