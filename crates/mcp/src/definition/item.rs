//! Item of a list: one prompt, tool, resource or template that an upstream lists.

use bytes::Bytes;

use crate::definition::param_headers::InvalidHeaderAnnotation;
use crate::definition::shape::{DISPENSABLE, InvalidShape};
use crate::kind::Kind;
use weir_base::json::{self, Object, ParseError};
use weir_base::text::quote::quote;

// These limits are not configurable: a larger item was not written for a model to read, and views
// are built for these sizes. Decision 0043 has what real servers define.

/// The largest accepted definition, in bytes.
pub(crate) const MAX_DEFINITION_BYTES: usize = 64 * 1024;
/// The longest name, in characters.
pub(crate) const MAX_NAME_CHARS: usize = 128;
/// The longest URI or URI template, in bytes.
pub const MAX_URI_BYTES: usize = 2 * 1024;
/// The longest description, in bytes.
pub(crate) const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;

/// Item as its upstream defines it: a key and raw JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The item's kind.
    pub kind: Kind,
    /// The upstream's own name or URI.
    pub key: Box<str>,
    /// The definition, without the members that [`Item::parse`] leaves out.
    pub definition: Object,
    /// Description of the members that are left out or changed, and why.
    pub alterations: Option<Box<str>>,
    /// The defect for which no client can use the item; it is not listed then.
    pub defect: Option<ItemDefect>,
    /// Whether a tool can only be called as a task; clients without such tasks cannot use it.
    pub needs_task: bool,
}

/// Defect for which no client can use an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ItemDefect {
    /// The annotations for parameter headers of a tool are invalid.
    #[error("{0}")]
    HeaderAnnotation(#[from] InvalidHeaderAnnotation),
    /// It contains invisible text, which the configuration forbids.
    #[error("it contains invisible text")]
    HiddenText,
    /// Text that must be redacted is in a part that its upstream must get back unchanged.
    #[error("text to redact is in its name, its URI or the name of a member or argument")]
    Redacted,
    /// Some client could not parse it, and so no list that contains it.
    #[error("{0}")]
    Shape(#[from] InvalidShape),
    /// No URI that a template yields could be requested.
    #[error("it yields no URI in normal form")]
    NoUsableUri,
    /// A part is larger than allowed.
    #[error("{part} has more than {limit} {unit}")]
    TooLarge {
        /// The part.
        part: &'static str,
        /// The limit.
        limit: usize,
        /// Unit of the limit.
        unit: &'static str,
    },
    /// An item before it in the list has the same name or URI.
    #[error("another one before it has this name")]
    Duplicate,
    /// The element of the list is not an object with a name or URI, so the key is its position.
    #[error("{0}")]
    Unnamed(InvalidItem),
}

impl ItemDefect {
    /// Whether the definition may be compared with an approved one. It is not kept if not.
    pub fn has_definition(self) -> bool {
        !matches!(self, Self::TooLarge { .. } | Self::Duplicate | Self::Unnamed(_))
    }
}

/// Reason for which an element of a list is not an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidItem {
    /// Not an object.
    #[error("it is {0}")]
    NotAnObject(&'static str),
    /// The key is missing, empty or no string.
    #[error("`{0}` is missing or not a string")]
    NoKey(&'static str),
}

impl Item {
    /// Parses an element of a list. Of a definition that is too large the members are left out
    /// that no call depends on; if it is too large nevertheless, the item has a defect.
    pub fn parse(kind: Kind, definition: Bytes) -> Result<Self, InvalidItem> {
        let definition = Object::parse(definition).map_err(|bad| {
            InvalidItem::NotAnObject(match bad {
                ParseError::Members(_) => "an object with a duplicate or too many members",
                ParseError::TooDeep(_) => "nested too deeply",
                ParseError::Syntax(_) | ParseError::NotAnObject => "not a JSON object",
            })
        })?;
        let member = kind.key_member();
        let key: Box<str> = match definition.get_string(member) {
            Some(key) if !key.is_empty() => key.into(),
            _ => return Err(InvalidItem::NoKey(member)),
        };
        let (definition, alterations) = shortened(definition);
        let mut item =
            Self { kind, key, definition, alterations: None, defect: None, needs_task: false };
        item.defect = item.excess();
        if let Some(ItemDefect::TooLarge { part: NAME | URI, .. }) = item.defect {
            item.key = quote(&item.key, MAX_NAME_CHARS).into();
        }
        item.add_alterations(&alterations);
        Ok(item)
    }

    /// Element of a list that is not an item: the one at `position`, counted from one.
    pub fn unnamed(kind: Kind, position: usize, bad: InvalidItem) -> Self {
        let (key, definition) = (format!("number {position} of the list").into(), Object::new());
        let defect = Some(ItemDefect::Unnamed(bad));
        Self { kind, key, definition, alterations: None, defect, needs_task: false }
    }

    /// The item without its definition, which may be large.
    #[must_use]
    pub fn without_definition(self) -> Self {
        let definition = Object::new().with(self.kind.key_member(), json::quote(&self.key));
        Self { definition, alterations: None, ..self }
    }

    /// Adds a description of members that are left out or changed; none if it is empty.
    pub fn add_alterations(&mut self, text: &str) {
        self.alterations = match self.alterations.take() {
            _ if text.is_empty() => return,
            Some(before) => Some(format!("{before}; {text}").into()),
            None => Some(text.into()),
        };
    }

    fn excess(&self) -> Option<ItemDefect> {
        let description = self.definition.get("description").unwrap_or_default();
        let (part, limit, unit) = if self.definition.written_len() > MAX_DEFINITION_BYTES {
            ("its definition", MAX_DEFINITION_BYTES, "bytes")
        } else if self.kind.has_name() && self.key.chars().count() > MAX_NAME_CHARS {
            (NAME, MAX_NAME_CHARS, "characters")
        } else if !self.kind.has_name() && self.key.len() > MAX_URI_BYTES {
            (URI, MAX_URI_BYTES, "bytes")
        } else if description.len() > MAX_DESCRIPTION_BYTES {
            ("its description", MAX_DESCRIPTION_BYTES, "bytes")
        } else {
            return None;
        };
        Some(ItemDefect::TooLarge { part, limit, unit })
    }
}

/// Leaves out the members that no call depends on, one after the other, until a definition is not
/// too large. Returns it with a description of what was left out.
fn shortened(mut definition: Object) -> (Object, String) {
    let mut left_out = Vec::new();
    for name in DISPENSABLE {
        if definition.written_len() <= MAX_DEFINITION_BYTES {
            break;
        }
        if definition.take(name).is_some() {
            left_out.push(format!("`{name}`"));
        }
    }
    if left_out.is_empty() {
        return (definition, String::new());
    }
    // The former text would stay in memory.
    let definition = Object::parse_trusted(definition.to_bytes()).unwrap_or(definition);
    let are = if left_out.len() > 1 { "are" } else { "is" };
    let text = format!(
        "{} {are} left out, since the definition has more than {MAX_DEFINITION_BYTES} bytes",
        left_out.join(" and ")
    );
    (definition, text)
}

const NAME: &str = "its name";
const URI: &str = "its URI";

#[cfg(test)]
mod tests {
    use crate::definition::item::*;

    #[test]
    fn an_item_is_read_by_its_kinds_key() {
        let text = r#"{"uri":"a:b","name":"n","odd":1e400}"#;
        let item = Item::parse(Kind::Resource, text.into()).expect("an item");
        assert_eq!((&*item.key, item.definition.to_bytes()), ("a:b", text.into()));
        assert_eq!(
            Item::parse(Kind::Template, text.into()),
            Err(InvalidItem::NoKey("uriTemplate"))
        );
        assert!(matches!(Item::parse(Kind::Tool, "7".into()), Err(InvalidItem::NotAnObject(_))));
        assert_eq!(
            Item::parse(Kind::Tool, r#"{"name":7}"#.into()),
            Err(InvalidItem::NoKey("name"))
        );
    }

    #[test]
    fn item_with_a_part_that_is_too_large_has_a_defect_that_names_the_part() {
        let tool = |name: usize, description: usize, rest: usize| {
            let [name, description, rest] =
                [name, description, rest].map(|count| "x".repeat(count));
            let text =
                format!(r#"{{"name":"{name}","description":"{description}","rest":"{rest}"}}"#);
            let item = Item::parse(Kind::Tool, text.into()).expect("an item");
            assert!(item.key.chars().count() <= MAX_NAME_CHARS + 1);
            item.defect.map(|defect| defect.to_string())
        };
        let too_large = |text: &str| Some(text.to_owned());
        assert_eq!(tool(MAX_NAME_CHARS, 100, 100), None);
        assert_eq!(
            tool(MAX_NAME_CHARS + 1, 0, 0),
            too_large("its name has more than 128 characters")
        );
        assert_eq!(
            tool(1, MAX_DESCRIPTION_BYTES + 1, 0),
            too_large("its description has more than 16384 bytes")
        );
        assert_eq!(
            tool(1, 0, MAX_DEFINITION_BYTES),
            too_large("its definition has more than 65536 bytes")
        );
        let uri = format!(r#"{{"uri":"a:{}"}}"#, "x".repeat(MAX_URI_BYTES));
        let resource = Item::parse(Kind::Resource, uri.into()).expect("an item");
        let defect = resource.defect.map(|defect| defect.to_string());
        assert_eq!(defect, too_large("its URI has more than 2048 bytes"));
    }

    #[test]
    fn output_schema_and_then_icons_are_left_out_before_the_item_is() {
        let of = |schema: usize, icons: usize, meta: usize| {
            let [schema, icons, meta] = [schema, icons, meta].map(|count| "x".repeat(count));
            let text = format!(
                r#"{{"name":"a","outputSchema":{{"title":"{schema}"}},"icons":[{{"src":"data:,{icons}"}}],"annotations":{{"readOnlyHint":true}},"_meta":{{"x":"{meta}"}}}}"#
            );
            let item = Item::parse(Kind::Tool, text.into()).expect("an item");
            let members: Vec<_> = item.definition.keys().map(str::to_owned).collect();
            let length = item.definition.text_len();
            (members.join(" "), item.alterations, item.defect.is_some(), length)
        };
        let much = MAX_DEFINITION_BYTES;
        let (members, altered, is_out, _) = of(1, 1, 1);
        assert_eq!(members, "name outputSchema icons annotations _meta");
        assert_eq!((altered, is_out), (None, false));

        let (members, altered, is_out, length) = of(much, 100, 100);
        assert_eq!((&*members, is_out), ("name icons annotations _meta", false));
        let expected = "`outputSchema` is left out, since the definition has more than 65536 bytes";
        assert_eq!(altered.as_deref(), Some(expected));
        assert!(length < 1_000, "the former text is kept: {length}");

        for (schema, icons) in [(1, much), (much, much)] {
            let (members, altered, is_out, _) = of(schema, icons, 1);
            assert_eq!((&*members, is_out), ("name annotations _meta", false));
            let altered = altered.expect("named");
            assert!(altered.starts_with("`outputSchema` and `icons` are left out"), "{altered}");
        }
        let (.., is_out, _) = of(1, 1, much);
        assert!(is_out, "`_meta` is not left out");
    }

    #[test]
    fn item_without_its_definition_keeps_its_name_and_its_defect() {
        let text = format!(r#"{{"name":"a","x":"{}"}}"#, "x".repeat(MAX_DEFINITION_BYTES));
        let item = Item::parse(Kind::Tool, text.into()).expect("an item");
        let defect = item.defect.expect("a defect");
        let item = item.without_definition();
        assert_eq!((&*item.key, item.defect), ("a", Some(defect)));
        assert_eq!(item.definition.to_bytes(), r#"{"name":"a"}"#);
        assert!(!defect.has_definition());
        let bad = InvalidItem::NoKey("name");
        let unnamed = Item::unnamed(Kind::Tool, 7, bad);
        assert_eq!(&*unnamed.key, "number 7 of the list");
        let text = unnamed.defect.map(|defect| defect.to_string());
        assert_eq!(text.as_deref(), Some("`name` is missing or not a string"));
    }
}
