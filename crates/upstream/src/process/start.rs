//! Start of a child process, and its end.
//!
//! Invariants: a child process gets exactly the environment that is configured, leads its own
//! process group, and does not outlive Weir: not after an orderly end, and on Linux not after any
//! other. Its descendants end with it; on Linux also those that left its group. Its program is
//! looked up in absolute folders only. Errors are texts for the operator.

use std::io;
use std::path::Path;
use std::process::Stdio;

use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::process::{Signal, kill_process};

use crate::process::child::{Child, ProcessHandle};
use crate::process::child_command::ChildCommand;
use crate::process::deadline::Deadline;
use crate::process::process_group::{ProcessGroup, describe_end, to_pid};
#[cfg(target_os = "linux")]
use crate::process::reaper;
use crate::process::search_path::find_program;
use crate::process::{self, spawner};
use weir_base::secrets::secret::Secret;

/// Starts a process; behind a reaper if this process is the `weir` program, which `has_shim`.
pub(crate) fn start(
    command: &ChildCommand,
    has_shim: bool,
    terminal: ControllingTerminal,
    deadline: Option<&Deadline>,
) -> io::Result<Child> {
    let folder = command.cwd.as_deref().map(check_folder).transpose()?;
    let seen_from = folder.unwrap_or(Path::new(""));
    let program = find_program(&command.program, command.search_path(), seen_from)
        .map_err(|error| start_error(command, &error))?;
    // Open until the process has inherited it.
    #[cfg(target_os = "linux")]
    let deadline = deadline.map(Deadline::inheritable).transpose()?;
    let deadline_number = deadline_number(deadline.as_ref());
    let mut process = match has_shim {
        false => tokio::process::Command::new(program),
        true => {
            let mut process = tokio::process::Command::new(process::SELF_EXE);
            process
                .arg(process::REAPER_MARK)
                .arg(std::process::id().to_string())
                .arg(deadline_number)
                .arg(terminal.mark())
                .arg(program);
            process
        }
    };
    process
        .args(command.args.iter().map(Secret::expose))
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
    if let Some(folder) = folder {
        process.current_dir(folder);
    }
    let started = match has_shim {
        false => process.spawn(),
        true => spawner::spawn(process),
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

/// Relation of a process to the terminal from which Weir was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControllingTerminal {
    /// The process has that terminal.
    Inherited,
    /// A process behind a reaper has no terminal: an interactive shell, which is not in front of
    /// it, would be stopped.
    Without,
}

impl ControllingTerminal {
    /// Argument of the reaper.
    fn mark(self) -> &'static str {
        match self {
            Self::Inherited => process::SHIM_MARK,
            Self::Without => process::SESSION_MARK,
        }
    }
}

/// Returns the working directory of a command if it can be entered.
fn check_folder(folder: &Path) -> io::Result<&Path> {
    if !folder.is_dir() {
        return Err(io::Error::other(
            "the folder that `cwd` names is not there; make it, or correct `cwd`",
        ));
    }
    // Otherwise a folder without permission would be reported as a problem of the program.
    match std::fs::metadata(folder.join(".")) {
        Ok(_) => Ok(folder),
        Err(error) => {
            let text = format!(
                "the folder that `cwd` names cannot be entered: {error}; check its permissions"
            );
            Err(io::Error::new(error.kind(), text))
        }
    }
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
        io::ErrorKind::PermissionDenied => {
            format!("`{shown}` may not be executed; check its permissions")
        }
        _ => format!("`{shown}`: {error}"),
    };
    io::Error::new(error.kind(), text)
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
