//! Request workloads: gets and calls of one server, and walks through a list of many.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use serde_json::json;

use super::{Bench, Entry};
use crate::fixture::{self, text_of};
use crate::load::drive::Client;
use crate::load::exchange::{Exchange, Want};
use crate::load::peer::{Era, Peer};
use crate::subject::{self, Fixture, Running, Setup, Subject};

/// Kind of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Get,
    Call,
    Walk,
}

/// Workloads that share started programs.
struct Group {
    client: Era,
    upstream: Era,
    fixture: fixture::Settings,
    is_stdio: bool,
    page: usize,
    subjects: &'static [Subject],
    cells: Vec<Cell>,
}

/// One workload.
struct Cell {
    name: String,
    kind: RequestKind,
    connections: usize,
}

/// Settings of the fixture in most workloads.
pub(crate) fn fixture(bytes: usize) -> fixture::Settings {
    // Half of the processors: responding from memory needs no more, and the load takes its own.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    fixture::Settings {
        stdio: false,
        servers: 1,
        prompts: 100,
        tools: 100,
        resources: 0,
        bytes,
        escapes: false,
        page: 1_000,
        delay: 0,
        threads: (processors / 2).max(1),
    }
}

pub(super) async fn run(bench: &mut Bench) -> io::Result<()> {
    for mut group in groups() {
        group.cells.retain(|cell| bench.wants(&cell.name));
        if !group.cells.is_empty() {
            measure(bench, group).await?;
        }
    }
    Ok(())
}

fn groups() -> Vec<Group> {
    let base = |client, upstream, bytes| Group {
        client,
        upstream,
        fixture: fixture(bytes),
        is_stdio: false,
        page: 200,
        subjects: &Subject::ALL,
        cells: Vec::new(),
    };
    let cell = |name: &str, kind, connections| Cell { name: name.to_owned(), kind, connections };
    let mut groups = Vec::new();
    for era in [Era::Modern, Era::Legacy] {
        let mut group = base(era, era, 1 << 10);
        for (what, kind) in [("get-1k", RequestKind::Get), ("call-1k", RequestKind::Call)] {
            for connections in [1, 32, 256] {
                let name = format!("{what}-{}-{connections}", era.name());
                group.cells.push(cell(&name, kind, connections));
            }
        }
        groups.push(group);
    }
    // Each by itself: the allocator's retained memory would count for the next one.
    for (size, bytes) in [("256k", 256 << 10), ("1m", 1 << 20)] {
        for (what, kind) in [("get", RequestKind::Get), ("call", RequestKind::Call)] {
            let mut group = base(Era::Modern, Era::Modern, bytes);
            (group.fixture.prompts, group.fixture.tools) = (1, 2);
            group.subjects = NO_PYTHON;
            group.cells.push(cell(&format!("{what}-{size}"), kind, 8));
            groups.push(group);
        }
    }
    let mut stdio = base(Era::Modern, Era::Modern, 1 << 10);
    (stdio.is_stdio, stdio.subjects) = (true, &[Subject::Weir, Subject::WeirPolicy]);
    stdio.cells.push(cell("stdio-32", RequestKind::Call, 32));
    groups.push(stdio);
    for (client, upstream) in [(Era::Legacy, Era::Modern), (Era::Modern, Era::Legacy)] {
        let mut group = base(client, upstream, 1 << 10);
        group.subjects = NO_PYTHON;
        let name = format!("mixed-{}-{}", client.name(), upstream.name());
        group.cells.push(cell(&name, RequestKind::Call, 32));
        groups.push(group);
    }
    for (name, page, era) in [
        ("list-one", 1_000, Era::Modern),
        ("list-200", 200, Era::Modern),
        ("list-one-legacy", 1_000, Era::Legacy),
        ("list-200-legacy", 200, Era::Legacy),
    ] {
        let mut group = base(era, era, 1 << 10);
        (group.fixture.servers, group.page, group.subjects) = (10, page, NO_PYTHON);
        group.cells.push(cell(name, RequestKind::Walk, 8));
        groups.push(group);
    }
    groups
}

async fn measure(bench: &mut Bench, group: Group) -> io::Result<()> {
    let folder = tempfile::tempdir_in(&bench.folder)?;
    let is_walk = group.cells.iter().any(|cell| cell.kind == RequestKind::Walk);
    let fixture = Fixture::start(&group.fixture, folder.path())?;
    // A subject that merges nothing has one server behind it, which has all items of the ten.
    let mut whole = group.fixture.clone();
    whole.prompts *= whole.servers;
    (whole.servers, whole.page) = (1, group.page);
    let whole_fixture = is_walk.then(|| Fixture::start(&whole, folder.path())).transpose()?;
    let stdio = fixture::Settings { stdio: true, ..group.fixture.clone() };
    let expected = group.fixture.prompts * group.fixture.servers;

    let mut running = Vec::new();
    for subject in bench.of(group.subjects) {
        bench.report_progress(&format!("{}: starting {subject}", group.cells[0].name));
        let merges = matches!(subject, Subject::Weir | Subject::WeirPolicy);
        let upstreams = match &whole_fixture {
            Some(whole) if !merges => &whole.addresses,
            _ => &fixture.addresses,
        };
        let mut setup = Setup { page: group.page, ..Setup::of(upstreams, group.upstream) };
        if group.is_stdio {
            (setup.upstreams, setup.stdio) = (&[], Some(&stdio));
        }
        let started = async {
            let mut one = subject::start(subject, &bench.programs, &setup, folder.path()).await?;
            one.lists("prompts/list", expected, group.client).await?;
            if group.cells.iter().any(|cell| cell.kind == RequestKind::Call) {
                one.lists("tools/list", group.fixture.tools, group.client).await?;
            }
            let most = group.cells.iter().map(|cell| cell.connections);
            let most = most.filter(|count| *count <= most_for(subject)).max().unwrap_or(1);
            let peers = peers(&one, most, group.client).await?;
            io::Result::Ok((one, peers))
        };
        match started.await {
            Ok((one, peers)) => running.push((subject, one, peers)),
            Err(error) => {
                for cell in &group.cells {
                    bench.results.fail(&cell.name, subject.name(), &error.to_string());
                }
            }
        }
    }
    for cell in &group.cells {
        let mut entries = Vec::new();
        for (subject, one, peers) in &running {
            if cell.connections > most_for(*subject) {
                continue;
            }
            let clients = clients(peers, cell.kind, cell.connections, &group.fixture).await;
            match clients {
                Ok(clients) => entries.push(Entry {
                    label: subject.name().to_owned(),
                    clients,
                    processes: one.processes(),
                }),
                Err(error) => bench.results.fail(&cell.name, subject.name(), &error.to_string()),
            }
        }
        bench.take_turns(&cell.name, &entries).await?;
    }
    Ok(())
}

/// This number of clients, each with a session of its own in the legacy era.
pub(crate) async fn peers(running: &Running, count: usize, era: Era) -> io::Result<Vec<Peer>> {
    let mut peers = Vec::with_capacity(count);
    for number in 0..count {
        let mut peer = running.peer(number, era);
        peer.open().await?;
        peers.push(peer);
    }
    Ok(peers)
}

/// Opens sessions at one server, for requests to another.
pub(crate) async fn peers_at(
    at: &Running,
    to: &Running,
    count: usize,
    era: Era,
) -> io::Result<Vec<Peer>> {
    let mut peers = peers(at, count, era).await?;
    peers.iter_mut().for_each(|peer| peer.address = to.address);
    Ok(peers)
}

/// The first of these peers as clients that request equal items, under the names in their lists.
pub(crate) async fn clients(
    peers: &[Peer],
    kind: RequestKind,
    connections: usize,
    fixture: &fixture::Settings,
) -> io::Result<Vec<Client>> {
    let list = if kind == RequestKind::Call { "tools/list" } else { "prompts/list" };
    let pages = peers[0].walk(list).await?;
    let names: BTreeSet<_> = pages.iter().flat_map(|page| &page.names).cloned().collect();
    if names.is_empty() {
        return Err(io::Error::other(format!("{list} is empty")));
    }
    if names.len() != pages.iter().map(|page| page.names.len()).sum::<usize>() {
        return Err(io::Error::other("a list names something twice"));
    }
    let script = |peer: &Peer| -> Vec<Exchange> {
        if kind == RequestKind::Walk {
            let page = |page: &crate::load::peer::Page| {
                let cursor = page.cursor.as_ref();
                let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
                peer.request("prompts/list", params, Want::Prompts(page.names.len()))
            };
            return pages.iter().map(page).collect();
        }
        let method = if kind == RequestKind::Call { "tools/call" } else { "prompts/get" };
        let item = |name: &String| {
            // Gateways add a prefix to a name, never a suffix: the last six characters are the
            // fixture's own.
            let own = &name[name.len().saturating_sub(6)..];
            let argument = if kind == RequestKind::Call { "query" } else { "topic" };
            let params = json!({ "name": name, "arguments": { argument: "brown foxes" } });
            peer.request(method, params, Want::Text(text_of(own, fixture)))
        };
        names.iter().take(ITEMS).map(item).collect()
    };
    let is_alike = peers[0].era == Era::Modern && peers.iter().all(|peer| peer.key == peers[0].key);
    let shared = Arc::new(script(&peers[0]));
    let client = |peer: &Peer| Client {
        peer: peer.clone(),
        script: if is_alike { Arc::clone(&shared) } else { Arc::new(script(peer)) },
        is_walk: kind == RequestKind::Walk,
    };
    Ok(peers.iter().take(connections).map(client).collect())
}

/// Maximum number of connections to a subject. With 256, the gateways written in Python take many
/// times longer than a turn for the requests of the turn.
fn most_for(subject: Subject) -> usize {
    match subject {
        Subject::Fastmcp | Subject::Contextforge => 32,
        _ => usize::MAX,
    }
}

/// Number of items that are requested in turn. Few, so that the load's data stays in the caches.
const ITEMS: usize = 8;
/// Subjects that are fast enough for large workloads.
const NO_PYTHON: &[Subject] =
    &[Subject::Direct, Subject::Nginx, Subject::Weir, Subject::WeirPolicy, Subject::Hyper];
