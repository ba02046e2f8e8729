//! The texts of one upstream, in Weir's words and without secrets.
//!
//! A variable's or header's value that is secret becomes the place where it is. In an argument or an address
//! only a variable can stand, so that is written, and a note says how to set it.
//!
//! Knows nothing of: tables, and which text stands where in them.

use std::path::Path;

use toml_edit::{InlineTable, Value};

use super::secrets::{self, Place, Vault, joined};
use crate::cli::clients::variables::{Surroundings, Translated, translate, variable_name};

/// Writes the texts of one upstream, and remembers what has to be said of them.
pub(super) struct Texts<'a> {
    name: &'a str,
    around: Surroundings<'a>,
    vault: &'a mut Vault,
    /// What somebody should look at.
    pub(super) notes: Vec<String>,
    /// Which secrets were moved where.
    pub(super) moved: Vec<String>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(name: &'a str, around: Surroundings<'a>, vault: &'a mut Vault) -> Self {
        Self { name, around, vault, notes: Vec::new(), moved: Vec::new() }
    }

    /// The folder of the project that the client's file belongs to.
    pub(super) fn project(&self) -> Option<&'a Path> {
        self.around.project
    }

    /// Says something once.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Puts a text into Weir's words. `what` is where it stands, and what it is called there.
    fn translate(&mut self, what: &str, name: &str, text: &str, own: &[&str]) -> Translated {
        let mut translated = translate(text, &Surroundings { own, ..self.around });
        for note in &translated.notes {
            self.note(format!("{what}: {note}"));
        }
        for (variable, default) in translated.defaults.clone() {
            if secrets::is_secret(name, &default) || secrets::is_secret(&variable, &default) {
                translated.drop_default(&variable, &default);
                self.note(format!(
                    "{what}: a secret was the default of {variable}: set that variable"
                ));
            }
        }
        translated
    }

    /// A text where only a text can stand.
    pub(super) fn translated(&mut self, key: &str, text: &str) -> String {
        let translated = self.translate(key, "", text, self.around.own);
        match translated.file {
            Some(path) => {
                self.note(format!(
                    "{key}: the client filled in the content of {path}: write what it says"
                ));
                text.replace('$', "$$")
            }
            None => translated.text,
        }
    }

    /// A variable's or header's value: text, or where the secret is.
    pub(super) fn given(&mut self, key: &str, name: &str, text: &str) -> Value {
        // A variable of the same name in the entry itself is what is being set here, not what is meant.
        let translated = self.translate(&format!("{key}.{name}"), name, text, &[]);
        let Translated { text: written, literal, file, .. } = &translated;
        if let Some(path) = file {
            return single("file", &path.replace('$', "$$"));
        }
        if let Some(variable) = translated.variable_alone() {
            return single("env", variable);
        }
        if translated.has_variables() {
            if literal.split_whitespace().any(secrets::looks_secret) {
                let variable = variable_name(name);
                self.note(format!(
                    "{key}.{name}: it held a secret beside a variable: set {variable} to the whole"
                ));
                return single("env", &variable);
            }
            return written.as_str().into();
        }
        match secrets::is_secret(name, literal) {
            true => self.secret(key, name, literal),
            false => written.as_str().into(),
        }
    }

    /// Moves a secret away.
    pub(super) fn secret(&mut self, key: &str, name: &str, text: &str) -> Value {
        let wanted = match key {
            "env" => variable_name(name),
            _ => variable_name(&joined(self.name, name)),
        };
        match self.vault.keep(self.name, name, &wanted, text) {
            Place::File(path) => {
                self.moved.push(format!("{key}.{name} is now in {path}"));
                single("file", &path)
            }
            Place::Variable(variable) => {
                self.note(format!("{key}.{name} held a secret: set the variable {variable}"));
                single("env", &variable)
            }
        }
    }

    /// Moves a secret out of the middle of a text, where only a variable can stand.
    fn inner_secret(&mut self, what: &str, name: &str, text: &str) -> String {
        let variable = variable_name(&joined(self.name, name));
        let text = text.replace("$$", "$");
        match self.vault.keep(self.name, name, &variable, &text) {
            Place::File(path) => {
                // As unique as the file is.
                let file = path.rsplit('/').next().unwrap_or_default();
                let variable = variable_name(file);
                self.note(format!(
                    "{what} held a secret, now in {path}: before Weir starts, \
                     export {variable}=\"$(cat {path})\""
                ));
                format!("${{{variable}}}")
            }
            Place::Variable(variable) => {
                self.note(format!("{what} held a secret: set the variable {variable}"));
                format!("${{{variable}}}")
            }
        }
    }

    /// The arguments. A secret is known by the option before it, by the name in the same argument, or by
    /// its shape.
    pub(super) fn args(&mut self, args: &[String]) -> Vec<String> {
        let mut result = Vec::new();
        let mut before = "";
        for arg in args {
            let text = self.translated("args", arg);
            result.push(self.arg(before, text));
            before = arg;
        }
        result
    }

    fn arg(&mut self, before: &str, text: String) -> String {
        let is_header = ["--header", "-H"].contains(&before);
        let separator = if is_header { ':' } else { '=' };
        let option = before.trim_start_matches('-');
        let scheme = text.find("://").unwrap_or(text.len());
        let split = text.split_once(separator).filter(|(name, _)| is_header || name.len() < scheme);
        if let Some((name, rest)) = split {
            let spaces = rest.len() - rest.trim_start().len();
            let (space, held) = rest.split_at(spaces);
            let plain = name.trim_start_matches('-').to_owned();
            if plain == "header" && !is_header {
                return format!("{name}={}", self.arg("--header", rest.to_owned()));
            }
            let held = if !held.contains("://") && !held.contains("${") {
                match secrets::is_secret(&plain, held) {
                    true => self.inner_secret(&format!("args: `{name}`"), &plain, held),
                    false => held.to_owned(),
                }
            } else {
                self.address(held, "args")
            };
            return format!("{name}{separator}{space}{held}");
        }
        if scheme < text.len() {
            return self.address(&text, "args");
        }
        if text.contains("${") || text.starts_with('-') || text.is_empty() {
            return text;
        }
        if before.starts_with('-') && !is_header && secrets::names_a_secret(option) {
            return self.inner_secret(&format!("args: `{before}`"), option, &text);
        }
        if secrets::looks_secret_as_argument(&text) {
            return self.inner_secret("args: an argument", "argument", &text);
        }
        text
    }

    /// A URL without the secrets in it: a password, and parts of its path and query.
    pub(super) fn address(&mut self, url: &str, key: &str) -> String {
        let (path, query) = match url.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (url, None),
        };
        let parts: Vec<_> = path.split('/').map(|part| self.part(part, key)).collect();
        let mut result = parts.join("/");
        if let Some(query) = query {
            let pairs = query.split('&').map(|pair| match pair.split_once('=') {
                Some((name, text)) if !text.contains("${") && secrets::is_secret(name, text) => {
                    let variable = self.inner_secret(&format!("{key}: `{name}`"), name, text);
                    format!("{name}={variable}")
                }
                _ => pair.to_owned(),
            });
            let pairs: Vec<_> = pairs.collect();
            result = format!("{result}?{}", pairs.join("&"));
        }
        result
    }

    /// What stands between two slashes of a URL: the host and who asks it, or a step of the path.
    fn part(&mut self, part: &str, key: &str) -> String {
        let user =
            part.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?, host)));
        match user {
            Some(((user, password), host)) if !password.contains("${") => {
                let password = self.inner_secret(&format!("{key}: the URL"), "password", password);
                format!("{user}:{password}@{host}")
            }
            _ if secrets::looks_secret_as_path(part) => {
                self.inner_secret(&format!("{key}: the path"), "path", part)
            }
            _ => part.to_owned(),
        }
    }
}

/// `{ file = "…" }` or `{ env = "…" }`.
pub(super) fn single(key: &str, text: &str) -> Value {
    let mut table = InlineTable::new();
    table.insert(key, text.into());
    table.into()
}
