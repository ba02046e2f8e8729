//! Load test with 200 clients that all use the same ids and tokens, against one shared upstream
//! that answers in random order.
//!
//! It runs in real time, on threads, with only two bare partners beside the gateway, so that a
//! million calls are affordable: the test checks which client gets a message, not whether the
//! message is well formed. Each call has a number of its own, which all its messages carry.

mod cancels;
mod server;
#[cfg(target_os = "linux")]
mod torrent;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::task::TaskTracker;
use weir::app::App;
use weir_base::json::Object;
use weir_base::net::http_connection::ByteStream;
use weir_config::{Config, Options};
use weir_mcp::jsonrpc::Id;
use weir_upstream::connect::{Child, ChildCommand, Connect, Destination};

use crate::by_night;
use crate::cell::{Cell, LEGACY_HTTP, MODERN_HTTP, Side};
use crate::client::{Client, Connector, object};
use crate::world::{key_of, sha256};
use server::{Server, needs_input};

const CLIENTS: u64 = 200;
/// Calls in each cell: by day, and nightly in an optimized build. Without it a million takes hours.
const CALLS: u64 = 1_000;
const NIGHTLY_CALLS: u64 = 1_000_000;

/// Bytes that either side may write before the other reads.
const PIPE: usize = 64 * 1024;

/// Messages that have reached a client.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct MessageCounts {
    calls: u64,
    progress: u64,
    logged: u64,
    questions: u64,
}

/// Serializes these tests: each takes the whole machine, and a parallel one would change its times.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_reaches_the_wrong_one_of_many_clients() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for client in [LEGACY_HTTP, MODERN_HTTP] {
        for upstream in [LEGACY_HTTP, MODERN_HTTP] {
            run_cell(Cell { client, upstream }).await;
        }
    }
}

/// Number of calls of each client.
fn calls_each() -> u64 {
    // `WEIR_CROWD` sets the total number, for a run between day and night.
    let wanted = std::env::var("WEIR_CROWD").ok().map(|calls| calls.parse().expect("a number"));
    wanted.unwrap_or(if by_night() { NIGHTLY_CALLS } else { CALLS }).div_ceil(CLIENTS)
}

async fn run_cell(cell: Cell) {
    let tasks = TaskTracker::new();
    let server = Server::start(cell.upstream.is_modern(), &tasks);
    let keys = (0..CLIENTS).map(|who| {
        let key = sha256(&key_of(&who.to_string()));
        format!("[clients.c{who}]\nrole = \"all\"\nkey_sha256 = [\"{key}\"]\n")
    });
    let config =
        "[upstreams.hub]\nurl = \"http://hub.test/mcp\"\n[roles.all]\ntools.allow = [\"*\"]\n";
    let config = config.to_owned() + &keys.collect::<String>();
    let config = Config::parse(&config, Path::new("weir.toml"), &Options::default());
    let config = config.unwrap_or_else(|report| panic!("{report}"));
    let app = App::open(&config, Arc::new(SingleUpstream(Arc::clone(&server))));
    app.gateway().wait_until_listed().await;

    let begin = Instant::now();
    let each = calls_each();
    let mut crowd = Vec::new();
    for who in 0..CLIENTS {
        let client = connect_client(&app, cell.client, &key_of(&who.to_string()), &tasks);
        crowd.push(tasks.spawn(async move { call_again_and_again(client, who, each).await }));
    }
    let mut sum = MessageCounts::default();
    for client in crowd {
        let tally = client.await.unwrap_or_else(|panic| panic!("with {cell}: {panic}"));
        sum.calls += tally.calls;
        sum.progress += tally.progress;
        sum.logged += tally.logged;
        sum.questions += tally.questions;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let rate = sum.calls as f64 / seconds;
    eprintln!(
        "{cell}: {sum:?} in {seconds:.1} s, {rate:.0}/s, {:.3} out of order",
        server.reordered_share()
    );

    let calls = each * CLIENTS;
    let numbers = (0..CLIENTS).flat_map(|who| (0..each).map(move |turn| number(who, turn)));
    let questions = numbers.filter(|nonce| needs_input(*nonce)).count() as u64;
    assert_eq!(sum, MessageCounts { calls, progress: calls, logged: calls, questions }, "{cell}");
    assert_eq!(server.wrong(), Vec::<String>::new(), "{cell}");
    assert_eq!(server.executed(), calls as usize, "{cell}");
    assert!(server.reordered_share() > 0.5, "the answers came in the order of the calls");
    close(app, tasks, server).await;
}

async fn close(app: App, tasks: TaskTracker, server: Arc<Server>) {
    let in_time = Duration::from_secs(30);
    app.stop_downstream();
    let drained = tokio::time::timeout(in_time, app.wait_until_drained()).await;
    assert!(drained.is_ok(), "a request has not ended");
    app.close().await;
    drop(server);
    tasks.close();
    assert!(tokio::time::timeout(in_time, tasks.wait()).await.is_ok(), "a task is left");
}

/// Connects a client with a key of its own, which has sent nothing.
fn connect_client(app: &App, side: Side, key: &str, tasks: &TaskTracker) -> Client {
    let (server_state, serving) = (Arc::clone(app.server_state()), tasks.clone());
    let connect = move || {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        let server_state = Arc::clone(&server_state);
        serving.spawn(weir_downstream::http::serve_connection(server_state, theirs, Some(peer)));
        ours
    };
    let client = Client::uninitialized(side, Connector::new(connect, None), Some(key), tasks);
    client.declaring(r#"{"elicitation":{"form":{}}}"#)
}

/// The number of a client's call.
fn number(who: u64, turn: u64) -> u64 {
    (who << 32) | turn
}

async fn call_again_and_again(client: Client, who: u64, each: u64) -> MessageCounts {
    if !client.side.is_modern() {
        client.initialize().await;
        client.request("logging/setLevel", r#"{"level":"debug"}"#).await;
    }
    let (mut tally, mut id) = (MessageCounts::default(), 0);
    for turn in 0..each {
        let mut call = CrowdCall { client: &client, nonce: number(who, turn), tally: &mut tally };
        let mut more = Some(String::new());
        // A modern client answers with a new request, under the next id.
        while let Some(members) = more {
            more = call.round(id, &members).await;
            id += 1;
        }
        tally.calls += 1;
    }
    tally
}

/// One call of a client.
struct CrowdCall<'a> {
    client: &'a Client,
    nonce: u64,
    tally: &'a mut MessageCounts,
}

impl CrowdCall<'_> {
    /// Sends one request and reads all its messages; returns the members that the next round has to
    /// add, if there has to be one.
    async fn round(&mut self, id: u64, members: &str) -> Option<String> {
        let nonce = self.nonce;
        let level = match self.client.side.is_modern() {
            true => r#","io.modelcontextprotocol/logLevel":"debug""#,
            false => "",
        };
        let params = format!(
            r#"{{"name":"hub__a","arguments":{{"nonce":{nonce}}},"_meta":{{"progressToken":{id}{level}}}{members}}}"#
        );
        let mut exchange = self.client.start_as(Id::from(id), "tools/call", &params);
        let (mut answer, mut more) = (None, None);
        while let Some(text) = exchange.next().await {
            assert!(answer.is_none(), "{text} comes behind an answer");
            let message = object(&text);
            if let Some(method) = message.get_string("method") {
                let params = message.get_object("params").expect("params");
                self.check_message(&method, &params, id, &text);
                if let Some(question) = message.get("id") {
                    let reply = accept(nonce);
                    let reply = format!(r#"{{"jsonrpc":"2.0","id":{question},"result":{reply}}}"#);
                    self.client.send(&reply).await;
                }
                continue;
            }
            assert_eq!(message.get("id"), Some(&*id.to_string()), "{nonce} hears {text}");
            let result = message.get_object("result");
            let result = result.unwrap_or_else(|| panic!("{nonce} hears {text}"));
            match result.get_object("inputRequests") {
                Some(requests) => more = Some(self.answer(&requests, &result)),
                None => {
                    let own = format!(r#"[{{"type":"text","text":"{nonce}"}}]"#);
                    assert_eq!(result.get("content"), Some(&*own), "{nonce} hears {text}");
                }
            }
            answer = Some(text);
        }
        assert!(answer.is_some(), "{nonce} has no answer");
        more
    }

    /// Checks that a message belongs to this call.
    fn check_message(&mut self, method: &str, params: &Object, id: u64, text: &str) {
        let (count, member) = match method {
            "notifications/progress" => (&mut self.tally.progress, "message"),
            "notifications/message" => (&mut self.tally.logged, "data"),
            "elicitation/create" => (&mut self.tally.questions, "message"),
            _ => panic!("{} hears {text}", self.nonce),
        };
        *count += 1;
        let own = format!("\"{}\"", self.nonce);
        assert_eq!(params.get(member), Some(&*own), "{text}");
        if method == "notifications/progress" {
            assert_eq!(params.get("progressToken"), Some(&*id.to_string()), "{text}");
        }
    }

    /// Members that a modern client adds to its call in the next round.
    fn answer(&mut self, requests: &Object, result: &Object) -> String {
        let keys: Vec<_> = requests.keys().collect();
        let [key] = keys[..] else { panic!("{} is asked {keys:?}", self.nonce) };
        let request = requests.get_object(key).expect("a request");
        let params = request.get_object("params").expect("params");
        self.check_message(&request.get_string("method").expect("a method"), &params, 0, key);
        let state = result.get("requestState").expect("a state");
        let accept = accept(self.nonce);
        format!(r#","inputResponses":{{"{key}":{accept}}},"requestState":{state}"#)
    }
}

fn accept(nonce: u64) -> String {
    format!(r#"{{"action":"accept","content":{{"nonce":"{nonce}"}}}}"#)
}

/// Connects every upstream to this server.
struct SingleUpstream(Arc<Server>);

impl Connect for SingleUpstream {
    fn connect<'a>(
        &'a self,
        _: Destination<'a>,
    ) -> BoxFuture<'a, std::io::Result<Box<dyn ByteStream>>> {
        let stream: Box<dyn ByteStream> = Box::new(self.0.connect());
        std::future::ready(Ok(stream)).boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> std::io::Result<Child> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}
