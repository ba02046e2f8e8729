//! Configuration that clients' entries lead to: its mistakes, the values that it lacks in each
//! client, and the programs that Weir would not find there.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;

use super::entry::ConfigUse;
use super::finding::{DoctorFinding, DoctorReport};
use super::ownership;
use crate::cli::clients::McpClient;
use crate::cli::clients::behavior::PassedVariables;
use crate::cli::exit::{describe_problem, errors};
use crate::cli::loading::check_client;
use weir_base::text::shell_word::ShellWord;
use weir_config::{Config, ConfigProblem, ConfigReport, Options, Severity, UpstreamConfig};
use weir_upstream::UpstreamSource;
use weir_upstream::connect::ChildCommand;
use weir_upstream::connect::system::System;
use weir_upstream::process::environment;
use weir_upstream::process::search_path::find_program;

/// Configuration without mistakes.
pub(super) struct CheckedConfig {
    pub(super) config: Config,
    /// Upstreams of which something was found.
    pub(super) faulty: BTreeSet<String>,
    /// Values that it lacks in this process; `None` if it cannot be used here.
    missing_here: Option<Vec<ConfigProblem>>,
}

impl CheckedConfig {
    /// Reads a configuration and reports its mistakes; `None` if it cannot be used. The values that
    /// it lacks here are reported if no client starts Weir with it.
    pub(super) fn read(
        path: &Path,
        uses: &[&ConfigUse],
        report: &mut DoctorReport,
    ) -> Option<Self> {
        if let Some(found) = ownership::check(path) {
            report.add(found.at(path, None));
        }
        let uses: Vec<_> = uses.iter().filter(|used| used.is_stdio).collect();
        let (config, is_usable_here) = match Config::inspect(path, &options(std::env::vars_os())) {
            Ok(config) => (config, true),
            Err(mistakes) => {
                // A client may give Weir a variable that is not set here.
                match uses.iter().find_map(|used| inspect_use(used).ok()) {
                    Some(config) => (config, false),
                    None => {
                        report_mistakes(&mistakes, uses.iter().map(|used| used.client), report);
                        return None;
                    }
                }
            }
        };
        let (missing, others): (Vec<_>, Vec<_>) =
            config.warnings.iter().cloned().partition(|it| it.is_missing_value);
        for problem in &others {
            let note = format!("{}; {}", text(problem), problem.remedy);
            report.add(at(DoctorFinding::note(note), problem));
        }
        if uses.is_empty() {
            missing.iter().for_each(|it| report.add(at(of_problem(it), it)));
        }
        let faulty = missing.iter().filter_map(upstream_of).collect();
        Some(Self { config, faulty, missing_here: is_usable_here.then_some(missing) })
    }

    /// Configuration of which nothing was found.
    #[cfg(test)]
    pub(super) fn of(config: Config) -> Self {
        Self { config, faulty: BTreeSet::new(), missing_here: Some(Vec::new()) }
    }

    /// Returns whether its upstreams can be started by this process.
    pub(super) fn is_usable_here(&self) -> bool {
        self.missing_here.is_some()
    }

    /// Checks the configuration as a client's Weir reads it.
    pub(super) async fn check_use(
        &mut self,
        used: &ConfigUse,
        system: &System,
        report: &mut DoctorReport,
    ) {
        if let Some(name) = &used.as_client
            && let Err(failure) = check_client(&self.config, name)
        {
            let (path, line) = &used.place;
            let fix = format!("weir keys add {}, or another --as in the entry", ShellWord(name));
            let found = DoctorFinding::error(failure.to_string(), fix);
            report.add(found.of(used.client).at(path, *line));
        }
        let list_wait = self.config.protocol.list_wait;
        if let Some(startup) = used.startup.filter(|startup| list_wait >= *startup) {
            let what = format!(
                "lists wait for slow servers up to {list_wait:?}, and the client only {startup:?}"
            );
            let fix = "set list_wait = \"4s\" under [protocol]";
            report.add(DoctorFinding::warning(what, fix).of(used.client).at(&used.path, None));
        }
        let read = inspect_use(used);
        let problems = match &read {
            Ok(config) => &config.warnings,
            Err(mistakes) => mistakes.problems(),
        };
        self.check_variables(used, problems, report);
        let upstreams = read.map_or_else(|_| self.config.upstreams.clone(), |it| it.upstreams);
        self.check_programs(used, &upstreams, system, report).await;
    }

    /// Reports the values that are missing where this client starts Weir.
    fn check_variables(
        &mut self,
        used: &ConfigUse,
        problems: &[ConfigProblem],
        report: &mut DoctorReport,
    ) {
        let title = used.client.title;
        let (file, line) = &used.place;
        let line = line.map_or(String::new(), |line| format!(":{line}"));
        let entry = format!("of the entry `{}` in {}{line}", used.entry, file.display());
        let key = match used.client.start.passes {
            PassedVariables::Named(_) => "env_vars",
            PassedVariables::All | PassedVariables::WithoutSecrets => "env",
        };
        let lacking: Vec<_> = problems.iter().filter(|it| it.is_missing_value).collect();
        for problem in &lacking {
            let found = match self.is_missing_here(problem) {
                true => of_problem(problem),
                false => {
                    let what = format!("{} for a Weir that {title} starts", text(problem));
                    of_severity(problem.severity, what, &format!("add it to `{key}` {entry}"))
                }
            };
            report.add(at(found, problem).of(used.client));
            self.faulty.extend(upstream_of(problem));
        }
        if !used.client.start.is_desktop {
            return;
        }
        let is_there = |name: &OsString| {
            is_of_session(name) || used.given.iter().any(|given| *name == **given)
        };
        let session = used.environment.iter().filter(|(name, _)| is_there(name)).cloned();
        let unsure = match Config::inspect(&used.path, &options(session)) {
            Ok(config) => config.warnings,
            Err(mistakes) => mistakes.problems().to_vec(),
        };
        let is_known = |it: &ConfigProblem| lacking.iter().any(|other| is_like(it, other));
        for problem in unsure.iter().filter(|it| it.is_missing_value && !is_known(it)) {
            let note = format!(
                "{} here, but perhaps not in {title}, which the desktop starts: then add it to \
                 `env` {entry}",
                text(problem).replace("is not set", "is set")
            );
            report.add(at(DoctorFinding::note(note), problem).of(used.client));
        }
    }

    fn is_missing_here(&self, problem: &ConfigProblem) -> bool {
        self.missing_here.iter().flatten().any(|it| is_like(it, problem))
    }

    /// Reports the programs that Weir would not find where this client starts it.
    async fn check_programs(
        &mut self,
        used: &ConfigUse,
        upstreams: &[UpstreamConfig],
        system: &System,
        report: &mut DoctorReport,
    ) {
        for upstream in upstreams {
            let UpstreamSource::Process(command) = &upstream.settings.source else { continue };
            let mut command = command.clone();
            environment::inherit(
                &mut command,
                &upstream.pass_env,
                used.environment.iter().cloned(),
            );
            let Err(error) = system.locate(&command).await else { continue };
            let name = upstream.name();
            let (what, fix) = describe_missing(&command, error.kind(), used);
            let location = self.config.rule_locations.of(&["upstreams", name, "command"]);
            let found = DoctorFinding::warning(format!("upstreams.{name}: {what}"), fix);
            report.add(found.at_location(location).of(used.client));
            self.faulty.insert(name.to_owned());
        }
    }
}

fn describe_missing(
    command: &ChildCommand,
    error: ErrorKind,
    used: &ConfigUse,
) -> (String, String) {
    let shown = &command.display_name;
    if error == ErrorKind::PermissionDenied {
        return (format!("`{shown}` may not be executed"), format!("chmod +x {shown}"));
    }
    if command.program.contains('/') {
        let what = format!("there is no program {shown}");
        return (what, "install it, or correct `command`".to_owned());
    }
    let what = format!("there is no program `{shown}` in PATH where {} starts", used.client.title);
    let own = std::env::var("PATH").ok();
    let fix = match find_program(&command.program, own.as_deref(), Path::new("")) {
        Ok(found) => format!("write its whole path: command = \"{}\"", found.display()),
        Err(_) => "install it, or write its whole path as `command`".to_owned(),
    };
    (what, fix)
}

fn options(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Options {
    let environment = environment.into_iter().collect();
    // No listener is opened, so anonymous access from the network does not matter.
    Options { allow_anonymous_network: true, environment, ..Options::default() }
}

/// Reports the first mistakes, for each client that starts Weir with them.
fn report_mistakes(
    mistakes: &ConfigReport,
    clients: impl Iterator<Item = &'static McpClient> + Clone,
    report: &mut DoctorReport,
) {
    for mistake in errors(mistakes).take(MAX_MISTAKES) {
        let found = at(of_problem(mistake), mistake);
        match clients.clone().next() {
            None => report.add(found),
            Some(_) => clients.clone().for_each(|client| report.add(found.clone().of(client))),
        }
    }
}

/// Reads the configuration in the environment of a client's Weir.
fn inspect_use(used: &ConfigUse) -> Result<Config, ConfigReport> {
    Config::inspect(&used.path, &options(used.environment.iter().cloned()))
}

fn of_problem(problem: &ConfigProblem) -> DoctorFinding {
    of_severity(problem.severity, text(problem), &problem.remedy)
}

fn of_severity(severity: Severity, what: String, fix: &str) -> DoctorFinding {
    match severity {
        Severity::Error => DoctorFinding::error(what, fix),
        Severity::Warning => DoctorFinding::warning(what, fix),
    }
}

fn at(finding: DoctorFinding, problem: &ConfigProblem) -> DoctorFinding {
    let line = problem.position().map(|(line, _)| line);
    finding.at(Path::new(problem.file()), line)
}

/// Returns whether two problems are about one value.
fn is_like(one: &ConfigProblem, other: &ConfigProblem) -> bool {
    one.location() == other.location() && one.key == other.key
}

/// Returns the key and the mistake.
fn text(problem: &ConfigProblem) -> String {
    let whole = describe_problem(problem);
    let place = format!("{}: ", problem.location());
    whole.strip_prefix(&place).unwrap_or(&whole).to_owned()
}

/// Returns the upstream that a problem is about.
fn upstream_of(problem: &ConfigProblem) -> Option<String> {
    let rest = problem.key.strip_prefix("upstreams.")?;
    rest.split('.').next().map(str::to_owned)
}

/// Returns whether each session of a desktop has a variable.
fn is_of_session(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    SESSION.iter().any(|it| *it == name) || name.starts_with("XDG_")
}

/// Variables of each session of a desktop.
const SESSION: [&str; 8] =
    ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER", "WEIR_CONFIG"];

/// Mistakes that are shown.
const MAX_MISTAKES: usize = 20;
