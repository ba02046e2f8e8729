//! Targets that need a gateway: each input gets one, in memory and with a paused clock.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio_util::task::TaskTracker;
use weir::app::App;
use weir_base::json::Object;
use weir_base::net::http_connection::ByteStream;
use weir_config::{Config, Options};
use weir_upstream::connect::{Child, ChildCommand, Connect, Destination, ProcessHandle};

/// Longer than any time limit of the gateway. The clock is paused, so waiting costs no real time.
const DEADLINE: Duration = Duration::from_secs(3_600);

const PIPE: usize = 64 * 1024;

/// Runs a scenario, and checks that all its tasks end.
fn run<F: Future<Output = ()>>(scenario: impl FnOnce(TaskTracker) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let tasks = TaskTracker::new();
        scenario(tasks.clone()).await;
        tasks.close();
        let over = tokio::time::timeout(DEADLINE, tasks.wait()).await;
        assert!(over.is_ok(), "{} tasks are left", tasks.len());
    });
}

fn open(config: &str, dial: impl Connect) -> App {
    let config = Config::parse(config, Path::new("weir.toml"), &Options::default());
    App::open(&config.unwrap_or_else(|report| panic!("{report}")), Arc::new(dial))
}

async fn close(app: App) {
    app.stop_downstream();
    let drained = tokio::time::timeout(DEADLINE, app.wait_until_drained()).await;
    assert!(drained.is_ok(), "a request has not ended");
    let closed = tokio::time::timeout(DEADLINE, app.close()).await;
    assert!(closed.is_ok(), "a task has not ended");
}

/// Refuses all connections and processes.
struct NoConnections;

impl Connect for NoConnections {
    fn connect<'a>(&'a self, _: Destination<'a>) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        async { Err(io::ErrorKind::ConnectionRefused.into()) }.boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
        Err(io::ErrorKind::NotFound.into())
    }
}

const CONFIG: &str = "[upstreams.hub]\ncommand = \"hub\"\n[defaults]\ntimeouts = { startup = \"2s\", list = \"2s\", call = \"2s\" }\n[protocol]\nlegacy_sse = true\n";

/// D-F14: any input of a client connection gets valid HTTP responses, and the connection ends.
pub(super) fn http_connection(bytes: &[u8]) {
    run(async |tasks| {
        let app = open(CONFIG, NoConnections);
        let (mut ours, theirs) = tokio::io::duplex(PIPE);
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        let door = Arc::clone(app.server_state());
        let serving =
            tasks.spawn(weir_downstream::http::serve_connection(door, theirs, Some(peer)));
        let (mut read, mut write) = tokio::io::split(&mut ours);
        let writing = async {
            // The gateway may have closed the connection already.
            let _ = write.write_all(bytes).await;
            let _ = write.flush().await;
        };
        let mut responses = Vec::new();
        // An event stream does not end by itself.
        let reading = tokio::time::timeout(DEADLINE, read.read_to_end(&mut responses));
        let (_, outcome) = tokio::join!(writing, reading);
        let is_stream = String::from_utf8_lossy(&responses).contains("text/event-stream");
        assert!(outcome.is_ok() || is_stream, "the connection hangs");
        // The response to HEAD has a content length, but no body.
        if !bytes.windows(4).any(|window| window == b"HEAD") {
            check_responses(&responses);
        }
        drop(ours);
        let ended = tokio::time::timeout(DEADLINE, serving).await;
        assert!(ended.is_ok_and(|ended| ended.is_ok()), "the connection's task panicked or hangs");
        close(app).await;
    });
}

/// Checks that the bytes are a sequence of HTTP responses without other bytes between them.
fn check_responses(mut rest: &[u8]) {
    while !rest.is_empty() {
        let end = rest.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.expect("a whole head");
        let head = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        assert!(head.starts_with("http/1."), "{head}");
        rest = &rest[end + 4..];
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        match length {
            Some(length) => {
                let length: usize = length.trim().parse().expect("a length");
                rest = rest.get(length..).expect("a whole body");
            }
            None if head.contains("transfer-encoding") => return,
            None => {}
        }
    }
}

// === Access tokens ===

const OIDC_CONFIG: &str = r#"
    [server]
    public_url = "http://127.0.0.1:8642"
    [auth.oidc.corp]
    issuer = "https://id.test/a"
    audience = ["http://127.0.0.1:8642/mcp"]
    default_role = "local"
    [upstreams.hub]
    command = "hub"
"#;

/// JWKS of the provider, with the public key of RFC 7515, A.3.
const JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k","use":"sig","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

struct Provider(TaskTracker);

impl Connect for Provider {
    fn connect<'a>(&'a self, _: Destination<'a>) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        let (ours, mut theirs) = tokio::io::duplex(PIPE);
        self.0.spawn(async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n")
                && theirs.read_buf(&mut head).await.is_ok_and(|count| count > 0)
            {}
            let body = match head.windows(5).any(|window| window == b"/keys") {
                true => JWKS,
                false => r#"{"issuer":"https://id.test/a","jwks_uri":"https://id.test/keys"}"#,
            };
            let response =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = theirs.write_all(response.as_bytes()).await;
        });
        let ours: Box<dyn ByteStream> = Box::new(ours);
        async { Ok(ours) }.boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// D-F12: a token that the provider has not signed is refused.
pub(super) fn access_token(bytes: &[u8]) {
    let printable = |byte: &u8| char::from(if (0x21..0x7f).contains(byte) { *byte } else { b'.' });
    let token: String = bytes.iter().take(12_000).map(printable).collect();
    run(async |tasks| {
        let app = open(OIDC_CONFIG, Provider(tasks.clone()));
        app.spawn_jwks_refreshers();
        // Time for the first fetch of the keys.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (mut ours, theirs) = tokio::io::duplex(PIPE);
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        let door = Arc::clone(app.server_state());
        tasks.spawn(weir_downstream::http::serve_connection(door, theirs, Some(peer)));
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:8642\r\nauthorization: Bearer {token}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        ours.write_all(request.as_bytes()).await.expect("an open connection");
        let mut response = Vec::new();
        let outcome = tokio::time::timeout(DEADLINE, ours.read_to_end(&mut response)).await;
        assert!(outcome.is_ok(), "the connection hangs");
        let response = String::from_utf8_lossy(&response);
        let status = response.get(9..12).expect("a status");
        // 503 would mean that the keys are unknown.
        assert!(matches!(status, "401" | "400" | "403" | "429" | "431"), "{token}: {response}");
        drop(ours);
        close(app).await;
    });
}

// === An upstream ===

/// D-F13: for any output of a server, each request of a client gets exactly one response.
pub(super) fn upstream(bytes: &[u8]) {
    let script: Vec<u8> = bytes.iter().take(4_096).copied().collect();
    run(async |tasks| {
        let dial = Scripted { script: script.into(), tasks: tasks.clone() };
        let app = open(CONFIG, dial);
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (input, output) = tokio::io::split(theirs);
        let guest = app.gateway().local_client("local");
        let door = Arc::clone(app.server_state());
        tasks.spawn(weir_downstream::stdio::serve(door, guest, input, output));
        let (read, mut write) = tokio::io::split(ours);
        let mut requests = String::new();
        requests += r#"{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
        requests += "\n";
        requests += r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        requests += "\n";
        for number in 0..3 {
            for method in ["tools/list", "tools/call", "prompts/get"] {
                requests += &format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":\"{method} {number}\",\"method\":\"{method}\",\"params\":{{\"name\":\"hub__a\"}}}}\n"
                );
            }
        }
        write.write_all(requests.as_bytes()).await.expect("an open connection");
        let mut responses: HashMap<String, u32> = HashMap::new();
        let mut lines = BufReader::new(read).lines();
        while responses.len() < 10 {
            let line = tokio::time::timeout(DEADLINE, lines.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("no response but {responses:?}"));
            let line = line.expect("lines").expect("the connection is open");
            assert!(line.len() < 9 << 20);
            let message = Object::parse(line.clone()).expect("an object");
            if !message.has("method")
                && let Some(id) = message.get_string("id")
            {
                *responses.entry(id.into_owned()).or_default() += 1;
            }
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(write);
        while let Ok(Ok(Some(line))) =
            tokio::time::timeout(Duration::from_secs(5), lines.next_line()).await
        {
            let message = Object::parse(line).expect("an object");
            if let (Some(id), false) = (message.get_string("id"), message.has("method")) {
                *responses.entry(id.into_owned()).or_default() += 1;
            }
        }
        assert!(responses.values().all(|count| *count == 1), "{responses:?}");
        drop(lines);
        close(app).await;
    });
}

struct Scripted {
    script: Arc<[u8]>,
    tasks: TaskTracker,
}

impl Connect for Scripted {
    fn connect<'a>(&'a self, _: Destination<'a>) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        async { Err(io::ErrorKind::ConnectionRefused.into()) }.boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let stop = tokio_util::sync::CancellationToken::new();
        let (script, ending) = (Arc::clone(&self.script), stop.clone());
        self.tasks.spawn(async move {
            ending.run_until_cancelled(run_script(ours, &script)).await;
            ending.cancel();
        });
        let (stdout, stdin) = tokio::io::split(theirs);
        Ok(Child {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: None,
            process: Box::new(FakeProcess(stop)),
        })
    }
}

/// Fake process that runs until its token is cancelled.
pub(crate) struct FakeProcess(pub(crate) tokio_util::sync::CancellationToken);

impl ProcessHandle for FakeProcess {
    fn wait(&mut self) -> BoxFuture<'_, String> {
        self.0.cancelled().map(|()| "ended".to_owned()).boxed()
    }

    fn terminate(&mut self) {
        self.0.cancel();
    }

    fn kill(&mut self) {
        self.0.cancel();
    }
}

/// Runs a fake server. It sends default responses to handshakes; for other requests each byte of
/// the script selects a response or a fault. A script that begins with `!` applies to handshakes,
/// too.
async fn run_script(io: DuplexStream, script: &[u8]) {
    let (read, mut write) = tokio::io::split(io);
    let mut lines = BufReader::new(read).lines();
    let (is_full_script, script) = match script.split_first() {
        Some((b'!', rest)) => (true, rest),
        _ => (false, script),
    };
    let mut at = 0;
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(message) = Object::parse(line) else { return };
        let (Some(method), Some(id)) = (message.get_string("method"), message.get("id")) else {
            continue;
        };
        let default_result = match &*method {
            "initialize" => Some(
                r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}},"serverInfo":{"name":"s","version":"1"}}"#,
            ),
            "tools/list" => Some(r#"{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}"#),
            "prompts/list" => Some(r#"{"prompts":[{"name":"a"}]}"#),
            "server/discover" => None,
            _ => Some("{\"content\":[]}"),
        };
        let step = script.get(at).copied();
        at += 1;
        let default_response = match default_result {
            Some(result) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n"),
            None => format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32601,\"message\":\"\"}}}}\n"
            ),
        };
        let is_handshake = matches!(&*method, "initialize" | "server/discover");
        let output: Vec<u8> = match step {
            None => default_response.into_bytes(),
            Some(_) if is_handshake && !is_full_script => default_response.into_bytes(),
            Some(b'A'..=b'Z') => default_response.into_bytes(),
            Some(0) => Vec::new(),
            Some(1) => return,
            Some(2) => [default_response.as_bytes(), default_response.as_bytes()].concat(),
            Some(3) => default_response.replace(id, "999999").into_bytes(),
            Some(4) => default_response.replace(id, &format!("\"{id}\"")).into_bytes(),
            Some(5) => default_response.replace("\"result\"", "\"result\":{},\"error\"").into_bytes(),
            Some(6) => default_response.as_bytes()[..default_response.len() / 2].to_vec(),
            Some(7) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n{default_response}")
                .into_bytes(),
            Some(8) => format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}}\n{default_response}"
            )
            .into_bytes(),
            // Sends the rest of the script unchanged, up to its next line feed.
            Some(_) => {
                let rest = &script[at - 1..];
                let end =
                    rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
                at += end - 1;
                let mut output = rest[..end].to_vec();
                if !output.ends_with(b"\n") {
                    output.push(b'\n');
                }
                output.extend_from_slice(default_response.as_bytes());
                output
            }
        };
        if write.write_all(&output).await.is_err() {
            return;
        }
    }
}
