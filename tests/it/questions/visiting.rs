//! `elicitation/complete`: from a legacy server, to the client that got the elicitation.

use super::*;
use crate::cell::{LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP};
use crate::upstream::Answer;
use crate::world::{settle, with_pair};

const DONE: &str = "notifications/elicitation/complete";
const URL: &str = r#"{"elicitation":{"url":{}}}"#;

/// A URL elicitation with this id of the server.
fn elicitation(id: &str) -> String {
    format!(r#"{{"mode":"url","message":"m","url":"https://x.test/","elicitationId":"{id}"}}"#)
}

fn completed_elicitation(id: &str) -> String {
    format!(r#"{{"elicitationId":"{id}"}}"#)
}

fn note(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{DONE}","params":{}}}"#, completed_elicitation(id))
}

fn request_elicitation(call: &Call, id: &str) {
    let (question, params) = (Id::parse(r#""q""#.into()).expect("an id"), elicitation(id));
    call.send_request(&string(jsonrpc::write_request(
        &question,
        "elicitation/create",
        params.as_bytes(),
    )));
}

#[tokio::test(start_paused = true)]
async fn its_client_is_told_on_the_calls_own_stream_while_the_call_goes_on() {
    for side in [LEGACY_HTTP, LEGACY_STDIO, LEGACY_SSE] {
        let (world, ann, mut intercepted) =
            intercepted_call(LEGACY_HTTP, &with_pair(""), side).await;
        let bob = world.client_declaring(side, ALL).await;
        let upstream = world.upstream("hub");
        let mut anns = Dialog::start(&ann, CALL);
        let for_ann = intercepted.next().await;
        let bobs = Dialog::start(&bob, CALL);
        let for_bob = intercepted.next().await;
        request_elicitation(&for_ann, "of-ann");
        let key = anns.wait_for_requests(1).await.remove(0);
        assert_eq!(key.params, elicitation("of-ann"), "the server's own id");
        anns.answer(&[(&key.key, URL_MODE.answer)]).await;
        upstream.received_responses(1).await;
        // The notifications may come on any stream, and with unknown ids.
        for id in ["unknown", "of-ann", "of-ann"] {
            for_bob.notify(DONE, &completed_elicitation(id));
        }
        assert_eq!(anns.exchange.next_server_message().await, note("of-ann"), "{side}");
        settle().await;
        for_ann.result(done(upstream));
        for_bob.result(done(upstream));
        let (anns, bobs) = (anns.reply().await, bobs.reply().await);
        check_done(&anns);
        check_done(&bobs);
        assert_eq!((anns.notifications, bobs.notifications), (vec![], vec![]), "{side}");
        drop((ann, bob));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn its_client_is_told_on_its_own_stream_once_the_call_is_over() {
    for side in [LEGACY_HTTP, LEGACY_STDIO, LEGACY_SSE] {
        let world = World::start(hub(LEGACY_HTTP), &with_pair("")).await;
        let upstream = world.upstream("hub");
        let ann = world.client_declaring(side, URL).await;
        let bob = world.client_declaring(side, URL).await;
        let elicitation = elicitation("of-ann");
        let data = format!(r#"{{"elicitations":[{elicitation}]}}"#);
        let error = format!(r#"{{"code":-32042,"message":"m","data":{data}}}"#);
        upstream.answer(CALL.0, Answer::Error(error.clone()));
        let params = format!("{{{}}}", CALL.1);
        assert_eq!(ann.request(CALL.0, &params).await.error(), error);
        upstream.reset_answer(CALL.0);
        assert!(bob.request(CALL.0, &params).await.outcome.is_ok());
        let (mut anns, mut bobs) = (ann.listen().await, bob.listen().await);
        settle().await;
        upstream.say(&note("unknown"));
        upstream.say(&note("of-ann"));
        assert_eq!(anns.next().await, Some(note("of-ann")), "{side}");
        bobs.stays_silent().await;
        anns.stays_silent().await;
        drop((anns, bobs));
        drop((ann, bob));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_of_the_newer_era_is_not_told() {
    let (world, client, mut intercepted) = intercepted_call(LEGACY_HTTP, "", MODERN_HTTP).await;
    let upstream = world.upstream("hub");
    let mut dialog = Dialog::start(&client, CALL);
    let call = intercepted.next().await;
    request_elicitation(&call, "e");
    let key = dialog.wait_for_requests(1).await.remove(0).key;
    dialog.answer(&[(&key, URL_MODE.answer)]).await;
    upstream.received_responses(1).await;
    call.notify(DONE, &completed_elicitation("e"));
    settle().await;
    call.result(done(upstream));
    let reply = dialog.reply().await;
    assert_eq!(reply.notifications, Vec::<String>::new());
    check_done(&reply);
    drop(client);
    world.close().await;
}
