//! Execution of a command that fetches a secret.
//!
//! The command gets the whole environment of the configuration, because password managers keep
//! sessions and sockets there. Commands run one after the other, so that a password manager prompts
//! its user once and not for each command.
//!
//! Invariants: there is no shell; the program is looked up in absolute folders only; standard input
//! is empty, and standard error is discarded; the command and all processes that it has started
//! have ended when the result is returned, at the latest at the time limit or at a cancellation.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::reader::report::ValueError;
use crate::reader::variables::Environment;
use weir_upstream::process::process_group::{ProcessGroup, describe_end};
use weir_upstream::process::search_path::find_program;

/// Reason why a program or a file yields no secret, as a text that follows its name.
pub(super) struct SecretError {
    pub(super) what: Cow<'static, str>,
    pub(super) remedy: &'static str,
}

impl SecretError {
    pub(super) fn new(what: impl Into<Cow<'static, str>>, remedy: &'static str) -> Self {
        Self { what: what.into(), remedy }
    }

    /// Makes an error about a program or a file, by its name in the configuration.
    pub(super) fn about(&self, name: &str) -> ValueError {
        ValueError::new(format!("{name} {}", self.what), self.remedy)
    }
}

/// Runs a command in a folder and returns its output of at most `max_bytes`.
pub(super) fn run(
    command: &[String],
    folder: &Path,
    environment: &Environment,
    max_bytes: usize,
    stop: &CancellationToken,
) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("cannot be run", &error))?;
        let output = output(command, folder, environment, max_bytes, MAX_RUN_TIME);
        // The future kills its processes when it is dropped.
        let output = runtime.block_on(stop.run_until_cancelled(output));
        output.unwrap_or_else(|| {
            Err(SecretError::new("was stopped before it gave the secret", "run Weir again"))
        })
    };
    // The command runs on a thread of its own, because the caller may be inside a runtime already,
    // where `block_on` panics.
    let run = std::thread::scope(|scope| scope.spawn(run).join());
    run.unwrap_or_else(|_| Err(SecretError::new("cannot be run", "this is a mistake in Weir")))
}

async fn output(
    command: &[String],
    folder: &Path,
    environment: &Environment,
    max_bytes: usize,
    max_time: Duration,
) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| SecretError::new("it names no program", "name one"))?;
    let path = environment.get("PATH").ok().flatten();
    let program = find_program(program, path, folder).map_err(|error| spawn_error(&error))?;
    let mut process = Command::new(program);
    process
        .args(arguments)
        .env_clear()
        .envs(environment.iter())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    if !folder.as_os_str().is_empty() {
        process.current_dir(folder);
    }
    let child = process.spawn().map_err(|error| spawn_error(&error))?;
    let mut group = ProcessGroup::new(child);
    let stdout = group.child.stdout.take();
    let read = async {
        // The buffer must not grow: a reallocation would leave an unwiped copy of the secret
        // behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(max_bytes + SPARE_BYTES));
        if let Some(stdout) = stdout {
            let read = stdout.take(max_bytes as u64 + 1).read_to_end(&mut bytes).await;
            read.map_err(|error| failed("cannot be read from", &error))?;
        }
        match bytes.len() > max_bytes {
            true => Err(TOO_LARGE),
            false => Ok(bytes),
        }
    };
    let status = async {
        let status = group.child.wait().await;
        let status = status.map_err(|error| failed("cannot be waited for", &error))?;
        // A process that the command has started may keep the output open.
        group.kill();
        match status.success() {
            true => Ok(()),
            false => {
                let what = describe_end(status, "failed with exit code", "failed");
                Err(SecretError::new(what, RUN_BY_HAND))
            }
        }
    };
    let ended = timeout(max_time, async { tokio::try_join!(status, read) }).await;
    group.kill();
    // The child is reaped here, so that it does not remain as a zombie; it was killed, so it ends
    // soon.
    let _ = timeout(REAP_TIMEOUT, group.child.wait()).await;
    match ended {
        Ok(ended) => ended.map(|((), bytes)| bytes),
        Err(_) => {
            let what = format!("gave no secret within {} s", max_time.as_secs());
            Err(SecretError::new(what, "run it by hand to see what it waits for"))
        }
    }
}

fn spawn_error(error: &io::Error) -> SecretError {
    match error.kind() {
        io::ErrorKind::NotFound => SecretError::new(
            "is not there",
            "install it, or write its whole path; each argument is a string of its own",
        ),
        io::ErrorKind::PermissionDenied => {
            SecretError::new("may not be executed", "check its permissions")
        }
        _ => failed("cannot be started", error),
    }
}

fn failed(what: &str, error: &io::Error) -> SecretError {
    SecretError::new(format!("{what}: {error}"), RUN_BY_HAND)
}

/// Time limit of a command: long enough to touch a security key or type a password.
const MAX_RUN_TIME: Duration = Duration::from_secs(30);

/// Time to wait for the end of a killed command.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

const RUN_BY_HAND: &str = "run it by hand to see what it says";

/// Error for a file or an output that is too large.
pub(super) const TOO_LARGE: SecretError = SecretError {
    what: Cow::Borrowed("gives more than 64 KiB"),
    remedy: "check that it gives the secret alone",
};

/// Spare capacity, because reading to the end tries to read past the last byte.
const SPARE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    //! With real processes.

    use super::*;

    async fn sh(script: &str, folder: &Path, max_time: Duration) -> Result<String, String> {
        let command = ["sh", "-c", script].map(str::to_owned);
        let environment: Environment =
            std::env::vars_os().filter(|(name, _)| name == "PATH").collect();
        let output = output(&command, folder, &environment, 64, max_time).await;
        let text = |bytes: Zeroizing<Vec<u8>>| String::from_utf8_lossy(&bytes).into_owned();
        output.map(text).map_err(|refusal| refusal.what.into_owned())
    }

    /// Waits until a process has ended; a zombie counts as ended.
    fn wait_until_gone(process: &str) {
        let status = format!("/proc/{}/status", process.trim());
        let runs = || {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            let state = status.lines().find_map(|line| line.strip_prefix("State:"));
            state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
        };
        while runs() {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn a_command_gets_the_environment_that_was_handed_in_and_no_input() {
        let messages =
            sh("env | grep -c CARGO; read x || echo none", Path::new(""), MAX_RUN_TIME).await;
        assert_eq!(messages.as_deref(), Ok("0\nnone\n"));
    }

    #[tokio::test]
    async fn what_a_command_leaves_behind_goes_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        // The process that is left behind keeps the output open.
        let messages =
            sh("sleep 1000 & echo $! > left; echo hunter2", folder.path(), MAX_RUN_TIME).await;
        assert_eq!(messages.as_deref(), Ok("hunter2\n"));
        wait_until_gone(&std::fs::read_to_string(folder.path().join("left")).expect("a number"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_takes_too_long_is_ended_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "echo hunter2; sleep 1000 & echo $! > left; echo $$ > self; wait";
        let last = folder.path().join("self");
        // The paused clock stands still while a blocking thread is at work.
        let waits = tokio::task::spawn_blocking(move || {
            let (begin, patience) = (std::time::Instant::now(), Duration::from_secs(60));
            let is_written =
                || std::fs::read_to_string(&last).is_ok_and(|text| text.ends_with('\n'));
            while !is_written() && begin.elapsed() < patience {
                std::thread::yield_now();
            }
        });
        let messages = sh(script, folder.path(), Duration::from_secs(3)).await;
        waits.await.expect("no panic");
        assert_eq!(messages, Err("gave no secret within 3 s".to_owned()));
        for process in ["left", "self"] {
            wait_until_gone(
                &std::fs::read_to_string(folder.path().join(process)).expect("a number"),
            );
        }
    }

    #[tokio::test]
    async fn a_command_that_talks_without_end_is_ended() {
        let messages =
            sh("trap '' PIPE; while :; do echo hunter2; done", Path::new(""), MAX_RUN_TIME).await;
        assert_eq!(messages, Err("gives more than 64 KiB".to_owned()));
    }

    #[tokio::test]
    async fn a_command_can_be_run_from_within_a_runtime() {
        let environment = std::env::vars_os().collect();
        let (command, stop) = (["printf", "x"].map(str::to_owned), CancellationToken::new());
        let bytes = run(&command, Path::new(""), &environment, 1, &stop);
        assert_eq!(bytes.ok().as_deref().map(Vec::as_slice), Some(&b"x"[..]));
    }
}
