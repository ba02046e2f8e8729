//! What a legacy server is asked to log, where all callers share one connection and it has one level.
//!
//! Promises: the server is asked for the least severe level that any caller wants, before a call that
//! wants it goes out; for nothing while no caller has said what it wants. A level that nobody wants any
//! more is asked for a little longer, so that callers that come and go do not turn it up and down.
//!
//! Knows nothing of: who hears what; each call's notes let through what its caller wants.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::mcp::log_level::{Level, Wanted};

/// How long a level counts as wanted behind the last call that did.
const LINGER: Duration = Duration::from_secs(60);

/// How long calls wait for the server to answer that it has changed its level.
const PATIENCE: Duration = Duration::from_secs(1);

/// The level of one connection.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    demand: Mutex<Demand>,
    /// What was asked for last. Locked while it is being asked for.
    asked: tokio::sync::Mutex<Option<Level>>,
}

/// By level.
#[derive(Debug, Default)]
struct Demand {
    calls: [usize; 8],
    until: [Option<Instant>; 8],
}

/// What one call wants, while it runs.
struct Want<'a> {
    levels: &'a Levels,
    level: Level,
}

impl Levels {
    /// Does `work` with the server's level as its caller wants it, also when that changes meanwhile.
    pub(crate) async fn beside<T, F: Future<Output = ()>>(
        &self,
        wanted: &Wanted,
        ask: impl Fn(Level) -> F,
        work: impl Future<Output = T>,
    ) -> T {
        let mut news = wanted.follow();
        let Some(level) = wanted.least() else { return work.await };
        let mut want = self.want(level);
        self.suit(wanted, &ask).await;
        let follow = async {
            loop {
                let level = news.next().await;
                // The old one lingers, the new one is there before anything is asked.
                want = self.want(level);
                self.suit(wanted, &ask).await;
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = follow => unreachable!("it follows without end"),
        }
    }

    fn want(&self, level: Level) -> Want<'_> {
        self.demand().calls[level.index()] += 1;
        Want { levels: self, level }
    }

    /// Asks for the least level that is wanted, if that is another than before.
    async fn suit<F: Future<Output = ()>>(&self, wanted: &Wanted, ask: &impl Fn(Level) -> F) {
        let mut asked = self.asked.lock().await;
        // Until somebody has said something it is the server's to decide.
        if asked.is_none() && !wanted.is_said() {
            return;
        }
        let least = self.demand().least(Instant::now());
        if least.is_some() && *asked != least {
            if let Some(level) = least {
                // A server that refuses or is slow is not asked again and again.
                let _ = timeout(PATIENCE, ask(level)).await;
            }
            *asked = least;
        }
    }

    fn demand(&self) -> MutexGuard<'_, Demand> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Demand {
    fn least(&self, now: Instant) -> Option<Level> {
        Level::ALL.into_iter().find(|level| {
            let at = level.index();
            self.calls[at] > 0 || self.until[at].is_some_and(|until| until > now)
        })
    }
}

impl Drop for Want<'_> {
    fn drop(&mut self) {
        let mut demand = self.levels.demand();
        demand.calls[self.level.index()] -= 1;
        demand.until[self.level.index()] = Some(Instant::now() + LINGER);
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::session::log_level::*;
    use std::cell::RefCell;
    use std::future::{pending, ready};

    /// Asks with a call's level while it runs.
    async fn call(levels: &Levels, wanted: &Wanted, asked: &RefCell<Vec<Level>>) {
        let ask = |level| {
            asked.borrow_mut().push(level);
            ready(())
        };
        levels.beside(wanted, ask, ready(())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_severe_level_is_asked_for_and_only_when_it_changes() {
        let (levels, asked) = (Levels::default(), RefCell::default());
        call(&levels, &Wanted::nothing(), &asked).await;
        call(&levels, &Wanted::undecided(), &asked).await;
        assert_eq!(*asked.borrow(), []);
        tokio::time::advance(LINGER).await;
        for level in [Level::Error, Level::Error, Level::Debug, Level::Alert, Level::Error] {
            call(&levels, &Wanted::from(level), &asked).await;
        }
        assert_eq!(*asked.borrow(), [Level::Error, Level::Debug]);
        tokio::time::advance(LINGER).await;
        call(&levels, &Wanted::undecided(), &asked).await;
        tokio::time::advance(LINGER).await;
        call(&levels, &Wanted::from(Level::Alert), &asked).await;
        let all = [Level::Error, Level::Debug, Level::Info, Level::Alert];
        assert_eq!(*asked.borrow(), all);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_said_nothing_keeps_what_it_had() {
        let (levels, asked) = (Levels::default(), RefCell::default());
        call(&levels, &Wanted::undecided(), &asked).await;
        call(&levels, &Wanted::from(Level::Emergency), &asked).await;
        assert_eq!(*asked.borrow(), [Level::Info]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_runs_follows_its_client_and_counts_for_as_long_as_it_runs() {
        let (levels, asked) = (Levels::default(), RefCell::new(Vec::new()));
        let wanted = Wanted::undecided();
        let ask = |level| {
            asked.borrow_mut().push(level);
            ready(())
        };
        let work = async {
            tokio::task::yield_now().await;
            wanted.decide(Level::Debug);
            tokio::time::sleep(3 * LINGER).await;
            call(&levels, &Wanted::from(Level::Error), &asked).await;
        };
        levels.beside(&wanted, ask, work).await;
        assert_eq!(*asked.borrow(), [Level::Debug]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_holds_nobody_up_for_long() {
        let (levels, start) = (Levels::default(), Instant::now());
        let wanted = Wanted::from(Level::Error);
        levels.beside(&wanted, |_| pending(), ready(())).await;
        assert_eq!(start.elapsed(), PATIENCE);
        levels.beside(&wanted, |_| pending(), ready(())).await;
        assert_eq!(start.elapsed(), PATIENCE);
    }
}
