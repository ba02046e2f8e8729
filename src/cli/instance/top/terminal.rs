//! Terminal control of `weir top`: alternate screen, unbuffered keys, size.
//!
//! Invariants: drop restores the terminal; drawn text neither wraps nor moves the lines below it.

use std::io::{self, Write};

use rustix::process::{Signal as Number, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind};

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::server::signals::listen_for;

/// Terminal in drawing mode. Drop restores it.
pub(super) struct Terminal {
    keys: Option<Termios>,
    resized: Signal,
    suspended: Signal,
}

/// Returns whether standard output is a terminal with cursor control.
pub(super) fn supports_drawing() -> bool {
    output::is_terminal() && output::can_move_cursor()
}

impl Terminal {
    /// Enters drawing mode.
    pub(super) fn open() -> Result<Self, Failure> {
        let resized = listen_for(SignalKind::window_change())?;
        let suspended = listen_for(SignalKind::from_raw(Number::TSTP.as_raw()))?;
        Ok(Self { keys: enter_drawing_mode(), resized, suspended })
    }

    /// Waits until it must be drawn again: it was resized, or Ctrl-Z stopped the process until now.
    pub(super) async fn redraw_needed(&mut self) {
        tokio::select! {
            _ = self.resized.recv() => {}
            _ = self.suspended.recv() => self.suspend(),
        }
    }

    /// Restores the terminal and stops the process until it is in the foreground again.
    fn suspend(&mut self) {
        restore_terminal(self.keys.take().as_ref());
        // The process stops here until the shell continues it.
        let _ = kill_process(getpid(), Number::STOP);
        self.keys = enter_drawing_mode();
    }

    /// Draws lines from the top and clears everything else.
    pub(super) fn draw(&self, text: &str) {
        // Each line overwrites the old one without clearing the screen, which avoids flicker.
        let lines: Vec<_> = text.lines().map(|line| format!("{line}{END_OF_LINE}")).collect();
        write(&format!("{HOME}{}{END_OF_SCREEN}", lines.join("\r\n")));
    }

    /// Columns and rows of the terminal.
    pub(super) fn size(&self) -> (usize, usize) {
        let reported = tcgetwinsize(io::stdout())
            .map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        reported.ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(USUAL_SIZE)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore_terminal(self.keys.as_ref());
    }
}

/// Enters the alternate screen, hides the cursor, and disables line buffering and echo. Returns the
/// previous input modes.
fn enter_drawing_mode() -> Option<Termios> {
    write(OPEN);
    let before = tcgetattr(io::stdin()).ok()?;
    let mut modes = before.clone();
    modes.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok()?;
    Some(before)
}

fn restore_terminal(keys: Option<&Termios>) {
    if let Some(before) = keys {
        // Fails only if the terminal is closed. Flush, so that the shell does not read typed keys.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, before);
    }
    write(CLOSE);
}

fn write(text: &str) {
    let mut terminal = io::stdout().lock();
    // Fails only if the terminal is closed.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

/// Alternate screen, hidden cursor, no line wrap: a wide character would push down all lines below.
const OPEN: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const CLOSE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
const HOME: &str = "\u{1b}[H";
const END_OF_LINE: &str = "\u{1b}[K";
const END_OF_SCREEN: &str = "\u{1b}[J";
/// Size of a terminal that does not report it.
const USUAL_SIZE: (usize, usize) = (80, 24);
