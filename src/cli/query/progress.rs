//! One line on the terminal that tells what a command waits for.
//!
//! Promises: it is shown once a wait has lasted a moment, on a terminal only, and never beside JSON; it
//! never wraps; it is gone before anything else is written, and when the wait is dropped.
//!
//! It is drawn by hand: progress bars leave the cursor at the terminal's edge, where the `^C` that the
//! terminal writes itself breaks the line, which then cannot be cleared.

use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use tokio::time::{Instant, interval_at};

/// How long a wait may last before anything is said of it.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often the line is drawn.
const TICK: Duration = Duration::from_millis(100);
/// What of the terminal's width stays free, for the `^C`.
const MARGIN: usize = 3;
/// It shows that time goes by where nothing else does.
const TURNS: [char; 4] = ['|', '/', '-', '\\'];

/// The line that is shown, for those who write beside it.
static SHOWN: Mutex<Option<String>> = Mutex::new(None);

/// Whether a wait is shown at all.
pub(crate) fn is_shown(json: bool) -> bool {
    let can_clear = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    !json && can_clear && std::io::stderr().is_terminal()
}

/// Does the work. If that takes long, shows for how long it has taken and what `about` says at each
/// moment.
pub(crate) async fn watched<T>(
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
    let _line = Line;
    for turn in TURNS.into_iter().cycle() {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => {
                let seconds = start.elapsed().as_secs();
                show(&format!("{turn} {seconds} s  {}", about()));
            }
        }
    }
    // Turning never ends.
    work.await
}

/// Whoever holds it may show a line. Dropping it clears what is shown.
struct Line;

impl Drop for Line {
    fn drop(&mut self) {
        if shown().take().is_some() {
            write(CLEAR);
        }
    }
}

fn show(text: &str) {
    let width = tcgetwinsize(std::io::stderr()).map(|size| usize::from(size.ws_col));
    // Where the terminal does not say: what is usual.
    let width = width.ok().filter(|width| *width > 0).unwrap_or(80);
    let text = cut(text, width.saturating_sub(MARGIN));
    let mut shown = shown();
    write(&format!("{CLEAR}{text}"));
    *shown = Some(text);
}

/// To the line's beginning, and nothing behind it.
const CLEAR: &str = "\r\u{1b}[K";

/// A text on at most so many columns, its cut marked. What is not ASCII may take two of them.
fn cut(text: &str, columns: usize) -> String {
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
    // Whoever closes the terminal misses the line.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

fn shown() -> MutexGuard<'static, Option<String>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard error for the log: the line steps aside for what is written.
pub(crate) struct Beside;

impl Write for Beside {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        let shown = shown();
        let Some(line) = &*shown else { return std::io::stderr().write(text) };
        write(CLEAR);
        // A line of the log is written whole, its break included.
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
    use crate::cli::query::progress::*;

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
            assert_eq!(cut(text, columns), expected);
        }
    }
}
