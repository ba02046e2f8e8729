//! Servers of one name in the other scopes of a client: a client reads several sections and files,
//! and of two servers with one name one hides the other.

use std::path::{Path, PathBuf};

use crate::cli::clients::document::{self, DocumentValue};
use crate::cli::clients::edit::{self, EntryLocation};
use crate::cli::clients::known::ANY;
use crate::cli::clients::places::{self, Scope};
use crate::cli::exit::Failure;

/// Place with a server of a name, beside the section that is looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OtherScope {
    /// Another section of the file, which counts in this folder as well.
    Section(Vec<String>),
    /// Section of another project in the file.
    Project(String),
    /// Other file of the client.
    File(Scope, PathBuf),
}

/// Documents of a client in which the servers of a name are looked up.
pub(super) struct ClientScopes<'a> {
    place: &'a EntryLocation<'a>,
    folder: &'a Path,
    /// Client's file that is edited.
    document: DocumentValue,
    /// Its other files.
    others: Vec<(Scope, PathBuf, DocumentValue)>,
    /// Files that cannot be read, with the reason.
    pub(super) unread: Vec<Failure>,
}

impl<'a> ClientScopes<'a> {
    /// Reads the other files of the client; `document` is the content of its file after the edit.
    pub(super) fn read(
        place: &'a EntryLocation<'a>,
        folder: &'a Path,
        document: DocumentValue,
    ) -> Self {
        let (mut others, mut unread) = (Vec::new(), Vec::new());
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        for (scope, path) in places::all_files(place.client, folder) {
            if path == place.path || real(&path).is_some() && real(&path) == real(place.path) {
                continue;
            }
            match read(place, &path) {
                Ok(Some(document)) => others.push((scope, path, document)),
                Ok(None) => {}
                Err(failure) => unread.push(failure),
            }
        }
        Self { place, folder, document, others, unread }
    }

    /// Finds the servers of a name, apart from that in `section` of the file.
    pub(super) fn find(&self, name: &str, section: &[String]) -> Vec<OtherScope> {
        let mut found = Vec::new();
        for other in section_paths(&self.document, self.place, self.folder) {
            if other != section && entry_at(&self.document, &other, name).is_some() {
                found.push(OtherScope::Section(other));
            }
        }
        let folder = self.folder.display().to_string();
        if self.place.client.key == ANY.key
            && let Some(projects) = self.document.get("projects")
        {
            for (project, table) in projects.members().iter().filter(|(it, _)| *it != folder) {
                if table.get(ANY.key).is_some_and(|servers| servers.get(name).is_some()) {
                    found.push(OtherScope::Project(project.clone()));
                }
            }
        }
        for (scope, path, document) in &self.others {
            let sections = section_paths(document, self.place, self.folder);
            if sections.iter().any(|section| entry_at(document, section, name).is_some()) {
                found.push(OtherScope::File(*scope, path.clone()));
            }
        }
        found
    }
}

fn read(place: &EntryLocation<'_>, path: &Path) -> Result<Option<DocumentValue>, Failure> {
    let (client, file) = (place.client, document::read(path)?);
    let parse =
        |file: document::FileText| document::parse(&file.text, client.format, client.dialect, path);
    file.map(parse).transpose()
}

/// Paths of the keys of a file that contain servers, in the order in which the client reads them:
/// those of Claude Code's project in this folder come first, because they hide the others.
pub(super) fn section_paths(
    document: &DocumentValue,
    place: &EntryLocation<'_>,
    folder: &Path,
) -> Vec<Vec<String>> {
    let mut sections = Vec::new();
    if place.client.key == ANY.key {
        let folder = folder.display().to_string();
        sections.push(vec!["projects".to_owned(), folder, ANY.key.to_owned()]);
    }
    let section: Vec<_> =
        place.client.section(document).iter().map(|key| (*key).to_owned()).collect();
    sections.extend((1..=section.len()).map(|length| section[..length].to_vec()));
    sections
}

/// Returns the entry of a name in a section.
pub(super) fn entry_at<'v>(
    document: &'v DocumentValue,
    section: &[String],
    name: &str,
) -> Option<&'v DocumentValue> {
    edit::at(document, &strs(section)).and_then(|table| table.get(name))
}

pub(super) fn strs(section: &[String]) -> Vec<&str> {
    section.iter().map(String::as_str).collect()
}
