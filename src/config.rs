//! What the operator wrote, checked: the TOML file becomes a [`Config`] or a [`Report`].
//!
//! A `Config` is what the program runs on: defaults filled in, inheritance applied, paths absolute or
//! relative to the working directory, names known to exist. Whoever holds one need not check again.
//! A file with mistakes yields all of them at once, each with its place and its remedy.
//!
//! Promises: unknown keys are errors; zero never means unlimited; no secret appears in a `Debug` output or
//! in a drawn problem. Strings are taken literally.
//! What a lower room has settings of its own for is read straight into those.
//! Knows nothing of: what the rooms do with their settings, the environment, the clock, the network.

mod access;
mod file;
mod report;
mod sections;
mod tuning;
mod upstreams;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

pub use crate::upstream::{Limits, Retry, Timeouts, Transport};
pub use access::{Auth, AuthMode, Client, Patterns, Role};
pub use report::{Problem, Report, Severity, Warning};
pub use sections::{Log, LogFormat, Naming, NamingMode, Protocol, Server};
pub use tuning::EraChoice;
pub use upstreams::{RenameKind, Source, Upstream};

use access::LOCAL_ROLE;
use file::Table;

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
    /// The enabled upstreams, in the order of the file.
    pub upstreams: Vec<Upstream>,
    /// Who may enter without a key.
    pub auth: Auth,
    /// What each role may use; holds every role that [`Auth`] or a client names.
    pub roles: BTreeMap<String, Role>,
    /// Who may enter with a key, in the order of the file.
    pub clients: Vec<Client>,
    /// What is logged, and how.
    pub log: Log,
    /// What is probably not meant, but does not stop the program.
    pub warnings: Vec<Warning>,
}

/// What the command line says about how a file is judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Accepts anonymous access on an address that others on the network can reach.
    pub allow_anonymous_network: bool,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path, options: &Options) -> Result<Self, Report> {
        let unreadable = |what: String, remedy: &str| Report::about_file(path, what, remedy);
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|e| {
                unreadable(format!("cannot be read: {e}"), "check the path and its permissions")
            })?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(unreadable(
                "is larger than 4 MiB".to_owned(),
                "check that it is the config file",
            ));
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            unreadable(format!("is not UTF-8: {}", e.utf8_error()), "save it as UTF-8")
        })?;
        Self::parse(&text, path, options)
    }

    /// Checks a text. `origin` is the file it came from: it is named in problems, and relative paths start
    /// from its folder.
    pub fn parse(text: &str, origin: &Path, options: &Options) -> Result<Self, Report> {
        let folder = origin.parent().unwrap_or(Path::new(""));
        let (mut config, warnings) =
            file::read(text, origin, |root| Self::read(root, folder, options))?;
        config.warnings = warnings;
        Ok(config)
    }

    /// Reads the sections in the order in which they need each other; the warnings are left to the caller.
    fn read(root: &Table<'_>, folder: &Path, options: &Options) -> Self {
        let server = root.table("server", sections::server);
        let protocol = root.table("protocol", |t| sections::protocol(t, &server));
        let upstreams = upstreams::read(root, folder);
        let naming = root.table("naming", |t| sections::naming(t, upstreams.enabled));
        let (roles, clients) = access::roles_and_clients(root, &upstreams.names);
        let auth =
            root.table("auth", |t| access::auth(t, &server, &roles, clients.is_empty(), options));
        let log = root.table("log", sections::log);
        Self {
            server,
            protocol,
            naming,
            upstreams: upstreams.list,
            auth,
            roles,
            clients,
            log,
            warnings: Vec::new(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: Server::default(),
            protocol: Protocol::default(),
            naming: Naming::default(),
            upstreams: Vec::new(),
            auth: Auth::default(),
            roles: BTreeMap::from([(LOCAL_ROLE.to_owned(), Role::everything())]),
            clients: Vec::new(),
            log: Log::default(),
            warnings: Vec::new(),
        }
    }
}

// === Secret ===

/// A string that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the secret, for the one who has to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Far more than anybody writes, far less than hurts.
const MAX_FILE_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests;
