//! Cost of one message: memory in use for it, and processor time beside a plain message of equal
//! length (G11).
//!
//! Measured are Weir's own parsers, on one thread, and a connection to a whole gateway. The inputs
//! are those of `fuzz/corpus`, and texts derived from them and from the bytes that are significant
//! to a parser: each repeated to a length at which the fixed cost of a message does not count,
//! alone and as the parameters of a request. The time for matching a URI with templates is bounded
//! by its own steps (`catalog::template`), and is not measured here. The test has a binary of its
//! own, since its allocator counts for the whole process.

#![allow(clippy::disallowed_types, reason = "a scripted server reads what Weir wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "amplification/collections.rs"]
mod collections;

use std::hint::black_box;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::task::TaskTracker;
use weir::app::App;
use weir_access::catalog::Cursor;
use weir_base::net::http_connection::ByteStream;
use weir_base::text::line_codec::{DecodedLine, LineDecoder};
use weir_base::text::sse::SseDecoder;
use weir_config::{Config, Options};
use weir_mcp::definition::item::Item;
use weir_mcp::definition::param_headers::{ParamHeaders, decode};
use weir_mcp::jsonrpc::Message;
use weir_mcp::kind::Kind;
use weir_upstream::connect::{Child, ChildCommand, Connect, Destination};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Length of the inputs.
const LENGTH: usize = if cfg!(debug_assertions) { 32 << 10 } else { 128 << 10 };

/// Memory for a message with almost no content.
const FIXED_BYTES: usize = 16 << 10;

/// A parser: its name, a folder of inputs, the function, and a plain input of a given length.
type Row = (&'static str, &'static str, fn(&[u8]), fn(usize) -> Vec<u8>);

const READERS: [Row; 6] = [
    ("a message", "f01_jsonrpc", message, plain_message),
    ("lines", "f02_lines", lines, plain_lines),
    ("events", "f03_events", events, plain_events),
    ("a header", "f04_header_decoded", header, plain_text),
    ("a cursor", "f06_cursor", cursor, plain_text),
    ("a definition", "f09_definition", definition, plain_definition),
];

fn message(bytes: &[u8]) {
    let _ = black_box(Message::parse(Bytes::copy_from_slice(bytes)));
}

/// Parses lines as a child's are parsed: a child that writes a thousand invalid ones is ended.
fn lines(bytes: &[u8]) {
    let (mut lines, mut junk) = (LineDecoder::new(4 << 20), 0);
    for piece in bytes.chunks(8 << 10) {
        lines.buffer().extend_from_slice(piece);
        while let Some(line) = lines.next_line() {
            if let DecodedLine::Whole(line) = line {
                junk += usize::from(black_box(Message::parse(line)).is_err());
            }
            if junk > 1_000 {
                return;
            }
        }
    }
}

fn events(bytes: &[u8]) {
    let mut reader = SseDecoder::new(4 << 20);
    for piece in bytes.chunks(8 << 10) {
        for event in reader.feed(piece).expect("within the limit") {
            let _ = black_box(Message::parse(event.data));
        }
    }
}

fn header(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        black_box(decode(text));
    }
}

fn cursor(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = black_box(Cursor::parse(text, Kind::Tool));
    }
}

fn definition(bytes: &[u8]) {
    if let Ok(item) = Item::parse(Kind::Tool, Bytes::copy_from_slice(bytes)) {
        let _ = black_box(ParamHeaders::read(&item.definition));
    }
}

/// A typical call: some text in some members.
fn plain_message(length: usize) -> Vec<u8> {
    let block =
        r#"{"type":"text","text":"The quick brown fox jumps over the lazy dog, and \"again\"."}"#;
    let blocks = vec![block; length / block.len() + 1].join(",");
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"t","arguments":{{"a":[{blocks}]}}}}}}"#
    )
    .into()
}

fn plain_lines(length: usize) -> Vec<u8> {
    let line = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progress\":1}}\n";
    line.repeat(length / line.len() + 1)
}

fn plain_events(length: usize) -> Vec<u8> {
    let event = b"event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progress\":1}}\n\n";
    event.repeat(length / event.len() + 1)
}

fn plain_text(length: usize) -> Vec<u8> {
    b"resource-".repeat(length / 9 + 1)
}

fn plain_definition(length: usize) -> Vec<u8> {
    let property = r#""p":{"type":"string","description":"What it is about."}"#;
    let properties: Vec<_> =
        (0..length / 60 + 1).map(|at| property.replacen('p', &format!("p{at}"), 1)).collect();
    format!(
        r#"{{"name":"t","inputSchema":{{"type":"object","properties":{{{}}}}}}}"#,
        properties.join(",")
    )
    .into()
}

/// Inputs that may cost more than a plain one.
fn hostile(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(folder);
    let corpus = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    let bytes = [
        "[",
        "{",
        "\"",
        "\\",
        ",",
        ":",
        "\n",
        "\r",
        " ",
        "0",
        "a",
        "\u{e4}",
        "[],",
        "{},",
        "\"\",",
        "\\u0000",
        "\"a\":{",
        "data:\n",
        "data: a\n\n",
        "id: 7\n\n",
        ":\n",
        "{a}",
        "%2e",
        "=?base64?YQ==?=",
    ];
    let mut inputs = Vec::new();
    for seed in corpus.chain(bytes.map(|text| text.as_bytes().to_vec())).filter(|it| !it.is_empty())
    {
        let grown = seed.repeat(LENGTH / seed.len() + 1);
        let (head, tail) =
            (&br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":["#[..], &b"]}}"[..]);
        let (name, end) = (&br#"{"name":"t","inputSchema":{"a":["#[..], &b"]}}"[..]);
        inputs.extend([
            seed.clone(),
            [head, &grown, tail].concat(),
            [name, &grown, end].concat(),
            [head, &grown[..grown.len() - 1], tail].concat(),
            grown,
        ]);
    }
    inputs
}

/// Peak growth of the memory in use during `work`.
fn peak_growth(work: impl FnOnce()) -> usize {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    work();
    MEMORY.peak_usage().saturating_sub(before)
}

/// Ratio of the minimum processor times, which exclude other work of the machine. A suspicious
/// ratio is measured more often.
fn times_as_long(mut one: impl FnMut(), mut other: impl FnMut()) -> f64 {
    let once = |work: &mut dyn FnMut()| {
        let begin = cpu_time();
        work();
        cpu_time() - begin
    };
    let (mut first, mut second) = (Duration::MAX, Duration::MAX);
    for round in 0..60 {
        if round >= 3 && first < second * 5 {
            break;
        }
        first = first.min(once(&mut one));
        second = second.min(once(&mut other).max(Duration::from_micros(20)));
    }
    first.as_secs_f64() / second.as_secs_f64()
}

/// Processor time of this thread so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it does not go back")
}

fn shown(input: &[u8]) -> String {
    input[..input.len().min(80)].escape_ascii().to_string()
}

// === A whole gateway ===

/// Refuses all connections.
struct Nowhere;

impl Connect for Nowhere {
    fn connect<'a>(&'a self, _: Destination<'a>) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        async { Err(io::ErrorKind::ConnectionRefused.into()) }.boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// HTTP request with this body.
fn request(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Peak memory for each of these requests to one gateway, each on a connection of its own.
fn peak_of_requests(inputs: &[Vec<u8>]) -> Vec<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let text = "[upstreams.hub]\ncommand = \"hub\"\n";
        let config = Config::parse(text, Path::new("weir.toml"), &Options::default());
        let app = App::open(&config.unwrap_or_else(|report| panic!("{report}")), Arc::new(Nowhere));
        let tasks = TaskTracker::new();
        let mut all = Vec::new();
        for input in inputs {
            let (before, peer) =
                (MEMORY.current_usage(), SocketAddr::from(([127, 0, 0, 1], 50_000)));
            MEMORY.reset_peak_usage();
            let (mut ours, theirs) = tokio::io::duplex(16 << 10);
            let door = Arc::clone(app.server_state());
            let serving =
                tasks.spawn(weir_downstream::http::serve_connection(door, theirs, Some(peer)));
            // The server may have rejected the request by then.
            let _ = ours.write_all(input).await;
            let mut answer = [0; 1024];
            let reading =
                async { while ours.read(&mut answer).await.is_ok_and(|count| count > 0) {} };
            // Without a response, waits for as long as a body may take.
            let _ = tokio::time::timeout(Duration::from_secs(3_600), reading).await;
            drop(ours);
            serving.await.expect("it does not panic");
            all.push(MEMORY.peak_usage().saturating_sub(before));
        }
        app.stop_downstream();
        app.wait_until_drained().await;
        app.close().await;
        all
    })
}

/// Lets one test run at a time, because the allocator counts for the whole process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn g11_no_input_costs_more_than_eight_times_its_length_nor_ten_times_the_time_of_a_plain_one() {
    let _turn = turn();
    for (what, folder, read, plain) in READERS {
        let inputs = hostile(folder);
        let (mut memory, mut processor) = ((0.0, String::new()), (0.0, String::new()));
        for input in &inputs {
            let ratio =
                peak_growth(|| read(input)).saturating_sub(FIXED_BYTES) as f64 / input.len() as f64;
            if ratio > memory.0 {
                memory = (ratio, shown(input));
            }
            if input.len() < LENGTH {
                continue;
            }
            let plain = plain(input.len());
            let ratio = times_as_long(|| read(input), || read(&plain));
            if ratio > processor.0 {
                processor = (ratio, shown(input));
            }
        }
        eprintln!(
            "G11: {what}, {} inputs: {:.2} of its length held ({}), {:.2} of the time ({})",
            inputs.len(),
            memory.0,
            memory.1,
            processor.0,
            processor.1
        );
        assert!(memory.0 <= 8.0, "{what}: {memory:?}");
        assert!(processor.0 <= 10.0, "{what}: {processor:?}");
    }
    let inputs: Vec<_> = hostile("f01_jsonrpc").iter().map(|body| request(body)).collect();
    // The second connection does not include the memory that a gateway allocates for its first.
    let usual = peak_of_requests(&[request(b"{}"), request(b"{}")])[1] + FIXED_BYTES;
    let worst = peak_of_requests(&inputs).into_iter().zip(&inputs);
    let worst =
        worst.map(|(held, input)| (held.saturating_sub(usual) as f64 / input.len() as f64, input));
    let worst = worst.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
    eprintln!(
        "G11: a whole gateway, {} bodies: {:.2} of its length in use, beside {usual} bytes",
        inputs.len(),
        worst.0
    );
    assert!(worst.0 <= 8.0, "a whole gateway: {:.2} for {}", worst.0, shown(worst.1));
}
