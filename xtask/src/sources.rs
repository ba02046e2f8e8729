//! Hashes, times and commit of the files that a step depends on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::root;

/// Hash of the names and contents of all files at these paths, except those that git ignores, and
/// of the compiler's version. An error if git cannot name the files.
pub(crate) fn hash(paths: &[&str]) -> Result<String, String> {
    // Its keys are fixed, and its algorithm is that of the pinned toolchain.
    let mut hasher = DefaultHasher::new();
    let compiler = Command::new("rustc").arg("-vV").current_dir(root()).output();
    hasher.write(&compiler.map_err(|error| format!("rustc: {error}"))?.stdout);
    for name in names(root(), paths)? {
        // A file that was removed is listed until that is committed.
        let Ok(content) = fs::read(root().join(&name)) else { continue };
        for part in [name.as_bytes(), &content] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The present commit, if the files at these paths are as it has them.
pub(crate) fn commit(paths: &[&str]) -> Result<Option<String>, String> {
    let changed = git(root(), &[&["status", "--porcelain", "--"], paths].concat())?;
    let commit = git(root(), &["rev-parse", "--short=12", "HEAD"])?;
    Ok(changed.is_empty().then(|| commit.trim().to_owned()))
}

/// Gives each file of this clone the time at which a clone first had it with its present content,
/// as `record` remembers, and updates the record. Cargo judges sources by their times: a target
/// folder that several clones use has what is built of unchanged files, and a file that changed is
/// newer than all that is built.
pub(crate) fn restore_times(clone: &Path, record: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", record.display());
    let remembered = fs::read_to_string(record).unwrap_or_default();
    let remembered: BTreeMap<&str, (&str, Duration)> = remembered
        .lines()
        .filter_map(|line| {
            let (hash, rest) = line.split_once(' ')?;
            let (nanoseconds, name) = rest.split_once(' ')?;
            Some((name, (hash, Duration::from_nanos(nanoseconds.parse().ok()?))))
        })
        .collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut present = String::new();
    for name in names(clone, &[])? {
        let Ok(content) = fs::read(clone.join(&name)) else { continue };
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        let hash = format!("{:016x}", hasher.finish());
        let known = remembered.get(name.as_str()).filter(|(known, _)| *known == hash);
        let time = known.map_or(now, |(_, time)| *time);
        let file = File::open(clone.join(&name)).map_err(failed)?;
        file.set_modified(UNIX_EPOCH + time).map_err(failed)?;
        present += &format!("{hash} {} {name}\n", time.as_nanos());
    }
    fs::write(record, present).map_err(failed)
}

/// Sorted names of all files at these paths of a clone, or of all, except those that git ignores.
fn names(clone: &Path, paths: &[&str]) -> Result<Vec<String>, String> {
    let arguments = ["ls-files", "-z", "-co", "--exclude-standard", "--"];
    let listed = git(clone, &[&arguments, paths].concat())?;
    let mut names: Vec<String> =
        listed.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}

fn git(clone: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(arguments).current_dir(clone).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_the_files_of_its_paths_only() {
        let one = hash(&["xtask"]).expect("git names the files");
        assert_eq!(hash(&["xtask"]).as_ref(), Ok(&one));
        assert_ne!(hash(&["xtask", "dev"]), Ok(one));
    }

    #[test]
    fn a_file_is_as_old_as_its_content() {
        let folder = std::env::temp_dir().join(format!("weir-times-{}", std::process::id()));
        let (first, second) = (folder.join("first"), folder.join("second"));
        let record = folder.join("record");
        let written = |clone: &Path, changed: &str| {
            fs::create_dir_all(clone).expect("a folder");
            git(clone, &["init", "--quiet"]).expect("a clone");
            fs::write(clone.join("same"), "1").expect("a file");
            fs::write(clone.join("changed"), changed).expect("a file");
            restore_times(clone, &record).expect("it can be written");
            let time = |name| fs::metadata(clone.join(name)).and_then(|file| file.modified());
            ["same", "changed"].map(|name| time(name).expect("a time"))
        };
        let before = written(&first, "1");
        let after = written(&second, "2");
        assert_eq!(before[0], after[0]);
        assert!(before[1] < after[1]);
        // What was built meanwhile is of another content.
        assert!(after[1] < written(&first, "1")[1]);
        fs::remove_dir_all(folder).expect("it can be removed");
    }
}
