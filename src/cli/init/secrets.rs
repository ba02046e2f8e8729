//! What of a client's file is secret, and where it goes instead.
//!
//! A secret is moved out of the configuration into a file of its own, which only its owner may read. It is
//! spoken of by name, never by value. Where nothing may be written, a variable takes the file's place.
//!
//! A value is taken for a secret by the name that it has or by its shape. That errs on the safe side: a
//! harmless value in a file of its own costs nothing.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::cli::clients::variables::variable_name;
use crate::cli::exit::Failure;
use crate::cli::files;
use crate::regular_file;

/// Where secrets go.
#[derive(Debug)]
pub(in crate::cli) enum Vault {
    /// Into files of this folder's `secrets`.
    Files(Vec<(String, String)>),
    /// Nowhere: variables are to hold them.
    Variables(Vec<(String, String)>),
}

/// Where a secret is now.
#[derive(Debug, PartialEq)]
pub(in crate::cli) enum Place {
    /// In this file, relative to the configuration.
    File(String),
    /// In this variable, once somebody has set it.
    Variable(String),
}

impl Vault {
    /// Takes a secret and tells where it is to be found. `wanted` is the name of a variable that would
    /// suit it.
    pub(in crate::cli) fn keep(
        &mut self,
        upstream: &str,
        name: &str,
        wanted: &str,
        value: &str,
    ) -> Place {
        let own = joined(upstream, name);
        // Weir drops one newline at the end of such a file.
        let value = match (&self, value.ends_with('\n')) {
            (Self::Files(_), true) => &format!("{value}\n"),
            _ => value,
        };
        let (kept, first, base) = match self {
            Self::Files(kept) => (kept, file_name(&own), file_name(&own)),
            Self::Variables(kept) => (kept, wanted.to_owned(), variable_name(&own)),
        };
        let numbered = (2..).map(|number| format!("{base}_{number}"));
        let mut names = [first, base.clone()].into_iter().chain(numbered);
        let is_free =
            |name: &String| kept.iter().all(|(taken, held)| taken != name || held == value);
        let name = names.find(is_free).unwrap_or(base);
        if !kept.iter().any(|(taken, _)| *taken == name) {
            kept.push((name.clone(), value.to_owned()));
        }
        match self {
            Self::Files(_) => Place::File(format!("{FOLDER}/{name}")),
            Self::Variables(_) => Place::Variable(name),
        }
    }

    /// The first file that is there already and holds something else.
    pub(in crate::cli) fn in_the_way(&self, folder: &Path) -> Option<PathBuf> {
        let Self::Files(kept) = self else { return None };
        kept.iter().find_map(|(name, value)| {
            let path = folder.join(FOLDER).join(name);
            let is_in_the_way = match regular_file::read(&path, value.len() as u64) {
                Ok(there) => there != value.as_bytes(),
                Err(error) => error.kind() != ErrorKind::NotFound,
            };
            is_in_the_way.then_some(path)
        })
    }

    /// Writes the files. What they replace is kept beside them.
    pub(in crate::cli) fn write(&self, folder: &Path) -> Result<(), Failure> {
        let Self::Files(kept) = self else { return Ok(()) };
        if kept.is_empty() {
            return Ok(());
        }
        let secrets = folder.join(FOLDER);
        let cannot = |path: &Path, error: &std::io::Error| files::cannot_write(path, error);
        if !secrets.is_dir() {
            make_private_folder(&secrets).map_err(|error| cannot(&secrets, &error))?;
            let ignore = secrets.join(".gitignore");
            std::fs::write(&ignore, "*\n").map_err(|error| cannot(&ignore, &error))?;
        }
        for (name, value) in kept {
            let path = secrets.join(name);
            match regular_file::read(&path, value.len() as u64) {
                // What is there may be readable for others, and is written anew all the same.
                Ok(there) if there == value.as_bytes() => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() != ErrorKind::FileTooLarge => {
                    return Err(cannot(&path, &error));
                }
                Ok(_) | Err(_) => {
                    files::back_up(&path)?;
                }
            }
            write_private(&path, value).map_err(|error| cannot(&path, &error))?;
        }
        Ok(())
    }
}

/// The upstream's name and the secret's, but not twice the same: many a `GITHUB_TOKEN` is one of `github`.
pub(super) fn joined(upstream: &str, name: &str) -> String {
    let begins = variable_name(name).starts_with(&format!("{}_", variable_name(upstream)));
    if begins { name.to_owned() } else { format!("{upstream}-{name}") }
}

fn file_name(own: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    own.chars().map(legal).take(MAX_NAME).collect()
}

#[cfg(unix)]
fn make_private_folder(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(not(unix))]
fn make_private_folder(path: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Writes beside the file and renames, so that it is never readable by others, not even half.
fn write_private(path: &Path, value: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // A temporary file is its owner's alone.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(value.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

// === What is secret ===

/// Whether a value that has this name is a secret.
pub(in crate::cli) fn is_secret(name: &str, value: &str) -> bool {
    !value.is_empty()
        && !["true", "false"].contains(&value)
        && (names_a_secret(name) || looks_secret(value))
}

/// Whether a name is that of a secret.
pub(in crate::cli) fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    parts.into_iter().any(|part| SECRET_WORDS.iter().any(|word| part.ends_with(word)))
        && !PLACE_WORDS.iter().any(|word| name.ends_with(word))
}

/// Whether a value has the shape of a secret, whatever its name.
pub(in crate::cli) fn looks_secret(value: &str) -> bool {
    let value = value.trim();
    let scheme = value.split_once(' ').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_credentials = scheme.is_some_and(|s| ["bearer", "basic", "token"].contains(&s.as_str()));
    is_credentials || has_prefix(value) || has_password(value) || is_random(value)
}

/// Whether a URL holds a password.
fn has_password(value: &str) -> bool {
    let Some((_, rest)) = value.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// Whether an argument of a program has the shape of a secret. Arguments are words more often than
/// variables and headers are, so dashes speak against it here.
pub(in crate::cli) fn looks_secret_as_argument(value: &str) -> bool {
    looks_secret(value) && (!is_random(value) || !value.contains('-') || has_prefix(value))
}

/// Whether a part of a path looks like a secret: some services put one into the address itself.
pub(in crate::cli) fn looks_secret_as_path(part: &str) -> bool {
    is_random(part) || has_prefix(part)
}

fn has_prefix(value: &str) -> bool {
    let begins = |prefix: &&str| {
        value.len() > prefix.len() + 4 && value.get(..prefix.len()) == Some(*prefix)
    };
    PREFIXES.iter().any(begins)
}

/// Long, without spaces or slashes, letters and digits mixed: nobody types such a thing.
fn is_random(value: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_+=-".contains(&b);
    value.len() >= 32
        && value.bytes().all(legal)
        && value.bytes().any(|b| b.is_ascii_digit())
        && value.bytes().any(|b| b.is_ascii_alphabetic())
}

/// The longest name of a file, but for the number of one whose name is taken: a file system takes 255 bytes.
const MAX_NAME: usize = 100;

/// The folder beside the configuration.
const FOLDER: &str = "secrets";

/// How the part of a name ends that says secret.
const SECRET_WORDS: [&str; 17] = [
    "token",
    "key",
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "pass",
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "auth",
    "pat",
    "cookie",
    "apikey",
];

/// How a name ends that says where the secret is.
const PLACE_WORDS: [&str; 5] = ["file", "path", "dir", "url", "uri"];

/// How the tokens of well known services begin.
const PREFIXES: [&str; 22] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "sk-",
    "sk_",
    "rk_",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
    "hf_",
    "npm_",
    "lin_api_",
    "ntn_",
    "-----BEGIN",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_its_name_or_by_its_shape() {
        for (name, value) in [
            ("GITHUB_TOKEN", "x"),
            ("X-Api-Key", "abc"),
            ("apiKey", "abc"),
            ("Authorization", "abc"),
            ("DB_PASSWORD", "1234"),
            ("DATABASE_URL", "postgres://me:hunter2@db/x"),
            ("X", "Bearer abc"),
            ("X", "ghp_0123456789"),
            ("ID", "3f786850e387550fdab836ed7e6dc881de23001b"),
        ] {
            assert!(is_secret(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("LOG_LEVEL", "info"),
            ("TOKEN_FILE", "/run/token"),
            ("MAX_TOKENS", "4096"),
            ("GITHUB_TOKEN", ""),
            ("USE_AUTH", "true"),
            ("ROOT", "/home/me/a/rather/long/path/with-2-numbers"),
            ("URL", "https://me@example.com/x"),
        ] {
            assert!(!is_secret(name, value), "{name}={value}");
        }
    }

    #[test]
    fn two_secrets_never_share_a_place() {
        let mut vault = Vault::Files(Vec::new());
        let kept = |vault: &mut Vault, name: &str, value| vault.keep("a", name, name, value);
        assert_eq!(kept(&mut vault, "X_KEY", "1"), Place::File("secrets/a-x-key".to_owned()));
        assert_eq!(kept(&mut vault, "X-KEY", "2"), Place::File("secrets/a-x-key_2".to_owned()));
        let mut vault = Vault::Variables(Vec::new());
        assert_eq!(kept(&mut vault, "KEY", "1"), Place::Variable("KEY".to_owned()));
        assert_eq!(kept(&mut vault, "KEY", "1"), Place::Variable("KEY".to_owned()));
        assert_eq!(kept(&mut vault, "KEY", "2"), Place::Variable("A_KEY".to_owned()));
    }
}
