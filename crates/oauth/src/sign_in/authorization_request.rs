//! Authorization request and its response (OAuth 2.1, 4.1; RFC 7636; RFC 9207).
//!
//! Invariants: a response is used only if its state and its issuer are those of the request. What a
//! response of another issuer says is not shown.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use url::{Url, form_urlencoded};

use super::RequestedAccess;
use crate::metadata::ServerMetadata;
use crate::url_rules::{MAX_SHOWN_CHARS, without_parameters};
use crate::{OAuthError, RegisteredClient};
use weir_base::secrets::secret::{Secret, random_token};
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::secrets::sha256::sha256;
use weir_base::text::quote::quote;

/// Request that the user's browser sends.
pub(super) struct AuthorizationRequest {
    pub(super) url: Url,
    pub(super) redirect_uri: String,
    pub(super) verifier: Secret,
    pub(super) state: Secret,
}

impl AuthorizationRequest {
    /// Creates a request to an endpoint, with these further parameters; `None` if the endpoint is
    /// not a URL.
    pub(super) fn new(
        endpoint: &str,
        client_id: &str,
        redirect_uri: String,
        access: &RequestedAccess,
        params: &[(String, String)],
    ) -> Option<Self> {
        let (verifier, state) = (random_token(), random_token());
        let challenge = URL_SAFE_NO_PAD.encode(sha256(verifier.as_bytes()));
        let mut parameters = vec![
            ("response_type", "code"),
            ("client_id", client_id),
            ("redirect_uri", &*redirect_uri),
            ("state", &*state),
            ("code_challenge", &*challenge),
            ("code_challenge_method", "S256"),
        ];
        let optional =
            [("resource", access.resource.as_deref()), ("scope", access.scope.as_deref())];
        parameters.extend(optional.into_iter().filter_map(|(name, it)| Some((name, it?))));
        parameters.extend(params.iter().map(|(name, value)| (&**name, &**value)));
        let is_own = |name: &str| parameters.iter().any(|(own, _)| *own == name);
        let mut url = Url::parse(&without_parameters(endpoint, is_own)).ok()?;
        url.set_fragment(None);
        url.query_pairs_mut().extend_pairs(parameters);
        let [verifier, state] = [verifier, state].map(|text| Secret::from(&*text));
        Some(Self { url, redirect_uri, verifier, state })
    }

    /// Returns whether a query, with which a browser came, is the response to this request.
    pub(super) fn is_response(&self, query: &str) -> bool {
        let state = parameter(query, "state").unwrap_or_default();
        state.as_bytes().ct_eq(self.state.expose().as_bytes()).into()
    }

    /// Checks a response of the server to this client, and returns its code.
    pub(super) fn check(
        &self,
        query: &str,
        server: &ServerMetadata,
        client: &RegisteredClient,
    ) -> Result<Secret, OAuthError> {
        let refuse = |text: &str| Err(OAuthError::Refused(text.to_owned()));
        let find = |name| parameter(query, name);
        if !self.is_response(query) {
            return refuse("the response belongs to another sign-in");
        }
        // OAuth 2.1, 4.1.2: no parameter comes twice.
        let count = |name: &str| {
            form_urlencoded::parse(query.as_bytes()).filter(|(it, _)| it == name).count()
        };
        if ["state", "iss", "code", "error"].into_iter().any(|name| count(name) > 1) {
            return refuse("the response contains a parameter twice");
        }
        // Spec 2026-07-28, authorization, authorization response validation.
        match find("iss") {
            Some(issuer) if issuer != server.issuer => {
                return refuse("the response is of another authorization server");
            }
            None if server.authorization_response_iss_parameter_supported => {
                return refuse("the response does not name its authorization server");
            }
            _ => {}
        }
        if let Some(error) = find("error") {
            let description = find("error_description").unwrap_or_default();
            let code = find("code").map(Secret::from);
            let secrets = [&self.state, &self.verifier].into_iter().chain(client.secret());
            let patterns = SecretPatterns::new(secrets.chain(&code).map(Secret::expose));
            let [error, description] =
                [error, description].map(|text| quote(&patterns.redact(&text), MAX_SHOWN_CHARS));
            let text =
                format!("the authorization server refuses the sign-in: {error}: {description}");
            return refuse(text.trim_end_matches([':', ' ']));
        }
        match find("code") {
            Some(code) if !code.is_empty() => Ok(Secret::from(code)),
            _ => refuse("the response contains no code"),
        }
    }
}

/// Returns the first parameter of this name in a query.
fn parameter(query: &str, wanted: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned())
}
