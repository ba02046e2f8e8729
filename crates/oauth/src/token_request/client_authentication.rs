//! Authentication of a client at an authorization server (RFC 6749, 2.3; RFC 7523, 2.2).

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use serde::Serialize;
use url::form_urlencoded::byte_serialize;
use zeroize::Zeroizing;

use super::form::Form;
use crate::metadata::ServerMetadata;
use crate::signing_key::SigningKey;
use crate::url_rules::MAX_SHOWN_CHARS;
use crate::{ClientCredential, OAuthError, RegisteredClient};
use weir_base::secrets::secret::{Secret, random_token};
use weir_base::text::quote::quote;
use weir_base::time::timestamp::unix_time;

/// Adds the credential to the form, or returns the `Authorization` header that carries it.
pub(crate) fn authenticate(
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

/// Encodes the credentials of a client (RFC 6749, 2.3.1: both are encoded as in a form).
pub(super) fn basic(client_id: &str, secret: &Secret) -> Result<HeaderValue, OAuthError> {
    let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let secret = Zeroizing::new(encode(secret.expose()));
    let pair = Zeroizing::new(format!("{}:{}", encode(client_id), *secret));
    let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
    sensitive(&text)
}

/// Makes the value of an `Authorization` header.
pub(crate) fn sensitive(text: &str) -> Result<HeaderValue, OAuthError> {
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

pub(super) const JWT_BEARER_ASSERTION: &str =
    "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Time for which an assertion of a client is valid: some servers accept no more than a minute.
const ASSERTION_LIFETIME: Duration = Duration::from_secs(60);
