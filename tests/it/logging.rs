//! Log messages: to the client of their call, from its level on, and to no other client.

use std::time::Duration;

use weir_mcp::jsonrpc::Id;
use weir_mcp::log_level::LogLevel;

use crate::cell::{CLIENTS, LEGACY_HTTP, MODERN_HTTP, SIDES, Side, Transport, UPSTREAMS, matrix};
use crate::client::{Client, Exchange, Reply, named, object};
use crate::upstream::{Call, Script, Upstream};
use crate::world::{Scripts, World, everywhere, hub, pass, settle};

const METHOD: &str = "notifications/message";
const SET_LEVEL: &str = "logging/setLevel";

/// An upstream with the logging capability.
fn logging_hub(side: Side) -> Scripts {
    let capabilities = r#"{"prompts":{"listChanged":true},"tools":{"listChanged":true},"resources":{"listChanged":true},"completions":{},"logging":{}}"#;
    vec![("hub", Script::full(side).capabilities(capabilities))]
}

/// Whether a log message of such an upstream names its call.
fn names_calls(upstream: Side) -> bool {
    upstream.is_http()
}

/// A client that has set its log level, and the parameters of its calls.
async fn client_at(world: &World, side: Side, level: Option<LogLevel>) -> (Client, String) {
    let client = world.client(side).await;
    let Some(level) = level else { return (client, named("hub__a")) };
    let level = level.as_str();
    if side.is_modern() {
        let meta = format!(r#"{{"io.modelcontextprotocol/logLevel":"{level}"}}"#);
        return (client, format!(r#"{{"name":"hub__a","_meta":{meta}}}"#));
    }
    set_level(&client, level).await;
    (client, named("hub__a"))
}

async fn set_level(client: &Client, level: &str) {
    let reply = client.request(SET_LEVEL, &format!(r#"{{"level":"{level}"}}"#)).await;
    assert_eq!(reply.result(), "{}", "{reply:?}");
}

/// Parameters of the log messages before a reply, or of those on the client's common stream.
async fn messages(client: &Client, reply: &Reply) -> Vec<String> {
    let mut all = reply.notifications.clone();
    if client.side.transport != Transport::Http {
        let moment = Duration::from_millis(1);
        while let Ok(Some(stray)) =
            tokio::time::timeout(moment, client.stdio().next_unrouted()).await
        {
            all.push(String::from_utf8(stray.to_vec()).expect("UTF-8"));
        }
    }
    let messages = all.iter().map(|text| object(text));
    let messages = messages.filter(|it| it.get_string("method").as_deref() == Some(METHOD));
    messages
        .map(|it| {
            let params = it.get_bytes("params").expect("parameters");
            String::from_utf8(params.to_vec()).expect("UTF-8")
        })
        .collect()
}

fn message(level: LogLevel, text: &str) -> String {
    format!(r#"{{"level":"{}","logger":"l","data":"{text}"}}"#, level.as_str())
}

/// Sends a log message of each level.
fn send_all_levels(call: &Call, text: &str) {
    LogLevel::ALL.into_iter().for_each(|level| call.notify(METHOD, &message(level, text)));
}

/// The messages of [`send_all_levels`] from `least` on.
fn all_from(least: Option<LogLevel>, text: &str) -> Vec<String> {
    let wanted = |level: &LogLevel| least.is_some_and(|least| *level >= least);
    LogLevel::ALL.into_iter().filter(wanted).map(|level| message(level, text)).collect()
}

fn finish(call: Call) {
    call.result(r#"{"resultType":"complete","content":[]}"#);
}

/// Log level that a call requests from a modern upstream.
fn requested_level_of(call: &Call) -> Option<String> {
    let meta = call.params.get_object("_meta")?;
    Some(meta.get_string("io.modelcontextprotocol/logLevel")?.into_owned())
}

#[tokio::test(start_paused = true)]
async fn messages_come_before_the_answer_in_their_order_and_byte_for_byte() {
    everywhere("", logging_hub, async |world, cell| {
        let (client, params) = client_at(world, cell.client, Some(LogLevel::Debug)).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &params);
        let call = intercepted.next().await;
        let odd = [
            r#"{ "level" : "debug" , "data":[1e400, "\u0041"],"logger":"db"}"#,
            r#"{"level":"error","data":null,"_meta":{"x":1.0},"level2":""}"#,
            r#"{"level":"debug","data":{"level":"alert"}}"#,
        ];
        odd.iter().for_each(|params| call.notify(METHOD, params));
        settle().await;
        finish(call);
        let reply = exchange.reply().await;
        assert!(reply.outcome.is_ok(), "{reply:?}");
        let expected = if names_calls(cell.upstream) { &odd[..] } else { &[] };
        assert_eq!(messages(&client, &reply).await, expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n62_a_client_hears_of_its_level_and_above_and_its_upstream_is_asked_for_it() {
    for cell in matrix() {
        let config = if cell.client.transport == Transport::Sse {
            crate::world::with_pair("")
        } else {
            String::new()
        };
        let world = World::start(logging_hub(cell.upstream), &config).await;
        let hub = world.upstream("hub");
        let levels = [LogLevel::Debug, LogLevel::Warning, LogLevel::Emergency];
        for level in std::iter::once(None).chain(levels.map(Some)) {
            // The gateway keeps requesting an unused level for a minute; this is longer.
            pass(Duration::from_secs(61)).await;
            let (client, params) = client_at(&world, cell.client, level).await;
            let mut intercepted = hub.intercept("tools/call");
            let exchange = client.start("tools/call", &params);
            let call = intercepted.next().await;
            let requested_level = requested_level_of(&call);
            send_all_levels(&call, "x");
            finish(call);
            let reply = exchange.reply().await;
            // Without a level a modern client gets nothing, since each request has to set it; a
            // legacy client gets the default level.
            let least = level.or((!cell.client.is_modern()).then_some(LogLevel::DEFAULT));
            let received = if names_calls(cell.upstream) { least } else { None };
            assert_eq!(
                messages(&client, &reply).await,
                all_from(received, "x"),
                "{cell} {level:?}"
            );
            if cell.upstream.is_modern() {
                assert_eq!(requested_level.as_deref(), received.map(LogLevel::as_str), "{cell}");
            } else if let Some(level) = level.filter(|_| received.is_some()) {
                let expected = format!(r#"{{"level":"{}"}}"#, level.as_str());
                assert_eq!(hub.last(SET_LEVEL).params, expected, "{cell}");
            } else {
                assert_eq!(hub.count(SET_LEVEL), 0, "{cell}");
            }
        }
        let expected = if cell.upstream == LEGACY_HTTP { 3 } else { 0 };
        assert_eq!(hub.count(SET_LEVEL), expected, "{cell}");
        world.close().await;
    }
}

/// Starts a call; returns the client's and the upstream's end.
async fn start<'a>(hub: &Upstream, client: &'a Client, params: &str) -> (Exchange<'a>, Call) {
    let mut intercepted = hub.intercept("tools/call");
    let exchange = client.start("tools/call", params);
    (exchange, intercepted.next().await)
}

#[tokio::test(start_paused = true)]
async fn clients_that_share_an_upstream_hear_of_their_own_calls_by_their_own_levels() {
    for upstream in [LEGACY_HTTP, MODERN_HTTP] {
        for one in CLIENTS {
            for other in CLIENTS {
                let config = crate::world::with_pair("");
                let world = World::start(logging_hub(upstream), &config).await;
                let hub = world.upstream("hub");
                let (ann, of_ann) = client_at(&world, one, Some(LogLevel::Error)).await;
                let (bob, of_bob) = client_at(&world, other, Some(LogLevel::Debug)).await;
                let (mute, of_mute) = (world.client(MODERN_HTTP).await, named("hub__a"));
                let (for_ann, anns) = start(hub, &ann, &of_ann).await;
                let (for_bob, bobs) = start(hub, &bob, &of_bob).await;
                let (for_mute, mutes) = start(hub, &mute, &of_mute).await;
                for (call, whose) in [(&bobs, "bob"), (&anns, "ann"), (&mutes, "mute")] {
                    send_all_levels(call, whose);
                }
                [anns, bobs, mutes].into_iter().for_each(finish);
                for (client, exchange, least, whose) in [
                    (&ann, for_ann, Some(LogLevel::Error), "ann"),
                    (&bob, for_bob, Some(LogLevel::Debug), "bob"),
                    (&mute, for_mute, None, "mute"),
                ] {
                    let reply = exchange.reply().await;
                    let received = messages(client, &reply).await;
                    assert_eq!(received, all_from(least, whose), "{one}, {other}, {upstream}");
                }
                if !upstream.is_modern() {
                    assert_eq!(hub.last(SET_LEVEL).params, r#"{"level":"debug"}"#);
                    assert_eq!(hub.count(SET_LEVEL), 2);
                }
                drop((ann, bob, mute));
                world.close().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_level_that_is_set_while_a_call_runs_holds_for_it() {
    for upstream in UPSTREAMS.into_iter().filter(|side| names_calls(*side)) {
        for side in CLIENTS.into_iter().filter(|side| !side.is_modern()) {
            let world = World::start(logging_hub(upstream), &crate::world::with_pair("")).await;
            let hub = world.upstream("hub");
            let client = world.client(side).await;
            let (exchange, call) = start(hub, &client, &named("hub__a")).await;
            send_all_levels(&call, "before");
            settle().await;
            set_level(&client, "alert").await;
            settle().await;
            send_all_levels(&call, "between");
            settle().await;
            set_level(&client, "debug").await;
            settle().await;
            send_all_levels(&call, "after");
            settle().await;
            finish(call);
            let reply = exchange.reply().await;
            let expected = [
                all_from(Some(LogLevel::Info), "before"),
                all_from(Some(LogLevel::Alert), "between"),
                all_from(Some(LogLevel::Debug), "after"),
            ];
            assert_eq!(messages(&client, &reply).await, expected.concat(), "{side}, {upstream}");
            if !upstream.is_modern() {
                // The default level, which was in use until now, is requested a little longer.
                assert_eq!(hub.count(SET_LEVEL), 2, "{side}");
                assert_eq!(hub.last(SET_LEVEL).params, r#"{"level":"debug"}"#, "{side}");
            }
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_level_is_refused() {
    everywhere("", logging_hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for bad in ["\"loud\"", "7", "null", "{}", "\"INFO\""] {
            let reply = if cell.client.is_modern() {
                let meta = format!(r#"{{"io.modelcontextprotocol/logLevel":{bad}}}"#);
                client
                    .request("tools/call", &format!(r#"{{"name":"hub__a","_meta":{meta}}}"#))
                    .await
            } else {
                client.request(SET_LEVEL, &format!(r#"{{"level":{bad}}}"#)).await
            };
            assert_eq!(reply.code(), -32602, "{bad}");
        }
        if !cell.client.is_modern() {
            assert_eq!(client.request(SET_LEVEL, "{}").await.code(), -32602);
        }
        assert_eq!(world.upstream("hub").count("tools/call"), 0);
        assert_eq!(world.upstream("hub").count(SET_LEVEL), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_level_can_be_set_only_where_somebody_logs_and_sessions_are() {
    for side in SIDES {
        for (scripts, has) in [(logging_hub(LEGACY_HTTP), true), (hub(LEGACY_HTTP), false)] {
            let world = World::start(scripts, "").await;
            let client = world.uninitialized_client(side, None);
            let (method, params) = match side.is_modern() {
                true => ("server/discover", "{}".to_owned()),
                false => (
                    "initialize",
                    format!(r#"{{"protocolVersion":"{}","capabilities":{{}}}}"#, side.revision),
                ),
            };
            let result = client.request(method, &params).await;
            let capabilities = object(result.result()).get_object("capabilities").expect("some");
            assert_eq!(capabilities.get("logging"), has.then_some("{}"), "{side}");
            let reply = client.request(SET_LEVEL, r#"{"level":"info"}"#).await;
            match has && !side.is_modern() {
                true => assert_eq!(reply.result(), "{}", "{side}"),
                false => assert_eq!(reply.code(), -32601, "{side}"),
            }
            if side == MODERN_HTTP {
                assert_eq!(reply.status, 404);
            }
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_that_sees_nothing_of_the_upstream_that_logs_has_no_levels() {
    let config = r#"
        [roles.staff]
        tools.allow = ["hub/a"]
        [roles.guest]
    "#;
    let world = World::start(logging_hub(LEGACY_HTTP), config).await;
    let (staff, guest) =
        (world.client_as("staff", LEGACY_HTTP).await, world.client_as("guest", LEGACY_HTTP).await);
    set_level(&staff, "error").await;
    let reply = guest.request(SET_LEVEL, r#"{"level":"error"}"#).await;
    assert_eq!(reply.code(), -32601);
    drop((staff, guest));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn n62_a_message_that_belongs_to_no_call_reaches_nobody() {
    for upstream in UPSTREAMS {
        let world = World::start(logging_hub(upstream), "").await;
        let hub = world.upstream("hub");
        for side in SIDES {
            let (client, params) = client_at(&world, side, Some(LogLevel::Debug)).await;
            let mut changes = client.listen().await;
            let (exchange, call) = start(hub, &client, &params).await;
            hub.until_listener(weir_mcp::kind::ListTopic::Tools).await;
            let text = message(LogLevel::Emergency, "stray");
            hub.say(&format!(r#"{{"jsonrpc":"2.0","method":"{METHOD}","params":{text}}}"#));
            changes.stays_silent().await;
            finish(call);
            let reply = exchange.reply().await;
            assert_eq!(messages(&client, &reply).await, Vec::<String>::new(), "{side}, {upstream}");
            changes.cancel().await;
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn n62_an_upstream_that_does_not_declare_it_is_not_heard_and_not_asked() {
    for upstream in [LEGACY_HTTP, MODERN_HTTP] {
        let quiet = Script::full(upstream);
        let (_, other) = logging_hub(LEGACY_HTTP).remove(0);
        let world = World::start(vec![("hub", quiet), ("loud", other)], "").await;
        for side in SIDES {
            let (client, params) = client_at(&world, side, Some(LogLevel::Debug)).await;
            let (exchange, call) = start(world.upstream("hub"), &client, &params).await;
            assert_eq!(requested_level_of(&call), None, "{side}");
            send_all_levels(&call, "x");
            finish(call);
            let reply = exchange.reply().await;
            assert_eq!(messages(&client, &reply).await, Vec::<String>::new(), "{side}, {upstream}");
        }
        assert_eq!(world.upstream("hub").count(SET_LEVEL), 0);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37k_a_flood_that_nobody_reads_holds_up_nobody_else() {
    for upstream in [LEGACY_HTTP, MODERN_HTTP] {
        let world = World::start(logging_hub(upstream), "").await;
        let hub = world.upstream("hub");
        for side in [LEGACY_HTTP, MODERN_HTTP] {
            let (deaf, params) = client_at(&world, side, Some(LogLevel::Debug)).await;
            let (bob, of_bob) = client_at(&world, side, Some(LogLevel::Debug)).await;
            let (exchange, flood) = start(hub, &deaf, &params).await;
            let long = message(LogLevel::Info, &"x".repeat(4_000));
            for _ in 0..2_000 {
                flood.notify(METHOD, &long);
            }
            settle().await;
            hub.reset_answer("tools/call");
            let began = tokio::time::Instant::now();
            assert!(bob.request("tools/call", &of_bob).await.outcome.is_ok());
            assert!(began.elapsed() < Duration::from_millis(5), "{:?}", began.elapsed());
            finish(flood);
            // The remaining messages all fit the limit.
            let reply = exchange.reply().await;
            assert!(
                reply.outcome.is_ok() && (200..1_000).contains(&reply.notifications.len()),
                "{}",
                reply.notifications.len()
            );
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn progress_and_messages_keep_their_order() {
    for upstream in [LEGACY_HTTP, MODERN_HTTP] {
        let world = World::start(logging_hub(upstream), "").await;
        for side in [LEGACY_HTTP, MODERN_HTTP] {
            let (client, _) = client_at(&world, side, Some(LogLevel::Debug)).await;
            let params = r#"{"name":"hub__a","_meta":{"progressToken":70,"io.modelcontextprotocol/logLevel":"debug"}}"#;
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let exchange = client.start_as(Id::from(70), "tools/call", params);
            let call = intercepted.next().await;
            for step in 1..=5 {
                call.notify(METHOD, &message(LogLevel::Debug, &step.to_string()));
                call.progress(&format!(r#""progress":{step}"#));
            }
            finish(call);
            let reply = exchange.reply().await;
            let methods: Vec<_> =
                reply.notifications.iter().map(|note| note.contains(METHOD)).collect();
            assert_eq!(methods, [true, false].repeat(5), "{side}, {upstream}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_round_of_a_call_that_asks_has_its_own_level() {
    let world = World::start(logging_hub(LEGACY_HTTP), "").await;
    let client = world.client_declaring(MODERN_HTTP, r#"{"roots":{}}"#).await;
    let hub = world.upstream("hub");
    let mut intercepted = hub.intercept("tools/call");
    let params = |level: Option<LogLevel>, round: &str| {
        let level = level.map(|level| {
            format!(r#""_meta":{{"io.modelcontextprotocol/logLevel":"{}"}},"#, level.as_str())
        });
        format!(r#"{{{}"name":"hub__a"{round}}}"#, level.unwrap_or_default())
    };
    let mut round = String::new();
    let mut call = None;
    let levels = [None, Some(LogLevel::Debug), None, Some(LogLevel::Error)];
    for (number, level) in levels.iter().enumerate() {
        let exchange = client.start("tools/call", &params(*level, &round));
        let now = match call.take() {
            Some(call) => call,
            None => intercepted.next().await,
        };
        settle().await;
        send_all_levels(&now, "x");
        now.send_request(&format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"roots/list"}}"#));
        let reply = exchange.reply().await;
        assert_eq!(messages(&client, &reply).await, all_from(*level, "x"), "{level:?}");
        let result = object(reply.result());
        let state = result.get("requestState").expect("a state").to_owned();
        let requests = result.get_object("inputRequests").expect("a question");
        let key = requests.keys().next().expect("its key").to_owned();
        round = format!(r#","inputResponses":{{"{key}":{{"roots":[]}}}},"requestState":{state}"#);
        call = Some(now);
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_clients_own_connection_logs_is_for_that_client() {
    let config = "[upstreams.hub]\nsharing = \"client\"\n";
    everywhere(config, logging_hub, async |world, cell| {
        if names_calls(cell.upstream) {
            return;
        }
        let hub = world.upstream("hub");
        let (ann, of_ann) = client_at(world, cell.client, Some(LogLevel::Debug)).await;
        let (for_ann, anns) = start(hub, &ann, &of_ann).await;
        // Without sessions all connections of a principal are one client.
        if cell.client.is_modern() {
            send_all_levels(&anns, "ann");
            finish(anns);
            let received = messages(&ann, &for_ann.reply().await).await;
            assert_eq!(received, all_from(Some(LogLevel::Debug), "ann"));
            return;
        }
        let (bob, of_bob) = client_at(world, cell.client, Some(LogLevel::Error)).await;
        let (for_bob, bobs) = start(hub, &bob, &of_bob).await;
        send_all_levels(&bobs, "bob");
        send_all_levels(&anns, "ann");
        [anns, bobs].into_iter().for_each(finish);
        for (client, exchange, least, whose) in
            [(&ann, for_ann, LogLevel::Debug, "ann"), (&bob, for_bob, LogLevel::Error, "bob")]
        {
            let received = messages(client, &exchange.reply().await).await;
            assert_eq!(received, all_from(Some(least), whose));
        }
    })
    .await;
}
