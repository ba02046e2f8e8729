//! The fault laboratory: the real program between servers that misbehave on request and clients
//! that keep a ledger.
//!
//! A [`Lab`] is a folder with servers in it (`evil.rs`, the program `examples/evil_upstream`) and a
//! configuration; [`weir::Weir`] is the program that runs on it, observed from outside: `lines.rs`
//! reads its log, `process.rs` its state in `/proc`. `client.rs` sends requests in either era, over
//! HTTP and stdio; `ledger.rs` checks that each request ended once, with its own response, and was
//! executed once at most; `load.rs` runs many clients at once. `store.rs`, `store_set.rs`,
//! `nginx.rs`, `caddy.rs` and `links.rs` are what several replicas need around them; `ports.rs`
//! gives ports to programs that cannot choose one; `signing.rs` signs access tokens. Tests without
//! a runtime wait by `blocking.rs` and send requests by `http.rs`.
//!
//! Another test binary includes it with `#[path = "../lab/mod.rs"]`.

#![allow(dead_code, unused_imports, reason = "no binary of tests uses all of it")]

pub(crate) mod blocking;
pub(crate) mod caddy;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod evil;
pub(crate) mod http;
pub(crate) mod ledger;
pub(crate) mod lines;
pub(crate) mod links;
pub(crate) mod load;
pub(crate) mod nginx;
pub(crate) mod night;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod signing;
pub(crate) mod store;
pub(crate) mod store_set;
pub(crate) mod weir;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use blocking::wait_until;
use evil::Evil;
pub(crate) use night::by_night;
pub(crate) use process::runs;
use weir::Weir;

/// Generous, because it only limits how long a broken test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Excludes tests by night, and by day none: then no test waits for another.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// Waits by night until no other test of this binary runs, and excludes others, because
/// measurements have strict bounds then. By day, where the bounds only tell right from wrong, the
/// test runs beside others.
pub(crate) async fn alone_by_night() -> MachineGuard {
    if by_night() {
        MachineGuard::Alone(MACHINE.write().await)
    } else {
        MachineGuard::BesideOthers(beside_others().await)
    }
}

/// Guard of either kind.
pub(crate) enum MachineGuard {
    Alone(RwLockWriteGuard<'static, ()>),
    BesideOthers(RwLockReadGuard<'static, ()>),
}

/// Runs beside all tests but those that are alone by night.
pub(crate) async fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Shortest duration of this work in five rounds: a wait of Weir recurs in each of them, a stall of
/// the machine does not.
pub(crate) async fn shortest(mut work: impl AsyncFnMut()) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        work().await;
        shortest = shortest.min(begin.elapsed());
    }
    shortest
}

/// Returns how long a soak lasts: `WEIR_SOAK`, or so many seconds by day or by night.
pub(crate) fn soak_time(by_day: u64, at_night: u64) -> Duration {
    let Ok(text) = std::env::var("WEIR_SOAK") else {
        return Duration::from_secs(if by_night() { at_night } else { by_day });
    };
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let number: u64 = number.parse().expect("WEIR_SOAK is a number and a unit: 90s, 30m, 24h");
    match unit {
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(60 * number),
        "h" => Duration::from_secs(3600 * number),
        _ => panic!("WEIR_SOAK is a number and a unit: 90s, 30m, 24h"),
    }
}

/// Checks how long something took each time. By night no time may exceed the bound. By day a busy
/// machine may hold up a few, but not the median.
pub(crate) fn check_times(what: &str, mut took: Vec<Duration>, bound: Duration) {
    took.sort_unstable();
    let time = if by_night() { took.last() } else { took.get(took.len() / 2) };
    assert!(time.is_none_or(|time| *time < bound), "{what}: {time:?} of {took:?}");
}

/// Waits until a condition holds and returns the time that it took.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begin.elapsed()
}

/// Calls an upstream that is restarting until a call succeeds.
pub(crate) async fn until_served(weir: &Weir, upstream: &str) {
    let begin = Instant::now();
    while !weir.call(upstream, serde_json::json!({})).await.0.is_result() {
        assert!(begin.elapsed() < PATIENCE, "{upstream} is not back");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until nothing on this machine has a connection to this address of an ended process.
pub(crate) async fn until_disconnected(address: &str) {
    let (_, port) = address.rsplit_once(':').expect("a port");
    let remote = format!(":{:04X}", port.parse::<u16>().expect("a number"));
    let is_open = |line: &str| {
        let mut fields = line.split_whitespace().skip(2);
        let (to, state) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        // Established, or closed by the other side only.
        to.ends_with(&remote) && matches!(state, "01" | "08")
    };
    until("all connections are closed", || {
        !std::fs::read_to_string("/proc/net/tcp").expect("there").lines().any(is_open)
    })
    .await;
}

/// Folder with servers and a configuration.
pub(crate) struct Lab {
    folder: TempDir,
    evils: Vec<Evil>,
}

impl Lab {
    /// Creates a lab without servers.
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder"), evils: Vec::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Adds a server that Weir starts.
    pub(crate) fn stdio(mut self, name: &str, script: Value) -> Self {
        self.evils.push(Evil::stdio(self.folder.path(), name, script));
        self
    }

    /// Adds a server that ignores SIGTERM, as do all its descendants.
    pub(crate) fn stubborn(mut self, name: &str, script: Value) -> Self {
        self.evils.push(Evil::stubborn(self.folder.path(), name, script));
        self
    }

    /// Starts a server on a port of its own.
    pub(crate) async fn http(mut self, name: &str, script: Value) -> Self {
        self.evils.push(Evil::http(self.folder.path(), name, script).await);
        self
    }

    pub(crate) fn evil(&self, name: &str) -> &Evil {
        let found = self.evils.iter().find(|evil| evil.name == name);
        found.unwrap_or_else(|| panic!("no server {name}"))
    }

    pub(crate) fn evil_mut(&mut self, name: &str) -> &mut Evil {
        let found = self.evils.iter_mut().find(|evil| evil.name == name);
        found.unwrap_or_else(|| panic!("no server {name}"))
    }

    pub(crate) fn evils(&self) -> &[Evil] {
        &self.evils
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.evils.iter().map(|evil| evil.name.clone()).collect()
    }

    /// Writes the configuration: all servers, and the test's additions.
    pub(crate) fn configure(&self, config: &str) {
        self.configure_for(|_| Some(String::new()), config);
    }

    /// Writes the configuration with only those servers for which `more` returns lines, perhaps
    /// empty, for their own table.
    pub(crate) fn configure_for(&self, more: impl Fn(&str) -> Option<String>, config: &str) {
        let table = |evil: &Evil| Some(format!("{}{}\n", evil.table(), more(&evil.name)?));
        let tables: String = self.evils.iter().filter_map(table).collect();
        let text = format!(
            // Idle connections close before a test's patience ends.
            "[server]\nlisten = \"127.0.0.1:0\"\ntimeouts = {{ idle = \"20s\" }}\n[log]\nformat = \"json\"\n{config}\n{tables}"
        );
        // Written by rename, because Weir may read the file at any time.
        let (new, path) = (self.folder.path().join("weir.toml.new"), self.config());
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, path).expect("renamed");
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("weir.toml")
    }

    /// Starts Weir on all servers with these additions to the configuration.
    pub(crate) async fn serve(&self, config: &str) -> Weir {
        self.configure(config);
        Weir::start(self.folder.path()).await
    }

    /// Starts Weir and waits until each server has been listed.
    pub(crate) async fn serve_all(&self, config: &str) -> Weir {
        let weir = self.serve(config).await;
        for evil in &self.evils {
            weir.wait_until_listed(&evil.name).await;
        }
        weir
    }
}

/// Path of a program from `examples/`. A plain `cargo test` builds them first; narrowed to this
/// file it does not.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    let profile = test.parent().and_then(Path::parent).expect("it is in target/<profile>/deps");
    let path = profile.join("examples").join(name);
    assert!(path.is_file(), "{} is not built: run `cargo build --examples`", path.display());
    path
}
