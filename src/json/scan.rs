//! Scanner that validates JSON text and locates the members of its objects.
//!
//! Invariants: an accepted text is JSON as in RFC 8259, except that the values of escapes in
//! strings are not checked, and its depth is within the limit. Text of any depth is scanned in
//! bounded stack. Bytes inside strings are scanned many at a time; every message is read with this
//! scanner. UTF-8 is checked by the caller.
//!
//! Decision: docs/decisions/0002-json-scanner.md

use std::ops::Range;

use wide::u8x16;

/// Reason why a text is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanError {
    /// The text is not JSON.
    Syntax,
    /// The text is nested more deeply than allowed.
    TooDeep,
}

/// Member of the scanned object, or of a nested one.
#[derive(Debug, PartialEq)]
pub(super) struct MemberSpan {
    /// Number of objects around the member's own object.
    pub(super) level: usize,
    /// The key, with the quotes.
    pub(super) key: Range<usize>,
    /// True if the key contains an escape.
    pub(super) is_escaped: bool,
    pub(super) value: Range<usize>,
}

/// Keys, with the quotes, of the members to descend into: of the object itself, then of those
/// members, and so on.
pub(super) type MemberPaths<'a> = &'a [&'a [&'a [u8]]];

/// Scan of one text.
pub(super) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    /// Most levels that are accepted.
    depth: usize,
    /// True if the text contains any control character, which strings must not contain. Most
    /// messages are on one line and have none.
    has_controls: bool,
    /// True if the text was validated before.
    is_trusted: bool,
}

impl<'a> Scan<'a> {
    /// Starts a validating scan, at most `depth` levels deep.
    pub(super) fn begin(text: &'a [u8], depth: usize) -> Self {
        let least = text.iter().fold(u8::MAX, |least, byte| least.min(*byte));
        Self { text, at: 0, depth, has_controls: least < b' ', is_trusted: false }
    }

    /// Starts a scan of a text that was validated before, or is a part of one; its values are not
    /// validated again.
    pub(super) fn trusted(text: &'a [u8]) -> Self {
        Self::trusted_from(text, 0)
    }

    /// Starts such a scan at a position that an earlier scan has reached.
    pub(super) fn trusted_from(text: &'a [u8], at: usize) -> Self {
        Self { text, at, depth: usize::MAX, has_controls: false, is_trusted: true }
    }

    /// Calls `visit` for each member of the object. Members with keys, written without escapes,
    /// among the first of `paths` are descended into: their members are visited before, and so on
    /// with the rest of `paths`.
    pub(super) fn members(
        mut self,
        paths: MemberPaths<'_>,
        mut visit: impl FnMut(MemberSpan),
    ) -> Result<(), ScanError> {
        self.skip_whitespace();
        self.object(0, paths, &mut visit)?;
        self.end()
    }

    fn object(
        &mut self,
        level: usize,
        paths: MemberPaths<'_>,
        visit: &mut impl FnMut(MemberSpan),
    ) -> Result<(), ScanError> {
        self.enter(b'{', level)?;
        if self.take_if(b'}') {
            return Ok(());
        }
        loop {
            let start = self.at;
            let is_escaped = self.string()?;
            let key = start..self.at;
            self.colon()?;
            let start = self.at;
            match paths.split_first() {
                Some((keys, paths))
                    if self.peek() == Some(b'{')
                        && keys.iter().any(|name| self.text[key.clone()] == **name) =>
                {
                    self.object(level + 1, paths, visit)?;
                }
                _ => self.value(level + 1)?,
            }
            visit(MemberSpan { level, key, is_escaped, value: start..self.at });
            if !self.continues(b'}')? {
                return Ok(());
            }
        }
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

    /// Consumes one element that is an object and visits its members, as [`Scan::members`] does;
    /// returns its span and whether another element follows.
    pub(super) fn object_element(
        &mut self,
        paths: MemberPaths<'_>,
        mut visit: impl FnMut(MemberSpan),
    ) -> Result<(Range<usize>, bool), ScanError> {
        let start = self.at;
        self.object(0, paths, &mut visit)?;
        let position = start..self.at;
        Ok((position, self.continues(b']')?))
    }

    /// Returns the current position.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_whitespace(&mut self) {
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
    fn continues(&mut self, bracket: u8) -> Result<bool, ScanError> {
        self.skip_whitespace();
        if self.take_if(bracket) {
            return Ok(false);
        }
        self.take(b',')?;
        self.skip_whitespace();
        Ok(true)
    }

    /// Consumes the colon behind a key.
    fn colon(&mut self) -> Result<(), ScanError> {
        self.skip_whitespace();
        self.take(b':')?;
        self.skip_whitespace();
        Ok(())
    }

    /// Checks that only white space follows.
    fn end(&mut self) -> Result<(), ScanError> {
        self.skip_whitespace();
        if self.at == self.text.len() { Ok(()) } else { Err(ScanError::Syntax) }
    }

    /// Consumes one value, which stands within `levels` levels.
    fn value(&mut self, levels: usize) -> Result<(), ScanError> {
        if self.is_trusted {
            return self.skip();
        }
        let mut open = BracketStack::default();
        loop {
            match self.peek().ok_or(ScanError::Syntax)? {
                b'"' => _ = self.string()?,
                b'{' => {
                    self.enter(b'{', levels.saturating_add(open.count))?;
                    if !self.take_if(b'}') {
                        open.push(b'}');
                        self.string()?;
                        self.colon()?;
                        continue;
                    }
                }
                b'[' => {
                    self.enter(b'[', levels.saturating_add(open.count))?;
                    if !self.take_if(b']') {
                        open.push(b']');
                        continue;
                    }
                }
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                _ => self.number()?,
            }
            loop {
                let Some(bracket) = open.last() else { return Ok(()) };
                if !self.continues(bracket)? {
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

    /// Consumes one value of a trusted text, by its quotes and brackets alone.
    fn skip(&mut self) -> Result<(), ScanError> {
        let mut open = 0_usize;
        loop {
            match self.peek().ok_or(ScanError::Syntax)? {
                b'"' => _ = self.string()?,
                b'{' | b'[' => {
                    self.at += 1;
                    open += 1;
                }
                b'}' | b']' if open > 0 => {
                    self.at += 1;
                    open -= 1;
                }
                // A part of a number or literal, or a separator.
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

    /// Consumes a string, and returns whether it contains an escape.
    fn string(&mut self) -> Result<bool, ScanError> {
        self.take(b'"')?;
        let start = self.at;
        let mut is_escaped = false;
        // Number of blocks since the last escape.
        let mut plain = 0;
        while let Some(block) = self.text.get(self.at..).and_then(|rest| rest.first_chunk()) {
            let (quotes, backslashes) = marks(block);
            let mut marks = quotes | backslashes;
            let mut passed = 0;
            while marks != 0 {
                let at = marks.trailing_zeros() as usize;
                if quotes >> at & 1 == 1 {
                    return self.end_string(start, self.at + at, is_escaped);
                }
                passed = at + self.escape_length(self.at + at)?;
                marks = if passed < BLOCK_BYTES { marks >> passed << passed } else { 0 };
                is_escaped = true;
                plain = 0;
            }
            self.at += passed.max(BLOCK_BYTES);
            plain += 1;
            if plain == PLAIN_BLOCKS {
                let rest = self.text.get(self.at..).unwrap_or_default();
                self.at += memchr::memchr2(b'"', b'\\', rest).ok_or(ScanError::Syntax)?;
            }
        }
        // The end of the text is less than a block away.
        loop {
            match self.peek().ok_or(ScanError::Syntax)? {
                b'"' => return self.end_string(start, self.at, is_escaped),
                b'\\' => {
                    self.at += self.escape_length(self.at)?;
                    is_escaped = true;
                }
                _ => self.at += 1,
            }
        }
    }

    /// Ends the string from `start` with the quote at `end`.
    fn end_string(
        &mut self,
        start: usize,
        end: usize,
        is_escaped: bool,
    ) -> Result<bool, ScanError> {
        if self.has_controls && self.text[start..end].iter().any(|byte| *byte < b' ') {
            return Err(ScanError::Syntax);
        }
        self.at = end + 1;
        Ok(is_escaped)
    }

    /// Returns the length of the escape that begins at a position.
    fn escape_length(&self, at: usize) -> Result<usize, ScanError> {
        match self.text.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(2),
            Some(b'u') => {
                let digits = self.text.get(at + 2..at + 6).ok_or(ScanError::Syntax)?;
                let is_valid = digits.iter().all(u8::is_ascii_hexdigit);
                is_valid.then_some(6).ok_or(ScanError::Syntax)
            }
            _ => Err(ScanError::Syntax),
        }
    }
}

/// Returns which bytes of a block are quotes, and which are backslashes, one bit each.
fn marks(block: &[u8; BLOCK_BYTES]) -> (u32, u32) {
    let block = u8x16::new(*block);
    let places = |mark: u8| block.simd_eq(u8x16::splat(mark)).to_bitmask();
    (places(b'"'), places(b'\\'))
}

/// Number of bytes that are compared at once.
const BLOCK_BYTES: usize = 16;
/// Number of blocks without an escape after which `memchr` is faster, which compares more bytes at
/// once and takes longer to begin.
const PLAIN_BLOCKS: usize = 4;

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
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    fn passes(text: &[u8]) -> bool {
        let mut members = 0;
        Scan::begin(text, usize::MAX).members(&[], |_| members += 1).is_ok()
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
                |text: &str, depth| Scan::begin(text.as_bytes(), depth).members(&[], |_| {});
            assert_eq!(judged(&text, 2 * levels + 1), Ok(()), "{levels}");
            assert_eq!(judged(&text, 2 * levels), Err(ScanError::TooDeep), "{levels}");
            let wrong = format!("{{\"a\":{open}1{}}}", "]}".repeat(levels));
            assert_eq!(judged(&wrong, usize::MAX), Err(ScanError::Syntax));
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
            let mut trusted = Vec::new();
            Scan::trusted(text.as_bytes()).members(&[], |member| trusted.push(member)).expect("an object");
            prop_assert_eq!(&trusted, &found, "what has passed is passed in the same steps");
            prop_assert_eq!(places(Scan::trusted(list)).expect("an array"), elements);
            // Nested members are found as in a scan of their own, and all others unchanged.
            let mut paths = Vec::new();
            let both: MemberPaths<'_> = &[&[b"\"k\"", b"\"l\""], &[b"\"k\""]];
            Scan::begin(text.as_bytes(), usize::MAX).members(both, |member| paths.push(member)).expect("an object");
            let own: Vec<_> = paths.iter().filter(|member| member.level == 0).collect();
            prop_assert_eq!(own, found.iter().collect::<Vec<_>>());
            let mut inner = Vec::new();
            let start = found[0].value.start;
            if text[start..].starts_with('{') {
                let part = &text.as_bytes()[found[0].value.clone()];
                Scan::trusted(part).members(&[], |member| inner.push(member.key.start + start)).expect("an object");
            }
            let shown = paths.iter().filter(|member| member.level == 1).map(|member| member.key.start);
            prop_assert_eq!(shown.collect::<Vec<_>>(), inner);
            // And nothing that was cut off.
            prop_assert!(!passes(&text.as_bytes()[..cut.index(text.len())]));
        }
    }
}
