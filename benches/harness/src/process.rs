//! A measured process, and the processor time and memory of it and its children, from Linux.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A program that runs until this is dropped.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts it in a process group of its own, with stderr in this file.
    pub(crate) fn start(mut command: Command, errors: &Path) -> io::Result<Self> {
        use std::os::unix::process::CommandExt;
        let errors = fs::File::create(errors)?;
        let child = command.stdin(Stdio::null()).stderr(errors).process_group(0).spawn()?;
        Ok(Self { child })
    }

    pub(crate) fn number(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(process) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(process, signal);
        }
    }

    /// Its stdout, if that was piped.
    pub(crate) fn output(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Whether it still runs.
    pub(crate) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(group) = Pid::from_raw(self.child.id() as i32) else { return };
        // One that was stopped ends only when it goes on.
        let _ = kill_process_group(group, Signal::CONT);
        // An instrumented build writes its profile when it ends by itself.
        let _ = kill_process_group(group, Signal::TERM);
        let begin = Instant::now();
        while self.lives() && begin.elapsed() < GOODBYE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A process with all its descendants, except those of the fixture.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number) = number
            && let Some(fields) = stat(number)
            && let Some(parent) = fields.get(1).and_then(|text| text.parse().ok())
        {
            children.entry(parent).or_default().push(number);
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let below = children.get(&found[at]).cloned().unwrap_or_default();
        found.extend(below.into_iter().filter(|number| !is_fixture(*number)));
        at += 1;
    }
    found
}

/// Whether it is an upstream that a gateway has started: not a part of the gateway's cost.
fn is_fixture(number: u32) -> bool {
    fs::read(format!("/proc/{number}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"fixture"))
}

/// Fields of `/proc/N/stat` behind the name, which may contain anything: the state is the first.
fn stat(number: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Processor time of these processes, in seconds, at 100 ticks a second: utime and stime.
pub(crate) fn cpu_seconds(processes: &[u32]) -> f64 {
    let ticks = |number: &u32| {
        let fields = stat(*number)?;
        let field = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(field(11)? + field(12)?)
    };
    processes.iter().filter_map(ticks).sum::<f64>() / rustix::param::clock_ticks_per_second() as f64
}

/// Processor time of these processes in nanosecond resolution, for work shorter than a tick. It
/// covers live threads only: a difference is too small if a thread ends in between.
pub(crate) fn cpu_of_threads(processes: &[u32]) -> f64 {
    let of_thread = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    let of = |number: &u32| {
        let tasks = fs::read_dir(format!("/proc/{number}/task")).into_iter().flatten().flatten();
        tasks.filter_map(of_thread).sum::<f64>()
    };
    processes.iter().map(of).sum::<f64>() / 1e9
}

/// Sum of a line of `/proc/N/status` over these processes, in KiB: `VmHWM` or `VmRSS`.
pub(crate) fn memory_kib(processes: &[u32], line: &str) -> f64 {
    let of = |number: &u32| {
        let text = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
        let found = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'))?;
        found.split_whitespace().next()?.parse::<f64>().ok()
    };
    processes.iter().filter_map(of).sum()
}

/// Resets the peak of memory.
pub(crate) fn forget_peak(processes: &[u32]) {
    for number in processes {
        // Where that is not allowed, the peak is that of the whole life of the process.
        let _ = fs::write(format!("/proc/{number}/clear_refs"), "5");
    }
}

/// Maximum wait after SIGTERM.
const GOODBYE: Duration = Duration::from_secs(5);
