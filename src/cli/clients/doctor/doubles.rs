//! Servers that a client has beside Weir although Weir serves them: shown twice to the model.

use std::path::Path;

use super::client_files::{ClientFiles, PlacedServer};
use super::entry::ConfigUse;
use super::finding::{DoctorFinding, DoctorReport};
use crate::cli::clients::connect::connect_command::ConnectCommand;
use crate::cli::clients::connect::method::is_shared;
use crate::cli::clients::connect::taken::TakenOver;
use crate::cli::clients::edit::EntryLocation;
use crate::cli::clients::init::names;
use crate::cli::clients::server::{ClientServer, ServerTransport};
use crate::cli::clients::weir_entry::is_weir_entry;
use weir_base::secrets::secret::Secret;
use weir_base::text::shell_word::ShellWord;
use weir_config::{Config, UpstreamConfig};
use weir_upstream::UpstreamSource;

/// Reports the servers of a client that are behind Weir as well, and those that Weir took over and
/// that came back.
pub(super) fn check(
    files: &ClientFiles,
    used: &ConfigUse,
    config: &Config,
    default_config: Option<&Path>,
    report: &mut DoctorReport,
) {
    let client = files.client;
    for file in &files.files {
        let place = EntryLocation { client, name: &used.entry, path: &file.path };
        let taken = config.state.dir.as_deref().map(|state| TakenOver::read(state, &place));
        let taken: Vec<_> = match taken {
            Some(Ok(taken)) => taken.servers.into_iter().map(|server| server.name).collect(),
            Some(Err(failure)) => {
                report.add(DoctorFinding::of_failure(&failure).of(client));
                Vec::new()
            }
            None => Vec::new(),
        };
        for placed in file.servers.iter().filter(|placed| placed.server.enabled) {
            let server = &placed.server;
            if is_weir_entry(server, &[]) {
                continue;
            }
            let mut upstreams = config.upstreams.iter();
            let Some(upstream) = upstreams.find(|upstream| is_same(server, upstream)) else {
                continue;
            };
            let came_back = taken.contains(&server.name);
            let what = describe(placed, upstream, came_back);
            let command = ConnectCommand {
                client,
                entry: &used.entry,
                scope: file.scope,
                action: "--take-over",
                config: Some(used.path.as_path()).filter(|path| Some(*path) != default_config),
                is_stdio: used.is_stdio && is_shared(config),
            };
            let fix = fix(placed, &command, client.rewrites_file && came_back);
            let line = file.line_of(placed);
            report.add(DoctorFinding::warning(what, fix).of(client).at(&file.path, line));
        }
    }
}

fn describe(placed: &PlacedServer, upstream: &UpstreamConfig, came_back: bool) -> String {
    let (name, upstream) = (&placed.server.name, upstream.name());
    let project = placed.project.as_ref();
    let project = project.map_or(String::new(), |project| format!(" for the project {project}"));
    match came_back {
        false => format!(
            "the server `{name}`{project} is also [upstreams.{upstream}] of Weir: its items are \
             there twice"
        ),
        true => format!(
            "the server `{name}`{project}, which Weir has taken over, is in the file again: its \
             items are there twice"
        ),
    }
}

/// Command that moves a server to Weir. A running client may write it again.
fn fix(placed: &PlacedServer, command: &ConnectCommand<'_>, ends_client: bool) -> String {
    let folder = match &placed.project {
        Some(project) => format!("cd {} && ", ShellWord(project)),
        None => String::new(),
    };
    match ends_client {
        true => format!("end {}, then run: {folder}{command}", command.client.title),
        false => format!("{folder}{command}"),
    }
}

/// Returns whether a client's server is an upstream: the process or URL is the same, or the name
/// and the program or host are.
fn is_same(server: &ClientServer, upstream: &UpstreamConfig) -> bool {
    let name = names::legal(std::slice::from_ref(&server.name));
    let has_name = name.iter().any(|name| name == upstream.name());
    match (&server.transport, &upstream.settings.source) {
        (ServerTransport::Process { command, args, .. }, UpstreamSource::Process(own)) => {
            let is_same_program = file_name(command) == file_name(&own.program);
            is_same_program && (has_name || are_same(args, &own.args))
        }
        (ServerTransport::Http { url, .. }, UpstreamSource::Http { url: own, .. }) => {
            let is_same_host = || {
                let host = url.parse::<hyper::Uri>().ok();
                host.is_some_and(|url| url.host().is_some() && url.host() == own.host())
            };
            is_same_url(url, &own.to_string()) || has_name && is_same_host()
        }
        // A program that connects to the URL for the client.
        (ServerTransport::Process { args, .. }, UpstreamSource::Http { url, .. }) => {
            args.iter().any(|arg| is_same_url(arg, &url.to_string()))
        }
        (_, UpstreamSource::Unresolved { .. }) => has_name,
        _ => false,
    }
}

/// Returns whether two lists of arguments are equal, apart from those that the client completes.
fn are_same(args: &[String], own: &[Secret]) -> bool {
    let is_same = |(arg, own): (&String, &Secret)| arg.contains(['$', '{']) || arg == own.expose();
    args.len() == own.len() && args.iter().zip(own).all(is_same)
}

/// Returns whether two URLs are equal, apart from what may be a secret.
fn is_same_url(one: &str, other: &str) -> bool {
    let plain = |url: &str| {
        let end = url.find(['?', '#']).unwrap_or(url.len());
        url.get(..end).unwrap_or(url).trim_end_matches('/').to_owned()
    };
    plain(one) == plain(other)
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
