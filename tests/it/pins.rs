//! Pinning: an item that is not approved is neither listed nor callable, whatever an upstream does.

use std::path::Path;
use std::time::Duration;

use weir_access::pins::PinFile;
use weir_mcp::kind::Kind;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, MODERN_STDIO};
use crate::client::Client;
use crate::upstream::{Script, definition};
use crate::world::{World, everywhere, hub, pass};

/// Longer than the interval of reading the lock file, and than the pause that combines changes.
const SOON: Duration = Duration::from_secs(3);

fn config(mode: &str, lock: &Path) -> String {
    format!("[guard]\npinning = \"{mode}\"\nlock_file = {:?}\n", lock.display().to_string())
}

fn changed(kind: Kind, name: &str) -> String {
    definition(kind, name).replacen('{', r#"{"description":"changed","#, 1)
}

/// The listed prompts; asserts that exactly those can be requested.
async fn reachable(client: &Client) -> Vec<String> {
    let prompts = client.prompts().await;
    for name in ["hub__a", "hub__b", "hub__c"] {
        let reply = client.get_prompt(name).await;
        assert_eq!(reply.outcome.is_ok(), prompts.iter().any(|it| it == name), "{name}: {reply:?}");
    }
    prompts
}

#[tokio::test(start_paused = true)]
async fn what_changes_is_gone_until_it_is_approved() {
    let folder = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    let scripts = |side| hub(side);
    // Each cell has a lock file of its own.
    for cell in crate::cell::matrix() {
        number.set(number.get() + 1);
        let lock = folder.path().join(format!("{}.lock", number.get()));
        let mut text = config("enforce", &lock);
        if cell.client == crate::cell::LEGACY_SSE {
            text = crate::world::with_pair(&text);
        }
        let world = World::start(scripts(cell.upstream), &text).await;
        let client = world.client(cell.client).await;
        assert_eq!(reachable(&client).await, ["hub__a", "hub__b"], "{cell}");
        let hub = world.upstream("hub");
        hub.change(Kind::Prompt, |list| {
            list[0] = changed(Kind::Prompt, "a");
            list.push(definition(Kind::Prompt, "c"));
        })
        .await;
        pass(SOON).await;
        assert_eq!(reachable(&client).await, ["hub__b"], "{cell}");
        // The new definitions are approved in the lock file; the upstream need not be asked again.
        let before = hub.count("prompts/list");
        let approved = PinFile::load(&lock).expect("it can be read").expect("it is there");
        let mut new = approved.clone();
        let pinned = new.upstreams.get_mut("hub").expect("hub is pinned");
        let prompts = pinned.kinds[0].as_mut().expect("prompts are pinned");
        for text in [changed(Kind::Prompt, "a"), definition(Kind::Prompt, "c")] {
            let name = if text.contains("changed") { "a" } else { "c" };
            prompts.insert(name.to_owned(), weir_access::pins::Digest::of(&text.into()));
        }
        new.save(&lock).expect("it can be written");
        pass(SOON).await;
        assert_eq!(reachable(&client).await, ["hub__a", "hub__b", "hub__c"], "{cell}");
        // The approval is withdrawn.
        approved.save(&lock).expect("it can be written");
        pass(SOON).await;
        assert_eq!(reachable(&client).await, ["hub__b"], "{cell}");
        assert_eq!(hub.count("prompts/list"), before, "{cell}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_served_of_what_only_an_operator_approves() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("weir.lock");
    everywhere(&config("locked", &lock), hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for kind in [Kind::Prompt, Kind::Tool, Kind::Template] {
            assert_eq!(client.list_all(kind).await, Vec::<String>::new());
        }
        assert_eq!(client.get_prompt("hub__a").await.code(), -32602);
        assert_eq!(client.call_tool("hub__a").await.code(), -32602);
        assert_eq!(client.list_all(Kind::Resource).await.len(), 2);
    })
    .await;
    assert!(!lock.exists(), "Weir wrote what only an operator writes");
}

#[tokio::test(start_paused = true)]
async fn what_is_only_told_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("weir.lock");
    everywhere(&config("alert", &lock), hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let new = changed(Kind::Prompt, "a");
        world.upstream("hub").change(Kind::Prompt, |list| list[0] = new).await;
        pass(SOON).await;
        assert_eq!(reachable(&client).await, ["hub__a", "hub__b"]);
    })
    .await;
    assert!(!lock.exists(), "nobody asked for a file");
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_comes_back_as_another_is_not_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("weir.lock");
    let config = config("enforce", &lock);
    for side in [MODERN_HTTP, LEGACY_HTTP, MODERN_STDIO] {
        let _ = std::fs::remove_file(&lock);
        let script = || Script::full(side).instructions("be kind");
        let world = World::start(vec![("hub", script())], &config).await;
        let client = world.client(MODERN_HTTP).await;
        assert_eq!(reachable(&client).await, ["hub__a", "hub__b"]);
        world.upstream("hub").change_quietly(Kind::Prompt, |list| {
            list[1] = changed(Kind::Prompt, "b");
        });
        world.upstream("hub").restart();
        pass(Duration::from_secs(120)).await;
        assert_eq!(reachable(&client).await, ["hub__a"], "{side}");
        drop(client);
        world.close().await;
        // A definition that has changed when Weir restarts is not approved either.
        let other = Script::full(side).prompts(&["c"]).instructions("be cruel");
        let world = World::start(vec![("hub", other)], &config).await;
        let client = world.client(MODERN_HTTP).await;
        assert_eq!(reachable(&client).await, ["hub__a", "hub__b"], "{side}");
        let about = client.request("server/discover", "{}").await;
        assert!(!about.result().contains("cruel"), "{about:?}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_sequence_of_edits_shows_what_was_not_approved() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("weir.lock");
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let _ = std::fs::remove_file(&lock);
        let script = Script::full(side).paged(1);
        let world = World::start(vec![("hub", script)], &config("enforce", &lock)).await;
        let client = world.client(MODERN_HTTP).await;
        let hub = world.upstream("hub");
        let good = ["a", "b"].map(|name| definition(Kind::Prompt, name));
        let public = ["a", "b"].map(|name| {
            definition(Kind::Prompt, name)
                .replace(&format!("\"{name}\""), &format!("\"hub__{name}\""))
        });
        // The pseudo-random numbers are equal in every run.
        let mut seed = 7_u32;
        let mut next = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for _ in 0..150 {
            let (what, at, loud) = (next(5), next(2) as usize, next(3) > 0);
            let edit = |list: &mut Vec<String>| match what {
                0 => *list = good.to_vec(),
                1 => list.retain(|item| *item != good[at]),
                2 => list.insert(0, changed(Kind::Prompt, ["a", "b"][at])),
                3 => list.push(definition(Kind::Prompt, "c")),
                _ => list.reverse(),
            };
            match loud {
                true => hub.change(Kind::Prompt, edit).await,
                false => hub.change_quietly(Kind::Prompt, edit),
            }
            pass(Duration::from_millis(u64::from(next(700)))).await;
            let page = client.page(Kind::Prompt, None).await;
            let listed = page.get("prompts").expect("a list").to_owned();
            let rest = public.iter().fold(listed.clone(), |rest, text| rest.replace(text, ""));
            assert_eq!(rest.trim_matches(['[', ']', ',']), "", "{listed}");
            assert_eq!(client.get_prompt("hub__c").await.code(), -32602);
        }
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_changes_only_in_what_is_redacted_is_held_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("weir.lock");
    let config = config("enforce", &lock) + "redact = { key = \"AKIA[A-Z]{4}\" }\n";
    let saying = |key: &str| {
        definition(Kind::Prompt, "a").replacen('{', &format!(r#"{{"description":"{key}","#), 1)
    };
    let script = |side| {
        vec![("hub", Script::new(side).raw(Kind::Prompt, &saying("AKIAABCD")).prompts(&["b"]))]
    };
    everywhere(&config, script, async |world, cell| {
        let client = world.client(cell.client).await;
        assert_eq!(reachable(&client).await, ["hub__a", "hub__b"]);
        let page = client.page(Kind::Prompt, None).await;
        let listed = page.get("prompts").expect("a list");
        assert!(listed.contains("\"[redacted:key]\"") && !listed.contains("AKIA"), "{listed}");
        let other = saying("AKIAWXYZ");
        world.upstream("hub").change(Kind::Prompt, |list| list[0] = other).await;
        pass(SOON).await;
        assert_eq!(reachable(&client).await, ["hub__b"]);
        let same = saying("AKIAABCD");
        world.upstream("hub").change(Kind::Prompt, |list| list[0] = same).await;
        pass(SOON).await;
        assert_eq!(reachable(&client).await, ["hub__a", "hub__b"]);
    })
    .await;
}
