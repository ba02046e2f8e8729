//! Which files belong to a configuration, and their texts.
//!
//! Promises: only regular files are read, each once, bounded in size and number; the order is that of the
//! patterns, and of the file names within one.
//! Knows nothing of: what stands in them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::getegid;
use toml::de::DeTable;

use crate::config::reader::diagnostics::{File, Ledger, Parsed, Value};
use crate::config::reader::report::{Complaint, Severity};
use crate::config::reader::table_reader::Table;
use crate::config::reader::value;
use crate::mcp::pattern::Pattern;
use crate::regular_file;

/// Reads the files that `include` names. What is wrong with it is told.
pub(crate) fn read(main: &File, root: &DeTable<'_>, ledger: &Ledger) -> Vec<File> {
    // Not walked: the other keys are for later.
    let table = Table::root(ledger, root);
    table.list("include", value::text);
    let mut known = BTreeSet::from_iter(fs::canonicalize(&main.name));
    let mut files = Vec::new();
    let entries = table.written("include").and_then(|value| value.get_ref().as_array());
    for entry in entries.into_iter().flatten() {
        let complain = |complaint: Complaint| {
            let at = Some(entry.span());
            ledger.add(Severity::Error, "include".to_owned(), at, complaint);
        };
        // Whatever is no usable string was told of already.
        let Some(Ok(pattern)) = ledger.judge(entry, value::text) else { continue };
        let found = match find(&main.folder, &pattern) {
            Ok(found) => found,
            Err(complaint) => {
                complain(complaint);
                continue;
            }
        };
        for path in found {
            let name = display_name(main, &path, &pattern, entry, ledger);
            match take(&path, &name, &mut known) {
                _ if files.len() >= MAX_FILES => {
                    complain(Complaint::new("more than 256 files are included", "include fewer"));
                    return files;
                }
                Ok(text) => {
                    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                    files.push(File { name, path, folder, text });
                }
                Err(complaint) => complain(complaint),
            }
        }
    }
    files
}

/// The files that a pattern names, in the order of their names; its folder may be missing, and whatever begins
/// with a dot is left to editors and mounts.
fn find(folder: &Path, pattern: &str) -> Parsed<Vec<PathBuf>> {
    let path = folder.join(pattern);
    if !pattern.contains('*') {
        return Ok(vec![path]);
    }
    let (parent, last) = match pattern.rsplit_once('/') {
        Some((parent, _)) if parent.contains('*') => {
            let remedy = "name each folder by itself, like \"a.d/*.toml\", \"b.d/*.toml\"";
            return Err(Complaint::new(
                "a * can stand in the name of a file only, not of a folder",
                remedy,
            ));
        }
        Some((_, last)) => (path.parent().unwrap_or(Path::new("/")), last),
        None => (folder, pattern),
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let names = match fs::read_dir(parent).and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<OsString>>>()
    }) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let what = format!("the folder cannot be listed: {error}");
            return Err(Complaint::new(what, "check the path and its permissions"));
        }
    };
    let pattern = Pattern::new(last);
    let is_meant = |name: &OsString| {
        let text = name.to_string_lossy();
        pattern.matches(&text) && (last.starts_with('.') || !text.starts_with('.'))
    };
    let mut names: Vec<_> = names.into_iter().filter(is_meant).collect();
    names.sort();
    let files = names.into_iter().map(|name| path.with_file_name(name));
    Ok(files.filter(|path| !path.is_dir()).collect())
}

/// How a file is named in problems: as the main file is, and without what came out of a variable.
fn display_name(
    main: &File,
    path: &Path,
    pattern: &str,
    entry: &Value<'_>,
    ledger: &Ledger,
) -> String {
    if !ledger.is_replaced(entry) {
        return path.display().to_string();
    }
    let written = ledger.written(entry);
    let named = main.folder.join(&written);
    let last = |text: &str| text.rsplit('/').next().map(str::to_owned);
    let named = match path.file_name() {
        // The variable stands in the folder only.
        Some(name) if last(&written) == last(pattern) => named.with_file_name(name),
        _ => named,
    };
    named.display().to_string()
}

/// Reads a file that was not read before.
fn take(path: &Path, name: &str, known: &mut BTreeSet<PathBuf>) -> Parsed<String> {
    let text = match path.metadata().is_ok_and(|about| !about.is_file()) {
        true => Err(Complaint::new("is not a file", "name files of TOML")),
        false => regular_file::open(path).map_err(|error| unreadable(&error)).and_then(text_of),
    };
    let text = text.map_err(|mut complaint| {
        complaint.what = format!("{name} {}", complaint.what).into();
        complaint
    })?;
    let identity = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match known.insert(identity) {
        true => Ok(text),
        false => Err(Complaint::new(
            format!("{name} belongs to the configuration already"),
            "name each file once, and keep what is included in a folder of its own",
        )),
    }
}

/// Reads the main file of a configuration whole; it may come through a pipe that Weir was started with.
pub(crate) fn text(path: &Path) -> Parsed<String> {
    text_of(regular_file::open_or_inherited(path).map_err(|error| unreadable(&error))?)
}

fn unreadable(error: &io::Error) -> Complaint {
    Complaint::new(format!("cannot be read: {error}"), "check the path and its permissions")
}

fn text_of(file: fs::File) -> Parsed<String> {
    let about = file.metadata().map_err(|error| unreadable(&error))?;
    if let Some(whom) = may_be_changed_by(about.mode(), about.gid(), getegid().as_raw()) {
        let what =
            format!("can be changed by {whom}, who could then start programs as Weir's user");
        return Err(Complaint::new(what, "take their right to write to it: chmod go-w"));
    }
    let bytes =
        regular_file::read_all(file, MAX_FILE_BYTES).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                Complaint::new("is larger than 4 MiB", "check that it is the config file")
            }
            _ => unreadable(&error),
        })?;
    String::from_utf8(bytes).map_err(|error| {
        Complaint::new(format!("is not UTF-8: {}", error.utf8_error()), "save it as UTF-8")
    })
}

/// Who beside its owner may write to a file. A group of our own is no stranger: on many systems each user
/// has one, and files are open to it.
fn may_be_changed_by(mode: u32, group: u32, ours: u32) -> Option<&'static str> {
    match mode & 0o022 {
        0o002 | 0o022 => Some("everybody"),
        0o020 if group != ours => Some("a group that is not Weir's"),
        _ => None,
    }
}

/// Far more than anybody writes, far less than hurts.
pub(crate) const MAX_FILE_BYTES: u64 = 4 << 20;

/// The most included files.
const MAX_FILES: usize = 256;

#[cfg(test)]
mod tests {
    use crate::config::reader::include::may_be_changed_by;

    #[test]
    fn a_file_is_its_owners_and_perhaps_our_own_groups() {
        for (mode, group, whom) in [
            (0o100_644, 7, None),
            (0o100_664, 5, None),
            (0o100_664, 7, Some("a group that is not Weir's")),
            (0o100_646, 5, Some("everybody")),
            (0o100_666, 7, Some("everybody")),
        ] {
            assert_eq!(may_be_changed_by(mode, group, 5), whom, "{mode:o}");
        }
    }
}
