//! The MCP clients that people have: where each keeps its servers, and how it writes one down.
//!
//! What differs between them is data: one [`Client`] each, in one table. A client that is added is a row
//! here, not a file elsewhere.
//!
//! Knows nothing of: Weir's own configuration, and what is done with what is read.

pub(super) mod document;
pub(super) mod places;
pub(super) mod server;
pub(super) mod variables;

use document::Format;
use places::Root;
use variables::Variables;

/// One client, as its documentation and source describe its files.
#[derive(Debug)]
pub(super) struct Client {
    /// How it is named on the command line.
    pub(super) name: &'static str,
    /// How people call it.
    pub(super) title: &'static str,
    /// What its files are written in.
    pub(super) format: Format,
    /// The key of the file under which the servers stand.
    pub(super) key: &'static str,
    /// Its file within a project, if it has one.
    pub(super) project_file: Option<&'static str>,
    /// Its file for all projects of a user.
    pub(super) user_file: (Root, &'static str),
    /// A variable that moves the user's file into another folder, and the file's name there.
    pub(super) moved_by: Option<(&'static str, &'static str)>,
    /// Which variables it replaces in an entry.
    pub(super) variables: Variables,
    /// What a bare `timeout` of an entry counts.
    pub(super) timeout: Unit,
    /// How it writes an entry for Weir.
    pub(super) dialect: Dialect,
    /// What to do until it sees a change of its file.
    pub(super) afterwards: &'static str,
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Thousandths of a second.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Not known whose file it is: from a thousand on, nobody means seconds.
    Either,
}

/// How a client writes an entry.
#[derive(Debug)]
pub(super) struct Dialect {
    /// The value of `type` for a process, if it wants one.
    pub(super) stdio_type: Option<&'static str>,
    /// Whether `env` is written even if it is empty.
    pub(super) empty_env: bool,
    /// How a server on the network is written.
    pub(super) http: Http,
}

/// How a client writes a server on the network.
#[derive(Debug)]
pub(super) enum Http {
    /// An address under this key, with this `type`, and headers.
    Url { key: &'static str, kind: Option<&'static str>, bearer: Bearer },
    /// Its file knows processes only: a program stands in between.
    Bridge,
}

/// How a client sends a key that does not stand in its file.
#[derive(Debug)]
pub(super) enum Bearer {
    /// The header's value, with `{}` for the variable's name.
    Header(&'static str),
    /// A key of the entry that names the variable.
    Key(&'static str),
    /// It replaces no variables in headers: the key has to be written by hand.
    ByHand,
}

impl Client {
    /// Finds a client by the name that was typed.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        CLIENTS.iter().find(|client| client.name == name)
    }

    /// The names of all clients, as they are typed.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        CLIENTS.iter().map(|client| client.name)
    }
}

const PLAIN: Dialect = Dialect { stdio_type: None, empty_env: false, http: Http::Bridge };

/// Every client that is known by name.
pub(super) static CLIENTS: [Client; 8] = [
    Client {
        name: "claude-desktop",
        title: "Claude Desktop",
        format: Format::Json,
        key: "mcpServers",
        project_file: None,
        user_file: (Root::Application, "Claude/claude_desktop_config.json"),
        moved_by: None,
        variables: Variables::NONE,
        timeout: Unit::Either,
        dialect: PLAIN,
        afterwards: "quit Claude Desktop and start it again",
    },
    Client {
        name: "claude-code",
        title: "Claude Code",
        format: Format::Json,
        key: "mcpServers",
        project_file: Some(".mcp.json"),
        user_file: (Root::Home, ".claude.json"),
        moved_by: Some(("CLAUDE_CONFIG_DIR", ".claude.json")),
        variables: Variables { braces: true, ..Variables::NONE },
        timeout: Unit::Milliseconds,
        dialect: Dialect {
            stdio_type: Some("stdio"),
            empty_env: false,
            http: Http::Url {
                key: "url",
                kind: Some("http"),
                bearer: Bearer::Header("Bearer ${{}}"),
            },
        },
        afterwards: "start a new session of Claude Code, and look at /mcp; one that runs may write its file anew",
    },
    Client {
        name: "vscode",
        title: "VS Code",
        format: Format::Json,
        key: "servers",
        project_file: Some(".vscode/mcp.json"),
        user_file: (Root::Application, "Code/User/mcp.json"),
        moved_by: None,
        variables: Variables { prefixed: true, ..Variables::NONE },
        timeout: Unit::Either,
        dialect: Dialect {
            stdio_type: Some("stdio"),
            empty_env: false,
            http: Http::Url {
                key: "url",
                kind: Some("http"),
                bearer: Bearer::Header("Bearer ${env:{}}"),
            },
        },
        afterwards: "run `MCP: List Servers` in VS Code, and start it there",
    },
    Client {
        name: "cursor",
        title: "Cursor",
        format: Format::Json,
        key: "mcpServers",
        project_file: Some(".cursor/mcp.json"),
        user_file: (Root::Home, ".cursor/mcp.json"),
        moved_by: None,
        variables: Variables { prefixed: true, ..Variables::NONE },
        timeout: Unit::Either,
        dialect: Dialect {
            stdio_type: None,
            empty_env: false,
            http: Http::Url { key: "url", kind: None, bearer: Bearer::Header("Bearer ${env:{}}") },
        },
        afterwards: "switch it on in Cursor's settings, under MCP",
    },
    Client {
        name: "codex",
        title: "Codex",
        format: Format::Toml,
        key: "mcp_servers",
        project_file: Some(".codex/config.toml"),
        user_file: (Root::Home, ".codex/config.toml"),
        moved_by: Some(("CODEX_HOME", "config.toml")),
        variables: Variables::NONE,
        timeout: Unit::Seconds,
        dialect: Dialect {
            stdio_type: None,
            empty_env: false,
            http: Http::Url { key: "url", kind: None, bearer: Bearer::Key("bearer_token_env_var") },
        },
        afterwards: "start a new session of Codex, and look at /mcp",
    },
    Client {
        name: "gemini",
        title: "Gemini CLI",
        format: Format::Json,
        key: "mcpServers",
        project_file: Some(".gemini/settings.json"),
        user_file: (Root::Home, ".gemini/settings.json"),
        moved_by: None,
        variables: Variables { braces: true, bare: true, ..Variables::NONE },
        timeout: Unit::Milliseconds,
        dialect: Dialect {
            stdio_type: None,
            empty_env: false,
            http: Http::Url { key: "httpUrl", kind: None, bearer: Bearer::Header("Bearer ${{}}") },
        },
        afterwards: "start a new session of Gemini CLI, and look at /mcp",
    },
    Client {
        name: "zed",
        title: "Zed",
        format: Format::Json,
        key: "context_servers",
        project_file: Some(".zed/settings.json"),
        user_file: (Root::Config, "zed/settings.json"),
        moved_by: None,
        variables: Variables::NONE,
        timeout: Unit::Seconds,
        dialect: Dialect {
            stdio_type: None,
            empty_env: true,
            http: Http::Url { key: "url", kind: None, bearer: Bearer::ByHand },
        },
        afterwards: "Zed reads its settings again by itself; look at the agent panel's settings",
    },
    Client {
        name: "windsurf",
        title: "Windsurf",
        format: Format::Json,
        key: "mcpServers",
        project_file: None,
        user_file: (Root::Home, ".codeium/windsurf/mcp_config.json"),
        moved_by: None,
        variables: Variables { prefixed: true, ..Variables::NONE },
        timeout: Unit::Either,
        dialect: Dialect {
            stdio_type: None,
            empty_env: false,
            http: Http::Url {
                key: "serverUrl",
                kind: None,
                bearer: Bearer::Header("Bearer ${env:{}}"),
            },
        },
        afterwards: "press Refresh in Cascade's list of MCP servers",
    },
];

/// A file whose client cannot be told: what its entries have in common with all of them.
pub(super) static ANY: Client = Client {
    name: "file",
    title: "an MCP client",
    format: Format::Json,
    key: "mcpServers",
    project_file: None,
    user_file: (Root::Home, ""),
    moved_by: None,
    variables: Variables { braces: true, bare: false, prefixed: true },
    timeout: Unit::Either,
    dialect: PLAIN,
    afterwards: "",
};
