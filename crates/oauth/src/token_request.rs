//! Token request and its response (RFC 6749, 5; RFC 7523; RFC 8707).

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use url::form_urlencoded;

    use super::*;
    use crate::testing::{Script, settings};

    const TOKEN_URL: &str = "https://id.test/token";

    /// Sends a request for a token, and returns the result, the `Authorization` and the form.
    async fn send(
        grant: &Grant,
        methods: Option<&[&str]>,
        (status, response): (u16, &str),
    ) -> (Result<IssuedToken, OAuthError>, Option<String>, BTreeMap<String, String>) {
        let script = Script::default();
        script.respond(TOKEN_URL, status, response);
        let settings = settings();
        let client = OAuthClient::new(&script, &settings);
        let methods = methods.map(|methods| methods.iter().map(|it| (*it).to_owned()).collect());
        let issuer = "https://id.test".to_owned();
        let server = ServerMetadata::of_token_endpoint(issuer, TOKEN_URL.into(), methods);
        let (resource, scope) = (Some("https://mcp.test/mcp"), Some("a b"));
        let (grant, registered) = match grant {
            Grant::ClientCredentials(client) => (TokenGrant::ClientCredentials, Some(client)),
            Grant::JwtBearer { assertion } => (TokenGrant::JwtBearer(assertion), None),
            Grant::AuthorizationCode { .. } => unreachable!("it has other tests"),
        };
        let request = TokenRequest { grant, client: registered, server: &server, resource, scope };
        let issued = request.send(&client).await;
        let Some(request) = script.take_requests().pop() else {
            return (issued, None, BTreeMap::new());
        };
        assert_eq!(request.headers()[CONTENT_TYPE], FORM);
        let authorization = request.headers().get(AUTHORIZATION);
        let authorization = authorization.map(|value| value.to_str().expect("text").to_owned());
        let form = form_urlencoded::parse(request.body()).into_owned().collect();
        (issued, authorization, form)
    }

    fn with_secret(secret: &str) -> Grant {
        let credential = ClientCredential::Secret(secret.into());
        Grant::ClientCredentials(RegisteredClient { id: "we:ir".into(), credential })
    }

    fn form(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let always = [("resource", "https://mcp.test/mcp"), ("scope", "a b")];
        let pairs = pairs.iter().chain(&always);
        pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const TOKEN: (u16, &str) =
        (200, r#"{"access_token":"t0k","token_type":"bearer","expires_in":3600}"#);

    #[tokio::test]
    async fn a_secret_is_sent_in_the_way_that_the_server_accepts() {
        let grant = with_secret("p@ss word");
        let issued = IssuedToken {
            token: Ok("t0k".into()),
            refresh_token: None,
            lifetime: Some(Duration::from_hours(1)),
        };
        let basic = format!("Basic {}", STANDARD.encode("we%3Air:p%40ss+word"));
        for methods in [None, Some(&["private_key_jwt", "client_secret_basic"][..])] {
            let (result, authorization, sent) = send(&grant, methods, TOKEN).await;
            assert_eq!((result.as_ref(), authorization), (Ok(&issued), Some(basic.clone())));
            assert_eq!(sent, form(&[("grant_type", "client_credentials")]));
        }
        let (result, authorization, sent) =
            send(&grant, Some(&["client_secret_post"]), TOKEN).await;
        assert_eq!((result, authorization), (Ok(issued), None));
        let own = [("client_id", "we:ir"), ("client_secret", "p@ss word")];
        assert_eq!(sent, form(&[own[0], own[1], ("grant_type", "client_credentials")]));
        let (result, _, sent) = send(&grant, Some(&["private_key_jwt"]), TOKEN).await;
        let error = "the authorization server https://id.test does not accept a client_secret";
        assert_eq!(result, Err(OAuthError::Refused(error.into())));
        assert!(sent.is_empty(), "{sent:?}");
    }

    #[tokio::test]
    async fn a_key_signs_an_assertion_for_the_issuer_alone() {
        let pair = rcgen::KeyPair::generate().expect("a key");
        let key = SigningKey::from_pem(pair.serialize_pem().into(), None).expect("a key");
        let credential = ClientCredential::Key(key);
        let grant = Grant::ClientCredentials(RegisteredClient { id: "weir".into(), credential });
        let (result, authorization, mut sent) =
            send(&grant, Some(&["private_key_jwt"]), TOKEN).await;
        assert_eq!((result.is_ok(), authorization), (true, None));
        let assertion = sent.remove("client_assertion").expect("an assertion");
        let own = [("client_assertion_type", JWT_BEARER_ASSERTION)];
        assert_eq!(sent, form(&[own[0], ("grant_type", "client_credentials")]));
        #[derive(Deserialize)]
        struct Claims {
            iss: String,
            sub: String,
            aud: String,
            jti: String,
            iat: u64,
            exp: u64,
        }
        let claims = assertion.split('.').nth(1).expect("three parts");
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims);
        let claims: Claims = serde_json::from_slice(&claims.expect("base64url")).expect("claims");
        let names = [&*claims.iss, &claims.sub, &claims.aud];
        assert_eq!(names, ["weir", "weir", "https://id.test"]);
        assert_eq!((claims.jti.len(), claims.exp - claims.iat), (43, 60));
        let (result, ..) = send(&grant, Some(&["client_secret_basic"]), TOKEN).await;
        let error = "the authorization server https://id.test does not accept a client_key";
        assert_eq!(result, Err(OAuthError::Refused(error.into())));
    }

    #[tokio::test]
    async fn an_assertion_of_the_platform_is_read_for_each_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let assertion = folder.path().join("token");
        let grant = Grant::JwtBearer { assertion: assertion.clone() };
        let (result, ..) = send(&grant, None, TOKEN).await;
        assert!(matches!(result, Err(OAuthError::Unavailable(_))), "{result:?}");
        for text in ["a.b.c", "d.e.f"] {
            std::fs::write(&assertion, format!("{text}\n")).expect("written");
            let (result, authorization, sent) = send(&grant, None, TOKEN).await;
            assert_eq!((result.is_ok(), authorization), (true, None));
            assert_eq!(sent, form(&[("grant_type", JWT_BEARER_GRANT), ("assertion", text)]));
        }
        std::fs::write(&assertion, "x".repeat(16 * 1024 + 1)).expect("written");
        let (result, _, sent) = send(&grant, None, TOKEN).await;
        let error = format!(
            "the assertion {} cannot be used: it is larger than 16384 bytes",
            assertion.display()
        );
        assert_eq!(result, Err(OAuthError::Unavailable(error)));
        assert!(sent.is_empty());
    }

    #[tokio::test]
    async fn only_a_usable_token_is_taken() {
        let grant = with_secret("hunter2");
        let long = format!(r#"{{"access_token":"{}","token_type":"Bearer"}}"#, "x".repeat(16_385));
        for (status, response, error) in [
            (200, "<!doctype html>", "the response is not a token"),
            (200, r#"{"access_token":"x"}"#, "the token is not of the type Bearer"),
            (200, r#"{"access_token":"","token_type":"Bearer"}"#, "the response is not a token"),
            (200, r#"{"access_token":7,"token_type":"Bearer"}"#, "the response is not a token"),
            (
                200,
                r#"{"access_token":"x","token_type":"mac"}"#,
                "the token is not of the type Bearer",
            ),
            (
                200,
                r#"{"access_token":"x\r\ny: z","token_type":"Bearer"}"#,
                "the token is longer than 16 KiB, or not visible ASCII",
            ),
            (200, &long, "the token is longer than 16 KiB, or not visible ASCII"),
            (302, "", "the response status is 302 Found"),
            (429, r#"{"error":"slow_down"}"#, "the response status is 429 Too Many Requests"),
            (500, r#"{"error":"x"}"#, "the response status is 500 Internal Server Error"),
        ] {
            let (result, ..) = send(&grant, None, (status, response)).await;
            assert_eq!(result, Err(OAuthError::Unavailable(format!("{TOKEN_URL}: {error}"))));
        }
        let (result, ..) = send(&grant, None, (201, TOKEN.1)).await;
        assert!(result.is_ok(), "{result:?}");
        for (response, error) in [
            (r#"{"error":"invalid_client"}"#, "invalid_client"),
            (
                r#"{"error":"invalid_client","error_description":"\u0007 hunter2 is wrong"}"#,
                r"invalid_client: \u{7} *** is wrong",
            ),
            // A token of the response itself.
            (
                r#"{"error":"x","error_description":"got a1 and r2","access_token":"a1","refresh_token":"r2"}"#,
                "x: got *** and ***",
            ),
        ] {
            let (result, ..) = send(&grant, None, (401, response)).await;
            let error = format!("{TOKEN_URL} refuses the request: {error}");
            assert_eq!(result, Err(OAuthError::Refused(error)));
        }
    }

    #[tokio::test]
    async fn a_lifetime_is_a_number_of_seconds_in_any_form_and_an_odd_one_is_unknown() {
        for (text, seconds) in [
            ("60", Some(60)),
            ("60.0", Some(60)),
            (r#""60""#, Some(60)),
            ("null", None),
            (r#""soon""#, None),
            ("0", Some(0)),
            ("1e300", Some(31_536_000)),
            ("-1", None),
            (r#""-1""#, None),
            ("1e400", None),
            (r#""1e400""#, None),
            (r#""NaN""#, None),
            (r#""""#, None),
            ("true", None),
            ("[60]", None),
            (r#"{"seconds":60}"#, None),
        ] {
            let response =
                format!(r#"{{"access_token":"x","token_type":"Bearer","expires_in":{text}}}"#);
            let (result, ..) = send(&with_secret("x"), None, (200, &response)).await;
            let lifetime = result.expect("a token").lifetime;
            assert_eq!(lifetime, seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[tokio::test]
    async fn a_response_with_odd_members_beside_the_tokens_is_used() {
        let grant = with_secret("hunter2");
        for odd in [
            r#""scope":7"#,
            r#""scope":["a"],"id_token":null"#,
            r#""expires_in":{},"expires_in":1e999"#,
            r#""token_type":"bearer""#,
            r#""error":null"#,
            r#""x":"\ud800""#,
        ] {
            let body = format!(
                r#"{{"access_token":"t","token_type":"Bearer","refresh_token":"r",{odd}}}"#
            );
            let (issued, ..) = send(&grant, None, (200, &body)).await;
            let issued = issued.expect(odd);
            assert_eq!((issued.token, issued.refresh_token), (Ok("t".into()), Some("r".into())));
        }
        let body = format!("\u{feff}{}", TOKEN.1);
        assert!(send(&grant, None, (200, &body)).await.0.is_ok(), "a byte order mark");
        for odd in ["7", "[]", "null", "{}", "\"\""] {
            let body =
                format!(r#"{{"access_token":"t","token_type":"Bearer","refresh_token":{odd}}}"#);
            let (issued, ..) = send(&grant, None, (200, &body)).await;
            assert_eq!(issued.expect(odd).refresh_token, None);
        }
    }

    #[tokio::test]
    async fn a_refresh_token_is_not_lost_with_an_access_token_that_cannot_be_used() {
        let grant = with_secret("hunter2");
        let long = format!(r#""access_token":"{}","token_type":"Bearer""#, "x".repeat(16_385));
        for (members, error) in [
            (r#""access_token":"t""#, "the token is not of the type Bearer"),
            (r#""access_token":"t","token_type":null"#, "the token is not of the type Bearer"),
            (r#""access_token":"t","token_type":"N_A""#, "the token is not of the type Bearer"),
            (r#""access_token":"t","token_type":"DPoP""#, "the token is not of the type Bearer"),
            (
                r#""access_token":"t","token_type":["Bearer"]"#,
                "the token is not of the type Bearer",
            ),
            (r#""access_token":7,"token_type":"Bearer""#, "the response is not a token"),
            (r#""token_type":"Bearer""#, "the response is not a token"),
            (
                r#""access_token":"t t","token_type":"Bearer""#,
                "the token is longer than 16 KiB, or not visible ASCII",
            ),
            (&long, "the token is longer than 16 KiB, or not visible ASCII"),
        ] {
            let body = format!(r#"{{{members},"refresh_token":"next"}}"#);
            let (issued, ..) = send(&grant, None, (200, &body)).await;
            let issued = issued.expect(members);
            let error = OAuthError::Unavailable(format!("{TOKEN_URL}: {error}"));
            assert_eq!(issued.token.map_err(|unusable| unusable.error), Err(error));
            assert_eq!(issued.refresh_token, Some("next".into()));
        }
    }

    #[tokio::test]
    async fn a_parameter_of_the_endpoint_does_not_come_twice() {
        let script = Script::default();
        let called = "https://id.test/token?tenant=a%20b&x";
        script.document(called, TOKEN.1);
        let params = vec![("audience".to_owned(), "mine".to_owned())];
        let settings = Settings { params, ..settings() };
        let client = OAuthClient::new(&script, &settings);
        let endpoint = "https://id.test/token?grant_type=password&tenant=a%20b&sco%70e=all&x\
                        &audience=theirs#part";
        let issuer = "https://id.test".to_owned();
        let server = ServerMetadata::of_token_endpoint(issuer, endpoint.into(), None);
        let registered = RegisteredClient { id: "weir".into(), credential: ClientCredential::None };
        let request = TokenRequest {
            grant: TokenGrant::ClientCredentials,
            client: Some(&registered),
            server: &server,
            resource: None,
            scope: Some("a"),
        };
        request.send(&client).await.expect("issued");
        assert_eq!(script.requests(), [format!("POST {called}")]);
    }

    #[tokio::test]
    async fn what_a_server_repeats_of_a_request_in_another_encoding_is_not_shown() {
        let secret = "p@ss/w+rd \"ü\\ hunter2-canary";
        let grant = with_secret(secret);
        let percent = |text: &str, is_all: bool| -> String {
            let encode = |byte: u8| match byte {
                byte if byte.is_ascii_alphanumeric() && !is_all => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            };
            text.bytes().map(encode).collect()
        };
        let json = serde_json::to_string(secret).expect("JSON");
        let json = &json[1..json.len() - 1];
        let unicode: String = secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let form: String = byte_serialize(secret.as_bytes()).collect();
        let basic = basic("we:ir", &secret.into()).expect("a header");
        let basic = basic.to_str().expect("text").trim_start_matches("Basic ");
        for repeated in [
            secret,
            &form,
            &form.to_lowercase(),
            &percent(secret, false),
            &percent(secret, false).to_lowercase(),
            &percent(secret, true),
            &percent(secret, true).to_lowercase(),
            &percent(&percent(secret, false), false),
            json,
            &json.replace('/', "\\/"),
            &unicode,
            &unicode.to_uppercase().replace("\\U", "\\u"),
            basic,
            &percent(basic, false),
            // A part of it.
            &form[..30],
            &basic[..20],
        ] {
            let text = format!("bad client_secret={repeated}");
            let body = serde_json::json!({ "error": text, "error_description": text });
            let (refused, ..) = send(&grant, None, (400, &body.to_string())).await;
            let shown = "bad client_secret=***";
            let expected = format!("{TOKEN_URL} refuses the request: {shown}: {shown}");
            assert_eq!(refused, Err(OAuthError::Refused(expected)), "{repeated}");
        }
    }

    #[tokio::test]
    async fn what_a_server_repeats_of_a_request_is_not_shown_however_long_it_is() {
        let script = Script::default();
        let settings = Settings { grant: Grant::AuthorizationCode { client: None }, ..settings() };
        let client = OAuthClient::new(&script, &settings);
        let folder = tempfile::tempdir().expect("a folder");
        let assertion = folder.path().join("assertion");
        let canary = |name: &str| format!("{name}-{}", "canary".repeat(60));
        std::fs::write(&assertion, canary("assertion")).expect("written");
        let [code, verifier, refresh, secret] =
            ["code", "verifier", "refresh", "secret"].map(|name| Secret::from(canary(name)));
        let redirect_uri = "http://127.0.0.1:7/callback";
        let registered = RegisteredClient {
            id: "weir".into(),
            credential: ClientCredential::Secret(secret.clone()),
        };
        for methods in [None, Some(vec!["client_secret_post".to_owned()])] {
            let issuer = "https://id.test".to_owned();
            let server = ServerMetadata::of_token_endpoint(issuer, TOKEN_URL.into(), methods);
            for grant in [
                TokenGrant::ClientCredentials,
                TokenGrant::JwtBearer(&assertion),
                TokenGrant::Code { code: &code, verifier: &verifier, redirect_uri },
                TokenGrant::Refresh(&refresh),
            ] {
                let basic = basic("weir", &secret).expect("a header");
                let echo = format!(
                    "{} {} {} {} {} {}",
                    code.expose(),
                    verifier.expose(),
                    refresh.expose(),
                    secret.expose(),
                    canary("assertion"),
                    basic.to_str().expect("text")
                );
                let sent: Vec<&str> = match grant {
                    TokenGrant::ClientCredentials => vec![],
                    TokenGrant::JwtBearer(_) => vec!["assertion"],
                    TokenGrant::Code { .. } => vec!["code", "verifier"],
                    TokenGrant::Refresh(_) => vec!["refresh"],
                };
                let body = serde_json::json!({ "error": echo, "error_description": echo });
                script.respond(TOKEN_URL, 400, &body.to_string());
                let (client_of_request, resource, scope) = (Some(&registered), None, None);
                let request = TokenRequest {
                    grant,
                    client: client_of_request,
                    server: &server,
                    resource,
                    scope,
                };
                let error = request.send(&client).await.expect_err("refused").to_string();
                for name in sent.into_iter().chain(["secret"]) {
                    assert!(!error.contains(&format!("{name}-can")), "{name}: {error}");
                }
                assert!(error.len() < 700, "{error}");
            }
        }
    }

    #[tokio::test]
    async fn an_error_with_the_status_200_is_a_refusal_and_an_empty_refresh_token_is_none() {
        let grant = with_secret("hunter2");
        let body = r#"{"error":"bad_verification_code","error_description":"expired"}"#;
        let (issued, ..) = send(&grant, None, (200, body)).await;
        let text = "https://id.test/token refuses the request: bad_verification_code: expired";
        assert_eq!(issued, Err(OAuthError::Refused(text.into())));
        let body = r#"{"access_token":"x","token_type":"bearer","refresh_token":""}"#;
        let (issued, ..) = send(&grant, None, (200, body)).await;
        assert_eq!(issued.expect("issued").refresh_token, None);
        // One that is too long for the record does not replace the former one.
        for (length, is_taken) in [(16_385, true), (32_768, true), (32_769, false)] {
            let long = "r".repeat(length);
            let body =
                format!(r#"{{"access_token":"x","token_type":"bearer","refresh_token":"{long}"}}"#);
            let (issued, ..) = send(&grant, None, (200, &body)).await;
            let expected = is_taken.then(|| Secret::from(long));
            assert!(issued.expect("issued").refresh_token == expected, "{length}");
        }
    }
}
