//! Calls whose replica is lost while they run: their clients, and the audit log, learn that they
//! may have been executed.

use serde_json::{Value, json};

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::until;
use crate::questions::{asked_call, asked_client};
use crate::replicas::{HUB, Replicas};

const AUDIT: &str = "[audit]\nenabled = true\narguments = \"names\"\n";

/// Starts two replicas with an audit log, and opens a session at the first one that comes through
/// the second one.
async fn start(revision: Revision) -> (Replicas, Client) {
    let replicas = Replicas::start_with(2, AUDIT, "").await;
    let client = replicas.through(1, async || asked_client(&replicas, 0, revision).await).await;
    (replicas, client)
}

/// Lines of the audit log of a replica about calls.
fn calls(replicas: &Replicas, number: usize) -> Vec<Value> {
    let path = replicas.folder(number).join("state/weir/audit.jsonl");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter(|it| it.contains("tools/call"));
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until calls are recorded that the first replica has not ended, and checks each.
async fn check_recorded(replicas: &Replicas, count: usize) {
    until("it is recorded", || calls(replicas, 1).len() == count).await;
    assert!(calls(replicas, 0).is_empty(), "{:?}", calls(replicas, 0));
    for line in calls(replicas, 1) {
        assert_eq!(line["outcome"], "error", "{line}");
        assert_eq!(line["lost_at"], "replica-0", "{line}");
        assert_eq!((&line["kind"], &line["name"]), (&json!("tool"), &json!("hub__call")), "{line}");
        assert_eq!(line["client"], "anonymous", "{line}");
        assert!(line["arguments"].as_array().is_some_and(|it| !it.is_empty()), "{line}");
    }
}

#[tokio::test]
async fn a_call_whose_replica_is_killed_is_recorded_as_one_that_may_have_been_executed() {
    let (mut replicas, mut client) = start(Revision::LEGACY).await;
    let arguments = json!({ "nonce": "lost", "fault": json!({ "never": true }).to_string() });
    let calling = client.call(HUB, arguments);
    let killing = async {
        until("it is executed", || replicas.executions("lost") == 1).await;
        replicas.kill(0).await;
    };
    let (outcome, ()) = tokio::join!(calling, killing);
    assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
    check_recorded(&replicas, 1).await;
}

#[tokio::test]
async fn a_call_whose_replica_is_killed_during_its_stream_is_recorded_and_its_client_told() {
    let (mut replicas, mut client) = start(Revision::LEGACY).await;
    let mut asked = client.open("tools/call", asked_call("asked")).await;
    assert_eq!(asked.next().await["method"], "elicitation/create");
    replicas.kill(0).await;
    let last = asked.next().await;
    let message = last["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("may have been executed"), "{last}");
    assert!(last["id"].is_u64(), "{last}");
    asked.try_next().await.expect_err("it ends");
    check_recorded(&replicas, 1).await;
    assert_eq!(replicas.executions("asked"), 1);
}

#[tokio::test]
async fn each_call_of_a_batch_whose_replica_is_killed_is_recorded() {
    let (mut replicas, mut client) = start(Revision::ALL[1]).await;
    let call = |id: u64, nonce: &str| {
        let arguments = json!({ "nonce": nonce, "fault": json!({ "never": true }).to_string() });
        let params = json!({ "name": "hub__call", "arguments": arguments });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
    };
    let batch = json!([call(11, "one"), call(12, "two")]).to_string();
    let posting = client.post(batch, None);
    let killing = async {
        let is_executed = |nonce| replicas.executions(nonce) == 1;
        until("both are executed", || is_executed("one") && is_executed("two")).await;
        replicas.kill(0).await;
    };
    let (answer, ()) = tokio::join!(posting, killing);
    let (_, _, text) = answer.expect("it is answered");
    assert!(text.contains("may have been executed"), "{text}");
    check_recorded(&replicas, 2).await;
}
