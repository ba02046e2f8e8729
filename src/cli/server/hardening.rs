//! Protection of the process's memory, which contains keys and tokens.
//!
//! Invariants: no command leaves a core file, and neither do its child processes, whose
//! environment may contain keys; on Linux no other process of the same user can read its memory.
//!
//! The umask is not changed, because child processes inherit it and create files of their own.
//! Files of Weir itself are created with the mode that they need.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Disables core files and, on Linux, memory access by other processes. Failures are ignored.
pub(crate) fn protect_memory() {
    // Lowering a limit is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}
