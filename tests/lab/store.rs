//! The store: a Valkey or Redis server of the machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use redis::FromRedisValue;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::ports::free_port;
use super::store_set::query;
use super::until;

/// A running store, which ends when this is dropped.
pub(crate) struct TestStore {
    pub(crate) port: u16,
    arguments: Vec<String>,
    /// Its configuration; without one it stores nothing on the disk.
    file: Option<String>,
    /// Value of `store` in the configuration, if it needs more than the URL.
    pub(crate) access: Option<String>,
    child: Option<Child>,
}

/// Path of the server program.
pub(crate) fn server() -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/interop/bin/redis-server");
    assert!(program.exists(), "run ./dev prepare: {}", program.display());
    program
}

impl TestStore {
    /// Starts a store without a password.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a store with these further arguments.
    pub(crate) async fn start_with(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|it| (*it).to_owned()).collect();
        Self { port: free_port(), arguments, file: None, access: None, child: None }.started().await
    }

    /// Starts a store with this configuration.
    pub(crate) async fn start_with_file(path: &str) -> Self {
        let file = Some(path.to_owned());
        Self { port: free_port(), arguments: Vec::new(), file, access: None, child: None }
            .started()
            .await
    }

    async fn started(mut self) -> Self {
        self.restart().await;
        self
    }

    /// Starts the store, empty, at the same address.
    pub(crate) async fn restart(&mut self) {
        let mut command = Command::new(server());
        match &self.file {
            Some(file) => command.args([file]),
            None => command.args(["--save", "", "--appendonly", "no"]),
        };
        command.args(["--port", &self.port.to_string()]);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        self.child = Some(command.kill_on_drop(true).spawn().expect("it starts"));
        let port = self.port;
        until("the store listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
            .await;
    }

    /// Kills the store; all data is lost.
    pub(crate) async fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().await.expect("killed");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = self.child.as_ref().and_then(Child::id).expect("it runs");
        let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(process, signal).expect("it runs");
    }

    /// Value of `store` in the configuration.
    pub(crate) fn table(&self) -> String {
        match &self.access {
            Some(access) => access.clone(),
            None => format!("{{ url = \"{}\" }}", self.url()),
        }
    }

    /// Value of `store` with a longer wait for a reply, such as `5s`: a machine may stall.
    pub(crate) fn table_with_timeout(&self, timeout: &str) -> String {
        let table = self.table();
        let table = table.strip_suffix('}').expect("a table");
        format!("{table}, timeout = {timeout:?} }}")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Runs a command in the store.
    pub(crate) fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        query(&self.url(), command)
    }

    /// Waits until this number of replicas are members and have read the records of the others.
    pub(crate) async fn wait_for_members(&self, count: usize) {
        until("all are members", || self.run::<usize>(&["HLEN", "{weir}:members"]) == count).await;
        // Only in a store that has been there for some time a missing record means an end.
        self.run::<usize>(&["HSET", "{weir}:steady", "since", "0"]);
        let seen = RefCell::new(BTreeMap::<String, BTreeSet<String>>::new());
        until("each has read the others", || {
            let (now, mut seen) = (self.members(), seen.borrow_mut());
            if !now.keys().eq(seen.keys()) {
                // One that has ended may have stood for one that had not joined yet.
                seen.clear();
            }
            for (member, text) in now {
                seen.entry(member).or_default().insert(text);
            }
            // With the next record each has sent for the others, and with the one after that it
            // has got them. The next one may also have been made before this began.
            seen.len() == count && seen.values().all(|records| records.len() >= 3)
        })
        .await;
    }

    /// Records of the members, by their names, which change with each heartbeat.
    fn members(&self) -> BTreeMap<String, String> {
        let all: Vec<String> = self.run(&["HGETALL", "{weir}:members"]);
        all.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }

    /// Returns everything that the store holds, as text.
    pub(crate) fn dump(&self) -> String {
        let mut text = String::new();
        for key in self.run::<Vec<String>>(&["KEYS", "*"]) {
            let values: Vec<String> = match &*self.run::<String>(&["TYPE", &key]) {
                "hash" => self.run(&["HGETALL", &key]),
                "zset" => self.run(&["ZRANGE", &key, "0", "-1"]),
                "string" => vec![self.run(&["GET", &key])],
                other => panic!("{key} is a {other}"),
            };
            text.push_str(&format!("{key} {}\n", values.join(" ")));
        }
        text
    }
}
