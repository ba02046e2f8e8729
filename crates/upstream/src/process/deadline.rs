//! Deadline of a child process: the time until which it may run, which Weir extends.
//!
//! It is stored in memory that the child's reaper can read (`reaper.rs`). So the child ends in time
//! also if Weir stands still. Weir alone writes it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

#[cfg(target_os = "linux")]
use std::fs::File;
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileExt;
#[cfg(target_os = "linux")]
use std::path::Path;

#[cfg(target_os = "linux")]
use weir_base::files::regular_file;
use weir_base::tasks::sync::Mutex;
use weir_base::time::boot_clock;

/// Time until which a process may run. Cheap to share.
#[derive(Debug)]
pub struct Deadline {
    /// By the boot clock.
    until: Mutex<Duration>,
    #[cfg(target_os = "linux")]
    shared: File,
}

impl Deadline {
    /// Creates a deadline, by the boot clock. Fails if the system has no memory for it.
    pub fn new(until: Duration) -> io::Result<Arc<Self>> {
        #[cfg(target_os = "linux")]
        let shared = rustix::fs::memfd_create("deadline", rustix::fs::MemfdFlags::CLOEXEC)?;
        let deadline = Self {
            until: Mutex::new(until),
            #[cfg(target_os = "linux")]
            shared: File::from(shared),
        };
        deadline.extend(until)?;
        Ok(Arc::new(deadline))
    }

    /// Sets a later time.
    pub fn extend(&self, until: Duration) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        self.shared.write_all_at(&millis(until).to_le_bytes(), 0)?;
        *self.until.lock() = until;
        Ok(())
    }

    /// Returns whether the time is over.
    pub fn has_passed(&self) -> bool {
        boot_clock::now() >= *self.until.lock()
    }

    /// Returns a descriptor of the shared memory that a new process inherits.
    #[cfg(target_os = "linux")]
    pub(crate) fn inheritable(&self) -> io::Result<std::os::fd::OwnedFd> {
        Ok(rustix::io::dup(&self.shared)?)
    }
}

#[cfg(target_os = "linux")]
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Deadline as the reaper reads it.
#[cfg(target_os = "linux")]
pub(crate) struct SharedDeadline(File);

#[cfg(target_os = "linux")]
impl SharedDeadline {
    /// Opens the inherited descriptor of this number.
    pub(crate) fn open(descriptor: i32) -> io::Result<Self> {
        regular_file::open(Path::new(&format!("/proc/self/fd/{descriptor}"))).map(Self)
    }

    /// Returns the time that is left; none if the deadline cannot be read.
    pub(crate) fn remaining(&self) -> Duration {
        let mut bytes = [0; 8];
        let read = self.0.read_exact_at(&mut bytes, 0);
        let until = read.map_or(0, |()| u64::from_le_bytes(bytes));
        Duration::from_millis(until).saturating_sub(boot_clock::now())
    }

    /// Returns whether this is the descriptor of that number.
    pub(crate) fn is_descriptor(&self, number: i32) -> bool {
        std::os::fd::AsRawFd::as_raw_fd(&self.0) == number
    }
}
