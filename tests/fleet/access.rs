//! Access to the store (TLS, a user with few rights), and the keys of the fleet.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;

use crate::lab::store::{TestStore, free_port};
use crate::lab::until;
use crate::replicas::{HUB, Replicas, weir};

/// Rights of a replica in its store.
const RIGHTS: &str = "~{weir}* -@all +evalsha +script|load +time +info +hset +hget +hmget +hdel +hlen \
                      +hgetall +zadd +zrem +zrangebyscore +zscore +incr +get +set +pexpire";

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
    let acl = format!("user default on nopass ~* +@all\nuser weir on >hunter2 {RIGHTS}\n");
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
    for _ in 0..2 {
        replicas.add().await;
    }
    replicas.wait_until_known(2).await;
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
    let mut replicas = Replicas::start(2).await;
    let [old, new] = [0, 1].map(|_| weir(&["fleet", "key", "-"]).trim().to_owned());
    replicas.set_keys(&[&old]);
    for number in [0, 1] {
        replicas.replace(number).await;
    }
    replicas.wait_until_known(2).await;
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
    until("it has noticed", || replicas.command(stranger, "health").0 == 1).await;
    let (_, text) = replicas.command(stranger, "health");
    assert!(text.contains("other keys"), "{text}");
    assert_eq!(replicas.command(0, "health").0, 0, "the first one serves on");
    // Under another name, a fleet shares the store and not the members.
    replicas.kill(stranger).await;
    replicas.configure(stranger, "");
    let path = replicas.config(stranger);
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, format!("{text}\nname = \"other\"\n")).expect("written");
    replicas.start_configured(stranger).await;
    until("it is ready", || replicas.command(stranger, "health").0 == 0).await;
    let (_, text) = replicas.command(stranger, "fleet");
    assert!(text.contains("fleet other: 1 replica"), "{text}");
}

#[tokio::test]
async fn a_replica_that_stops_is_not_ready_and_still_serves() {
    let mut replicas = Replicas::start(2).await;
    let mut client = replicas.legacy(0).await;
    let mut weir = replicas.take(0);
    weir.signal(rustix::process::Signal::TERM);
    until("it is not ready", || replicas.command(0, "health").0 == 1).await;
    assert!(client.call(HUB, json!({})).await.is_result(), "it still serves");
    client.move_to(&replicas[1].address);
    // The other takes it over as soon as it knows.
    while replicas.store.run::<usize>(&["HLEN", "{weir}:claims"]) == 0 {
        assert!(client.call(HUB, json!({})).await.is_result());
    }
    assert!(replicas.command(1, "fleet").1.contains("draining"));
    client.move_to(&weir.address);
    assert!(client.call(HUB, json!({})).await.is_result(), "it is sent on");
    assert_eq!(weir.ended().await, Some(0));
}

#[tokio::test]
async fn a_session_that_was_ended_elsewhere_has_ended_at_once_on_a_replica_that_stops() {
    let mut replicas = Replicas::start(2).await;
    let mut client = replicas.legacy(0).await;
    let weir = replicas.take(0);
    weir.signal(rustix::process::Signal::TERM);
    client.move_to(&replicas[1].address);
    until("it is not ready", || replicas.command(0, "health").0 == 1).await;
    while replicas.store.run::<usize>(&["HLEN", "{weir}:claims"]) == 0 {
        assert!(client.call(HUB, json!({})).await.is_result());
    }
    assert_eq!(client.end_session().await, 204);
    client.move_to(&weir.address);
    let outcome = client.call(HUB, json!({})).await;
    assert!(!outcome.is_result(), "{outcome:?}");
}

#[tokio::test]
async fn a_replica_that_finishes_its_last_calls_serves_no_session_that_was_ended_elsewhere() {
    let mut replicas = Replicas::start(2).await;
    let mut client = replicas.legacy(0).await;
    let mut elsewhere = replicas.legacy(1).await;
    elsewhere.set_session(client.session().expect("a session"));
    assert!(client.call(HUB, json!({})).await.is_result(), "its connection stays open");
    // This call keeps the process alive.
    let mut slow = replicas.legacy(0).await;
    let fault = json!({ "delay_ms": 5_000 }).to_string();
    let slow = slow.call(HUB, json!({ "nonce": "slow", "fault": fault }));
    let ending = async {
        until("it is executed", || replicas.executions("slow") == 1).await;
        let weir = replicas.take(0);
        weir.signal(rustix::process::Signal::TERM);
        until("it takes no connections", || std::net::TcpStream::connect(&weir.address).is_err())
            .await;
        assert!(elsewhere.call(HUB, json!({})).await.is_result());
        assert_eq!(elsewhere.end_session().await, 204);
        let outcome = client.call(HUB, json!({})).await;
        assert!(!outcome.is_result(), "{outcome:?}");
        weir
    };
    let (outcome, mut weir) = tokio::join!(slow, ending);
    assert!(outcome.is_result(), "{outcome:?}");
    assert_eq!(weir.ended().await, Some(0));
}
