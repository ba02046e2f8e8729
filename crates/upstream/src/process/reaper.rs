//! Reaper: the process between Weir and a child process. It is Weir's own binary, and lives as long
//! as the child.
//!
//! Descendants of a child end with it, also those that left its process group and lost their
//! parent: on Linux such orphans are adopted by the reaper, their nearest ancestor that registered
//! as a child subreaper. So their origin is certain, and no other process is touched. The reaper
//! waits for adopted processes, so that no zombies remain, and ends as the child has ended, so that
//! Weir learns how. A child with a deadline ends at it, also if Weir stands still.
//!
//! Invariants: within [`SWEEP_TIMEOUT`] of the child's end no descendant is left, as far as signals
//! and `/proc` reach; the same if Weir ends, however it ends. SIGTERM is passed on to the child's
//! process group; [`END_ALL`] kills everything at once. Signals that do not end Weir (SIGHUP,
//! SIGUSR1 …) do not end a reaper either. It has one thread, opens nothing but the deadline, and
//! has none of the child's pipes open.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigEvent, SigSet, SigevNotify, Signal as PendingSignal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, getppid,
    kill_process, kill_process_group, set_child_subreaper, set_parent_process_death_signal,
    setrlimit, wait, waitid, waitpid,
};

use crate::process::deadline::SharedDeadline;
use crate::process::process_group::to_pid;
use crate::process::{EXIT_NOT_STARTED, SELF_EXE, SESSION_MARK, close_descriptors};

/// Signal that makes the reaper kill the child and its descendants. Not a signal that operators
/// send to all processes of a name: a reaper has the name of Weir's binary.
pub(crate) const END_ALL: Signal = Signal::VTALARM;

/// Time within which the descendants of an ended child are killed; a process that the kernel keeps
/// longer is left to it.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two scans for remaining processes.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Starts the program as a child and serves as its reaper until its end. Ends as the child has
/// ended. `deadline` is the number of the descriptor with the child's deadline, or `-`, and
/// `shim_mark` that of its shim.
pub(crate) fn run(
    parent: Option<Pid>,
    deadline: &OsStr,
    shim_mark: &OsStr,
    program: OsString,
    arguments: Vec<OsString>,
) -> ExitCode {
    let signal_set = signals();
    // From here on signals stay pending until they are read; none can be missed.
    let is_set_up = signal_set.thread_block().is_ok()
        && set_parent_process_death_signal(Some(END_ALL)).is_ok()
        // On an old kernel this fails, and orphans are adopted elsewhere.
        && set_child_subreaper(Some(getpid())).is_ok();
    // The kernel does not signal the death of a parent that was gone before the request.
    if !is_set_up || getppid() != parent {
        return ExitCode::FAILURE;
    }
    let Ok(mut deadline) = WatchedDeadline::open(deadline) else { return ExitCode::FAILURE };
    close_descriptors(|number| {
        number >= 3 && !deadline.as_ref().is_some_and(|it| it.shared.is_descriptor(number))
    });
    if deadline.as_mut().is_some_and(|it| it.has_passed()) {
        return ExitCode::FAILURE;
    }
    let mut command = Command::new(SELF_EXE);
    command.arg(shim_mark).arg(std::process::id().to_string()).arg(program).args(arguments);
    // The leader of a group cannot begin a session.
    if *shim_mark != *SESSION_MARK {
        command.process_group(0);
    }
    let child = match command.spawn() {
        Ok(child) => to_pid(child.id()),
        Err(error) => {
            eprintln!("weir: the program cannot be started: {error}");
            return ExitCode::from(EXIT_NOT_STARTED);
        }
    };
    let Some(child) = child else { return ExitCode::FAILURE };
    // Otherwise the end of the child's own pipes would go unnoticed.
    close_descriptors(|number| number < 3);
    let status = loop {
        match signal_set.wait() {
            Ok(PendingSignal::SIGCHLD) => {
                // The child has not been waited for, so its process id still belongs to its group.
                if has_ended(child) {
                    break end_all(child);
                }
                // An adopted orphan.
                for process in children().into_iter().filter(|it| *it != child) {
                    let _ = waitpid(Some(process), WaitOptions::NOHANG);
                }
            }
            Ok(PendingSignal::SIGVTALRM) => break end_all(child),
            Ok(PendingSignal::SIGALRM) if deadline.as_mut().is_some_and(|it| it.has_passed()) => {
                break end_all(child);
            }
            Ok(PendingSignal::SIGTERM | PendingSignal::SIGINT) => {
                _ = kill_process_group(child, Signal::TERM)
            }
            Ok(_) | Err(_) => {}
        }
    };
    end_like(status)
}

/// Deadline of the child, with a timer that sends SIGALRM when it may have passed.
struct WatchedDeadline {
    shared: SharedDeadline,
    timer: Timer,
}

impl WatchedDeadline {
    /// Opens the inherited descriptor of this number; `None` for `-`.
    fn open(descriptor: &OsStr) -> std::io::Result<Option<Self>> {
        if descriptor == "-" {
            return Ok(None);
        }
        let number = descriptor.to_str().and_then(|it| it.parse().ok());
        let shared = SharedDeadline::open(number.ok_or(std::io::ErrorKind::InvalidInput)?)?;
        let notify = SigevNotify::SigevSignal { signal: PendingSignal::SIGALRM, si_value: 0 };
        let timer = Timer::new(ClockId::CLOCK_BOOTTIME, SigEvent::new(notify))?;
        Ok(Some(Self { shared, timer }))
    }

    /// Returns whether the child may not run any more; otherwise the timer is set again.
    fn has_passed(&mut self) -> bool {
        let remaining = self.shared.remaining();
        let again = Expiration::OneShot(remaining.into());
        remaining.is_zero() || self.timer.set(again, TimerSetTimeFlags::empty()).is_err()
    }
}

/// Signals that a reaper reads; all others end it or are ignored, as usual.
fn signals() -> SigSet {
    let with_effect = [
        PendingSignal::SIGCHLD,
        PendingSignal::SIGVTALRM,
        PendingSignal::SIGTERM,
        PendingSignal::SIGINT,
        PendingSignal::SIGALRM,
    ];
    // If sent to all processes of this name, these are meant for Weir: reload, stop, reopen files,
    // upgrade.
    let without = [
        PendingSignal::SIGHUP,
        PendingSignal::SIGQUIT,
        PendingSignal::SIGUSR1,
        PendingSignal::SIGUSR2,
    ];
    with_effect.into_iter().chain(without).collect()
}

/// Unblocks the signals: the process that a reaper becomes, or starts, inherits the blocked set.
pub(crate) fn unblock_signals() {
    let _ = signals().thread_unblock();
}

fn has_ended(child: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(child), look), Ok(Some(_)))
}

/// Kills the child, if it runs, and its descendants; returns how the child has ended.
fn end_all(child: Pid) -> Option<WaitStatus> {
    let _ = kill_process_group(child, Signal::KILL);
    let (mut status, until) = (None, Instant::now() + SWEEP_TIMEOUT);
    loop {
        // The children of an ended process are adopted in turn.
        for process in children() {
            let _ = kill_process(process, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((process, how))) if process == child => status = Some(how),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(rustix::io::Errno::INTR) => {}
                // No child is left.
                Err(_) => return status,
            }
        }
        if Instant::now() > until {
            return status;
        }
        // Nothing unparks the thread: this is a plain pause.
        park_timeout(POLL_INTERVAL);
    }
}

/// Returns the child processes of this process. Only this process waits for them, so none of these
/// ids can have been reused.
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
    unblock_signals();
    // The child has already left a core dump, if there is to be one.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if let Some(signal) = Signal::from_named_raw(number) {
        // Twice: Rust's own handler takes the first one of some signals, and then uninstalls
        // itself.
        for _ in 0..2 {
            let _ = kill_process(getpid(), signal);
        }
    }
    // Exit code as in shells.
    ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
}
