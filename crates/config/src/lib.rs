//! Configuration: reads and checks the operator's TOML files, as a [`Config`] or a
//! [`ConfigReport`].
//!
//! A `Config` is complete: files are merged, variables replaced, secrets fetched, defaults filled
//! in, inheritance is applied, paths are absolute or relative to the working directory, and names
//! exist. Its users need no further checks. Files with mistakes yield all mistakes at once, each
//! with its location and a remedy. Settings types of lower layers are filled in directly.
//!
//! Invariants: unknown keys are errors; zero never means unlimited; no secret appears in a `Debug`
//! output or in a rendered problem, where values of variables count as secrets. [`Config::check`]
//! starts no process. The environment and the time are parameters.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod access;
mod admin;
mod audit;
mod auth;
mod guard;
mod keys;
mod limits;
mod log;
mod naming;
mod oidc;
mod protocol;
mod reader;
mod schema;
mod secrets;
mod server;
mod upstreams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;
use toml::de::DeTable;

pub use crate::reader::include::MAX_FILE_BYTES;
pub use crate::reader::report::nearest;
pub use crate::reader::report::{ConfigProblem, ConfigReport, Severity, Warning};
pub(crate) use crate::reader::rule_locations::RuleLocations;
pub use crate::reader::value::{date_time_of, is_plain_name};
pub(crate) use crate::reader::variables::Environment;
pub use crate::reader::variables::is_variable_name;
pub use admin::AdminConfig;
pub use audit::{AuditConfig, StateConfig};
pub use auth::{AuthConfig, AuthMode};
pub use log::{LogConfig, LogFormat};
pub use naming::{NamingConfig, NamingMode};
pub use oidc::ProviderConfig;
pub(crate) use protocol::ProtocolConfig;
pub use reader::rule_locations::owner_of;
pub use schema::{page, schema};
pub use server::ServerConfig;
pub use server::fleet::FleetConfig;
pub use upstreams::headers::is_own_header;
pub use upstreams::{Replicas, UpstreamConfig, UpstreamSummary};
use weir_access::guard::GuardRules;
use weir_access::pins::Mode;
use weir_access::policy::ClientCredentials;
use weir_access::policy::limits::Limit;
use weir_access::policy::role::Role;
use weir_upstream::UpstreamSource;
use weir_upstream::connect::Egress;

use crate::reader::diagnostics::{ConfigFile, Diagnostics};
use crate::reader::document::StringValues;
use crate::reader::report::ValueError;
use crate::reader::table_reader::TableReader;
use guard::GuardConfig;
use keys::Described;
use secrets::SecretResolver;

/// Checked configuration of the program. `Config::default()` corresponds to an empty file, except
/// that a file without upstreams is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// HTTP server for clients.
    pub server: ServerConfig,
    /// Other replicas that serve the same clients.
    pub fleet: Option<FleetConfig>,
    /// MCP towards clients.
    pub protocol: ProtocolConfig,
    /// Public names of items.
    pub naming: NamingConfig,
    /// Content checks, for upstreams without checks of their own.
    pub guard: GuardRules,
    /// Handling of changed definitions, for upstreams without a value of their own.
    pub pinning: Mode,
    /// File with the approved definitions.
    pub lock_file: PathBuf,
    /// Way to servers on the network, without the TLS settings of an upstream.
    pub egress: Egress,
    /// Used upstreams, in the order of the file.
    pub upstreams: Vec<UpstreamConfig>,
    /// Summary of every upstream, used or not, in the order of the file.
    pub summaries: Vec<UpstreamSummary>,
    /// Access without a key.
    pub auth: AuthConfig,
    /// Identity providers, in the order of the file; `server.public_url` is set if there are any.
    pub providers: Vec<ProviderConfig>,
    /// Rules of each role; contains every role that [`AuthConfig`] or a client names.
    pub roles: BTreeMap<String, Role>,
    /// Clients with a key or a certificate, in the order of the file.
    pub clients: Vec<ClientCredentials>,
    /// Rate and concurrency limits, in the order of the file.
    pub limits: Vec<Limit>,
    /// Level and format of the log.
    pub log: LogConfig,
    /// Audit log.
    pub audit: AuditConfig,
    /// Admin listener.
    pub admin: AdminConfig,
    /// Folder for the files that Weir writes.
    pub state: StateConfig,
    /// Locations of the rules in the files.
    pub rule_locations: RuleLocations,
    /// Problems that do not prevent a start.
    pub warnings: Vec<Warning>,
}

/// Addresses of a Weir process that runs with a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Listeners {
    /// HTTP server for clients.
    pub server: ServerConfig,
    /// Admin listener.
    pub admin: AdminConfig,
    /// State folder, which contains the address of the running admin listener.
    pub state: StateConfig,
}

/// Files that a configuration depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sources {
    /// Configuration files, the main one first, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// Files that contain secrets, without the files of `[server.tls]`.
    pub secrets: Vec<PathBuf>,
}

/// Parameters of reading a configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Accepts anonymous access on an address that others on the network can reach.
    pub allow_anonymous_network: bool,
    /// Variables that the file may contain.
    pub environment: Environment,
    /// Names of the used upstreams; `None` means all that are enabled. An unused upstream is
    /// checked, but its secrets are not fetched, and its variables need not be set.
    pub only: Option<Vec<String>>,
    /// Current time, for checks by an operator: enables warnings about keys that have expired or
    /// expire soon, about roles that no client has, and about secrets in arguments.
    pub now: Option<SystemTime>,
    /// Cancelled when the configuration is no longer needed; commands that fetch secrets are killed
    /// then.
    pub stop: CancellationToken,
}

impl Config {
    /// Reads and checks a file, with those that it includes, and fetches its secrets.
    pub fn load(path: &Path, options: &Options) -> Result<Self, ConfigReport> {
        Self::from_file(&open(path)?, options, true, true)
    }

    /// Checks a text, reads the files that it includes, and fetches its secrets. `origin` is its
    /// file: problems name it, and relative paths start from its folder. The existence of folders
    /// is not checked.
    pub fn parse(text: &str, origin: &Path, options: &Options) -> Result<Self, ConfigReport> {
        Self::from_file(&file(origin, text.to_owned()), options, true, false)
    }

    /// Checks a file without starting processes: commands that fetch secrets are not run. The
    /// result cannot be used to run, therefore only the warnings are returned.
    pub fn check(path: &Path, options: &Options) -> Result<Vec<Warning>, ConfigReport> {
        Self::inspect(path, options).map(|config| config.warnings)
    }

    /// Reads a file like [`Config::check`], for a report about its upstreams. Secrets that commands
    /// return are missing in it.
    pub fn inspect(path: &Path, options: &Options) -> Result<Self, ConfigReport> {
        Self::from_file(&open(path)?, options, false, true)
    }

    /// Reads a file without using any of its upstreams.
    pub fn without_upstreams(path: &Path, options: &Options) -> Result<Self, ConfigReport> {
        let options = Options { only: Some(Vec::new()), ..options.clone() };
        Self::from_file(&open(path)?, &options, false, false)
    }

    /// Lists all files that a configuration depends on, even if it is invalid.
    pub fn sources(path: &Path, options: &Options) -> Result<Sources, ConfigReport> {
        reader::document::sources(&open(path)?, &options.environment)
    }

    /// Reads the addresses of a Weir process that runs with a file, whatever mistakes the file has
    /// now. If a file is not TOML, what can be read of it and the report are returned, without the
    /// configured address of the admin listener, which may be wrong then.
    pub fn listeners(path: &Path, options: &Options) -> (Listeners, Option<ConfigReport>) {
        let resolver = SecretResolver::new(&options.environment, &options.stop, false);
        let context = LoadContext { resolver, on_disk: false, only: Some(&[]), is_check: false };
        let read = |root: &TableReader<'_>| Listeners {
            server: root.table("server", |t| server::read_server(t, &context)),
            admin: root.table("admin", |t| admin::read_admin(t, &context)),
            state: root.table("state", |t| audit::read_state(t, &options.environment)),
        };
        match read_despite_mistakes(path, options, read) {
            (listeners, None) => (listeners, None),
            (recovered, report) => {
                let admin = AdminConfig { enabled: false, ..recovered.admin };
                (Listeners { admin, ..recovered }, report)
            }
        }
    }

    /// Returns the configuration that `weir stdio` uses in the place of a file that has mistakes:
    /// `[state]`, `[audit]` and `[log]` as far as they can be read, and one upstream whose only
    /// tool returns `text`. It has the client of this name, which the file may have as well.
    pub fn stand_in(path: &Path, options: &Options, text: &str, client: Option<&str>) -> Self {
        let read = |root: &TableReader<'_>| {
            let state = root.table("state", |t| audit::read_state(t, &options.environment));
            let audit = root.table("audit", |t| audit::read_audit(t, &state));
            (state, audit, root.table("log", LogConfig::read))
        };
        let ((state, audit, log), _) = read_despite_mistakes(path, options, read);
        let mut config = Self { state, audit, log, ..Self::default() };
        config.upstreams = vec![upstreams::notice(text)];
        config.clients.extend(client.map(|name| ClientCredentials {
            name: name.to_owned(),
            role: config.auth.anonymous_role.clone(),
            ..ClientCredentials::default()
        }));
        config
    }

    /// The text of a configuration that stands in for a file that has mistakes.
    pub fn notice(&self) -> Option<&str> {
        self.upstreams.iter().find_map(|upstream| match &upstream.settings.source {
            UpstreamSource::Notice { text } => Some(text.as_str()),
            _ => None,
        })
    }

    /// Names of the upstreams that the configuration disables.
    pub fn disabled_upstreams(&self) -> Vec<String> {
        let disabled = self.summaries.iter().filter(|upstream| !upstream.enabled);
        disabled.map(|upstream| upstream.name.clone()).collect()
    }

    /// Whether this configuration stands in for a file that has mistakes.
    pub fn is_stand_in(&self) -> bool {
        self.notice().is_some()
    }

    fn from_file(
        main: &ConfigFile,
        options: &Options,
        may_run: bool,
        on_disk: bool,
    ) -> Result<Self, ConfigReport> {
        let resolver = SecretResolver::new(&options.environment, &options.stop, may_run);
        let (only, is_check) = (options.only.as_deref(), options.now.is_some());
        let context = LoadContext { resolver, on_disk, only, is_check };
        let values = StringValues { environment: &options.environment, only };
        let (mut config, warnings) =
            reader::document::read(main, values, |root| Self::read(root, options, &context))?;
        config.warnings = warnings;
        Ok(config)
    }

    /// Reads the sections in the order of their dependencies; the caller adds the warnings.
    fn read(root: &TableReader<'_>, options: &Options, context: &LoadContext<'_>) -> Self {
        // The document's reader has handled this key; the call makes it a known key.
        root.has("include");
        let server = root.table("server", |t| server::read_server(t, context));
        let fleet = server::fleet::read_fleet(root, context);
        let protocol = root.table("protocol", |t| protocol::read_protocol(t, &server));
        let (guard, lock_file) = root.table("guard", |t| {
            let guard = guard::read_guard(t, &GuardConfig::default());
            (guard, guard::read_lock_file(t, context.on_disk))
        });
        let sign_in = root.table("sign_in", |t| upstreams::sign_in::read_sign_in(t, &server));
        let egress = upstreams::egress::read_egress(root, context, &options.environment);
        let (guards, network) = ((&guard, lock_file.as_path()), (&sign_in, &egress));
        let upstreams = upstreams::read_upstreams(root, context, guards, network);
        let naming = root.table("naming", |t| naming::read_naming(t, &upstreams));
        let (roles, clients) =
            access::read_roles_and_clients(root, &server, &upstreams.names, options);
        let (auth, providers) = root.table("auth", |t| {
            let providers = oidc::read_providers(t, &server, &roles, options.now);
            let no_credentials = clients.is_empty() && providers.is_empty();
            (auth::read_auth(t, &server, &roles, no_credentials, options), providers)
        });
        if options.now.is_some() {
            auth::warn_of_unused_roles(root, &roles, &clients, &providers, &auth);
        }
        let limits = limits::read_limits(root, &upstreams.names);
        let log = root.table("log", LogConfig::read);
        let admin = root.table("admin", |t| admin::read_admin(t, context));
        let state = root.table("state", |t| {
            let state = audit::read_state(t, &options.environment);
            if context.on_disk && upstreams.used.iter().any(UpstreamConfig::is_signed_in_to) {
                audit::warn_of_folder(t, &state);
            }
            state
        });
        let audit = root.table("audit", |t| audit::read_audit(t, &state));
        Self {
            server,
            fleet,
            protocol,
            naming,
            guard: guard.rules,
            pinning: guard.pinning,
            lock_file,
            egress,
            upstreams: upstreams.used,
            summaries: upstreams.summaries,
            auth,
            providers,
            roles,
            clients,
            limits,
            log,
            audit,
            admin,
            state,
            rule_locations: root.locations(),
            warnings: Vec::new(),
        }
    }

    /// True if requests over HTTP are recorded. By default they are, unless access is anonymous, no
    /// client is defined and the address is a loopback address.
    pub fn records_requests(&self) -> bool {
        let is_alone = self.auth.anonymous
            && self.clients.is_empty()
            && self.server.listen.ip().to_canonical().is_loopback();
        self.audit.enabled.unwrap_or(!is_alone)
    }
}

/// Reads tables of a file whatever mistakes it has; of a file that is not TOML, what can be read of
/// it, and the report.
fn read_despite_mistakes<R>(
    path: &Path,
    options: &Options,
    read: impl Fn(&TableReader<'_>) -> R,
) -> (R, Option<ConfigReport>) {
    let values = StringValues { environment: &options.environment, only: Some(&[]) };
    let (main, report) = match open(path) {
        Ok(main) => match reader::document::read_with_mistakes(&main, values, &read) {
            Ok((result, _)) => return (result, None),
            Err(report) => (main, report),
        },
        Err(report) => (file(path, String::new()), report),
    };
    (reader::document::read_recovered(&main, values, &read), Some(report))
}

/// Parameters of reading that all sections share.
struct LoadContext<'o> {
    resolver: SecretResolver<'o>,
    /// The file is read where it will be used, so the folders that it names should exist.
    on_disk: bool,
    /// Names of the used upstreams; `None` means all that are enabled.
    only: Option<&'o [String]>,
    /// An operator checks the file, and gets notes that a start does not print.
    is_check: bool,
}

fn open(path: &Path) -> Result<ConfigFile, ConfigReport> {
    match reader::include::text(path) {
        Ok(text) => Ok(file(path, text)),
        Err(ValueError { what, remedy, .. }) => Err(ConfigReport::about_file(path, what, remedy)),
    }
}

fn file(path: &Path, text: String) -> ConfigFile {
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    ConfigFile { name: path.display().to_string(), path: path.to_owned(), folder, text }
}

impl Default for Config {
    fn default() -> Self {
        let (options, diagnostics, nothing) =
            (Options::default(), Diagnostics::default(), DeTable::new());
        let resolver = SecretResolver::new(&options.environment, &options.stop, false);
        let context = LoadContext { resolver, on_disk: false, only: None, is_check: false };
        Self::read(&TableReader::root(&diagnostics, &nothing), &options, &context)
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
