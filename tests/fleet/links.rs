//! Links between replicas and the store that are cut or flap, knowledge that differs, and clocks
//! that are wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::links::{Cut, End, Links};
use crate::lab::night::bound;
use crate::lab::store::TestStore;
use crate::lab::weir::Weir;
use crate::lab::{PATIENCE, by_night, until};
use crate::replicas::{DEFAULT_STORE_WAIT, HUB, Replicas, weir};

/// Starts replicas whose links to the store and to each other can be cut.
async fn linked(count: usize, config: &str) -> (Replicas, Links) {
    linked_with(count, config, DEFAULT_STORE_WAIT).await
}

/// Like [`linked`], with replicas that wait for the store for this time.
pub(crate) async fn linked_with(
    count: usize,
    config: &str,
    store_wait: &'static str,
) -> (Replicas, Links) {
    let links = Links::new();
    let mut replicas = Replicas::prepare(TestStore::start().await, config, "").await;
    replicas.store_wait = store_wait;
    let store = format!("127.0.0.1:{}", replicas.store.port);
    for _ in 0..count {
        let number = replicas.reserve();
        let through = links.open(Some(number), End::Store, store.clone()).await;
        replicas.store.access = Some(format!("{{ url = \"redis://{through}\" }}"));
        replicas.configure(number, config);
        let path = replicas.config(number);
        let text = fs::read_to_string(&path).expect("written");
        let listen = text.lines().filter_map(|line| line.strip_prefix("listen = ")).next_back();
        let listen = listen.expect("its address").trim_matches('"').to_owned();
        let through = links.open(None, End::Replica(number), listen).await;
        fs::write(&path, format!("{text}advertise = \"{through}\"\n")).expect("written");
        replicas.start_configured(number).await;
        links.add_process(replicas[number].pid(), number);
    }
    replicas.wait_until_known(count).await;
    (replicas, links)
}

/// Number of claims that were ever made.
fn claims_made(replicas: &Replicas) -> u64 {
    replicas.store.run::<Option<u64>>(&["GET", "{weir}:last-claim"]).unwrap_or_default()
}

/// Number of sessions in the memory of a replica.
fn sessions(replicas: &Replicas, number: usize) -> u64 {
    let shown = weir(&["fleet", "--json", "--config", &replicas.config(number)]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let members = shown["members"].as_array().expect("a list");
    let member = members.iter().find(|it| it["name"] == format!("replica-{number}"));
    member.expect("a member")["sessions"].as_u64().expect("a number")
}

/// A client that calls again and again through some of the replicas.
struct Caller {
    name: &'static str,
    client: Client,
    through: Vec<usize>,
    calls: usize,
    succeeded: Vec<String>,
    errors: Vec<String>,
    longest: Duration,
}

impl Caller {
    fn new(name: &'static str, client: Client, through: &[usize]) -> Self {
        let (succeeded, errors) = (Vec::new(), Vec::new());
        let through = through.to_vec();
        Self { name, client, through, calls: 0, succeeded, errors, longest: Duration::ZERO }
    }

    /// Calls for this time, with a pause after each call.
    async fn call_for(&mut self, addresses: &[String], time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.call(addresses).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn call(&mut self, addresses: &[String]) -> bool {
        self.calls += 1;
        self.client.move_to(&addresses[self.through[self.calls % self.through.len()]]);
        let (begin, nonce) = (Instant::now(), format!("{}-{}", self.name, self.calls));
        let outcome = self.client.call(HUB, json!({ "nonce": nonce })).await;
        self.longest = self.longest.max(begin.elapsed());
        match &outcome {
            Outcome::Result(_) => self.succeeded.push(nonce),
            other => self.errors.push(format!("{other:?}")),
        }
        outcome.is_result()
    }
}

/// Checks that each call was executed once at most, and once if it has succeeded.
fn check_executions(replicas: &Replicas, callers: &[Caller]) {
    let executions = replicas.lab.evil(HUB).executions();
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
    for caller in callers {
        assert!(caller.succeeded.iter().all(|nonce| executions.contains_key(nonce)));
        let Caller { name, calls, succeeded, errors, longest, .. } = caller;
        eprintln!(
            "{name}: {} of {calls}, the longest took {longest:?}; {errors:?}",
            succeeded.len()
        );
    }
}

/// Whether a call has failed because the replica that ran it was lost in mid-call.
fn is_lost(error: &str) -> bool {
    error.contains("may have been executed")
}

/// Longer than the record of a replica lives without it.
const SPLIT: Duration = Duration::from_secs(7);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_of_a_split_go_on_and_agree_after_it() {
    let (replicas, links) = linked(3, "").await;
    let addresses: Vec<_> = (0..3).map(|number| replicas[number].address.clone()).collect();
    // Named by the replica that opened the session, and the side that they call.
    let mut callers = vec![
        Caller::new("a-a", replicas.legacy(0).await, &[0]),
        Caller::new("a-bc", replicas.legacy(0).await, &[1, 2]),
        Caller::new("b-a", replicas.legacy(1).await, &[0]),
        Caller::new("b-bc", replicas.legacy(1).await, &[1, 2]),
        Caller::new("c-a", replicas[2].client(Revision::MODERN).await, &[0]),
    ];
    // A session that is used on both sides.
    let shared = replicas.legacy(2).await;
    let mut other = replicas.legacy(2).await;
    other.set_session(shared.session().expect("a session"));
    callers.push(Caller::new("shared-a", shared, &[0]));
    callers.push(Caller::new("shared-bc", other, &[1, 2]));
    for caller in &mut callers {
        assert!(caller.call(&addresses).await, "{}: {:?}", caller.name, caller.errors);
    }
    let splitting = async {
        links.cut(Cut::Replica(0));
        tokio::time::sleep(SPLIT).await;
        links.cut(Cut::Nothing);
    };
    // Longer than the split, so that calls are made beyond its end.
    let time = SPLIT + Duration::from_secs(2);
    let calling = join_all(callers.iter_mut().map(|caller| caller.call_for(&addresses, time)));
    tokio::join!(splitting, calling);
    check_executions(&replicas, &callers);
    for Caller { name, errors, longest, .. } in &callers {
        // What is on its way when the link is cut waits for the other end, until that is no member
        // any more; the side that the store is not on waits for the network. Then each goes on.
        assert!(errors.iter().all(|error| is_lost(error)), "{name}: {errors:?}");
        assert!(errors.len() <= 2 || !by_night(), "{name}: {errors:?}");
        assert!(*longest < SPLIT + bound(20_000, 2_000), "{name}: {longest:?}");
    }
    replicas.wait_until_known(3).await;
    // Every session has one place again, at which it is found from all replicas.
    for caller in &mut callers {
        let before = caller.errors.len();
        caller.through = vec![0, 1, 2];
        for _ in 0..6 {
            caller.call(&addresses).await;
        }
        assert_eq!(caller.errors.len(), before, "{}: {:?}", caller.name, caller.errors);
    }
    check_executions(&replicas, &callers);
    let mut ended = callers.swap_remove(5).client;
    ended.move_to(&addresses[0]);
    assert_eq!(ended.end_session().await, 204);
    // It is written again a second later if the store has replied too late.
    let blocks = || replicas.store.run::<usize>(&["HLEN", "{weir}:ended"]);
    until("its end is recorded", || blocks() == 1).await;
    // One that was taken over a moment ago is known to be so after a heartbeat.
    replicas.wait_until_known(3).await;
    for address in &addresses {
        ended.move_to(address);
        let outcome = ended.call(HUB, json!({})).await;
        assert!(!outcome.is_result(), "{address} of {addresses:?}: {outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_flaps_moves_a_session_once_a_second_at_most() {
    let (replicas, links) = linked(3, "").await;
    let addresses: Vec<_> = (0..3).map(|number| replicas[number].address.clone()).collect();
    let mut callers = Vec::new();
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let mut caller = Caller::new(name, replicas.legacy(number).await, &[0, 1, 2]);
        assert!(caller.call(&addresses).await);
        callers.push(caller);
    }
    let seconds = if by_night() { 30 } else { 4 };
    let (before, begin) = (claims_made(&replicas), Instant::now());
    let flapping = async {
        for _ in 0..seconds {
            // Long enough for the others to notice.
            for (cut, time) in [(Cut::Replica(0), 900), (Cut::Nothing, 100)] {
                links.cut(cut);
                tokio::time::sleep(Duration::from_millis(time)).await;
            }
        }
    };
    let time = Duration::from_secs(seconds);
    let calling = join_all(callers.iter_mut().map(|caller| caller.call_for(&addresses, time)));
    tokio::join!(flapping, calling);
    let (made, took) = (claims_made(&replicas) - before, begin.elapsed());
    eprintln!("{made} claims of 3 sessions in {took:?}");
    // One a second, of which the first is made at once.
    assert!(made <= 3 * (took.as_secs() + 1), "{made} in {took:?}");
    check_executions(&replicas, &callers);
    replicas.wait_until_known(3).await;
    for caller in &mut callers {
        for _ in 0..3 {
            assert!(caller.call(&addresses).await, "{}: {:?}", caller.name, caller.errors);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_ends_after_one_hop_if_each_of_two_replicas_thinks_that_the_other_has_the_session()
 {
    let (replicas, links) = linked(2, "[protocol]\nsession_ttl = \"1s\"\n").await;
    let mut client = replicas.legacy(0).await;
    // The second one takes it over, because it does not reach the first one.
    links.cut(Cut::Between(0, 1));
    client.move_to(&replicas[1].address);
    assert!(client.call(HUB, json!({})).await.is_result());
    links.cut(Cut::Nothing);
    // It tries the first one again only after a while.
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "it does not try the first one again");
        let (before, mut probe) = (claims_made(&replicas), replicas.legacy(0).await);
        probe.move_to(&replicas[1].address);
        assert!(probe.call(HUB, json!({})).await.is_result());
        if claims_made(&replicas) == before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // Its memory forgets the session, and the store its claim, which the first one cannot learn.
    let begin = Instant::now();
    while sessions(&replicas, 1) > 0 {
        assert!(begin.elapsed() < PATIENCE, "it does not forget");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    links.cut(Cut::Store(0));
    for key in ["claims", "claims-by-number", "claims-until"] {
        replicas.store.run::<usize>(&["DEL", &format!("{{weir}}:{key}")]);
    }
    // It has learned of that with its heartbeat after the next one.
    for _ in 0..2 {
        let records = || replicas.store.run::<Vec<String>>(&["HVALS", "{weir}:members"]);
        let before = records();
        until("it has another record", || records() != before).await;
    }
    for number in [0, 1] {
        client.move_to(&replicas[number].address);
        let (begin, before) = (Instant::now(), hops(&replicas));
        let nonce = format!("lost-{number}");
        let outcome = client.call(HUB, json!({ "nonce": nonce })).await;
        let (took, made) = (begin.elapsed(), hops(&replicas) - before);
        eprintln!("{number}: {outcome:?} after {took:?} and {made} hops");
        // It ends soon: with a refusal, or at the second one, which has claimed the session anew.
        assert!(took < bound(30_000, 5_000), "{took:?}");
        assert!(made <= MAX_HOPS, "{made} hops");
        assert_eq!(replicas.executions(&nonce), usize::from(outcome.is_result()), "{outcome:?}");
    }
    links.cut(Cut::Nothing);
    replicas.wait_until_known(2).await;
    for number in [0, 1] {
        client.move_to(&replicas[number].address);
        assert!(client.call(HUB, json!({ "nonce": number.to_string() })).await.is_result());
    }
    assert_eq!((replicas.executions("0"), replicas.executions("1")), (1, 1));
}

/// Most hops of a request: the replica that gets it looks three times for its place, and the other
/// one sends nothing on.
const MAX_HOPS: u64 = 3;

/// Number of requests that two replicas have sent on to each other.
fn hops(replicas: &Replicas) -> u64 {
    let hops = [0, 1].map(|number| replicas.status(number)["fleet"]["hops"].take());
    let hops = hops.iter().flat_map(|hops| hops.as_object().expect("by result").values());
    hops.map(|count| count.as_u64().expect("a number")).sum()
}

/// Library that fakes the system time for a program; `./dev prepare` fetches it.
fn faketime() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join(".cache/interop/faketime/libfaketimeMT.so.1");
    assert!(path.exists(), "{} is missing: run ./dev prepare", path.display());
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_whose_clocks_differ_by_minutes_work_together() {
    let limit =
        "[[limits]]\nper = \"global\"\nmethod = \"prompts/get\"\nrate = \"1/h\"\nburst = 30\n";
    let mut replicas = Replicas::prepare(TestStore::start().await, limit, "").await;
    for clock in ["+0", "+600", "-600"] {
        let number = replicas.reserve();
        replicas.configure(number, limit);
        let variables = [
            ("LD_PRELOAD", &*faketime()),
            ("FAKETIME", Path::new(clock)),
            ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
        ];
        let weir = Weir::start_with(&replicas.folder(number), &variables).await;
        weir.wait_until_listed(HUB).await;
        replicas.put(number, weir);
    }
    replicas.wait_until_known(3).await;
    // A session of each is good on all, and after the end of its replica.
    let mut clients = Vec::new();
    for number in 0..3 {
        let mut client = replicas.legacy(number).await;
        for at in 0..3 {
            client.move_to(&replicas[at].address);
            let outcome = client.call(HUB, json!({})).await;
            assert!(outcome.is_result(), "{number}, {at}: {outcome:?}");
        }
        clients.push(client);
    }
    // A limit is counted by the clock of the store.
    let mut admitted = 0;
    for at in 0..60 {
        let client = &mut clients[at % 3];
        client.move_to(&replicas[at % 2].address);
        let params = json!({ "name": "hub__say", "arguments": { "nonce": "limited" } });
        admitted += usize::from(client.request("prompts/get", params).await.is_result());
    }
    assert_eq!(admitted, 30);
    replicas.kill(1).await;
    for at in [2, 0] {
        clients[1].move_to(&replicas[at].address);
        let outcome = clients[1].call(HUB, json!({ "nonce": at.to_string() })).await;
        assert!(outcome.is_result(), "{at}: {outcome:?}");
        assert_eq!(replicas.executions(&at.to_string()), 1);
    }
    // An end is known to all.
    assert_eq!(clients[1].end_session().await, 204);
    clients[1].move_to(&replicas[2].address);
    assert!(!clients[1].call(HUB, json!({})).await.is_result());
    assert_eq!(replicas.command(2, "health").0, 0);
}
