//! `[auth.oidc.<name>]`: identity providers whose access tokens are accepted.

use std::time::SystemTime;

use hyper::Uri;
use strum::VariantArray;

use super::ServerConfig;
use super::access::{ROLE_NAME, RoleConfigs, existing_role};
use crate::keys::shape::{self, ValueShape};
use crate::keys::{
    Described, by_hand, list, parsed, settings, string, strings, text, variant, variants,
};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use weir_access::policy::tokens::discovery::{is_allowed_jwks_uri, is_loopback};
use weir_access::policy::tokens::{Algorithm, Preset, Settings};

/// Reads all providers; `t` is `[auth]`.
pub(super) fn read_providers(
    t: &TableReader<'_>,
    server: &ServerConfig,
    roles: &RoleConfigs,
    now: Option<SystemTime>,
) -> Vec<ProviderConfig> {
    let mut issuers: Vec<(String, String)> = Vec::new();
    value::plainly_named_tables(t, "oidc", |name, t| {
        if server.public_url.is_none() {
            let what = "server.public_url is not set, and clients need it to request tokens";
            let remedy = "set public_url in [server] to the URL under which clients reach Weir";
            t.table_error(ValueError::new(what, remedy));
        }
        let provider = provider(name, t, roles, now);
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

settings! {
    /// An identity provider whose access tokens are accepted, as `Authorization: Bearer <token>`
    /// like a key. `server.public_url` must be set. See [identity
    /// providers](identity-providers.md).
    ///
    /// ```toml
    /// #[auth.oidc.corp]
    /// #issuer = "https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555/v2.0"
    /// #audience = ["api://weir", "https://mcp.example.com/mcp"]
    /// #preset = "entra"
    /// #user_claim = "oid"
    /// #role_claim = "roles"
    /// #roles = { "mcp-developers" = "developer", "mcp-visitors" = "local" }
    /// #default_role = "local"
    /// #scopes_supported = ["api://weir/mcp.invoke"]
    /// #scopes_required = []
    /// #algorithms = ["RS256"]
    /// #jwks_uri = "https://login.microsoftonline.com/common/discovery/v2.0/keys"
    /// #blocked = ["11111111-2222-3333-4444-666666666666"]
    /// #not_before = 2026-06-30T00:00:00Z
    /// ```
    for Settings {
        /// The provider's URL, exactly as in the `iss` of its tokens, including a slash at the end.
        /// `http://` is accepted on this machine only. Weir finds the provider's metadata and its
        /// keys from this URL.
        issuer: string("https URL", shape::ISSUER, issuer).required();
        /// The audience of tokens: the `aud` of a token must contain one of these values, exactly.
        /// Usually this is the URL of the MCP endpoint, or the identifier under which Weir is
        /// registered at the provider.
        audience: strings(ValueShape::text(), value::text).entries(1, None).required();
        /// The product: it decides which claims contain the user and the roles, and how access
        /// tokens are distinguished from other tokens.
        preset: variant();
        /// The claim that identifies the user. Its value must never be given to another user;
        /// `email` counts only with `email_verified`.
        user_claim: text().default_text("`oid` for `entra`, else `sub`");
        /// The claim that contains the groups or roles: a string or a list of strings. Dots lead
        /// into objects, unless the whole text is the name of a claim; `scope` and `scp` are split
        /// into words.
        role_claim: text().default_text(
            "`roles` for `generic` and `entra`, `groups` for `okta`, `permissions` for `auth0`, \
             `realm_access.roles` for `keycloak`, `hd` for `google`, `cognito:groups` for \
             `cognito`",
        );
        /// The role for each value of that claim. A user with several roles may use what any of
        /// them allows, except for what any of them denies.
        ///
        /// ```toml
        /// roles = { "mcp-developers" = "developer", "mcp-ops" = "ops" }
        /// ```
        roles: by_hand(ValueShape::map(shape::NOT_EMPTY, ROLE_NAME));
        /// The role of users with a valid token that contains no value for a role. Without it such
        /// a user is accepted and may use nothing.
        default_role: by_hand(ROLE_NAME);
        /// The scopes that every token must contain, in `scope` or `scp`; if one is missing the
        /// response is 403, which names all of them.
        scopes_required: strings(SCOPE, scope);
        /// The signature algorithms that are accepted. A key that does not name its own algorithm
        /// is used for one only: that of its curve, or the first RSA algorithm in this list.
        algorithms: list(ValueShape::choice(&variants::<Algorithm>()), algorithm)
            .entries(1, None)
            .default_text("all of them");
        /// The URL of the provider's keys, for a provider without metadata that contain it.
        jwks_uri: by_hand(ValueShape::Text("https URL", shape::URL));
    }
}

settings! {
    /// Identity provider.
    pub struct ProviderConfig {
        /// The scopes that Weir announces to clients, so that they can request them.
        scopes_supported: Vec<String> = Vec::new(), strings(SCOPE, scope);
        /// The users who are refused although the provider issues tokens for them. They are named
        /// by their value of `user_claim`, character by character, as the audit log shows it after
        /// the provider's name and a slash. A reload applies it, and ends their sessions and
        /// streams.
        blocked: Vec<String> = Vec::new(), strings(ValueShape::text(), value::text);
        /// The time before which no accepted token was issued. Tokens with an earlier `iat`, or
        /// without one, are refused, and so are the sessions and streams that they began.
        ///
        /// ```toml
        /// not_before = 2026-06-30T00:00:00Z
        /// ```
        not_before: Option<SystemTime> = None,
            parsed(ValueShape::DateTime, value::date_time).optional().default_text("none");
        =>
        /// Settings of token verification. The roles exist, the issuer is unique, and no required
        /// list is empty.
        tokens: Settings = Settings::default();
    }
}

fn provider(
    name: &str,
    t: &TableReader<'_>,
    roles: &RoleConfigs,
    now: Option<SystemTime>,
) -> ProviderConfig {
    let mut tokens = Settings::read(t);
    let needed = [("issuer", "\"https://id.example.com\""), ("audience", "[\"api://weir\"]")];
    for (key, example) in needed.into_iter().filter(|(key, _)| !t.has(key)) {
        t.error(key, ValueError::new("is missing", format!("add {key} = {example}")));
    }
    if tokens.preset == Preset::Entra && is_for_all_tenants(&tokens.issuer) {
        let what = "this address is that of many tenants, and no token has it as its issuer";
        t.error("issuer", ValueError::new(what, "put the id of your own tenant in its place"));
    }
    let one_is_needed = [
        (
            "audience",
            "name the audience of its tokens, or any token of this issuer would be accepted",
        ),
        ("algorithms", "name one, or remove the key for all that are safe"),
    ];
    for (key, remedy) in one_is_needed.into_iter().filter(|(key, _)| t.is_empty_list(key)) {
        t.error(key, ValueError::new("the list is empty", remedy));
    }
    tokens.name = name.to_owned();
    tokens.jwks_uri = t.read("jwks_uri", |v| parse_jwks_uri(v, &tokens.issuer));
    let role = |v: &SpannedValue<'_>| existing_role(v, roles);
    let mapped = t.map("roles", |value, v| Ok((value.get_ref().to_string(), role(v)?)));
    tokens.roles = mapped.into_iter().collect();
    tokens.default_role = t.read("default_role", role);
    ["default_role", "blocked"].into_iter().for_each(|key| t.record_location(key));
    if tokens.default_role.is_none() && !t.has("roles") && !t.has("default_role") {
        let what = "no token of this provider gives a role, and users without a role may use \
                    nothing";
        t.warning(
            "roles",
            ValueError::new(what, "add roles = { \"<group>\" = \"<role>\" }, or default_role"),
        );
    }
    if !t.has("algorithms") {
        tokens.algorithms = Algorithm::VARIANTS.to_vec();
    }
    // An empty name is not accepted, so these are not set.
    if tokens.user_claim.is_empty() {
        tokens.user_claim = tokens.preset.user_claim().to_owned();
    }
    if tokens.role_claim.is_empty() {
        tokens.role_claim = tokens.preset.role_claim().to_owned();
    }
    let provider = ProviderConfig { tokens, ..ProviderConfig::read(t) };
    let prefix = format!("{name}/");
    if let Some(user) = provider.blocked.iter().find_map(|user| user.strip_prefix(&prefix)) {
        let what = format!("a user of this provider is named without {prefix:?}");
        t.warning("blocked", ValueError::new(what, format!("write {user:?}")));
    }
    if let (Some(not_before), Some(now)) = (provider.not_before, now)
        && not_before > now
    {
        let what = "this time is in the future, and until then every token is refused";
        t.warning("not_before", ValueError::new(what, "write a time in the past"));
    }
    provider
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

fn parse_jwks_uri(v: &SpannedValue<'_>, issuer: &str) -> Parsed<Uri> {
    let url = value::url(v)?;
    let issuer = issuer.parse();
    match issuer.ok().is_none_or(|issuer: Uri| is_allowed_jwks_uri(&issuer, &url)) {
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
    value::choice(variants())(v)
}

/// Parses one scope (RFC 6749, 3.3).
pub(super) fn scope(v: &SpannedValue<'_>) -> Parsed<String> {
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

pub(super) const SCOPE: ValueShape = ValueShape::Text("scope", shape::SCOPE);
