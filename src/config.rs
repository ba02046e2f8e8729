//! What the operator wrote, checked: the TOML files become a [`Config`] or a [`Report`].
//!
//! A `Config` is what the program runs on: files merged, variables replaced, secrets fetched, defaults filled
//! in, inheritance applied, paths absolute or relative to the working directory, names known to exist. Whoever
//! holds one need not check again. Files with mistakes yield all of them at once, each with its place and its
//! remedy.
//!
//! Promises: unknown keys are errors; zero never means unlimited; no secret appears in a `Debug` output or
//! in a drawn problem, and there what came out of a variable counts as one. [`Config::check`] starts nothing.
//! What a lower room has settings of its own for is read straight into those.
//! Knows nothing of: what the rooms do with their settings, the process's own environment (it is handed in), the
//! clock, the network.

mod access;
mod admin;
mod audit;
mod guard;
mod headers;
mod limits;
mod oidc;
mod reader;
mod schema;
mod secret_command;
mod secrets;
mod sections;
mod tls;
mod upstream_defaults;
mod upstreams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

pub(crate) use crate::config::reader::include::MAX_FILE_BYTES;
pub(crate) use crate::config::reader::report::nearest;
pub use crate::config::reader::report::{Problem, Report, Severity, Warning};
pub use crate::config::reader::rule_locations::Places;
pub(crate) use crate::config::reader::value::{is_plain_name, moment_of as moment};
pub use crate::config::reader::variables::Environment;
pub use crate::guard::Rules;
pub use crate::pins::Mode;
use crate::policy::limits::Limit;
pub use crate::secret::Secret;
pub use crate::upstream::{Limits, Retry, Timeouts, Transport};
pub(crate) use access::owner_of;
pub use access::{Auth, AuthMode, Client, Patterns, Role};
pub use admin::Admin;
pub use audit::{Audit, State};
pub(crate) use headers::is_own_header;
pub use oidc::Provider;
pub use schema::{page, schema};
pub use sections::{Log, LogFormat, Naming, NamingMode, Protocol, Server};
pub use upstream_defaults::{EraChoice, SharingChoice};
pub use upstreams::{Outline, RenameKind, Source, Upstream};

use crate::config::reader::diagnostics::File;
use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::Table;
use access::LOCAL_ROLE;
use secrets::Vault;

/// Everything that the program runs on. `Config::default()` is what an empty file would give, were it not
/// an error to have no upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What clients connect to.
    pub server: Server,
    /// How the protocol is spoken with clients.
    pub protocol: Protocol,
    /// How items are named towards clients.
    pub naming: Naming,
    /// What goes in and comes out, where an upstream does not say otherwise.
    pub guard: Rules,
    /// What happens when an upstream changes a definition, where it does not say otherwise.
    pub pinning: Mode,
    /// Where it stands which definitions were approved.
    pub lock_file: PathBuf,
    /// The upstreams that are used, in the order of the file.
    pub upstreams: Vec<Upstream>,
    /// What the file says of every upstream, used or not, in its order.
    pub outlines: Vec<Outline>,
    /// Who may enter without a key.
    pub auth: Auth,
    /// Whose access tokens are accepted, in the order of the file; then `server.public_url` is set.
    pub providers: Vec<Provider>,
    /// What each role may use; holds every role that [`Auth`] or a client names.
    pub roles: BTreeMap<String, Role>,
    /// Who may enter with a key, in the order of the file.
    pub clients: Vec<Client>,
    /// How often something may be done, in the order of the file.
    pub limits: Vec<Limit>,
    /// What is logged, and how.
    pub log: Log,
    /// Whether requests are recorded, where and how.
    pub audit: Audit,
    /// Where operators look at a running Weir.
    pub admin: Admin,
    /// Where Weir keeps what it writes.
    pub state: State,
    /// Where the rules stand.
    pub places: Places,
    /// What is probably not meant, but does not stop the program.
    pub warnings: Vec<Warning>,
}

/// What a client meets: where it connects, and whether it needs a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Entrance {
    /// Where clients connect.
    pub server: Server,
    /// Who may enter without a key.
    pub auth: Auth,
    /// Whether anybody has a key.
    pub has_clients: bool,
    /// Whether clients get a token from an identity provider, by themselves.
    pub has_providers: bool,
}

/// Where a Weir that runs with a configuration can be reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Listeners {
    /// Where clients connect.
    pub server: Server,
    /// Where operators look.
    pub admin: Admin,
    /// Where it keeps what it writes, the address of its listener for operators among it.
    pub state: State,
}

/// The files that decide what a configuration says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sources {
    /// Those that it is made of, the main one first, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// Those that its secrets are told to be in. What secures the listener is not among them.
    pub secrets: Vec<PathBuf>,
}

/// What is known beside the file when it is judged.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Accepts anonymous access on an address that others on the network can reach.
    pub allow_anonymous_network: bool,
    /// The variables that the file may name.
    pub environment: Environment,
    /// The upstreams that are used, by name; all that are enabled, unless it is said. One that is not used
    /// is checked, and costs nothing: its secrets are not fetched, and its variables need not be set.
    pub only: Option<Vec<String>>,
    /// The time, for whoever looks after the file: then what may have been forgotten is told as well, which is keys
    /// that have expired or soon will, and roles that nobody has.
    pub now: Option<SystemTime>,
    /// Fired by whoever waits for the configuration no longer: commands that give secrets end.
    pub stop: CancellationToken,
}

impl Config {
    /// Reads and checks a file, with those that it includes, and fetches its secrets.
    pub fn load(path: &Path, options: &Options) -> Result<Self, Report> {
        Self::judge(&open(path)?, options, true, true)
    }

    /// Checks a text, reads what it includes, and fetches its secrets. `origin` is the file it came from: it is
    /// named in problems, and relative paths start from its folder. Whether folders that it names are there is
    /// not looked at.
    pub fn parse(text: &str, origin: &Path, options: &Options) -> Result<Self, Report> {
        Self::judge(&file(origin, text.to_owned()), options, true, false)
    }

    /// Checks a file and starts nothing: commands that give secrets are not run. So there is nothing to run
    /// on, and only the warnings are returned.
    pub fn check(path: &Path, options: &Options) -> Result<Vec<Warning>, Report> {
        Self::judge(&open(path)?, options, false, true).map(|config| config.warnings)
    }

    /// Reads what a file says of everything but its upstreams, of which it uses none.
    pub fn without_upstreams(path: &Path, options: &Options) -> Result<Self, Report> {
        let options = Options { only: Some(Vec::new()), ..options.clone() };
        Self::judge(&open(path)?, &options, false, false)
    }

    /// Names the files that a configuration is made of, the main one first, in the order in which they are read.
    pub fn files(path: &Path, options: &Options) -> Result<Vec<PathBuf>, Report> {
        Ok(Self::sources(path, options)?.files)
    }

    /// Names all files that decide what a configuration says, also of one that is not good.
    pub fn sources(path: &Path, options: &Options) -> Result<Sources, Report> {
        reader::document::sources(&open(path)?, &options.environment)
    }

    /// Tells what a client of a file meets. Uses none of the upstreams.
    pub fn entrance(path: &Path, options: &Options) -> Result<Entrance, Report> {
        let config = Self::without_upstreams(path, options)?;
        let has_clients = !config.clients.is_empty();
        let has_providers = !config.providers.is_empty();
        Ok(Entrance { server: config.server, auth: config.auth, has_clients, has_providers })
    }

    /// Tells where a Weir that runs with a file can be reached, whatever mistakes are in the file by now. Where it
    /// cannot be read at all only the usual state is known; then why is returned, too.
    pub fn listeners(path: &Path, options: &Options) -> (Listeners, Option<Report>) {
        let vault = Vault::new(&options.environment, &options.stop, false);
        let surroundings = Surroundings { vault, on_disk: false, only: Some(&[]) };
        let read = |main: &File| {
            let read = reader::document::read_with_mistakes(main, &options.environment, |root| {
                Listeners {
                    server: root.table("server", |t| sections::server(t, &surroundings)),
                    admin: root.table("admin", |t| admin::admin(t, &surroundings)),
                    state: root.table("state", |t| audit::state(t, &options.environment)),
                }
            })?;
            Ok(read.0)
        };
        match open(path).and_then(|main| read(&main)) {
            Ok(listeners) => (listeners, None),
            Err(report) => {
                let usual = read(&file(path, String::new())).expect("an empty text is TOML");
                let admin = Admin { enabled: false, ..usual.admin };
                (Listeners { admin, ..usual }, Some(report))
            }
        }
    }

    fn judge(main: &File, options: &Options, may_run: bool, on_disk: bool) -> Result<Self, Report> {
        let vault = Vault::new(&options.environment, &options.stop, may_run);
        let surroundings = Surroundings { vault, on_disk, only: options.only.as_deref() };
        let (mut config, warnings) = reader::document::read(main, &options.environment, |root| {
            Self::read(root, options, &surroundings)
        })?;
        config.warnings = warnings;
        Ok(config)
    }

    /// Reads the sections in the order in which they need each other; the warnings are left to the caller.
    fn read(root: &Table<'_>, options: &Options, surroundings: &Surroundings<'_>) -> Self {
        // Was followed when the document was put together.
        root.has("include");
        let server = root.table("server", |t| sections::server(t, surroundings));
        let protocol = root.table("protocol", |t| sections::protocol(t, &server));
        let (guard, lock_file) = root.table("guard", |t| {
            let guard = guard::guard(t, &guard::Guard::default());
            (guard, guard::lock_file(t, surroundings.on_disk))
        });
        let upstreams = upstreams::read(root, surroundings, (&guard, &lock_file));
        let naming = root.table("naming", |t| sections::naming(t, &upstreams));
        let (roles, clients) = access::roles_and_clients(root, &server, &upstreams.names, options);
        let (auth, providers) = root.table("auth", |t| {
            let providers = oidc::providers(t, &server, &roles);
            let nobody = clients.is_empty() && providers.is_empty();
            (access::auth(t, &server, &roles, nobody, options), providers)
        });
        if options.now.is_some() {
            access::warn_of_idle_roles(root, &roles, &clients, &providers, &auth);
        }
        let limits = limits::limits(root, &upstreams.names);
        let log = root.table("log", sections::log);
        let admin = root.table("admin", |t| admin::admin(t, surroundings));
        let state = root.table("state", |t| audit::state(t, &options.environment));
        let audit = root.table("audit", |t| audit::audit(t, &state));
        Self {
            server,
            protocol,
            naming,
            guard: guard.rules,
            pinning: guard.pinning,
            lock_file,
            upstreams: upstreams.list,
            outlines: upstreams.outlines,
            auth,
            providers,
            roles,
            clients,
            limits,
            log,
            audit,
            admin,
            state,
            places: root.places(),
            warnings: Vec::new(),
        }
    }

    /// Whether requests over HTTP are recorded: where it is not said, if there is anybody to tell apart, or anybody
    /// else who may come in.
    pub fn records(&self) -> bool {
        let is_alone = self.auth.anonymous
            && self.clients.is_empty()
            && self.server.listen.ip().to_canonical().is_loopback();
        self.audit.enabled.unwrap_or(!is_alone)
    }
}

/// What lies around a configuration.
struct Surroundings<'o> {
    vault: Vault<'o>,
    /// It is a file where it will be used: the folders that it names should be there.
    on_disk: bool,
    /// The upstreams that are used; all that are enabled, unless it is said.
    only: Option<&'o [String]>,
}

fn open(path: &Path) -> Result<File, Report> {
    match reader::include::text(path) {
        Ok(text) => Ok(file(path, text)),
        Err(Complaint { what, remedy, .. }) => Err(Report::about_file(path, what, remedy)),
    }
}

fn file(path: &Path, text: String) -> File {
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    File { name: path.display().to_string(), path: path.to_owned(), folder, text }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: Server::default(),
            protocol: Protocol::default(),
            naming: Naming::default(),
            guard: Rules::default(),
            pinning: Mode::Alert,
            lock_file: PathBuf::from(guard::LOCK_FILE),
            upstreams: Vec::new(),
            outlines: Vec::new(),
            auth: Auth::default(),
            providers: Vec::new(),
            roles: BTreeMap::from([(LOCAL_ROLE.to_owned(), Role::everything())]),
            clients: Vec::new(),
            limits: Vec::new(),
            log: Log::default(),
            audit: Audit::default(),
            admin: Admin::default(),
            state: State::default(),
            places: Places::default(),
            warnings: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
