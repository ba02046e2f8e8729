//! Upstream messages beside responses: requests on modern streams, progress, endless input
//! requests, lists.

use std::time::Duration;

use weir_mcp::kind::{Kind, ListTopic};

use super::{ConcurrentCalls, SHORT, is_own, right, run_in_each_cell};
use crate::cell::{CLIENTS, UPSTREAMS};
use crate::client::{Client, object};
use crate::upstream::Answer;
use crate::world::{World, everywhere, hub, pass, settle, with_pair};

#[tokio::test(start_paused = true)]
async fn f37h_a_request_on_a_modern_stream_is_not_answered_and_reaches_nobody() {
    run_in_each_cell(async |fixture| {
        if !fixture.cell.upstream.is_modern() {
            return;
        }
        let concurrent =
            ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
        let id = concurrent.call.id();
        for (id, method) in [
            ("\"p\"", "ping"),
            ("7", "roots/list"),
            ("8", "sampling/createMessage"),
            ("9", "elicitation/create"),
            // The request has the id of the call itself.
            (&*id.to_string(), "elicitation/create"),
            ("10", "tools/call"),
            ("11", "nonsense"),
        ] {
            let params = r#"{"messages":[],"message":"m","name":"hub__a"}"#;
            concurrent.call.send_raw(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
            ));
        }
        let (exchange, call) = concurrent.others_go_on("requests", fixture.upstream).await;
        call.result(&right(fixture.upstream, "right"));
        is_own(&exchange.reply().await, "right", "requests");
        // A response would be a violation as well.
        assert_eq!(fixture.upstream.received_responses(0).await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37j_progress_that_breaks_the_rules_reaches_nobody_else() {
    run_in_each_cell(async |fixture| {
        let concurrent =
            ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
        for token in ["70", "71", "9999", "\"x\"", "-1", "null", "{}", "1.5", "[1]"] {
            let params = format!(r#"{{"progressToken":{token},"progress":1}}"#);
            concurrent.call.notify("notifications/progress", &params);
        }
        concurrent.call.notify("notifications/progress", r#"{"progress":1}"#);
        for number in ["5", "4", "5", "-1", "\"6\"", "null", "6"] {
            concurrent.call.progress(&format!(r#""progress":{number}"#));
            settle().await;
        }
        let token = concurrent.call.progress_token();
        let (exchange, call) = concurrent.others_go_on("progress", fixture.upstream).await;
        call.result(&right(fixture.upstream, "right"));
        let reply = exchange.reply().await;
        let seen = reply.notifications.iter().map(|note| {
            let params = object(note).get_object("params").expect("params");
            let member = |name: &str| params.get(name).expect("a member").to_owned();
            (member("progressToken"), member("progress"))
        });
        let expected = ["5", "6"].map(|progress| ("70".to_owned(), progress.to_owned()));
        assert_eq!(seen.collect::<Vec<_>>(), expected, "{reply:?}");

        // After the end of the call, on a common stream: the next call does not get it.
        let next =
            ConcurrentCalls::start(&fixture.ann, &fixture.bob, &mut fixture.intercepted).await;
        let late = format!(r#"{{"progressToken":{token},"progress":9}}"#);
        next.call.notify("notifications/progress", &late);
        let (exchange, call) = next.others_go_on("late progress", fixture.upstream).await;
        call.result(&right(fixture.upstream, "next"));
        is_own(&exchange.reply().await, "next", "late progress");
    })
    .await;
}

/// Number of tools in a client's list.
async fn tools(client: &Client) -> usize {
    client.list_all(Kind::Tool).await.len()
}

#[tokio::test(start_paused = true)]
async fn f37l_a_bad_item_of_a_thousand_is_left_out_and_the_rest_served() {
    let bad = [
        "7",
        "null",
        "[]",
        "{}",
        r#"{"name":7,"inputSchema":{"type":"object"}}"#,
        r#"{"title":"no name","inputSchema":{"type":"object"}}"#,
    ];
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), &with_pair("")).await;
        let hub = world.upstream("hub");
        for (turn, bad) in bad.into_iter().enumerate() {
            hub.change(Kind::Tool, |list| {
                let good = |number| {
                    format!(r#"{{"name":"t{turn}-{number}","inputSchema":{{"type":"object"}}}}"#)
                };
                *list = (0..999).map(good).collect();
                list.insert(500, bad.to_owned());
            })
            .await;
            pass(Duration::from_secs(5)).await;
            for side in CLIENTS {
                let client = world.client(side).await;
                assert_eq!(tools(&client).await, 999, "{side}, {upstream}: {bad}");
                let reply = client.call_tool(&format!("hub__t{turn}-998")).await;
                assert!(reply.outcome.is_ok(), "{side}, {upstream}: {reply:?}");
            }
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37l_a_list_that_is_none_leaves_what_there_was() {
    everywhere(SHORT, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let hub = world.upstream("hub");
        let kind = if cell.upstream.is_modern() { r#""resultType":"complete","# } else { "" };
        for list in ["7", "{}", "\"a\"", "true", "{\"a\":[]}"] {
            hub.until_listener(ListTopic::Tools).await;
            let before = hub.count("tools/list");
            hub.result("tools/list", &format!(r#"{{{kind}"tools":{list}}}"#));
            hub.announce(ListTopic::Tools);
            hub.until_count("tools/list", before + 1).await;
            settle().await;
            assert_eq!(tools(&client).await, 2, "{list}");
            assert!(client.call_tool("hub__b").await.outcome.is_ok(), "{list}");
            assert_eq!(client.prompts().await.len(), 2, "{list}");
            hub.reset_answer("tools/list");
            pass(Duration::from_secs(120)).await;
        }
        // The upstream's valid list is read again.
        hub.add(Kind::Tool, "c").await;
        pass(Duration::from_secs(120)).await;
        assert_eq!(tools(&client).await, 3);
        // Servers that omit an empty list, or write it as null, have nothing to list.
        for nothing in [format!("{{{kind}\"x\":1}}"), format!("{{{kind}\"tools\":null}}")] {
            hub.answer("tools/list", Answer::Result(nothing.clone()));
            hub.announce(ListTopic::Tools);
            pass(Duration::from_secs(120)).await;
            assert_eq!(tools(&client).await, 0, "{nothing}");
        }
    })
    .await;
}
