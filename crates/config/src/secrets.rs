//! Secrets: strings, or tables that name a source: `{ env = "VAR" }`, `{ file = "path" }` or
//! `{ command = ["…"] }`.
//!
//! Invariants: no error contains a secret that is read here; the sizes of files and outputs are
//! bounded; where no process may be started, a command is checked and not run.

mod secret_command;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;
use toml::de::DeValue;

use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, Key, custom, list, path, settings};
use crate::reader::report::ValueError;
use crate::reader::secret_file::{self, MAX_BYTES, SecretError, to_secret};
use crate::reader::table_reader::{Parsed, TableReader};
use crate::reader::value;
use crate::reader::variables::{Environment, is_variable_name, unset_variable_error};
use weir_base::secrets::secret::Secret;

/// Resolves secrets: the environment, and whether commands may run.
pub(super) struct SecretResolver<'o> {
    environment: &'o Environment,
    stop: &'o CancellationToken,
    may_run: bool,
    /// Results of commands, so that a command that is used by several keys prompts its user once.
    outputs: RefCell<BTreeMap<SecretCommand, Result<Secret, SecretError>>>,
}

/// Working directory of a command, and its program with the arguments.
type SecretCommand = (PathBuf, Vec<String>);

impl<'o> SecretResolver<'o> {
    pub(super) fn new(
        environment: &'o Environment,
        stop: &'o CancellationToken,
        may_run: bool,
    ) -> Self {
        Self { environment, stop, may_run, outputs: RefCell::default() }
    }
}

settings! {
    /// Source of a secret; exactly one of the keys is set.
    pub(super) struct SecretSource {
        /// The environment variable of the Weir process that contains the secret. It must be set.
        ///
        /// ```toml
        /// token = { env = "GITHUB_TOKEN" }
        /// ```
        env: Option<String> = None, variable_name().optional();
        /// A file that contains the secret and nothing else; one newline at its end is removed. At
        /// most 64 KiB. A relative path starts from the folder of the file that contains it; a file
        /// that other users on the machine can read is refused. A file that is not owned by Weir's
        /// user may be readable by its group.
        ///
        /// ```toml
        /// token = { file = "secrets/github-token" }
        /// ```
        file: Option<PathBuf> = None, path("path").optional();
        /// A program and its arguments, whose standard output is the secret; one newline at its end
        /// is removed. It is started without a shell, may run for at most 30 s, and is not started
        /// by `weir check --offline`. If it fails, the error has the last line of its standard
        /// error, without what it wrote to standard output.
        ///
        /// ```toml
        /// token = { command = ["op", "read", "op://vault/github/token"] }
        /// ```
        command: Option<Vec<String>> = None,
            list(ValueShape::Text("string", shape::ANYTHING), value::text_or_empty)
                .entries(1, None)
                .optional();
    }
}

/// Name of an environment variable. Another text may be the secret itself, so it is redacted.
fn variable_name() -> Key<String> {
    custom(ValueShape::Text("name of a variable", shape::VARIABLE_NAME), |t, key, _| {
        t.read(key, |v| match value::string(v)? {
            name if is_variable_name(name) => Ok(name.to_owned()),
            _ => {
                t.redact(key);
                Err(ValueError::new("this cannot name a variable", "write a name like API_TOKEN"))
            }
        })
    })
}

/// Reads the secret under a key. Returns `None` if the key is missing, if the secret is invalid,
/// which is reported, or if it was not fetched: because it is not `used`, or because commands may
/// not run.
pub(super) fn read_secret<'a>(
    t: &TableReader<'a>,
    key: &'a str,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Option<Secret> {
    match t.get(key)?.get_ref() {
        DeValue::Table(_) => {
            t.redact_except(key, &["env", "file"]);
            t.table(key, |t| read_source(t, resolver, used))
        }
        _ => {
            t.redact(key);
            t.read(key, value::text_or_empty).map(Secret::from)
        }
    }
}

/// Reads a private key in PEM like a secret. The path of a file is a frequent mistake, and gets an
/// error with the form that is meant.
pub(super) fn read_private_key<'a>(
    t: &TableReader<'a>,
    key: &'a str,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Option<Secret> {
    let secret = read_secret(t, key, resolver, used)?;
    let is_written_here = t.get(key).is_some_and(|value| value.get_ref().is_str());
    if is_written_here && is_like_a_path(secret.expose()) {
        let what = "this is not a private key in PEM, but looks like the path of one";
        t.error(key, ValueError::new(what, format!("write {key} = {{ file = \"…\" }}")));
        return None;
    }
    Some(secret)
}

/// Returns whether a text that should be a key in PEM is rather a path.
fn is_like_a_path(text: &str) -> bool {
    let extensions = ["key", "pem", "der", "p8", "p12", "pfx", "crt", "cer"];
    let extension = text.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let has_extension = extension.is_some_and(|it| extensions.contains(&&*it));
    !text.contains("-----") && !text.contains('\n') && (has_extension || text.contains('/'))
}

/// Reads the one of three keys that names the source of the secret, and fetches the secret.
fn read_source(t: &TableReader<'_>, resolver: &SecretResolver<'_>, used: bool) -> Option<Secret> {
    let SecretSource { env, file, command } = SecretSource::read(t);
    let written: Vec<_> = ["env", "file", "command"].into_iter().filter(|key| t.has(key)).collect();
    let [key] = written[..] else {
        match written[..] {
            [first, second, ..] => t.error(
                second,
                ValueError::new(
                    format!("{first} says already where the secret is"),
                    "keep one of the two",
                ),
            ),
            // An unknown key was probably meant as the source, and is reported by itself.
            _ if !t.keys().is_empty() => {}
            _ => t.table_error(ValueError::new(
                "nothing says where the secret is",
                "write exactly one of env, file, command, or the secret itself as a string",
            )),
        }
        return None;
    };
    let fetched = match key {
        "env" => {
            let name = env?;
            used.then(|| from_variable(&name, &t.source_text(key), resolver.environment))?
        }
        "file" => {
            let path = file?;
            used.then(|| secret_file::read(&path, &t.source_text(key)))?
        }
        _ => {
            let command = whole_command(t, command?)?;
            (used && resolver.may_run).then(|| from_command(t, command, resolver))?
        }
    };
    match fetched {
        Ok(secret) => {
            if secret.expose().is_empty() {
                let remedy = "check that this is where the secret is";
                t.warning(key, ValueError::new("the secret is empty", remedy));
            }
            Some(secret)
        }
        Err(error) => {
            t.error(key, error);
            None
        }
    }
}

fn from_variable(name: &str, written: &str, environment: &Environment) -> Parsed<Secret> {
    match environment.get(name) {
        Ok(Some(value)) => Ok(Secret::from(value)),
        Ok(None) => Err(unset_variable_error(
            written,
            format!("set {written} where Weir starts, or name another"),
        )),
        Err(not_text) => Err(not_text.to_error(written)),
    }
}

// === Commands ===

/// Returns the command if every part of it is valid.
fn whole_command(t: &TableReader<'_>, command: Vec<String>) -> Option<Vec<String>> {
    let written = t.get("command")?.get_ref().as_array()?.len();
    if command.first().is_none_or(String::is_empty) && command.len() == written {
        let remedy = "write the program and its arguments: [\"op\", \"read\", \"op://vault/item\"]";
        t.error("command", ValueError::new("this names no program", remedy));
        return None;
    }
    (command.len() == written).then_some(command)
}

fn from_command(
    t: &TableReader<'_>,
    command: Vec<String>,
    resolver: &SecretResolver<'_>,
) -> Parsed<Secret> {
    let program = t.get("command").and_then(|value| value.get_ref().as_array()?.first());
    let program = program.map(|program| t.source_text_of(program)).unwrap_or_default();
    let folder = t.base_folder("command").to_owned();
    let mut outputs = resolver.outputs.borrow_mut();
    let output = outputs.entry((folder, command)).or_insert_with_key(|(folder, command)| {
        to_secret(&secret_command::run(
            command,
            folder,
            resolver.environment,
            MAX_BYTES,
            resolver.stop,
        )?)
    });
    output.as_ref().map(Secret::clone).map_err(|refusal| refusal.about(&program))
}
