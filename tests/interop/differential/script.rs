//! What a client does with a server: steps that it answers alike each time, and each way to fail.

use serde_json::{Value, json};

use super::cells::Server;
use crate::pipe::Era::{self, Modern};

/// What a script may hold besides what every server has; a row is switched on by its `true`.
///
/// Each needs a part of the protocol that is carried from a certain day on, and is taken in all cells from
/// then on.
const MORE: [(&str, More, bool); 5] = [
    ("questions with a form", More::Elicit, false),
    ("questions to a model", More::Sample, false),
    ("the client's roots", More::Roots, false),
    ("the server's log", More::Log, false),
    ("subscriptions to a resource", More::Subscribe, false),
];

#[derive(Clone, Copy)]
enum More {
    Elicit,
    Sample,
    Roots,
    Log,
    Subscribe,
}

/// A name and a URI that no server has.
const UNKNOWN: [&str; 2] = ["nonesuch", "nowhere://at/all"];

/// Whether a step or a message asks for what is not there.
pub(crate) fn is_of_nothing(text: &str) -> bool {
    UNKNOWN.iter().any(|name| text.contains(name))
}

/// The script for one server and a client of one era: `{ capabilities, steps }`.
pub(crate) fn script(server: Server, era: Era) -> Value {
    let mut capabilities = json!({});
    let mut steps = steps(server);
    for (_, more, is_on) in MORE {
        if is_on {
            let declared = match more {
                More::Elicit => Some(("elicitation", json!({ "form": {} }))),
                More::Sample => Some(("sampling", json!({}))),
                More::Roots => Some(("roots", json!({}))),
                More::Log | More::Subscribe => None,
            };
            if let Some((name, declared)) = declared {
                capabilities[name] = declared;
            }
            steps.extend(more_steps(server, era, more));
        }
    }
    // Last, since what a server still tells of it may come at any time; and something behind it, so that
    // it is told of before the client ends.
    let (tool, arguments, plain) = match server {
        Server::Everything => (
            "trigger-long-running-operation",
            json!({ "duration": 3, "steps": 30 }),
            "simple-prompt",
        ),
        Server::Sdk2 => ("wait", json!({}), "mooring"),
        Server::Python1 | Server::Python2 => ("wait", json!({}), "plain"),
    };
    steps.push(step("cancel at progress", tool, arguments));
    steps.push(json!({ "do": "get", "params": { "name": plain } }));
    json!({ "capabilities": capabilities, "steps": steps })
}

fn step(what: &str, name: &str, arguments: Value) -> Value {
    json!({ "do": what, "params": { "name": name, "arguments": arguments } })
}

fn call(name: &str, arguments: Value) -> Value {
    step("call", name, arguments)
}

fn get(name: &str, arguments: Value) -> Value {
    step("get", name, arguments)
}

fn read(uri: &str) -> Value {
    json!({ "do": "read", "params": { "uri": uri } })
}

fn complete(kind: &str, of: &str, argument: &str, typed: &str) -> Value {
    let member = if kind == "ref/prompt" { "name" } else { "uri" };
    let argument = json!({ "name": argument, "value": typed });
    json!({ "do": "complete", "params": { "ref": { "type": kind, member: of }, "argument": argument } })
}

fn steps(server: Server) -> Vec<Value> {
    let lists = ["prompts/list", "tools/list", "resources/list", "resources/templates/list"];
    let mut steps = vec![json!({ "do": "ping" })];
    steps.extend(lists.map(|method| json!({ "do": "list", "method": method })));
    steps.extend(match server {
        Server::Everything => vec![
            get("simple-prompt", json!({})),
            get("args-prompt", json!({ "city": "Delft", "state": "Zuid-Holland" })),
            get("args-prompt", json!({})),
            complete("ref/prompt", "completable-prompt", "department", "E"),
            complete(
                "ref/resource",
                "demo://resource/dynamic/text/{resourceId}",
                "resourceId",
                "7",
            ),
            call("echo", json!({ "message": "ä \u{2028} \u{1f30a} \"<&>\\" })),
            call("echo", json!({})),
            call("get-structured-content", json!({ "location": "Chicago" })),
            call("get-tiny-image", json!({})),
            call("get-annotated-message", json!({ "messageType": "error", "includeImage": true })),
            step(
                "call with progress",
                "trigger-long-running-operation",
                json!({ "duration": 0.02, "steps": 2 }),
            ),
            read("demo://resource/static/document/features.md"),
            read("demo://resource/dynamic/text/none"),
        ],
        Server::Sdk2 => vec![
            get("tide-table", json!({ "port": "Harlingen" })),
            get("tide-table", json!({})),
            complete("ref/prompt", "tide-table", "port", "den"),
            complete("ref/resource", "tides://{port}/now", "port", "h"),
            call("depth", json!({ "port": "ä \u{2028} \u{1f30a} \"<&>\\", "metres": 7.25 })),
            call("depth", json!({ "port": "Delfzijl" })),
            step("call with progress", "count", json!({ "steps": 3 })),
            read("tides://ports"),
            read("tides://Den%20Oever/now"),
        ],
        Server::Python1 | Server::Python2 => vec![
            get("greet", json!({ "name": "Ada" })),
            get("greet", json!({})),
            complete("ref/prompt", "greet", "language", "g"),
            complete("ref/resource", "water://{station}/level", "station", "de"),
            call("depth", json!({ "metres": 7.25, "text": "ä \u{2028} \u{1f30a} \"<&>\\" })),
            call("depth", json!({ "metres": 7.25 })),
            call("fail", json!({ "text": "on purpose" })),
            call("picture", json!({})),
            step("call with progress", "count", json!({ "steps": 3 })),
            read("water://stations"),
            read("water://Delft/level"),
            read("water://Atlantis/level"),
        ],
    });
    steps.extend([
        get(UNKNOWN[0], json!({})),
        call(UNKNOWN[0], json!({})),
        complete("ref/prompt", UNKNOWN[0], "argument", ""),
        read(UNKNOWN[1]),
        json!({ "do": "request", "method": "weir/nonsense", "params": {} }),
    ]);
    steps
}

/// The tools of the TypeScript SDK v2's server ask nothing.
fn more_steps(server: Server, era: Era, more: More) -> Vec<Value> {
    let is_python = matches!(server, Server::Python1 | Server::Python2);
    let pick = |everything: Value, python: Value| match server {
        Server::Everything => vec![everything],
        Server::Python1 | Server::Python2 => vec![python],
        Server::Sdk2 => Vec::new(),
    };
    match more {
        More::Elicit => {
            pick(call("trigger-elicitation-request", json!({})), call("ask", json!({})))
        }
        More::Sample => pick(
            call("trigger-sampling-request", json!({ "prompt": "What is a weir?" })),
            call("sample", json!({})),
        ),
        More::Roots => pick(call("get-roots-list", json!({})), call("roots", json!({}))),
        // What the other tells of depends on the time.
        More::Log if is_python => vec![call("log", json!({ "text": "written down" }))],
        // Neither declares it to legacy clients, to whom it tells of changes unasked.
        More::Subscribe if server == Server::Python2 && era == Modern => vec![
            json!({ "do": "subscribe", "uri": "water://stations" }),
            call("touch", json!({ "uri": "water://stations" })),
            json!({ "do": "hear of an update" }),
            json!({ "do": "unsubscribe", "uri": "water://stations" }),
        ],
        More::Log | More::Subscribe => Vec::new(),
    }
}
