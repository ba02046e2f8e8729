//! Item of a list: one prompt, tool, resource or template that an upstream lists.

use bytes::Bytes;

use crate::json::Object;
use crate::mcp::definition::param_headers::InvalidHeaderAnnotation;
use crate::mcp::definition::shape::InvalidShape;
use crate::mcp::kind::Kind;

// These limits are not configurable: a larger item was not written for a model to read, and views
// are built for these sizes.

/// The largest accepted definition, in bytes.
pub const MAX_DEFINITION_BYTES: usize = 64 * 1024;
/// The longest name, in characters.
pub const MAX_NAME_CHARS: usize = 128;
/// The longest URI or URI template, in bytes.
pub const MAX_URI_BYTES: usize = 2 * 1024;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;

/// Item as its upstream defines it: a key and raw JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The item's kind.
    pub kind: Kind,
    /// The upstream's own name or URI.
    pub key: Box<str>,
    /// The whole definition.
    pub definition: Object,
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
}

/// Reason for which an element of a list is not an item.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidItem {
    /// Not an object.
    #[error("{0}")]
    NotAnObject(String),
    /// The key is missing, empty or no string.
    #[error("`{0}` is missing or not a string")]
    NoKey(&'static str),
    /// A part is larger than allowed; the text names it.
    #[error("{0}")]
    TooLarge(String),
}

impl Item {
    /// Parses an element of a list.
    pub fn parse(kind: Kind, definition: Bytes) -> Result<Self, InvalidItem> {
        let too_large = |what: &str, limit: usize, unit: &str| {
            Err(InvalidItem::TooLarge(format!("{what} of more than {limit} {unit}")))
        };
        if definition.len() > MAX_DEFINITION_BYTES {
            return too_large("a definition", MAX_DEFINITION_BYTES, "bytes");
        }
        let definition =
            Object::parse(definition).map_err(|bad| InvalidItem::NotAnObject(bad.to_string()))?;
        let member = kind.key_member();
        let key: Box<str> = match definition.get_string(member) {
            Some(key) if !key.is_empty() => key.into(),
            _ => return Err(InvalidItem::NoKey(member)),
        };
        if kind.has_name() && key.chars().count() > MAX_NAME_CHARS {
            return too_large("a name", MAX_NAME_CHARS, "characters");
        }
        if !kind.has_name() && key.len() > MAX_URI_BYTES {
            return too_large("a URI", MAX_URI_BYTES, "bytes");
        }
        let description = definition.get("description").unwrap_or_default();
        if description.len() > MAX_DESCRIPTION_BYTES {
            return too_large("a description", MAX_DESCRIPTION_BYTES, "bytes");
        }
        Ok(Self { kind, key, definition, defect: None, needs_task: false })
    }
}

#[cfg(test)]
mod tests {
    use crate::mcp::definition::item::*;

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
    fn what_is_too_large_is_left_out() {
        let tool = |name: usize, description: usize, rest: usize| {
            let [name, description, rest] =
                [name, description, rest].map(|count| "x".repeat(count));
            let text =
                format!(r#"{{"name":"{name}","description":"{description}","rest":"{rest}"}}"#);
            Item::parse(Kind::Tool, text.into()).is_ok()
        };
        assert!(tool(MAX_NAME_CHARS, 100, 100));
        assert!(!tool(MAX_NAME_CHARS + 1, 0, 0));
        assert!(!tool(1, MAX_DESCRIPTION_BYTES + 1, 0));
        assert!(!tool(1, 0, MAX_DEFINITION_BYTES));
    }
}
