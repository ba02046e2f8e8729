//! Text that a person does not see and a model reads.
//!
//! Hidden are: control characters but tab and line breaks (ESC begins what a terminal obeys), what turns the
//! direction of writing, tag characters, and characters without a width. Some of the last belong to the writing of
//! languages and to emoji: a joiner between two letters that are not ASCII, and one variation selector behind a
//! letter, are not hidden. Runs of them, with which text is smuggled, are.
//!
//! Promises: what is not hidden stays; looking again at what was rewritten finds nothing. For the latter a joiner
//! or selector counts as seen only if what stands before it was seen, too, and so is there after rewriting.
//!
//! Knows nothing of: JSON, and where the text came from.

use super::HiddenText;

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
    // The first bytes of what is hidden, in UTF-8; 0x7F and what begins an escape in JSON.
    let is_odd = |byte: u8| {
        matches!(byte, 0xC2 | 0xE1 | 0xE2 | 0xE3 | 0xEF | 0xF3 | 0x7F | b'\\')
            || (byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r'))
    };
    let escapes_nothing_odd = |next: Option<&u8>| !matches!(next, Some(b'u' | b'b' | b'f'));
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| is_odd(*byte)) {
        if rest[at] != b'\\' || !escapes_nothing_odd(rest.get(at + 1)) {
            return true;
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    false
}

/// A character's name where it must be seen.
pub(super) fn shown(letter: char) -> String {
    format!("<U+{:04X}>", u32::from(letter))
}

/// Of each character, whether it is hidden.
fn marks(text: &str) -> Vec<bool> {
    let mut letters = text.chars().peekable();
    let mut marks = Vec::with_capacity(text.len());
    // The character before, if it is seen.
    let mut before: Option<char> = None;
    while let Some(letter) = letters.next() {
        let is_hidden = match sort(letter) {
            Sort::Plain => false,
            Sort::Hidden => true,
            // One, behind what it varies.
            Sort::Selector => before.is_none_or(|it| sort(it) != Sort::Plain),
            // One, between two that it joins.
            Sort::Joiner => {
                let joined = |it: char| !it.is_ascii() && !it.is_whitespace();
                let before = before.is_some_and(|it| joined(it) && sort(it) != Sort::Joiner);
                let behind =
                    letters.peek().is_some_and(|it| joined(*it) && sort(*it) == Sort::Plain);
                !(before && behind)
            }
        };
        before = (!is_hidden).then_some(letter);
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
}

fn sort(letter: char) -> Sort {
    match letter {
        '\t' | '\n' | '\r' => Sort::Plain,
        // C0, DEL and C1.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => Sort::Hidden,
        // What turns the direction: embeddings, overrides, isolates.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Sort::Hidden,
        // Without a width, or blank where one expects a letter; line breaks that are none in most places.
        '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' => Sort::Hidden,
        '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{ffa0}' | '\u{feff}' => Sort::Hidden,
        '\u{fff0}'..='\u{fffb}' => Sort::Hidden,
        // Tags.
        '\u{e0000}'..='\u{e007f}' => Sort::Hidden,
        '\u{200c}' | '\u{200d}' => Sort::Joiner,
        '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => Sort::Selector,
        _ => Sort::Plain,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 64 characters that nobody sees, alone among ASCII.
    pub(in crate::guard) const HIDDEN: [char; 64] = [
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
        ] {
            assert_eq!(rewritten(text, HiddenText::Strip), seen, "{text:?}");
        }
    }

    fn letters() -> impl Strategy<Value = String> {
        let odd = prop::sample::select(HIDDEN.to_vec());
        let joining = prop::sample::select(vec!['\u{200c}', '\u{200d}', '\u{fe0f}', '\u{e0100}']);
        let letter = prop_oneof![
            odd,
            joining,
            any::<char>(),
            prop::sample::select(vec!['a', 'é', '👩', ' '])
        ];
        prop::collection::vec(letter, 0..24).prop_map(String::from_iter)
    }

    proptest! {
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
