//! Ids of others, forged ids, and processes without a key of the fleet.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

use crate::lab::client::{Client, NAME, Revision};
use crate::lab::store::TestStore;
use crate::replicas::{HUB, Replicas};

/// Two clients with keys.
const CLIENTS: &str = r#"
[roles.staff]
tools.allow = ["*"]
[clients.ann-of-sales]
key_sha256 = ["KEY_OF_ANN"]
role = "staff"
[clients.bob]
key_sha256 = ["KEY_OF_BOB"]
role = "staff"
"#;

pub(crate) fn clients() -> String {
    let hash = |key: &str| hex(&sha256(key));
    CLIENTS.replace("KEY_OF_ANN", &hash("ann-of-sales")).replace("KEY_OF_BOB", &hash("bob"))
}

#[tokio::test]
async fn c13_an_id_of_another_principal_and_a_forged_one_are_refused_alike_and_not_sent_on() {
    let replicas = Replicas::start_with(2, &clients(), "").await;
    let ann = Client::http(&replicas[0].address, Revision::LEGACY, Some("ann-of-sales")).await;
    let id = ann.session().expect("a session").to_owned();
    let mut bob = Client::http(&replicas[1].address, Revision::LEGACY, Some("bob")).await;
    let mut flipped = id.clone().into_bytes();
    flipped[20] ^= 1;
    let flipped = String::from_utf8(flipped).expect("text");
    let mut refusals = Vec::new();
    for forged in [id.clone(), flipped, id[..id.len() - 8].to_owned(), "x".repeat(8 * 1024)] {
        bob.set_session(&forged);
        refusals.push(format!("{:?}", bob.call(HUB, json!({ "nonce": "forged" })).await));
    }
    refusals.dedup();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(refusals[0].contains("no session has this id"), "{refusals:?}");
    assert_eq!(replicas.executions("forged"), 0);
    // Without credentials nothing is sent on either.
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let mut stream = TcpStream::connect(&replicas[1].address).await.expect("it listens");
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nMcp-Session-Id: {id}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("text");
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
}

#[tokio::test]
async fn c14_a_process_without_a_key_of_the_fleet_is_not_served() {
    let replicas = Replicas::start(1).await;
    let config = std::fs::read_to_string(replicas.folder(0).join("weir.toml")).expect("written");
    let listen = config.lines().filter_map(|line| line.strip_prefix("listen = \"")).next_back();
    let listen = listen.expect("its address").trim_end_matches('"').to_owned();
    // Without TLS.
    let mut stream = TcpStream::connect(&listen).await.expect("it listens");
    stream.write_all(b"GET /mcp HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    assert!(!response.starts_with(b"HTTP"), "{response:?}");
    // A replica with another key finds the fleet in the store, and is not ready.
    // The other ones take a turn on the machine themselves.
    drop(replicas.turn);
    let mut others = Replicas::prepare(replicas.store, "", "").await;
    others.add().await;
    let config = others.folder(0).join("weir.toml");
    let config = config.to_str().expect("text");
    crate::lab::until("it has noticed", || {
        others[0].log().iter().any(|line| line.contains("other keys"))
    })
    .await;
    let (code, out, error) = crate::replicas::try_weir(&["fleet", "--config", config]);
    assert!(code == 0 && format!("{out}{error}").contains("other keys"), "{out}{error}");
}

#[tokio::test]
async fn nothing_that_a_client_sends_is_in_the_store_in_clear() {
    let mut replicas = Replicas::prepare(TestStore::start().await, &clients(), "").await;
    replicas.script_logging();
    replicas.add_all(2).await;
    let mut ann = Client::http(&replicas[0].address, Revision::LEGACY, Some("ann-of-sales")).await;
    ann.request("logging/setLevel", json!({ "level": "error" })).await.result();
    replicas.kill(0).await;
    ann.move_to(&replicas[1].address);
    ann.call(HUB, json!({ "nonce": "canary-argument" })).await.result();
    ann.request("logging/setLevel", json!({ "level": "emergency" })).await.result();
    crate::lab::until("its claim and its settings are written", || {
        let dump = replicas.store.dump();
        dump.contains("claims ") && dump.contains("settings:")
    })
    .await;
    let (dump, id) = (replicas.store.dump(), ann.session().expect("a session").to_owned());
    let secrets = ["ann-of-sales", "canary-argument", "emergency", NAME, "127.0.0.1", "replica-1"];
    for secret in secrets.into_iter().chain([id.as_str()]) {
        // What is sealed is random letters: a short word comes in it by chance.
        assert!(secret.len() > 8, "{secret} is too short to look for");
        assert!(!dump.contains(secret), "{secret} is in {dump}");
    }
}
