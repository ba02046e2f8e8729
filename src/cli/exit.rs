//! Failures of commands: message and exit code.

use std::process::ExitCode;

use serde::Serialize;

use weir_config::{ConfigProblem, ConfigReport, Severity};

/// A command's failure, sorted by who has to act.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// A check found a difference or a problem. Exit code 1.
    #[error("{0}")]
    CheckFailed(String),
    /// Invalid arguments, as formatted by clap. Exit code 2.
    #[error("{0}")]
    Arguments(String),
    /// The arguments name something that does not exist. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Credentials are missing or wrong. Exit code 3.
    #[error("{0}")]
    Unauthenticated(String),
    /// An upstream, or the address to listen on, cannot be reached. Exit code 4.
    #[error("{0}")]
    Unreachable(String),
    /// No Weir of the configuration runs. Exit code 4.
    #[error("{0}")]
    NotRunning(String),
    /// The response was an error, or the audit log is not intact. Exit code 5.
    #[error("{0}")]
    ErrorResponse(String),
    /// The policy does not allow it. Exit code 6.
    #[error("{0}")]
    Denied(String),
    /// The output could not be written. Exit code 74 (`EX_IOERR` of sysexits).
    #[error("standard output cannot be written to: {0}")]
    Output(std::io::Error),
    /// The configuration is invalid. Exit code 78 (`EX_CONFIG` of sysexits).
    #[error("{}", summarize(.0))]
    Config(ConfigReport),
    /// There is no configuration, or the command cannot use it. Exit code 78.
    #[error("{0}")]
    NoConfig(String),
    /// Stopped by the signal of this number. Exit code 128 plus the number, as in shells.
    #[error("stopped by signal {0}")]
    Stopped(u8),
}

impl Failure {
    /// Exit code of the process.
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Self::CheckFailed(_) => 1,
            Self::Arguments(_) | Self::Usage(_) => 2,
            Self::Unauthenticated(_) => 3,
            Self::Unreachable(_) | Self::NotRunning(_) => 4,
            Self::ErrorResponse(_) => 5,
            Self::Denied(_) => 6,
            Self::Output(_) => 74,
            Self::Config(_) | Self::NoConfig(_) => 78,
            Self::Stopped(signal) => 128_u8.saturating_add(*signal),
        }
    }

    /// Formats the failure, whose text is `error`, as one line of JSON.
    pub(super) fn to_json(&self, error: &str) -> String {
        let problems = match self {
            Self::Config(report) => Some(problems(report.problems())),
            _ => None,
        };
        let (error, exit_code) = (error.to_owned(), self.code());
        // Encoding cannot fail: every member has a JSON form.
        serde_json::to_string(&FailureReport { error, exit_code, problems }).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct FailureReport {
    error: String,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<Vec<ProblemReport>>,
}

/// Problem of a configuration in JSON output.
#[derive(Clone, Default, Serialize)]
pub(super) struct ProblemReport {
    pub(super) severity: &'static str,
    /// `None` for a problem that only the running upstreams show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) column: Option<usize>,
    pub(super) key: String,
    pub(super) what: String,
    pub(super) remedy: String,
}

/// Returns the problems of a configuration for JSON output.
pub(super) fn problems(problems: &[ConfigProblem]) -> Vec<ProblemReport> {
    let report = |problem: &ConfigProblem| {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let (line, column) = problem.position().unzip();
        let file = Some(problem.file().to_owned());
        let ConfigProblem { key, what, remedy, .. } = problem.clone();
        ProblemReport { severity, file, line, column, key, what, remedy }
    };
    problems.iter().map(report).collect()
}

/// Returns the errors of a report; there is at least one.
pub(super) fn errors(report: &ConfigReport) -> impl Iterator<Item = &ConfigProblem> + Clone {
    report.problems().iter().filter(|problem| problem.severity == Severity::Error)
}

/// Describes the mistake and its place on one line.
pub(super) fn describe_problem(problem: &ConfigProblem) -> String {
    match (problem.location(), &*problem.key) {
        (place, "") => format!("{place}: {}", problem.what),
        (place, key) => format!("{place}: {key}: {}", problem.what),
    }
}

/// Describes the first error and its remedy, and counts the others.
fn summarize(report: &ConfigReport) -> String {
    let mut errors = errors(report);
    let first = errors.next().map(|it| format!("{}; {}", describe_problem(it), it.remedy));
    match (first.unwrap_or_default(), errors.count()) {
        (first, 0) => first,
        (first, more) => format!("{first} (and {more} more)"),
    }
}
