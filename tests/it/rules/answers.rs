//! Answers that are not one, that come twice or late, and that are nobody's.

use std::time::Duration;

use tokio::time::Instant;
use weir::mcp::revision::Revision;

use super::{METHOD, Scene, Trio, each_scene, is_own, right, told};
use crate::cell::{CLIENTS, LEGACY_SSE, Side, Wire};
use crate::client::named;
use crate::world::{World, hub, pass, settle, with_pair};

/// Sends texts before the right answer, and checks that this alone comes. `{other}` in a text stands for the
/// id of the other client's call.
async fn is_dropped(texts: &[&str], holds: impl Fn(&Scene<'_>, &str) -> bool) {
    each_scene(async |scene| {
        for text in texts {
            if !holds(scene, text) {
                continue;
            }
            let trio = Trio::start(&scene.ann, &scene.bob, &mut scene.held).await;
            trio.call.stray(&text.replace("{other}", &trio.others[0].1.id().to_string()));
            let (exchange, call) = trio.others_go_on(text, scene.upstream).await;
            call.result(&right(scene.upstream, "right"));
            is_own(&exchange.reply().await, "right", text);
        }
    })
    .await;
}

/// Sends a text in the answer's place: only this call ends, within `time`, with one of `codes`.
async fn ends(scene: &mut Scene<'_>, text: &str, time: Duration, codes: &[i64]) {
    let trio = Trio::start(&scene.ann, &scene.bob, &mut scene.held).await;
    let Trio { exchange, call, others } = trio;
    let begin = Instant::now();
    call.garbage(text);
    let ended = exchange.reply();
    tokio::pin!(ended);
    let early = tokio::time::timeout(Duration::from_millis(10), &mut ended).await;
    for (exchange, call, own) in others {
        assert!(call.is_wanted(), "{text}: {own}");
        call.result(&right(scene.upstream, own));
        is_own(&exchange.reply().await, own, text);
    }
    let reply = match early {
        Ok(reply) => reply,
        Err(_) => ended.await,
    };
    let shown: String = text.chars().take(200).collect();
    let (code, message) = told(&reply);
    assert!(codes.contains(&code) && message.len() > 10, "{shown}: {reply:?}");
    assert!(begin.elapsed() <= time, "{shown}: after {:?}", begin.elapsed());
    scene.upstream.behave(METHOD);
    assert!(scene.ann.call_tool("hub__a").await.outcome.is_ok(), "{shown}");
    scene.held = scene.upstream.hold(METHOD);
}

const AT_ONCE: Duration = Duration::from_millis(20);
const IN_TIME: Duration = Duration::from_millis(5_020);

#[tokio::test(start_paused = true)]
async fn f37a_an_answer_to_what_was_not_asked_is_dropped() {
    let to_nobody = ["4711", "0", "-1", "\"x\"", "1.5", "18446744073709551616"].map(|id| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"own":"wrong"}}}}"#)
    });
    let to_another = r#"{"jsonrpc":"2.0","id":{other},"result":{"content":[],"own":"wrong"}}"#;
    let texts: Vec<_> = to_nobody.iter().map(String::as_str).chain([to_another]).collect();
    // Where all share a stream that is the other one's answer.
    is_dropped(&texts, |scene, text| !(scene.is_shared() && text == to_another)).await;
    each_scene(async |scene| {
        let time = if scene.is_shared() { IN_TIME } else { AT_ONCE };
        let codes: &[i64] = if scene.is_shared() { &[5040] } else { &[-32603, 5030] };
        for text in [&texts[0], &texts[3]] {
            ends(scene, text, time, codes).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37b_the_first_of_two_answers_counts() {
    each_scene(async |scene| {
        let trio = Trio::start(&scene.ann, &scene.bob, &mut scene.held).await;
        let id = trio.call.id();
        trio.call.stray(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#,
            right(scene.upstream, "right")
        ));
        trio.call.stray(r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"own":"second"}}"#);
        trio.call.stray(r#"{"jsonrpc":"2.0","id":{id},"error":{"code":1,"message":"third"}}"#);
        let (exchange, call) = trio.others_go_on("twice", scene.upstream).await;
        is_own(&exchange.reply().await, "right", "twice");
        drop(call);
        let again = Trio::start(&scene.ann, &scene.bob, &mut scene.held).await;
        let (exchange, call) = again.others_go_on("afterwards", scene.upstream).await;
        call.result(&right(scene.upstream, "again"));
        is_own(&exchange.reply().await, "again", "afterwards");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37c_an_error_to_nobody_is_guessed_to_be_nobodys() {
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
    let without = r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}"#;
    is_dropped(&[error, without], |scene, _| scene.is_shared()).await;
    each_scene(async |scene| {
        let shared = scene.is_shared();
        let (time, code) = if shared { (IN_TIME, 5040) } else { (AT_ONCE, -32700) };
        for text in [error, without] {
            ends(scene, text, time, &[code]).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37d_an_id_of_another_type_is_another_id() {
    let wrong = ["\"{id}\"", "{id}.0", "{id}e0", "[{id}]", "true"].map(|id| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"own":"wrong"}}}}"#)
    });
    is_dropped(&wrong.each_ref().map(String::as_str), |_, _| true).await;
}

#[tokio::test(start_paused = true)]
async fn f37e_an_array_is_an_answer_only_where_the_revision_has_them() {
    let array = r#"[{"jsonrpc":"2.0","id":{id},"result":{"content":[],"own":"array"}}]"#;
    is_dropped(&[array], |scene, _| !scene.cell.upstream.revision.has_batches()).await;
    for wire in [Wire::Http, Wire::Stdio, Wire::Sse] {
        let revision =
            if wire == Wire::Sse { Revision::V2024_11_05 } else { Revision::V2025_03_26 };
        let world = World::start(hub(Side::new(revision, wire)), &with_pair("")).await;
        let mut held = world.upstream("hub").hold(METHOD);
        for side in CLIENTS {
            let client = world.client(side).await;
            for is_first in [true, false] {
                let exchange = client.start(METHOD, &named("hub__a"));
                let call = held.next().await;
                if is_first {
                    call.stray(array);
                    settle().await;
                } else {
                    call.garbage(array);
                }
                is_own(&exchange.reply().await, "array", &format!("{side}, {wire:?}"));
            }
        }
        world.close().await;
    }
    assert!(CLIENTS.contains(&LEGACY_SSE));
}

#[tokio::test(start_paused = true)]
async fn f37f_what_is_no_message_and_bears_no_id_is_dropped() {
    let texts = [
        "7",
        "nonsense",
        "{",
        r#"{"jsonrpc":"2.0","id":{id},"method":7}"#,
        r#"{"jsonrpc":"2.0","id":{id},"method":"x","params":[]}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":7}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/nonsense"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"x":1e400}}"#,
    ];
    is_dropped(&texts, |_, _| true).await;
}

#[tokio::test(start_paused = true)]
async fn f37f_an_answer_that_is_none_ends_its_own_call_at_once() {
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"content":{}{}}}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let texts = [
        r#"{"jsonrpc":"2.0","id":{id},"result":{},"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":{id}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"error":"text"}"#,
        r#"{"jsonrpc":"2.0","id":{id},"error":null}"#,
        r#"{"jsonrpc":"2.0","id":{id},"error":{"code":"x","message":"odd"}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"error":{"code":1.5,"message":"odd"}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"error":{"message":"odd"}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"error":{"code":1}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"error":{"code":1,"message":7}}"#,
        r#"{"jsonrpc":"1.0","id":{id},"result":{}}"#,
        r#"{"id":{id},"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"result":7}"#,
        r#"{"jsonrpc":"2.0","id":{id},"result":[]}"#,
        r#"{"jsonrpc":"2.0","id":{id},"result":null}"#,
        // Whose these were to be stands in their first bytes only.
        r#"{"jsonrpc":"2.0","id":{id},"result":{},"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"result":{"#,
        &deep,
    ];
    each_scene(async |scene| {
        for text in texts {
            ends(scene, text, AT_ONCE, &[-32603, 5030]).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37f_odd_numbers_and_members_pass_unread() {
    each_scene(async |scene| {
        let odd = r#""odd":[1e400,-0,18446744073709551617,1.0],"\u0041":{"":null}"#;
        let trio = Trio::start(&scene.ann, &scene.bob, &mut scene.held).await;
        let (exchange, call) = trio.others_go_on(odd, scene.upstream).await;
        let result = right(scene.upstream, "odd").replace(r#""own""#, &format!(r#"{odd},"own""#));
        call.garbage(&format!(r#"{{"extra":1,"id":{{id}},"result":{result},"jsonrpc":"2.0"}}"#));
        let reply = exchange.reply().await;
        assert!(reply.result().contains(odd), "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37g_an_answer_after_the_cancel_or_the_time_out_reaches_nobody() {
    each_scene(async |scene| {
        for times_out in [false, true] {
            let late = {
                let trio = Trio::start(&scene.ann, &scene.bob, &mut scene.held).await;
                if times_out {
                    let Trio { exchange, call, others } = trio;
                    pass(Duration::from_millis(2_000)).await;
                    for (exchange, call, own) in others {
                        call.result(&right(scene.upstream, own));
                        is_own(&exchange.reply().await, own, "in time");
                    }
                    assert_eq!(exchange.reply().await.code(), 5040);
                    call.cancelled().await;
                    call
                } else {
                    let Trio { exchange, call, others } = trio;
                    exchange.cancel().await;
                    call.cancelled().await;
                    for (exchange, call, own) in others {
                        call.result(&right(scene.upstream, own));
                        is_own(&exchange.reply().await, own, "beside a cancel");
                    }
                    call
                }
            };
            let next = Trio::start(&scene.ann, &scene.bob, &mut scene.held).await;
            late.stray(r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"own":"late"}}"#);
            late.garbage(r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"own":"later"}}"#);
            let (exchange, call) = next.others_go_on("behind a late one", scene.upstream).await;
            call.result(&right(scene.upstream, "next"));
            is_own(&exchange.reply().await, "next", "behind a late one");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37i_a_result_of_an_unknown_type_ends_its_own_call() {
    each_scene(async |scene| {
        if !scene.cell.upstream.is_modern() {
            return;
        }
        for kind in ["\"novel\"", "7", "null", "[]"] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"resultType":{kind},"content":[]}}}}"#
            );
            ends(scene, &text, AT_ONCE, &[-32603]).await;
        }
    })
    .await;
}
