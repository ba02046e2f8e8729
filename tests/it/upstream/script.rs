//! A server as data: its revision, its lists, and its behaviour.

use weir_mcp::kind::Kind;

use crate::cell::Side;

/// A server as data.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) side: Side,
    pub(super) lists: [Vec<String>; 4],
    pub(super) page_size: usize,
    pub(super) cursors: Cursors,
    pub(super) probe: Probe,
    pub(super) replies: Replies,
    pub(super) capabilities: String,
    pub(super) instructions: Option<String>,
    /// Cache scope of its lists.
    pub(super) cache_scope: &'static str,
    pub(super) ttl_ms: u64,
    pub(super) starts_down: bool,
}

/// Form of a server's cursors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cursors {
    /// Offset of the next page.
    Offsets,
    /// This text before the offset of the next page.
    Odd(&'static str),
    /// This text on every page; the server itself keeps the position.
    Same(&'static str),
    /// Each page is the first one and has a new cursor.
    Circle,
    /// Each page has a new item and a new cursor.
    Endless,
    /// The first cursor of a client is refused, once.
    Refused,
}

/// Reaction of a legacy server to `server/discover`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// No response.
    Silent,
    /// This error.
    Error(i64),
    /// The process ends (stdio).
    Exit,
    /// This HTTP status and a body that is no JSON.
    Status(u16),
}

/// Form of a server's HTTP responses, where it has a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replies {
    /// One JSON object, unless notifications come before it.
    Json,
    /// An event stream.
    Events,
}

impl Script {
    /// A server that lists nothing.
    pub(crate) fn new(side: Side) -> Self {
        let capabilities = r#"{"prompts":{"listChanged":true},"tools":{"listChanged":true},"resources":{"listChanged":true},"completions":{}}"#;
        let probe = if side.is_http() { Probe::Status(400) } else { Probe::Error(-32601) };
        Self {
            side,
            lists: Default::default(),
            page_size: 100,
            cursors: Cursors::Offsets,
            probe,
            replies: Replies::Json,
            capabilities: capabilities.into(),
            instructions: None,
            cache_scope: "public",
            ttl_ms: 3_600_000,
            starts_down: false,
        }
    }

    /// A server with two items of each kind, called a and b.
    pub(crate) fn full(side: Side) -> Self {
        Kind::ALL.into_iter().fold(Self::new(side), |script, kind| script.items(kind, &["a", "b"]))
    }

    pub(crate) fn items(mut self, kind: Kind, names: &[&str]) -> Self {
        self.lists[kind.index()].extend(names.iter().map(|name| definition(kind, name)));
        self
    }

    pub(crate) fn prompts(self, names: &[&str]) -> Self {
        self.items(Kind::Prompt, names)
    }

    /// Adds an item as it is written.
    pub(crate) fn raw(mut self, kind: Kind, definition: &str) -> Self {
        self.lists[kind.index()].push(definition.into());
        self
    }

    pub(crate) fn paged(self, page_size: usize) -> Self {
        Self { page_size, ..self }
    }

    pub(crate) fn cursors(self, cursors: Cursors) -> Self {
        Self { cursors, ..self }
    }

    pub(crate) fn probe(self, probe: Probe) -> Self {
        Self { probe, ..self }
    }

    pub(crate) fn replies(self, replies: Replies) -> Self {
        Self { replies, ..self }
    }

    /// Lets the server support subscriptions to its resources.
    pub(crate) fn subscribable(self) -> Self {
        let capabilities =
            self.capabilities.replace(r#""resources":{"#, r#""resources":{"subscribe":true,"#);
        Self { capabilities, ..self }
    }

    /// Makes the server unreachable until it comes up.
    pub(crate) fn down(self) -> Self {
        Self { starts_down: true, ..self }
    }

    pub(crate) fn capabilities(self, capabilities: &str) -> Self {
        Self { capabilities: capabilities.into(), ..self }
    }

    /// Sets the server's instructions for models.
    pub(crate) fn instructions(self, instructions: &str) -> Self {
        Self { instructions: Some(instructions.into()), ..self }
    }

    /// The instructions as a member that others follow.
    pub(super) fn instructions_member(&self) -> String {
        let text = self.instructions.as_ref().map(|text| weir_base::json::quote(text));
        let text =
            text.map(|text| format!(r#""instructions":{},"#, String::from_utf8_lossy(&text)));
        text.unwrap_or_default()
    }

    /// A server whose lists are not the same for everybody.
    pub(crate) fn private(self) -> Self {
        Self { cache_scope: "private", ..self }
    }

    pub(crate) fn ttl_ms(self, ttl_ms: u64) -> Self {
        Self { ttl_ms, ..self }
    }
}

/// An item as these scripts define it.
pub(crate) fn definition(kind: Kind, name: &str) -> String {
    let key = own_key(kind, name);
    match kind {
        Kind::Prompt => format!(r#"{{"name":"{key}"}}"#),
        Kind::Tool => format!(r#"{{"name":"{key}","inputSchema":{{"type":"object"}}}}"#),
        Kind::Resource => format!(r#"{{"uri":"{key}","name":"{name}"}}"#),
        Kind::Template => format!(r#"{{"uriTemplate":"{key}","name":"{name}"}}"#),
    }
}

/// The key under which these scripts list an item.
pub(crate) fn own_key(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Prompt | Kind::Tool => name.into(),
        Kind::Resource => format!("file:///{name}"),
        Kind::Template => format!("{name}:///{{path}}"),
    }
}
