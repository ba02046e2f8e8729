//! Input requests on upstream connections of which each client has its own.

use super::*;
use crate::cell::{MODERN_HTTP, UPSTREAMS};
use crate::upstream::Cancelled;

const OWN: &str = "[upstreams.hub]\nsharing = \"client\"\n";

#[tokio::test(start_paused = true)]
async fn a_server_on_a_clients_own_stream_asks_that_client() {
    everywhere(OWN, hub, async |world, cell| {
        if can_ask(cell.upstream) {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        for (before, question) in [SAMPLING, ROOTS].into_iter().enumerate() {
            let mut dialog = Dialog::start(&client, CALL);
            let call = send_input_requests(upstream, intercepted.next().await, &[("q1", question)]);
            let questions = dialog.wait_for_requests(1).await;
            check_input_request(&questions[0], question, cell);
            dialog.answer(&[(&questions[0].key, question.answer)]).await;
            let (call, answers) =
                receive_responses(upstream, &mut intercepted, call, &["q1"], before).await;
            assert_eq!(answers, [question.answer]);
            call.result(r#"{"content":[],"done":1.0}"#);
            check_done(&dialog.reply().await);
        }
        assert_eq!(upstream.count("initialize"), 2, "the kept one and the client's");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_clients_are_asked_on_two_streams() {
    everywhere(OWN, hub, async |world, cell| {
        if can_ask(cell.upstream) || cell.client.is_modern() {
            return;
        }
        let ann = world.client_declaring(cell.client, ALL).await;
        let bob = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let mut anns = Dialog::start(&ann, CALL);
        let for_ann = send_input_requests(upstream, intercepted.next().await, &[("of-ann", ROOTS)]);
        let anns_questions = anns.wait_for_requests(1).await;
        let mut bobs = Dialog::start(&bob, CALL);
        let for_bob = send_input_requests(upstream, intercepted.next().await, &[("of-bob", ROOTS)]);
        let bobs_questions = bobs.wait_for_requests(1).await;
        assert_eq!(upstream.count("initialize"), 3);
        let of_bob = r#"{"roots":[{"uri":"file:///bob"}]}"#;
        bobs.answer(&[(&bobs_questions[0].key, of_bob)]).await;
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, for_bob, &["of-bob"], 0).await;
        assert_eq!(answers, [of_bob]);
        call.result(r#"{"content":[],"done":1.0}"#);
        check_done(&bobs.reply().await);
        anns.answer(&[(&anns_questions[0].key, ROOTS.answer)]).await;
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, for_ann, &["of-ann"], 1).await;
        assert_eq!(answers, [ROOTS.answer]);
        call.result(r#"{"content":[],"done":1.0}"#);
        check_done(&anns.reply().await);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_question_after_one_that_was_abandoned_is_asked_and_the_abandoned_call_is_cancelled() {
    everywhere(OWN, hub, async |world, cell| {
        if can_ask(cell.upstream) || !cell.client.is_modern() {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let mut abandoned = Vec::new();
        // More calls than may be suspended at a time.
        for turn in 0..20 {
            let mut dialog = Dialog::start(&client, CALL);
            let id = format!("q{turn}");
            let call = send_input_requests(upstream, intercepted.next().await, &[(&id, SAMPLING)])
                .expect("a legacy one");
            let questions = dialog.wait_for_requests(1).await;
            check_input_request(&questions[0], SAMPLING, cell);
            abandoned.push((call, dialog.state.take().expect("a state"), questions));
        }
        let (last, state, questions) = abandoned.pop().expect("the last one");
        for (at, (call, state, questions)) in abandoned.into_iter().enumerate() {
            assert_eq!(call.cancelled().await, Cancelled::Notified);
            // The server gets a response to its request as well.
            let refused = upstream.response_to(&format!("q{at}")).await;
            assert!(!object(&refused).has("result"), "{refused}");
            let late = retry(CALL, &state, &[(&questions[0].key, SAMPLING.answer)]);
            let late = client.request(CALL.0, &late).await;
            assert_eq!(late.code(), -32602, "{late:?}");
        }
        assert!(last.is_wanted());
        let params = retry(CALL, &state, &[(&questions[0].key, SAMPLING.answer)]);
        let exchange = client.start(CALL.0, &params);
        let answer = upstream.response_to("q19").await;
        assert_eq!(object(&answer).get("result"), Some(SAMPLING.answer));
        last.result(done(upstream));
        check_done(&exchange.reply().await);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_question_that_could_be_of_two_calls_is_refused_in_true_words() {
    everywhere(OWN, hub, async |world, cell| {
        if can_ask(cell.upstream) || !cell.client.is_modern() {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let (first, second) = (Dialog::start(&client, CALL), Dialog::start(&client, CALL));
        let calls = [intercepted.next().await, intercepted.next().await];
        let [one, two] = calls;
        let one = send_input_requests(upstream, one, &[("q", SAMPLING)]).expect("a legacy one");
        let refused = object(&upstream.response_to("q").await);
        let error = refused.get_object("error").expect("an error");
        assert_eq!(error.get("code"), Some("-32603"));
        let text = error.get_string("message").expect("a message").into_owned();
        assert!(!text.contains("does not support") && text.contains("several calls"), "{text}");
        for (call, dialog) in [(one, first), (two, second)] {
            dialog.end(call, upstream).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_answered_while_another_one_waits_does_not_end_that_one() {
    everywhere(OWN, hub, async |world, cell| {
        if can_ask(cell.upstream) || !cell.client.is_modern() {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let mut dialog = Dialog::start(&client, CALL);
        let call = send_input_requests(upstream, intercepted.next().await, &[("q1", SAMPLING)]);
        let questions = dialog.wait_for_requests(1).await;
        let other = Dialog::start(&client, CALL);
        let second = intercepted.next().await;
        other.end(second, upstream).await;
        dialog.answer(&[(&questions[0].key, SAMPLING.answer)]).await;
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q1"], 0).await;
        assert_eq!(answers, [SAMPLING.answer]);
        dialog.end(call, upstream).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_clients_over_http_are_one_client_under_one_name_and_one_without_a_key() {
    let config = format!(
        "{OWN}[auth]\nmode = \"anonymous\"\n[roles.ann]\ntools.allow = [\"*\"]\n[roles.bob]\ntools.allow = [\"*\"]\n"
    );
    for upstream in UPSTREAMS.into_iter().filter(|side| !side.is_modern()) {
        let world = World::start(hub(upstream), &config).await;
        let hub = world.upstream("hub");
        assert_eq!(hub.count("initialize"), 1, "{upstream}: the kept one");
        // The name of the key's client, if any, and the number of connections by then, the kept one
        // included.
        for (name, expected) in [(Some("ann"), 2), (Some("bob"), 3), (None, 4)] {
            for _ in 0..2 {
                let client = match name {
                    Some(name) => world.client_as(name, MODERN_HTTP).await,
                    None => world.client(MODERN_HTTP).await,
                };
                let reply = client.call_tool("hub__a").await;
                assert!(reply.outcome.is_ok(), "{upstream}: {reply:?}");
                assert_eq!(hub.count("initialize"), expected, "{upstream}: {name:?}");
            }
        }
        world.close().await;
    }
}
