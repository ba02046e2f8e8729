//! Soak test: a mixed load of both eras over ten upstreams, random faults, a configuration that
//! changes all the time, and ledgers that have to balance (F-101, G1, G2, G7, G19).
//!
//! It runs by night and as `./dev soak 30m`, which sets its duration (`WEIR_SOAK`). All randomness
//! comes from one seed. Each run has a new one, which is printed; `WEIR_SEED` sets it. The faults
//! of the load are then the same; effects of the clock are not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::lab::client::{Client, Revision};
use crate::lab::ledger::{End, Ledger, Summary};
use crate::lab::load::{Plan, Random};
use crate::lab::ports::free_port;
use crate::lab::process::Resources;
use crate::lab::weir::Weir;
use crate::lab::{Lab, alone_by_night, beside_others, by_night, runs, soak_time, until};

/// Short intervals, so that a restarted upstream is found soon and a hanging one is given up soon.
const CONFIG: &str =
    "[defaults]\ntimeouts.call = \"2s\"\nretry = { backoff = \"50ms\", max_backoff = \"1s\" }\n";

/// Upstream that appears and disappears with the configuration; the load does not call it.
const TRANSIENT: &str = "guest";

/// Number of tasks allowed at the end above the number before: idle tasks end after a while.
const SPARE_TASKS: u64 = 8;
/// Threads for blocking work that may be in use once all is calm.
const SPARE_THREADS: usize = 2;

/// Growth of the resident memory that is allowed after the warm-up.
const SPARE_BYTES: u64 = 16 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f101_g1_g2_g7_a_soak_with_random_faults_balances_its_books_and_leaves_nothing_nightly() {
    if !by_night() && std::env::var_os("WEIR_SOAK").is_none() {
        return;
    }
    let _turn = alone_by_night().await;
    let (time, seed) = (soak_time(8, 120), seed());
    eprintln!(
        "soak: {time:?}, seed {seed}; again: WEIR_SEED={seed} ./dev soak {}s",
        time.as_secs()
    );
    let mut lab = fleet().await;
    let names = lab.names();
    lab = lab.http(TRANSIENT, json!({ "revision": Revision::MODERN.as_str() })).await;
    let rules = ConfigFile::new();
    rules.write(&lab);
    let weir = Weir::start(lab.folder()).await;
    for name in &names {
        weir.wait_until_listed(name).await;
    }
    // Calls each upstream in each era once, so that whatever the first call opens is open.
    rest(&weir, &names).await;
    let (calm, calm_tasks) = (weir.resources(), rules.tasks().await);

    let mut plan = Plan::plain(24, &names);
    plan.seed = seed;
    plan.pause = Duration::from_millis(if cfg!(debug_assertions) { 20 } else { 5 });
    plan.faults = Arc::new(fault);
    let load = plan.start(&weir);
    let mut weather =
        UpstreamFaults { random: Random::new(seed), counts: BTreeMap::new(), names, rules };
    let mut samples = Vec::new();
    let mut next_line = Duration::ZERO;
    while load.running() < time {
        weather.change(&mut lab, &weir).await;
        samples.push((load.running(), weir.resources()));
        if load.running() >= next_line {
            print_progress(load.running(), load.ledger.ended(), &weir.resources());
            next_line = load.running() + (time / 8).min(Duration::from_secs(30));
        }
    }
    let lists = Arc::clone(&load.lists);
    let ledger = load.stop().await;
    weather.clear(&mut lab, &weir).await;
    rest(&weir, &weather.names).await;

    // Idle connections are closed and idle threads for blocking work end after seconds; after that,
    // all counts are as before.
    until("descriptors, threads and children are as they were", || {
        let now = weir.resources();
        now.descriptors <= calm.descriptors
            && now.threads <= calm.threads + SPARE_THREADS
            && now.children == calm.children
            && now.zombies == 0
    })
    .await;
    let end = weir.resources();
    let begin = Instant::now();
    let mut tasks = weather.rules.tasks().await;
    while tasks > calm_tasks + SPARE_TASKS && begin.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tasks = weather.rules.tasks().await;
    }
    eprintln!("soak: {calm_tasks} tasks before, {tasks} behind");
    assert!(tasks <= calm_tasks + SPARE_TASKS, "{tasks} tasks, {calm_tasks} before");
    assert!(weather.rules.applied > 0, "the configuration has never changed");
    let accounts = ledger.reconcile(lab.evils());
    close(&accounts, lists.load(Ordering::Relaxed), &weather, [calm, end]);
    let behind: Vec<_> = samples.iter().filter(|(at, _)| *at >= time / 4).collect();
    eprintln!("soak: memory changes by {:.1} MiB an hour, once warm", growth(&behind));
    let warm = behind.first().map_or(end, |(_, resources)| *resources);
    assert!(
        end.resident_bytes <= warm.resident_bytes + SPARE_BYTES,
        "{} bytes, {} when warm",
        end.resident_bytes,
        warm.resident_bytes
    );
    assert!(end.threads <= calm.threads + SPARE_THREADS, "{} threads", end.threads);
    let successes: usize = accounts.values().map(|account| account.successes).sum();
    assert!(
        successes * 2 > ledger.ended(),
        "most calls succeed: {successes} of {}",
        ledger.ended()
    );
    weir.stop().await;
}

/// Growth of the resident memory in MiB per hour, by linear regression over all samples.
fn growth(samples: &[&(Duration, Resources)]) -> f64 {
    let points = || samples.iter().map(|(at, it)| (at.as_secs_f64(), it.resident_bytes as f64));
    let mean = |of: fn((f64, f64)) -> f64| points().map(of).sum::<f64>() / samples.len() as f64;
    let (middle, level) = (mean(|it| it.0), mean(|it| it.1));
    let rise: f64 = points().map(|(at, bytes)| (at - middle) * (bytes - level)).sum();
    let spread: f64 = points().map(|(at, _)| (at - middle).powi(2)).sum();
    if spread > 0.0 { rise / spread * 3600.0 / f64::from(1 << 20) } else { 0.0 }
}

/// Seed from `WEIR_SEED`, or a new one.
fn seed() -> u64 {
    if let Ok(seed) = std::env::var("WEIR_SEED") {
        return seed.parse().expect("WEIR_SEED is a number");
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::from(now.subsec_nanos())
}

// === The fleet ===

/// Ten upstreams in all revisions and over all transports.
async fn fleet() -> Lab {
    let mut lab = Lab::new();
    for (number, revision) in Revision::ALL.iter().enumerate() {
        lab = lab.http(&format!("h{number}"), json!({ "revision": revision.as_str() })).await;
        if number > 0 {
            lab = lab.stdio(&format!("s{number}"), json!({ "revision": revision.as_str() }));
        }
    }
    lab.http("pair", json!({ "pair": true, "revision": "2024-11-05" })).await
}

/// Script of an upstream between faults.
fn calm_script(name: &str) -> Value {
    match name {
        "pair" => json!({ "pair": true, "revision": "2024-11-05" }),
        _ => {
            let number: usize = name[1..].parse().unwrap();
            json!({ "revision": Revision::ALL[number].as_str() })
        }
    }
}

/// Waits until every upstream answers clients of both eras.
async fn rest(weir: &Weir, names: &[String]) {
    for revision in [Revision::LEGACY, Revision::MODERN] {
        let mut client = weir.client(revision).await;
        for name in names {
            let begin = Instant::now();
            while !client.call(name, json!({ "nonce": "rest" })).await.is_result() {
                assert!(begin.elapsed() < Duration::from_secs(90), "{name} is not back");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

// === Faults ===

/// Fault of one call; most calls have none.
fn fault(random: &mut Random, upstream: &str) -> Option<Value> {
    if random.below(100) >= 12 {
        return None;
    }
    let wrong_id = r#"{"jsonrpc":"2.0","id":987654321,"result":{"content":[]}}"#;
    let half = r#"{"jsonrpc":"2.0","id":$ID,"resu"#;
    let error = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32050,"message":"no"}}"#;
    Some(match random.below(16) {
        0 | 1 => json!({ "delay_ms": random.below(200) }),
        // For a child, the fault is its exit.
        2 if upstream.starts_with('s') && random.below(8) > 0 => json!({ "delay_ms": 1 }),
        2 => json!({ "cut": random.below(300), "reset": random.below(2) == 0 }),
        3 if !upstream.starts_with('s') => {
            json!({ "cut": random.below(400), "events": true, "reset": random.below(2) == 0 })
        }
        4 => json!({ "before": [wrong_id] }),
        5 => json!({ "after": [wrong_id, wrong_id] }),
        6 => json!({ "text": half }),
        7 => json!({ "text": error }),
        8 => json!({ "piece": 1 + random.below(20) }),
        9 => json!({ "piece": 40, "pause_ms": 2, "events": true }),
        10 => json!({ "stderr_bytes": random.below(200_000) }),
        11 => json!({ "filler_bytes": random.below(500_000) }),
        12 if upstream.starts_with('h') => {
            json!({ "status": *random.one_of(&[500, 502, 503, 429, 404]) })
        }
        13 if upstream.starts_with('s') && random.below(8) == 0 => {
            json!({ "exit": *random.one_of(&[0, 1, 139, -9]) })
        }
        14 if random.below(4) == 0 => json!({ "never": true }),
        _ => json!({ "progress": random.below(20), "events": random.below(2) == 0 }),
    })
}

/// Temporary faults of whole upstreams.
struct UpstreamFaults {
    random: Random,
    /// Number of occurrences of each fault.
    counts: BTreeMap<&'static str, u64>,
    /// Upstreams that are always configured.
    names: Vec<String>,
    rules: ConfigFile,
}

impl UpstreamFaults {
    /// Applies one fault to one upstream, for a moment.
    async fn change(&mut self, lab: &mut Lab, weir: &Weir) {
        let name = self.random.one_of(&self.names).clone();
        // However short the soak is, the first fault is one of these.
        if self.counts.is_empty() || self.random.below(5) == 0 {
            *self.counts.entry("reloads").or_default() += 1;
            return self.rules.change(&mut self.random, &name, lab, weir).await;
        }
        let is_http = !name.starts_with('s');
        let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        let storm = |text: &str, on_stderr| json!({ "storm": { "text": text, "per_second": 2_000, "on_stderr": on_stderr } });
        let (what, more) = match self.random.below(6) {
            0 => ("notices", storm(changed, false)),
            1 if !is_http => ("standard error", storm("something is wrong", true)),
            2 => (
                "other lists",
                json!({ "more_tools": self.random.below(50), "storm": { "text": changed, "per_second": 100 } }),
            ),
            3 if is_http => ("resets", json!({ "down": true })),
            4 if is_http => ("kills", json!({})),
            5 => ("listeners", json!({})),
            _ => ("calm", json!({})),
        };
        *self.counts.entry(what).or_default() += 1;
        let mut script = calm_script(&name);
        script.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        lab.evil(&name).script(script);
        let moment = Duration::from_millis(100 + self.random.below(400));
        if what == "kills" {
            lab.evil_mut(&name).kill().await;
        }
        let listening = if what == "listeners" { Some(weir.listen().await) } else { None };
        tokio::time::sleep(moment).await;
        drop(listening);
        if what == "kills" {
            lab.evil_mut(&name).start().await;
        }
        lab.evil(&name).script(calm_script(&name));
        tokio::time::sleep(moment).await;
    }

    /// Ends all faults.
    async fn clear(&mut self, lab: &mut Lab, weir: &Weir) {
        for name in &self.names {
            lab.evil(name).script(calm_script(name));
        }
        self.rules.restore(lab, weir).await;
    }
}

// === The configuration ===

/// Clients that leave without a DELETE leave sessions behind, one with each reload. The sessions
/// expire within a time that is short beside a soak's, so that any further growth has another
/// cause.
const SESSIONS: &str = "[protocol]\nsession_ttl = \"1m\"\n";

/// Current state of the configuration file.
struct ConfigFile {
    /// Port of the admin endpoint.
    admin: u16,
    has_transient: bool,
    /// Whether there is a second role with a client of its own.
    has_visitor: bool,
    /// Whether all clients may use the upstream that comes and goes.
    may_all: bool,
    /// Number of changes of each upstream's own settings.
    times: BTreeMap<String, u32>,
    /// Number of reloads that were applied, and that were rejected.
    applied: usize,
    refused: usize,
}

impl ConfigFile {
    fn new() -> Self {
        let (times, applied, refused) = (BTreeMap::new(), 0, 0);
        Self {
            admin: free_port(),
            has_transient: false,
            has_visitor: false,
            may_all: true,
            times,
            applied,
            refused,
        }
    }

    fn write(&self, lab: &Lab) {
        let mut text = format!(
            "{CONFIG}[admin]\nlisten = \"127.0.0.1:{}\"\n[auth]\nmode = \"anonymous\"\n{SESSIONS}",
            self.admin
        );
        if !self.may_all {
            text += "[roles.local]\ntools.deny = [\"guest/*\"]\ntools.allow = [\"*\"]\n";
        }
        if self.has_visitor {
            let hash = "0123456789abcdef".repeat(4);
            text += "[roles.visitor]\ntools.allow = [\"*\"]\n";
            text += &format!("[clients.visitor]\nrole = \"visitor\"\nkey_sha256 = [\"{hash}\"]\n");
        }
        let more = |name: &str| {
            let items = 5_000 + self.times.get(name).copied().unwrap_or_default();
            let is_there = name != TRANSIENT || self.has_transient;
            is_there.then(|| format!("limits = {{ max_items = {items} }}\n"))
        };
        lab.configure_for(more, &text);
    }

    /// Changes the file, has Weir reload it, and checks the effect.
    async fn change(&mut self, random: &mut Random, name: &str, lab: &Lab, weir: &Weir) {
        match random.below(6) {
            0 | 1 => self.has_transient = !self.has_transient,
            2 => self.has_visitor = !self.has_visitor,
            3 => self.may_all = !self.may_all,
            5 if self.applied > 0 => return self.write_invalid(lab, weir).await,
            _ => *self.times.entry(name.to_owned()).or_default() += 1,
        }
        self.apply(lab, weir).await;
        // Clients of both eras see the new configuration as soon as the upstreams have been listed.
        for revision in [Revision::LEGACY, Revision::MODERN] {
            let mut client = weir.client(revision).await;
            let shows = self.has_transient && self.may_all;
            let begin = Instant::now();
            while client.tools().await.iter().any(|tool| tool.starts_with("guest__")) != shows {
                assert!(begin.elapsed() < Duration::from_secs(30), "{shows}: the guest's tools");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn apply(&mut self, lab: &Lab, weir: &Weir) {
        self.write(lab);
        weir.signal(Signal::HUP);
        self.applied += 1;
        let applied = self.applied;
        until("it is reloaded", || logged(weir, "the configuration was reloaded") >= applied).await;
    }

    /// Writes an invalid file, which changes nothing, and restores it.
    async fn write_invalid(&mut self, lab: &Lab, weir: &Weir) {
        let good = std::fs::read_to_string(lab.config()).unwrap();
        std::fs::write(lab.config(), format!("{good}\n[roles.local]\ntools.alow = 1\n")).unwrap();
        weir.signal(Signal::HUP);
        self.refused += 1;
        let refused = self.refused;
        let what = "the configuration is refused, the previous one stays active";
        until("it is refused", || logged(weir, what) >= refused).await;
        self.write(lab);
    }

    /// Restores the initial configuration.
    async fn restore(&mut self, lab: &Lab, weir: &Weir) {
        let is_other =
            self.has_transient || self.has_visitor || !self.may_all || !self.times.is_empty();
        (self.has_transient, self.has_visitor, self.may_all) = (false, false, true);
        self.times.clear();
        if is_other {
            self.apply(lab, weir).await;
        }
        eprintln!("soak: {} reloads, {} refused", self.applied, self.refused);
    }

    /// Number of tasks alive, from the metrics.
    async fn tasks(&self) -> u64 {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.admin)).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("weir_tasks "));
        line.unwrap_or_else(|| panic!("{text}")).trim().parse::<f64>().unwrap() as u64
    }
}

/// Number of lines in Weir's log with this message.
fn logged(weir: &Weir, message: &str) -> usize {
    weir.log().iter().filter(|line| line.contains(message)).count()
}

// === Output ===

fn print_progress(at: Duration, ended: usize, now: &Resources) {
    eprintln!(
        "soak: {:>5} s, {ended:>8} calls, {:>6} KiB, {:>4} descriptors, {:>2} children, {} zombies, {} threads",
        at.as_secs(),
        now.resident_bytes / 1024,
        now.descriptors,
        now.children,
        now.zombies,
        now.threads
    );
}

fn close(
    accounts: &BTreeMap<String, Summary>,
    lists: u64,
    weather: &UpstreamFaults,
    [calm, end]: [Resources; 2],
) {
    eprintln!(
        "soak: upstream     calls  successes  executed     median        p99  how the others ended"
    );
    for (name, account) in accounts {
        let others: Vec<_> = account.ends.iter().filter(|(end, _)| **end != End::Success).collect();
        eprintln!(
            "soak: {name:<10} {:>7}  {:>9}  {:>8}  {:>9.1?}  {:>9.1?}  {others:?}",
            account.calls, account.successes, account.executions, account.median, account.p99
        );
    }
    eprintln!("soak: {lists} lists; weather {:?}", weather.counts);
    eprintln!("soak: before {calm:?}");
    eprintln!("soak: behind {end:?}");
}

// === Through `weir stdio` ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_g2_a_client_on_stdio_gets_each_answer_once_whatever_goes_wrong_nightly() {
    if !by_night() {
        return;
    }
    let _turn = beside_others().await;
    let lab = fleet().await;
    lab.configure(CONFIG);
    let (ledger, calls, seed) = (Ledger::default(), 5_000, seed());
    eprintln!("stdio: seed {seed}; WEIR_SEED={seed} repeats it");
    let mut random = Random::new(seed);
    for revision in [Revision::LEGACY, Revision::MODERN] {
        let mut client = Client::stdio(lab.folder(), revision).await;
        for _ in 0..calls {
            let upstream = random.one_of(&lab.names()).clone();
            let fault = fault(&mut random, &upstream);
            ledger.call(&mut client, &upstream, fault.as_ref()).await;
        }
        client.close().await;
    }
    let accounts = ledger.reconcile(lab.evils());
    let successes: usize = accounts.values().map(|account| account.successes).sum();
    eprintln!("stdio: {successes} successes of {}", ledger.ended());
    assert!(successes > calls, "{accounts:?}");
    let children = lab.evils().iter().filter(|evil| evil.name.starts_with('s'));
    let mut processes = children.flat_map(|evil| evil.processes());
    assert!(!processes.any(runs), "a child is left");
}
