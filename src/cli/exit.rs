//! How a command fails: what is said, and the exit code.

use std::fmt;
use std::process::ExitCode;

use super::output;
use crate::cli::query::render;
use crate::config::{Problem, Report, Severity};
use crate::json::{self, Object};

/// A command's failure, sorted by who has to act.
#[derive(Debug)]
pub(super) enum Failure {
    /// Something is not as it was approved, or as it should be. Exit code 1.
    Differs(String),
    /// The arguments are not what the command takes, in clap's own words and colors. Exit code 2.
    Arguments(String),
    /// The arguments name something that is not there. Exit code 2.
    Usage(String),
    /// Credentials are missing or wrong. Exit code 3.
    Unauthenticated(String),
    /// An upstream, or the address to listen on, cannot be reached. Exit code 4.
    Unreachable(String),
    /// The tool or prompt answered with an error. Exit code 5.
    Answered(String),
    /// The policy does not allow it. Exit code 6.
    Denied(String),
    /// What was asked for could not be written. Exit code 74 (`EX_IOERR` of sysexits).
    Output(std::io::Error),
    /// The configuration is wrong. Exit code 78 (`EX_CONFIG` of sysexits).
    Config(Report),
    /// There is no configuration, or it cannot be used as the command wants. Exit code 78.
    NoConfig(String),
    /// A signal of this number said stop. Exit code 128 and the number, as shells do it.
    Stopped(u8),
}

impl Failure {
    /// Says what happened on standard error: in words, or as one line of JSON.
    pub(super) fn tell(&self, json: bool) {
        match self {
            _ if json => output::tell(&render::shown_json(&self.to_json(), true)),
            // Whoever pressed Ctrl-C knows.
            Self::Stopped(_) => {}
            // What clap says has its own form.
            Self::Arguments(text) => output::tell(text.trim_end()),
            // Drawn problems speak for themselves.
            Self::Config(report) => output::tell(&report.draw(true)),
            // Names of an upstream's may stand in any of them.
            _ => output::tell(&format!("weir: {}", render::lines(&self.to_string()))),
        }
    }

    /// The process's exit code.
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Differs(_) => 1,
            Self::Arguments(_) | Self::Usage(_) => 2,
            Self::Unauthenticated(_) => 3,
            Self::Unreachable(_) => 4,
            Self::Answered(_) => 5,
            Self::Denied(_) => 6,
            Self::Output(_) => 74,
            Self::Config(_) | Self::NoConfig(_) => 78,
            Self::Stopped(signal) => 128_u8.saturating_add(*signal),
        }
    }

    fn to_json(&self) -> String {
        let mut object = Object::new();
        object.set("error", json::quote(&self.to_string()));
        object.set("exit_code", self.code().to_string());
        if let Self::Config(report) = self {
            object.set("problems", problems(report.problems()));
        }
        String::from_utf8_lossy(&object.to_bytes()).into_owned()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs(text)
            | Self::Arguments(text)
            | Self::Usage(text)
            | Self::Unauthenticated(text)
            | Self::Unreachable(text)
            | Self::Answered(text)
            | Self::Denied(text)
            | Self::NoConfig(text) => f.write_str(text),
            Self::Output(error) => write!(f, "standard output cannot be written to: {error}"),
            Self::Config(report) => {
                let mut errors =
                    report.problems().iter().filter(|it| it.severity == Severity::Error);
                // A report has at least one.
                if let Some(first) = errors.next() {
                    let key = if first.key.is_empty() { "" } else { ": " };
                    let (place, what) = (first.place(), &first.what);
                    write!(f, "{place}: {}{key}{what}; {}", first.key, first.remedy)?;
                }
                match errors.count() {
                    0 => Ok(()),
                    more => write!(f, " (and {more} more)"),
                }
            }
            Self::Stopped(signal) => write!(f, "stopped by signal {signal}"),
        }
    }
}

/// Problems of a configuration file as a JSON array.
pub(super) fn problems(problems: &[Problem]) -> String {
    let problems = problems.iter().map(|problem| {
        let mut object = Object::new();
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let mut set = |member: &'static str, text: &str| object.set(member, json::quote(text));
        set("severity", severity);
        set("file", problem.file());
        if let Some((line, column)) = problem.position() {
            object.set("line", line.to_string());
            object.set("column", column.to_string());
        }
        let mut set = |member: &'static str, text: &str| object.set(member, json::quote(text));
        set("key", &problem.key);
        set("what", &problem.what);
        set("remedy", &problem.remedy);
        String::from_utf8_lossy(&object.to_bytes()).into_owned()
    });
    format!("[{}]", problems.collect::<Vec<_>>().join(","))
}
