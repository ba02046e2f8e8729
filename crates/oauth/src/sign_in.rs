//! Sign-in by a user: the authorization code flow with PKCE (OAuth 2.1, 4.1).

mod authorization_request;
#[cfg(test)]
mod tests;

use url::Url;

use super::challenge::BearerChallenge;
use super::discovery::{Discovered, discover};
use super::metadata::is_same_issuer;
use super::registration::register;
use super::step_up::StepUp;
use super::token_request::{TokenGrant, TokenRequest};
use super::url_rules::{MAX_SHOWN_CHARS, OAuthClient};
use super::vault::{SignInNumber, SignInRecord, binding};
use super::{ClientCredential, Grant, OAuthError, RegisteredClient, Settings};
use authorization_request::AuthorizationRequest;
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::secret::Secret;
use weir_base::text::quote::quote;

/// Sign-in that waits for the response of the authorization server.
pub struct SignIn {
    /// Name of the upstream.
    upstream: String,
    settings: Settings,
    discovered: Discovered,
    client: RegisteredClient,
    access: RequestedAccess,
    request: AuthorizationRequest,
}

impl SignIn {
    /// Finds the authorization server of the upstream of this name, and registers there. The user's
    /// browser comes back to `redirect_uri`. What the upstream has demanded since the `earlier`
    /// sign-in is requested, too.
    ///
    /// # Errors
    ///
    /// A server cannot be reached, or does not support what a sign-in needs.
    pub async fn begin(
        http: &dyn HttpSend,
        upstream: &str,
        settings: &Settings,
        challenge: &BearerChallenge,
        redirect_uri: String,
        earlier: Option<&SignInRecord>,
    ) -> Result<Self, OAuthError> {
        let begun = Self::open(http, upstream, settings, challenge, redirect_uri, earlier).await;
        let secret = settings.grant.client().and_then(RegisteredClient::secret);
        let secrets = earlier.into_iter().flat_map(SignInRecord::secrets).chain(secret);
        begun.map_err(|error| error.without(secrets))
    }

    async fn open(
        http: &dyn HttpSend,
        upstream: &str,
        settings: &Settings,
        challenge: &BearerChallenge,
        redirect_uri: String,
        earlier: Option<&SignInRecord>,
    ) -> Result<Self, OAuthError> {
        let client = OAuthClient::new(http, settings);
        let mut discovered = discover(&client, challenge).await?;
        let server = &discovered.server;
        let issuer = quote(&server.issuer, MAX_SHOWN_CHARS);
        let refuse =
            |what| OAuthError::Refused(format!("the authorization server {issuer} {what}"));
        let supports_pkce = |methods: &Vec<String>| methods.iter().any(|method| method == "S256");
        match &server.code_challenge_methods_supported {
            Some(methods) if supports_pkce(methods) => {}
            None if settings.assumes_pkce => {}
            Some(_) => return Err(refuse("does not support PKCE with S256")),
            None => {
                let text = "does not say that it supports PKCE: if it does, set auth.assume_pkce";
                return Err(refuse(text));
            }
        }
        let endpoint = server.authorization_endpoint.as_deref();
        let endpoint = endpoint.ok_or_else(|| refuse("has no authorization endpoint"))?;
        client.check(endpoint).map_err(OAuthError::Refused)?;
        let configured = settings.grant.client();
        let metadata_url = settings.client_metadata_url.as_deref();
        // Earlier versions have noted it in the record only.
        let known = earlier.filter(|it| it.is_configured_client).map(SignInRecord::bound);
        binding::check(upstream, settings, known.as_slice(), &server.issuer)?;
        let access = RequestedAccess::new(&discovered, settings, earlier);
        let (registered, method) = register(
            &client,
            server,
            configured,
            metadata_url,
            &redirect_uri,
            access.scope.as_deref(),
        )
        .await?;
        let params = &settings.params;
        let request =
            AuthorizationRequest::new(endpoint, &registered.id, redirect_uri, &access, params)
                .ok_or_else(|| refuse("has no authorization endpoint"))?;
        if let Some(method) = method {
            // RFC 7591, 3.2.1: the server may choose another method than the requested one.
            discovered.server.token_endpoint_auth_methods_supported = Some(vec![method]);
        }
        Ok(Self {
            upstream: upstream.to_owned(),
            settings: settings.clone(),
            client: registered,
            access,
            request,
            discovered,
        })
    }

    /// URL that the user opens in a browser.
    pub fn url(&self) -> &str {
        self.request.url.as_str()
    }

    /// Issuer at which the user signs in.
    pub(crate) fn issuer(&self) -> &str {
        &self.discovered.server.issuer
    }

    /// Returns the place at which the user signs in: the issuer, and the origin of its page if that
    /// is another one.
    pub fn place(&self) -> String {
        let (issuer, page) = (self.issuer(), self.request.url.origin());
        match Url::parse(issuer).is_ok_and(|issuer| issuer.origin() == page) {
            true => issuer.to_owned(),
            false => format!("{issuer}, on a page of {}", page.ascii_serialization()),
        }
    }

    /// Returns whether a query, with which a browser came, is the response to this sign-in.
    pub fn is_response(&self, query: &str) -> bool {
        self.request.is_response(query)
    }

    /// Redeems the response of the authorization server: the query with which the browser came
    /// back.
    ///
    /// # Errors
    ///
    /// The response belongs to another sign-in or server, or the sign-in was refused.
    pub async fn finish(
        self,
        http: &dyn HttpSend,
        query: &str,
    ) -> Result<SignInRecord, OAuthError> {
        let client = OAuthClient::new(http, &self.settings);
        let server = &self.discovered.server;
        let code = self.request.check(query, server, &self.client)?;
        let (verifier, redirect_uri) = (&self.request.verifier, &*self.request.redirect_uri);
        let request = TokenRequest {
            grant: TokenGrant::Code { code: &code, verifier, redirect_uri },
            client: Some(&self.client),
            server,
            resource: self.access.resource.as_deref(),
            scope: None,
        };
        let mut issued = request.redeem(&client).await?;
        let long = issued.take_long_refresh_token();
        binding::note(&self.upstream, &self.settings, &server.issuer).await;
        let client_secret = match (&self.client.credential, &self.settings.grant) {
            // The configured one stays in the configuration.
            (_, Grant::AuthorizationCode { client: Some(_) }) => None,
            (ClientCredential::Secret(secret), _) => Some(secret.clone()),
            (ClientCredential::Key(_) | ClientCredential::None, _) => None,
        };
        let expires = issued.expires();
        let (access_token, problem) = match issued.token {
            Ok(token) if long.is_none() => (Some(token), None),
            Ok(token) => {
                let text = "the refresh token is longer than 32 KiB".to_owned();
                (Some(token), Some(OAuthError::Unavailable(text)))
            }
            Err(unusable) => (unusable.token, Some(unusable.error)),
        };
        let refresh_token = issued.refresh_token.or(long);
        let is_empty = access_token.is_none() && refresh_token.is_none();
        let record = SignInRecord {
            number: SignInNumber::random(),
            upstream: self.settings.upstream.to_string(),
            url_hash: Some(self.settings.url_hash.clone()),
            issuer: server.issuer.clone(),
            token_endpoint: server.token_endpoint.clone(),
            token_endpoint_auth_methods_supported: server
                .token_endpoint_auth_methods_supported
                .clone(),
            revocation_endpoint: server.revocation_endpoint.clone(),
            is_configured_client: matches!(
                self.settings.grant,
                Grant::AuthorizationCode { client: Some(_) }
            ),
            client_id: self.client.id,
            client_secret,
            resource: self.access.resource,
            scope: self.access.scope,
            step_up: self.access.step_up,
            expires,
            lifetime: issued.lifetime.map(|lifetime| lifetime.as_secs()),
            access_token: access_token.unwrap_or_else(|| Secret::from("")),
            refresh_token,
        };
        match problem {
            None => Ok(record),
            Some(problem) if is_empty => Err(problem),
            // The server has redeemed the code.
            Some(problem) => Err(record.discard(http, &self.settings, &problem).await),
        }
    }
}

/// Resource and scopes for which a sign-in is requested.
struct RequestedAccess {
    resource: Option<String>,
    scope: Option<String>,
    step_up: StepUp,
}

impl RequestedAccess {
    /// Chooses what the upstream names, and what it has demanded since an earlier sign-in there.
    fn new(discovered: &Discovered, settings: &Settings, earlier: Option<&SignInRecord>) -> Self {
        let issuer = &discovered.server.issuer;
        let is_of = |it: &&SignInRecord| it.is_of(settings) && is_same_issuer(&it.issuer, issuer);
        let (step_up, before) = match earlier.filter(is_of) {
            Some(earlier) => (earlier.step_up.clone(), earlier.scope.as_deref()),
            None => (StepUp::default(), None),
        };
        let scope = step_up.widen(discovered.scope(settings), before);
        Self { resource: discovered.resource(settings), scope, step_up }
    }
}
