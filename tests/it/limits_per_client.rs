//! Rate limits per client: evasions, what counts, exemptions, and the `retryAfter` of a refusal.

use std::time::Duration;

use tokio::time::Instant;
use weir_base::json::Object;
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::revision::Revision;

use crate::by_night;
use crate::cell::{
    CLIENTS, LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side, Transport,
};
use crate::client::{Client, Reply, named, object, set};
use crate::upstream::Script;
use crate::world::{World, everywhere, hub, key_of, pass, settle, with_pair};

/// Ten requests a second for each client.
const TEN: &str = r#"
    [roles.ann]
    prompts.allow = ["*"]
    tools.allow = ["*"]
    resources.allow = ["*"]
    [roles.bob]
    prompts.allow = ["*"]
    tools.allow = ["*"]
    [[limits]]
    per = "client"
    rate = "10/s"
    burst = 5
"#;

const BATCHES: Side = Side::new(Revision::V2025_03_26, Transport::Http);

// === Evasions ===

/// Sends requests every few milliseconds for a while and checks how many were admitted; `ask`
/// returns the number of its admitted requests.
async fn attack(what: &str, mut ask: impl AsyncFnMut(usize) -> usize) {
    let (start, mut admitted) = (Instant::now(), 0);
    let time = Duration::from_secs(if by_night() { 20 } else { 5 });
    for number in 0.. {
        if start.elapsed() >= time {
            break;
        }
        admitted += ask(number).await;
        pass(Duration::from_millis(7)).await;
    }
    let due = start.elapsed().as_secs_f64() * 10.0;
    let admitted = f64::from(u32::try_from(admitted).expect("few"));
    assert!(admitted <= due * 1.01 + 5.0, "{what}: {admitted} of {due}");
    assert!(admitted >= due * 0.8, "{what}: only {admitted} of {due}");
}

/// Posts a request with these additional headers; returns 1 if it was admitted, else 0.
async fn post(client: &Client, method: &str, params: &str, more: &[(&str, &str)]) -> usize {
    let params = client.with_request_meta(params);
    let message = jsonrpc::write_request(&Id::from(1), method, params.as_bytes());
    let mut headers = client.http().headers(method, &params);
    more.iter().for_each(|(name, value)| set(&mut headers, name, value));
    let reply = client.http().post(message, &headers).whole().await;
    match reply.status {
        200 => 1,
        429 => {
            assert_eq!(reply.code(), 4290);
            assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
            0
        }
        _ => panic!("{method}: {reply:?}"),
    }
}

fn opening(client: &Client, name: &str) -> String {
    format!(
        r#"{{"protocolVersion":"{}","capabilities":{{}},"clientInfo":{{"name":"{name}","version":"1"}}}}"#,
        client.side.revision
    )
}

fn is_admitted(reply: &Reply) -> bool {
    reply.outcome.is_ok() || reply.code() != 4290
}

#[tokio::test(start_paused = true)]
async fn s38_another_name_for_the_client_is_no_other_client() {
    let world = World::start(hub(MODERN_HTTP), TEN).await;
    let modern = world.uninitialized_client(MODERN_HTTP, Some(&key_of("ann")));
    attack("modern", async |n| {
        let info = format!(
            r#"{{"_meta":{{"io.modelcontextprotocol/clientInfo":{{"name":"c{n}","version":"1"}}}}}}"#
        );
        post(&modern, "prompts/list", &info, &[]).await
    })
    .await;
    // Each request opens a session of its own, which counts as well.
    let legacy = world.uninitialized_client(LEGACY_HTTP, Some(&key_of("bob")));
    attack("legacy", async |n| {
        let opened = post(&legacy, "initialize", &opening(&legacy, &format!("c{n}")), &[]).await;
        match legacy.http().session() {
            Some(_) => opened + post(&legacy, "prompts/list", "{}", &[]).await,
            None => opened,
        }
    })
    .await;
    drop((modern, legacy));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s38_what_headers_say_of_the_address_means_nothing() {
    let anonymous = "[[limits]]\nper = \"client\"\nrate = \"10/s\"\nburst = 5";
    for (config, key) in [(TEN, Some(key_of("ann"))), (anonymous, None)] {
        let world = World::start(hub(MODERN_HTTP), config).await;
        let client = world.uninitialized_client(MODERN_HTTP, key.as_deref());
        attack("addresses", async |n| {
            let (a, b) = (n / 250 % 250, n % 250);
            let forwarded = format!("for=10.0.{a}.{b}");
            let address = format!("10.0.{a}.{b}");
            let more = [
                ("x-forwarded-for", &*address),
                ("forwarded", &*forwarded),
                ("x-real-ip", &*address),
            ];
            post(&client, "prompts/list", "{}", &more).await
        })
        .await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s38_a_new_connection_is_no_new_client() {
    for key in [Some(key_of("ann")), None] {
        let config = match key {
            Some(_) => TEN,
            None => "[[limits]]\nper = \"user\"\nrate = \"10/s\"\nburst = 5",
        };
        let world = World::start(hub(MODERN_HTTP), config).await;
        attack("connections", async |_| {
            let client = world.uninitialized_client(MODERN_HTTP, key.as_deref());
            post(&client, "prompts/list", "{}", &[]).await
        })
        .await;
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s38_neither_sessions_nor_revisions_nor_wires_multiply_what_a_client_may() {
    let world = World::start(hub(MODERN_HTTP), &with_pair(TEN)).await;
    let key = key_of("ann");
    let mut clients = vec![world.client_with(MODERN_HTTP, &key, "ann").await];
    for side in [LEGACY_HTTP, LEGACY_HTTP, BATCHES, LEGACY_SSE] {
        clients.push(world.client_with(side, &key, "ann").await);
    }
    pass(Duration::from_secs(1)).await;
    attack("many at once", async |n| {
        let client = &clients[n % clients.len()];
        match client.side.transport {
            Transport::Http => post(client, "prompts/list", "{}", &[]).await,
            _ => usize::from(is_admitted(&client.request("prompts/list", "{}").await)),
        }
    })
    .await;
    drop(clients);
    world.close().await;

    for side in [MODERN_STDIO, LEGACY_STDIO] {
        let world = World::start(hub(MODERN_HTTP), TEN).await;
        let client = world.client_as("ann", side).await;
        pass(Duration::from_secs(1)).await;
        attack("lines", async |_| {
            usize::from(is_admitted(&client.request("prompts/list", "{}").await))
        })
        .await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s38_a_batch_counts_each_of_its_elements() {
    let world = World::start(hub(MODERN_HTTP), TEN).await;
    let client = world.client_with(BATCHES, &key_of("ann"), "ann").await;
    pass(Duration::from_secs(1)).await;
    attack("batches", async |_| {
        let one = |id: u64| jsonrpc::write_request(&Id::from(id), "prompts/list", b"{}");
        let all: Vec<_> = (0..12).map(one).collect();
        let batch = [b"[", all.join(&b","[..]).as_slice(), b"]"].concat();
        let reply = client.http().post(batch, &client.http().headers("", "{}")).whole().await;
        let answers: Vec<serde_json::Value> = match reply.status {
            200 => serde_json::from_str(&reply.body).expect("an array"),
            _ => return 0,
        };
        assert_eq!(answers.len(), 12);
        let refused = answers.iter().filter(|answer| answer["error"]["code"] == 4290).count();
        12 - refused
    })
    .await;
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s38_what_is_split_over_methods_is_counted_together() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(hub(MODERN_HTTP), TEN).await;
        let client = world.client_with(side, &key_of("ann"), "ann").await;
        pass(Duration::from_secs(1)).await;
        let requests = [
            ("tools/list", "{}".to_owned()),
            ("tools/call", named("hub__a")),
            ("prompts/list", "{}".to_owned()),
            ("prompts/get", named("hub__a")),
            ("resources/read", r#"{"uri":"file:///a"}"#.to_owned()),
            ("tools/call", named("hub__nothing")),
        ];
        attack("methods", async |n| {
            let (method, params) = &requests[n % requests.len()];
            post(&client, method, params, &[]).await
        })
        .await;
        drop(client);
        world.close().await;
    }
}

// === Counted requests ===

/// The retry time in an error's data.
fn retry_after(reply: &Reply) -> Duration {
    assert_eq!(reply.code(), 4290, "{reply:?}");
    let data = object(reply.error()).get_object("data").expect("data");
    let time = data.get("retryAfterMs").expect("a time").parse().expect("a number");
    Duration::from_millis(time)
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_as_long_as_it_is_told_is_admitted() {
    let config = "[[limits]]\nper = \"client\"\nmethod = \"tools/call\"\nrate = \"7/s\"\nburst = 3";
    everywhere(config, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for _ in 0..3 {
            assert!(client.call_tool("hub__a").await.outcome.is_ok());
        }
        for _ in 0..3 {
            let refused = client.call_tool("hub__a").await;
            let wait = retry_after(&refused);
            assert!(wait <= Duration::from_millis(143) && !wait.is_zero(), "{wait:?}");
            assert_eq!(refused.status, if cell.client.is_http() { 429 } else { 200 });
            pass(wait - Duration::from_millis(1)).await;
            assert!(!is_admitted(&client.call_tool("hub__a").await));
            pass(Duration::from_millis(1)).await;
            assert!(client.call_tool("hub__a").await.outcome.is_ok());
        }
        assert_eq!(world.upstream("hub").count("tools/call"), 6);
        // Other methods are not counted.
        assert_eq!(client.prompts().await.len(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_request_counts_and_nothing_else() {
    let config = "[[limits]]\nper = \"client\"\nrate = \"1/h\"\nburst = 1";
    let requests = [
        ("ping", "{}"),
        ("prompts/list", "{}"),
        ("tools/list", "{}"),
        ("resources/list", "{}"),
        ("resources/templates/list", "{}"),
        ("prompts/get", r#"{"name":"hub__a"}"#),
        ("tools/call", r#"{"name":"hub__nothing"}"#),
        ("tools/call", "{}"),
        ("resources/read", r#"{"uri":"file:///a"}"#),
        ("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"hub__a"}}"#),
        ("logging/setLevel", r#"{"level":"info"}"#),
        ("resources/subscribe", r#"{"uri":"file:///a"}"#),
        ("resources/unsubscribe", r#"{"uri":"file:///a"}"#),
        ("tasks/get", r#"{"taskId":"x"}"#),
        ("server/discover", "{}"),
        ("subscriptions/listen", r#"{"notifications":{"promptsListChanged":true}}"#),
        ("nobody/knows", "{}"),
    ];
    for side in CLIENTS {
        let world = World::start(hub(MODERN_HTTP), &with_pair(config)).await;
        // A legacy client has used its only request for the handshake.
        let client = world.client(side).await;
        if side.is_modern() {
            assert_eq!(client.prompts().await.len(), 2);
        }
        let upstream = world.requests();
        // Without the members of the modern era these two are no valid requests.
        let is_modern =
            |method: &str| ["server/discover", "subscriptions/listen"].contains(&method);
        for (method, params) in requests {
            if is_modern(method) && !side.is_modern() {
                continue;
            }
            let reply = client.request(method, params).await;
            assert!(retry_after(&reply) > Duration::from_secs(3_000), "{side}: {method}");
        }
        if !side.is_modern() {
            client.notify("notifications/initialized", "{}").await;
            client.notify("notifications/cancelled", r#"{"requestId":7}"#).await;
        }
        assert_eq!(world.requests(), upstream, "{side}");
        drop(client);
        world.close().await;
    }
    // The handshake of a legacy client counts as well.
    let world = World::start(hub(MODERN_HTTP), config).await;
    let client = world.client(LEGACY_HTTP).await;
    let again = client.request("initialize", &opening(&client, "x")).await;
    assert!(retry_after(&again) > Duration::from_secs(3_000));
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_items_counts_those_that_its_client_can_reach() {
    let config = r#"
        [roles.ann]
        tools = { allow = ["*"], deny = ["hub/b"] }
        [[limits]]
        per = "client"
        method = "tools/call"
        match = "hub/*"
        rate = "1/h"
        burst = 1
    "#;
    for side in [MODERN_HTTP, LEGACY_HTTP, MODERN_STDIO, LEGACY_STDIO] {
        let world = World::start(hub(MODERN_HTTP), config).await;
        let client = world.client_as("ann", side).await;
        // Denied and unknown items are treated alike: this limit does not count them.
        for _ in 0..3 {
            assert_eq!(client.call_tool("hub__b").await.code(), -32602, "{side}");
            assert_eq!(client.call_tool("hub__q").await.code(), -32602, "{side}");
        }
        assert!(client.call_tool("hub__a").await.outcome.is_ok(), "{side}");
        retry_after(&client.call_tool("hub__a").await);
        assert_eq!(client.call_tool("hub__b").await.code(), -32602, "{side}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_of_two_clients_do_not_touch_and_that_of_an_upstream_is_shared() {
    let config = format!(
        "{TEN}\n[[limits]]\nper = \"upstream\"\nmethod = \"tools/call\"\nrate = \"1/h\"\nburst = 3"
    );
    let world = World::start(hub(MODERN_HTTP), &config).await;
    let ann = world.client_as("ann", MODERN_HTTP).await;
    let bob = world.client_as("bob", LEGACY_HTTP).await;
    for _ in 0..5 {
        assert!(is_admitted(&ann.request("prompts/list", "{}").await));
    }
    assert!(!is_admitted(&ann.request("prompts/list", "{}").await));
    for _ in 0..4 {
        assert!(is_admitted(&bob.request("prompts/list", "{}").await));
    }
    pass(Duration::from_secs(1)).await;
    for client in [&ann, &bob, &ann] {
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
    }
    for client in [&ann, &bob] {
        assert!(retry_after(&client.call_tool("hub__a").await) > Duration::from_secs(3_000));
    }
    drop((ann, bob));
    world.close().await;
}

// === Concurrency ===

#[tokio::test(start_paused = true)]
async fn a_place_is_kept_until_the_call_ends_in_any_way() {
    let config = "[[limits]]\nper = \"client\"\nmethod = \"tools/call\"\nconcurrency = 1";
    let done = r#"{"resultType":"complete","content":[]}"#;
    everywhere(config, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let first = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        assert_eq!(retry_after(&client.call_tool("hub__a").await), Duration::from_secs(1));
        assert_eq!(client.prompts().await.len(), 2);
        call.result(done);
        assert!(first.reply().await.outcome.is_ok());

        let second = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        retry_after(&client.call_tool("hub__a").await);
        second.cancel().await;
        call.cancelled().await;
        settle().await;

        let third = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        if cell.client == LEGACY_HTTP {
            // The client's stream is lost, and the call continues.
            drop(third);
            settle().await;
            retry_after(&client.call_tool("hub__a").await);
            call.result(done);
        } else {
            call.result(done);
            assert!(third.reply().await.outcome.is_ok());
        }
        settle().await;
        let last = client.start("tools/call", &named("hub__a"));
        intercepted.next().await.result(done);
        assert!(last.reply().await.outcome.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_kept_to_be_sent_once_more_keeps_no_place() {
    let config = "[protocol]\nresumable = true\n\
                  [[limits]]\nper = \"client\"\nmethod = \"tools/call\"\nconcurrency = 1";
    let world = World::start(hub(MODERN_HTTP), config).await;
    let client = world.client(LEGACY_HTTP).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    for _ in 0..3 {
        let exchange = client.start("tools/call", &named("hub__a"));
        intercepted.next().await.result(r#"{"resultType":"complete","content":[]}"#);
        assert!(exchange.reply().await.outcome.is_ok());
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_listen_has_its_place_as_long_as_it_lasts() {
    let config = "[[limits]]\nper = \"client\"\nmethod = \"subscriptions/listen\"\nconcurrency = 1";
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(MODERN_HTTP), config).await;
        let client = world.client(side).await;
        let changes = client.listen().await;
        let filter = r#"{"notifications":{"promptsListChanged":true}}"#;
        retry_after(&client.request("subscriptions/listen", filter).await);
        changes.cancel().await;
        settle().await;
        drop(client.listen().await);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s38_what_a_listen_names_is_subscribed_to_like_anything_else() {
    let config = "[[limits]]\nper = \"client\"\nmethod = \"resources/subscribe\"\nrate = \"1/h\"\nburst = 1\n\
                  [[limits]]\nper = \"client\"\nrate = \"2/h\"\nburst = 2";
    let both = ["file:///a", "file:///b"];
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let scripts = vec![("hub", Script::full(MODERN_HTTP).subscribable())];
        let world = World::start(scripts, config).await;
        let client = world.client(side).await;
        let (changes, honored) = client.follow(&both).await;
        assert_eq!(honored.len(), 1, "{side}: {honored:?}");
        // Its resources count for the limit on subscribing; the listen counted once, as a request.
        let (more, honored) = client.follow(&both).await;
        assert_eq!(honored, [""; 0], "{side}");
        retry_after(&client.request("prompts/list", "{}").await);
        changes.cancel().await;
        more.cancel().await;
        drop(client);
        world.close().await;
    }
}

// === Unauthenticated requests and HTTP errors ===

#[tokio::test(start_paused = true)]
async fn who_floods_is_refused_before_its_body_is_read_and_may_end_what_it_began() {
    let config = "[[limits]]\nper = \"client\"\nmethod = \"tools/call\"\nrate = \"1/h\"\nburst = 1";
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(hub(MODERN_HTTP), config).await;
        let client = world.client(side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let first = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        for _ in 0..100 {
            retry_after(&client.call_tool("hub__a").await);
        }
        // A body that is not read cannot be malformed.
        let http = client.http();
        let headers = http.headers("tools/call", &named("hub__a"));
        let unread = http.post("{", &headers).whole().await;
        if side.is_modern() {
            assert_eq!((unread.status, unread.code()), (429, 4290));
            assert_eq!(unread.headers["retry-after"], "1");
            assert!(Object::parse(unread.body).is_ok_and(|body| !body.has("id")));
            drop(first);
        } else {
            // A call is in flight and could be cancelled, so the gateway reads the body.
            assert_eq!((unread.status, unread.code()), (400, -32700));
            first.cancel().await;
        }
        call.cancelled().await;
        settle().await;
        let unread = http.post("{", &headers).whole().await;
        assert_eq!(unread.status, 429, "{side}");
        pass(Duration::from_millis(200)).await;
        assert_eq!(http.post("{", &headers).whole().await.status, 400, "{side}");
        assert_eq!(client.prompts().await.len(), 2, "{side}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_guesses_keys_is_told_to_wait_and_who_has_one_is_not() {
    let world = World::start(hub(MODERN_HTTP), TEN).await;
    let mut statuses = Vec::new();
    for n in 0..22 {
        let client = world.uninitialized_client(MODERN_HTTP, Some(&format!("guess-{n}")));
        let reply = client.http().post("{", &client.http().headers("ping", "{}")).whole().await;
        assert_eq!(reply.headers.contains_key("retry-after"), reply.status == 429);
        statuses.push(reply.status);
    }
    assert_eq!(statuses[..20], [401; 20]);
    assert_eq!(statuses[20..], [429; 2]);
    // The limits are per client, not per address: behind a proxy all share one.
    let ann = world.client_as("ann", MODERN_HTTP).await;
    assert_eq!(ann.prompts().await.len(), 2);
    drop(ann);
    pass(Duration::from_secs(3)).await;
    let client = world.uninitialized_client(MODERN_HTTP, Some("another"));
    let reply = client.http().post("{", &client.http().headers("ping", "{}")).whole().await;
    assert_eq!(reply.status, 401);
    drop(client);
    world.close().await;
}
