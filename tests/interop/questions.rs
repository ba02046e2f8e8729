//! Servers that send input requests in mid-call, behind Weir: a real client receives them, and its
//! responses come back.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::fleet::{Fleet, RUN_PATIENCE, log_of, within};
use crate::parts::{everything, part, script};

/// The server over stdio, with these further keys.
fn fleet(keys: &str) -> Fleet {
    let (node, server) = (part("bin/node"), everything());
    Fleet::plain(&format!(
        "[naming]\nmode = \"none\"\n[upstreams.real]\ncommand = {node:?}\nargs = [{server:?}, \"stdio\"]\n{keys}\n"
    ))
}

/// Results of the tools with input requests for a client of the TypeScript SDK v1 that supports
/// them.
async fn answers(target: &[&str]) -> Vec<Value> {
    let call = |name: &str, arguments: Value| json!({ "do": "call", "params": { "name": name, "arguments": arguments } });
    let steps = json!({
        "shows": true,
        "capabilities": { "elicitation": { "form": {} }, "sampling": {}, "roots": {} },
        "steps": [
            call("trigger-elicitation-request", json!({})),
            call("trigger-sampling-request", json!({ "prompt": "What is a weir?" })),
            call("get-roots-list", json!({})),
        ],
    });
    run(&steps, target).await
}

/// Output of a client of the TypeScript SDK v1 for these steps.
async fn run(steps: &Value, target: &[&str]) -> Vec<Value> {
    let mut command = Command::new(part("bin/node"));
    command.arg(script("clients/sdk1.mjs")).args(["--era", "legacy", "--wire"]).args(target);
    command.env("SCRIPT", steps.to_string()).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut log = log_of(child.stderr.take());
    if target[0] == "stdio" {
        // Weir is a child of the client, and shares its stderr.
        log.logged("upstream listed", "real").await;
    }
    child.stdin.take().unwrap().write_all(b"go\n").await.unwrap();
    let output = within(RUN_PATIENCE, child.wait_with_output()).await.unwrap();
    assert!(output.status.success(), "{output:?}: {}", log.all().join("\n"));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that the results of the tools contain the client's own responses.
fn judge(answers: &[Value]) {
    let [elicited, sampled, roots] = answers else { panic!("{answers:?}") };
    let text =
        |answer: &Value, at: &str| answer.pointer(at).and_then(Value::as_str).map(str::to_owned);
    let inputs = text(elicited, "/content/1/text");
    assert_eq!(inputs.as_deref(), Some("User inputs:\n- Name: Ada"), "{elicited}");
    let sampled = text(sampled, "/content/0/text").unwrap_or_else(|| panic!("{sampled}"));
    let (tool_result, result) = sampled.split_once('\n').unwrap();
    assert_eq!(tool_result, "LLM sampling result: ");
    let content = json!({ "type": "text", "text": "It holds water back." });
    let expected = json!({ "role": "assistant", "model": "none", "content": content });
    assert_eq!(serde_json::from_str::<Value>(result).unwrap(), expected);
    let listed = text(roots, "/content/0/text").unwrap_or_else(|| panic!("{roots}"));
    let expected = "Current MCP Roots (1 total):\n\n1. weir\n   URI: file:///weir\n";
    assert!(listed.starts_with(expected), "{listed}");
}

#[tokio::test]
async fn a_server_over_stdio_asks_the_one_client_of_weir_stdio() {
    let fleet = fleet("");
    let config = fleet.folder().join("weir.toml");
    let weir = env!("CARGO_BIN_EXE_weir");
    judge(&answers(&["stdio", weir, "stdio", "--config", config.to_str().unwrap()]).await);
}

#[tokio::test]
async fn a_server_over_stdio_asks_a_client_that_has_its_own_process() {
    let fleet = fleet("sharing = \"client\"");
    let mut weir = fleet.serve().await;
    weir.log.logged("upstream listed", "real").await;
    judge(&answers(&["http", &weir.endpoint()]).await);
    weir.stop().await;
}

#[tokio::test]
async fn a_server_whose_process_is_shared_is_refused_what_it_asks() {
    let fleet = fleet("");
    let mut weir = fleet.serve().await;
    weir.log.logged("upstream listed", "real").await;
    // The server sees no client that supports input requests, and has no such tools then.
    assert_eq!(answers(&["http", &weir.endpoint()]).await, ["refused: -32602"; 3]);
    weir.stop().await;
}

#[tokio::test]
async fn a_server_whose_process_is_shared_is_refused_even_if_it_asks_all_the_same() {
    let (python, server) = (part("mcp1/bin/python"), script("python_server.py"));
    let fleet = Fleet::plain(&format!(
        "[naming]\nmode = \"none\"\n[upstreams.real]\ncommand = {python:?}\nargs = [{server:?}, \"stdio\"]\n"
    ));
    let mut weir = fleet.serve().await;
    weir.log.logged("upstream listed", "real").await;
    let call = |name: &str, arguments: Value| json!({ "do": "call", "params": { "name": name, "arguments": arguments } });
    let script = json!({
        "shows": true,
        "capabilities": { "elicitation": { "form": {} }, "sampling": {}, "roots": {} },
        "steps": [
            call("ask", json!({})),
            call("sample", json!({})),
            call("roots", json!({})),
            call("count", json!({ "steps": 2 })),
        ],
    });
    let answers = run(&script, &["http", &weir.endpoint()]).await;
    let tool_result = |text: &str, failed: bool| json!({ "content": [{ "type": "text", "text": text }], "isError": failed });
    let refused = |tool: &str, method: &str| {
        let message = "Method not found: this client does not support";
        tool_result(&format!("Error executing tool {tool}: {message} {method}"), true)
    };
    let mut counted = tool_result("counted to 2", false);
    counted["structuredContent"] = json!({ "result": "counted to 2" });
    let expected = [
        refused("ask", "elicitation/create"),
        refused("sample", "sampling/createMessage"),
        refused("roots", "roots/list"),
        counted,
    ];
    assert_eq!(answers, expected);
    weir.stop().await;
}
