//! `weir init`: a configuration to begin with, or the servers of a client as one.
//!
//! Promises: nothing is overwritten unasked, and then a copy is kept; no secret is in the configuration or in
//! anything that is said; whatever of a client's file could not be taken over is told.

mod mapping;
mod names;
mod secrets;
mod texts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, Table};

use super::clients::Client;
use super::clients::document::{self, Value};
use super::clients::places::{self, Scope};
use super::clients::server::{self, Server};
use super::clients::variables::{self, Input};
use super::connect::leads_here;
use super::exit::Failure;
use super::{files, output};
use crate::config::{Config, Severity, nearest};
use mapping::Origin;
use secrets::Vault;

/// What `weir init` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder to write into.
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "output")]
    dir: PathBuf,
    /// Takes over the servers of an MCP client: one of claude-desktop, claude-code, vscode, cursor, codex,
    /// gemini, zed, windsurf, whose files are looked up (this project's before the user's), or a file.
    ///
    /// Literal tokens and passwords are moved into files of their own, in `secrets` beside the
    /// configuration. The client's file is only read.
    #[arg(long, value_name = "CLIENT|FILE")]
    from: Option<String>,
    /// The configuration to write, instead of weir.toml in the folder.
    #[arg(long, short, value_name = "FILE", requires = "from")]
    output: Option<PathBuf>,
    /// Prints the configuration and writes nothing; secrets become variables to set.
    #[arg(long, requires = "from", conflicts_with_all = ["output", "dir"])]
    print: bool,
    /// Replaces what is in the way, and keeps a copy of it.
    #[arg(long)]
    force: bool,
}

/// Writes a configuration.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.from {
        None => start(&args.dir, args.force),
        Some(from) => take_over(from, args),
    }
}

/// How many mistakes are told one by one.
const MAX_TOLD: usize = 20;

// === A beginning ===

/// Writes the starter files.
fn start(folder: &Path, force: bool) -> Result<(), Failure> {
    let starter = [
        (within(folder, "weir.toml"), include_str!("init/starter.toml")),
        (within(folder, "prompts/explain-error.md"), include_str!("init/explain-error.md")),
    ];
    for (path, _) in &starter {
        make_way(path, force, false)?;
    }
    for (path, text) in &starter {
        make_way(path, force, true)?;
        files::write(path, text)?;
        output::tell(&format!("wrote {}", path.display()));
    }
    let at = config_option(&starter[0].0);
    output::tell(&format!(
        "next: `weir check{at}` tries it, `weir list{at}` shows what clients will see\n      \
         `weir connect CLIENT{at}` prints the entry for a client, such as claude-code or cursor\n      \
         `weir init --from CLIENT` takes over the servers that a client has already"
    ));
    Ok(())
}

/// Sees to it that nothing is lost by writing a file. With `act`, the copy is made.
fn make_way(path: &Path, force: bool, act: bool) -> Result<(), Failure> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    if !force {
        return Err(Failure::Usage(format!(
            "{} is there already: remove it, write elsewhere, or say --force to replace it and keep \
             a copy",
            path.display()
        )));
    }
    if act && path.exists() {
        let backup = files::back_up(path)?;
        output::tell(&format!("kept {} as {}", path.display(), backup.display()));
    }
    Ok(())
}

/// A file of a folder; one of the current folder goes by its name alone.
fn within(folder: &Path, file: &str) -> PathBuf {
    if folder == Path::new(".") { PathBuf::from(file) } else { folder.join(file) }
}

/// How a command finds the configuration, if not by itself.
fn config_option(path: &Path) -> String {
    match path == Path::new("weir.toml") {
        true => String::new(),
        false => format!(" --config {}", path.display()),
    }
}

// === Taking over ===

/// One file of a client.
struct Source {
    path: PathBuf,
    scope: Option<Scope>,
    /// The folder of the project that it belongs to.
    project: Option<PathBuf>,
    document: Value,
    inputs: Vec<Input>,
}

/// A server, and which source it is from.
struct Found {
    server: Server,
    source: usize,
}

fn take_over(from: &str, args: &Args) -> Result<(), Failure> {
    let folder = std::env::current_dir().map_err(|error| {
        Failure::Usage(format!("the current folder cannot be told: {error}; change into another"))
    })?;
    let known = Client::named(from);
    let sources = match known {
        Some(client) => look_up(client, &folder)?,
        None => vec![named(Path::new(from))?],
    };
    let output = match &args.output {
        Some(output) => output.clone(),
        None => within(&args.dir, "weir.toml"),
    };
    let beside = output.parent().unwrap_or(Path::new("")).to_owned();
    if !args.print {
        make_way(&output, args.force, false)?;
    }

    let mut told = Vec::new();
    let mut vault = match args.print {
        true => Vault::Variables(Vec::new()),
        false => Vault::Files(Vec::new()),
    };
    let (found, clients) = collect(&sources, known, &folder, &mut told);
    let title = clients.first().map_or("", |client| client.title);
    let text = {
        let mut document = Document::new(title);
        let origin = |found: &Found| {
            let client = clients.get(found.source).copied().unwrap_or(&super::clients::ANY);
            let source = sources.get(found.source);
            Origin {
                variables: client.variables,
                inputs: source.map_or(&[][..], |source| &source.inputs),
                project: source.and_then(|source| source.project.as_deref()),
            }
        };
        let written: Vec<_> = found.iter().map(|found| found.server.name.clone()).collect();
        for (found, name) in found.iter().zip(names::legal(&written)) {
            let old = &found.server.name;
            match mapping::upstream(&found.server, &name, &origin(found), &mut vault) {
                Err(why) => told.push(format!("  {old}: left out: {why}")),
                Ok(mapped) => {
                    if *old != name {
                        told.push(format!("  {old}: is [upstreams.{name}] now"));
                    }
                    told.extend(mapped.moved.iter().map(|moved| format!("  {name}: {moved}")));
                    told.extend(mapped.notes.iter().map(|note| format!("  {name}: {note}")));
                    document.push(&name, mapped.table, &mapped.notes);
                }
            }
        }
        document
    };
    if text.count == 0 {
        let places: Vec<_> = sources.iter().map(|one| one.path.display().to_string()).collect();
        for line in told.iter().filter(|line| line.starts_with(' ')) {
            output::tell(&crate::cli::query::render::plain(line));
        }
        return Err(Failure::NoConfig(format!(
            "{}: no MCP server to take over; name another file with --from FILE, or begin with \
             `weir init`",
            places.join(", ")
        )));
    }
    if args.print {
        told.iter().for_each(|line| output::tell(&crate::cli::query::render::plain(line)));
        output::print(|out| out.write_all(text.to_string().as_bytes()))?;
        output::tell("nothing was written; secrets have become variables to set");
        return Ok(());
    }
    if let Some(path) = vault.in_the_way(&beside).filter(|_| !args.force) {
        return Err(Failure::Usage(format!(
            "{} is there already and holds something else: remove it, write elsewhere, or say --force \
             to replace it and keep a copy",
            path.display()
        )));
    }
    make_way(&output, args.force, true)?;
    vault.write(&beside)?;
    files::write(&output, &text.to_string())?;
    told.iter().for_each(|line| output::tell(&crate::cli::query::render::plain(line)));
    let plural = if text.count == 1 { "" } else { "s" };
    output::tell(&format!("wrote {}: {} upstream{plural}", output.display(), text.count));
    judge(&output);
    let at = config_option(&output);
    let client = known.map_or("CLIENT", |client| client.name);
    output::tell(&format!(
        "next: `weir check{at}` tries it\n      \
         `weir connect {client}{at} --write` puts Weir into the client's file; then take the servers \
         that Weir has now out of it"
    ));
    Ok(())
}

/// Says what is missing until Weir can start with it: mostly variables that nobody has set here.
fn judge(output: &Path) {
    let Err(report) = Config::check(output, &crate::cli::query::oneshot::options(true)) else {
        return;
    };
    let mistakes: Vec<_> =
        report.problems().iter().filter(|problem| problem.severity == Severity::Error).collect();
    for problem in mistakes.iter().take(MAX_TOLD) {
        output::tell(&format!("  still to do: {}: {}", problem.key, problem.what));
    }
    if let Some(more) = mistakes.len().checked_sub(MAX_TOLD).filter(|more| *more > 0) {
        output::tell(&format!("  and {more} more, which `weir check` tells"));
    }
}

/// Reads every file that a client has here.
fn look_up(client: &'static Client, folder: &Path) -> Result<Vec<Source>, Failure> {
    let scopes = [Scope::Project, Scope::User];
    let places: Vec<_> = scopes
        .into_iter()
        .filter_map(|scope| Some((scope, places::file(client, scope, folder)?)))
        .collect();
    let mut sources: Vec<Source> = Vec::new();
    for (scope, path) in &places {
        // In the home folder the project's file is the user's.
        if sources.iter().any(|source| source.path == *path) {
            continue;
        }
        if let Some(written) = document::read(path)? {
            let document = document::parse(&written.text, client.format, path)?;
            let project = (*scope == Scope::Project).then(|| folder.to_owned());
            sources.push(source(path.clone(), Some(*scope), project, document));
        }
    }
    if sources.is_empty() {
        let places: Vec<_> = places.iter().map(|(_, path)| path.display().to_string()).collect();
        return Err(Failure::Usage(format!(
            "{} has no file here, no {}; name its file with --from FILE",
            client.title,
            places.join(" and no ")
        )));
    }
    Ok(sources)
}

/// Reads a file that was named.
fn named(path: &Path) -> Result<Source, Failure> {
    let Some(written) = document::read(path)? else {
        let typed = path.to_string_lossy();
        let remedy = match nearest(&typed, Client::names()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("the clients are {}", Client::names().collect::<Vec<_>>().join(", ")),
        };
        return Err(Failure::Usage(format!(
            "no file {typed}, and no client of this name; {remedy}"
        )));
    };
    let format = document::format_of(path, &written.text);
    let document = document::parse(&written.text, format, path)?;
    Ok(source(path.to_owned(), None, places::project_of(path), document))
}

fn source(
    path: PathBuf,
    scope: Option<Scope>,
    project: Option<PathBuf>,
    document: Value,
) -> Source {
    Source { inputs: variables::inputs(&document), path, scope, project, document }
}

/// Brings the servers of all sources together; of two with the same name, the first source's stays.
fn collect(
    sources: &[Source],
    known: Option<&'static Client>,
    folder: &Path,
    told: &mut Vec<String>,
) -> (Vec<Found>, Vec<&'static Client>) {
    let mut all: Vec<Found> = Vec::new();
    let mut clients = Vec::new();
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    for (number, source) in sources.iter().enumerate() {
        let scope = source.scope.map_or(String::new(), |scope| format!(" ({})", scope.word()));
        let section = server::find(&source.document, known, &source.path, folder);
        let count = section.as_ref().map_or(0, |section| section.servers.len());
        let plural = if count == 1 { "" } else { "s" };
        told.push(format!("read {}{scope}: {count} server{plural}", source.path.display()));
        clients.push(section.as_ref().map_or(&super::clients::ANY, |section| section.client));
        let unread = section.iter().flat_map(|section| &section.unread);
        told.extend(unread.map(|key| {
            format!("  `{key}` of this file is left out: servers are taken from one key of a file")
        }));
        for (name, server) in section.into_iter().flat_map(|section| section.servers) {
            if owners.contains_key(&name) {
                told.push(format!("  {name}: the project's is taken, not the user's"));
                continue;
            }
            owners.insert(name.clone(), number);
            match server {
                Err(why) => told.push(format!("  {name}: left out: {why}")),
                Ok(server) if leads_here(&server, &[]) => {
                    told.push(format!("  {name}: left out: it is Weir itself"));
                }
                Ok(server) => all.push(Found { server, source: number }),
            }
        }
    }
    (all, clients)
}

// === The text ===

/// The configuration while it is being written.
struct Document {
    document: DocumentMut,
    count: usize,
}

impl Document {
    fn new(title: &str) -> Self {
        let mut document = DocumentMut::new();
        let mut upstreams = Table::new();
        upstreams.set_implicit(true);
        document.insert("upstreams", Item::Table(upstreams));
        let head = format!(
            "# Weir's configuration, taken over from {title} by `weir init`.\n\
             # Secrets are not in here: {{ file = \"…\" }} and {{ env = \"…\" }} say where they are.\n\
             # `weir check` tries it.\n"
        );
        document.decor_mut().set_prefix(head);
        Self { document, count: 0 }
    }

    /// Adds an upstream, its notes above it.
    fn push(&mut self, name: &str, mut table: Table, notes: &[String]) {
        let notes: String = notes
            .iter()
            .map(|note| format!("# {}\n", crate::cli::query::render::plain(note)))
            .collect();
        table.decor_mut().set_prefix(format!("\n{notes}"));
        if let Some(upstreams) = self.document.get_mut("upstreams").and_then(Item::as_table_mut) {
            upstreams.insert(name, Item::Table(table));
        }
        self.count += 1;
    }
}

impl std::fmt::Display for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.document)
    }
}
