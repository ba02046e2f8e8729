//! State of a process, from `/proc`.

use std::time::Duration;

/// Resources that a process occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    /// Number of child processes, and of zombies among them.
    pub(crate) children: usize,
    pub(crate) zombies: usize,
}

/// Resources of a process.
pub(crate) fn resources(process: u32) -> Resources {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").count();
    let children = children(process);
    let zombies = children.iter().filter(|child| state_of(**child) == Some('Z')).count();
    Resources {
        resident_bytes: kib_of(process, "VmRSS") * 1024,
        descriptors,
        threads: status(process, "Threads").parse().expect("a count"),
        children: children.len(),
        zombies,
    }
}

/// Figure of the status of a process, in KiB.
pub(crate) fn kib_of(process: u32, name: &str) -> u64 {
    status(process, name).trim_end_matches(" kB").parse().expect("a number")
}

/// Line of this name in the status of a process, without the name.
pub(crate) fn status(process: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect(name).trim().to_owned()
}

/// Child processes of this process.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let lists = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("children")));
    let text: String = lists.map(|list| list.unwrap_or_default() + " ").collect();
    text.split_whitespace().map(|child| child.parse().expect("a number")).collect()
}

/// Processor time of a process.
pub(crate) fn cpu_time(process: u32) -> Duration {
    let stat = stat(process).expect("it runs");
    // Fields 14 and 15 of /proc/PID/stat, in ticks of a hundredth of a second.
    let ticks = |at: usize| stat[at - 3].parse::<u64>().expect("a number");
    Duration::from_millis(10 * (ticks(14) + ticks(15)))
}

/// State of a process, as one letter.
pub(crate) fn state_of(process: u32) -> Option<char> {
    stat(process)?.first()?.chars().next()
}

/// Whether a process runs. A zombie does not, once its other threads have ended: until then, its
/// sockets are open.
pub(crate) fn runs(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    threads > 1 || !matches!(state_of(process), None | Some('Z' | 'X'))
}

/// Fields of `/proc/PID/stat` from the third on; the second may contain any character.
fn stat(process: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
