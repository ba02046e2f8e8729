//! `weir fleet`, `weir fleet key`, and what `weir check` says of the store.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::lab::store::TestStore;
use crate::lab::store_set::DelayingProxy;
use crate::replicas::{DEFAULT_STORE_WAIT, Replicas, try_weir, weir};

#[tokio::test]
async fn the_members_are_shown_with_what_differs() {
    let replicas = Replicas::start(2).await;
    let config = replicas.config(0);
    let shown = weir(&["fleet", "--config", &config]);
    for part in ["replica-0", "replica-1", "127.0.0.1:", env!("CARGO_PKG_VERSION")] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let json = weir(&["fleet", "--json", "--config", &config]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let names: Vec<_> =
        json["members"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["replica-0", "replica-1"]);
}

#[tokio::test]
async fn a_status_names_the_fleet_and_what_differs_in_it() {
    let mut replicas = Replicas::start(2).await;
    let (code, text) = replicas.command(0, "status");
    assert!(code == 0 && text.contains("weir as replica-0, 2 replicas, store connected"), "{text}");
    replicas.take(1).stop().await;
    replicas.configure(1, "[protocol]\npage_size = 7\n");
    replicas.start_configured(1).await;
    for command in ["status", "fleet"] {
        let is_said = |_, text: &str| text.contains("several configurations");
        replicas.until_command(0, command, is_said).await;
    }
}

#[tokio::test]
async fn a_killed_replica_is_not_shown_as_serving_beside_its_successor() {
    let mut replicas = Replicas::start(2).await;
    replicas.kill(1).await;
    replicas.start_configured(1).await;
    let shown = weir(&["fleet", "--config", &replicas.config(0)]);
    let states: Vec<_> = shown.lines().map(|line| line.split("  ").next()).collect();
    let count = |state: &str| states.iter().filter(|it| **it == Some(state)).count();
    assert_eq!((count("serving"), count("draining")), (2, 0), "{shown}");
    // Its record has expired if the start took long.
    assert!(count("replaced") <= 1 && shown.contains(": 2 replicas,"), "{shown}");
    for difference in ["several", "same address"] {
        assert!(!shown.contains(difference), "{shown}");
    }
}

#[tokio::test]
async fn a_reload_changes_what_the_others_are_shown() {
    let replicas = Replicas::start(2).await;
    let path = replicas.config(1);
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, format!("{text}\n[protocol]\npage_size = 7\n")).expect("written");
    let (code, text) = replicas.command(1, "reload");
    assert_eq!(code, 0, "{text}");
    let is_said = |_, text: &str| text.contains("several configurations");
    replicas.until_command(0, "fleet", is_said).await;
}

#[test]
fn a_key_is_made_once_and_for_its_owner_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys");
    let file = path.to_str().expect("text");
    weir(&["fleet", "key", file]);
    let text = fs::read_to_string(&path).expect("written");
    assert_eq!(
        (text.trim().len(), fs::metadata(&path).expect("there").mode() & 0o777),
        (43, 0o600)
    );
    let (code, _, error) = try_weir(&["fleet", "key", file]);
    assert!(code != 0 && error.contains("exists"), "{error}");
    assert_eq!(fs::read_to_string(&path).expect("there"), text);
    assert_eq!(weir(&["fleet", "key", "-"]).trim().len(), 43);
}

#[tokio::test]
async fn a_check_says_what_is_wrong_with_the_store() {
    let store =
        TestStore::start_with(&["--maxmemory", "10mb", "--maxmemory-policy", "allkeys-lru"]);
    let mut replicas = Replicas::prepare(store.await, "", "").await;
    replicas.reserve();
    replicas.configure(0, "");
    let config = replicas.config(0);
    let (code, out, error) = try_weir(&["check", "--config", &config]);
    assert!(code == 0 && error.contains("allkeys-lru"), "{out}{error}");
    replicas.store.kill().await;
    let (code, out, error) = try_weir(&["check", "--config", &config]);
    assert!(code != 0 && error.contains("fleet.store"), "{out}{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_waits_longer_for_the_store_than_a_request() {
    let store = TestStore::start().await;
    let proxy = DelayingProxy::start(store.port).await;
    let mut replicas = Replicas::prepare(store, "", "").await;
    replicas.store.access = Some(format!("{{ url = \"redis://127.0.0.1:{}\" }}", proxy.port));
    replicas.store_wait = DEFAULT_STORE_WAIT;
    replicas.reserve();
    replicas.configure(0, "");
    proxy.set(Duration::from_millis(300));
    for command in ["check", "fleet"] {
        let (code, text) = replicas.command(0, command);
        assert_eq!(code, 0, "{command}: {text}");
    }
}

#[tokio::test]
async fn replicas_with_the_same_address_are_told_and_the_later_one_is_not_ready() {
    let address = format!("127.0.0.1:{}", crate::lab::ports::free_port());
    let fleet = format!("advertise = {address:?}\n");
    let replicas = Replicas::start_with(2, "", &fleet).await;
    let is_said = |_, text: &str| {
        // The page wraps its lines.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_said = text.contains(&format!("have the same address {address}"));
        is_said && ["replica-0", "replica-1"].iter().all(|name| text.contains(name))
    };
    for command in ["status", "fleet"] {
        replicas.until_command(0, command, is_said).await;
    }
    let health = [0, 1].map(|number| replicas.command(number, "health"));
    let unready: Vec<_> = health.iter().filter(|(code, _)| *code != 0).collect();
    let [(_, text)] = &unready[..] else { panic!("{health:?}") };
    assert!(text.contains("advertise"), "{text}");
    let is_logged = |number: usize| {
        let log = replicas[number].log();
        log.iter().any(|line| line.contains("has the address of this one"))
    };
    assert!(is_logged(0) != is_logged(1));
}
