//! Servers that violate the protocol in mid-call, in every combination of transport and era.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::calls::{RunningCall, Server, in_all_cells};
use crate::Error;
use crate::testing::{World, call};
use weir_mcp::revision::{Era, Revision};

/// The valid result.
fn valid_result() -> Value {
    json!({ "right": 1 })
}

/// Sends what `wrong` builds from the request's id, then the valid response, and checks that only
/// the valid one was used.
async fn expect_ignored(row: &str, wrong: impl Fn(&Value) -> Option<Value>) {
    in_all_cells(false, async |_, mut server, running, _, era| {
        let Some(message) = wrong(&server.request()["id"]) else { return };
        server.send(message).await;
        server.answer(valid_result()).await;
        assert_eq!(running.end().await.expect(row), r#"{"right":1}"#, "{row} {era}");
    })
    .await;
}

fn answer(id: &Value, wrong: u32) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": {"wrong": wrong} })
}

#[tokio::test(start_paused = true)]
async fn f37a_an_answer_to_an_id_that_was_never_asked_is_dropped() {
    for other in [json!(4_711), json!(0), json!(-1), json!("x"), json!(1.5)] {
        expect_ignored("F-37a", |_| Some(answer(&other, 1))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37b_the_first_of_two_answers_counts() {
    in_all_cells(false, async |world, mut server, running, _, era| {
        let id = server.request()["id"].clone();
        server.answer(valid_result()).await;
        server.send(answer(&id, 2)).await;
        assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#, "{era}");
        expect_next_call_served(world, server, era).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37c_an_error_to_nobody_ends_nobodys_call_where_all_share_a_stream() {
    in_all_cells(false, async |_, mut server, running, _, era| {
        // On a call's own stream a message can belong to one call only.
        let is_shared = !matches!(server, Server::Http(..));
        let error = json!({ "code": -32700, "message": "Parse error" });
        server.send(json!({ "jsonrpc": "2.0", "id": null, "error": error })).await;
        server.answer(valid_result()).await;
        let reply = running.end().await.expect("a reply");
        assert_eq!(reply.contains("right"), is_shared, "{era}: {reply}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37d_an_id_of_another_type_is_another_id() {
    expect_ignored("F-37d", |id| Some(answer(&json!(id.to_string()), 1))).await;
}

#[tokio::test(start_paused = true)]
async fn f37e_an_array_is_no_answer_where_the_revision_has_none() {
    expect_ignored("F-37e", |id| Some(json!([answer(id, 1)]))).await;
}

#[tokio::test(start_paused = true)]
async fn f37f_an_answer_that_is_none_ends_the_call_whose_id_it_bears() {
    let wrong: [fn(&Value) -> Value; 4] = [
        |id| json!({ "jsonrpc": "2.0", "id": id, "result": {}, "error": {} }),
        |id| json!({ "jsonrpc": "2.0", "id": id }),
        |id| json!({ "jsonrpc": "1.0", "id": id, "result": {} }),
        |id| json!({ "jsonrpc": "2.0", "id": id, "error": "text" }),
    ];
    for wrong in wrong {
        in_all_cells(false, async |world, mut server, running, _, era| {
            let start = Instant::now();
            server.send(wrong(&server.request()["id"])).await;
            let ended = running.end().await;
            assert!(matches!(ended, Err(Error::Protocol(_))), "{era}: {ended:?}");
            assert!(start.elapsed() < Duration::from_millis(10), "{era}");
            expect_next_call_served(world, server, era).await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37f_a_message_that_is_none_and_bears_no_id_is_dropped_and_the_call_goes_on() {
    let wrong: [fn(&Value) -> Value; 3] = [
        |id| json!({ "jsonrpc": "2.0", "id": [id], "result": {} }),
        |id| json!({ "jsonrpc": "2.0", "id": id, "method": 7 }),
        |_| json!(7),
    ];
    for wrong in wrong {
        expect_ignored("F-37f", |id| Some(wrong(id))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37g_an_answer_after_the_cancel_goes_nowhere() {
    in_all_cells(false, async |world, mut server, running, _, era| {
        let id = server.request()["id"].clone();
        running.0.abort();
        assert!(running.0.await.is_err());
        server.send(answer(&id, 1)).await;
        if let Server::Http(..) = server {
            return;
        }
        let cancelled = server.read(world).await;
        assert_eq!(cancelled["method"], "notifications/cancelled", "{era}");
        expect_next_call_served(world, server, era).await;
    })
    .await;
}

/// Useless input, as one line or the data of one event, and the amount that is still tolerated.
const JUNK: [(&str, usize); 5] = [
    ("INFO all is well", 1_000),
    ("", 1_000),
    (r#"{"jsonrpc":"2.0","id":4711,"result":{}}"#, 100),
    (r#"{"jsonrpc":"2.0","id":"x","result":{}}"#, 100),
    (
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":4711,"progress":1}}"#,
        1_000,
    ),
];

async fn repeat(server: &mut Server, text: &str, times: usize) {
    let event = if text.is_empty() { ":\n".to_owned() } else { format!("data: {text}\n\n") };
    match server {
        Server::Stdio(peer, _) => {
            for _ in 0..times {
                peer.write(text).await;
            }
        }
        Server::Http(events, _) => events.raw(event.repeat(times)),
        Server::Sse(pair, _) => pair.events.raw(event.repeat(times)),
    }
}

#[tokio::test(start_paused = true)]
async fn f37_nonsense_within_its_limit_is_dropped_over_any_wire() {
    for (text, most) in JUNK {
        in_all_cells(false, async |_, mut server, running, _, era| {
            for _ in 0..3 {
                repeat(&mut server, text, most).await;
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            server.answer(valid_result()).await;
            let ended = running.end().await;
            assert_eq!(ended.expect("a reply"), r#"{"right":1}"#, "{text} {era}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37_nonsense_beyond_its_limit_ends_the_stream_over_any_wire() {
    for (text, most) in JUNK {
        in_all_cells(false, async |_, mut server, running, _, era| {
            repeat(&mut server, text, most + 1).await;
            let ended = running.end().await.expect_err("the stream has ended").to_string();
            assert!(ended.contains("it sent too much junk"), "{text} {era}: {ended}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37_progress_of_the_call_itself_is_never_too_much() {
    in_all_cells(true, async |_, mut server, running, _, era| {
        let token = server.request()["params"]["_meta"]["progressToken"].clone();
        for turn in 0..2 {
            let mut all = String::new();
            for progress in turn * 10_000..(turn + 1) * 10_000 {
                let params = json!({ "progressToken": token, "progress": progress });
                let method = "notifications/progress";
                let note = json!({ "jsonrpc": "2.0", "method": method, "params": params });
                all += &match server {
                    Server::Stdio(..) => format!("{note}\n"),
                    _ => format!(": a comment\nevent: message\nid: 1\ndata: {note}\n\n"),
                };
            }
            match &mut server {
                Server::Stdio(peer, _) => peer.write(&all).await,
                Server::Http(events, _) => events.raw(all),
                Server::Sse(pair, _) => pair.events.raw(all),
            }
        }
        server.answer(valid_result()).await;
        assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#, "{era}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37j_progress_that_is_nobodys_or_late_or_goes_back_is_dropped() {
    in_all_cells(true, async |_, mut server, running, mut stream, era| {
        for (token, progress) in [("\"x\"", 1), ("4711", 2), ("null", 3), ("[1]", 4)] {
            let token: Value = serde_json::from_str(token).expect("JSON");
            let params = json!({ "progressToken": token, "progress": progress });
            let method = "notifications/progress";
            server.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
        }
        for progress in [5, 4, 6] {
            server.progress(progress).await;
        }
        let seen = [stream.next().await, stream.next().await];
        let seen =
            seen.each_ref().map(|note| note.expect_progress().get("progress").map(str::to_owned));
        assert_eq!(seen, [Some("5".into()), Some("6".into())], "{era}");
        server.answer(valid_result()).await;
        server.progress(7).await;
        running.end().await.expect("a reply");
        assert_eq!(stream.drain(), [], "{era}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37k_a_client_that_does_not_read_its_notes_holds_up_no_answer() {
    in_all_cells(true, async |_, mut server, running, stream, era| {
        for progress in 1..=500 {
            server.progress(progress).await;
        }
        let start = Instant::now();
        server.answer(valid_result()).await;
        assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#, "{era}");
        assert!(start.elapsed() < Duration::from_millis(5));
        drop(stream);
    })
    .await;
}

/// Checks that the next call over the connection gets its response.
async fn expect_next_call_served(world: &mut World, mut server: Server, era: Era) {
    let running = RunningCall::start(world, call(Revision::V2025_11_25));
    let request = match &mut server {
        Server::Stdio(peer, _) => peer.read().await,
        Server::Sse(pair, _) => pair.read(world).await,
        Server::Http(..) => {
            let post = world.post().await;
            post.answer(valid_result());
            let reply: Result<String, Error> = running.end().await;
            assert_eq!(reply.expect("a reply"), r#"{"right":1}"#, "{era}");
            return;
        }
    };
    let id = &request["id"];
    server.send(json!({ "jsonrpc": "2.0", "id": id, "result": valid_result() })).await;
    assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#, "{era}");
}
