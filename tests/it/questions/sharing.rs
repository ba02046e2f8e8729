//! Questions where each client has a connection to the upstream of its own.

use super::*;

const OWN: &str = "[upstreams.hub]\nsharing = \"client\"\n";

#[tokio::test(start_paused = true)]
async fn a_server_on_a_clients_own_stream_asks_that_client() {
    everywhere(OWN, hub, async |world, cell| {
        if can_ask(cell.upstream) {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut held = upstream.hold(CALL.0);
        for (before, question) in [SAMPLING, ROOTS].into_iter().enumerate() {
            let mut talk = Talk::start(&client, CALL);
            let call = put(upstream, held.next().await, &[("q1", question)]);
            let questions = talk.asked(1).await;
            check_put(&questions[0], question, cell);
            talk.answer(&[(&questions[0].key, question.answer)]).await;
            let (call, answers) = hear(upstream, &mut held, call, &["q1"], before).await;
            assert_eq!(answers, [question.answer]);
            call.result(r#"{"content":[],"done":1.0}"#);
            check_done(&talk.reply().await);
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
        let mut held = upstream.hold(CALL.0);
        let mut anns = Talk::start(&ann, CALL);
        let for_ann = put(upstream, held.next().await, &[("of-ann", ROOTS)]);
        let anns_questions = anns.asked(1).await;
        let mut bobs = Talk::start(&bob, CALL);
        let for_bob = put(upstream, held.next().await, &[("of-bob", ROOTS)]);
        let bobs_questions = bobs.asked(1).await;
        assert_eq!(upstream.count("initialize"), 3);
        let of_bob = r#"{"roots":[{"uri":"file:///bob"}]}"#;
        bobs.answer(&[(&bobs_questions[0].key, of_bob)]).await;
        let (call, answers) = hear(upstream, &mut held, for_bob, &["of-bob"], 0).await;
        assert_eq!(answers, [of_bob]);
        call.result(r#"{"content":[],"done":1.0}"#);
        check_done(&bobs.reply().await);
        anns.answer(&[(&anns_questions[0].key, ROOTS.answer)]).await;
        let (call, answers) = hear(upstream, &mut held, for_ann, &["of-ann"], 1).await;
        assert_eq!(answers, [ROOTS.answer]);
        call.result(r#"{"content":[],"done":1.0}"#);
        check_done(&anns.reply().await);
    })
    .await;
}
