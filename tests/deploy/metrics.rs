//! Metrics of a Weir after every kind of traffic, parsed by a strict parser. The dashboard and the
//! alerts use only metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{deploy, folder, part, yaml};
use crate::lab::http::{exchange, post};
use crate::lab::wait_until;
use crate::lab::weir::Weir;

/// Weir with an admin listener.
struct Served {
    weir: Weir,
    admin: String,
    _folder: tempfile::TempDir,
}

const KEY: &str = "a long and random text that is somebody's key";

fn config() -> String {
    let examples = Path::new(env!("CARGO_BIN_EXE_weir")).with_file_name("examples");
    let notes = examples.join("legacy_stdio").display().to_string();
    let (hash, fleet_key) = (weir_hash(KEY), "A".repeat(43));
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\npublic_url = \"http://127.0.0.1\"\n\
         [auth.oidc.corp]\nissuer = \"http://127.0.0.1:1\"\naudience = [\"weir\"]\ndefault_role = \"guest\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[state]\ndir = \"state\"\n\
         [log]\nformat = \"json\"\n[audit]\nenabled = true\n\
         [roles.guest]\nprompts.allow = [\"*\"]\ntools.allow = [\"notes/*\"]\nresources.allow = [\"*\"]\n\
         [clients.ann]\nrole = \"guest\"\nexpires = 2099-01-01T00:00:00Z\nkey_sha256 = [\"{hash}\"]\n\
         [[limits]]\nper = \"client\"\nmethod = \"completion/complete\"\nrate = \"1/h\"\n\
         [fleet]\nstore = {{ url = \"redis://127.0.0.1:1\" }}\nkeys = \"{fleet_key}\"\nlisten = \"127.0.0.1:0\"\n\
         [upstreams.notes]\ncommand = \"{notes}\"\n\
         [upstreams.gone]\nurl = \"http://127.0.0.1:1/mcp\"\n\
         [upstreams.once]\ncommand = \"sh\"\nargs = [\"-c\", \"exit 1\"]\n"
    )
}

fn weir_hash(key: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Served {
    fn start() -> Self {
        let folder = tempfile::TempDir::new().expect("a folder");
        std::fs::write(folder.path().join("weir.toml"), config()).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("serve").current_dir(folder.path());
        let mut weir = Weir::serve(command);
        let line = weir.wait_for_log("admin listener started");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        let admin = line["address"].as_str().expect("an address").to_owned();
        Self { weir, admin, _folder: folder }
    }

    /// Sends a request of the newest revision.
    fn post(&self, key: &str, method: &str, params: Value) -> String {
        post(&self.weir.address, Some(key), method, params)
    }

    /// Runs a complete session of a legacy client.
    fn session(&self) {
        let request = |method: &str, more: &str, body: &str| {
            let headers = format!(
                "Content-Type: application/json\r\nAuthorization: Bearer {KEY}\r\n\
                 Accept: application/json, text/event-stream\r\n{more}"
            );
            exchange(&self.weir.address, &format!("{method} /mcp"), &headers, body)
        };
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "x", "version": "1" },
        } });
        let answer = request("POST", "", &body.to_string());
        let id = answer.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
        });
        let more = format!("Mcp-Session-Id: {}\r\n", id.expect("a session"));
        let body = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
        request("POST", &more, &body.to_string());
        let ended = request("DELETE", &more, "");
        assert!(ended.starts_with("HTTP/1.1 20"), "{ended}");
    }

    fn metrics(&self) -> String {
        let answer = exchange(&self.admin, "GET /metrics", "", "");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(
            head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"),
            "{head}"
        );
        body.to_owned()
    }
}

/// Metric family: its type, its unit, and the names and labels of its samples.
#[derive(serde::Deserialize)]
struct Family {
    kind: String,
    unit: String,
    help: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

const READ: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
found = {}
for family in text_string_to_metric_families(sys.stdin.read()):
    samples = [[sample.name, sample.labels, float(sample.value)] for sample in family.samples]
    found[family.name] = dict(kind=family.type, unit=family.unit, help=family.documentation,
                              samples=samples)
json.dump(found, sys.stdout)
";

/// Parses a text with prometheus_client, which refuses invalid OpenMetrics.
fn parsed(text: &str) -> BTreeMap<String, Family> {
    let mut command = part("deploy/bin/python");
    command.args(["-c", READ]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut python = command.spawn().expect("it starts");
    python.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = python.wait_with_output().expect("it ends");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}\n{text}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the metrics of a Weir after every kind of traffic.
fn exported() -> BTreeMap<String, Family> {
    let served = Served::start();
    let post = |method: &str, params| served.post(KEY, method, params);
    // Waits until the prompt is listed.
    wait_until("the prompt is listed", || post("tools/list", json!({})).contains("notes__"));
    for method in
        ["prompts/list", "resources/list", "resources/templates/list", "server/discover", "x/y"]
    {
        post(method, json!({}));
    }
    for (name, arguments) in [("notes__echo", json!({ "a": 1 })), ("notes__nothing", json!({}))] {
        post("tools/call", json!({ "name": name, "arguments": arguments }));
    }
    let odd = "notes__\"} 1";
    post("prompts/get", json!({ "name": odd }));
    for _ in 0..2 {
        let reference = json!({ "type": "ref/prompt", "name": "notes__x" });
        let argument = json!({ "name": "a", "value": "b" });
        post("completion/complete", json!({ "ref": reference, "argument": argument }));
    }
    assert!(served.post("wrong", "tools/list", json!({})).starts_with("HTTP/1.1 401"));
    let strange = exchange(&served.weir.address, "GET /mcp", "Host: evil.example\r\n", "");
    assert!(strange.starts_with("HTTP/1.1 403"), "{strange}");
    served.session();
    parsed(&served.metrics())
}

/// Returns the names of metrics in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(move |c| !is_of_a_name(c));
    let labels = ["mcp_method_name", "process"];
    let of_ours = |name: &&str| ["weir_", "mcp_", "process_"].iter().any(|it| name.starts_with(it));
    words.filter(of_ours).filter(move |name| !labels.contains(name))
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|it| expressions(it, found)),
        Value::Object(object) => {
            for (key, value) in object {
                match value.as_str() {
                    Some(text) if ["expr", "definition"].contains(&&**key) => {
                        found.push(text.to_owned())
                    }
                    _ => expressions(value, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn a_strict_parser_reads_the_metrics_and_the_board_and_the_alerts_ask_for_those_alone() {
    let families = exported();
    for (name, family) in &families {
        assert!(!family.help.is_empty() && family.kind != "unknown", "{name}");
        let is_ours = ["weir_", "mcp_server_", "mcp_client_", "process_"];
        assert!(is_ours.iter().any(|it| name.starts_with(it)), "{name}");
        assert!(family.unit.is_empty() || name.ends_with(&format!("_{}", family.unit)), "{name}");
        assert!(!family.samples.is_empty(), "{name} has no series after all that traffic");
    }
    for name in [
        "upstream_up",
        "upstream_in_flight",
        "upstream_waiting",
        "upstream_items",
        "upstream_restarts",
        "upstream_calls",
        "upstream_call_duration_seconds",
        "guard_findings",
        "connections",
        "sessions",
        "streams",
    ] {
        assert!(families.contains_key(&format!("weir_{name}")), "{name}");
    }
    // Names, units and labels of the OpenTelemetry conventions for MCP, in Prometheus form.
    for name in [
        "mcp_server_operation_duration_seconds",
        "mcp_client_operation_duration_seconds",
        "mcp_server_session_duration_seconds",
    ] {
        let family = &families[name];
        assert_eq!((&*family.kind, &*family.unit), ("histogram", "seconds"), "{name}");
        let bounds = [
            "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "10.0", "30.0",
            "60.0", "120.0", "300.0", "+Inf",
        ];
        let is_bound = |bound: &str| {
            family
                .samples
                .iter()
                .any(|(_, labels, _)| labels.get("le").is_some_and(|le| le == bound))
        };
        assert!(bounds.iter().all(|bound| is_bound(bound)), "{name}");
    }
    let samples = || families.values().flat_map(|family| &family.samples);
    let operations = &families["mcp_server_operation_duration_seconds"].samples;
    for (_, labels, _) in operations {
        assert!(labels.contains_key("mcp_method_name"), "{labels:?}");
        let error = labels.get("error_type");
        let code = error.filter(|error| error.parse::<i64>().is_ok());
        assert_eq!(labels.get("rpc_response_status_code"), code, "{labels:?}");
    }
    assert!(samples().all(|(.., labels, _)| !labels.values().any(|value| value.contains("ann"))));
    let counted = |name: &str, label: &str, value: &str| {
        samples().any(|(it, labels, count)| {
            it == name && labels.get(label).is_some_and(|it| it == value) && *count > 0.0
        })
    };
    for reason in ["host", "auth", "limit", "unknown"] {
        assert!(counted("weir_refusals_total", "reason", reason), "{reason}");
    }
    assert!(counted("weir_limit_refusals_total", "limit", "0"));
    assert!(counted("weir_upstream_state", "state", "up"));

    let there: BTreeSet<&str> = samples().map(|(name, ..)| name.as_str()).collect();
    let rules = yaml("prometheus/alerts.yml");
    let rules = rules["groups"][0]["rules"].as_array().expect("rules").clone();
    let runbook = std::fs::read_to_string(folder().join("../docs/operations.md")).expect("a page");
    for rule in &rules {
        let alert = rule["alert"].as_str().expect("a name");
        let severity = rule["labels"]["severity"].as_str().expect("a severity");
        assert!(["critical", "warning", "info"].contains(&severity), "{alert}");
        assert!(rule["annotations"]["summary"].is_string(), "{alert}");
        let url = format!("docs/operations.md#{}", alert.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], json!(url));
        assert!(runbook.lines().any(|line| line == format!("#### {alert}")), "{alert}");
    }
    let dashboard: Value = serde_json::from_str(&deploy("grafana/weir.json")).expect("JSON");
    let (mut alerts, mut panels) = (Vec::new(), Vec::new());
    expressions(&json!(rules), &mut alerts);
    expressions(&dashboard, &mut panels);
    assert!(alerts.len() == rules.len() && panels.len() > 30, "{}", panels.len());
    for expression in alerts.iter().chain(&panels) {
        let mut names = names(expression).peekable();
        assert!(names.peek().is_some(), "{expression}");
        names.for_each(|name| assert!(there.contains(name), "{name} in {expression}"));
    }
    // Panels do not overlap.
    let panels = dashboard["panels"].as_array().expect("panels");
    let cells = panels.iter().flat_map(|panel| {
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
        let (x, y, w, h) = (at("x"), at("y"), at("w"), at("h"));
        (x..x + w).flat_map(move |x| (y..y + h).map(move |y| (x, y)))
    });
    let mut seen = BTreeSet::new();
    assert!(cells.into_iter().all(|(x, y)| x < 24 && seen.insert((x, y))));
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
}
