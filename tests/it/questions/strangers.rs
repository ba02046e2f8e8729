//! Unsolicited responses of legacy clients: late, duplicate, with unknown ids, or of another
//! client.

use super::{ALL, CALL, Dialog, FORM, can_ask, receive_responses, send_input_requests};
use crate::client::{Client, named, object, string};
use crate::world::{everywhere, hub, settle};

/// Sends a message that the gateway may refuse.
async fn say(client: &Client, message: String) {
    match client.side.is_http() {
        true => {
            let http = client.http();
            let status = http.post(message.clone(), &http.headers("", "{}")).whole().await.status;
            assert!([202, 400].contains(&status), "{status}: {message}");
        }
        false => client.send(&message).await,
    }
}

#[tokio::test(start_paused = true)]
async fn n58_an_answer_counts_once_from_its_own_client_under_its_own_id_while_its_call_runs() {
    everywhere("", hub, async |world, cell| {
        if !can_ask(cell.upstream) || cell.client.is_modern() {
            return;
        }
        let ann = world.client_declaring(cell.client, ALL).await;
        let bob = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let beside = bob.start(CALL.0, &named("hub__a"));
        let besides_call = intercepted.next().await;
        let mut dialog = Dialog::start(&ann, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        let wrong = r#""result":{"action":"decline"}"#;
        // This client has no input request.
        say(&bob, format!(r#"{{"jsonrpc":"2.0","id":{key},{wrong}}}"#)).await;
        // Its id consists of the number of the process and its own.
        let (_, number) = key.trim_matches('"').split_once('.').expect("two numbers");
        let another = format!("\"0123456789abcdef.{number}\"");
        for id in [number.into(), format!("\"{number}\""), another, "null".into()] {
            say(&ann, format!(r#"{{"jsonrpc":"2.0","id":{id},{wrong}}}"#)).await;
        }
        settle().await;
        assert_eq!(upstream.received_responses(0).await, Vec::<String>::new());
        dialog.answer(&[(&key, FORM.answer), (&key, r#"{"action":"decline"}"#)]).await;
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
        assert_eq!(answers, [FORM.answer]);
        dialog.answer(&[(&key, r#"{"action":"decline"}"#)]).await;
        dialog.end(call, upstream).await;
        let received = upstream.received_responses(0).await.len();

        // The call is cancelled, so its response is not expected any more.
        let mut dialog = Dialog::start(&ann, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("late", FORM)]);
        let key = dialog.wait_for_requests(1).await.remove(0).key;
        // This is the client's third request: `initialize` was the first.
        ann.notify("notifications/cancelled", r#"{"requestId":3}"#).await;
        if let Some(call) = &call {
            call.cancelled().await;
        }
        settle().await;
        dialog.answer(&[(&key, FORM.answer)]).await;
        settle().await;
        let answers = upstream.received_responses(0).await;
        let late = answers[received..].iter().filter(|answer| object(answer).has("result"));
        assert_eq!(late.count(), 0, "{answers:?}");
        assert!(besides_call.is_wanted());
        besides_call.result(super::done(upstream));
        super::check_done(&beside.reply().await);
        upstream.reset_answer(CALL.0);
        for client in [&ann, &bob] {
            assert!(client.call_tool("hub__a").await.outcome.is_ok());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n58_an_answer_that_cannot_be_read_is_an_error_to_its_upstream_at_once() {
    everywhere("", hub, async |world, cell| {
        if !can_ask(cell.upstream) || cell.client.is_modern() {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        for (before, outcome) in
            [r#""result":{},"error":{"code":-1,"message":"m"}"#, r#""error":7"#]
                .into_iter()
                .enumerate()
        {
            let mut dialog = Dialog::start(&client, CALL);
            let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
            let key = dialog.wait_for_requests(1).await.remove(0).key;
            say(&client, format!(r#"{{"jsonrpc":"2.0","id":{key},{outcome}}}"#)).await;
            if !cell.client.is_http() {
                let refusal = string(client.stdio().next_unrouted().await.expect("a refusal"));
                assert!(refusal.contains("-32600") && !refusal.contains("\"id\""), "{refusal}");
            }
            let (call, answers) =
                receive_responses(upstream, &mut intercepted, call, &["q"], before).await;
            if cell.upstream.is_modern() {
                assert_eq!(answers, [r#"{"action":"cancel"}"#]);
            } else {
                assert_eq!(object(&answers[0]).get("code"), Some("-32603"), "{answers:?}");
            }
            dialog.end(call, upstream).await;
        }
    })
    .await;
}
