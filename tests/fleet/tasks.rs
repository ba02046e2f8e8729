//! Tasks: a handle is good on every replica, also if the server of one replica alone has the task.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::store::TestStore;
use crate::lab::{Lab, PATIENCE, until};
use crate::replicas::{HUB, Replicas};

/// Members of a task beside its id and status.
const TIMES: &str = r#""createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z""#;
const ERAS: [Revision; 2] = [Revision::MODERN, Revision::LEGACY];

/// Text of a response with this result.
fn response(result: &str) -> Value {
    json!({ "text": format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#) })
}

/// A task of this id in the form of this revision.
fn task(revision: Revision, id: &str, status: &str) -> String {
    let ttl = if revision.is_modern() { "ttlMs" } else { "ttl" };
    format!(r#""taskId":"{id}","status":"{status}",{TIMES},"{ttl}":3600000"#)
}

/// Script of a server that begins a task with each call.
pub(crate) fn task_script(revision: Revision) -> Value {
    let begun = task(revision, "task-$NONCE", "working");
    let state = task(revision, "$TASK", "working");
    match revision.is_modern() {
        true => json!({
            "revision": "2026-07-28",
            "on": {
                "server/discover": response(
                    r#"{"resultType":"complete","ttlMs":3600000,"cacheScope":"public","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#
                ),
                "tools/call": response(&format!(r#"{{"resultType":"task",{begun}}}"#)),
                "tasks/get": response(&format!(r#"{{"resultType":"complete",{state}}}"#)),
                "tasks/update": response(r#"{"resultType":"complete"}"#),
                "tasks/cancel": response(r#"{"resultType":"complete"}"#),
            },
        }),
        false => json!({
            "on": {
                "initialize": response(
                    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"evil","version":"1"}}"#
                ),
                "tools/call": response(&format!(r#"{{"task":{{{begun}}}}}"#)),
                "tasks/get": response(&format!("{{{state}}}")),
                "tasks/result": response(r#"{"content":[]}"#),
                "tasks/cancel": response(&format!("{{{state}}}")),
            },
        }),
    }
}

/// Methods about a task in a revision.
fn methods(revision: Revision) -> [&'static str; 3] {
    match revision.is_modern() {
        true => ["tasks/get", "tasks/update", "tasks/cancel"],
        false => ["tasks/get", "tasks/result", "tasks/cancel"],
    }
}

/// Client that knows tasks.
pub(crate) async fn task_client(replicas: &Replicas, number: usize, revision: Revision) -> Client {
    let capabilities = match revision.is_modern() {
        true => json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }),
        false => json!({ "elicitation": {} }),
    };
    Client::declaring(capabilities, &replicas[number].address, revision, None).await
}

/// Begins a task, and returns its handle.
pub(crate) async fn begin(client: &mut Client, nonce: &str) -> String {
    let params = json!({
        "name": format!("{HUB}__call"), "arguments": { "nonce": nonce }, "task": { "ttl": 3600000 },
    });
    let result = client.request("tools/call", params).await.result();
    let task = if client.revision.is_modern() { &result } else { &result["task"] };
    let handle = task["taskId"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
    assert!(!handle.contains("task-"), "the id of the server: {handle}");
    handle
}

/// Requests the state of a task, and checks that it is that one.
async fn check_found(client: &mut Client, handle: &str) {
    let found = client.request("tasks/get", json!({ "taskId": handle })).await;
    let Outcome::Result(result) = &found else { panic!("{found:?}") };
    assert_eq!(result["taskId"], handle);
}

/// Starts replicas each of which has a server with tasks of its own.
async fn start(count: usize, revision: Revision) -> Replicas {
    let lab = Lab::new().stdio(HUB, task_script(revision));
    let mut replicas = Replicas::prepare_in(lab, TestStore::start().await, "", "").await;
    replicas.add_all(count).await;
    replicas
}

#[tokio::test]
async fn a_task_of_the_server_of_one_replica_is_found_through_each() {
    for revision in ERAS {
        let replicas = start(3, revision).await;
        let mut requests = 0;
        for began in 0..3 {
            let mut owner = task_client(&replicas, began, revision).await;
            let handle = begin(&mut owner, &began.to_string()).await;
            for number in 0..3 {
                // A session of its own, which comes through one replica to another.
                let mut client = task_client(&replicas, (number + 1) % 3, revision).await;
                client.move_to(&replicas[number].address);
                for method in methods(revision) {
                    let outcome = client.request(method, json!({ "taskId": handle })).await;
                    assert!(outcome.is_result(), "{began} {number} {method}: {outcome:?}");
                }
                check_found(&mut client, &handle).await;
                requests += 1;
            }
            for number in 0..3 {
                owner.move_to(&replicas[number].address);
                check_found(&mut owner, &handle).await;
            }
        }
        let hub = replicas.lab.evil(HUB);
        assert_eq!(hub.times("tasks/get"), 2 * requests + 9, "each was asked once");
        assert_eq!(hub.times("tasks/cancel"), requests);
    }
}

#[tokio::test]
async fn a_client_listens_at_one_replica_for_the_tasks_of_all() {
    let replicas = start(3, Revision::MODERN).await;
    let mut client = task_client(&replicas, 0, Revision::MODERN).await;
    let mut handles = Vec::new();
    for number in 0..3 {
        client.move_to(&replicas[number].address);
        handles.push(begin(&mut client, &number.to_string()).await);
    }
    let filter = json!({ "taskIds": handles, "toolsListChanged": true });
    let mut stream = client.listen(filter).await.expect("it opens");
    let begun = stream.next().await;
    let accepted = begun["params"]["notifications"]["taskIds"].as_array().expect("a list").clone();
    let accepted: BTreeSet<_> = accepted.iter().filter_map(Value::as_str).collect();
    assert_eq!(accepted, handles.iter().map(String::as_str).collect(), "{begun}");
    assert_eq!(begun["params"]["notifications"]["toolsListChanged"], true);
    let hub = replicas.lab.evil(HUB);
    for (number, handle) in handles.iter().enumerate() {
        let state = task(Revision::MODERN, &format!("task-{number}"), "completed");
        let told = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{{{state},"_meta":{{"io.modelcontextprotocol/subscriptionId":$SUB}}}}}}"#
        );
        let mut script = task_script(Revision::MODERN);
        script["storm"] = json!({ "text": told, "per_second": 20 });
        hub.script(script);
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let message = stream.next().await;
                assert_eq!(message["method"], "notifications/tasks", "{message}");
                let params = &message["params"];
                assert_eq!(params["_meta"]["io.modelcontextprotocol/subscriptionId"], 0);
                if params["taskId"] == **handle {
                    break;
                }
            }
        });
        found.await.expect("its task is announced");
    }
}

#[tokio::test]
async fn a_task_of_a_replica_that_stops_is_found_until_it_has_stopped() {
    for revision in ERAS {
        let lab = Lab::new().stdio(HUB, task_script(revision));
        let mut replicas = Replicas::prepare_in(lab, TestStore::start().await, "", "").await;
        replicas.add().await;
        // Only the first one announces its end for as long as this test needs.
        replicas.add().await;
        replicas.wait_until_known(2).await;
        let mut client = task_client(&replicas, 0, revision).await;
        let handle = begin(&mut client, "stops").await;
        let mut stopping = replicas.take(0);
        stopping.signal(Signal::TERM);
        client.move_to(&replicas[1].address);
        // Each request is answered: by the server, or with what has become of the task.
        loop {
            match client.request("tasks/get", json!({ "taskId": handle })).await {
                Outcome::Result(result) => assert_eq!(result["taskId"], *handle),
                Outcome::Error { code, message } => {
                    assert!(!message.contains("not found"), "{code} {message}");
                    if code == -32602 {
                        assert!(message.contains("may have been lost"), "{message}");
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        stopping.ended().await;
    }
}

#[tokio::test]
async fn a_task_of_a_replica_that_was_killed_may_have_been_lost() {
    for revision in ERAS {
        let mut replicas = start(2, revision).await;
        let mut client = task_client(&replicas, 0, revision).await;
        let handle = begin(&mut client, "lost").await;
        let mut other = task_client(&replicas, 1, revision).await;
        check_found(&mut other, &handle).await;
        replicas.kill(0).await;
        for client in [&mut client, &mut other] {
            client.move_to(&replicas[1].address);
            loop {
                match client.request("tasks/get", json!({ "taskId": handle })).await {
                    // Until it is known that the replica has ended.
                    Outcome::Error { message, .. } if message.contains("the same request") => {}
                    Outcome::Error { code, message } => {
                        assert!(message.contains("may have been lost"), "{message}");
                        assert_eq!(code, -32602);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        // Another handle is unknown, as before.
        let unknown = client.request("tasks/get", json!({ "taskId": "unknown" })).await;
        let Outcome::Error { message, .. } = &unknown else { panic!("{unknown:?}") };
        assert_eq!(message, "Task not found");
    }
}

#[tokio::test]
async fn a_client_is_asked_by_a_task_of_another_replica() {
    let question = json!({
        "jsonrpc": "2.0", "id": "question", "method": "elicitation/create",
        "params": { "message": "?", "requestedSchema": { "type": "object", "properties": {} } },
    });
    let mut script = task_script(Revision::LEGACY);
    script["on"]["tasks/result"] = json!({ "before": [question.to_string()], "comments_ms": 50 });
    // A server that has a session with each replica.
    let lab = Lab::new().http(HUB, script).await;
    let mut replicas = Replicas::prepare_in(lab, TestStore::start().await, "", "").await;
    replicas.add_all(3).await;
    let mut owner = task_client(&replicas, 0, Revision::LEGACY).await;
    let handle = begin(&mut owner, "asks").await;
    let mut client = task_client(&replicas, 1, Revision::LEGACY).await;
    check_found(&mut client, &handle).await;
    let mut answerer = task_client(&replicas, 2, Revision::LEGACY).await;
    answerer.set_session(client.session().expect("a session"));
    let mut asked = client.open("tasks/result", json!({ "taskId": handle })).await;
    let question = asked.next().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let answer = json!({ "action": "accept", "content": {} });
    assert_eq!(answerer.respond(&question["id"], answer).await, 202);
    let received = || replicas.lab.evil(HUB).received();
    until("the answer is there", || received().iter().any(|line| line.contains("question"))).await;
    // The session is still on its own replica, and works.
    let outcome = client.request("ping", json!({})).await;
    assert!(outcome.is_result(), "{outcome:?}");
    assert_eq!(replicas.claims(), 0);
}

/// Starts replicas one of which runs the server for all.
async fn start_one(count: usize, script: Value) -> Replicas {
    let lab = Lab::new().stdio(HUB, script);
    let mut replicas = Replicas::prepare_in(lab, TestStore::start().await, "", "").await;
    replicas.lab.evil_mut(HUB).extra = "replicas = \"one\"".to_owned();
    replicas.lab.configure("");
    replicas.add_all(count).await;
    replicas
}

/// Opens a session, and returns the result of `initialize`.
async fn initialized(address: &str) -> (Client, Value) {
    let mut client = Client::http(address, Revision::LEGACY, None).await;
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "client", "version": "1" },
    });
    let result = client.request("initialize", hello).await.result();
    (client, result)
}

#[tokio::test]
async fn a_legacy_server_that_runs_once_is_the_same_to_clients_as_one_of_their_own() {
    let mut script = task_script(Revision::LEGACY);
    let declared = json!({
        "protocolVersion": "2025-11-25", "serverInfo": { "name": "evil", "version": "1" },
        "instructions": "Ask twice.",
        "capabilities": {
            "tools": { "listChanged": true }, "prompts": { "listChanged": true },
            "resources": { "subscribe": true, "listChanged": true },
            "logging": {}, "completions": {},
            "tasks": { "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } },
            "experimental": { "com.example/x": { "a": 1 } },
        },
    });
    script["on"]["initialize"] = response(&declared.to_string());
    let tool = |name: &str, support: &str| {
        json!({
            "name": name, "inputSchema": { "type": "object" },
            "execution": { "taskSupport": support },
        })
    };
    let tools = [tool("call", "optional"), tool("job", "required")];
    script["on"]["tools/list"] = response(&json!({ "tools": tools }).to_string());
    let alone = Lab::new().stdio(HUB, script.clone());
    let weir = alone.serve_all("").await;
    let (mut client, expected) = initialized(&weir.address).await;
    assert!(expected["capabilities"]["tasks"].is_object(), "{expected}");
    let tools = client.request("tools/list", json!({})).await.result();
    let mut modern = Client::http(&weir.address, Revision::MODERN, None).await;
    let of_modern = modern.tools().await;
    assert_eq!(of_modern, ["hub__call"], "the other one needs tasks of the other era");
    let replicas = start_one(3, script).await;
    for number in 0..3 {
        let address = &replicas[number].address;
        let (mut client, found) = initialized(address).await;
        assert_eq!(found, expected, "{number}");
        assert_eq!(client.request("tools/list", json!({})).await.result(), tools);
        let mut modern = Client::http(address, Revision::MODERN, None).await;
        assert_eq!(modern.tools().await, of_modern);
    }
}

#[tokio::test]
async fn a_task_of_a_server_that_runs_once_is_found_through_each_replica() {
    for revision in ERAS {
        let replicas = start_one(3, task_script(revision)).await;
        for began in 0..3 {
            let mut owner = task_client(&replicas, began, revision).await;
            // As long as an id may be.
            let nonce = format!("{began}{}", "x".repeat(1_000));
            let handle = begin(&mut owner, &nonce).await;
            for number in 0..3 {
                let mut client = task_client(&replicas, number, revision).await;
                for method in methods(revision) {
                    let outcome = client.request(method, json!({ "taskId": handle })).await;
                    assert!(outcome.is_result(), "{began} {number} {method}: {outcome:?}");
                }
                check_found(&mut client, &handle).await;
            }
        }
    }
}

#[tokio::test]
async fn a_client_is_notified_by_a_server_that_runs_once_also_when_another_replica_runs_it() {
    let mut script = task_script(Revision::LEGACY);
    let declared = json!({
        "protocolVersion": "2025-11-25", "serverInfo": { "name": "evil", "version": "1" },
        "capabilities": {
            "tools": { "listChanged": true }, "resources": { "subscribe": true },
            "tasks": { "cancel": {}, "requests": { "tools": { "call": {} } } },
        },
    });
    script["on"]["initialize"] = response(&declared.to_string());
    script["on"]["resources/subscribe"] = response("{}");
    let mut replicas = start_one(2, script.clone()).await;
    let holds = |replicas: &Replicas, number: usize| replicas[number].resources().children > 0;
    let runner = (0..2).find(|number| holds(&replicas, *number)).expect("one runs it");
    let other = 1 - runner;
    let mut client = task_client(&replicas, other, Revision::LEGACY).await;
    let mut stream = client.notifications().await.expect("it opens");
    let uri = format!("evil://{HUB}/thing");
    // Resources are listed after tools.
    while client.request("resources/list", json!({})).await.result()["resources"][0].is_null() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let subscribed = client.request("resources/subscribe", json!({ "uri": uri })).await;
    assert!(subscribed.is_result(), "{subscribed:?}");
    let handle = begin(&mut client, "told").await;
    let state = task(Revision::LEGACY, "task-told", "completed");
    let updated = json!({
        "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": uri },
    });
    let status = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{{{state}}}}}"#
    );
    for (text, method) in [
        (status, "notifications/tasks/status"),
        (updated.to_string(), "notifications/resources/updated"),
    ] {
        script["storm"] = json!({ "text": text, "per_second": 20 });
        replicas.lab.evil(HUB).script(script.clone());
        loop {
            let message = stream.next().await;
            if message["method"] == method {
                let params = &message["params"];
                assert!(params["taskId"].is_null() || params["taskId"] == *handle, "{message}");
                break;
            }
        }
    }
    // The replica that runs it stops: the other one subscribes anew.
    let before = replicas.lab.evil(HUB).times("resources/subscribe");
    assert!(before > 0);
    replicas.take(runner).stop().await;
    let hub = replicas.lab.evil(HUB);
    until("it subscribes again", || hub.times("resources/subscribe") > before).await;
    // What the server remembered has ended with it.
    let outcome = client.request("tasks/get", json!({ "taskId": handle })).await;
    let Outcome::Error { code, message } = &outcome else { panic!("{outcome:?}") };
    assert!(*code == -32602 && message.contains("may have been lost"), "{message}");
}
