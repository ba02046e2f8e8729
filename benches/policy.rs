//! Benchmark of policy, limits and audit: the throughput of `prompts/get` at 32 connections, with
//! and without them.
//!
//! The whole gateway on a real TCP port, 32 clients that each send the next request after each
//! response, and a bare server in memory behind it that responds with a kilobyte. All gateways run
//! at once and get their turns one after the other, in every round in another order, so that other
//! work of the machine affects all of them. The ratio is the median of the rounds' own ratios to
//! the first gateway. If others use the machine as well, throughput says little; so the processor
//! time of a request is printed, too (on Linux): of the whole process, clients and server included.
//! Its inverse is the throughput of a machine that does nothing else.
//!
//! `WEIR_BENCH_ROUNDS` and `WEIR_BENCH_MILLIS` set the number of rounds and the length of a turn.
//! `WEIR_BENCH_ONLY` names a single gateway to run, for a profiler.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;
use weir::app::App;
use weir_base::net::http_connection::ByteStream;
use weir_base::secrets::sealing::SealingKeys;
use weir_config::{Config, Options};
use weir_downstream::http;
use weir_mcp::jsonrpc::{self, Message};
use weir_upstream::connect::{Child, ChildCommand, Connect, Destination};

fn main() -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measure())
}

async fn measure() -> io::Result<()> {
    let number = |name, usual| {
        let number = std::env::var(name).ok().map(|text| text.parse().expect("a number"));
        number.unwrap_or(usual)
    };
    let (rounds, turn) = (number("WEIR_BENCH_ROUNDS", 15), number("WEIR_BENCH_MILLIS", 700));
    let turn = Duration::from_millis(turn);
    let only = std::env::var("WEIR_BENCH_ONLY").ok();
    let folder = tempfile::tempdir()?;
    for era in [Era::Modern, Era::Legacy] {
        let plans = plans(folder.path()).into_iter();
        let plans = plans.filter(|plan| only.as_ref().is_none_or(|only| plan.name.contains(only)));
        let mut gateways = Vec::new();
        for plan in plans {
            gateways.push(BenchGateway::open(plan, era).await?);
        }
        let mut rates = vec![Vec::new(); gateways.len()];
        let mut costs = rates.clone();
        let mut times = vec![Vec::new(); gateways.len()];
        for round in 0..rounds {
            for at in 0..gateways.len() {
                let at = (at + round as usize) % gateways.len();
                let before = cpu_micros();
                let (asked, seconds) = gateways[at].run_for(turn).await?;
                costs[at].push((cpu_micros() - before) / asked.len() as f64);
                rates[at].push(asked.len() as f64 / seconds);
                times[at].extend(asked);
            }
        }
        println!("{era:?} clients, {rounds} rounds of {turn:?}:");
        print!("{:40} {:>8} {:>8} {:>8} {:>7}", "", "per s", "p50 µs", "p99 µs", "ratio");
        println!(" {:>8} {:>7}", "CPU µs", "ratio");
        for at in 0..gateways.len() {
            let ratio = |all: &[Vec<f64>]| {
                let ratios = all[at].iter().zip(&all[0]).map(|(ours, theirs)| ours / theirs);
                median(ratios.collect())
            };
            times[at].sort_unstable();
            let share = |percent: usize| times[at][times[at].len() * percent / 100].as_micros();
            let (name, rate, cost) =
                (gateways[at].name, median(rates[at].clone()), median(costs[at].clone()));
            print!("{name:40} {rate:8.0} {:8} {:8} {:7.3}", share(50), share(99), ratio(&rates));
            println!(" {cost:8.1} {:7.3}", ratio(&costs));
        }
        for gateway in gateways {
            gateway.close().await;
        }
    }
    Ok(())
}

/// Processor time of this process, in microseconds; NaN where it cannot be read.
fn cpu_micros() -> f64 {
    let of_thread = |thread: io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    let threads = std::fs::read_dir("/proc/self/task");
    threads.map_or(f64::NAN, |threads| threads.filter_map(of_thread).sum::<f64>() / 1_000.0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

// === Gateways ===

/// Configuration of a gateway, and the keys of its clients.
struct Plan {
    name: &'static str,
    config: String,
    /// Number of clients with keys; 0 if no key is required.
    keys: usize,
}

fn plans(folder: &Path) -> Vec<Plan> {
    let open = "[upstreams.hub]\nurl = \"http://hub.test/mcp\"\n[audit]\nenabled = false\n";
    let guard = "[guard]\narguments = \"off\"\noutput = \"off\"\nhidden_text = \"pass\"\npinning = \"off\"\n";
    let closed = |name: &str, keys, roles, parts: [bool; 2]| {
        let audit = match parts[0] {
            true => format!("enabled = true\npath = \"{}/{name}.jsonl\"\n", folder.display()),
            false => "enabled = false\n".into(),
        };
        let limits = "[[limits]]\nper = \"client\"\nrate = \"1000000/s\"\n\
             [[limits]]\nper = \"client\"\nmethod = \"prompts/get\"\nmatch = \"hub/*\"\nconcurrency = 64\n";
        let limits = if parts[1] { limits } else { "" };
        let mut text =
            format!("[upstreams.hub]\nurl = \"http://hub.test/mcp\"\n[audit]\n{audit}{limits}");
        for role in 0..roles {
            // The first hundred roles have equal rules.
            let denied = if role < 100 { 0 } else { role };
            let _ = write!(
                text,
                "[roles.r{role}]\nprompts.allow = [\"hub/*\"]\nprompts.deny = [\"hub/secret*\", \"*/-{denied}-*\"]\n"
            );
        }
        for who in 0..keys {
            let hash = Sha256::digest(key(who));
            let hash = hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let role = who % roles;
            let _ =
                write!(text, "[clients.c{who}]\nrole = \"r{role}\"\nkey_sha256 = [\"{hash}\"]\n");
        }
        text
    };
    let plan = |name, config, keys| Plan { name, config, keys };
    vec![
        plan("a: anonymous, no limits, no audit", open.to_owned(), 0),
        plan("b: keys, roles, two limits, audit", closed("b", 32, 8, [true, true]), 32),
        plan(
            "c: the same, 10 000 keys, 1 000 roles",
            closed("c", 10_000, 1_000, [true, true]),
            10_000,
        ),
        plan("d: as a, without guard", format!("{open}{guard}"), 0),
        plan("e: keys and roles alone", closed("e", 32, 8, [false, false]), 32),
        plan("f: keys, roles, two limits", closed("f", 32, 8, [false, true]), 32),
    ]
}

/// A key of Weir's own form: any other would be cheaper, because it is rejected before the lookup.
fn key(who: usize) -> String {
    let body = format!("weir_{who:043}");
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let fold = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    let mut rest = !body.as_bytes().iter().fold(!0, fold);
    let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut check = [b'0'; 6];
    for digit in check.iter_mut().rev() {
        *digit = digits[(rest % 62) as usize];
        rest /= 62;
    }
    format!("{body}_{}", String::from_utf8_lossy(&check))
}

struct BenchGateway {
    name: &'static str,
    app: App,
    tasks: TaskTracker,
    clients: Vec<Client>,
}

impl BenchGateway {
    async fn open(plan: Plan, era: Era) -> io::Result<Self> {
        let parsed = Config::parse(&plan.config, Path::new("weir.toml"), &Options::default());
        let config = parsed.unwrap_or_else(|report| panic!("{report}"));
        let log = config.audit.enabled.is_some_and(|enabled| enabled);
        let log =
            log.then(|| App::open_audit_log(&config)).transpose().map_err(io::Error::other)?;
        let tasks = TaskTracker::new();
        let app = App::open_with(
            &config,
            Arc::new(InMemoryServer(tasks.clone())),
            SealingKeys::random(),
            None,
            log,
        );
        app.gateway().wait_until_listed().await;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, workers) = (Arc::clone(app.server_state()), Arc::default());
        app.spawn_listener(http::accept_loop(listener, None, MAX_CONNECTIONS, state, workers));
        let mut clients = Vec::new();
        for number in 0..CONNECTIONS {
            // Each connection has keys of its own. A session has one.
            let keys = (number..plan.keys).step_by(CONNECTIONS).map(key);
            let keys = keys.take(if era == Era::Legacy { 1 } else { usize::MAX });
            clients.push(Client::open(address, era, keys.collect()).await?);
        }
        let mut gateway = Self { name: plan.name, app, tasks, clients };
        // Uses every key once, so that every view exists.
        let most = plan.keys.div_ceil(CONNECTIONS).max(100);
        join_all(gateway.clients.iter_mut().map(|client| client.warm_up(most))).await;
        Ok(gateway)
    }

    /// Duration of each request that completed within this time, and of all together, in seconds.
    async fn run_for(&mut self, time: Duration) -> io::Result<(Vec<Duration>, f64)> {
        let begin = Instant::now();
        let running = TaskTracker::new();
        let clients = self.clients.drain(..).map(|mut client| {
            running.spawn(async move {
                let asked = client.request_until(begin + time).await;
                (client, asked)
            })
        });
        let mut times = Vec::new();
        for asked in join_all(clients).await {
            let (client, asked) = asked?;
            self.clients.push(client);
            times.extend(asked?);
        }
        Ok((times, begin.elapsed().as_secs_f64()))
    }

    async fn close(self) {
        drop(self.clients);
        self.app.close().await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

const CONNECTIONS: usize = 32;
/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 1_000;

// === Clients ===

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Modern,
    Legacy,
}

/// A persistent connection with minimal HTTP.
struct Client {
    stream: TcpStream,
    /// Constant lines of the head, by key.
    heads: Vec<String>,
    era: Era,
    asked: usize,
    read: Vec<u8>,
}

impl Client {
    async fn open(address: SocketAddr, era: Era, keys: Vec<String>) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let head = |credentials: &str| {
            let of_era = match era {
                Era::Modern => {
                    "mcp-protocol-version: 2026-07-28\r\nmcp-method: prompts/get\r\nmcp-name: hub__p7\r\n"
                }
                Era::Legacy => "",
            };
            format!(
                "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
                 accept: application/json, text/event-stream\r\n{of_era}{credentials}"
            )
        };
        let mut heads: Vec<_> =
            keys.iter().map(|key| head(&format!("authorization: Bearer {key}\r\n"))).collect();
        if heads.is_empty() {
            heads.push(head(""));
        }
        let mut client = Self { stream, heads, era, asked: 0, read: Vec::with_capacity(8_192) };
        if era == Era::Legacy {
            client.initialize().await?;
        }
        Ok(client)
    }

    async fn initialize(&mut self) -> io::Result<()> {
        let opening = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
        let head = self.exchange(opening).await?;
        let head = String::from_utf8_lossy(&self.read[..head]).into_owned();
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = session.unwrap_or_else(|| panic!("no session in {head}"));
        for head in &mut self.heads {
            let _ =
                write!(head, "mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n");
        }
        self.exchange(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await?;
        Ok(())
    }

    async fn request_until(&mut self, end: Instant) -> io::Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(4_096);
        let mut begin = Instant::now();
        while begin < end {
            self.request_prompt().await?;
            let now = Instant::now();
            times.push(now - begin);
            begin = now;
        }
        Ok(times)
    }

    async fn warm_up(&mut self, times: usize) {
        for _ in 0..times {
            self.request_prompt().await.expect("an answer");
        }
    }

    /// Requests a prompt, and checks that the response belongs to it.
    async fn request_prompt(&mut self) -> io::Result<()> {
        self.asked += 1;
        let asked = self.asked;
        let meta = match self.era {
            Era::Modern => {
                r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#
            }
            Era::Legacy => "",
        };
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{asked},"method":"prompts/get","params":{{"name":"hub__p7","arguments":{{"topic":"t{asked}","style":"short"}}{meta}}}}}"#
        );
        let body = self.exchange(&text).await?;
        let reply = &self.read[body..];
        let has = |part: String| reply.windows(part.len()).any(|window| window == part.as_bytes());
        let is_right = self.read.starts_with(b"HTTP/1.1 200")
            && has(format!("\"id\":{asked},"))
            && has(format!("about t{asked} "));
        assert!(is_right, "to {text}: {}", String::from_utf8_lossy(&self.read));
        Ok(())
    }

    /// Sends a message and reads the response; returns the start of its body.
    async fn exchange(&mut self, text: &str) -> io::Result<usize> {
        let head = &self.heads[self.asked % self.heads.len()];
        let request = format!("{head}content-length: {}\r\n\r\n{text}", text.len());
        self.stream.write_all(request.as_bytes()).await?;
        self.read.clear();
        loop {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(end) = self.read.windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let head = str::from_utf8(&self.read[..end]).expect("a head");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map(|length| length.parse::<usize>().expect("a length"));
            let is_whole = match length {
                Some(length) => self.read.len() >= end + 4 + length,
                None => self.read.ends_with(b"0\r\n\r\n"),
            };
            if is_whole {
                return Ok(end + 4);
            }
        }
    }
}

// === The server behind it ===

/// Connects to a server in memory, which is modern and has fifty prompts.
struct InMemoryServer(TaskTracker);

impl Connect for InMemoryServer {
    fn connect<'a>(&'a self, _: Destination<'a>) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        let (ours, theirs) = tokio::io::duplex(64 * 1_024);
        let service = service_fn(|request| async { Ok::<_, Infallible>(serve(request).await) });
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(ours), service);
        self.0.spawn(async move {
            // The gateway closes the connection.
            let _ = serving.await;
        });
        let stream: Box<dyn ByteStream> = Box::new(theirs);
        std::future::ready(Ok(stream)).boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
        Err(io::ErrorKind::NotFound.into())
    }
}

async fn serve(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    if head.method != Method::POST {
        return reply(405, Bytes::new());
    }
    let Ok(Message::Request(request)) = Message::parse(body) else {
        return reply(202, Bytes::new());
    };
    let result = match &*request.method {
        "prompts/get" => {
            let arguments = request.params.get_object("arguments").expect("arguments");
            let topic = arguments.get_string("topic").expect("a topic");
            let rest = "All that there is to say. ".repeat(38);
            format!(
                r#"{{"resultType":"complete","messages":[{{"role":"user","content":{{"type":"text","text":"Write about {topic} now. {rest}"}}}}]}}"#
            )
        }
        "server/discover" => r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"prompts":{}},"ttlMs":3600000,"cacheScope":"public"}"#.into(),
        "prompts/list" => {
            let prompt = |n| format!(r#"{{"name":"p{n}","arguments":[{{"name":"topic","required":true}},{{"name":"style"}}]}}"#);
            let prompts = (0..50).map(prompt).collect::<Vec<_>>().join(",");
            format!(r#"{{"resultType":"complete","prompts":[{prompts}],"ttlMs":3600000,"cacheScope":"public"}}"#)
        }
        _ => {
            let error = br#"{"code":-32601,"message":"Method not found"}"#;
            return reply(404, jsonrpc::write_error(Some(&request.id), error));
        }
    };
    reply(200, jsonrpc::write_result(&request.id, result.as_bytes()))
}

fn reply(status: u16, body: Bytes) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    response.body(Full::new(body)).expect("a response")
}
