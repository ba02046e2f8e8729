//! `[auth]`, `[roles.<name>]` and `[clients.<name>]`: who may enter, and what they may use.
//!
//! A client with rules of its own gets a role of its own, so that further in the house there are only roles.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::oidc::Provider;
use super::upstreams::patterns;
use super::{Options, Server};
use crate::config::reader::report::{Complaint, did_you_mean};
use crate::config::reader::table_reader::{Parsed, Table, Value};
use crate::config::reader::value;

/// Who may enter without a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    /// As written.
    pub mode: AuthMode,
    /// The role of a caller without a key; exists.
    pub anonymous_role: String,
    /// What `mode` comes to: whether a request without a key is let in, in that role.
    pub anonymous: bool,
}

impl Default for Auth {
    fn default() -> Self {
        Self { mode: AuthMode::Auto, anonymous_role: LOCAL_ROLE.to_owned(), anonymous: true }
    }
}

/// Whether a request needs a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    /// Not on a loopback address with neither clients nor identity providers defined; otherwise it does.
    Auto,
    /// It does.
    Required,
    /// It does not.
    Anonymous,
}

/// What a role may use. Patterns match `<upstream's name>/<original name or URI>`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Role {
    /// Its prompts.
    pub prompts: Patterns,
    /// Its tools.
    pub tools: Patterns,
    /// Its resources and resource templates.
    pub resources: Patterns,
}

impl Role {
    pub(super) fn everything() -> Self {
        Self {
            prompts: Patterns::everything(),
            tools: Patterns::everything(),
            resources: Patterns::everything(),
        }
    }
}

/// What is allowed and what is denied; deny wins, and what no pattern allows is denied. `*` matches any
/// run of characters, `/` included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns {
    /// What may be used.
    pub allow: Vec<String>,
    /// What may not, although it is allowed.
    pub deny: Vec<String>,
}

impl Patterns {
    pub(super) fn everything() -> Self {
        Self { allow: vec!["*".to_owned()], deny: Vec::new() }
    }

    pub(super) fn nothing() -> Self {
        Self { allow: Vec::new(), deny: Vec::new() }
    }
}

/// Someone who enters with a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The name of its table.
    pub name: String,
    /// The SHA-256 of its keys: one, or two while they rotate. No two clients share one.
    pub key_sha256: Vec<[u8; 32]>,
    /// Its role in [`Config::roles`](super::Config::roles); `client:<name>` if it has rules of its own.
    pub role: String,
    /// What its certificates go by: `dns:`, `uri:` or `sha256:` and a name. No two clients share one.
    pub certificates: Vec<String>,
    /// The moment from which on it is refused.
    pub expires: Option<SystemTime>,
}

// === Reading roles ===

pub(super) type Roles = BTreeMap<String, Role>;

/// Reads roles and clients; the roles hold those that clients have for themselves.
pub(super) fn roles_and_clients(
    root: &Table<'_>,
    server: &Server,
    upstreams: &[String],
    options: &Options,
) -> (Roles, Vec<Client>) {
    let certificates_are_shown = server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let written = root.tables("roles", |name, t| {
        let name = name.get_ref();
        if !value::is_plain_name(name) {
            t.object_to_all(value::bad_plain_name(name));
        }
        (name.to_string(), rules(t, upstreams))
    });
    let mut roles = Roles::from([(LOCAL_ROLE.to_owned(), Role::everything())]);
    roles.extend(written);

    let (mut hashes, mut certificates) = (BTreeMap::new(), BTreeMap::new());
    let clients = root.tables("clients", |name, t| {
        let name = name.get_ref();
        if !value::is_plain_name(name) {
            t.object_to_all(value::bad_plain_name(name));
        }
        if OWN_NAMES.contains(&&**name) {
            let what = format!("{name:?} is what Weir calls somebody without a key");
            t.object_to_all(Complaint::new(what, "give the client another name"));
        }
        let (client, own) = client(name, t, &roles, upstreams);
        for hash in &client.key_sha256 {
            if let Some(owner) = hashes.insert(*hash, name.to_string()) {
                let what = format!("this key belongs to [clients.{owner}] already");
                t.object(
                    "key_sha256",
                    Complaint::new(what, "make a key for each client, and write each hash once"),
                );
            }
        }
        warn_of_end(name, t, client.expires, options);
        for certificate in &client.certificates {
            if let Some(owner) = certificates.insert(certificate.clone(), name.to_string()) {
                let what = format!("this belongs to [clients.{owner}] already");
                let remedy = "write what certificates go by once";
                t.object("certificates", Complaint::new(what, remedy));
            }
        }
        if !certificates_are_shown && t.has("certificates") {
            let what = "no client is asked for a certificate";
            let remedy = "name the clients' CA: client_ca under [server.tls]";
            t.object("certificates", Complaint::new(what, remedy));
        }
        (client, own)
    });
    let own_roles =
        |(client, own): &(Client, Option<Role>)| own.clone().map(|own| (client.role.clone(), own));
    roles.extend(clients.iter().filter_map(own_roles));
    (roles, clients.into_iter().map(|(client, _)| client).collect())
}

/// Tells of keys that have expired or soon will.
fn warn_of_end(name: &str, t: &Table<'_>, expires: Option<SystemTime>, options: &Options) {
    let (Some(expires), Some(now)) = (expires, options.now) else { return };
    let left = expires.duration_since(now).unwrap_or_default();
    if left >= NOTICE {
        return;
    }
    let what = match left.as_secs().div_ceil(86_400) {
        0 => "the keys of this client have expired".to_owned(),
        1 => "the keys of this client expire within a day".to_owned(),
        days => format!("the keys of this client expire within {days} days"),
    };
    let remedy = format!(
        "`weir keys rotate {name} --expires 90d` gives it another, `weir keys revoke {name}` removes it"
    );
    t.warn("expires", Complaint::new(what, remedy));
}

/// Tells of roles that nobody has. The role of the client of `weir stdio` is that of who comes without a key.
pub(super) fn warn_of_idle_roles(
    root: &Table<'_>,
    roles: &Roles,
    clients: &[Client],
    providers: &[Provider],
    auth: &Auth,
) {
    // Where a client's role could not be read, nobody knows whose it is.
    if !clients.iter().all(|client| roles.contains_key(&client.role)) {
        return;
    }
    root.warn_of_names("roles", |role| {
        let is_had = [LOCAL_ROLE, &auth.anonymous_role].contains(&role)
            || clients.iter().any(|client| client.role == role)
            || providers.iter().any(|provider| provider.tokens.gives(role));
        let remedy = format!("`weir keys add NAME --role {role}` makes a client that has it");
        (!is_had).then(|| Complaint::new("nobody has this role", remedy))
    });
}

/// Reads the rules of a role, or of a client that has its own: what is not written allows nothing.
fn rules(t: &Table<'_>, upstreams: &[String]) -> Role {
    let [prompts, tools, resources] = KINDS.map(|kind| {
        t.table(kind, |t| {
            let rules = patterns(t, Patterns::default(), pattern);
            for key in ["allow", "deny"] {
                warn_of_unknown_upstreams(t, key, upstreams);
            }
            rules
        })
    });
    Role { prompts, tools, resources }
}

/// A pattern over all upstreams: `<upstream>/<original name>`.
pub(super) fn pattern(v: &Value<'_>) -> Parsed<String> {
    let pattern = value::string(v)?;
    match pattern.split_once('/') {
        Some(("", rest)) => Err(Complaint::new(
            format!("{pattern:?} names no upstream"),
            format!("write \"*/{rest}\" for every upstream, or \"<upstream>/{rest}\""),
        )),
        None if pattern != "*" => Err(Complaint::new(
            format!("{pattern:?} is not a pattern like \"<upstream>/<name>\""),
            match pattern.split_once("__") {
                // What a client sees, copied from `weir list`.
                Some((upstream, own)) => {
                    format!(
                        "write \"{upstream}/{own}\": the upstream, then the name that it uses itself"
                    )
                }
                None => format!(
                    "write \"{pattern}/*\" for all of that upstream, or \"*/{pattern}\" for the name anywhere"
                ),
            },
        )),
        _ => Ok(pattern.to_owned()),
    }
}

/// The upstream may come later, or be gone for a while: so it is no error.
fn warn_of_unknown_upstreams(t: &Table<'_>, key: &'static str, upstreams: &[String]) {
    t.warn_each(key, |entry| names_known_upstream(entry, upstreams));
}

/// The same for a key with a single pattern.
pub(super) fn warn_of_unknown_upstream(t: &Table<'_>, key: &'static str, upstreams: &[String]) {
    t.warn_of(key, |entry| names_known_upstream(entry, upstreams));
}

fn names_known_upstream(entry: &Value<'_>, upstreams: &[String]) -> Parsed<()> {
    let upstream = entry.get_ref().as_str().and_then(|pattern| pattern.split_once('/'));
    let Some((upstream, _)) = upstream else { return Ok(()) };
    if upstream.is_empty()
        || upstream.contains('*')
        || upstreams.iter().any(|known| known == upstream)
    {
        return Ok(());
    }
    let remedy = did_you_mean(upstream, upstreams.iter().map(String::as_str))
        .unwrap_or_else(|| "patterns go by the name of the table, [upstreams.<name>]".to_owned());
    Err(Complaint::new(format!("there is no upstream {upstream:?}"), remedy))
}

// === Reading clients ===

/// Reads one client, and its own role if it has one.
fn client(
    name: &str,
    t: &Table<'_>,
    roles: &Roles,
    upstreams: &[String],
) -> (Client, Option<Role>) {
    // What is no hash may be the key itself.
    let hash = |v: &Value<'_>| value::hash(v).inspect_err(|_| t.hide("key_sha256"));
    let key_sha256 = t.list("key_sha256", hash);
    let written =
        t.written("key_sha256").and_then(|v| v.get_ref().as_array()).map(|keys| keys.len());
    match written {
        Some(1 | 2) => {}
        Some(0) => t.object(
            "key_sha256",
            Complaint::new("without a key nobody can be this client", "add a hash"),
        ),
        Some(_) => t.object(
            "key_sha256",
            Complaint::new("more than two keys", "keep one, or two while they rotate"),
        ),
        None if t.has("key_sha256") || t.has("certificates") => {}
        None => t.object(
            "key_sha256",
            Complaint::new("is missing", "add key_sha256 = [\"<hash of the client's key>\"]"),
        ),
    }
    let role = t.read("role", |v| existing_role(v, roles));
    t.keep_place("role");
    let rules = rules(t, upstreams);
    let has_rules = KINDS.into_iter().find(|kind| t.has(kind));
    match (t.has("role"), has_rules) {
        (true, Some(kind)) => t.object(
            kind,
            Complaint::new(
                "a client has a role or rules of its own, not both",
                "remove it, or remove role",
            ),
        ),
        (false, None) => t.object_to_all(Complaint::new(
            "nothing says what this client may use",
            "add role = \"<name>\", or prompts.allow = [\"<upstream>/*\"]",
        )),
        _ => {}
    }
    let own = has_rules.is_some().then_some(rules);
    let client = Client {
        name: name.to_owned(),
        key_sha256: key_sha256.unwrap_or_default(),
        certificates: t.list("certificates", super::tls::name).unwrap_or_default(),
        role: role.unwrap_or_else(|| format!("{OWN_ROLE}{name}")),
        expires: t.read("expires", value::moment),
    };
    (client, own)
}

/// Accepts a role that is written, or `local`; a client's own role is nobody else's.
pub(super) fn existing_role(v: &Value<'_>, roles: &Roles) -> Parsed<String> {
    let role = value::string(v)?;
    let mut known = roles.keys().map(String::as_str).filter(|name| value::is_plain_name(name));
    match known.clone().any(|name| name == role) {
        true => Ok(role.to_owned()),
        false => {
            let remedy = did_you_mean(role, &mut known);
            let remedy = remedy.unwrap_or_else(|| {
                "write [roles.<name>] for it, or name one that exists".to_owned()
            });
            Err(Complaint::new(format!("there is no role {role:?}"), remedy))
        }
    }
}

// === Who needs a key ===

pub(super) fn auth(
    t: &Table<'_>,
    server: &Server,
    roles: &Roles,
    nobody: bool,
    options: &Options,
) -> Auth {
    let default = Auth::default();
    let mode = t.read("mode", value::choice(&AUTH_MODES)).unwrap_or(default.mode);
    let anonymous_role =
        t.read("anonymous_role", |v| existing_role(v, roles)).unwrap_or(default.anonymous_role);
    t.keep_place("anonymous_role");
    let on_loopback = server.listen.ip().to_canonical().is_loopback();
    let anonymous = match mode {
        AuthMode::Auto => on_loopback && nobody,
        AuthMode::Required => false,
        AuthMode::Anonymous => true,
    };
    if anonymous && !on_loopback && !options.allow_anonymous_network {
        let what =
            "server.listen is an address where anybody on the network could enter without a key";
        let remedy = "remove it and define a client, listen on 127.0.0.1, or start with \
                      --allow-anonymous-network if somebody else keeps the door";
        t.object("mode", Complaint::new(what, remedy));
    } else if anonymous && server.public_url.is_some() {
        let what = "server.public_url is set, and whoever reaches it enters without a key";
        t.warn(
            "mode",
            Complaint::new(what, "write mode = \"required\" in [auth] and define a client"),
        );
    } else if !anonymous && nobody {
        let what = "a key is required, and no client has one: nobody can enter";
        t.warn("mode", Complaint::new(what, "add a [clients.<name>] table"));
    }
    Auth { mode, anonymous_role, anonymous }
}

pub(super) const AUTH_MODES: [(&str, AuthMode); 3] = [
    ("auto", AuthMode::Auto),
    ("required", AuthMode::Required),
    ("anonymous", AuthMode::Anonymous),
];

/// How long ahead the end of a key is told.
const NOTICE: Duration = Duration::from_secs(14 * 86_400);

pub(super) const KINDS: [&str; 3] = ["prompts", "tools", "resources"];

/// The client whose own role this is, if it is one.
pub(crate) fn owner_of(role: &str) -> Option<&str> {
    role.strip_prefix(OWN_ROLE)
}

/// What the role of a client with rules of its own begins with; no name that is written can.
const OWN_ROLE: &str = "client:";

/// The role that exists without being written: one person, one machine.
pub(super) const LOCAL_ROLE: &str = "local";

/// Whom Weir itself calls so, in its policy and its records.
const OWN_NAMES: [&str; 3] = ["anonymous", "local", "operator"];
