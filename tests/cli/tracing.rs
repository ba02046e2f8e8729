//! `--trace`: the messages between Weir and its upstreams on standard error, without secrets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

use insta::assert_snapshot;
use regex::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::signing_in::come_back;
use super::{example, folder, program, script, scripted, weir};
use crate::lab::blocking::wait_for_exit;

/// Lines of a trace, with placeholders for what differs from run to run.
fn normalized(trace: &str) -> String {
    let mut text = trace.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    for (pattern, replacement) in [
        (r"(?m)^\d\d:\d\d:\d\d\.\d{3}Z ", "TIME "),
        (r#"("id"|"progressToken"):\d+"#, "$1:0"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
    ] {
        text = Regex::new(pattern).expect("a pattern").replace_all(&text, replacement).into_owned();
    }
    text
}

/// Folder with a scripted server that has one tool, `save`, with this response to calls.
fn hub(table: &str, call: &str) -> TempDir {
    let folder = folder(&format!("{}{table}", scripted("hub")));
    let list = r#""result":{"tools":[{"name":"save","inputSchema":{"type":"object"}}]}"#;
    script(folder.path(), "hub", &[("tools/list", list), ("tools/call", call)]);
    // With tools alone the order of the messages is always the same.
    let all = r#""prompts":{},"tools":{},"resources":{},"completions":{}"#;
    edit_script(folder.path(), all, r#""tools":{}"#);
    folder
}

fn edit_script(folder: &Path, from: &str, to: &str) {
    let path = folder.join("hub.sh");
    let text = std::fs::read_to_string(&path).expect("it was written");
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).expect("written");
}

const SAVED: &str = r#""result":{"content":[{"type":"text","text":"saved"}]}"#;

// === Words ===

#[test]
fn a_trace_has_each_message_of_a_process_from_the_handshake_on() {
    let folder = hub("", SAVED);
    // Before the first response, so that the order is always the same.
    edit_script(folder.path(), "        *) printf", "        *) echo Starting hub; printf");
    let (code, out, err) = weir(folder.path(), &["call", "hub__save", "text=a", "--trace"]);
    assert_eq!((code, out.as_str()), (0, "saved\n"), "{err}");
    assert_snapshot!(normalized(&err), @r#"
    TIME -> hub: {"jsonrpc":"2.0","id":0,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"weir","version":"VERSION"},"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}}}}
    TIME <- hub: Starting hub
    TIME <- hub: {"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}
    TIME -> hub: {"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}},"clientInfo":{"name":"weir","version":"VERSION"}}}
    TIME <- hub: {"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}}
    TIME -> hub: {"jsonrpc":"2.0","method":"notifications/initialized","params":{}}
    TIME -> hub: {"jsonrpc":"2.0","id":0,"method":"tools/list","params":{}}
    TIME <- hub: {"jsonrpc":"2.0","id":0,"result":{"tools":[{"name":"save","inputSchema":{"type":"object"}}]}}
    TIME -> hub: {"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"save","arguments":{"text":"a"}}}
    TIME <- hub: {"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"saved"}]}}
    "#);
    // The same lines with colors, and standard output as without them.
    let colored = ["call", "hub__save", "text=a", "--trace", "--json", "--color", "always"];
    let (code, out, err) = weir(folder.path(), &colored);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, "{\"content\":[{\"type\":\"text\",\"text\":\"saved\"}]}\n");
    assert!(err.contains("Z\u{1b}[0m \u{1b}[32m->\u{1b}[0m hub: {\"jsonrpc\""), "{err}");
    assert!(err.contains("\u{1b}[33m<-\u{1b}[0m hub: Starting hub\n"), "{err}");
}

#[test]
fn a_trace_over_http_has_heads_with_values_of_mcp_headers_only() {
    let folder = folder("");
    let arguments = ["call", "--demo", "shop__search_products", "query=gau", "--trace"];
    let (code, out, err) = weir(folder.path(), &arguments);
    assert_eq!((code, out.as_str()), (0, "{\"products\":[\"gauge\"]}\n"), "{err}");
    let trace = normalized(&err);
    let lines: Vec<_> = trace.lines().collect();
    let is_call = |line: &&str| line.contains("-> shop: POST") && line.contains("tools/call");
    let call = lines.iter().position(is_call).expect("a call");
    // Other lists may still be on their way.
    let is_about_it = |line: &&&str| line.contains("tools/call") || line.contains("gauge");
    let about_it: Vec<_> = lines[call..].iter().filter(is_about_it).copied().collect();
    assert_snapshot!(about_it.join("\n"), @r#"
    TIME -> shop: POST /mcp; content-type: application/json; mcp-method: tools/call; mcp-name: search_products; mcp-protocol-version: 2026-07-28; other headers: accept, accept-encoding, host, user-agent
    TIME -> shop: {"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"search_products","arguments":{"query":"gau"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"weir","version":"VERSION"},"io.modelcontextprotocol/clientCapabilities":{}}}}
    TIME <- shop: {"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"{\"products\":[\"gauge\"]}"}],"structuredContent":{"products":["gauge"]},"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"modern-catalog","version":"0.0.0"}}}}
    "#);
    let is_head = |line: &&&str| line.starts_with("TIME <- shop: 200 OK; ");
    let head = lines[call..].iter().find(is_head).expect("a head");
    assert_eq!(
        *head,
        "TIME <- shop: 200 OK; content-type: application/json; other headers: content-length, date"
    );
}

#[test]
fn every_command_that_asks_upstreams_has_a_trace_and_no_service_has() {
    let folder = hub("", SAVED);
    for arguments in [
        &["list"][..],
        &["list", "tools", "--json"],
        &["check"],
        &["check", "--json"],
        &["get", "hub__nothing"],
        &["read", "hub:nothing"],
        &["complete", "prompt", "hub__nothing", "a="],
        &["explain", "hub__save"],
    ] {
        let arguments = [arguments, &["--trace"]].concat();
        let (_, _, err) = weir(folder.path(), &arguments);
        assert!(err.contains("Z -> hub: {\"jsonrpc\":\"2.0\""), "{arguments:?}: {err}");
        assert!(err.contains("Z <- hub: {\"jsonrpc\":\"2.0\""), "{arguments:?}: {err}");
        let (_, _, err) = weir(folder.path(), &arguments[..arguments.len() - 1]);
        assert!(!err.contains("hub: {"), "{arguments:?}: {err}");
    }
    for service in ["serve", "stdio"] {
        let (code, _, err) = weir(folder.path(), &[service, "--trace"]);
        assert!(code == 2 && err.contains("unexpected argument"), "{err}");
    }
}

#[test]
fn a_failure_follows_its_trace_in_one_line() {
    let folder = hub("", r#""error":{"code":-32000,"message":"no disk"}"#);
    let (code, out, err) = weir(folder.path(), &["call", "hub__save", "--json", "--trace"]);
    assert_eq!((code, out.as_str()), (5, ""));
    let last: Vec<_> = err.lines().rev().take(2).collect();
    assert_eq!(last[0], r#"{"error":"hub__save: no disk","exit_code":5}"#);
    assert!(last[1].ends_with(r#""error":{"code":-32000,"message":"no disk"}}"#), "{err}");
}

// === Length and bytes ===

/// Folder with a server whose result has a text of a mebibyte.
fn large() -> TempDir {
    let folder = folder("");
    let (server, program) = (folder.path().join("evil"), example("evil_upstream"));
    std::fs::create_dir(&server).expect("made");
    let fault = r#"{"on":{"tools/call":{"result_bytes":1048576}}}"#;
    std::fs::write(server.join("script.json"), fault).expect("written");
    let config = format!(
        "[upstreams.evil]\ncommand = {program:?}\nargs = [{server:?}, \"stdio\"]\nera = \"legacy\"\n"
    );
    std::fs::write(folder.path().join("weir.toml"), config).expect("written");
    folder
}

#[test]
fn a_message_of_a_mebibyte_is_cut_unless_whole_ones_are_wanted() {
    let folder = large();
    let text = "x".repeat(1 << 20);
    let (code, out, err) = weir(folder.path(), &["call", "evil__call", "--trace"]);
    assert!(code == 0 && out == format!("{text}\n"), "{err}");
    let line = err.lines().find(|line| line.contains("xxxx")).expect("a line");
    let (shown, mark) = line.split_once(" … ").expect("a mark");
    let (_, shown) = shown.split_once("<- evil: ").expect("an arrow");
    let left_out: usize = mark.split(' ').next().expect("a word").parse().expect("a number");
    assert_eq!(shown.len(), 4 * 1024);
    assert_eq!(mark, format!("{left_out} bytes left out (--trace=full)"));
    let (code, _, err) = weir(folder.path(), &["call", "evil__call", "--trace=full"]);
    assert_eq!(code, 0);
    let line = err.lines().find(|line| line.contains("xxxx")).expect("a line");
    let (_, whole) = line.split_once("<- evil: ").expect("an arrow");
    assert!(whole.contains(&text) && !line.contains('…'));
    // The ids have the same length only by chance.
    assert!(whole.len().abs_diff(shown.len() + left_out) < 20, "{}", whole.len());
    let (code, _, err) = weir(folder.path(), &["call", "evil__call", "--trace=long"]);
    assert!(code == 2 && err.contains("[possible values: short, full]"), "{err}");
}

#[test]
fn bytes_that_no_reader_would_see_are_escaped() {
    let folder = hub("", SAVED);
    let odd = r"printf '\377\000\033[2J\342\200\256\ta\n'";
    edit_script(folder.path(), "echo > hub.started", &format!("echo > hub.started; {odd}"));
    let (code, out, err) = weir(folder.path(), &["call", "hub__save", "--trace"]);
    assert_eq!((code, out.as_str()), (0, "saved\n"), "{err}");
    let is_odd = |line: &&str| line.contains(r"\xff");
    let line = normalized(&err).lines().find(is_odd).expect("a line").to_owned();
    assert_eq!(line, r"TIME <- hub: \xff\u0000\u001b[2J\u202e\ta");
    assert!(!err.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{err}");
}

#[test]
fn a_trace_that_nobody_reads_holds_no_call_up() {
    let folder = large();
    let mut command = program();
    command.args(["call", "evil__call", "--trace=full"]).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut weir = command.spawn().expect("it starts");
    let mut out = String::new();
    let mut stdout = weir.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut out).expect("text");
    assert_eq!(wait_for_exit(&mut weir).code(), Some(0));
    assert_eq!(out.len(), (1 << 20) + 1);
    // What was not read before the end is what a pipe holds.
    let mut err = Vec::new();
    weir.stderr.take().expect("a pipe").read_to_end(&mut err).expect("read");
    assert!(err.len() < 1 << 20, "{}", err.len());
    assert!(err.starts_with(b"2") || err.starts_with(b"1") || err.starts_with(b"0"));
}

// === Secrets ===

/// HTTP server whose only tool returns all that came with the call, and which is its own
/// authorization server.
struct Echo {
    address: String,
}

impl Echo {
    fn start(demands_token: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let own = format!("http://{address}");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, own) = (stream.expect("a connection"), own.clone());
                std::thread::spawn(move || {
                    let (head, body) = read_request(&mut stream);
                    let (status, body) = respond(&head, &body, &own, demands_token);
                    let length = body.len();
                    // Weir may not wait for all of it.
                    let _ = write!(
                        stream,
                        "HTTP/1.1 {status}\r\nConnection: close\r\nX-Note: canary-note\r\n\
                         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
                    );
                });
            }
        });
        Self { address }
    }
}

/// Reads the head and the body of a request.
fn read_request(stream: &mut TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let before = head.len();
        reader.read_line(&mut head).expect("a line");
        let line = head[before..].trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    (head, String::from_utf8(body).expect("text"))
}

/// Returns status and body of the response to a request.
fn respond(head: &str, body: &str, own: &str, demands_token: bool) -> (&'static str, String) {
    let target = head.split(" HTTP/").next().expect("a target");
    let metadata = json!({
        "issuer": own,
        "authorization_endpoint": format!("{own}/authorize"),
        "token_endpoint": format!("{own}/token"),
        "registration_endpoint": format!("{own}/register"),
        "code_challenge_methods_supported": ["S256"],
    });
    let resource = json!({ "resource": format!("{own}/mcp"), "authorization_servers": [own] });
    let tokens = json!({
        "access_token": "canary-access-0123456789",
        "refresh_token": "canary-refresh-0123456789",
        "token_type": "Bearer",
    });
    let document = match target {
        "GET /.well-known/oauth-protected-resource/mcp" => Some(resource),
        "GET /.well-known/oauth-authorization-server" => Some(metadata),
        "POST /register" => return ("201 Created", json!({ "client_id": "new" }).to_string()),
        "POST /token" => Some(tokens),
        _ => None,
    };
    if let Some(document) = document {
        return ("200 OK", document.to_string());
    }
    if demands_token && !head.contains("canary-access") {
        return ("401 Unauthorized", String::new());
    }
    let message: Value = serde_json::from_str(body).unwrap_or_default();
    let result = match message["method"].as_str() {
        Some("initialize") => {
            json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} } })
        }
        Some("tools/list") => {
            json!({ "tools": [{ "name": "echo", "inputSchema": { "type": "object" } }] })
        }
        Some("tools/call") => {
            json!({ "content": [{ "type": "text", "text": format!("{head}{body}") }] })
        }
        Some("notifications/initialized") => return ("202 Accepted", String::new()),
        _ => return ("400 Bad Request", head.to_owned()),
    };
    let response = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    ("200 OK", response.to_string())
}

/// Writes a secret's file, which only its owner may read.
fn secret_file(folder: &Path, secret: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(secret.replace("canary", "file"));
    std::fs::write(&path, secret).expect("written");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("its owner's");
}

#[test]
fn no_secret_that_a_server_was_given_is_in_its_trace() {
    let echo = Echo::start(false);
    let config = format!(
        r#"
[upstreams.hub]
command = "sh"
args = ["hub.sh", "--key=${{file:file-arg}}"]
env = {{ KEY = "canary-env" }}
pass_env = ["PASSED"]
[upstreams.echo]
url = "http://{address}/${{file:file-path}}/s/canary-in-Path-01/mcp?key=canary-query&${{file:file-name}}"
headers = {{ X-Key = "canary-header" }}
auth = {{ type = "bearer", token = "canary-bearer" }}
era = "legacy"
"#,
        address = echo.address
    );
    let folder = hub("", SAVED);
    std::fs::write(folder.path().join("weir.toml"), config).expect("written");
    for secret in ["canary-arg", "canary-path", "canary-name"] {
        secret_file(folder.path(), secret);
    }
    // All in one line on standard output, in an error, and in a result.
    let said = r#"echo "$KEY $PASSED $1 canary-\\u0065nv""#;
    edit_script(folder.path(), "echo > hub.started", &format!("echo > hub.started; {said}"));
    edit_script(folder.path(), "\"text\":\"saved\"", r#""text":"'"$KEY $PASSED $1"'""#);
    for arguments in [
        &["call", "hub__save", "--trace=full"][..],
        &["call", "hub__save", "--trace"],
        &["call", "echo__echo", "--trace=full"],
        &["list", "--trace"],
        &["check", "--trace"],
    ] {
        let mut command = program();
        command.args(arguments).current_dir(folder.path()).env("PASSED", "canary-passed");
        let output = command.output().expect("it runs");
        let (out, err) = (output.stdout, String::from_utf8(output.stderr).expect("text"));
        assert_eq!(output.status.code(), Some(0), "{err}");
        // The result itself is what was asked for.
        let is_call = arguments[0] == "call";
        assert_eq!(String::from_utf8_lossy(&out).contains("canary"), is_call, "{arguments:?}");
        assert!(!err.contains("canary"), "{arguments:?}: {err}");
        assert!(err.contains("***"), "{arguments:?}: {err}");
    }
}

#[test]
fn no_token_of_a_sign_in_is_in_a_trace() {
    let echo = Echo::start(true);
    let folder = folder(&format!(
        "[sign_in]\ninsecure_loopback = true\n[state]\ndir = \"state\"\n\
         [upstreams.inner]\nurl = \"http://{}/mcp\"\nauth.type = \"oauth\"\n",
        echo.address
    ));
    let mut login = program();
    login.args(["login", "inner", "--no-browser"]).current_dir(folder.path());
    login.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut login = login.spawn().expect("it starts");
    for line in BufReader::new(login.stderr.take().expect("a pipe")).lines() {
        if let Some((_, query)) = line.expect("text").split_once("/authorize?") {
            come_back(query, "code=canary-code");
        }
    }
    assert_eq!(wait_for_exit(&mut login).code(), Some(0));
    let (code, out, err) = weir(folder.path(), &["call", "inner__echo", "--trace=full"]);
    // The server has got the token, and repeats it.
    assert!(code == 0 && out.contains("authorization: Bearer"), "{out}{err}");
    assert!(!err.contains("canary"), "{err}");
    let call = err.lines().find(|line| line.contains("<- inner: {") && line.contains("Bearer"));
    assert!(call.expect("a result").contains("authorization: Bearer ***"), "{err}");
    assert!(err.contains("; other headers: accept, accept-encoding, authorization,"), "{err}");
    assert!(!err.contains("/token") && !err.contains("refresh"), "{err}");
}
