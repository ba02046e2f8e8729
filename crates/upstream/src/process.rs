//! Child processes: their groups, the thread that spawns them, the exec shim, the reaper.

pub(crate) mod child;
pub(crate) mod child_command;
pub(crate) mod deadline;
pub mod environment;
pub(crate) mod login_shell;
pub mod process_group;
#[cfg(target_os = "linux")]
pub(crate) mod reaper;
pub mod search_path;
pub mod shim;
pub(crate) mod spawner;
pub(crate) mod start;
pub(crate) mod stderr_tail;

/// First argument of the shim; the parent's process id, the program and its arguments follow.
pub(crate) const SHIM_MARK: &str = "__become";

/// First argument of the shim of a process without a terminal; the others are the same.
pub(crate) const SESSION_MARK: &str = "__become_leader";

/// First argument of a reaper; the parent's process id, the descriptor of the deadline (`-` without
/// one), the mark of the child's shim, the program and its arguments follow.
pub(crate) const REAPER_MARK: &str = "__keep";

/// Path of the running binary on Linux, even if the file has been replaced since.
pub(crate) const SELF_EXE: &str = "/proc/self/exe";

/// Exit code if the program cannot be started, as in shells.
pub(crate) const EXIT_NOT_STARTED: u8 = 127;

/// Closes every descriptor from this one on; the first three are the pipes.
pub(crate) fn close_descriptors_from(first: i32) {
    close_descriptors(|number| number >= first);
}

/// Closes the descriptors that are chosen by their number.
pub(crate) fn close_descriptors(is_chosen: impl Fn(i32) -> bool) {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    // The list is read completely first: the directory that is being read is one of the
    // descriptors.
    let open: Vec<i32> = open.filter_map(|it| it.file_name().to_str()?.parse().ok()).collect();
    for number in open.into_iter().filter(|number| is_chosen(*number)) {
        let _ = nix::unistd::close(number);
    }
}
