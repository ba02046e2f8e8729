//! What an upstream that speaks without a pause costs: the house its processor, and others their time.
//!
//! The house has a thread of its own here, so that the system counts its work apart from that of the test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use weir::app::App;
use weir::config::{Config, Options};
use weir::downstream::Doors;
use weir::gateway::Guest;
use weir::jsonrpc::Id;
use weir::upstream::connect::{Child, Command, Dial, Stream};

use super::PIPE;
use crate::by_night;
use crate::cell::{Cell, LEGACY_HTTP, MODERN_HTTP, SIDES, Side, Wire};
use crate::client::{Client, Exchange, Open, object};
use crate::upstream::{Call, Held, Script, Upstream};

/// Progress in a second, and how often some of it is sent.
const NOTES: u64 = 100_000;
const BEATS: u64 = 100;
/// For how many seconds, by day and by night.
const SECONDS: u64 = 1;
const NIGHTLY_SECONDS: u64 = 10;
/// The share of a core that the house may take for it, optimized.
const SHARE: f64 = 0.5;
/// How many times the work of reading the same notes with serde_json it may take, unoptimized: how fast a core is that
/// others share says nothing about the house.
const READINGS: f64 = 6.0;
/// What a client hears in a second, and at first.
const HEARD: f64 = 20.0;

/// How many replies are measured, by day and by night.
const REPLIES: usize = 200;
const NIGHTLY_REPLIES: usize = 2_000;
/// How much later a reply may come for a client that does not read beside it: at the 99th percentile on a
/// machine that does nothing else, by night; half of them on any.
const LATER: Duration = Duration::from_millis(5);
const LATER_BY_DAY: Duration = Duration::from_millis(50);

/// The id and the token of the call that is poured on.
const FIRST: u64 = 1_000_000;

const LOGGING: &str = r#"{"prompts":{},"tools":{},"resources":{},"completions":{},"logging":{}}"#;

/// The four cells by day; by night over stdio, too.
fn upstreams() -> Vec<Side> {
    if by_night() { SIDES.to_vec() } else { vec![LEGACY_HTTP, MODERN_HTTP] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37j_a_torrent_of_progress_is_cheap_and_its_client_hears_little_and_the_last() {
    let _turn = super::ONE_AT_A_TIME.lock().await;
    for client in [LEGACY_HTTP, MODERN_HTTP] {
        for upstream in upstreams() {
            pour(Cell { client, upstream }).await;
        }
    }
}

async fn pour(cell: Cell) {
    let tasks = TaskTracker::new();
    let upstream = Upstream::start(Script::full(cell.upstream), &tasks);
    let house = House::open(&upstream).await;
    let client = house.client(cell.client, &tasks).await;
    let mut held = upstream.hold("tools/call");
    let (mut exchange, call) = start(&client, &mut held).await;
    // Over HTTP the answer is a stream from here on.
    call.progress(r#""progress":0"#);
    exchange.next().await.expect("the first progress");

    let seconds = if by_night() { NIGHTLY_SECONDS } else { SECONDS };
    let (before, begin) = (worked(&house.clock), Instant::now());
    let pouring = AbortOnDropHandle::new(tasks.spawn(pour_out(call, cell.upstream, seconds)));
    let (mut heard, mut last) = (1, 0);
    loop {
        let message = object(&exchange.next().await.expect("an answer"));
        if !message.has("method") {
            break;
        }
        let progress = message.get_object("params").and_then(|params| {
            params.get("progress").and_then(|progress| progress.parse::<u64>().ok())
        });
        heard += 1;
        last = progress.expect("progress").max(last);
    }
    let (worked, took) = (worked(&house.clock) - before, begin.elapsed());
    pouring.await.expect("it pours all");
    let poured = seconds * NOTES;
    let share = worked.as_secs_f64() / seconds as f64;
    let reading = tokio::task::spawn_blocking(move || read_notes(seconds)).await;
    let readings = worked.div_duration_f64(reading.expect("they are read"));
    eprintln!(
        "{cell}: {poured} notes in {took:.1?} take {share:.2} of a core, {readings:.1} readings; {heard} heard"
    );
    assert_eq!(last, poured, "{cell}: the last is kept");
    let most = (took.as_secs_f64() + 1.0) * HEARD + 2.0;
    assert!((heard as f64) <= most, "{cell}: {heard} are more than {most}");
    let is_cheap = if cfg!(debug_assertions) { readings <= READINGS } else { share <= SHARE };
    assert!(is_cheap, "{cell}: {share:.2} cores, {readings:.1} readings");
    drop((exchange, held));
    drop(client);
    house.close().await;
}

/// Sends progress at its rate, and then the answer.
async fn pour_out(call: Call, side: Side, seconds: u64) {
    let token = call.progress_token();
    let mut beat = tokio::time::interval(Duration::from_secs(1) / BEATS as u32);
    let each = NOTES / BEATS;
    for turn in 0..seconds * BEATS {
        beat.tick().await;
        let mut notes = String::new();
        for number in turn * each + 1..=(turn + 1) * each {
            let note = note(&token, number);
            match side.wire {
                Wire::Stdio => notes += &format!("{note}\n"),
                Wire::Http | Wire::Sse => notes += &format!("data: {note}\n\n"),
            }
        }
        call.piece(&notes);
    }
    call.result(r#"{"resultType":"complete","content":[]}"#);
}

fn note(token: &str, number: u64) -> String {
    let params = format!(r#"{{"progressToken":{token},"progress":{number}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
}

/// How long this thread works at reading as many notes as are poured in these seconds.
fn read_notes(seconds: u64) -> Duration {
    let notes: Vec<_> = (1..=NOTES).map(|number| note("1000000", number)).collect();
    let clock = clock_of_this_thread();
    let before = worked(&clock);
    for note in (0..seconds).flat_map(|_| &notes) {
        std::hint::black_box(serde_json::from_str::<serde_json::Value>(note).expect("JSON"));
    }
    worked(&clock) - before
}

/// Where the system tells how long this thread has worked.
fn clock_of_this_thread() -> PathBuf {
    let here = std::fs::read_link("/proc/thread-self").expect("Linux");
    Path::new("/proc").join(here).join("schedstat")
}

fn worked(clock: &Path) -> Duration {
    let told = std::fs::read_to_string(clock).expect("Linux");
    let nanoseconds = told.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37k_a_client_that_does_not_read_makes_nobodys_reply_late() {
    let _turn = super::ONE_AT_A_TIME.lock().await;
    for client in [LEGACY_HTTP, MODERN_HTTP] {
        for upstream in upstreams() {
            stall(Cell { client, upstream }).await;
        }
    }
}

async fn stall(cell: Cell) {
    let tasks = TaskTracker::new();
    let upstream = Upstream::start(Script::full(cell.upstream).capabilities(LOGGING), &tasks);
    let house = House::open(&upstream).await;
    let (deaf, bob) =
        (house.client(cell.client, &tasks).await, house.client(cell.client, &tasks).await);
    let mut held = upstream.hold("tools/call");
    let (exchange, call) = start(&deaf, &mut held).await;
    let flooding = AbortOnDropHandle::new(tasks.spawn(flood(call)));
    let mut exchange = Some(exchange);
    let (mut half, mut most) = (Vec::new(), Vec::new());
    let replies = if by_night() { NIGHTLY_REPLIES } else { REPLIES };
    for reads in [true, false] {
        let mut times = Vec::new();
        let measuring = async {
            for turn in 0..replies {
                // Of another client, and of the one that does not read.
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
    let (times, later) = if by_night() { (most, LATER) } else { (half, LATER_BY_DAY) };
    assert!(times[1] <= times[0] + later, "{cell}: {times:?}");
    drop((flooding, exchange, held));
    drop((deaf, bob));
    house.close().await;
}

/// Says a lot for ever.
async fn flood(call: Call) {
    let mut beat = tokio::time::interval(Duration::from_millis(5));
    let text = "x".repeat(4_000);
    for number in 1_u64.. {
        beat.tick().await;
        call.progress(&format!(r#""progress":{number}"#));
        call.notify("notifications/message", &format!(r#"{{"level":"error","data":"{text}"}}"#));
    }
}

async fn start<'a>(client: &'a Client, held: &mut Held) -> (Exchange<'a>, Call) {
    let level = match client.side.is_modern() {
        true => r#","io.modelcontextprotocol/logLevel":"debug""#,
        false => "",
    };
    let params = format!(r#"{{"name":"hub__a","_meta":{{"progressToken":{FIRST}{level}}}}}"#);
    let exchange = client.start_as(Id::from(FIRST), "tools/call", &params);
    (exchange, held.next().await)
}

/// A house on a thread of its own.
struct House {
    door: Arc<Doors>,
    guest: Guest,
    /// Where its tasks run.
    runtime: Handle,
    /// Where the system tells how long its thread has worked.
    clock: PathBuf,
    close: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl House {
    async fn open(upstream: &Upstream) -> Self {
        let way = match upstream.side().wire {
            Wire::Stdio => "command = \"hub\"",
            Wire::Http | Wire::Sse => "url = \"http://hub.test/mcp\"",
        };
        let config = format!("[upstreams.hub]\n{way}\n");
        let config = Config::parse(&config, Path::new("weir.toml"), &Options::default());
        let config = config.unwrap_or_else(|report| panic!("{report}"));
        let dial = Apart { upstream: upstream.clone(), runtime: Handle::current() };
        let ((tell, told), (close, closing)) = (oneshot::channel(), oneshot::channel());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let app = App::open(&config, Arc::new(dial));
                app.gateway().listed().await;
                let guest = app.gateway().enter_locally("local");
                let (door, clock) = (Arc::clone(app.door()), clock_of_this_thread());
                let _ = tell.send((door, guest, Handle::current(), clock));
                let _ = closing.await;
                app.stop_doors();
                app.drained().await;
                app.close().await;
            });
        });
        let (door, guest, runtime, clock) = told.await.expect("the house opens");
        Self { door, guest, runtime, clock, close, thread }
    }

    async fn client(&self, side: Side, tasks: &TaskTracker) -> Client {
        let (door, guest, runtime) =
            (Arc::clone(&self.door), self.guest.clone(), self.runtime.clone());
        let serving = tasks.clone();
        let connect = move || {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let door = Arc::clone(&door);
            if side.is_http() {
                let peer = Some(([127, 0, 0, 1], 50_000).into());
                let serve = weir::downstream::http::serve_connection(door, theirs, peer);
                serving.spawn_on(serve, &runtime);
            } else {
                let (input, output) = tokio::io::split(theirs);
                let serve = weir::downstream::stdio::serve(door, guest.clone(), input, output);
                serving.spawn_on(serve, &runtime);
            }
            ours
        };
        Client::open(side, Open::new(connect, None), None, tasks).await
    }

    async fn close(self) {
        let _ = self.close.send(());
        let ended = tokio::task::spawn_blocking(|| self.thread.join()).await;
        assert!(ended.expect("no panic here").is_ok(), "the house has panicked");
    }
}

/// Leads to an upstream whose tasks run elsewhere.
struct Apart {
    upstream: Upstream,
    runtime: Handle,
}

impl Dial for Apart {
    fn connect<'a>(
        &'a self,
        _: &'a Uri,
        _: Duration,
    ) -> BoxFuture<'a, std::io::Result<Box<dyn Stream>>> {
        let _elsewhere = self.runtime.enter();
        let stream = self.upstream.connect().map(|stream| Box::new(stream) as Box<dyn Stream>);
        std::future::ready(stream).boxed()
    }

    fn spawn(&self, _: &Command) -> std::io::Result<Child> {
        let _elsewhere = self.runtime.enter();
        self.upstream.spawn(|end| end)
    }
}
