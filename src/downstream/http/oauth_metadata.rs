//! How clients learn what protects the endpoint: protected resource metadata (RFC 9728) and the challenges of a
//! refusal (RFC 6750).
//!
//! Promise: a challenge says no more about a refused credential than that one was shown. What is told here is
//! the same for everybody, and no request's own words are repeated.
//! Knows nothing of: tokens.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;

use super::response_body::{self, Reply};
use crate::downstream::Settings;
use crate::json::quote;
use crate::policy::Refusal;

/// Which authorization servers issue tokens for the endpoint, in clients' terms.
#[derive(Debug, Clone)]
pub struct Protection {
    document: Bytes,
    /// Where clients find the document.
    url: String,
    /// The paths that lead to it.
    paths: Vec<String>,
    /// The scopes that every token needs, one space between two.
    scope: String,
}

impl Protection {
    /// The paths at which the document is.
    pub(super) fn paths(&self) -> &[String] {
        &self.paths
    }

    /// What clients are told of the endpoint at `origin`, which clients reach under `path` there and whose
    /// requests come in under `local_path`.
    ///
    /// `scope` is what a token needs, whoever issues it; it and the scopes hold no quotes.
    pub fn new(
        origin: &str,
        path: &str,
        local_path: &str,
        servers: &[String],
        scopes_supported: &[String],
        scope: String,
    ) -> Self {
        // Spec 2026-07-28, authorization, canonical server URI: without a slash at its end.
        let path = if path == "/" { "" } else { path };
        let list = |texts: &[String]| {
            let texts: Vec<_> = texts.iter().map(|text| quote(text)).collect();
            texts.join(&b","[..])
        };
        let mut document = [b"{\"resource\":", &quote(&format!("{origin}{path}"))[..]].concat();
        document.extend_from_slice(b",\"authorization_servers\":[");
        document.extend_from_slice(&list(servers));
        if !scopes_supported.is_empty() {
            document.extend_from_slice(b"],\"scopes_supported\":[");
            document.extend_from_slice(&list(scopes_supported));
        }
        document.extend_from_slice(b"],\"bearer_methods_supported\":[\"header\"]}");
        let paths = ["", path, local_path].map(|path| format!("{METADATA_PATH}{path}"));
        Self {
            document: document.into(),
            url: format!("{origin}{METADATA_PATH}{path}"),
            paths: paths.into(),
            scope,
        }
    }
}

/// The metadata, which everybody may read; hyper leaves the body of an answer to HEAD out.
pub(super) fn metadata(settings: &Settings) -> Reply {
    match &settings.protection {
        Some(protection) => response_body::document(protection.document.clone()),
        None => response_body::empty(StatusCode::NOT_FOUND),
    }
}

/// Refuses a request that has a token in its URL, where logs and histories keep it (spec 2026-07-28,
/// authorization, token requirements: MUST NOT).
pub(super) fn check_query(parts: &Parts) -> Result<(), Reply> {
    let fields = parts.uri.query().unwrap_or_default().split('&');
    let named = |field: &str| {
        let name = field.split('=').next().unwrap_or_default();
        unescape(name).eq_ignore_ascii_case("access_token")
    };
    match fields.into_iter().any(named) {
        false => Ok(()),
        true => {
            let text =
                "a token does not belong in the URL: send it as `Authorization: Bearer <token>`";
            Err(response_body::refusal(StatusCode::BAD_REQUEST, text))
        }
    }
}

/// The answer to who is not let in.
pub(super) fn refuse(settings: &Settings, refusal: &Refusal) -> Reply {
    let protection = settings.protection.as_ref();
    let scope = || protection.map(|it| it.scope.as_str()).filter(|scope| !scope.is_empty());
    let (status, error, scope, text) = match refusal {
        Refusal::Missing => (StatusCode::UNAUTHORIZED, None, scope(), NEEDED),
        // Why is the operator's to know: unknown, expired and forged look the same.
        Refusal::Unknown | Refusal::Expired | Refusal::Certificate | Refusal::Token(_) => {
            (StatusCode::UNAUTHORIZED, Some("invalid_token"), scope(), NEEDED)
        }
        Refusal::Scope(scope) => {
            let text = "the token was not granted what is needed here";
            (StatusCode::FORBIDDEN, Some("insufficient_scope"), Some(&**scope), text)
        }
        Refusal::TooMany { retry_after } => return response_body::too_busy(*retry_after),
        Refusal::Unverifiable => return response_body::later(CANNOT_VERIFY, RETRY),
        Refusal::TooManyRoles => return response_body::refusal(StatusCode::FORBIDDEN, "not now"),
    };
    challenged(protection, status, error, scope, text)
}

/// The answer to who shows something else than one bearer token.
pub(super) fn refuse_malformed(settings: &Settings) -> Reply {
    let (protection, status) = (settings.protection.as_ref(), StatusCode::UNAUTHORIZED);
    let text = "the Authorization header must hold one bearer token";
    challenged(protection, status, Some("invalid_token"), None, text)
}

fn challenged(
    protection: Option<&Protection>,
    status: StatusCode,
    error: Option<&str>,
    scope: Option<&str>,
    text: &str,
) -> Reply {
    let mut challenge = Vec::new();
    challenge.extend(error.map(|error| format!("error=\"{error}\"")));
    challenge.extend(scope.map(|scope| format!("scope=\"{scope}\"")));
    challenge.extend(protection.map(|it| format!("resource_metadata=\"{}\"", it.url)));
    let challenge = format!("Bearer {}", challenge.join(", "));
    let challenge = HeaderValue::from_str(challenge.trim_end());
    // A public URL is printable, and so are scopes.
    let challenge = challenge.unwrap_or(HeaderValue::from_static("Bearer"));
    response_body::with_header(response_body::refusal(status, text), WWW_AUTHENTICATE, challenge)
}

/// The text without its percent signs; other bytes stay as they are.
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

const NEEDED: &str =
    "valid credentials are needed: send them as `Authorization: Bearer <key or token>`";
const CANNOT_VERIFY: &str = "tokens cannot be verified at the moment";
/// When somebody whose token cannot be verified may try again.
const RETRY: std::time::Duration = std::time::Duration::from_secs(30);
/// RFC 9728, 3.
const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
