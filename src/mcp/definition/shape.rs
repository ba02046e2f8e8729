//! Shapes of definitions: the JSON that clients of every revision can read.
//!
//! An official client reads a list as a whole. One tool with a member of the wrong type, and the tools of all upstreams are gone
//! for it ("1 validation error for ListToolsResult"). So [`conform`] compares each definition with a table before it is
//! published: the definition passes as it is, or mended where that is safe, or it is to be left out.
//!
//! The tables hold what the schemas of the five revisions say of an item, and what the readers of the official SDKs want beyond
//! that. One table per kind is enough for all revisions: a member that only some of them know is ignored by the others,
//! which let unknown members pass. Where they contradict each other, the module [`older`](crate::mcp::older) has another form.
//!
//! Mended is: an optional member that is `null` is removed (the schemas know no null); a member that only decorates or describes
//! ([`Need::Spare`]) is removed if it is malformed; a tool without `inputSchema`, or one without its `type`, takes an
//! object; a resource or template without a name is called by its URI.
//!
//! Promises: what fits keeps every byte; what was mended fits. A definition is bounded by its item, and each level of it is read
//! once per level of the table.

#[cfg(test)]
mod tests;
mod text;
mod uri;

use std::fmt;

use bytes::Bytes;

use crate::json::{self, Object};
use crate::mcp::kind::Kind;
use Shape::{
    Fraction, List, Map, OneOf, PlainUri, Record, Schema, Size, Template, Text, Timestamp, Truth,
    Uri,
};

/// Shape of a JSON value.
enum Shape {
    /// A string.
    Text,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A string that is a URI (see [`uri::is_uri`]).
    Uri,
    /// A string that is a URI and of a URI's characters alone.
    PlainUri,
    /// A string that is a URI template, as far as its braces tell.
    Template,
    /// A string that is a date with a time and an offset (RFC 3339; seconds may be left out).
    Timestamp,
    /// `true` or `false`.
    Truth,
    /// A number from 0 to 1.
    Fraction,
    /// A whole number of 64 bits, without sign, point and exponent.
    Size,
    /// A JSON schema inside another one: an object or a boolean.
    Schema,
    /// An array.
    List(&'static Shape),
    /// An object whose members all have this shape.
    Map(&'static Shape),
    /// An object with these members, and any others.
    Record(&'static [&'static [Member]]),
}

/// What is expected of one member of an object.
struct Member {
    name: &'static str,
    shape: Shape,
    need: Need,
}

/// What becomes of a member that is missing or malformed. `null` counts as missing.
enum Need {
    /// The item is malformed either way.
    Required,
    /// It may be missing.
    Optional,
    /// It may be missing, and is removed if it is malformed: nothing but a display or a check depends on it.
    Spare,
    /// This JSON stands in its place if it is missing.
    Default(&'static str),
}

const fn required(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, need: Need::Required }
}

const fn optional(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, need: Need::Optional }
}

const fn spare(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, need: Need::Spare }
}

const fn default(name: &'static str, shape: Shape, value: &'static str) -> Member {
    Member { name, shape, need: Need::Default(value) }
}

// === Tables ===

const ANY_ITEM: &[Member] = &[
    required("name", Text),
    optional("title", Text),
    optional("description", Text),
    spare("icons", List(&Record(&[ICON]))),
    optional("_meta", Record(&[])),
];

const ICON: &[Member] = &[
    required("src", PlainUri),
    optional("mimeType", Text),
    optional("sizes", List(&Text)),
    optional("theme", OneOf(&["dark", "light"])),
];

const TOOL: &[Member] = &[
    default("inputSchema", Record(&[INPUT_SCHEMA]), r#"{"type":"object"}"#),
    spare("outputSchema", Record(&[&[optional("$schema", Text)]])),
    optional("annotations", Record(&[HINTS])),
    optional("execution", Record(&[&[optional("taskSupport", TASK_SUPPORT)]])),
];

/// As 2025-11-25 and older have it. 2026-07-28 says less of it, but its `properties` are those of JSON Schema all the same.
const INPUT_SCHEMA: &[Member] = &[
    default("type", OneOf(&["object"]), r#""object""#),
    optional("properties", Map(&Schema)),
    optional("required", List(&Text)),
    optional("$schema", Text),
];

const HINTS: &[Member] = &[
    optional("title", Text),
    optional("readOnlyHint", Truth),
    optional("destructiveHint", Truth),
    optional("idempotentHint", Truth),
    optional("openWorldHint", Truth),
];

const TASK_SUPPORT: Shape = OneOf(&["forbidden", "optional", "required"]);

const PROMPT: &[Member] = &[optional("arguments", List(&Record(&[ARGUMENT])))];

const ARGUMENT: &[Member] = &[
    required("name", Text),
    optional("title", Text),
    optional("description", Text),
    optional("required", Truth),
];

const RESOURCE: &[Member] = &[required("uri", Uri), spare("size", Size)];

const TEMPLATE: &[Member] = &[required("uriTemplate", Template)];

/// What resources and templates have in common.
const CONTENTS: &[Member] =
    &[optional("mimeType", Text), optional("annotations", Record(&[ANNOTATIONS]))];

const ANNOTATIONS: &[Member] = &[
    optional("audience", List(&OneOf(&["assistant", "user"]))),
    optional("priority", Fraction),
    spare("lastModified", Timestamp),
];

fn table(kind: Kind) -> &'static [&'static [Member]] {
    match kind {
        Kind::Prompt => &[ANY_ITEM, PROMPT],
        Kind::Tool => &[ANY_ITEM, TOOL],
        Kind::Resource => &[ANY_ITEM, RESOURCE, CONTENTS],
        Kind::Template => &[ANY_ITEM, TEMPLATE, CONTENTS],
    }
}

// === Comparing ===

/// Compares the definition of an item with what clients of every revision can read; `key` is its name or URI. Returns another
/// definition to be published in its place, or `None` if it fits as it is.
pub fn conform(kind: Kind, key: &str, definition: &Object) -> Result<Option<Object>, BadShape> {
    if let Some(wrong) = text::unreadable(&definition.to_bytes()) {
        return Err(BadShape::of(wrong));
    }
    let mut definition = definition.clone();
    let is_nameless = definition.get("name").is_none_or(|name| name == "null");
    if is_nameless && !kind.has_name() {
        definition.set("name", json::quote(key));
    }
    let is_mended = mend(&mut definition, table(kind))?;
    Ok((is_mended || is_nameless).then_some(definition))
}

/// Whether a text that is JSON is read in every client: its strings and numbers, not what they mean.
pub fn is_readable(text: &[u8]) -> bool {
    text::unreadable(text).is_none()
}

/// Holds the members of an object to their shapes. Tells whether something was mended.
fn mend(object: &mut Object, table: &[&[Member]]) -> Result<bool, BadShape> {
    let mut is_mended = false;
    for Member { name, shape, need } in table.iter().copied().flatten() {
        let value = object.get_bytes(name).filter(|value| value != "null");
        let new = match (value, need) {
            (None, Need::Required) => return Err(BadShape::of(Wrong::Missing).at(name)),
            (None, Need::Default(value)) => Some(Bytes::from_static(value.as_bytes())),
            (None, Need::Optional | Need::Spare) if object.has(name) => None,
            (None, Need::Optional | Need::Spare) => continue,
            (Some(value), need) => match (shape.fit(&value), need) {
                (Ok(None), _) => continue,
                (Ok(Some(new)), _) => Some(new),
                (Err(_), Need::Spare) => None,
                (Err(bad), _) => return Err(bad.at(name)),
            },
        };
        is_mended = true;
        match new {
            Some(new) => object.set(*name, new),
            None => _ = object.take(name),
        }
    }
    Ok(is_mended)
}

impl Shape {
    /// Compares a value with this shape. Returns what is to stand in its place, or `None` if it fits.
    fn fit(&self, value: &Bytes) -> Result<Option<Bytes>, BadShape> {
        let raw = std::str::from_utf8(value).unwrap_or_default();
        let string = || json::decode_string(raw);
        let is_schema =
            |value: &Bytes| value.starts_with(b"{") || matches!(&**value, b"true" | b"false");
        let (fits, expected) = match self {
            Text => (raw.starts_with('"'), "a string"),
            OneOf(all) => (
                string().is_some_and(|it| all.contains(&&*it)),
                "one of the values that it may have",
            ),
            Uri => (string().is_some_and(|it| uri::is_uri(&it)), "a URI that every client reads"),
            PlainUri => (string().is_some_and(|it| uri::is_plain_uri(&it)), "a URI"),
            Template => (string().is_some_and(|it| uri::is_template(&it)), "a URI template"),
            Timestamp => (string().is_some_and(|it| text::is_timestamp(&it)), "a date with a time"),
            Truth => (matches!(raw, "true" | "false"), "true or false"),
            Fraction => {
                (raw.parse().is_ok_and(|it: f64| (0.0..=1.0).contains(&it)), "a number from 0 to 1")
            }
            Size => (raw.parse::<u64>().is_ok(), "a size"),
            Schema => (is_schema(value), "an object or a boolean"),
            List(shape) => return shape.fit_each(value),
            Map(shape) => return shape.fit_members(value),
            Record(table) => {
                let mut object = object(value)?;
                return Ok(mend(&mut object, table)?.then(|| object.to_bytes()));
            }
        };
        if fits { Ok(None) } else { Err(BadShape::is_not(expected)) }
    }

    /// Compares the elements of an array with this shape.
    fn fit_each(&self, array: &Bytes) -> Result<Option<Bytes>, BadShape> {
        let elements = Some(array).filter(|array| array.starts_with(b"[")).and_then(json::elements);
        // A definition is bounded, and so is what is collected of it.
        let mut elements: Vec<_> = elements.ok_or(BadShape::is_not("an array"))?.collect();
        let mut is_mended = false;
        for element in &mut elements {
            if let Some(new) = self.fit(element).map_err(BadShape::in_element)? {
                (*element, is_mended) = (new, true);
            }
        }
        Ok(is_mended.then(|| [b"[", &elements.join(&b","[..])[..], b"]"].concat().into()))
    }

    /// Compares the members of an object with this shape.
    fn fit_members(&self, value: &Bytes) -> Result<Option<Bytes>, BadShape> {
        let mut object = object(value)?;
        let mut new = Vec::new();
        for (name, value) in object.members() {
            let fitted = self.fit(&value).map_err(BadShape::in_element)?;
            new.extend(fitted.map(|value| (name.to_owned(), value)));
        }
        let is_mended = !new.is_empty();
        new.into_iter().for_each(|(name, value)| object.set(name, value));
        Ok(is_mended.then(|| object.to_bytes()))
    }
}

/// Reads an object inside a definition. Some readers refuse one that has a member twice.
fn object(value: &Bytes) -> Result<Object, BadShape> {
    if !value.starts_with(b"{") {
        return Err(BadShape::is_not("an object"));
    }
    Object::parse_again(value.clone())
        .map_err(|_| BadShape::is_not("an object whose members each stand once"))
}

// === What is wrong ===

/// The first thing in a definition that some client could not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadShape {
    /// The member, and the one that it stands in; empty where there is none.
    member: &'static str,
    within: &'static str,
    /// Whether it is about an element or a value in the member.
    is_element: bool,
    wrong: Wrong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Missing,
    IsNot(&'static str),
    /// A string anywhere ends within a pair of surrogates.
    HalfAPair,
    /// A number anywhere is too large for a double.
    HugeNumber,
}

impl BadShape {
    fn of(wrong: Wrong) -> Self {
        Self { member: "", within: "", is_element: false, wrong }
    }

    fn is_not(expected: &'static str) -> Self {
        Self::of(Wrong::IsNot(expected))
    }

    fn in_element(mut self) -> Self {
        self.is_element |= self.member.is_empty();
        self
    }

    /// The same, found in this member: the innermost two are kept.
    fn at(mut self, name: &'static str) -> Self {
        if self.member.is_empty() {
            self.member = name;
        } else if self.within.is_empty() {
            self.within = name;
        }
        self
    }
}

impl std::error::Error for BadShape {}

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, within, is_element, wrong } = self;
        if *is_element {
            f.write_str("an entry of ")?;
        }
        if !member.is_empty() {
            write!(f, "`{member}` ")?;
        }
        if !within.is_empty() {
            write!(f, "in `{within}` ")?;
        }
        match wrong {
            Wrong::Missing => f.write_str("is missing"),
            Wrong::IsNot(expected) => write!(f, "is not {expected}"),
            Wrong::HalfAPair => f.write_str("a string has half of a surrogate pair"),
            Wrong::HugeNumber => f.write_str("a number is too large for a double"),
        }
    }
}
