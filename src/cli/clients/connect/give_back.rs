//! Way back of a take-over: the client's servers return to its file, and Weir leaves it.
//!
//! Invariant: the file becomes what it was, byte for byte, if nothing else has changed it.
//! Otherwise nothing in it is overwritten, and what cannot be put back stays in the record.

use std::collections::BTreeSet;
use std::path::Path;

use super::method;
use super::other_scopes::{ClientScopes, OtherScope, entry_at, strs};
use super::take_over::{has_entry, parse, state_folder};
use super::taken::{TakenOver, TakenServer};
use super::{is_own_entry, replace};
use crate::cli::clients::document;
use crate::cli::clients::edit::{self, EntryLocation};
use crate::cli::exit::Failure;
use crate::cli::output::render::sanitize_line;
use crate::cli::{loading, output};
use weir_config::Config;

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
    if let Some(entry) =
        record.as_ref().and_then(|(_, it)| it.original.as_ref()).map(|it| &it.entry)
        && entry != place.name
        && has_entry(&text, place, entry)?
    {
        let file = place.path.display();
        return Err(Failure::Usage(format!(
            "the entry for Weir in {file} is `{entry}`: add --name {entry}"
        )));
    }
    let mut taken = record.as_mut().map(|(_, taken)| taken);
    match taken.as_mut().and_then(|taken| original_of(taken, place, &text)) {
        Some((original, names)) => {
            text = original;
            let file = place.path.display();
            messages.push(format!("removed the entry `{}` from {file}", place.name));
            if !names.is_empty() {
                let names = Vec::from_iter(names).join(", ");
                messages.push(format!("put back into {file}: {names}"));
                messages.push(STILL_BEHIND_WEIR.to_owned());
            }
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
) -> Option<(String, BTreeSet<String>)> {
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
    for (index, server) in servers.iter().enumerate() {
        let later = &servers[index + 1..];
        let why = match later.iter().any(|later| later.is_at_place_of(server)) {
            true => Some("another entry of this name was moved later".to_owned()),
            false => match put_back_one(text, place, server) {
                Ok(result) => {
                    back.push((server, result));
                    None
                }
                Err(why) => Some(why),
            },
        };
        if let Some(why) = why {
            messages.push(format!("  {}: not put back: {why}", server.name));
            kept.push(server.clone());
        }
    }
    let file = place.path.display();
    let names = |wanted: PutBack| {
        let names = back.iter().filter(move |(_, result)| *result == wanted);
        names.map(|(server, _)| server.name.as_str()).collect::<BTreeSet<_>>()
    };
    for (names, what) in [
        (names(PutBack::Done), format!("put back into {file}")),
        (names(PutBack::Present), format!("in {file} already, and the same")),
    ] {
        if !names.is_empty() {
            messages.push(format!("{what}: {}", Vec::from_iter(names).join(", ")));
        }
    }
    if let Ok(document) = parse(text, place) {
        let scopes = ClientScopes::read(place, folder, document);
        for (server, _) in &back {
            let is_back = |other: &OtherScope| match other {
                OtherScope::Section(section) => {
                    back.iter().any(|(it, _)| (&it.name, &it.section) == (&server.name, section))
                }
                OtherScope::Project(_) => true,
                OtherScope::File(..) => false,
            };
            let others = scopes.find(&server.name, &server.section);
            for other in others.into_iter().filter(|other| !is_back(other)) {
                let at = match other {
                    OtherScope::File(_, path) => path.display().to_string(),
                    OtherScope::Section(section) => format!("{file} under `{}`", section.join(".")),
                    OtherScope::Project(_) => continue,
                };
                messages.push(format!(
                    "  {}: another server of this name is in {at}, and the client runs one of the \
                     two",
                    server.name
                ));
            }
        }
    }
    if !back.is_empty() {
        messages.push(STILL_BEHIND_WEIR.to_owned());
    }
    kept
}

/// Result of putting a server back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PutBack {
    Done,
    /// The client's file has it already.
    Present,
}

/// Puts one server back into a text, or returns why that is impossible.
fn put_back_one(
    text: &mut String,
    place: &EntryLocation<'_>,
    server: &TakenServer,
) -> Result<PutBack, String> {
    let place = EntryLocation { name: &server.name, ..*place };
    let whole = parse(text, &place).map_err(|failure| failure.to_string())?;
    match entry_at(&whole, &server.section, &server.name) {
        Some(there) if server.meaning(&place).as_ref() == Some(there) => Ok(PutBack::Present),
        Some(_) => Err("the name is used meanwhile; rename one of the two".to_owned()),
        None => {
            let new = edit::put_back(text, &place, &strs(&server.section), &server.entry);
            *text = new.map_err(|failure| failure.to_string())?;
            Ok(PutBack::Done)
        }
    }
}

const STILL_BEHIND_WEIR: &str = "note: these servers are still in Weir's configuration; remove them \
                                 there if only the client is to run them";
