//! `[auth.oidc.<name>]`: identity providers whose access tokens are accepted.

use hyper::Uri;

use super::ServerConfig;
use super::access::{RoleConfigs, existing_role};
use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::config::reader::value;
use crate::policy::tokens::discovery::{is_allowed_jwks_uri, is_loopback};
use crate::policy::tokens::{Algorithm, Preset, Settings};

/// Identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfig {
    /// Settings of token verification. The roles exist, the issuer is unique, and no required list
    /// is empty.
    pub tokens: Settings,
    /// Scopes that are announced to clients.
    pub scopes_supported: Vec<String>,
}

/// Reads all providers; `t` is `[auth]`.
pub(super) fn read_providers(
    t: &TableReader<'_>,
    server: &ServerConfig,
    roles: &RoleConfigs,
) -> Vec<ProviderConfig> {
    let mut issuers: Vec<(String, String)> = Vec::new();
    t.named_tables("oidc", |name, t| {
        let name = name.get_ref();
        if !value::is_plain_name(name) {
            t.table_error(value::bad_plain_name(name));
        }
        if server.public_url.is_none() {
            let what = "server.public_url is not set, and clients need it to request tokens";
            let remedy = "set public_url in [server] to the URL under which clients reach Weir";
            t.table_error(ValueError::new(what, remedy));
        }
        let provider = provider(name, t, roles);
        let issuer = &provider.tokens.issuer;
        if let Some((owner, _)) = issuers.iter().find(|(_, known)| known == issuer) {
            let what = format!("this is the issuer of [auth.oidc.{owner}] already");
            t.error("issuer", ValueError::new(what, "put the audiences of both into one table"));
        } else if !issuer.is_empty() {
            issuers.push((name.to_string(), issuer.clone()));
        }
        provider
    })
}

fn provider(name: &str, t: &TableReader<'_>, roles: &RoleConfigs) -> ProviderConfig {
    let preset = t.read("preset", value::choice(&Preset::NAMED)).unwrap_or(Preset::Generic);
    let issuer = required(t, "issuer", "\"https://id.example.com\"", || t.read("issuer", issuer));
    if preset == Preset::Entra && issuer.as_deref().is_some_and(is_for_all_tenants) {
        let what = "this address is that of many tenants, and no token has it as its issuer";
        t.error("issuer", ValueError::new(what, "put the id of your own tenant in its place"));
    }
    let named = |key| required(t, key, "[\"api://weir\"]", || t.list(key, value::text));
    let audience = named("audience").unwrap_or_default();
    let remedy = "name the audience of its tokens, or any token of this issuer would be accepted";
    not_empty(t, "audience", remedy);
    let algorithms = t.list("algorithms", algorithm);
    not_empty(t, "algorithms", "name one, or remove the key for all that are safe");
    let jwks_uri = t.read("jwks_uri", |v| parse_jwks_uri(v, issuer.as_deref()));
    let claim = |key, preset: &str| t.read(key, value::text).unwrap_or_else(|| preset.to_owned());
    let mapped = t
        .map("roles", |value, role| Ok((value.get_ref().to_string(), existing_role(role, roles)?)));
    let default_role = t.read("default_role", |v| existing_role(v, roles));
    if default_role.is_none() && !t.has("roles") && !t.has("default_role") {
        let what = "no token of this provider gives a role, and users without a role may use \
                    nothing";
        t.warning(
            "roles",
            ValueError::new(what, "add roles = { \"<group>\" = \"<role>\" }, or default_role"),
        );
    }
    let scopes = |key| t.list(key, scope).unwrap_or_default();
    let tokens = Settings {
        name: name.to_owned(),
        issuer: issuer.unwrap_or_default(),
        audience,
        preset,
        user_claim: claim("user_claim", preset.user_claim()),
        role_claim: claim("role_claim", preset.role_claim()),
        roles: mapped.into_iter().collect(),
        default_role,
        scopes_required: scopes("scopes_required"),
        algorithms: algorithms.unwrap_or_else(|| Algorithm::NAMED.map(|(_, it)| it).to_vec()),
        jwks_uri,
    };
    ProviderConfig { tokens, scopes_supported: scopes("scopes_supported") }
}

fn required<T>(
    t: &TableReader<'_>,
    key: &'static str,
    example: &str,
    read: impl Fn() -> Option<T>,
) -> Option<T> {
    let found = read();
    // An invalid value has been reported already.
    if found.is_none() && !t.has(key) {
        t.error(key, ValueError::new("is missing", format!("add {key} = {example}")));
    }
    found
}

fn not_empty(t: &TableReader<'_>, key: &'static str, remedy: &'static str) {
    let list = t.get(key).and_then(|v| v.get_ref().as_array());
    if list.is_some_and(|list| list.is_empty()) {
        t.error(key, ValueError::new("the list is empty", remedy));
    }
}

/// Parses the issuer, and returns it unchanged, because it is compared character by character.
fn issuer(v: &SpannedValue<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    if text.contains(['{', '}', '<', '>']) {
        let what = "this holds a placeholder, and no token has it as its issuer";
        return Err(ValueError::new(what, "put your own tenant, domain or realm in its place"));
    }
    let url = value::url(v)?;
    if url.query().is_some() {
        return Err(ValueError::new("an issuer has no query", "remove the ? and what follows"));
    }
    match url.scheme_str() == Some("https") || is_loopback(&url) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::new(
            "over http anyone on the network path could inject other keys",
            "write https://; http:// is for an issuer on this machine",
        )),
    }
}

fn is_for_all_tenants(issuer: &str) -> bool {
    issuer.split('/').any(|part| ["common", "organizations", "consumers"].contains(&part))
}

fn parse_jwks_uri(v: &SpannedValue<'_>, issuer: Option<&str>) -> Parsed<Uri> {
    let url = value::url(v)?;
    let issuer = issuer.and_then(|issuer| issuer.parse().ok());
    match issuer.is_none_or(|issuer: Uri| is_allowed_jwks_uri(&issuer, &url)) {
        true => Ok(url),
        false => Err(ValueError::new(
            "over http anyone on the network path could inject other keys",
            "write https://; http:// is for an issuer on this machine",
        )),
    }
}

fn algorithm(v: &SpannedValue<'_>) -> Parsed<Algorithm> {
    let name = value::string(v)?;
    if name.starts_with("HS") || name.eq_ignore_ascii_case("none") {
        let what =
            format!("{name:?} is not safe: anyone who can check such a token can also create one");
        return Err(ValueError::new(
            what,
            "name one with a public key, like \"RS256\" or \"ES256\"",
        ));
    }
    value::choice(&Algorithm::NAMED)(v)
}

/// Parses one scope (RFC 6749, 3.3).
fn scope(v: &SpannedValue<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    let is_plain = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
    if text.is_empty() || !text.bytes().all(is_plain) {
        let remedy = "write each scope by itself, without spaces, quotes and backslashes";
        return Err(ValueError::new(format!("{text:?} is not a scope"), remedy));
    }
    // Spec 2026-07-28, authorization, refresh tokens: no requirement of a resource.
    if text == "offline_access" {
        let what = "\"offline_access\" is a matter between a client and the provider";
        return Err(ValueError::new(what, "remove it"));
    }
    Ok(text.to_owned())
}
