//! `weir connect`: the entry that points a client at Weir, printed, or put into the client's file.
//!
//! Promises: standard output is the entry and nothing else; no key is ever written, only where the client
//! finds one; a file is changed in this one place, a copy of it is kept, and the second run changes nothing.

mod entry;
mod insert;

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;

use super::clients::document::{self, Value, Written};
use super::clients::places::{self, Scope};
use super::clients::server::{self, Server, Wire};
use super::clients::{Client, Http};
use super::exit::Failure;
use super::{files, output};
use crate::cli::query::oneshot;
use crate::config::{self, Config, Entrance};
use entry::Way;
use insert::Inserted;

/// What `weir connect` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The client to point at Weir.
    #[arg(value_parser = PossibleValuesParser::new(Client::names()))]
    client: String,
    /// The client starts `weir stdio` itself. This is the default unless the configuration has clients
    /// with keys or a public_url.
    #[arg(long, conflicts_with_all = ["http", "url", "key_env"])]
    stdio: bool,
    /// The client connects to a running `weir serve`.
    #[arg(long)]
    http: bool,
    /// The endpoint to connect to, if not the one that the configuration says; means --http.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The configuration file [default: $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the user's
    /// configuration folder].
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What the entry is called in the client.
    #[arg(long, default_value = "weir")]
    name: String,
    /// The variable in which the client finds its key [default: WEIR_KEY, where keys are in use].
    #[arg(long, value_name = "VAR")]
    key_env: Option<String>,
    /// Puts the entry into the client's file, and keeps a copy of the file as it was.
    #[arg(long)]
    write: bool,
    /// Which of the client's files: for all projects of the user, or for the project in this folder.
    #[arg(long, value_enum, default_value = "user")]
    scope: Scope,
    /// Replaces an entry of the same name even if it is somebody else's.
    #[arg(long, requires = "write")]
    force: bool,
}

/// Prints the entry, or writes it.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let client = Client::named(&args.client)
        .ok_or_else(|| Failure::Usage(format!("no client `{}`", args.client)))?;
    let folder = std::env::current_dir().unwrap_or_default();
    let file =
        places::file(client, args.scope, &folder).ok_or_else(|| no_file(client, args.scope))?;
    let (way, endpoints) = way(args, client)?;
    let entry = entry::entry(client, &way);
    let place = Place { client, name: &args.name, path: &file };
    if args.write {
        return write(&place, &entry, &way, &endpoints, args.force);
    }
    let Inserted::Text(text) = insert::insert("", &place, &entry, &|_| true)? else {
        return Err(Failure::NoConfig("the entry is empty".to_owned()));
    };
    output::print(|out| out.write_all(text.as_bytes()))?;
    output::tell(&format!("for {}, in {}", client.title, file.display()));
    tell(&place, &way);
    if file.exists() {
        output::tell(&format!(
            "the file is there already: add the entry to its `{}`, or say --write",
            client.key
        ));
    }
    Ok(())
}

/// Where an entry goes.
struct Place<'a> {
    client: &'static Client,
    name: &'a str,
    path: &'a Path,
}

fn no_file(client: &Client, scope: Scope) -> Failure {
    Failure::Usage(match scope {
        Scope::Project => format!("{} has no file for a project: use --scope user", client.title),
        Scope::User => format!("the home folder of {} is not known: set HOME", client.title),
    })
}

// === How ===

/// Decides how the client gets to Weir; the endpoints are what an entry of Weir's own may name.
fn way(args: &Args, client: &Client) -> Result<(Way, Vec<String>), Failure> {
    let wants_http = args.http || args.url.is_some() || args.key_env.is_some();
    let config = match args.stdio || args.url.is_some() {
        // What is in it does not matter, and it need not even be there.
        true => None,
        false => match load(args) {
            Err(Failure::Config(_)) if !wants_http => {
                output::tell(
                    "note: Weir will not start from this configuration until its mistakes are mended: \
                     `weir check` tells them; this is the entry for `weir stdio`",
                );
                None
            }
            config => Some(config?),
        },
    };
    let endpoint = config.as_ref().map(|config| endpoint(&config.server));
    let endpoints = args.url.iter().cloned().chain(endpoint.clone()).collect();
    let has_keys = config.as_ref().is_some_and(|config| {
        let logs_in = config.has_providers && !config.has_clients;
        !config.auth.anonymous && !logs_in
    });
    let is_shared = config
        .as_ref()
        .is_some_and(|config| config.has_clients || config.server.public_url.is_some());
    let prefers_http = is_shared && !matches!(client.dialect.http, Http::Bridge);
    if wants_http || prefers_http {
        let url = match &args.url {
            Some(url) => checked(url)?,
            None => endpoint.unwrap_or_default(),
        };
        let default = has_keys.then(|| "WEIR_KEY".to_owned());
        return Ok((Way::Http { url, key: args.key_env.clone().or(default) }, endpoints));
    }
    let config = match &args.config {
        Some(path) => path.clone(),
        None => oneshot::find()?,
    };
    let config = std::path::absolute(&config)
        .map_err(|error| Failure::Usage(format!("{} is no path: {error}", config.display())))?;
    let program = std::env::current_exe().map_err(|error| {
        Failure::Usage(format!("where this program is cannot be told: {error}"))
    })?;
    if !config.exists() {
        output::tell(&format!(
            "note: {} is not there yet; `weir init` writes one",
            config.display()
        ));
    }
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Ok((Way::Stdio { program: text(&program), config: text(&config) }, endpoints))
}

fn load(args: &Args) -> Result<Entrance, Failure> {
    let path = match &args.config {
        Some(path) => path.clone(),
        None => oneshot::find()?,
    };
    if !path.exists() {
        let text = format!("{} is not there; `weir init` writes one", path.display());
        return Err(Failure::Usage(text));
    }
    // Whether Weir would dare to serve with it is not the question here.
    Config::entrance(&path, &oneshot::options(true)).map_err(Failure::Config)
}

/// Where clients of this machine reach the server of a configuration.
fn endpoint(server: &config::Server) -> String {
    if let Some(url) = &server.public_url {
        // A public URL without a path is that of the host.
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

fn checked(url: &str) -> Result<String, Failure> {
    let is_good = url.parse::<hyper::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    });
    match is_good && !url.contains('@') {
        true => Ok(url.to_owned()),
        false => Err(Failure::Usage(
            "--url wants an http or https URL without credentials, like http://127.0.0.1:8642/mcp"
                .to_owned(),
        )),
    }
}

// === Writing ===

fn write(
    place: &Place<'_>,
    entry: &Value,
    way: &Way,
    endpoints: &[String],
    force: bool,
) -> Result<(), Failure> {
    let Place { client, path, .. } = place;
    let written = document::read(path)?;
    let is_there = written.is_some();
    let Written { text: old, has_mark } =
        written.unwrap_or(Written { text: String::new(), has_mark: false });
    let mark = if has_mark { "\u{feff}" } else { "" };
    let folder = std::env::current_dir().unwrap_or_default();
    let is_ours = |old: &Value| {
        let alone = Value::Table(vec![(
            client.key.to_owned(),
            Value::Table(vec![(place.name.to_owned(), old.clone())]),
        )]);
        let found = server::find(&alone, Some(client), path, &folder);
        let servers = found.into_iter().flat_map(|section| section.servers);
        servers.filter_map(|(_, server)| server.ok()).any(|server| is_weir(&server, endpoints))
    };
    match insert::insert(&old, place, entry, &|old| force || is_ours(old))? {
        Inserted::Same => {
            output::tell(&format!("{} points at Weir already: {}", client.title, path.display()));
        }
        Inserted::Text(text) => {
            if is_there {
                let backup = files::back_up(path)?;
                output::tell(&format!("kept {} as {}", path.display(), backup.display()));
            }
            let old = is_there.then(|| format!("{mark}{old}"));
            files::replace(path, old.as_deref(), &format!("{mark}{text}"))?;
            output::tell(&format!("wrote the entry `{}` into {}", place.name, path.display()));
            tell(place, way);
        }
    }
    Ok(())
}

/// What else somebody has to do.
fn tell(place: &Place<'_>, way: &Way) {
    if let Way::Http { key, .. } = way {
        if let Some(note) = entry::key_note(place.client, key.as_deref()) {
            output::tell(&format!("key: {note}"));
        }
        if matches!(place.client.dialect.http, Http::Bridge) {
            output::tell(&format!(
                "{} starts only processes from its file, so mcp-remote (npm) stands in between; its \
                 settings can add the URL as a connector, too",
                place.client.title
            ));
        }
    }
    output::tell(&format!("then: {}", place.client.afterwards));
}

// === Which entry is ours ===

/// Whether a client's server is Weir itself, or is called so and is reached over the network.
pub(super) fn leads_here(server: &Server, endpoints: &[String]) -> bool {
    is_weir(server, endpoints) || server.name == "weir" && matches!(server.wire, Wire::Http { .. })
}

fn is_weir(server: &Server, endpoints: &[String]) -> bool {
    match &server.wire {
        Wire::Process { command, args, .. } => {
            let program = Path::new(command).file_stem().unwrap_or_default();
            program == "weir" && args.iter().any(|arg| arg == "stdio")
                || args.iter().any(|arg| is_endpoint(arg, endpoints))
        }
        Wire::Http { url, .. } => is_endpoint(url, endpoints),
    }
}

fn is_endpoint(url: &str, endpoints: &[String]) -> bool {
    let url = url.trim_end_matches('/');
    let usual = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:8642/mcp"));
    usual.iter().chain(endpoints).any(|endpoint| endpoint.trim_end_matches('/') == url)
}
