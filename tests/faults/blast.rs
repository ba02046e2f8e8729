//! What one bad upstream of ten costs the other nine: the blast radius (F-04, F-05, F-14, F-21, F-36, F-48).

use std::time::Duration;

use serde_json::{Value, json};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lab::client::{Client, Revision};
use crate::lab::load::Plan;
use crate::lab::weir::Weir;
use crate::lab::{Lab, alone, by_night, until};

/// Ten upstreams as there may be: six over HTTP, four over stdio, of both eras.
async fn ten() -> Lab {
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

/// What the others' calls take, and how many there were.
async fn measure(weir: &Weir, lab: &Lab, others: &[String], time: Duration) -> (Duration, usize) {
    let mut plan = Plan::plain(16, others);
    // About as much as the machine takes without effort.
    plan.pause = Duration::from_millis(if cfg!(debug_assertions) { 60 } else { 30 });
    let load = plan.start(weir);
    tokio::time::sleep(time).await;
    let ledger = load.stop().await;
    let accounts = ledger.settle(lab.evils());
    for (name, account) in &accounts {
        assert_eq!(account.failures(), 0, "{name}: {account:?}");
    }
    let names: Vec<&str> = others.iter().map(String::as_str).collect();
    (ledger.p99(&names), accounts.values().map(|account| account.calls).sum())
}

/// What bad upstreams do while the others are measured.
enum Bad {
    /// As many calls hang in each as may be under way.
    Hang,
    /// This is its script.
    Flood(Value),
}

/// Measures the others before, during and after, and compares: `share` is how much more the 99th percentile may be.
async fn compare(what: &str, bad: &[&str], how: &Bad, share: f64) {
    let lab = ten().await;
    let weir = lab.serve_all("[defaults]\ntimeouts.call = \"5m\"\n").await;
    let others: Vec<String> =
        lab.names().into_iter().filter(|name| !bad.contains(&name.as_str())).collect();
    let time = Duration::from_secs(if by_night() { 20 } else { 1 });
    // What comes first is slower: connections are opened.
    measure(&weir, &lab, &others, time / 2).await;
    let (before, calls) = measure(&weir, &lab, &others, time).await;

    let tasks = TaskTracker::new();
    let over = CancellationToken::new();
    match how {
        Bad::Hang => {
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
        Bad::Flood(script) => bad.iter().for_each(|name| lab.evil(name).script(script.clone())),
    }
    let (during, _) = measure(&weir, &lab, &others, time).await;
    over.cancel();
    tasks.close();
    tasks.wait().await;
    bad.iter().for_each(|name| lab.evil(name).script(json!({ "revision": revision_of(name) })));
    for name in bad {
        while !weir.call(name, json!({})).await.0.is_result() {}
    }

    let (after, _) = measure(&weir, &lab, &others, time).await;
    let baseline = before.max(after);
    // Without optimization, beside other work, only what is gross is seen.
    let least = if cfg!(debug_assertions) { 0.25 } else { 0.005 };
    let allowed = baseline + Duration::from_secs_f64((baseline.as_secs_f64() * share).max(least));
    eprintln!(
        "G9: {what}: p99 of the others {before:?}, {during:?}, {after:?} ({calls} calls each)"
    );
    assert!(during <= allowed, "{what}: {during:?} instead of {baseline:?}");
    weir.stop().await;
}

/// Calls that may be under way with a child, by default.
const AT_ONCE: usize = 64;

fn revision_of(name: &str) -> &'static str {
    let number: usize = name[1..].parse().unwrap();
    ["2025-11-25", "2026-07-28"][number % 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f05_one_hung_upstream_of_ten_does_not_slow_the_others() {
    let _turn = alone().await;
    for bad in ["h0", "s1"] {
        compare(&format!("{bad} hangs"), &[bad], &Bad::Hang, 0.1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f14_five_hung_upstreams_of_ten_do_not_slow_the_others() {
    let _turn = alone().await;
    compare("five hang", &["h0", "h2", "h4", "s0", "s2"], &Bad::Hang, 0.2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f21_f48_one_flooding_upstream_of_ten_does_not_slow_the_others() {
    let _turn = alone().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let line = "x".repeat(100);
    let floods = [
        ("notices", json!({ "text": changed, "per_second": 5_000 })),
        ("standard error", json!({ "text": line, "per_second": 5_000, "on_stderr": true })),
    ];
    for (what, storm) in floods {
        let script = json!({ "storm": storm });
        compare(&format!("a flood of {what}"), &["s0"], &Bad::Flood(script), 0.1).await;
    }
}
