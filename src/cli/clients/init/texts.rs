//! Texts of one upstream in Weir's syntax, with secrets replaced by references.
//!
//! A secret value of a variable or header becomes a reference to a file or variable, and so does a
//! secret within an argument or a URL: `${file:…}`, or `${VAR}` where no file is written.

use toml_edit::{InlineTable, Table, Value};

use crate::cli::clients::init::secrets::{SecretLocation, SecretStore, secret_name};
use crate::cli::clients::variables::{TranslateContext, Translated, translate, variable_name};
use weir_base::secrets::secret_shape;

/// Writer of the table of one upstream. [`super::mapping`] writes its keys.
pub(super) struct UpstreamWriter<'a> {
    pub(super) name: &'a str,
    pub(super) context: TranslateContext<'a>,
    pub(super) store: &'a mut SecretStore,
    /// Content of `[upstreams.<name>]`.
    pub(super) table: Table,
    /// Notes for the user; they are also comments above the table.
    pub(super) notes: Vec<String>,
    /// Messages about moved secrets.
    pub(super) moved: Vec<String>,
}

impl<'a> UpstreamWriter<'a> {
    pub(super) fn new(
        name: &'a str,
        context: TranslateContext<'a>,
        store: &'a mut SecretStore,
    ) -> Self {
        let (table, notes, moved) = Default::default();
        Self { name, context, store, table, notes, moved }
    }

    /// Adds a note, unless it exists already.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Translates a text. `what` is its place for notes, and `name` its name there.
    fn translate(&mut self, what: &str, name: &str, text: &str, own: &[&str]) -> Translated {
        let mut translated = translate(text, &TranslateContext { own, ..self.context });
        for note in &translated.notes {
            self.note(format!("{what}: {note}"));
        }
        for (variable, default) in translated.defaults.clone() {
            if secret_shape::is_secret(name, &default)
                || secret_shape::is_secret(&variable, &default)
            {
                translated.drop_default(&variable, &default);
                self.note(format!(
                    "{what}: a secret was the default of {variable}: set that variable"
                ));
            }
        }
        translated
    }

    /// Translates a text that cannot be a reference.
    pub(super) fn translate_text(&mut self, key: &str, text: &str) -> String {
        let translated = self.translate(key, "", text, self.context.own);
        match translated.file {
            Some(path) => {
                self.note(format!(
                    "{key}: the client filled in the content of {path}: write that content"
                ));
                text.replace('$', "$$")
            }
            None => translated.text,
        }
    }

    /// Converts the value of a variable or header to text or a reference to the secret.
    pub(super) fn substitute(&mut self, key: &str, name: &str, text: &str) -> Value {
        // Without the entry's own variables: a reference to the variable that is set here means the
        // environment.
        let translated = self.translate(&format!("{key}.{name}"), name, text, &[]);
        let Translated { text: written, literal, file, .. } = &translated;
        if let (Some(path), None) = (file, self.context.project) {
            return reference_to("file", &path.replace('$', "$$"));
        }
        if let Some(path) = file {
            // The author of a project's file may not choose a file of the user for a server.
            self.note(format!(
                "{key}.{name}: a file of the project refers to {path}, which is not imported: write \
                 `{{ file = \"…\" }}` if the server may have it"
            ));
            return text.replace('$', "$$").into();
        }
        if let Some(variable) = translated.as_single_variable() {
            return reference_to("env", variable);
        }
        if translated.has_variables() {
            if literal.split_whitespace().any(secret_shape::looks_secret) {
                let variable = variable_name(name);
                self.note(format!(
                    "{key}.{name}: it contained a secret beside a variable: set {variable} to the \
                     whole value"
                ));
                return reference_to("env", &variable);
            }
            return written.as_str().into();
        }
        match secret_shape::is_secret(name, literal) {
            true => self.move_secret(key, name, literal),
            false => written.as_str().into(),
        }
    }

    /// Moves a secret to the store and returns a reference to it.
    pub(super) fn move_secret(&mut self, key: &str, name: &str, text: &str) -> Value {
        let wanted = match key {
            "env" => variable_name(name),
            _ => variable_name(&secret_name(self.name, name)),
        };
        match self.store.add(self.name, name, &wanted, text) {
            SecretLocation::File(path) => {
                self.moved.push(format!("{key}.{name} is now in {path}"));
                reference_to("file", &path)
            }
            SecretLocation::Variable(variable) => {
                self.note(format!("{key}.{name} contained a secret: set the variable {variable}"));
                reference_to("env", &variable)
            }
        }
    }

    /// Moves a secret out of a text and returns what replaces it there: the content of a file, or a
    /// variable.
    fn move_embedded_secret(&mut self, what: &str, name: &str, text: &str) -> String {
        let variable = variable_name(&secret_name(self.name, name));
        let text = text.replace("$$", "$");
        match self.store.add(self.name, name, &variable, &text) {
            SecretLocation::File(path) => {
                self.moved.push(format!("{what} contained a secret, which is now in {path}"));
                format!("${{file:{path}}}")
            }
            SecretLocation::Variable(variable) => {
                self.note(format!("{what} contained a secret: set the variable {variable}"));
                format!("${{{variable}}}")
            }
        }
    }

    /// Converts the arguments. A secret is recognized by the option before it, by the name in the
    /// same argument, or by its shape.
    pub(super) fn substitute_args(&mut self, args: &[String]) -> Vec<String> {
        let mut result = Vec::new();
        let mut before = "";
        for arg in args {
            let text = self.translate_text("args", arg);
            result.push(self.substitute_arg(before, text));
            before = arg;
        }
        result
    }

    fn substitute_arg(&mut self, before: &str, text: String) -> String {
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
                return format!("{name}={}", self.substitute_arg("--header", rest.to_owned()));
            }
            let held = match held.contains("://") || held.contains("${") {
                true => self.clean_url(held, "args"),
                false if secret_shape::is_secret(&plain, held) => {
                    self.move_embedded_secret(&format!("args: `{name}`"), &plain, held)
                }
                false => held.to_owned(),
            };
            return format!("{name}{separator}{space}{held}");
        }
        if scheme < text.len() {
            return self.clean_url(&text, "args");
        }
        if text.contains("${") || text.starts_with('-') || text.is_empty() {
            return text;
        }
        if before.starts_with('-') && !is_header && secret_shape::names_a_secret(option) {
            return self.move_embedded_secret(&format!("args: `{before}`"), option, &text);
        }
        if secret_shape::looks_secret_as_argument(&text) {
            return self.move_embedded_secret("args: an argument", "argument", &text);
        }
        text
    }

    /// Replaces the secrets in a URL: a password, and parts of its path and query.
    pub(super) fn clean_url(&mut self, url: &str, key: &str) -> String {
        let Some((path, query)) = url.split_once('?') else { return self.clean_path(url, key) };
        let path = self.clean_path(path, key);
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, text)) if !text.contains("${") && secret_shape::is_secret(name, text) => {
                let variable = self.move_embedded_secret(&format!("{key}: `{name}`"), name, text);
                format!("{name}={variable}")
            }
            _ => pair.to_owned(),
        });
        format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
    }

    fn clean_path(&mut self, path: &str, key: &str) -> String {
        let parts: Vec<_> = path.split('/').map(|part| self.clean_url_part(part, key)).collect();
        parts.join("/")
    }

    /// Replaces the secret in one part of a URL between slashes: the authority or a path segment.
    fn clean_url_part(&mut self, part: &str, key: &str) -> String {
        let user =
            part.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?, host)));
        match user {
            Some(((user, password), host)) if !password.contains("${") => {
                let password =
                    self.move_embedded_secret(&format!("{key}: the URL"), "password", password);
                format!("{user}:{password}@{host}")
            }
            _ if secret_shape::looks_secret_as_path(part) => {
                self.move_embedded_secret(&format!("{key}: the path"), "path", part)
            }
            _ => part.to_owned(),
        }
    }
}

/// `{ file = "…" }` or `{ env = "…" }`.
pub(super) fn reference_to(key: &str, text: &str) -> Value {
    let mut table = InlineTable::new();
    table.insert(key, text.into());
    table.into()
}
