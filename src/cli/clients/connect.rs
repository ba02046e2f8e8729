//! `weir connect`: prints the entry that points a client at Weir, or writes it into the client's
//! file.
//!
//! Invariants: standard output contains only the entry; a key is never written, only a reference to
//! it; only the entry in a file is changed, after a copy of the file; a second run changes nothing.

mod entry;
mod insert;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;

use crate::cli::clients::document::{self, DocumentValue};
use crate::cli::clients::places::{self, Scope};
use crate::cli::clients::server::{self, ClientServer, ServerTransport};
use crate::cli::clients::{HttpEntry, McpClient};
use crate::cli::exit::Failure;
use crate::cli::loading;
use crate::cli::{files, output};
use entry::ConnectMethod;
use weir_config::{self as config, Config};
use weir_upstream::connect::egress::has_valid_port;

/// Arguments of `weir connect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The client to point at Weir.
    #[arg(value_parser = PossibleValuesParser::new(McpClient::names()))]
    client: String,
    /// The client starts `weir stdio`. This is the default unless the configuration has clients
    /// with keys or a public_url.
    #[arg(long, conflicts_with_all = ["http", "url", "key_env"])]
    stdio: bool,
    /// The client connects to a running `weir serve`.
    #[arg(long)]
    http: bool,
    /// The endpoint to connect to, instead of the configured one; implies --http.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The configuration file [default: $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the
    /// user's configuration folder].
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the entry in the client.
    #[arg(long, default_value = "weir")]
    name: String,
    /// The variable that contains the client's key [default: WEIR_KEY, if keys are in use].
    #[arg(long, value_name = "VAR")]
    key_env: Option<String>,
    /// Writes the entry into the client's file, after a copy of the file.
    #[arg(long)]
    write: bool,
    /// The client's file: for all projects of the user, or for the project in this folder.
    #[arg(long, value_enum, default_value = "user")]
    scope: Scope,
    /// Replaces an entry of the same name even if it is not for Weir.
    #[arg(long, requires = "write")]
    force: bool,
}

/// Prints the entry, or writes it.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let client = McpClient::named(&args.client)
        .ok_or_else(|| Failure::Usage(format!("no client `{}`", args.client)))?;
    let folder = std::env::current_dir().unwrap_or_default();
    let file =
        places::file(client, args.scope, &folder).ok_or_else(|| no_file(client, args.scope))?;
    let (connect_method, endpoints) = connect_method(args, client)?;
    let entry = entry::entry(client, &connect_method);
    let place = EntryLocation { client, name: &args.name, path: &file };
    if args.write {
        return write(&place, &entry, &connect_method, &endpoints, args.force);
    }
    let Some(text) = insert::insert("", &place, &entry, &|_| true)? else {
        return Err(Failure::NoConfig("the entry is empty".to_owned()));
    };
    output::print(|out| out.write_all(text.as_bytes()))?;
    output::print_stderr(&format!("for {}, in {}", client.title, file.display()));
    print_next_steps(&place, &connect_method);
    if file.exists() {
        output::print_stderr(&format!(
            "the file exists already: add the entry to its `{}`, or use --write",
            client.key
        ));
    }
    Ok(())
}

/// Location of an entry.
struct EntryLocation<'a> {
    client: &'static McpClient,
    name: &'a str,
    path: &'a Path,
}

fn no_file(client: &McpClient, scope: Scope) -> Failure {
    Failure::Usage(match scope {
        Scope::Project => format!("{} has no file for a project: use --scope user", client.title),
        Scope::User => format!("the home folder of {} is not known: set HOME", client.title),
    })
}

// === Connection ===

/// Decides how the client connects to Weir; the endpoints are those that an entry of Weir may name.
fn connect_method(
    args: &Args,
    client: &McpClient,
) -> Result<(ConnectMethod, Vec<String>), Failure> {
    let is_http_requested = args.http || args.url.is_some() || args.key_env.is_some();
    let config = match args.stdio || args.url.is_some() {
        // The content of the file does not matter, and it need not exist.
        true => None,
        false => match load_config(args) {
            Err(Failure::Config(_)) if !is_http_requested => {
                output::print_stderr(
                    "note: this configuration is invalid, so Weir will not start with it: \
                     `weir check` shows the errors; this is the entry for `weir stdio`",
                );
                None
            }
            config => Some(config?),
        },
    };
    let endpoint = config.as_ref().map(|config| endpoint(&config.server));
    let endpoints = args.url.iter().cloned().chain(endpoint.clone()).collect();
    let has_keys = config.as_ref().is_some_and(|config| {
        let logs_in = !config.providers.is_empty() && config.clients.is_empty();
        !config.auth.anonymous && !logs_in
    });
    let is_shared = config
        .as_ref()
        .is_some_and(|config| !config.clients.is_empty() || config.server.public_url.is_some());
    let prefers_http = is_shared && !matches!(client.http, HttpEntry::Bridge);
    if is_http_requested || prefers_http {
        let url = match &args.url {
            Some(url) => check_url(url)?,
            None => endpoint.unwrap_or_default(),
        };
        let default = has_keys.then(|| "WEIR_KEY".to_owned());
        return Ok((ConnectMethod::Http { url, key: args.key_env.clone().or(default) }, endpoints));
    }
    let config = loading::config_path(args.config.as_deref())?;
    let config = std::path::absolute(&config)
        .map_err(|error| Failure::Usage(format!("{} is no path: {error}", config.display())))?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::Usage(format!("the path of this program is unknown: {error}")))?;
    if !config.exists() {
        output::print_stderr(&format!(
            "note: {} does not exist yet; `weir init` writes one",
            config.display()
        ));
    }
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Ok((ConnectMethod::Stdio { program: text(&program), config: text(&config) }, endpoints))
}

/// Loads the configuration without its upstreams, which an entry does not need.
fn load_config(args: &Args) -> Result<Config, Failure> {
    let path = loading::config_path(args.config.as_deref())?;
    if !path.exists() {
        let text = format!("{} does not exist; `weir init` writes one", path.display());
        return Err(Failure::Usage(text));
    }
    // Anonymous access from the network does not matter here.
    Config::without_upstreams(&path, &loading::options(true)).map_err(Failure::Config)
}

/// Endpoint of a configuration for clients on this machine.
fn endpoint(server: &config::ServerConfig) -> String {
    if let Some(url) = &server.public_url {
        // A public URL without a path names only the host.
        return match url.path() {
            "/" | "" => format!("{}{}", url.to_string().trim_end_matches('/'), server.path),
            _ => url.to_string(),
        };
    }
    let port = server.listen.port();
    let host = match server.listen.ip() {
        ip if !ip.is_unspecified() => server.listen.to_string(),
        _ => match server.allowed_hosts.first() {
            Some(host) if host.contains(':') => host.clone(),
            Some(host) => format!("{host}:{port}"),
            None => format!("127.0.0.1:{port}"),
        },
    };
    format!("{}://{host}{}", server.scheme(), server.path)
}

fn check_url(url: &str) -> Result<String, Failure> {
    let is_good = url.parse::<hyper::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some()
            && has_valid_port(&uri)
    });
    match is_good && !url.contains('@') {
        true => Ok(url.to_owned()),
        false => Err(Failure::Usage(
            "--url must be an http or https URL without credentials, like http://127.0.0.1:8642/mcp"
                .to_owned(),
        )),
    }
}

// === Writing ===

fn write(
    place: &EntryLocation<'_>,
    entry: &DocumentValue,
    connect_method: &ConnectMethod,
    endpoints: &[String],
    force: bool,
) -> Result<(), Failure> {
    let EntryLocation { client, path, .. } = place;
    let old = document::read(path)?;
    let text = old.as_ref().map_or("", |old| &old.text);
    let is_own_entry = |old: &DocumentValue| {
        let server = server::read(place.name, old, client);
        server.is_ok_and(|server| is_weir(&server, endpoints))
    };
    match insert::insert(text, place, entry, &|old| force || is_own_entry(old))? {
        None => {
            output::print_stderr(&format!(
                "{} points at Weir already: {}",
                client.title,
                path.display()
            ));
        }
        Some(text) => {
            if old.is_some() {
                let backup = files::back_up_file(path)?;
                output::print_stderr(&format!("copied {} to {}", path.display(), backup.display()));
            }
            document::replace(path, old.as_ref(), &text)?;
            output::print_stderr(&format!(
                "wrote the entry `{}` into {}",
                place.name,
                path.display()
            ));
            print_next_steps(place, connect_method);
        }
    }
    Ok(())
}

/// Prints the next steps for the user.
fn print_next_steps(place: &EntryLocation<'_>, connect_method: &ConnectMethod) {
    if let ConnectMethod::Http { key, .. } = connect_method {
        if let Some(note) = entry::key_note(place.client, key.as_deref()) {
            output::print_stderr(&format!("key: {note}"));
        }
        if matches!(place.client.http, HttpEntry::Bridge) {
            output::print_stderr(&format!(
                "{} starts only processes from its file, so mcp-remote (npm) connects to Weir; its \
                 settings can also add the URL as a connector",
                place.client.title
            ));
        }
    }
    output::print_stderr(&format!("then: {}", place.client.next_step));
}

// === Recognition of own entries ===

/// Returns whether a client's server is Weir, or has that name and is on the network.
pub(crate) fn is_weir_entry(server: &ClientServer, endpoints: &[String]) -> bool {
    is_weir(server, endpoints)
        || server.name == "weir" && matches!(server.transport, ServerTransport::Http { .. })
}

fn is_weir(server: &ClientServer, endpoints: &[String]) -> bool {
    match &server.transport {
        ServerTransport::Process { command, args, .. } => {
            let program = Path::new(command).file_stem().unwrap_or_default();
            program == "weir" && args.iter().any(|arg| arg == "stdio")
                || args.iter().any(|arg| is_endpoint(arg, endpoints))
        }
        ServerTransport::Http { url, .. } => is_endpoint(url, endpoints),
    }
}

fn is_endpoint(url: &str, endpoints: &[String]) -> bool {
    let url = url.trim_end_matches('/');
    let usual = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:8642/mcp"));
    usual.iter().chain(endpoints).any(|endpoint| endpoint.trim_end_matches('/') == url)
}
