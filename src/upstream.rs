//! One live upstream: an MCP server that is found, opened, kept open and asked.
//!
//! Promises: a call is written to a wire once, and once more only when the first was refused unexecuted.
//! Every call ends: with a reply, or with an [`Error`] that says whether it may have run. Dropping a
//! call's future cancels it at the server. A server that is down, slow, endless or talkative costs the
//! others nothing.
//!
//! A *wire* (`stdio`, `http`, `sse`) carries bytes and knows no era; a *dialect* (`legacy`, `modern`) dresses
//! what goes out and reads what comes back. `probe` chooses between the dialects, `supervisor` is the
//! one task that keeps the connection, `links` holds those beside it, which serve callers of one kind.
//!
//! Knows nothing of: clients but what a call says of its caller, public names, policy, and what the items mean.

pub mod call;
pub mod connect;
mod handle;
pub mod health;
mod input_requests;
pub mod library;
mod library_upstream;
mod message;
pub mod process;
mod rate_counter;
mod session;
mod state_publisher;
mod subscriptions;
mod supervisor;
pub mod system;
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
use hyper::{HeaderMap, StatusCode, Uri};

use crate::hex::hex;
use crate::json::Object;
use crate::mcp::call::Caller;
use crate::mcp::capabilities::{self, Capabilities};
use crate::mcp::definition::item::Item;
use crate::mcp::input_request::Abilities;
use crate::mcp::kind::Topic;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::{Era, Revision};
use crate::sha256::sha256;
use crate::timestamp;
use connect::Command;

pub use crate::upstream::call::active_call::{Asks, Called};
pub use crate::upstream::call::call_metrics::Calls;
pub use crate::upstream::health::status_report::Report;
pub use handle::{Awake, Upstream};
pub use subscriptions::{Subscribed, Subscription};

/// What an upstream runs on.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What it is called here.
    pub name: UpstreamName,
    /// Where it is.
    pub source: Source,
    /// `None`: find out.
    pub era: Option<Era>,
    /// Which clients share a connection.
    pub sharing: Sharing,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// When to try again.
    pub retry: Retry,
    /// How much it may send, and how many calls it gets.
    pub limits: Limits,
    /// Whether Weir is not ready while it is not up.
    pub required: bool,
    /// Whether it is started when it is first used, and may be stopped when nobody uses it.
    pub lazy: bool,
    /// When it is left alone for a while.
    pub breaker: health::breaker::Settings,
    /// What becomes of its lists while it is not connected.
    pub on_down: OnDown,
    /// The folder in which its last lists are kept, to be shown after a start until it has been listed.
    pub kept_in: Option<PathBuf>,
}

impl Settings {
    /// A hash, in hexadecimal, of all that decides which server this is and as whom it is asked, credentials
    /// included: two with the same hash list the same.
    pub fn fingerprint(&self) -> String {
        let mut hashes = Vec::new();
        // Each part becomes one of a fixed length: no two lists of parts run together, and no secret is copied.
        let mut add = |part: &[u8]| hashes.extend(sha256(part));
        add(self.name.as_str().as_bytes());
        add(format!("{:?}", self.era).as_bytes());
        if let Sharing::Sole(declared) = &self.sharing {
            add(declared);
        }
        match &self.source {
            Source::Library { dir } => add(dir.as_os_str().as_encoded_bytes()),
            Source::Process(Command { program, args, env, cwd, .. }) => {
                add(program.as_bytes());
                // A program, or a file among its arguments, is another one in another folder.
                let here = || std::env::current_dir().unwrap_or_default();
                add(cwd.clone().unwrap_or_else(here).as_os_str().as_encoded_bytes());
                add(args.len().to_string().as_bytes());
                args.iter().for_each(|arg| add(arg.as_bytes()));
                for (name, value) in env {
                    add(name.as_bytes());
                    add(value.expose().as_bytes());
                }
            }
            Source::Http { url, headers, transport } => {
                add(url.to_string().as_bytes());
                add(format!("{transport:?}").as_bytes());
                for (name, value) in headers {
                    add(name.as_str().as_bytes());
                    add(value.as_bytes());
                }
            }
        }
        hex(&sha256(hashes))
    }

    /// What the kept connection declares to a server of the legacy era. One that is there for lists alone
    /// declares everything that can be asked through Weir, since some servers choose by it what they
    /// list, and answers no question. One that many share, on a single stream, declares nothing: nobody
    /// could tell whom it asks.
    fn declared(&self, one_stream: bool) -> Bytes {
        match &self.sharing {
            Sharing::Sole(declared) => declared.clone(),
            Sharing::Shared if one_stream => Bytes::from_static(capabilities::OWN.as_bytes()),
            Sharing::Shared | Sharing::Client => {
                let everything = Caller {
                    abilities: Abilities::ALL,
                    capabilities: Bytes::from_static(capabilities::OWN.as_bytes()),
                    ..Caller::plain(Revision::NEWEST_LEGACY)
                };
                declared(&everything)
            }
        }
    }
}

/// What becomes of an upstream's lists while it is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDown {
    /// They stay as they were.
    #[default]
    Keep,
    /// They are left out once it has been away for this long.
    Hide {
        /// So that one that comes back soon changes nothing.
        after: Duration,
    },
}

/// Which clients share a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sharing {
    /// All of them, as far as the upstream can tell whom it asks.
    Shared,
    /// None: each has its own, which ends with it.
    Client,
    /// There is one client in all, with these capabilities.
    Sole(Bytes),
}

/// Where an upstream is.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// The built-in prompt library.
    Library {
        /// The folder of Markdown files.
        dir: PathBuf,
    },
    /// A child process that speaks over stdio.
    Process(Command),
    /// A server on the network.
    Http {
        /// Its endpoint.
        url: Uri,
        /// Headers to add to every request.
        headers: HeaderMap,
        /// `None`: find out.
        transport: Option<Transport>,
    },
}

/// How a server on the network is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Streamable HTTP.
    Http,
    /// The pair of an event stream and an endpoint for messages, of 2024-11-05.
    Sse,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timeouts {
    /// Connecting to one address of a server on the network.
    pub connect: Duration,
    /// From its start until it is ready.
    pub startup: Duration,
    /// One list, through all its pages.
    pub list: Duration,
    /// One call, or the silence in it if progress counts.
    pub call: Duration,
    /// One call in all; not less than `call`.
    pub call_max: Duration,
    /// Whether progress begins `call` anew.
    pub reset_on_progress: bool,
    /// How long a call's first question waits for further ones.
    pub gather: Duration,
    /// How long nobody has used one that is lazy until it is stopped; `None`: it is not.
    pub idle: Option<Duration>,
    /// How long a child may take to leave once its standard input is closed; then it gets SIGTERM.
    pub stop: Duration,
    /// How long it may take from then on; then it gets SIGKILL.
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

/// When to connect again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// The first pause; it doubles each time.
    pub backoff: Duration,
    /// The longest pause; not less than `backoff`.
    pub max_backoff: Duration,
    /// Whether pauses vary, so that many do not come back at once.
    pub jitter: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            backoff: Duration::from_millis(250),
            max_backoff: Duration::from_secs(30),
            jitter: true,
        }
    }
}

/// How much an upstream may send, and how many calls it gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Calls in flight; by default 64, and 256 towards a `url`.
    pub concurrency: usize,
    /// Calls that wait for that; further ones are refused at once.
    pub waiting: usize,
    /// How long they wait before they are refused.
    pub wait: Duration,
    /// The largest message, in bytes.
    pub max_message: usize,
    /// The longest list, in items.
    pub max_items: usize,
    /// The longest list, in pages.
    pub max_pages: usize,
    /// The longest list, in bytes; the page that exceeds it is its last.
    pub max_list: usize,
}

/// How an upstream is doing.
#[derive(Debug, Clone)]
pub enum Status {
    /// Has neither connected nor failed yet, or is started after it slept.
    Starting,
    /// Not connected, since nobody uses it: whoever does has it started.
    Asleep,
    /// Connected.
    Up(Arc<About>),
    /// Not connected.
    Down {
        /// Why, in words fit for the operator.
        reason: String,
        /// Whether it ends again and again soon after it was started.
        crash_loop: bool,
    },
}

impl Status {
    fn is_starting(&self) -> bool {
        matches!(self, Self::Starting)
    }

    fn is_asleep(&self) -> bool {
        matches!(self, Self::Asleep)
    }
}

/// What a connected upstream said of itself.
#[derive(Debug)]
pub struct About {
    /// Counts connections: a new number means that everything has to be listed again.
    pub epoch: u64,
    /// The revision that is spoken with it.
    pub revision: Revision,
    /// `stdio`, `http`, `http+sse` or `library`.
    pub wire: &'static str,
    /// Which topics it declares.
    pub topics: [bool; 3],
    /// What else it can do.
    pub capabilities: Capabilities,
    /// What it tells models about its use, at most [`MAX_INSTRUCTIONS_BYTES`] of it.
    pub instructions: Option<Arc<str>>,
}

impl About {
    /// The era that is spoken with it.
    pub fn era(&self) -> Era {
        self.revision.era()
    }

    /// Whether it declares this topic.
    pub fn has(&self, topic: Topic) -> bool {
        self.topics[topic.index()]
    }
}

/// How much is kept of what an upstream tells models about its use.
pub const MAX_INSTRUCTIONS_BYTES: usize = 8 * 1024;

/// How often each topic was said to have changed, over all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes(pub [u64; 3]);

/// All pages of a list.
#[derive(Debug, Default)]
pub struct Listing {
    /// The items, each key once.
    pub items: Vec<Item>,
    /// On how many pages they came.
    pub pages: usize,
    /// Which limit cut it short.
    pub truncated: Option<String>,
    /// How long it may be kept, if the upstream says so: the least of its pages' times.
    pub ttl: Option<Duration>,
    /// Whether the upstream says that it is not the same for everybody.
    pub is_private: bool,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not connected, or refused as the protocol refuses what is not executed. The call was not carried out.
    #[error("not connected: {0}")]
    Unavailable(String),
    /// The call names a task that began in another process or session. Nothing was sent.
    #[error("the process or session in which the task began has ended")]
    NoSuchTask,
    /// Too many calls are under way, and nothing was sent.
    #[error("too many calls under way")]
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// The server wants input for the call, and too many calls wait for input: the call was cancelled after it
    /// had begun.
    #[error("too many questions wait for their answers")]
    Crowded,
    /// The connection broke before the reply was there; the call may have run.
    #[error("the connection broke: {0}")]
    Broke(String),
    /// The server answered with an HTTP status that is no success. The call was sent, and may have run: who
    /// answers may be a proxy that has lost the server's own response.
    #[error("it answered with HTTP {status}")]
    HttpStatus {
        /// Which: 401, 403, 429 or 5xx.
        status: StatusCode,
        /// When the server wants to be asked again, if it says so: not before this time.
        retry_after: Option<Duration>,
    },
    /// No reply in time; the call was cancelled, and may have run.
    #[error("no answer within {} s", timestamp::seconds(*.0))]
    TimedOut(Duration),
    /// The reply is larger than this many bytes.
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
    /// So much is held for everybody that there was no room for the reply. The call may have run.
    #[error("there is no room for its reply at the moment")]
    NoRoom,
    /// The upstream asked for what the client did not declare that it can be asked for: this. The call was
    /// cancelled.
    #[error("it asks for what the client did not declare")]
    Undeclared(Abilities),
    /// The upstream broke the protocol.
    #[error("{0}")]
    Protocol(String),
}

/// What Weir says of itself where no client is behind a request.
fn client_info() -> Bytes {
    Bytes::from_static(
        concat!("{\"name\":\"weir\",\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}").as_bytes(),
    )
}

/// What is declared to a server of the legacy era on behalf of a client: what it can be asked, and the
/// extensions that it knows.
pub fn declared(caller: &Caller) -> Bytes {
    declared_in(Revision::NEWEST_LEGACY, caller)
}

/// The same in the words of `revision`, which is not of the client's era.
fn declared_in(revision: Revision, caller: &Caller) -> Bytes {
    let mut declared = caller.abilities.declare(revision);
    let capabilities = Object::parse_again(caller.capabilities.clone());
    let extensions = capabilities.ok().and_then(|it| it.get_object("extensions"));
    if let Some(mut extensions) = extensions {
        // The eras know tasks of different shapes, and none becomes the other.
        extensions.take(capabilities::TASKS_EXTENSION);
        if !extensions.is_empty() {
            declared.set("extensions", extensions.to_bytes());
        }
    }
    declared.to_bytes()
}
