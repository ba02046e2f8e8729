//! `[protocol]`: MCP towards clients.

use std::time::Duration;

use super::ServerConfig;
use crate::keys::shape::ValueShape;
use crate::keys::{Described, Key, boolean, count, custom, duration, duration_of, settings};
use crate::reader::report::{ValueError, did_you_mean};
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use weir_downstream as downstream;
use weir_downstream::era::Versions;
use weir_downstream::http::{MESSAGES_PATH, STREAM_PATH};
use weir_mcp::revision::Revision;

settings! {
    /// Settings of MCP towards clients.
    pub struct ProtocolConfig {
        /// The revisions of MCP that clients may use, in any order; at least one. Keep the default
        /// unless you want to refuse a revision.
        ///
        /// ```toml
        /// versions = ["2026-07-28", "2025-11-25"]
        /// ```
        versions: Versions = Versions::default(), versions();
        /// Also serves the deprecated HTTP+SSE transport of 2024-11-05, at `GET /sse` and `POST
        /// /messages`, for clients that support nothing newer. `versions` must then contain a
        /// revision before 2026-07-28. Behind a proxy that adds a path in front of these two,
        /// `public_url` must contain that path.
        legacy_sse: bool = false, boolean();
        /// Lets clients of revisions before 2026-07-28 resume an event stream after a lost
        /// connection (`Last-Event-ID`): the notifications and the response of a call are stored
        /// for them, up to 16 MiB per session. A response is then buffered until it is complete,
        /// and is sent as an event unless it is available at once. Clients of 2025-11-25 get an
        /// event id to resume from as soon as a stream begins.
        resumable: bool = false, boolean();
        /// Idle time after which a session (`Mcp-Session-Id`, revisions before 2026-07-28) is
        /// dropped from memory. Its next request rebuilds it; only `server.session_max_age` ends
        /// it.
        session_ttl: Duration = downstream::SESSION_TTL, duration();
        /// Interval of the comments that Weir sends on an idle event stream, so that no proxy
        /// closes it. Make it shorter than the idle timeout of your proxy. The response to a call
        /// that takes longer begins as such a stream, and then also an error comes under status
        /// 200. A client whose `Accept` header lists only `application/json` gets JSON however long
        /// that takes, without progress, log messages and input requests before it; one that lists
        /// only `text/event-stream` always gets a stream.
        sse_keepalive: Duration = downstream::SSE_KEEPALIVE, duration();
        /// Maximum number of items on one page of a list. A client that reads only the first page
        /// sees no more than these: `weir check` says which clients that would concern.
        page_size: usize = 200, count(1..=10_000);
        /// Time after the start of Weir during which a request for a list waits for upstreams of
        /// which no list is known, neither from this start nor from an earlier one; at most 30 s.
        /// Nothing else waits for them. Many clients list once: make it longer if your servers
        /// start slowly, but shorter than your clients wait for a list.
        list_wait: Duration = Duration::from_secs(4), duration_of(list_wait);
        /// With `true` clients get the instructions of the upstreams of which they see at least one
        /// item: a server's text for models about its use. Each text follows its upstream's name;
        /// at most the first 8 KiB of each, and 32 KiB in total: a text that does not fit is left
        /// out as a whole, and its upstream is named.
        instructions: bool = true, boolean();
    }
}

/// The longest `list_wait`: clients wait for a list for a minute or less.
const MAX_LIST_WAIT: Duration = Duration::from_secs(30);

pub(super) fn read_protocol(t: &TableReader<'_>, server: &ServerConfig) -> ProtocolConfig {
    let protocol = ProtocolConfig::read(t);
    if t.is_empty_list("versions") {
        t.error(
            "versions",
            ValueError::new("no revision is left", "name one, or remove the key for all"),
        );
    }
    if protocol.legacy_sse {
        check_http_sse(t, &protocol.versions, &server.path);
    }
    protocol
}

fn list_wait(v: &SpannedValue<'_>) -> Parsed<Duration> {
    let wait = value::duration(v)?;
    match wait <= MAX_LIST_WAIT {
        true => Ok(wait),
        false => Err(ValueError::new("clients do not wait that long", "write at most \"30s\"")),
    }
}

/// List of revisions. An empty one counts as missing, and its reader reports it.
fn versions() -> Key<Versions> {
    let words = || Revision::ALL.into_iter().rev().map(Revision::as_str);
    let shape = ValueShape::list(ValueShape::Choice(words().collect()));
    let parse = move |v: &SpannedValue<'_>| {
        let version = value::string(v)?;
        version.parse::<Revision>().map_err(|_| {
            let remedy = did_you_mean(version, words());
            let remedy =
                remedy.unwrap_or_else(|| format!("one of: {}", Vec::from_iter(words()).join(", ")));
            ValueError::new(format!("{version:?} is not a revision of the protocol"), remedy)
        })
    };
    custom(shape, move |t, name, _| t.list(name, parse).and_then(Versions::new))
        .entries(1, None)
        .written(|versions: &Versions| versions.iter().map(Revision::as_str).collect())
}

/// Reports values that leave the HTTP+SSE transport without a revision or without a path of its
/// own.
fn check_http_sse(t: &TableReader<'_>, versions: &Versions, path: &str) {
    if versions.newest_legacy().is_none() {
        let what = "no revision in `versions` uses HTTP+SSE";
        let remedy = "add one before 2026-07-28 to `versions`, or remove this key";
        t.error("legacy_sse", ValueError::new(what, remedy));
    }
    if [STREAM_PATH, MESSAGES_PATH].contains(&path) {
        let what = format!("server.path is {path:?}, which is a path of HTTP+SSE");
        t.error("legacy_sse", ValueError::new(what, "set another server.path, or remove this key"));
    }
}
