//! Hash of the files that a step depends on, and their commit.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::process::Command;

use crate::root;

/// Hash of the names and contents of all files at these paths, except those that git ignores, and
/// of the compiler's version. An error if git cannot name the files.
pub(crate) fn hash(paths: &[&str]) -> Result<String, String> {
    let listed = git(&[&["ls-files", "-z", "-co", "--exclude-standard", "--"], paths].concat())?;
    let mut names: Vec<&str> = listed.split('\0').filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    // Its keys are fixed, and its algorithm is that of the pinned toolchain.
    let mut hasher = DefaultHasher::new();
    let compiler = Command::new("rustc").arg("-vV").current_dir(root()).output();
    hasher.write(&compiler.map_err(|error| format!("rustc: {error}"))?.stdout);
    for name in names {
        // A file that was removed is listed until that is committed.
        let Ok(content) = fs::read(root().join(name)) else { continue };
        for part in [name.as_bytes(), &content] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The present commit, if the files at these paths are as it has them.
pub(crate) fn commit(paths: &[&str]) -> Result<Option<String>, String> {
    let changed = git(&[&["status", "--porcelain", "--"], paths].concat())?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    Ok(changed.is_empty().then(|| commit.trim().to_owned()))
}

fn git(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(arguments).current_dir(root()).output();
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
}
