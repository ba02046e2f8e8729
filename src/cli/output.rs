//! Output of commands: data to standard output, everything else to standard error.
//!
//! Invariants: data that cannot be written is a failure, unless the reader closed the pipe; a
//! failed write to standard error is ignored; only terminals that support colors receive them.

pub(crate) mod command_hints;
pub(crate) mod definition_diff;
pub(crate) mod progress;
pub(crate) mod render;
pub(crate) mod trace;
pub(crate) mod wrapped_text;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use clap::ValueEnum;
use serde::Serialize;

use super::exit::Failure;
use weir_oauth::RESPONSE_TIMEOUT;
use wrapped_text::WrappedText;

/// Value of `--color`. `auto` follows the usual variables: `NO_COLOR`, `CLICOLOR`,
/// `CLICOLOR_FORCE`, `TERM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    /// Sets the choice for all later output of the process, clap's own messages included.
    pub(super) fn apply(self) {
        let choice = match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }

    /// Reads `--color` from arguments that are not parsed yet: the choice also applies to the
    /// message that they are invalid.
    pub(super) fn from_arguments<S: AsRef<OsStr>>(arguments: &[S]) -> Self {
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

    /// Returns whether standard output is colored.
    pub(super) fn on_stdout() -> bool {
        let choice = anstream::AutoStream::choice(&std::io::stdout());
        choice != anstream::ColorChoice::Never
    }

    /// Returns whether standard error is colored.
    pub(super) fn on_stderr() -> bool {
        let choice = anstream::AutoStream::choice(&std::io::stderr());
        choice != anstream::ColorChoice::Never
    }
}

/// Returns whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns whether the terminal can move its cursor, according to `TERM`.
pub(super) fn can_move_cursor() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Width of standard output: of its terminal, else `COLUMNS`, else 80.
pub(super) fn columns() -> usize {
    columns_of(std::io::stdout())
}

/// Width of standard error, like [`columns`].
pub(super) fn stderr_columns() -> usize {
    columns_of(std::io::stderr())
}

fn columns_of(stream: impl AsFd) -> usize {
    let terminal = rustix::termios::tcgetwinsize(stream).map(|size| usize::from(size.ws_col));
    let terminal = terminal.ok().filter(|columns| *columns > 0);
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(variable).filter(|columns| *columns >= MIN_COLUMNS).unwrap_or(80)
}

/// Smallest width that is believed; narrower output is unreadable.
const MIN_COLUMNS: usize = 20;

/// Creates a text for standard output: wrapped if that is a terminal.
pub(super) fn stdout_text() -> WrappedText {
    let columns = if is_terminal() { columns() } else { usize::MAX };
    WrappedText::new(columns, Color::on_stdout())
}

/// Creates a text for standard error, likewise.
pub(super) fn stderr_text() -> WrappedText {
    let is_terminal = std::io::stderr().is_terminal();
    let columns = if is_terminal { stderr_columns() } else { usize::MAX };
    WrappedText::new(columns, Color::on_stderr())
}

/// Writes data to standard output unchanged.
pub(super) fn print(
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    print_while_read(write).map(|_| ())
}

/// Writes data to standard output unchanged, and returns whether there is a reader for more.
pub(super) fn print_while_read(
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<bool, Failure> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let written = write(&mut out).and_then(|()| out.flush());
    // Dropping the writer would flush the rest again; after a failed write that must not happen.
    let (_, _) = out.into_parts();
    match written {
        // A reader that needs no more data closes the pipe; that is not a failure.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(Failure::Output),
    }
}

/// Writes a report to standard output: as one line of JSON, or as `write_text` writes it.
pub(super) fn print_report(
    json: bool,
    report: &impl Serialize,
    write_text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    print_as(json.then(|| to_json(report)).as_deref(), write_text)
}

/// Writes to standard output: JSON on one line, or without it as `write_text` writes it.
pub(super) fn print_as(
    json: Option<&str>,
    write_text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    print(|out| match json {
        Some(json) => writeln!(out, "{}", render::sanitize_json(json, is_terminal())),
        None => write_text(out),
    })
}

/// Encodes a report as JSON on one line.
pub(super) fn to_json(report: &impl Serialize) -> String {
    // Encoding cannot fail: every member has a JSON form.
    serde_json::to_string(report).unwrap_or_default()
}

/// Describes what Weir waits for at its end.
pub(super) fn waiting_for_answer(upstreams: &[String]) -> String {
    let upstreams = upstreams.iter().map(|name| format!("`{}`", render::sanitize_line(name)));
    let upstreams = upstreams.collect::<Vec<_>>().join(" and ");
    format!(
        "waiting for the answer of the authorization server of {upstreams}, for at most {} s: \
         without it the sign-in would be lost",
        RESPONSE_TIMEOUT.as_secs()
    )
}

/// Writes that to standard error: as text, or as one line of JSON.
pub(super) fn print_waiting_for_answer(upstreams: &[String], json: bool) {
    let message = waiting_for_answer(upstreams);
    match json {
        true => print_unwrapped(&to_json(&BTreeMap::from([("message", message)]))),
        false => print_stderr(&message),
    }
}

/// Writes lines to standard error, without their colors where they are disabled. On a terminal they
/// break between words. Commands of Weir in them get the user's file.
pub(super) fn print_stderr(text: &str) {
    let text = command_hints::complete(text);
    if !std::io::stderr().is_terminal() {
        return print_unwrapped(&text);
    }
    let mut wrapped = WrappedText::new(stderr_columns(), false);
    text.split('\n').for_each(|line| wrapped.add_line(line));
    let wrapped = wrapped.finish();
    print_unwrapped(wrapped.strip_suffix('\n').unwrap_or(&wrapped));
}

/// Writes sentences to standard error.
pub(super) fn print_message(text: &str) {
    print_stderr(text.trim_end_matches('\n'));
}

/// Writes a line to standard error as it is.
fn print_unwrapped(line: &str) {
    // A broken standard error cannot be reported anywhere.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Writes a failure to standard error: as text, or as one line of JSON.
pub(super) fn print_failure(failure: &Failure, json: bool) {
    match failure {
        _ if json => {
            let error = failure.to_string();
            let report = failure.to_json(&command_hints::complete(&error));
            print_unwrapped(&render::sanitize_json(&report, true));
        }
        // The user who pressed Ctrl-C needs no message.
        Failure::Stopped(_) => {}
        // clap formats its messages itself.
        Failure::Arguments(text) => print_unwrapped(text.trim_end()),
        // The drawn report needs no prefix.
        Failure::Config(report) => print_stderr(&report.render(true)),
        // Each of these texts may contain names from an upstream, so it is sanitized.
        _ => print_message(&format!("weir: {}", render::sanitize_text(&failure.to_string()))),
    }
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
            assert_eq!(Color::from_arguments(arguments), expected, "{arguments:?}");
        }
    }
}
