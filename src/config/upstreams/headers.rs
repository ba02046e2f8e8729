//! HTTP headers for an upstream with a `url`: its `headers`, and the header made from its `auth`.
//!
//! Invariants: every value is legal, and marked sensitive.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use strum::{IntoStaticStr, VariantArray};
use zeroize::Zeroizing;

use crate::config::keys::shape::{self, ValueShape};
use crate::config::keys::{Described, by_hand, settings, string, variant};
use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::{Parsed, SpannedName, SpannedValue, TableReader};
use crate::config::reader::value;
use crate::config::secrets::{self, SecretResolver};
use crate::secret::Secret;

/// Reads all headers to add to every request.
pub(in crate::config) fn read_headers(
    t: &TableReader<'_>,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> HeaderMap {
    let mut headers: HeaderMap = t.table("headers", |t| {
        t.keys().into_iter().filter_map(|name| header(t, name, resolver, used)).collect()
    });
    let auth = t.table("auth", |table| {
        // A value of another type has been reported, and a missing table needs no `type`.
        t.get("auth")?.get_ref().as_table()?;
        auth(table, resolver, used)
    });
    headers.extend(auth.map(|value| (AUTHORIZATION, value)));
    let written = t.get("headers").and_then(|headers| headers.get_ref().as_table());
    let names = written.into_iter().flatten().map(|(name, _)| name.get_ref());
    let is_written = names.into_iter().any(|name| name.eq_ignore_ascii_case("authorization"));
    if is_written && t.has("auth") {
        let what = "headers holds an Authorization already";
        t.error("auth", ValueError::new(what, "keep one of the two"));
    }
    headers
}

fn header<'a>(
    t: &TableReader<'a>,
    name: SpannedName<'a>,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Option<(HeaderName, HeaderValue)> {
    let key = name.get_ref();
    let value = secrets::read_secret(t, key, resolver, used);
    let value = value.and_then(|value| sensitive(t, key, value.expose()));
    match header_name(name) {
        Ok(header) => Some((header, value?)),
        Err(error) => {
            t.error(key, error);
            None
        }
    }
}

fn header_name(name: SpannedName<'_>) -> Parsed<HeaderName> {
    let bad = |what, remedy| ValueError::new(what, remedy).at(name.span());
    let header = HeaderName::from_bytes(name.get_ref().as_bytes())
        .map_err(|_| bad("this cannot name a header", "write a name like X-Team"))?;
    match is_own_header(header.as_str()) {
        true => Err(bad("this header belongs to the protocol, and Weir sets it", "remove it")),
        false => Ok(header),
    }
}

/// True if a header belongs to the protocol or to the connection, so that only Weir sets it.
pub(crate) fn is_own_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    OWN_HEADERS.contains(&name.as_str()) || name.starts_with("mcp-")
}

/// Makes a sensitive header value; an illegal one is reported.
fn sensitive(t: &TableReader<'_>, key: &str, text: &str) -> Option<HeaderValue> {
    let Ok(mut value) = HeaderValue::from_str(text) else {
        let remedy = "write visible ASCII characters";
        t.error(key, ValueError::new("a header's value cannot hold this", remedy));
        return None;
    };
    value.set_sensitive(true);
    Some(value)
}

// === Authorization ===

settings! {
    /// Keys of `auth`.
    pub(in crate::config) struct CredentialKeys {
        /// `bearer` sends `token`, `basic` sends `user` and `password`, `none` sends nothing.
        scheme ("type"): Option<Scheme> = None, variant().optional().required();
        /// The token alone, without the word Bearer; a secret. Required for `type = "bearer"`, and
        /// only allowed there.
        token: Option<Secret> = None, by_hand(ValueShape::Secret(shape::TOKEN));
        /// The user name, without a colon. Required for `type = "basic"`, and only allowed there.
        user: Option<String> = None, string("string", shape::USER, user).optional();
        /// The password; a secret. Required for `type = "basic"`, and only allowed there.
        password: Option<Secret> = None, by_hand(ValueShape::Secret(shape::PASSWORD));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub(in crate::config) enum Scheme {
    None,
    Bearer,
    Basic,
}

fn auth(t: &TableReader<'_>, resolver: &SecretResolver<'_>, used: bool) -> Option<HeaderValue> {
    let CredentialKeys { scheme, user, .. } = CredentialKeys::read(t);
    let token = secrets::read_secret(t, "token", resolver, used);
    let password = secrets::read_secret(t, "password", resolver, used);
    if !t.has("type") {
        let remedy = "add type = \"bearer\", \"basic\" or \"none\"";
        t.error("type", ValueError::new("is missing", remedy));
    }
    let scheme = scheme?;
    let keys = [("token", Scheme::Bearer), ("user", Scheme::Basic), ("password", Scheme::Basic)];
    for (key, owner) in keys {
        match (t.has(key), owner == scheme) {
            (false, true) => t.error(key, ValueError::new("is missing", "add it beside type")),
            (true, false) => {
                let what = "does not go with this type";
                t.error(key, ValueError::new(what, "remove it, or correct type"));
            }
            _ => {}
        }
    }
    match scheme {
        Scheme::None => None,
        Scheme::Bearer => {
            let token = token?;
            if let Err(error) = check_bearer_token(token.expose()) {
                t.error("token", error);
                return None;
            }
            let text = Zeroizing::new(format!("Bearer {}", token.expose()));
            sensitive(t, "token", &text)
        }
        Scheme::Basic => {
            let (user, password) = (user?, password?);
            if password.expose().contains(|c: char| c.is_control()) {
                let what = "a password cannot hold control characters or more than one line";
                t.error("password", ValueError::new(what, "write the password alone"));
                return None;
            }
            let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
            let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
            sensitive(t, "password", &text)
        }
    }
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

/// Headers of the protocol or the connection, in addition to those that begin with `mcp-`.
pub(in crate::config) const OWN_HEADERS: [&str; 11] = [
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
