//! Entry for Weir in a client's file: its program, its configuration and its environment.

use std::ffi::OsString;
use std::fs::canonicalize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::client_files::{ClientFile, PlacedServer};
use super::entry_variables::EntryVariables;
use super::finding::{DoctorFinding, DoctorReport};
use super::ownership;
use crate::cli::clients::McpClient;
use crate::cli::clients::connect::connect_command::ConnectCommand;
use crate::cli::clients::connect::entry::PLACEHOLDER;
use crate::cli::clients::connect::method::is_shared;
use crate::cli::clients::places::Scope;
use crate::cli::clients::server::{HeaderSource, ServerTransport};
use crate::cli::clients::weir_entry::is_weir;
use crate::cli::loading;
use weir_base::text::shell_word::ShellWord;
use weir_config::Config;
use weir_upstream::process::search_path::find_program;

/// Use of a configuration by an entry of a client.
pub(super) struct ConfigUse {
    pub(super) client: &'static McpClient,
    /// Name of the entry.
    pub(super) entry: String,
    pub(super) scope: Scope,
    pub(super) path: PathBuf,
    /// The client starts `weir stdio`, instead of connecting to a running Weir.
    pub(super) is_stdio: bool,
    /// Client of `--as`.
    pub(super) as_client: Option<String>,
    /// Environment of Weir.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Names of the variables that the entry sets or passes on.
    pub(super) given: Vec<String>,
    /// Time within which Weir must have listed its tools, if the client has a limit.
    pub(super) startup: Option<Duration>,
    /// File and line of the entry.
    pub(super) place: (PathBuf, Option<usize>),
}

/// Entry with its place.
pub(super) struct WeirEntry<'a> {
    client: &'static McpClient,
    file: &'a ClientFile,
    placed: &'a PlacedServer,
    variables: EntryVariables<'a>,
    /// Configuration that an entry without one leads to.
    default_config: Option<&'a Path>,
}

impl<'a> WeirEntry<'a> {
    pub(super) fn new(
        client: &'static McpClient,
        (file, placed): (&'a ClientFile, &'a PlacedServer),
        default_config: Option<&'a Path>,
    ) -> Self {
        let variables = EntryVariables { client, server: &placed.server };
        Self { client, file, placed, variables, default_config }
    }

    /// Checks the entry; returns the configuration that it leads to, if there is one.
    /// `endpoints` are those of the default configuration.
    pub(super) fn check(
        &self,
        endpoints: &[String],
        report: &mut DoctorReport,
    ) -> Option<ConfigUse> {
        let name = &self.placed.server.name;
        if !self.placed.server.enabled {
            let fix = match self.client.allow_list {
                Some(_) => self.rewrite(self.default_config),
                None => format!("switch it on in {}", self.client.title),
            };
            let what = format!("the client has switched off the entry `{name}`");
            self.add(report, DoctorFinding::error(what, fix));
        }
        if self.has_placeholder() {
            let what = format!("the entry `{name}` has {PLACEHOLDER} in the place of a key");
            let fix = "write the key of this client there; `weir keys add` makes one";
            self.add(report, DoctorFinding::error(what, fix));
        }
        let environment = self.variables.environment();
        match self.placed.process() {
            None => {
                self.check_key_variables(report);
                // Another URL leads to a Weir elsewhere.
                let is_here = is_weir(&self.placed.server, endpoints);
                let config = self.default_config.filter(|_| is_here)?;
                self.config_use(config.to_owned(), environment, None, false)
            }
            Some((command, args)) => {
                let config = self.config_path(args, report);
                if let Some(command) = self.variables.expand(command) {
                    self.check_program(&command, &environment, config.as_deref(), report);
                }
                let is_stdio = args.iter().any(|arg| arg == "stdio");
                let as_client = option_value(args, &["--as"]);
                self.config_use(config?, environment, as_client, is_stdio)
            }
        }
    }

    fn config_use(
        &self,
        path: PathBuf,
        environment: Vec<(OsString, OsString)>,
        as_client: Option<String>,
        is_stdio: bool,
    ) -> Option<ConfigUse> {
        Some(ConfigUse {
            client: self.client,
            entry: self.placed.server.name.clone(),
            scope: self.file.scope,
            path,
            is_stdio,
            as_client,
            environment,
            given: self.variables.given(),
            startup: self.placed.server.startup.or(self.client.limits.startup),
            place: (self.file.path.clone(), self.file.line_of(self.placed)),
        })
    }

    fn add(&self, report: &mut DoctorReport, finding: DoctorFinding) {
        let line = self.file.line_of(self.placed);
        report.add(finding.of(self.client).at(&self.file.path, line));
    }

    /// Command that writes the entry anew. An entry with `--as` would lose it.
    fn rewrite(&self, config: Option<&Path>) -> String {
        let args = self.placed.process().map(|(_, args)| args).unwrap_or_default();
        if let Some(client) = option_value(args, &["--as"]) {
            let program = own_program().unwrap_or_else(|| PathBuf::from("weir"));
            return format!(
                "write {} there as the program, and keep --as {}",
                program.display(),
                ShellWord(&client)
            );
        }
        let is_for_several = |path: &Path| {
            let config = Config::without_upstreams(path, &loading::options(true));
            config.is_ok_and(|config| is_shared(&config))
        };
        let command = ConnectCommand {
            client: self.client,
            entry: &self.placed.server.name,
            scope: self.file.scope,
            action: "--write",
            config: config.filter(|config| Some(*config) != self.default_config),
            is_stdio: args.iter().any(|arg| arg == "stdio") && config.is_some_and(is_for_several),
        };
        command.to_string()
    }

    /// Finds the configuration of an entry for `weir stdio`.
    fn config_path(&self, args: &[String], report: &mut DoctorReport) -> Option<PathBuf> {
        let named = match option_value(args, &["--config", "-c"]) {
            // Only the client may know the folder of a project.
            Some(named) => Some(self.variables.expand(&named)?),
            None => self.variables.get("WEIR_CONFIG"),
        };
        let Some(named) = named else {
            if self.default_config.is_none() {
                let what = "there is no configuration that the entry could find";
                let fix = format!("weir init --from {}", self.client.name);
                self.add(report, DoctorFinding::error(what, fix));
            }
            return self.default_config.map(Path::to_owned);
        };
        let path = PathBuf::from(&named);
        let whole = std::path::absolute(&path).unwrap_or(path.clone());
        if path.is_relative() {
            let what = format!(
                "the entry names the configuration {named}, which depends on the folder in which \
                 the client starts it"
            );
            self.add(report, DoctorFinding::warning(what, self.rewrite(Some(&whole))));
        }
        if whole.exists() {
            return Some(whole);
        }
        let fix = match self.default_config {
            Some(default) => self.rewrite(Some(default)),
            None if whole.ends_with("weir.toml") => {
                let folder = whole.parent().unwrap_or(Path::new(".")).display().to_string();
                format!("weir init --dir {}", ShellWord(&folder))
            }
            None => {
                let whole = whole.display().to_string();
                format!("weir init --from {} --output {}", self.client.name, ShellWord(&whole))
            }
        };
        let what = format!("the configuration of the entry is not there: {}", whole.display());
        self.add(report, DoctorFinding::error(what, fix));
        None
    }

    /// Checks that the client can start the program, and that it is this one.
    fn check_program(
        &self,
        command: &str,
        environment: &[(OsString, OsString)],
        config: Option<&Path>,
        report: &mut DoctorReport,
    ) {
        let path = environment.iter().rfind(|(name, _)| name == "PATH");
        let path = path.and_then(|(_, path)| path.to_str());
        let name = &self.placed.server.name;
        match find_program(command, path, Path::new("")) {
            Err(_) if command.contains('/') => {
                let what = format!("the entry `{name}` starts {command}, which is not there");
                self.add(report, DoctorFinding::error(what, self.rewrite(config)));
            }
            Err(_) => {
                let here = std::env::var("PATH").ok();
                let is_here = find_program(command, here.as_deref(), Path::new("")).is_ok();
                let whose = if self.client.start.is_desktop { "a desktop" } else { "the client" };
                let what = format!(
                    "the entry `{name}` starts `{command}`, which is not in the PATH of {whose}"
                );
                let found = match is_here {
                    // A client may ask the login shell for another PATH.
                    true => DoctorFinding::warning(what, self.rewrite(config)),
                    false => DoctorFinding::error(what, self.rewrite(config)),
                };
                self.add(report, found);
            }
            Ok(program) if is_named_weir(command) => {
                let found = ownership::check(&program).into_iter();
                found.for_each(|found| report.add(found.of(self.client).at(&program, None)));
                let Some(own) = own_program().filter(|own| !is_same(&program, own)) else { return };
                let what = format!(
                    "the entry `{name}` starts another Weir, {}; this one is {}",
                    program.display(),
                    own.display()
                );
                self.add(report, DoctorFinding::warning(what, self.rewrite(config)));
            }
            Ok(_) => {}
        }
    }

    /// Checks that the variables are set that the headers of an entry name.
    fn check_key_variables(&self, report: &mut DoctorReport) {
        let ServerTransport::Http { headers, .. } = &self.placed.server.transport else { return };
        for (_, value) in headers {
            let variable = match value {
                HeaderSource::Variable(name) | HeaderSource::Bearer(name) => Some(name.clone()),
                HeaderSource::Text(text) => {
                    self.variables.single(text.strip_prefix("Bearer ").unwrap_or(text))
                }
            };
            let Some(variable) = variable.filter(|it| std::env::var_os(it).is_none()) else {
                continue;
            };
            let what = format!("the entry takes its key from {variable}, which is not set here");
            let fix = format!("set {variable} where {} starts", self.client.title);
            self.add(report, DoctorFinding::warning(what, fix));
        }
    }

    fn has_placeholder(&self) -> bool {
        let has = |text: &String| text.contains(PLACEHOLDER);
        match &self.placed.server.transport {
            ServerTransport::Process { args, env, .. } => {
                args.iter().any(has) || env.iter().any(|(_, value)| has(value))
            }
            ServerTransport::Http { headers, .. } => headers.iter().any(|(_, value)| match value {
                HeaderSource::Text(text) => has(text),
                HeaderSource::Variable(_) | HeaderSource::Bearer(_) => false,
            }),
        }
    }
}

/// Returns the value of an option of a command line; a short one may be joined with its value.
fn option_value(args: &[String], names: &[&str]) -> Option<String> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        for name in names {
            match arg.strip_prefix(name) {
                Some("") => return args.next().cloned(),
                Some(rest) if name.starts_with("--") => {
                    if let Some(value) = rest.strip_prefix('=') {
                        return Some(value.to_owned());
                    }
                }
                Some(rest) => return Some(rest.trim_start_matches('=').to_owned()),
                None => {}
            }
        }
    }
    None
}

fn is_named_weir(command: &str) -> bool {
    let name = Path::new(command).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    name == "weir" || name.starts_with("weir-")
}

fn own_program() -> Option<PathBuf> {
    std::env::current_exe().and_then(canonicalize).ok()
}

/// Returns whether a program is this one, or a copy of it: another build has another size.
fn is_same(program: &Path, own: &Path) -> bool {
    let size = |path: &Path| std::fs::metadata(path).map(|file| file.len()).ok();
    canonicalize(program).is_ok_and(|it| it == own) || size(program) == size(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_read_in_all_its_forms() {
        let value = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
            option_value(&args, &["--config", "-c"])
        };
        let forms: [&[&str]; 5] = [
            &["stdio", "--config", "/a"],
            &["stdio", "--config=/a"],
            &["stdio", "-c", "/a"],
            &["stdio", "-c/a"],
            &["stdio", "-c=/a"],
        ];
        for args in forms {
            assert_eq!(value(args).as_deref(), Some("/a"), "{args:?}");
        }
        let others: [&[&str]; 3] = [&["stdio"], &["stdio", "--configs=/a"], &["stdio", "-c"]];
        for args in others {
            assert_eq!(value(args), None, "{args:?}");
        }
    }
}
