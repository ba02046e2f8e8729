//! `[roles.<name>]` and `[clients.<name>]`: the clients, and the items that they may use.
//!
//! A client with rules of its own gets a role of its own, so that other modules deal with roles
//! only.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::{Options, ServerConfig};
use crate::config::reader::report::{ValueError, did_you_mean};
use crate::config::reader::rule_locations::OWN_ROLE_PREFIX;
use crate::config::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::config::reader::value;

/// Items that a role may use. Patterns match `<upstream's name>/<original name or URI>`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleConfig {
    /// Rules for prompts.
    pub prompts: Patterns,
    /// Rules for tools.
    pub tools: Patterns,
    /// Rules for resources and resource templates.
    pub resources: Patterns,
}

impl RoleConfig {
    pub(super) fn everything() -> Self {
        Self {
            prompts: Patterns::everything(),
            tools: Patterns::everything(),
            resources: Patterns::everything(),
        }
    }
}

/// Allow and deny patterns; deny wins, and an item that no pattern allows is denied. `*` matches
/// any run of characters, including `/`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns {
    /// Patterns of allowed items.
    pub allow: Vec<String>,
    /// Patterns of items that are denied although `allow` matches them.
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

/// Client with a key or a certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConfig {
    /// The name of its table.
    pub name: String,
    /// SHA-256 of its keys: one, or two while they rotate. No two clients share one.
    pub key_sha256: Vec<[u8; 32]>,
    /// Its role in [`Config::roles`](super::Config::roles); `client:<name>` if it has rules of its
    /// own.
    pub role: String,
    /// Names of its certificates: `dns:`, `uri:` or `sha256:` and a name. No two clients share one.
    pub certificates: Vec<String>,
    /// Time from which on its keys are refused.
    pub expires: Option<SystemTime>,
}

// === Reading roles ===

pub(super) type RoleConfigs = BTreeMap<String, RoleConfig>;

/// Reads roles and clients; the roles include the own roles of clients.
pub(super) fn read_roles_and_clients(
    root: &TableReader<'_>,
    server: &ServerConfig,
    upstreams: &[String],
    options: &Options,
) -> (RoleConfigs, Vec<ClientConfig>) {
    let requests_certificates = server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let written = root.named_tables("roles", |name, t| {
        let name = name.get_ref();
        if !value::is_plain_name(name) {
            t.table_error(value::bad_plain_name(name));
        }
        (name.to_string(), rules(t, upstreams))
    });
    let mut roles = RoleConfigs::from([(LOCAL_ROLE.to_owned(), RoleConfig::everything())]);
    roles.extend(written);

    let (mut hashes, mut certificates) = (BTreeMap::new(), BTreeMap::new());
    let clients = root.named_tables("clients", |name, t| {
        let name = name.get_ref();
        if !value::is_plain_name(name) {
            t.table_error(value::bad_plain_name(name));
        }
        if RESERVED_NAMES.contains(&&**name) {
            let what = format!("{name:?} is a name that Weir itself uses");
            t.table_error(ValueError::new(what, "give the client another name"));
        }
        let (client, own) = client(name, t, &roles, upstreams);
        for hash in &client.key_sha256 {
            if let Some(owner) = hashes.insert(*hash, name.to_string()) {
                let what = format!("this key belongs to [clients.{owner}] already");
                t.error(
                    "key_sha256",
                    ValueError::new(what, "make a key for each client, and write each hash once"),
                );
            }
        }
        warn_of_expiry(name, t, client.expires, options);
        for certificate in &client.certificates {
            if let Some(owner) = certificates.insert(certificate.clone(), name.to_string()) {
                let what = format!("this belongs to [clients.{owner}] already");
                let remedy = "write each certificate name once";
                t.error("certificates", ValueError::new(what, remedy));
            }
        }
        if !requests_certificates && t.has("certificates") {
            let what = "Weir requests no client certificates";
            let remedy = "name the clients' CA: client_ca under [server.tls]";
            t.error("certificates", ValueError::new(what, remedy));
        }
        (client, own)
    });
    let own_roles = |(client, own): &(ClientConfig, Option<RoleConfig>)| {
        own.clone().map(|own| (client.role.clone(), own))
    };
    roles.extend(clients.iter().filter_map(own_roles));
    (roles, clients.into_iter().map(|(client, _)| client).collect())
}

/// Warns of keys that have expired or expire within [`EXPIRY_NOTICE`].
fn warn_of_expiry(name: &str, t: &TableReader<'_>, expires: Option<SystemTime>, options: &Options) {
    let (Some(expires), Some(now)) = (expires, options.now) else { return };
    let left = expires.duration_since(now).unwrap_or_default();
    if left >= EXPIRY_NOTICE {
        return;
    }
    let what = match left.as_secs().div_ceil(86_400) {
        0 => "the keys of this client have expired".to_owned(),
        1 => "the keys of this client expire within a day".to_owned(),
        days => format!("the keys of this client expire within {days} days"),
    };
    let remedy = format!(
        "`weir keys rotate {name} --expires 90d` gives it another, \
         `weir keys revoke {name}` removes it"
    );
    t.warning("expires", ValueError::new(what, remedy));
}

/// Reads the rules of a role, or of a client with its own rules: a missing key allows nothing.
fn rules(t: &TableReader<'_>, upstreams: &[String]) -> RoleConfig {
    let [prompts, tools, resources] = KINDS.map(|kind| {
        t.table(kind, |t| {
            let rules = read_patterns(t, Patterns::default(), parse_pattern);
            for key in ["allow", "deny"] {
                warn_of_unknown_upstreams(t, key, upstreams);
            }
            rules
        })
    });
    RoleConfig { prompts, tools, resources }
}

/// Reads `allow` and `deny`, and records the location of each pattern; missing keys are as in
/// `default`.
pub(super) fn read_patterns(
    t: &TableReader<'_>,
    default: Patterns,
    pattern: impl Fn(&SpannedValue<'_>) -> Parsed<String>,
) -> Patterns {
    Patterns {
        allow: t.list_with_locations("allow", &pattern).unwrap_or(default.allow),
        deny: t.list_with_locations("deny", &pattern).unwrap_or(default.deny),
    }
}

/// Parses a pattern over all upstreams: `<upstream>/<original name>`.
pub(super) fn parse_pattern(v: &SpannedValue<'_>) -> Parsed<String> {
    let pattern = value::string(v)?;
    match pattern.split_once('/') {
        Some(("", rest)) => Err(ValueError::new(
            format!("{pattern:?} names no upstream"),
            format!("write \"*/{rest}\" for every upstream, or \"<upstream>/{rest}\""),
        )),
        None if pattern != "*" => Err(ValueError::new(
            format!("{pattern:?} is not a pattern like \"<upstream>/<name>\""),
            match pattern.split_once("__") {
                // The name is probably a public name, copied from `weir list`.
                Some((upstream, own)) => {
                    format!(
                        "write \"{upstream}/{own}\": the upstream, then the name that it uses \
                         itself"
                    )
                }
                None => format!(
                    "write \"{pattern}/*\" for all of that upstream, or \"*/{pattern}\" for the \
                     name anywhere"
                ),
            },
        )),
        _ => Ok(pattern.to_owned()),
    }
}

/// Warns of patterns with unknown upstreams. They are no errors, because an upstream may be added
/// later or be removed for a while.
fn warn_of_unknown_upstreams(t: &TableReader<'_>, key: &'static str, upstreams: &[String]) {
    t.warn_entries(key, |entry| names_known_upstream(entry, upstreams));
}

/// Warns of an unknown upstream in a key with a single pattern.
pub(super) fn warn_of_unknown_upstream(
    t: &TableReader<'_>,
    key: &'static str,
    upstreams: &[String],
) {
    t.warn_value(key, |entry| names_known_upstream(entry, upstreams));
}

fn names_known_upstream(entry: &SpannedValue<'_>, upstreams: &[String]) -> Parsed<()> {
    let upstream = entry.get_ref().as_str().and_then(|pattern| pattern.split_once('/'));
    let Some((upstream, _)) = upstream else { return Ok(()) };
    if upstream.is_empty()
        || upstream.contains('*')
        || upstreams.iter().any(|known| known == upstream)
    {
        return Ok(());
    }
    let remedy = did_you_mean(upstream, upstreams.iter().map(String::as_str))
        .unwrap_or_else(|| "patterns use the name of the table, [upstreams.<name>]".to_owned());
    Err(ValueError::new(format!("there is no upstream {upstream:?}"), remedy))
}

// === Reading clients ===

/// Reads one client, and its own role if it has one.
fn client(
    name: &str,
    t: &TableReader<'_>,
    roles: &RoleConfigs,
    upstreams: &[String],
) -> (ClientConfig, Option<RoleConfig>) {
    // A value that is not a hash may be the key itself, so it is redacted.
    let hash = |v: &SpannedValue<'_>| value::hash(v).inspect_err(|_| t.redact("key_sha256"));
    let key_sha256 = t.list("key_sha256", hash);
    let written = t.get("key_sha256").and_then(|v| v.get_ref().as_array()).map(|keys| keys.len());
    match written {
        Some(1 | 2) => {}
        Some(0) => {
            t.error("key_sha256", ValueError::new("the list of keys is empty", "add a hash"))
        }
        Some(_) => t.error(
            "key_sha256",
            ValueError::new("more than two keys", "keep one, or two while they rotate"),
        ),
        None if t.has("key_sha256") || t.has("certificates") => {}
        None => t.error(
            "key_sha256",
            ValueError::new("is missing", "add key_sha256 = [\"<hash of the client's key>\"]"),
        ),
    }
    let role = t.read("role", |v| existing_role(v, roles));
    t.record_location("role");
    let rules = rules(t, upstreams);
    let has_rules = KINDS.into_iter().find(|kind| t.has(kind));
    match (t.has("role"), has_rules) {
        (true, Some(kind)) => t.error(
            kind,
            ValueError::new(
                "a client has a role or rules of its own, not both",
                "remove it, or remove role",
            ),
        ),
        (false, None) => t.table_error(ValueError::new(
            "nothing says what this client may use",
            "add role = \"<name>\", or prompts.allow = [\"<upstream>/*\"]",
        )),
        _ => {}
    }
    let own = has_rules.is_some().then_some(rules);
    let client = ClientConfig {
        name: name.to_owned(),
        key_sha256: key_sha256.unwrap_or_default(),
        certificates: t
            .list("certificates", super::tls::parse_certificate_name)
            .unwrap_or_default(),
        role: role.unwrap_or_else(|| format!("{OWN_ROLE_PREFIX}{name}")),
        expires: t.read("expires", value::date_time),
    };
    (client, own)
}

/// Parses the name of a role in `[roles]`, or `local`; the own roles of clients are not accepted.
pub(super) fn existing_role(v: &SpannedValue<'_>, roles: &RoleConfigs) -> Parsed<String> {
    let role = value::string(v)?;
    let mut known = roles.keys().map(String::as_str).filter(|name| value::is_plain_name(name));
    match known.clone().any(|name| name == role) {
        true => Ok(role.to_owned()),
        false => {
            let remedy = did_you_mean(role, &mut known);
            let remedy = remedy.unwrap_or_else(|| {
                "write [roles.<name>] for it, or name one that exists".to_owned()
            });
            Err(ValueError::new(format!("there is no role {role:?}"), remedy))
        }
    }
}

/// Remaining lifetime of a key below which a warning is given.
const EXPIRY_NOTICE: Duration = Duration::from_secs(14 * 86_400);

pub(super) const KINDS: [&str; 3] = ["prompts", "tools", "resources"];

/// Role that exists by default, for one person on one machine.
pub(super) const LOCAL_ROLE: &str = "local";

/// Names that Weir itself uses, in its policy and its audit log.
const RESERVED_NAMES: [&str; 3] = ["anonymous", "local", "operator"];
