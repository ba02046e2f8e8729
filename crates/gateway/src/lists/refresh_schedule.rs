//! Refresh schedule of one topic: when its lists are read again.
//!
//! The first change notification after a quiet time is read at once. Then there are at least 300 ms
//! between reads, growing to 1 s while notifications continue, or to 60 s if reads cause them.
//!
//! Decision: docs/decisions/0004-list-refresh.md

use std::time::Duration;

use tokio::time::Instant;

use weir_base::time::backoff::Backoff;

/// Minimum pause between reads; change notifications during it cause one read. One that follows a
/// read this closely may be caused by it.
const MIN_PAUSE: Duration = Duration::from_millis(300);
/// Maximum pause between reads while changes continue; clients are not notified of a topic more
/// often (`SPACING` in `gateway/client_notifications.rs`).
const MAX_CHANGE_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause if reading the list causes the next change notification and the list is unchanged.
/// Some servers announce a change whenever they are listed; without a longer pause they would be
/// listed in an endless loop.
const MAX_ECHO_PAUSE: Duration = Duration::from_secs(60);
/// Pause before the first retry of a failed list.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest pause before a retry.
pub(super) const MAX_RETRY: Duration = Duration::from_secs(60);

/// Schedule of the reads of one topic, with pauses and backoff.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefreshSchedule {
    pub(super) due: Option<Instant>,
    /// Start of the last read.
    pub(super) last_read: Option<Instant>,
    /// End of the last read.
    last_read_end: Option<Instant>,
    /// Pauses before retries.
    pub(super) retries: Backoff,
    /// Minimum pause between the start of a read and the next one for a change notification.
    pause: Duration,
    /// Whether a change notification was received during the pause.
    pub(super) pending_change: PendingChange,
    /// Digests of the last lists: of the topic's kind, or of its two kinds.
    digests: [Option<u64>; 2],
    /// Numbers of items of the last lists.
    pub(super) items: [usize; 2],
}

/// Change notification during the pause after a read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PendingChange {
    #[default]
    Nothing,
    /// A notification soon after a read; the read itself may have triggered it.
    Echo,
    /// A notification that the read cannot have caused.
    Change,
}

impl RefreshSchedule {
    /// Creates the schedule of a topic that has not been read.
    pub(super) fn new() -> Self {
        Self {
            due: None,
            last_read: None,
            last_read_end: None,
            retries: Backoff::new(FIRST_RETRY, MAX_RETRY),
            pause: MIN_PAUSE,
            pending_change: PendingChange::Nothing,
            digests: [None; 2],
            items: [0; 2],
        }
    }

    /// Schedules a read after a change notification: immediately after a quiet time, otherwise when
    /// the pause after the last read is over, so that several notifications cause one read.
    pub(super) fn on_change_notification(&mut self, now: Instant) {
        let is_echo = self.last_read_end.is_some_and(|end| now < end + MIN_PAUSE);
        let (pause, pending_change) = match is_echo {
            true => (self.pause, PendingChange::Echo),
            false => (self.pause.min(MAX_CHANGE_PAUSE), PendingChange::Change),
        };
        let ready = self.last_read.map_or(now, |read| read + pause);
        if self.pending_change == PendingChange::Nothing && ready <= now {
            // No notification was received for a while, so the pause is reset.
            self.pause = MIN_PAUSE;
        } else {
            self.pending_change = self.pending_change.max(pending_change);
        }
        let soon = ready.max(now);
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// Registers a read; the next pause is longer if a notification was pending. Returns whether
    /// the lists have changed.
    pub(super) fn on_refreshed(&mut self, digests: [Option<u64>; 2]) -> bool {
        self.last_read_end = Some(Instant::now());
        let is_new = std::mem::replace(&mut self.digests, digests) != digests;
        let longest = match std::mem::take(&mut self.pending_change) {
            PendingChange::Nothing => return is_new,
            PendingChange::Echo if !is_new => MAX_ECHO_PAUSE,
            PendingChange::Echo | PendingChange::Change => MAX_CHANGE_PAUSE,
        };
        self.pause = (self.pause * 2).min(longest);
        is_new
    }
}
