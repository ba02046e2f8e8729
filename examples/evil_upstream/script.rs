//! Definition of the faults.
//!
//! An unknown member ends the process, so that a test with a typing error fails.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// Content of `script.json`. Without the file, the server has no faults.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Script {
    /// Revision; 2025-11-25 if missing. 2026-07-28 makes the server modern.
    pub(crate) revision: Option<String>,
    /// Whether the server uses HTTP+SSE: GET opens a stream, and other POST requests are refused.
    pub(crate) pair: bool,
    /// Faults by method.
    pub(crate) on: BTreeMap<String, Fault>,
    /// Number of tools in addition to `call`: `t1`, `t2`, …
    pub(crate) more_tools: usize,
    /// Pagination of the list of tools.
    pub(crate) walk: Walk,
    /// Unsolicited messages.
    pub(crate) storm: Option<Storm>,
    /// Actions at the start.
    pub(crate) start: Start,
    /// Connections are reset as soon as they are accepted.
    pub(crate) down: bool,
    /// The end of standard input does not end the process.
    pub(crate) ignores_eof: bool,
    /// Each list is followed by `notifications/tools/list_changed`.
    pub(crate) restless: bool,
}

/// Fault of one response; the actions have the order of the members.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fault {
    pub(crate) delay_ms: u64,
    /// Waits until the server's folder contains this file.
    pub(crate) waits_for: Option<String>,
    /// Exits before the response: an exit code, or a signal if negative.
    pub(crate) exit: Option<i32>,
    /// Bytes of lines on standard error before the response.
    pub(crate) stderr_bytes: u64,
    /// No response, and no further message is read.
    pub(crate) deaf: bool,
    /// No response, and the connection stays open until the peer closes it.
    pub(crate) never: bool,
    /// HTTP error status instead of the response.
    pub(crate) status: Option<u16>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) content_type: Option<String>,
    /// Raw text instead of the response; `$ID`, `$NONCE` and `$TASK` are replaced.
    pub(crate) text: Option<String>,
    /// Raw bytes in hexadecimal instead of the response, as a line or a body.
    pub(crate) hex: Option<String>,
    /// Bytes of text in the result of a tool, instead of the name and the nonce.
    pub(crate) result_bytes: usize,
    /// A line of this many bytes before the response.
    pub(crate) filler_bytes: usize,
    /// Raw lines or events before and after the response, with the same replacements.
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
    /// The response is an event stream.
    pub(crate) events: bool,
    /// The response has chunked encoding.
    pub(crate) chunked: bool,
    /// Number of progress notifications before the response, if the request has a token.
    pub(crate) progress: u64,
    /// Raw text that is repeated without a pause until the connection ends, and no response.
    pub(crate) flood: Option<String>,
    /// The response waits for that of the client to the request in `before` whose id is the nonce.
    /// Streamable HTTP only.
    pub(crate) asks: bool,
    /// Interval of SSE comments in milliseconds, and no response.
    pub(crate) comments_ms: Option<u64>,
    /// Bytes per write, and the pause after each write.
    pub(crate) piece: Option<usize>,
    pub(crate) pause_ms: u64,
    /// The connection, or over stdio the process, ends after this many bytes; `reset` selects RST.
    pub(crate) cut: Option<usize>,
    pub(crate) reset: bool,
    /// Keeps the processors busy for this time, and this much memory allocated, before the
    /// response.
    pub(crate) burn_ms: u64,
    pub(crate) burn_bytes: usize,
    /// Exits after the response.
    pub(crate) exit_after: Option<i32>,
}

/// Pagination of the list of tools.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Walk {
    /// One page.
    #[default]
    Whole,
    /// Pages of `methods::PAGE_ITEMS` items.
    Pages,
    /// One item per page, with unusual cursors: empty, long, with a NUL, JSON, an emoji.
    Odd,
    /// The first page repeatedly, with one cursor.
    Loop,
    /// Endless new items and new cursors.
    Endless,
    /// Ten pages of new items with the same cursor.
    SameCursor,
    /// Always the empty cursor.
    EmptyForEver,
    /// The second page is refused once, then served.
    RefusedOnce,
    /// The second page is always refused.
    Refused,
    /// Every name is listed twice.
    Twice,
    /// `tools` is not an array.
    NoArray,
}

/// Text that is sent repeatedly while the script contains it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storm {
    /// Line of standard output, or event on all open streams; `$SUB` is the id of a listen request.
    pub(crate) text: String,
    pub(crate) per_second: u32,
    /// Whether the text is written without the framing of a line or event.
    #[serde(default)]
    pub(crate) raw: bool,
    /// Whether the text is written to standard error instead.
    #[serde(default)]
    pub(crate) on_stderr: bool,
}

/// Actions at the start.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Start {
    pub(crate) descendants: Vec<Descendant>,
    pub(crate) stderr_bytes: u64,
    /// Waits until the server's folder contains this file.
    pub(crate) waits_for: Option<String>,
    pub(crate) exit: Option<Exit>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    #[serde(default)]
    pub(crate) after_ms: u64,
}

/// Process that does not exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Descendant {
    /// Child in the same process group.
    Child,
    /// Process in the same group whose parent has exited.
    Orphan,
    /// Child in its own session.
    Session,
    /// Process in its own session whose parent has exited, with an empty environment.
    Daemon,
}

impl Script {
    pub(crate) fn read(folder: &Path) -> Self {
        match std::fs::read(folder.join("script.json")) {
            Ok(text) => parse_or_exit(&text),
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
    /// Parses the `fault` argument of a call.
    pub(crate) fn from_argument(text: &str) -> Self {
        parse_or_exit(text.as_bytes())
    }
}

fn parse_or_exit<T: for<'a> Deserialize<'a>>(text: &[u8]) -> T {
    serde_json::from_slice(text).unwrap_or_else(|error| {
        eprintln!("evil_upstream: {error} in {}", String::from_utf8_lossy(text));
        std::process::exit(2)
    })
}
