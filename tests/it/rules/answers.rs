//! Responses that are malformed, duplicate, late, or to an unknown request.

use std::time::Duration;

use tokio::time::Instant;
use weir_mcp::revision::Revision;

use super::{ConcurrentCalls, METHOD, RuleFixture, error_of, is_own, right, run_in_each_cell};
use crate::cell::{CLIENTS, LEGACY_SSE, Side, Transport};
use crate::client::named;
use crate::world::{World, hub, pass, settle, with_pair};

/// Sends texts before the valid response, and checks that only this one reaches the client.
/// `{other}` in a text stands for the id of the other client's call.
async fn is_dropped(texts: &[&str], holds: impl Fn(&RuleFixture<'_>, &str) -> bool) {
    run_in_each_cell(async |fixture| {
        for text in texts {
            if !holds(fixture, text) {
                continue;
            }
            let concurrent =
                ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
            concurrent
                .call
                .send_raw(&text.replace("{other}", &concurrent.others[0].1.id().to_string()));
            let (exchange, call) = concurrent.others_go_on(text, fixture.upstream).await;
            call.result(&right(fixture.upstream, "right"));
            is_own(&exchange.reply().await, "right", text);
        }
    })
    .await;
}

/// Sends a text instead of the response: only this call ends, within `time`, with one of `codes`.
async fn ends(fixture: &mut RuleFixture<'_>, text: &str, time: Duration, codes: &[i64]) {
    let concurrent =
        ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
    let ConcurrentCalls { exchange, call, others } = concurrent;
    let begin = Instant::now();
    call.respond_raw(text);
    let ended = exchange.reply();
    tokio::pin!(ended);
    let early = tokio::time::timeout(Duration::from_millis(10), &mut ended).await;
    for (exchange, call, own) in others {
        assert!(call.is_wanted(), "{text}: {own}");
        call.result(&right(fixture.upstream, own));
        is_own(&exchange.reply().await, own, text);
    }
    let reply = match early {
        Ok(reply) => reply,
        Err(_) => ended.await,
    };
    let shown: String = text.chars().take(200).collect();
    let (code, message) = error_of(&reply);
    assert!(codes.contains(&code) && message.len() > 10, "{shown}: {reply:?}");
    assert!(begin.elapsed() <= time, "{shown}: after {:?}", begin.elapsed());
    fixture.upstream.reset_answer(METHOD);
    assert!(fixture.ann.call_tool("hub__a").await.outcome.is_ok(), "{shown}");
    fixture.intercepted = fixture.upstream.intercept(METHOD);
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
    // On a stream of the same session this text is the other call's response.
    let is_session = |fixture: &RuleFixture<'_>| !fixture.cell.upstream.is_modern();
    is_dropped(&texts, |fixture, text| {
        !((fixture.is_shared() || is_session(fixture)) && text == to_another)
    })
    .await;
    run_in_each_cell(async |fixture| {
        let time = if fixture.is_shared() { IN_TIME } else { AT_ONCE };
        let codes: &[i64] = if fixture.is_shared() { &[5040] } else { &[-32603, 5030] };
        for text in [&texts[0], &texts[3]] {
            ends(fixture, text, time, codes).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37b_the_first_of_two_answers_counts() {
    run_in_each_cell(async |fixture| {
        let concurrent =
            ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
        let id = concurrent.call.id();
        concurrent.call.send_raw(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#,
            right(fixture.upstream, "right")
        ));
        concurrent
            .call
            .send_raw(r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"own":"second"}}"#);
        concurrent
            .call
            .send_raw(r#"{"jsonrpc":"2.0","id":{id},"error":{"code":1,"message":"third"}}"#);
        let (exchange, call) = concurrent.others_go_on("twice", fixture.upstream).await;
        is_own(&exchange.reply().await, "right", "twice");
        drop(call);
        let again =
            ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
        let (exchange, call) = again.others_go_on("afterwards", fixture.upstream).await;
        call.result(&right(fixture.upstream, "again"));
        is_own(&exchange.reply().await, "again", "afterwards");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37c_an_error_to_nobody_is_guessed_to_be_nobodys() {
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
    let without = r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}"#;
    is_dropped(&[error, without], |fixture, _| fixture.is_shared()).await;
    run_in_each_cell(async |fixture| {
        let shared = fixture.is_shared();
        let (time, code) = if shared { (IN_TIME, 5040) } else { (AT_ONCE, -32700) };
        for text in [error, without] {
            ends(fixture, text, time, &[code]).await;
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
    is_dropped(&[array], |fixture, _| !fixture.cell.upstream.revision.has_batches()).await;
    for transport in [Transport::Http, Transport::Stdio, Transport::Sse] {
        let revision =
            if transport == Transport::Sse { Revision::V2024_11_05 } else { Revision::V2025_03_26 };
        let world = World::start(hub(Side::new(revision, transport)), &with_pair("")).await;
        let mut intercepted = world.upstream("hub").intercept(METHOD);
        for side in CLIENTS {
            let client = world.client(side).await;
            for is_first in [true, false] {
                let exchange = client.start(METHOD, &named("hub__a"));
                let call = intercepted.next().await;
                if is_first {
                    call.send_raw(array);
                    settle().await;
                } else {
                    call.respond_raw(array);
                }
                is_own(&exchange.reply().await, "array", &format!("{side}, {transport:?}"));
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
        // Only the first bytes of these name their request.
        r#"{"jsonrpc":"2.0","id":{id},"result":{},"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":{id},"result":{"#,
        &deep,
    ];
    run_in_each_cell(async |fixture| {
        for text in texts {
            ends(fixture, text, AT_ONCE, &[-32603, 5030]).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37f_odd_numbers_and_members_pass_unread() {
    run_in_each_cell(async |fixture| {
        let odd = r#""odd":[1e400,-0,18446744073709551617,1.0],"\u0041":{"":null}"#;
        let concurrent =
            ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
        let (exchange, call) = concurrent.others_go_on(odd, fixture.upstream).await;
        let result = right(fixture.upstream, "odd").replace(r#""own""#, &format!(r#"{odd},"own""#));
        call.respond_raw(&format!(
            r#"{{"extra":1,"id":{{id}},"result":{result},"jsonrpc":"2.0"}}"#
        ));
        let reply = exchange.reply().await;
        assert!(reply.result().contains(odd), "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37g_an_answer_after_the_cancel_or_the_time_out_reaches_nobody() {
    run_in_each_cell(async |fixture| {
        for times_out in [false, true] {
            let late = {
                let concurrent =
                    ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted)
                        .await;
                if times_out {
                    let ConcurrentCalls { exchange, call, others } = concurrent;
                    pass(Duration::from_millis(2_000)).await;
                    for (exchange, call, own) in others {
                        call.result(&right(fixture.upstream, own));
                        is_own(&exchange.reply().await, own, "in time");
                    }
                    assert_eq!(exchange.reply().await.code(), 5040);
                    call.cancelled().await;
                    call
                } else {
                    let ConcurrentCalls { exchange, call, others } = concurrent;
                    exchange.cancel().await;
                    call.cancelled().await;
                    for (exchange, call, own) in others {
                        call.result(&right(fixture.upstream, own));
                        is_own(&exchange.reply().await, own, "beside a cancel");
                    }
                    call
                }
            };
            let next =
                ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
            late.send_raw(r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"own":"late"}}"#);
            late.respond_raw(
                r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"own":"later"}}"#,
            );
            let (exchange, call) = next.others_go_on("behind a late one", fixture.upstream).await;
            call.result(&right(fixture.upstream, "next"));
            is_own(&exchange.reply().await, "next", "behind a late one");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37i_a_result_of_an_unknown_type_ends_its_own_call() {
    run_in_each_cell(async |fixture| {
        if !fixture.cell.upstream.is_modern() {
            return;
        }
        for kind in ["\"novel\"", "7", "null", "[]"] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"resultType":{kind},"content":[]}}}}"#
            );
            ends(fixture, &text, AT_ONCE, &[-32603]).await;
        }
    })
    .await;
}
