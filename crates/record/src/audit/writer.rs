//! Writer of the audit log: one task that appends entries to the file in batches.
//!
//! Invariants: lines are written in the order of the queue. A line is written immediately if none
//! was within the last [`BATCH_DELAY`], and that much later at most, so that a busy gateway does
//! not wake the writer for every line. Where the log is mandatory, requests wait for their lines
//! and there is no delay. Only blocking threads wait for the disk.
//!
//! While the file cannot be written, entries are kept up to a bound, the rest is counted, and
//! writing is retried twice a second; afterwards the number of lost entries is an entry. An entry
//! whose sender waits is either written, or its sender is notified and the entry is dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::chain::Chain;
use super::entry::AuditEntry;
use super::file::{CannotOpen, LogFile, OpenedLog, WriteError};
use super::policy_event::{FileHash, PolicyEvent};
use super::{AuditCounts, AuditTarget, OnError, QUEUE, Settings};

/// Entry in the queue.
pub(super) struct QueuedEntry {
    pub(super) line: AuditEntry,
    pub(super) at: SystemTime,
    /// Completed once the entry is in the file; dropped if it is not written.
    pub(super) written: Option<oneshot::Sender<()>>,
}

impl QueuedEntry {
    pub(super) fn new(line: AuditEntry) -> Self {
        Self { line, at: SystemTime::now(), written: None }
    }
}

/// Permit to put one entry into the queue.
pub(super) type QueuePermit = mpsc::OwnedPermit<QueuedEntry>;

/// Task that writes the log.
pub struct Writer {
    entries: mpsc::Receiver<QueuedEntry>,
    counts: Arc<AuditCounts>,
    /// Entries taken from the queue; bounded by [`QUEUE`].
    pending: VecDeque<QueuedEntry>,
    /// `None` while a blocking thread writes to it.
    file: Option<ChainedFile>,
    is_failing: bool,
    /// True if lines may wait for others.
    may_delay: bool,
    next_tick: Instant,
    /// True once the final entry was written, or could not be.
    has_ended: bool,
}

enum Event {
    Entry(Option<QueuedEntry>),
    Tick,
    Stop,
}

impl Writer {
    pub(super) fn open(
        settings: &Settings,
        entries: mpsc::Receiver<QueuedEntry>,
        counts: Arc<AuditCounts>,
    ) -> Result<Self, CannotOpen> {
        let (file, torn) = ChainedFile::open(settings)?;
        let started = AuditEntry::Started { torn, files: Vec::new() };
        let pending = VecDeque::from([QueuedEntry::new(started)]);
        let next_tick = Instant::now() + COUNT_INTERVAL;
        let (file, may_delay) = (Some(file), settings.on_error == OnError::Continue);
        Ok(Self {
            entries,
            counts,
            pending,
            file,
            is_failing: false,
            may_delay,
            next_tick,
            has_ended: false,
        })
    }

    /// Adds the files of the configuration to the first line.
    pub fn set_files(&mut self, of_config: Vec<FileHash>) {
        if let Some(QueuedEntry { line: AuditEntry::Started { files, .. }, .. }) =
            self.pending.front_mut()
        {
            *files = of_config;
        }
    }

    /// Writes the first line, so that an error is reported at the start of the program.
    pub fn write_first(&mut self) -> Result<(), CannotOpen> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write(&mut self.pending).map_err(|cause| {
            self.has_ended = true;
            CannotOpen { path: file.log.path.clone(), cause }
        })
    }

    /// Returns the path of the log.
    pub fn path(&self) -> std::path::PathBuf {
        self.file.as_ref().map(|file| file.log.path.clone()).unwrap_or_default()
    }

    /// Writes until `stop` fires; then writes the rest of the queue and the final entry.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let event = tokio::select! {
                biased;
                () = sleep_until(self.next_tick) => Event::Tick,
                entry = self.entries.recv() => Event::Entry(entry),
                () = stop.cancelled() => Event::Stop,
            };
            match event {
                Event::Entry(Some(entry)) => {
                    self.take(entry);
                    self.take_more();
                    if !self.is_failing {
                        self.write().await;
                        self.delay(&stop).await;
                    }
                }
                Event::Tick => self.tick().await,
                Event::Entry(None) | Event::Stop => break,
            }
        }
        self.entries.close();
        // A reserved permit is used when its request ends, which should be soon.
        let remaining = async {
            while let Some(entry) = self.entries.recv().await {
                self.take(entry);
            }
        };
        if timeout(SHUTDOWN_GRACE, remaining).await.is_err() {
            warn!("requests still open at shutdown are missing in the audit log");
        }
        self.count();
        self.pending.push_back(self.stopped(None));
        self.has_ended = true;
        self.write().await;
    }

    /// Writes an entry of a process that has no task for it.
    pub fn write_now(&mut self, event: PolicyEvent) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        self.pending.push_back(QueuedEntry::new(AuditEntry::Policy(event)));
        file.write(&mut self.pending)
    }

    /// Waits for more lines, unless there are many already.
    async fn delay(&self, stop: &CancellationToken) {
        if self.may_delay && self.entries.len() < MAX_BATCH_ENTRIES {
            // Either event ends the delay; neither loses an entry.
            let _ = timeout(BATCH_DELAY, stop.cancelled()).await;
        }
    }

    fn take(&mut self, entry: QueuedEntry) {
        if self.is_failing && entry.written.is_some() {
            return;
        }
        if self.pending.len() < QUEUE {
            self.pending.push_back(entry);
        } else {
            self.counts.lost.increment();
        }
    }

    fn take_more(&mut self) {
        while self.pending.len() < MAX_BATCH_ENTRIES
            && let Ok(entry) = self.entries.try_recv()
        {
            self.take(entry);
        }
    }

    async fn tick(&mut self) {
        self.next_tick = Instant::now() + COUNT_INTERVAL;
        if !self.is_failing {
            self.count();
        } else if self.pending.is_empty() {
            // An entry has to be written to find out whether writing works again.
            let lost = self.counts.lost.take();
            self.pending.push_back(QueuedEntry::new(AuditEntry::Lost(lost)));
        }
        self.write().await;
    }

    /// Adds entries for the counters.
    fn count(&mut self) {
        let lost = self.counts.lost.take();
        let left_out = self.counts.left_out.take();
        if lost > 0 {
            self.pending.push_back(QueuedEntry::new(AuditEntry::Lost(lost)));
        }
        if left_out > 0 {
            self.pending.push_back(QueuedEntry::new(AuditEntry::LeftOut(left_out)));
        }
    }

    /// Tries to write all pending entries.
    async fn write(&mut self) {
        let Some(mut file) = self.file.take() else { return };
        let mut pending = std::mem::take(&mut self.pending);
        let path = file.log.path.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let written = file.write(&mut pending);
            (file, pending, written)
        });
        // This fails only when the runtime shuts down.
        let Ok((file, pending, written)) = writing.await else { return };
        (self.file, self.pending) = (Some(file), pending);
        match written {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                self.counts.failing.store(false, Ordering::Relaxed);
                info!(path = %path.display(), "the audit log is written again");
                // The number of lost entries is written immediately.
                self.next_tick = Instant::now();
            }
            Ok(()) => {}
            Err(cause) => {
                if !self.is_failing {
                    error!(path = %path.display(), %cause, "the audit log cannot be written");
                }
                self.is_failing = true;
                self.counts.failing.store(true, Ordering::Relaxed);
                // Dropping the sender notifies the waiting requests.
                self.pending.retain(|entry| entry.written.is_none());
                self.next_tick = Instant::now() + RETRY_INTERVAL;
            }
        }
    }

    /// Creates the final entry.
    fn stopped(&self, reason: Option<Arc<str>>) -> QueuedEntry {
        let reason = self.counts.stop_reason.get().cloned().or(reason);
        QueuedEntry::new(AuditEntry::Stopped(reason))
    }
}

/// A writer that was not run to its end writes the final entry itself.
impl Drop for Writer {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // The reason is an error then, which a line of the log tells.
        self.pending.push_back(self.stopped(Some("error".into())));
        if let Some(file) = &mut self.file {
            // There is no other place for the error.
            let _ = file.write(&mut self.pending);
        }
    }
}

// === ChainedFile ===

/// Destination of the lines, with their chain.
struct ChainedFile {
    log: LogFile,
    chain: Chain,
    chained: bool,
    rotate_size: u64,
    rotate_keep: usize,
}

impl ChainedFile {
    fn open(settings: &Settings) -> Result<(Self, usize), CannotOpen> {
        let OpenedLog { log, chain, torn } = match &settings.target {
            AuditTarget::Stdout => LogFile::stdout()?,
            AuditTarget::File(path) => LogFile::open(path)?,
        };
        let Settings { chain: chained, rotate_size, rotate_keep, .. } = *settings;
        Ok((Self { log, chain, chained, rotate_size, rotate_keep }, torn))
    }

    /// Writes the pending entries, and leaves there those that could not be written.
    fn write(&mut self, pending: &mut VecDeque<QueuedEntry>) -> io::Result<()> {
        while !pending.is_empty() {
            self.rotate_if_needed()?;
            let mut batch =
                String::with_capacity(MAX_BATCH_BYTES.min(pending.len() * TYPICAL_LINE_BYTES));
            if self.log.is_torn {
                batch.push('\n');
            }
            // Per line: its end in the batch, and the chain after it.
            let mut ends = Vec::new();
            let mut chain = self.chain;
            let remaining = self.rotate_size.saturating_sub(self.log.size.unwrap_or(0));
            for entry in pending.iter() {
                let begin = batch.len();
                entry.line.write_to(&mut batch, &chain, entry.at, self.chained);
                let is_full = batch.len() >= MAX_BATCH_BYTES
                    || self.log.size.is_some() && batch.len() as u64 >= remaining;
                if is_full && !ends.is_empty() {
                    batch.truncate(begin);
                    break;
                }
                if self.chained {
                    chain.push(&batch.as_bytes()[begin..])
                } else {
                    chain.skip_hash()
                }
                batch.push('\n');
                ends.push((batch.len(), chain));
            }
            let batch = batch.into_bytes();
            let written = self.log.append(&batch);
            let reached = written.as_ref().map_or_else(|broken| broken.written, |()| batch.len());
            let whole = ends.iter().take_while(|(end, _)| *end <= reached).count();
            if let Some((_, chain)) = ends[..whole].last() {
                self.chain = *chain;
            }
            for entry in pending.drain(..whole) {
                // The waiting request may have been cancelled.
                entry.written.map(|written| written.send(()));
            }
            if let Err(WriteError { written, cause }) = written {
                let end = ends[..whole].last().map_or(0, |(end, _)| *end);
                self.repair(end, &batch[end..written]);
                return Err(cause);
            }
        }
        Ok(())
    }

    /// Repairs the file after a failed batch: keeps `whole` bytes of lines, and prevents that
    /// `rest` becomes a part of the next line.
    fn repair(&mut self, whole: usize, rest: &[u8]) {
        if self.log.truncate_partial(whole) || rest.is_empty() {
            return;
        }
        // Perhaps only the line feed behind an older incomplete line was written.
        let torn = rest.strip_prefix(b"\n").unwrap_or(rest);
        self.log.is_torn = !torn.is_empty();
        if !torn.is_empty() {
            self.chain.push_unnumbered(torn);
        }
    }

    fn rotate_if_needed(&mut self) -> io::Result<()> {
        if self.log.is_moved() {
            return self.log.reopen();
        }
        if self.log.size.is_some_and(|size| size >= self.rotate_size) {
            return self.log.rotate(self.rotate_keep);
        }
        Ok(())
    }
}

/// Entries taken from the queue at a time.
const MAX_BATCH_ENTRIES: usize = 512;
/// Delay of lines to form a batch: long enough for hundreds of lines of a busy gateway, and far too
/// short for [`QUEUE`] of them.
const BATCH_DELAY: Duration = Duration::from_millis(10);
/// Usual length of a line, rounded up.
const TYPICAL_LINE_BYTES: usize = 768;
/// Bytes written at a time.
const MAX_BATCH_BYTES: usize = 256 * 1_024;
/// Interval of retries while the file cannot be written.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the counters are written.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// Time for the last requests to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
