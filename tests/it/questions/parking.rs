//! A suspended call to a legacy upstream, which waits for a modern client: the states that resume
//! it.

use std::time::Duration;

use weir::app::ReloadOutcome;
use weir_mcp::jsonrpc::Id;

use super::{
    ALL, CALL, Dialog, FORM, ROOTS, SAMPLING, URL_MODE, check_done, done, intercepted_call,
    read_questions, receive_responses, retry, send_input_requests,
};
use crate::cell::{LEGACY_HTTP, MODERN_HTTP, MODERN_STDIO};
use crate::client::{Client, Reply, named, object};
use crate::upstream::{Answer, Call, InterceptedCalls, Script};
use crate::world::{World, hub, pass, settle};

const MODERN: [crate::cell::Side; 2] = [MODERN_HTTP, MODERN_STDIO];

const ROLES: &str = r#"
    [roles.ann]
    prompts.allow = ["*/*"]
    tools.allow = ["*/*"]
    [roles.bob]
    prompts.allow = ["*/*"]
    tools.allow = ["*/*"]
"#;

/// A suspended call, with the state and the key for its client's next round. The id of the first
/// input request is `q`.
async fn suspended(
    world: &World,
    intercepted: &mut InterceptedCalls,
    client: &Client,
) -> (Call, String, String) {
    let mut dialog = Dialog::start(client, CALL);
    let (upstream, call) = (world.upstream("hub"), intercepted.next().await);
    let id = match upstream.count(CALL.0) {
        1 => "q".to_owned(),
        count => format!("q{count}"),
    };
    let call = send_input_requests(upstream, call, &[(&id, FORM)]).expect("a legacy one");
    let key = dialog.wait_for_requests(1).await.remove(0).key;
    (call, key, dialog.state.take().expect("a state"))
}

async fn retry_suspended(client: &Client, state: &str, answers: &[(&str, &str)]) -> Reply {
    client.request(CALL.0, &retry(CALL, state, answers)).await
}

#[tokio::test(start_paused = true)]
async fn n55_a_state_is_good_once_for_its_principal_and_its_request() {
    for side in MODERN {
        let world = World::start(hub(LEGACY_HTTP), ROLES).await;
        let ann = world.client_as_declaring("ann", side, ALL).await;
        let bob = world.client_as_declaring("bob", side, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let (call, key, state) = suspended(&world, &mut intercepted, &ann).await;
        let before = world.requests();
        let answer = [(&*key, FORM.answer)];
        let good = retry(CALL, &state, &answer);
        let mut flipped = state.clone();
        let other = if &state[5..6] == "A" { "B" } else { "A" };
        flipped.replace_range(5..6, other);
        let refusals = [
            bob.request(CALL.0, &good).await,
            retry_suspended(&ann, &flipped, &answer).await,
            retry_suspended(&ann, &format!("{}\"", &state[..20]), &answer).await,
            retry_suspended(&ann, "\"\"", &answer).await,
            ann.request(CALL.0, &good.replace("hub__a", "hub__b")).await,
            ann.request(CALL.0, &good.replace("1.0}", "2}")).await,
            ann.request(CALL.0, &good.replace(r#""arguments":{"n":1.0},"#, "")).await,
            ann.request("prompts/get", &good).await,
        ];
        for refusal in &refusals {
            assert_eq!((refusal.code(), refusal.error()), (-32602, refusals[0].error()), "{side}");
        }
        assert_eq!(world.requests(), before, "nothing has been executed");
        assert!(call.is_wanted());

        let dialog = ann.start(CALL.0, &good);
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, Some(call), &["q"], 0).await;
        assert_eq!(answers, [FORM.answer]);
        call.result(done(upstream));
        check_done(&dialog.reply().await);
        let again = ann.request(CALL.0, &good).await;
        assert_eq!((again.code(), again.error()), (-32602, refusals[0].error()), "{side}");
        assert_eq!((world.requests(), upstream.received_responses(1).await.len()), (before, 1));
        drop((ann, bob));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn n55_of_two_that_come_back_at_once_one_goes_on() {
    for side in MODERN {
        let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", side).await;
        let upstream = world.upstream("hub");
        let (call, key, state) = suspended(&world, &mut intercepted, &client).await;
        let params = retry(CALL, &state, &[(&key, FORM.answer)]);
        let both = [(); 8].map(|()| client.start(CALL.0, &params));
        let (call, _) = receive_responses(upstream, &mut intercepted, Some(call), &["q"], 0).await;
        call.result(done(upstream));
        let mut replies = Vec::new();
        for exchange in both {
            replies.push(exchange.reply().await);
        }
        let (good, refused): (Vec<_>, Vec<_>) =
            replies.iter().partition(|reply| reply.outcome.is_ok());
        assert_eq!((good.len(), refused.len()), (1, 7), "{side}");
        check_done(good[0]);
        assert!(refused.iter().all(|reply| reply.code() == -32602), "{side}: {refused:?}");
        assert_eq!((upstream.count(CALL.0), upstream.received_responses(1).await.len()), (1, 1));
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_comes_back_for_is_cancelled_in_time() {
    for side in MODERN {
        let world = World::start(hub(LEGACY_HTTP), "").await;
        let client = world.client_declaring(side, ALL).await;
        let mut intercepted = world.upstream("hub").intercept(CALL.0);
        let (call, key, state) = suspended(&world, &mut intercepted, &client).await;
        pass(Duration::from_secs(599)).await;
        assert!(call.is_wanted(), "{side}");
        pass(Duration::from_secs(2)).await;
        assert!(!call.is_wanted(), "{side}");
        let late = retry_suspended(&client, &state, &[(&key, FORM.answer)]).await;
        assert_eq!(late.code(), -32602, "{side}");
        assert_eq!(world.upstream("hub").count(CALL.0), 1);
        // A call that is still suspended when the gateway closes is dropped.
        let (call, ..) = suspended(&world, &mut intercepted, &client).await;
        drop(client);
        world.close().await;
        assert!(!call.is_wanted(), "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_asked_again_and_what_was_given_is_kept() {
    for side in MODERN {
        let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", side).await;
        let upstream = world.upstream("hub");
        let mut dialog = Dialog::start(&client, CALL);
        let call =
            send_input_requests(upstream, intercepted.next().await, &[("q1", FORM), ("q2", ROOTS)]);
        let questions = dialog.wait_for_requests(2).await;
        let form = questions.iter().find(|request| request.method == FORM.method).expect("a form");
        let first = dialog.state.clone().expect("a state");
        dialog.answer(&[(&form.key, FORM.answer), ("unknown", "7")]).await;
        let missing = dialog.wait_for_requests(1).await;
        assert_eq!(missing[0].method, ROOTS.method, "{side}");
        assert_ne!(dialog.state.as_ref(), Some(&first), "each round has a state of its own");
        dialog.answer(&[]).await;
        let missing = dialog.wait_for_requests(1).await;
        dialog.answer(&[(&missing[0].key, ROOTS.answer)]).await;
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, call, &["q1", "q2"], 0).await;
        assert_eq!(answers, [FORM.answer, ROOTS.answer], "{side}");
        dialog.end(call, upstream).await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn n55_what_cannot_be_read_is_refused_and_spoils_nothing() {
    for side in MODERN {
        let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", side).await;
        let upstream = world.upstream("hub");
        let (call, key, state) = suspended(&world, &mut intercepted, &client).await;
        for (state, answer) in [
            ("null", FORM.answer),
            ("7", FORM.answer),
            ("{}", FORM.answer),
            (&*state, "null"),
            (&*state, "[]"),
            (&*state, "\"accept\""),
        ] {
            let refused = retry_suspended(&client, state, &[(&key, answer)]).await;
            assert_eq!(refused.code(), -32602, "{side}: {state} {answer}");
        }
        let item = CALL.1;
        let params = format!(r#"{{{item},"inputResponses":[],"requestState":{state}}}"#);
        assert_eq!(client.request(CALL.0, &params).await.code(), -32602);
        assert_eq!((upstream.count(CALL.0), call.is_wanted()), (1, true), "{side}");

        // Responses without a state belong to no call: this one is new and does not get them.
        let params = format!(r#"{{{item},"inputResponses":{{"{key}":{}}}}}"#, FORM.answer);
        let fresh = client.start(CALL.0, &params);
        let second = intercepted.next().await;
        assert!(!second.params.has("inputResponses") && !second.params.has("requestState"));
        second.result(done(upstream));
        check_done(&fresh.reply().await);

        let dialog = client.start(CALL.0, &retry(CALL, &state, &[(&key, FORM.answer)]));
        let (call, _) = receive_responses(upstream, &mut intercepted, Some(call), &["q"], 0).await;
        call.result(done(upstream));
        check_done(&dialog.reply().await);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_runs_on_every_round() {
    let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", MODERN_HTTP).await;
    let upstream = world.upstream("hub");
    let (_call, key, state) = suspended(&world, &mut intercepted, &client).await;
    upstream.remove(weir_mcp::kind::Kind::Tool, "a").await;
    pass(Duration::from_secs(2)).await;
    let reply = retry_suspended(&client, &state, &[(&key, FORM.answer)]).await;
    assert_eq!(reply.code(), -32602);
    assert!(reply.error().contains("Unknown tool: hub__a"), "{reply:?}");
    assert_eq!(upstream.received_responses(0).await, Vec::<String>::new());
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_upstream_is_lost_ends_with_an_error() {
    let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", MODERN_HTTP).await;
    let upstream = world.upstream("hub");
    let (_call, key, state) = suspended(&world, &mut intercepted, &client).await;
    let (_other, _, other_state) = suspended(&world, &mut intercepted, &client).await;
    upstream.go_down();
    settle().await;
    let reply = retry_suspended(&client, &state, &[(&key, FORM.answer)]).await;
    assert_eq!(reply.code(), 5030, "{reply:?}");
    let unknown = retry_suspended(&client, "\"unknown\"", &[]).await;
    assert!([5030, -32602].contains(&unknown.code()), "{unknown:?}");
    upstream.come_up();
    pass(Duration::from_secs(60)).await;
    let reply = retry_suspended(&client, &other_state, &[(&key, FORM.answer)]).await;
    assert_eq!(reply.code(), 5030, "the connection that it waited on is gone: {reply:?}");
    let unknown = retry_suspended(&client, "\"unknown\"", &[]).await;
    assert_eq!(unknown.code(), -32602);
    assert_eq!(upstream.count(CALL.0), 2, "nothing is called again");
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn the_answers_to_one_server_reach_no_other_that_has_its_place() {
    for side in MODERN {
        let scripts =
            vec![("hub", Script::full(LEGACY_HTTP)), ("other", Script::full(MODERN_HTTP))];
        let world = World::start(scripts, "").await;
        let client = world.client_declaring(side, ALL).await;
        let mut intercepted = world.upstream("hub").intercept(CALL.0);
        let (call, key, state) = suspended(&world, &mut intercepted, &client).await;
        let outcome = world.reload_leading("hub", "other", "").await;
        assert!(matches!(outcome, ReloadOutcome::Applied { .. }), "{outcome:?}");
        world.listed().await;
        for _ in 0..2 {
            let reply = retry_suspended(&client, &state, &[(&key, FORM.answer)]).await;
            assert_eq!(reply.code(), -32602, "{side}: {reply:?}");
            // The suspended call expires, but the gateway still recognizes its state.
            pass(Duration::from_secs(601)).await;
        }
        assert_eq!(world.upstream("other").count(CALL.0), 0, "{side}");
        drop((call, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_has_its_own_progress_and_its_own_cancel() {
    for side in MODERN {
        let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", side).await;
        let upstream = world.upstream("hub");
        let with_token = |params: String, token: u32| {
            let meta = format!(r#""_meta":{{"progressToken":{token}}}}}"#);
            format!("{},{meta}", params.strip_suffix('}').expect("an object"))
        };
        let item = format!("{{{}}}", CALL.1);
        let first = client.start_as(Id::from(70), CALL.0, &with_token(item, 70));
        let call = intercepted.next().await;
        call.progress(r#""progress":1"#);
        settle().await;
        let call = send_input_requests(upstream, call, &[("q", FORM)]).expect("a legacy one");
        let reply = first.reply().await;
        assert!(reply.notifications[0].contains(r#""progressToken":70"#), "{side}: {reply:?}");
        let (questions, state) = read_questions(&reply);
        let params = retry(CALL, &state, &[(&questions[0].key, FORM.answer)]);
        let mut second = client.start_as(Id::from(71), CALL.0, &with_token(params, 71));
        let (call, _) = receive_responses(upstream, &mut intercepted, Some(call), &["q"], 0).await;
        call.progress(r#""progress":2"#);
        let note = second.next().await.expect("progress");
        assert!(note.contains(r#""progressToken":71"#), "{side}: {note}");
        second.cancel().await;
        call.cancelled().await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_calls_of_one_client_that_wait_are_bounded() {
    let world = World::start(hub(LEGACY_HTTP), ROLES).await;
    let ann = world.client_as_declaring("ann", MODERN_HTTP, ALL).await;
    let bob = world.client_as_declaring("bob", MODERN_HTTP, ALL).await;
    let mut intercepted = world.upstream("hub").intercept(CALL.0);
    let mut waiting = Vec::new();
    for _ in 0..16 {
        waiting.push(suspended(&world, &mut intercepted, &ann).await);
    }
    let dialog = Dialog::start(&ann, CALL);
    let call = send_input_requests(world.upstream("hub"), intercepted.next().await, &[("r", FORM)])
        .expect("a legacy one");
    assert_eq!(dialog.reply().await.code(), 4290);
    call.cancelled().await;
    assert!(waiting.iter().all(|(call, ..)| call.is_wanted()), "the others wait on");
    suspended(&world, &mut intercepted, &bob).await;
    drop((ann, bob));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn urls_that_have_to_be_visited_first_are_asked_for_without_a_state() {
    for side in MODERN {
        let world = World::start(hub(LEGACY_HTTP), "").await;
        let client = world.client_declaring(side, ALL).await;
        let upstream = world.upstream("hub");
        let elicitation = format!(
            r#"{},"elicitationId":"e","x":1e400}}"#,
            URL_MODE.params.strip_suffix('}').expect("an object")
        );
        let error =
            format!(r#"{{"code":-32042,"message":"m","data":{{"elicitations":[{elicitation}]}}}}"#);
        upstream.answer(CALL.0, Answer::Error(error));
        let reply = client.call_tool("hub__a").await;
        let result = object(reply.result());
        assert!(!result.has("requestState"), "{side}: {reply:?}");
        let requests = result.get("inputRequests").expect("requests");
        let expected =
            format!(r#"{{"visit-1":{{"method":"elicitation/create","params":{elicitation}}}}}"#);
        assert_eq!(requests, expected, "{side}");
        upstream.reset_answer(CALL.0);
        let params = r#"{"name":"hub__a","inputResponses":{"visit-1":{"action":"accept"}}}"#;
        assert!(client.request(CALL.0, params).await.outcome.is_ok());
        assert_eq!(upstream.count(CALL.0), 2);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_client_that_cannot_sample_hears_what_it_would_have_to_declare() {
    let world = World::start(hub(LEGACY_HTTP), "").await;
    let client = world.client_declaring(MODERN_HTTP, FORM.takes).await;
    let upstream = world.upstream("hub");
    let mut intercepted = upstream.intercept(CALL.0);
    let params = r#"{"name":"hub__a","_meta":{"progressToken":70}}"#;
    let mut exchange = client.start_as(Id::from(70), CALL.0, params);
    let call = intercepted.next().await;
    call.progress(r#""progress":1"#);
    exchange.next().await.expect("progress");
    send_input_requests(upstream, call, &[("q", SAMPLING)]);
    let reply = exchange.reply().await;
    assert_eq!((reply.status, reply.code()), (200, -32021), "the stream has begun: {reply:?}");
    // A completion has no rounds.
    upstream
        .answer("completion/complete", Answer::Result(r#"{"completion":{"values":[]}}"#.into()));
    let reply = client.complete("hub__a").await;
    assert!(reply.outcome.is_ok(), "{reply:?} {}", named("x"));
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_declared_is_never_sent_however_large_the_reply() {
    let (world, client, mut intercepted) = intercepted_call(MODERN_HTTP, "", MODERN_HTTP).await;
    let modest = world.client_declaring(MODERN_HTTP, FORM.takes).await;
    let large = "x".repeat(512 * 1024);
    let question = format!(
        r#"{{"method":"sampling/createMessage","params":{{"messages":[],"maxTokens":1,"x":"{large}"}}}}"#
    );
    let result = format!(
        r#"{{"resultType":"input_required","inputRequests":{{"q":{question}}},"requestState":"s"}}"#
    );
    let call = |client| Dialog::start(client, CALL);
    // A client with the capability gets the input request byte for byte.
    let dialog = call(&client);
    intercepted.next().await.result(&result);
    assert_eq!(dialog.reply().await.result(), result);
    let dialog = call(&modest);
    intercepted.next().await.result(&result);
    let reply = dialog.reply().await;
    assert_eq!((reply.status, reply.code()), (400, -32021));

    // After the response has begun, no error can be sent any more.
    let mut dialog = call(&modest);
    let waiting_call = intercepted.next().await;
    let begun = format!(r#"{{"_meta":{{"x":"{large}"}},"resultType":"input_required""#);
    waiting_call.piece(&format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{begun}"#));
    let mut body = Vec::new();
    while body.len() < large.len() / 2 {
        body.extend_from_slice(&dialog.exchange.piece().await.expect("the beginning"));
    }
    waiting_call.piece(&format!(r#","inputRequests":{{"q":{question}}}}}}}"#));
    drop(waiting_call);
    while let Some(piece) = dialog.exchange.piece().await {
        body.extend_from_slice(&piece);
    }
    let text = String::from_utf8(body).expect("UTF-8");
    assert!(!text.contains("sampling/createMessage"), "it broke off");
    drop(dialog);
    drop((client, modest));
    world.close().await;
}
