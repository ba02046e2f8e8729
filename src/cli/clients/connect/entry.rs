//! Entry for Weir in the format of each client.

use crate::cli::clients::document::DocumentValue;
use crate::cli::clients::{EntryForm, Filler, HttpEntry, KeyPlacement, McpClient};

/// Connection of a client to Weir.
#[derive(Debug)]
pub(super) enum ConnectMethod {
    /// The client starts Weir.
    Stdio {
        /// Path of Weir's program.
        program: String,
        /// Path of the configuration.
        config: String,
    },
    /// The client connects to a running Weir.
    Http {
        /// Endpoint.
        url: String,
        /// Variable that contains the client's key, if keys are in use.
        key: Option<String>,
    },
}

/// Creates the entry of a name.
pub(super) fn entry(client: &McpClient, name: &str, method: &ConnectMethod) -> DocumentValue {
    match (method, &client.http) {
        (ConnectMethod::Stdio { program, config }, _) => {
            let args = ["stdio", "--config", config];
            process(client, name, program, &args, Vec::new())
        }
        (ConnectMethod::Http { url, key }, HttpEntry::Bridge) => {
            bridge(client, name, url, key.as_deref())
        }
        (ConnectMethod::Http { url, key }, HttpEntry::Url(url_key, bearer)) => {
            let mut entry = first_members(client, name, 1);
            entry.push(member(url_key, text(url)));
            if let Some(variable) = key {
                entry.push(credentials(bearer, variable));
                // Goose replaces only the variables that this list names.
                if client.entry == EntryForm::Goose {
                    entry.push(member("env_keys", DocumentValue::List(vec![text(variable)])));
                }
            }
            entry.extend(last_members(client));
            DocumentValue::Table(entry)
        }
    }
}

fn credentials(bearer: &KeyPlacement, variable: &str) -> (String, DocumentValue) {
    let header = |value: &str| {
        member("headers", DocumentValue::Table(vec![member("Authorization", text(value))]))
    };
    match bearer {
        KeyPlacement::Header(pattern) => header(&pattern.replacen("{}", variable, 1)),
        KeyPlacement::Key(key) => member(key, text(variable)),
        KeyPlacement::ByHand => header(&format!("Bearer {PLACEHOLDER}")),
    }
}

/// Entry for mcp-remote (npm), which connects the client's stdio to Weir's HTTP endpoint.
fn bridge(client: &McpClient, name: &str, url: &str, key: Option<&str>) -> DocumentValue {
    let mut args = vec!["-y", "mcp-remote", url];
    // mcp-remote rejects plain HTTP to other machines without this option.
    let is_local = ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .any(|host| url.strip_prefix("http://").is_some_and(|rest| rest.starts_with(host)));
    if url.starts_with("http://") && !is_local {
        args.push("--allow-http");
    }
    // mcp-remote expands the variable. No space, because some clients split arguments at spaces.
    let header = key.map(|variable| format!("Authorization:${{{variable}}}"));
    let mut env = Vec::new();
    if let (Some(header), Some(variable)) = (&header, key) {
        args.extend(["--header", header]);
        env.push(member(variable, text(&format!("Bearer {PLACEHOLDER}"))));
    }
    process(client, name, "npx", &args, env)
}

fn process(
    client: &McpClient,
    name: &str,
    program: &str,
    args: &[&str],
    env: Vec<(String, DocumentValue)>,
) -> DocumentValue {
    let mut entry = first_members(client, name, 0);
    let list = |words: &[&str]| DocumentValue::List(words.iter().map(|word| text(word)).collect());
    let env_key = match client.entry {
        EntryForm::Common => {
            entry.push(member("command", text(program)));
            entry.push(member("args", list(args)));
            "env"
        }
        EntryForm::OpenCode => {
            entry.push(member("command", list(&[&[program], args].concat())));
            "environment"
        }
        EntryForm::Goose => {
            entry.push(member("cmd", text(program)));
            entry.push(member("args", list(args)));
            "envs"
        }
    };
    if client.fillers.contains(&Filler::Env) || !env.is_empty() {
        entry.push(member(env_key, DocumentValue::Table(env)));
    }
    entry.extend(last_members(client));
    DocumentValue::Table(entry)
}

/// Members before those that say where the server is; `kind` is 0 for a process, 1 for a URL.
fn first_members(client: &McpClient, name: &str, kind: usize) -> Vec<(String, DocumentValue)> {
    let mut entry = Vec::new();
    if client.entry == EntryForm::Goose {
        entry.push(member("enabled", DocumentValue::Bool(true)));
    }
    if let Some(kind) = client.types.and_then(|types| types.get(kind).copied()) {
        entry.push(member("type", text(kind)));
    }
    // Goose requires the last two.
    if client.entry == EntryForm::Goose {
        entry.push(member("name", text(name)));
        entry.push(member("description", text("")));
    }
    entry
}

/// Members behind those that say where the server is.
fn last_members(client: &McpClient) -> Vec<(String, DocumentValue)> {
    let mut entry = Vec::new();
    if client.fillers.contains(&Filler::Tools) {
        entry.push(member("tools", DocumentValue::List(vec![text("*")])));
    }
    if client.entry == EntryForm::Goose {
        entry.push(member("timeout", DocumentValue::Number(GOOSE_TIMEOUT.to_owned())));
    }
    entry
}

/// Instruction for the user's key.
pub(super) fn key_note(client: &McpClient, key: Option<&str>) -> Option<String> {
    let variable = key?;
    Some(match &client.http {
        HttpEntry::Bridge | HttpEntry::Url(_, KeyPlacement::ByHand) => format!(
            "{} expands no variables in its file: replace {PLACEHOLDER} with this client's \
             key",
            client.title
        ),
        HttpEntry::Url(..) => {
            format!(
                "{} reads it from the variable {variable}, so set that where it starts",
                client.title
            )
        }
    })
}

fn member(key: &str, value: DocumentValue) -> (String, DocumentValue) {
    (key.to_owned(), value)
}

fn text(text: &str) -> DocumentValue {
    DocumentValue::Text(text.to_owned())
}

/// Placeholder for a key that the user has to write.
pub(crate) const PLACEHOLDER: &str = "THE-KEY-OF-THIS-CLIENT";

/// Seconds that Goose allows a call by default.
const GOOSE_TIMEOUT: &str = "300";
