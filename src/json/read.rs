//! From a text to an [`Object`], and to those inside of it that are read in the same pass.
//!
//! Knows nothing of: which members those are.

use std::ops::Range;

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::scan::{self, Flaw, Scan};
use super::{
    Along, Apart, MAX_MEMBERS, MAX_TEXT_BYTES, Malformed, Member, Object, Place, meant, str_in,
};

/// Room for the members of a message without asking for more.
const USUAL_MEMBERS: usize = 6;

/// From how many members on an object gives back the room that it does not need.
const MANY_MEMBERS: usize = 64;

/// An object whose end has not been seen yet.
#[derive(Default)]
struct Open {
    members: Vec<Member>,
    apart: Vec<Apart>,
    along: Option<Box<Along>>,
    refused: Option<Malformed>,
}

/// Reads the object that a text is, at most `depth` levels deep; without one the text has passed before.
pub(super) fn object(
    text: Bytes,
    depth: Option<usize>,
    along: scan::Along<'_>,
) -> Result<Object, Malformed> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Malformed::Syntax(format!("more than {MAX_TEXT_BYTES} bytes")));
    }
    let scan = depth.map_or_else(|| Scan::again(&text), |depth| Scan::begin(&text, depth));
    let mut outer = Open { members: Vec::with_capacity(USUAL_MEMBERS), ..Open::default() };
    // By their levels, of which the outer one is no part.
    let mut inner: Vec<Open> = Vec::new();
    let read = scan.members(along, |found| {
        // What has ended just now is this member's value.
        let below = if inner.len() > found.level { inner.pop() } else { None };
        let open = match found.level.checked_sub(1) {
            None => &mut outer,
            Some(place) => {
                while inner.len() <= place {
                    inner.push(Open::default());
                }
                &mut inner[place]
            }
        };
        if let Some(below @ Open { refused: None, .. }) = below {
            open.along = Some(Box::new(Along::at(&text, found.value.clone(), below)));
        }
        if open.refused.is_none() {
            open.refused = add(&text, open, found).err();
        }
    });
    match (read, outer.refused.take()) {
        (Ok(()), None) => Ok(outer.whole(text)),
        (Err(Flaw::TooDeep), _) => Err(Malformed::TooDeep(depth.unwrap_or(usize::MAX))),
        (Err(Flaw::Syntax), _) => Err(malformed(&text)),
        (Ok(()), Some(refused)) => Err(refused),
    }
}

impl Open {
    fn whole(self, text: Bytes) -> Object {
        let Self { mut members, apart, along, .. } = self;
        // Of the few that have more than a message has, up to half of the room is empty.
        if members.len() > MANY_MEMBERS {
            members.shrink_to_fit();
        }
        Object { text, members, apart, changed: false, along }
    }
}

impl Along {
    /// The object at this place of `text`, whose members' places are still those in `text`.
    fn at(text: &Bytes, place: Range<usize>, mut open: Open) -> Self {
        for Member { key, value } in &mut open.members {
            (*key, *value) = (key.since(place.start), value.since(place.start));
        }
        for one in &mut open.apart {
            if let Apart::Escaped(at, _) = one {
                *at = at.since(place.start);
            }
        }
        if let Some(along) = &mut open.along {
            along.place = along.place.since(place.start);
        }
        Self { place: Place::within(place.clone()), object: open.whole(text.slice(place)) }
    }
}

/// Adds a member that was found in `text`.
fn add(text: &Bytes, open: &mut Open, found: scan::Found) -> Result<(), Malformed> {
    let Open { members, apart, .. } = open;
    if members.len() == MAX_MEMBERS {
        return Err(Malformed::Members(format!("more than {MAX_MEMBERS} members in one object")));
    }
    let mut key = Place::within(found.key.clone());
    if found.is_escaped {
        let meant = serde_json::from_slice(&text[found.key]);
        let meant = meant.map_err(|bad| Malformed::Syntax(bad.to_string()))?;
        key = Place::apart(apart, Apart::Escaped(key, meant));
    }
    let name = meant(text, apart, key);
    if members.iter().any(|member| meant(text, apart, member.key) == name) {
        let name = str_in(name);
        return Err(Malformed::Members(format!("member {name:?} stands twice")));
    }
    members.push(Member { key, value: Place::within(found.value) });
    Ok(())
}

/// Why a text that is no object is none, in the words of the library that tells the place.
#[cold]
fn malformed(text: &[u8]) -> Malformed {
    match serde_json::from_slice::<IgnoredAny>(text) {
        Ok(_) => Malformed::NotAnObject,
        Err(error) => Malformed::Syntax(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONG: scan::Along<'_> = &[&[b"\"params\"", b"\"result\""], &[b"\"_meta\""]];

    fn along(text: &str) -> Object {
        Object::parse_along(text.to_owned().into(), 64, ALONG).expect(text)
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
            let mut object = along(&format!(r#"{{"id": 7, "params": {params}, "x": "params"}}"#));
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
        let mut object = along(r#"{"params":{"a":1}}"#);
        object.set("params", r#"{"b":2}"#);
        assert!(object.get_object("params").expect("an object").has("b"));
        assert!(object.take_object("params").expect("it is there").expect("an object").has("b"));
        let mut object = along(r#"{"result":{"a":1}}"#);
        object.take("result");
        assert_eq!(object.get_object("result"), None);
        assert!(object.take_object("result").is_none());
    }

    #[test]
    fn what_is_wrong_inside_is_left_for_whoever_asks_for_it() {
        let mut object = along(r#"{"params":{"a":1,"a":2},"id":1}"#);
        assert_eq!(object.get("id"), Some("1"));
        assert_eq!(object.get_object("params"), None);
        let refused = object.take_object("params").expect("it is there");
        assert!(matches!(refused, Err(Malformed::Members(_))));
        let meta = along(r#"{"params":{"_meta":{"a":1,"a":2},"b":3}}"#);
        let params = meta.get_object("params").expect("an object");
        assert_eq!((params.get("b"), params.get_object("_meta")), (Some("3"), None));
        // Of two only the latest is kept, and the other is read when it is asked for.
        let both = along(r#"{"params":{"a":1},"result":{"b":2}}"#);
        assert!(both.get_object("params").expect("an object").has("a"));
        assert!(both.get_object("result").expect("an object").has("b"));
        // No deeper than allowed, whatever is gone into.
        let deep = Bytes::from_static(br#"{"params":{"_meta":{"a":{}}}}"#);
        assert!(Object::parse_along(deep.clone(), 4, ALONG).is_ok());
        assert_eq!(Object::parse_along(deep, 3, ALONG), Err(Malformed::TooDeep(3)));
    }
}
