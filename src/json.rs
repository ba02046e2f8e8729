//! A JSON object parsed exactly one level deep.
//!
//! Weir owns a few members of each message and never reads the rest. An [`Object`] keeps the text as
//! it came and the place of each member; reading one yields its raw text, changing one leaves every
//! other byte as it was, in the order in which it came. That is why unknown fields, number texts such
//! as `1e400` and key order survive the way through the house.
//!
//! Promises: what [`Object::parse`] accepts is valid JSON in valid UTF-8, has no member twice (two
//! readers must not disagree about which one counts), at most [`MAX_MEMBERS`] members, and is at most
//! the given number of levels deep.
//!
//! Knows nothing of: JSON-RPC, MCP, and what the members mean.

mod extract;
mod strings;

pub use extract::{Extract, Extracted};
pub use strings::{Found, rewrite_strings};

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// How many members an [`Object`] may have.
pub const MAX_MEMBERS: usize = 1_024;

/// How many levels of objects and arrays a text may have where nobody says otherwise.
pub const MAX_DEPTH: usize = 64;

/// A JSON object: its text, and where its members are.
#[derive(Clone)]
pub struct Object {
    text: Bytes,
    members: Vec<Member>,
    /// Whether `members` says something else than `text`.
    changed: bool,
}

#[derive(Clone)]
struct Member {
    /// The key as it is meant, for looking up; `None` where the raw text between the quotes is it.
    unescaped: Option<Box<str>>,
    key: Text,
    value: Text,
}

/// A piece of JSON: a part of the object's own text, or set since.
#[derive(Clone)]
enum Text {
    At(Range<usize>),
    Set(Bytes),
}

/// Why a text is not an [`Object`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not JSON, or not UTF-8; the text names the place.
    #[error("not valid JSON: {0}")]
    Syntax(String),
    /// JSON, but no object.
    #[error("not a JSON object")]
    NotAnObject,
    /// Nested more deeply than allowed.
    #[error("nested more than {0} levels deep")]
    TooDeep(usize),
    /// The same member twice, or too many members.
    #[error("{0}")]
    Members(String),
}

impl Object {
    /// Reads the object in `text`, at most [`MAX_DEPTH`] levels deep.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, Malformed> {
        Self::parse_within(text.into(), MAX_DEPTH)
    }

    /// Reads the object in `text`, at most `depth` levels deep.
    pub fn parse_within(text: Bytes, depth: usize) -> Result<Self, Malformed> {
        // serde_json's raw values have no limit of their own: 10⁶ brackets would pass.
        if exceeds_depth(&text, depth) {
            return Err(Malformed::TooDeep(depth));
        }
        match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => {}
            _ => {
                return Err(match serde_json::from_slice::<IgnoredAny>(&text) {
                    Ok(_) => Malformed::NotAnObject,
                    Err(error) => Malformed::Syntax(error.to_string()),
                });
            }
        }
        let mut reader = serde_json::Deserializer::from_slice(&text);
        let members = serde::Deserializer::deserialize_map(&mut reader, Members { text: &text })
            .and_then(|members| reader.end().map(|()| members))
            .map_err(|error| {
                if error.is_data() {
                    Malformed::Members(error.to_string())
                } else {
                    Malformed::Syntax(error.to_string())
                }
            })?;
        Ok(Self { text, members, changed: false })
    }

    /// An object without members.
    pub fn new() -> Self {
        Self { text: Bytes::from_static(b"{}"), members: Vec::new(), changed: false }
    }

    /// The raw text of a member.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.member(key).map(|member| self.text_of(&member.value))
    }

    /// The raw text of a member, sharing this object's memory.
    pub fn get_bytes(&self, key: &str) -> Option<Bytes> {
        self.member(key).map(|member| self.bytes_of(&member.value))
    }

    /// A member that is a string, decoded; `None` if it is absent or of another type.
    pub fn get_string(&self, key: &str) -> Option<Cow<'_, str>> {
        decode_string(self.get(key)?)
    }

    /// A member that is an object; `None` if it is absent or of another type.
    pub fn get_object(&self, key: &str) -> Option<Self> {
        // The depth was checked when the whole was read.
        Self::parse_within(self.get_bytes(key)?, usize::MAX).ok()
    }

    /// Whether the member is there, `null` included.
    pub fn has(&self, key: &str) -> bool {
        self.member(key).is_some()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The keys, in order, decoded.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| self.key_of(member))
    }

    /// How many bytes of text it keeps, whatever was set or taken since.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Gives a member a new value, in place if it is there and at the end if it is not.
    ///
    /// `value` must be JSON text.
    pub fn set(&mut self, key: &str, value: impl Into<Bytes>) {
        self.changed = true;
        let value = Text::Set(value.into());
        if let Some(at) = self.position(key) {
            self.members[at].value = value;
            return;
        }
        let unescaped = Some(key.into());
        self.members.push(Member { unescaped, key: Text::Set(quote(key)), value });
    }

    /// Removes a member and returns its raw text.
    pub fn take(&mut self, key: &str) -> Option<Bytes> {
        let at = self.position(key)?;
        self.changed = true;
        let member = self.members.remove(at);
        Some(self.bytes_of(&member.value))
    }

    /// The object as text: as it came if nothing was changed.
    pub fn to_bytes(&self) -> Bytes {
        if !self.changed {
            return self.text.clone();
        }
        let mut out = Vec::with_capacity(self.text.len() + 64);
        self.write_to(&mut out);
        out.into()
    }

    /// Appends the object's text to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        if !self.changed {
            out.extend_from_slice(&self.text);
            return;
        }
        out.push(b'{');
        for (at, member) in self.members.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(self.text_of(&member.key).as_bytes());
            out.push(b':');
            out.extend_from_slice(self.text_of(&member.value).as_bytes());
        }
        out.push(b'}');
    }

    fn position(&self, key: &str) -> Option<usize> {
        self.members.iter().position(|member| self.key_of(member) == key)
    }

    fn member(&self, key: &str) -> Option<&Member> {
        self.members.iter().find(|member| self.key_of(member) == key)
    }

    fn key_of<'a>(&'a self, member: &'a Member) -> &'a str {
        match &member.unescaped {
            Some(key) => key,
            None => {
                let quoted = self.text_of(&member.key);
                &quoted[1..quoted.len() - 1]
            }
        }
    }

    fn text_of<'a>(&'a self, text: &'a Text) -> &'a str {
        let bytes = match text {
            Text::At(range) => &self.text[range.clone()],
            Text::Set(bytes) => bytes,
        };
        std::str::from_utf8(bytes).expect("parsing checked that the text is UTF-8")
    }

    fn bytes_of(&self, text: &Text) -> Bytes {
        match text {
            Text::At(range) => self.text.slice(range.clone()),
            Text::Set(bytes) => bytes.clone(),
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

/// Writes a string as JSON text, quotes included.
pub fn quote(text: &str) -> Bytes {
    serde_json::to_vec(text).expect("a string is always writable as JSON").into()
}

/// Reads JSON text that is a string; `None` if it is something else.
pub fn decode_string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

/// The raw texts of an array's elements, sharing its memory; `None` if it is no array.
pub fn elements(array: &Bytes) -> Option<Vec<Bytes>> {
    let mut reader = serde_json::Deserializer::from_slice(array);
    serde::Deserializer::deserialize_seq(&mut reader, Elements { text: array }).ok()
}

/// Replaces the line breaks between JSON's tokens, so that the text fits on one line.
///
/// In valid JSON a raw line break never stands inside a string, so a space says the same.
pub fn on_one_line(text: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &text).is_none() {
        return text;
    }
    let spaced = text.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte });
    spaced.collect::<Vec<u8>>().into()
}

/// Whether brackets nest more than `limit` deep. Reads quotes and brackets only: a text that is no
/// JSON may be judged either way, and fails when it is parsed.
fn exceeds_depth(text: &[u8], limit: usize) -> bool {
    if limit == usize::MAX {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Where `part`, which was borrowed from `text`, stands in it.
fn range_in(text: &Bytes, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

/// Reads the members of an object with their places.
struct Members<'a> {
    text: &'a Bytes,
}

impl<'de> Visitor<'de> for Members<'de> {
    type Value = Vec<Member>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Member>, A::Error> {
        let mut members: Vec<Member> = Vec::new();
        let mut names: Vec<Cow<'de, str>> = Vec::new();
        let mut end_of_last = 0;
        while let Some(name) = map.next_key_seed(Key)? {
            let value: &'de RawValue = map.next_value()?;
            if members.len() == MAX_MEMBERS {
                let text = format!("more than {MAX_MEMBERS} members in one object");
                return Err(serde::de::Error::custom(text));
            }
            if names.contains(&name) {
                return Err(serde::de::Error::custom(format!("member {name:?} stands twice")));
            }
            let value = range_in(self.text, value.get());
            let key = self.key_between(end_of_last, value.start);
            end_of_last = value.end;
            let plain = self.text[key.start + 1..key.end - 1] == *name.as_bytes();
            members.push(Member {
                unescaped: (!plain).then(|| name.as_ref().into()),
                key: Text::At(key),
                value: Text::At(value),
            });
            names.push(name);
        }
        Ok(members)
    }
}

impl Members<'_> {
    /// The quoted key, which is all that stands between one value and the next but punctuation.
    fn key_between(&self, start: usize, end: usize) -> Range<usize> {
        let between = &self.text[start..end];
        let is_quote = |byte: &u8| *byte == b'"';
        let first = between.iter().position(is_quote).expect("a member has a key");
        let last = between.iter().rposition(is_quote).expect("a member has a key");
        start + first..start + last + 1
    }
}

/// Reads a key, borrowed where it holds no escape.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

/// Reads the elements of an array.
struct Elements<'a> {
    text: &'a Bytes,
}

impl<'de> Visitor<'de> for Elements<'de> {
    type Value = Vec<Bytes>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Vec<Bytes>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = array.next_element::<&'de RawValue>()? {
            elements.push(self.text.slice(range_in(self.text, element.get())));
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Object {
        Object::parse(text.to_owned()).expect(text)
    }

    fn refusal(text: &str) -> Malformed {
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
    fn s13_a_member_that_stands_twice_is_refused() {
        assert!(matches!(refusal(r#"{"a":1,"\u0061":2}"#), Malformed::Members(_)));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert_eq!(refusal("[1]"), Malformed::NotAnObject);
        assert_eq!(refusal("7"), Malformed::NotAnObject);
        for text in ["", "{", "{\"a\":}", "{\"a\":1}x", "{\"a\":01}", "{\"a\":\"\u{1}\"}"] {
            assert!(matches!(refusal(text), Malformed::Syntax(_)), "{text:?}");
        }
        let not_utf8 = Object::parse(&b"{\"a\":\"\xff\"}"[..]);
        assert!(matches!(not_utf8, Err(Malformed::Syntax(_))));
    }

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let nested = |levels: usize| {
            format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
        };
        assert!(Object::parse(nested(MAX_DEPTH)).is_ok());
        assert_eq!(refusal(&nested(MAX_DEPTH + 1)), Malformed::TooDeep(MAX_DEPTH));
        assert_eq!(refusal(&nested(1_000_000)), Malformed::TooDeep(MAX_DEPTH));
        assert!(Object::parse(format!("{{\"a\":\"{}\\\"[\"}}", "[".repeat(100))).is_ok());
    }

    #[test]
    fn the_number_of_members_is_bounded() {
        let with = |count: usize| {
            let members: Vec<_> = (0..count).map(|n| format!("\"{n}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(Object::parse(with(MAX_MEMBERS)).is_ok());
        assert!(matches!(refusal(&with(MAX_MEMBERS + 1)), Malformed::Members(_)));
    }

    #[test]
    fn elements_of_an_array_keep_their_bytes() {
        let array = Bytes::from_static(b"[ {\"a\": 1.0}, 1e400,[] ]");
        let texts: Vec<_> = elements(&array).unwrap_or_default();
        assert_eq!(texts, ["{\"a\": 1.0}", "1e400", "[]"]);
        assert_eq!(elements(&Bytes::from_static(b"{}")), None);
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
