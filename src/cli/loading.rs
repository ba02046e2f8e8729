//! Loading of the configuration for a command.
//!
//! Finds the file, reads it on a blocking thread, or starts the demonstration fleet instead.

pub(crate) mod demo;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::app::ConfigFiles;
use crate::cli::exit::Failure;
use crate::cli::output;
use demo::Demo;
use weir_access::policy;
use weir_base::time::timestamp::format_rfc3339;
use weir_config::{Config, ConfigReport, Listeners, Options, Warning};

/// Options that select the configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file; default: $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the
    /// user's configuration folder.
    // clap's own `env` is not used: a variable that is always set would conflict with `--demo`.
    #[arg(long, short, value_name = "FILE", conflicts_with = "demo")]
    config: Option<PathBuf>,
    /// Uses the demonstration servers of Weir's own repository instead of a configuration.
    #[arg(long, hide = !demo::is_available())]
    demo: bool,
}

/// Options of a command that prints what it found with a configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Configuration together with everything that must live as long as it is in use.
pub(crate) struct LoadedConfig {
    pub(crate) config: Config,
    pub(crate) source: ConfigSource,
    /// State of all files just before they were read; `None` where no file can be reloaded.
    pub(crate) files: Option<ConfigFiles>,
}

impl ConfigArgs {
    /// Selects a file.
    pub(crate) fn of_file(path: PathBuf) -> Self {
        Self { config: Some(path), demo: false }
    }

    /// Reads and checks the configuration; the caller prints its warnings.
    pub(crate) async fn load(&self, options: &Options) -> Result<LoadedConfig, Failure> {
        let source = self.find().await?;
        let files = source.snapshot_files(options).await;
        let config = source.read(options).await?;
        Ok(LoadedConfig { config, source, files })
    }

    /// Reads and checks the configuration for this client, or for one without a name. One that
    /// cannot be used is reported, and replaced by one that tells the client so.
    pub(crate) async fn load_or_stand_in(
        &self,
        options: &Options,
        client: Option<&str>,
    ) -> Result<LoadedConfig, Failure> {
        let source = match self.find().await {
            Err(Failure::NoConfig(why)) => ConfigSource::Missing(why, default_places().pop()),
            found => found?,
        };
        let files = source.snapshot_files(options).await;
        let read = source.read(options).await;
        let path = path_to_read_again(&source, files.as_ref());
        let (options, client) = (options.clone(), client.map(str::to_owned));
        let choose = move || usable_or_stand_in(read, &path, &options, client.as_deref());
        let chosen = tokio::task::spawn_blocking(choose).await;
        let (config, failure) = chosen.map_err(|error| Failure::NoConfig(error.to_string()))?;
        failure.iter().for_each(|failure| output::print_failure(failure, false));
        Ok(LoadedConfig { config, source, files })
    }

    /// Reads the configuration of a running Weir without its upstreams, whose secrets are not
    /// fetched; returns its path as well.
    pub(crate) async fn load_without_upstreams(&self) -> Result<(Config, PathBuf), Failure> {
        let path = self.instance_path()?;
        // This process opens no listener, so anonymous access from the network does not matter.
        let config = read_blocking(path.clone(), &options(true), Config::without_upstreams).await?;
        Ok((config, path))
    }

    /// Returns the listeners of the Weir that runs with the configuration, the file, and the
    /// report if the file is invalid.
    pub(crate) async fn listeners(
        &self,
    ) -> Result<(Listeners, PathBuf, Option<ConfigReport>), Failure> {
        let path = self.instance_path()?;
        let read = |path: &Path, options: &Options| Ok(Config::listeners(path, options));
        let (listeners, problems) = read_blocking(path.clone(), &options(true), read).await?;
        Ok((listeners, path, problems))
    }

    fn instance_path(&self) -> Result<PathBuf, Failure> {
        if self.demo {
            let text = "`--demo` has no running instance: name the configuration of a running Weir";
            return Err(Failure::Usage(text.to_owned()));
        }
        config_path(self.config.as_deref())
    }

    /// Checks the configuration without starting anything; returns its warnings.
    pub(crate) async fn check(&self, options: &Options) -> Result<Vec<Warning>, Failure> {
        match self.find().await? {
            ConfigSource::File(path) => read_blocking(path, options, Config::check).await,
            demo => Ok(demo.read(options).await?.warnings),
        }
    }

    pub(super) async fn find(&self) -> Result<ConfigSource, Failure> {
        match self.demo {
            true => Demo::start().await.map(ConfigSource::Demo),
            false => config_path(self.config.as_deref()).map(ConfigSource::File),
        }
    }
}

/// Source of a configuration.
pub(crate) enum ConfigSource {
    /// Path of the main file.
    File(PathBuf),
    /// Demonstration, whose HTTP server is stopped on drop.
    Demo(Demo),
    /// No file, because of this, and the place in which one would be found in every folder.
    Missing(String, Option<PathBuf>),
}

impl ConfigSource {
    pub(super) async fn read(&self, options: &Options) -> Result<Config, Failure> {
        match self {
            Self::File(path) => read_blocking(path.clone(), options, Config::load).await,
            Self::Demo(demo) => {
                let config = Config::parse(demo.config(), Path::new("demo.toml"), options);
                config.map_err(Failure::Config)
            }
            Self::Missing(why, _) => Err(Failure::NoConfig(why.clone())),
        }
    }

    /// Returns the path of the main file, or its place if it is missing.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Missing(_, place) => place.as_deref(),
            Self::Demo(_) => None,
        }
    }

    /// Records the state of the files, on a blocking thread; `None` if they cannot be read again.
    async fn snapshot_files(&self, options: &Options) -> Option<ConfigFiles> {
        let (path, options) = (self.file()?.to_owned(), options.clone());
        let look = move || ConfigFiles::snapshot(&path, &options);
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }
}

/// Returns the path of the main file; an empty one if it cannot be read again, such as a pipe.
pub(crate) fn path_to_read_again(source: &ConfigSource, files: Option<&ConfigFiles>) -> PathBuf {
    source.file().filter(|_| files.is_some()).unwrap_or(Path::new("")).to_owned()
}

/// Prints the warnings with their source lines, for people.
pub(crate) fn print_warnings(warnings: &[Warning]) {
    warnings.iter().for_each(|warning| output::print_stderr(&warning.render(true)));
}

/// Reads a configuration on a blocking thread: a command that returns a secret, or a pipe in place
/// of the file, may take long. Dropping the future stops that command.
async fn read_blocking<T: Send + 'static>(
    path: PathBuf,
    options: &Options,
    read: fn(&Path, &Options) -> Result<T, ConfigReport>,
) -> Result<T, Failure> {
    // A child token, because the caller may use the same options for a second read.
    let stop = options.stop.child_token();
    let options = Options { stop: stop.clone(), ..options.clone() };
    let _leaving = stop.drop_guard();
    let read = tokio::task::spawn_blocking(move || read(&path, &options)).await;
    let read = read.map_err(|error| {
        Failure::NoConfig(format!("the configuration could not be read: {error}"))
    })?;
    read.map_err(Failure::Config)
}

/// Returns a configuration if this client, or one without a name, can use it. Otherwise returns one
/// that tells the client why not, and the reason. Blocks.
pub(crate) fn usable_or_stand_in(
    read: Result<Config, Failure>,
    path: &Path,
    options: &Options,
    client: Option<&str>,
) -> (Config, Option<Failure>) {
    let has_client = |config| match client.map(|client| check_client(&config, client)) {
        Some(Err(failure)) => Err(failure),
        Some(Ok(())) | None => Ok(config),
    };
    let failure = match read.and_then(has_client) {
        Ok(config) => return (config, None),
        Err(failure) => failure,
    };
    let text = output::render::sanitize_line(&format!("{CANNOT_BE_USED}{failure}"));
    // This name stands for every client without credentials.
    let client = client.filter(|client| *client != policy::ANONYMOUS);
    (Config::stand_in(path, options, &text, client), Some(failure))
}

/// Beginning of the text that a client gets in the place of its servers.
const CANNOT_BE_USED: &str = "Weir serves no tools, because its configuration cannot be used: ";

/// Options for reading a configuration in the environment of this process.
pub(crate) fn options(allow_anonymous_network: bool) -> Options {
    let environment = std::env::vars_os().collect();
    Options { allow_anonymous_network, environment, ..Options::default() }
}

/// Returns the path that the user named, else `$WEIR_CONFIG`, else the first default location with
/// a file.
pub(crate) fn config_path(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(named) = named_path(named) {
        return Ok(named);
    }
    let places = default_places();
    if let Some(found) = places.iter().find(|path| path.exists()) {
        return Ok(found.clone());
    }
    let places: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
    Err(Failure::NoConfig(format!(
        "no configuration: neither {} exists; `weir init` writes one, --config FILE names one",
        places.join(" nor ")
    )))
}

/// Returns the path of a configuration that need not exist yet: as [`config_path`] does, else the
/// one in the user's configuration folder, which applies in every folder.
pub(crate) fn config_path_to_write(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let found = config_path(named);
    found.or_else(|failure| default_places().pop().ok_or(failure))
}

fn named_path(named: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os("WEIR_CONFIG").filter(|path| !path.is_empty());
    named.map(Path::to_owned).or_else(|| variable().map(PathBuf::from))
}

/// Locations of a configuration that is not named: the current folder, then the user's
/// configuration folder.
fn default_places() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let folder = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| home.map(|home| home.join(".config")));
    let places = [Some(PathBuf::from("weir.toml")), folder.map(|at| at.join("weir/weir.toml"))];
    places.into_iter().flatten().collect()
}

// === Clients ===

/// Fails if a client of this name could not authenticate at this moment.
pub(crate) fn check_client(config: &Config, name: &str) -> Result<(), Failure> {
    let client = config.clients.iter().find(|client| client.name == name);
    match client.and_then(|client| client.expires) {
        Some(expires) if expires <= SystemTime::now() => Err(Failure::Unauthenticated(format!(
            "the keys of client `{name}` have expired, at {}: set another `expires` under \
             [clients.{name}]",
            format_rfc3339(expires)
        ))),
        _ if client.is_none() && !(name == policy::ANONYMOUS && config.auth.anonymous) => {
            Err(unknown_client(config, name))
        }
        _ => Ok(()),
    }
}

/// Failure for a client that is not in the configuration.
pub(crate) fn unknown_client(config: &Config, name: &str) -> Failure {
    let known: Vec<&str> = config.clients.iter().map(|client| client.name.as_str()).collect();
    let known = match known[..] {
        [] => "which defines no clients".to_owned(),
        _ => format!("which has {}", known.join(", ")),
    };
    let user = match &config.providers[..] {
        [] => String::new(),
        [provider, ..] => format!(
            "; a user of an identity provider is {}/USER, for `weir explain`",
            provider.tokens.name
        ),
    };
    let name = output::render::sanitize_line(name);
    Failure::Unauthenticated(format!("no client `{name}` in the configuration, {known}{user}"))
}
