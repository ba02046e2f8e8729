//! Invalid responses over every transport of the real program (C3). `tests/it/rules.rs` tests them
//! row by row and in every cell; here the bytes come from a program and pass through the kernel.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::lab::client::{Outcome, Revision};
use crate::lab::ledger::Ledger;
use crate::lab::{Lab, beside_others};

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
        ("g: too late", json!({ "delay_ms": 700 }), false),
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
    for name in lab.names() {
        lab.evil_mut(&name).extra = "timeouts.call = \"500ms\"".into();
    }
    let weir = lab.serve_all("").await;
    let ledger = Ledger::default();
    let cells = lab.evils().iter().map(|evil| async {
        let name = &evil.name;
        let mut client = weir.client(Revision::MODERN).await;
        let mut other = weir.client(Revision::LEGACY).await;
        for (wrong, fault, succeeds) in invalid_responses() {
            // 2024-11-05 leaves arrays to JSON-RPC, which allows batches.
            let succeeds = succeeds || (name == "pair" && wrong.starts_with('e'));
            for events in [false, true] {
                let mut fault = fault.clone();
                fault["events"] = events.into();
                // Another call is in flight, and its response comes later.
                let slow = json!({ "delay_ms": 100 });
                let (outcome, beside) = tokio::join!(
                    ledger.call(&mut client, name, Some(&fault)),
                    ledger.call(&mut other, name, Some(&slow)),
                );
                assert!(beside.is_result(), "{name}, beside {wrong}: {beside:?}");
                match outcome {
                    Outcome::Result(_) => assert!(succeeds, "{name}, {wrong}"),
                    Outcome::Error { code, .. } => assert!(!succeeds, "{name}, {wrong}: {code}"),
                    broken => panic!("{name}, {wrong}: {broken:?}"),
                }
            }
        }
    });
    join_all(cells).await;
    for (name, account) in ledger.reconcile(lab.evils()) {
        eprintln!("F-37: {name}: {:?}", account.ends);
    }
    // All late responses have arrived by now, and no client received one.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in lab.names() {
        assert!(weir.call(&name, json!({})).await.0.is_result(), "{name}");
    }
    weir.stop().await;
}
