//! One line on the terminal that tells what a command waits for.
//!
//! Promises: it is shown once a wait has lasted a moment, on a terminal only, and never beside JSON; it
//! is gone before anything else is written, and when the wait is dropped.

use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::{Instant, interval_at};

/// How long a wait may last before anything is said of it.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often the line is drawn.
const TICK: Duration = Duration::from_millis(100);

/// The line that is shown, for those who write beside it.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Whether a wait is shown at all.
pub(super) fn is_shown(json: bool) -> bool {
    !json && std::io::stderr().is_terminal()
}

/// Does the work. If that takes long, shows for how long it has taken and what `about` says at each
/// moment.
pub(super) async fn watched<T>(
    json: bool,
    about: impl Fn() -> String,
    work: impl Future<Output = T>,
) -> T {
    if !is_shown(json) {
        return work.await;
    }
    let mut work = pin!(work);
    let start = Instant::now();
    let mut ticks = interval_at(start + PATIENCE, TICK);
    let mut line = None;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => {
                let line = line.get_or_insert_with(Line::show);
                line.say(start.elapsed(), &about());
            }
        }
    }
}

/// The line itself. Dropping it clears it.
struct Line(ProgressBar);

impl Line {
    fn show() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // `wide_msg` is cut at the terminal's edge: a line that wraps could not be cleared.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {wide_msg}") {
            bar.set_style(style);
        }
        *shown() = Some(bar.clone());
        Self(bar)
    }

    fn say(&self, elapsed: Duration, about: &str) {
        self.0.set_prefix(format!("{} s", elapsed.as_secs()));
        self.0.set_message(about.to_owned());
        self.0.tick();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        *shown() = None;
        self.0.finish_and_clear();
    }
}

fn shown() -> MutexGuard<'static, Option<ProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard error for the log: the line steps aside for what is written.
pub(super) struct Beside;

impl Write for Beside {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        match &*shown() {
            Some(bar) => bar.suspend(|| std::io::stderr().write(text)),
            None => std::io::stderr().write(text),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}
