//! An upstream that sends input requests endlessly (row F-37): its own call ends in time, and no
//! other.

use std::time::Duration;

use super::{
    ALL, CALL, Dialog, FORM, can_ask, check_done, done, receive_responses, send_input_requests,
};
use crate::client::named;
use crate::world::{everywhere, hub, pass};

const SHORT: &str = "[defaults]\ntimeouts = { call = \"5s\", call_max = \"20s\" }\n";

#[tokio::test(start_paused = true)]
async fn f37_an_upstream_that_wants_input_for_ever_ends_its_own_call() {
    everywhere(SHORT, hub, async |world, cell| {
        if !can_ask(cell.upstream) {
            return;
        }
        let ann = world.client_declaring(cell.client, ALL).await;
        let bob = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let beside = bob.start(CALL.0, &named("hub__a"));
        let mut besides_call = Some((beside, intercepted.next().await));
        let mut dialog = Dialog::start(&ann, CALL);
        let mut call = intercepted.next().await;
        let counts_rounds = !cell.client.is_modern() && cell.upstream.is_modern();
        let rounds = if counts_rounds { 8 } else { 19 };
        for round in 0..rounds {
            let key = format!("q{round}");
            let waiting = send_input_requests(upstream, call, &[(&key, FORM)]);
            let question = dialog.wait_for_requests(1).await.remove(0);
            if let Some((beside, call)) = besides_call.take() {
                call.result(done(upstream));
                check_done(&beside.reply().await);
            }
            pass(Duration::from_secs(1)).await;
            dialog.answer(&[(&question.key, FORM.answer)]).await;
            (call, _) =
                receive_responses(upstream, &mut intercepted, waiting, &[&key], round).await;
        }
        if cell.client.is_modern() && cell.upstream.is_modern() {
            // Client and upstream continue without Weir's help: each round is a call of its own.
            return dialog.end(call, upstream).await;
        }
        let waiting = send_input_requests(upstream, call, &[("last", FORM)]);
        if counts_rounds {
            assert_eq!(dialog.reply().await.code(), -32603);
        } else {
            let question = dialog.wait_for_requests(1).await.remove(0);
            pass(Duration::from_secs(2)).await;
            let call = waiting.expect("a legacy one");
            assert!(!call.is_wanted(), "twenty seconds are over");
            if cell.client.is_modern() {
                dialog.answer(&[(&question.key, FORM.answer)]).await;
            }
            assert_eq!(dialog.reply().await.code(), 5040);
        }
        upstream.reset_answer(CALL.0);
        assert!(ann.call_tool("hub__a").await.outcome.is_ok());
    })
    .await;
}
