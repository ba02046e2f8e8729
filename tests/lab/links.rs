//! Links between processes that can be cut: proxies that know which replica has connected.
//!
//! A link that is cut is silent: its connections stay, and what they carry waits.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

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

/// Connection of a replica to an end.
struct Connection {
    from: OnceLock<Option<usize>>,
    to: End,
    /// Addresses of its own two ends: of the replica, and of the proxy.
    ends: [SocketAddr; 2],
}

impl Cut {
    /// Returns whether it parts `to` from the replica that has connected to it.
    fn parts(self, from: impl Fn() -> Option<usize>, to: End) -> bool {
        let is_from = |numbers: &[usize]| from().is_none_or(|from| numbers.contains(&from));
        match (self, to) {
            (Self::Nothing, _) | (Self::Store(_), End::Replica(_)) => false,
            (Self::Between(..), End::Store) => false,
            (Self::Store(number), End::Store) => is_from(&[number]),
            (Self::Replica(number), to) => to == End::Replica(number) || is_from(&[number]),
            (Self::Between(one, other), End::Replica(to)) => {
                to == one && is_from(&[other]) || to == other && is_from(&[one])
            }
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
        let proxy = listener.local_addr().expect("bound");
        let (shared, tasks) = (Arc::clone(&self.shared), self.tasks.clone());
        self.tasks.spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let from = from.map_or_else(OnceLock::new, |from| Some(from).into());
                let connection = Arc::new(Connection { from, to, ends: [peer, proxy] });
                let (shared, address) = (Arc::clone(&shared), address.clone());
                let inner = tasks.clone();
                tasks.spawn(async move {
                    let Ok(target) = TcpStream::connect(&address).await else { return };
                    let ((read, write), (back, forth)) = (stream.into_split(), target.into_split());
                    let other = Arc::clone(&connection);
                    inner.spawn(Arc::clone(&shared).relay(other, read, forth));
                    shared.relay(connection, back, write).await;
                });
            }
        });
        proxy.to_string()
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
        connection: Arc<Connection>,
        mut read_half: OwnedReadHalf,
        mut write_half: OwnedWriteHalf,
    ) {
        let (mut cut, mut buffer) = (self.cut.subscribe(), vec![0; 16 << 10]);
        loop {
            let read = read_half.read(&mut buffer).await.unwrap_or(0);
            loop {
                let current = *cut.borrow_and_update();
                let is_cut =
                    || current.parts(|| connection.find_from(&self.processes), connection.to);
                if !tokio::task::block_in_place(is_cut) {
                    break;
                }
                if cut.changed().await.is_err() {
                    return;
                }
            }
            // Dropping the half closes it.
            if read == 0 || write_half.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }
}

impl Connection {
    /// Finds the replica that has connected, when a cut makes a difference: that takes long where
    /// there are many sockets. `None` if it has closed the connection again.
    fn find_from(&self, processes: &Mutex<HashMap<u32, usize>>) -> Option<usize> {
        *self.from.get_or_init(|| {
            let [from, to] = self.ends.map(|end| format!("0100007F:{:04X}", end.port()));
            let pair = format!(": {from} {to} ");
            // A line of a table that changes while it is read may be missing.
            let inode = (0..3).find_map(|_| {
                let table = fs::read_to_string("/proc/net/tcp").expect("Linux");
                let line = table[table.find(&pair)?..].lines().next()?;
                line.split_whitespace().nth(9).map(str::to_owned)
            })?;
            let socket = format!("socket:[{inode}]");
            let has_it = |process: &u32| {
                let files = fs::read_dir(format!("/proc/{process}/fd"));
                let files = files.into_iter().flatten().flatten();
                let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
                links.any(|link| link.to_str() == Some(&socket))
            };
            let processes = processes.lock().expect("no thread panics");
            processes.iter().find(|(process, _)| has_it(process)).map(|(_, number)| *number)
        })
    }
}
