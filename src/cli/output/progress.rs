//! Progress line on the terminal that shows what a command waits for.
//!
//! Invariants: the line appears after a short delay, only on a terminal, and never with JSON
//! output; it never wraps; it is cleared before anything else is written, and when the wait is
//! dropped.
//!
//! No progress bar library is used, because they leave the cursor at the terminal's edge: there
//! the `^C` that the terminal echoes wraps the line, which then cannot be cleared.

use crate::sync::{Mutex, MutexGuard};
use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use tokio::time::{Instant, interval_at};

/// Delay before the line appears.
const SHOW_AFTER: Duration = Duration::from_millis(300);
/// Interval at which the line is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Columns that stay free at the terminal's edge, for the `^C`.
const MARGIN: usize = 3;
/// Animation that shows that the command is alive.
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// Line that is on the terminal now, for other writers to standard error.
static SHOWN: Mutex<Option<String>> = Mutex::new(None);

/// Returns whether a wait is shown at all.
pub(crate) fn is_shown(json: bool) -> bool {
    let can_clear = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    !json && can_clear && std::io::stderr().is_terminal()
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
    for frame in SPINNER.into_iter().cycle() {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => {
                let seconds = start.elapsed().as_secs();
                show(&format!("{frame} {seconds} s  {}", about()));
            }
        }
    }
    // Unreachable: the animation never ends.
    work.await
}

/// Guard of the line: dropping it clears the line.
struct ProgressLine;

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if shown().take().is_some() {
            write(CLEAR);
        }
    }
}

fn show(text: &str) {
    let width = tcgetwinsize(std::io::stderr()).map(|size| usize::from(size.ws_col));
    // 80 columns if the terminal does not report its width.
    let width = width.ok().filter(|width| *width > 0).unwrap_or(80);
    let text = shorten(text, width.saturating_sub(MARGIN));
    let mut shown = shown();
    write(&format!("{CLEAR}{text}"));
    *shown = Some(text);
}

/// Moves the cursor to the beginning of the line and clears the line.
const CLEAR: &str = "\r\u{1b}[K";

/// Shortens a text to this number of columns and marks the cut. A character that is not ASCII
/// counts as two columns.
fn shorten(text: &str, columns: usize) -> String {
    let width = |c: char| if c.is_ascii() { 1 } else { 2 };
    if text.chars().map(width).sum::<usize>() <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(3);
    let fits = |c: &char| {
        let fits = width(*c) <= left;
        left = left.saturating_sub(width(*c));
        fits
    };
    text.chars().take_while(fits).chain("...".chars().take(columns)).collect()
}

fn write(text: &str) {
    let mut terminal = std::io::stderr().lock();
    // If the terminal is closed, the line is lost.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

fn shown() -> MutexGuard<'static, Option<String>> {
    SHOWN.lock()
}

/// Standard error for the log: clears the line before a write and restores it afterwards.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        let shown = shown();
        let Some(line) = &*shown else { return std::io::stderr().write(text) };
        write(CLEAR);
        // The log writes whole lines, with their line break.
        std::io::stderr().write_all(text)?;
        write(line);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::output::progress::*;

    #[test]
    fn a_text_is_cut_where_the_line_ends() {
        for (text, columns, expected) in [
            ("abcde", 5, "abcde"),
            ("abcdef", 5, "ab..."),
            ("äöü", 6, "äöü"),
            ("äöü", 5, "ä..."),
            ("ab", 1, "."),
            ("ab", 0, ""),
        ] {
            assert_eq!(shorten(text, columns), expected);
        }
    }
}
