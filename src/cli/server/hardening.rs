//! A service's memory holds keys, so nobody else gets to read it.
//!
//! Promises: from its first moment a service leaves no core file, nor do its children, whose environment may
//! hold keys, too; on Linux no other process of its user can look into it.
//!
//! Its umask stays as it came: children inherit it, and their files are not ours. What Weir itself writes is
//! made with the mode that it needs.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Closes this process. Where the system has no such thing, or refuses, all goes on as before.
pub(crate) fn seal() {
    // Lowering is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}
