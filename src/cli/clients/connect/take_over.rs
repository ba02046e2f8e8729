//! Take-over of a client's servers.
//!
//! Invariants: a server leaves the client's file only after Weir has listed it, and after its entry
//! was written to the record; no other server of its name that stays is concealed.

use std::path::{Path, PathBuf};

use super::connect_command::ConnectCommand;
use super::other_scopes::{ClientScopes, OtherScope, entry_at, section_paths, strs};
use super::replace;
use super::taken::{OriginalText, TakenOver, TakenServer};
use crate::cli::check::CheckRow;
use crate::cli::clients::document::{self, DocumentValue, JsonDialect};
use crate::cli::clients::edit::{self, EntryLocation};
use crate::cli::clients::init::ImportedServer;
use crate::cli::clients::places;
use crate::cli::clients::sections;
use crate::cli::clients::server::ClientServer;
use crate::cli::clients::server_lists::ServerLists;
use crate::cli::clients::weir_entry::is_weir_entry;
use crate::cli::exit::Failure;
use crate::cli::output::render::sanitize_line;
use crate::cli::{loading, output};
use weir_config::Config;

/// State folder of a configuration, whatever mistakes it has; the default one if there is no file.
pub(super) fn state_folder(config: &Path) -> Result<PathBuf, Failure> {
    let (listeners, _) = Config::listeners(config, &loading::options(true));
    listeners.state.dir.ok_or_else(|| {
        let text = "there is no folder for the servers that are taken over: set dir under \
                    [state], or the variable HOME";
        Failure::NoConfig(text.to_owned())
    })
}

/// Returns whether the client's file has servers other than Weir.
pub(super) fn has_servers(place: &EntryLocation<'_>, folder: &Path) -> Result<bool, Failure> {
    let Some(file) = document::read(place.path)? else { return Ok(false) };
    let whole = parse(&file.text, place)?;
    let lists = ServerLists::default();
    let section = sections::find(&whole, Some(place.client), place.path, folder, &lists);
    let is_other = |(_, server): &(String, Result<ClientServer, String>)| {
        !server.as_ref().is_ok_and(|server| is_weir_entry(server, &[]))
    };
    Ok(section.is_some_and(|section| section.servers.iter().any(is_other)))
}

/// Imported servers, and the result of listing them.
#[derive(Clone, Copy)]
pub(super) struct ListedServers<'a> {
    pub(super) imported: &'a [ImportedServer],
    pub(super) rows: &'a [CheckRow],
}

/// Text of a client's file before a command and with the entry for Weir.
pub(super) struct FormerFile {
    pub(super) text: String,
    pub(super) written: String,
}

/// Moves the imported servers that came up out of the client's file. `way_back` is the command that
/// puts them back.
pub(super) fn take(
    place: &EntryLocation<'_>,
    folder: &Path,
    state: &Path,
    listed: ListedServers<'_>,
    former: &FormerFile,
    way_back: &ConnectCommand<'_>,
) -> Result<(), Failure> {
    let _turn = TakenOver::lock(state)?;
    let Some(file) = document::read(place.path)? else { return Ok(()) };
    let before = TakenOver::read(state, place)?;
    let mut record = TakenOver::read(state, place)?;
    let mut text = file.text.clone();
    let (mut moved, mut stayed) = (Vec::new(), Vec::new());
    for server in listed.imported {
        let row = listed.rows.iter().find(|row| row.name == server.upstream);
        let result = match row {
            _ if !server.enabled => Err("the client has switched it off".to_owned()),
            None => Err("it was not listed".to_owned()),
            Some(row) if !row.ok => Err(row.state.clone()),
            Some(_) => take_out(&mut text, place, folder, &server.name),
        };
        match result {
            Ok(taken) => {
                moved.push(server.name.clone());
                taken.into_iter().for_each(|it| record.add(it, place));
            }
            Err(why) => stayed.push(format!("  {}: stays in the client: {why}", server.name)),
        }
    }
    if !moved.is_empty() {
        // The client may have written its file while the servers were listed.
        let is_own = file.text == former.written;
        let original = || original_text(&before, place, &former.text, &text);
        record.original = is_own.then(original).flatten();
        // First the record: a server must not be lost if the file cannot be replaced.
        let kept = record.write(state, place)?;
        if let Err(failure) = replace(place.path, Some(&file), &text) {
            before.write(state, place)?;
            return Err(failure);
        }
        let (names, path) = (moved.join(", "), place.path.display());
        output::print_stderr(&sanitize_line(&format!("moved from {path} to Weir: {names}")));
        output::print_stderr(&sanitize_line(&format!(
            "their entries are in {}; `{way_back}` puts them back",
            kept.display(),
        )));
    }
    stayed.iter().for_each(|line| output::print_stderr(&sanitize_line(line)));
    if !stayed.is_empty() {
        output::print_stderr(
            "what stays is in both, the client and Weir: correct it and run this again",
        );
    }
    print_others(place, folder, parse(&text, place)?, &moved);
    if place.client.rewrites_file && !moved.is_empty() {
        output::print_stderr(&format!(
            "note: a {} that runs may write its file anew, with the servers that were moved: end \
             it, and look at the file again",
            place.client.title
        ));
    }
    Ok(())
}

/// Finds the text of the file before the first take-over; `None` if something else has changed the
/// file since, or if it had the entry for Weir already.
fn original_text(
    before: &TakenOver,
    place: &EntryLocation<'_>,
    former: &str,
    left: &str,
) -> Option<OriginalText> {
    let text = match &before.original {
        Some(original) => {
            original.is_unchanged(place.name, former).then(|| original.text.clone())?
        }
        None if !before.servers.is_empty() => return None,
        None => {
            let has_entry = has_entry(former, place, place.name).ok()?;
            (!has_entry).then(|| former.to_owned())?
        }
    };
    Some(OriginalText::new(text, place.name, left))
}

/// Takes one server out of a text: the entry that counts in this folder, and equal ones that it
/// hides.
fn take_out(
    text: &mut String,
    place: &EntryLocation<'_>,
    folder: &Path,
    name: &str,
) -> Result<Vec<TakenServer>, String> {
    let place = EntryLocation { name, ..*place };
    let whole = parse(text, &place).map_err(|failure| failure.to_string())?;
    let sections = section_paths(&whole, &place, folder);
    let counts = sections.iter().find_map(|section| entry_at(&whole, section, name));
    let (mut rest, mut taken) = (text.clone(), Vec::new());
    for section in &sections {
        if counts.is_none() || entry_at(&whole, section, name) != counts {
            continue;
        }
        let removed = edit::remove(&rest, &place, &strs(section));
        if let Some(removed) = removed.map_err(|failure| failure.to_string())? {
            rest = removed.text;
            let (name, section) = (name.to_owned(), section.clone());
            taken.push(TakenServer { name, section, entry: removed.entry });
        }
    }
    if taken.is_empty() {
        return Err("its entry was not found again".to_owned());
    }
    *text = rest;
    Ok(taken)
}

/// Prints where the client has other servers with the names of those that were moved: it runs them
/// beside Weir. `document` is what is left of its file.
fn print_others(
    place: &EntryLocation<'_>,
    folder: &Path,
    document: DocumentValue,
    moved: &[String],
) {
    if moved.is_empty() {
        return;
    }
    let scopes = ClientScopes::read(place, folder, document);
    let file = place.path.display();
    for name in moved {
        for other in scopes.find(name, &[]) {
            let text = match other {
                OtherScope::Section(section) => format!(
                    "another server of this name is in {file} under `{}`, and was hidden by the \
                     one that was moved: it stays, and the client runs it here from now on; \
                     remove it there, or rename it",
                    section.join(".")
                ),
                OtherScope::Project(project) => format!(
                    "{file} has one of this name for the project {project}: it stays, and the \
                     client runs it there beside Weir; run this in that folder to move it"
                ),
                OtherScope::File(scope, path) => {
                    let is_moved_by_scope =
                        places::file(place.client, scope, folder).as_ref() == Some(&path);
                    let remedy = match is_moved_by_scope {
                        true => format!("run this with --scope {scope} to move it"),
                        false => "remove it there by hand".to_owned(),
                    };
                    format!(
                        "{} has one of this name ({scope}): it stays, and the client runs it \
                         beside Weir; {remedy}",
                        path.display()
                    )
                }
            };
            output::print_stderr(&sanitize_line(&format!("  {name}: {text}")));
        }
    }
    for failure in &scopes.unread {
        let text = format!("note: not searched for servers of these names: {failure}");
        output::print_stderr(&sanitize_line(&text));
    }
}

/// Returns whether a text has an entry of this name beside other servers.
pub(super) fn has_entry(
    text: &str,
    place: &EntryLocation<'_>,
    name: &str,
) -> Result<bool, Failure> {
    let whole = parse(text, place)?;
    let table = edit::at(&whole, &place.client.section(&whole));
    Ok(table.is_some_and(|table| table.get(name).is_some()))
}

pub(super) fn parse(text: &str, place: &EntryLocation<'_>) -> Result<DocumentValue, Failure> {
    document::parse(text, place.client.format, JsonDialect::TOLERANT, place.path)
}
