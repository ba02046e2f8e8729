//! The targets that need a house: one in memory, on a paused clock, for each input.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio_util::task::TaskTracker;
use weir::app::App;
use weir::config::{Config, Options};
use weir::json::Object;
use weir::upstream::connect::{Child, Command, Dial, Process, Stream};

/// Longer than any time limit in the house, which is on a paused clock.
const DEADLINE: Duration = Duration::from_secs(3_600);

const PIPE: usize = 64 * 1024;

/// Runs a piece of a house's life.
fn live<F: Future<Output = ()>>(life: impl FnOnce(TaskTracker) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let tasks = TaskTracker::new();
        life(tasks.clone()).await;
        tasks.close();
        let over = tokio::time::timeout(DEADLINE, tasks.wait()).await;
        assert!(over.is_ok(), "{} tasks are left", tasks.len());
    });
}

fn open(config: &str, dial: impl Dial) -> App {
    let config = Config::parse(config, Path::new("weir.toml"), &Options::default());
    App::open(&config.unwrap_or_else(|report| panic!("{report}")), Arc::new(dial))
}

async fn close(app: App) {
    app.stop_doors();
    let drained = tokio::time::timeout(DEADLINE, app.drained()).await;
    assert!(drained.is_ok(), "a request has not ended");
    let closed = tokio::time::timeout(DEADLINE, app.close()).await;
    assert!(closed.is_ok(), "a task has not ended");
}

/// Leads nowhere.
struct Nowhere;

impl Dial for Nowhere {
    fn connect<'a>(
        &'a self,
        _: &'a Uri,
        _: Duration,
    ) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        async { Err(io::ErrorKind::ConnectionRefused.into()) }.boxed()
    }

    fn spawn(&self, _: &Command) -> io::Result<Child> {
        Err(io::ErrorKind::NotFound.into())
    }
}

const OPEN: &str = "[upstreams.hub]\ncommand = \"hub\"\n[defaults]\ntimeouts = { startup = \"2s\", list = \"2s\", call = \"2s\" }\n[protocol]\nlegacy_sse = true\n";

/// D-F14: whatever comes in at the door is answered or refused, and every answer is one.
pub(super) fn door(bytes: &[u8]) {
    live(async |tasks| {
        let app = open(OPEN, Nowhere);
        let (mut ours, theirs) = tokio::io::duplex(PIPE);
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        let door = Arc::clone(app.door());
        let serving =
            tasks.spawn(weir::downstream::http::serve_connection(door, theirs, Some(peer)));
        let (mut read, mut write) = tokio::io::split(&mut ours);
        let saying = async {
            // It may have closed by then.
            let _ = write.write_all(bytes).await;
            let _ = write.flush().await;
        };
        let mut answers = Vec::new();
        // A stream of events never ends by itself.
        let hearing = tokio::time::timeout(DEADLINE, read.read_to_end(&mut answers));
        let (_, heard) = tokio::join!(saying, hearing);
        let is_stream = String::from_utf8_lossy(&answers).contains("text/event-stream");
        assert!(heard.is_ok() || is_stream, "the connection hangs");
        // The answer to HEAD tells the length of what it does not hold.
        if !bytes.windows(4).any(|window| window == b"HEAD") {
            check_answers(&answers);
        }
        drop(ours);
        let ended = tokio::time::timeout(DEADLINE, serving).await;
        assert!(ended.is_ok_and(|ended| ended.is_ok()), "the connection's task panicked or hangs");
        close(app).await;
    });
}

/// What came back is HTTP responses, one behind the other, and no stray byte between them.
fn check_answers(mut rest: &[u8]) {
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

const KEYED: &str = r#"
    [server]
    public_url = "http://127.0.0.1:8642"
    [auth.oidc.corp]
    issuer = "https://id.test/a"
    audience = ["http://127.0.0.1:8642/mcp"]
    default_role = "local"
    [upstreams.hub]
    command = "hub"
"#;

/// The provider's documents; nobody knows the other half of its key, which is that of RFC 7515, A.3.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k","use":"sig","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

struct Provider(TaskTracker);

impl Dial for Provider {
    fn connect<'a>(
        &'a self,
        _: &'a Uri,
        _: Duration,
    ) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        let (ours, mut theirs) = tokio::io::duplex(PIPE);
        self.0.spawn(async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n")
                && theirs.read_buf(&mut head).await.is_ok_and(|count| count > 0)
            {}
            let body = match head.windows(5).any(|window| window == b"/keys") {
                true => KEYS,
                false => r#"{"issuer":"https://id.test/a","jwks_uri":"https://id.test/keys"}"#,
            };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = theirs.write_all(answer.as_bytes()).await;
        });
        let ours: Box<dyn Stream> = Box::new(ours);
        async { Ok(ours) }.boxed()
    }

    fn spawn(&self, _: &Command) -> io::Result<Child> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// D-F12: nobody gets in with a token that the provider has not signed.
pub(super) fn access_token(bytes: &[u8]) {
    let shown = |byte: &u8| char::from(if (0x21..0x7f).contains(byte) { *byte } else { b'.' });
    let token: String = bytes.iter().take(12_000).map(shown).collect();
    live(async |tasks| {
        let app = open(KEYED, Provider(tasks.clone()));
        app.keep_keys();
        // The keys are fetched by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (mut ours, theirs) = tokio::io::duplex(PIPE);
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        let door = Arc::clone(app.door());
        tasks.spawn(weir::downstream::http::serve_connection(door, theirs, Some(peer)));
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:8642\r\nauthorization: Bearer {token}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        ours.write_all(request.as_bytes()).await.expect("a door");
        let mut answer = Vec::new();
        let heard = tokio::time::timeout(DEADLINE, ours.read_to_end(&mut answer)).await;
        assert!(heard.is_ok(), "the connection hangs");
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.get(9..12).expect("a status");
        // 503 would be that the keys are not known.
        assert!(matches!(status, "401" | "400" | "403" | "429" | "431"), "{token}: {answer}");
        drop(ours);
        close(app).await;
    });
}

// === An upstream ===

/// D-F13: whatever a server says, each request of a client's ends once, with its own answer.
pub(super) fn upstream(bytes: &[u8]) {
    let script: Vec<u8> = bytes.iter().take(4_096).copied().collect();
    live(async |tasks| {
        let dial = Scripted { script: script.into(), tasks: tasks.clone() };
        let app = open(OPEN, dial);
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (input, output) = tokio::io::split(theirs);
        let guest = app.gateway().enter_locally("local");
        let door = Arc::clone(app.door());
        tasks.spawn(weir::downstream::stdio::serve(door, guest, input, output));
        let (read, mut write) = tokio::io::split(ours);
        let mut said = String::new();
        said += r#"{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
        said += "\n";
        said += r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        said += "\n";
        for number in 0..3 {
            for method in ["tools/list", "tools/call", "prompts/get"] {
                said += &format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":\"{method} {number}\",\"method\":\"{method}\",\"params\":{{\"name\":\"hub__a\"}}}}\n"
                );
            }
        }
        write.write_all(said.as_bytes()).await.expect("a door");
        let mut answers: HashMap<String, u32> = HashMap::new();
        let mut lines = BufReader::new(read).lines();
        while answers.len() < 10 {
            let line = tokio::time::timeout(DEADLINE, lines.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("no answer but {answers:?}"));
            let line = line.expect("lines").expect("the door is open");
            assert!(line.len() < 9 << 20);
            let message = Object::parse(line.clone()).expect("an object");
            if !message.has("method")
                && let Some(id) = message.get_string("id")
            {
                *answers.entry(id.into_owned()).or_default() += 1;
            }
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(write);
        while let Ok(Ok(Some(line))) =
            tokio::time::timeout(Duration::from_secs(5), lines.next_line()).await
        {
            let message = Object::parse(line).expect("an object");
            if let (Some(id), false) = (message.get_string("id"), message.has("method")) {
                *answers.entry(id.into_owned()).or_default() += 1;
            }
        }
        assert!(answers.values().all(|count| *count == 1), "{answers:?}");
        drop(lines);
        close(app).await;
    });
}

struct Scripted {
    script: Arc<[u8]>,
    tasks: TaskTracker,
}

impl Dial for Scripted {
    fn connect<'a>(
        &'a self,
        _: &'a Uri,
        _: Duration,
    ) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        async { Err(io::ErrorKind::ConnectionRefused.into()) }.boxed()
    }

    fn spawn(&self, _: &Command) -> io::Result<Child> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let stop = tokio_util::sync::CancellationToken::new();
        let (script, ending) = (Arc::clone(&self.script), stop.clone());
        self.tasks.spawn(async move {
            ending.run_until_cancelled(play(ours, &script)).await;
            ending.cancel();
        });
        let (stdout, stdin) = tokio::io::split(theirs);
        Ok(Child {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: None,
            process: Box::new(Running(stop)),
        })
    }
}

/// The life of a process that is none: it runs until the token fires.
pub(crate) struct Running(pub(crate) tokio_util::sync::CancellationToken);

impl Process for Running {
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

/// A server: the usual answers to openings and lists, and to the rest what the script says, a byte a
/// request. A script that begins with `!` says everything itself.
async fn play(io: DuplexStream, script: &[u8]) {
    let (read, mut write) = tokio::io::split(io);
    let mut lines = BufReader::new(read).lines();
    let (is_wild, script) = match script.split_first() {
        Some((b'!', rest)) => (true, rest),
        _ => (false, script),
    };
    let mut at = 0;
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(message) = Object::parse(line) else { return };
        let (Some(method), Some(id)) = (message.get_string("method"), message.get("id")) else {
            continue;
        };
        let usual = match &*method {
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
        let own = match usual {
            Some(result) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n"),
            None => format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32601,\"message\":\"\"}}}}\n"
            ),
        };
        let is_opening = matches!(&*method, "initialize" | "server/discover");
        let said: Vec<u8> = match step {
            None => own.into_bytes(),
            Some(_) if is_opening && !is_wild => own.into_bytes(),
            Some(b'A'..=b'Z') => own.into_bytes(),
            Some(0) => Vec::new(),
            Some(1) => return,
            Some(2) => [own.as_bytes(), own.as_bytes()].concat(),
            Some(3) => own.replace(id, "999999").into_bytes(),
            Some(4) => own.replace(id, &format!("\"{id}\"")).into_bytes(),
            Some(5) => own.replace("\"result\"", "\"result\":{},\"error\"").into_bytes(),
            Some(6) => own.as_bytes()[..own.len() / 2].to_vec(),
            Some(7) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n{own}")
                .into_bytes(),
            Some(8) => format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}}\n{own}"
            )
            .into_bytes(),
            // The rest of the script as it is, up to its next line's end.
            Some(_) => {
                let rest = &script[at - 1..];
                let end =
                    rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
                at += end - 1;
                let mut said = rest[..end].to_vec();
                if !said.ends_with(b"\n") {
                    said.push(b'\n');
                }
                said.extend_from_slice(own.as_bytes());
                said
            }
        };
        if write.write_all(&said).await.is_err() {
            return;
        }
    }
}
