//! Passes over JSON text: checks it and tells where things stand in it.
//!
//! Promises: what passes is JSON as RFC 8259 has it, apart from what the escapes of a string mean, nested at most so
//! deep as allowed; a text of any depth is passed in bounded stack. Bytes inside strings are taken many at a time, which
//! is why it is here: this is what each message is read with.
//!
//! Knows nothing of: UTF-8, which its caller has checked, and what the values mean.

use std::ops::Range;

/// Why a text does not pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It is no JSON.
    Syntax,
    /// It is nested more deeply than allowed.
    TooDeep,
}

/// A member of the object that a text is, or of one inside of it.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// In how many objects its own one stands.
    pub(super) level: usize,
    /// Its key, with the quotes.
    pub(super) key: Range<usize>,
    /// Whether anything in the key is written as an escape.
    pub(super) is_escaped: bool,
    pub(super) value: Range<usize>,
}

/// The keys, with the quotes, of members that are gone into: of the object itself, of those, and so on.
pub(super) type Along<'a> = &'a [&'a [&'a [u8]]];

/// A text that is passed over.
pub(super) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    /// How many levels there may be.
    depth: usize,
    /// Whether there is any byte that must not stand in a string. Most messages are on one line, and have none.
    has_controls: bool,
    /// Whether the text has passed before.
    has_passed: bool,
}

impl<'a> Scan<'a> {
    /// Passes over a text, at most `depth` levels deep.
    pub(super) fn begin(text: &'a [u8], depth: usize) -> Self {
        let least = text.iter().fold(u8::MAX, |least, byte| least.min(*byte));
        Self { text, at: 0, depth, has_controls: least < b' ', has_passed: false }
    }

    /// Passes over a text that has passed before, or is a part of one: what is in its values is not looked at again.
    pub(super) fn again(text: &'a [u8]) -> Self {
        Self::again_from(text, 0)
    }

    /// The same from a place on that it has come to before.
    pub(super) fn again_from(text: &'a [u8], at: usize) -> Self {
        Self { text, at, depth: usize::MAX, has_controls: false, has_passed: true }
    }

    /// Shows each member of the object that the text is. Of those whose keys, written without escapes, are among the first
    /// of `along`, the members are shown before, and so on with the rest of `along`.
    pub(super) fn members(
        mut self,
        along: Along<'_>,
        mut show: impl FnMut(Found),
    ) -> Result<(), Flaw> {
        self.white();
        self.object(0, along, &mut show)?;
        self.end()
    }

    fn object(
        &mut self,
        level: usize,
        along: Along<'_>,
        show: &mut impl FnMut(Found),
    ) -> Result<(), Flaw> {
        self.enter(b'{', level)?;
        if self.leaves(b'}') {
            return Ok(());
        }
        loop {
            let start = self.at;
            let is_escaped = self.string()?;
            let key = start..self.at;
            self.colon()?;
            let start = self.at;
            match along.split_first() {
                Some((keys, along))
                    if self.peek() == Some(b'{')
                        && keys.iter().any(|name| self.text[key.clone()] == **name) =>
                {
                    self.object(level + 1, along, show)?;
                }
                _ => self.value(level + 1)?,
            }
            show(Found { level, key, is_escaped, value: start..self.at });
            if !self.goes_on(b'}')? {
                return Ok(());
            }
        }
    }

    /// Passes over the array that the text is.
    pub(super) fn array(mut self) -> Result<(), Flaw> {
        let mut goes_on = self.enter_array()?;
        while goes_on {
            (_, goes_on) = self.element()?;
        }
        self.end()
    }

    /// Passes the bracket that begins the array that the text is; tells whether there is an element behind it.
    pub(super) fn enter_array(&mut self) -> Result<bool, Flaw> {
        self.white();
        self.enter(b'[', 0)?;
        Ok(!self.leaves(b']'))
    }

    /// Passes one element of that array, and returns its place and whether there is another one.
    pub(super) fn element(&mut self) -> Result<(Range<usize>, bool), Flaw> {
        let start = self.at;
        self.value(1)?;
        let place = start..self.at;
        Ok((place, self.goes_on(b']')?))
    }

    /// How far it has come.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn white(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Result<(), Flaw> {
        if self.peek() != Some(byte) {
            return Err(Flaw::Syntax);
        }
        self.at += 1;
        Ok(())
    }

    /// Passes the bracket that begins a level within `levels` others, and what is white behind it.
    fn enter(&mut self, bracket: u8, levels: usize) -> Result<(), Flaw> {
        self.take(bracket)?;
        if levels >= self.depth {
            return Err(Flaw::TooDeep);
        }
        self.white();
        Ok(())
    }

    /// Passes this bracket, should it come next.
    fn leaves(&mut self, bracket: u8) -> bool {
        let is_next = self.peek() == Some(bracket);
        self.at += usize::from(is_next);
        is_next
    }

    /// Behind a value: passes the comma, which something follows, or the bracket, which nothing does.
    fn goes_on(&mut self, bracket: u8) -> Result<bool, Flaw> {
        self.white();
        if self.leaves(bracket) {
            return Ok(false);
        }
        self.take(b',')?;
        self.white();
        Ok(true)
    }

    /// Passes the colon behind a key.
    fn colon(&mut self) -> Result<(), Flaw> {
        self.white();
        self.take(b':')?;
        self.white();
        Ok(())
    }

    /// Nothing but white space may follow.
    fn end(&mut self) -> Result<(), Flaw> {
        self.white();
        if self.at == self.text.len() { Ok(()) } else { Err(Flaw::Syntax) }
    }

    /// Passes one value, which stands within so many levels.
    fn value(&mut self, levels: usize) -> Result<(), Flaw> {
        if self.has_passed {
            return self.skip();
        }
        let mut open = Brackets::default();
        loop {
            match self.peek().ok_or(Flaw::Syntax)? {
                b'"' => _ = self.string()?,
                b'{' => {
                    self.enter(b'{', levels.saturating_add(open.count))?;
                    if !self.leaves(b'}') {
                        open.push(b'}');
                        self.string()?;
                        self.colon()?;
                        continue;
                    }
                }
                b'[' => {
                    self.enter(b'[', levels.saturating_add(open.count))?;
                    if !self.leaves(b']') {
                        open.push(b']');
                        continue;
                    }
                }
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                _ => self.number()?,
            }
            loop {
                let Some(bracket) = open.last() else { return Ok(()) };
                if !self.goes_on(bracket)? {
                    open.pop();
                    continue;
                }
                if bracket == b'}' {
                    self.string()?;
                    self.colon()?;
                }
                break;
            }
        }
    }

    /// Passes one value of a text that has passed before, by its quotes and brackets alone.
    fn skip(&mut self) -> Result<(), Flaw> {
        let mut open = 0_usize;
        loop {
            match self.peek().ok_or(Flaw::Syntax)? {
                b'"' => _ = self.string()?,
                b'{' | b'[' => {
                    self.at += 1;
                    open += 1;
                }
                b'}' | b']' if open > 0 => {
                    self.at += 1;
                    open -= 1;
                }
                // A part of a number or a word, or what stands between two values.
                _ if open > 0 => self.at += 1,
                _ => {
                    let rest = &self.text[self.at..];
                    let end = rest.iter().position(|byte| b",}] \n\r\t".contains(byte));
                    self.at += end.unwrap_or(rest.len());
                }
            }
            if open == 0 {
                return Ok(());
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Flaw> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Flaw::Syntax);
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Flaw> {
        self.leaves(b'-');
        if !self.leaves(b'0') {
            self.digits()?;
        }
        if self.leaves(b'.') {
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if !self.leaves(b'+') {
                self.leaves(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Passes one digit or more.
    fn digits(&mut self) -> Result<(), Flaw> {
        let rest = &self.text[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        if count == 0 { Err(Flaw::Syntax) } else { Ok(()) }
    }

    /// Passes a string, and tells whether anything in it is written as an escape.
    fn string(&mut self) -> Result<bool, Flaw> {
        self.take(b'"')?;
        let mut is_escaped = false;
        loop {
            let rest = &self.text[self.at..];
            let length = plain(rest).ok_or(Flaw::Syntax)?;
            if self.has_controls && rest[..length].iter().any(|byte| *byte < b' ') {
                return Err(Flaw::Syntax);
            }
            self.at += length;
            if self.leaves(b'"') {
                return Ok(is_escaped);
            }
            is_escaped = true;
            self.escape()?;
        }
    }

    fn escape(&mut self) -> Result<(), Flaw> {
        let length = match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') => 6,
            _ => return Err(Flaw::Syntax),
        };
        let digits = self.text.get(self.at + 2..self.at + length).ok_or(Flaw::Syntax)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Flaw::Syntax);
        }
        self.at += length;
        Ok(())
    }
}

/// How many bytes stand before the next quote or backslash. Most strings are short: their first bytes are looked at here,
/// eight at once, since getting at the library costs as much as passing thirty bytes.
fn plain(text: &[u8]) -> Option<usize> {
    let words = &text.as_chunks::<8>().0;
    let words = &words[..words.len().min(SHORT_WORDS)];
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let marks =
            zeros(word ^ (ONES * u64::from(b'"'))) | zeros(word ^ (ONES * u64::from(b'\\')));
        if marks != 0 {
            return Some(number * 8 + marks.trailing_zeros() as usize / 8);
        }
    }
    let passed = words.len() * 8;
    memchr::memchr2(b'"', b'\\', &text[passed..]).map(|length| passed + length)
}

/// The highest bit of the first byte that is zero, and perhaps of some behind it.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

const ONES: u64 = u64::MAX / 255;
const SHORT_WORDS: usize = 4;

/// Which brackets will have to come, a bit each: 1 for that of an object.
#[derive(Default)]
struct Brackets {
    count: usize,
    /// The latest of them, which are at most 64.
    latest: u64,
    /// Those before them, 64 each.
    before: Vec<u64>,
}

impl Brackets {
    fn push(&mut self, bracket: u8) {
        if self.count > 0 && self.count.is_multiple_of(64) {
            self.before.push(self.latest);
        }
        self.latest = self.latest << 1 | u64::from(bracket == b'}');
        self.count += 1;
    }

    fn last(&self) -> Option<u8> {
        let bracket = if self.latest & 1 == 1 { b'}' } else { b']' };
        (self.count > 0).then_some(bracket)
    }

    fn pop(&mut self) {
        self.count -= 1;
        self.latest >>= 1;
        if self.count > 0 && self.count.is_multiple_of(64) {
            self.latest = self.before.pop().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    fn passes(text: &[u8]) -> bool {
        let mut members = 0;
        Scan::begin(text, usize::MAX).members(&[], |_| members += 1).is_ok()
    }

    /// What the library makes of it, of which escapes and UTF-8 are not asked.
    fn is_object(text: &[u8]) -> bool {
        let first = text.iter().find(|byte| !b" \n\r\t".contains(byte));
        first == Some(&b'{') && serde_json::from_slice::<IgnoredAny>(text).is_ok()
    }

    #[test]
    fn any_depth_is_passed_and_counted() {
        for levels in [1, 2, 63, 64, 65, 127, 128, 129, 192, 193, 300, 100_000] {
            let (open, close) = ("[{\"a\":".repeat(levels), "}]".repeat(levels));
            let text = format!("{{\"a\":{open}1{close}}}");
            let judged =
                |text: &str, depth| Scan::begin(text.as_bytes(), depth).members(&[], |_| {});
            assert_eq!(judged(&text, 2 * levels + 1), Ok(()), "{levels}");
            assert_eq!(judged(&text, 2 * levels), Err(Flaw::TooDeep), "{levels}");
            let wrong = format!("{{\"a\":{open}1{}}}", "]}".repeat(levels));
            assert_eq!(judged(&wrong, usize::MAX), Err(Flaw::Syntax));
        }
    }

    #[test]
    fn what_ends_a_string_is_found_wherever_it_stands() {
        for length in 0..100 {
            for (special, is_good) in
                [("\\\"", true), ("\\u00e9", true), ("\n", false), ("\u{1f}", false)]
            {
                let text =
                    format!("{{\"a\":\"{}{special}é{}\"}}", "x".repeat(length), "y".repeat(40));
                assert_eq!(passes(text.as_bytes()), is_good, "{text:?}");
            }
        }
    }

    /// Where the elements of an array are.
    fn places(mut scan: Scan<'_>) -> Result<Vec<Range<usize>>, Flaw> {
        let (mut all, mut goes_on) = (Vec::new(), scan.enter_array()?);
        while goes_on {
            let (place, another) = scan.element()?;
            (goes_on, _) = (another, all.push(place));
        }
        Ok(all)
    }

    /// JSON, or nearly: pieces of it in any order, wrapped so that most begin well.
    fn nearly() -> impl Strategy<Value = String> {
        let pieces = [
            "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"b\":", "\\", "\\u00", "\\ud800", "\\n",
            "0", "01", "-", "-1.5", "1e", "E+7", ".", "2.", "true", "nul", "null", "fals", " ",
            "\n", "\u{c}", "\u{1}", "é",
        ];
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..12)
            .prop_map(|pieces| pieces.concat())
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(".*", inner, 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_takes_what_the_library_takes(
            text in nearly(),
            shape in prop::sample::select(vec!["{\"k\":_}", "{_}", "{\"k\":[_]}", "{\"k\":\"_\"}", "_"]),
        ) {
            let text = shape.replace('_', &text);
            prop_assert_eq!(passes(text.as_bytes()), is_object(text.as_bytes()), "{}", text);
        }

        #[test]
        fn it_takes_what_the_library_writes_and_finds_what_is_in_it(
            value in value(), is_spread in any::<bool>(), cut in any::<prop::sample::Index>(),
        ) {
            let whole = serde_json::json!({ "k": value, "l": [value] });
            let text = if is_spread { serde_json::to_string_pretty(&whole) } else { serde_json::to_string(&whole) };
            let text = text.expect("a value is writable");
            let mut found = Vec::new();
            Scan::begin(text.as_bytes(), usize::MAX).members(&[], |member| found.push(member)).expect("an object");
            let keys: Vec<_> = found.iter().map(|member| &text[member.key.clone()]).collect();
            prop_assert_eq!(keys, ["\"k\"", "\"l\""]);
            let read: serde_json::Value = serde_json::from_str(&text[found[0].value.clone()]).expect("a value");
            prop_assert_eq!(read, serde_json::from_str::<serde_json::Value>(&value.to_string()).expect("a value"));
            let list = text[found[1].value.clone()].as_bytes();
            let elements = places(Scan::begin(list, usize::MAX)).expect("an array");
            prop_assert_eq!(elements.len(), 1);
            prop_assert_eq!(Scan::begin(list, usize::MAX).array(), Ok(()));
            let mut again = Vec::new();
            Scan::again(text.as_bytes()).members(&[], |member| again.push(member)).expect("an object");
            prop_assert_eq!(&again, &found, "what has passed is passed in the same steps");
            prop_assert_eq!(places(Scan::again(list)).expect("an array"), elements);
            // What is gone into is found as it would be by itself, and everything else where it was.
            let mut along = Vec::new();
            let both: Along<'_> = &[&[b"\"k\"", b"\"l\""], &[b"\"k\""]];
            Scan::begin(text.as_bytes(), usize::MAX).members(both, |member| along.push(member)).expect("an object");
            let own: Vec<_> = along.iter().filter(|member| member.level == 0).collect();
            prop_assert_eq!(own, found.iter().collect::<Vec<_>>());
            let mut inner = Vec::new();
            let start = found[0].value.start;
            if text[start..].starts_with('{') {
                let part = &text.as_bytes()[found[0].value.clone()];
                Scan::again(part).members(&[], |member| inner.push(member.key.start + start)).expect("an object");
            }
            let shown = along.iter().filter(|member| member.level == 1).map(|member| member.key.start);
            prop_assert_eq!(shown.collect::<Vec<_>>(), inner);
            // And nothing that was cut off.
            prop_assert!(!passes(&text.as_bytes()[..cut.index(text.len())]));
        }
    }
}
