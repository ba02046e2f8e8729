//! `weir doctor`: looks for everything that keeps a client from Weir's servers, and names for each
//! finding the command or edit that mends it.
//!
//! Invariants: no client's file and no configuration is changed; no finding contains a value of a
//! variable, a header or an argument; the exit code is 1 if something is to be done.

mod client_files;
mod config_file;
mod doubles;
mod entry;
mod entry_variables;
mod finding;
mod listing;
mod ownership;
mod processes;
mod state_folder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;

use crate::cli::clients::McpClient;
use crate::cli::clients::connect::connect_command::ConnectCommand;
use crate::cli::clients::connect::method::endpoint;
use crate::cli::clients::known::CLIENTS;
use crate::cli::clients::places::Scope;
use crate::cli::exit::Failure;
use crate::cli::output::render::counted;
use crate::cli::{loading, output};
use client_files::{ClientFiles, existing};
use config_file::CheckedConfig;
use entry::{ConfigUse, WeirEntry};
use finding::{DoctorFinding, DoctorReport, SoundClient};
use weir_base::text::shell_word::ShellWord;
use weir_config::Config;
use weir_upstream::connect::system::System;

/// Arguments of `weir doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The client to look at [default: all whose files exist].
    #[arg(value_parser = PossibleValuesParser::new(McpClient::names()))]
    client: Option<String>,
    /// Starts no servers, and so leaves out what only their lists show.
    #[arg(long)]
    offline: bool,
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    /// The configuration of entries that name none [default: $WEIR_CONFIG, else ./weir.toml, else
    /// weir/weir.toml in the user's configuration folder].
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Looks at the clients, the configurations that they use, and the processes that run with these.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let folder = std::env::current_dir().unwrap_or_default();
    let named = args.client.as_deref().and_then(McpClient::named);
    if let Some(client) = named.filter(|client| !client.has_file()) {
        return Err(Failure::Usage(format!(
            "{} has its servers in its own settings, not in a file: compare the entry there with \
             that of `weir connect {}`",
            client.title, client.name
        )));
    }
    let default_config = loading::config_path(args.config.as_deref()).ok();
    let default_config = default_config.map(|path| std::path::absolute(&path).unwrap_or(path));
    let mut examination = Examination { report: DoctorReport::default(), default_config };
    let clients = match named {
        Some(client) => vec![client],
        None => clients_with_files(&folder),
    };
    let mut examined = Vec::new();
    for client in clients {
        examined.push(examination.examine(client, &folder));
    }
    examination.report_unconnected(&examined, named.is_some());
    let mut by_config: BTreeMap<PathBuf, Vec<(&ClientFiles, &ConfigUse)>> = BTreeMap::new();
    for (files, uses) in &examined {
        for used in uses {
            by_config.entry(used.path.clone()).or_default().push((files, used));
        }
    }
    if by_config.is_empty() {
        let found = examination.default_config.clone().filter(|path| path.exists());
        by_config.extend(found.map(|path| (path, Vec::new())));
    }
    for (path, uses) in &by_config {
        examination.check_config(path, uses, &args).await;
    }
    let report = examination.finish(&examined);
    output::print_report(args.json, &report, |out| {
        out.write_all(report.format(output::stdout_text()).as_bytes())
    })?;
    match report.count_to_do() {
        0 => Ok(()),
        count => Err(Failure::CheckFailed(format!("{} to mend", counted(count as u64, "finding")))),
    }
}

/// Findings so far.
struct Examination {
    report: DoctorReport,
    /// Configuration of entries that name none.
    default_config: Option<PathBuf>,
}

impl Examination {
    /// Examines the files and entries of a client.
    fn examine(
        &mut self,
        client: &'static McpClient,
        folder: &Path,
    ) -> (ClientFiles, Vec<ConfigUse>) {
        let files = ClientFiles::read(client, folder, &mut self.report);
        let endpoints = self.endpoints();
        let mut uses = Vec::new();
        for found in files.weir_entries(&endpoints) {
            let entry = WeirEntry::new(client, found, self.default_config.as_deref());
            uses.extend(entry.check(&endpoints, &mut self.report));
        }
        (files, uses)
    }

    /// URLs under which clients reach the Weir of the default configuration.
    fn endpoints(&self) -> Vec<String> {
        let path = self.default_config.as_ref().filter(|path| path.exists());
        let listeners = path.map(|path| Config::listeners(path, &loading::options(true)).0);
        listeners.iter().map(|listeners| endpoint(&listeners.server)).collect()
    }

    /// Reports clients without an entry for Weir: a fault if the user has named the client, or if
    /// no client has one.
    fn report_unconnected(&mut self, examined: &[(ClientFiles, Vec<ConfigUse>)], is_named: bool) {
        let endpoints = self.endpoints();
        let has_entry = |files: &ClientFiles| files.weir_entries(&endpoints).next().is_some();
        let is_fault = is_named || !examined.iter().any(|(files, _)| has_entry(files));
        let is_unconnected = |files: &ClientFiles| files.is_complete && !has_entry(files);
        // Without a configuration, only a take-over has something to write.
        let has_config = self.default_config.as_ref().is_some_and(|path| path.exists());
        let action = if has_config { "--write" } else { "--take-over" };
        for (files, _) in examined.iter().filter(|(files, _)| is_unconnected(files)) {
            let client = files.client;
            let command = ConnectCommand {
                client,
                entry: "weir",
                scope: Scope::User,
                action,
                config: None,
                is_stdio: false,
            };
            let what = match files.files.first() {
                Some(file) => format!("there is no entry for Weir in {}", file.path.display()),
                None => "it has no file with an entry for Weir".to_owned(),
            };
            let found = match is_fault {
                true => DoctorFinding::error(what, command.to_string()),
                false => DoctorFinding::note(format!("{what}: `{command}` adds one")),
            };
            self.report.add(found.of(client));
        }
        if examined.is_empty() {
            let what = "no client has a file here";
            let begin = if has_config { "" } else { "weir init; " };
            let fix = format!("{begin}weir connect CLIENT --write");
            self.report.add(DoctorFinding::error(what, fix));
        }
    }

    /// Checks one configuration, for each entry that leads to it: first servers that are missing,
    /// then faults of less weight.
    async fn check_config(
        &mut self,
        path: &Path,
        uses: &[(&ClientFiles, &ConfigUse)],
        args: &Args,
    ) {
        let all: Vec<_> = uses.iter().map(|(_, used)| *used).collect();
        let Some(mut checked) = CheckedConfig::read(path, &all, &mut self.report) else {
            processes::check(path, &mut self.report).await;
            return;
        };
        let state = checked.config.state.dir.clone();
        let system = System::for_program().with_login_shell(state.as_deref(), true);
        for used in all.iter().filter(|used| used.is_stdio) {
            checked.check_use(used, &system, &mut self.report).await;
        }
        let mut later = DoctorReport::default();
        let keeps_lists = state_folder::check(&checked.config, path, &mut later);
        if !args.offline && checked.is_usable_here() {
            if !args.json {
                let text = format!("listing all servers of {}, at most 60 s", path.display());
                output::print_stderr(&output::render::sanitize_line(&text));
            }
            listing::check(path, &all, &checked, keeps_lists, &mut self.report).await;
        }
        for (files, used) in uses {
            let default = self.default_config.as_deref();
            doubles::check(files, used, &checked.config, default, &mut self.report);
        }
        self.report_repeated(uses);
        let is_served = processes::check(path, &mut self.report).await;
        for used in all.iter().filter(|used| !used.is_stdio && !is_served) {
            let (file, line) = &used.place;
            let what = format!("no Weir runs that the entry `{}` could connect to", used.entry);
            let fix = format!("weir serve --config {}", ShellWord(&path.display().to_string()));
            self.report.add(DoctorFinding::error(what, fix).of(used.client).at(file, *line));
        }
        later.findings.into_iter().for_each(|finding| self.report.add(finding));
    }

    /// Adds the clients in which everything is as it should be, and sorts the findings.
    fn finish(mut self, examined: &[(ClientFiles, Vec<ConfigUse>)]) -> DoctorReport {
        let endpoints = self.endpoints();
        for (files, uses) in examined {
            let name = files.client.name;
            if !self.report.is_sound(files.client) {
                continue;
            }
            let summary = match uses.first() {
                Some(used) if used.is_stdio => format!("starts Weir with {}", used.path.display()),
                Some(used) => format!("connects to the Weir of {}", used.path.display()),
                None if files.weir_entries(&endpoints).next().is_some() => {
                    "connects to a Weir elsewhere".to_owned()
                }
                None => continue,
            };
            self.report.sound.push(SoundClient { name, summary });
        }
        self.report.sort();
        self.report
    }

    /// Reports further entries of one file for one configuration.
    fn report_repeated(&mut self, uses: &[(&ClientFiles, &ConfigUse)]) {
        for (at, (_, used)) in uses.iter().enumerate() {
            let mut earlier = uses.iter().take(at).map(|(_, used)| used);
            let is_same =
                |other: &&&ConfigUse| other.entry != used.entry && other.place.0 == used.place.0;
            let Some(first) = earlier.find(is_same) else { continue };
            let what = format!(
                "the entries `{}` and `{}` lead to one configuration: its items are there twice",
                first.entry, used.entry
            );
            let command = ConnectCommand {
                client: used.client,
                entry: &used.entry,
                scope: used.scope,
                action: "--remove",
                config: None,
                is_stdio: false,
            };
            let found = DoctorFinding::warning(what, command.to_string());
            let (file, line) = &used.place;
            self.report.add(found.of(used.client).at(file, *line));
        }
    }
}

/// Clients of which a file exists. A project's file of several clients is that of the first, unless
/// another one has a file of the user.
fn clients_with_files(folder: &Path) -> Vec<&'static McpClient> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut clients = Vec::new();
    for client in CLIENTS.iter().filter(|client| client.has_file()) {
        let files = existing(client, folder);
        let has_own = files.iter().any(|(scope, _)| *scope == Scope::User);
        let is_new = files.iter().any(|(_, path)| !seen.contains(path));
        if has_own || is_new {
            clients.push(client);
        }
        seen.extend(files.into_iter().map(|(_, path)| path));
    }
    clients
}
