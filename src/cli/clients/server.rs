//! Reader of one server in a client's file, in one form for all clients.
//!
//! One reader handles the keys of every client: they differ in name, rarely in meaning. A key that
//! Weir does not support is recorded by name, so that it can be reported.

use std::time::Duration;

use super::document::DocumentValue;
use super::{McpClient, TimeoutUnit};
use KeyUse::{Any, Http, Process, Unsupported};

/// Server in a client's file.
#[derive(Debug)]
pub(crate) struct ClientServer {
    /// Name in the file.
    pub(crate) name: String,
    /// Transport with its parameters.
    pub(crate) transport: ServerTransport,
    /// Time limit of its start.
    pub(crate) startup: Option<Duration>,
    /// Time limit of a call.
    pub(crate) call: Option<Duration>,
    /// False if the client has disabled it.
    pub(crate) enabled: bool,
    /// Tools that the client allows, if not all.
    pub(crate) allow: Option<Vec<String>>,
    /// Tools that the client excludes.
    pub(crate) deny: Vec<String>,
    /// Messages about keys that are not imported.
    pub(crate) not_imported: Vec<String>,
}

impl ClientServer {
    /// Returns the names of the variables that its entry sets.
    pub(crate) fn own_variables(&self) -> Vec<&str> {
        match &self.transport {
            ServerTransport::Process { env, .. } => env.iter().map(|(name, _)| &**name).collect(),
            ServerTransport::Http { .. } => Vec::new(),
        }
    }
}

/// Transport of a server. Texts are as the client wrote them.
#[derive(Debug)]
pub(crate) enum ServerTransport {
    /// Child process.
    Process {
        /// Program.
        command: String,
        /// Arguments.
        args: Vec<String>,
        /// Variables to set.
        env: Vec<(String, String)>,
        /// Variables to pass on.
        pass_env: Vec<String>,
        /// Working directory.
        cwd: Option<String>,
    },
    /// Server on the network.
    Http {
        /// Endpoint.
        url: String,
        /// Uses the HTTP+SSE transport of 2024-11-05.
        is_sse: bool,
        /// Headers to send.
        headers: Vec<(String, HeaderSource)>,
        /// Account with which the client signs in to it.
        account: Option<ClientAccount>,
    },
}

/// Account of a client at a server that requires OAuth. Texts are as the client wrote them.
#[derive(Debug, Default)]
pub(crate) struct ClientAccount {
    /// Registered client.
    pub(crate) client_id: Option<String>,
    /// Secret of that client.
    pub(crate) client_secret: Option<String>,
    /// Scopes to request.
    pub(crate) scopes: Vec<String>,
    /// Resource to name.
    pub(crate) resource: Option<String>,
    /// Port of the redirect URI.
    pub(crate) port: Option<String>,
}

/// Source of a header's value.
#[derive(Debug)]
pub(crate) enum HeaderSource {
    /// Text in the file.
    Text(String),
    /// A variable contains the value.
    Variable(String),
    /// A variable contains the token that follows `Bearer`.
    Bearer(String),
}

/// Reads one entry. The error says why Weir cannot use it.
pub(crate) fn read(
    name: &str,
    entry: &DocumentValue,
    client: &McpClient,
) -> Result<ClientServer, String> {
    if !entry.is_table() {
        return Err("it is not a table of keys".to_owned());
    }
    let kind = text(entry, "type").or_else(|| text(entry, "transport")).unwrap_or_default();
    if ["ws", "websocket", "sdk"].contains(&kind.as_str()) {
        return Err(format!("Weir does not speak the transport `{kind}`"));
    }
    if OWN_KINDS.contains(&kind.as_str()) {
        return Err("it is a part of the client".to_owned());
    }
    let url = URL_KEYS.iter().find_map(|key| text(entry, key));
    // Old versions of Zed have the program, its arguments and variables in a nested table.
    let program = entry.get("command").filter(|command| command.is_table()).unwrap_or(entry);
    // The command of OpenCode is a list with the arguments.
    let listed = entry.get("command").map(DocumentValue::elements).unwrap_or_default();
    let command = text(entry, "command")
        .or_else(|| text(entry, "cmd"))
        .or_else(|| listed.first().and_then(DocumentValue::text))
        .or_else(|| text(program, "path"));
    let is_of_gemini = ["gemini", "qwen"].contains(&client.name);
    let wants_url = URL_KINDS.contains(&kind.as_str());
    let mut not_imported = Vec::new();
    let (transport, is_process) = match (command, url) {
        (Some(command), url) if url.is_none() || !wants_url && !is_of_gemini => {
            let listed = listed.get(1..).unwrap_or_default();
            (process(command, listed, entry, program, &mut not_imported), true)
        }
        (_, Some(url)) => (http(url, kind == "sse", entry, &mut not_imported), false),
        (_, None) => {
            return Err(match entry.get("settings").is_some() || kind == "extension" {
                true => "it is started by an extension of the client".to_owned(),
                false => "it has neither a command nor a URL".to_owned(),
            });
        }
    };
    let lists = |keys: [&str; 3]| {
        let list = keys.iter().find_map(|key| entry.get(key));
        list.map(|list| list.elements().iter().filter_map(DocumentValue::text).collect::<Vec<_>>())
    };
    for key in ALLOW_KEYS.iter().chain(&DENY_KEYS) {
        let is_list =
            |it: &DocumentValue| matches!(it, DocumentValue::List(_) | DocumentValue::Null);
        if entry.get(key).is_some_and(|list| !is_list(list)) {
            not_imported.push(format!("`{key}` is not imported: it is not a list"));
        }
    }
    let enabled = entry.get("enabled") != Some(&DocumentValue::Bool(false))
        && entry.get("disabled") != Some(&DocumentValue::Bool(true));
    let open_list = OPEN_LIST_KEYS.iter().find_map(|key| open_list(entry.get(key)?));
    for (key, _) in entry.members().iter().filter(|(_, value)| is_significant(value)) {
        if OPEN_LIST_KEYS.contains(&key.as_str())
            && entry.get(key).is_some_and(|it| matches!(it, DocumentValue::List(_)))
        {
            continue;
        }
        let known = KEYS.iter().find(|(_, keys)| keys.contains(&key.as_str()));
        let why = match known.map(|(owner, _)| owner) {
            None => "Weir does not know it",
            Some(Unsupported(advice)) => advice,
            Some(Process) if !is_process => "it belongs to another transport",
            Some(Http) if is_process => "it belongs to another transport",
            Some(Any | Process | Http) => continue,
        };
        not_imported.push(format!("`{key}` is not imported: {why}"));
    }
    if entry.get("env_keys").is_some_and(|keys| !keys.elements().is_empty()) {
        let text = "the client may have the values of `env_keys` in a keyring: set these variables \
                    where Weir starts";
        not_imported.push(text.to_owned());
    }
    Ok(ClientServer {
        name: name.to_owned(),
        transport,
        startup: duration(entry, "startup_timeout_sec", TimeoutUnit::Seconds)
            .or_else(|| duration(entry, "startup_timeout_ms", TimeoutUnit::Milliseconds))
            .or_else(|| duration(entry, "discoveryTimeoutMs", TimeoutUnit::Milliseconds))
            .or_else(|| duration(entry.get("timeout")?, "startup", client.timeout)),
        call: duration(entry, "tool_timeout_sec", TimeoutUnit::Seconds)
            .or_else(|| duration(entry, "timeout", client.timeout))
            .or_else(|| duration(entry.get("timeout")?, "execution", client.timeout)),
        enabled,
        allow: lists(ALLOW_KEYS).or(open_list.flatten()),
        deny: lists(DENY_KEYS).unwrap_or_default(),
        not_imported,
    })
}

/// Returns whether a value differs from the usual default.
fn is_significant(value: &DocumentValue) -> bool {
    match value {
        DocumentValue::Null | DocumentValue::Bool(false) => false,
        DocumentValue::Text(text) => !text.is_empty(),
        DocumentValue::List(elements) => !elements.is_empty(),
        DocumentValue::Table(members) => !members.is_empty(),
        _ => true,
    }
}

/// Reads a list of tools in which `*` stands for all, as no element does.
fn open_list(list: &DocumentValue) -> Option<Option<Vec<String>>> {
    let DocumentValue::List(elements) = list else { return None };
    let names: Vec<_> = elements.iter().filter_map(DocumentValue::text).collect();
    let is_all = names.is_empty() || names.iter().any(|name| name == "*");
    Some((!is_all).then_some(names))
}

fn process(
    command: String,
    listed: &[DocumentValue],
    entry: &DocumentValue,
    program: &DocumentValue,
    not_imported: &mut Vec<String>,
) -> ServerTransport {
    if program.get("args").is_some_and(|args| !matches!(args, DocumentValue::List(_))) {
        not_imported.push("`args` is not imported: it is not a list".to_owned());
    }
    let args = program.get("args").into_iter().flat_map(DocumentValue::elements);
    let args: Vec<_> = listed.iter().chain(args).map(DocumentValue::text).collect();
    if args.contains(&None) {
        let text = "an element of `args` is not imported: it is not a string";
        not_imported.push(text.to_owned());
    }
    let pass_env = ["env_vars", "env_keys"].iter().filter_map(|key| entry.get(key));
    let pass_env = pass_env.flat_map(DocumentValue::elements);
    let env = ["env", "environment", "envs"].iter();
    ServerTransport::Process {
        command,
        args: args.into_iter().flatten().collect(),
        env: env.flat_map(|key| pairs(program, key, not_imported)).collect(),
        pass_env: pass_env.filter_map(|one| one.text().or_else(|| text(one, "name"))).collect(),
        cwd: text(entry, "cwd"),
    }
}

fn http(
    url: String,
    is_sse: bool,
    entry: &DocumentValue,
    not_imported: &mut Vec<String>,
) -> ServerTransport {
    let mut headers = Vec::new();
    for key in ["headers", "http_headers"] {
        let pairs = pairs(entry, key, not_imported).into_iter();
        headers.extend(pairs.map(|(name, value)| (name, HeaderSource::Text(value))));
    }
    let variables = pairs(entry, "env_http_headers", not_imported).into_iter();
    headers.extend(variables.map(|(name, variable)| (name, HeaderSource::Variable(variable))));
    if let Some(variable) = text(entry, "bearer_token_env_var") {
        headers.push(("Authorization".to_owned(), HeaderSource::Bearer(variable)));
    }
    ServerTransport::Http { url, is_sse, headers, account: account(entry, not_imported) }
}

/// Reads the keys with which clients describe a sign-in.
fn account(entry: &DocumentValue, not_imported: &mut Vec<String>) -> Option<ClientAccount> {
    let found = ["oauth", "auth"].iter().find_map(|key| Some((key, entry.get(key)?)));
    let table = found.map(|(_, table)| table);
    let is_off = |table: &DocumentValue| {
        matches!(table, DocumentValue::Bool(false) | DocumentValue::Null)
            || table.get("enabled") == Some(&DocumentValue::Bool(false))
    };
    if table.is_some_and(is_off) {
        return None;
    }
    if let Some((name, table)) = found {
        let is_read = |key: &str| ACCOUNT_KEYS.iter().any(|keys| keys.contains(&key));
        for (key, _) in table.members().iter().filter(|(key, _)| !is_read(key)) {
            let why = "Weir asks the server, or has a key of another name under auth";
            not_imported.push(format!("`{name}.{key}` is not imported: {why}"));
        }
    }
    let find = |keys: [&str; 3]| keys.iter().find_map(|key| text(table?, key));
    let scopes = table.and_then(|table| table.get("scopes")).or_else(|| entry.get("scopes"));
    let list = scopes.into_iter().flat_map(DocumentValue::elements).filter_map(DocumentValue::text);
    let line = table.and_then(|table| text(table, "scope").or_else(|| text(table, "scopes")));
    let line = line.unwrap_or_default();
    let resource = text(entry, "oauth_resource");
    if table.is_none() && scopes.is_none() && resource.is_none() {
        return None;
    }
    Some(ClientAccount {
        client_id: find(CLIENT_ID_KEYS),
        client_secret: find(CLIENT_SECRET_KEYS),
        scopes: list.chain(line.split_whitespace().map(str::to_owned)).collect(),
        resource,
        port: table.and_then(|table| table.get("callbackPort")).and_then(DocumentValue::text),
    })
}

/// Reads the members of a table as strings. A client removes a variable by setting it to `null`.
fn pairs(
    entry: &DocumentValue,
    key: &str,
    not_imported: &mut Vec<String>,
) -> Vec<(String, String)> {
    let table = entry.get(key).filter(|table| **table != DocumentValue::Null);
    if table.is_some_and(|table| !table.is_table()) {
        not_imported.push(format!("`{key}` is not imported: it is not a table"));
    }
    let members = table.map(DocumentValue::members).unwrap_or_default();
    let mut pairs = Vec::new();
    for (name, value) in members {
        match value.text() {
            Some(value) => pairs.push((name.clone(), value)),
            None => {
                not_imported.push(format!("`{key}.{name}` is not imported: it is not a string"))
            }
        }
    }
    pairs
}

fn text(entry: &DocumentValue, key: &str) -> Option<String> {
    match entry.get(key) {
        Some(DocumentValue::Text(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

fn duration(entry: &DocumentValue, key: &str, unit: TimeoutUnit) -> Option<Duration> {
    let Some(DocumentValue::Number(number)) = entry.get(key) else { return None };
    let number: f64 = number.parse().ok()?;
    let seconds = match unit {
        TimeoutUnit::Seconds => number,
        TimeoutUnit::Either if number < 1000.0 => number,
        TimeoutUnit::Milliseconds | TimeoutUnit::Either => number / 1000.0,
    };
    // Rounded to Weir's resolution, and limited to the longest time that makes sense.
    let millis = (seconds.clamp(0.0, LONGEST_SECONDS) * 1000.0).round();
    let duration = Duration::from_secs_f64(millis / 1000.0);
    (!duration.is_zero()).then_some(duration)
}

/// Longest timeout: a day. More means no limit.
const LONGEST_SECONDS: f64 = 86_400.0;

const URL_KEYS: [&str; 4] = ["httpUrl", "serverUrl", "url", "uri"];

/// Values of `type` of a server on the network.
const URL_KINDS: [&str; 6] =
    ["http", "sse", "streamable-http", "streamableHttp", "streamable_http", "remote"];

/// Values of `type` of what Goose brings along.
const OWN_KINDS: [&str; 4] = ["builtin", "platform", "frontend", "inline_python"];

/// Keys of lists of tools in which `*`, or no element, stands for all.
const OPEN_LIST_KEYS: [&str; 2] = ["tools", "available_tools"];

const ALLOW_KEYS: [&str; 3] = ["includeTools", "enabled_tools", "enabledTools"];
const DENY_KEYS: [&str; 3] = ["excludeTools", "disabled_tools", "disabledTools"];

/// Keys of a sign-in that are read.
const ACCOUNT_KEYS: [&[&str]; 3] =
    [&CLIENT_ID_KEYS, &CLIENT_SECRET_KEYS, &["scope", "scopes", "callbackPort", "enabled"]];
const CLIENT_ID_KEYS: [&str; 3] = ["clientId", "client_id", "CLIENT_ID"];
const CLIENT_SECRET_KEYS: [&str; 3] = ["clientSecret", "client_secret", "CLIENT_SECRET"];

/// Use of a key in an entry.
enum KeyUse {
    /// Read for both kinds of servers.
    Any,
    /// Read for child processes.
    Process,
    /// Read for servers on the network.
    Http,
    /// Not supported, with advice.
    Unsupported(&'static str),
}

/// Known keys of an entry, of all clients.
const KEYS: [(KeyUse, &[&str]); 18] = [
    (Any, &["type", "transport", "source", "name", "display_name", "enabled", "disabled"]),
    (Any, &["timeout", "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec"]),
    (Any, &["discoveryTimeoutMs", "env_keys", "bundled", "transportType"]),
    (Any, &ALLOW_KEYS),
    (Any, &DENY_KEYS),
    (Process, &["command", "cmd", "args", "env", "environment", "envs", "env_vars", "cwd"]),
    (Http, &URL_KEYS),
    (Http, &["headers", "http_headers", "env_http_headers", "bearer_token_env_var"]),
    (Http, &["oauth", "auth", "scopes", "oauth_resource"]),
    (Unsupported("write its variables under env, or pass them on with pass_env"), &["envFile"]),
    (
        Unsupported("the client decides which tools need no confirmation"),
        &["alwaysAllow", "autoApprove", "trust", "default_tools_approval_mode", "tools"],
    ),
    (
        Unsupported("set it for Weir in the client"),
        &["supports_parallel_tool_calls", "required", "alwaysLoad"],
    ),
    (Unsupported("Weir describes its items, not its upstreams"), &["description"]),
    (Unsupported("it is for the development of the server"), &["dev"]),
    (
        Unsupported("Weir does not sign in with the credentials of Google's tools; see auth"),
        &["authProviderType", "targetAudience", "targetServiceAccount"],
    ),
    (Unsupported("Weir runs no program for headers; put a token into headers"), &["headersHelper"]),
    (Unsupported("Codex refuses it, too; put the token into headers"), &["bearer_token"]),
    (Unsupported("Weir starts its servers where it runs itself"), &["remote"]),
];
