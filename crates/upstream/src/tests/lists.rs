//! Lists: all pages, within bounds.

use std::time::Duration;

use serde_json::{Value, json};

use crate::testing::{Peer, TestTransport, World, discovered, initialized, settings};
use crate::{Error, Listing};
use weir_mcp::definition::item::ItemDefect;
use weir_mcp::kind::Kind;
use weir_mcp::revision::Era;

type Listed = tokio::task::JoinHandle<Result<Listing, Error>>;

async fn listing(kind: Kind) -> (World, Peer, Listed) {
    let (world, peer) = World::stdio(Era::Modern).await;
    let upstream = world.upstream.clone();
    let listed = world.tracker.spawn(async move { upstream.list(kind).await });
    (world, peer, listed)
}

async fn end(listed: Listed) -> Result<Listing, Error> {
    listed.await.expect("no panic")
}

fn keys(listing: &Listing) -> Vec<&str> {
    listing.items.iter().map(|item| &*item.key).collect()
}

fn page(names: &[&str], next: Option<&str>) -> Value {
    let items: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
    let mut page = json!({ "prompts": items, "ttlMs": 5000 });
    if let Some(next) = next {
        page["nextCursor"] = json!(next);
    }
    page
}

#[tokio::test(start_paused = true)]
async fn all_pages_are_read_and_cursors_go_back_as_they_came() {
    let (world, mut peer, listed) = listing(Kind::Prompt).await;
    let first = peer.read().await;
    assert!(first["params"].get("cursor").is_none());
    let mut result = page(&["a", "b"], Some(""));
    result["ttlMs"] = json!(2000);
    peer.answer(&first, result).await;
    let second = peer.read().await;
    assert_eq!(second["params"]["cursor"], "");
    // A duplicate name counts once, and an invalid item is left out.
    let mut result = page(&["b", "c"], Some("\u{e4} \"/"));
    result["prompts"].as_array_mut().expect("a list").extend([json!(7), json!({})]);
    peer.answer(&second, result).await;
    let third = peer.read().await;
    assert_eq!(third["params"]["cursor"], "\u{e4} \"/");
    peer.answer(&third, page(&["d"], None)).await;
    let listing = end(listed).await.expect("a list");
    assert_eq!(keys(&listing), ["a", "b", "c", "d"]);
    let omitted: Vec<_> = listing.omitted.iter().map(|item| &*item.key).collect();
    assert_eq!(omitted, ["number 5 of the list", "number 6 of the list"]);
    assert_eq!((listing.truncated, listing.ttl), (None, Some(Duration::from_secs(2))));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn second_item_of_one_name_is_omitted_unless_two_pages_overlap() {
    let (world, mut peer, listed) = listing(Kind::Prompt).await;
    let first = peer.read().await;
    peer.answer(&first, page(&["a", "a", "b"], Some("n"))).await;
    let second = peer.read().await;
    let mut result = page(&["b"], None);
    let other = json!({ "name": "a", "title": "another" });
    result["prompts"].as_array_mut().expect("a list").push(other);
    peer.answer(&second, result).await;
    let listing = end(listed).await.expect("a list");
    assert_eq!(keys(&listing), ["a", "b"]);
    let omitted: Vec<_> = listing.omitted.iter().map(|item| (&*item.key, item.defect)).collect();
    assert_eq!(omitted, [("a", Some(ItemDefect::Duplicate)); 2]);
    assert!(listing.items[0].definition.get("title").is_none(), "the first one is used");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_over_http_is_read_alike() {
    let mut world = World::http(Era::Legacy).await;
    let upstream = world.upstream.clone();
    let listed = world.tracker.spawn(async move { upstream.list(Kind::Prompt).await });
    world.post().await.answer(page(&["a"], Some("n")));
    let second = world.post().await;
    assert_eq!(second.body["params"], json!({ "cursor": "n" }));
    let id = second.id();
    let events = second.events();
    let result = page(&["b"], None);
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    assert_eq!(keys(&end(listed).await.expect("a list")), ["a", "b"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_declared_is_empty_and_not_asked_for() {
    let (world, mut peer, listed) = listing(Kind::Resource).await;
    assert_eq!(keys(&end(listed).await.expect("a list")), [""; 0]);
    world.stop.cancel();
    assert_eq!(peer.try_read().await, None);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_exist_is_empty() {
    let (world, mut peer, listed) = listing(Kind::Prompt).await;
    let request = peer.read().await;
    peer.refuse(&request, -32601).await;
    assert_eq!(keys(&end(listed).await.expect("a list")), [""; 0]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_refused_is_an_error() {
    let (world, mut peer, listed) = listing(Kind::Prompt).await;
    let request = peer.read().await;
    peer.refuse(&request, -32603).await;
    let error = end(listed).await.expect_err("refused");
    assert_eq!(error.to_string(), "it refuses `prompts/list`: no");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_endless_list_without_anything_new_ends_after_three_pages() {
    let (world, mut peer, listed) = listing(Kind::Prompt).await;
    let mut requests = 0;
    for names in [&["a"][..], &["a"], &["b"], &["a"], &["b"], &[]] {
        let request = peer.read().await;
        peer.answer(&request, page(names, Some("same"))).await;
        requests += 1;
    }
    let listing = end(listed).await.expect("a list");
    assert_eq!((keys(&listing), requests), (vec!["a", "b"], 6));
    assert_eq!(listing.truncated.as_deref(), Some("3 pages without a new item"));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_always_has_more_ends_by_its_limits() {
    let endless = async |change: fn(&mut crate::UpstreamLimits)| {
        let mut settings = settings(TestTransport::Stdio);
        change(&mut settings.limits);
        let mut world = World::start(settings);
        let mut peer = world.child().await;
        peer.open(Era::Modern).await;
        world.up().await;
        let upstream = world.upstream.clone();
        let listed = world.tracker.spawn(async move { upstream.list(Kind::Prompt).await });
        for number in 0.. {
            tokio::select! {
                request = peer.read() => {
                    let name = format!("p{number}");
                    peer.answer(&request, page(&[&name], Some(&name))).await;
                }
                () = async { while !listed.is_finished() { tokio::task::yield_now().await } } => break,
            }
        }
        let listing = end(listed).await.expect("a list");
        world.finish().await;
        (listing.items.len(), listing.truncated.expect("cut short"))
    };
    assert_eq!(endless(|limits| limits.max_pages = 7).await, (7, "7 pages".into()));
    assert_eq!(endless(|limits| limits.max_items = 5).await, (5, "5 items".into()));
    // The page that exceeds the bound is the last one read.
    assert_eq!(endless(|limits| limits.max_list = 400).await, (7, "400 bytes".into()));
}

#[tokio::test(start_paused = true)]
async fn a_list_of_exactly_as_many_items_as_allowed_is_whole() {
    let mut settings = settings(TestTransport::Stdio);
    settings.limits.max_items = 2;
    for (names, truncated) in [(&["a", "b"][..], None), (&["a", "b", "c"], Some("2 items"))] {
        let mut world = World::start(settings.clone());
        let mut peer = world.child().await;
        peer.open(Era::Modern).await;
        world.up().await;
        let upstream = world.upstream.clone();
        let listed = world.tracker.spawn(async move { upstream.list(Kind::Prompt).await });
        let request = peer.read().await;
        peer.answer(&request, page(names, None)).await;
        let listing = end(listed).await.expect("a list");
        assert_eq!((listing.items.len(), listing.truncated.as_deref()), (2, truncated));
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_list_keeps_what_came_in_time() {
    let (world, mut peer, listed) = listing(Kind::Prompt).await;
    let first = peer.read().await;
    peer.answer(&first, page(&["a"], Some("n"))).await;
    let second = peer.read().await;
    let listing = end(listed).await.expect("a list");
    assert_eq!(keys(&listing), ["a"]);
    assert_eq!(listing.truncated.as_deref(), Some("the time for a list (10s)"));
    let cancelled = peer.read().await;
    assert_eq!(cancelled["params"]["requestId"], second["id"]);

    let upstream = world.upstream.clone();
    let listed = world.tracker.spawn(async move { upstream.list(Kind::Prompt).await });
    peer.read().await;
    assert!(matches!(end(listed).await, Err(Error::TimedOut(_))));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_cursor_begins_the_walk_anew_once() {
    let (world, mut peer, listed) = listing(Kind::Prompt).await;
    for _ in 0..2 {
        let request = peer.read().await;
        assert!(request["params"].get("cursor").is_none());
        peer.answer(&request, page(&["a"], Some("n"))).await;
        let request = peer.read().await;
        peer.refuse(&request, -32602).await;
    }
    let error = end(listed).await.expect_err("no third walk");
    assert_eq!(error.to_string(), "`prompts/list` refuses its own cursor: no");
    world.finish().await;
}

/// Modern server with `listChanged`.
fn discovered_with_list_changed() -> Value {
    let mut result = discovered();
    result["capabilities"]["prompts"] = json!({ "listChanged": true });
    result
}

fn acknowledged(id: &Value) -> Value {
    let meta = json!({ "io.modelcontextprotocol/subscriptionId": id });
    let params = json!({ "_meta": meta, "notifications": { "promptsListChanged": true } });
    let method = "notifications/subscriptions/acknowledged";
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

#[tokio::test(start_paused = true)]
async fn topics_declared_by_empty_arrays_are_listed() {
    for era in [Era::Modern, Era::Legacy] {
        let mut world = World::start(settings(TestTransport::Stdio));
        let mut peer = world.child().await;
        let empty = json!({ "prompts": [], "tools": [], "resources": [] });
        let mut opening = peer.read().await;
        let mut result = discovered();
        if era == Era::Legacy {
            peer.refuse(&opening, -32601).await;
            opening = peer.read().await;
            result = initialized("2025-11-25");
        }
        result["capabilities"] = empty;
        peer.answer(&opening, result).await;
        if era == Era::Legacy {
            assert_eq!(peer.read().await["method"], "notifications/initialized");
        }
        world.up().await;
        for kind in Kind::ALL {
            let upstream = world.upstream.clone();
            let listed = world.tracker.spawn(async move { upstream.list(kind).await });
            let request = peer.read().await;
            assert_eq!(request["method"], kind.list_method());
            let mut page = json!({});
            page[kind.list_member()] = json!([]);
            peer.answer(&request, page).await;
            assert!(listed.await.expect("no panic").is_ok(), "{kind}");
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_is_listened_to_and_again_when_the_subscription_ends() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    let discover = peer.read().await;
    peer.answer(&discover, discovered_with_list_changed()).await;
    let listen = peer.read().await;
    assert_eq!(listen["method"], "subscriptions/listen");
    assert_eq!(listen["params"]["notifications"], json!({ "promptsListChanged": true }));
    peer.send(acknowledged(&listen["id"])).await;
    world.up().await;
    assert_eq!(world.upstream.changes().borrow().0, [0, 0, 0]);

    let mut changes = world.upstream.changes();
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/prompts/list_changed" });
    peer.send(changed).await;
    changes.changed().await.expect("alive");
    assert_eq!(changes.borrow_and_update().0, [1, 0, 0]);

    let cancelled = json!({ "requestId": listen["id"] });
    peer.send(
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }),
    )
    .await;
    let again = peer.read().await;
    assert_eq!(again["method"], "subscriptions/listen");
    assert_ne!(again["id"], listen["id"]);
    // Changes in between were missed.
    peer.send(acknowledged(&again["id"])).await;
    changes.changed().await.expect("alive");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_is_listened_to_over_http() {
    let mut world = World::start(settings(TestTransport::Http));
    world.post().await.answer(discovered_with_list_changed());
    let listen = world.post().await;
    assert_eq!(listen.headers["mcp-method"], "subscriptions/listen");
    let id = listen.body["id"].clone();
    let events = listen.events();
    events.send(acknowledged(&id));
    world.up().await;
    let mut changes = world.upstream.changes();
    events.send(json!({ "jsonrpc": "2.0", "method": "notifications/prompts/list_changed" }));
    changes.changed().await.expect("alive");
    // An orderly end of the stream, and a new stream.
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": { "resultType": "complete" } }));
    drop(events);
    assert_eq!(world.post().await.body["method"], "subscriptions/listen");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_is_heard_on_its_stream_which_is_opened_again() {
    let mut world = World::start(settings(TestTransport::Http));
    let discover = world.request().await;
    discover.status(400);
    world.initialize("s1").await;
    let stream = world.request().await;
    assert_eq!(
        (stream.method.as_str(), stream.headers["accept"].as_bytes()),
        ("GET", &b"text/event-stream"[..])
    );
    assert_eq!(stream.headers["mcp-session-id"], "s1");
    let events = stream.events();
    world.up().await;
    let mut changes = world.upstream.changes();
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    events.raw(format!("id: 7\nretry: 3000\ndata: {changed}\n\n"));
    changes.changed().await.expect("alive");
    assert_eq!(changes.borrow_and_update().0, [0, 1, 0]);
    let start = tokio::time::Instant::now();
    drop(events);
    let again = world.request().await;
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    assert_eq!(again.headers["last-event-id"], "7");
    // Once there was a stream, 404 means a lost session.
    again.status(404);
    world.initialize("s2").await;
    world.finish().await;
}
