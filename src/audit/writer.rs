//! The writer: one task that takes what has ended, and puts it into the file in batches.
//!
//! Promises: lines go out in the order in which they were put into the queue. A line goes out at once if none did within
//! the last [`REST`], and that much later at most, so that a busy gateway is not woken for every line; where a record is
//! a must, for which requests wait, there is no rest. Only the blocking threads wait for the disk. While it cannot be written, what waits is kept up to a bound, the rest is counted, and it is tried again
//! twice a second; then the number of those that are lost is a line. An entry whose sender waits for it is either
//! written or its sender learns that it is not, and then it is not kept.
//!
//! Knows nothing of: requests.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::chain::Chain;
use super::entry::Line;
use super::file::{Broken, CannotOpen, Log, Opened};
use super::{Counts, OnError, QUEUE, Settings, Target};

/// What waits to be written.
pub(super) struct Entry {
    pub(super) line: Line,
    pub(super) at: SystemTime,
    /// Told once it is in the file; dropped if it is not.
    pub(super) written: Option<oneshot::Sender<()>>,
}

/// The right to put one entry into the queue.
pub(super) type Place = mpsc::OwnedPermit<Entry>;

/// The task that writes.
pub struct Writer {
    entries: mpsc::Receiver<Entry>,
    counts: Arc<Counts>,
    /// What was taken from the queue; bounded by [`QUEUE`].
    pending: VecDeque<Entry>,
    /// On a blocking thread while it is written to.
    sink: Option<Sink>,
    is_failing: bool,
    /// Whether lines may wait for others.
    may_rest: bool,
    next_look: Instant,
}

enum Event {
    Entry(Option<Entry>),
    Look,
    Stop,
}

impl Writer {
    pub(super) fn open(
        settings: &Settings,
        entries: mpsc::Receiver<Entry>,
        counts: Arc<Counts>,
    ) -> Result<Self, CannotOpen> {
        let (sink, torn) = Sink::open(settings)?;
        let pending = VecDeque::from([entry(Line::Started { torn })]);
        let next_look = Instant::now() + LOOK_EVERY;
        let (sink, may_rest) = (Some(sink), settings.on_error == OnError::Continue);
        Ok(Self { entries, counts, pending, sink, is_failing: false, may_rest, next_look })
    }

    /// Writes the first line, and tells whether that goes well: whoever starts should hear of it.
    pub fn begin(&mut self) -> Result<(), CannotOpen> {
        let Some(sink) = &mut self.sink else { return Ok(()) };
        sink.write(&mut self.pending).map_err(|cause| CannotOpen { path: sink.path(), cause })
    }

    /// Where it is written.
    pub fn path(&self) -> std::path::PathBuf {
        self.sink.as_ref().map(Sink::path).unwrap_or_default()
    }

    /// Writes until `stop` fires; then what has been put into the queue is written, and that this was all.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let event = tokio::select! {
                biased;
                () = sleep_until(self.next_look) => Event::Look,
                entry = self.entries.recv() => Event::Entry(entry),
                () = stop.cancelled() => Event::Stop,
            };
            match event {
                Event::Entry(Some(entry)) => {
                    self.take(entry);
                    self.take_more();
                    if !self.is_failing {
                        self.write().await;
                        self.rest(&stop).await;
                    }
                }
                Event::Look => self.look().await,
                Event::Entry(None) | Event::Stop => break,
            }
        }
        self.entries.close();
        // Whoever holds a place uses it when its request ends, which should be now.
        let rest = async {
            while let Some(entry) = self.entries.recv().await {
                self.take(entry);
            }
        };
        if timeout(LAST_RECORDS, rest).await.is_err() {
            warn!("some requests have not ended, and are not in the audit log");
        }
        self.count();
        self.pending.push_back(entry(Line::Stopped));
        self.write().await;
    }

    /// Lets some lines come together, unless there are many already.
    async fn rest(&self, stop: &CancellationToken) {
        if self.may_rest && self.entries.len() < BATCH {
            // Whichever comes first; nothing is lost by either.
            let _ = timeout(REST, stop.cancelled()).await;
        }
    }

    fn take(&mut self, entry: Entry) {
        if self.is_failing && entry.written.is_some() {
            return;
        }
        if self.pending.len() < QUEUE {
            self.pending.push_back(entry);
        } else {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take_more(&mut self) {
        while self.pending.len() < BATCH
            && let Ok(entry) = self.entries.try_recv()
        {
            self.take(entry);
        }
    }

    async fn look(&mut self) {
        self.next_look = Instant::now() + LOOK_EVERY;
        if !self.is_failing {
            self.count();
        } else if self.pending.is_empty() {
            // Something has to be written to see whether it can be.
            let lost = self.counts.take_lost();
            self.pending.push_back(entry(Line::Lost(lost)));
        }
        self.write().await;
    }

    /// Puts into words what is known by number only.
    fn count(&mut self) {
        let lost = self.counts.take_lost();
        let left_out = self.counts.take_left_out();
        if lost > 0 {
            self.pending.push_back(entry(Line::Lost(lost)));
        }
        if left_out > 0 {
            self.pending.push_back(entry(Line::LeftOut(left_out)));
        }
    }

    /// Tries to write all that is pending.
    async fn write(&mut self) {
        let Some(mut sink) = self.sink.take() else { return };
        let mut pending = std::mem::take(&mut self.pending);
        let path = sink.path();
        let writing = tokio::task::spawn_blocking(move || {
            let written = sink.write(&mut pending);
            (sink, pending, written)
        });
        // Fails only when the program ends, and nobody is left to tell.
        let Ok((sink, pending, written)) = writing.await else { return };
        (self.sink, self.pending) = (Some(sink), pending);
        match written {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                self.counts.failing.store(false, Ordering::Relaxed);
                info!(path = %path.display(), "the audit log is written again");
                // What was lost is told at once.
                self.next_look = Instant::now();
            }
            Ok(()) => {}
            Err(cause) => {
                if !self.is_failing {
                    error!(path = %path.display(), %cause, "the audit log cannot be written");
                }
                self.is_failing = true;
                self.counts.failing.store(true, Ordering::Relaxed);
                // Those who wait for theirs learn it at once.
                self.pending.retain(|entry| entry.written.is_none());
                self.next_look = Instant::now() + RETRY_EVERY;
            }
        }
    }
}

fn entry(line: Line) -> Entry {
    Entry { line, at: SystemTime::now(), written: None }
}

// === Sink ===

/// Where lines go, and the chain of them.
struct Sink {
    log: Option<Log>,
    chain: Chain,
    chained: bool,
    rotate_size: u64,
    rotate_keep: usize,
}

impl Sink {
    fn open(settings: &Settings) -> Result<(Self, usize), CannotOpen> {
        let (log, chain, torn) = match &settings.target {
            Target::Stdout => (None, Chain::new(), 0),
            Target::File(path) => {
                let Opened { log, chain, torn } = Log::open(path)?;
                (Some(log), chain, torn)
            }
        };
        let Settings { chain: chained, rotate_size, rotate_keep, .. } = *settings;
        Ok((Self { log, chain, chained, rotate_size, rotate_keep }, torn))
    }

    fn path(&self) -> std::path::PathBuf {
        self.log.as_ref().map_or_else(|| "-".into(), |log| log.path().to_owned())
    }

    /// Writes what is pending, and leaves there what could not be.
    fn write(&mut self, pending: &mut VecDeque<Entry>) -> io::Result<()> {
        while !pending.is_empty() {
            self.make_room()?;
            let mut batch = String::with_capacity(MAX_BATCH_BYTES.min(pending.len() * USUAL_LINE));
            if self.log.as_ref().is_some_and(Log::is_torn) {
                batch.push('\n');
            }
            // Behind each line: where it ends, and the chain.
            let mut ends = Vec::new();
            let mut chain = self.chain;
            let room = self.rotate_size.saturating_sub(self.size().unwrap_or(0));
            for entry in pending.iter() {
                let begin = batch.len();
                entry.line.write_to(&mut batch, &chain, entry.at, self.chained);
                let is_full = batch.len() >= MAX_BATCH_BYTES
                    || self.size().is_some() && batch.len() as u64 >= room;
                if is_full && !ends.is_empty() {
                    batch.truncate(begin);
                    break;
                }
                if self.chained {
                    chain.push(&batch.as_bytes()[begin..])
                } else {
                    chain.count()
                }
                batch.push('\n');
                ends.push((batch.len(), chain));
            }
            let batch = batch.into_bytes();
            let written = match &mut self.log {
                Some(log) => log.append(&batch),
                None => print(&batch),
            };
            let reached = written.as_ref().map_or_else(|broken| broken.written, |()| batch.len());
            let whole = ends.iter().take_while(|(end, _)| *end <= reached).count();
            if let Some((_, chain)) = ends[..whole].last() {
                self.chain = *chain;
            }
            for entry in pending.drain(..whole) {
                // Whoever waited for it may have left.
                entry.written.map(|written| written.send(()));
            }
            if let Err(Broken { written, cause }) = written {
                let end = ends[..whole].last().map_or(0, |(end, _)| *end);
                self.mend(end, &batch[end..written]);
                return Err(cause);
            }
        }
        Ok(())
    }

    /// Keeps `whole` bytes of lines of a batch that broke off, and sees to it that `rest` is no part of one.
    fn mend(&mut self, whole: usize, rest: &[u8]) {
        let Some(log) = &mut self.log else { return };
        if log.take_back(whole) || rest.is_empty() {
            return;
        }
        // Perhaps no more than the end of an older torn line was written.
        let torn = rest.strip_prefix(b"\n").unwrap_or(rest);
        log.tear(!torn.is_empty());
        if !torn.is_empty() {
            self.chain.push_unnumbered(torn);
        }
    }

    fn size(&self) -> Option<u64> {
        self.log.as_ref()?.size()
    }

    fn make_room(&mut self) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        if log.is_moved() {
            return log.begin_anew();
        }
        if log.size().is_some_and(|size| size >= self.rotate_size) {
            return log.put_aside(self.rotate_keep);
        }
        Ok(())
    }
}

fn print(lines: &[u8]) -> Result<(), Broken> {
    let mut out = io::stdout().lock();
    let written = out.write_all(lines).and_then(|()| out.flush());
    // How much of it went out nobody knows.
    written.map_err(|cause| Broken { written: 0, cause })
}

/// How many entries are taken at a time.
const BATCH: usize = 512;
/// How long lines may wait for others: long enough for hundreds of a busy gateway, and far less than [`QUEUE`] of them.
const REST: Duration = Duration::from_millis(10);
/// How long a line usually is, with some room.
const USUAL_LINE: usize = 768;
/// How many bytes are written at a time.
const MAX_BATCH_BYTES: usize = 256 * 1_024;
/// How often it is tried again while it cannot be written.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// How often what is known by number only is told.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long the last requests have to end.
const LAST_RECORDS: Duration = Duration::from_secs(1);
