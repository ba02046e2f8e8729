//! OAuth protected resource metadata (RFC 9728) and the challenges of refused requests (RFC 6750).
//!
//! Invariants: a challenge reveals no more about a refused credential than that one was presented.
//! All texts are the same for every client, and nothing from the request is repeated.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};

use super::refusal::HttpRefusal;
use super::response_body::{self, HttpResponse};
use crate::Settings;
use crate::response::results;
use weir_access::policy::AuthError;
use weir_base::json::{Object, quote};

/// Protected resource metadata of the endpoint.
#[derive(Debug, Clone)]
pub struct ProtectedResource {
    document: Bytes,
    /// Public URL of the document.
    url: String,
    /// Local paths of the document.
    paths: Vec<String>,
    /// Scopes that every token needs, separated by one space.
    scope: String,
}

impl ProtectedResource {
    /// Local paths of the document.
    pub(super) fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Builds the metadata of the endpoint at `origin` and `path`, whose requests arrive under
    /// `local_path`.
    ///
    /// `scope` contains what every token needs, whatever its issuer; it and the scopes contain no
    /// quotes.
    pub fn new(
        origin: &str,
        path: &str,
        local_path: &str,
        servers: &[String],
        scopes_supported: &[String],
        scope: String,
    ) -> Self {
        // Spec 2026-07-28, authorization, canonical server URI: without a trailing slash.
        let path = if path == "/" { "" } else { path };
        let list = |texts: &[String]| {
            let texts: Vec<_> = texts.iter().map(|text| quote(text)).collect();
            [b"[", &texts.join(&b","[..])[..], b"]"].concat()
        };
        let mut document = Object::new()
            .with("resource", quote(&format!("{origin}{path}")))
            .with("authorization_servers", list(servers));
        if !scopes_supported.is_empty() {
            document.set("scopes_supported", list(scopes_supported));
        }
        document.set("bearer_methods_supported", "[\"header\"]");
        let paths = ["", path, local_path].map(|path| format!("{METADATA_PATH}{path}"));
        Self {
            document: document.to_bytes(),
            url: format!("{origin}{METADATA_PATH}{path}"),
            paths: paths.into(),
            scope,
        }
    }
}

/// Serves the metadata, without credentials; hyper omits the body of a response to HEAD.
pub(super) fn metadata(settings: &Settings) -> HttpResponse {
    match &settings.protected_resource {
        Some(protected_resource) => response_body::document(protected_resource.document.clone()),
        None => response_body::empty(StatusCode::NOT_FOUND),
    }
}

/// Creates the response to a client that was not authenticated.
pub(super) fn refuse(settings: &Settings, refusal: &AuthError) -> HttpRefusal {
    let protected_resource = settings.protected_resource.as_ref();
    let scope = || protected_resource.map(|it| it.scope.as_str()).filter(|scope| !scope.is_empty());
    let (status, error, scope, text) = match refusal {
        AuthError::Missing => (StatusCode::UNAUTHORIZED, None, scope(), NEEDED),
        // Only the operator sees the reason: unknown, expired and forged credentials look the same.
        AuthError::Unknown | AuthError::Expired | AuthError::Certificate | AuthError::Token(_) => {
            (StatusCode::UNAUTHORIZED, Some("invalid_token"), scope(), NEEDED)
        }
        AuthError::Scope(scope) => {
            let text = "the token was not granted what is needed here";
            (StatusCode::FORBIDDEN, Some("insufficient_scope"), Some(&**scope), text)
        }
        AuthError::TooMany { retry_after } => return results::too_busy(*retry_after).into(),
        AuthError::Unverifiable => return results::unavailable(CANNOT_VERIFY, RETRY).into(),
        AuthError::TooManyRoles => return (StatusCode::FORBIDDEN, "not now").into(),
    };
    challenged(protected_resource, status, error, scope, text)
}

/// Creates the response to an Authorization header that is not one bearer token.
pub(super) fn refuse_malformed(settings: &Settings) -> HttpRefusal {
    let (protected_resource, status) =
        (settings.protected_resource.as_ref(), StatusCode::UNAUTHORIZED);
    let text = "the Authorization header must hold one bearer token";
    challenged(protected_resource, status, Some("invalid_token"), None, text)
}

fn challenged(
    protected_resource: Option<&ProtectedResource>,
    status: StatusCode,
    error: Option<&str>,
    scope: Option<&str>,
    text: &str,
) -> HttpRefusal {
    let mut challenge = Vec::new();
    challenge.extend(error.map(|error| format!("error=\"{error}\"")));
    challenge.extend(scope.map(|scope| format!("scope=\"{scope}\"")));
    challenge.extend(protected_resource.map(|it| format!("resource_metadata=\"{}\"", it.url)));
    let challenge = format!("Bearer {}", challenge.join(", "));
    let challenge = HeaderValue::from_str(challenge.trim_end());
    // A public URL is printable, and so are scopes.
    let challenge = challenge.unwrap_or(HeaderValue::from_static("Bearer"));
    HttpRefusal::from((status, text)).with_header(WWW_AUTHENTICATE, challenge)
}

const NEEDED: &str =
    "valid credentials are needed: send them as `Authorization: Bearer <key or token>`";
const CANNOT_VERIFY: &str = "tokens cannot be verified at the moment";
/// Delay after which a client whose token could not be verified may retry.
const RETRY: std::time::Duration = std::time::Duration::from_secs(30);
/// Well-known path of the metadata (RFC 9728, 3).
const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
