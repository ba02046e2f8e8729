//! Shapes of definitions: the JSON that clients of every revision can read.
//!
//! An official client parses a list as a whole. If one tool has a member of the wrong type, the
//! client loses the tools of all upstreams ("1 validation error for ListToolsResult"). So
//! [`conform`] compares each definition with a table before it is published: the definition passes
//! as it is, or repaired where that is safe, or it is excluded.
//!
//! The tables contain what the schemas of the five revisions say about an item, and what the
//! parsers of the official SDKs require beyond that. One table per kind is enough for all
//! revisions: a member that only some of them know is ignored by the others, which let unknown
//! members pass. Where they contradict each other, [`downgrade`](super::downgrade) makes another
//! form.
//!
//! Repairs: an optional member that is `null` is removed (the schemas have no null); a member that
//! only decorates or describes ([`Presence::Removable`]) is removed if it is malformed; a tool
//! without `inputSchema`, or one without its `type`, gets an object; a resource or template without
//! a name gets its URI as name; an empty array where only an object may be becomes an empty object
//! (see [`empty_objects`]).
//!
//! Invariants: a definition that fits keeps every byte; a repaired one fits. The size of a
//! definition is bounded by that of its item, and each level of it is read once per level of the
//! table.

mod empty_objects;
#[cfg(test)]
mod tests;
mod text;
mod uri;

use std::fmt;

use bytes::Bytes;

use crate::kind::Kind;
use Shape::{
    Boolean, Fraction, List, Map, OneOf, PlainUri, Record, Schema, Size, Template, Text, Timestamp,
    Uri,
};
use weir_base::json::{self, Object};

/// Expected shape of a JSON value.
enum Shape {
    /// A string.
    Text,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A string that is a URI (see [`uri::is_uri`]).
    Uri,
    /// A string that is a URI with characters of RFC 3986 only.
    PlainUri,
    /// A string whose braces are those of a URI template.
    Template,
    /// A string that is a date with a time and an offset (RFC 3339; seconds may be left out).
    Timestamp,
    /// `true` or `false`.
    Boolean,
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

/// Expected member of an object.
struct Member {
    name: &'static str,
    shape: Shape,
    presence: Presence,
}

/// Treatment of a member that is missing or malformed. `null` counts as missing.
enum Presence {
    /// The item is malformed either way.
    Required,
    /// It may be missing.
    Optional,
    /// It may be missing, and is removed if it is malformed: only a display or a check depends on
    /// it.
    Removable,
    /// This JSON is inserted if it is missing.
    Default(&'static str),
}

const fn required(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, presence: Presence::Required }
}

const fn optional(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, presence: Presence::Optional }
}

const fn removable(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, presence: Presence::Removable }
}

const fn default(name: &'static str, shape: Shape, value: &'static str) -> Member {
    Member { name, shape, presence: Presence::Default(value) }
}

// === Tables ===

const ANY_ITEM: &[Member] = &[
    required("name", Text),
    optional("title", Text),
    optional("description", Text),
    removable("icons", List(&Record(&[ICON]))),
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
    removable("outputSchema", Record(&[&[optional("$schema", Text)]])),
    optional("annotations", Record(&[HINTS])),
    optional("execution", Record(&[&[optional("taskSupport", TASK_SUPPORT)]])),
];

/// Schema of 2025-11-25 and older. 2026-07-28 requires less, but its `properties` are those of JSON
/// Schema as well.
const INPUT_SCHEMA: &[Member] = &[
    default("type", OneOf(&["object"]), r#""object""#),
    optional("properties", Map(&Schema)),
    optional("required", List(&Text)),
    optional("$schema", Text),
];

const HINTS: &[Member] = &[
    optional("title", Text),
    optional("readOnlyHint", Boolean),
    optional("destructiveHint", Boolean),
    optional("idempotentHint", Boolean),
    optional("openWorldHint", Boolean),
];

const TASK_SUPPORT: Shape = OneOf(&["forbidden", "optional", "required"]);

const PROMPT: &[Member] = &[optional("arguments", List(&Record(&[ARGUMENT])))];

const ARGUMENT: &[Member] = &[
    required("name", Text),
    optional("title", Text),
    optional("description", Text),
    optional("required", Boolean),
];

const RESOURCE: &[Member] = &[required("uri", Uri), removable("size", Size)];

const TEMPLATE: &[Member] = &[required("uriTemplate", Template)];

/// Members that resources and templates have in common.
const CONTENTS: &[Member] =
    &[optional("mimeType", Text), optional("annotations", Record(&[ANNOTATIONS]))];

const ANNOTATIONS: &[Member] = &[
    optional("audience", List(&OneOf(&["assistant", "user"]))),
    optional("priority", Fraction),
    removable("lastModified", Timestamp),
];

/// Members that are left out before an item is, in this order. What a user or a client decides by
/// is not among them: the description, the annotations and `_meta`.
pub(crate) const DISPENSABLE: [&str; 2] = ["outputSchema", "icons"];

/// Members of a tool that are JSON schemas.
const SCHEMAS: [&str; 2] = ["inputSchema", "outputSchema"];

fn table(kind: Kind) -> &'static [&'static [Member]] {
    match kind {
        Kind::Prompt => &[ANY_ITEM, PROMPT],
        Kind::Tool => &[ANY_ITEM, TOOL],
        Kind::Resource => &[ANY_ITEM, RESOURCE, CONTENTS],
        Kind::Template => &[ANY_ITEM, TEMPLATE, CONTENTS],
    }
}

// === Comparing ===

/// Compares the definition of an item with the shape that clients of every revision can read; `key`
/// is its name or URI. Returns a definition to publish in its place, or `None` if it fits as it is.
pub fn conform(kind: Kind, key: &str, definition: &Object) -> Result<Option<Object>, InvalidShape> {
    let mut definition = definition.clone();
    let mut is_repaired = false;
    let mut dispensable = DISPENSABLE.iter();
    while let Some(mismatch) = text::unreadable(&definition.to_bytes()) {
        let present = dispensable.find(|name| definition.take(name).is_some());
        present.ok_or(InvalidShape::of(mismatch))?;
        is_repaired = true;
    }
    let is_nameless = definition.get("name").is_none_or(|name| name == "null");
    if is_nameless && !kind.has_name() {
        definition.set("name", json::quote(key));
    }
    is_repaired |= is_nameless;
    for name in SCHEMAS.iter().filter(|_| kind == Kind::Tool) {
        let schema = definition.get_bytes(name);
        if let Some(schema) = schema.as_ref().and_then(empty_objects::repaired) {
            definition.set(*name, schema);
            is_repaired = true;
        }
    }
    is_repaired |= repair(&mut definition, table(kind))?;
    Ok(is_repaired.then_some(definition))
}

/// Describes how [`conform`] changed a definition; empty if it only removed members that are null.
pub fn describe_repairs(old: &Object, new: &Object) -> String {
    let is_present = |raw: &&str| *raw != "null";
    let added = new.keys().filter(|name| !old.has(name));
    let repairs = old.keys().chain(added).filter_map(|name| {
        match (old.get(name).filter(is_present), new.get(name)) {
            (None, None) => None,
            (Some(_), None) => Some(format!("`{name}` is left out")),
            (None, Some(_)) => Some(format!("`{name}` is added")),
            (Some(old), Some(new)) => (old != new).then(|| format!("`{name}` is repaired")),
        }
    });
    let repairs: Vec<_> = repairs.collect();
    match repairs.is_empty() {
        true => String::new(),
        false => format!("{}, so that every client can read it", repairs.join(", ")),
    }
}

/// Whether [`conform`] added or changed the `inputSchema` of a tool.
pub fn is_schema_repaired(old: &Object, new: &Object) -> bool {
    old.get("inputSchema") != new.get("inputSchema")
}

/// Whether every client can parse the strings and numbers of a JSON text.
pub fn is_readable(text: &[u8]) -> bool {
    text::unreadable(text).is_none()
}

/// Repairs the members of an object that do not have their shapes. Returns whether it changed the
/// object.
fn repair(object: &mut Object, table: &[&[Member]]) -> Result<bool, InvalidShape> {
    let mut is_repaired = false;
    for Member { name, shape, presence } in table.iter().copied().flatten() {
        let value = object.get_bytes(name).filter(|value| value != "null");
        let new = match (value, presence) {
            (None, Presence::Required) => return Err(InvalidShape::of(Mismatch::Missing).at(name)),
            (None, Presence::Default(value)) => Some(Bytes::from_static(value.as_bytes())),
            (None, Presence::Optional | Presence::Removable) if object.has(name) => None,
            (None, Presence::Optional | Presence::Removable) => continue,
            (Some(value), presence) => match (shape.fit(&value), presence) {
                (Ok(None), _) => continue,
                (Ok(Some(new)), _) => Some(new),
                (Err(_), Presence::Removable) => None,
                (Err(bad), _) => return Err(bad.at(name)),
            },
        };
        is_repaired = true;
        match new {
            Some(new) => object.set(*name, new),
            None => _ = object.take(name),
        }
    }
    Ok(is_repaired)
}

impl Shape {
    /// Compares a value with this shape. Returns a replacement, or `None` if it fits.
    fn fit(&self, value: &Bytes) -> Result<Option<Bytes>, InvalidShape> {
        if matches!(self, Schema | Map(_) | Record(_)) && json::is_empty_array(value) {
            let object = Bytes::from_static(b"{}");
            return Ok(Some(self.fit(&object)?.unwrap_or(object)));
        }
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
            Boolean => (matches!(raw, "true" | "false"), "true or false"),
            Fraction => {
                (raw.parse().is_ok_and(|it: f64| (0.0..=1.0).contains(&it)), "a number from 0 to 1")
            }
            Size => (raw.parse::<u64>().is_ok(), "a size"),
            Schema => (is_schema(value), "an object or a boolean"),
            List(shape) => return shape.fit_each(value),
            Map(shape) => return shape.fit_members(value),
            Record(table) => {
                let mut object = object(value)?;
                return Ok(repair(&mut object, table)?.then(|| object.to_bytes()));
            }
        };
        if fits { Ok(None) } else { Err(InvalidShape::is_not(expected)) }
    }

    /// Compares the elements of an array with this shape.
    fn fit_each(&self, array: &Bytes) -> Result<Option<Bytes>, InvalidShape> {
        let elements = Some(array).filter(|array| array.starts_with(b"[")).and_then(json::elements);
        // The size of a definition is bounded, and so is this vector.
        let mut elements: Vec<_> = elements.ok_or(InvalidShape::is_not("an array"))?.collect();
        let mut is_repaired = false;
        for element in &mut elements {
            if let Some(new) = self.fit(element).map_err(InvalidShape::in_element)? {
                (*element, is_repaired) = (new, true);
            }
        }
        Ok(is_repaired.then(|| [b"[", &elements.join(&b","[..])[..], b"]"].concat().into()))
    }

    /// Compares the members of an object with this shape.
    fn fit_members(&self, value: &Bytes) -> Result<Option<Bytes>, InvalidShape> {
        let mut object = object(value)?;
        let mut new = Vec::new();
        for (name, value) in object.members() {
            let fitted = self.fit(&value).map_err(InvalidShape::in_element)?;
            new.extend(fitted.map(|value| (name.to_owned(), value)));
        }
        let is_repaired = !new.is_empty();
        new.into_iter().for_each(|(name, value)| object.set(name, value));
        Ok(is_repaired.then(|| object.to_bytes()))
    }
}

/// Parses an object inside a definition. Some clients reject an object with a duplicate member.
fn object(value: &Bytes) -> Result<Object, InvalidShape> {
    if !value.starts_with(b"{") {
        return Err(InvalidShape::is_not("an object"));
    }
    Object::parse_trusted(value.clone())
        .map_err(|_| InvalidShape::is_not("an object without duplicate members"))
}

// === What is wrong ===

/// First part of a definition that some client could not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidShape {
    /// The member, and the one that contains it; empty if there is none.
    member: &'static str,
    within: &'static str,
    /// Whether the defect is in an element or a value of the member.
    is_element: bool,
    mismatch: Mismatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mismatch {
    Missing,
    IsNot(&'static str),
    /// A string anywhere ends within a pair of surrogates.
    LoneSurrogate,
    /// A number anywhere is too large for a double.
    HugeNumber,
}

impl InvalidShape {
    fn of(mismatch: Mismatch) -> Self {
        Self { member: "", within: "", is_element: false, mismatch }
    }

    fn is_not(expected: &'static str) -> Self {
        Self::of(Mismatch::IsNot(expected))
    }

    fn in_element(mut self) -> Self {
        self.is_element |= self.member.is_empty();
        self
    }

    /// Adds the member that contains the defect; the innermost two are recorded.
    fn at(mut self, name: &'static str) -> Self {
        if self.member.is_empty() {
            self.member = name;
        } else if self.within.is_empty() {
            self.within = name;
        }
        self
    }
}

impl std::error::Error for InvalidShape {}

impl fmt::Display for InvalidShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, within, is_element, mismatch } = self;
        if *is_element {
            f.write_str("an entry of ")?;
        }
        if !member.is_empty() {
            write!(f, "`{member}` ")?;
        }
        if !within.is_empty() {
            write!(f, "in `{within}` ")?;
        }
        match mismatch {
            Mismatch::Missing => f.write_str("is missing"),
            Mismatch::IsNot(expected) => write!(f, "is not {expected}"),
            Mismatch::LoneSurrogate => f.write_str("a string has half of a surrogate pair"),
            Mismatch::HugeNumber => f.write_str("a number is too large for a double"),
        }
    }
}
