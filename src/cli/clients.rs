//! Known MCP clients: the location and the format of their configuration files.
//!
//! The differences between clients are data: one [`McpClient`] each, in one table ([`known`]). A
//! new client is a new row of that table.

pub(super) mod behavior;
pub(super) mod document;
pub(super) mod edit;
pub(super) mod known;
pub(super) mod places;
pub(super) mod sections;
pub(super) mod server;
pub(super) mod server_lists;
pub(super) mod variables;
pub(super) mod weir_entry;

pub(crate) mod connect;
pub(crate) mod doctor;
pub(crate) mod init;

use behavior::{ClientLimits, ClientStart};
use document::{DocumentValue, Format, JsonDialect};
use known::CLIENTS;
use variables::Variables;

/// One client, according to its documentation and source.
#[derive(Debug)]
pub(super) struct McpClient {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// Name for people.
    pub(super) title: &'static str,
    /// Format of its files.
    pub(super) format: Format,
    /// Extensions of JSON that it reads.
    pub(super) dialect: JsonDialect,
    /// Key of the file that contains the servers.
    pub(super) key: &'static str,
    /// Key within it that contains the servers in files of a newer form.
    pub(super) nested_key: Option<&'static str>,
    /// File within a project, if there is one.
    pub(super) project_file: Option<&'static str>,
    /// Files for all projects of a user: the first that exists is used, else the first. Empty if
    /// the client has only settings of its own.
    pub(super) user_files: &'static [(BaseFolder, &'static str)],
    /// Other files within a project that enable and disable servers.
    pub(super) settings_files: &'static [&'static str],
    /// Variable that names another folder for the user's file, and the file's name there.
    pub(super) override_variable: Option<(&'static str, &'static str)>,
    /// List in the file with the names of the servers that may be used, if it has one.
    pub(super) allow_list: Option<[&'static str; 2]>,
    /// Variables that it expands in an entry.
    pub(super) variables: Variables,
    /// Unit of a bare `timeout` in an entry.
    pub(super) timeout: TimeoutUnit,
    /// Form of its entries.
    pub(super) entry: EntryForm,
    /// Values of an entry's `type`, for a child process and for a URL, if it writes one.
    pub(super) types: Option<[&'static str; 2]>,
    /// Members that it writes into each entry although they say nothing.
    pub(super) fillers: &'static [Filler],
    /// Entry for a server on the network.
    pub(super) http: HttpEntry,
    /// Writes its file anew while it runs, from its memory.
    pub(super) rewrites_file: bool,
    /// Environment in which it starts its servers.
    pub(super) start: ClientStart,
    /// Limits on what it takes from them.
    pub(super) limits: ClientLimits,
    /// Step after which it reads a changed file.
    pub(super) next_step: &'static str,
}

/// Form of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryForm {
    /// `command`, `args` and `env`, as most clients have them.
    Common,
    /// `command` with the arguments in one list, and `environment`.
    OpenCode,
    /// `cmd`, `args`, `envs` and `uri`, with a `name` and `enabled`.
    Goose,
}

/// Member of an entry that is written although it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filler {
    /// An empty `env` of a child process.
    Env,
    /// `tools` with `*` for all tools.
    Tools,
}

/// Folder that the path of a user's file is relative to.
#[derive(Clone, Copy, Debug)]
pub(super) enum BaseFolder {
    /// The home folder.
    Home,
    /// Settings folder of desktop applications.
    Application,
    /// Settings folder of terminal programs; the same on macOS as on Linux.
    Config,
}

/// Unit of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutUnit {
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Unknown client: 1000 and more are milliseconds, less are seconds.
    Either,
}

/// Entry for a server on the network.
#[derive(Debug)]
pub(super) enum HttpEntry {
    /// URL under this key, and headers.
    Url(&'static str, KeyPlacement),
    /// The file supports only processes: a bridge program connects to the server.
    Bridge,
}

/// Place of the key in an entry, so that the file does not contain it.
#[derive(Debug)]
pub(super) enum KeyPlacement {
    /// Header value, with `{}` for the variable's name.
    Header(&'static str),
    /// Key of the entry that names the variable.
    Key(&'static str),
    /// The client expands no variables in headers: the user has to write the key into the file.
    ByHand,
}

impl McpClient {
    /// Finds a client by its name on the command line.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        CLIENTS.iter().find(|client| client.name == name)
    }

    /// Names of all clients on the command line.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        CLIENTS.iter().map(|client| client.name)
    }

    /// Path of the key that contains the servers in a document of this client.
    pub(super) fn section(&self, document: &DocumentValue) -> Vec<&'static str> {
        let table = document.get(self.key);
        let nested = self.nested_key.filter(|nested| {
            // A server of that name has a `type`, or is only switched on or off.
            let value = table.and_then(|table| table.get(nested));
            let is_server = |value: &DocumentValue| {
                ["type", "enabled"]
                    .iter()
                    .any(|key| value.get(key).is_some_and(|it| !it.is_table()))
            };
            value.is_some_and(|value| value.is_table() && !is_server(value))
        });
        [Some(self.key), nested].into_iter().flatten().collect()
    }

    /// Returns whether it has a file that a command can write.
    pub(super) fn has_file(&self) -> bool {
        !self.user_files.is_empty()
    }
}
