//! Addition of imported servers to a configuration that exists.
//!
//! Invariants: everything that the configuration has is preserved; a server that it has already is
//! not added again, and another one of the same name gets a number.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Table as Meaning;

use super::{AS_TABLES, SECTION, not_editable, table_of};
use crate::cli::clients::init::secrets::SecretStore;
use crate::cli::clients::init::{FoundServer, ImportedServer, names, print_messages};
use crate::cli::config_edit::named_table::EditedFile;
use crate::cli::config_edit::{self, EditableFiles, FileEdit, shown};
use crate::cli::exit::Failure;
use crate::cli::output::render::counted;
use crate::cli::{files, output};

/// Adds servers to the configuration whose main file is `path`. Returns those that it has then, or
/// none if Weir can use none of them.
pub(crate) fn merge(
    found: &[FoundServer<'_>],
    path: &Path,
    messages: &mut Vec<String>,
) -> Result<Vec<ImportedServer>, Failure> {
    let editable = EditableFiles::open(path)?;
    let existing = editable.tables(SECTION)?;
    let old = config_edit::read(path)?;
    let beside = path.parent().unwrap_or(Path::new(""));
    let written: Vec<_> = found.iter().map(|found| found.server.name.clone()).collect();
    let legal = names::legal(&written);
    let mut merged = MergedText {
        path,
        existing: &existing,
        legal: &legal,
        text: old.text.clone(),
        store: SecretStore::NewFiles(beside.to_owned(), Vec::new()),
        added: 0,
        skipped: Vec::new(),
        imported: Vec::new(),
    };
    for (server, name) in found.iter().zip(&legal) {
        merged.add(server, name, messages)?;
    }
    if merged.imported.is_empty() {
        return Ok(Vec::new());
    }
    messages.extend(merged.describe_skipped());
    print_messages(messages);
    files::check_writable(path)?;
    let secrets = merged.store.write(beside)?;
    if merged.added == 0 {
        secrets.keep();
        output::print_stderr(&format!("{} has all of them, and was not changed", shown(path)));
        return Ok(merged.imported);
    }
    let edited = EditedFile { text: merged.text, lines: String::new() };
    let edit = FileEdit { file: path.to_owned(), old, edited };
    let copies = config_edit::replace_with_copies(std::slice::from_ref(&edit))?;
    secrets.keep();
    for copy in &copies {
        output::print_stderr(&format!("copied {} to {}", shown(path), shown(copy)));
    }
    output::print_stderr(&format!(
        "wrote {}: added {} to the {} that the configuration had",
        shown(path),
        counted(merged.added as u64, "upstream"),
        existing.len()
    ));
    Ok(merged.imported)
}

/// Text of the main file with the servers that were added so far.
struct MergedText<'m> {
    path: &'m Path,
    /// Upstreams that the configuration had before.
    existing: &'m BTreeMap<String, Meaning>,
    /// Names that the servers get if no other upstream has them.
    legal: &'m [String],
    text: String,
    store: SecretStore,
    added: usize,
    /// Servers that were there before, and their upstreams.
    skipped: Vec<(String, String)>,
    /// Servers that the configuration has then, added or not.
    imported: Vec<ImportedServer>,
}

impl MergedText<'_> {
    /// Describes on one line which servers were there before.
    fn describe_skipped(&self) -> Option<String> {
        match &self.skipped[..] {
            [] => None,
            [(one, name)] => Some(format!("  {one}: skipped: it is [upstreams.{name}] already")),
            all => {
                let names = all.iter().map(|(one, name)| match one == name {
                    true => one.clone(),
                    false => format!("{one} (as {name})"),
                });
                let names = names.collect::<Vec<_>>().join(", ");
                Some(format!("  {names}: skipped: the configuration has them already"))
            }
        }
    }

    /// Adds a server under the first name that is free, unless it is there under a name before.
    fn add(
        &mut self,
        server: &FoundServer<'_>,
        name: &str,
        messages: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let old = &server.server.name;
        let candidates = std::iter::once(name.to_owned()).chain(names::numbered(name));
        for candidate in candidates.filter(|it| it == name || !self.legal.contains(it)) {
            let table = table_of(&candidate);
            let there = self.existing.get(&candidate);
            if there.is_none() && table.is_in(&self.text, None) {
                continue;
            }
            let mut store = self.store.clone();
            let converted = match server.to_table(&candidate, &mut store) {
                Ok(converted) => converted,
                Err(why) => {
                    messages.push(format!("  {old}: left out: {why}"));
                    return Ok(());
                }
            };
            match there {
                Some(there) if !is_same_server(there, &table.meaning_of(&converted.table)) => {
                    continue;
                }
                Some(_) => self.skipped.push((old.clone(), candidate.clone())),
                None => {
                    let edited = table.add(&self.text, &converted.table);
                    let edited =
                        edited.ok_or_else(|| not_editable(self.path, &candidate, AS_TABLES))?;
                    self.text = edited.text;
                    let why = match candidate == name {
                        true => String::new(),
                        false => format!(": [upstreams.{name}] is another server"),
                    };
                    messages.push(format!("  {old}: is [upstreams.{candidate}] now{why}"));
                    let about = converted.messages.iter();
                    messages.extend(about.map(|text| format!("  {candidate}: {text}")));
                    self.added += 1;
                }
            }
            // Secrets of a server that is skipped are there already, or their files are missing.
            self.store = store;
            self.imported.push(ImportedServer {
                name: old.clone(),
                upstream: candidate,
                enabled: server.server.enabled,
            });
            return Ok(());
        }
        Ok(())
    }
}

/// Returns whether an upstream reaches the same server in the same way, whatever its other settings
/// are.
fn is_same_server(there: &Meaning, new: &Meaning) -> bool {
    SOURCE_KEYS.iter().all(|key| there.get(*key) == new.get(*key))
}

/// Keys that say which server an upstream is.
const SOURCE_KEYS: [&str; 8] =
    ["prompts_dir", "command", "args", "env", "cwd", "url", "headers", "transport"];
