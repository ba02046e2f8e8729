//! Process that leads its own group, and with it the processes that it has started.

use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

/// Process that leads its own group. Dropping it kills the group.
pub struct ProcessGroup {
    /// Its leader.
    pub child: Child,
    /// `None` once no process of the group is left.
    group: Option<Pid>,
}

impl ProcessGroup {
    /// Takes a child that was started as the leader of its group.
    pub fn new(child: Child) -> Self {
        Self { group: child.id().and_then(to_pid), child }
    }

    /// Sends a signal to every process of the group.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // An error means that the group has ended.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Kills every process of the group.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        // Once the leader has been waited for, the group's id may be reused: it is signalled right
        // after that, and never again.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            self.group = None;
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.group.is_some() {
            self.kill();
        }
    }
}

/// Converts the id of a process.
pub(crate) fn to_pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// Describes how a process has ended: `with_code` introduces its exit code, and `unknown` stands
/// for an end with neither a code nor a signal.
pub fn describe_end(status: ExitStatus, with_code: &str, unknown: &str) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("{with_code} {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => unknown.to_owned(),
    }
}
