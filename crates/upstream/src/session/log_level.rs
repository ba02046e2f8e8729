//! Log level of a legacy server whose callers all share one connection.
//!
//! Invariants: the server is set to the least severe level that any caller wants, before a call
//! that wants it is sent; no level is requested while no caller has chosen one. A level that no
//! caller wants any more stays set for a while, so that short calls do not switch it up and down.
//! Each call's notification sink filters the messages by its own caller's level.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use weir_base::tasks::sync::Mutex;
use weir_mcp::log_level::{LogLevel, LogLevelSetting};

/// Time for which a level counts as wanted after the last call that wanted it.
const LINGER: Duration = Duration::from_secs(60);

/// Time for which calls wait for the server to confirm a new level.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(1);

/// Log level of one connection.
#[derive(Debug, Default)]
pub(crate) struct SharedLogLevel {
    wanted_levels: Mutex<WantedLevels>,
    /// Level that was last requested. Locked while a request is in flight.
    requested: tokio::sync::Mutex<Option<LogLevel>>,
}

/// Number of calls per level, and the time until which each level still counts as wanted.
#[derive(Debug, Default)]
struct WantedLevels {
    calls: [usize; 8],
    wanted_until: [Option<Instant>; 8],
}

/// Level that one call wants, while it runs.
struct LevelUse<'a> {
    log_level: &'a SharedLogLevel,
    level: LogLevel,
}

impl SharedLogLevel {
    /// Runs `work` while the server's level is what its caller wants, also when that changes
    /// meanwhile.
    pub(crate) async fn run_with<T, F: Future<Output = ()>>(
        &self,
        wanted: &LogLevelSetting,
        set_level: impl Fn(LogLevel) -> F,
        work: impl Future<Output = T>,
    ) -> T {
        let mut changes = wanted.subscribe();
        let Some(level) = wanted.minimum() else { return work.await };
        let mut level_use = self.count(level);
        self.request_least(wanted, &set_level).await;
        let follow = async {
            loop {
                let level = changes.next().await;
                // The old level lingers, and the new one is counted before the request is sent.
                level_use = self.count(level);
                self.request_least(wanted, &set_level).await;
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = follow => unreachable!("it follows without end"),
        }
    }

    fn count(&self, level: LogLevel) -> LevelUse<'_> {
        self.wanted_levels.lock().calls[level.index()] += 1;
        LevelUse { log_level: self, level }
    }

    /// Requests the least severe level that is wanted, if it has changed.
    async fn request_least<F: Future<Output = ()>>(
        &self,
        wanted: &LogLevelSetting,
        set_level: &impl Fn(LogLevel) -> F,
    ) {
        let mut requested = self.requested.lock().await;
        // Until a caller has chosen a level the server decides.
        if requested.is_none() && !wanted.is_explicit() {
            return;
        }
        let least = self.wanted_levels.lock().least(Instant::now());
        if least.is_some() && *requested != least {
            if let Some(level) = least {
                // A server that refuses or is slow does not get the same request again and again.
                let _ = timeout(CONFIRM_TIMEOUT, set_level(level)).await;
            }
            *requested = least;
        }
    }
}

impl WantedLevels {
    fn least(&self, now: Instant) -> Option<LogLevel> {
        LogLevel::ALL.into_iter().find(|level| {
            let at = level.index();
            self.calls[at] > 0 || self.wanted_until[at].is_some_and(|until| until > now)
        })
    }
}

impl Drop for LevelUse<'_> {
    fn drop(&mut self) {
        let mut wanted_levels = self.log_level.wanted_levels.lock();
        wanted_levels.calls[self.level.index()] -= 1;
        wanted_levels.wanted_until[self.level.index()] = Some(Instant::now() + LINGER);
    }
}

#[cfg(test)]
mod tests {
    use crate::session::log_level::*;
    use std::cell::RefCell;
    use std::future::{pending, ready};

    /// Runs a call with the level `wanted`.
    async fn call(
        log_level: &SharedLogLevel,
        wanted: &LogLevelSetting,
        requested: &RefCell<Vec<LogLevel>>,
    ) {
        let set_level = |level| {
            requested.borrow_mut().push(level);
            ready(())
        };
        log_level.run_with(wanted, set_level, ready(())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_severe_level_is_asked_for_and_only_when_it_changes() {
        let (log_level, requested) = (SharedLogLevel::default(), RefCell::default());
        call(&log_level, &LogLevelSetting::disabled(), &requested).await;
        call(&log_level, &LogLevelSetting::unset(), &requested).await;
        assert_eq!(*requested.borrow(), []);
        tokio::time::advance(LINGER).await;
        for level in
            [LogLevel::Error, LogLevel::Error, LogLevel::Debug, LogLevel::Alert, LogLevel::Error]
        {
            call(&log_level, &LogLevelSetting::at_least(level), &requested).await;
        }
        assert_eq!(*requested.borrow(), [LogLevel::Error, LogLevel::Debug]);
        tokio::time::advance(LINGER).await;
        call(&log_level, &LogLevelSetting::unset(), &requested).await;
        tokio::time::advance(LINGER).await;
        call(&log_level, &LogLevelSetting::at_least(LogLevel::Alert), &requested).await;
        let all = [LogLevel::Error, LogLevel::Debug, LogLevel::Info, LogLevel::Alert];
        assert_eq!(*requested.borrow(), all);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_said_nothing_keeps_what_it_had() {
        let (log_level, requested) = (SharedLogLevel::default(), RefCell::default());
        call(&log_level, &LogLevelSetting::unset(), &requested).await;
        call(&log_level, &LogLevelSetting::at_least(LogLevel::Emergency), &requested).await;
        assert_eq!(*requested.borrow(), [LogLevel::Info]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_runs_follows_its_client_and_counts_for_as_long_as_it_runs() {
        let (log_level, requested) = (SharedLogLevel::default(), RefCell::new(Vec::new()));
        let wanted = LogLevelSetting::unset();
        let set_level = |level| {
            requested.borrow_mut().push(level);
            ready(())
        };
        let work = async {
            tokio::task::yield_now().await;
            wanted.set(LogLevel::Debug);
            tokio::time::sleep(3 * LINGER).await;
            call(&log_level, &LogLevelSetting::at_least(LogLevel::Error), &requested).await;
        };
        log_level.run_with(&wanted, set_level, work).await;
        assert_eq!(*requested.borrow(), [LogLevel::Debug]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_holds_nobody_up_for_long() {
        let (log_level, start) = (SharedLogLevel::default(), Instant::now());
        let wanted = LogLevelSetting::at_least(LogLevel::Error);
        log_level.run_with(&wanted, |_| pending(), ready(())).await;
        assert_eq!(start.elapsed(), CONFIRM_TIMEOUT);
        log_level.run_with(&wanted, |_| pending(), ready(())).await;
        assert_eq!(start.elapsed(), CONFIRM_TIMEOUT);
    }
}
