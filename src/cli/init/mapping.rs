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

use super::secrets::Vault;
use super::texts::{Texts, single};
use crate::cli::clients::server::{Header, Server, Wire};
use crate::cli::clients::variables::{Input, Surroundings, Variables};
use crate::config::is_own_header;

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
    let around = Surroundings {
        variables: origin.variables,
        project: origin.project,
        inputs: origin.inputs,
        own: &own,
    };
    let mut writer = Writer { texts: Texts::new(name, around, vault), table: Table::new() };
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
    let Texts { mut notes, moved, .. } = writer.texts;
    notes.extend(server.left_behind.iter().cloned());
    Ok(Mapped { table: writer.table, notes, moved })
}

/// One table while it is being written.
struct Writer<'a> {
    texts: Texts<'a>,
    table: Table,
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
        let program = self.texts.translated("command", command);
        self.table.insert("command", value(program));
        if !args.is_empty() {
            let written = self.texts.args(args);
            self.table.insert("args", value(list(written)));
        }
        let folder = cwd.map(|cwd| self.texts.translated("cwd", cwd));
        let is_relative = |text: &str| text.starts_with("./") || text.starts_with("../");
        let starts_here = is_relative(command) || args.iter().any(|arg| is_relative(arg));
        match (folder, self.texts.project()) {
            (Some(folder), Some(project)) if !folder.starts_with(['/', '$']) => {
                let folder = project.join(folder).display().to_string();
                self.table.insert("cwd", value(folder));
            }
            (Some(folder), _) => {
                if !folder.starts_with(['/', '$']) {
                    let note = "cwd: the client started it from its own folder, Weir does from that of \
                                this file";
                    self.texts.note(note.to_owned());
                }
                self.table.insert("cwd", value(folder));
            }
            // The client starts it in the project's folder, and Weir where it runs itself.
            (None, Some(project)) if starts_here => {
                let folder = project.display().to_string().replace('$', "$$");
                self.table.insert("cwd", value(folder));
            }
            (None, None) if starts_here => self.texts.note(
                "it has a path that starts from the current folder: say from which, with cwd"
                    .to_owned(),
            ),
            (None, _) => {}
        }
        let mut pairs = Vec::new();
        for (name, text) in env {
            if name.is_empty() || name.contains('=') {
                self.texts.note(format!("`env.{name}` is left behind: it names no variable"));
                continue;
            }
            let text = self.texts.given("env", name, text);
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
        let translated = self.texts.translated("url", url);
        let (address, user) = without_user(&translated);
        let scheme = address.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !address.starts_with("${") && !matches!(scheme.as_deref(), Some("http" | "https")) {
            return Err("its address is no http or https URL".to_owned());
        }
        let address = match address.split_once('#') {
            Some((address, _)) => address.to_owned(),
            None => address,
        };
        let address = self.texts.address(&address, "url");
        self.table.insert("url", value(address));
        if is_sse {
            self.table.insert("transport", value("sse"));
        }
        let mut pairs = Vec::new();
        for (name, header) in headers {
            if is_own_header(name) {
                self.texts.note(format!(
                    "the header `{name}` is left behind: it belongs to the protocol, and Weir \
                     sets it"
                ));
                continue;
            }
            let written = match header {
                Header::Text(text) => self.texts.given("headers", name, text),
                Header::Variable(variable) => single("env", variable),
                Header::Bearer(variable) => format!("Bearer ${{{variable}}}").into(),
            };
            pairs.push((name.clone(), written));
        }
        if let Some(user) = user {
            let basic = format!("Basic {}", STANDARD.encode(user.replace("$$", "$")));
            let kept = self.texts.secret("headers", "Authorization", &basic);
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
