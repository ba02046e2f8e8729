//! `auth` of an upstream with a `url`: fixed credentials, or an account at an authorization server.
//!
//! Invariant: each type has exactly the keys that belong to it.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use strum::{IntoStaticStr, VariantArray};
use url::Url;
use zeroize::Zeroizing;

use super::headers::sensitive;
use super::sign_in::SignInSettings;
use crate::keys::shape::{self, ValueShape};
use crate::keys::{
    Described, Key, boolean, by_hand, custom, path, settings, string, strings, table, text, url,
    variant,
};
use crate::oidc::{SCOPE, scope};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use crate::secrets::{self, SecretResolver};
use weir_base::net::allowed_addresses::is_loopback_host;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;
use weir_oauth::{
    self as oauth, ClientCredential, RegisteredClient, ResourceIndicator, SigningKey,
};

/// Credentials of Weir for an upstream.
pub(super) enum UpstreamCredentials {
    /// Value of the `Authorization` header.
    Header(HeaderValue),
    /// Account from which the header is made.
    Account(Box<oauth::Settings>),
}

settings! {
    /// Keys of `auth`.
    pub(crate) struct CredentialKeys {
        /// `bearer` sends `token`, `basic` sends `user` and `password`, `oauth` sends access tokens
        /// that Weir requests from the authorization server of the upstream, `none` sends nothing.
        scheme ("type"): Option<Scheme> = None, variant().optional().required();
        /// The token alone, without the word Bearer; a secret. Required for `type = "bearer"`, and
        /// only allowed there.
        token: Option<Secret> = None, by_hand(ValueShape::Secret(shape::TOKEN));
        /// The user name, without a colon. Required for `type = "basic"`, and only allowed there.
        user: Option<String> = None, string("string", shape::USER, user).optional();
        /// The password; a secret. Required for `type = "basic"`, and only allowed there.
        password: Option<Secret> = None, by_hand(ValueShape::Secret(shape::PASSWORD));
        /// The way in which access tokens are requested. `authorization_code`: a user signs in with
        /// `weir login`. `client_credentials`: as a registered client, with `client_id` and either
        /// `client_secret` or `client_key`. `jwt_bearer`: with the `assertion` that the platform
        /// under Weir issues. Only allowed for `type = "oauth"`, like all following keys.
        grant: Option<GrantType> = None,
            variant().optional().default_text("`authorization_code`");
        /// The identifier under which Weir is registered at the authorization server. With
        /// `authorization_code` Weir registers itself without it.
        ///
        /// ```toml
        /// client_id = "weir"
        /// ```
        client_id: Option<String> = None, text().optional();
        /// The secret of this client; a secret.
        client_secret: Option<Secret> = None, by_hand(ValueShape::Secret(shape::PASSWORD));
        /// The private key of this client in PEM, RSA, P-256, P-384 or Ed25519, with which it signs
        /// its requests (`private_key_jwt`); a secret.
        ///
        /// ```toml
        /// client_key = { file = "secrets/weir-client.pem" }
        /// ```
        client_key: Option<Secret> = None, by_hand(ValueShape::Secret(shape::NOT_EMPTY));
        /// The name of `client_key` at the authorization server (`kid`), for a client with several
        /// keys.
        client_key_id: Option<String> = None, text().optional();
        /// The assertion of a workload, such as the projected token of a Kubernetes service
        /// account.
        ///
        /// ```toml
        /// assertion = { file = "/var/run/secrets/tokens/weir" }
        /// ```
        assertion: AssertionKeys = AssertionKeys::default(), table();
        /// The issuer of the access tokens, exactly as the authorization server writes it. Set it
        /// so that the credentials never go to another server, whatever the upstream says. Without
        /// it the first authorization server that the upstream names is used, until a restart.
        ///
        /// ```toml
        /// issuer = "https://id.example.com"
        /// ```
        issuer: Option<String> = None, issuer().optional();
        /// The URL of the metadata of `issuer`, if they are not where the name of the issuer leads.
        /// Only allowed with `issuer`.
        metadata_url: Option<Uri> = None, url().optional();
        /// The issuer that these metadata name, for an authorization server that names another one
        /// there than `issuer`. Only allowed with `issuer`.
        metadata_issuer: Option<String> = None, issuer().optional();
        /// The token endpoint, for an authorization server that cannot be discovered. Not allowed
        /// for a grant with which users sign in.
        token_url: Option<Uri> = None, url().optional();
        /// The scopes to request. Without this key they are those that the upstream names.
        scopes: Option<Vec<String>> = None, strings(SCOPE, scope).optional();
        /// The identifier of the upstream in token requests (RFC 8707). `auto`: the one that the
        /// upstream gives itself, or its URL; `none`: no identifier is sent, as Microsoft Entra
        /// requires; any other text is sent as it is.
        resource: Option<String> = None, text().optional().default_text("`auto`");
        /// Whether the authorization server of users supports PKCE with S256 although its metadata
        /// do not say so, as those of Microsoft Entra. Without PKCE a stolen response could be
        /// used.
        assume_pkce: Option<bool> = None, boolean().optional().default_text("`false`");
        /// Further parameters of authorization and token requests, for authorization servers that
        /// have some of their own.
        ///
        /// ```toml
        /// params = { audience = "https://api.example.com", access_type = "offline" }
        /// ```
        params: Option<Vec<(String, String)>> = None, params().optional();
        /// Whether access tokens are sent to a `url` with `http`, such as that of a server in the
        /// same cluster. Others on that network can read them, and demand scopes for them, unless
        /// `scopes` is set. They cannot choose the authorization server: `issuer` or `token_url` is
        /// required. An `http` URL of this machine needs none of this.
        ///
        /// ```toml
        /// allow_http = true
        /// ```
        allow_http: Option<bool> = None, boolean().optional().default_text("`false`");
    }
}

settings! {
    /// Keys of `assertion`.
    pub(crate) struct AssertionKeys {
        /// The file that contains the assertion. It is read for each request of a token. At most
        /// 16 KiB. A relative path starts from the folder of the file that contains it.
        file: Option<std::path::PathBuf> = None, path("path").optional().required();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Scheme {
    None,
    Bearer,
    Basic,
    OAuth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum GrantType {
    AuthorizationCode,
    ClientCredentials,
    JwtBearer,
}

/// Reads `auth` of the upstream `t` at `endpoint`.
pub(super) fn read_auth(
    t: &TableReader<'_>,
    endpoint: Option<&Uri>,
    sign_in: &SignInSettings,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Option<UpstreamCredentials> {
    t.table("auth", |table| {
        // A value of another type has been reported, and a missing table needs no `type`.
        t.get("auth")?.get_ref().as_table()?;
        read_credentials(table, endpoint, sign_in, resolver, used)
    })
}

fn read_credentials(
    t: &TableReader<'_>,
    endpoint: Option<&Uri>,
    sign_in: &SignInSettings,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Option<UpstreamCredentials> {
    let keys = CredentialKeys::read(t);
    let secret = |key| secrets::read_secret(t, key, resolver, used);
    let [token, password, client_secret] = ["token", "password", "client_secret"].map(secret);
    let client_key = secrets::read_private_key(t, "client_key", resolver, used);
    if !t.has("type") {
        let remedy = "add type = \"bearer\", \"basic\", \"oauth\" or \"none\"";
        t.error("type", ValueError::new("is missing", remedy));
    }
    let scheme = keys.scheme?;
    check_keys(t, "type", scheme, &KEYS_OF_SCHEMES);
    match scheme {
        Scheme::None => None,
        Scheme::Bearer => {
            let token = token?;
            if let Err(error) = check_bearer_token(token.expose()) {
                t.error("token", error);
                return None;
            }
            let text = Zeroizing::new(format!("Bearer {}", token.expose()));
            sensitive(t, "token", &text).map(UpstreamCredentials::Header)
        }
        Scheme::Basic => {
            let (user, password) = (keys.user?, password?);
            if password.expose().contains(|c: char| c.is_control()) {
                let what = "a password cannot hold control characters or more than one line";
                t.error("password", ValueError::new(what, "write the password alone"));
                return None;
            }
            let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
            let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
            sensitive(t, "password", &text).map(UpstreamCredentials::Header)
        }
        Scheme::OAuth => {
            let grant = grant(t, &keys, client_secret, client_key);
            account(t, keys, grant?, endpoint?, sign_in)
                .map(|settings| UpstreamCredentials::Account(Box::new(settings)))
        }
    }
}

/// Reports keys that do not go with the chosen value of `chooser`, and missing ones.
fn check_keys<'a, T: PartialEq + Copy>(
    t: &TableReader<'a>,
    chooser: &str,
    chosen: T,
    keys: &[(&'a str, T, bool)],
) {
    let required = keys.iter().filter(|(_, owner, is_required)| *owner == chosen && *is_required);
    for (key, ..) in required.filter(|(key, ..)| !t.has(key)) {
        t.error(key, ValueError::new("is missing", format!("add it beside {chooser}")));
    }
    let others: BTreeSet<_> = keys_of_others(keys, chosen).collect();
    for key in others.into_iter().filter(|key| t.has(key)) {
        let what = format!("does not go with this {chooser}");
        t.error(key, ValueError::new(what, format!("remove it, or correct {chooser}")));
    }
}

/// Returns the keys that do not belong to an owner; a key of several others comes several times.
pub(crate) fn keys_of_others<'a, T: PartialEq + Copy>(
    keys: &[(&'a str, T, bool)],
    owner: T,
) -> impl Iterator<Item = &'a str> {
    let is_own = move |key| keys.iter().any(|(it, of, _)| *it == key && *of == owner);
    keys.iter().map(|(key, ..)| *key).filter(move |key| !is_own(*key))
}

fn grant(
    t: &TableReader<'_>,
    keys: &CredentialKeys,
    client_secret: Option<Secret>,
    client_key: Option<Secret>,
) -> Option<oauth::Grant> {
    // A wrong one has been reported.
    let grant = match (keys.grant, t.has("grant")) {
        (Some(grant), _) => grant,
        (None, true) => return None,
        (None, false) => GrantType::AuthorizationCode,
    };
    check_keys(t, "grant", grant, &KEYS_OF_GRANTS);
    if grant == GrantType::JwtBearer {
        if t.has("assertion") && t.is_resolved("assertion") && keys.assertion.file.is_none() {
            let remedy = "write assertion = { file = \"path\" }";
            t.error("assertion", ValueError::new("file is missing", remedy));
        }
        return Some(oauth::Grant::JwtBearer { assertion: keys.assertion.file.clone()? });
    }
    let is_user = grant == GrantType::AuthorizationCode;
    let credential = match (t.has("client_secret"), t.has("client_key")) {
        (true, true) => {
            let what = "client_secret says already how the client is recognized";
            t.error("client_key", ValueError::new(what, "keep one of the two"));
            return None;
        }
        (true, false) => ClientCredential::Secret(client_secret?),
        (false, true) => ClientCredential::Key(signing_key(t, client_key?, keys)?),
        (false, false) if is_user => ClientCredential::None,
        (false, false) => {
            let remedy = "add client_secret or client_key beside client_id";
            t.error("client_secret", ValueError::new("is missing", remedy));
            return None;
        }
    };
    let client = keys.client_id.clone().map(|id| RegisteredClient { id, credential });
    if !is_user {
        return client.map(oauth::Grant::ClientCredentials);
    }
    let is_nameless = client.is_none() && t.is_resolved("client_id");
    if is_nameless && (t.has("client_secret") || t.has("client_key")) {
        t.error("client_id", ValueError::new("is missing", "add it beside the secret or key"));
    }
    Some(oauth::Grant::AuthorizationCode { client })
}

fn signing_key(t: &TableReader<'_>, pem: Secret, keys: &CredentialKeys) -> Option<SigningKey> {
    let parsed = SigningKey::from_pem(pem, keys.client_key_id.clone());
    parsed
        .inspect_err(|what| {
            let remedy = "make one with `openssl ecparam -name prime256v1 -genkey -noout`";
            t.error("client_key", ValueError::new(*what, remedy));
        })
        .ok()
}

fn account(
    t: &TableReader<'_>,
    keys: CredentialKeys,
    grant: oauth::Grant,
    endpoint: &Uri,
    sign_in: &SignInSettings,
) -> Option<oauth::Settings> {
    let Ok(mut upstream) = Url::parse(&endpoint.to_string()) else {
        let what = "the upstream's url names a host that OAuth cannot use";
        t.error("type", ValueError::new(what, "correct url"));
        return None;
    };
    let url_hash = hex(&sha256(upstream.as_str()));
    // It may contain a secret, and is no part of the name of the upstream.
    upstream.set_query(None);
    let resource = match keys.resource.as_deref() {
        None | Some("auto") => ResourceIndicator::Auto,
        Some("none") => ResourceIndicator::None,
        Some(named) => ResourceIndicator::Named(named.to_owned()),
    };
    let is_bound = matches!(grant, oauth::Grant::AuthorizationCode { client: None });
    let is_server_known = t.has("issuer") || t.has("token_url");
    if endpoint.scheme_str() == Some("http") && !endpoint.host().is_some_and(is_loopback_host) {
        check_plain_endpoint(t, keys.allow_http == Some(true), is_server_known);
    } else if !is_bound && !is_server_known {
        let what = "the credentials go to the authorization server that the upstream names";
        t.warning("type", ValueError::new(what, "add issuer, so that they go to that one only"));
    }
    if grant.is_of_user() && t.has("token_url") {
        let what = "a user cannot sign in without the metadata of the authorization server";
        t.error("token_url", ValueError::new(what, "write issuer, and metadata_url if needed"));
    }
    for key in ["metadata_url", "metadata_issuer"] {
        if t.has(key) && !t.has("issuer") {
            t.error(key, ValueError::new("needs an issuer", "add issuer beside it"));
        }
    }
    let (issuer, token_url, scopes) = (keys.issuer, keys.token_url, keys.scopes);
    let SignInSettings { allowed, client_metadata_url } = sign_in.clone();
    let settings = oauth::Settings {
        upstream,
        url_hash,
        grant,
        issuer,
        metadata_url: keys.metadata_url.map(|url| url.to_string()),
        metadata_issuer: keys.metadata_issuer,
        token_url,
        scopes,
        resource,
        assumes_pkce: keys.assume_pkce == Some(true),
        params: keys.params.unwrap_or_default(),
        client_metadata_url,
        state: None,
        allowed,
    };
    check_servers(t, &settings);
    Some(settings)
}

/// Checks an account at an upstream that its access tokens reach without TLS.
fn check_plain_endpoint(t: &TableReader<'_>, is_allowed: bool, is_server_known: bool) {
    if !is_allowed && t.is_resolved("allow_http") {
        let what = "the access tokens would go to an http:// url, where others can read them";
        let remedy = "write an https:// url, or add allow_http = true if that network is trusted";
        t.error("type", ValueError::new(what, remedy));
        return;
    }
    let what = "the access tokens go to an http:// url, where others on that network can read them";
    t.warning("allow_http", ValueError::new(what, "use an https:// url if the server has one"));
    if !is_server_known {
        let what = "is missing: what an upstream says over http can be changed on the way";
        t.error("issuer", ValueError::new(what, "add the issuer of the access tokens"));
    }
}

/// Checks that secrets may be sent to the configured URLs of authorization servers.
fn check_servers(t: &TableReader<'_>, settings: &oauth::Settings) {
    let token_url = settings.token_url.as_ref().map(ToString::to_string);
    // With another URL the issuer is only a name.
    let is_name = t.has("token_url") || t.has("metadata_url");
    let issuer = settings.issuer.as_ref().filter(|_| !is_name);
    for (key, url) in [
        ("token_url", token_url.as_ref()),
        ("metadata_url", settings.metadata_url.as_ref()),
        ("issuer", issuer),
    ] {
        let url = url.and_then(|url| Url::parse(url).ok());
        // One that is no such URL has been reported.
        if url.is_some_and(|url| url.scheme() == "http" && !settings.protects(&url)) {
            let what = "secrets are sent to an https:// URL only";
            let remedy = "write one; for tests on this machine set sign_in.insecure_loopback";
            t.error(key, ValueError::new(what, remedy));
        }
    }
}

/// Issuer, which stays as it is written, because it is compared character by character.
fn issuer() -> Key<String> {
    custom(ValueShape::Text("http or https URL", shape::URL), |t, name, _| {
        url().read(t, name, &Uri::default());
        t.read(name, value::text)
    })
}

/// Parameters, which are none that Weir sets itself.
fn params() -> Key<Vec<(String, String)>> {
    let shape = ValueShape::map(shape::OAUTH_PARAM, ValueShape::Text("string", shape::NOT_EMPTY));
    custom(shape, |t, name, _| {
        Some(t.map(name, |name, v| match OWN_PARAMS.contains(&name.get_ref().as_ref()) {
            true => {
                Err(ValueError::new("Weir sets this parameter itself", "remove it").at(name.span()))
            }
            false => Ok((name.get_ref().to_string(), value::text(v)?)),
        }))
    })
}

/// Checks a bearer token, which is one word (RFC 6750, 2.1).
fn check_bearer_token(token: &str) -> Parsed<()> {
    let what = if token.is_empty() {
        "the token is empty"
    } else if token.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("bearer ")) {
        "the word Bearer is put before the token anyway"
    } else if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        "a token holds visible ASCII characters and no spaces"
    } else {
        return Ok(());
    };
    Err(ValueError::new(what, "write the token alone"))
}

/// Parses a user name, which contains no colon (RFC 7617, 2).
fn user(v: &SpannedValue<'_>) -> Parsed<String> {
    let user = value::string(v)?;
    match user.contains(|c: char| c == ':' || c.is_control()) {
        true => Err(ValueError::new("a user's name cannot hold this", "write it without colons")),
        false => Ok(user.to_owned()),
    }
}

/// Keys by `type`: each with the type that it belongs to, and whether it is required there.
pub(crate) const KEYS_OF_SCHEMES: [(&str, Scheme, bool); 18] = [
    ("token", Scheme::Bearer, true),
    ("user", Scheme::Basic, true),
    ("password", Scheme::Basic, true),
    ("grant", Scheme::OAuth, false),
    ("client_id", Scheme::OAuth, false),
    ("client_secret", Scheme::OAuth, false),
    ("client_key", Scheme::OAuth, false),
    ("client_key_id", Scheme::OAuth, false),
    ("assertion", Scheme::OAuth, false),
    ("issuer", Scheme::OAuth, false),
    ("metadata_url", Scheme::OAuth, false),
    ("metadata_issuer", Scheme::OAuth, false),
    ("token_url", Scheme::OAuth, false),
    ("scopes", Scheme::OAuth, false),
    ("resource", Scheme::OAuth, false),
    ("assume_pkce", Scheme::OAuth, false),
    ("params", Scheme::OAuth, false),
    ("allow_http", Scheme::OAuth, false),
];

/// Keys by `grant`.
pub(crate) const KEYS_OF_GRANTS: [(&str, GrantType, bool); 10] = [
    ("client_id", GrantType::AuthorizationCode, false),
    ("client_secret", GrantType::AuthorizationCode, false),
    ("client_key", GrantType::AuthorizationCode, false),
    ("client_key_id", GrantType::AuthorizationCode, false),
    ("assume_pkce", GrantType::AuthorizationCode, false),
    ("client_id", GrantType::ClientCredentials, true),
    ("client_secret", GrantType::ClientCredentials, false),
    ("client_key", GrantType::ClientCredentials, false),
    ("client_key_id", GrantType::ClientCredentials, false),
    ("assertion", GrantType::JwtBearer, true),
];

/// Parameters of the requests that Weir sets itself; `shape::OAUTH_PARAM` has the same.
const OWN_PARAMS: [&str; 16] = [
    "response_type",
    "client_id",
    "redirect_uri",
    "state",
    "code_challenge",
    "code_challenge_method",
    "resource",
    "scope",
    "grant_type",
    "code",
    "code_verifier",
    "refresh_token",
    "client_secret",
    "client_assertion",
    "client_assertion_type",
    "assertion",
];
