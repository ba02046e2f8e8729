//! Cost of an upstream that sends without a pause: processor time of the gateway, and delays of
//! others.
//!
//! The gateway runs on a thread of its own here, so that the system measures its processor time
//! apart from that of the test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use weir::app::App;
use weir_base::net::http_connection::ByteStream;
use weir_config::{Config, Options};
use weir_downstream::ServerStateCell;
use weir_gateway::ClientContext;
use weir_mcp::jsonrpc::Id;
use weir_upstream::connect::{Child, ChildCommand, Connect, Destination};

use super::PIPE;
use crate::by_night;
use crate::cell::{Cell, LEGACY_HTTP, MODERN_HTTP, SIDES, Side, Transport};
use crate::client::{Client, Connector, Exchange, object};
use crate::upstream::{Call, InterceptedCalls, Script, Upstream};

/// Progress notifications in one part, and parts in a second.
const BATCH: u64 = 1_000;
const BATCHES_PER_SECOND: u64 = 100;
/// Number of parts, by day and nightly: a fifth of a second, and ten seconds.
const BATCHES: u64 = 20;
const NIGHTLY_BATCHES: u64 = 1_000;
/// Share of a core that the gateway may use for them, optimized.
const MAX_CORE_SHARE: f64 = 0.5;
/// Bound for an unoptimized gateway, in multiples of the time that serde_json takes to parse the
/// same notifications: the speed of a shared core says nothing about the gateway.
const MAX_PARSE_RATIO: f64 = 6.0;
/// Greatest number of notifications that a client gets in a second, and at first.
const MAX_NOTIFICATIONS_PER_SECOND: f64 = 20.0;

/// Number of measured replies, by day and nightly.
const REPLIES: usize = 50;
const NIGHTLY_REPLIES: usize = 2_000;
/// Greatest delay of a reply for a client that does not read beside it: nightly at the 99th
/// percentile on an idle machine, by day at the median on any machine, where a reply that waits for
/// that client never comes.
const MAX_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY_BY_DAY: Duration = Duration::from_secs(5);

/// Id and token of the call with the flood of progress.
const FLOODED_CALL: u64 = 1_000_000;

const LOGGING: &str = r#"{"prompts":{},"tools":{},"resources":{},"completions":{},"logging":{}}"#;

/// Upstreams over HTTP by day; nightly over stdio, too.
fn upstreams() -> Vec<Side> {
    if by_night() { SIDES.to_vec() } else { vec![LEGACY_HTTP, MODERN_HTTP] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37j_a_torrent_of_progress_is_cheap_and_its_client_hears_little_and_the_last() {
    let _turn = super::ONE_AT_A_TIME.lock().await;
    for client in [LEGACY_HTTP, MODERN_HTTP] {
        for upstream in upstreams() {
            flood_with_progress(Cell { client, upstream }).await;
        }
    }
}

async fn flood_with_progress(cell: Cell) {
    let tasks = TaskTracker::new();
    let upstream = Upstream::start(Script::full(cell.upstream), &tasks);
    let gateway = GatewayThread::open(&upstream).await;
    let client = gateway.client(cell.client, &tasks).await;
    let mut intercepted = upstream.intercept("tools/call");
    let (mut exchange, call) = start(&client, &mut intercepted).await;
    // Over HTTP the response is an event stream from here on.
    call.progress(r#""progress":0"#);
    exchange.next().await.expect("the first progress");

    let batches = if by_night() { NIGHTLY_BATCHES } else { BATCHES };
    let (before, begin) = (processor_time(&gateway.clock), Instant::now());
    let pouring = AbortOnDropHandle::new(tasks.spawn(send_progress(call, cell.upstream, batches)));
    let (mut received, mut last) = (1, 0);
    loop {
        let message = object(&exchange.next().await.expect("an answer"));
        if !message.has("method") {
            break;
        }
        let progress = message.get_object("params").and_then(|params| {
            params.get("progress").and_then(|progress| progress.parse::<u64>().ok())
        });
        received += 1;
        last = progress.expect("progress").max(last);
    }
    let (processor_time, took) = (processor_time(&gateway.clock) - before, begin.elapsed());
    pouring.await.expect("it pours all");
    let sent_count = batches * BATCH;
    let seconds = batches as f64 / BATCHES_PER_SECOND as f64;
    let share = processor_time.as_secs_f64() / seconds;
    let reading = tokio::task::spawn_blocking(move || parse_time(sent_count)).await;
    let readings = processor_time.div_duration_f64(reading.expect("they are read"));
    eprintln!(
        "{cell}: {sent_count} notes in {took:.1?} take {share:.2} of a core, {readings:.1} readings; {received} heard"
    );
    assert_eq!(last, sent_count, "{cell}: the last is kept");
    let most = (took.as_secs_f64() + 1.0) * MAX_NOTIFICATIONS_PER_SECOND + 2.0;
    assert!((received as f64) <= most, "{cell}: {received} are more than {most}");
    let is_cheap =
        if cfg!(debug_assertions) { readings <= MAX_PARSE_RATIO } else { share <= MAX_CORE_SHARE };
    assert!(is_cheap, "{cell}: {share:.2} cores, {readings:.1} readings");
    drop((exchange, intercepted));
    drop(client);
    gateway.close().await;
}

/// Sends progress at its rate, and then the response.
async fn send_progress(call: Call, side: Side, batches: u64) {
    let token = call.progress_token();
    let mut beat = tokio::time::interval(Duration::from_secs(1) / BATCHES_PER_SECOND as u32);
    for turn in 0..batches {
        beat.tick().await;
        let mut notifications = String::new();
        for number in turn * BATCH + 1..=(turn + 1) * BATCH {
            let note = note(&token, number);
            match side.transport {
                Transport::Stdio => notifications += &format!("{note}\n"),
                Transport::Http | Transport::Sse => notifications += &format!("data: {note}\n\n"),
            }
        }
        call.piece(&notifications);
    }
    call.result(r#"{"resultType":"complete","content":[]}"#);
}

fn note(token: &str, number: u64) -> String {
    let params = format!(r#"{{"progressToken":{token},"progress":{number}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
}

/// Processor time of this thread for parsing this many notifications.
fn parse_time(count: u64) -> Duration {
    let notifications: Vec<_> =
        (1..=count.min(100_000)).map(|number| note("1000000", number)).collect();
    let clock = thread_statistics();
    let before = processor_time(&clock);
    for note in notifications.iter().cycle().take(count as usize) {
        std::hint::black_box(serde_json::from_str::<serde_json::Value>(note).expect("JSON"));
    }
    processor_time(&clock) - before
}

/// File with the processor time of this thread.
fn thread_statistics() -> PathBuf {
    let here = std::fs::read_link("/proc/thread-self").expect("Linux");
    Path::new("/proc").join(here).join("schedstat")
}

fn processor_time(clock: &Path) -> Duration {
    let statistics = std::fs::read_to_string(clock).expect("Linux");
    let nanoseconds = statistics.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37k_a_client_that_does_not_read_makes_nobodys_reply_late() {
    let _turn = super::ONE_AT_A_TIME.lock().await;
    for client in [LEGACY_HTTP, MODERN_HTTP] {
        for upstream in upstreams() {
            measure_stalled_client(Cell { client, upstream }).await;
        }
    }
}

async fn measure_stalled_client(cell: Cell) {
    let tasks = TaskTracker::new();
    let upstream = Upstream::start(Script::full(cell.upstream).capabilities(LOGGING), &tasks);
    let gateway = GatewayThread::open(&upstream).await;
    let (deaf, bob) =
        (gateway.client(cell.client, &tasks).await, gateway.client(cell.client, &tasks).await);
    let mut intercepted = upstream.intercept("tools/call");
    let (exchange, call) = start(&deaf, &mut intercepted).await;
    let flooding = AbortOnDropHandle::new(tasks.spawn(flood(call)));
    let mut exchange = Some(exchange);
    let (mut half, mut most) = (Vec::new(), Vec::new());
    let replies = if by_night() { NIGHTLY_REPLIES } else { REPLIES };
    for reads in [true, false] {
        let mut times = Vec::new();
        let measuring = async {
            for turn in 0..replies {
                // The calls are those of another client and of the one that does not read.
                let client = if turn % 2 == 0 { &bob } else { &deaf };
                let begin = Instant::now();
                let reply = client.get_prompt("hub__a").await;
                times.push(begin.elapsed());
                assert!(reply.outcome.is_ok(), "{cell}: {reply:?}");
            }
        };
        match exchange.as_mut().filter(|_| reads) {
            Some(exchange) => tokio::select! {
                () = measuring => {}
                () = async { while exchange.next().await.is_some() {} } => panic!("an end"),
            },
            None => measuring.await,
        }
        times.sort();
        half.push(times[times.len() / 2]);
        most.push(times[times.len() * 99 / 100]);
    }
    eprintln!(
        "{cell}: p99 of {replies} replies {:?}, and {:?} beside one who does not read",
        most[0], most[1]
    );
    let (times, later) = if by_night() { (most, MAX_DELAY) } else { (half, MAX_DELAY_BY_DAY) };
    assert!(times[1] <= times[0] + later, "{cell}: {times:?}");
    drop((flooding, exchange, intercepted));
    drop((deaf, bob));
    gateway.close().await;
}

/// Sends notifications without an end.
async fn flood(call: Call) {
    let mut beat = tokio::time::interval(Duration::from_millis(5));
    let text = "x".repeat(4_000);
    for number in 1_u64.. {
        beat.tick().await;
        call.progress(&format!(r#""progress":{number}"#));
        call.notify("notifications/message", &format!(r#"{{"level":"error","data":"{text}"}}"#));
    }
}

async fn start<'a>(client: &'a Client, intercepted: &mut InterceptedCalls) -> (Exchange<'a>, Call) {
    let level = match client.side.is_modern() {
        true => r#","io.modelcontextprotocol/logLevel":"debug""#,
        false => "",
    };
    let params =
        format!(r#"{{"name":"hub__a","_meta":{{"progressToken":{FLOODED_CALL}{level}}}}}"#);
    let exchange = client.start_as(Id::from(FLOODED_CALL), "tools/call", &params);
    (exchange, intercepted.next().await)
}

/// A gateway on a thread of its own.
struct GatewayThread {
    server: Arc<ServerStateCell>,
    client_context: ClientContext,
    /// Runtime of the gateway's tasks.
    runtime: Handle,
    /// File with the processor time of its thread.
    clock: PathBuf,
    close: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl GatewayThread {
    async fn open(upstream: &Upstream) -> Self {
        let way = match upstream.side().transport {
            Transport::Stdio => "command = \"hub\"",
            Transport::Http | Transport::Sse => "url = \"http://hub.test/mcp\"",
        };
        let config = format!("[upstreams.hub]\n{way}\n");
        let config = Config::parse(&config, Path::new("weir.toml"), &Options::default());
        let config = config.unwrap_or_else(|report| panic!("{report}"));
        let dial = SeparateRuntime { upstream: upstream.clone(), runtime: Handle::current() };
        let ((send_ready, ready), (close, closing)) = (oneshot::channel(), oneshot::channel());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let app = App::open(&config, Arc::new(dial));
                app.gateway().wait_until_listed().await;
                let client_context = app.gateway().local_client("local");
                let (server, clock) = (Arc::clone(app.server_state()), thread_statistics());
                let _ = send_ready.send((server, client_context, Handle::current(), clock));
                let _ = closing.await;
                app.stop_downstream();
                app.wait_until_drained().await;
                app.close().await;
            });
        });
        let (server, client_context, runtime, clock) = ready.await.expect("the gateway opens");
        Self { server, client_context, runtime, clock, close, thread }
    }

    async fn client(&self, side: Side, tasks: &TaskTracker) -> Client {
        let (server, client_context, runtime) =
            (Arc::clone(&self.server), self.client_context.clone(), self.runtime.clone());
        let serving = tasks.clone();
        let connect = move || {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let server = Arc::clone(&server);
            if side.is_http() {
                let peer = Some(([127, 0, 0, 1], 50_000).into());
                let serve = weir_downstream::http::serve_connection(server, theirs, peer);
                serving.spawn_on(serve, &runtime);
            } else {
                let (input, output) = tokio::io::split(theirs);
                let serve =
                    weir_downstream::stdio::serve(server, client_context.clone(), input, output);
                serving.spawn_on(serve, &runtime);
            }
            ours
        };
        Client::open(side, Connector::new(connect, None), None, tasks).await
    }

    async fn close(self) {
        let _ = self.close.send(());
        let ended = tokio::task::spawn_blocking(|| self.thread.join()).await;
        assert!(ended.expect("no panic here").is_ok(), "the gateway has panicked");
    }
}

/// Connects to an upstream whose tasks run on another runtime.
struct SeparateRuntime {
    upstream: Upstream,
    runtime: Handle,
}

impl Connect for SeparateRuntime {
    fn connect<'a>(
        &'a self,
        _: Destination<'a>,
    ) -> BoxFuture<'a, std::io::Result<Box<dyn ByteStream>>> {
        let _elsewhere = self.runtime.enter();
        let stream = self.upstream.connect().map(|stream| Box::new(stream) as Box<dyn ByteStream>);
        std::future::ready(stream).boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> std::io::Result<Child> {
        let _elsewhere = self.runtime.enter();
        self.upstream.spawn(|end| end)
    }
}
