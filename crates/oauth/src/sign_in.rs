//! Sign-in by a user: the authorization code flow with PKCE (OAuth 2.1, 4.1; RFC 7636; RFC 9207).
//!
//! Invariants: a response is used only if its state and its issuer are those of the request. What a
//! response of another issuer says is not shown.

#[cfg(test)]
mod tests;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use url::{Url, form_urlencoded};

use super::challenge::BearerChallenge;
use super::discovery::{Discovered, discover};
use super::metadata::is_same_issuer;
use super::registration::register;
use super::step_up::StepUp;
use super::token_request::{TokenGrant, TokenRequest};
use super::url_rules::{MAX_SHOWN_CHARS, OAuthClient, without_parameters};
use super::vault::{SignInNumber, SignInRecord, binding};
use super::{ClientCredential, Grant, OAuthError, RegisteredClient, Settings};
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::secret::{Secret, random_token};
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::secrets::sha256::sha256;
use weir_base::text::quote::quote;

/// Sign-in that waits for the response of the authorization server.
pub struct SignIn {
    /// Name of the upstream.
    upstream: String,
    settings: Settings,
    discovered: Discovered,
    client: RegisteredClient,
    redirect_uri: String,
    resource: Option<String>,
    scope: Option<String>,
    step_up: StepUp,
    verifier: Secret,
    state: Secret,
    url: Url,
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
        let (resource, scope) = (discovered.resource(settings), discovered.scope(settings));
        let is_of =
            |it: &&SignInRecord| it.is_of(settings) && is_same_issuer(&it.issuer, &server.issuer);
        let (step_up, before) = match earlier.filter(is_of) {
            Some(earlier) => (earlier.step_up.clone(), earlier.scope.as_deref()),
            None => (StepUp::default(), None),
        };
        let scope = step_up.widen(scope, before);
        let (registered, method) =
            register(&client, server, configured, metadata_url, &redirect_uri, scope.as_deref())
                .await?;
        let (verifier, state) = (random_token(), random_token());
        let challenge = URL_SAFE_NO_PAD.encode(sha256(verifier.as_bytes()));
        let mut parameters = vec![
            ("response_type", "code"),
            ("client_id", &*registered.id),
            ("redirect_uri", &*redirect_uri),
            ("state", &*state),
            ("code_challenge", &*challenge),
            ("code_challenge_method", "S256"),
        ];
        let optional = [("resource", resource.as_deref()), ("scope", scope.as_deref())];
        parameters.extend(optional.into_iter().filter_map(|(name, it)| Some((name, it?))));
        parameters.extend(settings.params.iter().map(|(name, value)| (&**name, &**value)));
        let is_own = |name: &str| parameters.iter().any(|(own, _)| *own == name);
        let mut url = Url::parse(&without_parameters(endpoint, is_own))
            .map_err(|_| refuse("has no authorization endpoint"))?;
        url.set_fragment(None);
        url.query_pairs_mut().extend_pairs(parameters);
        if let Some(method) = method {
            // RFC 7591, 3.2.1: the server may choose another method than the requested one.
            discovered.server.token_endpoint_auth_methods_supported = Some(vec![method]);
        }
        Ok(Self {
            upstream: upstream.to_owned(),
            settings: settings.clone(),
            client: registered,
            redirect_uri,
            resource,
            scope,
            step_up,
            verifier: Secret::from(&*verifier),
            state: Secret::from(&*state),
            url,
            discovered,
        })
    }

    /// URL that the user opens in a browser.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Issuer at which the user signs in.
    pub(crate) fn issuer(&self) -> &str {
        &self.discovered.server.issuer
    }

    /// Returns the place at which the user signs in: the issuer, and the origin of its page if that
    /// is another one.
    pub fn place(&self) -> String {
        let (issuer, page) = (self.issuer(), self.url.origin());
        match Url::parse(issuer).is_ok_and(|issuer| issuer.origin() == page) {
            true => issuer.to_owned(),
            false => format!("{issuer}, on a page of {}", page.ascii_serialization()),
        }
    }

    /// Returns whether a query, with which a browser came, is the response to this sign-in.
    pub fn is_response(&self, query: &str) -> bool {
        let state = parameter(query, "state").unwrap_or_default();
        state.as_bytes().ct_eq(self.state.expose().as_bytes()).into()
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
        let code = self.check(query)?;
        let server = &self.discovered.server;
        let (verifier, redirect_uri) = (&self.verifier, &*self.redirect_uri);
        let request = TokenRequest {
            grant: TokenGrant::Code { code: &code, verifier, redirect_uri },
            client: Some(&self.client),
            server,
            resource: self.resource.as_deref(),
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
            resource: self.resource,
            scope: self.scope,
            step_up: self.step_up,
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

    /// Checks a response, and returns its code.
    fn check(&self, query: &str) -> Result<Secret, OAuthError> {
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
        let server = &self.discovered.server;
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
            let secrets = [&self.state, &self.verifier].into_iter().chain(self.client.secret());
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
