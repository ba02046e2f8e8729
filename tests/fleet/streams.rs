//! Lists that change or differ, and streams whose replicas end or whose readers are slow.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

use crate::lab::client::{CallStream, Client, Revision};
use crate::lab::night::bound;
use crate::lab::store::TestStore;
use crate::lab::{Lab, PATIENCE};
use crate::questions::asked_client;
use crate::replicas::{HUB, Replicas};

/// Text of a notification of the hub, sent often, because the gateway looks at its list only then.
fn changed(more_tools: usize) -> Value {
    let text = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    let storm = json!({ "text": text.to_string(), "per_second": 20 });
    json!({ "more_tools": more_tools, "storm": storm })
}

/// Names of the tools that a client is shown, in short.
async fn shown(client: &mut Client) -> BTreeSet<String> {
    let names = client.tools().await;
    names.iter().map(|name| name.trim_start_matches("hub__").to_owned()).collect()
}

#[tokio::test]
async fn while_roles_change_one_replica_after_the_other_no_client_gets_what_neither_allows() {
    let (old, new) = (["call", "t1"], ["call", "t2"]);
    let role =
        |tools: [&str; 2]| format!("tools.allow = [\"hub/{}\", \"hub/{}\"]", tools[0], tools[1]);
    let hash = hex(&sha256("ann"));
    let config = format!(
        "[protocol]\npage_size = 1\n[roles.staff]\n{}\n[clients.ann]\nkey_sha256 = [\"{hash}\"]\nrole = \"staff\"\n",
        role(old)
    );
    let lab = Lab::new().http(HUB, json!({ "more_tools": 3 })).await;
    let mut replicas = Replicas::prepare_in(lab, TestStore::start().await, &config, "").await;
    replicas.add_all(3).await;
    let mut clients = Vec::new();
    for revision in [Revision::LEGACY, Revision::MODERN, Revision::LEGACY] {
        let at = &replicas[clients.len()].address;
        clients.push(Client::http(at, revision, Some("ann")).await);
    }
    let is_allowed = |tool: &str| old.contains(&tool) || new.contains(&tool);
    let mut calls = 0;
    for step in 0..=3 {
        for client in &mut clients {
            for at in 0..3 {
                client.move_to(&replicas[at].address);
                // Its pages may come from replicas of both configurations.
                let mut cursor = json!({});
                while let Some(page) = cursor.take().as_object().cloned() {
                    let page = client.request("tools/list", page.into()).await.result();
                    let tool = page["tools"][0]["name"].as_str().unwrap_or("hub__call");
                    assert!(is_allowed(tool.trim_start_matches("hub__")), "{tool}");
                    if page["nextCursor"].is_string() {
                        cursor = json!({ "cursor": page["nextCursor"] });
                    }
                    client.move_to(&replicas[(at + 1) % 3].address);
                }
                client.move_to(&replicas[at].address);
                for tool in ["t1", "t2", "t3"] {
                    let params =
                        json!({ "name": format!("hub__{tool}"), "arguments": { "nonce": tool } });
                    let outcome = client.request("tools/call", params).await;
                    assert!(is_allowed(tool) || !outcome.is_result(), "{tool}: {outcome:?}");
                    // Before and after the change, the one configuration decides.
                    let only = match step {
                        0 => Some(old),
                        3 => Some(new),
                        _ => None,
                    };
                    let expected = only.map(|only| only.contains(&tool));
                    assert!(expected.is_none_or(|it| it == outcome.is_result()), "{step} {tool}");
                    calls += 1;
                }
            }
        }
        if step < 3 {
            let path = replicas.config(step);
            let text = fs::read_to_string(&path).expect("written").replace(&role(old), &role(new));
            fs::write(&path, text).expect("written");
            let (code, text) = replicas.command(step, "reload");
            assert_eq!(code, 0, "{text}");
        }
    }
    assert_eq!((calls, replicas.executions("t3")), (4 * 3 * 3 * 3, 0));
    replicas.take(0);
}

#[tokio::test]
async fn replicas_whose_servers_list_differently_say_so_and_show_what_their_own_list() {
    let lab = Lab::new().stdio(HUB, json!({}));
    let mut replicas = Replicas::prepare_in(lab, TestStore::start().await, "", "").await;
    replicas.add().await;
    // The next child lists one tool more.
    replicas.lab.evil(HUB).script(json!({ "more_tools": 1 }));
    replicas.add().await;
    replicas.wait_until_known(2).await;
    let mut clients = [replicas.legacy(0).await, replicas.legacy(1).await];
    let mut streams = Vec::new();
    for client in &clients {
        streams.push(client.notifications().await.expect("it opens"));
    }
    let is_said = |_, text: &str| text.contains("list different items");
    replicas.until_command(0, "status", is_said).await;
    assert!(replicas.command(1, "fleet").1.contains("list different items"));
    for (client, expected) in clients.iter_mut().zip([&["call"][..], &["call", "t1"]]) {
        assert!(shown(client).await.iter().eq(expected));
    }
    // No list has changed since: neither stream has a notification.
    for stream in &mut streams {
        let next = tokio::time::timeout(Duration::from_millis(100), stream.try_next()).await;
        assert!(next.is_err(), "{next:?}");
    }
}

/// Longer than it takes until a client is notified of a change, at most once a second.
const SILENCE: Duration = Duration::from_millis(1_500);

/// Reads what has arrived, until it is silent for this time, and returns the notifications of
/// changed tools.
async fn changes(stream: &mut CallStream, silence: Duration) -> usize {
    let mut count = 0;
    while let Ok(message) = tokio::time::timeout(silence, stream.try_next()).await {
        let message = message.expect("it is open");
        count += usize::from(message["method"] == "notifications/tools/list_changed");
    }
    count
}

/// Waits until the stream has a notification of changed tools.
async fn wait_for_change(stream: &mut CallStream) {
    while stream.next().await["method"] != "notifications/tools/list_changed" {}
}

#[tokio::test]
async fn no_change_of_a_list_is_lost_when_the_stream_of_a_session_is_taken_over() {
    let mut replicas = Replicas::start(2).await;
    let mut client = replicas.legacy(0).await;
    let mut stream = client.notifications().await.expect("it opens");
    changes(&mut stream, SILENCE).await;
    replicas.lab.evil(HUB).script(changed(1));
    wait_for_change(&mut stream).await;
    assert_eq!(changes(&mut stream, SILENCE).await, 0, "one is enough");
    assert!(shown(&mut client).await.contains("t1"));
    // The list changes while the session is nowhere.
    replicas.kill(0).await;
    stream.try_next().await.expect_err("it is broken");
    replicas.lab.evil(HUB).script(changed(2));
    client.move_to(&replicas[1].address);
    let mut stream = client.notifications().await.expect("it opens");
    // One because the session has moved, and one if its new replica has read the list since.
    wait_for_change(&mut stream).await;
    let begin = Instant::now();
    while !shown(&mut client).await.contains("t2") {
        assert!(begin.elapsed() < PATIENCE, "the list does not change");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let further = changes(&mut stream, SILENCE).await;
    assert!(further <= 1, "{further} more notifications");
    replicas.lab.evil(HUB).script(changed(3));
    wait_for_change(&mut stream).await;
    assert_eq!(changes(&mut stream, SILENCE).await, 0, "one is enough");
    assert!(shown(&mut client).await.contains("t3"));
}

/// Names of the prompts that a client is shown.
async fn prompts(client: &mut Client) -> Vec<String> {
    let page = client.request("prompts/list", json!({})).await.result();
    let names = page["prompts"].as_array().expect("a list").iter();
    names.map(|prompt| prompt["name"].as_str().expect("text").to_owned()).collect()
}

#[tokio::test]
async fn a_client_is_notified_again_if_another_replica_lists_a_change_later() {
    // Each replica has a folder of its own, so the test decides when it sees the change.
    let house = "[upstreams.house]\nprompts_dir = \"prompts\"\n";
    let mut replicas = Replicas::prepare(TestStore::start().await, house, "").await;
    let put = |folder: &Path, name: &str| {
        fs::create_dir_all(folder.join("prompts")).expect("made");
        fs::write(folder.join("prompts").join(name), "---\ntitle: A\n---\nHello.\n")
            .expect("written");
    };
    for number in 0..2 {
        assert_eq!(replicas.reserve(), number);
        put(&replicas.folder(number), "one.md");
        replicas.restart(number).await;
    }
    replicas.wait_until_known(2).await;
    let mut client = Client::http(&replicas[0].address, Revision::MODERN, None).await;
    let mut stream = client
        .listen(json!({ "promptsListChanged": true, "toolsListChanged": true }))
        .await
        .expect("it opens");
    assert_eq!(stream.next().await["method"], "notifications/subscriptions/acknowledged");
    put(&replicas.folder(0), "two.md");
    assert_eq!(stream.next().await["method"], "notifications/prompts/list_changed");
    // A client without a session lists from any replica.
    client.move_to(&replicas[1].address);
    assert_eq!(prompts(&mut client).await, ["house__one", "hub__say"]);
    put(&replicas.folder(1), "two.md");
    // It waits for a notification before each look, as clients do.
    let mut listed = Vec::new();
    while listed != ["house__one", "house__two", "hub__say"] {
        assert_eq!(stream.next().await["method"], "notifications/prompts/list_changed");
        listed = prompts(&mut client).await;
    }
}

/// Bytes of a large result.
const LARGE: usize = 4 << 20;
const READERS: usize = 8;

#[tokio::test]
async fn large_results_for_slow_readers_take_no_memory_of_the_replica_that_passes_them_on() {
    let replicas = Replicas::start(2).await;
    let client = replicas.through(1, async || replicas.legacy(0).await).await;
    let before = [0, 1].map(|number| replicas[number].resources().resident_bytes);
    let mut streams = Vec::new();
    for id in 0..READERS {
        let session = client.session().expect("a session");
        streams.push(open_call(&replicas[1].address, session, id).await);
    }
    // All of them have been executed and have begun to arrive.
    let mut part = [0; 1_024];
    for stream in &mut streams {
        stream.read_exact(&mut part).await.expect("it arrives");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let during = [0, 1].map(|number| replicas[number].resources().resident_bytes);
    let grown = [0, 1].map(|at| during[at].saturating_sub(before[at]) >> 20);
    eprintln!(
        "{READERS} readers of {} MiB: {} MiB at the owner, {} at the other",
        LARGE >> 20,
        grown[0],
        grown[1]
    );
    assert!(grown[1] < 8, "{} MiB", grown[1]);
    for stream in &mut streams {
        let mut whole = vec![0; 1 << 16];
        let mut length = part.len();
        while length < LARGE {
            let read = stream.read(&mut whole).await.expect("it arrives");
            assert!(read > 0, "it ends after {length} bytes");
            length += read;
        }
    }
}

/// Calls the hub in a session, on a connection that takes little unread.
async fn open_call(address: &str, session: &str, id: usize) -> TcpStream {
    let fault = json!({ "result_bytes": LARGE }).to_string();
    let text = json!({
        "jsonrpc": "2.0", "id": id + 10, "method": "tools/call",
        "params": { "name": "hub__call", "arguments": { "nonce": "large", "fault": fault } },
    })
    .to_string();
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 << 10).expect("set");
    let mut stream =
        socket.connect(address.parse().expect("an address")).await.expect("it listens");
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\n\
         MCP-Protocol-Version: 2025-11-25\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    stream
}

#[tokio::test]
async fn the_end_of_a_replica_that_passes_requests_on_is_a_lost_connection_to_the_one_that_runs_them()
 {
    let mut replicas = Replicas::start(3).await;
    let open = async || asked_client(&replicas, 0, Revision::LEGACY).await;
    let mut client = replicas.through(1, open).await;
    let before = replicas.claims();
    let mut notifications = client.notifications().await.expect("it opens");
    // A question, after which the call never ends.
    let question = json!({
        "jsonrpc": "2.0", "id": "question", "method": "elicitation/create",
        "params": { "message": "?", "requestedSchema": { "type": "object", "properties": {} } },
    });
    let fault = json!({ "before": [question.to_string()], "comments_ms": 50 });
    let arguments = json!({ "nonce": "passed on", "fault": fault.to_string() });
    let params = json!({ "name": format!("{HUB}__call"), "arguments": arguments });
    let mut call = client.open("tools/call", params).await;
    assert_eq!(call.next().await["method"], "elicitation/create");
    replicas.kill(1).await;
    notifications.try_next().await.expect_err("it is broken");
    call.try_next().await.expect_err("it is broken");
    client.move_to(&replicas[2].address);
    // The session is where it was, and has a stream again.
    let mut notifications = client.notifications().await.expect("it opens");
    assert!(client.call(HUB, json!({ "nonce": "next" })).await.is_result());
    assert_eq!(replicas.claims(), before);
    replicas.lab.evil(HUB).script(changed(1));
    assert_eq!(notifications.next().await["method"], "notifications/tools/list_changed");
    // A call of this era goes on without its client, and is not cancelled.
    let heard = replicas.lab.evil(HUB).received();
    let cancelled = |line: &String| line.starts_with("hang-up") || line.contains("cancelled");
    assert!(!heard.iter().any(cancelled), "{heard:?}");
    assert_eq!(replicas.executions("passed on"), 1);
}

#[tokio::test]
async fn a_replica_that_stops_ends_the_streams_that_it_passes_on() {
    let mut replicas = Replicas::start(2).await;
    let client = replicas.through(1, async || replicas.legacy(0).await).await;
    let mut stream = client.notifications().await.expect("it opens");
    let took = replicas.take(1).stop().await;
    while stream.try_next().await.is_ok() {}
    // With a stream that did not end, it would take `server.shutdown_grace`, half a minute.
    assert!(took < bound(25_000, 10_000), "{took:?}");
}
