//! Tests of the downstream side as a whole: bytes in, bytes out, over streams in memory.
//!
//! The gateway is real, with two scripted upstreams: `old` speaks 2025-11-25 and `new` speaks
//! 2026-07-28, both as processes whose streams are in memory too.

#![expect(clippy::disallowed_types, reason = "a test reads whatever came back")]

mod head;
mod http;
mod legacy;
mod modern;
mod script;
mod stdio;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::http::serve_connection;
use super::{ServerParts, ServerStateCell, Settings};
use script::{Script, command};
use weir_access::catalog::{self, Catalog, ExportRules};
use weir_access::policy::role::Role;
use weir_access::policy::{self, ClientCredentials, Policy};
use weir_base::memory::memory_budget::MemoryBudget;
use weir_base::net::http_connection::ByteStream;
use weir_base::secrets::sealing::SealingKeys;
use weir_base::secrets::sha256::sha256;
use weir_gateway::{Gateway, Inspectors, SnapshotParts};
use weir_mcp::name::{Naming, UpstreamName};
use weir_mcp::pattern::AllowDeny;
use weir_record::audit::Audit;
use weir_upstream::{
    self as upstream, RetrySettings, Timeouts, Upstream, UpstreamLimits, UpstreamSource,
};

/// A running gateway, and a way to connect to it.
struct TestGateway {
    state_cell: Arc<ServerStateCell>,
    script: Arc<Script>,
    stop: CancellationToken,
}

impl TestGateway {
    async fn start() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        Self::recorded(settings, Audit::off()).await
    }

    /// Starts a gateway with an audit log.
    async fn recorded(settings: Settings, audit: Audit) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        // The downstream side shuts down first, while the gateway is still running.
        let behind = CancellationToken::new();
        let script = Arc::new(Script::default());
        let budget = MemoryBudget::new(crate::MAX_BUFFERED_BYTES);
        let names: [UpstreamName; 2] = ["new", "old"].map(|name| name.parse().expect("a name"));
        let exports = names.clone().map(|name| ExportRules {
            prefix: name.clone(),
            name,
            prompts: AllowDeny::everything(),
            tools: AllowDeny::everything(),
            resources: AllowDeny::everything(),
            rename: Vec::new(),
        });
        let catalog = Catalog::new(catalog::Settings {
            naming: Naming::default(),
            exports: exports.to_vec(),
            page_items: 200,
            page_bytes: 1_000_000,
            instructions: true,
        });
        let upstreams = names.map(|name| {
            let settings = upstream_settings(name);
            let dial = Arc::clone(&script) as _;
            Upstream::start(settings, dial, &budget, &tasks, behind.clone())
        });
        let (policy, upstreams) = (policy(), upstreams.to_vec());
        let (inspectors, list_wait) = (Inspectors::default(), Duration::from_secs(2));
        let parts = SnapshotParts { policy, catalog, upstreams, inspectors, list_wait };
        let gateway = Gateway::open(parts, SealingKeys::random(), &tasks, &behind);
        gateway.wait_until_listed().await;
        let parts = ServerParts {
            gateway,
            fleet: None,
            serves_replicas: false,
            budget,
            audit,
            tasks,
            stop: stop.clone(),
        };
        Self { state_cell: ServerStateCell::new(parts, settings), script, stop }
    }

    /// Opens an HTTP connection.
    fn connect(&self) -> TestClient {
        let (ours, theirs) = duplex(1024 * 1024);
        self.state_cell.now().tracker.spawn(serve_connection(
            Arc::clone(&self.state_cell),
            theirs,
            None,
        ));
        TestClient { io: Box::new(ours), read: Vec::new() }
    }

    /// Opens a stdio connection.
    fn pipe(&self) -> TestClient {
        let (ours, theirs) = duplex(1024 * 1024);
        let (input, output) = tokio::io::split(theirs);
        let client_context = self.state_cell.now().gateway.local_client("local");
        let serving =
            crate::stdio::serve(Arc::clone(&self.state_cell), client_context, input, output);
        self.state_cell.now().tracker.spawn(serving);
        TestClient { io: Box::new(ours), read: Vec::new() }
    }
}

fn policy() -> Policy {
    let nothing_secret = Role {
        tools: AllowDeny::new(&["*"], &["*/secret"]),
        resources: AllowDeny::new(&["*"], &["*secret*"]),
        ..Role::everything()
    };
    Policy::new(policy::Settings {
        anonymous_role: Some("local".into()),
        roles: HashMap::from([
            ("local".to_owned(), Role::everything()),
            ("guest".to_owned(), nothing_secret),
        ]),
        clients: vec![ClientCredentials {
            name: "ann".into(),
            role: "guest".into(),
            key_sha256: vec![sha256("ann-key")],
            ..ClientCredentials::default()
        }],
        ..Default::default()
    })
}

fn upstream_settings(name: UpstreamName) -> upstream::Settings {
    let second = Duration::from_secs(1);
    upstream::Settings {
        instance: None,
        source: UpstreamSource::Process(command(name.as_str())),
        name,
        era: None,
        sharing: upstream::Sharing::Shared,
        timeouts: Timeouts {
            connect: 2 * second,
            startup: 60 * second,
            list: 10 * second,
            call: 60 * second,
            call_max: 600 * second,
            reset_on_progress: true,
            gather: Duration::from_millis(5),
            idle: None,
            stop: 2 * second,
            terminate: 3 * second,
        },
        retry: RetrySettings { backoff: second, max_backoff: 30 * second, jitter: false },
        limits: UpstreamLimits {
            concurrency: 64,
            waiting: 128,
            wait: second,
            max_message: 8 << 20,
            max_items: 1_000,
            max_pages: 10,
            max_list: 32 << 20,
        },
        required: false,
        lazy: false,
        breaker: weir_upstream::health::breaker::Settings::default(),
        on_down: weir_upstream::OnDown::Keep,
        list_cache_dir: None,
    }
}

/// Client end of a connection in memory.
struct TestClient {
    io: Box<dyn ByteStream>,
    read: Vec<u8>,
}

/// An HTTP response, read to its end.
#[derive(Debug)]
struct TestResponse {
    status: u16,
    headers: String,
    body: String,
}

impl TestClient {
    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.io.write_all(bytes.as_ref()).await.expect("the other side reads");
    }

    /// Reads until `text` has arrived; returns everything up to its end.
    async fn read_to(&mut self, text: &str) -> String {
        loop {
            let found = self.read.windows(text.len()).position(|part| part == text.as_bytes());
            if let Some(at) = found {
                let rest = self.read.split_off(at + text.len());
                let read = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(read).expect("UTF-8");
            }
            let mut chunk = [0; 4_096];
            let count = self.io.read(&mut chunk).await.expect("readable");
            let so_far = String::from_utf8_lossy(&self.read);
            assert!(count > 0, "closed before {text:?}, after {so_far:?}");
            self.read.extend_from_slice(&chunk[..count]);
        }
    }

    /// True if the other side closes without another byte.
    async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let ended = self.io.read_to_end(&mut rest).await.is_ok();
        ended && self.read.is_empty() && rest.is_empty()
    }

    async fn head(&mut self) -> TestResponse {
        let headers = self.read_to("\r\n\r\n").await;
        let status = headers.get(9..12).and_then(|code| code.parse().ok()).expect("a status");
        TestResponse { status, headers, body: String::new() }
    }

    /// Sends a request and reads its response.
    async fn ask(&mut self, request: impl AsRef<[u8]>) -> TestResponse {
        self.write(request).await;
        self.response().await
    }

    async fn response(&mut self) -> TestResponse {
        let mut response = self.head().await;
        if let Some(length) = response.header("content-length") {
            let length: usize = length.parse().expect("a number");
            while self.read.len() < length {
                let mut chunk = [0; 4_096];
                let count = self.io.read(&mut chunk).await.expect("readable");
                assert!(count > 0, "closed in the middle of a body");
                self.read.extend_from_slice(&chunk[..count]);
            }
            let rest = self.read.split_off(length);
            let body = std::mem::replace(&mut self.read, rest);
            response.body = String::from_utf8(body).expect("UTF-8");
        } else if response.header("transfer-encoding") == Some("chunked") {
            response.body = self.chunks().await;
        }
        response
    }

    async fn chunks(&mut self) -> String {
        let mut body = String::new();
        loop {
            let size = self.read_to("\r\n").await;
            let size = usize::from_str_radix(size.trim(), 16).expect("a size");
            let mut chunk = self.read_to("\r\n").await;
            while chunk.len() < size + 2 {
                chunk += &self.read_to("\r\n").await;
            }
            if size == 0 {
                return body;
            }
            body += &chunk[..size];
        }
    }

    /// Returns the JSON of the next event.
    async fn event(&mut self) -> Value {
        self.read_to("data: ").await;
        let data = self.read_to("\n\n").await;
        serde_json::from_str(data.trim()).expect("JSON")
    }

    /// Sends a line, and returns the JSON of the next one.
    async fn say(&mut self, line: &str) -> Value {
        self.write(line).await;
        self.line().await
    }

    /// Returns the JSON of the next line.
    async fn line(&mut self) -> Value {
        let line = self.read_to("\n").await;
        serde_json::from_str(&line).expect("JSON")
    }
}

impl TestResponse {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.headers.lines();
        let mut fields = lines.filter_map(|line| line.split_once(": "));
        fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect(&self.body)
    }

    /// Returns the status and the error code.
    fn refusal(&self) -> (u16, i64) {
        (self.status, self.json()["error"]["code"].as_i64().expect("an error"))
    }
}
