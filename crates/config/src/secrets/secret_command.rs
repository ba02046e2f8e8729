//! Execution of a command that fetches a secret.
//!
//! The command gets the whole environment of the configuration, because password managers keep
//! sessions and sockets there. Commands run one after the other, so that a password manager prompts
//! its user once and not for each command.
//!
//! Invariants: there is no shell; the program is looked up in absolute folders only; standard input
//! is empty; the command and all processes that it has started have ended when the result is
//! returned, at the latest at the time limit or at a cancellation. Of standard error only the last
//! line is used, in the error about a failure, and without what the command wrote to standard
//! output.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::reader::secret_file::{SecretError, TOO_LARGE};
use crate::reader::variables::Environment;
use weir_base::text::quote::quote;
use weir_upstream::process::process_group::{ProcessGroup, describe_end};
use weir_upstream::process::search_path::find_program;

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
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if !folder.as_os_str().is_empty() {
        process.current_dir(folder);
    }
    let child = process.spawn().map_err(|error| spawn_error(&error))?;
    let mut group = ProcessGroup::new(child);
    let (mut stdout, stderr) = (group.child.stdout.take(), group.child.stderr.take());
    // The buffer must not grow: a reallocation would leave an unwiped copy of the secret behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(max_bytes + SPARE_BYTES));
    let errors = RefCell::default();
    let read = async {
        if let Some(stdout) = &mut stdout {
            let read = stdout.take(max_bytes as u64 + 1).read_to_end(&mut bytes).await;
            read.map_err(|error| failed("cannot be read from", &error))?;
        }
        if bytes.len() > max_bytes { Err(TOO_LARGE) } else { Ok(()) }
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
                Err(SecretError::missing(what, RUN_BY_HAND))
            }
        }
    };
    let mut listen = pin!(keep_last(stderr, &errors));
    let mut is_silent = false;
    let ended = timeout(max_time, async {
        let mut run = pin!(async { tokio::try_join!(status, read) });
        loop {
            tokio::select! {
                ended = &mut run => break ended,
                () = &mut listen, if !is_silent => is_silent = true,
            }
        }
    })
    .await;
    group.kill();
    // The child is reaped here, so that it does not remain as a zombie; it was killed, so it ends
    // soon.
    let _ = timeout(REAP_TIMEOUT, group.child.wait()).await;
    let failure = match ended {
        Ok(Ok(((), ()))) => return Ok(bytes),
        _ if bytes.len() > max_bytes => return Err(TOO_LARGE),
        Ok(Err(failure)) => failure,
        Err(_) => {
            let what = format!("gave no secret within {} s", max_time.as_secs());
            SecretError::missing(what, "run it by hand to see what it waits for")
        }
    };
    // What the command wrote last may still be in the pipes, which its end has closed.
    let rest = async {
        if !is_silent {
            listen.await;
        }
        if let Some(stdout) = &mut stdout {
            let spare = (max_bytes + 1).saturating_sub(bytes.len());
            let _ = stdout.take(spare as u64).read_to_end(&mut bytes).await;
        }
    };
    let _ = timeout(REAP_TIMEOUT, rest).await;
    let errors = errors.borrow();
    Err(match last_line(&errors, &bytes, environment) {
        Some(line) => {
            let what = format!("{}, and said \"{line}\"", failure.what);
            SecretError { what: what.into(), ..failure }
        }
        None => failure,
    })
}

/// Reads standard error to its end and keeps the last bytes of it.
async fn keep_last(stderr: Option<ChildStderr>, last: &RefCell<Zeroizing<Vec<u8>>>) {
    let Some(mut stderr) = stderr else { return };
    let mut read = Zeroizing::new([0_u8; MAX_ERROR_BYTES]);
    while let Ok(length @ 1..) = stderr.read(&mut read[..]).await {
        let mut last = last.borrow_mut();
        last.extend_from_slice(&read[..length]);
        let surplus = last.len().saturating_sub(MAX_ERROR_BYTES);
        last.drain(..surplus);
    }
}

/// Returns the last line of standard error, bounded and without control characters, and without
/// words of the output or values of variables that hold secrets.
fn last_line(errors: &[u8], output: &[u8], environment: &Environment) -> Option<String> {
    let (errors, output) = (String::from_utf8_lossy(errors), String::from_utf8_lossy(output));
    let mut line = errors.lines().rfind(|line| !line.trim().is_empty())?.to_owned();
    let variables = environment.iter().filter(|(name, _)| {
        let name = name.to_string_lossy().to_ascii_uppercase();
        SECRET_NAMES.iter().any(|word| name.contains(word))
    });
    let variables: Vec<_> = variables.map(|(_, value)| value.to_string_lossy()).collect();
    let secrets = output.split_whitespace().chain(variables.iter().map(|value| &**value));
    for secret in secrets.filter(|secret| secret.len() >= MIN_SECRET_BYTES) {
        line = line.replace(secret, "***");
    }
    Some(quote(&line, MAX_LINE_CHARS))
}

fn spawn_error(error: &io::Error) -> SecretError {
    match error.kind() {
        io::ErrorKind::NotFound => SecretError::missing(
            "is not there",
            "install it, or write its whole path; each argument is a string of its own",
        ),
        io::ErrorKind::PermissionDenied => {
            SecretError::missing("may not be executed", "check its permissions")
        }
        _ => failed("cannot be started", error),
    }
}

fn failed(what: &str, error: &io::Error) -> SecretError {
    SecretError::missing(format!("{what}: {error}"), RUN_BY_HAND)
}

/// Time limit of a command: long enough to touch a security key or type a password.
const MAX_RUN_TIME: Duration = Duration::from_secs(30);

/// Time to wait for the end of a killed command.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

const RUN_BY_HAND: &str = "run it by hand to see what it says";

/// Last bytes of standard error that are kept.
const MAX_ERROR_BYTES: usize = 4 * 1024;

/// Longest part of a line of standard error that an error contains.
const MAX_LINE_CHARS: usize = 200;

/// Parts of the names of variables that hold secrets.
const SECRET_NAMES: [&str; 6] = ["TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "SESSION"];

/// Shortest word that is replaced in a line of standard error: shorter ones are parts of others.
const MIN_SECRET_BYTES: usize = 4;

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
    async fn a_failure_has_the_last_line_of_standard_error_without_the_secret() {
        let said = async |script: &str| sh(script, Path::new(""), MAX_RUN_TIME).await;
        assert_eq!(
            said("echo one >&2; printf 'no \\033[1msession\\n\\n' >&2; exit 1").await,
            Err(r#"failed with exit code 1, and said "no \u{1b}[1msession""#.to_owned())
        );
        assert_eq!(
            said("echo hunter2; echo 'hunter2 is too short' >&2; exit 1").await,
            Err(r#"failed with exit code 1, and said "*** is too short""#.to_owned())
        );
        assert_eq!(said("exit 1").await, Err("failed with exit code 1".to_owned()));
        assert_eq!(said("echo x >&2; echo hunter2").await.as_deref(), Ok("hunter2\n"));
        // More than a pipe holds.
        let long = said("head -c 200000 /dev/zero | tr '\\0' x >&2; exit 1").await;
        let long = long.expect_err("it fails");
        assert!(long.len() < 300 && long.ends_with("xxx…\""), "{long}");
    }

    #[test]
    fn values_of_variables_with_secrets_are_not_repeated() {
        let variables = [("OP_SESSION_me", "hunter2"), ("LANG", "german")];
        let environment: Environment = variables.into_iter().collect();
        let line = last_line(b"hunter2 in german\n", b"", &environment);
        assert_eq!(line.as_deref(), Some("*** in german"));
    }

    #[tokio::test]
    async fn a_command_can_be_run_from_within_a_runtime() {
        let environment = std::env::vars_os().collect();
        let (command, stop) = (["printf", "x"].map(str::to_owned), CancellationToken::new());
        let bytes = run(&command, Path::new(""), &environment, 1, &stop);
        assert_eq!(bytes.ok().as_deref().map(Vec::as_slice), Some(&b"x"[..]));
    }
}
