//! Where a command writes: data to standard output, everything else to standard error.
//!
//! Promises: data that could not be written is a failure, but for a reader that has seen enough; a
//! standard error that cannot be written to stops nobody; colors are for terminals that want them.

use std::ffi::OsStr;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};

use clap::ValueEnum;

use super::exit::Failure;

/// When to write colors. What `auto` means is left to the usual variables: `NO_COLOR`, `CLICOLOR`,
/// `CLICOLOR_FORCE`, `TERM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    /// Holds for all that is written from now on, clap's own messages included.
    pub(super) fn apply(self) {
        let choice = match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }

    /// What the arguments say, before they are known to be good: it holds for the message that they
    /// are not.
    pub(super) fn of_arguments<S: AsRef<OsStr>>(arguments: &[S]) -> Self {
        let mut arguments = arguments.iter().filter_map(|argument| argument.as_ref().to_str());
        let mut color = Self::Auto;
        while let Some(argument) = arguments.next().filter(|argument| *argument != "--") {
            let value = match argument.strip_prefix("--color") {
                Some("") => arguments.next(),
                Some(value) => value.strip_prefix('='),
                None => None,
            };
            color = value.and_then(|it| Self::from_str(it, false).ok()).unwrap_or(color);
        }
        color
    }

    /// Whether standard output gets colors.
    pub(super) fn on_stdout() -> bool {
        let choice = anstream::AutoStream::choice(&std::io::stdout());
        choice != anstream::ColorChoice::Never
    }

    /// Whether standard error gets colors.
    pub(super) fn on_stderr() -> bool {
        let choice = anstream::AutoStream::choice(&std::io::stderr());
        choice != anstream::ColorChoice::Never
    }
}

/// Whether somebody reads standard output on a terminal.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// How wide standard output is: what its terminal says, else `COLUMNS`, else what is usual.
pub(super) fn columns() -> usize {
    let told =
        rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| usize::from(size.ws_col));
    let told = told.ok().filter(|columns| *columns > 0);
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    told.or_else(variable).filter(|columns| *columns >= MIN_COLUMNS).unwrap_or(80)
}

/// Narrower than this nothing is readable.
const MIN_COLUMNS: usize = 20;

/// Writes data to standard output, as it is.
pub(super) fn print(
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let written = write(&mut out).and_then(|()| out.flush());
    // Nothing more is tried with what is left.
    let (_, _) = out.into_parts();
    match written {
        // A reader that has seen enough closes the pipe; that is no failure.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::Output),
    }
}

/// Writes a line to standard error; colors are left out where they are not wanted.
pub(super) fn tell(line: &str) {
    // There is no other place to say that this one is broken.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_color_counts_and_nothing_behind_the_two_dashes() {
        for (arguments, expected) in [
            (&["weir", "list"][..], Color::Auto),
            (&["weir", "--color", "never", "list"], Color::Never),
            (&["weir", "list", "--color=always"], Color::Always),
            (&["weir", "list", "--color=never", "--color", "always"], Color::Always),
            (&["weir", "list", "--color=pink"], Color::Auto),
            (&["weir", "get", "--", "--color=never"], Color::Auto),
        ] {
            assert_eq!(Color::of_arguments(arguments), expected, "{arguments:?}");
        }
    }
}
