//! Text that a person does not see and a model reads.
//!
//! Hidden are: control characters but tab and line breaks (ESC begins what a terminal obeys), what turns the
//! direction of writing, tag characters, and characters without a width. Some of the last belong to the writing of
//! languages and to emoji: a joiner between two letters that are not ASCII, one variation selector behind a
//! letter, and one mark of direction, are not hidden. Runs of them, with which text is smuggled, are.
//!
//! Promises: what is not hidden stays; looking again at what was rewritten finds nothing. For the latter a joiner
//! or selector counts as seen only if what stands before it was seen, too, and so is there after rewriting.
//!
//! Knows nothing of: JSON, and where the text came from.

use super::HiddenText;
use crate::invisible_chars::is_hidden;

/// What comes of a text that hides something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hidden {
    /// The first character that nobody sees.
    pub(super) first: char,
    /// The text to put in its place, if it is to be rewritten.
    pub(super) instead: Option<String>,
}

/// Looks at a text; `None` if it hides nothing. `is_name` is a text that must not become another's twin: nothing is
/// taken out of it without a trace.
pub(super) fn look(text: &str, setting: HiddenText, is_name: bool) -> Option<Hidden> {
    if setting == HiddenText::Pass || !may_hide(text.as_bytes()) {
        return None;
    }
    let marks = marks(text);
    let first = text.chars().zip(&marks).find(|(_, hidden)| **hidden).map(|(letter, _)| letter)?;
    let strip = setting == HiddenText::Strip && !is_name;
    let instead = matches!(setting, HiddenText::Escape | HiddenText::Strip).then(|| {
        let mut out = String::with_capacity(text.len());
        for (letter, hidden) in text.chars().zip(marks) {
            match hidden {
                false => out.push(letter),
                true if strip => {}
                true => out.push_str(&shown(letter)),
            }
        }
        out
    });
    Some(Hidden { first, instead })
}

/// Whether a text, or JSON that holds it, could hide anything: cheap, and wrong in one direction only.
pub(super) fn may_hide(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = next_odd(rest) {
        let (odd, next) = (rest[at], rest.get(at + 1).copied().unwrap_or_default());
        let may_hide = match odd {
            b'\\' => matches!(next, b'u' | b'b' | b'f'),
            // Others with these first bytes are common: accents and Greek, Arabic, emoji.
            0xCD => next == 0x8F,
            0xD8 => next == 0x9C,
            0xF0 => next == 0x9D,
            _ => true,
        };
        if may_hide {
            return true;
        }
        // In plain text a backslash may stand before anything.
        let taken = if (odd, next) == (b'\\', b'\\') { 2 } else { 1 };
        rest = rest.get(at + taken..).unwrap_or_default();
    }
    false
}

/// Where the next odd byte stands.
fn next_odd(text: &[u8]) -> Option<usize> {
    // Printable ASCII but the backslash is all that most blocks hold. Without a branch (`|`, not `||`), or the compiler looks
    // at one byte after the other.
    let is_else = |byte: &u8| !(b' '..0x7F).contains(byte) | (*byte == b'\\');
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let is_odd_in = |part: &[u8]| part.iter().position(|byte| is_odd(*byte));
    for (number, block) in blocks.iter().enumerate() {
        if block.iter().fold(false, |found, byte| found | is_else(byte))
            && let Some(place) = is_odd_in(block)
        {
            return Some(number * BLOCK + place);
        }
    }
    is_odd_in(rest).map(|place| text.len() - rest.len() + place)
}

/// Whether what is hidden may begin with this byte, in UTF-8: 0x7F and what begins an escape in JSON, too.
fn is_odd(byte: u8) -> bool {
    matches!(byte, 0xC2 | 0xCD | 0xD8 | 0xE1 | 0xE2 | 0xE3 | 0xEF | 0xF0 | 0xF3 | 0x7F | b'\\')
        || (byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r'))
}

/// How many bytes are looked at at once.
const BLOCK: usize = 32;

/// A character's name where it must be seen.
pub(super) fn shown(letter: char) -> String {
    format!("<U+{:04X}>", u32::from(letter))
}

/// Of each character, whether it is hidden.
fn marks(text: &str) -> Vec<bool> {
    let mut letters = text.chars().peekable();
    let mut marks = Vec::with_capacity(text.len());
    // The character before, if it is seen, and the last one that is.
    let mut before: Option<char> = None;
    let mut last: Option<char> = None;
    while let Some(letter) = letters.next() {
        let is_hidden = match sort(letter) {
            Sort::Plain => false,
            Sort::Hidden => true,
            // One, also when what is hidden behind it is taken out.
            Sort::Mark => last.is_some_and(|it| sort(it) == Sort::Mark),
            // One, behind what it varies.
            Sort::Selector => before.is_none_or(|it| sort(it) != Sort::Plain),
            // One, between two that it joins.
            Sort::Joiner => {
                let joined = |it: char| !it.is_ascii() && !it.is_whitespace();
                let joins = |it: char| matches!(sort(it), Sort::Plain | Sort::Selector);
                let before = before.is_some_and(|it| joined(it) && joins(it));
                let ends = |it: char| matches!(sort(it), Sort::Plain | Sort::Mark);
                let behind = letters.peek().is_some_and(|it| joined(*it) && ends(*it));
                !(before && behind)
            }
        };
        before = (!is_hidden).then_some(letter);
        last = before.or(last);
        marks.push(is_hidden);
    }
    marks
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Plain,
    Hidden,
    Joiner,
    Selector,
    /// Says which way the text beside it runs.
    Mark,
}

/// Whether a character is seen, and takes no part in how those beside it are judged.
pub(super) fn is_plain(letter: char) -> bool {
    sort(letter) == Sort::Plain
}

fn sort(letter: char) -> Sort {
    match letter {
        '\u{200c}' | '\u{200d}' => Sort::Joiner,
        '\u{200e}' | '\u{200f}' => Sort::Mark,
        '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => Sort::Selector,
        '\t' | '\n' | '\r' => Sort::Plain,
        _ if is_hidden(letter) => Sort::Hidden,
        _ => Sort::Plain,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Characters that nobody sees, alone among ASCII.
    pub(in crate::guard) const HIDDEN: [char; 75] = [
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
        let found = look(text, setting, false).and_then(|hidden| hidden.instead);
        found.unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn what_nobody_sees_is_found_and_rewritten() {
        for letter in HIDDEN {
            let text = format!("a{letter}b");
            let code = u32::from(letter);
            assert_eq!(look(&text, HiddenText::Pass, false), None);
            for setting in [HiddenText::Flag, HiddenText::Refuse] {
                let found = look(&text, setting, false);
                assert_eq!(found, Some(Hidden { first: letter, instead: None }), "U+{code:04X}");
            }
            assert_eq!(rewritten(&text, HiddenText::Strip), "ab", "U+{code:04X}");
            assert_eq!(rewritten(&text, HiddenText::Escape), format!("a<U+{code:04X}>b"));
            // Two names never become one.
            let name = look(&text, HiddenText::Strip, true).and_then(|hidden| hidden.instead);
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
            assert_eq!(look(text, HiddenText::Refuse, false), None, "{text:?}");
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
            assert_eq!(may_hide(text.as_bytes()), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn it_stops_where_looking_at_each_byte_would(
            plain in 0..100_usize,
            text in prop::collection::vec(prop_oneof![Just(b'a'), Just(b'\n'), Just(0xC3), any::<u8>()], 0..100),
        ) {
            let text = [vec![b'a'; plain], text].concat();
            prop_assert_eq!(next_odd(&text), text.iter().position(|byte| is_odd(*byte)));
        }

        #[test]
        fn looking_again_finds_nothing(text in letters(), strip in any::<bool>(), is_name in any::<bool>()) {
            let setting = if strip { HiddenText::Strip } else { HiddenText::Escape };
            if let Some(hidden) = look(&text, setting, is_name) {
                let instead = hidden.instead.expect("it is rewritten");
                prop_assert_eq!(look(&instead, setting, is_name), None);
                prop_assert_eq!(look(&instead, HiddenText::Refuse, is_name), None);
            }
        }

        #[test]
        fn what_may_hide_nothing_hides_nothing(text in letters()) {
            let quoted = crate::json::quote(&text);
            if marks(&text).contains(&true) {
                prop_assert!(may_hide(text.as_bytes()));
                prop_assert!(may_hide(&quoted));
            }
        }
    }
}
