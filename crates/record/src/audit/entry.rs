//! Entries of the audit log, and their encoding as lines.
//!
//! Invariants: an entry is one line of JSON, whatever clients and upstreams put into it. Control
//! characters, bidirectional controls and invisible characters are written as JSON escapes, so that
//! nothing is lost. A text over its bound is truncated, and the number of omitted bytes is
//! appended.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strum::IntoStaticStr;

use super::TransportKind;
use super::chain::Chain;
use super::json_line::JsonLineWriter;
use super::policy_event::{FileHash, PolicyEvent, write_files};
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::{hex, push_hex};
use weir_base::time::timestamp::push_millis;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::Revision;

/// Kind of an event about the sign-in to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum SignInEvent {
    /// Weir has got an access token for an upstream, or failed to get one.
    SignIn,
    /// A user has signed in.
    Login,
    /// A user has signed out.
    Logout,
}

/// One entry of the audit log.
#[derive(Debug, Clone)]
pub enum AuditEntry {
    /// A request.
    Request(RequestEntry),
    /// The log was opened.
    Started {
        /// Bytes of an incomplete line before this entry.
        torn: usize,
        /// Files of the configuration that was taken up.
        files: Vec<FileHash>,
    },
    /// The log was closed in an orderly way, for this reason if it is known.
    Stopped(Option<Arc<str>>),
    /// This number of entries could not be written.
    Lost(u64),
    /// This number of refusals of unauthenticated clients was not written.
    LeftOut(u64),
    /// A change of policy.
    Policy(PolicyEvent),
    /// Something about the sign-in to an upstream has succeeded, or failed for this reason.
    SignIn {
        /// Kind of the event.
        event: SignInEvent,
        /// The upstream.
        upstream: Arc<str>,
        /// Reason of the failure.
        failure: Option<String>,
    },
}

/// Entry about a request.
#[derive(Debug, Clone)]
pub struct RequestEntry {
    pub(super) actor: Actor,
    pub(super) phase: Phase,
    pub(super) details: Box<RequestDetails>,
}

/// Client of a request, and its connection.
#[derive(Debug, Clone)]
pub(super) struct Actor {
    pub(super) transport: TransportKind,
    pub(super) from: Option<IpAddr>,
    pub(super) client: Option<Arc<str>>,
    pub(super) role: Option<Arc<str>>,
    /// The application that the token was issued to.
    pub(super) application: Option<Arc<str>>,
    pub(super) session: Option<SessionMark>,
}

impl Actor {
    /// Creates the actor of a request whose client is not known yet.
    pub(super) fn unknown(transport: TransportKind, from: Option<IpAddr>) -> Self {
        Self { transport, from, client: None, role: None, application: None, session: None }
    }
}

/// Short hash of a session id, which itself is a secret. Cheap to clone, and computed once per
/// session, since each of its requests is recorded with it.
#[derive(Debug, Clone)]
pub struct SessionMark(Arc<str>);

impl SessionMark {
    /// Computes the mark of a session id.
    pub fn of(id: &str) -> Self {
        Self(hex(&sha256(id)[..4]).into())
    }
}

/// Phase of a request that an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The request is about to be sent to an upstream.
    Admitted,
    /// A stream that the request opened begins.
    Begun,
    /// The request has ended.
    Done,
}

/// Decision about the item that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum AuditDecision {
    /// The client may use it.
    Allowed,
    /// It exists, and the client may not use it.
    Denied,
    /// No upstream lists it.
    Unknown,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum AuditOutcome {
    /// A result.
    Ok,
    /// An error, from an upstream or because of one.
    Error,
    /// Weir refused the request.
    Refused,
    /// The client waits for it no longer.
    Cancelled,
}

/// Outcome of a request, with code, status and size of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCompletion {
    /// The outcome.
    pub outcome: AuditOutcome,
    /// Code of the JSON-RPC error.
    pub code: Option<i64>,
    /// Status of the HTTP response.
    pub status: Option<u16>,
    /// Size of the response, where it was counted.
    pub bytes_out: Option<u64>,
}

impl EventCompletion {
    /// Creates the end of a request of which only the outcome is recorded.
    pub fn of(outcome: AuditOutcome) -> Self {
        Self { outcome, code: None, status: None, bytes_out: None }
    }
}

/// Text that is nearly always a known one, which is not copied.
pub(super) type EntryText = Cow<'static, str>;

/// Facts about a request.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestDetails {
    /// Number of the request in the log; set if the request has more than one entry.
    pub(super) number: Option<u64>,
    /// Request number that log lines show.
    pub(super) request_number: Option<u64>,
    /// Name of the replica that has sent the request on.
    pub(super) via: Option<Arc<str>>,
    /// Name of the replica that has got the request and was lost.
    pub(super) lost_at: Option<Arc<str>>,
    pub(super) http: Option<EntryText>,
    pub(super) revision: Option<Revision>,
    pub(super) method: Option<EntryText>,
    pub(super) kind: Option<Kind>,
    pub(super) upstream: Option<UpstreamName>,
    /// Name or URI at the upstream.
    pub(super) item: Option<Box<str>>,
    /// Public name or URI.
    pub(super) name: Option<Box<str>>,
    pub(super) decision: Option<AuditDecision>,
    pub(super) rule: Option<Box<str>>,
    /// Reason why the client was not authenticated.
    pub(super) reason: Option<&'static str>,
    /// User that the refused token names, of which nothing was verified.
    pub(super) claimed_user: Option<Box<str>>,
    /// Number of findings in the response.
    pub(super) flags: usize,
    pub(super) completion: Option<EventCompletion>,
    pub(super) duration: Duration,
    pub(super) bytes_in: Option<u64>,
    pub(super) trace: Option<Box<str>>,
    /// Recorded arguments, as JSON.
    pub(super) arguments: Option<Box<str>>,
}

impl RequestDetails {
    /// Sets the public name. It is set when the item is requested, and again when it is found.
    pub(super) fn set_name(&mut self, name: &str) {
        if self.name.as_deref() != Some(name) {
            self.name = Some(name.into());
        }
    }
}

impl Phase {
    fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Begun => "begun",
            Self::Done => "request",
        }
    }
}

impl AuditEntry {
    /// Returns whether the entry is about an unauthenticated client, or about a refusal before a
    /// method was known.
    pub(super) fn is_unauthenticated_refusal(&self) -> bool {
        let Self::Request(RequestEntry { actor, details, .. }) = self else { return false };
        let is_refused =
            details.completion.is_some_and(|ending| ending.outcome == AuditOutcome::Refused);
        actor.client.is_none() || is_refused && details.method.is_none()
    }

    /// Returns the line without its line feed; see [`AuditEntry::write_to`].
    pub fn write(&self, chain: &Chain, at: SystemTime, chained: bool) -> Vec<u8> {
        let mut out = String::new();
        self.write_to(&mut out, chain, at, chained);
        out.into_bytes()
    }

    /// Appends the line without its line feed, as the next line of a chain. If `chained`, it
    /// contains the hash of the previous line.
    pub(crate) fn write_to(&self, out: &mut String, chain: &Chain, at: SystemTime, chained: bool) {
        let mut out = JsonLineWriter(out);
        out.0.push_str("{\"seq\":");
        out.0.push_str(itoa::Buffer::new().format(chain.next));
        out.0.push_str(",\"time\":\"");
        push_millis(out.0, at);
        out.0.push('"');
        match self {
            Self::Request(request) => request.write(&mut out),
            Self::Started { torn, files } => {
                out.word("event", "started");
                out.word("version", env!("CARGO_PKG_VERSION"));
                out.number("torn", Some(*torn).filter(|torn| *torn > 0));
                write_files(&mut out, files);
            }
            Self::Stopped(reason) => {
                out.word("event", "stopped");
                out.text("reason", reason.as_deref());
            }
            Self::Policy(event) => event.write(&mut out),
            Self::Lost(count) => {
                out.word("event", "lost");
                out.number("count", Some(*count));
            }
            Self::LeftOut(count) => {
                out.word("event", "left_out");
                out.number("count", Some(*count));
            }
            Self::SignIn { event, upstream, failure } => {
                out.word("event", event.into());
                out.text("upstream", Some(upstream));
                out.word("outcome", if failure.is_none() { "ok" } else { "error" });
                out.text("reason", failure.as_deref());
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

impl RequestEntry {
    fn write(&self, out: &mut JsonLineWriter<'_>) {
        let Self { actor, phase, details } = self;
        out.word("event", phase.as_str());
        out.number("request", details.request_number.or(details.number));
        let Actor { transport, from, client, role, application, session } = actor;
        out.text("client", client.as_deref());
        out.text("role", role.as_deref());
        out.text("application", application.as_deref());
        if let Some(from) = from {
            out.begin("from");
            let _ = write!(out.0, "\"{from}\"");
        }
        out.text("session", session.as_ref().map(|mark| &*mark.0));
        let transport = match transport {
            TransportKind::Http => "http",
            TransportKind::Sse => "sse",
            TransportKind::Stdio => "stdio",
        };
        out.word("wire", transport);
        out.text("via", details.via.as_deref());
        out.text("lost_at", details.lost_at.as_deref());
        out.text("http", details.http.as_deref());
        out.text("revision", details.revision.map(Revision::as_str));
        out.text("method", details.method.as_deref());
        if let Some(kind) = details.kind {
            out.word("kind", kind.json_name());
        }
        out.text("upstream", details.upstream.as_ref().map(UpstreamName::as_str));
        out.text("item", details.item.as_deref());
        out.text("name", details.name.as_deref());
        if let Some(decision) = details.decision {
            out.word("decision", decision.into());
        }
        out.text("rule", details.rule.as_deref());
        out.text("reason", details.reason);
        out.text("unverified_user", details.claimed_user.as_deref());
        out.number("flags", Some(details.flags).filter(|flags| *flags > 0));
        if let Some(arguments) = &details.arguments {
            out.begin("arguments");
            out.0.push_str(arguments);
        }
        out.number("bytes_in", details.bytes_in);
        if let Some(EventCompletion { outcome, code, status, bytes_out }) = details.completion {
            out.word("outcome", outcome.into());
            out.number("code", code);
            out.number("status", status);
            out.number("bytes_out", bytes_out);
            let micros = u64::try_from(details.duration.as_micros()).unwrap_or(u64::MAX);
            out.number("duration_ms", Some(micros / 1_000));
            let thousandths = 1_000 + micros % 1_000;
            out.0.push('.');
            out.0.push_str(&itoa::Buffer::new().format(thousandths)[1..]);
        }
        out.text("trace_id", details.trace.as_deref());
    }
}

#[cfg(test)]
mod tests {
    use super::super::json_line::{quote, quoted};
    use super::*;
    use proptest::prelude::*;
    use weir_base::json::{self, Object};

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
        let sign_in = |event| AuditEntry::SignIn { event, upstream: "hub".into(), failure: None };
        for (line, expected) in [
            (AuditEntry::Started { torn: 7, files: Vec::new() }, "started"),
            (AuditEntry::Stopped(Some("SIGTERM".into())), "stopped"),
            (AuditEntry::Lost(3), "lost"),
            (AuditEntry::LeftOut(4), "left_out"),
            (sign_in(SignInEvent::SignIn), "sign_in"),
            (sign_in(SignInEvent::Login), "login"),
            (sign_in(SignInEvent::Logout), "logout"),
        ] {
            let text = line.write(&chain, SystemTime::UNIX_EPOCH, true);
            let object = Object::parse(text).expect("an object");
            assert_eq!(object.get_string("event").as_deref(), Some(expected));
            assert_eq!(object.get_string("prev").map(|prev| prev.len()), Some(64));
            assert_eq!(object.get("time"), Some("\"1970-01-01T00:00:00.000Z\""));
        }
    }
}
