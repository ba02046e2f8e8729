//! Upstreams with a connection for each client (`sharing = "client"`).

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::example;
use crate::replicas::Replicas;

/// Name of the server that each client has for itself.
const OWN: &str = "own";

pub(crate) struct World {
    pub(crate) replicas: Replicas,
    folder: PathBuf,
    /// Removes the folder at the end.
    _folder: tempfile::TempDir,
}

impl World {
    pub(crate) async fn start(count: usize) -> Self {
        let made = tempfile::TempDir::new().expect("a folder");
        let folder = made.path().to_owned();
        fs::write(folder.join("script.json"), "{}").expect("written");
        let config = format!(
            "[upstreams.{OWN}]\ncommand = {:?}\nargs = [{folder:?}, \"stdio\"]\nsharing = \"client\"\n",
            example("evil_upstream")
        );
        let replicas = Replicas::start_with(count, &config, "").await;
        for number in replicas.numbers() {
            replicas[number].wait_until_listed(OWN).await;
        }
        Self { replicas, folder, _folder: made }
    }

    /// Number of processes of the server that were started.
    pub(crate) fn processes(&self) -> usize {
        fs::read_to_string(self.folder.join("pids")).unwrap_or_default().lines().count()
    }

    pub(crate) async fn call(&self, client: &mut Client, nonce: &str) -> Outcome {
        client.call(OWN, json!({ "nonce": nonce })).await
    }

    /// Opens the connection of a client with its first call, and returns its replica.
    pub(crate) async fn open_connection(&self, client: &mut Client) -> usize {
        assert!(self.call(client, "first").await.is_result());
        let holds = |number: &usize| self.replicas[*number].resources().children > 1;
        self.replicas.numbers().find(holds).expect("a replica has it")
    }
}

#[tokio::test]
async fn a_client_without_sessions_has_one_connection_in_the_whole_fleet() {
    let mut world = World::start(3).await;
    let listed = world.processes();
    let mut client = world.replicas[0].client(Revision::MODERN).await;
    for turn in 0..9 {
        client.move_to(&world.replicas[turn % 3].address);
        let outcome = client.call(OWN, json!({ "nonce": turn.to_string() })).await;
        assert!(outcome.is_result(), "{turn}: {outcome:?}");
    }
    assert_eq!(world.processes(), listed + 1, "one for all calls");
    let executed = fs::read_to_string(world.folder.join("executed")).expect("written");
    assert_eq!(executed.lines().count(), 9, "{executed}");
    // If its replica is killed, another one opens it anew.
    let place = world.open_connection(&mut client).await;
    world.replicas.kill(place).await;
    let before = world.processes();
    for known in [3, 2] {
        // Before and after its record has expired.
        if known == 2 {
            world.replicas.wait_until_known(known).await;
        }
        for turn in [1, 2, 1, 2] {
            client.move_to(&world.replicas[(place + turn) % 3].address);
            let outcome = client.call(OWN, json!({ "nonce": "after" })).await;
            assert!(outcome.is_result(), "{known} {turn}: {outcome:?}");
        }
    }
    // On a busy machine the other two may not have reached each other, either.
    let unreachable = world.replicas.numbers().map(|number| {
        let status = world.replicas.status(number);
        status["fleet"]["hops"]["unreachable"].as_u64().expect("a number")
    });
    let (unreachable, opened) = (unreachable.sum::<u64>(), world.processes() - before);
    assert!(opened == 1 || unreachable > 2, "{opened} opened, {unreachable} not reached");
}

#[tokio::test]
async fn a_client_is_told_that_its_server_was_started_anew() {
    let program = example("legacy_stdio");
    let config = format!("[upstreams.notes]\ncommand = {program:?}\nsharing = \"client\"\n");
    let mut replicas = Replicas::start_with(2, &config, "").await;
    for number in replicas.numbers() {
        replicas[number].wait_until_listed("notes").await;
    }
    let mut client = replicas.legacy(0).await;
    client.request("logging/setLevel", json!({ "level": "warning" })).await.result();
    let echo = json!({ "name": "notes__echo", "arguments": {} });
    assert!(client.request("tools/call", echo.clone()).await.is_result());
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    let mut messages = client.open("tools/call", echo).await;
    let told = messages.next().await;
    assert_eq!(told["method"], "notifications/message", "{told}");
    let text = told["params"]["data"].as_str().expect("text");
    assert!(text.starts_with("notes: this server was started anew"), "{text}");
    assert!(messages.next().await["result"].is_object());
}
