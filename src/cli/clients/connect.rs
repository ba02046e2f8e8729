//! `weir connect`: prints the entry that points a client at Weir, or writes it into the client's
//! file; takes over the client's servers, and gives them back.
//!
//! Invariants: standard output contains only the entry; a key is never written, only a reference to
//! it; only the entries in question are changed in a file, after a copy of the file; a second run
//! changes nothing.

pub(super) mod connect_command;
pub(super) mod entry;
mod give_back;
pub(super) mod method;
mod other_scopes;
mod take_over;
pub(super) mod taken;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use crate::cli::check::{self, CheckRow};
use crate::cli::clients::document::{self, DocumentValue};
use crate::cli::clients::edit::{self, EntryLocation, Insertion};
use crate::cli::clients::init::{self, AddServers};
use crate::cli::clients::places::{self, Scope};
use crate::cli::clients::{HttpEntry, McpClient, server, weir_entry};
use crate::cli::exit::Failure;
use crate::cli::loading::{self, ConfigArgs};
use crate::cli::{files, output};
use connect_command::ConnectCommand;
use entry::{ConnectMethod, PLACEHOLDER};
use take_over::{FormerFile, ListedServers};
use weir_config::is_variable_name;

/// Arguments of `weir connect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The client to point at Weir.
    #[arg(value_parser = PossibleValuesParser::new(McpClient::names()))]
    client: String,
    /// The client starts `weir stdio`. This is the default unless the configuration has clients
    /// with keys or a public_url.
    #[arg(long, conflicts_with_all = ["http", "url", "key_env", "no_key"])]
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
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// The variable that contains the client's key [default: WEIR_KEY, if keys are in use].
    #[arg(long, value_name = "VAR", value_parser = variable)]
    key_env: Option<String>,
    /// Leaves the header with the key out, for a client that signs in; implies --http.
    #[arg(long, conflicts_with = "key_env")]
    no_key: bool,
    /// Writes the entry into the client's file, after a copy of the file, then lists all servers,
    /// at most 60 s.
    #[arg(long)]
    write: bool,
    /// Moves the client's servers to Weir: imports them into the configuration, writes the entry
    /// for Weir, and removes from the client's file the servers that came up. They are kept in the
    /// state folder.
    #[arg(long, conflicts_with_all = ["write", "url", "no_check"])]
    take_over: bool,
    /// Removes the entry for Weir from the client's file, and puts back what --take-over removed.
    #[arg(long, conflicts_with_all = ["write", "take_over", "http", "url", "no_check"])]
    remove: bool,
    /// Does not list the servers after the entry was written.
    #[arg(long, requires = "write")]
    no_check: bool,
    /// The client's file: for all projects of the user, or for the project in this folder.
    #[arg(long, value_enum, default_value = "user")]
    scope: Scope,
    /// Replaces an entry of the same name even if it is not for Weir.
    #[arg(long, requires = "write")]
    force: bool,
}

/// Prints the entry, writes it, or removes it. A take-over adds servers to a configuration that
/// exists with `add_servers`.
pub(crate) async fn run(args: Args, add_servers: AddServers) -> Result<(), Failure> {
    let client = McpClient::named(&args.client)
        .ok_or_else(|| Failure::Usage(format!("no client `{}`", args.client)))?;
    let folder = std::env::current_dir().unwrap_or_default();
    let is_printed = !args.write && !args.take_over && !args.remove;
    let file = match places::file(client, args.scope, &folder) {
        None if is_printed && !client.has_file() => PathBuf::new(),
        file => file.ok_or_else(|| no_file(client, args.scope))?,
    };
    let place = EntryLocation { client, name: &args.name, path: &file };
    if args.remove {
        return give_back::give_back(&place, &folder, args.config.as_deref());
    }
    if args.take_over {
        return take_over(&args, &place, &folder, add_servers).await;
    }
    let (connect_method, endpoints) = method::choose(&args, client)?;
    let entry = entry::entry(client, &args.name, &connect_method);
    if is_printed {
        print(&place, &entry, &connect_method)?;
        method::report_unserved(&connect_method).await;
        return Ok(());
    }
    if write(&place, &entry, &endpoints, args.force)? {
        print_next_steps(&place, &connect_method);
    }
    method::report_unserved(&connect_method).await;
    // Over HTTP a running Weir has the servers.
    if let ConnectMethod::Stdio { config, .. } = &connect_method
        && !args.no_check
        && Path::new(config).exists()
    {
        list_servers(Path::new(config)).await;
    }
    Ok(())
}

/// Moves the client's servers to Weir.
async fn take_over(
    args: &Args,
    place: &EntryLocation<'_>,
    folder: &Path,
    add_servers: AddServers,
) -> Result<(), Failure> {
    let config = loading::config_path_to_write(args.config.as_deref())?;
    let state = take_over::state_folder(&config)?;
    let imported = match take_over::has_servers(place, folder)? {
        true => init::import_client(place.client, args.scope, &config, add_servers)?,
        false => Vec::new(),
    };
    let (connect_method, endpoints) = method::choose(args, place.client)?;
    let entry = entry::entry(place.client, place.name, &connect_method);
    let read =
        || Ok::<_, Failure>(document::read(place.path)?.map(|file| file.text).unwrap_or_default());
    let former = read()?;
    write(place, &entry, &endpoints, false)?;
    let former = FormerFile { text: former, written: read()? };
    if !imported.is_empty() {
        let rows = list_servers(&config).await;
        let listed = ListedServers { imported: &imported, rows: &rows };
        let command = ConnectCommand {
            client: place.client,
            entry: place.name,
            scope: args.scope,
            action: "--remove",
            config: None,
            is_stdio: false,
        };
        take_over::take(place, folder, &state, listed, &former, &command)?;
    }
    print_next_steps(place, &connect_method);
    method::report_unserved(&connect_method).await;
    Ok(())
}

/// Lists all servers of a configuration, and prints the result.
async fn list_servers(config: &Path) -> Vec<CheckRow> {
    output::print_stderr("listing all servers, at most 60 s");
    let config = ConfigArgs::of_file(config.to_owned());
    match check::list_upstreams(&config, LISTING_TIMEOUT).await {
        Ok(rows) => rows,
        Err(failure) => {
            output::print_stderr(&format!(
                "note: the servers were not listed: {failure}; `weir check` shows it again"
            ));
            Vec::new()
        }
    }
}

fn no_file(client: &McpClient, scope: Scope) -> Failure {
    Failure::Usage(match scope {
        _ if !client.has_file() => format!(
            "{} has its servers in its own settings, not in a file: paste the entry there that \
             `weir connect {}` prints",
            client.title, client.name
        ),
        Scope::Project => format!("{} has no file for a project: use --scope user", client.title),
        Scope::User => format!("the home folder of {} is not known: set HOME", client.title),
    })
}

/// Parser of the name of a variable.
fn variable(name: &str) -> Result<String, String> {
    match is_variable_name(name) {
        true => Ok(name.to_owned()),
        false => Err("it is not the name of a variable, such as WEIR_KEY; --no-key leaves the \
                      header out"
            .to_owned()),
    }
}

// === Printing ===

fn print(
    place: &EntryLocation<'_>,
    entry: &DocumentValue,
    connect_method: &ConnectMethod,
) -> Result<(), Failure> {
    print_entry(place, entry)?;
    let EntryLocation { client, path, .. } = place;
    let file = if client.has_file() { format!(", in {}", path.display()) } else { String::new() };
    output::print_stderr(&format!("for {}{file}", client.title));
    print_next_steps(place, connect_method);
    if client.has_file() && path.exists() {
        output::print_stderr(&format!(
            "the file exists already: add the entry to its `{}`, or use --write",
            client.key
        ));
    }
    Ok(())
}

fn print_entry(place: &EntryLocation<'_>, entry: &DocumentValue) -> Result<(), Failure> {
    match edit::insert("", place, entry, PLACEHOLDER, &|_| true)? {
        Insertion::Text(text) => output::print(|out| out.write_all(text.as_bytes())),
        Insertion::Present | Insertion::Impossible => {
            Err(Failure::NoConfig("the entry is empty".to_owned()))
        }
    }
}

/// Prints the next steps for the user.
fn print_next_steps(place: &EntryLocation<'_>, connect_method: &ConnectMethod) {
    if let ConnectMethod::Http { key, .. } = connect_method {
        if let Some(note) = entry::key_note(place.client, key.as_deref()) {
            output::print_stderr(&format!("key: {note}"));
        }
        if matches!(place.client.http, HttpEntry::Bridge) {
            let connector = match place.client.name {
                "claude-desktop" => "; its settings can also add the URL as a connector",
                _ => "",
            };
            output::print_stderr(&format!(
                "{} starts only processes from its file, so mcp-remote (npm) connects to \
                 Weir{connector}",
                place.client.title
            ));
        }
    }
    output::print_stderr(&format!("then: {}", place.client.next_step));
}

// === Writing ===

/// Writes the entry; returns whether the file was changed.
fn write(
    place: &EntryLocation<'_>,
    entry: &DocumentValue,
    endpoints: &[String],
    force: bool,
) -> Result<bool, Failure> {
    let EntryLocation { client, path, .. } = place;
    let old = document::read(path)?;
    let text = old.as_ref().map_or("", |old| &old.text);
    let may_replace = |old: &DocumentValue| force || is_own_entry(place, old, endpoints);
    let inserted = match edit::insert(text, place, entry, PLACEHOLDER, &may_replace)? {
        Insertion::Text(text) => Some(text),
        Insertion::Present => None,
        Insertion::Impossible => {
            print_entry(place, entry)?;
            return Err(Failure::NoConfig(format!(
                "{} is written in a way in which the entry cannot be added without a change of \
                 something else, so nothing was written: add the printed entry by hand",
                path.display()
            )));
        }
    };
    let allowed = edit::allow(inserted.as_deref().unwrap_or(text), place)?;
    let Some(new) = allowed.clone().or(inserted) else {
        output::print_stderr(&format!(
            "{} points at Weir already: {}",
            client.title,
            path.display()
        ));
        return Ok(false);
    };
    replace(path, old.as_ref(), &new)?;
    output::print_stderr(&format!("wrote the entry `{}` into {}", place.name, path.display()));
    if let (Some(_), Some(list)) = (allowed, client.allow_list) {
        output::print_stderr(&format!("added `{}` to its {}", place.name, list.join(".")));
    }
    Ok(true)
}

/// Replaces a client's file, after a copy.
fn replace(path: &Path, old: Option<&document::FileText>, new: &str) -> Result<(), Failure> {
    if old.is_some() {
        let backup = files::back_up_file(path)?;
        output::print_stderr(&format!("copied {} to {}", path.display(), backup.display()));
    }
    document::replace(path, old, new)
}

/// Returns whether an entry of the client is for Weir.
fn is_own_entry(place: &EntryLocation<'_>, entry: &DocumentValue, endpoints: &[String]) -> bool {
    let server = server::read(place.name, entry, place.client);
    server.is_ok_and(|server| weir_entry::is_weir(&server, endpoints))
}

/// Usual name of the entry for Weir.
const DEFAULT_NAME: &str = "weir";

/// Time limit for the first lists of all servers.
pub(super) const LISTING_TIMEOUT: Duration = Duration::from_secs(60);
