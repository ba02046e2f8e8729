//! `weir remove`, `enable` and `disable`: changes of an upstream that the configuration has.

use std::path::PathBuf;

use toml_edit::{Table, value};

use super::{EditArgs, UpstreamChange, UpstreamEditor, not_editable, print_problems, table_of};
use crate::cli::clients::document::{self, FileText};
use crate::cli::config_edit::named_table::set_value;
use crate::cli::config_edit::{FileEdit, replace_with_copies, shown};
use crate::cli::exit::Failure;
use crate::cli::loading::{config_path, options};
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use weir_config::Config;
use weir_oauth::Vault;

/// Arguments of `weir remove`, `enable` and `disable`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The upstream.
    name: String,
    #[command(flatten)]
    edit: EditArgs,
}

/// Removes the upstream from all files that have a part of it.
pub(crate) fn remove(args: &Args) -> Result<(), Failure> {
    let (name, table) = (&args.name, table_of(&args.name));
    let editor = UpstreamEditor::open(config_path(args.edit.config.as_deref())?)?;
    editor.table(name)?;
    let secrets = secrets_of(&editor);
    let mut edits = Vec::new();
    for (file, old) in editor.files.containing(&table, None)? {
        let edited = table.remove(&old.text);
        let remedy = format!("remove [upstreams.{}] there", sanitize_line(name));
        let edited = edited.ok_or_else(|| not_editable(&file, name, &remedy))?;
        edits.push(FileEdit { file, old, edited });
    }
    let copies = replace_with_copies(&edits)?;
    let unused = secrets_of(&editor);
    let unused = secrets.into_iter().filter(|secret| !unused.contains(secret));
    let name = sanitize_line(name);
    if !args.edit.json {
        for (FileEdit { file, .. }, copy) in edits.iter().zip(&copies) {
            let file = shown(file);
            output::print_stderr(&format!("copied {file} to {}", shown(copy)));
            output::print_stderr(&format!("removed [upstreams.{name}] from {file}"));
        }
        for secret in unused.filter(|secret| secret.exists()) {
            output::print_stderr(&format!(
                "{} was its secret, and is still there: delete it unless another program needs it",
                shown(&secret)
            ));
        }
    }
    if !args.edit.json && is_signed_in(&editor, &args.name) {
        output::print_stderr(&format!(
            "a user is still signed in to it: `weir logout {name}` removes the sign-in here, but \
             without the upstream's table Weir cannot revoke it"
        ));
    }
    let written: Vec<_> = edits.into_iter().map(|edit| edit.file).collect();
    print_change(args, &editor, &written, ", and stops the upstream")
}

/// Sets `enabled` of the upstream.
pub(crate) fn set_enabled(args: &Args, enabled: bool) -> Result<(), Failure> {
    let (name, table) = (&args.name, table_of(&args.name));
    let editor = UpstreamEditor::open(config_path(args.edit.config.as_deref())?)?;
    let is_enabled =
        editor.table(name)?.get("enabled").is_none_or(|it| it.as_bool() != Some(false));
    let word = if enabled { "enabled" } else { "disabled" };
    if is_enabled == enabled {
        if !args.edit.json {
            let name = sanitize_line(name);
            output::print_stderr(&format!("the upstream `{name}` is {word} already"));
        }
        return print_change(args, &editor, &[], "");
    }
    let (file, old) = find_file_to_change(&editor, name)?;
    let edited = table.change(&old.text, |upstream| {
        set_value(upstream, "enabled", enabled)?;
        Some(Table::from_iter([("enabled", value(enabled))]))
    });
    let remedy = format!("write `enabled = {enabled}` there");
    let edited = edited.ok_or_else(|| not_editable(&file, name, &remedy))?;
    document::replace(&file, Some(&old), &edited.text)?;
    if !args.edit.json {
        let name = sanitize_line(name);
        output::print_stderr(&format!("{word} the upstream `{name}` in {}", shown(&file)));
    }
    let effect = if enabled { ", and starts the upstream" } else { ", and stops the upstream" };
    print_change(args, &editor, &[file], effect)
}

/// Finds the file with the key `enabled` of an upstream, else with its source, else the first.
fn find_file_to_change(
    editor: &UpstreamEditor,
    name: &str,
) -> Result<(PathBuf, FileText), Failure> {
    let keys = [Some("enabled"), Some("command"), Some("url"), Some("prompts_dir"), None];
    for key in keys {
        let files = editor.files.containing(&table_of(name), key)?;
        if let Some(found) = files.into_iter().next() {
            return Ok(found);
        }
    }
    // The file was changed after it was read.
    let name = sanitize_line(name);
    Err(Failure::Usage(format!("no file contains [upstreams.{name}] any more")))
}

/// Files of secrets that the configuration names.
fn secrets_of(editor: &UpstreamEditor) -> Vec<PathBuf> {
    let sources = Config::sources(&editor.path, &options(true));
    sources.map(|sources| sources.secrets).unwrap_or_default()
}

/// Returns whether a user is signed in to an upstream.
fn is_signed_in(editor: &UpstreamEditor, name: &str) -> bool {
    let (listeners, _) = Config::listeners(&editor.path, &options(true));
    let vault = listeners.state.dir.and_then(|state| Vault::open_existing(&state).ok().flatten());
    vault.is_some_and(|vault| vault.read(name).is_ok_and(|record| record.is_some()))
}

/// Prints what a change has caused, and the next step.
fn print_change(
    args: &Args,
    editor: &UpstreamEditor,
    written: &[PathBuf],
    effect: &str,
) -> Result<(), Failure> {
    let problems = editor.new_problems();
    if args.edit.json {
        let change = UpstreamChange::<()>::new(&args.name, written, &problems, None);
        return output::print_report(true, &change, |_| Ok(()));
    }
    if print_problems(&problems) && !written.is_empty() {
        output::print_stderr(&editor.next_step(effect));
    }
    Ok(())
}
