//! The process between Weir and a child: Weir's own binary once more, which stays as long as the child does.
//!
//! What a child has started ends with it, also what has left its process group and lost its parent: on Linux such
//! processes are handed to the keeper, as their nearest ancestor that asked for them. So whose they are is never a
//! guess, and nobody else's are touched. It waits for what it was handed, so that nothing of it stays in the table of
//! processes, and ends as the child has ended, so that whoever waits for it learns how.
//!
//! Promises: within [`SWEEP`] of the child's end nothing that it has started is left, as far as signals and
//! `/proc` reach. The same if Weir ends, however it ends. A request to leave (SIGTERM) is handed on to the child's process
//! group; [`END_ALL`] ends everything at once. What Weir itself does not end of (SIGHUP, SIGUSR1 …) does not end a keeper either.
//!
//! Knows nothing of: what is started. It has one thread, opens nothing, and holds no pipe of the child's.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as Heard};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, getppid,
    kill_process, kill_process_group, set_child_subreaper, set_parent_process_death_signal,
    setrlimit, wait, waitid, waitpid,
};

use crate::upstream::process::shim::{self, UNSTARTED};

/// Tells the keeper to end the child and all that it has started, now. Not a signal that operators send to all processes of
/// a name: a keeper bears the name of Weir's binary.
pub(crate) const END_ALL: Signal = Signal::VTALARM;

/// How long what a child has started may take to be gone: what the kernel holds on to is left to it.
const SWEEP: Duration = Duration::from_secs(1);
/// The pause between two looks at who is still there.
const LOOK: Duration = Duration::from_millis(2);

/// Starts the program as a child and keeps it until its end, which is then the keeper's own.
pub(crate) fn keep(parent: Option<Pid>, program: OsString, arguments: Vec<OsString>) -> ExitCode {
    let heard = signals();
    // From here on they wait to be asked for; none can be missed.
    let asked = heard.thread_block().is_ok()
        && set_parent_process_death_signal(Some(END_ALL)).is_ok()
        // On an old kernel this fails, and what lost its parent goes elsewhere.
        && set_child_subreaper(Some(getpid())).is_ok();
    // The kernel says nothing of a parent that was gone before it was asked.
    if !asked || getppid() != parent {
        return ExitCode::FAILURE;
    }
    shim::close_the_rest(3);
    let mut command = Command::new(shim::SELF);
    command.arg(shim::MARK).arg(std::process::id().to_string()).arg(program).args(arguments);
    let child = match shim::leads_a_group(&mut command).spawn() {
        Ok(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
        Err(error) => {
            eprintln!("weir: the program cannot be started: {error}");
            return ExitCode::from(UNSTARTED);
        }
    };
    let Some(child) = child else { return ExitCode::FAILURE };
    // Else nobody would notice that the child has closed its own.
    shim::close_the_rest(0);
    let status = loop {
        match heard.wait() {
            Ok(Heard::SIGCHLD) => {
                // Not waited for yet, so its number is still its group's.
                if has_ended(child) {
                    break end_all(child);
                }
                // What it had started, and left to us.
                for process in children().into_iter().filter(|it| *it != child) {
                    let _ = waitpid(Some(process), WaitOptions::NOHANG);
                }
            }
            Ok(Heard::SIGVTALRM) => break end_all(child),
            Ok(Heard::SIGTERM | Heard::SIGINT) => _ = kill_process_group(child, Signal::TERM),
            Ok(_) | Err(_) => {}
        }
    };
    end_like(status)
}

/// What a keeper listens to; everything else ends it, or is ignored, as usual.
fn signals() -> SigSet {
    let with_effect = [Heard::SIGCHLD, Heard::SIGVTALRM, Heard::SIGTERM, Heard::SIGINT];
    // Sent to all processes of this name, these mean Weir: reload, stop, reopen files, hand over.
    let without = [Heard::SIGHUP, Heard::SIGQUIT, Heard::SIGUSR1, Heard::SIGUSR2, Heard::SIGALRM];
    with_effect.into_iter().chain(without).collect()
}

/// Hears the usual signals again: what a keeper becomes, or starts, inherits what it has put off.
pub(crate) fn hear_again() {
    let _ = signals().thread_unblock();
}

fn has_ended(child: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(child), look), Ok(Some(_)))
}

/// Ends the child, if it runs, and all that it has started; tells how the child has ended.
fn end_all(child: Pid) -> Option<WaitStatus> {
    let _ = kill_process_group(child, Signal::KILL);
    let (mut status, until) = (None, Instant::now() + SWEEP);
    loop {
        // Those of a process that ends become ours in turn.
        for process in children() {
            let _ = kill_process(process, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((process, how))) if process == child => status = Some(how),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(rustix::io::Errno::INTR) => {}
                // There is nobody left.
                Err(_) => return status,
            }
        }
        if Instant::now() > until {
            return status;
        }
        // Nobody wakes it: it is the pause alone.
        park_timeout(LOOK);
    }
}

/// The processes whose parent this one is. They are not waited for by anybody else, so none of these numbers can be
/// another's by now.
fn children() -> Vec<Pid> {
    let process = std::process::id();
    let text = std::fs::read_to_string(format!("/proc/self/task/{process}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace().filter_map(|it| Pid::from_raw(it.parse().ok()?)).collect()
}

/// Ends as the child has ended.
fn end_like(status: Option<WaitStatus>) -> ExitCode {
    let Some(status) = status else { return ExitCode::FAILURE };
    if let Some(code) = status.exit_status() {
        return ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX));
    }
    let Some(number) = status.terminating_signal() else { return ExitCode::FAILURE };
    hear_again();
    // If there was anything to be kept for who debugs it, the child has left it.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if let Some(signal) = Signal::from_named_raw(number) {
        // Twice: the first one of some kinds is taken by Rust's own handler, which then lets go of them.
        for _ in 0..2 {
            let _ = kill_process(getpid(), signal);
        }
    }
    // As shells say it.
    ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
}
