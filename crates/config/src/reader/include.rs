//! Files of a configuration: the main file, and the files that `include` names.
//!
//! Invariants: only regular files are read, each once, bounded in size and number; the order is
//! that of the patterns, and of the file names within one pattern.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::getegid;
use toml::de::DeTable;

use crate::reader::diagnostics::{ConfigFile, Diagnostics, Parsed, SpannedValue};
use crate::reader::report::ValueError;
use crate::reader::table_reader::TableReader;
use crate::reader::value;
use weir_base::files::regular_file;
use weir_mcp::pattern::Pattern;

/// Reads the files that `include` names; mistakes are reported.
pub(crate) fn read(
    main: &ConfigFile,
    root: &DeTable<'_>,
    diagnostics: &Diagnostics,
) -> Vec<ConfigFile> {
    // Unknown keys are not checked here, because the other keys are read later.
    let table = TableReader::root(diagnostics, root);
    table.list("include", value::text);
    let mut known = BTreeSet::from_iter(fs::canonicalize(&main.name));
    let mut files = Vec::new();
    let entries = table.get("include").and_then(|value| value.get_ref().as_array());
    for entry in entries.into_iter().flatten() {
        let report = |error: ValueError| {
            let at = Some(entry.span());
            diagnostics.error("include".to_owned(), at, error);
        };
        // Unusable entries have been reported already.
        let Some(Ok(pattern)) = diagnostics.parse_value(entry, value::text) else { continue };
        let found = match find(&main.folder, &pattern) {
            Ok(found) => found,
            Err(error) => {
                report(error);
                continue;
            }
        };
        for path in found {
            let name = display_name(main, &path, &pattern, entry, diagnostics);
            match read_once(&path, &name, &mut known) {
                _ if files.len() >= MAX_FILES => {
                    report(ValueError::new("more than 256 files are included", "include fewer"));
                    return files;
                }
                Ok(text) => {
                    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                    files.push(ConfigFile { name, path, folder, text });
                }
                Err(error) => report(error),
            }
        }
    }
    files
}

/// Returns the files that match a pattern, in the order of their names. Its folder may be missing,
/// and files that begin with a dot are skipped, because editors and mounts create them.
fn find(folder: &Path, pattern: &str) -> Parsed<Vec<PathBuf>> {
    let path = folder.join(pattern);
    if !pattern.contains('*') {
        return Ok(vec![path]);
    }
    let (parent, last) = match pattern.rsplit_once('/') {
        Some((parent, _)) if parent.contains('*') => {
            let remedy = "name each folder by itself, like \"a.d/*.toml\", \"b.d/*.toml\"";
            return Err(ValueError::new(
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
            return Err(ValueError::new(what, "check the path and its permissions"));
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

/// Returns the name of a file in problems: relative like that of the main file, and without values
/// of variables.
fn display_name(
    main: &ConfigFile,
    path: &Path,
    pattern: &str,
    entry: &SpannedValue<'_>,
    diagnostics: &Diagnostics,
) -> String {
    if !diagnostics.contains_variable(entry) {
        return path.display().to_string();
    }
    let written = diagnostics.source_text(entry);
    let named = main.folder.join(&written);
    let last = |text: &str| text.rsplit('/').next().map(str::to_owned);
    let named = match path.file_name() {
        // Only the folder contains a variable.
        Some(name) if last(&written) == last(pattern) => named.with_file_name(name),
        _ => named,
    };
    named.display().to_string()
}

/// Reads a file, which must not have been read before.
fn read_once(path: &Path, name: &str, known: &mut BTreeSet<PathBuf>) -> Parsed<String> {
    let text = match path.metadata().is_ok_and(|about| !about.is_file()) {
        true => Err(ValueError::new("is not a file", "name files of TOML")),
        false => regular_file::open(path).map_err(|error| unreadable(&error)).and_then(text_of),
    };
    let text = text.map_err(|mut error| {
        error.what = format!("{name} {}", error.what).into();
        error
    })?;
    let identity = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match known.insert(identity) {
        true => Ok(text),
        false => Err(ValueError::new(
            format!("{name} belongs to the configuration already"),
            "name each file once, and keep what is included in a folder of its own",
        )),
    }
}

/// Reads the whole main file of a configuration, which may be an inherited pipe.
pub(crate) fn text(path: &Path) -> Parsed<String> {
    text_of(regular_file::open_or_inherited(path).map_err(|error| unreadable(&error))?)
}

fn unreadable(error: &io::Error) -> ValueError {
    ValueError::new(format!("cannot be read: {error}"), "check the path and its permissions")
}

fn text_of(file: fs::File) -> Parsed<String> {
    let about = file.metadata().map_err(|error| unreadable(&error))?;
    if let Some(whom) = may_be_changed_by(about.mode(), about.gid(), getegid().as_raw()) {
        let what =
            format!("can be changed by {whom}, who could then start programs as Weir's user");
        return Err(ValueError::new(what, "take their right to write to it: chmod go-w"));
    }
    let bytes =
        regular_file::read_all(file, MAX_FILE_BYTES).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                ValueError::new("is larger than 4 MiB", "check that it is the config file")
            }
            _ => unreadable(&error),
        })?;
    String::from_utf8(bytes).map_err(|error| {
        ValueError::new(format!("is not UTF-8: {}", error.utf8_error()), "save it as UTF-8")
    })
}

/// Returns who besides its owner may write to a file. Weir's own group is accepted, because on many
/// systems each user has a group of its own, which may write to the user's files.
fn may_be_changed_by(mode: u32, group: u32, ours: u32) -> Option<&'static str> {
    match mode & 0o022 {
        0o002 | 0o022 => Some("everybody"),
        0o020 if group != ours => Some("a group that is not Weir's"),
        _ => None,
    }
}

/// Maximum size of a configuration file.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// Maximum number of included files.
const MAX_FILES: usize = 256;

#[cfg(test)]
mod tests {
    use crate::reader::include::may_be_changed_by;

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
