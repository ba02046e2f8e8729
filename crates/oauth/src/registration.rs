//! Registration of Weir as a client of an authorization server (spec 2026-07-28, authorization,
//! client registration; RFC 7591).

use bytes::Bytes;
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::{Deserialize, Serialize};

use super::metadata::ServerMetadata;
use super::url_rules::{MAX_SHOWN_CHARS, OAuthClient};
use super::{ClientCredential, OAuthError, RegisteredClient};
use weir_base::secrets::secret::Secret;
use weir_base::text::quote::quote;

/// Returns the client that Weir is at an authorization server: the configured one, the one that a
/// metadata document describes, or one that is registered now for this redirect URI. Also returns
/// the method of authentication that the server has chosen for it, if it names one.
pub(super) async fn register(
    client: &OAuthClient<'_>,
    server: &ServerMetadata,
    configured: Option<&RegisteredClient>,
    metadata_url: Option<&str>,
    redirect_uri: &str,
    scope: Option<&str>,
) -> Result<(RegisteredClient, Option<String>), OAuthError> {
    if let Some(configured) = configured {
        return Ok((configured.clone(), None));
    }
    let supports_documents = server.client_id_metadata_document_supported;
    if let Some(url) = metadata_url.filter(|_| supports_documents) {
        let credential = ClientCredential::None;
        return Ok((RegisteredClient { id: url.to_owned(), credential }, None));
    }
    let Some(endpoint) = &server.registration_endpoint else {
        let issuer = quote(&server.issuer, MAX_SHOWN_CHARS);
        let text = format!(
            "the authorization server {issuer} registers no clients by itself: register Weir \
             there with the redirect URI {redirect_uri}, and set client_id"
        );
        return Err(OAuthError::Refused(text));
    };
    let metadata = ClientMetadata {
        client_name: "Weir",
        redirect_uris: [redirect_uri],
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
        // Spec 2026-07-28, authorization, application type: the redirect URI is on this machine.
        application_type: "native",
        token_endpoint_auth_method: auth_method(server),
        // Some servers let a client request only the scopes that it has registered.
        scope,
    };
    let body = serde_json::to_vec(&metadata).unwrap_or_default();
    let mut request = Request::post("/").body(Bytes::from(body)).unwrap_or_default();
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    let response = client.send(endpoint, request).await?;
    let endpoint = quote(endpoint, MAX_SHOWN_CHARS);
    if !response.status().is_success() {
        let status = response.status();
        let text = format!("{endpoint} does not register Weir: the response status is {status}");
        return Err(match status.is_server_error() {
            true => OAuthError::Unavailable(text),
            false => OAuthError::Refused(text),
        });
    }
    let Ok(registered) = serde_json::from_slice::<Registration>(response.body()) else {
        let text = format!("{endpoint}: the response is not a registration");
        return Err(OAuthError::Unavailable(text));
    };
    // Some servers also give a client a secret that has registered without.
    let method = registered.token_endpoint_auth_method;
    let is_public = method.as_deref().unwrap_or(metadata.token_endpoint_auth_method) == "none";
    let secret = registered.client_secret.filter(|secret| !is_public && !secret.is_empty());
    let credential = match secret {
        Some(secret) => ClientCredential::Secret(Secret::from(secret)),
        None => ClientCredential::None,
    };
    let client = RegisteredClient { id: registered.client_id, credential };
    let secret_bytes = client.secret().map_or(0, |secret| secret.expose().len());
    if client.id.len().max(secret_bytes) > MAX_CLIENT_BYTES {
        let text = format!("{endpoint}: the client's name or secret is longer than 4 KiB");
        return Err(OAuthError::Unavailable(text));
    }
    Ok((client, method))
}

/// Returns the method of authentication to register for: none if possible, since a client on the
/// machine of a user keeps no secret from that user (RFC 8252, 8.5).
fn auth_method(server: &ServerMetadata) -> &'static str {
    let methods = server.token_endpoint_auth_methods_supported.as_deref();
    let Some(methods) = methods else { return "client_secret_basic" };
    let known = ["none", "client_secret_basic", "client_secret_post"];
    let found = known.into_iter().find(|known| methods.iter().any(|it| it == known));
    found.unwrap_or("none")
}

#[derive(Serialize)]
struct ClientMetadata<'a> {
    client_name: &'static str,
    redirect_uris: [&'a str; 1],
    grant_types: [&'static str; 2],
    response_types: [&'static str; 1],
    application_type: &'static str,
    token_endpoint_auth_method: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
}

#[derive(Deserialize)]
struct Registration {
    client_id: String,
    client_secret: Option<String>,
    /// Method that the server has chosen instead of the requested one.
    token_endpoint_auth_method: Option<String>,
}

/// Maximum size of a client's identifier, and of its secret.
const MAX_CLIENT_BYTES: usize = 4 * 1024;
