//! What the commands share: finding the configuration, and opening a house for a single question.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::admin::status::CUT;
use crate::app::{App, Files};
use crate::catalog::{Target, View};
use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::query::progress;
use crate::cli::query::required_upstreams::{self, Wanted};
use crate::cli::server::demo::Demo;
use crate::cli::timestamp::to_words;
use crate::config::{Config, Listeners, Options, Report, Warning, nearest};
use crate::gateway::Guest;
use crate::mcp::kind::Kind;
use crate::mcp::uri::CanonicalUri;
use crate::upstream::Status;
use crate::upstream::system::Host;

/// What every command takes that asks something.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// Asks as this client, under its policy, instead of as the operator, from whom nothing is hidden.
    #[arg(long = "as", value_name = "CLIENT", value_hint = clap::ValueHint::Other)]
    pub(crate) client: Option<String>,
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file; without it $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the
    /// user's configuration folder.
    // Not clap's own `env`: a variable that is always set would conflict with `--demo`.
    #[arg(long, short, value_name = "FILE", conflicts_with = "demo")]
    config: Option<PathBuf>,
    /// Uses the demonstration fleet of Weir's own repository instead of a configuration.
    #[arg(long)]
    demo: bool,
}

/// A configuration, and what has to live as long as it is used.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// Its file; none for the demonstration.
    pub(crate) file: Option<PathBuf>,
    /// The demonstration's own server, stopped when this is dropped.
    pub(crate) demo: Option<Demo>,
    /// Its files, as they were just before they were read, and where the main one is; none where nothing could be
    /// read again.
    pub(crate) files: Option<(PathBuf, Files)>,
}

impl ConfigArgs {
    /// Reads and checks the configuration; telling its warnings is left to the caller.
    pub(crate) async fn load(&self, options: &Options) -> Result<Loaded, Failure> {
        let found = self.find().await?;
        let files = match &found {
            Found::File(path) => look(path.clone(), options.clone()).await,
            Found::Demo(_) => None,
        };
        let config = found.read(options).await?;
        Ok(Loaded { files, ..found.loaded(config) })
    }

    /// Reads the configuration without its upstreams, whose secrets are not fetched.
    pub(crate) async fn load_alone(&self, options: &Options) -> Result<Loaded, Failure> {
        if self.demo {
            return Err(nobody_runs_the_demo());
        }
        let found = self.find().await?;
        let config = match &found {
            Found::File(path) => aside(path.clone(), options, Config::without_upstreams).await?,
            Found::Demo(_) => found.read(options).await?,
        };
        Ok(found.loaded(config))
    }

    /// Tells where the Weir that runs with the configuration can be reached, its file, and why it cannot be read, if
    /// that is so.
    pub(crate) async fn listeners(&self) -> Result<(Listeners, PathBuf, Option<Report>), Failure> {
        if self.demo {
            return Err(nobody_runs_the_demo());
        }
        let path = match &self.config {
            Some(path) => path.clone(),
            None => find()?,
        };
        let read = |path: &Path, options: &Options| Ok(Config::listeners(path, options));
        let (listeners, problems) = aside(path.clone(), &options(true), read).await?;
        Ok((listeners, path, problems))
    }

    /// Checks the configuration and starts nothing for it; returns its warnings.
    pub(crate) async fn check(&self, options: &Options) -> Result<Vec<Warning>, Failure> {
        match self.find().await? {
            Found::File(path) => aside(path, options, Config::check).await,
            demo => Ok(demo.read(options).await?.warnings),
        }
    }

    async fn find(&self) -> Result<Found, Failure> {
        match &self.config {
            _ if self.demo => Demo::start().await.map(Found::Demo),
            Some(path) => Ok(Found::File(path.clone())),
            None => find().map(Found::File),
        }
    }
}

/// A configuration that is yet to be read.
enum Found {
    File(PathBuf),
    Demo(Demo),
}

impl Found {
    async fn read(&self, options: &Options) -> Result<Config, Failure> {
        match self {
            Self::File(path) => aside(path.clone(), options, Config::load).await,
            Self::Demo(demo) => {
                let config = Config::parse(demo.config(), Path::new("demo.toml"), options);
                config.map_err(Failure::Config)
            }
        }
    }

    fn loaded(self, config: Config) -> Loaded {
        let (file, demo) = match self {
            Self::File(path) => (Some(path), None),
            Self::Demo(demo) => (None, Some(demo)),
        };
        Loaded { config, file, demo, files: None }
    }
}

/// Looks at the files of a configuration, on a thread of its own like what reads them.
async fn look(path: PathBuf, options: Options) -> Option<(PathBuf, Files)> {
    let look = move || Files::look(&path, &options).map(|files| (path, files));
    tokio::task::spawn_blocking(look).await.ok().flatten()
}

/// Draws what is probably not meant, for people.
pub(crate) fn draw(warnings: &[Warning]) {
    warnings.iter().for_each(|warning| output::tell(&warning.draw(true)));
}

/// Reads a configuration on a thread of its own: a command that gives a secret may take its time, and so
/// may a pipe in the place of the file. Dropped, it ends the command.
async fn aside<T: Send + 'static>(
    path: PathBuf,
    options: &Options,
    read: fn(&Path, &Options) -> Result<T, Report>,
) -> Result<T, Failure> {
    // A child: the same options may be read with again.
    let stop = options.stop.child_token();
    let options = Options { stop: stop.clone(), ..options.clone() };
    let _leaving = stop.drop_guard();
    let read = tokio::task::spawn_blocking(move || read(&path, &options)).await;
    let read = read.map_err(|error| {
        Failure::NoConfig(format!("the configuration could not be read: {error}"))
    })?;
    read.map_err(Failure::Config)
}

/// How a configuration is judged by a program that runs in this environment.
pub(crate) fn options(allow_anonymous_network: bool) -> Options {
    let environment = std::env::vars_os().collect();
    Options { allow_anonymous_network, environment, ..Options::default() }
}

fn nobody_runs_the_demo() -> Failure {
    Failure::Usage("`--demo` is a fleet of its own, which nobody runs: name the configuration of the Weir that does".to_owned())
}

/// Looks for the configuration where it usually is.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os("WEIR_CONFIG").filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let folder = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| home.map(|home| home.join(".config")));
    let places = [Some(PathBuf::from("weir.toml")), folder.map(|at| at.join("weir/weir.toml"))];
    let places: Vec<PathBuf> = places.into_iter().flatten().collect();
    if let Some(found) = places.iter().find(|path| path.exists()) {
        return Ok(found.clone());
    }
    let places: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
    Err(Failure::NoConfig(format!(
        "no configuration: neither {} exists; `weir init` writes one, --config FILE names one",
        places.join(" nor ")
    )))
}

/// A house that was opened to ask something and is closed again.
pub(crate) struct House {
    loaded: Loaded,
    app: App,
    guest: Guest,
    everything: Guest,
    json: bool,
}

impl House {
    /// Opens a house, does the work in it, and closes it again. The policy that is met is that of the
    /// client in `args`; without one nothing is hidden.
    pub(crate) async fn visit(
        args: &AskArgs,
        wanted: Wanted<'_>,
        work: impl AsyncFnOnce(&Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        crate::cli::server::log::start_quietly();
        let (client, options) = (args.client.as_deref(), options(true));
        let house = Self::open(&args.config, args.json, client, wanted, options).await?;
        let done = work(&house).await;
        house.close().await;
        done
    }

    /// Opens a house with the upstreams that are needed, and waits until each of them has been listed or
    /// has failed, or until what is wanted can be seen.
    pub(crate) async fn open(
        args: &ConfigArgs,
        json: bool,
        client: Option<&str>,
        wanted: Wanted<'_>,
        options: Options,
    ) -> Result<Self, Failure> {
        Self::open_as(args, json, client, wanted, options, |_| {}).await
    }

    /// The same, of a configuration that is changed before it is used.
    pub(crate) async fn open_as(
        args: &ConfigArgs,
        json: bool,
        client: Option<&str>,
        wanted: Wanted<'_>,
        options: Options,
        change: impl FnOnce(&mut Config),
    ) -> Result<Self, Failure> {
        let found = args.find().await?;
        // Where not all are needed, what the file says decides; only then are secrets fetched.
        let only = (!wanted.is_all()).then(Vec::new);
        let mut options = Options { only, ..options };
        let mut config = found.read(&options).await?;
        if let Some(client) = client {
            is_welcome(&config, client)?;
        }
        if !wanted.is_all() {
            options.only = Some(required_upstreams::needed(&config, wanted)?);
            config = found.read(&options).await?;
        }
        change(&mut config);
        // Who asks wants to know what is so now.
        config.state.catalog = false;
        let loaded = found.loaded(config);
        if !json {
            draw(&loaded.config.warnings);
        }
        let app = App::open(&loaded.config, Arc::new(Host::of_the_program()));
        let everything = app.gateway().enter_as_operator();
        let guest = match client {
            None => everything.clone(),
            Some(name) => {
                app.gateway().enter_as(name).ok_or_else(|| nobody(&loaded.config, name))?
            }
        };
        let seen = async {
            match wanted {
                Wanted::Item(kind, key) => guest.sees(kind, key).await,
                Wanted::Of(_) | Wanted::Meant(..) => std::future::pending().await,
            }
        };
        let ready = async {
            tokio::select! {
                () = app.gateway().listed() => {}
                () = seen => {}
            }
        };
        let about = || {
            let names: Vec<_> = app.gateway().unsettled().iter().map(ToString::to_string).collect();
            format!("waiting for {}", names.join(", "))
        };
        let patience = match wanted {
            Wanted::Meant(..) => MEANT_PATIENCE,
            Wanted::Item(..) | Wanted::Of(_) => Duration::MAX,
        };
        // Too late is fine: that is an answer, too.
        let _ = progress::watched(json, about, tokio::time::timeout(patience, ready)).await;
        Ok(Self { loaded, app, guest, everything, json })
    }

    /// Whose eyes the house is seen with.
    pub(crate) fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The house as its operator sees it.
    pub(crate) fn everything(&self) -> &Guest {
        &self.everything
    }

    /// The configuration that it was built from; of the upstreams those that were needed.
    pub(crate) fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// The configuration's file, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.loaded.file.as_deref()
    }

    /// The house itself.
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// Whether answers are JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// The item of a public name or URI; else why there is none, for whoever holds the configuration.
    pub(crate) fn find(&self, kind: Kind, key: &str) -> Result<Arc<Target>, Failure> {
        let resolve = |view: &View| match kind {
            Kind::Resource => view.resolve_uri(key),
            _ => view.resolve(kind, key),
        };
        let view = self.guest.view();
        if let Some(target) = resolve(&view) {
            return Ok(target);
        }
        if resolve(&self.everything.view()).is_some() {
            let text = format!("the policy hides the {kind} `{key}` from this client");
            return Err(Failure::Denied(text));
        }
        // This is told to whoever holds the configuration: it counts what the client cannot reach, too.
        if let Some(unlisted) = self.unlisted(&self.everything, kind) {
            return Err(Failure::Unreachable(format!("no {kind} `{key}`, but {unlisted}")));
        }
        if kind == Kind::Resource
            && let Err(why) = CanonicalUri::parse(key)
        {
            let text = format!(
                "no {kind} `{key}` is listed, and a URI that is not listed must be in normal form: {why}"
            );
            return Err(Failure::Usage(text));
        }
        let listed = view.targets(kind).iter().map(|target| &*target.key);
        let hint = match nearest(key, listed) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                format!("`weir list {}` shows what there is", crate::cli::query::list::word(kind))
            }
        };
        Err(Failure::Usage(format!("no {kind} `{key}`; {hint}")))
    }

    /// Which of the upstreams that somebody reaches could not be listed, and why.
    pub(crate) fn unlisted(&self, somebody: &Guest, kind: Kind) -> Option<String> {
        let view = somebody.view();
        let (upstreams, problems) = (self.app.gateway().upstreams(), self.app.gateway().problems());
        let why = |name| {
            let mut mine = problems.iter().filter(|(of, its, _)| of == name && *its == kind);
            if let Some(by) = mine.find_map(|(.., problems)| problems.cut.as_ref()) {
                return format!("upstream `{name}` {CUT}: {by} of {}", kind.list_method());
            }
            let upstream = upstreams.iter().find(|one| one.name() == name);
            let reason = match upstream.map(|upstream| upstream.status().borrow().clone()) {
                Some(Status::Down { reason, .. }) => crate::cli::query::render::plain(&reason),
                _ => format!("`{}` was not answered", kind.list_method()),
            };
            format!("upstream `{name}` could not be listed: {reason}")
        };
        let reasons: Vec<_> = view.missing(kind).iter().map(why).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Closes the house. Upstreams that do not end by themselves are ended.
    pub(crate) async fn close(self) {
        // A child has 5 s on the ladder; more than that nobody should wait for a prompt. One that was
        // not even needed for the answer is no reason to wait at all.
        let all_were_needed = self.app.gateway().unsettled().is_empty();
        let patience = Duration::from_millis(if all_were_needed { 6_000 } else { 500 });
        let close = tokio::time::timeout(patience, self.app.close());
        let _ = progress::watched(self.json, || "waiting for upstreams to end".into(), close).await;
    }
}

/// How long is waited for upstreams where it is asked why something is not there: within ten seconds there is an answer.
const MEANT_PATIENCE: Duration = Duration::from_secs(8);

// === Clients ===

/// Makes sure that a client of this name would be let in at this moment.
pub(crate) fn is_welcome(config: &Config, name: &str) -> Result<(), Failure> {
    let client = config.clients.iter().find(|client| client.name == name);
    match client.and_then(|client| client.expires) {
        Some(expires) if expires <= SystemTime::now() => Err(Failure::Unauthenticated(format!(
            "the keys of client `{name}` have expired, at {}: set another `expires` under \
             [clients.{name}]",
            to_words(expires)
        ))),
        _ if client.is_none() && !(name == ANONYMOUS && config.auth.anonymous) => {
            Err(nobody(config, name))
        }
        _ => Ok(()),
    }
}

/// What the policy calls whoever shows no key.
const ANONYMOUS: &str = "anonymous";

/// What is said of a client that is not in the configuration.
pub(crate) fn nobody(config: &Config, name: &str) -> Failure {
    let known: Vec<&str> = config.clients.iter().map(|client| client.name.as_str()).collect();
    let known = match known[..] {
        [] => "which defines no clients".to_owned(),
        _ => format!("which has {}", known.join(", ")),
    };
    Failure::Unauthenticated(format!("no client `{name}` in the configuration, {known}"))
}
