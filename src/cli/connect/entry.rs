//! The entry for Weir, in each client's own format.

use crate::cli::clients::document::Value;
use crate::cli::clients::{Bearer, Client, Http};

/// How a client gets to Weir.
#[derive(Debug)]
pub(super) enum Way {
    /// It starts Weir.
    Stdio {
        /// Weir's own program.
        program: String,
        /// The configuration.
        config: String,
    },
    /// It connects to a running Weir.
    Http {
        /// The endpoint.
        url: String,
        /// The variable that holds the client's key, where keys are in use.
        key: Option<String>,
    },
}

/// Makes the entry.
pub(super) fn entry(client: &Client, way: &Way) -> Value {
    let dialect = &client.dialect;
    match (way, &dialect.http) {
        (Way::Stdio { program, config }, _) => {
            let args = ["stdio", "--config", config];
            process(client, program, &args, Vec::new())
        }
        (Way::Http { url, key }, Http::Bridge) => bridge(client, url, key.as_deref()),
        (Way::Http { url, key }, Http::Url { key: name, kind, bearer }) => {
            let kind = kind.map(|kind| member("type", text(kind)));
            let mut entry: Vec<_> = kind.into_iter().collect();
            entry.push(member(name, text(url)));
            if let Some(variable) = key {
                entry.push(credentials(bearer, variable));
            }
            Value::Table(entry)
        }
    }
}

fn credentials(bearer: &Bearer, variable: &str) -> (String, Value) {
    let header =
        |value: &str| member("headers", Value::Table(vec![member("Authorization", text(value))]));
    match bearer {
        Bearer::Header(pattern) => header(&pattern.replacen("{}", variable, 1)),
        Bearer::Key(key) => member(key, text(variable)),
        Bearer::ByHand => header(&format!("Bearer {PLACEHOLDER}")),
    }
}

/// A program from npm that speaks stdio with the client and HTTP with Weir.
fn bridge(client: &Client, url: &str, key: Option<&str>) -> Value {
    let mut args = vec!["-y", "mcp-remote", url];
    // It refuses plain HTTP to other machines unless told so.
    let is_local = ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .any(|host| url.strip_prefix("http://").is_some_and(|rest| rest.starts_with(host)));
    if url.starts_with("http://") && !is_local {
        args.push("--allow-http");
    }
    // The bridge fills the header in. No space: some clients break arguments at it.
    let header = key.map(|variable| format!("Authorization:${{{variable}}}"));
    let mut env = Vec::new();
    if let (Some(header), Some(variable)) = (&header, key) {
        args.extend(["--header", header]);
        env.push(member(variable, text(&format!("Bearer {PLACEHOLDER}"))));
    }
    process(client, "npx", &args, env)
}

fn process(client: &Client, program: &str, args: &[&str], env: Vec<(String, Value)>) -> Value {
    let kind = client.dialect.stdio_type.map(|kind| member("type", text(kind)));
    let mut entry: Vec<_> = kind.into_iter().collect();
    entry.push(member("command", text(program)));
    entry.push(member("args", Value::List(args.iter().map(|arg| text(arg)).collect())));
    if client.dialect.empty_env || !env.is_empty() {
        entry.push(member("env", Value::Table(env)));
    }
    Value::Table(entry)
}

/// What somebody has to do about the key.
pub(super) fn key_note(client: &Client, key: Option<&str>) -> Option<String> {
    let variable = key?;
    Some(match &client.dialect.http {
        Http::Bridge | Http::Url { bearer: Bearer::ByHand, .. } => format!(
            "{} replaces no variables in its file: write this client's key in the place of \
             {PLACEHOLDER}",
            client.title
        ),
        Http::Url { .. } => {
            format!(
                "{} takes it from the variable {variable}, so set that where it starts",
                client.title
            )
        }
    })
}

fn member(key: &str, value: Value) -> (String, Value) {
    (key.to_owned(), value)
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// What stands where a key has to be written by hand.
pub(super) const PLACEHOLDER: &str = "THE-KEY-OF-THIS-CLIENT";
