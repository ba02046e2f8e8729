//! Replicas of Weir that serve the same clients, and their store.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::weir::{Setup, start};
use super::{Programs, Running, free_address};
use crate::process::Process;

/// A Valkey or Redis server, which runs until this is dropped.
pub(crate) struct Store {
    _process: Process,
    pub(crate) address: SocketAddr,
}

impl Store {
    /// Starts the store, which keeps nothing.
    pub(crate) fn start(programs: &Programs, folder: &Path) -> io::Result<Self> {
        let address = free_address();
        let mut command = Command::new(programs.parts.join("bin/redis-server"));
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no"]).stdout(Stdio::null());
        let process = Process::start(command, &folder.join("store-errors"))?;
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if begin.elapsed() > Duration::from_secs(10) {
                return Err(io::Error::other("the store does not listen: run ./dev prepare"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { _process: process, address })
    }
}

/// Starts replicas, and waits until they know each other.
pub(crate) async fn start_replicas(
    count: usize,
    programs: &Programs,
    setup: &Setup<'_>,
    tools: usize,
    store: &Store,
    folder: &Path,
) -> io::Result<Vec<Running>> {
    let setup = Setup { store: Some(store.address), ..*setup };
    let mut replicas = Vec::new();
    for number in 0..count {
        let mut replica = start(programs, &setup, &folder.join(format!("replica-{number}")))?;
        replica.lists("tools/list", tools, setup.era).await?;
        replicas.push(replica);
    }
    // Each reads the records of the others once a second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    Ok(replicas)
}
