//! Revocation of a sign-in at its authorization server (RFC 7009).

use super::token_request::{Form, authenticate};
use super::url_rules::{MAX_SHOWN_CHARS, OAuthClient};
use super::vault::SignInRecord;
use super::{Grant, OAuthError, Settings};
use weir_base::net::http_send::HttpSend;
use weir_base::text::quote::quote;

impl SignInRecord {
    /// Revokes the refresh token, or the access token if there is none, at the authorization
    /// server. Returns false if the server has no endpoint for that.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses.
    pub async fn revoke(
        &self,
        http: &dyn HttpSend,
        settings: &Settings,
    ) -> Result<bool, OAuthError> {
        let Some(endpoint) = &self.revocation_endpoint else { return Ok(false) };
        let client = match &settings.grant {
            // The secret of another client is not for this server.
            Grant::AuthorizationCode { client: Some(configured) } if self.is_of(settings) => {
                configured.clone()
            }
            _ => self.client(),
        };
        let (token, kind) = match &self.refresh_token {
            Some(token) => (token, "refresh_token"),
            None => (&self.access_token, "access_token"),
        };
        let mut form = Form::default();
        form.append_secret("token", token.expose());
        form.append("token_type_hint", kind);
        let authorization = authenticate(&self.server(), &client, &mut form)?;
        let (url, request) = form.into_request(endpoint, authorization);
        let status = OAuthClient::new(http, settings).send_for_status(&url, request).await?;
        if status.is_success() {
            return Ok(true);
        }
        let endpoint = quote(endpoint, MAX_SHOWN_CHARS);
        Err(OAuthError::Refused(format!("{endpoint}: the response status is {status}")))
    }
}

impl SignInRecord {
    /// Revokes the tokens of a sign-in that cannot be kept for this reason, and returns the error
    /// for that.
    pub async fn discard(
        &self,
        http: &dyn HttpSend,
        settings: &Settings,
        reason: &OAuthError,
    ) -> OAuthError {
        let outcome = match self.revoke(http, settings).await {
            Ok(true) => "were revoked".to_owned(),
            Ok(false) => {
                "were not revoked: the authorization server does not support that".to_owned()
            }
            Err(error) => format!("were not revoked: {error}"),
        };
        OAuthError::Unavailable(format!("{reason}; the tokens that had come {outcome}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record;
    use crate::testing::{Script, settings};
    use crate::{ClientCredential, RegisteredClient};

    #[tokio::test]
    async fn the_refresh_token_is_revoked_as_the_client_of_the_sign_in() {
        let settings = Settings { grant: Grant::AuthorizationCode { client: None }, ..settings() };
        let script = Script::default();
        assert_eq!(record().revoke(&script, &settings).await, Ok(false));
        assert!(script.requests().is_empty());
        let endpoint = "https://id.test/revoke";
        let signed_in = SignInRecord { revocation_endpoint: Some(endpoint.into()), ..record() };
        script.respond(endpoint, 200, "");
        assert_eq!(signed_in.revoke(&script, &settings).await, Ok(true));
        let request = script.take_requests().pop().expect("a request");
        assert_eq!(
            std::str::from_utf8(request.body()),
            Ok("token=hunter3&token_type_hint=refresh_token")
        );
        assert!(request.headers().contains_key("authorization"));
        script.respond(endpoint, 503, "");
        let failed = signed_in.revoke(&script, &settings).await;
        assert!(failed.is_err_and(|error| !error.to_string().contains("hunter")));
        // The secret of another client is not for this server.
        script.respond(endpoint, 200, "");
        let credential = ClientCredential::Secret("canary".into());
        let other = RegisteredClient { id: "other".into(), credential };
        let changed = Settings {
            grant: Grant::AuthorizationCode { client: Some(other) },
            ..settings.clone()
        };
        script.requests();
        assert_eq!(signed_in.revoke(&script, &changed).await, Ok(true));
        let request = script.take_requests().pop().expect("a request");
        let basic = request.headers()["authorization"].to_str().expect("text").to_owned();
        assert_eq!(basic, "Basic d2VpcjpodW50ZXIx");
        let elsewhere = Some("https://10.0.0.1/revoke\n".to_owned());
        let signed_in = SignInRecord { revocation_endpoint: elsewhere, ..record() };
        assert!(matches!(signed_in.revoke(&script, &settings).await, Err(OAuthError::Refused(_))));
    }
}
