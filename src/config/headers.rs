//! The headers of an upstream with a `url`: its `headers`, and what its `auth` comes to.
//!
//! Promises: every value is legal, and marked sensitive.
//! Knows nothing of: how requests are sent.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use super::secrets::{self, Vault};
use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::{Name, Parsed, Table, Value};
use crate::config::reader::value;

/// Reads all headers to add to every request.
pub(super) fn headers(
    t: &Table<'_>,
    vault: &Vault<'_>,
    used: bool,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = t.table("headers", |t| {
        let headers = t.names().into_iter().filter_map(|name| header(t, name, vault, used));
        headers.collect::<Vec<_>>()
    });
    let auth = t.table("auth", |table| {
        // What is no table was told of, and what is not written needs no type.
        t.written("auth")?.get_ref().as_table()?;
        auth(table, vault, used)
    });
    headers.extend(auth.map(|value| (AUTHORIZATION, value)));
    let written = t.written("headers").and_then(|headers| headers.get_ref().as_table());
    let names = written.into_iter().flatten().map(|(name, _)| name.get_ref());
    let is_written = names.into_iter().any(|name| name.eq_ignore_ascii_case("authorization"));
    if is_written && t.has("auth") {
        let what = "headers holds an Authorization already";
        t.object("auth", Complaint::new(what, "keep one of the two"));
    }
    headers
}

fn header<'a>(
    t: &Table<'a>,
    name: Name<'a>,
    vault: &Vault<'_>,
    used: bool,
) -> Option<(HeaderName, HeaderValue)> {
    let key = name.get_ref();
    let value = secrets::secret(t, key, vault, used);
    let value = value.and_then(|value| sensitive(t, key, value.expose()));
    match header_name(name) {
        Ok(header) => Some((header, value?)),
        Err(complaint) => {
            t.object(key, complaint);
            None
        }
    }
}

fn header_name(name: Name<'_>) -> Parsed<HeaderName> {
    let bad = |what, remedy| Complaint::new(what, remedy).at(name.span());
    let header = HeaderName::from_bytes(name.get_ref().as_bytes())
        .map_err(|_| bad("this cannot name a header", "write a name like X-Team"))?;
    match is_own_header(header.as_str()) {
        true => Err(bad("this header belongs to the protocol, and Weir sets it", "remove it")),
        false => Ok(header),
    }
}

/// Whether a header belongs to the protocol or to the connection, so that nobody else sets it.
pub(crate) fn is_own_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    OWN_HEADERS.contains(&name.as_str()) || name.starts_with("mcp-")
}

/// Makes a value that no log shows; what cannot be one is told.
fn sensitive(t: &Table<'_>, key: &str, text: &str) -> Option<HeaderValue> {
    let Ok(mut value) = HeaderValue::from_str(text) else {
        let remedy = "write visible ASCII characters";
        t.object(key, Complaint::new("a header's value cannot hold this", remedy));
        return None;
    };
    value.set_sensitive(true);
    Some(value)
}

// === Authorization ===

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    None,
    Bearer,
    Basic,
}

fn auth(t: &Table<'_>, vault: &Vault<'_>, used: bool) -> Option<HeaderValue> {
    let scheme = t.read("type", value::choice(&SCHEMES));
    let token = secrets::secret(t, "token", vault, used);
    let user = t.read("user", user);
    let password = secrets::secret(t, "password", vault, used);
    if !t.has("type") {
        let remedy = "add type = \"bearer\", \"basic\" or \"none\"";
        t.object("type", Complaint::new("is missing", remedy));
    }
    let scheme = scheme?;
    let keys = [("token", Scheme::Bearer), ("user", Scheme::Basic), ("password", Scheme::Basic)];
    for (key, owner) in keys {
        match (t.has(key), owner == scheme) {
            (false, true) => t.object(key, Complaint::new("is missing", "add it beside type")),
            (true, false) => {
                let what = "does not go with this type";
                t.object(key, Complaint::new(what, "remove it, or correct type"));
            }
            _ => {}
        }
    }
    match scheme {
        Scheme::None => None,
        Scheme::Bearer => {
            let token = token?;
            if let Err(complaint) = bearer(token.expose()) {
                t.object("token", complaint);
                return None;
            }
            let text = Zeroizing::new(format!("Bearer {}", token.expose()));
            sensitive(t, "token", &text)
        }
        Scheme::Basic => {
            let (user, password) = (user?, password?);
            if password.expose().contains(|c: char| c.is_control()) {
                let what = "a password cannot hold control characters or more than one line";
                t.object("password", Complaint::new(what, "write the password alone"));
                return None;
            }
            let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
            let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
            sensitive(t, "password", &text)
        }
    }
}

/// RFC 6750, 2.1: a token is one word.
fn bearer(token: &str) -> Parsed<()> {
    let what = if token.is_empty() {
        "an empty token opens nothing"
    } else if token.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("bearer ")) {
        "the word Bearer is put before the token anyway"
    } else if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        "a token holds visible ASCII characters and no spaces"
    } else {
        return Ok(());
    };
    Err(Complaint::new(what, "write the token alone"))
}

/// RFC 7617, 2: the first colon ends the name.
fn user(v: &Value<'_>) -> Parsed<String> {
    let user = value::string(v)?;
    match user.contains(|c: char| c == ':' || c.is_control()) {
        true => Err(Complaint::new("a user's name cannot hold this", "write it without colons")),
        false => Ok(user.to_owned()),
    }
}

pub(super) const SCHEMES: [(&str, Scheme); 3] =
    [("none", Scheme::None), ("bearer", Scheme::Bearer), ("basic", Scheme::Basic)];

/// Headers that the protocol or the connection owns; beside those that begin with `mcp-`.
pub(super) const OWN_HEADERS: [&str; 11] = [
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
