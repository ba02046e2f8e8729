//! Several replicas of `weir serve` with the servers of one lab behind them.

use std::fs;
use std::ops::Index;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::lab::client::{Client, Revision};
use crate::lab::ports::free_port;
use crate::lab::store::TestStore;
use crate::lab::weir::Weir;
use crate::lab::{Lab, MachineGuard, PATIENCE, alone_by_night, beside_others, by_night};

/// Name of the only server.
pub(crate) const HUB: &str = "hub";

/// Wait for a reply of the store in most tests: with the default, a store that is late on a busy
/// machine would decide what they see.
pub(crate) const PATIENT: &str = "5s";
/// Default of that wait, for tests in which the store is away or late.
pub(crate) const DEFAULT_STORE_WAIT: &str = "50ms";

/// A lab, a store, and replicas.
pub(crate) struct Replicas {
    pub(crate) lab: Lab,
    pub(crate) store: TestStore,
    /// Turn on the machine, because tests that measure time use it alone.
    pub(crate) turn: Option<MachineGuard>,
    keys: PathBuf,
    /// Additions to the configuration of each replica, and to its `[fleet]`.
    config: String,
    fleet: String,
    /// Time for which a replica announces that it stops.
    shutdown_delay: &'static str,
    /// Time for which a replica waits for a reply of the store; replicas read it when they start.
    pub(crate) store_wait: &'static str,
    /// Port of each replica, which it keeps when it starts again.
    ports: Vec<u16>,
    running: Vec<Option<Weir>>,
}

impl Replicas {
    /// Starts a number of replicas, and waits until they know each other.
    pub(crate) async fn start(count: usize) -> Self {
        Self::start_with(count, "", "").await
    }

    /// Starts replicas that wait for the store no longer than by default.
    pub(crate) async fn start_impatient(count: usize) -> Self {
        let mut replicas = Self::prepare(TestStore::start().await, "", "").await;
        replicas.store_wait = DEFAULT_STORE_WAIT;
        replicas.add_all(count).await;
        replicas
    }

    /// Starts replicas with these additions to the configuration, and to its `[fleet]`.
    pub(crate) async fn start_with(count: usize, config: &str, fleet: &str) -> Self {
        let mut replicas = Self::prepare(TestStore::start().await, config, fleet).await;
        replicas.add_all(count).await;
        replicas
    }

    /// Starts replicas that announce that they stop until they get a second signal.
    pub(crate) async fn start_announcing(count: usize) -> Self {
        let mut replicas = Self::prepare(TestStore::start().await, "", "").await;
        replicas.shutdown_delay = "10m";
        replicas.add_all(count).await;
        replicas
    }

    /// Has the upstream of all replicas declare that it logs, so that clients set levels.
    pub(crate) fn script_logging(&self) {
        let initialized = json!({
            "jsonrpc": "2.0", "id": "$ID", "result": {
                "protocolVersion": "2025-11-25", "capabilities": { "tools": {}, "logging": {} },
                "serverInfo": { "name": "evil", "version": "1" },
            },
        });
        let initialized = initialized.to_string().replace("\"$ID\"", "$ID");
        self.lab.evil(HUB).script(json!({ "on": { "initialize": { "text": initialized } } }));
    }

    /// Prepares a lab without replicas.
    pub(crate) async fn prepare(store: TestStore, config: &str, fleet: &str) -> Self {
        Self::prepare_in(Lab::new().http(HUB, json!({})).await, store, config, fleet).await
    }

    /// Prepares replicas with the servers of this lab.
    pub(crate) async fn prepare_in(lab: Lab, store: TestStore, config: &str, fleet: &str) -> Self {
        let turn = Some(MachineGuard::BesideOthers(beside_others().await));
        lab.configure("");
        let keys = lab.folder().join("fleet-keys");
        weir(&["fleet", "key", keys.to_str().expect("text")]);
        let (config, fleet) = (config.to_owned(), fleet.to_owned());
        let (shutdown_delay, store_wait) = ("2s", PATIENT);
        let (ports, running) = (Vec::new(), Vec::new());
        Self { lab, store, turn, keys, config, fleet, shutdown_delay, store_wait, ports, running }
    }

    /// Waits by night until no other test runs, and excludes others from then on.
    pub(crate) async fn alone_by_night(&mut self) {
        // Otherwise two tests would wait for each other.
        self.turn = None;
        self.turn = Some(alone_by_night().await);
    }

    /// Starts a number of replicas, and waits until they know each other.
    pub(crate) async fn add_all(&mut self, count: usize) {
        for _ in 0..count {
            self.add().await;
        }
        self.wait_until_known(self.numbers().count()).await;
    }

    /// Starts one more replica, and returns its number.
    pub(crate) async fn add(&mut self) -> usize {
        let number = self.reserve();
        self.restart(number).await;
        number
    }

    /// Returns the number of a further replica, which does not run yet.
    pub(crate) fn reserve(&mut self) -> usize {
        self.ports.push(free_port());
        self.running.push(None);
        self.running.len() - 1
    }

    /// Has a replica run that was started elsewhere.
    pub(crate) fn put(&mut self, number: usize, weir: Weir) {
        self.running[number] = Some(weir);
    }

    /// Starts a replica that does not run, and waits until it serves.
    pub(crate) async fn restart(&mut self, number: usize) {
        self.configure(number, &self.config.clone());
        self.start_configured(number).await;
    }

    /// Starts a replica with the configuration that it has.
    pub(crate) async fn start_configured(&mut self, number: usize) {
        self.start_unlisted(number).await;
        // Without credentials nothing is listed.
        if !self.config.contains("[clients.") {
            self[number].wait_until_listed(HUB).await;
        }
    }

    /// Like [`Self::start_configured`], without a look at the lists.
    pub(crate) async fn start_unlisted(&mut self, number: usize) {
        let weir = Weir::start(&self.folder(number)).await;
        self.running[number] = Some(weir);
    }

    /// Writes the configuration of a replica.
    pub(crate) fn configure(&self, number: usize, config: &str) {
        let folder = self.folder(number);
        fs::create_dir_all(&folder).expect("made");
        let common = fs::read_to_string(self.lab.config()).expect("written");
        let address = format!("127.0.0.1:{}", self.ports[number]);
        let server = format!(
            "[server]\nshutdown_delay = {:?}\ntrusted_proxies = [\"127.0.0.1\"]\n",
            self.shutdown_delay
        );
        let common = common.replace("[server]\n", &server).replacen("127.0.0.1:0", &address, 1);
        let (keys, own, port) = (&self.keys, &self.fleet, free_port());
        let store = self.store.table_with_timeout(self.store_wait);
        let text = format!(
            "{common}\n{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n[fleet]\nstore = {store}\nkeys = {{ file = {keys:?} }}\n\
             listen = \"127.0.0.1:{port}\"\nmember = \"replica-{number}\"\n{own}\n"
        );
        fs::write(folder.join("weir.toml"), text).expect("written");
    }

    pub(crate) fn folder(&self, number: usize) -> PathBuf {
        self.lab.folder().join(format!("replica-{number}"))
    }

    /// Waits until each replica knows this number of members.
    pub(crate) async fn wait_until_known(&self, count: usize) {
        self.store.wait_for_members(count).await;
    }

    pub(crate) async fn legacy(&self, number: usize) -> Client {
        self[number].client(Revision::LEGACY).await
    }

    /// Opens a session with `open`, and returns its client once this replica has sent a request of
    /// it on. On a busy machine it may not reach the owner in time, and takes the session over.
    pub(crate) async fn through(&self, number: usize, open: impl AsyncFn() -> Client) -> Client {
        let begin = Instant::now();
        loop {
            let (before, mut client) = (self.claims(), open().await);
            client.move_to(&self[number].address);
            assert!(client.request("ping", json!({})).await.is_result());
            if self.claims() == before {
                return client;
            }
            assert!(begin.elapsed() < PATIENCE, "it takes over every session");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Number of sessions that were taken over.
    pub(crate) fn claims(&self) -> usize {
        self.store.run(&["HLEN", "{weir}:claims"])
    }

    /// Checks that no replica has counted as ended, so that no session was taken over. By day a
    /// busy machine may have kept one replica from another, as their metrics tell.
    pub(crate) fn check_all_live(&self, when: &str) {
        let claims = self.claims();
        if claims == 0 {
            return;
        }
        let unreachable = self.numbers().map(|number| {
            self.status(number)["fleet"]["hops"]["unreachable"].as_u64().expect("a number")
        });
        let unreachable = unreachable.sum::<u64>();
        eprintln!("{when}: {claims} sessions taken over, {unreachable} times no replica reached");
        assert!(!by_night() && claims as u64 <= unreachable, "{when}: {claims} taken over");
    }

    /// Replaces the keys of the fleet; replicas read them when they start.
    pub(crate) fn set_keys(&self, keys: &[&str]) {
        fs::write(&self.keys, keys.join("\n")).expect("written");
    }

    /// Stops a replica with SIGTERM and starts it again.
    pub(crate) async fn replace(&mut self, number: usize) {
        self.take(number).stop().await;
        self.restart(number).await;
    }

    /// Path of the configuration of a replica.
    pub(crate) fn config(&self, number: usize) -> String {
        self.folder(number).join("weir.toml").to_str().expect("text").to_owned()
    }

    /// Runs a command about a replica; returns its exit code and all of its output.
    pub(crate) fn command(&self, number: usize, command: &str) -> (i32, String) {
        let config = self.config(number);
        let state = self.folder(number).join("state");
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        program.args([command, "--config", &config]).env("XDG_STATE_HOME", state);
        let done = program.output().expect("it starts");
        let text = [done.stdout, done.stderr].concat();
        (done.status.code().expect("a code"), String::from_utf8(text).expect("text"))
    }

    /// Runs a command about a replica until it ends in this way. It takes processor time from the
    /// replicas, so it pauses.
    pub(crate) async fn until_command(
        &self,
        number: usize,
        command: &str,
        is_so: impl Fn(i32, &str) -> bool,
    ) {
        let begin = Instant::now();
        loop {
            let (code, text) = self.command(number, command);
            if is_so(code, &text) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "in vain, {command}: {text}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Number of calls of the store that have failed on a replica.
    pub(crate) fn store_errors_of(&self, number: usize) -> u64 {
        self.status(number)["fleet"]["store_errors"].as_u64().expect("a number")
    }

    /// Status of a replica in JSON.
    pub(crate) fn status(&self, number: usize) -> Value {
        let (config, state) = (self.config(number), self.folder(number).join("state"));
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["status", "--json", "--config", &config]).env("XDG_STATE_HOME", state);
        let shown = command.output().expect("it starts").stdout;
        serde_json::from_slice(&shown).expect("JSON")
    }

    /// Kills a replica with SIGKILL.
    pub(crate) async fn kill(&mut self, number: usize) {
        let mut weir = self.take(number);
        weir.signal(Signal::KILL);
        weir.ended().await;
    }

    /// Takes a replica out, to stop it.
    pub(crate) fn take(&mut self, number: usize) -> Weir {
        self.running[number].take().expect("it runs")
    }

    /// Numbers of the replicas that run.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..self.running.len()).filter(|number| self.running[*number].is_some())
    }

    /// Number of executions of a call at the server.
    pub(crate) fn executions(&self, nonce: &str) -> usize {
        self.lab.evil(HUB).executions().get(nonce).copied().unwrap_or_default()
    }
}

impl Index<usize> for Replicas {
    type Output = Weir;

    fn index(&self, number: usize) -> &Weir {
        self.running[number].as_ref().expect("it runs")
    }
}

/// Runs a command of the program that has to succeed, and returns its output.
pub(crate) fn weir(arguments: &[&str]) -> String {
    let (code, out, error) = try_weir(arguments);
    assert_eq!(code, 0, "{arguments:?}: {error}");
    out
}

/// Runs a command of the program; returns its exit code, its output, and its error output.
pub(crate) fn try_weir(arguments: &[&str]) -> (i32, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
    let done = command.args(arguments).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (done.status.code().expect("a code"), text(done.stdout), text(done.stderr))
}
