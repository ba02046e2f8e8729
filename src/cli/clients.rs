//! Known MCP clients: the location and the format of their configuration files.
//!
//! The differences between clients are data: one [`McpClient`] each, in one table. A new client is
//! a new row of that table.

pub(super) mod document;
pub(super) mod places;
pub(super) mod server;
pub(super) mod server_lists;
pub(super) mod variables;

pub(crate) mod connect;
pub(crate) mod init;

use document::{Format, JsonDialect};
use places::BaseFolder;
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
    /// File within a project, if there is one.
    pub(super) project_file: Option<&'static str>,
    /// File for all projects of a user.
    pub(super) user_file: (BaseFolder, &'static str),
    /// Other files within a project that enable and disable servers.
    pub(super) settings_files: &'static [&'static str],
    /// Variable that names another folder for the user's file, and the file's name there.
    pub(super) override_variable: Option<(&'static str, &'static str)>,
    /// Variables that it expands in an entry.
    pub(super) variables: Variables,
    /// Unit of a bare `timeout` in an entry.
    pub(super) timeout: TimeoutUnit,
    /// Writes the transport's `type` into an entry.
    pub(super) has_type: bool,
    /// Writes `env` into an entry even if it is empty.
    pub(super) empty_env: bool,
    /// Entry for a server on the network.
    pub(super) http: HttpEntry,
    /// Step after which it reads a changed file.
    pub(super) next_step: &'static str,
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
}

/// Unknown client of a file: the properties that most clients share.
pub(super) const ANY: McpClient = McpClient {
    name: "file",
    title: "an MCP client",
    format: Format::Json,
    dialect: JsonDialect::TOLERANT,
    key: "mcpServers",
    project_file: None,
    user_file: (BaseFolder::Home, ""),
    settings_files: &[],
    override_variable: None,
    variables: Variables { braces: true, bare: false, prefixed: true },
    timeout: TimeoutUnit::Either,
    has_type: false,
    empty_env: false,
    http: HttpEntry::Bridge,
    next_step: "",
};

/// Table of the known clients.
pub(super) static CLIENTS: [McpClient; 8] = [
    McpClient {
        name: "claude-desktop",
        title: "Claude Desktop",
        dialect: JsonDialect::STRICT,
        user_file: (BaseFolder::Application, "Claude/claude_desktop_config.json"),
        variables: Variables::NONE,
        next_step: "quit Claude Desktop and start it again",
        ..ANY
    },
    McpClient {
        name: "claude-code",
        title: "Claude Code",
        dialect: JsonDialect::STRICT,
        project_file: Some(".mcp.json"),
        user_file: (BaseFolder::Home, ".claude.json"),
        settings_files: &[".claude/settings.local.json", ".claude/settings.json"],
        override_variable: Some(("CLAUDE_CONFIG_DIR", ".claude.json")),
        variables: Variables { braces: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        has_type: true,
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${{}}")),
        next_step: "start a new session of Claude Code, and look at /mcp; one that runs may write its file anew",
        ..ANY
    },
    McpClient {
        name: "vscode",
        title: "VS Code",
        key: "servers",
        project_file: Some(".vscode/mcp.json"),
        user_file: (BaseFolder::Application, "Code/User/mcp.json"),
        variables: Variables { prefixed: true, ..Variables::NONE },
        has_type: true,
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${env:{}}")),
        next_step: "run `MCP: List Servers` in VS Code, and start it there",
        ..ANY
    },
    McpClient {
        name: "cursor",
        title: "Cursor",
        project_file: Some(".cursor/mcp.json"),
        user_file: (BaseFolder::Home, ".cursor/mcp.json"),
        variables: Variables { prefixed: true, ..Variables::NONE },
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${env:{}}")),
        next_step: "switch it on in Cursor's settings, under MCP",
        ..ANY
    },
    McpClient {
        name: "codex",
        title: "Codex",
        format: Format::Toml,
        key: "mcp_servers",
        project_file: Some(".codex/config.toml"),
        user_file: (BaseFolder::Home, ".codex/config.toml"),
        override_variable: Some(("CODEX_HOME", "config.toml")),
        variables: Variables::NONE,
        timeout: TimeoutUnit::Seconds,
        http: HttpEntry::Url("url", KeyPlacement::Key("bearer_token_env_var")),
        next_step: "start a new session of Codex, and look at /mcp",
        ..ANY
    },
    McpClient {
        name: "gemini",
        title: "Gemini CLI",
        dialect: JsonDialect { comments: true, trailing_commas: false },
        project_file: Some(".gemini/settings.json"),
        user_file: (BaseFolder::Home, ".gemini/settings.json"),
        variables: Variables { braces: true, bare: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        http: HttpEntry::Url("httpUrl", KeyPlacement::Header("Bearer ${{}}")),
        next_step: "start a new session of Gemini CLI, and look at /mcp",
        ..ANY
    },
    McpClient {
        name: "zed",
        title: "Zed",
        key: "context_servers",
        project_file: Some(".zed/settings.json"),
        user_file: (BaseFolder::Config, "zed/settings.json"),
        variables: Variables::NONE,
        timeout: TimeoutUnit::Seconds,
        empty_env: true,
        http: HttpEntry::Url("url", KeyPlacement::ByHand),
        next_step: "Zed reads its settings again by itself; look at the agent panel's settings",
        ..ANY
    },
    McpClient {
        name: "windsurf",
        title: "Windsurf",
        user_file: (BaseFolder::Home, ".codeium/windsurf/mcp_config.json"),
        variables: Variables { prefixed: true, ..Variables::NONE },
        http: HttpEntry::Url("serverUrl", KeyPlacement::Header("Bearer ${env:{}}")),
        next_step: "press Refresh in Cascade's list of MCP servers",
        ..ANY
    },
];
