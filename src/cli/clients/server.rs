//! The servers in a client's file, in one form for all clients.
//!
//! One reader knows the keys of every client: they differ in name, seldom in meaning. A key that has no place
//! in Weir is remembered by name, so that nothing is lost in silence.
//!
//! Knows nothing of: Weir's configuration, and which values are secret.

use std::path::Path;
use std::time::Duration;

use super::document::{Format, Value};
use super::{ANY, CLIENTS, Client, Unit};

/// One server of a client.
#[derive(Debug)]
pub(in crate::cli) struct Server {
    /// Its name in the file.
    pub(in crate::cli) name: String,
    /// How it is reached.
    pub(in crate::cli) wire: Wire,
    /// How long it may take to start.
    pub(in crate::cli) startup: Option<Duration>,
    /// How long a call may take.
    pub(in crate::cli) call: Option<Duration>,
    /// Whether the client uses it.
    pub(in crate::cli) enabled: bool,
    /// The tools that the client lets through, if not all.
    pub(in crate::cli) allow: Option<Vec<String>>,
    /// The tools that the client leaves out.
    pub(in crate::cli) deny: Vec<String>,
    /// What was not taken over, in words.
    pub(in crate::cli) left_behind: Vec<String>,
}

/// How a server is reached. Texts are as the client wrote them.
#[derive(Debug)]
pub(in crate::cli) enum Wire {
    /// As a child process.
    Process {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables to set.
        env: Vec<(String, String)>,
        /// Variables to hand on.
        pass_env: Vec<String>,
        /// Its working directory.
        cwd: Option<String>,
    },
    /// Over the network.
    Http {
        /// Its endpoint.
        url: String,
        /// Whether it is the pair of HTTP and SSE of 2024-11-05.
        is_sse: bool,
        /// Headers to send.
        headers: Vec<(String, Header)>,
    },
}

/// Where a header's value comes from.
#[derive(Debug)]
pub(in crate::cli) enum Header {
    /// It is written down.
    Text(String),
    /// A variable holds it.
    Variable(String),
    /// A variable holds what comes after `Bearer`.
    Bearer(String),
}

/// The servers of one file, or why one of them is none.
pub(in crate::cli) struct Section {
    /// In the order of the file, by name.
    pub(in crate::cli) servers: Vec<(String, Result<Server, String>)>,
    /// Of which client the file is.
    pub(in crate::cli) client: &'static Client,
    /// Other keys of the file under which servers stand, which were not read.
    pub(in crate::cli) unread: Vec<String>,
}

/// Finds the servers in a document, whatever its client. None if there is no place for servers in it.
/// `folder` is the current one: Claude Code keeps servers of single projects beside those of all.
pub(in crate::cli) fn find(
    document: &Value,
    known: Option<&'static Client>,
    path: &Path,
    folder: &Path,
) -> Option<Section> {
    let keys: [&[&str]; 5] = [
        &["mcpServers"],
        &["servers"],
        &["context_servers"],
        &["mcp_servers"],
        &["mcp", "servers"],
    ];
    let at = |keys: &[&str]| {
        let found = keys.iter().try_fold(document, |value, key| value.get(key))?;
        found.is_table().then_some(found)
    };
    let (key, section) = match known {
        Some(client) => (client.key, at(&[client.key])),
        None => keys
            .iter()
            .find_map(|keys| Some((*keys.last()?, Some(at(keys)?))))
            .unwrap_or(("mcpServers", None)),
    };
    let taken_from = keys.iter().find(|keys| known.is_none() && at(keys).is_some());
    let taken_from = taken_from.map_or(String::new(), |keys| keys.join("."));
    let here = document.get("projects").and_then(|all| all.get(&folder.display().to_string()));
    let here = here.and_then(|project| project.get("mcpServers")).filter(|_| key == "mcpServers");
    if section.is_none() && here.is_none() {
        return None;
    }
    let entries = || here.into_iter().chain(section).flat_map(Value::members);
    let client = known.unwrap_or_else(|| guess(key, path, entries().map(|(_, entry)| entry)));
    let mut servers: Vec<(String, Result<Server, String>)> = Vec::new();
    for (name, entry) in entries() {
        // A project's own servers stand before those of all projects, and hide them.
        if !servers.iter().any(|(taken, _)| taken == name) {
            let server = read(name, entry, client).map(|server| switched(server, document));
            servers.push((name.clone(), server));
        }
    }
    let holds_servers = |keys: &&[&str]| at(keys).is_some_and(|it| !it.members().is_empty());
    let unread = match known {
        Some(_) => Vec::new(),
        None => keys.iter().copied().filter(holds_servers).map(|keys| keys.join(".")).collect(),
    };
    let unread = unread.into_iter().filter(|it| *it != taken_from).collect();
    Some(Section { servers, client, unread })
}

/// Gemini CLI switches servers on and off in a list of its own.
fn switched(mut server: Server, document: &Value) -> Server {
    let listed = |key: &str| {
        let list = document.get("mcp")?.get(key)?;
        Some(list.elements().iter().any(|one| one.text().as_deref() == Some(&server.name)))
    };
    if listed("excluded") == Some(true) || listed("allowed") == Some(false) {
        server.enabled = false;
    }
    server
}

/// Of which client a file is, by where its servers stand, by its name, and by keys that only one has.
fn guess<'v>(
    key: &str,
    path: &Path,
    entries: impl Iterator<Item = &'v Value> + Clone,
) -> &'static Client {
    let named = |name| Client::named(name).unwrap_or(&ANY);
    match key {
        "servers" => return named("vscode"),
        "context_servers" => return named("zed"),
        "mcp_servers" => return named("codex"),
        _ => {}
    }
    let files = CLIENTS.iter().filter(|client| client.format == Format::Json);
    let is_at = |file: &str| !file.is_empty() && path.ends_with(file);
    let by_place = files.clone().find(|client| {
        client.project_file.is_some_and(is_at)
            || is_at(client.user_file.1)
            || path.file_name() == Path::new(client.user_file.1).file_name()
                && !["mcp.json", "settings.json"].iter().any(|common| path.ends_with(common))
    });
    if let Some(client) = by_place {
        return client;
    }
    let has = |keys: &[&str]| {
        entries.clone().any(|entry| keys.iter().any(|key| entry.get(key).is_some()))
    };
    match () {
        () if has(&["httpUrl", "includeTools", "excludeTools", "trust"]) => named("gemini"),
        () if has(&["serverUrl"]) => named("windsurf"),
        () => &ANY,
    }
}

/// Reads one entry. The error says why it is no server that Weir could use.
fn read(name: &str, entry: &Value, client: &Client) -> Result<Server, String> {
    if !entry.is_table() {
        return Err("it is not a table of keys".to_owned());
    }
    let kind = text(entry, "type").or_else(|| text(entry, "transport")).unwrap_or_default();
    if ["ws", "websocket", "sdk"].contains(&kind.as_str()) {
        return Err(format!("Weir does not speak the transport `{kind}`"));
    }
    let url = ["httpUrl", "serverUrl", "url"].iter().find_map(|key| text(entry, key));
    // Zed once had the program, its arguments and variables in a table of their own.
    let program = entry.get("command").filter(|command| command.is_table()).unwrap_or(entry);
    let command = text(entry, "command").or_else(|| text(program, "path"));
    let wants_url = matches!(kind.as_str(), "http" | "sse" | "streamable-http" | "streamableHttp");
    let mut left_behind = Vec::new();
    let (wire, foreign) = match (command, url) {
        (Some(command), None) => {
            (process(command, entry, program, &mut left_behind), &HTTP_KEYS[..])
        }
        (Some(command), Some(_)) if !wants_url && client.name != "gemini" => {
            (process(command, entry, program, &mut left_behind), &HTTP_KEYS[..])
        }
        (_, Some(url)) => (http(url, kind == "sse", entry, &mut left_behind), &PROCESS_KEYS[..]),
        (None, None) => {
            return Err(match entry.get("settings").is_some() || kind == "extension" {
                true => "an extension of the client starts it, and knows how".to_owned(),
                false => "nothing says where it is".to_owned(),
            });
        }
    };
    let given = |key: &&str| entry.get(key).is_some();
    let lists = |keys: [&str; 3]| {
        let list = keys.iter().find_map(|key| entry.get(key));
        list.map(|list| list.elements().iter().filter_map(Value::text).collect::<Vec<_>>())
    };
    let enabled = entry.get("enabled") != Some(&Value::Bool(false))
        && entry.get("disabled") != Some(&Value::Bool(true));
    for (key, _) in entry.members().iter().filter(|(_, value)| says_something(value)) {
        if let Some((_, why)) = WITHOUT_EQUIVALENT.iter().find(|(known, _)| known == key) {
            left_behind.push(format!("`{key}` is left behind: {why}"));
        } else if foreign.iter().filter(|key| given(key)).any(|foreign| foreign == key) {
            left_behind.push(format!("`{key}` is left behind: it belongs to another transport"));
        } else if !KNOWN.contains(&key.as_str())
            && !PROCESS_KEYS.contains(&key.as_str())
            && !HTTP_KEYS.contains(&key.as_str())
        {
            left_behind.push(format!("`{key}` is left behind: Weir does not know it"));
        }
    }
    Ok(Server {
        name: name.to_owned(),
        wire,
        startup: duration(entry, "startup_timeout_sec", Unit::Seconds)
            .or_else(|| duration(entry, "startup_timeout_ms", Unit::Milliseconds)),
        call: duration(entry, "tool_timeout_sec", Unit::Seconds)
            .or_else(|| duration(entry, "timeout", client.timeout)),
        enabled,
        allow: lists(["includeTools", "enabled_tools", "enabledTools"]),
        deny: lists(["excludeTools", "disabled_tools", "disabledTools"]).unwrap_or_default(),
        left_behind,
    })
}

/// Whether a key does more than name its default.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::List(elements) => !elements.is_empty(),
        Value::Table(members) => !members.is_empty(),
        _ => true,
    }
}

fn process(command: String, entry: &Value, program: &Value, left: &mut Vec<String>) -> Wire {
    let args = program.get("args").into_iter().flat_map(Value::elements);
    let pass_env = entry.get("env_vars").into_iter().flat_map(Value::elements);
    Wire::Process {
        command,
        args: args.filter_map(Value::text).collect(),
        env: pairs(program, "env", left),
        pass_env: pass_env.filter_map(|one| one.text().or_else(|| text(one, "name"))).collect(),
        cwd: text(entry, "cwd"),
    }
}

fn http(url: String, is_sse: bool, entry: &Value, left: &mut Vec<String>) -> Wire {
    let mut headers = Vec::new();
    for key in ["headers", "http_headers"] {
        let pairs = pairs(entry, key, left).into_iter();
        headers.extend(pairs.map(|(name, value)| (name, Header::Text(value))));
    }
    let variables = pairs(entry, "env_http_headers", left).into_iter();
    headers.extend(variables.map(|(name, variable)| (name, Header::Variable(variable))));
    if let Some(variable) = text(entry, "bearer_token_env_var") {
        headers.push(("Authorization".to_owned(), Header::Bearer(variable)));
    }
    Wire::Http { url, is_sse, headers }
}

/// The members of a table, as strings. A client that sets a variable to nothing takes it away.
fn pairs(entry: &Value, key: &str, left: &mut Vec<String>) -> Vec<(String, String)> {
    let members = entry.get(key).map(Value::members).unwrap_or_default();
    let mut pairs = Vec::new();
    for (name, value) in members {
        match value.text() {
            Some(value) => pairs.push((name.clone(), value)),
            None => left.push(format!("`{key}.{name}` is left behind: it is no string")),
        }
    }
    pairs
}

fn text(entry: &Value, key: &str) -> Option<String> {
    match entry.get(key) {
        Some(Value::Text(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

fn duration(entry: &Value, key: &str, unit: Unit) -> Option<Duration> {
    let Some(Value::Number(number)) = entry.get(key) else { return None };
    let number: f64 = number.parse().ok()?;
    let seconds = match unit {
        Unit::Seconds => number,
        Unit::Either if number < 1000.0 => number,
        Unit::Milliseconds | Unit::Either => number / 1000.0,
    };
    // No finer than Weir counts, and no longer than it would ever wait.
    let millis = (seconds.clamp(0.0, LONGEST_SECONDS) * 1000.0).round();
    let duration = Duration::from_secs_f64(millis / 1000.0);
    (!duration.is_zero()).then_some(duration)
}

/// A day: whoever writes more means for ever.
const LONGEST_SECONDS: f64 = 86_400.0;

/// Keys of processes.
const PROCESS_KEYS: [&str; 5] = ["command", "args", "env", "env_vars", "cwd"];

/// Keys of servers on the network.
const HTTP_KEYS: [&str; 7] = [
    "url",
    "serverUrl",
    "httpUrl",
    "headers",
    "http_headers",
    "env_http_headers",
    "bearer_token_env_var",
];

/// Keys of either.
const KNOWN: [&str; 16] = [
    "type",
    "transport",
    "source",
    "name",
    "enabled",
    "disabled",
    "timeout",
    "startup_timeout_sec",
    "startup_timeout_ms",
    "tool_timeout_sec",
    "includeTools",
    "enabled_tools",
    "enabledTools",
    "excludeTools",
    "disabled_tools",
    "disabledTools",
];

const SIGNING_IN: &str = "Weir does not sign in to a server; put a token into headers";
const ASKING: &str = "which tools need no asking is the client's affair";

/// Keys that say something which Weir has no word for, and what to do about each.
const WITHOUT_EQUIVALENT: [(&str, &str); 21] = [
    ("envFile", "write its variables under env, or hand them on with pass_env"),
    ("alwaysAllow", ASKING),
    ("autoApprove", ASKING),
    ("trust", ASKING),
    ("default_tools_approval_mode", ASKING),
    ("tools", ASKING),
    ("supports_parallel_tool_calls", "say it of Weir in the client"),
    ("required", "say it of Weir in the client"),
    ("alwaysLoad", "say it of Weir in the client"),
    ("description", "Weir describes its items, not its upstreams"),
    ("dev", "it serves the making of the server"),
    ("oauth", SIGNING_IN),
    ("oauth_resource", SIGNING_IN),
    ("scopes", SIGNING_IN),
    ("auth", SIGNING_IN),
    ("authProviderType", SIGNING_IN),
    ("targetAudience", SIGNING_IN),
    ("targetServiceAccount", SIGNING_IN),
    ("headersHelper", "Weir runs no program for headers; put a token into headers"),
    ("bearer_token", "Codex refuses it, too; put the token into headers"),
    ("remote", "Weir starts its servers where it runs itself"),
];
