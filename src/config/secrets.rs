//! Secrets: written down, or told where they are: `{ env = "VAR" }`, `{ file = "path" }`, `{ command = ["…"] }`.
//!
//! Promises: nothing that is read here appears in a complaint; a file and an output are bounded; where nothing
//! may be started, a command is checked and not run.
//! Knows nothing of: what a secret is for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use tokio_util::sync::CancellationToken;
use toml::de::DeValue;
use zeroize::Zeroizing;

use super::secret_command::{self, Refusal, TOO_MUCH};
use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::{Parsed, Table};
use crate::config::reader::value;
use crate::config::reader::variables::{Environment, is_name, is_not_set};
use crate::regular_file;
use crate::secret::Secret;

/// Where secrets are fetched, and how far one may go for them.
pub(super) struct Vault<'o> {
    environment: &'o Environment,
    stop: &'o CancellationToken,
    may_run: bool,
    /// What commands gave, so that one that stands in several places asks its person once.
    outputs: RefCell<BTreeMap<Command, Result<Secret, Refusal>>>,
}

/// Where a command runs, its program and its arguments.
type Command = (PathBuf, Vec<String>);

impl<'o> Vault<'o> {
    pub(super) fn new(
        environment: &'o Environment,
        stop: &'o CancellationToken,
        may_run: bool,
    ) -> Self {
        Self { environment, stop, may_run, outputs: RefCell::default() }
    }
}

/// Reads the secret under a key. Returns none if it is not written, if something is wrong with it, which is
/// told, or if it was not fetched: it is `used` by nobody, or a command that may not be run.
pub(super) fn secret<'a>(
    t: &Table<'a>,
    key: &'a str,
    vault: &Vault<'_>,
    used: bool,
) -> Option<Secret> {
    match t.written(key)?.get_ref() {
        DeValue::Table(_) => {
            t.hide_but(key, &["env", "file"]);
            t.table(key, |t| elsewhere(t, vault, used))
        }
        _ => {
            t.hide(key);
            t.read(key, value::text_or_empty).map(Secret::from)
        }
    }
}

/// Reads the one of three keys that says where the secret is, and fetches it.
fn elsewhere(t: &Table<'_>, vault: &Vault<'_>, used: bool) -> Option<Secret> {
    let name = t.read("env", |v| match value::string(v)? {
        name if is_name(name) => Ok(name.to_owned()),
        _ => {
            t.hide("env");
            Err(Complaint::new("this cannot name a variable", "write a name like API_TOKEN"))
        }
    });
    let path = t.read("file", value::text);
    let command = t.list("command", value::text_or_empty);
    let written: Vec<_> = ["env", "file", "command"].into_iter().filter(|key| t.has(key)).collect();
    let [key] = written[..] else {
        match written[..] {
            [first, second, ..] => t.object(
                second,
                Complaint::new(
                    format!("{first} says already where the secret is"),
                    "keep one of the two",
                ),
            ),
            // A key that is not known was meant to, and is told by itself.
            _ if !t.names().is_empty() => {}
            _ => t.object_to_all(Complaint::new(
                "nothing says where the secret is",
                "write exactly one of env, file, command, or the secret itself as a string",
            )),
        }
        return None;
    };
    let fetched = match key {
        "env" => {
            let name = name?;
            used.then(|| from_variable(&name, &t.quote(key), vault.environment))?
        }
        "file" => {
            let path = t.folder(key).join(path?);
            used.then(|| from_file(t, &path))?
        }
        _ => {
            let command = whole_command(t, command?)?;
            (used && vault.may_run).then(|| from_command(t, command, vault))?
        }
    };
    match fetched {
        Ok(secret) => {
            if secret.expose().is_empty() {
                let remedy = "check that this is where the secret is";
                t.warn(key, Complaint::new("the secret is empty", remedy));
            }
            Some(secret)
        }
        Err(complaint) => {
            t.object(key, complaint);
            None
        }
    }
}

fn from_variable(name: &str, written: &str, environment: &Environment) -> Parsed<Secret> {
    match environment.get(name) {
        Ok(Some(value)) => Ok(Secret::from(value)),
        Ok(None) => {
            Err(is_not_set(written, format!("set {written} where Weir starts, or name another")))
        }
        Err(not_text) => Err(not_text.complain(written)),
    }
}

// === Files ===

fn from_file(t: &Table<'_>, path: &Path) -> Parsed<Secret> {
    let written = t.quote("file");
    let unreadable = |error: std::io::Error| {
        let what = format!("{written} cannot be read: {error}");
        Complaint::new(
            what,
            "check the path, which starts from the folder of this file, and its permissions",
        )
    };
    let file = regular_file::open(path).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Complaint::new(
            format!("{written} is not a file"),
            "name the file that holds the secret",
        ),
        _ => unreadable(error),
    })?;
    let about = file.metadata().map_err(unreadable)?;
    let is_ours = about.uid() == geteuid().as_raw();
    if let Some((whom, mode)) = open_to(about.mode(), is_ours) {
        let what = format!("{written} is open to {whom}");
        return Err(Complaint::new(what, format!("chmod {mode} {written}")));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES + SPARE_BYTES));
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    to_secret(&bytes).map_err(|refusal| refusal.about(&written))
}

/// Whom a secret's file is open to that it should not be, and the mode that it should have. Its owner needs no
/// group to read it. One that is somebody else's gets to us through its group (systemd's credentials, secrets in
/// a pod), which reads and no more: there 600 would keep us out.
fn open_to(mode: u32, is_ours: bool) -> Option<(&'static str, &'static str)> {
    let (not_for_others, whom, right) = match is_ours {
        true => (0o077, "its group or to others", "600"),
        false => (0o037, "others, or to be changed by its group", "440"),
    };
    (mode & not_for_others != 0).then_some((whom, right))
}

/// Makes a secret of a file's contents, or of a command's output: without one newline at the end.
fn to_secret(bytes: &[u8]) -> Result<Secret, Refusal> {
    let not_text = |what| Refusal::new(what, "check that it gives the secret alone, as text");
    if bytes.len() > MAX_BYTES {
        return Err(TOO_MUCH);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| not_text("does not give UTF-8"))?;
    if text.contains('\0') {
        return Err(not_text("gives a NUL"));
    }
    let text = match text.strip_suffix('\n') {
        Some(text) => text.strip_suffix('\r').unwrap_or(text),
        None => text,
    };
    Ok(Secret::from(text))
}

// === Commands ===

/// Returns the command if every part of it could be read.
fn whole_command(t: &Table<'_>, command: Vec<String>) -> Option<Vec<String>> {
    let written = t.written("command")?.get_ref().as_array()?.len();
    if command.first().is_none_or(String::is_empty) && command.len() == written {
        let remedy = "write the program and its arguments: [\"op\", \"read\", \"op://vault/item\"]";
        t.object("command", Complaint::new("this names no program", remedy));
        return None;
    }
    (command.len() == written).then_some(command)
}

fn from_command(t: &Table<'_>, command: Vec<String>, vault: &Vault<'_>) -> Parsed<Secret> {
    let program = t.written("command").and_then(|value| value.get_ref().as_array()?.first());
    let program = program.map(|program| t.quote_value(program)).unwrap_or_default();
    let folder = t.folder("command").to_owned();
    let mut outputs = vault.outputs.borrow_mut();
    let output = outputs.entry((folder, command)).or_insert_with_key(|(folder, command)| {
        to_secret(&secret_command::run(command, folder, vault.environment, MAX_BYTES, vault.stop)?)
    });
    output.as_ref().map(Secret::clone).map_err(|refusal| refusal.about(&program))
}

/// A certificate's chain fits, a mistaken file does not.
const MAX_BYTES: usize = 64 * 1024;

/// Reading to the end looks for an end behind the last byte; without room it would leave a copy behind.
const SPARE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::open_to;

    #[test]
    fn a_group_may_read_what_somebody_else_owns_and_nothing_of_ours() {
        for (mode, ours, others) in [
            (0o100_400, None, None),
            (0o100_600, None, None),
            (0o100_440, Some("600"), None),
            (0o100_640, Some("600"), None),
            (0o100_460, Some("600"), Some("440")),
            (0o100_444, Some("600"), Some("440")),
            (0o100_604, Some("600"), Some("440")),
            (0o100_601, Some("600"), Some("440")),
        ] {
            let right = |is_ours| open_to(mode, is_ours).map(|(_, right)| right);
            assert_eq!((right(true), right(false)), (ours, others), "{mode:o}");
        }
    }
}
