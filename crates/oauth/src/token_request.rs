//! Token request (RFC 6749, 4; RFC 7523; RFC 8707).

mod client_authentication;
mod form;
#[cfg(test)]
mod tests;
mod token_response;

use std::fmt::Display;
use std::path::Path;

use zeroize::Zeroizing;

use super::metadata::ServerMetadata;
use super::url_rules::OAuthClient;
use super::{Grant, OAuthError, RegisteredClient, Settings};
pub(super) use client_authentication::{authenticate, sensitive};
pub(super) use form::Form;
pub(super) use token_response::IssuedToken;
use token_response::{read_part, read_response};
use weir_base::files::regular_file;
use weir_base::secrets::secret::Secret;

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
        let (url, request) = form.into_request(endpoint, authorization);
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

/// Reads the assertion of the platform. The platform replaces the file, so it is never kept.
fn read_assertion(path: &Path) -> Result<Zeroizing<String>, OAuthError> {
    let unusable = |why: &dyn Display| {
        let path = path.display();
        OAuthError::Unavailable(format!("the assertion {path} cannot be used: {why}"))
    };
    let bytes = regular_file::read(path, MAX_ASSERTION_BYTES).map_err(|error| unusable(&error))?;
    String::from_utf8(bytes).map(Zeroizing::new).map_err(|_| unusable(&"it is not text"))
}

const JWT_BEARER_GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// Maximum size of an assertion of the platform.
const MAX_ASSERTION_BYTES: u64 = 16 * 1024;
