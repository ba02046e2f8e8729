//! Table of the known MCP clients.
//!
//! Each row follows the client's documentation and source.

use std::time::Duration;

use super::behavior::{ClientLimits, ClientStart, OF_CODEX, PassedVariables};
use super::document::{Format, JsonDialect};
use super::variables::Variables;
use super::{BaseFolder, EntryForm, Filler, HttpEntry, KeyPlacement, McpClient, TimeoutUnit};

/// Unknown client of a file: the properties that most clients share.
pub(crate) const ANY: McpClient = McpClient {
    name: "file",
    title: "an MCP client",
    format: Format::Json,
    dialect: JsonDialect::TOLERANT,
    key: "mcpServers",
    nested_key: None,
    project_file: None,
    user_files: &[],
    settings_files: &[],
    override_variable: None,
    allow_list: None,
    variables: Variables { braces: true, prefixed: true, ..Variables::NONE },
    timeout: TimeoutUnit::Either,
    entry: EntryForm::Common,
    types: None,
    fillers: &[],
    http: HttpEntry::Bridge,
    rewrites_file: false,
    start: ClientStart::TERMINAL,
    limits: ClientLimits::OF_PROVIDERS,
    next_step: "",
};

/// Table of the known clients.
pub(crate) static CLIENTS: [McpClient; 17] = [
    McpClient {
        name: "claude-desktop",
        title: "Claude Desktop",
        dialect: JsonDialect::STRICT,
        user_files: &[(BaseFolder::Application, "Claude/claude_desktop_config.json")],
        variables: Variables::NONE,
        start: ClientStart::DESKTOP,
        next_step: "quit Claude Desktop and start it again",
        ..ANY
    },
    McpClient {
        name: "claude-code",
        title: "Claude Code",
        dialect: JsonDialect::STRICT,
        project_file: Some(".mcp.json"),
        user_files: &[(BaseFolder::Home, ".claude.json")],
        settings_files: &[".claude/settings.local.json", ".claude/settings.json"],
        override_variable: Some(("CLAUDE_CONFIG_DIR", ".claude.json")),
        variables: Variables { braces: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        types: Some(["stdio", "http"]),
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${{}}")),
        rewrites_file: true,
        // `claude -p` waits so long.
        limits: ClientLimits {
            startup: Some(Duration::from_secs(5)),
            prefix: "mcp__{}__",
            ..ClientLimits::OF_PROVIDERS
        },
        next_step: "start a new session of Claude Code, and look at /mcp; one that runs may write its file anew",
        ..ANY
    },
    McpClient {
        name: "vscode",
        title: "VS Code",
        key: "servers",
        project_file: Some(".vscode/mcp.json"),
        user_files: &[(BaseFolder::Application, "Code/User/mcp.json")],
        variables: Variables { prefixed: true, ..Variables::NONE },
        types: Some(["stdio", "http"]),
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${env:{}}")),
        start: ClientStart::DESKTOP,
        limits: ClientLimits { tools: Some(128), ..ClientLimits::OF_PROVIDERS },
        next_step: "run `MCP: List Servers` in VS Code, and start it there",
        ..ANY
    },
    McpClient {
        name: "cursor",
        title: "Cursor",
        project_file: Some(".cursor/mcp.json"),
        user_files: &[(BaseFolder::Home, ".cursor/mcp.json")],
        variables: Variables { prefixed: true, ..Variables::NONE },
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${env:{}}")),
        start: ClientStart::DESKTOP,
        limits: ClientLimits { prefix: "{}", name: 60, ..ClientLimits::OF_PROVIDERS },
        next_step: "switch it on in Cursor's settings, under MCP",
        ..ANY
    },
    McpClient {
        name: "codex",
        title: "Codex",
        format: Format::Toml,
        key: "mcp_servers",
        project_file: Some(".codex/config.toml"),
        user_files: &[(BaseFolder::Home, ".codex/config.toml")],
        override_variable: Some(("CODEX_HOME", "config.toml")),
        variables: Variables::NONE,
        timeout: TimeoutUnit::Seconds,
        http: HttpEntry::Url("url", KeyPlacement::Key("bearer_token_env_var")),
        start: ClientStart { is_desktop: false, passes: PassedVariables::Named(&OF_CODEX) },
        limits: ClientLimits {
            startup: Some(Duration::from_secs(10)),
            ..ClientLimits::OF_PROVIDERS
        },
        next_step: "start a new session of Codex, and look at /mcp",
        ..ANY
    },
    McpClient {
        name: "gemini",
        title: "Gemini CLI",
        dialect: JsonDialect { comments: true, trailing_commas: false },
        project_file: Some(".gemini/settings.json"),
        user_files: &[(BaseFolder::Home, ".gemini/settings.json")],
        variables: Variables { braces: true, bare: true, ..Variables::NONE },
        allow_list: Some(["mcp", "allowed"]),
        timeout: TimeoutUnit::Milliseconds,
        http: HttpEntry::Url("httpUrl", KeyPlacement::Header("Bearer ${{}}")),
        start: ClientStart { is_desktop: false, passes: PassedVariables::WithoutSecrets },
        limits: ClientLimits {
            startup: Some(Duration::from_secs(600)),
            ..ClientLimits::OF_PROVIDERS
        },
        next_step: "start a new session of Gemini CLI, and look at /mcp",
        ..ANY
    },
    McpClient {
        name: "zed",
        title: "Zed",
        key: "context_servers",
        project_file: Some(".zed/settings.json"),
        user_files: &[(BaseFolder::Config, "zed/settings.json")],
        variables: Variables::NONE,
        timeout: TimeoutUnit::Seconds,
        fillers: &[Filler::Env],
        http: HttpEntry::Url("url", KeyPlacement::ByHand),
        start: ClientStart::DESKTOP,
        limits: ClientLimits {
            startup: Some(Duration::from_secs(60)),
            ..ClientLimits::OF_PROVIDERS
        },
        next_step: "Zed reads its settings again by itself; look at the agent panel's settings",
        ..ANY
    },
    McpClient {
        name: "windsurf",
        title: "Windsurf",
        user_files: &[(BaseFolder::Home, ".codeium/windsurf/mcp_config.json")],
        variables: Variables { prefixed: true, ..Variables::NONE },
        http: HttpEntry::Url("serverUrl", KeyPlacement::Header("Bearer ${env:{}}")),
        start: ClientStart::DESKTOP,
        limits: ClientLimits { tools: Some(100), ..ClientLimits::OF_PROVIDERS },
        next_step: "press Refresh in Cascade's list of MCP servers",
        ..ANY
    },
    McpClient {
        name: "copilot",
        title: "Copilot CLI",
        project_file: Some(".mcp.json"),
        user_files: &[(BaseFolder::Home, ".copilot/mcp-config.json")],
        override_variable: Some(("COPILOT_HOME", "mcp-config.json")),
        variables: Variables { braces: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        types: Some(["local", "http"]),
        fillers: &[Filler::Tools],
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${{}}")),
        next_step: "start a new session of Copilot CLI, and look at /mcp show",
        ..ANY
    },
    McpClient {
        name: "kiro",
        title: "Kiro",
        project_file: Some(".kiro/settings/mcp.json"),
        user_files: &[(BaseFolder::Home, ".kiro/settings/mcp.json")],
        variables: Variables { braces: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer ${{}}")),
        start: ClientStart::DESKTOP,
        next_step: "look at the MCP servers in Kiro's panel, and approve the variable there if it asks",
        ..ANY
    },
    McpClient {
        name: "junie",
        title: "Junie",
        dialect: JsonDialect::STRICT,
        project_file: Some(".junie/mcp/mcp.json"),
        user_files: &[(BaseFolder::Home, ".junie/mcp/mcp.json")],
        variables: Variables::NONE,
        start: ClientStart::DESKTOP,
        next_step: "look at Junie's MCP settings in the IDE, or start a new session of Junie",
        ..ANY
    },
    McpClient {
        name: "cline",
        title: "Cline",
        dialect: JsonDialect::STRICT,
        user_files: &[
            (BaseFolder::Home, ".cline/data/settings/cline_mcp_settings.json"),
            (BaseFolder::Application, CLINE_EXTENSION_FILE),
        ],
        override_variable: Some(("CLINE_DATA_DIR", "settings/cline_mcp_settings.json")),
        variables: Variables { prefixed: true, ..Variables::NONE },
        timeout: TimeoutUnit::Seconds,
        types: Some(["stdio", "streamableHttp"]),
        http: HttpEntry::Url("url", KeyPlacement::ByHand),
        start: ClientStart::DESKTOP,
        next_step: "Cline reads its file again by itself; look at its list of MCP servers",
        ..ANY
    },
    McpClient {
        name: "lm-studio",
        title: "LM Studio",
        user_files: &[
            (BaseFolder::Home, ".lmstudio/mcp.json"),
            (BaseFolder::Home, ".cache/lm-studio/mcp.json"),
        ],
        variables: Variables::NONE,
        http: HttpEntry::Url("url", KeyPlacement::ByHand),
        start: ClientStart::DESKTOP,
        next_step: "switch it on in LM Studio, under Program",
        ..ANY
    },
    McpClient {
        name: "opencode",
        title: "OpenCode",
        key: "mcp",
        nested_key: Some("servers"),
        project_file: Some("opencode.json"),
        user_files: &[
            (BaseFolder::Config, "opencode/opencode.json"),
            (BaseFolder::Config, "opencode/opencode.jsonc"),
        ],
        variables: Variables { curly: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        entry: EntryForm::OpenCode,
        types: Some(["local", "remote"]),
        http: HttpEntry::Url("url", KeyPlacement::Header("Bearer {env:{}}")),
        next_step: "start OpenCode again, and look at `opencode mcp list`",
        ..ANY
    },
    McpClient {
        name: "goose",
        title: "Goose",
        format: Format::Yaml,
        key: "extensions",
        user_files: &[(BaseFolder::Config, "goose/config.yaml")],
        variables: Variables { braces: true, bare: true, ..Variables::NONE },
        timeout: TimeoutUnit::Seconds,
        entry: EntryForm::Goose,
        types: Some(["stdio", "streamable_http"]),
        http: HttpEntry::Url("uri", KeyPlacement::Header("Bearer ${{}}")),
        next_step: "start a new session of Goose",
        ..ANY
    },
    McpClient {
        name: "qwen",
        title: "Qwen Code",
        project_file: Some(".qwen/settings.json"),
        user_files: &[(BaseFolder::Home, ".qwen/settings.json")],
        allow_list: Some(["mcp", "allowed"]),
        variables: Variables { braces: true, bare: true, ..Variables::NONE },
        timeout: TimeoutUnit::Milliseconds,
        http: HttpEntry::Url("httpUrl", KeyPlacement::Header("Bearer ${{}}")),
        next_step: "start a new session of Qwen Code, and look at /mcp",
        ..ANY
    },
    McpClient {
        name: "jetbrains",
        title: "JetBrains AI Assistant",
        variables: Variables::NONE,
        http: HttpEntry::Url("url", KeyPlacement::ByHand),
        next_step: "paste the entry in the IDE's settings, under Tools, AI Assistant, MCP",
        ..ANY
    },
];

/// File of Cline before its clients shared one; Cline moves its content when it starts.
const CLINE_EXTENSION_FILE: &str =
    "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json";
