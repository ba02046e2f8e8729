//! Differential test: the same client with the same server, once directly and once through Weir,
//! exchanges the same frames, except for the parts that Weir owns.
//!
//! Recordings are made on the client's side and on the upstream's. A table lists the allowed
//! differences with the reason for each; any other difference fails and shows both frames. A row
//! that no recording needs fails, too.

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use serde_json::Value;
use tokio::task::LocalSet;

use crate::fleet::Fleet;
use crate::lab::weir::Weir;
use crate::pipe::Era::{self, Legacy, Modern};
use cells::{Client, Server, Target};
use compare::How::{self, Anything, Gone, Is, Late, More, Names, Order, Place};
use compare::When::{self, Always, Down, Same, Up};
use compare::{Judge, Row};
use recording::Recording;
use script::{is_unknown, script};
use tap::{PipeTap, Tap};

pub(crate) mod cells;
mod compare;
mod recording;
mod rmcp;
mod script;
mod tap;

/// All allowed differences: condition, message, place, kind, and the reason.
const OWNED: &[Row] = &[
    row(Always, "answer initialize", "result/capabilities", Anything, CAPABILITIES),
    row(Always, "answer initialize", "result/instructions", Anything, INSTRUCTIONS),
    row(Always, "answer initialize", "result/serverInfo", Is(&[WEIR]), SERVER_INFO),
    row(Always, "answer server/discover", "result/capabilities", Anything, CAPABILITIES),
    row(Always, "answer server/discover", "result/instructions", Late, STARTING),
    row(Always, "answer server/discover", IN_META, Is(&[WEIR]), SERVER_INFO),
    row(Always, "answer server/discover", "result/supportedVersions", Is(&[VERSIONS]), VERSION),
    row(Always, "answer server/discover", "result/resultType", Place, RESULT_TYPE),
    row(Always, "answer server/discover", "result/cacheScope", Place, CACHING),
    row(Always, "answer server/discover", "result/ttlMs", Place, CACHING),
    // Lists.
    row(Always, "answer prompts/list", "result/prompts", Order, MERGED),
    row(Always, "answer tools/list", "result/tools", Order, MERGED),
    row(Same, "answer tools/list", "result/tools", More, EVERYTHING_DECLARED),
    row(Always, "answer resources/templates/list", "result/resourceTemplates", Order, MERGED),
    row(Same, "answer *list", IN_META, Is(&[WEIR]), SERVER_INFO),
    row(Same, "answer *list", "result/resultType", Place, RESULT_TYPE),
    row(Same, "answer *list", "result/ttlMs", Place, CACHING),
    row(Same, "answer *list", "result/cacheScope", Place, CACHING),
    row(Up, "answer *list", "result/ttlMs", Is(&["60000"]), CACHING),
    row(Up, "answer *list", "result/cacheScope", Is(&["\"public\""]), CACHING),
    // Another era than the client's.
    row(Up, "answer *", IN_META, Is(&[WEIR]), SERVER_INFO),
    row(Up, "answer *", "result/resultType", Place, RESULT_TYPE),
    row(Up, "answer resources/read", "result/ttlMs", Place, CACHING),
    row(Up, "answer resources/read", "result/cacheScope", Place, CACHING),
    row(Down, "answer *", IN_META, Anything, UNREAD),
    row(Down, "answer *", "result/resultType", Anything, UNREAD),
    row(Down, "answer *", "result/ttlMs", Anything, UNREAD),
    row(Down, "answer *", "result/cacheScope", Anything, UNREAD),
    row(Up, "answer prompts/get", "error", Is(&[PYTHON_LEGACY]), ITS_ERA),
    row(Down, "answer prompts/get", "error", Is(&[PYTHON_MODERN]), ITS_ERA),
    // Unknown items.
    row(Always, "no item prompts/get", "error", Is(&[NO_PROMPT]), NO_ITEM),
    row(Always, "no item tools/call", "error", Is(&[NO_TOOL]), NO_ITEM),
    row(Always, "no item tools/call", "result", Gone, NO_ITEM),
    row(Always, "no item completion/complete", "error", Is(&[NO_PROMPT]), NO_ITEM),
    row(Always, "no item completion/complete", "result", Gone, NO_ITEM),
    row(Always, "no item resources/read", "error", Is(&NO_RESOURCE), NO_ITEM),
    row(Always, "no item resources/read", "status", Is(&["200"]), NO_ITEM),
    row(Always, "answer weir/nonsense", "error", Is(&[NO_METHOD]), ERRORS),
    row(Always, "answer ping", "error", Is(&[NO_PING]), ERRORS),
    // Input requests.
    row(Always, "note elicitation/create", "params/_meta/progressToken", Gone, TOKENS),
    row(Always, "note sampling/createMessage", "params/_meta/progressToken", Gone, TOKENS),
    row(Always, "note roots/list", "params/_meta/progressToken", Gone, TOKENS),
    row(Always, "request ", "id", Is(&["a string"]), ASKED_IDS),
    row(Up, "answer tools/call", "result/inputRequests", Names, REQUEST_STATE),
    row(Up, "answer tools/call", "result/inputRequests", Is(&[ROOTS_REQUEST]), REQUEST_STATE),
    row(Up, "answer tools/call", "result/requestState", Anything, REQUEST_STATE),
    row(Up, "request tools/call", "params/inputResponses", Names, REQUEST_STATE),
    row(Up, "request tools/call", "params/requestState", Anything, REQUEST_STATE),
    // Notifications beside the responses.
    row(Always, "note notifications/progress", "params/progressToken", Place, TOKENS),
    row(Same, "note notifications/subscriptions/acknowledged", "params/_meta", Place, LISTENS),
    row(Same, "note notifications/resources/updated", "params/_meta", Place, LISTENS),
    row(Always, "unasked notifications/*list_changed", "", Anything, CHANGES),
    row(Always, "DELETE*", "", Anything, SESSIONS),
    row(Always, "GET*", "", Anything, SESSIONS),
    // Messages to the server.
    row(Same, "upstream *", "params/_meta/progressToken", Anything, TOKENS),
    row(Same, "upstream tools/call", LOG_LEVEL, Place, LEVELS),
    row(Same, "upstream notifications/cancelled", "params/requestId", Anything, IDS),
    row(Same, "upstream notifications/cancelled", "params/_meta", Gone, CANCEL),
];

/// The table, and which of its rows the tests of this module have needed so far.
static JUDGE: Judge<'static> = Judge::new(OWNED);

const fn row(when: When, of: &'static str, at: &'static str, how: How, since: &'static str) -> Row {
    Row { when, of, at, how, since }
}

const EVERYTHING_DECLARED: &str = "Weir lists over a session that declares all that it can bridge: some servers choose their tools by that";
const CAPABILITIES: &str = "capabilities: the union of what the visible upstreams have";
const INSTRUCTIONS: &str = "instructions: those of the visible upstreams under a heading each";
const STARTING: &str =
    "an upstream that has not started yet: its client is not kept waiting for long";
const SERVER_INFO: &str =
    "serverInfo (Weir's own) of initialize, of its lists, and where there is none";
const VERSION: &str = "Weir speaks every revision";
const RESULT_TYPE: &str = "resultType";
const CACHING: &str = "ttlMs, cacheScope: what Weir adds or knows better, of what it lists itself";
const MERGED: &str = "the merged order of a list";
const UNREAD: &str = "payloads belong to the upstream's revision, and pass unread";
const ITS_ERA: &str = "not Weir's: this server says something else in each era";
const NO_ITEM: &str = "denied and unknown are the same answer, in Weir's words";
const ERRORS: &str = "the words of Weir's own errors";
const TOKENS: &str = "progress tokens";
const REQUEST_STATE: &str = "requestState when Weir minted it, and the keys of what it asks itself";
const LISTENS: &str = "subscriptionId, in Weir's own notifications";
const LEVELS: &str = "logLevel";
const IDS: &str = "ids towards an upstream are minted by Weir";
const ASKED_IDS: &str =
    "ids of requests to a client are texts, which name the process that has asked";
const CANCEL: &str = "a cancellation towards an upstream; a notification needs no _meta";
const CHANGES: &str = "Weir itself notifies of changes: when a view has changed";
const SESSIONS: &str = "legacy sessions";

const IN_META: &str = "result/_meta/io.modelcontextprotocol/serverInfo";
const LOG_LEVEL: &str = "params/_meta/io.modelcontextprotocol/logLevel";
/// Request from which a legacy server's progress token was taken.
const ROOTS_REQUEST: &str = r#"{"q1":{"method":"roots/list","params":{}}}"#;
const WEIR: &str =
    concat!(r#"{"name":"weir","title":"Weir","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);
const VERSIONS: &str = r#"["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]"#;
const PYTHON_LEGACY: &str = r#"{"code":0,"message":"Missing required arguments: {'name'}"}"#;
const PYTHON_MODERN: &str = r#"{"code":-32603,"message":"Internal server error"}"#;
const NO_PROMPT: &str = r#"{"code":-32602,"message":"Unknown prompt: nonesuch"}"#;
const NO_TOOL: &str = r#"{"code":-32602,"message":"Unknown tool: nonesuch"}"#;
const NO_METHOD: &str = r#"{"code":-32601,"message":"Method not found: weir/nonsense"}"#;
const NO_PING: &str = r#"{"code":-32601,"message":"Method not found: ping"}"#;
/// For a legacy client, and for a modern one.
const NO_RESOURCE: [&str; 2] = [
    r#"{"code":-32002,"message":"Resource not found","data":{"uri":"nowhere://at/all"}}"#,
    r#"{"code":-32602,"message":"Resource not found","data":{"uri":"nowhere://at/all"}}"#,
];

const fn era(of: Era) -> &'static str {
    match of {
        Legacy => "legacy",
        Modern => "modern",
    }
}

/// Weir in front of one server with unchanged names, whose prompts are requested without their
/// arguments, too.
fn fleet(upstream: &str, of: Era) -> Fleet {
    let of = era(of);
    Fleet::plain(&format!(
        "[naming]\nmode = \"none\"\n[guard]\narguments = \"off\"\n[upstreams.real]\n{upstream}\nera = {of:?}\n"
    ))
}

fn when(client: Era, upstream: Era) -> When {
    match (client, upstream) {
        (Legacy, Legacy) | (Modern, Modern) => Same,
        (Legacy, Modern) => Down,
        (Modern, Legacy) => Up,
    }
}

/// Clients that speak to a server directly, each in the eras that both support.
fn clients(server: Server) -> Vec<(Client, Era)> {
    let clients = Client::ALL.into_iter();
    let pairs = clients.flat_map(|client| client.eras().iter().map(move |&era| (client, era)));
    pairs.filter(|(_, era)| server.eras().contains(era)).collect()
}

/// Recording of one cell, and the ending of each step.
struct Seen {
    recording: Recording,
    /// Endings of the steps for existing items; an error's code is in the recording.
    endings: Vec<bool>,
}

impl Seen {
    fn new(recording: Recording, endings: &[String], script: &Value) -> Self {
        let steps = script["steps"].as_array().unwrap().iter().zip(endings);
        let known = steps.filter(|(step, _)| !is_unknown(&step.to_string()));
        Self { recording, endings: known.map(|(_, ending)| ending == "done").collect() }
    }
}

/// Differences of one cell.
fn judge(
    cell: &str,
    when: When,
    direct: &Seen,
    through: &Seen,
    upstream: &Recording,
) -> Vec<String> {
    let mut trial = JUDGE.trial(when);
    trial.clients(&direct.recording, &through.recording);
    if when == Same {
        trial.upstreams(&direct.recording, upstream);
    }
    let mut problems = trial.problems;
    if direct.endings != through.endings {
        problems.push(format!("steps end {:?}, not {:?}", through.endings, direct.endings));
    }
    problems.into_iter().map(|problem| format!("{cell}: {problem}")).collect()
}

/// Weir in front of a server over Streamable HTTP, and the connection between the two.
struct Gateway {
    upstream_era: Era,
    behind: Tap,
    served: Weir,
    _fleet: Fleet,
}

impl Gateway {
    async fn before(url: &str, upstream_era: Era) -> Self {
        let behind = Tap::before(url).await;
        let fleet = fleet(&format!("url = {:?}", behind.url), upstream_era);
        let mut served = fleet.serve().await;
        served.log.logged("upstream listed", "real").await;
        behind.take(0).await;
        Self { upstream_era, behind, served, _fleet: fleet }
    }
}

/// Recordings of a client that takes these steps over Streamable HTTP, one script after the other.
async fn over_http(client: Client, era: Era, scripts: &[(&str, &Value)]) -> Vec<Seen> {
    let taps = join_all(scripts.iter().map(|(url, _)| Tap::before(url))).await;
    let tapped = taps.iter().zip(scripts).map(|(tap, (_, steps))| (&*tap.url, *steps));
    let endings = client.run_all(era, &tapped.collect::<Vec<_>>()).await;
    let mut all = Vec::new();
    for ((tap, endings), (_, steps)) in taps.iter().zip(&endings).zip(scripts) {
        all.push(Seen::new(tap.take(1).await, endings, steps));
    }
    all
}

/// Compares every client with one server over Streamable HTTP.
async fn compare_over_http(server: Server) {
    let comparing = async {
        let started = server.over_http().await;
        let mut gateways = Vec::new();
        for &upstream_era in server.eras() {
            gateways.push(Gateway::before(&started.url, upstream_era).await);
        }
        let mut problems = Vec::new();
        for (client, era) in clients(server) {
            let script = |gateway: &Gateway| script(server, era, gateway.upstream_era);
            let through: Vec<_> = gateways.iter().map(script).collect();
            // Weir's era does not always make a difference to the steps.
            let mut direct = through.clone();
            direct.dedup();
            let directly = direct.iter().map(|steps| (&*started.url, steps));
            let endpoints: Vec<_> = gateways.iter().map(|it| it.served.endpoint()).collect();
            let urls = endpoints.iter().map(String::as_str);
            let scripts: Vec<_> = directly.chain(urls.zip(&through)).collect();
            let mut seen = over_http(client, era, &scripts).await;
            let through_weir = seen.split_off(direct.len());
            for ((gateway, steps), seen_through) in gateways.iter().zip(&through).zip(through_weir)
            {
                let upstream_era = gateway.upstream_era;
                let seen_directly = &seen[direct.iter().position(|it| it == steps).unwrap()];
                let upstream = gateway.behind.take(1).await;
                let cell = format!("{client:?} {era:?} → {server:?} {upstream_era:?}, HTTP");
                let when = when(era, upstream_era);
                problems.extend(judge(&cell, when, seen_directly, &seen_through, &upstream));
            }
        }
        for gateway in gateways {
            gateway.served.stop().await;
        }
        problems
    };
    end(format!("{server:?}"), LocalSet::new().run_until(comparing).await);
}

/// Ends a part of the comparison, which fails if there are differences. In the last part, a row
/// that none has needed is one, too.
fn end(part: String, mut problems: Vec<String>) {
    // One for each server over HTTP, and one for all over stdio.
    problems.extend(JUDGE.end(part, Server::ALL.len() + 1));
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}

/// A client with a server over stdio, and the era that Weir speaks to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pipes(Client, Era, Server, Era);

/// Compares one client with one server over stdio.
async fn over_stdio(Pipes(client, of, server, upstream_era): Pipes) -> Vec<String> {
    let steps = script(server, of, upstream_era);
    let tap = PipeTap::new();
    let endings = client.run(of, Target::Command(tap.around(server.command())), None, &steps).await;
    let direct = Seen::new(tap.take(), &endings, &steps);

    let (tap, behind) = (PipeTap::new(), PipeTap::new());
    let command = behind.around(server.command());
    let fleet =
        fleet(&format!("command = {:?}\nargs = {:?}", command[0], &command[1..]), upstream_era);
    let config = fleet.folder().join("weir.toml");
    let weir = [env!("CARGO_BIN_EXE_weir"), "stdio", "--config", config.to_str().unwrap()];
    let command = tap.around(weir.map(str::to_owned).to_vec());
    let endings = client.run(of, Target::Command(command), Some("real"), &steps).await;
    let through = Seen::new(tap.take(), &endings, &steps);
    let cell = format!("{client:?} {of:?} → {server:?} {upstream_era:?}, stdio");
    judge(&cell, when(of, upstream_era), &direct, &through, &behind.take())
}

/// Over stdio each client meets one server in each era by day, and all of them by night.
fn pipes() -> impl Iterator<Item = Pipes> {
    let pairs = [
        Pipes(Client::Rmcp, Legacy, Server::Everything, Legacy),
        Pipes(Client::Rmcp, Modern, Server::Python2, Modern),
        Pipes(Client::TypeScript1, Legacy, Server::Python1, Legacy),
        Pipes(Client::TypeScript1, Legacy, Server::Asking, Modern),
        Pipes(Client::TypeScript2, Legacy, Server::Python2, Legacy),
        Pipes(Client::TypeScript2, Modern, Server::Sdk2, Modern),
        Pipes(Client::TypeScript2, Modern, Server::Asking, Legacy),
        Pipes(Client::Python1, Legacy, Server::Asking, Legacy),
        Pipes(Client::Python2, Legacy, Server::Everything, Legacy),
        Pipes(Client::Python2, Modern, Server::Asking, Modern),
    ];
    let is_night = std::env::var_os("WEIR_NIGHTLY").is_some();
    let all = Server::ALL.into_iter().flat_map(|server| {
        let cells = clients(server).into_iter();
        cells.flat_map(move |(client, era)| {
            server.eras().iter().map(move |&upstream_era| Pipes(client, era, server, upstream_era))
        })
    });
    all.filter(move |cell| is_night || pairs.contains(cell))
}

/// Number of cells over stdio that are compared at once; more would only slow each other down.
const AT_ONCE: usize = 2;

#[tokio::test]
async fn clients_exchange_the_same_frames_with_the_everything_server_through_weir() {
    compare_over_http(Server::Everything).await;
}

#[tokio::test]
async fn clients_exchange_the_same_frames_with_a_typescript_server_through_weir() {
    compare_over_http(Server::Sdk2).await;
}

#[tokio::test]
async fn clients_exchange_the_same_frames_with_a_server_that_asks_through_weir() {
    compare_over_http(Server::Asking).await;
}

#[tokio::test]
async fn clients_exchange_the_same_frames_with_a_python_1_server_through_weir() {
    compare_over_http(Server::Python1).await;
}

#[tokio::test]
async fn clients_exchange_the_same_frames_with_a_python_2_server_through_weir() {
    compare_over_http(Server::Python2).await;
}

#[tokio::test]
async fn clients_exchange_the_same_frames_over_stdio_through_weir() {
    let cells = stream::iter(pipes().map(over_stdio)).buffer_unordered(AT_ONCE);
    end("stdio".to_owned(), cells.collect::<Vec<_>>().await.concat());
}
