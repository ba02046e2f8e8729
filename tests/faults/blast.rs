//! Cost of bad upstreams for the others: the blast radius (F-04, F-05, F-14, F-21, F-36, F-48).
//!
//! By day the calls to the others have to succeed; by night, optimized, their times are compared.

use std::time::Duration;

use serde_json::{Value, json};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::load::Plan;
use crate::lab::weir::Weir;
use crate::lab::{Lab, alone_by_night, beside_others, by_night, until, until_served};

/// Ten upstreams of a mixed fleet: six over HTTP, four over stdio, of both eras.
async fn ten_upstreams() -> Lab {
    let mut lab = Lab::new();
    for number in 0..6 {
        let revision = ["2025-11-25", "2026-07-28"][number % 2];
        lab = lab.http(&format!("h{number}"), json!({ "revision": revision })).await;
    }
    for number in 0..4 {
        let revision = ["2025-11-25", "2026-07-28"][number % 2];
        lab = lab.stdio(&format!("s{number}"), json!({ "revision": revision }));
    }
    lab
}

/// 99th percentile of the calls to the other upstreams, and the number of those calls.
async fn measure(weir: &Weir, lab: &Lab, others: &[String], time: Duration) -> (Duration, usize) {
    let mut plan = Plan::plain(16, others);
    // About the load that the machine carries without effort.
    plan.pause = Duration::from_millis(30);
    let load = plan.start(weir);
    tokio::time::sleep(time).await;
    let ledger = load.stop().await;
    let accounts = ledger.reconcile(lab.evils());
    for (name, account) in &accounts {
        assert_eq!(account.failures(), 0, "{name}: {account:?}");
    }
    let names: Vec<&str> = others.iter().map(String::as_str).collect();
    (ledger.p99(&names), accounts.values().map(|account| account.calls).sum())
}

/// Misbehavior of the bad upstreams while the others are measured.
enum Bad {
    /// Every call that may be in flight with the upstream hangs.
    Hang,
    /// The upstream runs this script.
    Flood(Value),
}

/// One set of bad upstreams and their misbehavior.
struct Case {
    what: &'static str,
    bad: &'static [&'static str],
    how: Bad,
}

/// Measures the other upstreams before, during and after each case and compares: `share` is the
/// allowed relative growth of the percentile.
async fn compare(cases: &[Case], share: f64) {
    let lab = ten_upstreams().await;
    let weir = lab.serve_all("[defaults]\ntimeouts.call = \"5m\"\n").await;
    let is_good = |name: &String| !cases.iter().any(|case| case.bad.contains(&name.as_str()));
    let others: Vec<String> = lab.names().into_iter().filter(is_good).collect();
    let time = Duration::from_secs(20);
    // The first measurement is slower because connections are opened in it.
    measure(&weir, &lab, &others, time / 2).await;
    let (mut before, _) = measure(&weir, &lab, &others, time).await;
    for Case { what, bad, how } in cases {
        let (tasks, over) = (TaskTracker::new(), CancellationToken::new());
        begin(&weir, &lab, bad, how, &tasks, &over).await;
        let (during, calls) = measure(&weir, &lab, &others, time).await;
        over.cancel();
        tasks.close();
        tasks.wait().await;
        for name in *bad {
            lab.evil(name).script(json!({ "revision": revision_of(name) }));
            until_served(&weir, name).await;
        }
        let (after, _) = measure(&weir, &lab, &others, time).await;

        let baseline = before.max(after);
        let more = Duration::from_secs_f64((baseline.as_secs_f64() * share).max(0.005));
        eprintln!(
            "G9: {what}: p99 of the others {before:?}, {during:?}, {after:?} ({calls} calls each)"
        );
        assert!(during <= baseline + more, "{what}: {during:?} instead of {baseline:?}");
        before = after;
    }
    weir.stop().await;
}

/// Makes the upstreams of a case misbehave until the case is over.
async fn begin(
    weir: &Weir,
    lab: &Lab,
    bad: &[&str],
    how: &Bad,
    tasks: &TaskTracker,
    over: &CancellationToken,
) {
    if let Bad::Flood(script) = how {
        bad.iter().for_each(|name| lab.evil(name).script(script.clone()));
        return;
    }
    for name in bad {
        let fault = json!({ "never": true });
        for _ in 0..AT_ONCE {
            begin_call(weir, name, &fault, tasks, over);
        }
        until("all of them hang", || begun(lab, name) == AT_ONCE).await;
    }
}

/// Begins a call with a fault that lasts until the case is over.
fn begin_call(
    weir: &Weir,
    upstream: &str,
    fault: &Value,
    tasks: &TaskTracker,
    over: &CancellationToken,
) -> JoinHandle<Option<Outcome>> {
    let (address, upstream) = (weir.address.clone(), upstream.to_owned());
    let params = json!({
        "name": format!("{upstream}__call"),
        "arguments": { "nonce": "faulty", "fault": fault.to_string() },
        "_meta": { "progressToken": 7 },
    });
    let call = async move {
        let mut client = Client::http(&address, Revision::MODERN, None).await;
        client.request("tools/call", params).await
    };
    let over = over.clone();
    tasks.spawn(async move { over.run_until_cancelled(call).await })
}

/// Number of calls with a fault that an upstream has begun.
fn begun(lab: &Lab, upstream: &str) -> usize {
    lab.evil(upstream).executions().get("faulty").copied().unwrap_or_default()
}

/// Default number of calls that may be in flight with a child.
const AT_ONCE: usize = 64;

fn revision_of(name: &str) -> &'static str {
    let number: usize = name[1..].parse().unwrap();
    ["2025-11-25", "2026-07-28"][number % 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f05_f14_others_are_served_while_upstreams_hang_and_flood() {
    let _turn = beside_others().await;
    let mut lab = ten_upstreams().await;
    let (hung, flooded, calls) = (["h0", "h2", "h4", "s0", "s2"], ["h1", "h3"], 4);
    for name in hung {
        // No further call to it may be in flight.
        lab.evil_mut(name).extra = format!("limits.concurrency = {calls}");
    }
    // The faulty calls outlast the test, so that the others do not wait for their end.
    let weir =
        lab.serve_all("[defaults]\ntimeouts = { call = \"10m\", call_max = \"10m\" }\n").await;
    let (tasks, over) = (TaskTracker::new(), CancellationToken::new());
    let progress = r#"{"progressToken":$TOKEN,"progress":1}"#;
    let progress = format!(
        "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{progress}}}\n\n"
    );
    let (never, flood) = (json!({ "never": true }), json!({ "flood": progress }));
    let mut faulty = Vec::new();
    for (names, fault, calls) in [(&hung[..], never, calls), (&flooded[..], flood, 2)] {
        for name in names {
            let begin = |_| begin_call(&weir, name, &fault, &tasks, &over);
            faulty.extend((0..calls).map(begin));
            until("the faulty calls have begun", || begun(&lab, name) == calls).await;
        }
    }
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let storm = json!({ "text": changed, "per_second": 5_000 });
    lab.evil("s1").script(json!({ "revision": revision_of("s1"), "storm": storm }));

    let mut plan = Plan::plain(4, &["h5", "s3"].map(str::to_owned));
    plan.pause = Duration::from_millis(10);
    let load = plan.start(&weir);
    until("others are served", || load.ledger.ended() >= 100).await;
    assert!(faulty.iter().all(|call| !call.is_finished()), "they hang and flood to the end");
    over.cancel();
    let ledger = load.stop().await;
    for (name, account) in ledger.reconcile(lab.evils()) {
        assert_eq!(account.failures(), 0, "{name}: {account:?}");
    }
    tasks.close();
    tasks.wait().await;
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f05_one_hung_upstream_of_ten_does_not_slow_the_others_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let hung = |what, bad| Case { what, bad, how: Bad::Hang };
    compare(&[hung("one over HTTP hangs", &["h0"]), hung("a child hangs", &["s1"])], 0.1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f14_five_hung_upstreams_of_ten_do_not_slow_the_others_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let bad = &["h0", "h2", "h4", "s0", "s2"];
    compare(&[Case { what: "five hang", bad, how: Bad::Hang }], 0.2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f21_f48_one_flooding_upstream_of_ten_does_not_slow_the_others_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let line = "x".repeat(100);
    let storm = |text: &str, on_stderr: bool| {
        let storm = json!({ "text": text, "per_second": 5_000, "on_stderr": on_stderr });
        Bad::Flood(json!({ "storm": storm }))
    };
    let floods = [
        Case { what: "a flood of notices", bad: &["s0"], how: storm(changed, false) },
        Case { what: "a flood on standard error", bad: &["s0"], how: storm(&line, true) },
    ];
    compare(&floods, 0.1).await;
}
