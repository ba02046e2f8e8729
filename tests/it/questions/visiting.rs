//! That a visit is done with: told by a legacy server, to the client that was asked for it.

use super::*;
use crate::cell::{LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP};
use crate::upstream::Answer;
use crate::world::{settle, with_pair};

const DONE: &str = "notifications/elicitation/complete";
const URL: &str = r#"{"elicitation":{"url":{}}}"#;

/// A visit that the server has given this id.
fn visit(id: &str) -> String {
    format!(r#"{{"mode":"url","message":"m","url":"https://x.test/","elicitationId":"{id}"}}"#)
}

fn done_with(id: &str) -> String {
    format!(r#"{{"elicitationId":"{id}"}}"#)
}

fn note(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{DONE}","params":{}}}"#, done_with(id))
}

fn ask_to_visit(call: &Call, id: &str) {
    let (question, params) = (Id::parse(r#""q""#.into()).expect("an id"), visit(id));
    call.question(&string(jsonrpc::write_request(
        &question,
        "elicitation/create",
        params.as_bytes(),
    )));
}

#[tokio::test(start_paused = true)]
async fn its_client_is_told_on_the_calls_own_stream_while_the_call_goes_on() {
    for side in [LEGACY_HTTP, LEGACY_STDIO, LEGACY_SSE] {
        let (world, ann, mut held) = held_call(LEGACY_HTTP, &with_pair(""), side).await;
        let bob = world.client_declaring(side, ALL).await;
        let upstream = world.upstream("hub");
        let mut anns = Talk::start(&ann, CALL);
        let for_ann = held.next().await;
        let bobs = Talk::start(&bob, CALL);
        let for_bob = held.next().await;
        ask_to_visit(&for_ann, "of-ann");
        let key = anns.asked(1).await.remove(0);
        assert_eq!(key.params, visit("of-ann"), "the server's own id");
        anns.answer(&[(&key.key, VISIT.answer)]).await;
        upstream.answers_heard(1).await;
        // On whichever stream it is told, and whatever was never asked for.
        for id in ["unknown", "of-ann", "of-ann"] {
            for_bob.notify(DONE, &done_with(id));
        }
        assert_eq!(anns.exchange.question().await, note("of-ann"), "{side}");
        settle().await;
        for_ann.result(done(upstream));
        for_bob.result(done(upstream));
        let (anns, bobs) = (anns.reply().await, bobs.reply().await);
        check_done(&anns);
        check_done(&bobs);
        assert_eq!((anns.notes, bobs.notes), (vec![], vec![]), "{side}");
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
        let visit = visit("of-ann");
        let data = format!(r#"{{"elicitations":[{visit}]}}"#);
        let error = format!(r#"{{"code":-32042,"message":"m","data":{data}}}"#);
        upstream.answer(CALL.0, Answer::Error(error.clone()));
        let params = format!("{{{}}}", CALL.1);
        assert_eq!(ann.request(CALL.0, &params).await.error(), error);
        upstream.behave(CALL.0);
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
    let (world, client, mut held) = held_call(LEGACY_HTTP, "", MODERN_HTTP).await;
    let upstream = world.upstream("hub");
    let mut talk = Talk::start(&client, CALL);
    let call = held.next().await;
    ask_to_visit(&call, "e");
    let key = talk.asked(1).await.remove(0).key;
    talk.answer(&[(&key, VISIT.answer)]).await;
    upstream.answers_heard(1).await;
    call.notify(DONE, &done_with("e"));
    settle().await;
    call.result(done(upstream));
    let reply = talk.reply().await;
    assert_eq!(reply.notes, Vec::<String>::new());
    check_done(&reply);
    drop(client);
    world.close().await;
}
