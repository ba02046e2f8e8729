//! Store that the secrets of a client's file are moved to.
//!
//! A secret is moved from the configuration to a file of its own, which only its owner may read.
//! Messages contain its name, never its value. If no file may be written, a variable replaces it.
//! A value that is wrongly taken for a secret does no harm there.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cli::clients::variables::variable_name;
use crate::cli::exit::Failure;
use crate::cli::files;
use weir_base::files::regular_file;

/// Store for secrets.
#[derive(Clone, Debug)]
pub(crate) enum SecretStore {
    /// Files in the folder `secrets`.
    Files(Vec<(String, String)>),
    /// Files in the folder `secrets` beside a configuration; a file that exists is not replaced.
    NewFiles(PathBuf, Vec<(String, String)>),
    /// Variables that the user has to set; nothing is written.
    Variables(Vec<(String, String)>),
}

/// New location of a secret.
#[derive(Debug, PartialEq)]
pub(crate) enum SecretLocation {
    /// File, relative to the configuration.
    File(String),
    /// Variable that the user has to set.
    Variable(String),
}

impl SecretStore {
    /// Adds a secret and returns its location. `wanted` is the preferred name of its variable.
    pub(crate) fn add(
        &mut self,
        upstream: &str,
        name: &str,
        wanted: &str,
        value: &str,
    ) -> SecretLocation {
        let own = secret_name(upstream, name);
        // Weir removes one newline at the end of such a file.
        let value = match (&self, value.ends_with('\n')) {
            (Self::Files(_) | Self::NewFiles(..), true) => &format!("{value}\n"),
            _ => value,
        };
        let (kept, first, base, folder) = match self {
            Self::Files(kept) => (kept, file_name(&own), file_name(&own), None),
            Self::NewFiles(folder, kept) => {
                (kept, file_name(&own), file_name(&own), Some(folder.join(SECRETS_FOLDER)))
            }
            Self::Variables(kept) => (kept, wanted.to_owned(), variable_name(&own), None),
        };
        let numbered = (2..).map(|number| format!("{base}_{number}"));
        let mut names = [first, base.clone()].into_iter().chain(numbered);
        let is_other_file = |name: &String| {
            let path = folder.as_ref().map(|folder| folder.join(name));
            // Writing reports a file that cannot be read.
            path.is_some_and(|path| has_other_content(&path, value).unwrap_or(false))
        };
        let is_free = |name: &String| {
            kept.iter().all(|(taken, held)| taken != name || held == value) && !is_other_file(name)
        };
        let name = names.find(is_free).unwrap_or(base);
        if !kept.iter().any(|(taken, _)| *taken == name) {
            kept.push((name.clone(), value.to_owned()));
        }
        match self {
            Self::Files(_) | Self::NewFiles(..) => {
                SecretLocation::File(format!("{SECRETS_FOLDER}/{name}"))
            }
            Self::Variables(_) => SecretLocation::Variable(name),
        }
    }

    /// Finds the first file that exists already with other content.
    pub(crate) fn find_conflict(&self, folder: &Path) -> Option<PathBuf> {
        let Self::Files(kept) = self else { return None };
        kept.iter().find_map(|(name, value)| {
            let path = folder.join(SECRETS_FOLDER).join(name);
            has_other_content(&path, value).unwrap_or(true).then_some(path)
        })
    }

    /// Writes the files. Replaced files are copied first.
    pub(crate) fn write(&self, folder: &Path) -> Result<WrittenSecrets, Failure> {
        let mut written = WrittenSecrets(Vec::new());
        let (Self::Files(kept) | Self::NewFiles(_, kept)) = self else { return Ok(written) };
        if kept.is_empty() {
            return Ok(written);
        }
        let secrets = folder.join(SECRETS_FOLDER);
        if !secrets.is_dir() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&secrets);
            made.map_err(|error| files::write_failure(&secrets, &error))?;
            written.0.push(WrittenPath::Folder(secrets.clone()));
            let ignore = secrets.join(".gitignore");
            files::write(&ignore, "*\n")?;
            written.0.push(WrittenPath::New(ignore));
        }
        for (name, value) in kept {
            let path = secrets.join(name);
            let differs = has_other_content(&path, value);
            let differs = differs.map_err(|error| files::write_failure(&path, &error))?;
            let is_new = path.symlink_metadata().is_err();
            let copy = if differs { Some(files::back_up_file(&path)?) } else { None };
            // Written again even if it is equal: the old file may be readable by others.
            files::write_private(&path, value)?;
            written.0.extend(copy.map(|copy| WrittenPath::Replaced(path.clone(), copy)));
            written.0.extend(is_new.then_some(WrittenPath::New(path)));
        }
        Ok(written)
    }
}

/// Files of secrets that were written. They are removed again when this is dropped, and those that
/// they have replaced are put back, unless the configuration that names them was written.
pub(crate) struct WrittenSecrets(Vec<WrittenPath>);

/// Path that was written.
enum WrittenPath {
    Folder(PathBuf),
    New(PathBuf),
    /// The file, and the copy of what it has replaced.
    Replaced(PathBuf, PathBuf),
}

impl WrittenSecrets {
    /// Keeps the files.
    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for WrittenSecrets {
    fn drop(&mut self) {
        for path in self.0.drain(..).rev() {
            // The failure that has led to this is reported. A folder with other files stays.
            let _ = match path {
                WrittenPath::Folder(path) => std::fs::remove_dir(path),
                WrittenPath::New(path) => std::fs::remove_file(path),
                WrittenPath::Replaced(path, copy) => std::fs::rename(copy, path),
            };
        }
    }
}

/// Returns whether a file exists with other content than this.
fn has_other_content(path: &Path, value: &str) -> io::Result<bool> {
    match regular_file::read(path, value.len() as u64) {
        Ok(there) => Ok(there != value.as_bytes()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => Ok(true),
        Err(error) => Err(error),
    }
}

/// Joins the names of the upstream and of the secret, unless the latter contains the former, as
/// `GITHUB_TOKEN` of `github` does.
pub(super) fn secret_name(upstream: &str, name: &str) -> String {
    let begins = variable_name(name).starts_with(&format!("{}_", variable_name(upstream)));
    if begins { name.to_owned() } else { format!("{upstream}-{name}") }
}

fn file_name(own: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    own.chars().map(legal).take(MAX_FILE_NAME_CHARS).collect()
}

/// Longest file name, without the number that makes it unique; file systems allow 255 bytes.
const MAX_FILE_NAME_CHARS: usize = 100;

/// Folder beside the configuration.
const SECRETS_FOLDER: &str = "secrets";

#[cfg(test)]
mod tests {
    use crate::cli::clients::init::secrets::*;

    #[test]
    fn secrets_that_no_configuration_names_are_removed_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = folder.path().join(SECRETS_FOLDER);
        let store = |value: &str| SecretStore::Files(vec![("a-key".to_owned(), value.to_owned())]);
        drop(store("1").write(folder.path()).expect("written"));
        assert!(!secrets.exists());
        store("1").write(folder.path()).expect("written").keep();
        drop(store("2").write(folder.path()).expect("written"));
        drop(store("1").write(folder.path()).expect("written"));
        assert_eq!(std::fs::read_to_string(secrets.join("a-key")).expect("it is there"), "1");
        assert_eq!(std::fs::read_dir(&secrets).expect("a folder").count(), 2);
    }

    #[test]
    fn two_secrets_never_share_a_place() {
        let mut store = SecretStore::Files(Vec::new());
        let kept = |store: &mut SecretStore, name: &str, value| store.add("a", name, name, value);
        assert_eq!(
            kept(&mut store, "X_KEY", "1"),
            SecretLocation::File("secrets/a-x-key".to_owned())
        );
        assert_eq!(
            kept(&mut store, "X-KEY", "2"),
            SecretLocation::File("secrets/a-x-key_2".to_owned())
        );
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = folder.path().join(SECRETS_FOLDER);
        std::fs::create_dir_all(secrets.join("a-folder")).expect("made");
        std::fs::write(secrets.join("a-key"), "1").expect("written");
        let mut store = SecretStore::NewFiles(folder.path().to_owned(), Vec::new());
        for (name, value, file) in [
            ("KEY", "1", "secrets/a-key"),
            ("KEY", "2", "secrets/a-key_2"),
            ("FOLDER", "1", "secrets/a-folder"),
        ] {
            let location = SecretLocation::File(file.to_owned());
            assert_eq!(kept(&mut store, name, value), location);
        }
        assert!(store.write(folder.path()).is_err(), "a folder is not replaced");
        let there = std::fs::read_dir(&secrets).expect("a folder").count();
        assert_eq!(there, 2, "nothing is left behind");
        let mut store = SecretStore::Variables(Vec::new());
        assert_eq!(kept(&mut store, "KEY", "1"), SecretLocation::Variable("KEY".to_owned()));
        assert_eq!(kept(&mut store, "KEY", "1"), SecretLocation::Variable("KEY".to_owned()));
        assert_eq!(kept(&mut store, "KEY", "2"), SecretLocation::Variable("A_KEY".to_owned()));
    }
}
