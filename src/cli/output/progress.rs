//! Progress line on the terminal that shows what a command waits for.
//!
//! Invariants: the line appears after a short delay, only on a terminal, and never with JSON
//! output; it never wraps; it is cleared before anything else is written, and when the wait is
//! dropped.

use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, interval_at};

use crate::cli::output::can_move_cursor;
use weir_base::tasks::sync::Mutex;
use weir_gateway::Gateway;

/// Delay before the line appears.
const SHOW_AFTER: Duration = Duration::from_millis(300);
/// Interval at which the line is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Line that is on the terminal now, for other writers to standard error.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Returns whether a wait is shown at all.
pub(crate) fn is_shown(json: bool) -> bool {
    !json && can_move_cursor() && std::io::stderr().is_terminal()
}

/// Runs `work`. If it takes long, shows the elapsed time and the current text of `about`.
pub(crate) async fn show_while<T>(
    json: bool,
    about: impl Fn() -> String,
    work: impl Future<Output = T>,
) -> T {
    if !is_shown(json) {
        return work.await;
    }
    let mut work = pin!(work);
    let start = Instant::now();
    let mut ticks = interval_at(start + SHOW_AFTER, REDRAW_INTERVAL);
    let _line = ProgressLine;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => show(format!("{} s  {}", start.elapsed().as_secs(), about())),
        }
    }
}

/// Runs `work`. If it takes long, shows the upstreams that have neither been listed nor failed yet.
pub(crate) async fn show_startup<T>(
    json: bool,
    gateway: &Gateway,
    work: impl Future<Output = T>,
) -> T {
    let about = || {
        let names: Vec<_> = gateway.pending_upstreams().iter().map(ToString::to_string).collect();
        format!("waiting for {}", names.join(", "))
    };
    show_while(json, about, work).await
}

/// Guard of the line: dropping it clears the line.
struct ProgressLine;

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some(bar) = SHOWN.lock().take() {
            bar.finish_and_clear();
        }
    }
}

fn show(text: String) {
    let mut shown = SHOWN.lock();
    let bar = shown.get_or_insert_with(|| {
        // The cursor returns with the line: at the terminal's edge, where indicatif leaves it, the
        // `^C` that the terminal echoes would wrap the line. indicatif pads a line to the width of
        // the terminal without counting the return: the first space takes that.
        let style = ProgressStyle::with_template(" {spinner} {wide_msg}\r");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        ProgressBar::new_spinner().with_style(style.tick_chars("|/-\\ "))
    });
    bar.set_message(text);
    bar.tick();
}

/// Writes whole lines to standard error: clears the line before it and restores it afterwards.
pub(crate) fn suspended<T>(write: impl FnOnce() -> T) -> T {
    match &*SHOWN.lock() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error for the log.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        // The log writes whole lines, with their line break.
        suspended(|| std::io::stderr().write_all(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}
