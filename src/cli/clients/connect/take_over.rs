//! Take-over of a client's servers, and the way back.
//!
//! Invariants: a server leaves the client's file only after Weir has listed it, and after its entry
//! was written to the record; on the way back the file becomes what it was, byte for byte, if
//! nothing else has changed it, and otherwise nothing in it is overwritten.

use std::path::{Path, PathBuf};

use super::method;
use super::taken::{OriginalText, TakenOver, TakenServer};
use super::{is_own_entry, replace};
use crate::cli::check::CheckRow;
use crate::cli::clients::document::{self, DocumentValue, JsonDialect};
use crate::cli::clients::edit::{self, EntryLocation};
use crate::cli::clients::init::ImportedServer;
use crate::cli::clients::known::ANY;
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

/// Moves the imported servers that came up out of the client's file.
pub(super) fn take(
    place: &EntryLocation<'_>,
    folder: &Path,
    state: &Path,
    listed: ListedServers<'_>,
    former: &FormerFile,
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
                record.servers.push(taken);
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
        output::print_stderr(&format!(
            "their entries are in {}; `weir connect {} --remove` puts them back",
            kept.display(),
            place.client.name
        ));
    }
    stayed.iter().for_each(|line| output::print_stderr(&sanitize_line(line)));
    if !stayed.is_empty() {
        output::print_stderr(
            "what stays is in both, the client and Weir: correct it and run this again",
        );
    }
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
            let whole = parse(former, place).ok()?;
            let table = edit::at(&whole, &place.client.section(&whole));
            let has_entry = table.is_some_and(|table| table.get(place.name).is_some());
            (!has_entry).then(|| former.to_owned())?
        }
    };
    Some(OriginalText::new(text, place.name, left))
}

/// Takes one server out of a text.
fn take_out(
    text: &mut String,
    place: &EntryLocation<'_>,
    folder: &Path,
    name: &str,
) -> Result<TakenServer, String> {
    let place = EntryLocation { name, ..*place };
    let whole = parse(text, &place).map_err(|failure| failure.to_string())?;
    for section in section_paths(&whole, &place, folder) {
        let removed = edit::remove(text, &place, &strs(&section));
        if let Some(removed) = removed.map_err(|failure| failure.to_string())? {
            *text = removed.text;
            return Ok(TakenServer { name: name.to_owned(), section, entry: removed.entry });
        }
    }
    Err("its entry was not found again".to_owned())
}

/// Removes the entry for Weir, and puts back what was taken over.
pub(super) fn give_back(
    place: &EntryLocation<'_>,
    folder: &Path,
    config: Option<&Path>,
) -> Result<(), Failure> {
    let config = loading::config_path(config).ok().filter(|path| path.exists());
    let listeners =
        config.as_deref().map(|path| Config::listeners(path, &loading::options(true)).0);
    let endpoints: Vec<_> = listeners.iter().map(|it| method::endpoint(&it.server)).collect();
    let state = match &config {
        Some(config) => Some(state_folder(config)?),
        None => state_folder(Path::new("weir.toml")).ok(),
    };
    let has_records = |state: &&Path| state.join("taken-over").exists();
    let _turn = state.as_deref().filter(has_records).map(TakenOver::lock).transpose()?;
    let old = document::read(place.path)?;
    let mut text = old.as_ref().map_or("", |old| &old.text).to_owned();
    let mut messages = Vec::new();
    let mut record = match &state {
        Some(state) => Some((state, TakenOver::read(state, place)?)),
        None => None,
    };
    let mut taken = record.as_mut().map(|(_, taken)| taken);
    match taken.as_mut().and_then(|taken| original_of(taken, place, &text)) {
        Some((original, names)) => {
            text = original;
            let file = place.path.display();
            messages.push(format!("removed the entry `{}` from {file}", place.name));
            messages.extend(put_back_messages(place, &names));
            messages.push(format!("{file} is as it was before the take-over"));
        }
        None => {
            messages.push(remove_own_entry(&mut text, place, &endpoints)?);
            if let Some(taken) = taken {
                let servers = std::mem::take(&mut taken.servers);
                if taken.original.take().is_some() {
                    messages.push(format!(
                        "note: {} was changed after the take-over, so each entry goes back by \
                         itself, and may stand in another place than before",
                        place.path.display()
                    ));
                }
                taken.servers = put_back(&mut text, place, folder, servers, &mut messages);
            }
        }
    }
    let has_changed = old.as_ref().map_or("", |old| &old.text) != text;
    if has_changed {
        replace(place.path, old.as_ref(), &text)?;
    }
    messages.iter().for_each(|line| output::print_stderr(&sanitize_line(line)));
    if has_changed {
        output::print_stderr(&format!("then: {}", place.client.next_step));
    }
    if let Some((state, record)) = record {
        let path = record.write(state, place)?;
        if !record.servers.is_empty() {
            output::print_stderr(&format!("what was not put back is in {}", path.display()));
        }
    }
    Ok(())
}

/// Takes the former text out of a record, and the names of the servers that it puts back; `None` if
/// the text of the file is not the one that Weir has left.
fn original_of(
    taken: &mut TakenOver,
    place: &EntryLocation<'_>,
    text: &str,
) -> Option<(String, Vec<String>)> {
    let original = taken.original.take_if(|it| it.is_unchanged(place.name, text))?;
    let servers = std::mem::take(&mut taken.servers);
    Some((original.text, servers.into_iter().map(|server| server.name).collect()))
}

/// Removes the entry for Weir from a text; returns a message about it.
fn remove_own_entry(
    text: &mut String,
    place: &EntryLocation<'_>,
    endpoints: &[String],
) -> Result<String, Failure> {
    let whole = parse(text, place)?;
    let section = place.client.section(&whole);
    let file = place.path.display();
    let entry = edit::at(&whole, &section).and_then(|table| table.get(place.name));
    let Some(entry) = entry else { return Ok(format!("no entry `{}` in {file}", place.name)) };
    if !is_own_entry(place, entry, endpoints) {
        return Ok(format!(
            "the entry `{}` in {file} is not for Weir, so it stays: remove it by hand, or name \
             another with --name",
            place.name
        ));
    }
    if let Some(removed) = edit::remove(text, place, &section)? {
        *text = removed.text;
    }
    if let Some(new) = edit::disallow(text, place)? {
        *text = new;
    }
    Ok(format!("removed the entry `{}` from {file}", place.name))
}

/// Puts servers back into a text; returns those that it cannot take.
fn put_back(
    text: &mut String,
    place: &EntryLocation<'_>,
    folder: &Path,
    servers: Vec<TakenServer>,
    messages: &mut Vec<String>,
) -> Vec<TakenServer> {
    let (mut back, mut kept) = (Vec::new(), Vec::new());
    for server in servers {
        let place = EntryLocation { name: &server.name, ..*place };
        let result = parse(text, &place).and_then(|whole| {
            let is_used = |section: &Vec<String>| {
                let table = edit::at(&whole, &strs(section));
                table.is_some_and(|table| table.get(&server.name).is_some())
            };
            let paths = section_paths(&whole, &place, folder);
            match paths.iter().chain([&server.section]).any(is_used) {
                true => Ok(None),
                false => {
                    let section = strs(&server.section);
                    edit::put_back(text, &place, &section, &server.entry).map(Some)
                }
            }
        });
        match result {
            Ok(Some(new)) => {
                *text = new;
                back.push(server.name);
            }
            Ok(None) => {
                messages.push(format!(
                    "  {}: not put back: the name is used meanwhile; rename one of the two",
                    server.name
                ));
                kept.push(server);
            }
            Err(failure) => {
                messages.push(format!("  {}: not put back: {failure}", server.name));
                kept.push(server);
            }
        }
    }
    messages.extend(put_back_messages(place, &back));
    kept
}

/// Says which servers were put back, if any were.
fn put_back_messages(place: &EntryLocation<'_>, names: &[String]) -> Vec<String> {
    if names.is_empty() {
        return Vec::new();
    }
    let note = "note: these servers are still in Weir's configuration; remove them there if only \
                the client is to run them";
    let file = place.path.display();
    vec![format!("put back into {file}: {}", names.join(", ")), note.to_owned()]
}

/// Paths of the keys of a file that contain servers: those of Claude Code's project in this folder
/// come first, because they hide the others.
fn section_paths(
    document: &DocumentValue,
    place: &EntryLocation<'_>,
    folder: &Path,
) -> Vec<Vec<String>> {
    let mut sections = Vec::new();
    if place.client.key == ANY.key {
        let folder = folder.display().to_string();
        sections.push(vec!["projects".to_owned(), folder, ANY.key.to_owned()]);
    }
    let mut section: Vec<_> = place.client.section(document);
    while !section.is_empty() {
        sections.push(section.iter().map(|key| (*key).to_owned()).collect());
        section.pop();
    }
    sections
}

fn strs(section: &[String]) -> Vec<&str> {
    section.iter().map(String::as_str).collect()
}

fn parse(text: &str, place: &EntryLocation<'_>) -> Result<DocumentValue, Failure> {
    document::parse(text, place.client.format, JsonDialect::TOLERANT, place.path)
}
