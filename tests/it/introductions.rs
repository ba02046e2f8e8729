//! Weir's own handshake: capabilities, instructions, server info, and how long they may be cached.

use std::time::Duration;

use tokio::time::Instant;

use weir_base::json::Object;
use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;

use crate::cell::{LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, SIDES, Side, Transport};
use crate::client::{Client, object, string};
use crate::upstream::{Answer, Script};
use crate::world::{World, hub, pass};

const APPS: &str = r#"{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}"#;

/// Result of the opening request of this side.
pub(crate) async fn introduction(world: &World, role: Option<&str>, side: Side) -> Object {
    let client: Client;
    let reply = if side.is_modern() {
        client = match role {
            Some(role) => world.client_as(role, side).await,
            None => world.client(side).await,
        };
        client.request("server/discover", "{}").await
    } else {
        let key = role.map(crate::world::key_of);
        client = match role {
            Some(role) if side.transport == Transport::Stdio => world.client_as(role, side).await,
            _ => world.uninitialized_client(side, key.as_deref()),
        };
        let params = format!(
            r#"{{"protocolVersion":"{}","capabilities":{{}},"clientInfo":{{"name":"x","version":"1"}}}}"#,
            side.revision
        );
        client.request("initialize", &params).await
    };
    object(reply.result())
}

fn capabilities(introduction: &Object) -> String {
    let mut capabilities = introduction.get_object("capabilities").expect("capabilities");
    for topic in ["prompts", "tools", "resources"] {
        let always = capabilities.take(topic).map(string);
        assert_eq!(always.as_deref(), Some(r#"{"listChanged":true}"#), "{topic}");
    }
    string(capabilities.to_bytes())
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_the_union_of_what_the_visible_upstreams_have() {
    let declares = |rest: &str| format!(r#"{{"prompts":{{}},"tools":{{}}{rest}}}"#);
    let config = r#"
        [upstreams.zoo]
        [upstreams.hub]
        [roles.staff]
        prompts.allow = ["*"]
        tools.allow = ["*"]
        [roles.guest]
        tools.allow = ["hub/*"]
        [roles.stranger]
        tools.allow = []
    "#;
    for upstream in SIDES {
        let zoo = declares(
            r#","completions":{},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"io.modelcontextprotocol/tasks":{},"x/a":{"of":"zoo","n":1e300}},"experimental":{"e":{"n":1.0}}"#,
        );
        let hub = declares(r#","extensions":{"x/a":{"of":"hub"},"x/b":{}}"#);
        let script = |capabilities: &str| Script::full(upstream).capabilities(capabilities);
        let scripts = vec![("zoo", script(&zoo)), ("hub", script(&hub))];
        let world = World::start(scripts, config).await;
        let ui = &APPS[1..APPS.len() - 1];
        let some = r#"{"extensions":{"x/a":{"of":"hub"},"x/b":{}}}"#;
        for side in [MODERN_HTTP, LEGACY_HTTP, MODERN_STDIO] {
            // The tasks of the two eras differ and are not translated into each other.
            let tasks = match upstream.is_modern() && side.is_modern() {
                true => r#""io.modelcontextprotocol/tasks":{},"#,
                false => "",
            };
            let all = format!(
                r#"{{"completions":{{}},"extensions":{{{ui},{tasks}"x/a":{{"of":"zoo","n":1e300}},"x/b":{{}}}},"experimental":{{"e":{{"n":1.0}}}}}}"#
            );
            for (role, expected) in [("staff", &*all), ("guest", some), ("stranger", "{}")] {
                let found = introduction(&world, Some(role), side).await;
                assert_eq!(capabilities(&found), expected, "{role} over {side} of {upstream}");
            }
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_introduction_waits_for_no_upstream_and_declares_what_one_may_turn_out_to_have() {
    let config = r#"
        [upstreams.hub]
        [upstreams.slow]
        [roles.staff]
        prompts.allow = ["*"]
        [roles.guest]
        prompts.allow = ["hub/*"]
    "#;
    for side in SIDES {
        let scripts = vec![("hub", Script::full(side)), ("slow", Script::full(side))];
        let world = World::open(scripts, config);
        world.upstream("slow").answer("prompts/list", Answer::Silence);
        let start = Instant::now();
        let declared = async |role| {
            let found = introduction(&world, Some(role), side).await;
            string(found.get_object("capabilities").expect("capabilities").to_bytes())
        };
        let mut all = vec![r#""subscribe":true"#, "logging", "io.modelcontextprotocol/ui"];
        all.extend((side.revision >= Revision::V2025_03_26).then_some("completions"));
        let tasks = r#""tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}"#;
        all.extend((side.revision == Revision::V2025_11_25).then_some(tasks));
        all.extend(side.is_modern().then_some("io.modelcontextprotocol/tasks"));
        let early = declared("staff").await;
        assert!(all.iter().all(|text| early.contains(text)), "{side}: {early}");
        // The slow one has nothing for this role.
        let other = declared("guest").await;
        assert!(!other.contains("logging"), "{side}: {other}");
        assert_eq!(start.elapsed(), Duration::ZERO, "{side}");
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_revision_hears_of_no_capability_that_it_does_not_have() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for (revision, expected) in [
        (Revision::V2024_11_05, "{}"),
        (Revision::V2025_03_26, r#"{"completions":{}}"#),
        (Revision::V2025_06_18, r#"{"completions":{}}"#),
        (Revision::V2025_11_25, r#"{"completions":{}}"#),
        (Revision::V2026_07_28, r#"{"completions":{}}"#),
    ] {
        let found = introduction(&world, None, Side::new(revision, Transport::Stdio)).await;
        assert_eq!(capabilities(&found), expected, "{revision}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn extensions_of_a_client_reach_its_upstream_but_for_those_that_are_not_carried() {
    for upstream in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(upstream), "").await;
        let declared = format!(
            r#"{{"roots":{{}},"extensions":{{{},"io.modelcontextprotocol/tasks":{{}},"x/a":{{"n":1e400}}}}}}"#,
            &APPS[1..APPS.len() - 1]
        );
        let offered = || {
            let seen = object(&string(world.upstream("hub").last("tools/call").params));
            let meta = seen.get_object("_meta").expect("_meta");
            meta.get("io.modelcontextprotocol/clientCapabilities").map(str::to_owned)
        };
        let client = world.client(MODERN_HTTP).await;
        let params = format!(
            r#"{{"name":"hub__a","_meta":{{"io.modelcontextprotocol/clientCapabilities":{declared}}}}}"#
        );
        assert!(client.request("tools/call", &params).await.outcome.is_ok());
        assert_eq!(offered().as_deref(), Some(&*declared));
        drop(client);
        let client = world.uninitialized_client(LEGACY_STDIO, None);
        let params = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{declared},"clientInfo":{{"name":"x","version":"1"}}}}"#
        );
        client.request("initialize", &params).await;
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
        let offered = object(&offered().expect("capabilities"));
        // The tasks of the two eras differ and are not translated into each other.
        let carried = declared.replace(r#""io.modelcontextprotocol/tasks":{},"#, "");
        let carried = object(&carried).get("extensions").map(str::to_owned);
        assert_eq!(offered.get("extensions"), carried.as_deref());
        assert!(!offered.has("roots") || offered.get("roots") == Some("{}"));
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn instructions_are_those_of_the_upstreams_that_a_client_can_see() {
    let config = r#"
        [upstreams.zoo]
        [upstreams.hub]
        [roles.staff]
        tools.allow = ["*"]
        [roles.guest]
        tools.allow = ["hub/a"]
        [roles.stranger]
        tools.allow = []
    "#;
    let both = "# zoo\n\n(The names of its prompts and tools begin with `zoo__` here.)\n\nFeed \"them\".\n\n# hub\n\n(The names of its prompts and tools begin with `hub__` here.)\n\nPlug it in.";
    for upstream in SIDES {
        let zoo = Script::full(upstream).instructions("Feed \"them\".\n");
        let scripts =
            vec![("zoo", zoo), ("hub", Script::full(upstream).instructions("Plug it in."))];
        let world = World::start(scripts, config).await;
        for side in [MODERN_HTTP, LEGACY_HTTP, MODERN_STDIO] {
            for (role, expected) in [
                ("staff", Some(both)),
                ("guest", both.find("# hub").map(|at| &both[at..])),
                ("stranger", None),
            ] {
                let found = introduction(&world, Some(role), side).await;
                let found = found.get_string("instructions");
                assert_eq!(found.as_deref(), expected, "{role} over {side} of {upstream}");
            }
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn instructions_of_the_only_upstream_come_without_a_heading_and_can_be_off() {
    let long = format!("{}ä{}", "x".repeat(8 * 1024 - 1), "x".repeat(10_000));
    let cut = format!("{}\n\n[cut here: 8191 of 18193 bytes]", "x".repeat(8 * 1024 - 1));
    for (config, sent, expected) in [
        ("[naming]\nmode = \"none\"", "Plug it in.", Some("Plug it in.")),
        ("[naming]\nmode = \"none\"", " \n", None),
        ("[naming]\nmode = \"none\"", &long, Some(&*cut)),
        ("[naming]\nmode = \"none\"\n[protocol]\ninstructions = false", "Plug it in.", None),
    ] {
        let scripts = vec![("hub", Script::full(MODERN_HTTP).instructions(sent))];
        let world = World::start(scripts, config).await;
        for side in [MODERN_HTTP, LEGACY_HTTP] {
            let found = introduction(&world, None, side).await;
            assert_eq!(found.get_string("instructions").as_deref(), expected, "{side}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn weir_says_who_it_is() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(r#"{{"name":"weir","title":"Weir","version":"{version}"}}"#);
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let found = introduction(&world, None, side).await;
        let meta = found.get_object("_meta").unwrap_or_default();
        let found =
            found.get("serverInfo").or_else(|| meta.get("io.modelcontextprotocol/serverInfo"));
        assert_eq!(found, Some(&*expected), "{side}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_said_may_be_kept_as_the_upstreams_and_the_rules_allow() {
    let script = |ttl_ms| Script::full(MODERN_HTTP).ttl_ms(ttl_ms);
    let all = "tools.allow = [\"*\"]\nprompts.allow = [\"*\"]\nresources.allow = [\"*\"]";
    let config =
        format!("[roles.staff]\n{all}\n[protocol]\npage_size = 1\n[auth]\nmode = \"anonymous\"");
    let hints = async |world: &World, role: Option<&str>| {
        let client = match role {
            Some(role) => world.client_as(role, MODERN_HTTP).await,
            None => world.client(MODERN_HTTP).await,
        };
        let (mut hints, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let page = client.page(Kind::Tool, cursor.as_deref()).await;
            let scope = page.get_string("cacheScope").expect("a scope").into_owned();
            hints.push((page.get("ttlMs").expect("a time").to_owned(), scope));
            cursor = page.get_string("nextCursor").map(Into::into);
            if cursor.is_none() {
                return hints;
            }
        }
    };
    let hint = |ttl: &str, scope: &str| (ttl.to_owned(), scope.to_owned());
    // The time to live is the smallest of the upstreams' and Weir's own minute, less the elapsed
    // time.
    for (a, b, after, expected) in [
        (3_600_000, 3_600_000, 0, "60000"),
        (3_600_000, 30_000, 0, "30000"),
        (3_600_000, 30_000, 10, "20000"),
        (0, 30_000, 0, "0"),
    ] {
        let world = World::start(vec![("a", script(a)), ("b", script(b))], &config).await;
        pass(Duration::from_secs(after)).await;
        assert_eq!(hints(&world, None).await, vec![hint(expected, "public"); 4], "{a} {b}");
        assert_eq!(hints(&world, Some("staff")).await, vec![hint(expected, "private"); 4]);
        let discovered = introduction(&world, None, MODERN_HTTP).await;
        let found = (discovered.get("ttlMs"), discovered.get("cacheScope"));
        assert_eq!(found, (Some("0"), Some("\"private\"")));
        world.close().await;
    }
    // If one upstream's list differs between clients, the merged one does as well.
    let scripts = vec![("a", script(3_600_000)), ("b", script(3_600_000).private())];
    let world = World::start(scripts, &config).await;
    assert_eq!(hints(&world, None).await, vec![hint("60000", "private"); 4]);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_says_nothing_of_caching_is_not_to_be_cached() {
    let contents = r#""contents":[{"uri":"file:///a","text":"\u0041"}]"#;
    for (sent, expected) in [
        ("", r#""ttlMs":0,"cacheScope":"private""#),
        (r#","ttlMs":5"#, r#""ttlMs":5,"cacheScope":"private""#),
        (r#","cacheScope":"public""#, r#""cacheScope":"public","ttlMs":0"#),
        (r#","ttlMs":5,"cacheScope":"public""#, r#""ttlMs":5,"cacheScope":"public""#),
    ] {
        let world = World::start(hub(MODERN_HTTP), "").await;
        let client = world.client(MODERN_HTTP).await;
        let result = format!(r#"{{"resultType":"complete",{contents}{sent}}}"#);
        world.upstream("hub").result("resources/read", &result);
        let reply = client.read("file:///a").await;
        let expected = format!(r#"{{"resultType":"complete",{contents},{expected}}}"#);
        assert_eq!(reply.result(), expected);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_listed_as_by_a_client_that_shows_apps() {
    for upstream in SIDES {
        let world = World::start(hub(upstream), "").await;
        let (method, member) = match upstream.is_modern() {
            true => ("tools/list", "io.modelcontextprotocol/clientCapabilities"),
            false => ("initialize", "capabilities"),
        };
        let seen = object(&string(world.upstream("hub").last(method).params));
        let seen = seen.get_object("_meta").unwrap_or(seen);
        let declared = seen.get_object(member).expect("capabilities");
        assert_eq!(declared.get("extensions"), Some(APPS), "{upstream}");
        world.close().await;
    }
}
