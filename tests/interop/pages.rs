//! Pages in Chromium, at another origin than Weir's: plain requests of both eras, and the MCP
//! Inspector in direct mode.

use std::process::Stdio;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::fleet::{Fleet, RUN_PATIENCE, example, soon, within};
use crate::parts::{part, script};

const KEY: &str = "a-key-that-a-page-sends-and-no-other-client-has";
const TOOL: &str = "notes__echo";

/// Runs the pages against Weir, in whose configuration their origin is.
async fn run() -> Value {
    let client = part("inspector1/node_modules/@modelcontextprotocol/inspector-client/dist");
    part("bin/chromium");
    let mut pages = Command::new(part("bin/node"))
        .arg(script("pages.mjs"))
        .arg(client)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(pages.stdout.take().unwrap()).lines();
    let origin = soon(lines.next_line()).await.unwrap().unwrap();
    let key: String = Sha256::digest(KEY).iter().map(|byte| format!("{byte:02x}")).collect();
    let notes = example("legacy_stdio");
    let config = format!(
        r#"
        [server]
        listen = "127.0.0.1:0"
        public_url = "http://127.0.0.1:8642"
        allowed_origins = ["{origin}"]
        [log]
        format = "json"
        [auth.oidc.corp]
        issuer = "https://127.0.0.1:1"
        audience = ["http://127.0.0.1:8642/mcp"]
        [clients.page]
        key_sha256 = ["{key}"]
        tools.allow = ["notes/*"]
        [upstreams.notes]
        command = {notes:?}
        "#
    );
    let fleet = Fleet::plain("");
    std::fs::write(fleet.folder().join("weir.toml"), config).unwrap();
    let served = fleet.serve().await;
    let metadata = format!("http://{}/.well-known/oauth-protected-resource/mcp", served.address);
    let given = json!({
        "endpoint": served.endpoint(), "key": KEY, "metadata": metadata, "tool": TOOL,
    });
    let mut stdin = pages.stdin.take().unwrap();
    stdin.write_all(format!("{given}\n").as_bytes()).await.unwrap();
    let found = within(RUN_PATIENCE, lines.next_line()).await.unwrap().expect("a result");
    serde_json::from_str(&found).unwrap()
}

/// A response as a page sees it.
fn seen(status: u16, headers: &[&str], text: &str) -> Value {
    json!({ "status": status, "headers": headers, "text": text })
}

#[tokio::test]
async fn a_page_calls_a_tool_with_a_key_only_if_the_configuration_names_its_origin() {
    const NEEDED: &str =
        "valid credentials are needed: send them as `Authorization: Bearer <key or token>`";
    const ENDED: &str = "no session has this id, or it has ended: send `initialize` again";
    let found = run().await;
    // The browser keeps the response from the page, or does not send the request.
    let blocked = || json!("TypeError");
    let configured = json!({
        "without a key": seen(401, &["www-authenticate"], NEEDED),
        "initialize": seen(200, &["mcp-session-id"], ""),
        "initialized": seen(202, &[], ""),
        "legacy call": seen(200, &[], ""),
        "stream": seen(200, &[], ""),
        "end": seen(204, &[], ""),
        "after the end": seen(404, &[], ENDED),
        "modern call": seen(200, &[], ""),
        "wrong type": seen(415, &[], "the Content-Type must be application/json"),
        "wrong method": blocked(),
        "other header": blocked(),
        "metadata": seen(200, &[], ""),
    });
    let names = configured.as_object().unwrap().keys();
    let loopback: serde_json::Map<_, _> = names.map(|name| (name.clone(), blocked())).collect();
    let expected = json!({
        "configured": { "requests": configured, "inspector": "Tool Result: Success" },
        "loopback": { "requests": loopback, "inspector": "Connection Error" },
    });
    assert_eq!(found, expected, "{found:#}");
}
