//! Start of a child process, and its end.
//!
//! Invariants: a child process gets exactly the environment that is configured, leads its own
//! process group, and does not outlive Weir: not after an orderly end, and on Linux not after any
//! other. Its descendants end with it; on Linux also those that left its group. Errors are texts
//! for the operator.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::process::{Signal, kill_process};

use crate::connect::{Child, ChildCommand, ProcessHandle};
use crate::process::deadline::Deadline;
use crate::process::process_group::{ProcessGroup, describe_end, to_pid};
#[cfg(target_os = "linux")]
use crate::process::reaper;
use crate::process::{self, spawner};

/// Starts a process; behind a reaper if this process is the `weir` program, which `has_shim`.
pub(crate) fn start(
    command: &ChildCommand,
    has_shim: bool,
    deadline: Option<&Deadline>,
) -> io::Result<Child> {
    // Open until the process has inherited it.
    #[cfg(target_os = "linux")]
    let deadline = deadline.map(Deadline::inheritable).transpose()?;
    let deadline_number = deadline_number(deadline.as_ref());
    let mut process = match has_shim {
        false => tokio::process::Command::new(&command.program),
        true => {
            let mut process = tokio::process::Command::new(process::SELF_EXE);
            process
                .arg(process::REAPER_MARK)
                .arg(std::process::id().to_string())
                .arg(deadline_number)
                .arg(&command.program);
            process
        }
    };
    process
        .args(&command.args)
        .env_clear()
        .envs(command.environment().map(|(name, value)| (name, value.expose())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Weir handles the signals of its terminal itself; and the child's descendants end with
        // its group.
        .process_group(0)
        // A reaper has to kill the child's descendants before it ends.
        .kill_on_drop(!has_shim);
    if let Some(cwd) = &command.cwd {
        if !cwd.is_dir() {
            return Err(io::Error::other(
                "the folder that `cwd` names is not there; make it, or correct `cwd`",
            ));
        }
        // Otherwise a folder without permission would be reported as a problem of the program.
        if let Err(error) = std::fs::metadata(cwd.join(".")) {
            let text = format!(
                "the folder that `cwd` names cannot be entered: {error}; check its permissions"
            );
            return Err(io::Error::new(error.kind(), text));
        }
        process.current_dir(cwd);
    }
    let started = match has_shim {
        false => process.spawn(),
        // The shim itself can always be started, and its own error would come late.
        true => check_program(command).and_then(|()| spawner::spawn(process)),
    };
    let mut child = started.map_err(|error| start_error(command, &error))?;
    let missing = || io::Error::other("a pipe to the process is missing");
    let stdin = Box::new(child.stdin.take().ok_or_else(missing)?);
    let stdout = Box::new(child.stdout.take().ok_or_else(missing)?);
    let stderr = Box::new(child.stderr.take().ok_or_else(missing)?);
    let process: Box<dyn ProcessHandle> = match has_shim {
        #[cfg(target_os = "linux")]
        true => Box::new(SupervisedProcess { reaper_process: child }),
        _ => Box::new(ProcessGroup::new(child)),
    };
    Ok(Child { stdin, stdout, stderr: Some(stderr), process })
}

/// Returns the number of the descriptor of a deadline, for a reaper.
#[cfg(target_os = "linux")]
fn deadline_number(deadline: Option<&std::os::fd::OwnedFd>) -> String {
    deadline.map_or("-".to_owned(), |it| std::os::fd::AsRawFd::as_raw_fd(it).to_string())
}

/// Only Linux has reapers.
#[cfg(not(target_os = "linux"))]
fn deadline_number(_: Option<&Deadline>) -> String {
    "-".to_owned()
}

/// Describes why a program cannot be started.
fn start_error(command: &ChildCommand, error: &io::Error) -> io::Error {
    let (program, shown) = (&command.program, &command.display_name);
    let text = match error.kind() {
        io::ErrorKind::NotFound if program.contains(' ') => {
            format!("no program `{shown}`: what follows the program's name goes into `args`")
        }
        io::ErrorKind::NotFound if program.contains('/') => {
            format!("no such program: {shown}; install it, or correct `command`")
        }
        io::ErrorKind::NotFound => {
            format!(
                "no program `{shown}` in PATH; install it, or write its whole path as `command`"
            )
        }
        // The system also returns this error if a folder of PATH cannot be entered and no other has
        // the program.
        io::ErrorKind::PermissionDenied if !program.contains('/') && !is_in_path(program) => {
            return start_error(command, &io::ErrorKind::NotFound.into());
        }
        io::ErrorKind::PermissionDenied => {
            format!("`{shown}` may not be executed; check its permissions")
        }
        _ => format!("`{shown}`: {error}"),
    };
    io::Error::new(error.kind(), text)
}

/// Looks up a program as the system would.
fn check_program(command: &ChildCommand) -> io::Result<()> {
    let check = |path: &Path| {
        let found = std::fs::metadata(path)?;
        match found.is_file() && found.permissions().mode() & 0o111 != 0 {
            true => Ok(()),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    };
    let cwd = command.cwd.as_deref().unwrap_or(Path::new(""));
    if command.program.contains('/') {
        return check(&cwd.join(&command.program));
    }
    let path = command.environment().rfind(|(name, _)| name == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, path)| path.expose());
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for folder in std::env::split_paths(path) {
        match check(&cwd.join(folder).join(&command.program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

/// Search path without PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Whether a readable folder of PATH contains a file of this name.
fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl ProcessHandle for ProcessGroup {
    fn wait(&mut self) -> BoxFuture<'_, String> {
        end_of(&mut self.child)
    }

    fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    fn kill(&mut self) {
        ProcessGroup::kill(self);
    }
}

// === SupervisedProcess ===

/// Process behind a reaper, which kills the descendants and then ends as the process did.
#[cfg(target_os = "linux")]
struct SupervisedProcess {
    reaper_process: tokio::process::Child,
}

#[cfg(target_os = "linux")]
impl SupervisedProcess {
    fn signal(&self, signal: Signal) {
        // The reaper has no id once it has been waited for; before that the id cannot have been
        // reused.
        if let Some(reaper) = self.reaper_process.id().and_then(to_pid) {
            let _ = kill_process(reaper, signal);
        }
    }
}

#[cfg(target_os = "linux")]
impl ProcessHandle for SupervisedProcess {
    fn wait(&mut self) -> BoxFuture<'_, String> {
        end_of(&mut self.reaper_process)
    }

    fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    fn kill(&mut self) {
        self.signal(reaper::END_ALL);
        // The reaper may have been stopped (SIGSTOP).
        self.signal(Signal::CONT);
    }
}

#[cfg(target_os = "linux")]
impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn end_of(child: &mut tokio::process::Child) -> BoxFuture<'_, String> {
    async {
        match child.wait().await {
            Ok(status) => describe_end(status, "exited with code", "ended"),
            Err(error) => format!("exit status unknown: {error}"),
        }
    }
    .boxed()
}
