//! Questions to clients in the middle of a call: their answers come to any replica.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::{PATIENCE, until};
use crate::replicas::{HUB, Replicas};

/// Arguments of a call that asks its client, and never ends.
pub(crate) fn asking(nonce: &str) -> Value {
    let question = json!({
        "jsonrpc": "2.0", "id": "question", "method": "elicitation/create",
        "params": { "message": "?", "requestedSchema": { "type": "object", "properties": {} } },
    });
    asks(nonce, &question)
}

/// Arguments of a call that sends its client this request, and never ends.
pub(crate) fn asks(nonce: &str, question: &Value) -> Value {
    let fault = json!({ "before": [question.to_string()], "comments_ms": 50 });
    json!({ "nonce": nonce, "fault": fault.to_string() })
}

/// Parameters of such a call.
pub(crate) fn asked_call(nonce: &str) -> Value {
    json!({ "name": format!("{HUB}__call"), "arguments": asking(nonce) })
}

pub(crate) async fn asked_client(replicas: &Replicas, number: usize, revision: Revision) -> Client {
    let capabilities = json!({ "elicitation": {} });
    Client::declaring(capabilities, &replicas[number].address, revision, None).await
}

/// Waits until the server has got the client's answer to its question.
pub(crate) async fn wait_for_answer(replicas: &Replicas) {
    wait_for_answer_with(replicas, "\"result\"").await;
}

/// Waits until the server has got an answer to its question with this text.
pub(crate) async fn wait_for_answer_with(replicas: &Replicas, text: &str) {
    let is_answer = |line: &String| line.contains("question") && line.contains(text);
    until("the answer is there", || replicas.lab.evil(HUB).received().iter().any(is_answer)).await;
}

#[tokio::test]
async fn a_suspended_call_is_resumed_through_any_replica() {
    let replicas = Replicas::start(2).await;
    let mut client = asked_client(&replicas, 0, Revision::MODERN).await;
    let result = client.call(HUB, asking("asked")).await.result();
    let (key, _) =
        result["inputRequests"].as_object().expect("requests").iter().next().expect("one");
    let answer = json!({ "action": "accept", "content": {} });
    let params = json!({
        "name": format!("{HUB}__call"), "arguments": asking("asked"),
        "requestState": result["requestState"], "inputResponses": { key: answer },
    });
    client.move_to(&replicas[1].address);
    tokio::select! {
        outcome = client.request("tools/call", params) => panic!("{outcome:?}"),
        () = wait_for_answer(&replicas) => {}
    }
    assert_eq!(replicas.executions("asked"), 1);
}

#[tokio::test]
async fn c04_a_suspended_call_of_a_replica_that_was_killed_is_refused_and_not_repeated() {
    let mut replicas = Replicas::start(2).await;
    let mut client = asked_client(&replicas, 0, Revision::MODERN).await;
    let result = client.call(HUB, asking("asked")).await.result();
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    let params = json!({
        "name": format!("{HUB}__call"), "arguments": asking("asked"),
        "requestState": result["requestState"], "inputResponses": {},
    });
    let outcome = client.request("tools/call", params).await;
    let Outcome::Error { message, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(message.contains("requestState"), "{message}");
    assert_eq!(replicas.executions("asked"), 1);
}

#[tokio::test]
async fn an_answer_comes_to_the_replica_that_asked_through_any_other() {
    let replicas = Replicas::start(3).await;
    let mut caller = asked_client(&replicas, 0, Revision::LEGACY).await;
    let mut answerer = asked_client(&replicas, 1, Revision::LEGACY).await;
    answerer.set_session(caller.session().expect("a session"));
    // Through one replica, to the one that has the session.
    caller.move_to(&replicas[2].address);
    let mut asked = caller.open("tools/call", asked_call("asked")).await;
    let question = asked.next().await;
    assert_eq!(question["method"], "elicitation/create");
    let answer = json!({ "action": "accept", "content": {} });
    assert_eq!(answerer.respond(&question["id"], answer).await, 202);
    wait_for_answer(&replicas).await;
    assert_eq!(replicas.executions("asked"), 1);
}

#[tokio::test]
async fn c03_an_answer_to_a_replica_that_was_killed_is_taken_and_the_next_call_works() {
    let mut replicas = Replicas::start(2).await;
    let mut client = asked_client(&replicas, 0, Revision::LEGACY).await;
    let mut asked = client.open("tools/call", asked_call("asked")).await;
    let question = asked.next().await;
    replicas.kill(0).await;
    drop(asked);
    client.move_to(&replicas[1].address);
    let answer = json!({ "action": "accept", "content": {} });
    // Until its record has expired, it may only be out of reach.
    let begin = Instant::now();
    loop {
        match client.respond(&question["id"], answer.clone()).await {
            503 => assert!(begin.elapsed() < PATIENCE, "it does not count as ended"),
            status => break assert_eq!(status, 202),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(client.call(HUB, json!({ "nonce": "next" })).await.is_result());
    assert_eq!((replicas.executions("asked"), replicas.executions("next")), (1, 1));
}
