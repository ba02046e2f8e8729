//! What there is to do wrong.
//!
//! A member that is not known here ends the program, so that a test with a slip of the pen fails.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// `script.json`. Without the file, a server without a fault.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Script {
    /// What it speaks; 2025-11-25 if nothing is said. 2026-07-28 makes it modern.
    pub(crate) revision: Option<String>,
    /// Whether GET opens the HTTP+SSE pair, and POST is refused elsewhere.
    pub(crate) pair: bool,
    /// Faults by method.
    pub(crate) on: BTreeMap<String, Fault>,
    /// Tools beside `call`: `t1`, `t2`, …
    pub(crate) more_tools: usize,
    /// How lists of tools go on.
    pub(crate) walk: Walk,
    /// What is said without being asked.
    pub(crate) storm: Option<Storm>,
    /// What is done at the start.
    pub(crate) start: Start,
    /// Connections are reset as soon as they are accepted.
    pub(crate) down: bool,
    /// The end of standard input does not end it.
    pub(crate) ignores_eof: bool,
    /// A notice, `tools/list_changed`, follows each list.
    pub(crate) restless: bool,
}

/// What goes wrong with one reply, in the order of the members.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fault {
    pub(crate) delay_ms: u64,
    /// Ends before anything is said: a code, or a signal if negative.
    pub(crate) exit: Option<i32>,
    /// Lines on standard error before anything is said.
    pub(crate) stderr_bytes: u64,
    /// No message is read after this one, which stays without a reply.
    pub(crate) deaf: bool,
    /// Nothing is said, and the connection held until its other side ends it.
    pub(crate) never: bool,
    /// An HTTP status and body instead of a reply.
    pub(crate) status: Option<u16>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) content_type: Option<String>,
    /// Raw text instead of the reply; `$ID` and `$NONCE` are replaced.
    pub(crate) text: Option<String>,
    /// Raw bytes instead of the reply, two digits each; they are a line, or a body.
    pub(crate) hex: Option<String>,
    /// So many bytes without a newline before the reply's line.
    pub(crate) filler_bytes: usize,
    /// Raw lines or events before the reply and behind it, replaced likewise.
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
    /// The reply is an event stream.
    pub(crate) events: bool,
    /// The reply's length is not told in advance.
    pub(crate) chunked: bool,
    /// Events or lines of progress before the reply, if it has a token.
    pub(crate) progress: u64,
    /// Raw text again and again, without a pause, until the connection ends, and no reply.
    pub(crate) flood: Option<String>,
    /// Comments each so many milliseconds, and no reply.
    pub(crate) comments_ms: Option<u64>,
    /// Bytes written at a time, and the pause between two.
    pub(crate) piece: Option<usize>,
    pub(crate) pause_ms: u64,
    /// The connection, or the program, ends after so many bytes: with RST or else FIN.
    pub(crate) cut: Option<usize>,
    pub(crate) reset: bool,
    /// The whole machine is taken for so long, and so much memory, before anything is said.
    pub(crate) burn_ms: u64,
    pub(crate) burn_bytes: usize,
    /// Ends the program once all is said.
    pub(crate) exit_after: Option<i32>,
}

/// How a list of tools goes on.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Walk {
    /// One page.
    #[default]
    Whole,
    /// Pages of so many items as fit: see `methods::PAGE_ITEMS`.
    Pages,
    /// One item a page, under cursors that are odd: empty, long, with a NUL, JSON, an emoji.
    Odd,
    /// The first page again and again, under one cursor.
    Loop,
    /// New items and new cursors without an end.
    Endless,
    /// New items under one cursor, ten pages of them.
    SameCursor,
    /// The empty cursor for ever.
    EmptyForEver,
    /// The second page is refused once, then served.
    RefusedOnce,
    /// The second page is always refused.
    Refused,
    /// Every name twice.
    Twice,
    /// `tools` is no array.
    NoArray,
}

/// Text that is written again and again while the script holds it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storm {
    /// A line of standard output, or an event for all that listen; `$SUB` is a listen's id.
    pub(crate) text: String,
    pub(crate) per_second: u32,
    /// The text is written as it stands, and is no line or event.
    #[serde(default)]
    pub(crate) raw: bool,
    /// To standard error instead.
    #[serde(default)]
    pub(crate) on_stderr: bool,
}

/// What is done at the start.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Start {
    pub(crate) descendants: Vec<Descendant>,
    pub(crate) stderr_bytes: u64,
    pub(crate) delay_ms: u64,
    pub(crate) exit: Option<Exit>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    #[serde(default)]
    pub(crate) after_ms: u64,
}

/// A process that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Descendant {
    /// In the same process group.
    Child,
    /// Likewise, and its parent has ended.
    Orphan,
    /// In a session of its own.
    Session,
    /// Likewise, and its parent has ended; it has nothing of the environment.
    Daemon,
}

impl Script {
    pub(crate) fn read(folder: &Path) -> Self {
        match std::fs::read(folder.join("script.json")) {
            Ok(text) => understood(&text),
            Err(_) => Self::default(),
        }
    }

    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("2025-11-25")
    }

    pub(crate) fn is_modern(&self) -> bool {
        self.revision() == "2026-07-28"
    }
}

impl Fault {
    /// The fault that a call brings along.
    pub(crate) fn brought(text: &str) -> Self {
        understood(text.as_bytes())
    }
}

fn understood<T: for<'a> Deserialize<'a>>(text: &[u8]) -> T {
    serde_json::from_slice(text).unwrap_or_else(|error| {
        eprintln!("evil_upstream: {error} in {}", String::from_utf8_lossy(text));
        std::process::exit(2)
    })
}
