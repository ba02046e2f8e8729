//! Input requests to a legacy client: on the stream of their call, and their end with the call.

use std::time::Duration;

use weir_mcp::revision::Revision;

use super::{
    ALL, CALL, Dialog, FORM, QUESTIONS, ROOTS, SAMPLING, URL_MODE, check_done, done,
    intercepted_call, receive_responses, send_input_requests,
};
use crate::cell::{LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, Side, Transport};
use crate::client::object;
use crate::world::{World, hub, pass, settle, with_pair};

const LEGACY: [Side; 3] = [LEGACY_HTTP, LEGACY_STDIO, LEGACY_SSE];
const ASKING: [Side; 2] = [MODERN_HTTP, LEGACY_HTTP];

/// Runs a test for every legacy client with an upstream of each era that can send input requests.
async fn each(test: impl AsyncFn(&World, Side, Side)) {
    for side in LEGACY {
        for upstream in ASKING {
            let world = World::start(hub(upstream), &with_pair("")).await;
            test(&world, side, upstream).await;
            world.close().await;
        }
    }
}

/// Id of the input request that a message cancels.
fn taken_back(message: &str) -> String {
    let message = object(message);
    assert_eq!(message.get("method"), Some("\"notifications/cancelled\""), "{message:?}");
    let params = message.get_object("params").expect("params");
    params.get("requestId").expect("an id").to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_takes_its_question_back_and_a_late_answer_is_ignored() {
    each(async |world, side, upstream_side| {
        let client = world.client_declaring(side, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        // The call is this client's first request but for `initialize`.
        let params = r#"{"requestId":2,"reason":"enough"}"#;
        client.notify("notifications/cancelled", params).await;
        assert_eq!(taken_back(&dialog.exchange.next_server_message().await), key);
        if let Some(call) = call {
            call.cancelled().await;
        }
        dialog.answer(&[(&key, FORM.answer)]).await;
        settle().await;
        // A legacy server is notified that its request will not be answered.
        let responses = upstream.received_responses(0).await;
        assert!(responses.iter().all(|answer| answer.contains("\"error\"")), "{responses:?}");
        assert_eq!(upstream.count(CALL.0), 1, "{upstream_side}");
        upstream.reset_answer(CALL.0);
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_answer_goes_back_as_it_comes_and_may_lead_to_a_further_question() {
    for side in LEGACY {
        let (world, client, mut intercepted) =
            intercepted_call(LEGACY_HTTP, &with_pair(""), side).await;
        let upstream = world.upstream("hub");
        let mut dialog = Dialog::start(&client, CALL);
        let call =
            send_input_requests(upstream, intercepted.next().await, &[("q1", FORM), ("q2", ROOTS)]);
        let first = dialog.wait_for_requests(2).await;
        dialog.answer(&[(&first[1].key, ROOTS.answer)]).await;
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q2"], 0).await;
        assert_eq!(answers, [ROOTS.answer], "{side}");
        let call = send_input_requests(upstream, call, &[("q3", SAMPLING)]);
        let second = dialog.wait_for_requests(1).await;
        assert_eq!(second[0].params, SAMPLING.params, "{side}");
        dialog.answer(&[(&second[0].key, SAMPLING.answer)]).await;
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q3"], 1).await;
        assert_eq!(answers, [SAMPLING.answer], "{side}");
        dialog.answer(&[(&first[0].key, FORM.answer)]).await;
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, Some(call), &["q1"], 2).await;
        assert_eq!(answers, [FORM.answer], "{side}");
        dialog.end(call, upstream).await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_first_answer_to_a_question_counts() {
    each(async |world, side, _| {
        let client = world.client_declaring(side, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        for strange in ["77", "0", "-1", "\"q\"", "\"1\"", "1e0", "18446744073709551616"] {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{strange},"result":{{"odd":1}}}}"#);
            if strange != "1e0" {
                client.send(&answer).await;
            }
        }
        client.send(r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#).await;
        dialog.answer(&[(&key, FORM.answer), (&key, r#"{"action":"decline"}"#)]).await;
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
        assert_eq!(answers, [FORM.answer]);
        dialog.end(call, upstream).await;
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":{key},"result":{{}}}}"#)).await;
        assert!(client.get_prompt("hub__a").await.outcome.is_ok());
        assert!(upstream.received_responses(0).await.len() <= 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_an_error_reaches_the_upstream_as_its_era_has_it() {
    each(async |world, side, upstream_side| {
        let client = world.client_declaring(side, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let error = r#"{"code":-1,"message":"User \u0041","data":1e400}"#;
        for (before, question) in [FORM, SAMPLING].into_iter().enumerate() {
            let mut dialog = Dialog::start(&client, CALL);
            let call = send_input_requests(upstream, intercepted.next().await, &[("q", question)]);
            let key = dialog.wait_for_requests(1).await.remove(0).key;
            client.send(&format!(r#"{{"jsonrpc":"2.0","id":{key},"error":{error}}}"#)).await;
            if upstream_side.is_modern() && question.method == SAMPLING.method {
                // A retry has no form for it.
                assert_eq!(dialog.reply().await.error(), error);
                continue;
            }
            let (call, answers) =
                receive_responses(upstream, &mut intercepted, call, &["q"], before).await;
            let expected = if upstream_side.is_modern() { r#"{"action":"cancel"}"# } else { error };
            assert_eq!(answers, [expected]);
            dialog.end(call, upstream).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_object_is_an_error_to_the_upstream() {
    let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", LEGACY_HTTP).await;
    let upstream = world.upstream("hub");
    let mut dialog = Dialog::start(&client, CALL);
    let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
    let key = dialog.wait_for_requests(1).await.remove(0).key;
    dialog.answer(&[(&key, "7")]).await;
    let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
    assert_eq!(object(&answers[0]).get("code"), Some("-32603"), "{answers:?}");
    dialog.end(call, upstream).await;
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_does_not_wait_takes_its_question_back() {
    for side in LEGACY {
        let (world, client, mut intercepted) =
            intercepted_call(LEGACY_HTTP, &with_pair(""), side).await;
        let upstream = world.upstream("hub");
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)])
            .expect("a legacy one");
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        call.result(done(upstream));
        assert_eq!(taken_back(&dialog.exchange.next_server_message().await), key, "{side}");
        check_done(&dialog.reply().await);

        // The client disconnects without a notification.
        let mut dialog = Dialog::start(&client, CALL);
        let _call = send_input_requests(upstream, intercepted.next().await, &[("q2", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        upstream.go_down();
        assert_eq!(taken_back(&dialog.exchange.next_server_message().await), key, "{side}");
        let reply = dialog.reply().await;
        assert_eq!(reply.code(), 5030, "{side}: {reply:?}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_answers_does_not_hold_a_call_for_ever() {
    each(async |world, side, _| {
        let client = world.client_declaring(side, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        assert_eq!(taken_back(&dialog.exchange.next_server_message().await), key);
        let reply = dialog.reply().await;
        assert_eq!(reply.code(), 5040, "{reply:?}");
        if let Some(call) = call {
            call.cancelled().await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_detaches_a_call_that_asks() {
    for upstream_side in ASKING {
        let (world, client, mut intercepted) =
            intercepted_call(upstream_side, "", LEGACY_HTTP).await;
        let upstream = world.upstream("hub");
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q1", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        drop(dialog);
        settle().await;
        // The input request has been sent, so it can still be answered; a further one cannot be
        // sent.
        let answer = FORM.answer;
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":{key},"result":{answer}}}"#)).await;
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q1"], 0).await;
        assert_eq!(answers, [FORM.answer], "{upstream_side}");
        let call = send_input_requests(upstream, call, &[("q2", FORM)]);
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q2"], 1).await;
        let expected = if upstream_side.is_modern() { r#""cancel""# } else { "-32603" };
        assert!(answers[0].contains(expected), "{upstream_side}: {answers:?}");
        call.result(done(upstream));
        settle().await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_conversation_cancels_a_call_that_asks() {
    for side in LEGACY {
        let (world, client, mut intercepted) =
            intercepted_call(LEGACY_HTTP, &with_pair(""), side).await;
        let upstream = world.upstream("hub");
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)])
            .expect("a legacy one");
        dialog.wait_for_requests(1).await;
        if side.is_http() {
            let http = client.http();
            let headers = http.plain_headers();
            let ended = http.send(hyper::Method::DELETE, "/mcp", "", &headers).whole().await;
            assert_eq!(ended.status, 204);
        }
        drop(dialog);
        drop(client);
        call.cancelled().await;
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_takes_no_answers_and_waits_for_none() {
    for side in LEGACY {
        let (world, client, mut intercepted) =
            intercepted_call(LEGACY_HTTP, &with_pair(""), side).await;
        let upstream = world.upstream("hub");
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        world.stop_downstream();
        assert_eq!(taken_back(&dialog.exchange.next_server_message().await), key, "{side}");
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
        assert_eq!(object(&answers[0]).get("code"), Some("-32603"), "{side}: {answers:?}");
        dialog.end(call, upstream).await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_revision_is_not_asked_for_what_it_does_not_know() {
    for (revision, known) in [
        (Revision::V2024_11_05, &[SAMPLING.method, ROOTS.method][..]),
        (Revision::V2025_03_26, &[SAMPLING.method, ROOTS.method]),
        (Revision::V2025_06_18, &[FORM.method, SAMPLING.method, ROOTS.method]),
        (Revision::V2025_11_25, &[FORM.method, SAMPLING.method, ROOTS.method]),
    ] {
        for transport in [Transport::Stdio, Transport::Http, Transport::Sse] {
            let world = World::start(hub(LEGACY_HTTP), &with_pair("")).await;
            let client = world.client_declaring(Side::new(revision, transport), ALL).await;
            let upstream = world.upstream("hub");
            let mut intercepted = upstream.intercept(CALL.0);
            for (before, question) in QUESTIONS.into_iter().enumerate() {
                let mut dialog = Dialog::start(&client, CALL);
                let call =
                    send_input_requests(upstream, intercepted.next().await, &[("q", question)]);
                let is_visit = question.params == URL_MODE.params;
                let is_asked = known.contains(&question.method)
                    && (!is_visit || revision == Revision::V2025_11_25);
                if is_asked {
                    let received = dialog.wait_for_requests(1).await.remove(0);
                    dialog.answer(&[(&received.key, question.answer)]).await;
                }
                let (call, answers) =
                    receive_responses(upstream, &mut intercepted, call, &["q"], before).await;
                let is_answered = answers == [question.answer];
                assert_eq!(
                    is_answered, is_asked,
                    "{revision} {transport:?}: {question:?} {answers:?}"
                );
                dialog.end(call, upstream).await;
            }
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_batched_call_cannot_ask() {
    let world = World::start(hub(LEGACY_HTTP), "").await;
    let side = Side::new(Revision::V2025_03_26, Transport::Http);
    let client = world.client_declaring(side, ALL).await;
    let upstream = world.upstream("hub");
    let mut intercepted = upstream.intercept(CALL.0);
    let item = CALL.1;
    let batch =
        format!(r#"[{{"jsonrpc":"2.0","id":70,"method":"tools/call","params":{{{item}}}}}]"#);
    let http = client.http();
    let posted = http.post(batch, &http.headers("", "{}"));
    let call = send_input_requests(upstream, intercepted.next().await, &[("q", SAMPLING)]);
    let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
    assert_eq!(object(&answers[0]).get("code"), Some("-32601"), "{answers:?}");
    let result = done(upstream);
    call.result(result);
    let expected = format!(r#"[{{"jsonrpc":"2.0","id":70,"result":{result}}}]"#);
    assert_eq!(posted.whole().await.body, expected);

    // Answers may come in a batch.
    let mut dialog = Dialog::start(&client, CALL);
    let call = send_input_requests(upstream, intercepted.next().await, &[("q", SAMPLING)]);
    let key = dialog.wait_for_requests(1).await.remove(0).key;
    let answer = SAMPLING.answer;
    client.send(&format!(r#"[{{"jsonrpc":"2.0","id":{key},"result":{answer}}}]"#)).await;
    let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q"], 1).await;
    assert_eq!(answers, [SAMPLING.answer]);
    dialog.end(call, upstream).await;
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_asks_for_ever_is_an_error() {
    for side in LEGACY {
        let (world, client, mut intercepted) =
            intercepted_call(MODERN_HTTP, &with_pair(""), side).await;
        let upstream = world.upstream("hub");
        let mut dialog = Dialog::start(&client, CALL);
        for _ in 0..8 {
            send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
            let key = dialog.wait_for_requests(1).await.remove(0).key;
            dialog.answer(&[(&key, FORM.answer)]).await;
        }
        send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
        let reply = dialog.reply().await;
        assert_eq!(reply.code(), -32603, "{side}: {reply:?}");
        assert_eq!(upstream.count(CALL.0), 9);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_open_questions_of_a_conversation_are_bounded() {
    let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", LEGACY_HTTP).await;
    let upstream = world.upstream("hub");
    let keys: Vec<_> = (0..80).map(|number| format!("q{number}")).collect();
    let mut open = Vec::new();
    for keys in keys.chunks(16) {
        let mut dialog = Dialog::start(&client, CALL);
        let questions: Vec<_> = keys.iter().map(|key| (&**key, FORM)).collect();
        let call = send_input_requests(upstream, intercepted.next().await, &questions)
            .expect("a legacy one");
        if open.len() == 4 {
            assert_eq!(dialog.reply().await.code(), 4290);
            call.cancelled().await;
        } else {
            dialog.wait_for_requests(16).await;
            open.push((dialog, call));
        }
    }
    pass(Duration::from_secs(1)).await;
    assert!(open.iter().all(|(_, call)| call.is_wanted()), "the others wait on");
    for (dialog, call) in open {
        dialog.end(call, upstream).await;
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn the_ids_of_a_conversations_questions_never_come_again() {
    let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", LEGACY_STDIO).await;
    let upstream = world.upstream("hub");
    let mut seen = Vec::new();
    for before in 0..3 {
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        assert!(!seen.contains(&key), "{key}");
        dialog.answer(&[(&key, FORM.answer)]).await;
        seen.push(key);
        let (call, _) = receive_responses(upstream, &mut intercepted, call, &["q"], before).await;
        dialog.end(call, upstream).await;
    }
    drop(client);
    world.close().await;
}
