//! Workloads of several replicas: requests that are sent on, limits that the store counts, and
//! sessions that are taken over.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::requests::{self, RequestKind, fixture};
use super::{Bench, Entry};
use crate::fixture;
use crate::load::connection::Connection;
use crate::load::peer::{Era, Peer};
use crate::process;
use crate::subject::{
    self, Fixture, Policy, Running, Setup, Store, Subject, start_replicas, start_weir,
};

pub(super) async fn run(bench: &mut Bench) -> io::Result<()> {
    for (name, bytes, connections) in [("fleet-hop", 1 << 10, 1), ("fleet-1m", 1 << 20, 8)] {
        if bench.wants(name) {
            let done = hop(bench, name, bytes, connections).await;
            note_failure(bench, name, done);
        }
    }
    if bench.wants("fleet-three") {
        let done = three(bench).await;
        note_failure(bench, "fleet-three", done);
    }
    if bench.wants("fleet-limits") {
        let done = limits(bench).await;
        note_failure(bench, "fleet-limits", done);
    }
    if bench.wants("fleet-streams") {
        let done = streams(bench).await;
        note_failure(bench, "fleet-streams", done);
    }
    if bench.wants("fleet-takeover") {
        let done = takeovers(bench).await;
        note_failure(bench, "fleet-takeover", done);
    }
    Ok(())
}

fn note_failure(bench: &mut Bench, name: &str, done: io::Result<()>) {
    if let Err(error) = done {
        bench.results.fail(name, "replicas", &error.to_string());
    }
}

/// A group of programs: a server, its store, and what is in front of it.
struct Stage {
    settings: fixture::Settings,
    fixture: Fixture,
    store: Store,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(bench: &Bench, bytes: usize) -> io::Result<Self> {
        let folder = tempfile::tempdir_in(&bench.folder)?;
        let mut settings = fixture(bytes);
        (settings.prompts, settings.tools) = (1, 8);
        let fixture = Fixture::start(&settings, folder.path())?;
        let store = Store::start(&bench.programs, folder.path())?;
        Ok(Self { settings, fixture, store, folder })
    }

    fn setup(&self, era: Era) -> Setup<'_> {
        Setup::of(&self.fixture.addresses, era)
    }

    async fn replicas(
        &self,
        bench: &Bench,
        count: usize,
        setup: &Setup<'_>,
    ) -> io::Result<Vec<Running>> {
        let (programs, folder) = (&bench.programs, self.folder.path());
        start_replicas(count, programs, setup, self.settings.tools, &self.store, folder).await
    }

    /// Clients whose sessions are on one replica, and whose requests go to another.
    async fn clients(&self, peers: &[Peer]) -> io::Result<Vec<crate::load::drive::Client>> {
        requests::clients(peers, RequestKind::Call, peers.len(), &self.settings).await
    }
}

/// Calls of legacy clients at the replica that has their session, and through another one; beside
/// nginx.
async fn hop(bench: &mut Bench, name: &str, bytes: usize, connections: usize) -> io::Result<()> {
    bench.report_progress(&format!("{name}: starting"));
    let stage = Stage::new(bench, bytes)?;
    let setup = stage.setup(Era::Legacy);
    let mut entries = Vec::new();
    let mut running = Vec::new();
    for subject in [Subject::Direct, Subject::Nginx] {
        let folder = stage.folder.path();
        let mut started = subject::start(subject, &bench.programs, &setup, folder).await?;
        started.lists("tools/list", stage.settings.tools, Era::Legacy).await?;
        let peers = requests::peers(&started, connections, Era::Legacy).await?;
        entries.push(Entry {
            label: subject.name().to_owned(),
            clients: stage.clients(&peers).await?,
            processes: started.processes(),
        });
        running.push(started);
    }
    let replicas = stage.replicas(bench, 2, &setup).await?;
    for (label, to) in [("owner", 0), ("hop", 1)] {
        let peers =
            requests::peers_at(&replicas[0], &replicas[to], connections, Era::Legacy).await?;
        entries.push(Entry {
            label: label.to_owned(),
            clients: stage.clients(&peers).await?,
            processes: replicas[..=to].iter().flat_map(Running::processes).collect(),
        });
    }
    bench.take_turns(name, &entries).await
}

/// Calls of legacy clients to one replica, to three that have their sessions, and to three in turn:
/// then two of three are sent on.
async fn three(bench: &mut Bench) -> io::Result<()> {
    bench.report_progress("fleet-three: starting");
    let stage = Stage::new(bench, 1 << 10)?;
    let setup = stage.setup(Era::Legacy);
    let replicas = stage.replicas(bench, 3, &setup).await?;
    let one = requests::peers(&replicas[0], CONNECTIONS, Era::Legacy).await?;
    let (mut own, mut three) = (Vec::new(), Vec::new());
    for number in 0..CONNECTIONS {
        let (at, to) = (&replicas[number % 3], &replicas[number / 3 % 3]);
        own.extend(requests::peers(at, 1, Era::Legacy).await?);
        three.extend(requests::peers_at(at, to, 1, Era::Legacy).await?);
    }
    let mut entries = Vec::new();
    for (label, peers, count) in [("one", one, 1), ("three, no hops", own, 3), ("three", three, 3)]
    {
        entries.push(Entry {
            label: label.to_owned(),
            clients: stage.clients(&peers).await?,
            processes: replicas[..count].iter().flat_map(Running::processes).collect(),
        });
    }
    bench.take_turns("fleet-three", &entries).await
}

/// Calls with two limits, counted by the process itself and by the store.
async fn limits(bench: &mut Bench) -> io::Result<()> {
    bench.report_progress("fleet-limits: starting");
    let stage = Stage::new(bench, 1 << 10)?;
    let setup = Setup { policy: Policy::Full { roles: 8 }, ..stage.setup(Era::Modern) };
    let mut alone = start_weir(&bench.programs, &setup, &stage.folder.path().join("alone"))?;
    alone.lists("tools/list", stage.settings.tools, Era::Modern).await?;
    let replicas = stage.replicas(bench, 1, &setup).await?;
    let mut entries = Vec::new();
    for (label, running) in [("process", &alone), ("store", &replicas[0])] {
        let peers = requests::peers(running, 1, Era::Modern).await?;
        entries.push(Entry {
            label: label.to_owned(),
            clients: stage.clients(&peers).await?,
            processes: running.processes(),
        });
    }
    bench.take_turns("fleet-limits", &entries).await
}

/// Memory for each open notification stream of sessions: on their replica without a hop, and on it
/// and on the other one with a hop.
async fn streams(bench: &mut Bench) -> io::Result<()> {
    let stage = Stage::new(bench, 1 << 10)?;
    let setup = Setup { streams: STREAMS, ..stage.setup(Era::Legacy) };
    let replicas = stage.replicas(bench, 2, &setup).await?;
    let mut all = Vec::with_capacity(2 * STREAMS);
    for (to, labels) in [(0, &["no hop"][..]), (1, &["owner", "edge"])] {
        bench.report_progress(&format!("fleet-streams: {labels:?}: opening {STREAMS} streams"));
        let peers =
            requests::peers_at(&replicas[0], &replicas[to], STREAMS / STREAMS_EACH, Era::Legacy)
                .await?;
        let memory = || replicas.iter().map(|it| process::memory_kib(&it.processes(), "VmRSS"));
        let idle: Vec<_> = memory().collect();
        for peer in &peers {
            for _ in 0..STREAMS_EACH {
                let mut stream = Connection::open(peer.address).await?;
                stream.send(peer.stream().as_bytes()).await?;
                let opened = stream.until("text/event-stream");
                let opened = tokio::time::timeout(Duration::from_secs(10), opened).await;
                opened.map_err(|_| io::Error::other("a stream was not opened"))??;
                all.push(stream);
            }
        }
        for (label, (now, idle)) in labels.iter().zip(memory().zip(idle)) {
            let each = (now - idle) / STREAMS as f64;
            bench.results.note("fleet-streams", label, "kib_each", each);
        }
    }
    Ok(())
}

/// Time of the first call after the owner of its session was killed, or stands still.
async fn takeovers(bench: &mut Bench) -> io::Result<()> {
    for turn in 0..bench.turns {
        bench.report_progress(&format!("fleet-takeover: turn {} of {}", turn + 1, bench.turns));
        for (figure, signal) in [("refused_ms", Signal::KILL), ("silent_ms", Signal::STOP)] {
            let stage = Stage::new(bench, 1 << 10)?;
            let replicas = stage.replicas(bench, 2, &stage.setup(Era::Legacy)).await?;
            let peers = requests::peers_at(&replicas[0], &replicas[1], 1, Era::Legacy).await?;
            replicas[0].signal(signal);
            tokio::time::sleep(SETTLING).await;
            let begin = Instant::now();
            peers[0].request_once("ping", json!({})).await?;
            let took = begin.elapsed().as_secs_f64() * 1e3;
            bench.results.note("fleet-takeover", "replicas", figure, took);
        }
    }
    Ok(())
}

const CONNECTIONS: usize = 36;
/// Streams at a time; clients without credentials may have 4 096 through a replica.
const STREAMS: usize = 2_000;
/// Streams of one session.
const STREAMS_EACH: usize = 8;
/// Time until a signal has had its effect.
const SETTLING: Duration = Duration::from_millis(20);
