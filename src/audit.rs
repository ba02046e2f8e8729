//! Who did what, when, and what came of it: one line of JSON for each request, on every way out.
//!
//! A [`Record`] is begun when a request arrives and filled in by whoever learns something about it. It is written
//! when it is ended, or when nobody holds it any more: then its request was cancelled. A [`Writer`] takes what has
//! ended from a bounded queue, links each line to the one before by its hash (`chain`), and appends to a file that
//! it has for itself (`file`). [`verify`] reads such files again.
//!
//! Promises: each record is written once, or counted as lost, and the count is written; a line is one line of JSON
//! whatever clients send, and no field of it is longer than its bound; who floods the door does not flood the log;
//! nothing here waits for a disk but the writer, and [`Record::admit`], which is there to wait. Where a record
//! is a must ([`OnError::Refuse`]), nothing goes to an upstream before a line in the file says so, and what is answered
//! here, like a list, has its place in the queue first. What is off costs nothing.
//!
//! Knows nothing of: principals, views and upstreams, codes and statuses beyond their numbers.

mod chain;
mod entry;
mod event;
mod file;
mod params;
pub mod verify;
mod writer;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::Instant;

pub use chain::Chain;
pub use entry::{Line, SessionMark, quoted};
pub use event::{Decision, Ending, Outcome, Record, Unrecorded};
pub use file::{CannotOpen, family};
pub use writer::Writer;

use writer::{Entry, Place};

/// What the audit log is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where it goes.
    pub target: Target,
    /// What is told of a request's arguments.
    pub arguments: Arguments,
    /// Whether each line carries the hash of the one before.
    pub chain: bool,
    /// From how many bytes on a file is put aside.
    pub rotate_size: u64,
    /// How many files that were put aside are kept.
    pub rotate_keep: usize,
    /// What becomes of requests that cannot be recorded.
    pub on_error: OnError,
}

/// Where the lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// To this file, or to one beside it with a number while another process has it.
    File(PathBuf),
    /// To standard output.
    Stdout,
}

/// What is told of a request's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arguments {
    /// Nothing.
    None,
    /// Their names.
    Names,
    /// The SHA-256 of their text.
    Hash,
    /// All of them, up to a bound.
    Full,
}

/// What becomes of requests that cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// They are served, and counted.
    Continue,
    /// They are refused before anything is done for them.
    Refuse,
}

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Streamable HTTP.
    Http,
    /// The HTTP+SSE pair.
    Sse,
    /// Standard input and output.
    Stdio,
}

/// Where records come from. Cheap to clone.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Shared>>);

/// What all records share with the writer.
struct Shared {
    arguments: Arguments,
    on_error: OnError,
    /// Bounded: see [`QUEUE`]. What finds it full is lost and counted, or waits, as `on_error` says.
    queue: mpsc::Sender<Entry>,
    counts: Arc<Counts>,
    requests: AtomicU64,
    door: Mutex<Meter>,
}

/// What the writer has to tell of by number.
#[derive(Debug, Default)]
struct Counts {
    /// Records that could not be written.
    lost: AtomicU64,
    /// Refusals at the door that were too many to be written.
    left_out: AtomicU64,
    /// Those of either that a line has told of.
    lost_told: AtomicU64,
    left_out_told: AtomicU64,
    /// Whether the last attempt to write failed.
    failing: AtomicBool,
}

impl Counts {
    /// Takes what a line is about to tell: how many are lost, and how many were left out.
    fn take_lost(&self) -> u64 {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        self.lost_told.fetch_add(lost, Ordering::Relaxed);
        lost
    }

    fn take_left_out(&self) -> u64 {
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        self.left_out_told.fetch_add(left_out, Ordering::Relaxed);
        left_out
    }
}

impl Audit {
    /// An audit log that is off.
    pub fn off() -> Self {
        Self::default()
    }

    /// Opens the place that the settings name. Nothing is written until the writer runs.
    pub fn open(settings: &Settings) -> Result<(Self, Writer), CannotOpen> {
        let (queue, entries) = mpsc::channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let writer = Writer::open(settings, entries, Arc::clone(&counts))?;
        let shared = Shared {
            arguments: settings.arguments,
            on_error: settings.on_error,
            queue,
            counts,
            requests: AtomicU64::new(0),
            door: Mutex::new(Meter::new(Instant::now())),
        };
        Ok((Self(Some(Arc::new(shared))), writer))
    }

    /// Begins the record of a request that has just arrived.
    pub fn begin(&self, wire: Wire, from: Option<IpAddr>) -> Record {
        match &self.0 {
            Some(shared) => Record::begin(shared, wire, from),
            None => Record::off(),
        }
    }

    /// Who has a conversation: nothing is told of it, but [`Record::another`] makes the records of its requests.
    pub fn conversation(&self, wire: Wire, from: Option<IpAddr>) -> Record {
        let record = self.begin(wire, from);
        record.forget();
        record
    }
}

/// How the log is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Records that could not be written, since the start.
    pub lost: u64,
    /// Refusals at the door that were too many to be written, since the start.
    pub left_out: u64,
    /// Whether the last attempt to write failed.
    pub is_failing: bool,
}

impl Audit {
    /// How the log is doing; `None` if it is off.
    pub fn state(&self) -> Option<State> {
        let counts = &self.0.as_ref()?.counts;
        let told = |told: &AtomicU64, untold: &AtomicU64| {
            told.load(Ordering::Relaxed) + untold.load(Ordering::Relaxed)
        };
        Some(State {
            lost: told(&counts.lost_told, &counts.lost),
            left_out: told(&counts.left_out_told, &counts.left_out),
            is_failing: counts.failing.load(Ordering::Relaxed),
        })
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Audit(on)" } else { "Audit(off)" })
    }
}

impl Shared {
    /// Hands a line to the writer, at its own place in the queue if it has one.
    fn put(&self, line: Line, place: Option<Place>) {
        if line.is_of_the_door() && !self.door_has_room() {
            self.counts.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let entry = Entry { line, at: SystemTime::now(), written: None };
        match place {
            Some(place) => drop(place.send(entry)),
            None if self.queue.try_send(entry).is_ok() => {}
            None => drop(self.counts.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn door_has_room(&self) -> bool {
        let mut meter = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        meter.has_room(Instant::now())
    }

    fn is_failing(&self) -> bool {
        self.counts.failing.load(Ordering::Relaxed)
    }
}

/// How many refusals of strangers are written: so many at once, and so many a second.
struct Meter {
    room: f64,
    at: Instant,
}

impl Meter {
    fn new(now: Instant) -> Self {
        Self { room: DOOR_BURST, at: now }
    }

    fn has_room(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.room = (self.room + passed * DOOR_PER_SECOND).min(DOOR_BURST);
        let has = self.room >= 1.0;
        if has {
            self.room -= 1.0;
        }
        has
    }
}

/// How many records may wait to be written: seconds of a busy gateway, some megabytes.
const QUEUE: usize = 4_096;
/// How long a request that must be recorded waits for its place and for its line.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many refusals of strangers are written one behind the other, and each second after that.
const DOOR_BURST: f64 = 100.0;
const DOOR_PER_SECOND: f64 = 10.0;

#[cfg(test)]
mod tests;
