//! Merged lists: in a total order, in pages, from memory.

use std::time::Duration;

use tokio::time::Instant;
use weir_mcp::kind::Kind;

use crate::cell::{MODERN_HTTP, SIDES, Side};
use crate::client::{keys_of, object};
use crate::upstream::{Answer, Script, own_key};
use crate::world::{Scripts, World, everywhere, pass, settle};

/// Two upstreams that list two items of each kind, out of order.
fn two_upstreams(side: Side) -> Scripts {
    let script = |names: &[&str]| {
        Kind::ALL
            .into_iter()
            .fold(Script::new(side).paged(1), |script, kind| script.items(kind, names))
    };
    vec![("zeta", script(&["d", "c"])), ("alpha", script(&["b", "a"]))]
}

#[tokio::test(start_paused = true)]
async fn the_lists_of_all_upstreams_are_one_in_order() {
    everywhere("", two_upstreams, async |world, cell| {
        let client = world.client(cell.client).await;
        for kind in Kind::ALL {
            let expected = [("alpha", "a"), ("alpha", "b"), ("zeta", "c"), ("zeta", "d")];
            let expected = expected.map(|(upstream, name)| match kind.has_name() {
                true => format!("{upstream}__{name}"),
                false => own_key(kind, name),
            });
            assert_eq!(client.list_all(kind).await, expected);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_item_keeps_every_byte_but_its_name() {
    let odd = r#""title":"\u0041","x":1e300,"y":1.0,"z":{"b":1,"a":[]}"#;
    let scripts = |side| {
        let script = Script::new(side)
            .raw(Kind::Prompt, &format!(r#"{{"name":"a",{odd}}}"#))
            .raw(Kind::Tool, &format!(r#"{{"inputSchema":{{"type":"object"}},"name":"a",{odd}}}"#))
            .raw(Kind::Resource, &format!(r#"{{"uri":"x:a","name":"a",{odd}}}"#))
            .raw(Kind::Template, &format!(r#"{{"uriTemplate":"x:{{a}}","name":"a",{odd}}}"#));
        vec![("hub", script)]
    };
    everywhere("", scripts, async |world, cell| {
        let client = world.client(cell.client).await;
        for (kind, expected) in [
            (Kind::Prompt, format!(r#"[{{"name":"hub__a",{odd}}}]"#)),
            (
                Kind::Tool,
                format!(r#"[{{"inputSchema":{{"type":"object"}},"name":"hub__a",{odd}}}]"#),
            ),
            (Kind::Resource, format!(r#"[{{"uri":"x:a","name":"a",{odd}}}]"#)),
            (Kind::Template, format!(r#"[{{"uriTemplate":"x:{{a}}","name":"a",{odd}}}]"#)),
        ] {
            let page = client.page(kind, None).await;
            assert_eq!(page.get(kind.list_member()), Some(&*expected));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_long_list_comes_in_pages() {
    let scripts = |side| {
        let script = Script::new(side).paged(2).prompts(&["a", "b", "c"]);
        vec![("hub", script), ("zoo", Script::new(side).prompts(&["d", "e"]))]
    };
    everywhere("[protocol]\npage_size = 2", scripts, async |world, cell| {
        let client = world.client(cell.client).await;
        let (mut sizes, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let page = client.page(Kind::Prompt, cursor.as_deref()).await;
            sizes.push(keys_of(Kind::Prompt, &page).len());
            cursor = page.get_string("nextCursor").map(Into::into);
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(sizes, [2, 2, 1]);
        let expected = ["hub__a", "hub__b", "hub__c", "zoo__d", "zoo__e"];
        assert_eq!(client.prompts().await, expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_list_says_how_long_it_may_be_kept() {
    let world = World::start(two_upstreams(MODERN_HTTP), "").await;
    let client = world.client(MODERN_HTTP).await;
    for kind in Kind::ALL {
        let page = client.page(kind, None).await;
        assert_eq!(page.get("resultType"), Some("\"complete\""));
        assert_eq!(page.get("cacheScope"), Some("\"public\""));
        assert!(page.get("ttlMs").expect("a time to live").parse::<u64>().is_ok());
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_misses_an_upstream_says_so() {
    let scripts = |side| {
        let down = Script::full(side).down();
        vec![("hub", Script::new(side).prompts(&["a"])), ("ill", down)]
    };
    everywhere("", scripts, async |world, cell| {
        let client = world.client(cell.client).await;
        let page = client.page(Kind::Prompt, None).await;
        assert_eq!(keys_of(Kind::Prompt, &page), ["hub__a"]);
        let meta = page.get_object("_meta").expect("_meta");
        assert_eq!(meta.get("weir/partial"), Some(r#"["ill"]"#));

        world.upstream("ill").come_up();
        world.upstream("ill").until_count("prompts/list", 1).await;
        world.upstream("ill").until_count("resources/templates/list", 1).await;
        settle().await;
        let page = client.page(Kind::Prompt, None).await;
        assert_eq!(keys_of(Kind::Prompt, &page), ["hub__a", "ill__a", "ill__b"]);
        assert!(page.get_object("_meta").is_none_or(|meta| !meta.has("weir/partial")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_goes_down_keeps_its_place_in_the_list() {
    everywhere("", two_upstreams, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = client.prompts().await;
        world.upstream("alpha").go_down();
        pass(Duration::from_secs(1)).await;
        assert_eq!(client.prompts().await, before);
        let reply = client.get_prompt("zeta__c").await;
        assert!(reply.outcome.is_ok(), "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_upstream_delays_only_the_first_moment() {
    for side in SIDES {
        for client_side in SIDES {
            let scripts =
                vec![("hub", Script::new(side).prompts(&["a"])), ("slow", Script::full(side))];
            let start = Instant::now();
            let world = World::open(scripts, "[protocol]\nlist_wait = \"3s\"");
            world.upstream("slow").answer("prompts/list", Answer::Silence);
            let client = world.client(client_side).await;
            assert_eq!(start.elapsed(), Duration::ZERO, "{side}");
            assert_eq!(client.prompts().await, ["hub__a"], "{side}");
            assert_eq!(start.elapsed(), Duration::from_secs(3), "{side}");
            let later = Instant::now();
            assert_eq!(client.prompts().await, ["hub__a"], "{side}");
            assert_eq!(later.elapsed(), Duration::ZERO, "{side}");
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_walk_through_a_thousand_prompts_asks_no_upstream() {
    let names: Vec<_> = (0..100).map(|number| format!("p{number:02}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let upstreams = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let scripts = upstreams.iter().enumerate();
    let scripts = scripts.map(|(at, name)| (*name, Script::new(SIDES[at % 4]).prompts(&names)));
    let world = World::start(scripts.collect(), "").await;
    for side in SIDES {
        let client = world.client(side).await;
        let before = world.requests();
        let keys = client.prompts().await;
        assert_eq!(keys.len(), 1_000, "{side}");
        assert!(keys.is_sorted(), "{side}");
        assert_eq!(world.requests(), before, "{side}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn f37l_a_definition_that_is_no_item_costs_its_siblings_nothing() {
    let scripts = |side| {
        let script = Script::new(side)
            .raw(Kind::Prompt, "7")
            .raw(Kind::Prompt, r#"{"title":"no name"}"#)
            .raw(Kind::Prompt, r#"{"name":"good"}"#)
            .raw(Kind::Prompt, r#"{"name":"good","title":"again"}"#);
        vec![("hub", script)]
    };
    everywhere("", scripts, async |world, cell| {
        let client = world.client(cell.client).await;
        let page = client.request("prompts/list", "{}").await;
        let list = object(page.result()).get("prompts").map(str::to_owned);
        assert_eq!(list.as_deref(), Some(r#"[{"name":"hub__good"}]"#));
    })
    .await;
}
