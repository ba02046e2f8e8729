//! An upstream that may run only once: its replica is stopped, killed and frozen, and the store
//! forgets who runs it. A lock that the server holds shows whether there were two of it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::lab::client::{Outcome, Revision};
use crate::lab::process::children;
use crate::lab::store::TestStore;
use crate::lab::{PATIENCE, by_night, example, until};
use crate::questions::{asked_call, asked_client, asking};
use crate::replicas::{HUB, Replicas, weir};

/// Name of the server that may run only once.
const ONCE: &str = "once";

/// The server takes a lock, and records its process, or that there was another one. In the
/// configuration `$$` is a dollar sign.
const SCRIPT: &str = "cd $0; exec 9>>lock; if flock -n 9; then echo $$$$ >>runs; \
                      else echo double >>runs; exit 1; fi; exec $1 $0 stdio";

struct World {
    replicas: Replicas,
    folder: PathBuf,
    /// Removes the folder at the end.
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts three replicas.
    async fn start() -> Self {
        Self::start_with(3).await
    }

    async fn start_with(count: usize) -> Self {
        let made = tempfile::TempDir::new().expect("a folder");
        let folder = made.path().to_owned();
        fs::write(folder.join("script.json"), "{}").expect("written");
        let program = example("evil_upstream");
        let config = format!(
            "[upstreams.{ONCE}]\ncommand = \"sh\"\nreplicas = \"one\"\n\
             args = [\"-c\", \"{SCRIPT}\", {folder:?}, {program:?}]\n"
        );
        let replicas = Replicas::start_with(count, &config, "").await;
        for number in replicas.numbers() {
            replicas[number].wait_until_listed(ONCE).await;
        }
        Self { replicas, folder, _folder: made }
    }

    /// Processes of the server, in the order in which they were started.
    fn runs(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("runs")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Process of the server that was started last.
    fn process(&self) -> u32 {
        self.runs().last().expect("it runs").parse().expect("a number")
    }

    /// Number of the replica that runs the server.
    fn runner(&self) -> usize {
        let process = self.process();
        let runs_it = |number: &usize| descendants(self.replicas[*number].pid()).contains(&process);
        self.replicas.numbers().find(runs_it).expect("a replica runs it")
    }

    /// Number of times that a replica had to stop the server, because it did not reach the store in
    /// time.
    fn losses(&self) -> usize {
        let logs = self.replicas.numbers().map(|number| self.replicas[number].log());
        let lost = |line: &String| line.contains("may not run the upstream any more");
        logs.map(|log| log.iter().filter(|line| lost(line)).count()).sum()
    }

    /// Checks how often the server was started, and that there were never two of it. A busy machine
    /// may have kept a replica from the store by day, apart from so many `losses` that the test has
    /// made: then it was started once more.
    fn check_runs(&self, count: usize, losses: usize) {
        let (runs, more) = (self.runs(), self.losses().saturating_sub(losses));
        if more > 0 {
            eprintln!("once: {more} times a replica was kept from the store");
        }
        assert!(more == 0 || !by_night(), "{more}");
        assert!(!runs.contains(&"double".to_owned()), "{runs:?}");
        assert!((count..=count + more).contains(&runs.len()), "{runs:?}, {more} more lost");
    }

    async fn call(&self, number: usize, revision: Revision, nonce: &str) -> Outcome {
        let mut client = self.replicas[number].client(revision).await;
        client.call(ONCE, json!({ "nonce": nonce })).await
    }

    fn executions(&self, nonce: &str) -> usize {
        let text = fs::read_to_string(self.folder.join("executed")).unwrap_or_default();
        text.lines().filter(|line| *line == nonce).count()
    }
}

pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let mut found = children(process);
    let mut at = 0;
    while at < found.len() {
        found.extend(children(found[at]));
        at += 1;
    }
    found
}

#[tokio::test]
async fn one_replica_runs_it_and_all_serve_it() {
    let mut world = World::start().await;
    for number in 0..3 {
        for revision in [Revision::LEGACY, Revision::MODERN] {
            let nonce = format!("{number}-{}", revision.as_str());
            let outcome = world.call(number, revision, &nonce).await;
            assert!(outcome.is_result(), "{nonce}: {outcome:?}");
            assert_eq!(world.executions(&nonce), 1);
        }
    }
    world.check_runs(1, 0);
    let shown = weir(&["fleet", "--config", &world.replicas.config(0)]);
    assert_eq!(shown.matches(", runs once\n").count(), 1, "{shown}");
    // A command that is no replica uses the same one.
    let config = world.replicas.config(0);
    let called = weir(&["call", "once__call", "nonce=command", "--config", &config]);
    assert_eq!(world.executions("command"), 1, "{called}");
    world.check_runs(1, 0);
    // The replica that runs it stops; the others call it meanwhile.
    let (runner, before) = (world.runner(), world.runs().len());
    let mut stopping = world.replicas.take(runner);
    stopping.signal(Signal::TERM);
    let other = (runner + 1) % 3;
    let (mut calls, begin) = (0, Instant::now());
    while world.runs().len() == before {
        assert!(begin.elapsed() < PATIENCE, "no other replica starts it");
        let nonce = format!("meanwhile-{calls}");
        let outcome = world.call(other, Revision::MODERN, &nonce).await;
        assert!(outcome.is_result() && world.executions(&nonce) == 1, "{nonce}: {outcome:?}");
        calls += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    eprintln!("once: {calls} calls while another replica starts it");
    assert_eq!(stopping.ended().await, Some(0), "{}", stopping.log().join("\n"));
    let outcome = world.call(other, Revision::LEGACY, "after").await;
    assert!(outcome.is_result() && world.executions("after") == 1, "{outcome:?}");
    // By day this test may have stood still meanwhile.
    assert!(calls > 0 || !by_night());
    world.check_runs(before + 1, 0);
}

#[tokio::test]
async fn there_are_never_two_of_it_when_its_replica_stands_still_or_the_store_forgets() {
    let mut world = World::start().await;
    let (runner, child) = (world.runner(), world.process());
    // Its replica stands still: the server ends before another one starts it.
    world.replicas[runner].signal(Signal::STOP);
    until("the server has ended", || !crate::lab::runs(child)).await;
    let outcome = world.call((runner + 1) % 3, Revision::MODERN, "taken-over").await;
    assert!(outcome.is_result() && world.executions("taken-over") == 1, "{outcome:?}");
    world.check_runs(2, 0);
    world.replicas[runner].signal(Signal::CONT);
    let outcome = world.call(runner, Revision::LEGACY, "goes-on").await;
    assert!(outcome.is_result() && world.executions("goes-on") == 1, "{outcome:?}");
    world.check_runs(2, 1);
    if !by_night() {
        return;
    }
    // The store comes back empty: who gets the lease waits, and the last one gives it up.
    world.replicas.store.kill().await;
    world.replicas.store.restart().await;
    world.replicas.wait_until_known(3).await;
    for turn in 0..100 {
        let nonce = format!("empty-{turn}");
        let outcome = world.call(turn % 3, Revision::MODERN, &nonce).await;
        assert!(world.executions(&nonce) == usize::from(outcome.is_result()), "{outcome:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (before, losses) = (world.runs().len(), world.losses());
    world.check_runs(before, losses);
    // Its replica is killed: calls wait for the next one.
    let runner = world.runner();
    world.replicas.kill(runner).await;
    let began = Instant::now();
    let outcome = world.call((runner + 1) % 3, Revision::LEGACY, "killed").await;
    assert!(outcome.is_result() && world.executions("killed") == 1, "{outcome:?}");
    assert!(began.elapsed() < 3 * LEASE, "{:?}", began.elapsed());
    world.check_runs(before + 1, losses);
}

#[tokio::test]
async fn a_client_is_asked_by_a_server_that_another_replica_runs() {
    let mut replicas = Replicas::prepare(TestStore::start().await, "", "").await;
    replicas.lab.evil_mut(HUB).extra = "replicas = \"one\"".to_owned();
    replicas.lab.configure("");
    replicas.add_all(3).await;
    for number in 0..3 {
        let mut client = asked_client(&replicas, number, Revision::MODERN).await;
        let nonce = format!("asked-{number}");
        let result = client.call(HUB, asking(&nonce)).await.result();
        let requests = result["inputRequests"].as_object().expect("requests");
        let (key, _) = requests.iter().next().expect("one");
        let mut params = asked_call(&nonce);
        params["requestState"] = result["requestState"].clone();
        params["inputResponses"] =
            json!({ key: { "action": "accept", "content": { "number": number } } });
        client.move_to(&replicas[(number + 1) % 3].address);
        let answer = format!("{{\"number\":{number}}}");
        let received = || replicas.lab.evil(HUB).received();
        tokio::select! {
            outcome = client.request("tools/call", params) => panic!("{outcome:?}"),
            _ = until("the answer is there", || received().iter().any(|it| it.contains(&answer)))
                => {}
        }
        assert_eq!(replicas.executions(&nonce), 1);
    }
}

#[tokio::test]
async fn a_server_is_replaced_by_one_with_other_settings() {
    let world = World::start_with(1).await;
    let path = world.replicas.config(0);
    let text = fs::read_to_string(&path).expect("written");
    let changed = text.replace("command = \"sh\"", "command = \"sh\"\nera = \"legacy\"");
    fs::write(&path, changed).expect("written");
    let (before, losses) = (world.runs().len(), world.losses());
    let (code, text) = world.replicas.command(0, "reload");
    assert_eq!(code, 0, "{text}");
    until("it was started again", || world.runs().len() > before).await;
    let outcome = world.call(0, Revision::LEGACY, "again").await;
    assert!(outcome.is_result(), "{outcome:?}");
    world.check_runs(before + 1, losses);
}

/// Time after which the store gives the right to run the server to another replica.
const LEASE: Duration = Duration::from_secs(6);
