//! Ports for programs that have to be given one.

use std::net::{TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Ports of tests. They are below those that the system gives to listeners and connections: such a
/// port can be taken between the moment when it was found free and the moment when it is used.
const PORTS: Range<u16> = 10_000..20_000;

/// Returns a port where nothing listens, and that no other call of this process, or of test
/// programs beside it, returns.
pub(crate) fn free_port() -> u16 {
    // Test programs that run side by side begin at different ports.
    static NEXT: LazyLock<AtomicUsize> =
        LazyLock::new(|| AtomicUsize::new(std::process::id() as usize * 331));
    // A UDP socket of the same number, which nothing else uses, keeps a port from other processes.
    static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let is_free = |port: &u16| {
        let Ok(socket) = UdpSocket::bind(("127.0.0.1", *port)) else { return false };
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        TcpListener::bind(("127.0.0.1", *port)).is_ok()
    };
    let mut candidates = PORTS.map(|_| {
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len();
        PORTS.start + u16::try_from(at).expect("within the range")
    });
    candidates.find(is_free).expect("a free port")
}
