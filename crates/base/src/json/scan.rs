//! Scanner that validates JSON text and locates the members of its objects.
//!
//! Invariants: an accepted text is JSON as in RFC 8259, except that the values of escapes in
//! strings are not checked, and its depth is within the limit. Text of any depth is scanned in
//! bounded stack. Strings are scanned 64 bytes at a time; every message is read with this scanner.
//! It tells which texts are not ASCII, whose UTF-8 the caller checks.
//!
//! Decision: docs/decisions/0002-json-scanner.md

use std::ops::Range;

use super::block::{BLOCK_BYTES, Block, Lanes};
use super::span::TextSpan;

/// Reason why a text is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanError {
    /// The text is not JSON.
    Syntax,
    /// The text is nested more deeply than allowed.
    TooDeep,
}

/// Facts about a text that its scan has found.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextFacts {
    /// True if the text is known to be plain, see [`Object::is_plain`](super::Object::is_plain).
    pub(super) is_plain: bool,
    /// The longest string that is a value, with its quotes, unless all are short. A later scan of
    /// a part of the text passes it in one step.
    longest: TextSpan,
}

impl TextFacts {
    /// Returns the facts about a part of the text.
    pub(super) fn part(self, part: Range<usize>) -> Self {
        let longest = self.longest.range();
        let is_inside = part.contains(&longest.start) && longest.end <= part.end;
        let longest = if is_inside { self.longest.since(part.start) } else { TextSpan::NONE };
        Self { longest, ..self }
    }
}

impl Default for TextFacts {
    /// Returns the facts about a text of which nothing is known.
    fn default() -> Self {
        Self { is_plain: false, longest: TextSpan::NONE }
    }
}

/// Scan of one text.
pub(super) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    /// Most levels that are accepted.
    depth: usize,
    /// True if the text was validated before.
    is_trusted: bool,
    /// Part of the text in which the current string is, or the last one was.
    block: Block,
    /// True if all bytes so far are printable ASCII or white space.
    is_ascii: bool,
    /// True if there was an escape whose character may be invisible: `\b`, `\f` or `\u`.
    has_rare_escapes: bool,
    /// Longest string so far, or of all; see [`TextFacts`].
    longest: TextSpan,
}

impl<'a> Scan<'a> {
    /// Starts a validating scan, at most `depth` levels deep.
    pub(super) fn begin(text: &'a [u8], depth: usize) -> Self {
        let facts = TextFacts { is_plain: true, ..TextFacts::default() };
        Self { depth, is_trusted: false, ..Self::trusted(text, 0, facts) }
    }

    /// Starts a scan, at this position, of a text that was validated before, or is a part of one.
    /// Its values are not validated again. `facts` are known facts about the text.
    pub(super) fn trusted(text: &'a [u8], at: usize, facts: TextFacts) -> Self {
        let (block, depth, is_trusted) = (Block::default(), usize::MAX, true);
        let TextFacts { is_plain: is_ascii, longest } = facts;
        Self { text, at, depth, is_trusted, block, is_ascii, has_rare_escapes: false, longest }
    }

    /// Consumes the brace that begins an object within `levels` others; returns whether a member
    /// follows.
    pub(super) fn enter_object(&mut self, levels: usize) -> Result<bool, ScanError> {
        self.enter(b'{', levels)?;
        Ok(!self.take_if(b'}'))
    }

    /// Consumes a key and its colon. Returns the key's span, with the quotes, and whether it
    /// contains an escape.
    pub(super) fn key(&mut self) -> Result<(Range<usize>, bool), ScanError> {
        let start = self.at;
        let is_escaped = self.string()?;
        let key = start..self.at;
        self.skip_whitespace();
        self.take(b':')?;
        self.skip_whitespace();
        Ok((key, is_escaped))
    }

    /// Returns whether all of the text up to here is printable ASCII and white space.
    pub(super) fn is_ascii(&self) -> bool {
        self.is_ascii
    }

    /// Returns the facts about the text up to here.
    pub(super) fn facts(&self) -> TextFacts {
        let is_plain = self.is_ascii && !self.has_rare_escapes;
        TextFacts { is_plain, longest: self.longest }
    }

    /// Scans the text as an array.
    pub(super) fn array(mut self) -> Result<(), ScanError> {
        let mut continues = self.enter_array()?;
        while continues {
            (_, continues) = self.element()?;
        }
        self.end()
    }

    /// Consumes the bracket that begins the array; returns whether an element follows.
    pub(super) fn enter_array(&mut self) -> Result<bool, ScanError> {
        self.skip_whitespace();
        self.enter(b'[', 0)?;
        Ok(!self.take_if(b']'))
    }

    /// Consumes one element of that array, and returns its span and whether another one follows.
    pub(super) fn element(&mut self) -> Result<(Range<usize>, bool), ScanError> {
        let start = self.at;
        self.value(1)?;
        let position = start..self.at;
        Ok((position, self.continues(b']')?))
    }

    /// Returns the current position.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the next byte.
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Consumes white space.
    pub(super) fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Result<(), ScanError> {
        if self.peek() != Some(byte) {
            return Err(ScanError::Syntax);
        }
        self.at += 1;
        Ok(())
    }

    /// Consumes the bracket that begins a level within `levels` others, and the white space behind
    /// it.
    fn enter(&mut self, bracket: u8, levels: usize) -> Result<(), ScanError> {
        self.take(bracket)?;
        if levels >= self.depth {
            return Err(ScanError::TooDeep);
        }
        self.skip_whitespace();
        Ok(())
    }

    /// Consumes this byte if it comes next; returns whether it did.
    fn take_if(&mut self, bracket: u8) -> bool {
        let is_next = self.peek() == Some(bracket);
        self.at += usize::from(is_next);
        is_next
    }

    /// Consumes the comma behind a value and returns true, or the closing bracket and returns
    /// false.
    pub(super) fn continues(&mut self, bracket: u8) -> Result<bool, ScanError> {
        self.skip_whitespace();
        if self.take_if(bracket) {
            return Ok(false);
        }
        self.take(b',')?;
        self.skip_whitespace();
        Ok(true)
    }

    /// Checks that only white space follows.
    pub(super) fn end(&mut self) -> Result<(), ScanError> {
        self.skip_whitespace();
        if self.at == self.text.len() { Ok(()) } else { Err(ScanError::Syntax) }
    }

    /// Consumes one value, which stands within `levels` levels.
    pub(super) fn value(&mut self, levels: usize) -> Result<(), ScanError> {
        match self.peek() {
            Some(b'{' | b'[') if self.is_trusted => self.skip_container(),
            Some(b'{' | b'[') => self.container(levels),
            _ => self.scalar(),
        }
    }

    /// Consumes one object or array, which stands within `levels` levels. Not inlined, so that
    /// scalar values do not pay for its stack.
    #[inline(never)]
    fn container(&mut self, levels: usize) -> Result<(), ScanError> {
        let mut open = BracketStack::default();
        loop {
            let levels = levels.saturating_add(open.count);
            match self.peek() {
                Some(b'{') => {
                    if self.enter_object(levels)? {
                        open.push(b'}');
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.enter(b'[', levels)?;
                    if !self.take_if(b']') {
                        open.push(b']');
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            loop {
                let Some(bracket) = open.last() else { return Ok(()) };
                if !self.continues(bracket)? {
                    open.pop();
                    continue;
                }
                if bracket == b'}' {
                    self.key()?;
                }
                break;
            }
        }
    }

    /// Consumes one object or array of a trusted text, by its quotes and brackets alone.
    fn skip_container(&mut self) -> Result<(), ScanError> {
        let mut open = 0_usize;
        loop {
            match self.peek().ok_or(ScanError::Syntax)? {
                b'"' => self.string_value()?,
                b'{' | b'[' => {
                    self.at += 1;
                    open += 1;
                }
                b'}' | b']' => {
                    self.at += 1;
                    open -= 1;
                    if open == 0 {
                        return Ok(());
                    }
                }
                // A part of a number or literal, or a separator.
                _ => self.at += 1,
            }
        }
    }

    /// Consumes a string, literal or number.
    fn scalar(&mut self) -> Result<(), ScanError> {
        match self.peek().ok_or(ScanError::Syntax)? {
            b'"' => self.string_value(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number(),
        }
    }

    fn literal(&mut self, literal: &[u8]) -> Result<(), ScanError> {
        if !self.text[self.at..].starts_with(literal) {
            return Err(ScanError::Syntax);
        }
        self.at += literal.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), ScanError> {
        self.take_if(b'-');
        if !self.take_if(b'0') {
            self.digits()?;
        }
        if self.take_if(b'.') {
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if !self.take_if(b'+') {
                self.take_if(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Consumes one digit or more.
    fn digits(&mut self) -> Result<(), ScanError> {
        let rest = &self.text[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        if count == 0 { Err(ScanError::Syntax) } else { Ok(()) }
    }

    /// Consumes a string that is a value.
    fn string_value(&mut self) -> Result<(), ScanError> {
        let (start, longest) = (self.at, self.longest.range());
        if self.is_trusted && longest.start == start {
            self.at = longest.end;
            return Ok(());
        }
        self.string()?;
        if self.at - start > longest.len().max(BLOCK_BYTES) {
            self.longest = TextSpan::within(start..self.at);
        }
        Ok(())
    }

    /// Consumes a string, and returns whether it contains an escape.
    fn string(&mut self) -> Result<bool, ScanError> {
        self.take(b'"')?;
        if self.at >= self.block.end {
            self.load(self.at, false)?;
        }
        let mut is_escaped = false;
        loop {
            let from_here = u64::MAX << (self.at - self.block.start);
            let quotes = self.block.quotes & from_here;
            // The bytes before the first of these quotes, or all.
            let inside = from_here & !quotes & quotes.wrapping_sub(1);
            if self.block.invalid & inside != 0 {
                return Err(ScanError::Syntax);
            }
            is_escaped |= self.block.escaped & inside != 0;
            if quotes != 0 {
                self.at = self.block.start + quotes.trailing_zeros() as usize + 1;
                return Ok(is_escaped);
            }
            self.at = self.block.end;
            if inside == u64::MAX && self.block.escaped == 0 && !self.block.escapes_next {
                self.skip_plain();
            }
            self.load(self.at, self.block.escapes_next)?;
        }
    }

    /// Consumes as many bytes of a long string as are plain, in steps of a block. Not inlined, so
    /// that short strings do not pay for it.
    #[inline(never)]
    fn skip_plain(&mut self) {
        let block_here = |at: usize| self.text.get(at..).and_then(|rest| rest.first_chunk());
        while block_here(self.at).is_some_and(|block| Lanes::new(block).are_plain()) {
            self.at += BLOCK_BYTES;
        }
    }

    /// Starts the block at a position inside a string, whose first byte may be escaped.
    fn load(&mut self, start: usize, is_escaped: bool) -> Result<(), ScanError> {
        let rest = self.text.get(start..).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or(ScanError::Syntax)?;
        let mut padded = [b' '; BLOCK_BYTES];
        let bytes = rest.first_chunk().unwrap_or_else(|| {
            padded[..rest.len()].copy_from_slice(rest);
            &padded
        });
        let lanes = Lanes::new(bytes);
        self.block = Block::new(&lanes, start, is_escaped);
        if !self.is_trusted {
            self.block.invalid = self.wrong_escapes();
            if !lanes.are_printable() {
                self.block.invalid |= lanes.controls();
                self.is_ascii &= lanes.are_ascii();
            }
        }
        Ok(())
    }

    /// Returns which escaped bytes of the block begin no valid escape.
    fn wrong_escapes(&mut self) -> u64 {
        let (mut rest, mut wrong) = (self.block.escaped, 0);
        while rest != 0 {
            let at = self.block.start + rest.trailing_zeros() as usize;
            let others = rest & (rest - 1);
            let is_valid = match self.text.get(at) {
                Some(b'"' | b'\\' | b'/' | b'n' | b'r' | b't') => true,
                Some(b'b' | b'f') => {
                    self.has_rare_escapes = true;
                    true
                }
                Some(b'u') => {
                    self.has_rare_escapes = true;
                    let digits = self.text.get(at + 1..at + 5);
                    digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
                }
                _ => false,
            };
            if !is_valid {
                wrong |= rest & !others;
            }
            rest = others;
        }
        wrong
    }
}

/// Stack of the expected closing brackets, one bit each: 1 for an object's.
#[derive(Default)]
struct BracketStack {
    count: usize,
    /// The topmost brackets, at most 64.
    top: u64,
    /// The brackets below, 64 per word.
    lower: Vec<u64>,
}

impl BracketStack {
    fn push(&mut self, bracket: u8) {
        if self.count > 0 && self.count.is_multiple_of(64) {
            self.lower.push(self.top);
        }
        self.top = self.top << 1 | u64::from(bracket == b'}');
        self.count += 1;
    }

    fn last(&self) -> Option<u8> {
        let bracket = if self.top & 1 == 1 { b'}' } else { b']' };
        (self.count > 0).then_some(bracket)
    }

    fn pop(&mut self) {
        self.count -= 1;
        self.top >>= 1;
        if self.count > 0 && self.count.is_multiple_of(64) {
            self.top = self.lower.pop().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Object;
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    /// Span of a key, whether the key has escapes, and the span of the value.
    type FoundMember = (Range<usize>, bool, Range<usize>);

    fn members(mut scan: Scan<'_>) -> Result<Vec<FoundMember>, ScanError> {
        scan.skip_whitespace();
        let (mut all, mut continues) = (Vec::new(), scan.enter_object(0)?);
        while continues {
            let (key, is_escaped) = scan.key()?;
            let start = scan.position();
            scan.value(1)?;
            all.push((key, is_escaped, start..scan.position()));
            continues = scan.continues(b'}')?;
        }
        scan.end().map(|()| all)
    }

    fn passes(text: &[u8]) -> bool {
        members(Scan::begin(text, usize::MAX)).is_ok()
    }

    /// Result of `serde_json`, which is not asked about escapes and UTF-8.
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
                |text: &str, depth| members(Scan::begin(text.as_bytes(), depth)).map(|_| ());
            assert_eq!(judged(&text, 2 * levels + 1), Ok(()), "{levels}");
            assert_eq!(judged(&text, 2 * levels), Err(ScanError::TooDeep), "{levels}");
            let wrong = format!("{{\"a\":{open}1{}}}", "]}".repeat(levels));
            assert_eq!(judged(&wrong, usize::MAX), Err(ScanError::Syntax));
        }
    }

    #[test]
    fn what_ends_a_string_is_found_wherever_it_stands() {
        for length in (0..100).chain(200..400) {
            for (special, is_good) in
                [("\\\"", true), ("\\u00e9", true), ("\n", false), ("\u{1f}", false)]
            {
                let text =
                    format!("{{\"a\":\"{}{special}é{}\"}}", "x".repeat(length), "y".repeat(40));
                assert_eq!(passes(text.as_bytes()), is_good, "{text:?}");
            }
        }
    }

    #[test]
    fn escape_is_judged_wherever_blocks_end() {
        for length in (0..140).chain(200..400) {
            for (escapes, is_good) in [
                (r"\\\\\\", true),
                (r"\\\", false),
                (r"\\\n", true),
                (r"\n\t\/", true),
                (r"\\x", true),
                (r"\x", false),
                (r"\u00e", false),
                (r"\\u00e", true),
            ] {
                let text = format!("{{\"a\":\"{}{escapes}\"}}", "x".repeat(length));
                assert_eq!(passes(text.as_bytes()), is_good, "{text}");
            }
        }
    }

    #[test]
    fn plain_text_is_distinguished_from_all_other() {
        let judged = |text: &str| {
            let mut scan = Scan::begin(text.as_bytes(), 9);
            scan.value(0).expect(text);
            (scan.is_ascii(), scan.facts().is_plain)
        };
        for length in [0, 50, 62, 63, 64, 150, 300] {
            for (part, expected) in [
                (r#" ~\n\t\r\/\\\""#, (true, true)),
                (r"\\u0041\\b", (true, true)),
                (r"\u0041", (true, false)),
                (r"\b", (true, false)),
                (r"\f", (true, false)),
                ("\u{7f}", (false, false)),
                ("\u{80}", (false, false)),
                ("é", (false, false)),
            ] {
                let text = format!("[\n\"{}{part}{}\"]", "x".repeat(length), "y".repeat(80));
                assert_eq!(judged(&text), expected, "{text}");
            }
        }
    }

    /// Returns the spans of the elements of an array.
    fn places(mut scan: Scan<'_>) -> Result<Vec<Range<usize>>, ScanError> {
        let (mut all, mut continues) = (Vec::new(), scan.enter_array()?);
        while continues {
            let (position, another) = scan.element()?;
            (continues, _) = (another, all.push(position));
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
            let found = members(Scan::begin(text.as_bytes(), usize::MAX)).expect("an object");
            let keys: Vec<_> = found.iter().map(|(key, ..)| &text[key.clone()]).collect();
            prop_assert_eq!(keys, ["\"k\"", "\"l\""]);
            let read: serde_json::Value = serde_json::from_str(&text[found[0].2.clone()]).expect("a value");
            prop_assert_eq!(read, serde_json::from_str::<serde_json::Value>(&value.to_string()).expect("a value"));
            let list = text[found[1].2.clone()].as_bytes();
            let elements = places(Scan::begin(list, usize::MAX)).expect("an array");
            prop_assert_eq!(elements.len(), 1);
            prop_assert_eq!(Scan::begin(list, usize::MAX).array(), Ok(()));
            let trusted = members(Scan::trusted(text.as_bytes(), 0, TextFacts::default())).expect("an object");
            prop_assert_eq!(&trusted, &found, "what has passed is passed in the same steps");
            prop_assert_eq!(places(Scan::trusted(list, 0, TextFacts::default())).expect("an array"), elements);
            // Nested members are found as in a scan of their own, and all others unchanged.
            let both: &[&[&[u8]]] = &[&[b"\"k\"", b"\"l\""], &[b"\"k\""]];
            let parse = |text: &str, nested| Object::parse_with_nested(text.to_owned().into(), usize::MAX, nested);
            let mut along = parse(&text, both).expect("an object");
            prop_assert!(along.members().eq(parse(&text, &[]).expect("an object").members()));
            let part = &text[found[0].2.clone()];
            if part.starts_with('{') {
                let (mut inner, mut alone) = (along.take_object("k").expect("it is there").expect("an object"), parse(part, &[]).expect("an object"));
                prop_assert_eq!(inner.to_bytes(), part);
                prop_assert!(inner.members().eq(alone.members()));
                prop_assert_eq!(inner.take_object("k").map(Result::ok), alone.take_object("k").map(Result::ok));
            }
            // And nothing that was cut off.
            prop_assert!(!passes(&text.as_bytes()[..cut.index(text.len())]));
        }
    }
}
