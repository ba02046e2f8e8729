//! Child processes on the operating system's side: the thread that spawns them, the exec shim, the reaper.

#[cfg(target_os = "linux")]
pub(crate) mod reaper;
pub mod shim;
pub(crate) mod spawner;
