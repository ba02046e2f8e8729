//! Which child ends again and again soon after it was started: a crash loop.
//!
//! Promises: it begins with the [`MANY`]th end within [`WINDOW`], and is over once the child has lived for as long.
//!
//! Knows nothing of: why a child ended, and what the pauses are.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// So many ends within a [`WINDOW`] are a loop.
pub(crate) const MANY: usize = 5;
/// The time in which they are counted, and for which a child has to live to be out of it.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// The last ends of one child.
#[derive(Debug, Default)]
pub(crate) struct Crashes {
    ends: VecDeque<Instant>,
    is_loop: bool,
}

impl Crashes {
    /// The child ended after it had lived this long.
    pub(crate) fn ended(&mut self, lived: Duration, now: Instant) {
        if lived >= WINDOW {
            *self = Self::default();
        }
        self.ends.push_back(now);
        while self.ends.len() > MANY {
            self.ends.pop_front();
        }
        let first = self.ends.front().filter(|_| self.ends.len() == MANY);
        self.is_loop |= first.is_some_and(|first| now.duration_since(*first) <= WINDOW);
    }

    /// Whether it ends again and again.
    pub(crate) fn is_loop(&self) -> bool {
        self.is_loop
    }
}
