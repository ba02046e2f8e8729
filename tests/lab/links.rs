//! Links between processes that can be cut: proxies that know which replica has connected.
//!
//! A link that is cut is silent: its connections stay, and what they carry waits.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Store,
    Replica(usize),
}

/// Links that are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Nothing,
    /// All links of a replica, to the store and to the others.
    Replica(usize),
    /// The link between a replica and the store.
    Store(usize),
    /// The link between two replicas.
    Between(usize, usize),
}

/// All links of a test.
pub(crate) struct Links {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

struct Shared {
    cut: watch::Sender<Cut>,
    /// Replicas by their processes.
    processes: Mutex<HashMap<u32, usize>>,
}

impl Cut {
    fn parts(self, one: End, other: End) -> bool {
        let is_end = |number| [one, other].contains(&End::Replica(number));
        match self {
            Self::Nothing => false,
            Self::Replica(number) => is_end(number),
            Self::Store(number) => is_end(number) && [one, other].contains(&End::Store),
            Self::Between(first, second) => is_end(first) && is_end(second),
        }
    }
}

impl Links {
    pub(crate) fn new() -> Self {
        let shared = Shared { cut: watch::Sender::new(Cut::Nothing), processes: Mutex::default() };
        Self { shared: Arc::new(shared), tasks: TaskTracker::new() }
    }

    /// Opens a link to this end at this address, and returns the address of the proxy. Without
    /// `from`, connections come from replicas whose processes are known.
    pub(crate) async fn open(&self, from: Option<usize>, to: End, address: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = listener.local_addr().expect("bound").to_string();
        let (shared, tasks) = (Arc::clone(&self.shared), self.tasks.clone());
        self.tasks.spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let Some(from) = from.or_else(|| shared.replica_with(&stream, peer)) else {
                    continue;
                };
                let ends = (End::Replica(from), to);
                let (shared, address) = (Arc::clone(&shared), address.clone());
                let inner = tasks.clone();
                tasks.spawn(async move {
                    let Ok(target) = TcpStream::connect(&address).await else { return };
                    let ((read, write), (back, forth)) = (stream.into_split(), target.into_split());
                    inner.spawn(Arc::clone(&shared).relay(ends, read, forth));
                    shared.relay(ends, back, write).await;
                });
            }
        });
        proxy
    }

    /// Tells which process a replica is.
    pub(crate) fn add_process(&self, process: u32, number: usize) {
        self.shared.processes.lock().expect("no thread panics").insert(process, number);
    }

    /// Cuts these links, and mends all others.
    pub(crate) fn cut(&self, cut: Cut) {
        self.shared.cut.send_replace(cut);
    }
}

impl Shared {
    /// Forwards what arrives, unless the link is cut.
    async fn relay(
        self: Arc<Self>,
        ends: (End, End),
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) {
        let (mut cut, mut buffer) = (self.cut.subscribe(), vec![0; 16 << 10]);
        loop {
            let read = from.read(&mut buffer).await.unwrap_or(0);
            if cut.wait_for(|cut| !cut.parts(ends.0, ends.1)).await.is_err() || read == 0 {
                // Dropping the half closes it.
                return;
            }
            if to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }

    /// Finds the replica that has connected; `None` if it has closed the connection again. A port
    /// may be that of connections to other addresses, too.
    fn replica_with(&self, stream: &TcpStream, peer: SocketAddr) -> Option<usize> {
        let hex = |address: SocketAddr| format!(":{:04X}", address.port());
        let ends = [hex(peer), hex(stream.local_addr().expect("connected"))];
        // A line of a table that changes while it is read may be missing.
        let socket = (0..100).find_map(|_| {
            let table = fs::read_to_string("/proc/net/tcp").expect("Linux");
            table.lines().find_map(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                let is_it = (1..3).zip(&ends).all(|(at, end)| fields[at].ends_with(end));
                is_it.then(|| format!("socket:[{}]", fields[9]))
            })
        })?;
        let has_it = |process: &u32| {
            let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
            let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
            links.any(|link| link.to_str() == Some(&socket))
        };
        let processes = self.processes.lock().expect("no thread panics");
        processes.iter().find(|(process, _)| has_it(process)).map(|(_, number)| *number)
    }
}
