//! Conversion of a client's server to a table of Weir's configuration.
//!
//! Invariants: secrets are in the [`SecretStore`], not in the table; settings that have no
//! equivalent are in the notes.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use toml_edit::{Array, InlineTable, Item, Table, Value, value};
use url::Url;

use crate::cli::clients::init::texts::{UpstreamWriter, reference_to};
use crate::cli::clients::server::{ClientAccount, ClientServer, HeaderSource, ServerTransport};
use weir_base::net::allowed_addresses::is_loopback_host;
use weir_config::is_own_header;
use weir_upstream::Timeouts;

impl UpstreamWriter<'_> {
    /// Writes a server. The error says why Weir cannot use it.
    pub(super) fn write(&mut self, server: &ClientServer) -> Result<(), String> {
        match &server.transport {
            ServerTransport::Process { command, args, env, pass_env, cwd } => {
                self.process(command, args, env, pass_env, cwd.as_deref());
            }
            ServerTransport::Http { url, is_sse, headers, account } => {
                self.http(url, *is_sse, headers)?;
                let has_credentials =
                    headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
                match account.as_ref().filter(|_| !has_credentials) {
                    // The operator says whether that network is trusted, and names the issuer.
                    Some(_) if is_readable_on_the_way(url) => {
                        let text = "its sign-in is not imported, because others could read the \
                                    access tokens on the way to an http address: correct url, or \
                                    add auth with allow_http and issuer";
                        self.note(text.to_owned());
                    }
                    Some(account) => self.account(account),
                    None => {}
                }
            }
        }
        if !server.enabled {
            self.insert("enabled", false);
        }
        self.write_timeouts(server);
        self.write_tools(server);
        self.notes.extend(server.not_imported.iter().cloned());
        Ok(())
    }

    fn insert(&mut self, key: &str, text: impl Into<Value>) {
        self.table.insert(key, value(text));
    }

    fn process(
        &mut self,
        command: &str,
        args: &[String],
        env: &[(String, String)],
        pass_env: &[String],
        cwd: Option<&str>,
    ) {
        let program = self.translate_text("command", command);
        self.insert("command", program);
        if !args.is_empty() {
            let written = self.substitute_args(args);
            self.insert("args", list(written));
        }
        let folder = cwd.map(|cwd| self.translate_text("cwd", cwd));
        let is_relative = |text: &str| text.starts_with("./") || text.starts_with("../");
        let starts_here = is_relative(command) || args.iter().any(|arg| is_relative(arg));
        match (folder, self.context.project) {
            (Some(folder), Some(project)) if !folder.starts_with(['/', '$']) => {
                let folder = project.join(folder).display().to_string();
                self.insert("cwd", folder);
            }
            (Some(folder), _) => {
                if !folder.starts_with(['/', '$']) {
                    let note = "cwd: the client started it in its own folder, Weir starts it in \
                                that of this file";
                    self.note(note.to_owned());
                }
                self.insert("cwd", folder);
            }
            // The client starts it in the project's folder, but Weir in its own.
            (None, Some(project)) if starts_here => {
                let folder = project.display().to_string().replace('$', "$$");
                self.insert("cwd", folder);
            }
            (None, None) if starts_here => {
                self.note("it has a relative path: set its folder with cwd".to_owned())
            }
            (None, _) => {}
        }
        let mut pairs = Vec::new();
        for (name, text) in env {
            if name.is_empty() || name.contains('=') {
                self.note(format!("`env.{name}` is not imported: it is not a variable name"));
                continue;
            }
            let text = self.substitute("env", name, text);
            pairs.push((name.clone(), text));
        }
        self.pairs("env", pairs);
        if !pass_env.is_empty() {
            self.insert("pass_env", list(pass_env.to_vec()));
        }
    }

    fn http(
        &mut self,
        url: &str,
        is_sse: bool,
        headers: &[(String, HeaderSource)],
    ) -> Result<(), String> {
        let translated = self.translate_text("url", url);
        let (address, user) = split_user(&translated);
        let scheme = address.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !address.starts_with("${") && !matches!(scheme.as_deref(), Some("http" | "https")) {
            return Err("its address is not an http or https URL".to_owned());
        }
        let address = address.split_once('#').map_or(&*address, |(address, _)| address);
        let address = self.clean_url(address, "url");
        self.insert("url", address);
        if is_sse {
            self.insert("transport", "sse");
        }
        let mut pairs = Vec::new();
        for (name, header) in headers {
            if is_own_header(name) {
                self.note(format!(
                    "the header `{name}` is not imported: it belongs to the protocol, and Weir \
                     sets it"
                ));
                continue;
            }
            let written = match header {
                HeaderSource::Text(text) => self.substitute("headers", name, text),
                HeaderSource::Variable(variable) => reference_to("env", variable),
                HeaderSource::Bearer(variable) => format!("Bearer ${{{variable}}}").into(),
            };
            pairs.push((name.clone(), written));
        }
        if let Some(user) = user {
            let basic = format!("Basic {}", STANDARD.encode(user.replace("$$", "$")));
            let kept = self.move_secret("headers", "Authorization", &basic);
            pairs.push(("Authorization".to_owned(), kept));
        }
        self.pairs("headers", pairs);
        Ok(())
    }

    fn account(&mut self, account: &ClientAccount) {
        let mut table = InlineTable::new();
        table.insert("type", "oauth".into());
        if let Some(id) = &account.client_id {
            table.insert("client_id", self.translate_text("auth.client_id", id).into());
            if let Some(secret) = &account.client_secret {
                table.insert("client_secret", self.substitute("auth", "client_secret", secret));
            }
        }
        if !account.scopes.is_empty() {
            table.insert("scopes", list(account.scopes.clone()).into());
        }
        if let Some(resource) = &account.resource {
            table.insert("resource", self.translate_text("auth.resource", resource).into());
        }
        self.insert("auth", table);
        let port = account.port.as_ref().map(|port| format!(" --port {port}")).unwrap_or_default();
        self.note(format!("a user signs in to it with `weir login {}{port}`", self.name));
    }

    fn write_timeouts(&mut self, server: &ClientServer) {
        let mut times = InlineTable::new();
        if let Some(startup) = server.startup {
            times.insert("startup", format_duration(startup).into());
        }
        if let Some(call) = server.call {
            times.insert("call", format_duration(call).into());
            // `call_max` limits every call and must not be shorter.
            if call > Timeouts::default().call_max {
                times.insert("call_max", format_duration(call).into());
            }
        }
        self.write_inline("timeouts", times);
    }

    fn write_tools(&mut self, server: &ClientServer) {
        let mut tools = InlineTable::new();
        if let Some(allow) = &server.allow {
            tools.insert("allow", list(allow.clone()).into());
        }
        if !server.deny.is_empty() {
            tools.insert("deny", list(server.deny.clone()).into());
        }
        self.write_inline("tools", tools);
    }

    fn write_inline(&mut self, key: &str, table: InlineTable) {
        if !table.is_empty() {
            self.insert(key, table);
        }
    }

    /// Writes a table of names and values, on one line if it fits.
    fn pairs(&mut self, key: &str, pairs: Vec<(String, Value)>) {
        if pairs.is_empty() {
            return;
        }
        let mut line = InlineTable::new();
        line.extend(pairs.clone());
        line.fmt();
        if line.to_string().len() <= LONGEST_LINE {
            self.insert(key, line);
            return;
        }
        let mut table = Table::new();
        for (name, text) in pairs {
            table.insert(&name, Item::Value(text));
        }
        self.table.insert(key, Item::Table(table));
    }
}

/// Splits user and password off a URL.
fn split_user(url: &str) -> (String, Option<String>) {
    let split = || {
        let (scheme, rest) = url.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = authority.rsplit_once('@')?;
        Some((format!("{scheme}://{host}{path}"), Some(user.to_owned())))
    };
    split().unwrap_or_else(|| (url.to_owned(), None))
}

/// Returns whether a URL leads to another machine without TLS.
fn is_readable_on_the_way(url: &str) -> bool {
    let url = Url::parse(url).ok().filter(|url| url.scheme() == "http");
    url.is_some_and(|url| !url.host_str().is_some_and(is_loopback_host))
}

/// Creates a list, with one element per line if it is long.
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

fn format_duration(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// Longest line of a table or list.
const LONGEST_LINE: usize = 90;
