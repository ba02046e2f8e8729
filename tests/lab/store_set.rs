//! Stores of several servers: a primary with sentinels, a cluster, and a proxy that delays replies.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Client, FromRedisValue, cmd};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::ports::free_port;
use super::store::{TestStore, server};
use super::until;

/// Name of the primary, and passwords of a user of the servers and of the sentinels.
pub(crate) const PRIMARY: &str = "weir-store";
const PASSWORD: &str = "hunter2";
const SENTINEL_PASSWORD: &str = "hunter3";

/// Milliseconds after which a server that does not reply is replaced: so many that a busy machine
/// replaces none, and so few that a test which has killed one does not wait for long.
pub(crate) const LONG: &str = "60000";
pub(crate) const SHORT: &str = "1000";

/// Servers that replicate a primary, and the sentinels that watch it.
pub(crate) struct SentinelSet {
    pub(crate) followers: Vec<TestStore>,
    sentinels: Vec<(u16, Child)>,
    _folder: TempDir,
}

impl SentinelSet {
    /// Starts a primary, two servers that replicate it, and three sentinels. Its user `weir` has
    /// these rights.
    pub(crate) async fn start(rights: &str) -> (TestStore, Self) {
        let folder = TempDir::new().expect("a folder");
        let dir = folder.path().to_str().expect("text");
        let user = format!("--user weir on >{PASSWORD} {rights} --dir {dir}");
        let user: Vec<_> = user.split(' ').collect();
        let mut primary = TestStore::start_with(&user).await;
        let port = primary.port.to_string();
        let replicate = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        let arguments = [&replicate[..], &user].concat();
        let mut followers = Vec::new();
        for _ in 0..2 {
            followers.push(TestStore::start_with(&arguments).await);
        }
        until("both replicate", || {
            followers.iter().all(|it| it.run::<String>(&["INFO"]).contains("link_status:up"))
        })
        .await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(start_sentinel(folder.path(), &port).await);
        }
        let set = Self { followers, sentinels, _folder: folder };
        until("the sentinels know each other", || {
            (0..3).all(|at| {
                let info: Vec<String> = set.ask(at, &["SENTINEL", "MASTER", PRIMARY]);
                let is = |name: &str, value: &str| {
                    info.chunks_exact(2).any(|pair| pair[0] == name && pair[1] == value)
                };
                is("num-slaves", "2") && is("num-other-sentinels", "2")
            })
        })
        .await;
        primary.access = Some(set.table(PRIMARY, SENTINEL_PASSWORD));
        (primary, set)
    }

    /// Value of `store` in the configuration.
    pub(crate) fn table(&self, name: &str, password: &str) -> String {
        let urls = self.sentinels.iter().map(|(port, _)| format!("\"redis://127.0.0.1:{port}\""));
        let urls = urls.collect::<Vec<_>>().join(", ");
        format!(
            "{{ url = [{urls}], username = \"weir\", password = {PASSWORD:?}, \
             sentinel = {{ name = {name:?}, password = {password:?} }} }}"
        )
    }

    /// Sends a command to a sentinel.
    fn ask<T: FromRedisValue>(&self, at: usize, command: &[&str]) -> T {
        query(&format!("redis://:{SENTINEL_PASSWORD}@127.0.0.1:{}", self.sentinels[at].0), command)
    }

    /// Port of the primary, as most of the sentinels know it.
    pub(crate) fn primary_port(&self) -> u16 {
        let ports = (0..3).map(|at| {
            let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY];
            self.ask::<(String, u16)>(at, &command).1
        });
        let mut ports: Vec<_> = ports.collect();
        ports.sort_unstable();
        ports[1]
    }

    /// Has the sentinels wait so long for servers that do not reply.
    pub(crate) fn wait_for_servers(&self, millis: &str) {
        let set = ["SENTINEL", "SET", PRIMARY, "down-after-milliseconds", millis];
        (0..3).for_each(|at| self.ask(at, &set));
    }

    /// Takes out the server that has become the primary.
    pub(crate) fn take_primary(&mut self) -> TestStore {
        let port = self.primary_port();
        let at = self.followers.iter().position(|it| it.port == port).expect("one of them");
        self.followers.remove(at)
    }

    /// Kills this number of sentinels.
    pub(crate) async fn kill_sentinels(&mut self, count: usize) {
        for (_, sentinel) in &mut self.sentinels[..count] {
            sentinel.kill().await.expect("killed");
        }
    }
}

async fn start_sentinel(folder: &Path, primary: &str) -> (u16, Child) {
    let port = free_port();
    let path = folder.join(format!("sentinel-{port}.conf"));
    let text = format!(
        "port {port}\nbind 127.0.0.1\nrequirepass {SENTINEL_PASSWORD}\n\
         sentinel sentinel-pass {SENTINEL_PASSWORD}\nsentinel monitor {PRIMARY} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {PRIMARY} {LONG}\n\
         sentinel failover-timeout {PRIMARY} 2000\n"
    );
    std::fs::write(&path, text).expect("written");
    let mut command = Command::new(server());
    command.arg(path).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.kill_on_drop(true).spawn().expect("it starts");
    until("the sentinel listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
        .await;
    (port, child)
}

/// Nodes of a cluster: three primaries, and one that replicates the owner of the fleet's slot.
pub(crate) struct ClusterSet {
    /// The primaries that do not have the slot of the fleet, then a server that replicates its
    /// owner.
    pub(crate) others: Vec<TestStore>,
    /// Slot of the keys of the fleet.
    pub(crate) slot: String,
    _folder: TempDir,
}

impl ClusterSet {
    /// Starts a cluster; returns the owner of the fleet's slot beside the rest.
    pub(crate) async fn start() -> (TestStore, Self) {
        let folder = TempDir::new().expect("a folder");
        let mut nodes = Vec::new();
        for _ in 0..4 {
            let (bus, dir) = (free_port().to_string(), folder.path().to_str().expect("text"));
            let file = format!("nodes-{bus}.conf");
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                SHORT,
                "--dir",
                dir,
                "--cluster-config-file",
                &file,
                "--cluster-port",
                &bus,
                "--repl-diskless-sync-delay",
                "0",
            ];
            nodes.push((TestStore::start_with(&arguments).await, bus));
        }
        let slot: u16 = nodes[0].0.run(&["CLUSTER", "KEYSLOT", "{weir}:members"]);
        let ranges = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
        for ((node, _), (from, to)) in nodes.iter().zip(ranges) {
            node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", from, to]);
        }
        assert!(slot <= 5_460, "the first node has the slot of the fleet: {slot}");
        for (node, bus) in &nodes[1..] {
            let port = node.port.to_string();
            nodes[0].0.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
        let mut nodes: Vec<_> = nodes.into_iter().map(|(node, _)| node).collect();
        let is_up = |node: &TestStore| {
            let info: String = node.run(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:4")
        };
        until("the cluster is up", || nodes.iter().all(is_up)).await;
        nodes.iter().for_each(|node| wait_for_nodes(node, LONG));
        let owner: String = nodes[0].run(&["CLUSTER", "MYID"]);
        nodes[3].run::<()>(&["CLUSTER", "REPLICATE", &owner]);
        until("it replicates", || nodes[3].run::<String>(&["INFO"]).contains("link_status:up"))
            .await;
        let mut owner = nodes.remove(0);
        let urls = nodes.iter().map(|node| format!("{:?}", node.url()));
        let urls = urls.collect::<Vec<_>>().join(", ");
        owner.access = Some(format!("{{ url = [{urls}], cluster = true }}"));
        (owner, Self { others: nodes, slot: slot.to_string(), _folder: folder })
    }

    /// Moves the slot of the fleet, with its keys, to another primary.
    pub(crate) async fn move_slot(&self, from: &TestStore, to: &TestStore) {
        let slot = &*self.slot;
        let [old, new] = [from, to].map(|node| node.run::<String>(&["CLUSTER", "MYID"]));
        to.run::<()>(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &old]);
        from.run::<()>(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &new]);
        let port = to.port.to_string();
        loop {
            let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
            if keys.is_empty() {
                break;
            }
            let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "REPLACE", "KEYS"];
            let keys = keys.iter().map(|key| &**key);
            from.run::<String>(&migrate.into_iter().chain(keys).collect::<Vec<_>>());
        }
        for node in [to, from] {
            node.run::<()>(&["CLUSTER", "SETSLOT", slot, "NODE", &new]);
        }
    }
}

/// Has a node of a cluster wait so long for others that do not reply.
pub(crate) fn wait_for_nodes(node: &TestStore, millis: &str) {
    node.run::<()>(&["CONFIG", "SET", "cluster-node-timeout", millis]);
}

/// Proxy in front of a store whose replies arrive late.
pub(crate) struct DelayingProxy {
    pub(crate) port: u16,
    delay: Arc<AtomicU64>,
    /// Of this number of replies, one is delayed.
    one_in: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

impl DelayingProxy {
    /// Starts a proxy that delays nothing yet.
    pub(crate) async fn start(store: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let delay = Arc::new(AtomicU64::new(0));
        let one_in = Arc::new(AtomicU64::new(1));
        let shared = (Arc::clone(&delay), Arc::clone(&one_in), Arc::new(AtomicU64::new(0)));
        let task = TaskTracker::new().spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (delay, one_in, replies) = shared.clone();
                connections.spawn(async move {
                    let server = TcpStream::connect(("127.0.0.1", store)).await?;
                    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                        (client.into_split(), server.into_split());
                    let there = tokio::io::copy(&mut from_client, &mut to_server);
                    let back = async {
                        let mut bytes = vec![0; 64 * 1024];
                        loop {
                            let count = from_server.read(&mut bytes).await?;
                            if count == 0 {
                                return std::io::Result::Ok(());
                            }
                            let number = replies.fetch_add(1, Ordering::Relaxed);
                            if number.is_multiple_of(one_in.load(Ordering::Relaxed)) {
                                let millis = delay.load(Ordering::Relaxed);
                                tokio::time::sleep(Duration::from_millis(millis)).await;
                            }
                            to_client.write_all(&bytes[..count]).await?;
                        }
                    };
                    // What has been sent is executed, even if its client has left.
                    tokio::join!(there, back).0
                });
            }
        });
        Self { port, delay, one_in, _task: AbortOnDropHandle::new(task) }
    }

    /// Delays one of so many replies by this time from now on.
    pub(crate) fn set_some(&self, one_in: u64, delay: Duration) {
        self.one_in.store(one_in, Ordering::Relaxed);
        self.set(delay);
    }

    /// Delays each reply by this time from now on.
    pub(crate) fn set(&self, delay: Duration) {
        self.delay.store(u64::try_from(delay.as_millis()).expect("short"), Ordering::Relaxed);
    }
}

/// Sends a command to a server.
pub(crate) fn query<T: FromRedisValue>(url: &str, command: &[&str]) -> T {
    let client = Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("it listens");
    let mut sent = cmd(command[0]);
    command[1..].iter().for_each(|argument| {
        sent.arg(argument);
    });
    sent.query(&mut connection).expect("it replies")
}
