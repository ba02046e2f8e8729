//! Subjects between the load and the fixture: none, nginx, Weir, the floor, and two gateways
//! written in Python.
//!
//! Each is started anew for each group of workloads, on a port of its own, and is ready when it
//! lists all items of the fixture.

mod others;
mod replicas;
mod weir;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use others::Fixture;
pub(crate) use replicas::{Store, start_replicas};
pub(crate) use weir::{Credentials, Policy, Setup, start as start_weir};

use crate::load::peer::{Era, Peer};
use crate::ports::free_port;
use crate::process::{self, Process};

/// One subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Subject {
    /// No gateway in between
    Direct,
    /// nginx, with the nginx.conf of this folder
    Nginx,
    /// Weir with its defaults: guard on, metrics on, no keys
    Weir,
    /// Weir with keys, roles, two limits and an audit log
    WeirPolicy,
    /// A hyper forwarder, and nothing else
    Hyper,
    /// FastMCP's proxy
    Fastmcp,
    /// ContextForge
    Contextforge,
}

impl Subject {
    pub(crate) const ALL: [Self; 7] = [
        Self::Direct,
        Self::Nginx,
        Self::Weir,
        Self::WeirPolicy,
        Self::Hyper,
        Self::Fastmcp,
        Self::Contextforge,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Weir => "weir",
            Self::WeirPolicy => "weir-policy",
            Self::Hyper => "hyper",
            Self::Fastmcp => "fastmcp",
            Self::Contextforge => "contextforge",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Places of the programs.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) weir: PathBuf,
    /// nginx and the virtual environments, made by `./dev`.
    pub(crate) parts: PathBuf,
    /// nginx.conf and the two programs that start Python gateways.
    pub(crate) gateways: PathBuf,
}

/// A running subject.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    /// Keys of its clients; each client sends one.
    pub(crate) keys: Vec<String>,
    /// `None`, where it is the fixture itself.
    process: Option<Process>,
    errors: PathBuf,
}

impl Running {
    /// Endpoint for the client with this number.
    pub(crate) fn peer(&self, number: usize, era: Era) -> Peer {
        let key = (!self.keys.is_empty()).then(|| self.keys[number % self.keys.len()].clone());
        Peer::new(self.address, &self.path, key, era)
    }

    /// Its processes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.process.as_ref().map(|process| process::tree(process.number())).unwrap_or_default()
    }

    /// Sends a signal to its process.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self.process.iter().for_each(|process| process.signal(signal));
    }

    /// Waits until a list (`prompts/list` or `tools/list`) has this number of items, and leaves no
    /// upstream out.
    pub(crate) async fn lists(&mut self, list: &str, items: usize, era: Era) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            let found = tokio::time::timeout(STARTUP, async {
                let mut peer = self.peer(0, era);
                peer.open().await?;
                peer.walk(list).await
            });
            let because = match found.await {
                Ok(Ok(pages)) => {
                    let count: usize = pages.iter().map(|page| page.names.len()).sum();
                    if count == items && !pages.iter().any(|page| page.is_partial) {
                        return Ok(());
                    }
                    format!("{list} has {count} items instead of {items}")
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
            if !self.process.as_mut().is_none_or(Process::lives) {
                let log = std::fs::read_to_string(&self.errors).unwrap_or_default();
                let log: Vec<_> = log.lines().rev().take(3).collect();
                return Err(io::Error::other(format!("{because} (it ended): {}", log.join(" / "))));
            }
            // A process that still runs has reported the reason itself.
            if begin.elapsed() > STARTUP {
                return Err(io::Error::other(because));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Starts a subject in front of these servers; its files are in the folder.
pub(crate) async fn start(
    subject: Subject,
    programs: &Programs,
    setup: &Setup<'_>,
    folder: &Path,
) -> io::Result<Running> {
    let folder = folder.join(subject.name());
    std::fs::create_dir_all(&folder)?;
    let to = setup.upstreams.first().copied();
    let first = || to.ok_or_else(|| io::Error::other("there is no server behind it"));
    match subject {
        Subject::Direct => Ok(running(first()?, None, &folder)),
        Subject::Nginx => others::nginx(programs, first()?, &folder),
        Subject::Hyper => others::floor(first()?, &folder),
        Subject::Fastmcp => others::fastmcp(programs, first()?, &folder),
        Subject::Contextforge => others::contextforge(programs, first()?, &folder).await,
        Subject::Weir => weir::start(programs, setup, &folder),
        Subject::WeirPolicy => {
            weir::start(programs, &Setup { policy: Policy::Full { roles: 8 }, ..*setup }, &folder)
        }
    }
}

fn running(address: SocketAddr, process: Option<Process>, folder: &Path) -> Running {
    let errors = folder.join("errors");
    Running { address, path: "/mcp".into(), keys: Vec::new(), process, errors }
}

/// Address without a listener.
fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Maximum time until a subject is ready.
const STARTUP: Duration = Duration::from_secs(60);
