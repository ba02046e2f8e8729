//! Token request and its response (RFC 6749, 5; RFC 7523; RFC 8707).

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use serde_json::Deserializer;
use serde_json::value::RawValue;
use url::form_urlencoded::{Serializer, byte_serialize, parse};
use zeroize::Zeroizing;

use super::metadata::ServerMetadata;
use super::signing_key::SigningKey;
use super::url_rules::{MAX_SHOWN_CHARS, OAuthClient, without_parameters};
use super::{ClientCredential, Grant, OAuthError, RegisteredClient, Settings};
use weir_base::files::regular_file;
use weir_base::secrets::secret::{Secret, random_token};
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::text::quote::quote;
use weir_base::time::timestamp::unix_time;

/// Parameters of a token request.
pub(super) struct TokenRequest<'a> {
    pub(super) grant: TokenGrant<'a>,
    /// Client that authenticates; `None` if the grant needs none.
    pub(super) client: Option<&'a RegisteredClient>,
    pub(super) server: &'a ServerMetadata,
    pub(super) resource: Option<&'a str>,
    /// Scopes, separated by spaces.
    pub(super) scope: Option<&'a str>,
}

/// Grant of a token request.
pub(super) enum TokenGrant<'a> {
    ClientCredentials,
    /// Assertion in this file.
    JwtBearer(&'a Path),
    Code {
        code: &'a Secret,
        verifier: &'a Secret,
        redirect_uri: &'a str,
    },
    Refresh(&'a Secret),
}

/// Token that was issued.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IssuedToken {
    /// The access token, or why it cannot be used.
    pub(super) token: Result<Secret, UnusableToken>,
    pub(super) refresh_token: Option<Secret>,
    /// Time after which it expires; `None` if the server does not say.
    pub(super) lifetime: Option<Duration>,
}

/// Access token that cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnusableToken {
    pub(super) error: OAuthError,
    /// The token, if there is one. It may be revoked, and nothing else.
    pub(super) token: Option<Secret>,
}

impl IssuedToken {
    /// Takes a refresh token that is too long to be kept.
    pub(super) fn take_long_refresh_token(&mut self) -> Option<Secret> {
        self.refresh_token.take_if(|token| token.expose().len() > MAX_REFRESH_TOKEN_BYTES)
    }

    /// Returns the Unix time in seconds at which the token expires.
    pub(super) fn expires(&self) -> Option<u64> {
        self.lifetime.map(|lifetime| (unix_time() + lifetime).as_secs())
    }
}

impl TokenRequest<'_> {
    /// Sends the request. Without an access token that can be used there is a new refresh token, in
    /// whose place the former one may not be valid any more.
    pub(super) async fn send(&self, client: &OAuthClient<'_>) -> Result<IssuedToken, OAuthError> {
        let mut issued = self.redeem(client).await?;
        if issued.take_long_refresh_token().is_some() {
            tracing::warn!(
                url = self.server.token_endpoint,
                "refresh token of more than 32 KiB ignored"
            );
        }
        match issued {
            IssuedToken { token: Err(unusable), refresh_token: None, .. } => Err(unusable.error),
            issued => Ok(issued),
        }
    }

    /// Sends the request, and returns what was issued, whether it can be used or not.
    pub(super) async fn redeem(&self, client: &OAuthClient<'_>) -> Result<IssuedToken, OAuthError> {
        let mut form = Form::default();
        match &self.grant {
            TokenGrant::ClientCredentials => form.append("grant_type", "client_credentials"),
            TokenGrant::JwtBearer(assertion) => {
                form.append("grant_type", JWT_BEARER_GRANT);
                form.append_secret("assertion", read_assertion(assertion)?.trim());
            }
            TokenGrant::Code { code, verifier, redirect_uri } => {
                form.append("grant_type", "authorization_code");
                form.append_secret("code", code.expose());
                form.append_secret("code_verifier", verifier.expose());
                form.append("redirect_uri", redirect_uri);
            }
            TokenGrant::Refresh(token) => {
                form.append("grant_type", "refresh_token");
                form.append_secret("refresh_token", token.expose());
            }
        }
        let authorization = match self.client {
            Some(client) => authenticate(self.server, client, &mut form)?,
            None => None,
        };
        for (name, value) in [("resource", self.resource), ("scope", self.scope)] {
            if let Some(value) = value {
                form.append(name, value);
            }
        }
        for (name, value) in &client.settings.params {
            form.append(name, value);
        }
        let secrets = std::mem::take(&mut form.secrets);
        let endpoint = &self.server.token_endpoint;
        let (url, request) = form_request(endpoint, form, authorization);
        match client.send_for_tokens(&url, request).await {
            Ok(response) => read_response(&response, endpoint, self.end(client.settings), &secrets),
            Err((error, received)) => read_part(&received, error),
        }
    }

    /// Returns which errors of the server end the sign-in. Only a refresh token ends: a code is
    /// used once, an assertion is not a user's. A client that registered itself can register again.
    fn end(&self, settings: &Settings) -> &'static [&'static str] {
        match (&self.grant, &settings.grant) {
            (TokenGrant::Refresh(_), Grant::AuthorizationCode { client: None }) => {
                &["invalid_grant", "bad_refresh_token", "invalid_client", "unauthorized_client"]
            }
            // GitHub has a name of its own.
            (TokenGrant::Refresh(_), _) => &["invalid_grant", "bad_refresh_token"],
            _ => &[],
        }
    }
}

/// Makes a request with a form to an endpoint, and returns the URL to which it is sent.
pub(super) fn form_request(
    endpoint: &str,
    form: Form,
    authorization: Option<HeaderValue>,
) -> (String, Request<Bytes>) {
    let is_own = |name: &str| parse(form.text.as_bytes()).any(|(own, _)| own == name);
    let url = without_parameters(endpoint, is_own);
    let mut request = Request::post("/").body(Bytes::from(form.text)).unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, const { HeaderValue::from_static(FORM) });
    headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
    (url, request)
}

/// Adds the credential to the form, or returns the `Authorization` header that carries it.
pub(super) fn authenticate(
    server: &ServerMetadata,
    client: &RegisteredClient,
    form: &mut Form,
) -> Result<Option<HeaderValue>, OAuthError> {
    let RegisteredClient { id: client_id, credential } = client;
    let accepts = |method: &str| match &server.token_endpoint_auth_methods_supported {
        Some(methods) => methods.iter().any(|it| it == method),
        None => true,
    };
    match credential {
        ClientCredential::None => {
            form.append("client_id", client_id);
            Ok(None)
        }
        ClientCredential::Secret(secret) if accepts("client_secret_basic") => {
            let value = basic(client_id, secret)?;
            let sent = value.to_str().unwrap_or_default();
            let encoded = sent.strip_prefix("Basic ").unwrap_or(sent);
            form.secrets.extend([secret.expose(), encoded].map(Secret::from));
            Ok(Some(value))
        }
        ClientCredential::Secret(secret) if accepts("client_secret_post") => {
            form.append("client_id", client_id);
            form.append_secret("client_secret", secret.expose());
            Ok(None)
        }
        ClientCredential::Key(key) if accepts("private_key_jwt") => {
            form.append("client_assertion_type", JWT_BEARER_ASSERTION);
            form.append_secret("client_assertion", &sign_assertion(key, client_id, server)?);
            Ok(None)
        }
        credential => {
            let refused = match credential {
                ClientCredential::Key(_) => "a client_key",
                ClientCredential::Secret(_) | ClientCredential::None => "a client_secret",
            };
            let issuer = quote(&server.issuer, MAX_SHOWN_CHARS);
            let text = format!("the authorization server {issuer} does not accept {refused}");
            Err(OAuthError::Refused(text))
        }
    }
}

/// Reads the assertion of the platform. The platform replaces the file, so it is never kept.
fn read_assertion(path: &Path) -> Result<Zeroizing<String>, OAuthError> {
    let unusable = |why: &dyn Display| {
        let path = path.display();
        OAuthError::Unavailable(format!("the assertion {path} cannot be used: {why}"))
    };
    let bytes = regular_file::read(path, MAX_ASSERTION_BYTES).map_err(|error| unusable(&error))?;
    String::from_utf8(bytes).map(Zeroizing::new).map_err(|_| unusable(&"it is not text"))
}

/// Encodes the credentials of a client (RFC 6749, 2.3.1: both are encoded as in a form).
fn basic(client_id: &str, secret: &Secret) -> Result<HeaderValue, OAuthError> {
    let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let secret = Zeroizing::new(encode(secret.expose()));
    let pair = Zeroizing::new(format!("{}:{}", encode(client_id), *secret));
    let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
    sensitive(&text)
}

/// Makes the value of an `Authorization` header.
pub(super) fn sensitive(text: &str) -> Result<HeaderValue, OAuthError> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| OAuthError::Refused("the credential cannot be sent in a header".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Signs the assertion of a client's identity, for one request.
fn sign_assertion(
    key: &SigningKey,
    client_id: &str,
    server: &ServerMetadata,
) -> Result<String, OAuthError> {
    let now = unix_time();
    let claims = Assertion {
        iss: client_id,
        sub: client_id,
        aud: &server.issuer,
        jti: &random_token(),
        iat: now.as_secs(),
        exp: (now + ASSERTION_LIFETIME).as_secs(),
    };
    let failed = || OAuthError::Unavailable("the client_key cannot sign".into());
    key.sign(&claims).ok_or_else(failed)
}

#[derive(Serialize)]
struct Assertion<'a> {
    iss: &'a str,
    sub: &'a str,
    /// The issuer alone (draft-ietf-oauth-rfc7523bis): no other server accepts the assertion.
    aud: &'a str,
    jti: &'a str,
    iat: u64,
    exp: u64,
}

/// Body of a request.
#[derive(Default)]
pub(super) struct Form {
    text: String,
    /// Secrets of the request, also those in its header.
    secrets: Vec<Secret>,
}

impl Form {
    pub(super) fn append(&mut self, name: &str, value: &str) {
        Serializer::for_suffix(&mut self.text, 0).append_pair(name, value);
    }

    pub(super) fn append_secret(&mut self, name: &str, value: &str) {
        self.append(name, value);
        self.secrets.push(Secret::from(value));
    }
}

// === Response ===

/// Reads the response to a request that contained these secrets. An error that is among `end` ends
/// the sign-in.
fn read_response(
    response: &Response<Bytes>,
    url: &str,
    end: &[&str],
    secrets: &[Secret],
) -> Result<IssuedToken, OAuthError> {
    let (status, url) = (response.status(), quote(url, MAX_SHOWN_CHARS));
    let body = Zeroizing::new(String::from_utf8_lossy(response.body()).into_owned());
    let members = Members::read(&body);
    // Some servers send tokens with the status 201, or errors with 200. Some send an empty text for
    // none.
    let issued = |name| members.issued(name).filter(|_| status.is_success());
    let (token, refresh_token) = (issued("access_token"), issued("refresh_token"));
    let can_refuse =
        status.is_success() || status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
    if token.is_none()
        && refresh_token.is_none()
        && can_refuse
        && let Some(code) = members.text("error")
    {
        let repeated = ["access_token", "refresh_token"].map(|name| members.issued(name));
        let secrets: Vec<_> =
            secrets.iter().cloned().chain(repeated.into_iter().flatten()).collect();
        let patterns = SecretPatterns::of_request(&secrets);
        let shown = |text: &str| quote(&patterns.redact(text), MAX_SHOWN_CHARS);
        let description = members.text("error_description").unwrap_or_default();
        let text = format!("{url} refuses the request: {}: {}", shown(&code), shown(&description));
        let text = text.trim_end_matches([':', ' ']).to_owned();
        return Err(match end.contains(&&*code) {
            true => OAuthError::SignInNeeded(text),
            false => OAuthError::Refused(text),
        });
    }
    if !status.is_success() {
        return Err(OAuthError::Unavailable(format!("{url}: the response status is {status}")));
    }
    let unusable = |what, token| {
        let error = OAuthError::Unavailable(format!("{url}: {what}"));
        Err(UnusableToken { error, token })
    };
    let token = match token {
        Some(token) if members.is_whole() => {
            match check_token(&token, members.text("token_type")) {
                Ok(()) => Ok(token),
                Err(what) => unusable(what, Some(token)),
            }
        }
        token => unusable("the response is not a token", token),
    };
    Ok(IssuedToken { token, refresh_token, lifetime: members.lifetime() })
}

/// Reads the part of a response that has come before this error.
fn read_part(received: &[u8], error: OAuthError) -> Result<IssuedToken, OAuthError> {
    let body = Zeroizing::new(String::from_utf8_lossy(received).into_owned());
    let members = Members::read(&body);
    let (token, refresh_token) = (members.issued("access_token"), members.issued("refresh_token"));
    match (token, refresh_token) {
        (None, None) => Err(error),
        (token, refresh_token) => {
            let token = Err(UnusableToken { error, token });
            Ok(IssuedToken { token, refresh_token, lifetime: None })
        }
    }
}

/// Checks whether an access token can be used.
fn check_token(token: &Secret, token_type: Option<String>) -> Result<(), &'static str> {
    // RFC 6749, 7.1: a token of another type, or of an unknown one, must not be used.
    if !token_type.is_some_and(|name| name.eq_ignore_ascii_case("bearer")) {
        return Err("the token is not of the type Bearer");
    }
    let is_sendable = token.expose().len() <= MAX_TOKEN_BYTES
        && token.expose().bytes().all(|byte| byte.is_ascii_graphic());
    is_sendable.then_some(()).ok_or("the token is longer than 16 KiB, or not visible ASCII")
}

/// Members of a response, each of which is read for itself: an odd one must not throw away the
/// others, since the refresh token of the request may be used up.
struct Members<'a> {
    body: &'a str,
    /// `None` if the body is no object.
    all: Option<HashMap<String, &'a RawValue>>,
}

impl<'a> Members<'a> {
    /// Reads the members of an object. Some servers write a byte order mark before it.
    fn read(body: &'a str) -> Self {
        let body = body.trim_start_matches('\u{feff}');
        Self { body, all: serde_json::from_str(body).ok() }
    }

    fn is_whole(&self) -> bool {
        self.all.is_some()
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.all.as_ref()?.get(name).map(|value| value.get())
    }

    /// Returns the member of this name, if it is a text.
    fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Returns the token of this name, which is also found in an object that is cut off, or that
    /// contains what is no JSON.
    fn issued(&self, name: &str) -> Option<Secret> {
        let token = match self.is_whole() {
            true => self.text(name),
            false => self.body.split(&format!("\"{name}\"")).skip(1).find_map(|rest| {
                let value = rest.trim_start().strip_prefix(':')?;
                Deserializer::from_str(value).into_iter().next()?.ok()
            }),
        };
        token.filter(|token: &String| !token.is_empty()).map(Secret::from)
    }

    /// Returns the lifetime of the token; `None` if it is unknown. Some servers write the number as
    /// a text.
    fn lifetime(&self) -> Option<Duration> {
        let name = "expires_in";
        let seconds = self.text(name);
        let seconds = seconds.unwrap_or_else(|| self.get(name).unwrap_or_default().to_owned());
        let seconds: f64 = seconds.trim().parse().ok()?;
        let is_usable = seconds.is_finite() && seconds >= 0.0;
        is_usable.then(|| Duration::from_secs_f64(seconds.min(MAX_LIFETIME_SECONDS)))
    }
}

const JWT_BEARER_GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const JWT_BEARER_ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const FORM: &str = "application/x-www-form-urlencoded";

/// Time for which an assertion of a client is valid: some servers accept no more than a minute.
const ASSERTION_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum size of an assertion of the platform.
const MAX_ASSERTION_BYTES: u64 = 16 * 1024;
/// Maximum size of an access token.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Maximum size of a refresh token, which is larger because the record of a sign-in has the space.
const MAX_REFRESH_TOKEN_BYTES: usize = 32 * 1024;
/// Longest lifetime that is believed: a year.
const MAX_LIFETIME_SECONDS: f64 = 31_536_000.0;
