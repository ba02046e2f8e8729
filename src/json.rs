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

mod elements;
mod extract;
mod read;
mod scan;
mod strings;

pub use elements::{Elements, elements, elements_again};
pub use extract::{Extract, Extracted};
pub use strings::{Found, rewrite_strings};

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use serde::de::IgnoredAny;

/// How many members an [`Object`] may have.
pub const MAX_MEMBERS: usize = 1_024;

/// How long the text of an [`Object`] may be: the places of its members are kept in 32 bits.
pub const MAX_TEXT_BYTES: usize = u32::MAX as usize - 1;

/// How many levels of objects and arrays a text may have where nobody says otherwise.
pub const MAX_DEPTH: usize = 64;

/// A JSON object: its text, and where its members are.
#[derive(Clone)]
pub struct Object {
    text: Bytes,
    members: Vec<Member>,
    /// What is no part of the text.
    apart: Vec<Apart>,
    /// Whether `members` says something else than `text`.
    changed: bool,
    /// A member's value that is an object and was read along with this one.
    along: Option<Box<Along>>,
}

/// An object that was read along with the one around it, and where it stands in that one's text.
#[derive(Clone)]
struct Along {
    place: Place,
    object: Object,
}

/// Small, since the shortest members have six bytes of text and there may be many.
#[derive(Clone, Copy)]
struct Member {
    /// With its quotes.
    key: Place,
    value: Place,
}

/// Where a key or a value is: a part of the object's own text, or one of what is apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    /// [`Place::APART`] where it is apart.
    start: u32,
    /// Its end in the text, or its number.
    end: u32,
}

/// What is no part of an object's text.
#[derive(Clone)]
enum Apart {
    /// A key that is written with escapes: where, and what it means.
    Escaped(Place, Box<str>),
    /// A key that was set.
    Key(Cow<'static, str>),
    /// A value that was set.
    Value(Bytes),
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

impl Malformed {
    /// What is wrong with the value of `member`, for its sender.
    pub fn in_member(&self, member: &str) -> String {
        match self {
            Self::NotAnObject => format!("`{member}` must be an object"),
            other => format!("`{member}`: {other}"),
        }
    }
}

impl Object {
    /// Reads the object in `text`, at most [`MAX_DEPTH`] levels deep.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, Malformed> {
        Self::parse_within(text.into(), MAX_DEPTH)
    }

    /// Reads the object in `text`, at most `depth` levels deep.
    pub fn parse_within(text: Bytes, depth: usize) -> Result<Self, Malformed> {
        Self::parse_along(text, depth, &[])
    }

    /// Reads the object in `text`, at most `depth` levels deep, and in the same pass the values that are objects of the members
    /// whose keys, quotes included, are among the first of `along`, of those the ones in its second, and no further: who
    /// asks for them by [`Object::get_object`] or [`Object::take_object`] gets them unread. One that breaks what an
    /// [`Object`] promises is left for whoever asks for it.
    pub fn parse_along(text: Bytes, depth: usize, along: &[&[&[u8]]]) -> Result<Self, Malformed> {
        if !text.is_ascii() {
            std::str::from_utf8(&text).map_err(|bad| Malformed::Syntax(bad.to_string()))?;
        }
        read::object(text, Some(depth), along)
    }

    /// Reads the object in a text that was read before as JSON, or is a part of one that was: by quotes and brackets
    /// alone, which is a fraction of the work. Of any other text nothing is promised.
    pub fn parse_again(text: Bytes) -> Result<Self, Malformed> {
        Self::parse_again_along(text, &[])
    }

    /// The same, and values inside of it as [`Object::parse_along`] does.
    pub fn parse_again_along(text: Bytes, along: &[&[&[u8]]]) -> Result<Self, Malformed> {
        debug_assert!(serde_json::from_slice::<IgnoredAny>(&text).is_ok(), "{text:?} is no JSON");
        read::object(text, None, along)
    }

    /// An object without members.
    pub fn new() -> Self {
        let text = Bytes::from_static(b"{}");
        Self { text, members: Vec::new(), apart: Vec::new(), changed: false, along: None }
    }

    /// The raw text of a member.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.member(key).map(|member| str_in(self.value(member.value)))
    }

    /// The raw text of a member, sharing this object's memory.
    pub fn get_bytes(&self, key: &str) -> Option<Bytes> {
        self.member(key).map(|member| self.bytes_of(member.value))
    }

    /// A member that is a string, decoded; `None` if it is absent or of another type.
    pub fn get_string(&self, key: &str) -> Option<Cow<'_, str>> {
        decode_string(self.get(key)?)
    }

    /// A member that is an object; `None` if it is absent or of another type.
    pub fn get_object(&self, key: &str) -> Option<Self> {
        self.read_object(key).ok()
    }

    /// A member that has to be an object; one that is absent is [`Malformed::NotAnObject`].
    pub fn read_object(&self, key: &str) -> Result<Self, Malformed> {
        let value = self.member(key).ok_or(Malformed::NotAnObject)?.value;
        match &self.along {
            Some(along) if along.place == value => Ok(along.object.clone()),
            _ => Self::parse_again(self.bytes_of(value)),
        }
    }

    /// The same for who asks but once: what was read along with this object is not kept here any longer. The member stays.
    pub fn take_object(&mut self, key: &str) -> Option<Result<Self, Malformed>> {
        let value = self.member(key)?.value;
        Some(match self.along.take_if(|along| along.place == value) {
            Some(along) => Ok(along.object),
            None => Self::parse_again(self.bytes_of(value)),
        })
    }

    /// The raw texts of the elements of a member that is an array; `None` if it is absent or of another type.
    pub fn get_elements(&self, key: &str) -> Option<Elements> {
        elements_again(&self.get_bytes(key)?)
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
        self.members.iter().map(|member| str_in(self.key(member.key)))
    }

    /// The members, in order: each key, decoded, and the raw text of its value, which shares this object's memory.
    pub fn members(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.members.iter().map(|it| (str_in(self.key(it.key)), self.bytes_of(it.value)))
    }

    /// How many bytes of text it keeps, whatever was set or taken since.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Gives a member a new value, in place if it is there and at the end if it is not.
    ///
    /// `value` must be JSON text.
    pub fn set(&mut self, key: impl Into<Cow<'static, str>>, value: impl Into<Bytes>) {
        let key = key.into();
        self.changed = true;
        let value = Apart::Value(value.into());
        if let Some(at) = self.position(&key) {
            match self.members[at].value.number() {
                Some(number) => self.apart[number] = value,
                None => self.members[at].value = Place::apart(&mut self.apart, value),
            }
            return;
        }
        let key = Place::apart(&mut self.apart, Apart::Key(key));
        let value = Place::apart(&mut self.apart, value);
        self.members.push(Member { key, value });
    }

    /// Removes a member and returns its raw text.
    pub fn take(&mut self, key: &str) -> Option<Bytes> {
        let at = self.position(key)?;
        self.changed = true;
        let value = self.members.remove(at).value;
        let bytes = self.bytes_of(value);
        if let Some(number) = value.number() {
            // It is not held any longer.
            self.apart[number] = Apart::Value(Bytes::new());
        }
        Some(bytes)
    }

    /// The object as text: as it came if nothing was changed.
    pub fn to_bytes(&self) -> Bytes {
        if !self.changed {
            return self.text.clone();
        }
        let mut out = Vec::with_capacity(self.written_bytes());
        self.write_to(&mut out);
        out.into()
    }

    /// How many bytes the object's text has, or some more.
    pub fn written_bytes(&self) -> usize {
        if !self.changed {
            return self.text.len();
        }
        let of_member = |member: &Member| {
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

    /// Appends the object's text to `out` up to the first value that was set and has so many bytes, and returns that value,
    /// which is not copied, and what stands behind it. If there is none all of the text is appended.
    pub fn write_around(&self, bytes: usize, out: &mut Vec<u8>) -> Option<(Bytes, Vec<u8>)> {
        let mut members = self.members.iter().enumerate();
        let found = members.find_map(|(at, member)| match &self.apart[member.value.number()?] {
            Apart::Value(value) if value.len() >= bytes => Some((at, value.clone())),
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

    /// Writes what stands before a member's value.
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
        self.members.iter().position(|member| self.key(member.key) == key.as_bytes())
    }

    fn member(&self, key: &str) -> Option<&Member> {
        self.members.iter().find(|member| self.key(member.key) == key.as_bytes())
    }

    fn key(&self, place: Place) -> &[u8] {
        meant(&self.text, &self.apart, place)
    }

    /// A key as it is written, or what has to be written yet.
    fn written_key(&self, place: Place) -> Result<&[u8], &str> {
        match place.number().map(|number| &self.apart[number]) {
            Some(Apart::Key(key)) => Err(key),
            Some(Apart::Escaped(place, _)) => Ok(&self.text[place.range()]),
            Some(Apart::Value(_)) => Ok(&[]),
            None => Ok(&self.text[place.range()]),
        }
    }

    fn value(&self, place: Place) -> &[u8] {
        match place.number().map(|number| &self.apart[number]) {
            Some(Apart::Value(value)) => value,
            Some(_) => &[],
            None => &self.text[place.range()],
        }
    }

    fn bytes_of(&self, place: Place) -> Bytes {
        match place.number().map(|number| &self.apart[number]) {
            Some(Apart::Value(value)) => value.clone(),
            Some(_) => Bytes::new(),
            None => self.text.slice(place.range()),
        }
    }
}

/// A key as it is meant.
fn meant<'a>(text: &'a [u8], apart: &'a [Apart], place: Place) -> &'a [u8] {
    match place.number().map(|number| &apart[number]) {
        Some(Apart::Escaped(_, meant)) => meant.as_bytes(),
        Some(Apart::Key(key)) => key.as_bytes(),
        Some(Apart::Value(_)) => &[],
        None => &text[place.start as usize + 1..place.end as usize - 1],
    }
}

impl Place {
    /// No text is long enough to have a part that begins here: see [`MAX_TEXT_BYTES`].
    const APART: u32 = u32::MAX;

    /// A part of a text that has at most [`MAX_TEXT_BYTES`].
    fn within(range: Range<usize>) -> Self {
        Self { start: range.start as u32, end: range.end as u32 }
    }

    fn apart(all: &mut Vec<Apart>, one: Apart) -> Self {
        all.push(one);
        Self { start: Self::APART, end: (all.len() - 1) as u32 }
    }

    fn number(self) -> Option<usize> {
        (self.start == Self::APART).then_some(self.end as usize)
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The same place in a part of the text that begins there.
    fn since(self, start: usize) -> Self {
        match self.number() {
            Some(_) => self,
            None => Self::within(self.start as usize - start..self.end as usize - start),
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
    let mut out = Vec::with_capacity(text.len() + 2);
    write_quoted(&mut out, text);
    out.into()
}

fn write_quoted(out: &mut Vec<u8>, text: &str) {
    // Most are names, in which there is nothing to escape. Without an early end the bytes are looked at many at a time.
    let is_plain = |byte: u8| (byte >= b' ') & (byte != b'"') & (byte != b'\\');
    if text.bytes().fold(true, |all, byte| all & is_plain(byte)) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    serde_json::to_writer(out, text).expect("a string is always writable as JSON");
}

/// Reads JSON text that is a string; `None` if it is something else.
pub fn decode_string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
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

/// A part of what was read before.
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
    fn a_place_tells_its_part_of_a_text() {
        let last = MAX_TEXT_BYTES - 2..MAX_TEXT_BYTES;
        let place = Place::within(last.clone());
        assert_eq!((place.number(), place.range()), (None, last.clone()));
        assert_eq!(place.since(last.start).range(), 0..2);
        let mut apart = vec![Apart::Value(Bytes::new())];
        let one = Place::apart(&mut apart, Apart::Key("k".into()));
        assert_eq!((one.number(), one.since(7) == one), (Some(1), true));
        assert_eq!(size_of::<Member>(), 16);
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
