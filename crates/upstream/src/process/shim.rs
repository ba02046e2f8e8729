//! Exec shim: Weir's own binary, started once more, which replaces itself with the program of a
//! child process.
//!
//! Some properties of a process can only be set from inside. The shim asks the kernel to end the
//! child when its reaper (`reaper.rs`) ends, however that happens, and closes inherited descriptors
//! that belong to Weir only. Started as the reaper, it becomes the reaper instead.
//!
//! Invariants: the shim does nothing else and leaves nothing behind: the program has the shim's
//! process, pipes, environment and working directory. If the program cannot be started, standard
//! error states the reason, and the exit code is `EXIT_NOT_STARTED`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, getppid, setsid};

#[cfg(target_os = "linux")]
use crate::process::reaper;
use crate::process::{
    EXIT_NOT_STARTED, REAPER_MARK, SESSION_MARK, SHIM_MARK, close_descriptors_from,
};

/// Becomes the program that the arguments name, if they are the shim's; `None` for all others. Has
/// to be the first call of the process: every descriptor that is open by then was inherited, and is
/// closed.
pub fn run() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let mark = arguments.next()?;
    if ![SHIM_MARK, SESSION_MARK, REAPER_MARK].iter().any(|known| mark == **known) {
        return None;
    }
    let parent = arguments.next()?.to_str()?.parse().ok().and_then(Pid::from_raw);
    #[cfg(target_os = "linux")]
    if mark == *REAPER_MARK {
        let (deadline, shim_mark) = (arguments.next()?, arguments.next()?);
        let program = arguments.next()?;
        return Some(reaper::run(parent, &deadline, &shim_mark, program, arguments.collect()));
    }
    // An error means that the process leads a group; then it keeps its terminal.
    if mark == *SESSION_MARK {
        let _ = setsid();
    }
    let program = arguments.next()?;
    Some(exec_program(parent, program, arguments))
}

fn exec_program(
    parent: Option<Pid>,
    program: OsString,
    arguments: impl Iterator<Item = OsString>,
) -> ExitCode {
    end_with_parent();
    // The kernel does not signal the death of a parent that was gone before the request.
    if getppid() != parent {
        return ExitCode::FAILURE;
    }
    close_descriptors_from(3);
    #[cfg(target_os = "linux")]
    reaper::unblock_signals();
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("weir: the program cannot be started: {error}");
    ExitCode::from(EXIT_NOT_STARTED)
}

#[cfg(target_os = "linux")]
fn end_with_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    // An error means an old kernel; then the child has to notice the end of its standard input.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent() {}
