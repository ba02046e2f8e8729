//! Entry for Weir in the format of each client.

use crate::cli::clients::document::DocumentValue;
use crate::cli::clients::{HttpEntry, KeyPlacement, McpClient};

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

/// Creates the entry.
pub(super) fn entry(client: &McpClient, method: &ConnectMethod) -> DocumentValue {
    match (method, &client.http) {
        (ConnectMethod::Stdio { program, config }, _) => {
            let args = ["stdio", "--config", config];
            process(client, program, &args, Vec::new())
        }
        (ConnectMethod::Http { url, key }, HttpEntry::Bridge) => {
            bridge(client, url, key.as_deref())
        }
        (ConnectMethod::Http { url, key }, HttpEntry::Url(name, bearer)) => {
            let mut entry = typed_entry(client, "http");
            entry.push(member(name, text(url)));
            if let Some(variable) = key {
                entry.push(credentials(bearer, variable));
            }
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
fn bridge(client: &McpClient, url: &str, key: Option<&str>) -> DocumentValue {
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
    process(client, "npx", &args, env)
}

fn process(
    client: &McpClient,
    program: &str,
    args: &[&str],
    env: Vec<(String, DocumentValue)>,
) -> DocumentValue {
    let mut entry = typed_entry(client, "stdio");
    entry.push(member("command", text(program)));
    entry.push(member("args", DocumentValue::List(args.iter().map(|arg| text(arg)).collect())));
    if client.empty_env || !env.is_empty() {
        entry.push(member("env", DocumentValue::Table(env)));
    }
    DocumentValue::Table(entry)
}

/// Entry with the transport's `type`, if the client has one there.
fn typed_entry(client: &McpClient, kind: &str) -> Vec<(String, DocumentValue)> {
    Vec::from_iter(client.has_type.then(|| member("type", text(kind))))
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
pub(super) const PLACEHOLDER: &str = "THE-KEY-OF-THIS-CLIENT";
