//! The one thread from which children are started.
//!
//! The kernel ends a child with the *thread* that has started it, and the threads of a runtime come and go. This one
//! lives as long as the program does.
//!
//! Knows nothing of: what is started, and what a child needs.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// How many may wait for the thread; more wait for a place. To start a child takes a millisecond or so.
const WAITING: usize = 64;

/// A child to be started.
struct Order {
    command: Command,
    /// Hears of the child's end.
    runtime: Handle,
    done: SyncSender<io::Result<Child>>,
}

/// Starts a child that lives no longer than the program. Waits for that, as starting one does anyway.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<Result<SyncSender<Order>, String>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, orders) = sync_channel(WAITING);
        let started = thread::Builder::new().name("children".into()).spawn(|| run(orders));
        started.map(|_| sender).map_err(|error| error.to_string())
    });
    let orders = orders.as_ref().map_err(|error| io::Error::other(error.clone()))?;
    let (done, started) = sync_channel(1);
    let gone = |_| io::Error::other("the thread that starts children is gone");
    let order = Order { command, runtime: Handle::current(), done };
    orders.send(order).map_err(|_| gone(()))?;
    started.recv().map_err(|_| gone(()))?
}

fn run(orders: Receiver<Order>) {
    for Order { mut command, runtime, done } in orders {
        let _entered = runtime.enter();
        // Whoever waits for it cannot have gone: it waits without being dropped.
        let _ = done.send(command.spawn());
    }
}
