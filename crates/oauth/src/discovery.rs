//! Discovery: from the URL of an upstream to its authorization server (spec 2026-07-28,
//! authorization, discovery).
//!
//! A server of revision 2025-03-26 has no metadata of the resource; then its own origin is the
//! authorization server, and need not have metadata either.

#[cfg(test)]
mod tests;

use std::fmt::Display;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use url::Url;

use super::challenge::BearerChallenge;
use super::metadata::{
    Document, ResourceMetadata, ServerMetadata, is_same_issuer, resource_metadata_urls,
    server_metadata_urls,
};
use super::step_up::MAX_SCOPE_BYTES;
use super::url_rules::{MAX_SHOWN_CHARS, OAuthClient, parse_name, shown_url};
use super::{OAuthError, ResourceIndicator, Settings};
use weir_base::json::Object;
use weir_base::text::quote::quote;

/// Authorization server of an upstream, and what the upstream says about its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Discovered {
    pub(super) server: ServerMetadata,
    /// Name that the upstream gives itself.
    pub(super) resource: Option<String>,
    /// Scopes that the upstream names, separated by spaces.
    pub(super) scope: Option<String>,
}

impl Discovered {
    /// Returns the resource for which tokens are requested.
    pub(super) fn resource(&self, settings: &Settings) -> Option<String> {
        match &settings.resource {
            ResourceIndicator::Auto => {
                Some(self.resource.clone().unwrap_or_else(|| name(&settings.upstream)))
            }
            ResourceIndicator::None => None,
            ResourceIndicator::Named(resource) => Some(resource.clone()),
        }
    }

    /// Returns the scopes that are requested. A user's sign-in is to last, so `offline_access` is
    /// added where the server has it (spec 2026-07-28, authorization, refresh tokens).
    pub(super) fn scope(&self, settings: &Settings) -> Option<String> {
        // Those that are configured are the only ones.
        if let Some(scopes) = &settings.scopes {
            return (!scopes.is_empty()).then(|| scopes.join(" "));
        }
        let offline = "offline_access";
        let is_supported = settings.grant.is_of_user()
            && self.server.scopes_supported.iter().flatten().any(|scope| scope == offline);
        let scopes = self.scope.as_deref().unwrap_or_default();
        let mut scopes: Vec<_> = scopes.split_whitespace().collect();
        if is_supported && !scopes.contains(&offline) {
            scopes.push(offline);
        }
        (!scopes.is_empty()).then(|| scopes.join(" "))
    }
}

/// Returns the identifier of the upstream as a resource, if it has no metadata (spec 2026-07-28,
/// authorization, canonical server URI).
fn name(upstream: &Url) -> String {
    let origin = upstream.origin().ascii_serialization();
    match upstream.path() {
        "/" => origin,
        path => origin + path,
    }
}

/// Finds the authorization server of the client's upstream.
pub(super) async fn discover(
    client: &OAuthClient<'_>,
    challenge: &BearerChallenge,
) -> Result<Discovered, OAuthError> {
    let settings = client.settings;
    if let Some(token_url) = &settings.token_url {
        let token_endpoint = token_url.to_string();
        let issuer = settings.issuer.clone().unwrap_or_else(|| token_endpoint.clone());
        let server = ServerMetadata::of_token_endpoint(issuer, token_endpoint, None);
        return Ok(Discovered { server, resource: None, scope: challenge.scope.clone() });
    }
    let metadata = resource_metadata(client, challenge).await?;
    let issuers = metadata.as_ref().map_or(&[][..], |metadata| &metadata.authorization_servers);
    let server = match (&settings.issuer, issuers) {
        (Some(pinned), issuers)
            if issuers.is_empty() || issuers.iter().any(|it| is_same_issuer(it, pinned)) =>
        {
            server_metadata(client, pinned).await?
        }
        (Some(pinned), [other, ..]) => return Err(OAuthError::Refused(changed(pinned, other))),
        (None, [issuer, ..]) => server_metadata(client, issuer).await?,
        // Spec 2026-07-28, authorization server location: without a server there is no way on.
        (None, []) if metadata.is_some() => {
            let text = "the metadata of the upstream name no authorization server: set auth.issuer";
            return Err(OAuthError::Refused(text.into()));
        }
        (_, []) => server_at_origin(client).await?,
    };
    let (resource, supported) = match metadata {
        Some(metadata) => (Some(metadata.resource), metadata.scopes_supported),
        None => (None, None),
    };
    // Spec 2026-07-28, authorization, scope selection strategy.
    let scope = challenge.scope.clone().or_else(|| supported.map(|scopes| scopes.join(" ")));
    if scope.as_ref().is_some_and(|scope| scope.len() > MAX_SCOPE_BYTES) {
        let text = "the upstream names too many scopes: set auth.scopes";
        return Err(OAuthError::Refused(text.into()));
    }
    Ok(Discovered { server, resource, scope })
}

/// Returns the text about an authorization server that is not the expected one.
pub(super) fn changed(expected: &str, named: &str) -> String {
    let [expected, named] = [expected, named].map(shown_url);
    format!("the upstream names the authorization server {named} instead of {expected}")
}

/// Returns the metadata of the upstream as a resource; `None` if it has none.
async fn resource_metadata(
    client: &OAuthClient<'_>,
    challenge: &BearerChallenge,
) -> Result<Option<ResourceMetadata>, OAuthError> {
    let upstream = &client.settings.upstream;
    // What it says without TLS could be changed on the way. Its issuer is configured.
    if !client.settings.protects(upstream) {
        return Ok(None);
    }
    // Servers behind a TLS proxy name URLs that are wrong, such as http:// ones.
    let named = challenge.resource_metadata.iter().filter(|url| match client.check(url) {
        Ok(_) => true,
        Err(why) => {
            tracing::debug!(why, "resource_metadata of the challenge cannot be used");
            false
        }
    });
    for url in named.chain(&resource_metadata_urls(upstream)) {
        let Some(metadata) = fetch::<ResourceMetadata>(client, url).await? else { continue };
        if !metadata.describes(upstream) {
            let named = shown_url(&metadata.resource);
            let what = match parse_name(&metadata.resource) {
                Some(_) => "are about another server",
                None => "name a resource that is not a URL in its usual form",
            };
            let text = format!("the metadata of the upstream {what}, {named}");
            return Err(OAuthError::Refused(text));
        }
        return Ok(Some(metadata));
    }
    Ok(None)
}

/// Returns the metadata of an authorization server.
async fn server_metadata(
    client: &OAuthClient<'_>,
    issuer: &str,
) -> Result<ServerMetadata, OAuthError> {
    let shown = shown_url(issuer);
    let not_a_url = || OAuthError::Refused(format!("the issuer {shown} is not a URL"));
    let url = parse_name(issuer).ok_or_else(not_a_url)?;
    let Settings { metadata_url, metadata_issuer, .. } = client.settings;
    let urls = match metadata_url {
        Some(url) => vec![url.clone()],
        None => server_metadata_urls(&url),
    };
    match find_server(client, urls, metadata_issuer.as_deref().unwrap_or(issuer)).await? {
        Some(metadata) => Ok(metadata),
        None => {
            let text = format!("the authorization server {shown} has no metadata");
            Err(OAuthError::Unavailable(text))
        }
    }
}

/// Returns the metadata of the authorization server at the upstream's origin, or the endpoints that
/// it has without metadata (spec 2025-03-26, authorization, 2.3).
async fn server_at_origin(client: &OAuthClient<'_>) -> Result<ServerMetadata, OAuthError> {
    let origin = client.settings.upstream.origin().ascii_serialization();
    let found = match Url::parse(&origin) {
        Ok(url) => find_server(client, server_metadata_urls(&url), &origin).await?,
        Err(_) => None,
    };
    Ok(found.unwrap_or_else(|| ServerMetadata::default_of(&origin)))
}

/// Looks for the metadata of the authorization server with this issuer.
async fn find_server(
    client: &OAuthClient<'_>,
    urls: Vec<String>,
    issuer: &str,
) -> Result<Option<ServerMetadata>, OAuthError> {
    for url in urls {
        let Some(metadata) = fetch::<ServerMetadata>(client, &url).await? else { continue };
        // RFC 8414, 3.3: a document of another issuer must not be used.
        if !is_same_issuer(issuer, &metadata.issuer) {
            let named = shown_url(&metadata.issuer);
            let text = format!(
                "the metadata at {} are of another issuer, {named}: if that is right, set \
                 auth.issuer and auth.metadata_issuer",
                quote(&url, MAX_SHOWN_CHARS)
            );
            return Err(OAuthError::Refused(text));
        }
        return Ok(Some(metadata));
    }
    Ok(None)
}

/// Fetches a document; `None` if there is none of this kind: many servers send a page of theirs
/// for any URL. A document of this kind that cannot be read is not skipped: what is found instead
/// could be another server.
async fn fetch<T: Document>(client: &OAuthClient<'_>, url: &str) -> Result<Option<T>, OAuthError> {
    let response = client.send(url, Request::new(Bytes::new())).await?;
    match response.status() {
        StatusCode::OK => match Object::parse(response.body().clone()) {
            Ok(document) if document.get(T::MARK).is_some() => {
                let read = serde_json::from_slice(response.body()).map(Some);
                read.map_err(|error| {
                    unusable(url, &format_args!("the metadata are wrong: {error}"))
                })
            }
            _ => Ok(None),
        },
        // The document may be there later, and name another server than what is found without it.
        status if status.is_server_error() || IS_BUSY.contains(&status) => {
            Err(unusable(url, &format_args!("the response status is {status}")))
        }
        _ => Ok(None),
    }
}

/// Statuses of a server that responds later.
const IS_BUSY: [StatusCode; 3] =
    [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];

fn unusable(url: &str, why: &dyn Display) -> OAuthError {
    let (url, why) = (quote(url, MAX_SHOWN_CHARS), quote(&why.to_string(), MAX_SHOWN_CHARS));
    OAuthError::Unavailable(format!("{url}: {why}"))
}
