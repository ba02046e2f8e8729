//! Subscriptions to resources: a subscribed client that may read a resource is notified of a change
//! once, in its era's way; Weir subscribes to it once at the upstream, however many clients share
//! it.

use std::time::Duration;

use weir::app::ReloadOutcome;
use weir_mcp::kind::Kind;

use crate::cell::{
    CLIENTS, LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side, UPSTREAMS,
};
use crate::client::{Client, object};
use crate::upstream::{Answer, Script};
use crate::world::{Scripts, World, everywhere, pass, settle, with_pair};

const A: &str = "file:///a";
const B: &str = "file:///b";

/// Longer than Weir keeps an unused subscription.
const LONG: Duration = Duration::from_secs(10);

/// An upstream called `hub` whose resources `file:///a` and `file:///b` can be subscribed to.
fn hub(side: Side) -> Scripts {
    vec![("hub", Script::full(side).subscribable())]
}

/// Ends a client's subscription in its era's way: a listen ends as a whole.
async fn leave(client: &Client, changes: crate::client::ChangeStream<'_>, uri: &str) {
    if client.side.is_modern() {
        changes.cancel().await;
    } else {
        assert_eq!(client.unsubscribe(uri).await.result(), "{}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_is_told_once_to_exactly_those_who_have_subscribed() {
    everywhere("", hub, async |world, cell| {
        let (one, other) = (world.client(cell.client).await, world.client(cell.client).await);
        let (mut first, honored) = one.follow(&[A]).await;
        assert_eq!(honored, [A]);
        let (mut second, honored) = other.follow(&[A, B]).await;
        assert_eq!(honored, [A, B]);
        let hub = world.upstream("hub");
        hub.until_subscribed(&[A, B]).await;

        hub.update(A);
        assert_eq!(first.next_update().await, A);
        assert_eq!(second.next_update().await, A);
        hub.update(B);
        assert_eq!(second.next_update().await, B);
        first.stays_silent().await;
        second.stays_silent().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_has_subscribed_hears_of_updates_of_an_upstream_that_is_opened_anew() {
    let config = |client| if client == LEGACY_SSE { with_pair("") } else { String::new() };
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let (mut changes, _) = client.follow(&[A]).await;
        let hub = world.upstream("hub");
        hub.until_subscribed(&[A]).await;
        let changed =
            format!("{}[upstreams.hub]\nlimits = {{ max_items = 99 }}\n", config(cell.client));
        assert!(matches!(world.reload(&changed).await, ReloadOutcome::Applied { .. }));
        pass(Duration::from_secs(20)).await;
        hub.until_subscribed(&[A]).await;
        // Weir sends an update for the time without a subscription.
        while let Ok(Some(_)) = tokio::time::timeout(LONG, changes.next()).await {}
        hub.update(A);
        assert_eq!(changes.next_update().await, A);
        changes.stays_silent().await;
        leave(&client, changes, A).await;
        pass(Duration::from_secs(20)).await;
        hub.until_subscribed(&[]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn clients_share_a_subscription_and_the_last_one_ends_it() {
    everywhere("", hub, async |world, cell| {
        let hub = world.upstream("hub");
        let (one, other) = (world.client(cell.client).await, world.client(cell.client).await);
        let ((first, _), (mut second, _)) = (one.follow(&[A]).await, other.follow(&[A]).await);
        hub.until_subscribed(&[A]).await;
        let method =
            if cell.upstream.is_modern() { "subscriptions/listen" } else { "resources/subscribe" };
        // Weir listens to a modern upstream for its lists as well.
        let once = if cell.upstream.is_modern() { 2 } else { 1 };
        assert_eq!(hub.count(method), once);

        leave(&one, first, A).await;
        pass(LONG).await;
        assert_eq!(hub.subscribed(), [A]);
        hub.update(A);
        assert_eq!(second.next_update().await, A);

        leave(&other, second, A).await;
        settle().await;
        assert_eq!(hub.subscribed(), [A], "it lingers");
        pass(LONG).await;
        assert_eq!(hub.subscribed(), [""; 0]);
        assert_eq!(hub.count(method), once);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_back_soon_finds_the_subscription_where_it_was() {
    everywhere("", hub, async |world, cell| {
        let hub = world.upstream("hub");
        for _ in 0..5 {
            let client = world.client(cell.client).await;
            let (mut changes, honored) = client.follow(&[A]).await;
            assert_eq!(honored, [A]);
            hub.update(A);
            assert_eq!(changes.next_update().await, A);
            leave(&client, changes, A).await;
        }
        let subscriptions = if cell.upstream.is_modern() {
            hub.count("subscriptions/listen") - 1
        } else {
            hub.count("resources/subscribe") + hub.count("resources/unsubscribe")
        };
        assert_eq!(subscriptions, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_client_that_unsubscribes_hears_no_more_of_it() {
    for upstream in UPSTREAMS {
        for side in CLIENTS.into_iter().filter(|side| !side.is_modern()) {
            let world = World::start(hub(upstream), &with_pair("")).await;
            let client = world.client(side).await;
            let (mut changes, _) = client.follow(&[A, A, B]).await;
            for uri in [A, B, A, "file:///never"] {
                assert_eq!(client.unsubscribe(uri).await.result(), "{}", "{side}, {uri}");
            }
            world.upstream("hub").update(A);
            world.upstream("hub").update(B);
            changes.stays_silent().await;
            drop(changes);
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_is_told_to_who_subscribed_to_the_whole_and_may_read_the_part() {
    let config = r#"
        [roles.guest]
        resources.allow = ["hub/file:///a", "hub/file:///a/public*"]
        [roles.staff]
        resources.allow = ["hub/*"]
    "#;
    everywhere(config, hub, async |world, cell| {
        let guest = world.client_as("guest", cell.client).await;
        let staff = world.client_as("staff", cell.client).await;
        let (mut guest_changes, _) = guest.follow(&[A]).await;
        let (mut staff_changes, _) = staff.follow(&[A]).await;
        let hub = world.upstream("hub");
        hub.until_subscribed(&[A]).await;
        hub.update_part(A, "file:///a/secret");
        assert_eq!(staff_changes.next_update().await, "file:///a/secret");
        guest_changes.stays_silent().await;
        hub.update_part(A, "file:///a/public/x");
        assert_eq!(staff_changes.next_update().await, "file:///a/public/x");
        assert_eq!(guest_changes.next_update().await, "file:///a/public/x");
        // These are neither parts of the resource nor subscribed resources.
        hub.update_part(A, "file:///abc");
        hub.update_part(A, B);
        hub.update_part(A, "other:thing");
        staff_changes.stays_silent().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_is_refused_as_what_is_unknown_and_never_asked_for() {
    let config = r#"
        [roles.guest]
        resources.allow = ["hub/file:///a"]
    "#;
    everywhere(config, hub, async |world, cell| {
        let guest = world.client_as("guest", cell.client).await;
        let before = world.requests();
        let (mut changes, honored) = guest.follow(&[B, "file:///nothing", "other:thing"]).await;
        assert_eq!(honored, [""; 0]);
        if !cell.client.is_modern() {
            let denied = guest.subscribe(B).await;
            let unknown = guest.subscribe("file:///nothing").await;
            assert_eq!(denied.error().replace(B, "it"), unknown.error().replace("file:///nothing", "it"));
        }
        assert_eq!(world.requests(), before);
        world.upstream("hub").say(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{B}"}}}}"#
        ));
        changes.stays_silent().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_left_the_catalog_is_not_told_any_more() {
    let config = r#"
        [roles.guest]
        resources.allow = ["hub/file:///*"]
    "#;
    everywhere(config, hub, async |world, cell| {
        let guest = world.client_as("guest", cell.client).await;
        let hub = world.upstream("hub");
        // Without templates and other resources of its origin the URI has no owner any more.
        hub.change(Kind::Template, Vec::clear).await;
        hub.change(Kind::Resource, |list| drop(list.pop())).await;
        pass(LONG).await;
        let (mut changes, honored) = guest.follow(&[A]).await;
        assert_eq!(honored, [A]);
        hub.change_quietly(Kind::Resource, Vec::clear);
        hub.announce(Kind::Resource.topic());
        pass(LONG).await;
        hub.update(A);
        let announced = tokio::time::timeout(LONG, async {
            loop {
                let message = changes.next().await.expect("the stream is open");
                assert!(message.contains("list_changed"), "{message}");
            }
        });
        assert!(announced.await.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_everything_is_subscribed_to_again_and_counts_as_updated_once() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let (mut changes, _) = client.follow(&[A, B]).await;
        let hub = world.upstream("hub");
        hub.until_subscribed(&[A, B]).await;
        hub.restart();
        let mut announced = [changes.next_update().await, changes.next_update().await];
        announced.sort();
        assert_eq!(announced, [A, B]);
        changes.stays_silent().await;
        hub.until_subscribed(&[A, B]).await;
        hub.update(B);
        assert_eq!(changes.next_update().await, B);
        changes.stays_silent().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_few_notices_and_the_last_update_is_not_lost() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let (mut changes, _) = client.follow(&[A]).await;
        let hub = world.upstream("hub");
        hub.until_subscribed(&[A]).await;
        for _ in 0..100 {
            for _ in 0..25 {
                hub.update(A);
            }
            pass(Duration::from_millis(50)).await;
        }
        let last = tokio::time::Instant::now();
        let (mut announced, mut announced_at) = (0, last);
        while let Ok(message) = tokio::time::timeout(LONG, changes.next()).await {
            assert!(message.expect("the stream is open").contains(A));
            (announced, announced_at) = (announced + 1, tokio::time::Instant::now());
        }
        assert!((2..=7).contains(&announced), "{announced} notices in five seconds");
        assert!(announced_at + Duration::from_millis(100) >= last, "the last one came too early");
        hub.update(A);
        assert_eq!(changes.next_update().await, A);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_is_gone_lets_go_of_what_it_held() {
    for upstream in UPSTREAMS {
        for side in CLIENTS {
            let world = World::start(hub(upstream), &with_pair("")).await;
            let hub = world.upstream("hub");
            let client = world.client(side).await;
            let (changes, _) = client.follow(&[A, B]).await;
            hub.until_subscribed(&[A, B]).await;
            if side == LEGACY_HTTP {
                // A lost stream is only detached.
                drop(changes);
                pass(LONG).await;
                assert_eq!(hub.subscribed(), [A, B]);
                let (http, headers) = (client.http(), client.http().plain_headers());
                let gone = http.send(hyper::Method::DELETE, "/mcp", "", &headers).whole().await;
                assert_eq!(gone.status, 204);
            } else {
                drop(changes);
            }
            drop(client);
            pass(LONG).await;
            assert_eq!(hub.subscribed(), [""; 0], "{side}, {upstream}");
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn n60_where_no_upstream_tells_of_resources_nothing_is_declared_or_honored() {
    everywhere("", crate::world::hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = world.requests();
        if cell.client.is_modern() {
            let (_ears, honored) = client.follow(&[A]).await;
            assert_eq!(honored, [""; 0]);
            for method in ["resources/subscribe", "resources/unsubscribe"] {
                assert_eq!(client.request(method, r#"{"uri":"file:///a"}"#).await.code(), -32601);
            }
        } else {
            assert_eq!(client.subscribe(A).await.code(), -32601);
            assert_eq!(client.unsubscribe(A).await.code(), -32601);
        }
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn it_is_declared_to_who_sees_resources_of_an_upstream_that_tells() {
    let config = r#"
        [roles.one]
        resources.allow = ["hub/*"]
        [roles.other]
        resources.allow = ["zoo/*"]
    "#;
    let scripts = vec![
        ("hub", Script::full(LEGACY_STDIO).subscribable()),
        ("zoo", Script::full(MODERN_HTTP)),
    ];
    let world = World::start(scripts, config).await;
    for (role, subscribes) in [("one", true), ("other", false)] {
        let modern = world.client_as(role, MODERN_STDIO).await;
        let result = object(modern.request("server/discover", "{}").await.result());
        let resources = result.get_object("capabilities").and_then(|it| it.get_object("resources"));
        let resources = resources.expect("resources");
        assert_eq!(resources.get("subscribe"), subscribes.then_some("true"), "{role}");
        assert_eq!(resources.get("listChanged"), Some("true"));
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_may_subscribe_to_a_bounded_number_of_resources() {
    for upstream in [MODERN_HTTP, LEGACY_STDIO] {
        let world = World::start(hub(upstream), "").await;
        let uris: Vec<_> = (0..=1_000).map(|number| format!("a:///{number:04}")).collect();
        let uris: Vec<_> = uris.iter().map(String::as_str).collect();
        let modern = world.client(MODERN_HTTP).await;
        let (_ears, honored) = modern.follow(&uris[..1_000]).await;
        assert_eq!(honored.len(), 1_000);
        let params = serde_json::json!({"notifications": {"resourceSubscriptions": uris}});
        let refused = modern.request("subscriptions/listen", &params.to_string()).await;
        assert_eq!(refused.code(), -32602);

        let legacy = world.client(LEGACY_STDIO).await;
        let (mut changes, honored) = legacy.follow(&uris[..1_000]).await;
        assert_eq!(honored.len(), 1_000);
        let refused = legacy.subscribe(uris[1_000]).await;
        assert_eq!(refused.code(), -32602);
        assert!(refused.error().contains("no more than 1000 resources"), "{refused:?}");
        assert_eq!(legacy.subscribe(uris[0]).await.result(), "{}", "it is held already");
        assert_eq!(legacy.unsubscribe(uris[0]).await.result(), "{}");
        assert_eq!(legacy.subscribe(uris[1_000]).await.result(), "{}");
        world.upstream("hub").until_subscribed(&uris).await;
        world.upstream("hub").update(uris[1_000]);
        assert_eq!(changes.next_update().await, uris[1_000]);
        drop((_ears, changes));
        drop((modern, legacy));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_as_a_subscription_is_an_error() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let modern = world.client(MODERN_HTTP).await;
    for odd in ["true", r#""file:///a""#, "[1]", "[null]", "{}"] {
        let params = format!(r#"{{"notifications":{{"resourceSubscriptions":{odd}}}}}"#);
        assert_eq!(modern.request("subscriptions/listen", &params).await.code(), -32602, "{odd}");
    }
    let legacy = world.client(LEGACY_STDIO).await;
    for odd in ["{}", r#"{"uri":7}"#] {
        assert_eq!(legacy.request("resources/subscribe", odd).await.code(), -32602);
        assert_eq!(legacy.request("resources/unsubscribe", odd).await.code(), -32602);
    }
    drop((modern, legacy));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstreams_refusal_reaches_who_asked_and_nobody_else() {
    for upstream in [LEGACY_HTTP, LEGACY_STDIO] {
        let world = World::start(hub(upstream), "").await;
        let hub = world.upstream("hub");
        let (modern, legacy) = (world.client(MODERN_HTTP).await, world.client(LEGACY_STDIO).await);
        let (mut changes, _) = modern.follow(&[A]).await;
        hub.answer(
            "resources/subscribe",
            Answer::Error(r#"{"code":-32602,"message":"not this"}"#.into()),
        );
        // The resource is listed, so the client may see its upstream's error.
        assert_eq!(legacy.subscribe(B).await.error(), r#"{"code":-32602,"message":"not this"}"#);
        // The error of an unlisted resource must not reveal whether it exists.
        assert_eq!(legacy.subscribe("file:///x").await.code(), -32002);
        let (_none, honored) = modern.follow(&[B]).await;
        assert_eq!(honored, [""; 0]);
        // Another client has subscribed to it already.
        assert_eq!(legacy.subscribe(A).await.result(), "{}");
        hub.update(A);
        assert_eq!(changes.next_update().await, A);
        hub.answer("resources/subscribe", Answer::Silence);
        let began = tokio::time::Instant::now();
        assert_eq!(legacy.subscribe(B).await.code(), 5040);
        assert!(began.elapsed() <= Duration::from_secs(11));
        drop((changes, _none));
        drop((modern, legacy));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_hundred_clients_none_hears_of_what_is_another_ones() {
    let roles: Vec<_> = (0..100).map(|number| format!("r{number:02}")).collect();
    let config = roles
        .iter()
        .map(|role| format!("[roles.{role}]\nresources.allow = [\"hub/file:///{role}/*\"]\n"));
    let config = config.collect::<String>();
    for upstream in [MODERN_HTTP, LEGACY_STDIO] {
        let names: Vec<_> = roles.iter().map(|role| format!("{role}/x")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let script = Script::new(upstream).items(Kind::Resource, &names).subscribable();
        let world = World::start(vec![("hub", script)], &config).await;
        let hub = world.upstream("hub");
        let every: Vec<_> = names.iter().map(|name| format!("file:///{name}")).collect();
        let every: Vec<_> = every.iter().map(String::as_str).collect();
        let mut clients = Vec::new();
        for (number, role) in roles.iter().enumerate() {
            clients.push(world.client_as(role, CLIENTS[number % 4]).await);
        }
        let mut changes = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            // Each client tries to subscribe to its neighbours' resources, too.
            let near =
                [every[number], every[(number + 1) % 100], every[(number + 7) % 100], "file:///"];
            let (received, honored) = client.follow(&near).await;
            assert_eq!(honored, [every[number]]);
            changes.push(received);
        }
        hub.until_subscribed(&every).await;
        for _ in 0..3 {
            for uri in &every {
                hub.update(uri);
            }
            for (received, own) in changes.iter_mut().zip(&every) {
                assert_eq!(received.next_update().await, *own);
            }
            pass(Duration::from_secs(2)).await;
        }
        for received in &mut changes {
            let more = tokio::time::timeout(Duration::from_millis(10), received.next()).await;
            assert!(more.is_err(), "{more:?}");
        }
        drop(changes);
        drop(clients);
        world.close().await;
    }
}
