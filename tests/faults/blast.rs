//! Cost of one bad upstream of ten for the other nine: the blast radius (F-04, F-05, F-14, F-21,
//! F-36, F-48).

use std::time::Duration;

use serde_json::{Value, json};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lab::client::{Client, Revision};
use crate::lab::load::Plan;
use crate::lab::weir::Weir;
use crate::lab::{Lab, alone, by_night, until};

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

/// Percentile of the calls to the other upstreams, and the number of those calls.
async fn measure(weir: &Weir, lab: &Lab, others: &[String], time: Duration) -> (Duration, usize) {
    let mut plan = Plan::plain(16, others);
    // About the load that the machine carries without effort.
    plan.pause = Duration::from_millis(if cfg!(debug_assertions) { 60 } else { 30 });
    let load = plan.start(weir);
    tokio::time::sleep(time).await;
    let ledger = load.stop().await;
    let accounts = ledger.reconcile(lab.evils());
    for (name, account) in &accounts {
        assert_eq!(account.failures(), 0, "{name}: {account:?}");
    }
    let names: Vec<&str> = others.iter().map(String::as_str).collect();
    (ledger.percentile(percent(), &names), accounts.values().map(|account| account.calls).sum())
}

/// Percentile that is compared: by day the median, because one stall of the machine decides the
/// highest of a second's calls.
fn percent() -> usize {
    if by_night() { 99 } else { 50 }
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
    let time = Duration::from_secs(if by_night() { 20 } else { 1 });
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
            while !weir.call(name, json!({})).await.0.is_result() {}
        }
        let (after, _) = measure(&weir, &lab, &others, time).await;

        let baseline = before.max(after);
        // An unoptimized build beside other work shows only gross slowdowns.
        let least = if cfg!(debug_assertions) { 0.1 } else { 0.005 };
        let more = Duration::from_secs_f64((baseline.as_secs_f64() * share).max(least));
        eprintln!(
            "G9: {what}: p{} of the others {before:?}, {during:?}, {after:?} ({calls} calls each)",
            percent()
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
        for _ in 0..AT_ONCE {
            let (address, name) = (weir.address.clone(), (*name).to_owned());
            let hung = async move {
                let fault = json!({ "never": true }).to_string();
                let mut client = Client::http(&address, Revision::MODERN, None).await;
                client.call(&name, json!({ "nonce": "hung", "fault": fault })).await
            };
            let over = over.clone();
            tasks.spawn(async move { over.run_until_cancelled(hung).await });
        }
        let evil = lab.evil(name);
        until("all of them hang", || {
            evil.executions().get("hung").copied().unwrap_or_default() == AT_ONCE
        })
        .await;
    }
}

/// Default number of calls that may be in flight with a child.
const AT_ONCE: usize = 64;

fn revision_of(name: &str) -> &'static str {
    let number: usize = name[1..].parse().unwrap();
    ["2025-11-25", "2026-07-28"][number % 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f05_one_hung_upstream_of_ten_does_not_slow_the_others() {
    let _turn = alone().await;
    let hung = |what, bad| Case { what, bad, how: Bad::Hang };
    compare(&[hung("one over HTTP hangs", &["h0"]), hung("a child hangs", &["s1"])], 0.1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f14_five_hung_upstreams_of_ten_do_not_slow_the_others() {
    let _turn = alone().await;
    let bad = &["h0", "h2", "h4", "s0", "s2"];
    compare(&[Case { what: "five hang", bad, how: Bad::Hang }], 0.2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f21_f48_one_flooding_upstream_of_ten_does_not_slow_the_others() {
    let _turn = alone().await;
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
