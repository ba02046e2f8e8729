//! A JSON object parsed exactly one level deep.
//!
//! Weir owns a few members of each message and never reads the rest. An [`Object`] keeps the text
//! as it came and the span of each member. Reading a member yields its raw text; changing one
//! leaves every other byte as it was, in the original order. Therefore unknown members, number
//! texts such as `1e400` and key order survive the way through the gateway.
//!
//! Invariants: what [`Object::parse`] accepts is valid JSON in valid UTF-8, has no member twice
//! (two readers must not disagree about which one counts), at most [`MAX_MEMBERS`] members, and at
//! most the given depth.

mod block;
mod elements;
mod extract;
mod read;
mod scan;
mod span;
mod strings;

pub use elements::{Elements, elements, trusted_elements};
pub use extract::{Extraction, MemberExtractor, WatchedMember};
pub use strings::{JsonString, decode_bytes, decode_string, quote, rewrite_strings};

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::IgnoredAny;

use scan::TextFacts;
use span::TextSpan;
use strings::write_quoted;

/// Most members of an [`Object`].
pub const MAX_MEMBERS: usize = 1_024;

/// Longest text of an [`Object`]: the spans of its members are stored in 32 bits.
pub(crate) const MAX_TEXT_BYTES: usize = u32::MAX as usize - 1;

/// Initial capacity for what is set in an object: a few members, each with a key and a value.
const EXPECTED_PARTS: usize = 8;

/// Default limit on nested objects and arrays.
pub const MAX_DEPTH: usize = 64;

/// JSON object: its text, and the spans of its members.
#[derive(Clone)]
pub struct Object {
    text: Bytes,
    members: Vec<ObjectMember>,
    /// Keys and values that are not part of the text.
    detached: Vec<DetachedPart>,
    /// True if `members` differs from `text`.
    changed: bool,
    /// Facts about `text`.
    facts: TextFacts,
    /// One member's value that is an object and was parsed in the same pass.
    nested: Option<Box<NestedObject>>,
}

/// Object parsed in the same pass as the one around it, and its span in the text of that one.
#[derive(Clone)]
struct NestedObject {
    span: TextSpan,
    object: Object,
}

/// Small, since the shortest members have six bytes of text and there may be many.
#[derive(Clone, Copy)]
struct ObjectMember {
    /// With its quotes.
    key: TextSpan,
    value: TextSpan,
}

/// Key or value that is not part of an object's text.
#[derive(Clone)]
enum DetachedPart {
    /// A key written with escapes: its span, and the decoded key.
    Escaped(TextSpan, Box<str>),
    /// A key that was set.
    Key(Cow<'static, str>),
    /// A value that was set.
    Value(Bytes),
}

/// Reason why a text is not an [`Object`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not JSON, or not UTF-8; the text names the position.
    #[error("not valid JSON: {0}")]
    Syntax(String),
    /// JSON, but no object.
    #[error("not a JSON object")]
    NotAnObject,
    /// Nested more deeply than allowed.
    #[error("nested more than {0} levels deep")]
    TooDeep(usize),
    /// A duplicate member, or too many members.
    #[error("{0}")]
    Members(String),
}

impl ParseError {
    /// Describes the error in the value of `member`, for its sender.
    pub fn in_member(&self, member: &str) -> String {
        match self {
            Self::NotAnObject => format!("`{member}` must be an object"),
            other => format!("`{member}`: {other}"),
        }
    }
}

impl Object {
    /// Parses the object in `text`, at most [`MAX_DEPTH`] levels deep.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, ParseError> {
        Self::parse_within(text.into(), MAX_DEPTH)
    }

    /// Parses the object in `text`, at most `depth` levels deep.
    pub fn parse_within(text: Bytes, depth: usize) -> Result<Self, ParseError> {
        Self::parse_with_nested(text, depth, &[])
    }

    /// Parses the object in `text`, at most `depth` levels deep, and in the same pass some of the
    /// objects in it. `nested` lists keys, quotes included, per level: of the members named first,
    /// those that are objects are parsed, in them the members named second, and so on.
    /// [`Object::get_object`] and [`Object::take_object`] then return them without parsing. A
    /// nested object that breaks an invariant is an error only for the caller that requests it.
    pub fn parse_with_nested(
        text: Bytes,
        depth: usize,
        nested: &[&[&[u8]]],
    ) -> Result<Self, ParseError> {
        read::object(text, depth, nested)
    }

    /// Parses the object in a text that was validated as JSON before, or is a part of one that was:
    /// by quotes and brackets alone, which is a fraction of the work. For any other text the result
    /// is unspecified.
    pub fn parse_trusted(text: Bytes) -> Result<Self, ParseError> {
        Self::parse_part(text, TextFacts::default())
    }

    /// Like [`Object::parse_trusted`], with known facts about the text.
    fn parse_part(text: Bytes, facts: TextFacts) -> Result<Self, ParseError> {
        debug_assert!(serde_json::from_slice::<IgnoredAny>(&text).is_ok(), "{text:?} is no JSON");
        read::trusted(text, facts)
    }

    /// Creates an object without members.
    pub fn new() -> Self {
        let text = Bytes::from_static(b"{}");
        let (members, detached, facts) = (Vec::new(), Vec::new(), TextFacts::default());
        Self { text, members, detached, changed: false, facts, nested: None }
    }

    /// Returns the raw text of a member.
    #[inline]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.member(key).map(|member| str_in(self.value(member.value)))
    }

    /// Returns whether a member is present and this is its raw text.
    #[inline]
    pub fn is(&self, key: &str, raw: &str) -> bool {
        self.member(key).is_some_and(|member| self.value(member.value) == raw.as_bytes())
    }

    /// Returns the raw text of a member, sharing this object's memory.
    #[inline]
    pub fn get_bytes(&self, key: &str) -> Option<Bytes> {
        self.member(key).map(|member| self.bytes_of(member.value))
    }

    /// Returns a member that is a string, decoded; `None` if it is absent or of another type.
    #[inline]
    pub fn get_string(&self, key: &str) -> Option<Cow<'_, str>> {
        decode_string(self.get(key)?)
    }

    /// Returns whether [`Object::get_string`] finds a string, which is not decoded for this.
    pub fn has_string(&self, key: &str) -> bool {
        self.member(key).is_some_and(|member| {
            let raw = self.value(member.value);
            match self.facts_about(member.value).is_plain {
                true => raw.starts_with(b"\""),
                false => strings::is_string(raw),
            }
        })
    }

    /// Returns a member that is an object; `None` if it is absent or of another type.
    pub fn get_object(&self, key: &str) -> Option<Self> {
        self.require_object(key).ok()
    }

    /// Returns a member that is an object or an empty array; `None` if it is absent or of another
    /// type. Servers in PHP write an object without members as `[]`.
    pub fn get_object_or_empty_array(&self, key: &str) -> Option<Self> {
        let value = self.member(key)?.value;
        match is_empty_array(self.value(value)) {
            true => Some(Self::new()),
            false => self.get_object(key),
        }
    }

    /// Returns a member that must be an object; an absent one is [`ParseError::NotAnObject`].
    pub fn require_object(&self, key: &str) -> Result<Self, ParseError> {
        let value = self.member(key).ok_or(ParseError::NotAnObject)?.value;
        match &self.nested {
            Some(nested) if nested.span == value => Ok(nested.object.clone()),
            _ => self.parse_value(value),
        }
    }

    /// Like [`Object::require_object`] for a single use: the object parsed in the same pass is
    /// moved out instead of copied. The member stays. `None` if it is absent.
    pub fn take_object(&mut self, key: &str) -> Option<Result<Self, ParseError>> {
        let value = self.member(key)?.value;
        Some(match self.nested.take_if(|nested| nested.span == value) {
            Some(nested) => Ok(nested.object),
            None => self.parse_value(value),
        })
    }

    /// Returns the raw texts of the elements of a member that is an array; `None` if it is absent
    /// or of another type.
    pub fn get_elements(&self, key: &str) -> Option<Elements> {
        let value = self.member(key)?.value;
        Elements::of(self.bytes_of(value), self.facts_about(value))
    }

    /// Returns whether the member is present, `null` included.
    #[inline]
    pub fn has(&self, key: &str) -> bool {
        self.member(key).is_some()
    }

    /// Returns whether the text is known to be plain: printable ASCII and white space without the
    /// escapes `\b`, `\f` and `\u`. Therefore its strings have no other control characters than
    /// line breaks and tabs.
    pub fn is_plain(&self) -> bool {
        self.facts.is_plain && !self.changed
    }

    /// Returns whether the object has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the keys, in order, decoded.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| str_in(self.key(member.key)))
    }

    /// Returns the members, in order: each decoded key, and the raw text of its value, which shares
    /// this object's memory.
    pub fn members(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.members.iter().map(|it| (str_in(self.key(it.key)), self.bytes_of(it.value)))
    }

    /// Returns the length of the original text that the object keeps in memory.
    pub fn text_len(&self) -> usize {
        self.text.len()
    }

    /// Sets a member, in place if it is present and at the end otherwise.
    pub fn set(&mut self, key: impl Into<Cow<'static, str>>, value: impl Into<Bytes>) {
        let key = key.into();
        self.changed = true;
        let value = DetachedPart::Value(value.into());
        if self.detached.is_empty() {
            self.detached.reserve(EXPECTED_PARTS);
        }
        if let Some(at) = self.position(&key) {
            match self.members[at].value.number() {
                Some(number) => self.detached[number] = value,
                None => self.members[at].value = TextSpan::detached(&mut self.detached, value),
            }
            return;
        }
        let key = TextSpan::detached(&mut self.detached, DetachedPart::Key(key));
        let value = TextSpan::detached(&mut self.detached, value);
        self.members.push(ObjectMember { key, value });
    }

    /// Returns the object with one more member.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl Into<Bytes>) -> Self {
        self.set(key, value);
        self
    }

    /// Returns whether a member was set or removed.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Removes a member and returns its raw text.
    pub fn take(&mut self, key: &str) -> Option<Bytes> {
        let at = self.position(key)?;
        self.changed = true;
        let value = self.members.remove(at).value;
        let bytes = self.bytes_of(value);
        if let Some(number) = value.number() {
            // The old value is dropped; the index stays occupied.
            self.detached[number] = DetachedPart::Value(Bytes::new());
        }
        Some(bytes)
    }

    /// Returns the object as text: the original if nothing was changed.
    pub fn to_bytes(&self) -> Bytes {
        if !self.changed {
            return self.text.clone();
        }
        let mut out = Vec::with_capacity(self.written_len());
        self.write_to(&mut out);
        out.into()
    }

    /// Returns the length of the object's text, or slightly more.
    pub fn written_len(&self) -> usize {
        if !self.changed {
            return self.text.len();
        }
        let of_member = |member: &ObjectMember| {
            let key = match self.written_key(member.key) {
                Ok(written) => written.len(),
                Err(key) => key.len() + 2,
            };
            key + self.value(member.value).len() + 2
        };
        1 + self.members.iter().map(of_member).sum::<usize>()
    }

    /// Appends the object's text to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        if !self.changed {
            out.extend_from_slice(&self.text);
            return;
        }
        out.push(b'{');
        for (at, member) in self.members.iter().enumerate() {
            self.write_key(at, out);
            out.extend_from_slice(self.value(member.value));
        }
        out.push(b'}');
    }

    /// Appends the object's text to `out` up to the first value that was set and has at least
    /// `bytes` bytes, and returns that value, which is not copied, and the text behind it. Without
    /// such a value all of the text is appended.
    pub fn write_around(&self, bytes: usize, out: &mut Vec<u8>) -> Option<(Bytes, Vec<u8>)> {
        let mut members = self.members.iter().enumerate();
        let found =
            members.find_map(|(at, member)| match &self.detached[member.value.number()?] {
                DetachedPart::Value(value) if value.len() >= bytes => Some((at, value.clone())),
                _ => None,
            });
        let Some((middle, value)) = found else {
            self.write_to(out);
            return None;
        };
        let mut behind = Vec::new();
        out.push(b'{');
        for (at, member) in self.members.iter().enumerate() {
            let out = if at > middle { &mut behind } else { &mut *out };
            self.write_key(at, out);
            if at != middle {
                out.extend_from_slice(self.value(member.value));
            }
        }
        behind.push(b'}');
        Some((value, behind))
    }

    /// Writes the separator, key and colon of a member.
    fn write_key(&self, at: usize, out: &mut Vec<u8>) {
        if at > 0 {
            out.push(b',');
        }
        match self.written_key(self.members[at].key) {
            Ok(written) => out.extend_from_slice(written),
            Err(key) => write_quoted(out, key),
        }
        out.push(b':');
    }

    fn position(&self, key: &str) -> Option<usize> {
        let Self { text, members, detached, .. } = self;
        members.iter().position(|member| is_key(text, detached, member.key, key.as_bytes()))
    }

    fn member(&self, key: &str) -> Option<&ObjectMember> {
        self.position(key).map(|at| &self.members[at])
    }

    fn parse_value(&self, span: TextSpan) -> Result<Self, ParseError> {
        Self::parse_part(self.bytes_of(span), self.facts_about(span))
    }

    fn facts_about(&self, value: TextSpan) -> TextFacts {
        match value.number() {
            Some(_) => TextFacts::default(),
            None => self.facts.part(value.range()),
        }
    }

    fn key(&self, span: TextSpan) -> &[u8] {
        decoded_key(&self.text, &self.detached, span)
    }

    /// Returns a key as it is written in the text, or the key that has to be quoted.
    fn written_key(&self, span: TextSpan) -> Result<&[u8], &str> {
        match span.number().map(|number| &self.detached[number]) {
            Some(DetachedPart::Key(key)) => Err(key),
            Some(DetachedPart::Escaped(span, _)) => Ok(&self.text[span.range()]),
            Some(DetachedPart::Value(_)) => Ok(&[]),
            None => Ok(&self.text[span.range()]),
        }
    }

    fn value(&self, span: TextSpan) -> &[u8] {
        match span.number().map(|number| &self.detached[number]) {
            Some(DetachedPart::Value(value)) => value,
            Some(_) => &[],
            None => &self.text[span.range()],
        }
    }

    fn bytes_of(&self, span: TextSpan) -> Bytes {
        match span.number().map(|number| &self.detached[number]) {
            Some(DetachedPart::Value(value)) => value.clone(),
            Some(_) => Bytes::new(),
            None => self.text.slice(span.range()),
        }
    }
}

/// Returns whether a key is this one.
fn is_key(text: &[u8], detached: &[DetachedPart], span: TextSpan, key: &[u8]) -> bool {
    // Most keys in the text differ in length already.
    span.may_have_length(key.len() + 2) && decoded_key(text, detached, span) == key
}

/// Returns a decoded key.
fn decoded_key<'a>(text: &'a [u8], detached: &'a [DetachedPart], span: TextSpan) -> &'a [u8] {
    match span.number().map(|number| &detached[number]) {
        Some(DetachedPart::Escaped(_, decoded_key)) => decoded_key.as_bytes(),
        Some(DetachedPart::Key(key)) => key.as_bytes(),
        Some(DetachedPart::Value(_)) => &[],
        None => {
            let key = span.range();
            &text[key.start + 1..key.end - 1]
        }
    }
}

impl Default for Object {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

/// Returns whether the text of a JSON value is an array without elements.
pub fn is_empty_array(value: &[u8]) -> bool {
    value.strip_prefix(b"[").is_some_and(|rest| rest.trim_ascii_start() == b"]")
}

/// Replaces the line breaks between JSON's tokens, so that the text fits on one line.
///
/// In valid JSON a raw line break never stands inside a string, so a space has the same meaning.
#[inline]
pub fn on_one_line(text: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &text).is_none() {
        return text;
    }
    let spaced = text.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte });
    spaced.collect::<Vec<u8>>().into()
}

/// Converts a part of a text that was checked before.
fn str_in(part: &[u8]) -> &str {
    std::str::from_utf8(part).expect("it was checked that the text is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Object {
        Object::parse(text.to_owned()).expect(text)
    }

    fn refusal(text: &str) -> ParseError {
        Object::parse(text.to_owned()).expect_err(text)
    }

    #[test]
    fn what_nobody_changes_stays_as_it_came() {
        for text in [
            "{}",
            " { \"a\" : 1e400 , \"b\":[1.0, -0] } ",
            r#"{"\u0061":"\ud83d\ude00","z":{"z":{}},"b":null}"#,
        ] {
            assert_eq!(parse(text).to_bytes(), text);
        }
    }

    #[test]
    fn a_changed_member_keeps_its_place_and_every_other_byte() {
        let mut object = parse(r#"{ "x\u002fy": 1.0, "name": "old", "n": 1e400 }"#);
        object.set("name", quote("new"));
        object.set("added", "true");
        assert_eq!(object.to_bytes(), r#"{"x\u002fy":1.0,"name":"new","n":1e400,"added":true}"#);
    }

    #[test]
    fn a_large_value_that_was_set_is_written_around() {
        let mut object = parse(r#"{"came":"as large"}"#);
        let around = |object: &Object| {
            let mut before = b"> ".to_vec();
            let found = object.write_around(8, &mut before);
            (before, found)
        };
        assert_eq!(around(&object), (br#"> {"came":"as large"}"#.to_vec(), None));
        object.set("few", "7");
        assert_eq!(around(&object), (br#"> {"came":"as large","few":7}"#.to_vec(), None));
        let large = Bytes::from_static(b"[1,2,3,4]");
        object.set("many", large.clone());
        object.set("last", "\"and this\"");
        let (before, found) = around(&object);
        let (value, behind) = found.expect("a large one");
        assert_eq!(value.as_ptr(), large.as_ptr(), "it was copied");
        assert_eq!([&before[2..], &value, &behind].concat(), object.to_bytes());
    }

    #[test]
    fn an_object_from_nothing_is_an_empty_one() {
        assert_eq!(Object::default().to_bytes(), "{}");
        assert!(Object::new().is_empty());
    }

    #[test]
    fn a_taken_member_is_gone() {
        let mut object = parse(r#"{"a":1,"b":2,"c":3}"#);
        assert_eq!(object.take("b").as_deref(), Some(b"2".as_slice()));
        assert_eq!(object.to_bytes(), r#"{"a":1,"c":3}"#);
        assert_eq!(object.take("b"), None);
    }

    #[test]
    fn a_key_is_found_by_what_it_means() {
        let object = parse(r#"{"\u006eame":"x\n","k":{"inner":[]}}"#);
        assert_eq!(object.get_string("name").as_deref(), Some("x\n"));
        assert_eq!(object.get_object("k").and_then(|k| k.get_bytes("inner")), Some("[]".into()));
        assert_eq!(object.get_string("k"), None);
    }

    #[test]
    fn empty_array_is_an_object_only_if_the_caller_allows_it() {
        let object = parse(r#"{"a":[],"b":[ ],"c":{"x":1},"d":[1],"e":"[]","f":null,"g":[[]]}"#);
        let found = |key: &str| object.get_object_or_empty_array(key).map(|it| it.to_bytes());
        for key in ["a", "b"] {
            assert_eq!((found(key), object.get_object(key)), (Some("{}".into()), None), "{key}");
        }
        assert_eq!(found("c"), Some(r#"{"x":1}"#.into()));
        for key in ["d", "e", "f", "g", "absent"] {
            assert_eq!(found(key), None, "{key}");
        }
    }

    #[test]
    fn s13_a_member_that_stands_twice_is_refused() {
        assert!(matches!(refusal(r#"{"a":1,"\u0061":2}"#), ParseError::Members(_)));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert_eq!(refusal("[1]"), ParseError::NotAnObject);
        assert_eq!(refusal("7"), ParseError::NotAnObject);
        for text in ["", "{", "{\"a\":}", "{\"a\":1}x", "{\"a\":01}", "{\"a\":\"\u{1}\"}"] {
            assert!(matches!(refusal(text), ParseError::Syntax(_)), "{text:?}");
        }
        let not_utf8 = Object::parse(&b"{\"a\":\"\xff\"}"[..]);
        assert!(matches!(not_utf8, Err(ParseError::Syntax(_))));
    }

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let nested = |levels: usize| {
            format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
        };
        assert!(Object::parse(nested(MAX_DEPTH)).is_ok());
        assert_eq!(refusal(&nested(MAX_DEPTH + 1)), ParseError::TooDeep(MAX_DEPTH));
        assert_eq!(refusal(&nested(1_000_000)), ParseError::TooDeep(MAX_DEPTH));
        assert!(Object::parse(format!("{{\"a\":\"{}\\\"[\"}}", "[".repeat(100))).is_ok());
    }

    #[test]
    fn a_member_that_is_set_and_taken_again_and_again_is_the_last_one() {
        let mut object = parse(r#"{"\u0061":1,"b":2}"#);
        for round in 0..3 {
            object.set("a", format!("[{round}]"));
            object.set("c", format!("{round}"));
            assert_eq!(object.to_bytes(), format!(r#"{{"\u0061":[{round}],"b":2,"c":{round}}}"#));
            assert_eq!(object.take("c").expect("it is there"), format!("{round}"));
            assert!(!object.has("c"));
        }
        assert_eq!(object.take("a").expect("it is there"), "[2]");
        assert_eq!(object.to_bytes(), r#"{"b":2}"#);
        assert_eq!(object.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_before_anything_else() {
        let not_utf8 = |text: &[u8]| {
            let refused = Object::parse(Bytes::copy_from_slice(text));
            matches!(refused, Err(ParseError::Syntax(reason)) if reason.contains("utf-8"))
        };
        assert!(not_utf8(b"{\"a\":\"\xff\"}"));
        assert!(not_utf8(b"{\"a\xff\":1,\"a\xff\":2}"));
        assert!(not_utf8(b"{\"a\":1} \xff"));
        assert!(not_utf8(&[b"[".repeat(100), b"\xff".to_vec()].concat()));
    }

    #[test]
    fn object_is_plain_until_it_changes_if_nothing_may_be_hidden_in_its_text() {
        let is_plain = |text: &str, key: &str| {
            let object = Object::parse_with_nested(text.to_owned().into(), 9, &[&[b"\"a\""]]);
            let object = object.expect(text);
            (object.is_plain(), object.get_object(key).map(|it| it.is_plain()))
        };
        for key in ["a", "b"] {
            let of = |value: &str| is_plain(&format!("{{\"{key}\":{{\"k\":\"{value}\"}}}}"), key);
            assert_eq!(of("x\\n"), (true, Some(true)));
            assert_eq!(of("\\u001b"), (false, Some(false)));
            assert_eq!(of("é"), (false, Some(false)));
        }
        let mut object = parse("{\"a\":1}");
        assert!(object.is_plain());
        object.set("b", "\"é\"");
        assert!(!object.is_plain() && object.has_string("b"));
    }

    #[test]
    fn the_number_of_members_is_bounded() {
        let with = |count: usize| {
            let members: Vec<_> = (0..count).map(|n| format!("\"{n}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(Object::parse(with(MAX_MEMBERS)).is_ok());
        assert!(matches!(refusal(&with(MAX_MEMBERS + 1)), ParseError::Members(_)));
        assert_eq!(size_of::<ObjectMember>(), 16);
    }

    #[test]
    fn elements_of_an_array_keep_their_bytes() {
        let array = Bytes::from_static(b"[ {\"a\": 1.0}, 1e400,[] ]");
        let texts: Vec<_> = elements(&array).unwrap_or_default().collect();
        assert_eq!(texts, ["{\"a\": 1.0}", "1e400", "[]"]);
        assert!(elements(&Bytes::from_static(b"{}")).is_none());
    }

    proptest! {
        #[test]
        fn any_object_comes_out_as_it_went_in(
            members in prop::collection::btree_map(".*", ".*", 0..12),
            spread in any::<bool>(),
        ) {
            let text = if spread {
                serde_json::to_string_pretty(&members)
            } else {
                serde_json::to_string(&members)
            }.expect("a map of strings is writable");
            let mut object = parse(&text);
            prop_assert_eq!(object.to_bytes(), text.as_bytes());
            for (key, value) in &members {
                prop_assert_eq!(object.get_string(key), Some(Cow::from(value.as_str())));
            }
            // Rewriting with a member of our own leaves the others' texts alone.
            object.set("\u{1}weir", "7");
            let again = Object::parse(object.to_bytes()).expect("a written object is an object");
            for key in members.keys() {
                prop_assert_eq!(again.get(key), object.get(key));
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Object::parse(bytes);
        }
    }
}
