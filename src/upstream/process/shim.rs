//! The step between Weir and a child's program: Weir's own binary, started once more, which becomes the program.
//!
//! What has to be so in the child cannot be said from outside of it. On the way the shim asks the kernel to end the
//! child when its keeper (`keeper.rs`) ends, however it ends, and closes what Weir itself was started with and is nobody
//! else's. Where the keeper is to be started, it becomes that instead.
//!
//! Promises: nothing else is done here, and nothing is left of it: the program has the shim's process, pipes,
//! environment and folder. If it cannot be started, standard error says why, and the exit code is [`UNSTARTED`].
//!
//! Knows nothing of: what is started.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, getppid};

#[cfg(target_os = "linux")]
use crate::upstream::process::reaper;

/// What the shim is started with; then come the number of its parent, the program and its arguments.
pub(crate) const MARK: &str = "__become";

/// The same for a keeper.
pub(crate) const KEEP: &str = "__keep";

/// Where the program of a process is found on Linux, even if its file has been replaced since.
pub(crate) const SELF: &str = "/proc/self/exe";

/// The exit code if the program cannot be started, as shells have it.
pub(crate) const UNSTARTED: u8 = 127;

/// Becomes the program that the arguments name, if these are the shim's; `None` for all others. It has to be the
/// first thing that the process does: what is open by then was inherited, and is closed.
pub fn run() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let mark = arguments.next()?;
    if mark != *MARK && mark != *KEEP {
        return None;
    }
    let parent = arguments.next()?.to_str()?.parse().ok().and_then(Pid::from_raw);
    let program = arguments.next()?;
    #[cfg(target_os = "linux")]
    if mark == *KEEP {
        return Some(reaper::keep(parent, program, arguments.collect()));
    }
    Some(become_it(parent, program, arguments))
}

fn become_it(
    parent: Option<Pid>,
    program: OsString,
    arguments: impl Iterator<Item = OsString>,
) -> ExitCode {
    end_with_parent();
    // The kernel says nothing of a parent that was gone before it was asked.
    if getppid() != parent {
        return ExitCode::FAILURE;
    }
    close_the_rest(3);
    #[cfg(target_os = "linux")]
    reaper::hear_again();
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("weir: the program cannot be started: {error}");
    ExitCode::from(UNSTARTED)
}

#[cfg(target_os = "linux")]
fn end_with_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    // An error means an old kernel; then the child has to notice that its standard input has ended.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent() {}

/// Has what a command starts lead a process group of its own.
pub(crate) fn leads_a_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// Closes every descriptor from this one on; the first three are the pipes.
pub(crate) fn close_the_rest(first: i32) {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    // All of them first: the folder that is read is one of them.
    let open: Vec<i32> = open.filter_map(|it| it.file_name().to_str()?.parse().ok()).collect();
    for number in open.into_iter().filter(|number| *number >= first) {
        let _ = nix::unistd::close(number);
    }
}
