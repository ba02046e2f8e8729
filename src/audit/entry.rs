//! One line: what there is to tell, and how it is written.
//!
//! Promises: one line of JSON, whatever clients and upstreams put into it. Control characters, those that change
//! the direction of text and those that cannot be seen are escaped, as JSON does it, so that nothing is lost; a
//! longer text is cut at its bound, and says by how much.
//!
//! Knows nothing of: files.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Wire;
use super::chain::Chain;
use super::event::{Decision, Ending, Outcome};
use crate::hex::{hex, push_hex};
use crate::invisible_chars::is_hidden;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::Revision;
use crate::request_scope;
use crate::sha256::sha256;
use crate::timestamp::push_millis;

/// What there is to tell.
#[derive(Debug, Clone)]
pub enum Line {
    /// Of a request.
    Request(Box<Told>),
    /// The log was opened; how many bytes of a torn line stand before it.
    Started {
        /// How many.
        torn: usize,
    },
    /// The log was closed in good order.
    Stopped,
    /// So many records could not be written.
    Lost(u64),
    /// So many refusals of strangers were not written.
    LeftOut(u64),
}

/// Who asks, and over what.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) wire: Wire,
    pub(super) from: Option<IpAddr>,
    pub(super) client: Option<Arc<str>>,
    pub(super) role: Option<Arc<str>>,
    /// The one that a token was issued to.
    pub(super) application: Option<Arc<str>>,
    pub(super) session: Option<SessionMark>,
}

/// What is told of a session: a short hash of its id, which is a secret. Cheap to clone, and made once, since each
/// request of the session is told with it.
#[derive(Debug, Clone)]
pub struct SessionMark(Arc<str>);

impl SessionMark {
    /// The mark of the session of this id.
    pub fn of(id: &str) -> Self {
        Self(hex(&sha256(id)[..4]).into())
    }
}

/// Which moment of a request a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// It is about to be carried out.
    Admitted,
    /// A stream that it opened begins.
    Begun,
    /// It is over.
    Done,
}

/// A text that is nearly always one of a few.
pub(super) type Word = Cow<'static, str>;

/// What is known of a request.
#[derive(Debug, Clone)]
pub struct Told {
    pub(super) who: Who,
    pub(super) moment: Moment,
    /// Written where a request has more than one line.
    pub(super) number: Option<u64>,
    /// The number by which the lines of the log tell of it.
    pub(super) trail: Option<u64>,
    pub(super) http: Option<Word>,
    pub(super) revision: Option<Revision>,
    pub(super) method: Option<Word>,
    pub(super) kind: Option<Kind>,
    pub(super) upstream: Option<UpstreamName>,
    /// The upstream's own name or URI.
    pub(super) item: Option<Box<str>>,
    /// The public one.
    pub(super) name: Option<Box<str>>,
    pub(super) decision: Option<Decision>,
    pub(super) rule: Option<Box<str>>,
    /// How many things were found in the answer.
    pub(super) flags: usize,
    pub(super) ending: Option<Ending>,
    pub(super) duration: Duration,
    pub(super) bytes_in: Option<u64>,
    pub(super) trace: Option<Box<str>>,
    /// As JSON.
    pub(super) arguments: Option<Box<str>>,
}

impl Told {
    /// Said when it is asked for, and once more when it is found.
    pub(super) fn name_it(&mut self, name: &str) {
        if self.name.as_deref() != Some(name) {
            self.name = Some(name.into());
        }
    }

    pub(super) fn of(who: Who) -> Self {
        Self {
            who,
            moment: Moment::Done,
            number: None,
            trail: request_scope::number(),
            http: None,
            revision: None,
            method: None,
            kind: None,
            upstream: None,
            item: None,
            name: None,
            decision: None,
            rule: None,
            flags: 0,
            ending: None,
            duration: Duration::ZERO,
            bytes_in: None,
            trace: None,
            arguments: None,
        }
    }
}

impl Line {
    /// Whether it tells of somebody whom nobody knows, or of a refusal before anything was asked for.
    pub(super) fn is_of_the_door(&self) -> bool {
        let Self::Request(told) = self else { return false };
        let is_refused = told.ending.is_some_and(|ending| ending.outcome == Outcome::Refused);
        told.who.client.is_none() || is_refused && told.method.is_none()
    }

    /// The line without its end; see [`Line::write_to`].
    pub fn write(&self, chain: &Chain, at: SystemTime, chained: bool) -> Vec<u8> {
        let mut out = String::new();
        self.write_to(&mut out, chain, at, chained);
        out.into_bytes()
    }

    /// Writes the line without its end behind others, as the next of a chain; `chained` is whether it carries the
    /// hash of the one before.
    pub fn write_to(&self, out: &mut String, chain: &Chain, at: SystemTime, chained: bool) {
        let mut out = Out(out);
        out.0.push_str("{\"seq\":");
        out.0.push_str(itoa::Buffer::new().format(chain.next));
        out.0.push_str(",\"time\":\"");
        push_millis(out.0, at);
        out.0.push('"');
        match self {
            Self::Request(told) => told.write(&mut out),
            Self::Started { torn } => {
                out.word("event", "started");
                out.word("version", env!("CARGO_PKG_VERSION"));
                if *torn > 0 {
                    out.number("torn", *torn);
                }
            }
            Self::Stopped => out.word("event", "stopped"),
            Self::Lost(count) => {
                out.word("event", "lost");
                out.number("count", *count);
            }
            Self::LeftOut(count) => {
                out.word("event", "left_out");
                out.number("count", *count);
            }
        }
        if chained {
            out.begin("prev");
            out.0.push('"');
            push_hex(out.0, &chain.last);
            out.0.push('"');
        }
        out.0.push('}');
    }
}

impl Told {
    fn write(&self, out: &mut Out<'_>) {
        out.word(
            "event",
            match self.moment {
                Moment::Admitted => "admitted",
                Moment::Begun => "begun",
                Moment::Done => "request",
            },
        );
        if let Some(number) = self.trail.or(self.number) {
            out.number("request", number);
        }
        let Who { wire, from, client, role, application, session } = &self.who;
        out.text("client", client.as_deref());
        out.text("role", role.as_deref());
        out.text("application", application.as_deref());
        if let Some(from) = from {
            out.begin("from");
            let _ = write!(out.0, "\"{from}\"");
        }
        out.text("session", session.as_ref().map(|mark| &*mark.0));
        let wire = match wire {
            Wire::Http => "http",
            Wire::Sse => "sse",
            Wire::Stdio => "stdio",
        };
        out.word("wire", wire);
        out.text("http", self.http.as_deref());
        out.text("revision", self.revision.map(Revision::as_str));
        out.text("method", self.method.as_deref());
        if let Some(kind) = self.kind {
            out.word("kind", kind.word());
        }
        out.text("upstream", self.upstream.as_ref().map(UpstreamName::as_str));
        out.text("item", self.item.as_deref());
        out.text("name", self.name.as_deref());
        if let Some(decision) = self.decision {
            out.word("decision", decision.as_str());
        }
        out.text("rule", self.rule.as_deref());
        if self.flags > 0 {
            out.number("flags", self.flags);
        }
        if let Some(arguments) = &self.arguments {
            out.begin("arguments");
            out.0.push_str(arguments);
        }
        if let Some(bytes) = self.bytes_in {
            out.number("bytes_in", bytes);
        }
        if let Some(Ending { outcome, code, status, bytes_out }) = self.ending {
            out.word("outcome", outcome.as_str());
            if let Some(code) = code {
                out.number("code", code);
            }
            if let Some(status) = status {
                out.number("status", status);
            }
            if let Some(bytes) = bytes_out {
                out.number("bytes_out", bytes);
            }
            let micros = u64::try_from(self.duration.as_micros()).unwrap_or(u64::MAX);
            out.number("duration_ms", micros / 1_000);
            let thousandths = 1_000 + micros % 1_000;
            out.0.push('.');
            out.0.push_str(&itoa::Buffer::new().format(thousandths)[1..]);
        }
        out.text("trace_id", self.trace.as_deref());
    }
}

/// A line while it is written, piece by piece: it has some twenty members, and formatting is what costs.
struct Out<'a>(&'a mut String);

impl Out<'_> {
    /// A member whose text nobody outside has a say in.
    fn word(&mut self, member: &str, text: &str) {
        self.begin(member);
        self.0.push('"');
        self.0.push_str(text);
        self.0.push('"');
    }

    fn number(&mut self, member: &str, number: impl itoa::Integer) {
        self.begin(member);
        self.0.push_str(itoa::Buffer::new().format(number));
    }

    fn text(&mut self, member: &str, text: Option<&str>) {
        let Some(text) = text else { return };
        self.begin(member);
        quote(self.0, text, MAX_FIELD_BYTES);
    }

    fn begin(&mut self, member: &str) {
        self.0.push_str(",\"");
        self.0.push_str(member);
        self.0.push_str("\":");
    }
}

/// A text as a field of a line holds it.
pub fn quoted(text: &str) -> String {
    let mut out = String::new();
    quote(&mut out, text, MAX_FIELD_BYTES);
    out
}

/// Writes a text as JSON, at most `limit` bytes of it.
pub(super) fn quote(out: &mut String, text: &str, limit: usize) {
    let end = if text.len() <= limit { text.len() } else { text.floor_char_boundary(limit) };
    out.push('"');
    // Most texts are plain, and go in one piece.
    let is_plain = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    if text.as_bytes()[..end].iter().copied().all(is_plain) {
        out.push_str(&text[..end]);
    } else {
        text[..end].chars().for_each(|c| escape(out, c));
    }
    if end < text.len() {
        let _ = write!(out, "… ({} bytes more)", text.len() - end);
    }
    out.push('"');
}

fn escape(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        // Joiners, single marks of direction and the unassigned ones behind the tags are escaped here, too.
        c if is_hidden(c) || matches!(c, '\u{200c}'..='\u{200f}' | '\u{e0100}'..='\u{e0fff}') => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        c => out.push(c),
    }
}

/// The most bytes of one field.
pub(super) const MAX_FIELD_BYTES: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{self, Object};
    use proptest::prelude::*;

    #[test]
    fn what_could_break_a_line_or_turn_it_around_is_escaped() {
        for (text, expected) in [
            ("plain", r#""plain""#),
            ("a\r\nb\0", r#""a\u000d\u000ab\u0000""#),
            ("\"}\\", r#""\"}\\""#),
            ("a\u{202e}b\u{2066}", r#""a\u202eb\u2066""#),
            ("\u{7f}\u{85}\u{2028}\u{feff}", r#""\u007f\u0085\u2028\ufeff""#),
            ("\u{e0041}", r#""\udb40\udc41""#),
            ("\u{34f}\u{115f}\u{17b4}\u{1d173}", r#""\u034f\u115f\u17b4\ud834\udd73""#),
            ("\u{61c}\u{200d}\u{200e}\u{3164}", r#""\u061c\u200d\u200e\u3164""#),
            ("häuser", "\"häuser\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
        let long = "ä".repeat(1_000);
        let expected = format!("\"{}… (976 bytes more)\"", "ä".repeat(512));
        assert_eq!(quoted(&long), expected);
    }

    proptest! {
        #[test]
        fn a_text_can_be_read_back(text in any::<String>()) {
            let mut quoted = String::new();
            quote(&mut quoted, &text, usize::MAX);
            prop_assert!(!quoted.contains('\n'));
            let read = json::decode_string(&quoted).expect("a string");
            prop_assert_eq!(&*read, &*text);
        }
    }

    #[test]
    fn what_the_log_says_of_itself_is_a_line_too() {
        let chain = Chain::new();
        for (line, expected) in [
            (Line::Started { torn: 7 }, "started"),
            (Line::Stopped, "stopped"),
            (Line::Lost(3), "lost"),
            (Line::LeftOut(4), "left_out"),
        ] {
            let text = line.write(&chain, SystemTime::UNIX_EPOCH, true);
            let object = Object::parse(text).expect("an object");
            assert_eq!(object.get_string("event").as_deref(), Some(expected));
            assert_eq!(object.get_string("prev").map(|prev| prev.len()), Some(64));
            assert_eq!(object.get("time"), Some("\"1970-01-01T00:00:00.000Z\""));
        }
    }
}
