//! One live upstream. (API skeleton: bodies to be written by the upstream room's author.)

pub mod dial;
pub mod library;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::{HeaderMap, Uri};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::mcp::call::{Call, Reply};
use crate::mcp::item::Item;
use crate::mcp::kind::{Kind, Topic};
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::{Era, Revision};
use dial::{Command, Dial};

#[derive(Debug, Clone)]
pub struct Settings {
    pub name: UpstreamName,
    pub source: Source,
    /// `None`: find out.
    pub era: Option<Era>,
    pub timeouts: Timeouts,
    pub retry: Retry,
    pub limits: Limits,
}

#[derive(Debug, Clone)]
pub enum Source {
    Library { dir: PathBuf },
    Process(Command),
    Http { url: Uri, headers: HeaderMap },
}

#[derive(Debug, Clone)]
pub struct Timeouts {
    pub startup: Duration,
    pub list: Duration,
    pub call: Duration,
    pub call_max: Duration,
    pub reset_on_progress: bool,
}

#[derive(Debug, Clone)]
pub struct Retry {
    pub backoff: Duration,
    pub max_backoff: Duration,
    pub jitter: bool,
}

#[derive(Debug, Clone)]
pub struct Limits {
    pub concurrency: usize,
    pub max_message: usize,
    pub max_items: usize,
    pub max_pages: usize,
}

/// A handle to an upstream and the task that keeps it connected. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {}

/// How an upstream is doing.
#[derive(Debug, Clone)]
pub enum Status {
    /// Has neither connected nor failed yet.
    Starting,
    Up(Arc<About>),
    /// Why, in words fit for the operator.
    Down {
        reason: String,
    },
}

/// What a connected upstream said of itself.
#[derive(Debug)]
pub struct About {
    /// Counts connections: a new number means that everything has to be listed again.
    pub epoch: u64,
    pub revision: Revision,
    /// `stdio`, `http` or `library`.
    pub wire: &'static str,
    /// Which topics it declares.
    pub topics: [bool; 3],
    pub completions: bool,
}

/// How often each topic was said to have changed, over all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes(pub [u64; 3]);

/// All pages of a list.
#[derive(Debug)]
pub struct Listing {
    pub items: Vec<Item>,
    /// Which limit cut it short.
    pub truncated: Option<String>,
    pub ttl: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not connected. Nothing was sent.
    #[error("not connected: {0}")]
    Unavailable(String),
    /// The connection broke before the reply was there; the call may have run.
    #[error("the connection broke: {0}")]
    Broke(String),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// Too many calls are under way.
    #[error("too many calls under way")]
    Busy { retry_after: Duration },
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
    /// The upstream broke the protocol.
    #[error("{0}")]
    Protocol(String),
}

impl Upstream {
    /// Starts the task that keeps the upstream connected until `stop`.
    pub fn start(
        _settings: Settings,
        _dial: Arc<dyn Dial>,
        _tasks: &TaskTracker,
        _stop: CancellationToken,
    ) -> Self {
        unimplemented!()
    }
    pub fn name(&self) -> &UpstreamName {
        unimplemented!()
    }
    pub fn status(&self) -> watch::Receiver<Status> {
        unimplemented!()
    }
    pub fn changes(&self) -> watch::Receiver<Changes> {
        unimplemented!()
    }
    /// Lists a kind through all pages. A kind that the upstream does not declare is empty and it is not asked.
    pub async fn list(&self, _kind: Kind) -> Result<Listing, Error> {
        unimplemented!()
    }
    /// Sends a call, once. Dropping the future cancels it.
    pub async fn call(&self, _call: Call) -> Result<Reply, Error> {
        unimplemented!()
    }
}

impl About {
    pub fn era(&self) -> Era {
        self.revision.era()
    }
    pub fn has(&self, topic: Topic) -> bool {
        self.topics[topic.index()]
    }
}
