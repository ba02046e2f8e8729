//! Invalid responses over every transport of the real program (C3). `tests/it/rules.rs` tests them
//! row by row and in every cell; here the bytes come from a program and pass through the kernel.

use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::ledger::Ledger;
use crate::lab::{Lab, beside_others};

/// Upstreams send their late responses once their folder contains this file.
const LATE: &str = "late";

/// Invalid responses. The flag says whether the call succeeds anyway.
fn invalid_responses() -> Vec<(&'static str, Value, bool)> {
    let result = r#""result":{"content":[{"type":"text","text":"$NAME:$NONCE"}]}"#;
    let right = format!(r#"{{"jsonrpc":"2.0","id":$ID,{result}}}"#);
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{}{}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let text = |text: &str| json!({ "text": text });
    vec![
        ("a: another id", text(&right.replace("$ID", "999999")), false),
        ("b: twice", json!({ "after": [right] }), true),
        (
            "b: first another's, then its own",
            json!({ "before": [right.replace("$ID", "999999")] }),
            true,
        ),
        (
            "c: null",
            text(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"m"}}"#),
            false,
        ),
        ("d: a string", text(&right.replace("$ID", "\"$ID\"")), false),
        ("d: a fraction", text(&right.replace("$ID", "$ID.0")), false),
        ("e: an array", text(&format!("[{right}]")), false),
        (
            "f: both",
            text(&format!(
                r#"{{"jsonrpc":"2.0","id":$ID,{result},"error":{{"code":1,"message":"m"}}}}"#
            )),
            false,
        ),
        ("f: neither", text(r#"{"jsonrpc":"2.0","id":$ID}"#), false),
        (
            "f: a code in words",
            text(r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":"x","message":"m"}}"#),
            false,
        ),
        ("f: too deep", text(&deep), false),
        ("f: half of it", text(&right[..right.len() / 2]), false),
        ("f: nothing", text(""), false),
        ("f: another version", text(&right.replace("2.0", "1.0")), false),
        ("g: too late", json!({ "waits_for": LATE }), false),
        (
            "j: progress of nobody",
            json!({ "before": [r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody","progress":1}}"#] }),
            true,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37_no_answer_that_is_none_reaches_anybody_over_any_wire() {
    let _turn = beside_others().await;
    let mut lab = Lab::new().stdio("lines", json!({}));
    lab = lab.stdio("modern-lines", json!({ "revision": "2026-07-28" }));
    lab = lab.http("legacy", json!({})).await;
    lab = lab.http("modern", json!({ "revision": "2026-07-28" })).await;
    lab = lab.http("pair", json!({ "pair": true, "revision": "2024-11-05" })).await;
    // Long for the valid calls, because a call whose response never comes waits for it beside the
    // calls that follow. Such calls do not open the circuit breaker.
    let weir =
        lab.serve_all("[defaults]\ntimeouts.call = \"10s\"\nbreaker.failures = 1000\n").await;
    let (ledger, tasks) = (Arc::new(Ledger::default()), TaskTracker::new());
    let cells = lab.evils().iter().map(|evil| async {
        let mut other = weir.client(Revision::LEGACY).await;
        let mut calls = Vec::new();
        for (wrong, fault, succeeds) in invalid_responses() {
            for events in [false, true] {
                let (address, name) = (weir.address.clone(), evil.name.clone());
                let (mut fault, ledger_of_call) = (fault.clone(), Arc::clone(&ledger));
                fault["events"] = events.into();
                let call = tasks.spawn(async move {
                    let mut client = Client::http(&address, Revision::MODERN, None).await;
                    ledger_of_call.call(&mut client, &name, Some(&fault)).await
                });
                // 2024-11-05 leaves arrays to JSON-RPC, which allows batches.
                let succeeds = succeeds || (evil.name == "pair" && wrong.starts_with('e'));
                calls.push((wrong, succeeds, call));
                // Another call is in flight, and its response comes later.
                let slow = json!({ "delay_ms": 100 });
                let beside = ledger.call(&mut other, &evil.name, Some(&slow)).await;
                assert!(beside.is_result(), "{}, beside {wrong}: {beside:?}", evil.name);
            }
        }
        for (wrong, succeeds, call) in calls {
            let name = &evil.name;
            match call.await.unwrap() {
                Outcome::Result(_) => assert!(succeeds, "{name}, {wrong}"),
                Outcome::Error { code, .. } => assert!(!succeeds, "{name}, {wrong}: {code}"),
                broken => panic!("{name}, {wrong}: {broken:?}"),
            }
        }
        // The late responses come before that of this call, and no client receives one.
        evil.create(LATE);
        let after = ledger.call(&mut other, &evil.name, Some(&json!({ "delay_ms": 100 }))).await;
        assert!(after.is_result(), "{}: {after:?}", evil.name);
        let after = ledger.call(&mut other, &evil.name, None).await;
        assert!(after.is_result(), "{}: {after:?}", evil.name);
    });
    join_all(cells).await;
    for (name, account) in ledger.reconcile(lab.evils()) {
        eprintln!("F-37: {name}: {:?}", account.ends);
    }
    weir.stop().await;
}
