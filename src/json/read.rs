//! Parser from a text to an [`Object`] and the nested objects that are parsed in the same pass.

use std::ops::Range;

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::scan::{self, Scan, ScanError};
use super::{
    DetachedPart, MAX_MEMBERS, MAX_TEXT_BYTES, NestedObject, Object, ObjectMember, ParseError,
    TextSpan, decoded_key, str_in,
};

/// Initial capacity, enough for the members of a message.
const EXPECTED_MEMBERS: usize = 6;

/// Number of members from which an object releases unused capacity.
const MANY_MEMBERS: usize = 64;

/// Object whose end has not been reached yet.
#[derive(Default)]
struct ObjectBuilder {
    members: Vec<ObjectMember>,
    detached: Vec<DetachedPart>,
    nested: Option<Box<NestedObject>>,
    refused: Option<ParseError>,
}

/// Parses the object in a text, at most `depth` levels deep; without a depth the text is trusted.
pub(super) fn object(
    text: Bytes,
    depth: Option<usize>,
    nested: scan::MemberPaths<'_>,
) -> Result<Object, ParseError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(ParseError::Syntax(format!("more than {MAX_TEXT_BYTES} bytes")));
    }
    let scan = depth.map_or_else(|| Scan::trusted(&text), |depth| Scan::begin(&text, depth));
    let mut levels = Levels::new(&text);
    let read = scan.members(nested, |found| levels.add(found));
    let built = levels.finish();
    match (read, built) {
        (Ok(()), Ok(built)) => Ok(built.finish(text)),
        (Err(ScanError::TooDeep), _) => Err(ParseError::TooDeep(depth.unwrap_or(usize::MAX))),
        (Err(ScanError::Syntax), _) => Err(malformed(&text)),
        (Ok(()), Err(refused)) => Err(refused),
    }
}

/// Parses the element at this position of a trusted array as an object. Returns it, the position of
/// the next element, and whether there is one.
pub(super) fn element(
    array: &Bytes,
    at: usize,
    nested: scan::MemberPaths<'_>,
) -> Result<(Object, usize, bool), ParseError> {
    let mut scan = Scan::trusted_from(array, at);
    let mut levels = Levels::new(array);
    let read = scan.object_element(nested, |found| levels.add(found));
    let (span, continues) = read.map_err(|_| ParseError::NotAnObject)?;
    let NestedObject { object, .. } = NestedObject::at(array, span, levels.finish()?);
    Ok((object, scan.position(), continues))
}

/// Objects whose ends have not been reached yet.
struct Levels<'a> {
    text: &'a Bytes,
    outer: ObjectBuilder,
    /// Nested objects by level, without the outermost one.
    inner: Vec<ObjectBuilder>,
}

impl<'a> Levels<'a> {
    fn new(text: &'a Bytes) -> Self {
        Self { text, outer: ObjectBuilder::new(), inner: Vec::new() }
    }

    fn add(&mut self, found: scan::MemberSpan) {
        let Self { text, outer, inner } = self;
        // The object that ended just now is this member's value.
        let below = if inner.len() > found.level { inner.pop() } else { None };
        let open = match found.level.checked_sub(1) {
            None => outer,
            Some(span) => {
                while inner.len() <= span {
                    inner.push(ObjectBuilder::new());
                }
                &mut inner[span]
            }
        };
        if let Some(below @ ObjectBuilder { refused: None, .. }) = below {
            open.nested = Some(Box::new(NestedObject::at(text, found.value.clone(), below)));
        }
        if open.refused.is_none() {
            open.refused = add(text, open, found).err();
        }
    }

    fn finish(mut self) -> Result<ObjectBuilder, ParseError> {
        self.outer.refused.take().map_or(Ok(self.outer), Err)
    }
}

impl ObjectBuilder {
    fn new() -> Self {
        Self { members: Vec::with_capacity(EXPECTED_MEMBERS), ..Self::default() }
    }

    fn finish(self, text: Bytes) -> Object {
        let Self { mut members, detached, nested, .. } = self;
        // Up to half of the capacity of a large object is unused.
        if members.len() > MANY_MEMBERS {
            members.shrink_to_fit();
        }
        Object { text, members, detached, changed: false, nested }
    }
}

impl NestedObject {
    /// Completes the object at this span of `text`, whose members' spans still refer to `text`.
    fn at(text: &Bytes, span: Range<usize>, mut open: ObjectBuilder) -> Self {
        for ObjectMember { key, value } in &mut open.members {
            (*key, *value) = (key.since(span.start), value.since(span.start));
        }
        for one in &mut open.detached {
            if let DetachedPart::Escaped(at, _) = one {
                *at = at.since(span.start);
            }
        }
        if let Some(nested) = &mut open.nested {
            nested.span = nested.span.since(span.start);
        }
        Self { span: TextSpan::within(span.clone()), object: open.finish(text.slice(span)) }
    }
}

/// Adds a member found in `text`.
fn add(text: &Bytes, open: &mut ObjectBuilder, found: scan::MemberSpan) -> Result<(), ParseError> {
    let ObjectBuilder { members, detached, .. } = open;
    if members.len() == MAX_MEMBERS {
        return Err(ParseError::Members(format!("more than {MAX_MEMBERS} members in one object")));
    }
    let mut key = TextSpan::within(found.key.clone());
    if found.is_escaped {
        let decoded_key = serde_json::from_slice(&text[found.key]);
        let decoded_key = decoded_key.map_err(|bad| ParseError::Syntax(bad.to_string()))?;
        key = TextSpan::detached(detached, DetachedPart::Escaped(key, decoded_key));
    }
    let name = decoded_key(text, detached, key);
    if members.iter().any(|member| decoded_key(text, detached, member.key) == name) {
        let name = str_in(name);
        return Err(ParseError::Members(format!("member {name:?} occurs twice")));
    }
    members.push(ObjectMember { key, value: TextSpan::within(found.value) });
    Ok(())
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

    const NESTED: scan::MemberPaths<'_> = &[&[b"\"params\"", b"\"result\""], &[b"\"_meta\""]];

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
