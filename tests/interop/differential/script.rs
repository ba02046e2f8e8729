//! Script of a client for a server: steps with a repeatable result, and each kind of failure.

use serde_json::{Value, json};

use super::cells::Server;
use crate::pipe::Era::{self, Legacy, Modern};

/// Parts of a script that only some servers support.
#[derive(Clone, Copy)]
enum More {
    Elicit,
    Sample,
    Roots,
    Log,
    Subscribe,
}

impl More {
    const ALL: [Self; 5] = [Self::Elicit, Self::Sample, Self::Roots, Self::Log, Self::Subscribe];

    /// Capability that a client declares for it.
    fn declared(self) -> Option<(&'static str, Value)> {
        match self {
            Self::Elicit => Some(("elicitation", json!({ "form": {} }))),
            Self::Sample => Some(("sampling", json!({}))),
            Self::Roots => Some(("roots", json!({}))),
            Self::Log | Self::Subscribe => None,
        }
    }
}

/// A name and a URI that no server has.
const UNKNOWN: [&str; 2] = ["nonesuch", "nowhere://at/all"];

/// The one resource of the server with input requests.
const PORTS: &str = "tides://ports";

/// Whether a step or a message requests an unknown item.
pub(crate) fn is_unknown(text: &str) -> bool {
    UNKNOWN.iter().any(|name| text.contains(name))
}

/// Script for one server, which Weir speaks to in this era, and a client of one era:
/// `{ capabilities, steps }`.
pub(crate) fn script(server: Server, era: Era, upstream_era: Era) -> Value {
    let mut capabilities = json!({});
    let mut steps = steps(server);
    for more in More::ALL {
        let requested = more_steps(server, era, upstream_era, more);
        // With the capability declared but unused, the server might send requests at any time.
        if let Some((name, declared)) = more.declared().filter(|_| !requested.is_empty()) {
            capabilities[name] = declared;
        }
        steps.extend(requested);
    }
    // Last, since notifications about it may come at any time; followed by another step, so that
    // they arrive before the client ends.
    let (tool, arguments, plain) = match server {
        Server::Everything => (
            "trigger-long-running-operation",
            json!({ "duration": 3, "steps": 30 }),
            "simple-prompt",
        ),
        Server::Sdk2 | Server::Asking => ("wait", json!({}), "mooring"),
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
        // The steps of `more_steps` cover the rest of this server.
        Server::Asking => vec![complete("ref/prompt", "tide-table", "port", "D"), read(PORTS)],
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

/// A call whose log messages a client of this era subscribes to.
fn at_level(level: &str, era: Era, mut call: Value) -> Vec<Value> {
    if era == Modern {
        call["params"]["_meta"] = json!({ "io.modelcontextprotocol/logLevel": level });
        return vec![call];
    }
    vec![json!({ "do": "log level", "level": level }), call]
}

/// Steps for a part of the protocol, with a server that supports it in both eras: the era of the
/// direct client, and the era that Weir speaks.
fn more_steps(server: Server, era: Era, upstream_era: Era, more: More) -> Vec<Value> {
    let ask = |name: &str| vec![call(name, json!({}))];
    let is_always = |of: Era| (era, upstream_era) == (of, of);
    let follow = |uri: &str| {
        vec![
            json!({ "do": "subscribe", "uri": uri }),
            call("touch", json!({ "uri": uri })),
            json!({ "do": "hear of an update" }),
            json!({ "do": "unsubscribe", "uri": uri }),
        ]
    };
    match (more, server) {
        (More::Elicit, Server::Everything) => ask("trigger-elicitation-request"),
        (More::Sample, Server::Everything) => {
            vec![call("trigger-sampling-request", json!({ "prompt": "What is a weir?" }))]
        }
        // This server requests roots outside of calls, and sends log messages and resource updates
        // by a timer.
        (More::Roots | More::Log | More::Subscribe, Server::Everything) => Vec::new(),

        // The tools of this server send no input requests, and it declares neither of the others.
        (_, Server::Sdk2) => Vec::new(),

        (More::Elicit, Server::Asking) => [ask("ask"), ask("interview")].concat(),
        (More::Sample, Server::Asking) => ask("sample"),
        (More::Roots, Server::Asking) => ask("roots"),
        (More::Log, Server::Asking) => {
            let write = call("log", json!({ "levels": ["info", "error"] }));
            [vec![write.clone()], at_level("warning", era, write)].concat()
        }
        (More::Subscribe, Server::Asking) => follow(PORTS),

        // In the modern era this SDK does not let a tool send input requests.
        (More::Elicit | More::Sample, Server::Python1 | Server::Python2) if !is_always(Legacy) => {
            Vec::new()
        }
        (More::Elicit, Server::Python1 | Server::Python2) => ask("ask"),
        (More::Sample, Server::Python1 | Server::Python2) => ask("sample"),
        // This server never requests roots in a call.
        (More::Roots, Server::Python1 | Server::Python2) => Vec::new(),
        (More::Log, Server::Python1 | Server::Python2) => {
            at_level("info", era, call("log", json!({ "text": "written down" })))
        }
        (More::Subscribe, Server::Python2) if is_always(Modern) => follow("water://stations"),
        // No legacy client may subscribe.
        (More::Subscribe, Server::Python1 | Server::Python2) => Vec::new(),
    }
}
