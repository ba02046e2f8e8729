//! How a command fails: what is said, and the exit code.

use std::process::ExitCode;

use crate::config::Report;
use crate::json::{self, Object};

/// A command's failure, sorted by who has to act.
#[derive(Debug)]
pub(super) enum Failure {
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
    /// The configuration is wrong. Exit code 78 (`EX_CONFIG` of sysexits).
    Config(Report),
    /// There is no configuration, or it cannot be used as the command wants. Exit code 78.
    NoConfig(String),
}

impl Failure {
    /// Says what happened on standard error: in words, or as one line of JSON.
    pub(super) fn tell(&self, json: bool) {
        if json {
            let mut object = Object::new();
            object.set("error", json::quote(&self.text(false)));
            object.set("exit_code", self.code().to_string());
            anstream::eprintln!("{}", String::from_utf8_lossy(&object.to_bytes()));
            return;
        }
        match self {
            // Drawn problems speak for themselves.
            Self::Config(report) => anstream::eprintln!("{}", report.draw(true)),
            _ => anstream::eprintln!("weir: {}", self.text(true)),
        }
    }

    /// The process's exit code.
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Unauthenticated(_) => 3,
            Self::Unreachable(_) => 4,
            Self::Answered(_) => 5,
            Self::Denied(_) => 6,
            Self::Config(_) | Self::NoConfig(_) => 78,
        }
    }

    fn text(&self, styled: bool) -> String {
        match self {
            Self::Config(report) => report.draw(styled),
            Self::Usage(text)
            | Self::Unauthenticated(text)
            | Self::Unreachable(text)
            | Self::Answered(text)
            | Self::Denied(text)
            | Self::NoConfig(text) => text.clone(),
        }
    }
}
