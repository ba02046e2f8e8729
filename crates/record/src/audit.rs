//! Audit log: one line of JSON for each request, on every path.
//!
//! An [`AuditEvent`] begins when a request arrives and is filled in along its way. It is written
//! when it ends, or when its last copy is dropped: then its request was cancelled. A [`Writer`]
//! takes ended events from a bounded queue, links each line to the previous one by its hash
//! (`chain`), and appends it to a file that no other process writes (`file`). [`verify`] reads such
//! files again.
//!
//! Invariants: each event is written once, or counted as lost, and the count is written. An entry
//! is one line of JSON whatever clients send, and each of its members is bounded. Refusals of
//! unauthenticated clients cannot flood the log. Only the writer waits for a disk, and
//! [`AuditEvent::before_sending`], which waits for the writer. Where the log is mandatory
//! ([`OnError::Refuse`]), no request goes to an upstream before its line is in the file, and a
//! request that Weir answers itself, like a list, reserves its place in the queue first. A log that
//! is off costs nothing.
//!
//! Decision: docs/decisions/0021-audit.md

mod chain;
mod entry;
mod event;
mod file;
mod json_line;
mod params;
mod policy_event;
pub mod verify;
mod writer;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

pub use chain::Chain;
pub use entry::{
    AuditDecision, AuditEntry, AuditOutcome, EventCompletion, SessionMark, SignInEvent,
};
pub use event::{AuditEvent, AuditUnavailable, OpenStreamEvent, RequestProgress};
pub use file::{CannotOpen, log_files};
pub use json_line::quoted;
pub use policy_event::{FileHash, PolicyChange, PolicyEvent};
pub use writer::Writer;

use strum::{IntoStaticStr, VariantArray};

use entry::Actor;
use weir_base::tasks::sync::Mutex;
use weir_base::time::rate_limit::RateLimiter;
use writer::{QueuePermit, QueuedEntry};

/// Settings of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Destination of the lines.
    pub target: AuditTarget,
    /// Extent to which a request's arguments are recorded.
    pub arguments: Arguments,
    /// True if each line contains the hash of the previous one.
    pub chain: bool,
    /// Size in bytes from which a file is rotated.
    pub rotate_size: u64,
    /// Number of rotated files that are kept.
    pub rotate_keep: usize,
    /// Treatment of requests that cannot be recorded.
    pub on_error: OnError,
}

/// Destination of the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    /// This file, or a numbered one beside it while another process writes this one.
    File(PathBuf),
    /// Standard output.
    Stdout,
}

/// Extent to which a request's arguments are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Arguments {
    /// Not at all.
    None,
    /// Their names.
    Names,
    /// The SHA-256 of their text.
    Hash,
    /// All of them, up to a bound.
    Full,
}

/// Treatment of requests that cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum OnError {
    /// They are served, and counted.
    Continue,
    /// They are refused before anything is done for them.
    Refuse,
}

/// Transport of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// Streamable HTTP.
    Http,
    /// The deprecated HTTP+SSE transport.
    Sse,
    /// Standard input and output.
    Stdio,
}

/// Handle to the audit log, which creates events. Cheap to clone.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Shared>>);

/// State that all events share with the writer.
struct Shared {
    /// Path of the file; `None` for standard output.
    path: Option<PathBuf>,
    arguments: Arguments,
    on_error: OnError,
    /// Bounded by [`QUEUE`]. When it is full, an entry is lost and counted, or its request waits,
    /// depending on `on_error`.
    queue: mpsc::Sender<QueuedEntry>,
    counts: Arc<AuditCounts>,
    requests: AtomicU64,
    refusal_rate: Mutex<RateLimiter>,
}

/// Counters that the writer writes as entries.
#[derive(Debug, Default)]
struct AuditCounts {
    /// Entries that could not be written.
    lost: ReportedCount,
    /// Refusals of unauthenticated clients that exceeded the rate limit.
    left_out: ReportedCount,
    /// True if the last attempt to write failed.
    failing: AtomicBool,
    /// Reason of the stop, for the final entry.
    stop_reason: OnceLock<Arc<str>>,
}

/// Counter of which an entry reports the part that no entry has reported yet.
#[derive(Debug, Default)]
struct ReportedCount {
    pending: AtomicU64,
    reported: AtomicU64,
}

impl ReportedCount {
    fn increment(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the number that an entry is about to report.
    fn take(&self) -> u64 {
        let count = self.pending.swap(0, Ordering::Relaxed);
        self.reported.fetch_add(count, Ordering::Relaxed);
        count
    }

    fn total(&self) -> u64 {
        self.reported.load(Ordering::Relaxed) + self.pending.load(Ordering::Relaxed)
    }
}

impl Audit {
    /// Creates an audit log that is off.
    pub fn off() -> Self {
        Self::default()
    }

    /// Opens the destination that the settings name. Nothing is written until the writer runs.
    pub fn open(settings: &Settings) -> Result<(Self, Writer), CannotOpen> {
        let (queue, entries) = mpsc::channel(QUEUE);
        let counts = Arc::new(AuditCounts::default());
        let writer = Writer::open(settings, entries, Arc::clone(&counts))?;
        // Absolute, because a reader may have another working directory.
        let path = (settings.target != AuditTarget::Stdout).then(|| writer.path());
        let path = path.map(|path| std::path::absolute(&path).unwrap_or(path));
        let shared = Shared {
            path,
            arguments: settings.arguments,
            on_error: settings.on_error,
            queue,
            counts,
            requests: AtomicU64::new(0),
            refusal_rate: Mutex::new(RateLimiter::new(
                REFUSALS_PER_SECOND,
                REFUSAL_BURST,
                Instant::now(),
            )),
        };
        Ok((Self(Some(Arc::new(shared))), writer))
    }

    /// Records an event about the sign-in to an upstream: that it has succeeded, or has failed for
    /// a reason, which contains no secret.
    pub fn record_sign_in(&self, event: SignInEvent, upstream: &Arc<str>, failure: Option<String>) {
        if let Some(shared) = &self.0 {
            let upstream = Arc::clone(upstream);
            shared.put(AuditEntry::SignIn { event, upstream, failure }, None);
        }
    }

    /// Records a change of policy.
    pub fn record_policy(&self, event: PolicyEvent) {
        if let Some(shared) = &self.0 {
            shared.put(AuditEntry::Policy(event), None);
        }
    }

    /// Records a change of policy that is about to take effect. Where the log is mandatory, this
    /// waits until the entry is in the file; on an error the change must not take effect.
    pub async fn record_policy_first(&self, event: PolicyEvent) -> Result<(), AuditUnavailable> {
        match &self.0 {
            Some(shared) if shared.on_error == OnError::Refuse => {
                shared.write(AuditEntry::Policy(event)).await
            }
            _ => {
                self.record_policy(event);
                Ok(())
            }
        }
    }

    /// Sets the reason of the stop, for the final entry. The first one counts.
    pub fn set_stop_reason(&self, reason: &str) {
        if let Some(shared) = &self.0 {
            let _ = shared.counts.stop_reason.set(reason.into());
        }
    }

    /// Begins the event of a request that has just arrived.
    pub fn begin(&self, transport: TransportKind, from: Option<IpAddr>) -> AuditEvent {
        match &self.0 {
            Some(shared) => AuditEvent::begin(shared, Actor::unknown(transport, from)),
            None => AuditEvent::off(),
        }
    }

    /// Creates the template of a session's events. It is never written itself;
    /// [`AuditEvent::begin_next`] creates the events of the session's requests from it.
    pub fn begin_session(&self, transport: TransportKind, from: Option<IpAddr>) -> AuditEvent {
        let event = self.begin(transport, from);
        event.discard();
        event
    }
}

/// State of the audit log, as in the status document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditStatus {
    /// The file; `None` for standard output.
    pub path: Option<PathBuf>,
    /// Entries that could not be written.
    pub lost: u64,
    /// Refusals of unauthenticated clients that exceeded the rate limit of the log.
    pub left_out: u64,
    /// True if the last attempt to write failed.
    pub failing: bool,
}

impl Audit {
    /// Returns the state of the log since the start; `None` if it is off.
    pub fn status(&self) -> Option<AuditStatus> {
        let shared = self.0.as_ref()?;
        let counts = &shared.counts;
        Some(AuditStatus {
            path: shared.path.clone(),
            lost: counts.lost.total(),
            left_out: counts.left_out.total(),
            failing: counts.failing.load(Ordering::Relaxed),
        })
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Audit(on)" } else { "Audit(off)" })
    }
}

impl Shared {
    /// Sends an entry to the writer, with its reserved queue permit if it has one.
    fn put(&self, line: AuditEntry, permit: Option<QueuePermit>) {
        if line.is_unauthenticated_refusal() && !self.refusal_rate.lock().admit(Instant::now()) {
            self.counts.left_out.increment();
            return;
        }
        let entry = QueuedEntry::new(line);
        match permit {
            Some(permit) => drop(permit.send(entry)),
            None if self.queue.try_send(entry).is_ok() => {}
            None => self.counts.lost.increment(),
        }
    }

    /// Writes an entry, and waits until it is in the file.
    async fn write(&self, line: AuditEntry) -> Result<(), AuditUnavailable> {
        let (written, is_written) = oneshot::channel();
        let entry = QueuedEntry { written: Some(written), ..QueuedEntry::new(line) };
        let sent = async {
            self.queue.send(entry).await.map_err(|_| AuditUnavailable)?;
            is_written.await.map_err(|_| AuditUnavailable)
        };
        timeout(MANDATORY_WAIT, sent).await.unwrap_or(Err(AuditUnavailable))
    }

    fn is_failing(&self) -> bool {
        self.counts.failing.load(Ordering::Relaxed)
    }
}

/// Entries that may wait to be written: seconds of a busy gateway, some megabytes.
const QUEUE: usize = 4_096;
/// Time that a request waits for its queue permit and for its line, where the log is mandatory.
const MANDATORY_WAIT: Duration = Duration::from_secs(2);
/// Refusals of unauthenticated clients that are written at once, and per second after that.
const REFUSAL_BURST: u32 = 100;
const REFUSALS_PER_SECOND: u32 = 10;

#[cfg(test)]
mod tests;
