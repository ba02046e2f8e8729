//! The whole house in memory: scripted upstreams behind it, raw clients in front, one thread, a paused
//! clock.
//!
//! A [`World`] is made of scripts by name and a piece of configuration. It adds to the configuration
//! where each script is reached, and for each role a client with a key; everything else is what an
//! operator would write. At its end it closes the house and fails if a task is left over on either side
//! or if a script has seen something that a careful server would object to.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use sha2::{Digest, Sha256};
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir::app::{App, Outcome, Reloader};
use weir::audit::{Audit, Writer};
use weir::config::{Config, Options};
use weir::downstream::http::Route;
use weir::gateway::Guest;
use weir::mcp::kind::Kind;
use weir::upstream::connect::{Child, Command, Dial, Stream};

use crate::cell::{Cell, LEGACY_SSE, MODERN_HTTP, Side, Wire, matrix};
use crate::client::{Client, Open};
use crate::identity;
use crate::judge::{Judge, Verdict};
use crate::upstream::{Script, Upstream};

/// How much a client may write ahead of the house's reading, and the other way round.
const PIPE: usize = 64 * 1024;
/// After so many turns of the scheduler each task that was ready has had its own.
const TURNS: usize = 16;
/// How long closing may take: longer than any time-out on the way.
const CLOSING: Duration = Duration::from_secs(60);

/// A running house and who stands around it.
pub(crate) struct World {
    app: App,
    reloader: Reloader,
    /// What is read at the next reload.
    text: Arc<Mutex<String>>,
    /// What reading waits for.
    gate: Arc<Mutex<Option<std::sync::mpsc::Receiver<()>>>>,
    sides: Vec<(&'static str, Side)>,
    upstreams: BTreeMap<String, Upstream>,
    /// The tasks of the scripts and of the clients.
    tasks: TaskTracker,
    between: Between,
    /// The judge of what the house says. Last, so that all has been said.
    verdict: Verdict,
}

/// Scripts by the name of their upstream.
pub(crate) type Scripts = Vec<(&'static str, Script)>;

/// What lies between the house and the end of a connection: told who is at the other end, it takes that end
/// and gives what the house, or the client, gets instead.
pub(crate) type Between = Arc<dyn Fn(&str, DuplexStream) -> DuplexStream + Send + Sync>;

/// An upstream called `hub` with two items of each kind.
pub(crate) fn hub(side: Side) -> Scripts {
    vec![("hub", Script::full(side))]
}

/// Tests a behaviour for every client's side with every upstream's.
pub(crate) async fn everywhere(
    config: &str,
    scripts: impl Fn(Side) -> Scripts,
    test: impl AsyncFn(&World, Cell),
) {
    for cell in matrix() {
        let named = Named(cell);
        let pair = if cell.client == LEGACY_SSE { with_pair(config) } else { config.to_owned() };
        let world = World::start(scripts(cell.upstream), &pair).await;
        test(&world, cell).await;
        world.close().await;
        drop(named);
    }
}

/// The configuration with the HTTP+SSE pair switched on.
pub(crate) fn with_pair(config: &str) -> String {
    match config.split_once("[protocol]") {
        Some((before, rest)) => format!("{before}[protocol]\nlegacy_sse = true{rest}"),
        None => format!("[protocol]\nlegacy_sse = true\n{config}"),
    }
}

/// Lets time pass: everything that is ready runs first, and every timer on the way fires.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Lets everything run that waits for nothing but its turn.
pub(crate) async fn settle() {
    pass(Duration::from_millis(1)).await;
}

/// Names the cell in which a test fails.
struct Named(Cell);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with {}", self.0);
        }
    }
}

impl World {
    /// Opens the house and waits until each upstream has been listed or has failed.
    pub(crate) async fn start(scripts: Scripts, config: &str) -> Self {
        let world = Self::open(scripts, config);
        world.app.gateway().listed().await;
        world
    }

    /// The same with the audit log that the configuration asks for.
    pub(crate) async fn start_recorded(scripts: Scripts, config: &str) -> Self {
        let open_log = |config: &Config| App::open_log(config).expect("a log");
        let world = Self::open_with(scripts, config, |config| Some(open_log(config)));
        world.app.gateway().listed().await;
        world
    }

    /// Opens the house and waits for nothing.
    pub(crate) fn open(scripts: Scripts, config: &str) -> Self {
        Self::open_with(scripts, config, |_| None)
    }

    /// The same with something between the house and everybody else, whose tasks are counted.
    pub(crate) fn open_between(
        scripts: Scripts,
        config: &str,
        tasks: TaskTracker,
        between: Between,
    ) -> Self {
        Self::open_on(scripts, config, |_| None, tasks, between)
    }

    fn open_with(
        scripts: Scripts,
        config: &str,
        log: impl Fn(&Config) -> Option<(Audit, Writer)>,
    ) -> Self {
        Self::open_on(scripts, config, log, TaskTracker::new(), Arc::new(|_, end| end))
    }

    fn open_on(
        scripts: Scripts,
        config: &str,
        log: impl Fn(&Config) -> Option<(Audit, Writer)>,
        tasks: TaskTracker,
        between: Between,
    ) -> Self {
        let sides: Vec<_> = scripts.iter().map(|(name, script)| (*name, script.side)).collect();
        let config = completed(&sides, config);
        let revision = |(name, script): &(&str, Script)| ((*name).to_owned(), script.side.revision);
        let judge = Judge::new(scripts.iter().map(revision).collect());
        let start = |(name, script): (&str, Script)| {
            let talk = judge.upstream(script.side);
            (name.to_owned(), Upstream::start(script, &tasks).judged(talk))
        };
        let upstreams: BTreeMap<_, _> = scripts.into_iter().map(start).collect();
        let parsed = Config::parse(&config, Path::new("weir.toml"), &Options::default());
        let parsed = parsed.unwrap_or_else(|report| panic!("{report}\n{config}"));
        let dial =
            Arc::new(Scripted { upstreams: upstreams.clone(), between: Arc::clone(&between) });
        let app = App::open_for(&parsed, dial, None, log(&parsed));
        app.keep_keys();
        let text = Arc::new(Mutex::new(config));
        let written = Arc::clone(&text);
        let gate = Arc::default();
        let waited_for: Arc<Mutex<Option<std::sync::mpsc::Receiver<()>>>> = Arc::clone(&gate);
        let read = move |_: &CancellationToken| {
            let gate = waited_for.lock().expect("nobody panics here").take();
            gate.map(|gate| gate.recv());
            let text = written.lock().expect("nobody panics here").clone();
            Config::parse(&text, Path::new("weir.toml"), &Options::default())
        };
        let reloader = app.reloader(read, |_| {});
        Self {
            app,
            reloader,
            text,
            gate,
            sides,
            upstreams,
            tasks,
            between,
            verdict: Verdict(judge),
        }
    }

    /// Writes another configuration, completed as the first one was, and has it read.
    pub(crate) async fn reload(&self, config: &str) -> Outcome {
        let names: Vec<_> = self.sides.iter().map(|(name, _)| *name).collect();
        self.reload_with(&names, config).await
    }

    /// The same with these of the scripts.
    pub(crate) async fn reload_with(&self, names: &[&str], config: &str) -> Outcome {
        let sides = self.sides.iter().filter(|(name, _)| names.contains(name));
        let config = completed(&Vec::from_iter(sides.copied()), config);
        *self.text.lock().expect("nobody panics here") = config;
        self.reloader.reload().await
    }

    /// The same where one upstream leads to the script of another.
    pub(crate) async fn reload_leading(&self, name: &str, to: &str, config: &str) -> Outcome {
        let text = completed(&self.sides, config);
        let ways = |name: &str| {
            [format!("command = \"{name}\""), format!("url = \"http://{name}.test/mcp\"")]
        };
        let ways = ways(name).into_iter().zip(ways(to));
        let text = ways.fold(text, |text, (from, to)| text.replace(&from, &to));
        *self.text.lock().expect("nobody panics here") = text;
        self.reloader.reload().await
    }

    /// The same between two moments: nothing else in the house runs until all is replaced, and then, first of all,
    /// `replaced`, unless the house takes no more wishes, since it stops. So what happens does not depend on threads.
    /// Takes a runtime of one thread, with one more for what blocks.
    pub(crate) async fn reload_at_once(
        &self,
        names: &[&str],
        config: &str,
        replaced: impl FnOnce(),
    ) -> Outcome {
        let (open, gate) = std::sync::mpsc::channel();
        *self.gate.lock().expect("nobody panics here") = Some(gate);
        // However much the caller's task has done in this turn: the wish must not be put off to the next one.
        let reloading = tokio::task::unconstrained(self.reload_with(names, config));
        let mut reloading = std::pin::pin!(reloading);
        // The task that reloads takes the wish up, and gives it to the other thread, which waits.
        assert!(futures::poll!(&mut reloading).is_pending());
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        let (tell, told) = std::sync::mpsc::channel();
        drop(self.tasks.spawn_blocking(move || tell.send(())));
        let _ = open.send(());
        told.recv_timeout(CLOSING).expect("the thread is behind the reload");
        let is_read = self.gate.lock().expect("nobody panics here").is_none();
        if is_read {
            replaced();
        }
        let outcome = reloading.await;
        assert!(is_read || matches!(outcome, Outcome::Failed(_)), "{outcome:?}, and not in time");
        outcome
    }

    pub(crate) fn upstream(&self, name: &str) -> &Upstream {
        &self.upstreams[name]
    }

    /// Lets frames pass that carry this text, which a test makes illegal on purpose.
    pub(crate) fn excuse(&self, text: &str) {
        self.verdict.0.excuse(text);
    }

    /// What is left out of an upstream's list of a kind, and why.
    pub(crate) fn left_out(&self, name: &str, kind: Kind) -> Vec<String> {
        let problems = self.app.gateway().problems().into_iter();
        let of_list = problems.filter(|(of, its, _)| of.as_str() == name && *its == kind);
        of_list.flat_map(|(.., problems)| problems.first).map(|it| it.to_string()).collect()
    }

    /// How many requests have reached any upstream.
    pub(crate) fn requests(&self) -> usize {
        self.upstreams.values().map(Upstream::requests).sum()
    }

    /// How many legacy sessions over HTTP are open.
    pub(crate) fn sessions(&self) -> usize {
        self.app.door().now().sessions()
    }

    /// What is served over HTTP, and where.
    pub(crate) fn routes(&self) -> Vec<(Route, String)> {
        self.app.door().now().routes().map(|(route, path)| (route, path.to_owned())).collect()
    }

    /// A client of the configuration, without a wire.
    pub(crate) fn guest(&self, client: &str) -> Guest {
        self.app.gateway().enter_as(client).expect("a client")
    }

    /// A client without credentials.
    pub(crate) async fn client(&self, side: Side) -> Client {
        Client::open(side, self.way_in(side, "local"), None, &self.tasks).await
    }

    /// A client that can be asked for what it declares with these capabilities.
    pub(crate) async fn client_declaring(&self, side: Side, capabilities: &str) -> Client {
        self.declaring(side, None, "local", capabilities).await
    }

    /// The same, in this role.
    pub(crate) async fn client_as_declaring(
        &self,
        role: &str,
        side: Side,
        capabilities: &str,
    ) -> Client {
        self.declaring(side, Some(&key_of(role)), role, capabilities).await
    }

    async fn declaring(
        &self,
        side: Side,
        key: Option<&str>,
        role: &str,
        capabilities: &str,
    ) -> Client {
        let client = Client::silent(side, self.way_in(side, role), key, &self.tasks);
        let client = client.declaring(capabilities);
        if !side.is_modern() {
            client.initialize().await;
        }
        client
    }

    /// A client in this role.
    pub(crate) async fn client_as(&self, role: &str, side: Side) -> Client {
        self.client_with(side, &key_of(role), role).await
    }

    /// A client with this key; over stdio, where there are no keys, in this role.
    pub(crate) async fn client_with(&self, side: Side, key: &str, role: &str) -> Client {
        Client::open(side, self.way_in(side, role), Some(key), &self.tasks).await
    }

    /// A client that has not opened its conversation.
    pub(crate) fn silent_client(&self, side: Side, key: Option<&str>) -> Client {
        Client::silent(side, self.way_in(side, "local"), key, &self.tasks)
    }

    /// A connection to the HTTP door, for bytes that no client would send.
    pub(crate) fn connect(&self) -> DuplexStream {
        self.way_in(MODERN_HTTP, "local").connect()
    }

    /// Waits until each upstream has been listed or has failed.
    pub(crate) async fn listed(&self) {
        self.app.gateway().listed().await;
    }

    /// Ends the doors; what is under way goes on.
    pub(crate) fn stop_doors(&self) {
        self.app.stop_doors();
    }

    /// Waits until nothing is under way any more, once the doors have ended.
    pub(crate) async fn drained(&self) {
        self.app.drained().await;
    }

    /// What opens connections to a door.
    fn way_in(&self, side: Side, role: &str) -> Open {
        let (door, tasks) = (Arc::clone(self.app.door()), self.tasks.clone());
        // Who comes so under a role of its own is that client, as with `weir stdio --as`.
        let gateway = self.app.gateway();
        let guest = gateway.enter_as(role).unwrap_or_else(|| gateway.enter_locally(role));
        let talk = self.verdict.0.client(side);
        let between = Arc::clone(&self.between);
        let connect = move || {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let door = Arc::clone(&door);
            if side.wire != Wire::Stdio {
                let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
                tasks.spawn(weir::downstream::http::serve_connection(door, theirs, Some(peer)));
            } else {
                let (input, output) = tokio::io::split(theirs);
                tasks.spawn(weir::downstream::stdio::serve(door, guest.clone(), input, output));
            }
            // Only over HTTP does a conversation outlive its connections.
            between(if side.wire == Wire::Http { "client" } else { "pipe" }, ours)
        };
        Open::new(connect, Some(talk))
    }

    /// Closes the house. Clients have to be gone.
    pub(crate) async fn close(self) {
        self.stop_doors();
        let drained = tokio::time::timeout(CLOSING, self.drained()).await;
        assert!(drained.is_ok(), "a request or a stream has not ended");
        let closed = tokio::time::timeout(CLOSING, self.app.close()).await;
        assert!(closed.is_ok(), "a task of an upstream has not ended");
        for upstream in self.upstreams.values() {
            assert_eq!(upstream.surprises(), Vec::<String>::new());
        }
        self.tasks.close();
        let left = tokio::time::timeout(CLOSING, self.tasks.wait()).await;
        assert!(left.is_ok(), "{} connections are still open", self.tasks.len());
    }
}

/// The key of the client that has this role.
pub(crate) fn key_of(role: &str) -> String {
    format!("key-of-{role}")
}

/// A key as the configuration names it.
pub(crate) fn sha256(key: &str) -> String {
    Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The configuration with the way to each script and a client for each role.
fn completed(sides: &[(&'static str, Side)], config: &str) -> String {
    let mut config = config.to_owned();
    for (name, side) in sides {
        let header = format!("[upstreams.{name}]");
        let way = match side.wire {
            Wire::Stdio => format!("{header}\ncommand = \"{name}\""),
            // Which of the two transports it is has to be found out.
            Wire::Http | Wire::Sse => format!("{header}\nurl = \"http://{name}.test/mcp\""),
        };
        if config.contains(&header) {
            config = config.replace(&header, &way);
        } else {
            config += &format!("\n{way}\n");
        }
    }
    let roles: Vec<_> =
        config.split("[roles.").skip(1).filter_map(|rest| rest.split_once(']')).collect();
    let clients: Vec<_> = roles
        .iter()
        .map(|(role, _)| {
            let key = sha256(&key_of(role));
            format!("\n[clients.{role}]\nrole = \"{role}\"\nkey_sha256 = [\"{key}\"]\n")
        })
        .collect();
    config + &clients.concat()
}

/// Opens connections to scripts instead of the world.
struct Scripted {
    upstreams: BTreeMap<String, Upstream>,
    between: Between,
}

impl Scripted {
    fn find(&self, name: &str) -> io::Result<&Upstream> {
        self.upstreams.get(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Dial for Scripted {
    fn connect<'a>(
        &'a self,
        url: &'a Uri,
        _: Duration,
    ) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        async {
            let host = url.host().and_then(|host| host.strip_suffix(".test")).unwrap_or_default();
            if host == "id" {
                return Ok(identity::connect());
            }
            let end = self.find(host)?.connect()?;
            let stream: Box<dyn Stream> = Box::new((self.between)(host, end));
            Ok(stream)
        }
        .boxed()
    }

    fn spawn(&self, command: &Command) -> io::Result<Child> {
        let name = &command.program;
        self.find(name)?.spawn(|end| (self.between)(name, end))
    }
}
