//! `weir keys`: adds, rotates and revokes clients' keys in the configuration.
//!
//! Invariants: a key is printed once and not stored; only the client's table is changed, the file
//! is replaced atomically, and all other settings keep their meaning.

mod edit;
mod expiry;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Subcommand;
use serde::Serialize;

use super::{EditableFiles, FileEdit, prepare_all, reload_hint, shown, stopped_halfway};
use crate::cli::exit::Failure;
use crate::cli::loading;
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use crate::cli::reference::help;
use crate::cli::server::audit_log::CommandLog;
use edit::ClientChange;
use expiry::parse_expiry;
use weir_access::policy::ClientCredentials;
use weir_access::policy::keys::text;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;
use weir_base::time::timestamp::format_rfc3339;
use weir_config::{self as config, AuthMode, Config, nearest};
use weir_record::audit::{PolicyChange, PolicyEvent};

/// Subcommands of `weir keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Adds a client with a new key, and prints the key.
    #[command(after_help = help::KEYS_ADD)]
    Add(AddArgs),
    /// Lists the clients with their roles, the number of their keys, and the expiry.
    #[command(after_help = help::KEYS_LIST)]
    List(ListArgs),
    /// Adds a second key to a client, or removes the older one.
    #[command(after_help = help::KEYS_ROTATE)]
    Rotate(RotateArgs),
    /// Removes a client and its keys.
    #[command(after_help = help::KEYS_REVOKE)]
    Revoke(RevokeArgs),
}

/// Location of the configuration.
#[derive(Debug, clap::Args)]
struct KeyLocation {
    /// The configuration file; default: $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the
    /// user's configuration folder.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Options of a command that changes the configuration.
#[derive(Debug, clap::Args)]
struct ChangeArgs {
    /// Writes nothing; prints the lines that would be written or removed.
    #[arg(long)]
    dry_run: bool,
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    location: KeyLocation,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// Name of the client: 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`.
    name: String,
    /// Name of its role.
    #[arg(long)]
    role: String,
    /// Expiry of its keys: after a number of days (`90d`) or hours (`12h`), or at a point in time
    /// (`2027-06-30`, `2027-06-30T12:00:00Z`).
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// The file to write to, one of the configuration's files; default: the main file.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    location: KeyLocation,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RotateArgs {
    /// The client.
    name: String,
    /// Expiry of its keys, including the older one; as for `add`.
    #[arg(long, value_name = "WHEN", conflicts_with = "finish")]
    expires: Option<String>,
    /// Removes the older of two keys, once the client has the newer one.
    #[arg(long)]
    finish: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// The client.
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Runs the subcommand.
pub(crate) fn run(command: &KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::Add(args) => add(args),
        KeysCommand::List(args) => list(args),
        KeysCommand::Rotate(args) => rotate(args),
        KeysCommand::Revoke(args) => revoke(args),
    }
}

// === The commands ===

fn add(args: &AddArgs) -> Result<(), Failure> {
    let AddArgs { name, role, .. } = args;
    let now = SystemTime::now();
    let expires = parse_expiry(args.expires.as_deref(), now)?;
    let editor = ConfigEditor::open(&args.change.location)?;
    if !config::is_plain_name(name) {
        let text = "a client's name is 1 to 64 of A-Z, a-z, 0-9, _, . and -";
        return Err(Failure::Usage(text.to_owned()));
    }
    if editor.config.clients.iter().any(|client| client.name == *name) {
        return Err(Failure::Usage(format!(
            "there is a client `{name}` already: `weir keys rotate {name}` gives it another key"
        )));
    }
    editor.check_role(role)?;
    let file = match &args.file {
        None => editor.files.main().to_owned(),
        Some(file) => editor.files.find(file)?,
    };
    let key = text::new_key();
    let change = ClientChange::Add { role, sha256: &hash_of(&key), expires };
    let edit = editor.edit(&file, name, &change)?;
    editor.write(std::slice::from_ref(&edit), name, &change, &args.change)?;
    print_result(&args.change, name, Some(&key), &edit)?;
    if args.change.dry_run {
        return Ok(());
    }
    output::print_stderr(&format!("wrote the client `{name}` into {}", shown(&file)));
    output::print_stderr(&format!(
        "next: give the key to the client, which sends it as `Authorization: Bearer <key>`; it is \
         not shown again\n      {}",
        editor.reload_hint()
    ));
    if editor.config.auth.anonymous && editor.config.auth.mode == AuthMode::Auto {
        output::print_stderr(
            "note: this is the first client: from now on every client needs a key",
        );
    }
    Ok(())
}

fn rotate(args: &RotateArgs) -> Result<(), Failure> {
    let name = &args.name;
    let now = SystemTime::now();
    let expires = parse_expiry(args.expires.as_deref(), now)?;
    let editor = ConfigEditor::open(&args.change.location)?;
    let client = editor.client(name)?;
    let has_ended = client.expires.is_some_and(|end| end <= now);
    let obstacle = match (client.key_sha256.len(), args.finish) {
        (0, _) => Some(format!(
            "client `{name}` authenticates with a certificate and has no key: write key_sha256 \
             under [clients.{name}] by hand, or make another client"
        )),
        (1, true) => Some(format!(
            "client `{name}` has one key: `weir keys rotate {name}` gives it another first"
        )),
        (1, false) if has_ended && expires.is_none() => Some(format!(
            "the keys of client `{name}` have expired, and a new one would be expired as well: \
             set --expires"
        )),
        (1, false) | (_, true) => None,
        (_, false) => Some(format!(
            "client `{name}` has two keys: `weir keys rotate {name} --finish` removes the older \
             one first"
        )),
    };
    if let Some(obstacle) = obstacle {
        return Err(Failure::Usage(obstacle));
    }
    let file = editor.find_file_with_keys(name)?;
    let key = (!args.finish).then(text::new_key);
    let sha256 = key.as_ref().map(hash_of);
    let change = match &sha256 {
        None => ClientChange::Finish,
        Some(sha256) => ClientChange::Rotate { sha256, expires },
    };
    let edit = editor.edit(&file, name, &change)?;
    editor.write(std::slice::from_ref(&edit), name, &change, &args.change)?;
    print_result(&args.change, name, key.as_ref(), &edit)?;
    if args.change.dry_run {
        return Ok(());
    }
    let (next, place) = (editor.reload_hint(), shown(&file));
    if args.finish {
        output::print_stderr(&format!("removed the older key of `{name}` from {place}"));
        output::print_stderr(&format!("next: {next}"));
        return Ok(());
    }
    output::print_stderr(&format!("wrote a second key of `{name}` into {place}"));
    output::print_stderr(&format!(
        "next: {next}; both keys are valid then\n      give the key to the client; it is not \
         shown again\n      `weir keys rotate {name} --finish` removes the older one, once \
         the client has it",
    ));
    Ok(())
}

fn revoke(args: &RevokeArgs) -> Result<(), Failure> {
    let name = &args.name;
    let editor = ConfigEditor::open(&args.change.location)?;
    editor.client(name)?;
    let mut edits = Vec::new();
    for (file, _) in editor.files.containing(&edit::table_of(name), None)? {
        edits.push(editor.edit(&file, name, &ClientChange::Revoke)?);
    }
    editor.write(&edits, name, &ClientChange::Revoke, &args.change)?;
    for (index, edit) in edits.iter().enumerate() {
        if args.change.dry_run || args.change.json && index == 0 {
            print_result(&args.change, name, None, edit)?;
        }
        if !args.change.dry_run {
            output::print_stderr(&format!(
                "removed the client `{name}` from {}",
                shown(&edit.file)
            ));
        }
    }
    if args.change.dry_run {
        return Ok(());
    }
    output::print_stderr(&format!(
        "next: {}; until then the client's keys are valid there",
        editor.reload_hint()
    ));
    let is_last = editor.config.clients.len() == 1;
    let listens_here = editor.config.server.listen.ip().to_canonical().is_loopback();
    if is_last && listens_here && editor.config.auth.mode == AuthMode::Auto {
        output::print_stderr(
            "note: no client is left, so every program on this machine can connect without a key; \
             set mode = \"required\" under [auth] to require keys",
        );
    }
    Ok(())
}

/// Client with its keys, in the output of `weir keys list`.
#[derive(Serialize)]
struct ClientRow {
    name: String,
    /// `None` if it has rules of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    /// Number of its keys.
    keys: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expired: Option<bool>,
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let editor = ConfigEditor::open(&args.location)?;
    let now = SystemTime::now();
    let row = |client: &ClientCredentials| ClientRow {
        name: client.name.clone(),
        role: Some(client.role.clone()).filter(|role| config::owner_of(role).is_none()),
        keys: client.key_sha256.len(),
        expires: client.expires.map(format_rfc3339),
        expired: client.expires.map(|expires| expires <= now),
    };
    let rows: Vec<_> = editor.config.clients.iter().map(row).collect();
    let report = BTreeMap::from([("clients", &rows)]);
    output::print_report(args.json, &report, |out| write_rows(out, &rows))?;
    if rows.is_empty() && !args.json {
        output::print_stderr(
            "the configuration has no clients: `weir keys add NAME --role ROLE` adds one",
        );
    }
    Ok(())
}

fn write_rows(out: &mut dyn Write, rows: &[ClientRow]) -> std::io::Result<()> {
    let role = |row: &ClientRow| row.role.clone().unwrap_or("(rules of its own)".to_owned());
    let names = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let roles = rows.iter().map(|row| role(row).len()).max().unwrap_or(0);
    for row in rows {
        let keys = match row.keys {
            0 => "no key",
            1 => "1 key",
            _ => "2 keys",
        };
        let end = match (&row.expires, row.expired) {
            (None, _) => "never expires".to_owned(),
            (Some(end), Some(true)) => format!("expired at {end}"),
            (Some(end), _) => format!("expires at {end}"),
        };
        writeln!(out, "{:names$}  {:roles$}  {keys:6}  {end}", row.name, role(row))?;
    }
    Ok(())
}

/// JSON form of a change.
#[derive(Serialize)]
struct ChangeReport<'a> {
    client: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    file: String,
    written: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<&'a str>,
}

/// Prints the key, or with `--dry-run` the lines; with `--json` everything.
fn print_result(
    options: &ChangeArgs,
    name: &str,
    key: Option<&Secret>,
    edit: &FileEdit,
) -> Result<(), Failure> {
    let report = ChangeReport {
        client: name,
        key: key.map(Secret::expose),
        sha256: key.map(hash_of),
        file: edit.file.display().to_string(),
        written: !options.dry_run,
        lines: options.dry_run.then_some(&edit.edited.lines),
    };
    output::print_report(options.json, &report, |out| match (report.lines, report.key) {
        (Some(lines), _) => out.write_all(lines.as_bytes()),
        (None, Some(key)) => writeln!(out, "{key}"),
        (None, None) => Ok(()),
    })?;
    if let (Some(_), Some(key), false) = (report.lines, report.key, options.json) {
        output::print_stderr(&format!("the key, if you write these lines: {key}"));
    }
    Ok(())
}

// === Editing ===

/// Editor of a configuration's clients.
struct ConfigEditor {
    config: Config,
    files: EditableFiles,
}

impl ConfigEditor {
    fn open(location: &KeyLocation) -> Result<Self, Failure> {
        let path = loading::config_path(location.config.as_deref())?;
        let options = loading::options(true);
        let config = Config::without_upstreams(&path, &options).map_err(Failure::Config)?;
        Ok(Self { config, files: EditableFiles::open(&path)? })
    }

    fn client(&self, name: &str) -> Result<&ClientCredentials, Failure> {
        let clients = &self.config.clients;
        clients.iter().find(|client| client.name == name).ok_or_else(|| {
            let near = nearest(name, clients.iter().map(|client| client.name.as_str()));
            let name = sanitize_line(name);
            Failure::Usage(match near {
                Some(near) => format!("no client `{name}`; did you mean `{near}`?"),
                None => format!("no client `{name}`: `weir keys list` lists the clients"),
            })
        })
    }

    /// Describes how a running Weir applies a changed file.
    fn reload_hint(&self) -> &'static str {
        reload_hint(self.config.server.watch)
    }

    fn check_role(&self, role: &str) -> Result<(), Failure> {
        let mut roles =
            self.config.roles.keys().map(String::as_str).filter(|role| config::is_plain_name(role));
        if roles.clone().any(|one| one == role) {
            return Ok(());
        }
        let near = nearest(role, roles.clone());
        Err(Failure::Usage(match near {
            Some(near) => format!("no role `{role}`; did you mean `{near}`?"),
            None => {
                let roles: Vec<_> = roles.by_ref().collect();
                format!("no role `{role}` in the configuration, which has {}", roles.join(", "))
            }
        }))
    }

    /// Finds the file that contains the hashes of a client's keys.
    fn find_file_with_keys(&self, name: &str) -> Result<PathBuf, Failure> {
        let with_keys = self.files.containing(&edit::table_of(name), Some("key_sha256"))?;
        with_keys.into_iter().next().map(|(file, _)| file).ok_or_else(|| {
            // The file was changed after it was read.
            Failure::Usage(format!("no file contains key_sha256 of client `{name}` any more"))
        })
    }

    /// Makes the change of a client's table in a file, without writing it.
    fn edit(
        &self,
        file: &Path,
        name: &str,
        change: &ClientChange<'_>,
    ) -> Result<FileEdit, Failure> {
        let old = super::read(file)?;
        let edited = edit::edit(&old.text, name, change).ok_or_else(|| {
            Failure::NoConfig(format!(
                "{}: client `{name}` cannot be changed without touching other settings, so \
                 nothing was written; change it by hand: {}",
                file.display(),
                edit::manual_steps(name, change),
            ))
        })?;
        Ok(FileEdit { file: file.to_owned(), old, edited })
    }

    /// Writes the edits of one change, all or none, and records them; not with `--dry-run`.
    fn write(
        &self,
        edits: &[FileEdit],
        name: &str,
        change: &ClientChange<'_>,
        options: &ChangeArgs,
    ) -> Result<(), Failure> {
        if options.dry_run {
            return Ok(());
        }
        let prepared = prepare_all(edits)?;
        let adds_client = matches!(change, ClientChange::Add { .. });
        let mut log = CommandLog::open(&self.config, adds_client)?;
        for (index, (edit, file)) in edits.iter().zip(prepared).enumerate() {
            let recorded = log.record(self.event(&edit.file, name, change), || file.finish());
            recorded.map_err(|failure| stopped_halfway(failure, &edits[..index], &[]))?;
        }
        Ok(())
    }

    /// Event of a change in a file, for the audit log.
    fn event(&self, file: &Path, name: &str, change: &ClientChange<'_>) -> PolicyEvent {
        let known = || self.config.clients.iter().filter(|client| client.name == name);
        let known = || known().flat_map(|client| client.key_sha256.iter().map(|key| hex(key)));
        let (action, keys, expires): (_, Vec<String>, _) = match change {
            ClientChange::Add { sha256: key, expires, .. } => {
                ("add", vec![(*key).into()], *expires)
            }
            ClientChange::Rotate { sha256: key, expires } => {
                ("rotate", vec![(*key).into()], *expires)
            }
            ClientChange::Finish => ("finish", known().take(1).collect(), None),
            ClientChange::Revoke => ("revoke", known().collect(), None),
        };
        let keys = keys.iter().map(|key| key.chars().take(KEY_DIGITS).collect());
        let (client, place) = (name.to_owned(), file.display().to_string());
        let kind = PolicyChange::Keys { action, client, keys: keys.collect(), file: place };
        let changes = match change {
            ClientChange::Add { role, .. } => Some(format!("role {role}")),
            _ => None,
        };
        let expires = expires.map(|end| format!("expires {end}"));
        PolicyEvent {
            changes: changes.into_iter().chain(expires).collect(),
            ..PolicyEvent::new(kind, "command")
        }
    }
}

/// Digits of a key's hash that the audit log has, enough to tell keys apart.
const KEY_DIGITS: usize = 12;

fn hash_of(key: &Secret) -> String {
    hex(&sha256(key.expose()))
}
