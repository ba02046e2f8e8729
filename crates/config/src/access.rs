//! `[roles.<name>]` and `[clients.<name>]`: the clients, and the items that they may use.
//!
//! A client with rules of its own gets a role of its own, so that other modules deal with roles
//! only.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::server::certificate_name;
use super::{Options, ServerConfig};
use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, Key, KeySpec, by_hand, custom, list, parsed, settings};
use crate::reader::report::{ValueError, did_you_mean};
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use weir_access::policy::ClientCredentials;
use weir_access::policy::role::{OWN_ROLE_PREFIX, Role};
use weir_mcp::pattern::{AllowDeny, Pattern};

settings! {
    /// The items that a role may use. Roles are assigned by `clients.<name>.role` or
    /// `auth.anonymous_role`. Patterns are `<upstream>/<original name>`.
    ///
    /// A key that is not set allows nothing. `*` in a pattern matches any run of characters,
    /// including `/`; the name of the upstream is that of its table, and the name of the item is
    /// the one that the upstream itself uses, before `prefix` and `rename`.
    ///
    /// The role `local` always exists and may use everything; clients without a key get it by
    /// default. Write `[roles.local]` to restrict it.
    ///
    /// ```toml
    /// [roles.local]                        # exists by default: one user, one machine
    /// prompts.allow = ["*"]
    /// tools.allow = ["*"]
    /// resources.allow = ["*"]
    ///
    /// #[roles.developer]                   # items that are not allowed are not listed
    /// #prompts.allow = ["library/*", "everything/*"]
    /// #prompts.deny = ["library/internal-*"]
    /// #tools.allow = ["github/*", "wiki/*"]
    /// #tools.deny = ["github/delete_*"]
    /// #resources.allow = ["github/repo://public/*"]
    /// #resources.deny = []
    /// ```
    for Role {
        /// The prompts that the role may use.
        prompts: rules(PROMPTS);
        /// The tools that the role may use.
        tools: rules(TOOLS);
        /// The resources and resource templates that the role may use.
        resources: rules(RESOURCES);
    }
}

settings! {
    /// A client with a key or a certificate, and the items that it may use: `role`, or rules of its
    /// own.
    ///
    /// A client sends its key as `Authorization: Bearer <key>`. `weir keys add NAME --role ROLE`
    /// makes a client and its key. Any other long random string works, too; the configuration
    /// contains only its SHA-256:
    ///
    /// ```sh
    /// key=$(openssl rand -hex 32); echo "$key"; printf %s "$key" | sha256sum
    /// ```
    ///
    /// ```toml
    /// #[clients.alice-laptop]              # weir keys add alice-laptop --role developer
    /// #key_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
    /// #role = "developer"
    /// #expires = 2027-06-30T00:00:00Z
    ///
    /// #[clients.ci]                        # rules of its own instead of a role
    /// #key_sha256 = ["60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"]
    /// #certificates = ["dns:ci.example.com"]
    /// #prompts.allow = ["library/*"]
    /// ```
    for ClientCredentials {
        /// The SHA-256 of the client's key: one, or two while you replace a key by a new one. No
        /// two clients may have the same key.
        ///
        /// ```toml
        /// key_sha256 = ["<output of: printf %s KEY | sha256sum>"]
        /// ```
        key_sha256:
            by_hand(ValueShape::list(ValueShape::Text("64 hexadecimal digits", shape::HASH)))
                .entries(1, Some(2));
        /// Names of the client's certificates, with `server.tls.client_ca`: `dns:<name>` or
        /// `uri:<URI>` as in their subjectAltName, or `sha256:<fingerprint>`. They replace a key,
        /// or are used in addition to one.
        ///
        /// ```toml
        /// certificates = ["uri:spiffe://example.com/ci"]
        /// ```
        certificates:
            list(ValueShape::Text("name in a certificate", shape::CERTIFICATE), certificate_name);
        /// The client's role: a `[roles.<name>]` table, or `local`. A client has either a role or
        /// rules of its own.
        role: by_hand(ROLE_NAME);
        /// Date and time from which the client's keys are refused, with an offset from UTC and
        /// without quotes.
        ///
        /// ```toml
        /// expires = 2027-06-30T00:00:00Z
        /// ```
        expires: parsed(ValueShape::DateTime, value::date_time).optional().default_text("never");
    }
}

// === Reading roles ===

pub(super) type RoleConfigs = BTreeMap<String, Role>;

/// Reads roles and clients; the roles include the own roles of clients.
pub(super) fn read_roles_and_clients(
    root: &TableReader<'_>,
    server: &ServerConfig,
    upstreams: &[String],
    options: &Options,
) -> (RoleConfigs, Vec<ClientCredentials>) {
    let requests_certificates = server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let written = value::plainly_named_tables(root, "roles", |name, t| {
        (name.to_owned(), read_rules(t, upstreams))
    });
    let mut roles = RoleConfigs::from([(LOCAL_ROLE.to_owned(), Role::everything())]);
    roles.extend(written);

    let (mut hashes, mut certificates) = (BTreeMap::new(), BTreeMap::new());
    let clients = value::plainly_named_tables(root, "clients", |name, t| {
        if RESERVED_NAMES.contains(&name) {
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
    let own_roles = |(client, own): &(ClientCredentials, Option<Role>)| {
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

/// Reads the rules of a role, or of a client with its own rules.
fn read_rules(t: &TableReader<'_>, upstreams: &[String]) -> Role {
    for kind in KINDS {
        t.check_table(kind, |t| {
            for key in ["allow", "deny"] {
                warn_of_unknown_upstreams(t, key, upstreams);
            }
        });
    }
    Role::read(t)
}

/// Rules for one kind of items: a missing key allows nothing.
fn rules(texts: [&'static str; 2]) -> Key<AllowDeny> {
    let pattern = ValueShape::Text("`<upstream>/<original name>`", shape::POLICY_PATTERN);
    patterns(texts, pattern, &AllowDeny::default(), parse_pattern)
}

/// Table of patterns with `allow` and `deny`, each with its text. The reader records the location
/// of each pattern.
pub(super) fn patterns(
    [allow, deny]: [&'static str; 2],
    of: ValueShape,
    default: &AllowDeny,
    parse: fn(&SpannedValue<'_>) -> Parsed<String>,
) -> Key<AllowDeny> {
    let key = |name, text, default: &Vec<Pattern>| {
        by_hand(ValueShape::list(of.clone()))
            .written(|list: &Vec<Pattern>| list.iter().map(Pattern::as_str).collect())
            .describe(name, &[text], default)
    };
    let keys = vec![key("allow", allow, &default.allow), key("deny", deny, &default.deny)];
    let parse = move |v: &SpannedValue<'_>| Ok(Pattern::new(&parse(v)?));
    custom(ValueShape::Table(keys), move |t, name, inherited: Option<&AllowDeny>| {
        let inherited = inherited.cloned().unwrap_or_default();
        Some(t.table(name, |t| AllowDeny {
            allow: t.list_with_locations("allow", parse).unwrap_or(inherited.allow),
            deny: t.list_with_locations("deny", parse).unwrap_or(inherited.deny),
        }))
    })
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
) -> (ClientCredentials, Option<Role>) {
    let mut client = ClientCredentials::read(t);
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
    let rules = read_rules(t, upstreams);
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
    client.name = name.to_owned();
    client.key_sha256 = key_sha256.unwrap_or_default();
    client.role = role.unwrap_or_else(|| format!("{OWN_ROLE_PREFIX}{name}"));
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

/// Describes the rules of a client's own, whose keys are those of a role.
pub(super) fn own_rules() -> impl Iterator<Item = KeySpec> {
    let text =
        "Rules of the client's own, instead of `role`; the client may use only what they allow.";
    Role::keys().into_iter().map(move |kind| KeySpec {
        described_at: Some("roles"),
        ..KeySpec::new(kind.name, kind.shape, &[text])
    })
}

/// Texts of `allow` and `deny`, by kind.
const PROMPTS: [&str; 2] = [
    "Patterns of prompts that may be used, each `<upstream>/<original name>`, or `*` for all. \
     Items that no pattern allows are not listed either.",
    "Patterns of prompts that may not be used although `allow` matches them: deny wins.",
];
const TOOLS: [&str; 2] = [
    "Patterns of tools that may be called, as for prompts.",
    "Patterns of tools that may not be called although `allow` matches them.",
];
const RESOURCES: [&str; 2] = [
    "Patterns of resources and resource templates that may be read: `<upstream>/<URI>`. See \
     docs/resource-uris.md for URIs that are not listed.",
    "Patterns of resources and templates that may not be read although `allow` matches them.",
];

/// Name of a role.
pub(super) const ROLE_NAME: ValueShape = ValueShape::Text("name of a role", shape::PLAIN_NAME);

pub(super) const KINDS: [&str; 3] = ["prompts", "tools", "resources"];

/// Role that exists by default, for one person on one machine.
pub(super) const LOCAL_ROLE: &str = "local";

/// Names that Weir itself uses, in its policy and its audit log.
const RESERVED_NAMES: [&str; 3] = ["anonymous", "local", "operator"];
