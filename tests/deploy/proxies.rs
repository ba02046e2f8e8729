//! nginx and Caddy as proxies of a Weir process: events arrive without buffering, and calls work,
//! over Streamable HTTP and over the deprecated HTTP+SSE transport.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use super::run;
use crate::lab::caddy::Caddy;
use crate::lab::nginx::Nginx;
use crate::lab::weir::Weir;

const HOST: &str = "mcp.example.com";

/// Child process that is killed when dropped.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts Weir with a prompt library.
fn weir(folder: &TempDir) -> Weir {
    std::fs::create_dir(folder.path().join("prompts")).expect("made");
    write_prompt(folder, "first");
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\npublic_url = \"https://{HOST}\"\n\
         [protocol]\nlegacy_sse = true\n[auth]\nmode = \"anonymous\"\n[log]\nformat = \"json\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n"
    );
    std::fs::write(folder.path().join("weir.toml"), config).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--config"]).arg(folder.path().join("weir.toml"));
    Weir::serve(command)
}

fn write_prompt(folder: &TempDir, name: &str) {
    let text = "---\ndescription: A test.\n---\nHello.\n";
    std::fs::write(folder.path().join(format!("prompts/{name}.md")), text).expect("written");
}

/// Weir behind a proxy.
struct Proxied {
    scheme: &'static str,
    port: u16,
}

impl Proxied {
    /// Command for a request with this path.
    fn curl(&self, path: &str) -> Command {
        let Self { scheme, port } = self;
        let mut command = Command::new("curl");
        command
            .args(["-sSkN", "--max-time", "60", "--noproxy", "*", "--resolve"])
            .arg(format!("{HOST}:{port}:127.0.0.1"))
            .args(["-H", "Accept: application/json, text/event-stream"])
            .arg(format!("{scheme}://{HOST}:{port}{path}"));
        command
    }

    /// Command for a modern POST request.
    fn request(&self, method: &str, more: &str) -> Command {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;
        let mut command = self.curl("/mcp");
        command
            .args(["-H", "MCP-Protocol-Version: 2026-07-28"])
            .args(["-H", &format!("Mcp-Method: {method}")]);
        post(&mut command, method, Some(1), &format!("{meta}{more}"));
        command
    }

    /// Posts an HTTP+SSE message; its response arrives on the stream.
    fn post_message(&self, address: &str, method: &str, id: Option<u8>, params: &str) {
        let mut command = self.curl(address);
        command.args(["-o", "/dev/null", "-w", "%{http_code}"]);
        post(&mut command, method, id, params);
        assert_eq!(run(&mut command), (Some(0), "202".to_owned()), "{method}");
    }
}

fn post(command: &mut Command, method: &str, id: Option<u8>, params: &str) {
    let id = id.map(|id| format!(r#""id":{id},"#)).unwrap_or_default();
    let body = format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{{params}}}}}"#);
    command.args(["-H", "Content-Type: application/json", "-d", &body]);
}

/// Opens an endless stream. If a proxy buffers events, curl's time limit fails the test.
fn open(mut command: Command) -> (ChildGuard, BufReader<ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("curl starts");
    let stream = BufReader::new(child.stdout.take().expect("a pipe"));
    (ChildGuard(child), stream)
}

/// Reads until this word arrives, and returns the text.
fn wait_for(stream: &mut BufReader<ChildStdout>, word: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(word) {
        let read = stream.read_line(&mut seen).expect("text");
        assert_ne!(read, 0, "the stream ended without {word}: {seen}");
    }
    seen
}

/// Checks that a call gets its response, and that each event arrives while its stream is open.
fn forwards_calls_and_events(proxied: &Proxied, folder: &TempDir) {
    let (code, output) = run(&mut proxied.request("prompts/list", ""));
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("house__first"), "{output}");

    let filter = r#","notifications":{"promptsListChanged":true}"#;
    let (_listening, mut stream) = open(proxied.request("subscriptions/listen", filter));
    wait_for(&mut stream, "notifications/subscriptions/acknowledged");
    write_prompt(folder, "second");
    wait_for(&mut stream, "notifications/prompts/list_changed");
}

/// Checks an HTTP+SSE session: stream, `endpoint` event, `initialize` and a list.
fn forwards_http_sse(proxied: &Proxied) {
    let (_listening, mut stream) = open(proxied.curl("/sse"));
    let opening = wait_for(&mut stream, "data: ") + &wait_for(&mut stream, "\n");
    let address = opening.lines().find_map(|line| line.strip_prefix("data: "));
    let address = address.expect("an address");
    assert!(address.starts_with("/messages?"), "{opening}");

    let params = r#""protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"t","version":"1"}"#;
    proxied.post_message(address, "initialize", Some(1), params);
    wait_for(&mut stream, r#""protocolVersion":"2024-11-05""#);
    proxied.post_message(address, "notifications/initialized", None, "");
    proxied.post_message(address, "prompts/list", Some(2), "");
    wait_for(&mut stream, "house__first");
}

#[test]
fn nginx_lets_calls_and_events_through() {
    let place = TempDir::new().expect("a folder");
    let weir = weir(&place);
    let nginx = Nginx::start_with_tls(std::slice::from_ref(&weir.address));
    let proxied = Proxied { scheme: "https", port: nginx.port };
    forwards_calls_and_events(&proxied, &place);
    forwards_http_sse(&proxied);
    let nginx = Nginx::start_for_containers(std::slice::from_ref(&weir.address));
    let proxied = Proxied { scheme: "http", port: nginx.port };
    forwards_http_sse(&proxied);
}

#[test]
fn caddy_lets_calls_and_events_through() {
    let place = TempDir::new().expect("a folder");
    let weir = weir(&place);
    let caddy = Caddy::start(HOST, std::slice::from_ref(&weir.address));
    let proxied = Proxied { scheme: "http", port: caddy.port };
    forwards_calls_and_events(&proxied, &place);
    forwards_http_sse(&proxied);
}
