//! Spawner thread: the one thread from which child processes are started.
//!
//! On Linux the kernel ends a child with the *thread* that has started it (parent-death signal),
//! and the threads of a runtime come and go. This thread lives as long as the program.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// Queue of start requests; when it is full, further requests wait. A start takes about a
/// millisecond.
const MAX_QUEUED: usize = 64;

/// Request to start a child process.
struct SpawnRequest {
    command: Command,
    /// Runtime that is notified of the child's end.
    runtime: Handle,
    done: SyncSender<io::Result<Child>>,
}

/// Starts a child process that lives no longer than the program. Blocks until it is started, as
/// starting a process does anyway.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static REQUESTS: OnceLock<Result<SyncSender<SpawnRequest>, String>> = OnceLock::new();
    let requests = REQUESTS.get_or_init(|| {
        let (sender, requests) = sync_channel(MAX_QUEUED);
        let started = thread::Builder::new().name("children".into()).spawn(|| run(requests));
        started.map(|_| sender).map_err(|error| error.to_string())
    });
    let requests = requests.as_ref().map_err(|error| io::Error::other(error.clone()))?;
    let (done, started) = sync_channel(1);
    let gone = |_| io::Error::other("the thread that starts child processes has ended");
    let request = SpawnRequest { command, runtime: Handle::current(), done };
    requests.send(request).map_err(|_| gone(()))?;
    started.recv().map_err(|_| gone(()))?
}

fn run(requests: Receiver<SpawnRequest>) {
    for SpawnRequest { mut command, runtime, done } in requests {
        let _entered = runtime.enter();
        // The receiver still exists: it blocks without being dropped.
        let _ = done.send(command.spawn());
    }
}
