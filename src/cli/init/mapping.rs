//! A client's server as a table of Weir's configuration.
//!
//! Promises: no secret is in the table, it is in the [`Vault`]; whatever could not be said is in the notes.
//!
//! Knows nothing of: files, and which client it was.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use toml_edit::{Array, InlineTable, Item, Table, Value, value};

use super::secrets::{self, Place, Vault, joined};
use crate::cli::clients::server::{Header, Server, Wire};
use crate::cli::clients::variables::{
    Input, Surroundings, Translated, Variables, translate, variable_name,
};

/// What is known beside the server itself.
pub(super) struct Origin<'a> {
    /// What its client replaces in texts.
    pub(super) variables: Variables,
    /// What its client asks for.
    pub(super) inputs: &'a [Input],
    /// The folder of its project, if its file belongs to one.
    pub(super) project: Option<&'a Path>,
}

/// A table, and what has to be said of it.
pub(super) struct Mapped {
    /// What stands below `[upstreams.<name>]`.
    pub(super) table: Table,
    /// What somebody should look at; stands above the table, too.
    pub(super) notes: Vec<String>,
    /// Which secrets were moved where.
    pub(super) moved: Vec<String>,
}

/// Writes a server down. The error says why Weir could not use it.
pub(super) fn upstream(
    server: &Server,
    name: &str,
    origin: &Origin<'_>,
    vault: &mut Vault,
) -> Result<Mapped, String> {
    let own = match &server.wire {
        Wire::Process { env, .. } => env.iter().map(|(name, _)| name.as_str()).collect(),
        Wire::Http { .. } => Vec::new(),
    };
    let mut writer = Writer {
        name,
        around: Surroundings {
            variables: origin.variables,
            project: origin.project,
            inputs: origin.inputs,
            own: &own,
        },
        vault,
        table: Table::new(),
        notes: Vec::new(),
        moved: Vec::new(),
    };
    match &server.wire {
        Wire::Process { command, args, env, pass_env, cwd } => {
            writer.process(command, args, env, pass_env, cwd.as_deref());
        }
        Wire::Http { url, is_sse, headers } => writer.http(url, *is_sse, headers)?,
    }
    if !server.enabled {
        writer.table.insert("enabled", value(false));
    }
    writer.times(server);
    writer.tools(server);
    writer.notes.extend(server.left_behind.iter().cloned());
    Ok(Mapped { table: writer.table, notes: writer.notes, moved: writer.moved })
}

/// One table while it is being written.
struct Writer<'a> {
    name: &'a str,
    around: Surroundings<'a>,
    vault: &'a mut Vault,
    table: Table,
    notes: Vec<String>,
    moved: Vec<String>,
}

impl Writer<'_> {
    fn process(
        &mut self,
        command: &str,
        args: &[String],
        env: &[(String, String)],
        pass_env: &[String],
        cwd: Option<&str>,
    ) {
        let program = self.translated("command", command);
        self.table.insert("command", value(program));
        if !args.is_empty() {
            let written = self.args(args);
            self.table.insert("args", value(list(written)));
        }
        let folder = cwd.map(|cwd| self.translated("cwd", cwd));
        let is_relative = |text: &str| text.starts_with("./") || text.starts_with("../");
        let starts_here = is_relative(command) || args.iter().any(|arg| is_relative(arg));
        match (folder, self.around.project) {
            (Some(folder), Some(project)) if !folder.starts_with(['/', '$']) => {
                let folder = project.join(folder).display().to_string();
                self.table.insert("cwd", value(folder));
            }
            (Some(folder), _) => {
                if !folder.starts_with(['/', '$']) {
                    let note = "cwd: the client started it from its own folder, Weir does from that of \
                                this file";
                    self.notes.push(note.to_owned());
                }
                self.table.insert("cwd", value(folder));
            }
            // The client starts it in the project's folder, and Weir where it runs itself.
            (None, Some(project)) if starts_here => {
                let folder = project.display().to_string().replace('$', "$$");
                self.table.insert("cwd", value(folder));
            }
            (None, None) if starts_here => self.notes.push(
                "it has a path that starts from the current folder: say from which, with cwd"
                    .to_owned(),
            ),
            (None, _) => {}
        }
        let mut pairs = Vec::new();
        for (name, text) in env {
            if name.is_empty() || name.contains('=') {
                self.notes.push(format!("`env.{name}` is left behind: it names no variable"));
                continue;
            }
            let text = self.given("env", name, text);
            pairs.push((name.clone(), text));
        }
        self.pairs("env", pairs);
        if !pass_env.is_empty() {
            self.table.insert("pass_env", value(list(pass_env.to_vec())));
        }
    }

    fn http(
        &mut self,
        url: &str,
        is_sse: bool,
        headers: &[(String, Header)],
    ) -> Result<(), String> {
        let translated = self.translated("url", url);
        let (address, user) = without_user(&translated);
        let scheme = address.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !address.starts_with("${") && !matches!(scheme.as_deref(), Some("http" | "https")) {
            return Err("its address is no http or https URL".to_owned());
        }
        let address = match address.split_once('#') {
            Some((address, _)) => address.to_owned(),
            None => address,
        };
        let address = self.address(&address, "url");
        self.table.insert("url", value(address));
        if is_sse {
            self.table.insert("transport", value("sse"));
        }
        let mut pairs = Vec::new();
        for (name, header) in headers {
            let lower = name.to_ascii_lowercase();
            if OWN_HEADERS.contains(&lower.as_str()) || lower.starts_with("mcp-") {
                self.notes.push(format!(
                    "the header `{name}` is left behind: it belongs to the protocol, and Weir \
                     sets it"
                ));
                continue;
            }
            let written = match header {
                Header::Text(text) => self.given("headers", name, text),
                Header::Variable(variable) => single("env", variable),
                Header::Bearer(variable) => format!("Bearer ${{{variable}}}").into(),
            };
            pairs.push((name.clone(), written));
        }
        if let Some(user) = user {
            let basic = format!("Basic {}", STANDARD.encode(user.replace("$$", "$")));
            let kept = self.secret("headers", "Authorization", &basic);
            pairs.push(("Authorization".to_owned(), kept));
        }
        self.pairs("headers", pairs);
        Ok(())
    }

    fn times(&mut self, server: &Server) {
        let mut times = InlineTable::new();
        if let Some(startup) = server.startup {
            times.insert("startup", written(startup).into());
        }
        if let Some(call) = server.call {
            times.insert("call", written(call).into());
            // No call may take longer than this in all.
            if call > LONGEST_CALL {
                times.insert("call_max", written(call).into());
            }
        }
        if !times.is_empty() {
            self.table.insert("timeouts", value(times));
        }
    }

    fn tools(&mut self, server: &Server) {
        let mut tools = InlineTable::new();
        if let Some(allow) = &server.allow {
            tools.insert("allow", list(allow.clone()).into());
        }
        if !server.deny.is_empty() {
            tools.insert("deny", list(server.deny.clone()).into());
        }
        if !tools.is_empty() {
            self.table.insert("tools", value(tools));
        }
    }

    // --- Texts ---

    /// Says something once.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn translated(&mut self, key: &str, text: &str) -> String {
        let translated = translate(text, &self.around);
        for note in &translated.notes {
            self.note(format!("{key}: {note}"));
        }
        match translated.file {
            Some(path) => {
                self.notes.push(format!(
                    "{key}: the client filled in the content of {path}: write what it says"
                ));
                text.replace('$', "$$")
            }
            None => translated.text,
        }
    }

    /// A variable's or header's value: text, or where the secret is.
    fn given(&mut self, key: &str, name: &str, text: &str) -> Value {
        // A variable of the same name in the entry itself is what is being set here, not what is meant.
        let translated = translate(text, &Surroundings { own: &[], ..self.around });
        let Translated { text: written, literal, variable, file, notes } = &translated;
        self.notes.extend(notes.iter().map(|note| format!("{key}.{name}: {note}")));
        if let Some(path) = file {
            return single("file", &path.replace('$', "$$"));
        }
        if let Some(variable) = variable {
            return single("env", variable);
        }
        if translated.has_variables() {
            if literal.split_whitespace().any(secrets::looks_secret) {
                let variable = variable_name(name);
                self.notes.push(format!(
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
    fn secret(&mut self, key: &str, name: &str, text: &str) -> Value {
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
                self.notes.push(format!("{key}.{name} held a secret: set the variable {variable}"));
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
                self.notes.push(format!(
                    "{what} held a secret, now in {path}: before Weir starts, \
                     export {variable}=\"$(cat {path})\""
                ));
                format!("${{{variable}}}")
            }
            Place::Variable(variable) => {
                self.notes.push(format!("{what} held a secret: set the variable {variable}"));
                format!("${{{variable}}}")
            }
        }
    }

    /// The arguments. A secret is known by the option before it, by the name in the same argument, or by
    /// its shape.
    fn args(&mut self, args: &[String]) -> Vec<String> {
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
        if text.contains("://") && !text.starts_with('-') && !secrets::looks_secret(&text) {
            return self.address(&text, "args");
        }
        if let Some((name, rest)) = text.split_once(separator) {
            let spaces = rest.len() - rest.trim_start().len();
            let (space, secret) = rest.split_at(spaces);
            let plain = name.trim_start_matches('-').to_owned();
            if !secret.contains("${") && secrets::is_secret(&plain, secret) {
                let variable = self.inner_secret(&format!("args: `{name}`"), &plain, secret);
                return format!("{name}{separator}{space}{variable}");
            }
        }
        if text.contains("${") || text.starts_with('-') || text.is_empty() {
            return text;
        }
        let is_named = before.starts_with('-')
            && !before.contains('=')
            && !is_header
            && secrets::names_a_secret(option);
        if is_named {
            return self.inner_secret(&format!("args: `{before}`"), option, &text);
        }
        if secrets::looks_secret_as_argument(&text) {
            return self.inner_secret("args: an argument", "argument", &text);
        }
        text
    }

    /// A URL without the secrets in its path and query.
    fn address(&mut self, url: &str, key: &str) -> String {
        let (path, query) = match url.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (url, None),
        };
        let parts: Vec<_> = path
            .split('/')
            .map(|part| match secrets::looks_secret_as_path(part) {
                true => self.inner_secret(&format!("{key}: the path"), "path", part),
                false => part.to_owned(),
            })
            .collect();
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

    /// Writes a table of names and values: within a line if it fits.
    fn pairs(&mut self, key: &str, pairs: Vec<(String, Value)>) {
        if pairs.is_empty() {
            return;
        }
        let mut line = InlineTable::new();
        line.extend(pairs.clone());
        line.fmt();
        if line.to_string().len() <= LONGEST_LINE {
            self.table.insert(key, value(line));
            return;
        }
        let mut table = Table::new();
        for (name, text) in pairs {
            table.insert(&name, Item::Value(text));
        }
        self.table.insert(key, Item::Table(table));
    }
}

/// Splits the user and password off a URL.
fn without_user(url: &str) -> (String, Option<String>) {
    let split = || {
        let (scheme, rest) = url.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = authority.rsplit_once('@')?;
        Some((format!("{scheme}://{host}{path}"), Some(user.to_owned())))
    };
    split().unwrap_or_else(|| (url.to_owned(), None))
}

/// `{ file = "…" }` or `{ env = "…" }`.
fn single(key: &str, text: &str) -> Value {
    let mut table = InlineTable::new();
    table.insert(key, text.into());
    table.into()
}

/// A list, an element a line if it is long.
fn list(elements: Vec<String>) -> Array {
    let mut array: Array = elements.into_iter().collect();
    array.fmt();
    if array.to_string().len() > LONGEST_LINE {
        for element in array.iter_mut() {
            element.decor_mut().set_prefix("\n    ");
        }
        array.set_trailing("\n");
        array.set_trailing_comma(true);
    }
    array
}

fn written(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// What a call may take in all unless the file says otherwise.
const LONGEST_CALL: Duration = Duration::from_mins(10);

/// Longer ones are broken up.
const LONGEST_LINE: usize = 90;

/// Headers that the configuration refuses, beside those that begin with `mcp-`.
const OWN_HEADERS: [&str; 11] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
