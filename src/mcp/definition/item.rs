//! One thing that an upstream lists.

use bytes::Bytes;

use crate::json::Object;
use crate::mcp::definition::param_headers::BadMark;
use crate::mcp::definition::shape::BadShape;
use crate::mcp::kind::Kind;

// No keys: what is larger than any of these nobody wrote for a model to read, and views are built for it.

/// The largest definition that is taken, in bytes.
pub const MAX_DEFINITION_BYTES: usize = 64 * 1024;
/// The longest name, in characters.
pub const MAX_NAME_CHARS: usize = 128;
/// The longest URI or URI template, in bytes.
pub const MAX_URI_BYTES: usize = 2 * 1024;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;

/// An item as its upstream defines it: a key and raw JSON that nobody reads further.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// The upstream's own name or URI for it.
    pub key: Box<str>,
    /// The whole definition.
    pub definition: Object,
    /// Why nobody can use it; then it is not listed.
    pub flaw: Option<Flaw>,
    /// Whether a tool can be called as a task only: those who know no such tasks cannot use it.
    pub needs_task: bool,
}

/// Why an item that can be read is of no use to anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A tool asks in a wrong way for arguments in headers.
    #[error("{0}")]
    Mark(#[from] BadMark),
    /// It holds text that nobody sees, and the operator wants none.
    #[error("it holds hidden text")]
    HiddenText,
    /// Something is to be redacted in what its upstream has to get back as it is.
    #[error("what is redacted stands in its name, its URI or the name of a member or argument")]
    Redacted,
    /// Some client could not read it, and with it no list that it stands in.
    #[error("{0}")]
    Shape(#[from] BadShape),
}

/// Why an item is left out of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadItem {
    /// Not an object.
    #[error("{0}")]
    NotAnObject(String),
    /// The key is missing, empty or no string.
    #[error("`{0}` is missing or no string")]
    NoKey(&'static str),
    /// Some part is larger than allowed; the text names it.
    #[error("{0}")]
    TooLarge(String),
}

impl Item {
    /// Reads an item from an element of a list.
    pub fn parse(kind: Kind, definition: Bytes) -> Result<Self, BadItem> {
        let too_large = |what: &str, limit: usize, unit: &str| {
            Err(BadItem::TooLarge(format!("{what} of more than {limit} {unit}")))
        };
        if definition.len() > MAX_DEFINITION_BYTES {
            return too_large("a definition", MAX_DEFINITION_BYTES, "bytes");
        }
        let definition =
            Object::parse(definition).map_err(|bad| BadItem::NotAnObject(bad.to_string()))?;
        let member = kind.key_member();
        let key: Box<str> = match definition.get_string(member) {
            Some(key) if !key.is_empty() => key.into(),
            _ => return Err(BadItem::NoKey(member)),
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
        Ok(Self { kind, key, definition, flaw: None, needs_task: false })
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
        assert_eq!(Item::parse(Kind::Template, text.into()), Err(BadItem::NoKey("uriTemplate")));
        assert!(matches!(Item::parse(Kind::Tool, "7".into()), Err(BadItem::NotAnObject(_))));
        assert_eq!(Item::parse(Kind::Tool, r#"{"name":7}"#.into()), Err(BadItem::NoKey("name")));
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
