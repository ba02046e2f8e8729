//! `weir keys`: clients and their keys, in the configuration.
//!
//! Promises: a key is shown once, where its command was asked for it, and kept nowhere; the file is changed in this one
//! place, written whole or not at all, and says nothing else afterwards than before.

mod edit;
mod expiry;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::clients::document::{self, Written};
use super::exit::Failure;
use super::timestamp::to_words;
use super::{files, help, output};
use crate::cli::query::oneshot;
use crate::config::{self, AuthMode, Client, Config, nearest};
use crate::hex::hex;
use crate::json::{self, Object};
use crate::policy::keys::text;
use crate::secret::Secret;
use crate::sha256::sha256;
use clap::Subcommand;

use edit::{Change, Edited};
use expiry::moment;

/// What `weir keys` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes a client with a key of its own, and shows the key.
    #[command(after_help = help::KEYS_ADD)]
    Add(AddArgs),
    /// Lists the clients: their roles, how many keys each has, and when those expire.
    #[command(after_help = help::KEYS_LIST)]
    List(ListArgs),
    /// Gives a client another key, beside the one that it has until that is dropped.
    #[command(after_help = help::KEYS_ROTATE)]
    Rotate(RotateArgs),
    /// Removes a client, and with it its keys.
    #[command(after_help = help::KEYS_REVOKE)]
    Revoke(RevokeArgs),
}

/// Where it is done.
#[derive(Debug, clap::Args)]
struct Place {
    /// The configuration file; without it $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the
    /// user's configuration folder.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// How it is told.
#[derive(Debug, clap::Args)]
struct Telling {
    /// Writes nothing, and prints the lines that would be written or removed.
    #[arg(long)]
    dry_run: bool,
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// What the client is called: 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`.
    name: String,
    /// What it may use: the name of a role.
    #[arg(long)]
    role: String,
    /// When its keys stop being good: after so many days (`90d`) or hours (`12h`), or from a moment on
    /// (`2027-06-30`, `2027-06-30T12:00:00Z`).
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// The file to write into, one of those that the configuration is made of; without it the main one.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    telling: Telling,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct RotateArgs {
    /// The client.
    name: String,
    /// When its keys stop being good, the older one included; as for `add`.
    #[arg(long, value_name = "WHEN", conflicts_with = "finish")]
    expires: Option<String>,
    /// Drops the older of two keys, once the client has the newer one.
    #[arg(long)]
    finish: bool,
    #[command(flatten)]
    telling: Telling,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// The client.
    name: String,
    #[command(flatten)]
    telling: Telling,
    #[command(flatten)]
    place: Place,
}

/// Does what is asked.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Add(args) => add(args),
        Command::List(args) => list(args),
        Command::Rotate(args) => rotate(args),
        Command::Revoke(args) => revoke(args),
    }
}

// === The commands ===

fn add(args: &AddArgs) -> Result<(), Failure> {
    let AddArgs { name, role, .. } = args;
    let now = SystemTime::now();
    let expires = args.expires.as_deref().map(|text| moment(text, now)).transpose()?;
    let desk = Desk::open(&args.place)?;
    if !config::is_plain_name(name) {
        let text = "a client's name is 1 to 64 of A-Z, a-z, 0-9, _, . and -";
        return Err(Failure::Usage(text.to_owned()));
    }
    if desk.config.clients.iter().any(|client| client.name == *name) {
        return Err(Failure::Usage(format!(
            "there is a client `{name}` already: `weir keys rotate {name}` gives it another key"
        )));
    }
    desk.check_role(role)?;
    let file = match &args.file {
        None => desk.files.first().cloned().unwrap_or_default(),
        Some(file) => desk.own_file(file)?,
    };
    let key = text::new_key();
    let change = Change::Add { role, sha256: &hash_of(&key), expires };
    let edited = desk.edit(&file, name, &change, &args.telling)?;
    show(&args.telling, name, Some(&key), &file, &edited)?;
    if args.telling.dry_run {
        return Ok(());
    }
    output::tell(&format!("wrote the client `{name}` into {}", file.display()));
    output::tell(&format!(
        "next: give the key to the client, which sends it as `Authorization: Bearer <key>`; it is not shown \
         again\n      {}",
        desk.taken_up()
    ));
    if desk.config.auth.anonymous && desk.config.auth.mode == AuthMode::Auto {
        output::tell("note: this is the first client: from now on every client needs a key");
    }
    Ok(())
}

fn rotate(args: &RotateArgs) -> Result<(), Failure> {
    let name = &args.name;
    let now = SystemTime::now();
    let expires = args.expires.as_deref().map(|text| moment(text, now)).transpose()?;
    let desk = Desk::open(&args.place)?;
    let client = desk.client(name)?;
    let keys = client.key_sha256.len();
    if keys == 0 {
        return Err(Failure::Usage(format!(
            "client `{name}` comes with a certificate and has no key: write key_sha256 under [clients.{name}] by \
             hand, or make another client"
        )));
    }
    if args.finish {
        if keys < 2 {
            return Err(Failure::Usage(format!(
                "client `{name}` has one key: `weir keys rotate {name}` gives it another first"
            )));
        }
        let file = desk.file_of(name, "key_sha256")?;
        let edited = desk.edit(&file, name, &Change::Finish, &args.telling)?;
        show(&args.telling, name, None, &file, &edited)?;
        if !args.telling.dry_run {
            output::tell(&format!("dropped the older key of `{name}` from {}", file.display()));
            output::tell(&format!("next: {}", desk.taken_up()));
        }
        return Ok(());
    }
    if keys > 1 {
        return Err(Failure::Usage(format!(
            "client `{name}` has two keys: `weir keys rotate {name} --finish` drops the older one first"
        )));
    }
    let has_ended = client.expires.is_some_and(|end| end <= now);
    if has_ended && expires.is_none() {
        return Err(Failure::Usage(format!(
            "the keys of client `{name}` have expired, and a new one would not be good either: say --expires"
        )));
    }
    let file = desk.file_of(name, "key_sha256")?;
    let key = text::new_key();
    let change = Change::Rotate { sha256: &hash_of(&key), expires };
    let edited = desk.edit(&file, name, &change, &args.telling)?;
    show(&args.telling, name, Some(&key), &file, &edited)?;
    if !args.telling.dry_run {
        output::tell(&format!("wrote a second key of `{name}` into {}", file.display()));
        output::tell(&format!(
            "next: {}; both keys are good then\n      give the key to the client; it is not shown again\n      \
             `weir keys rotate {name} --finish` drops the older one, once the client has it",
            desk.taken_up()
        ));
    }
    Ok(())
}

fn revoke(args: &RevokeArgs) -> Result<(), Failure> {
    let name = &args.name;
    let desk = Desk::open(&args.place)?;
    desk.client(name)?;
    let mut is_told = false;
    for file in &desk.files {
        if !edit::has(&read(file)?.text, name, None) {
            continue;
        }
        let edited = desk.edit(file, name, &Change::Revoke, &args.telling)?;
        if args.telling.dry_run || args.telling.json && !is_told {
            show(&args.telling, name, None, file, &edited)?;
        }
        is_told = true;
        if !args.telling.dry_run {
            output::tell(&format!("removed the client `{name}` from {}", file.display()));
        }
    }
    if args.telling.dry_run {
        return Ok(());
    }
    output::tell(&format!(
        "next: {}; until then the client's keys are good there",
        desk.taken_up()
    ));
    let is_last = desk.config.clients.len() == 1;
    let listens_here = desk.config.server.listen.ip().to_canonical().is_loopback();
    if is_last && listens_here && desk.config.auth.mode == AuthMode::Auto {
        output::tell(
            "note: no client is left, so whoever reaches Weir on this machine will enter without a key; write \
             mode = \"required\" in [auth] to keep the door closed",
        );
    }
    Ok(())
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let desk = Desk::open(&args.place)?;
    let (clients, now) = (&desk.config.clients, SystemTime::now());
    let role = |client: &Client| match client.role.starts_with("client:") {
        true => None,
        false => Some(client.role.clone()),
    };
    if args.json {
        let rows = clients.iter().map(|client| {
            let mut row = Object::new();
            row.set("name", json::quote(&client.name));
            if let Some(role) = role(client) {
                row.set("role", json::quote(&role));
            }
            row.set("keys", client.key_sha256.len().to_string());
            if let Some(expires) = client.expires {
                row.set("expires", json::quote(&to_words(expires)));
                row.set("expired", (expires <= now).to_string());
            }
            row.to_bytes()
        });
        let rows: Vec<_> = rows.collect();
        let rows = rows.join(&b","[..]);
        let rows = String::from_utf8_lossy(&rows);
        return output::print(|out| writeln!(out, "{{\"clients\":[{rows}]}}"));
    }
    let rows = clients.iter().map(|client| {
        let keys = match client.key_sha256.len() {
            0 => "no key",
            1 => "1 key",
            _ => "2 keys",
        };
        let end = match client.expires {
            None => "never expires".to_owned(),
            Some(end) if end <= now => format!("expired at {}", to_words(end)),
            Some(end) => format!("expires at {}", to_words(end)),
        };
        let role = role(client).unwrap_or_else(|| "(rules of its own)".to_owned());
        [client.name.clone(), role, keys.to_owned(), end]
    });
    let rows: Vec<_> = rows.collect();
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let (names, roles) = (width(0), width(1));
    output::print(|out| {
        rows.iter().try_for_each(|[name, role, keys, end]| {
            writeln!(out, "{name:names$}  {role:roles$}  {keys:6}  {end}")
        })
    })
}

/// Prints the key, or with `--dry-run` the lines; with `--json` all of it.
fn show(
    telling: &Telling,
    name: &str,
    key: Option<&Secret>,
    file: &Path,
    edited: &Edited,
) -> Result<(), Failure> {
    if telling.json {
        let mut told = Object::new();
        told.set("client", json::quote(name));
        if let Some(key) = key {
            told.set("key", json::quote(key.expose()));
            told.set("sha256", json::quote(&hash_of(key)));
        }
        told.set("file", json::quote(&file.display().to_string()));
        told.set("written", (!telling.dry_run).to_string());
        if telling.dry_run {
            told.set("lines", json::quote(&edited.lines));
        }
        let told = told.to_bytes();
        return output::print(|out| out.write_all(&[&told[..], b"\n"].concat()));
    }
    match (telling.dry_run, key) {
        (true, key) => {
            output::print(|out| out.write_all(edited.lines.as_bytes()))?;
            if let Some(key) = key {
                output::tell(&format!("the key, if you write these lines: {}", key.expose()));
            }
            Ok(())
        }
        (false, Some(key)) => output::print(|out| writeln!(out, "{}", key.expose())),
        (false, None) => Ok(()),
    }
}

// === The desk ===

/// A configuration that is being changed.
struct Desk {
    config: Config,
    /// The main one first.
    files: Vec<PathBuf>,
}

impl Desk {
    fn open(place: &Place) -> Result<Self, Failure> {
        let path = match &place.config {
            Some(path) => path.clone(),
            None => oneshot::find()?,
        };
        let options = oneshot::options(true);
        let config = Config::without_upstreams(&path, &options).map_err(Failure::Config)?;
        let files = Config::files(&path, &options).map_err(Failure::Config)?;
        Ok(Self { config, files })
    }

    fn client(&self, name: &str) -> Result<&Client, Failure> {
        let clients = &self.config.clients;
        clients.iter().find(|client| client.name == name).ok_or_else(|| {
            let near = nearest(name, clients.iter().map(|client| client.name.as_str()));
            Failure::Usage(match near {
                Some(near) => format!("no client `{name}`; did you mean `{near}`?"),
                None => format!("no client `{name}`: `weir keys list` tells which there are"),
            })
        })
    }

    /// What has a running Weir take up a file that was written.
    fn taken_up(&self) -> &'static str {
        match self.config.server.watch {
            true => "a running Weir takes the file up within seconds",
            false => {
                "`weir reload` has a running Weir take the file up, since `watch` under [server] is off"
            }
        }
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

    /// One of the configuration's files, by any way to it.
    fn own_file(&self, file: &Path) -> Result<PathBuf, Failure> {
        let real = std::fs::canonicalize(file).ok();
        let is_it = |one: &&PathBuf| {
            **one == *file || real.is_some() && std::fs::canonicalize(one).ok() == real
        };
        self.files.iter().find(is_it).cloned().ok_or_else(|| {
            Failure::Usage(format!(
                "{} does not belong to the configuration: make it, and name it in the `include` of {}",
                file.display(),
                self.files.first().map(|main| main.display().to_string()).unwrap_or_default()
            ))
        })
    }

    /// The file in which a client says this.
    fn file_of(&self, name: &str, key: &str) -> Result<PathBuf, Failure> {
        for file in &self.files {
            if edit::has(&read(file)?.text, name, Some(key)) {
                return Ok(file.clone());
            }
        }
        // Somebody has changed it since it was read.
        Err(Failure::Usage(format!("no file says {key} of client `{name}` any more")))
    }

    /// Changes what a file says of a client.
    fn edit(
        &self,
        file: &Path,
        name: &str,
        change: &Change<'_>,
        telling: &Telling,
    ) -> Result<Edited, Failure> {
        let Written { text, has_mark } = read(file)?;
        let edited = edit::edit(&text, name, change).ok_or_else(|| {
            Failure::NoConfig(format!(
                "{}: what it says of client `{name}` cannot be changed without touching the rest, so nothing was \
                 written; change it by hand: {}",
                file.display(),
                edit::by_hand(name, change),
            ))
        })?;
        if !telling.dry_run {
            let mark = if has_mark { "\u{feff}" } else { "" };
            files::replace(
                file,
                Some(&format!("{mark}{text}")),
                &format!("{mark}{}", edited.text),
            )?;
        }
        Ok(edited)
    }
}

fn read(file: &Path) -> Result<Written, Failure> {
    document::read(file)?.ok_or_else(|| Failure::Usage(format!("{} is gone", file.display())))
}

fn hash_of(key: &Secret) -> String {
    hex(&sha256(key.expose()))
}
