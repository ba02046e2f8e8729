//! Crash-loop detection for a child process that ends again and again soon after its start.
//!
//! Invariant: a crash loop begins with the [`CRASH_LOOP_ENDS`]th end within [`CRASH_LOOP_WINDOW`],
//! and is over once the process has lived for that long.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Number of ends within [`CRASH_LOOP_WINDOW`] that make a crash loop.
pub(crate) const CRASH_LOOP_ENDS: usize = 5;
/// Period in which ends are counted, and lifetime after which a crash loop is over.
pub(crate) const CRASH_LOOP_WINDOW: Duration = Duration::from_secs(60);

/// Last ends of one child process.
#[derive(Debug, Default)]
pub(crate) struct CrashLoopDetector {
    ends: VecDeque<Instant>,
    is_loop: bool,
}

impl CrashLoopDetector {
    /// Records an end after this lifetime.
    pub(crate) fn record_end(&mut self, lifetime: Duration, now: Instant) {
        if lifetime >= CRASH_LOOP_WINDOW {
            *self = Self::default();
        }
        self.ends.push_back(now);
        while self.ends.len() > CRASH_LOOP_ENDS {
            self.ends.pop_front();
        }
        let first = self.ends.front().filter(|_| self.ends.len() == CRASH_LOOP_ENDS);
        self.is_loop |= first.is_some_and(|first| now.duration_since(*first) <= CRASH_LOOP_WINDOW);
    }

    /// Whether the process is in a crash loop.
    pub(crate) fn is_loop(&self) -> bool {
        self.is_loop
    }
}
