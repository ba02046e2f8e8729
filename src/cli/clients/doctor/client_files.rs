//! Files of one client as `weir doctor` reads them: the servers in all scopes and projects, and the
//! findings about the files themselves.
//!
//! Invariant: a file is read as every other command reads it, and never changed.

use std::path::{Path, PathBuf};

use super::finding::{DoctorFinding, DoctorReport};
use super::ownership;
use crate::cli::clients::McpClient;
use crate::cli::clients::document::{self, DocumentValue, Format, JsonDialect};
use crate::cli::clients::edit::{at, line_of};
use crate::cli::clients::init::read_settings_files;
use crate::cli::clients::known::ANY;
use crate::cli::clients::places::{self, Scope};
use crate::cli::clients::server::{self, ClientServer, ServerTransport};
use crate::cli::clients::server_lists::ServerLists;
use crate::cli::clients::weir_entry::is_weir_entry;

/// Files of one client, as far as they exist.
pub(super) struct ClientFiles {
    pub(super) client: &'static McpClient,
    pub(super) files: Vec<ClientFile>,
    /// All files that exist could be read.
    pub(super) is_complete: bool,
}

/// One file with its servers.
pub(super) struct ClientFile {
    pub(super) path: PathBuf,
    pub(super) scope: Scope,
    pub(super) servers: Vec<PlacedServer>,
    format: Format,
    text: String,
}

/// Server with its place in a file.
pub(super) struct PlacedServer {
    pub(super) server: ClientServer,
    /// Path of the key that contains it.
    section: Vec<String>,
    /// Folder of the project that it is for, if the user's file has it for one project.
    pub(super) project: Option<String>,
}

impl ClientFiles {
    /// Reads the files that exist; `folder` is the current one.
    pub(super) fn read(
        client: &'static McpClient,
        folder: &Path,
        report: &mut DoctorReport,
    ) -> Self {
        let (mut read, mut is_complete) = (Vec::new(), true);
        for (scope, path) in existing(client, folder) {
            if let Some(found) = ownership::check(&path) {
                report.add(found.of(client).at(&path, None));
            }
            match document::read(&path) {
                Ok(Some(file)) => {
                    let document = parse(client, &path, &file.text, report);
                    is_complete &= document.is_some();
                    let document = document.unwrap_or(DocumentValue::Null);
                    read.push((scope, path, file.text, document));
                }
                Ok(None) => {}
                Err(failure) => {
                    is_complete = false;
                    report.add(DoctorFinding::of_failure(&failure).of(client));
                }
            }
        }
        let settings = read_settings_files(client, folder).unwrap_or_else(|failure| {
            report.add(DoctorFinding::of_failure(&failure).of(client));
            Vec::new()
        });
        let documents = read.iter().map(|(.., document)| document).chain(&settings);
        let lists = ServerLists::read(&documents.collect::<Vec<_>>(), folder);
        let here = folder.display().to_string();
        let files = read.into_iter().map(|(scope, path, text, document)| {
            let mut servers = servers_of(client, &document);
            for placed in &mut servers {
                let is_here = placed.project.as_ref().is_none_or(|project| *project == here);
                let is_shared = scope == Scope::Project;
                placed.server.enabled &= !is_here || lists.enable(&placed.server.name, is_shared);
            }
            ClientFile { path, scope, servers, format: client.format, text }
        });
        Self { client, files: files.collect(), is_complete }
    }

    /// Returns the entries for Weir, each with its file.
    pub(super) fn weir_entries<'a>(
        &'a self,
        endpoints: &'a [String],
    ) -> impl Iterator<Item = (&'a ClientFile, &'a PlacedServer)> {
        let is_weir = move |placed: &&PlacedServer| is_weir_entry(&placed.server, endpoints);
        self.files.iter().flat_map(move |file| {
            file.servers.iter().filter(is_weir).map(move |placed| (file, placed))
        })
    }
}

impl ClientFile {
    /// Returns the line of a server in this file.
    pub(super) fn line_of(&self, placed: &PlacedServer) -> Option<usize> {
        let section: Vec<_> = placed.section.iter().map(String::as_str).collect();
        line_of(&self.text, self.format, &section, &placed.server.name)
    }
}

impl PlacedServer {
    /// Program that the client starts, and its arguments.
    pub(super) fn process(&self) -> Option<(&str, &[String])> {
        match &self.server.transport {
            ServerTransport::Process { command, args, .. } => Some((command, args)),
            ServerTransport::Http { .. } => None,
        }
    }
}

/// Returns the files of a client that exist: the user's, then that of the project in this folder.
pub(super) fn existing(client: &McpClient, folder: &Path) -> Vec<(Scope, PathBuf)> {
    let mut files: Vec<(Scope, PathBuf)> = Vec::new();
    for scope in [Scope::User, Scope::Project] {
        let Some(path) = places::file(client, scope, folder) else { continue };
        // In the home folder both scopes have the same file.
        let is_new = files.iter().all(|(_, other)| *other != path);
        if is_new && path.symlink_metadata().is_ok() {
            files.push((scope, path));
        }
    }
    files
}

/// Parses a file by the client's own rules; text that only these refuse is reported, and read.
fn parse(
    client: &McpClient,
    path: &Path,
    text: &str,
    report: &mut DoctorReport,
) -> Option<DocumentValue> {
    let read = |dialect| document::parse(text, client.format, dialect, path);
    let parsed = read(client.dialect).or_else(|failure| {
        report.add(DoctorFinding::of_failure(&failure).of(client));
        read(JsonDialect::TOLERANT)
    });
    parsed.ok()
}

/// Returns the servers of all sections of a document that Weir can read.
fn servers_of(client: &'static McpClient, document: &DocumentValue) -> Vec<PlacedServer> {
    let own = client.section(document);
    let mut sections = Vec::new();
    for length in 1..=own.len() {
        let section = own.iter().take(length).map(|key| (*key).to_owned());
        sections.push((section.collect::<Vec<_>>(), None));
    }
    let projects = document.get("projects").filter(|_| client.key == ANY.key);
    for (folder, _) in projects.map(DocumentValue::members).unwrap_or_default() {
        let section = ["projects", folder, ANY.key].map(str::to_owned);
        sections.push((section.to_vec(), Some(folder.clone())));
    }
    let mut servers = Vec::new();
    for (section, project) in sections {
        let keys: Vec<_> = section.iter().map(String::as_str).collect();
        let members = at(document, &keys).map(DocumentValue::members).unwrap_or_default();
        // A table of servers may contain another one.
        let inner = own.get(section.len());
        for (name, entry) in members.iter().filter(|(name, _)| inner != Some(&name.as_str())) {
            if let Ok(server) = server::read(name, entry, client) {
                let (section, project) = (section.clone(), project.clone());
                servers.push(PlacedServer { server, section, project });
            }
        }
    }
    servers
}
