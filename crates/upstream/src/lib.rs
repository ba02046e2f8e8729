//! One live upstream: a connected MCP server, its sessions, its calls and its health.
//!
//! A *transport* (`transport/`: stdio, streamable HTTP, HTTP+SSE) carries bytes and does not know
//! protocol eras. A *session* (`session/`: `legacy`, `modern`) builds requests and parses
//! responses. `negotiation` detects the era, `supervisor` is the one task that keeps the main
//! connection, and `session_pool` holds the additional sessions that serve clients of one kind.
//!
//! Invariants: a call is written to a transport once, and a second time only if the first request
//! was rejected unexecuted. Every call ends with a response or with an [`Error`] that says whether
//! the call may have been executed. Dropping a call's future cancels the call at the server. A
//! server that is down, slow, endless or noisy does not affect other upstreams.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod call;
pub mod call_metrics;
pub mod connect;
mod connection_info;
mod handle;
pub mod health;
mod input_requests;
mod message;
pub mod process;
mod session;
mod shared;
mod source;
mod subscriptions;
mod supervisor;
mod task_owners;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transport;
mod url_elicitations;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;

use weir_base::json::Object;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;
use weir_base::time::backoff::Backoff;
use weir_base::time::timestamp;
use weir_mcp::call::CallContext;
use weir_mcp::capabilities;
use weir_mcp::definition::item::Item;
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::{Era, Revision};

pub use crate::call::active_call::SuspendedCall;
pub use crate::call_metrics::CallMetrics;
use crate::health::author_notes::Occurrences;
pub(crate) use crate::health::status_report::UpstreamReport;
pub use connection_info::{ConnectionInfo, MAX_INSTRUCTIONS_BYTES};
pub use handle::{KeepAliveGuard, Upstream};
pub use source::{HttpTransport, UpstreamSource};
pub use subscriptions::{Subscribed, Subscription};

/// Configuration of one upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Number of the process that uses it, by which others find its tasks, if there are any.
    pub instance: Option<weir_base::secrets::sealing::InstanceId>,
    /// Configured name of the upstream.
    pub name: UpstreamName,
    /// Process, URL or folder that the upstream is reached at.
    pub source: UpstreamSource,
    /// Protocol era; `None` means that it is detected.
    pub era: Option<Era>,
    /// Clients that share a connection.
    pub sharing: Sharing,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Reconnect back-off.
    pub retry: RetrySettings,
    /// Limits on its messages and on concurrent calls.
    pub limits: UpstreamLimits,
    /// Whether Weir's readiness depends on this upstream.
    pub required: bool,
    /// Whether the upstream is started on first use and may be stopped when it is idle.
    pub lazy: bool,
    /// Thresholds of the circuit breaker.
    pub breaker: health::breaker::Settings,
    /// Treatment of its lists while it is not connected.
    pub on_down: OnDown,
    /// Folder of the list cache: last lists, served after a start until the upstream is listed.
    pub list_cache_dir: Option<PathBuf>,
    /// Whether the lists there are served; if not, they are only written.
    pub reads_list_cache: bool,
}

impl Settings {
    /// Returns a hexadecimal hash of everything that decides which server this is and with which
    /// identity Weir calls it, credentials included: the tasks of one fingerprint are the same.
    pub fn fingerprint(&self) -> String {
        self.digest(Extent::Process)
    }

    /// Returns a hexadecimal hash of what is configured about the server and the identity with
    /// which Weir calls it: one key means lists that are near enough to be shown until the server
    /// has been listed. It does not depend on who started Weir where: neither on the client nor
    /// on inherited variables, and on the working directory only if the program or an argument is
    /// relative to it.
    pub fn list_key(&self) -> String {
        self.digest(Extent::Lists)
    }

    fn digest(&self, extent: Extent) -> String {
        let mut hashes = Vec::new();
        // Each part is hashed to a fixed length: two different lists of parts cannot run together,
        // and no secret is copied.
        let mut add = |part: &[u8]| hashes.extend(sha256(part));
        add(self.name.as_str().as_bytes());
        add(format!("{:?}", self.era).as_bytes());
        if let (Sharing::Sole(declared), Extent::Process) = (&self.sharing, extent) {
            add(declared);
        }
        match &self.source {
            UpstreamSource::Library { dir } => add(dir.as_os_str().as_encoded_bytes()),
            UpstreamSource::Notice { text } => add(text.as_bytes()),
            UpstreamSource::Process(command) => {
                add(command.program.as_bytes());
                if let Some(folder) = command.folder(extent) {
                    add(folder.as_os_str().as_encoded_bytes());
                }
                add(command.args.len().to_string().as_bytes());
                command.args.iter().for_each(|arg| add(arg.expose().as_bytes()));
                let inherited = command.inherited.iter().filter(|_| extent == Extent::Process);
                for (name, value) in inherited.chain(&command.env) {
                    add(name.as_bytes());
                    add(value.expose().as_bytes());
                }
            }
            UpstreamSource::OnOneReplica { settings, .. } => {
                add(settings.digest(extent).as_bytes());
            }
            // It has neither lists nor tasks.
            UpstreamSource::Unresolved { .. } => {}
            UpstreamSource::Http { url, headers, account, egress, transport } => {
                add(url.to_string().as_bytes());
                add(format!("{account:?}{egress:?}{transport:?}").as_bytes());
                for (name, value) in headers {
                    add(name.as_str().as_bytes());
                    add(value.as_bytes());
                }
            }
        }
        hex(&sha256(hashes))
    }

    /// Returns the server itself, whichever replica runs it.
    pub fn server(&self) -> &UpstreamSource {
        match &self.source {
            UpstreamSource::OnOneReplica { settings, .. } => settings.server(),
            source => source,
        }
    }

    /// Returns the client capabilities that the main connection declares to a legacy server. A
    /// connection that is used for lists only declares every feature that Weir can relay, since
    /// some servers choose by it what they list, and it rejects every server request. A single
    /// stream that many clients share declares none, since a server request on it could not be
    /// attributed to a client.
    fn declared(&self, one_stream: bool) -> Bytes {
        match &self.sharing {
            Sharing::Sole(declared) => declared.clone(),
            Sharing::Shared if one_stream => Bytes::from_static(capabilities::OWN.as_bytes()),
            Sharing::Shared | Sharing::Client => {
                let everything = CallContext {
                    features: ClientFeatures::ALL,
                    capabilities: Bytes::from_static(capabilities::OWN.as_bytes()),
                    ..CallContext::without_features(Revision::NEWEST_LEGACY)
                };
                declared_capabilities(&everything)
            }
        }
    }
}

/// Extent of a digest of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All that the process that serves the requests depends on.
    Process,
    /// All that its lists depend on, as far as it is configured.
    Lists,
}

/// Treatment of an upstream's lists while it is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDown {
    /// The last lists stay published.
    #[default]
    Keep,
    /// The lists are hidden after the upstream has been disconnected for this long.
    Hide {
        /// Grace period, so that a short interruption changes nothing.
        after: Duration,
    },
}

/// Clients that share a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sharing {
    /// All clients, as far as the upstream's server requests can be attributed to a client.
    Shared,
    /// No sharing: each client has its own connection, which ends with the client.
    Client,
    /// One client in total, with these capabilities.
    Sole(Bytes),
}

/// Time limits of an upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timeouts {
    /// Connecting to one address of a server on the network.
    pub connect: Duration,
    /// Start and handshake, until the upstream is ready.
    pub startup: Duration,
    /// One list, through all its pages.
    pub list: Duration,
    /// One call; with `reset_on_progress`, the time without a notification.
    pub call: Duration,
    /// Total time of one call; not less than `call`.
    pub call_max: Duration,
    /// Whether a progress notification restarts `call`.
    pub reset_on_progress: bool,
    /// Time that the first input request of a call waits for further ones.
    pub gather: Duration,
    /// Idle time after which an on-demand upstream is stopped; `None` means never.
    pub idle: Option<Duration>,
    /// Time between closing a child's standard input and SIGTERM.
    pub stop: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub terminate: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            startup: Duration::from_secs(60),
            list: Duration::from_secs(10),
            call: Duration::from_secs(60),
            call_max: Duration::from_mins(10),
            reset_on_progress: true,
            gather: Duration::from_millis(5),
            idle: None,
            stop: Duration::from_secs(2),
            terminate: Duration::from_secs(3),
        }
    }
}

/// Reconnect back-off of an upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetrySettings {
    /// The first pause; it doubles each time.
    pub backoff: Duration,
    /// The longest pause; not less than `backoff`.
    pub max_backoff: Duration,
    /// Whether pauses are jittered, so that many upstreams do not reconnect at once.
    pub jitter: bool,
}

impl RetrySettings {
    /// Returns the back-off at its first pause.
    pub(crate) fn start(&self) -> Backoff {
        Backoff::new(self.backoff, self.max_backoff).with_jitter(self.jitter)
    }
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            backoff: Duration::from_millis(250),
            max_backoff: Duration::from_secs(30),
            jitter: true,
        }
    }
}

/// Limits on an upstream's messages and on concurrent calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpstreamLimits {
    /// Maximum calls in flight; by default 64, and 256 for a `url`.
    pub concurrency: usize,
    /// Maximum calls that wait for a permit; further ones are rejected at once.
    pub waiting: usize,
    /// Time that a call waits for a permit before it is rejected.
    pub wait: Duration,
    /// Maximum size of a message, in bytes.
    pub max_message: usize,
    /// Maximum items of a list.
    pub max_items: usize,
    /// Maximum pages of a list.
    pub max_pages: usize,
    /// Maximum size of a list, in bytes; the page that exceeds it is the last one read.
    pub max_list: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            concurrency: 64,
            waiting: 128,
            wait: Duration::from_secs(1),
            max_message: 8 << 20,
            max_items: 10_000,
            max_pages: 100,
            max_list: 32 << 20,
        }
    }
}

/// Connection status of an upstream.
#[derive(Debug, Clone)]
pub enum ConnectionStatus {
    /// Neither connected nor failed yet, or being started on demand.
    Starting,
    /// Stopped because it was idle; the next use starts it.
    Asleep,
    /// Connected.
    Up(Arc<ConnectionInfo>),
    /// Not connected.
    Down {
        /// Reason, as text for the operator.
        reason: String,
        /// Whether the process is in a crash loop.
        crash_loop: bool,
    },
}

/// Number of `list_changed` notifications per topic, over all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListChangeCounts(pub [u64; 3]);

/// Items of all pages of a list.
#[derive(Debug, Default)]
pub struct Listing {
    /// Items, each key once.
    pub items: Vec<Item>,
    /// Elements that are not usable items, each with its defect.
    pub omitted: Vec<Item>,
    /// Items with the key of one before them.
    pub(crate) duplicates: Occurrences,
    /// Number of pages read.
    pub pages: usize,
    /// Limit that truncated the list, if one did.
    pub truncated: Option<String>,
    /// Time to live, if the upstream states one: the least of its pages.
    pub ttl: Option<Duration>,
    /// Whether the upstream declares that the list depends on the client.
    pub is_private: bool,
}

/// Reason why a call has no response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not connected, or rejected before its execution. The call was not executed.
    #[error("not connected: {0}")]
    Unavailable(String),
    /// A user has to sign in to the upstream first. The call was not executed.
    #[error("{0}")]
    SignInNeeded(String),
    /// The call names a task that began in another process or session. Nothing was sent.
    #[error("the process or session in which the task began has ended")]
    NoSuchTask,
    /// The concurrency limit and its queue are full. Nothing was sent.
    #[error("too many calls in flight")]
    Busy {
        /// Time after which to retry.
        retry_after: Duration,
    },
    /// The server requests input, and too many calls wait for that: the call was cancelled.
    #[error("too many calls wait for client input")]
    TooManyInputRequests,
    /// The connection was lost before the response; the call may have been executed.
    #[error("the connection was lost: {0}")]
    ConnectionLost(String),
    /// The server responded with an HTTP error status. The call was sent and may have been
    /// executed: the status may come from a proxy that has lost the server's own response.
    #[error("the server responded with HTTP {status}")]
    HttpStatus {
        /// Status code: 401, 403, 429 or 5xx.
        status: StatusCode,
        /// Earliest time for a retry, if the server states one.
        retry_after: Option<Duration>,
    },
    /// Time limit reached; the call was cancelled and may have been executed.
    #[error("no response within {} s", timestamp::seconds(*.0))]
    TimedOut(Duration),
    /// The response is larger than this many bytes.
    #[error("the response is larger than {0} bytes")]
    TooLarge(usize),
    /// The memory budget is exhausted. The call may have been executed.
    #[error("the memory budget is exhausted; try again later")]
    MemoryExhausted,
    /// The upstream requested features that the client did not declare: the call was cancelled.
    #[error("the upstream requests a feature that the client did not declare")]
    UndeclaredFeature(ClientFeatures),
    /// The upstream violated the protocol.
    #[error("{0}")]
    Protocol(String),
}

/// Returns Weir's own `clientInfo`, for requests without a client.
fn client_info() -> Bytes {
    Bytes::from_static(
        concat!("{\"name\":\"weir\",\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}").as_bytes(),
    )
}

/// Returns the capabilities declared to a legacy server on behalf of a client: its features and its
/// extensions.
pub fn declared_capabilities(caller: &CallContext) -> Bytes {
    declared_in(Revision::NEWEST_LEGACY, caller)
}

/// Returns the declared capabilities in the terms of `revision`, which need not be of the client's
/// era.
fn declared_in(revision: Revision, caller: &CallContext) -> Bytes {
    let mut declared = caller.features.declare(revision);
    let capabilities = Object::parse_trusted(caller.capabilities.clone());
    let extensions = capabilities.ok().and_then(|it| it.get_object("extensions"));
    if let Some(mut extensions) = extensions {
        // Tasks have different shapes in the two eras, and neither can be translated into the
        // other.
        extensions.take(capabilities::TASKS_EXTENSION);
        if !extensions.is_empty() {
            declared.set("extensions", extensions.to_bytes());
        }
    }
    declared.to_bytes()
}
