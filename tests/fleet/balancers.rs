//! nginx and Caddy, with the files of `deploy/`, in front of three replicas of which two are
//! killed: one between two calls, and one in a call.

use serde_json::json;

use crate::lab::caddy::Caddy;
use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::nginx::Nginx;
use crate::lab::{until, until_disconnected};
use crate::replicas::{HUB, Replicas};

#[tokio::test]
async fn behind_nginx_a_killed_replica_fails_no_later_call_and_its_own_is_not_repeated() {
    let replicas = Replicas::start(3).await;
    let nginx = Nginx::start(&addresses(&replicas));
    kill_two(replicas, &nginx.address).await;
}

#[tokio::test]
async fn behind_caddy_a_killed_replica_fails_no_later_call_and_its_own_is_not_repeated() {
    let replicas = Replicas::start(3).await;
    let caddy = Caddy::start("127.0.0.1", &addresses(&replicas));
    kill_two(replicas, &caddy.address).await;
}

fn addresses(replicas: &Replicas) -> Vec<String> {
    (0..3).map(|number| replicas[number].address.clone()).collect()
}

async fn kill_two(mut replicas: Replicas, balancer: &str) {
    let mut legacy = Client::http(balancer, Revision::LEGACY, None).await;
    let mut modern = Client::http(balancer, Revision::MODERN, None).await;
    let session = legacy.session().expect("a session").to_owned();
    all_succeed(&replicas, [&mut legacy, &mut modern], "before").await;
    kill(&mut replicas, 0).await;
    all_succeed(&replicas, [&mut legacy, &mut modern], "after").await;

    // A modern call runs on the replica that gets it.
    let arguments = json!({ "nonce": "lost", "fault": json!({ "never": true }).to_string() });
    let calling = modern.call(HUB, arguments);
    let killing = async {
        until("it is executed", || replicas.executions("lost") == 1).await;
        let has_it =
            |number: &usize| replicas.command(*number, "status").1.contains(" 1 in flight");
        let busy: Vec<_> = [1, 2].into_iter().filter(has_it).collect();
        assert_eq!(busy.len(), 1);
        kill(&mut replicas, busy[0]).await;
    };
    let (outcome, ()) = tokio::join!(calling, killing);
    assert!(matches!(&outcome, Outcome::Broken(text) if text.starts_with("502")), "{outcome:?}");
    all_succeed(&replicas, [&mut legacy, &mut modern], "at last").await;
    assert_eq!(replicas.executions("lost"), 1);
    assert_eq!(legacy.session(), Some(&*session));
}

/// Each client makes more calls than there are replicas, and each is executed once.
async fn all_succeed(replicas: &Replicas, clients: [&mut Client; 2], when: &str) {
    for client in clients {
        for number in 0..6 {
            let nonce = format!("{when} {:?} {number}", client.revision);
            let outcome = client.call(HUB, json!({ "nonce": nonce })).await;
            assert!(outcome.is_result(), "{nonce}: {outcome:?}");
            assert_eq!(replicas.executions(&nonce), 1, "{nonce}");
        }
    }
}

/// Kills a replica, and waits until the balancer has closed its connections to it: a call that it
/// sends before it knows of their end may fail.
async fn kill(replicas: &mut Replicas, number: usize) {
    let address = replicas[number].address.clone();
    replicas.kill(number).await;
    until_disconnected(&address).await;
}
