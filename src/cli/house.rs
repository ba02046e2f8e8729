//! What the commands share: finding the configuration, and opening a house for a single question.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::demo::Demo;
use super::failure::Failure;
use crate::app::App;
use crate::config::{Config, Options, Warning};
use crate::gateway::Guest;
use crate::mcp::kind::Kind;
use crate::upstream::host::Host;

/// Where the configuration is.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigArgs {
    /// The configuration file [default: $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the
    /// user's configuration folder].
    // Not clap's own `env`: a variable that is always set would conflict with `--demo`.
    #[arg(long, short, value_name = "FILE", conflicts_with = "demo")]
    config: Option<PathBuf>,
    /// Uses the demonstration fleet of Weir's own repository instead of a configuration.
    #[arg(long)]
    demo: bool,
}

/// A configuration, and what has to live as long as it is used.
pub(super) struct Loaded {
    pub(super) config: Config,
    /// The demonstration's own server, stopped when this is dropped.
    pub(super) demo: Option<Demo>,
}

impl ConfigArgs {
    /// Reads and checks the configuration; warnings are told at once.
    pub(super) async fn load(&self, options: &Options) -> Result<Loaded, Failure> {
        let (config, demo) = if self.demo {
            let demo = Demo::start().await?;
            let config = Config::parse(demo.config(), Path::new("demo.toml"), options);
            (config.map_err(Failure::Config)?, Some(demo))
        } else {
            (Config::load(&self.path()?, options).map_err(Failure::Config)?, None)
        };
        tell(&config.warnings);
        Ok(Loaded { config, demo })
    }

    /// Checks the configuration and starts nothing for it; warnings are told at once.
    pub(super) async fn check(&self, options: &Options) -> Result<(), Failure> {
        if self.demo {
            return self.load(options).await.map(|_| ());
        }
        tell(&Config::check(&self.path()?, options).map_err(Failure::Config)?);
        Ok(())
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        self.config.clone().map_or_else(find, Ok)
    }
}

fn tell(warnings: &[Warning]) {
    for warning in warnings {
        anstream::eprintln!("{}", warning.draw(true));
    }
}

/// How a configuration is judged by a program that runs in this environment.
pub(super) fn options(allow_anonymous_network: bool) -> Options {
    Options { allow_anonymous_network, environment: std::env::vars_os().collect() }
}

/// Looks for the configuration where it usually is.
fn find() -> Result<PathBuf, Failure> {
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
        "no configuration: neither {} exists; name one with --config FILE",
        places.join(" nor ")
    )))
}

/// A house that was opened to ask something and is closed again.
pub(super) struct House {
    loaded: Loaded,
    app: App,
    guest: Guest,
    everything: Guest,
}

impl House {
    /// Opens the house and waits until each upstream has been listed or has failed, or until `wanted`
    /// can be seen. `client` is whose policy is met; nobody's means that nothing is hidden.
    pub(super) async fn open(
        args: &ConfigArgs,
        client: Option<&str>,
        wanted: Option<(Kind, &str)>,
    ) -> Result<Self, Failure> {
        // Nobody else can come in, so whoever may listen on the network does not matter here.
        let loaded = args.load(&options(true)).await?;
        let app = App::open(&loaded.config, Arc::new(Host::new()));
        let everything = app.gateway().enter_as_operator();
        let guest = match client {
            None => everything.clone(),
            Some(name) => app.gateway().enter_as(name).ok_or_else(|| {
                Failure::Unauthenticated(format!("no client `{name}` in the configuration"))
            })?,
        };
        let seen = async {
            match wanted {
                Some((kind, key)) => guest.sees(kind, key).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = app.gateway().listed() => {}
            () = seen => {}
        }
        Ok(Self { loaded, app, guest, everything })
    }

    /// Whose eyes the house is seen with.
    pub(super) fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The house as its operator sees it.
    pub(super) fn everything(&self) -> &Guest {
        &self.everything
    }

    /// The configuration that it was built from.
    pub(super) fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// The house itself.
    pub(super) fn app(&self) -> &App {
        &self.app
    }

    /// The item of a kind whose name is nearest to what was typed.
    pub(super) fn nearest(&self, kind: Kind, typed: &str) -> Option<String> {
        let view = self.guest.view();
        let distance = |key: &str| strsim::damerau_levenshtein(key, typed);
        let tail = |key: &str| key.rsplit("__").next().map(str::to_owned);
        let keys = view.targets(kind).iter().map(|target| &*target.key);
        keys.map(|key| {
            (tail(key).map_or(usize::MAX, |tail| distance(&tail)).min(distance(key)), key)
        })
        .filter(|(distance, _)| *distance <= 3.max(typed.len() / 3))
        .min()
        .map(|(_, key)| key.to_owned())
    }

    /// Closes the house. Upstreams that do not end by themselves are ended.
    pub(super) async fn close(self) {
        // A child has 5 s on the ladder; more than that nobody should wait for a prompt.
        let _ = tokio::time::timeout(Duration::from_secs(6), self.app.close()).await;
    }
}
