//! Access to the store (TLS, a user with few rights), and the keys of the fleet.

use std::fs;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::lab::client::Client;
use crate::lab::ports::free_port;
use crate::lab::store::TestStore;
use crate::lab::{PATIENCE, until};
use crate::replicas::{HUB, Replicas, try_weir, weir};

/// Users of the store, with a placeholder for the hash of the password.
const USERS: &str = include_str!("../../deploy/valkey/users.acl");

/// Rights of a replica in its store.
pub(crate) fn rights() -> &'static str {
    let (_, rights) = USERS.split_once("#replace-me ").expect("a user");
    rights.trim_end()
}

#[tokio::test]
async fn replicas_use_a_store_with_tls_and_a_user_of_few_rights() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (ca_key, key) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, ca_key).expect("a CA");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &ca).expect("signed");
    fs::write(path("ca"), ca.pem()).expect("written");
    fs::write(path("certificate"), certificate.pem()).expect("written");
    fs::write(path("key"), key.serialize_pem()).expect("written");
    // The test itself is the default user.
    let acl = USERS
        .replace("user default off", "user default on nopass ~* +@all")
        .replace("#replace-me", ">hunter2");
    fs::write(path("acl"), acl).expect("written");
    let tls_port = free_port();
    let mut store = TestStore::start_with(&[
        "--tls-port",
        &tls_port.to_string(),
        "--tls-cert-file",
        &path("certificate"),
        "--tls-key-file",
        &path("key"),
        "--tls-ca-cert-file",
        &path("ca"),
        "--tls-auth-clients",
        "no",
        "--aclfile",
        &path("acl"),
    ])
    .await;
    let table = |password: &str| {
        format!(
            "{{ url = \"rediss://localhost:{tls_port}\", ca = {:?}, username = \"weir\", \
             password = \"{password}\" }}",
            path("ca")
        )
    };
    store.access = Some(table("hunter2"));
    let mut replicas = Replicas::prepare(store, "", "").await;
    replicas.add_all(2).await;
    let mut client = replicas.legacy(0).await;
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    assert!(client.call(HUB, json!({})).await.is_result());
    let (code, text) = replicas.command(1, "check");
    assert!(code == 0, "{text}");
    // A wrong password is said, and not shown.
    replicas.store.access = Some(table("hunter3"));
    replicas.configure(0, "");
    let (code, text) = replicas.command(0, "check");
    assert!(code != 0 && text.contains("username and password"), "{text}");
    assert!(!text.contains("hunter"), "{text}");
}

#[tokio::test]
async fn c08_keys_are_rotated_without_losing_a_session() {
    let mut replicas = Replicas::prepare(TestStore::start().await, "", "").await;
    let [old, new] = [0, 1].map(|_| weir(&["fleet", "key", "-"]).trim().to_owned());
    replicas.set_keys(&[&old]);
    replicas.add_all(2).await;
    let mut client = replicas.legacy(0).await;
    let mut dropped = false;
    for keys in [&[&*old, &*new][..], &[&*new, &*old][..], &[&*new][..]] {
        replicas.set_keys(keys);
        dropped = keys.len() == 1;
        for number in [0, 1] {
            replicas.replace(number).await;
            replicas.wait_until_known(2).await;
            for at in [0, 1] {
                client.move_to(&replicas[at].address);
                let outcome = client.call(HUB, json!({})).await;
                assert!(outcome.is_result() || dropped, "{number} replaced, {at}: {outcome:?}");
            }
        }
    }
    assert!(dropped && !client.call(HUB, json!({})).await.is_result(), "its key is gone");
    assert!(replicas.legacy(1).await.call(HUB, json!({})).await.is_result());
}

#[tokio::test]
async fn a_replica_with_another_key_is_not_ready_and_one_of_another_fleet_is_no_stranger() {
    let mut replicas = Replicas::start(1).await;
    replicas.set_keys(&[weir(&["fleet", "key", "-"]).trim()]);
    let stranger = replicas.add().await;
    replicas.until_command(stranger, "health", |code, _| code == 1).await;
    let (_, text) = replicas.command(stranger, "health");
    assert!(text.contains("other keys"), "{text}");
    assert!(replicas.legacy(0).await.call(HUB, json!({})).await.is_result(), "it serves on");
    // Under another name, a fleet shares the store and not the members.
    replicas.kill(stranger).await;
    replicas.configure(stranger, "");
    let path = replicas.config(stranger);
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, format!("{text}\nname = \"other\"\n")).expect("written");
    replicas.start_configured(stranger).await;
    replicas.until_command(stranger, "health", |code, _| code == 0).await;
    let (_, text) = replicas.command(stranger, "fleet");
    assert!(text.contains("fleet other: 1 replica"), "{text}");
}

/// Makes calls until another replica has taken their session over. None fails.
async fn call_until_taken_over(replicas: &Replicas, client: &mut Client) {
    let begin = Instant::now();
    while replicas.claims() == 0 {
        assert!(begin.elapsed() < PATIENCE, "no replica takes it over");
        assert!(client.call(HUB, json!({})).await.is_result());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_replica_that_stops_is_not_ready_and_still_serves() {
    let mut replicas = Replicas::start_announcing(2).await;
    let mut client = replicas.legacy(0).await;
    let mut weir = replicas.take(0);
    weir.signal(Signal::TERM);
    replicas.until_command(0, "health", |code, _| code == 1).await;
    assert!(client.call(HUB, json!({})).await.is_result(), "it still serves");
    client.move_to(&replicas[1].address);
    // The other takes it over as soon as it knows.
    call_until_taken_over(&replicas, &mut client).await;
    assert!(replicas.command(1, "fleet").1.contains("draining"));
    client.move_to(&weir.address);
    assert!(client.call(HUB, json!({})).await.is_result(), "it is sent on");
    weir.signal(Signal::TERM);
    assert_eq!(weir.ended().await, Some(0));
}

#[tokio::test]
async fn the_audit_log_names_the_replica_that_a_request_came_through() {
    let replicas = Replicas::start_with(2, "[audit]\nenabled = true\n", "").await;
    let mut client = replicas.through(1, async || replicas.legacy(0).await).await;
    assert!(client.call(HUB, json!({ "nonce": "through" })).await.is_result());
    let calls = |number: usize| {
        let path = replicas.folder(number).join("state/weir/audit.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let calls = text.lines().filter(|it| it.contains("tools/call")).map(str::to_owned);
        calls.collect::<Vec<_>>()
    };
    until("the replica that has the session has recorded it", || !calls(0).is_empty()).await;
    let line: serde_json::Value = serde_json::from_str(&calls(0)[0]).expect("JSON");
    assert_eq!((&line["via"], &line["from"]), (&json!("replica-1"), &json!("127.0.0.1")), "{line}");
    assert!(calls(1).is_empty(), "once: {:?}", calls(1));
}

#[tokio::test]
async fn each_order_of_the_steps_of_a_rotation_is_judged() {
    let mut replicas = Replicas::prepare(TestStore::start().await, "", "").await;
    let keys = [0, 1].map(|_| weir(&["fleet", "key", "-"]).trim().to_owned());
    let [old, new] = [&*keys[0], &*keys[1]];
    replicas.set_keys(&[old]);
    replicas.add().await;
    replicas.wait_until_known(1).await;
    let said = |replicas: &Replicas, keys: &[&str], arguments: &[&str]| {
        replicas.set_keys(keys);
        let config = replicas.config(0);
        let (_, out, error) = try_weir(&[arguments, &["--config", &config]].concat());
        format!("{out}{error}")
    };
    let status = |replicas: &Replicas, keys: &[&str]| {
        let text = said(replicas, keys, &["fleet", "key", "--status", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let rows = json["keys"].as_array().expect("a list").clone();
        rows.into_iter()
            .map(|row| {
                let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
                (text("key"), text("state"))
            })
            .collect::<Vec<_>>()
    };
    let rows = status(&replicas, &[old, new]);
    let [(old_id, first), (new_id, second)] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(first, "seals on replica-0");
    assert_eq!(second, "does not seal, and is not on replica-0");
    let check = |replicas: &Replicas, keys: &[&str]| said(replicas, keys, &["check"]);
    let text = check(&replicas, &[old, new]);
    assert!(!text.contains("key "), "the right step: {text}");
    let early = format!("key {new_id} is the first of fleet.keys, and replica-0 does not have it");
    let text = check(&replicas, &[new, old]);
    assert!(text.contains(&early), "promoted before it was added: {text}");
    let lost = format!("fleet.keys does not have key {old_id}");
    let other = format!("have other keys (they seal with key {old_id})");
    let text = check(&replicas, &[new]);
    assert!(text.contains(&lost) && text.contains(&other), "dropped while it seals: {text}");

    // The wrong step is taken nevertheless.
    replicas.set_keys(&[new, old]);
    replicas.add().await;
    replicas.wait_until_known(2).await;
    let wrong = format!("replica-1 seals with key {new_id}, which replica-0 does not have");
    for command in ["status", "fleet", "check"] {
        let (_, text) = replicas.command(1, command);
        assert!(text.contains(&wrong), "{command}: {text}");
    }
    let (_, text) = replicas.command(0, "status");
    assert!(text.contains(&format!("they seal with key {new_id}")), "{text}");
    replicas.replace(0).await;
    replicas.wait_until_known(2).await;
    let rows = status(&replicas, &[new, old]);
    assert_eq!(rows[0].1, "seals on replica-0, replica-1");
    assert!(rows[1].1.contains("it can be dropped after that"), "{rows:?}");
    let text = check(&replicas, &[new, old]);
    assert!(!text.contains("key "), "mended: {text}");
    let text = check(&replicas, &[new]);
    assert!(text.contains(&lost) && !text.contains("other keys"), "dropped too early: {text}");
    replicas.store.run::<usize>(&["HSET", "{weir}:keys", old_id, "0"]);
    let rows = status(&replicas, &[new, old]);
    assert!(rows[1].1.contains("since 1970-01-01T00:00:0"), "{rows:?}");
    assert!(rows[1].1.contains("it can be dropped") && !rows[1].1.contains("after"), "{rows:?}");
    let text = check(&replicas, &[new]);
    assert!(!text.contains("key "), "dropped in time: {text}");
}

#[tokio::test]
async fn a_session_that_was_ended_elsewhere_has_ended_at_once_on_a_replica_that_stops() {
    let replicas = Replicas::start_announcing(2).await;
    let mut client = replicas.legacy(0).await;
    replicas[0].signal(Signal::TERM);
    client.move_to(&replicas[1].address);
    replicas.until_command(0, "health", |code, _| code == 1).await;
    call_until_taken_over(&replicas, &mut client).await;
    assert_eq!(client.end_session().await, 204);
    client.move_to(&replicas[0].address);
    let outcome = client.call(HUB, json!({})).await;
    assert!(!outcome.is_result(), "{outcome:?}");
}

/// Sends all but the last byte of a request to a replica, on a new connection.
async fn begin_request(address: &str, session: &str) -> TcpStream {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{text}",
        text.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let (_, beginning) = request.as_bytes().split_last().expect("it is not empty");
    stream.write_all(beginning).await.expect("sent");
    stream
}

/// Sends the last byte of such a request, and returns the response.
async fn end_request(mut stream: TcpStream) -> String {
    stream.write_all(b"}").await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("text");
    response
}

#[tokio::test]
async fn a_replica_that_finishes_its_last_calls_serves_no_session_that_was_ended_elsewhere() {
    let mut replicas = Replicas::start(2).await;
    let (client, other) = (replicas.legacy(0).await, replicas.legacy(0).await);
    let [session, kept] = [&client, &other].map(|it| it.session().expect("a session"));
    let mut elsewhere = replicas.legacy(1).await;
    elsewhere.set_session(session);
    // Each keeps the process alive, and its own connection open, until its last byte.
    let last = begin_request(&replicas[0].address, session).await;
    let alive = begin_request(&replicas[0].address, kept).await;
    replicas[0].signal(Signal::TERM);
    let address = replicas[0].address.clone();
    until("it takes no connections", || std::net::TcpStream::connect(&address).is_err()).await;
    assert!(elsewhere.call(HUB, json!({})).await.is_result());
    assert_eq!(elsewhere.end_session().await, 204);
    let response = end_request(last).await;
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
    let response = end_request(alive).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(replicas.take(0).ended().await, Some(0));
}
