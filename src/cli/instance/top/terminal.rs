//! The terminal that `weir top` draws on: its other screen, its keys, its size.
//!
//! Promises: dropped, the terminal is as it was before; nothing that is drawn wraps or moves what stands below it.
//!
//! Knows nothing of: what is drawn, and which key means what.

use std::io::{self, IsTerminal, Write};

use rustix::process::{Signal as Number, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::exit::Failure;

/// A terminal that is drawn on. Dropped, it is as it was.
pub(super) struct Terminal {
    keys: Option<Termios>,
    resized: Signal,
    suspended: Signal,
}

/// What a terminal asks of whoever draws on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// To be drawn on anew: it has another size, or shows us again.
    Draw,
    /// To be given back for a while (Ctrl-Z).
    Rest,
}

/// Whether standard output is a terminal on which places can be named.
pub(super) fn is_drawable() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

impl Terminal {
    /// Takes it over.
    pub(super) fn open() -> Result<Self, Failure> {
        let heard = |kind| {
            signal(kind).map_err(|error| Failure::Unreachable(format!("no signals: {error}")))
        };
        let resized = heard(SignalKind::window_change())?;
        let suspended = heard(SignalKind::from_raw(Number::TSTP.as_raw()))?;
        Ok(Self { keys: take(), resized, suspended })
    }

    /// Waits for what it asks for.
    pub(super) async fn wish(&mut self) -> Wish {
        tokio::select! {
            _ = self.resized.recv() => Wish::Draw,
            _ = self.suspended.recv() => Wish::Rest,
        }
    }

    /// Gives it back until the program is in the foreground again.
    pub(super) fn rest(&mut self) {
        give_back(self.keys.take().as_ref());
        // It goes on behind this line, when the shell says so.
        let _ = kill_process(getpid(), Number::STOP);
        self.keys = take();
    }

    /// Draws lines from the top, and leaves nothing of what was there before.
    pub(super) fn draw(&self, text: &str) {
        // Each line replaces what stood there: so nothing flickers.
        let lines: Vec<_> = text.lines().map(|line| format!("{line}{END_OF_LINE}")).collect();
        write(&format!("{HOME}{}{END_OF_SCREEN}", lines.join("\r\n")));
    }

    /// How many columns and rows it has.
    pub(super) fn size(&self) -> (usize, usize) {
        let told = tcgetwinsize(io::stdout())
            .map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        told.ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(USUAL_SIZE)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back(self.keys.as_ref());
    }
}

/// Goes to the other screen, without a cursor, and hears keys one by one, which are not shown. Returns how keys were
/// heard before.
fn take() -> Option<Termios> {
    write(OPEN);
    let before = tcgetattr(io::stdin()).ok()?;
    let mut modes = before.clone();
    modes.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok()?;
    Some(before)
}

fn give_back(keys: Option<&Termios>) {
    if let Some(before) = keys {
        // A terminal that is gone needs nothing any more. What was typed at us is not for the shell.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, before);
    }
    write(CLOSE);
}

fn write(text: &str) {
    let mut terminal = io::stdout().lock();
    // Whoever closes the terminal sees nothing any more.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

/// The other screen, no cursor, and no line that wraps: a wide character would push all below it down.
const OPEN: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const CLOSE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
const HOME: &str = "\u{1b}[H";
const END_OF_LINE: &str = "\u{1b}[K";
const END_OF_SCREEN: &str = "\u{1b}[J";
/// Of a terminal that does not tell.
const USUAL_SIZE: (usize, usize) = (80, 24);
