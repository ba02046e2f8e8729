//! Revocation of a token at its authorization server (RFC 7009).

use super::metadata::ServerMetadata;
use super::token_request::{Form, authenticate};
use super::url_rules::{MAX_SHOWN_CHARS, OAuthClient};
use super::{OAuthError, RegisteredClient};
use weir_base::secrets::secret::Secret;
use weir_base::text::quote::quote;

/// Parameters of a request that revokes a token.
pub(super) struct Revocation<'a> {
    pub(super) endpoint: &'a str,
    pub(super) server: &'a ServerMetadata,
    pub(super) client: &'a RegisteredClient,
    pub(super) token: &'a Secret,
    /// Type of the token, such as `refresh_token`.
    pub(super) kind: &'static str,
}

impl Revocation<'_> {
    /// Sends the request.
    pub(super) async fn send(&self, client: &OAuthClient<'_>) -> Result<(), OAuthError> {
        let mut form = Form::default();
        form.append_secret("token", self.token.expose());
        form.append("token_type_hint", self.kind);
        let authorization = authenticate(self.server, self.client, &mut form)?;
        let (url, request) = form.into_request(self.endpoint, authorization);
        let status = client.send_for_status(&url, request).await?;
        if status.is_success() {
            return Ok(());
        }
        let endpoint = quote(self.endpoint, MAX_SHOWN_CHARS);
        Err(OAuthError::Refused(format!("{endpoint}: the response status is {status}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, record, settings};
    use crate::{ClientCredential, Grant, Settings, SignInRecord};

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
