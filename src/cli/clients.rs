//! Known MCP clients: the location and the format of their configuration files.
//!
//! The differences between clients are data: one [`McpClient`] each, in one table. A new client is
//! a new row of that table.

pub(super) mod document;
pub(super) mod places;
pub(super) mod server;
pub(super) mod variables;

pub(crate) mod connect;
pub(crate) mod init;

use document::Format;
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
    /// Key of the file that contains the servers.
    pub(super) key: &'static str,
    /// File within a project, if there is one.
    pub(super) project_file: Option<&'static str>,
    /// File for all projects of a user.
    pub(super) user_file: (BaseFolder, &'static str),
    /// Variable that names another folder for the user's file, and the file's name there.
    pub(super) override_variable: Option<(&'static str, &'static str)>,
    /// Variables that it expands in an entry.
    pub(super) variables: Variables,
    /// Unit of a bare `timeout` in an entry.
    pub(super) timeout: TimeoutUnit,
    /// Format of an entry for Weir.
    pub(super) entry_format: EntryFormat,
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

/// Format of an entry.
#[derive(Debug)]
pub(super) struct EntryFormat {
    /// Value of `type` for a process, if the client requires one.
    pub(super) stdio_type: Option<&'static str>,
    /// Writes `env` even if it is empty.
    pub(super) empty_env: bool,
    /// Format of a server on the network.
    pub(super) http: HttpEntry,
}

/// Entry for a server on the network.
#[derive(Debug)]
pub(super) enum HttpEntry {
    /// URL under this key, with this `type`, and headers.
    Url { key: &'static str, kind: Option<&'static str>, bearer: KeyPlacement },
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

const PLAIN: EntryFormat =
    EntryFormat { stdio_type: None, empty_env: false, http: HttpEntry::Bridge };

/// Table of the known clients.
pub(super) static CLIENTS: [McpClient; 8] = [
    McpClient {
        name: "claude-desktop",
        title: "Claude Desktop",
        format: Format::Json,
        key: "mcpServers",
        project_file: None,
        user_file: (BaseFolder::Application, "Claude/claude_desktop_config.json"),
        override_variable: None,
        variables: Variables::NONE,
        timeout: TimeoutUnit::Either,
        entry_format: PLAIN,
        next_step: "quit Claude Desktop and start it again",
    },
    McpClient {
        name: "claude-code",
        title: "Claude Code",
        format: Format::Json,
        key: "mcpServers",
        project_file: Some(".mcp.json"),
        user_file: (BaseFolder::Home, ".claude.json"),
        override_variable: Some(("CLAUDE_CONFIG_DIR", ".claude.json")),
        variables: Variables { braces: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        entry_format: EntryFormat {
            stdio_type: Some("stdio"),
            empty_env: false,
            http: HttpEntry::Url {
                key: "url",
                kind: Some("http"),
                bearer: KeyPlacement::Header("Bearer ${{}}"),
            },
        },
        next_step: "start a new session of Claude Code, and look at /mcp; one that runs may write its file anew",
    },
    McpClient {
        name: "vscode",
        title: "VS Code",
        format: Format::Json,
        key: "servers",
        project_file: Some(".vscode/mcp.json"),
        user_file: (BaseFolder::Application, "Code/User/mcp.json"),
        override_variable: None,
        variables: Variables { prefixed: true, ..Variables::NONE },
        timeout: TimeoutUnit::Either,
        entry_format: EntryFormat {
            stdio_type: Some("stdio"),
            empty_env: false,
            http: HttpEntry::Url {
                key: "url",
                kind: Some("http"),
                bearer: KeyPlacement::Header("Bearer ${env:{}}"),
            },
        },
        next_step: "run `MCP: List Servers` in VS Code, and start it there",
    },
    McpClient {
        name: "cursor",
        title: "Cursor",
        format: Format::Json,
        key: "mcpServers",
        project_file: Some(".cursor/mcp.json"),
        user_file: (BaseFolder::Home, ".cursor/mcp.json"),
        override_variable: None,
        variables: Variables { prefixed: true, ..Variables::NONE },
        timeout: TimeoutUnit::Either,
        entry_format: EntryFormat {
            stdio_type: None,
            empty_env: false,
            http: HttpEntry::Url {
                key: "url",
                kind: None,
                bearer: KeyPlacement::Header("Bearer ${env:{}}"),
            },
        },
        next_step: "switch it on in Cursor's settings, under MCP",
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
        entry_format: EntryFormat {
            stdio_type: None,
            empty_env: false,
            http: HttpEntry::Url {
                key: "url",
                kind: None,
                bearer: KeyPlacement::Key("bearer_token_env_var"),
            },
        },
        next_step: "start a new session of Codex, and look at /mcp",
    },
    McpClient {
        name: "gemini",
        title: "Gemini CLI",
        format: Format::Json,
        key: "mcpServers",
        project_file: Some(".gemini/settings.json"),
        user_file: (BaseFolder::Home, ".gemini/settings.json"),
        override_variable: None,
        variables: Variables { braces: true, bare: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        entry_format: EntryFormat {
            stdio_type: None,
            empty_env: false,
            http: HttpEntry::Url {
                key: "httpUrl",
                kind: None,
                bearer: KeyPlacement::Header("Bearer ${{}}"),
            },
        },
        next_step: "start a new session of Gemini CLI, and look at /mcp",
    },
    McpClient {
        name: "zed",
        title: "Zed",
        format: Format::Json,
        key: "context_servers",
        project_file: Some(".zed/settings.json"),
        user_file: (BaseFolder::Config, "zed/settings.json"),
        override_variable: None,
        variables: Variables::NONE,
        timeout: TimeoutUnit::Seconds,
        entry_format: EntryFormat {
            stdio_type: None,
            empty_env: true,
            http: HttpEntry::Url { key: "url", kind: None, bearer: KeyPlacement::ByHand },
        },
        next_step: "Zed reads its settings again by itself; look at the agent panel's settings",
    },
    McpClient {
        name: "windsurf",
        title: "Windsurf",
        format: Format::Json,
        key: "mcpServers",
        project_file: None,
        user_file: (BaseFolder::Home, ".codeium/windsurf/mcp_config.json"),
        override_variable: None,
        variables: Variables { prefixed: true, ..Variables::NONE },
        timeout: TimeoutUnit::Either,
        entry_format: EntryFormat {
            stdio_type: None,
            empty_env: false,
            http: HttpEntry::Url {
                key: "serverUrl",
                kind: None,
                bearer: KeyPlacement::Header("Bearer ${env:{}}"),
            },
        },
        next_step: "press Refresh in Cascade's list of MCP servers",
    },
];

/// Unknown client of a file: the properties that all clients share.
pub(super) static ANY: McpClient = McpClient {
    name: "file",
    title: "an MCP client",
    format: Format::Json,
    key: "mcpServers",
    project_file: None,
    user_file: (BaseFolder::Home, ""),
    override_variable: None,
    variables: Variables { braces: true, bare: false, prefixed: true },
    timeout: TimeoutUnit::Either,
    entry_format: PLAIN,
    next_step: "",
};
