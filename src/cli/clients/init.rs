//! `weir init`: writes a starter configuration, or imports the servers of a client.
//!
//! Invariants: a file is overwritten only with `--force`, after a copy, and servers are added to a
//! configuration without changing the rest of it; neither the configuration nor any output contains
//! a secret; settings that cannot be imported are listed.

mod mapping;
pub(crate) mod names;
pub(crate) mod secrets;
mod texts;
pub(crate) mod upstream_table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, Table};

use crate::cli::clients::McpClient;
use crate::cli::clients::document::{self, DocumentValue, JsonDialect};
use crate::cli::clients::places::{self, Scope};
use crate::cli::clients::sections::{self, ServerSection};
use crate::cli::clients::server::ClientServer;
use crate::cli::clients::server_lists::{ServerLists, names_of_project};
use crate::cli::clients::variables::{self, TranslateContext};
use crate::cli::clients::weir_entry::is_weir_entry;
use crate::cli::exit::Failure;
use crate::cli::output::command_hints::config_option;
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::{files, output};
use secrets::SecretStore;
use upstream_table::UpstreamTable;
use weir_config::{Config, ConfigProblem, Severity, nearest};

/// Arguments of `weir init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder to write to.
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "output")]
    dir: PathBuf,
    /// Imports the servers of an MCP client: one of claude-desktop, claude-code, vscode, cursor,
    /// codex, gemini, zed, windsurf, copilot, kiro, junie, cline, lm-studio, opencode, goose, qwen,
    /// whose files are found automatically (this project's before the user's), or a file.
    ///
    /// A configuration that exists is extended: a server that it has already is skipped, and
    /// another one of the same name gets a number. Literal tokens and passwords are moved to
    /// separate files in `secrets` beside the configuration, also those in arguments and URLs. The
    /// client's file is only read, as the client itself reads it: a server that it has disabled
    /// becomes a disabled upstream, and what is left out is said.
    #[arg(long, value_name = "CLIENT|FILE")]
    from: Option<String>,
    /// The configuration to write, instead of weir.toml in the folder.
    #[arg(long, short, value_name = "FILE", requires = "from")]
    output: Option<PathBuf>,
    /// Prints the configuration and writes nothing; secrets become variables that you set.
    #[arg(long, requires = "from", conflicts_with_all = ["output", "dir"])]
    print: bool,
    /// Replaces existing files, after a copy of each, instead of adding servers to them.
    #[arg(long)]
    force: bool,
}

/// Function that adds servers to the configuration at a path, with messages about each; returns
/// those that the configuration has then.
pub(crate) type AddServers =
    fn(&[FoundServer<'_>], &Path, &mut Vec<String>) -> Result<Vec<ImportedServer>, Failure>;

/// Writes a configuration, or adds the imported servers to one with `add_servers`.
pub(crate) fn run(args: &Args, add_servers: AddServers) -> Result<(), Failure> {
    match &args.from {
        None => write_starter(&args.dir, args.force),
        Some(from) => {
            let scopes = [Scope::Project, Scope::User];
            import(from, &scopes, args, add_servers).map(drop)
        }
    }
}

/// Most errors of the new configuration that are shown.
const MAX_SHOWN_ERRORS: usize = 20;

// === Starter ===

/// Writes the starter files.
fn write_starter(folder: &Path, force: bool) -> Result<(), Failure> {
    let starter = [
        (path_in(folder, "weir.toml"), STARTER),
        (path_in(folder, "prompts/explain-error.md"), include_str!("init/explain-error.md")),
    ];
    for (path, _) in &starter {
        check_overwrite(path, force, false)?;
    }
    for (path, text) in &starter {
        check_overwrite(path, force, true)?;
        files::write(path, text)?;
        output::print_stderr(&format!("wrote {}", path.display()));
    }
    let at = config_flag(&starter[0].0);
    output::print_stderr(&format!(
        "next: `weir check{at}` tries it, `weir list{at}` shows what clients will see\n      \
         `weir connect CLIENT{at}` prints the entry for a client, such as claude-code or \
         cursor\n      `weir init --from CLIENT` imports the servers that a client has already"
    ));
    Ok(())
}

/// Fails if a file exists and may not be replaced. With `act`, an existing file is copied.
fn check_overwrite(path: &Path, force: bool, act: bool) -> Result<(), Failure> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    if !force {
        return Err(Failure::Usage(format!(
            "{} exists already: remove it, write elsewhere, or use --force to replace it and keep \
             a copy",
            path.display()
        )));
    }
    if act && path.exists() {
        let backup = files::back_up_file(path)?;
        output::print_stderr(&format!("copied {} to {}", path.display(), backup.display()));
    }
    Ok(())
}

/// Path of a file in a folder; for the current folder only the file name.
fn path_in(folder: &Path, file: &str) -> PathBuf {
    if folder == Path::new(".") { PathBuf::from(file) } else { folder.join(file) }
}

/// Option with which a command finds the configuration, if it needs one.
fn config_flag(path: &Path) -> String {
    let is_found = path == Path::new("weir.toml");
    if is_found { String::new() } else { format!(" {}", config_option(path)) }
}

/// First comment of the starter file, without the words about its examples.
pub(crate) fn starter_comment() -> String {
    let comment = STARTER.split("\n\n").next().unwrap_or_default();
    let commands = comment.lines().skip(1).map(|line| format!("{line}\n"));
    format!("# Weir's configuration.\n{}", commands.collect::<String>())
}

/// Configuration to start with.
const STARTER: &str = include_str!("init/starter.toml");

// === Import ===

/// File of a client.
pub(crate) struct ImportFile {
    path: PathBuf,
    scope: Option<Scope>,
    /// Folder of the project that it belongs to.
    project: Option<PathBuf>,
    document: DocumentValue,
}

/// Server, with the file and the client that it is of.
pub(crate) struct FoundServer<'a> {
    pub(crate) server: ClientServer,
    file: &'a ImportFile,
    client: &'static McpClient,
}

impl FoundServer<'_> {
    /// Converts it to the table of an upstream. The error says why Weir cannot use it.
    pub(crate) fn to_table(
        &self,
        name: &str,
        store: &mut SecretStore,
    ) -> Result<UpstreamTable, String> {
        let context = TranslateContext {
            variables: self.client.variables,
            project: self.file.project.as_deref(),
            inputs: &variables::inputs(&self.file.document),
            own: &self.server.own_variables(),
        };
        let mut converted = UpstreamTable::of(&self.server, name, context, store)?;
        if !self.server.enabled {
            let message = "the client has switched it off, so it is disabled";
            converted.messages.push(message.to_owned());
        }
        Ok(converted)
    }
}

/// Server that was imported.
pub(crate) struct ImportedServer {
    /// Name in the client's file.
    pub(crate) name: String,
    /// Name of its upstream.
    pub(crate) upstream: String,
    /// False if the client has switched it off.
    pub(crate) enabled: bool,
}

/// Imports the servers of one file of a client into a configuration.
pub(crate) fn import_client(
    client: &McpClient,
    scope: Scope,
    config: &Path,
    add_servers: AddServers,
) -> Result<Vec<ImportedServer>, Failure> {
    let args = Args {
        dir: PathBuf::from("."),
        from: Some(client.name.to_owned()),
        output: Some(config.to_owned()),
        print: false,
        force: false,
    };
    import(client.name, &[scope], &args, add_servers)
}

fn import(
    from: &str,
    scopes: &[Scope],
    args: &Args,
    add_servers: AddServers,
) -> Result<Vec<ImportedServer>, Failure> {
    let folder = std::env::current_dir().map_err(|error| {
        Failure::Usage(format!("the current folder is unknown: {error}; change into another"))
    })?;
    let known = McpClient::named(from);
    let sources = match known {
        Some(client) => read_client_files(client, scopes, &folder)?,
        None => vec![read_named_file(Path::new(from))?],
    };
    let output = match &args.output {
        Some(output) => output.clone(),
        None => path_in(&args.dir, "weir.toml"),
    };
    let beside = output.parent().unwrap_or(Path::new("")).to_owned();
    let extends = !args.print && !args.force && output.exists();
    if !args.print && !extends {
        check_overwrite(&output, args.force, false)?;
    }

    let mut messages = Vec::new();
    let mut store = match args.print {
        true => SecretStore::Variables(Vec::new()),
        false => SecretStore::Files(Vec::new()),
    };
    let settings = match known {
        Some(client) => read_settings_files(client, &folder)?,
        None => Vec::new(),
    };
    let documents = sources.iter().map(|source| &source.document).chain(&settings);
    let lists = ServerLists::read(&documents.collect::<Vec<_>>(), &folder);
    let found = collect(&sources, known, &folder, &lists, &mut messages);
    let is_take_over = scopes.len() < 2;
    if extends {
        let imported = add_servers(&found, &output, &mut messages)?;
        if imported.is_empty() {
            return Err(nothing_to_import(&sources, messages));
        }
        print_next_steps(&output, known, is_take_over);
        return Ok(imported);
    }
    let (upstreams, imported) = convert(&found, &mut store, &mut messages);
    if upstreams.is_empty() {
        return Err(nothing_to_import(&sources, messages));
    }
    let count = counted(upstreams.len() as u64, "upstream");
    let text = format_config(found.first().map_or("", |first| first.client.title), upstreams);
    if args.print {
        print_messages(&messages);
        output::print(|out| out.write_all(text.as_bytes()))?;
        output::print_stderr("nothing was written; secrets are variables to set");
        return Ok(imported);
    }
    if let Some(path) = store.find_conflict(&beside).filter(|_| !args.force) {
        return Err(Failure::Usage(format!(
            "{} exists already with other content: remove it, write elsewhere, or use --force \
             to replace it and keep a copy",
            path.display()
        )));
    }
    check_overwrite(&output, args.force, true)?;
    let secrets = store.write(&beside)?;
    files::write(&output, &text)?;
    secrets.keep();
    print_messages(&messages);
    output::print_stderr(&format!("wrote {}: {count}", output.display()));
    print_next_steps(&output, known, is_take_over);
    Ok(imported)
}

/// Prints what is missing, and the next steps, which a take-over does itself.
fn print_next_steps(output: &Path, known: Option<&McpClient>, is_take_over: bool) {
    report_missing(output);
    if is_take_over {
        return;
    }
    let at = config_flag(output);
    let client = known.map_or("CLIENT", |client| client.name);
    output::print_stderr(&format!(
        "next: `weir check{at}` tries it\n      \
         `weir connect {client}{at} --take-over` adds Weir to the client's file, and moves the \
         servers that come up out of it"
    ));
}

/// Prints why servers were left out, and returns the failure that none is left.
fn nothing_to_import(sources: &[ImportFile], mut messages: Vec<String>) -> Failure {
    let places: Vec<_> = sources.iter().map(|one| one.path.display().to_string()).collect();
    messages.retain(|line| line.starts_with(' '));
    print_messages(&messages);
    Failure::NoConfig(format!(
        "{}: no MCP server to import; name another file with --from FILE, or start with \
         `weir init`",
        places.join(", ")
    ))
}

/// Converts the servers to the tables of their upstreams; returns also their names.
fn convert(
    found: &[FoundServer<'_>],
    store: &mut SecretStore,
    messages: &mut Vec<String>,
) -> (Table, Vec<ImportedServer>) {
    let mut upstreams = document::implicit_table();
    let mut imported = Vec::new();
    let written: Vec<_> = found.iter().map(|found| found.server.name.clone()).collect();
    for (one, name) in found.iter().zip(names::legal(&written)) {
        let old = &one.server.name;
        let converted = match one.to_table(&name, store) {
            Ok(converted) => converted,
            Err(why) => {
                messages.push(format!("  {old}: left out: {why}"));
                continue;
            }
        };
        if *old != name {
            messages.push(format!("  {old}: is [upstreams.{name}] now"));
        }
        messages.extend(converted.messages.iter().map(|text| format!("  {name}: {text}")));
        upstreams.insert(&name, Item::Table(converted.table));
        let enabled = one.server.enabled;
        imported.push(ImportedServer { name: old.clone(), upstream: name, enabled });
    }
    (upstreams, imported)
}

/// Prints messages, which may contain names from a client's file.
pub(crate) fn print_messages(messages: &[String]) {
    messages.iter().for_each(|line| output::print_stderr(&sanitize_line(line)));
}

/// Reports what is missing until all servers can start: mostly variables that are not set here.
fn report_missing(output: &Path) {
    let problems = match Config::check(output, &crate::cli::loading::options(true)) {
        Ok(warnings) => warnings,
        Err(report) => report.problems().to_vec(),
    };
    let is_to_do = |it: &&ConfigProblem| it.severity == Severity::Error || it.is_missing_value;
    let to_do = problems.iter().filter(is_to_do);
    for problem in to_do.clone().take(MAX_SHOWN_ERRORS) {
        output::print_stderr(&format!("  still to do: {}: {}", problem.key, problem.what));
    }
    if let more @ 1.. = to_do.count().saturating_sub(MAX_SHOWN_ERRORS) {
        output::print_stderr(&format!("  and {more} more, which `weir check` shows"));
    }
}

/// Reads all files of a client on this machine.
fn read_client_files(
    client: &'static McpClient,
    scopes: &[Scope],
    folder: &Path,
) -> Result<Vec<ImportFile>, Failure> {
    if !client.has_file() {
        return Err(Failure::Usage(format!(
            "{} has its servers in its own settings: copy them there as JSON into a file, and name \
             that with --from FILE",
            client.title
        )));
    }
    let places: Vec<_> = scopes
        .iter()
        .copied()
        .filter_map(|scope| Some((scope, places::file(client, scope, folder)?)))
        .collect();
    let mut sources: Vec<ImportFile> = Vec::new();
    for (scope, path) in places.iter().cloned() {
        // In the home folder both scopes have the same file.
        if sources.iter().any(|source| source.path == path) {
            continue;
        }
        if let Some(written) = document::read(&path)? {
            let document = document::parse(&written.text, client.format, client.dialect, &path)?;
            let project = (scope == Scope::Project).then(|| folder.to_owned());
            sources.push(ImportFile { path, scope: Some(scope), project, document });
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

/// Reads the other files in which a client enables and disables servers.
pub(crate) fn read_settings_files(
    client: &'static McpClient,
    folder: &Path,
) -> Result<Vec<DocumentValue>, Failure> {
    let mut documents = Vec::new();
    for path in places::settings_files(client, folder) {
        if let Some(written) = document::read(&path)? {
            let parsed = document::parse(&written.text, client.format, client.dialect, &path)?;
            documents.push(parsed);
        }
    }
    Ok(documents)
}

/// Reads the file that `--from` names.
fn read_named_file(path: &Path) -> Result<ImportFile, Failure> {
    let Some(written) = document::read(path)? else {
        let typed = path.to_string_lossy();
        let remedy = match nearest(&typed, McpClient::names()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => {
                format!("the clients are {}", McpClient::names().collect::<Vec<_>>().join(", "))
            }
        };
        return Err(Failure::Usage(format!(
            "no file {typed}, and no client of this name; {remedy}"
        )));
    };
    let format = document::detect_format(path, &written.text);
    let document = document::parse(&written.text, format, JsonDialect::TOLERANT, path)?;
    let project = places::project_of(path);
    Ok(ImportFile { path: path.to_owned(), scope: None, project, document })
}

/// Collects the servers of all files; of two with one name, that of the first file is used.
fn collect<'a>(
    sources: &'a [ImportFile],
    known: Option<&'static McpClient>,
    folder: &Path,
    lists: &ServerLists,
    messages: &mut Vec<String>,
) -> Vec<FoundServer<'a>> {
    let mut all = Vec::new();
    let of_project: BTreeSet<_> =
        sources.iter().flat_map(|it| names_of_project(&it.document, folder)).collect();
    let mut names = BTreeSet::new();
    for file in sources {
        let scope = file.scope.map_or(String::new(), |scope| format!(" ({scope})"));
        let section = sections::find(&file.document, known, &file.path, folder, lists);
        let count = section.as_ref().map_or(0, |section| section.servers.len());
        let count = counted(count as u64, "server");
        messages.push(format!("read {}{scope}: {count}", file.path.display()));
        let Some(ServerSection { servers, client, unread }) = section else { continue };
        messages.extend(unread.iter().map(|key| {
            format!("  `{key}` of this file is left out: servers are read from one key of a file")
        }));
        let mut unused = [Vec::new(), Vec::new()];
        for (name, server) in servers {
            let is_of_project = file.scope == Some(Scope::Project) && of_project.contains(&name);
            if is_of_project || !names.insert(name.clone()) {
                unused[usize::from(!is_of_project)].push(name);
                continue;
            }
            match server {
                Err(why) => messages.push(format!("  {name}: left out: {why}")),
                Ok(server) if is_weir_entry(&server, &[]) => {
                    messages.push(format!("  {name}: left out: it is Weir itself"));
                }
                Ok(server) => all.push(FoundServer { server, file, client }),
            }
        }
        let unused = unused.iter().zip(UNUSED).filter(|(names, _)| !names.is_empty());
        messages.extend(unused.map(|(names, why)| format!("  {}: {why}", names.join(", "))));
    }
    all
}

/// Why a server of two with one name is not used.
const UNUSED: [&str; 2] = [
    "the user's server for this project is used, not the project's",
    "the project's server is used, not the user's",
];

/// Formats the configuration with these upstreams.
fn format_config(title: &str, upstreams: Table) -> String {
    let mut document = DocumentMut::new();
    document.insert("upstreams", Item::Table(upstreams));
    document.decor_mut().set_prefix(format!(
        "# Weir's configuration, imported from {title} by `weir init`.\n\
         # It contains no secrets: {{ file = \"…\" }} and {{ env = \"…\" }} refer to them.\n\
         # `weir check` tries it.\n"
    ));
    document.to_string()
}
