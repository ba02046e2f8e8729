//! Parser from a text to an [`Object`] and the nested objects that are parsed in the same pass.

use std::ops::Range;

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::scan::{Scan, ScanError, TextFacts};
use super::span::TextSpan;
use super::{
    DetachedPart, MAX_MEMBERS, MAX_TEXT_BYTES, NestedObject, Object, ObjectMember, ParseError,
    decoded_key, is_key,
};

/// Keys, with the quotes, of the members to descend into: of the object itself, then of those
/// members, and so on.
pub(super) type MemberPaths<'a> = &'a [&'a [&'a [u8]]];

/// Initial capacity, enough for the members of a message.
const EXPECTED_MEMBERS: usize = 6;

/// Number of members from which an object releases unused capacity.
const MANY_MEMBERS: usize = 64;

/// Parses the object in a text, at most `depth` levels deep.
pub(super) fn object(
    text: Bytes,
    depth: usize,
    nested: MemberPaths<'_>,
) -> Result<Object, ParseError> {
    check_length(&text)?;
    let mut reader = Reader { text: &text, scan: Scan::begin(&text, depth) };
    let read = reader.whole(nested);
    let (is_ascii, facts) = (reader.scan.is_ascii(), reader.scan.facts());
    if read.is_err() || !is_ascii {
        std::str::from_utf8(&text).map_err(|bad| ParseError::Syntax(bad.to_string()))?;
    }
    match read {
        Ok(builder) => builder.finish(text, facts),
        Err(ScanError::TooDeep) => Err(ParseError::TooDeep(depth)),
        Err(ScanError::Syntax) => Err(malformed(&text)),
    }
}

/// Parses the object in a trusted text, of which these facts are known.
pub(super) fn trusted(text: Bytes, facts: TextFacts) -> Result<Object, ParseError> {
    check_length(&text)?;
    let mut reader = Reader { text: &text, scan: Scan::trusted(&text, 0, facts) };
    let read = reader.whole(&[]);
    let facts = reader.scan.facts();
    match read {
        Ok(builder) => builder.finish(text, facts),
        Err(_) => Err(malformed(&text)),
    }
}

/// Parses the element at this position of a trusted array as an object; `facts` are those about the
/// array. Returns it, the position of
/// the next element, and whether there is one.
pub(super) fn element(
    array: &Bytes,
    at: usize,
    facts: TextFacts,
    nested: MemberPaths<'_>,
) -> Result<(Object, usize, bool), ParseError> {
    let mut reader = Reader { text: array, scan: Scan::trusted(array, at, facts) };
    let read = reader.object(at, 0, nested);
    let end = reader.scan.position();
    let (builder, continues) = read
        .and_then(|builder| Ok((builder, reader.scan.continues(b']')?)))
        .map_err(|_| ParseError::NotAnObject)?;
    let object = builder.finish(array.slice(at..end), facts.part(at..end))?;
    Ok((object, reader.scan.position(), continues))
}

fn check_length(text: &Bytes) -> Result<(), ParseError> {
    match text.len() > MAX_TEXT_BYTES {
        true => Err(ParseError::Syntax(format!("more than {MAX_TEXT_BYTES} bytes"))),
        false => Ok(()),
    }
}

/// Reader of a text's objects.
struct Reader<'a> {
    text: &'a Bytes,
    scan: Scan<'a>,
}

impl Reader<'_> {
    /// Reads the text as one object.
    fn whole(&mut self, nested: MemberPaths<'_>) -> Result<ObjectBuilder, ScanError> {
        self.scan.skip_whitespace();
        let builder = self.object(0, 0, nested)?;
        self.scan.end()?;
        Ok(builder)
    }

    /// Reads an object that stands within `levels` others, and whose own text begins at `start`.
    fn object(
        &mut self,
        start: usize,
        levels: usize,
        paths: MemberPaths<'_>,
    ) -> Result<ObjectBuilder, ScanError> {
        let mut builder = ObjectBuilder::new(start);
        let mut continues = self.scan.enter_object(levels)?;
        while continues {
            let (key, is_escaped) = self.scan.key()?;
            let start = self.scan.position();
            let nested = match paths.split_first() {
                Some((keys, paths))
                    if self.scan.peek() == Some(b'{')
                        && keys.contains(&&self.text[key.clone()]) =>
                {
                    let below = self.object(start, levels + 1, paths)?;
                    let span = start..self.scan.position();
                    let facts = self.scan.facts().part(span.clone());
                    below.finish(self.text.slice(span), facts).ok()
                }
                _ => {
                    self.scan.value(levels + 1)?;
                    None
                }
            };
            let value = start..self.scan.position();
            builder.add(self.text, key, is_escaped, value, nested);
            continues = self.scan.continues(b'}')?;
        }
        Ok(builder)
    }
}

/// Object whose end has not been reached yet.
struct ObjectBuilder {
    /// Start of the object's own text.
    start: usize,
    members: Vec<ObjectMember>,
    detached: Vec<DetachedPart>,
    nested: Option<Box<NestedObject>>,
    refused: Option<ParseError>,
}

impl ObjectBuilder {
    fn new(start: usize) -> Self {
        let members = Vec::with_capacity(EXPECTED_MEMBERS);
        Self { start, members, detached: Vec::new(), nested: None, refused: None }
    }

    /// Adds a member that was found in `text`, unless an earlier one was refused. `nested` is its
    /// value, if it was parsed.
    fn add(
        &mut self,
        text: &[u8],
        key: Range<usize>,
        is_escaped: bool,
        value: Range<usize>,
        nested: Option<Object>,
    ) {
        if self.refused.is_some() {
            return;
        }
        let text = &text[self.start..];
        let within =
            |span: Range<usize>| TextSpan::within(span.start - self.start..span.end - self.start);
        let (key, value) = (within(key), within(value));
        self.nested = match nested {
            Some(object) => Some(Box::new(NestedObject { span: value, object })),
            None => self.nested.take(),
        };
        match self.checked_key(text, key, is_escaped) {
            Ok(key) => self.members.push(ObjectMember { key, value }),
            Err(refused) => self.refused = Some(refused),
        }
    }

    /// Decodes a key with escapes, and checks that it is the first of its name.
    fn checked_key(
        &mut self,
        text: &[u8],
        mut key: TextSpan,
        is_escaped: bool,
    ) -> Result<TextSpan, ParseError> {
        let Self { members, detached, .. } = self;
        if members.len() == MAX_MEMBERS {
            let reason = format!("more than {MAX_MEMBERS} members in one object");
            return Err(ParseError::Members(reason));
        }
        if is_escaped {
            let decoded_key = serde_json::from_slice(&text[key.range()]);
            let decoded_key = decoded_key.map_err(|bad| ParseError::Syntax(bad.to_string()))?;
            key = TextSpan::detached(detached, DetachedPart::Escaped(key, decoded_key));
        }
        let name = decoded_key(text, detached, key);
        if members.iter().any(|member| is_key(text, detached, member.key, name)) {
            // The UTF-8 of the text is checked at its end.
            let name = String::from_utf8_lossy(name);
            return Err(ParseError::Members(format!("member {name:?} occurs twice")));
        }
        Ok(key)
    }

    /// Completes the object with its own text.
    fn finish(self, text: Bytes, facts: TextFacts) -> Result<Object, ParseError> {
        let Self { mut members, detached, nested, refused, .. } = self;
        if let Some(refused) = refused {
            return Err(refused);
        }
        // Up to half of the capacity of a large object is unused.
        if members.len() > MANY_MEMBERS {
            members.shrink_to_fit();
        }
        Ok(Object { text, members, detached, changed: false, facts, nested })
    }
}

/// Returns the reason why a text is not an object, from `serde_json`, which names the position.
#[cold]
fn malformed(text: &[u8]) -> ParseError {
    match serde_json::from_slice::<IgnoredAny>(text) {
        Ok(_) => ParseError::NotAnObject,
        Err(error) => ParseError::Syntax(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NESTED: MemberPaths<'_> = &[&[b"\"params\"", b"\"result\""], &[b"\"_meta\""]];

    fn nested(text: &str) -> Object {
        Object::parse_with_nested(text.to_owned().into(), 64, NESTED).expect(text)
    }

    #[test]
    fn what_is_read_along_is_what_is_read_by_itself() {
        for params in [
            "{}",
            r#"{"_meta":{}}"#,
            r#"{ "a" : 1.0 , "_meta" : { "x" : [ {} ] , "\u0079": "\ud83d\ude00" } , "é": "ü" }"#,
            r#"{"_meta":{"_meta":{"a":1},"params":{}},"params":{"b":2}}"#,
            r#"{"_meta":[],"z":{"_meta":{}}}"#,
        ] {
            let mut object = nested(&format!(r#"{{"id": 7, "params": {params}, "x": "params"}}"#));
            assert_eq!(object.get("x"), Some("\"params\""));
            let alone = Object::parse(params.to_owned()).expect("an object");
            for _ in 0..2 {
                let got = object.get_object("params").expect("an object");
                let taken = object.take_object("params").expect("it is there").expect("an object");
                for mut read in [got, taken] {
                    assert_eq!(read, alone);
                    assert_eq!(read.to_bytes(), params);
                    assert!(read.keys().eq(alone.keys()));
                    for key in alone.keys() {
                        assert_eq!(read.get(key), alone.get(key));
                    }
                    assert_eq!(read.get_object("_meta"), alone.get_object("_meta"));
                    let own = read.take_object("_meta").map(Result::ok);
                    assert_eq!(own, alone.clone().take_object("_meta").map(Result::ok));
                    assert_eq!(read.to_bytes(), params, "the member stays");
                }
            }
        }
    }

    #[test]
    fn long_string_that_was_read_before_is_found_whole() {
        let long = |bytes: usize| format!(r#"\"]}},{}"#, "x".repeat(bytes));
        let text = |first: usize, second: usize| {
            let message = |bytes: usize| {
                let text = long(bytes);
                format!(r#"{{"role":"user","content":{{"type":"text","text":"{text}"}},"x":1}}"#)
            };
            let (before, messages) = (long(second), [message(first), message(second)].join(" , "));
            format!(r#" {{"before":"{before}","messages":[{messages}],"behind":"{before}"}}"#)
        };
        for (first, second) in [(5, 6), (500, 6), (6, 500), (500, 501), (500, 500), (64, 60)] {
            let object = Object::parse(text(first, second)).expect("an object");
            let elements = object.get_elements("messages").expect("an array");
            let alone = elements.clone().map(|element| Object::parse(element).expect("an object"));
            let along = elements.objects(&[&[b"\"content\""]]);
            let mut texts = Vec::new();
            for (alone, along) in alone.zip(along) {
                let along = along.expect("an object");
                assert!(along.members().eq(alone.members()));
                let content = along.get_object("content").expect("an object");
                assert_eq!(alone.get_object("content").expect("an object"), content);
                assert!(content.has_string("text"));
                texts.push(content.get("text").expect("a text").len());
            }
            assert_eq!(texts, [long(first).len() + 2, long(second).len() + 2]);
        }
    }

    #[test]
    fn what_was_set_since_is_what_is_there() {
        let mut object = nested(r#"{"params":{"a":1}}"#);
        object.set("params", r#"{"b":2}"#);
        assert!(object.get_object("params").expect("an object").has("b"));
        assert!(object.take_object("params").expect("it is there").expect("an object").has("b"));
        let mut object = nested(r#"{"result":{"a":1}}"#);
        object.take("result");
        assert_eq!(object.get_object("result"), None);
        assert!(object.take_object("result").is_none());
    }

    #[test]
    fn what_is_wrong_inside_is_left_for_whoever_asks_for_it() {
        let mut object = nested(r#"{"params":{"a":1,"a":2},"id":1}"#);
        assert_eq!(object.get("id"), Some("1"));
        assert_eq!(object.get_object("params"), None);
        let refused = object.take_object("params").expect("it is there");
        assert!(matches!(refused, Err(ParseError::Members(_))));
        let meta = nested(r#"{"params":{"_meta":{"a":1,"a":2},"b":3}}"#);
        let params = meta.get_object("params").expect("an object");
        assert_eq!((params.get("b"), params.get_object("_meta")), (Some("3"), None));
        // Of two only the latest is stored, and the other is parsed on demand.
        let both = nested(r#"{"params":{"a":1},"result":{"b":2}}"#);
        assert!(both.get_object("params").expect("an object").has("a"));
        assert!(both.get_object("result").expect("an object").has("b"));
        // No deeper than allowed, whatever is gone into.
        let deep = Bytes::from_static(br#"{"params":{"_meta":{"a":{}}}}"#);
        assert!(Object::parse_with_nested(deep.clone(), 4, NESTED).is_ok());
        assert_eq!(Object::parse_with_nested(deep, 3, NESTED), Err(ParseError::TooDeep(3)));
    }
}
