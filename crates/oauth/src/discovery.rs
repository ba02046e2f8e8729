//! Discovery: from the URL of an upstream to its authorization server (spec 2026-07-28,
//! authorization, discovery).
//!
//! A server of revision 2025-03-26 has no metadata of the resource; then its own origin is the
//! authorization server, and need not have metadata either.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant;
    use crate::testing::{Script, settings};

    const RESOURCE: &str = "https://mcp.test/.well-known/oauth-protected-resource";
    const SERVER: &str = "https://id.test/.well-known/oauth-authorization-server";

    async fn run(
        script: &Script,
        settings: &Settings,
        challenge: &BearerChallenge,
    ) -> Result<Discovered, OAuthError> {
        let upstream = Url::parse("https://mcp.test/a/mcp").expect("a URL");
        let settings = Settings { upstream, ..settings.clone() };
        discover(&OAuthClient::new(script, &settings), challenge).await
    }

    fn resource(server: &str) -> String {
        format!(
            r#"{{"resource":"https://mcp.test/a/mcp","authorization_servers":["{server}","https://b.test"],
            "scopes_supported":["x","y"]}}"#
        )
    }

    fn server(issuer: &str) -> String {
        format!(r#"{{"issuer":"{issuer}","token_endpoint":"https://id.test/token"}}"#)
    }

    #[tokio::test]
    async fn the_authorization_server_is_found_from_the_challenge_on() {
        let script = Script::default();
        script.document("https://mcp.test/meta", &resource("https://id.test"));
        script.document(SERVER, &server("https://id.test"));
        let challenge = BearerChallenge {
            resource_metadata: Some("https://mcp.test/meta".into()),
            scope: Some("z".into()),
            error: None,
        };
        let found = run(&script, &settings(), &challenge).await.expect("a server");
        assert_eq!(found.server.token_endpoint, "https://id.test/token");
        assert_eq!(found.resource.as_deref(), Some("https://mcp.test/a/mcp"));
        assert_eq!(found.scope.as_deref(), Some("z"));
        assert_eq!(script.requests(), ["GET https://mcp.test/meta", &format!("GET {SERVER}")]);
    }

    #[tokio::test]
    async fn without_a_challenge_the_usual_places_are_tried_in_order() {
        let script = Script::default();
        script.document(RESOURCE, &resource("https://id.test/t"));
        let openid = "https://id.test/t/.well-known/openid-configuration";
        script.document(openid, &server("https://id.test/t"));
        script.page(&format!("{SERVER}/t"));
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        assert_eq!(found.expect("a server").scope.as_deref(), Some("x y"));
        assert_eq!(
            script.requests(),
            [
                &format!("GET {RESOURCE}/a/mcp"),
                &format!("GET {RESOURCE}"),
                &format!("GET {SERVER}/t"),
                "GET https://id.test/.well-known/openid-configuration/t",
                &format!("GET {openid}"),
            ]
        );
    }

    #[tokio::test]
    async fn a_server_of_an_old_revision_is_its_own_authorization_server() {
        let script = Script::default();
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        let found = found.expect("a server");
        assert_eq!(found.server, ServerMetadata::default_of("https://mcp.test"));
        assert_eq!(found.server.token_endpoint, "https://mcp.test/token");
        let own = "https://mcp.test/.well-known/oauth-authorization-server";
        script.document(own, &server("https://mcp.test/"));
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        assert_eq!(found.expect("a server").server.token_endpoint, "https://id.test/token");
    }

    #[tokio::test]
    async fn metadata_of_another_server_or_issuer_are_refused() {
        for (issuer, document, error) in [
            (
                "https://id.test",
                server("https://ID.test"),
                "the metadata at https://id.test/.well-known/oauth-authorization-server are of \
                 another issuer, https://ID.test: if that is right, set auth.issuer and \
                 auth.metadata_issuer",
            ),
            (
                "https://id.test/",
                server("https://id.test//"),
                "the metadata at https://id.test/.well-known/oauth-authorization-server are of \
                 another issuer, https://id.test//: if that is right, set auth.issuer and \
                 auth.metadata_issuer",
            ),
            (
                "https://id.test/x/..",
                server("https://id.test"),
                "the issuer https://id.test/x/.. is not a URL",
            ),
            (
                "http://id.test",
                server("http://id.test"),
                "http://id.test/.well-known/oauth-authorization-server is not an https:// URL",
            ),
            ("id.test", server("id.test"), "the issuer id.test is not a URL"),
            (
                "https://ann:hunter2@id.test",
                server("https://ann:hunter2@id.test"),
                "the issuer https://***@id.test is not a URL",
            ),
            (
                "https://id.test",
                server("https://ann:hunter2@id.test"),
                "the metadata at https://id.test/.well-known/oauth-authorization-server are of \
                 another issuer, https://***@id.test: if that is right, set auth.issuer and \
                 auth.metadata_issuer",
            ),
        ] {
            let script = Script::default();
            script.document(RESOURCE, &resource(issuer));
            script.document(SERVER, &document);
            let found = run(&script, &settings(), &BearerChallenge::default()).await;
            assert_eq!(found, Err(OAuthError::Refused(error.into())), "{issuer}");
        }
        let script = Script::default();
        script.document(RESOURCE, &resource("https://id.test").replace("/a/mcp", "/b"));
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        let error = "the metadata of the upstream are about another server, https://mcp.test/b";
        assert_eq!(found, Err(OAuthError::Refused(error.into())));
        let script = Script::default();
        script.document(RESOURCE, &resource("https://id.test").replace("//", "//ann:hunter2@"));
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        let error = "the metadata of the upstream name a resource that is not a URL in its usual \
                     form, https://***@mcp.test/a/mcp";
        assert_eq!(found, Err(OAuthError::Refused(error.into())));
        let script = Script::default();
        script.document(RESOURCE, &resource("https://id.test").replace("/a/mcp", "/b/../a/mcp"));
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        let error = "the metadata of the upstream name a resource that is not a URL in its usual \
                     form, https://mcp.test/b/../a/mcp";
        assert_eq!(found, Err(OAuthError::Refused(error.into())));
    }

    #[tokio::test]
    async fn an_issuer_may_have_a_slash_behind_its_host_in_one_of_its_documents() {
        for named in ["https://id.test", "https://id.test/"] {
            for own in ["https://id.test", "https://id.test/"] {
                for issuer in [None, Some("https://id.test"), Some("https://id.test/")] {
                    let script = Script::default();
                    script.document(RESOURCE, &resource(named));
                    script.document(SERVER, &server(own));
                    let issuer = issuer.map(str::to_owned);
                    let settings = Settings { issuer, ..settings() };
                    let found = run(&script, &settings, &BearerChallenge::default()).await;
                    // The text is that of the server itself, which its responses repeat.
                    assert_eq!(found.expect("a server").server.issuer, own);
                }
            }
        }
        for (named, own) in [
            ("https://id.test/t", "https://id.test/t/"),
            ("https://id.test/t/", "https://id.test/t"),
        ] {
            let script = Script::default();
            script.document(RESOURCE, &resource(named));
            script.document(&format!("{SERVER}/t"), &server(own));
            let found = run(&script, &settings(), &BearerChallenge::default()).await;
            assert!(matches!(found, Err(OAuthError::Refused(_))), "{found:?}");
            script.document(RESOURCE, &resource(own));
            let settings = Settings { issuer: Some(named.to_owned()), ..settings() };
            let found = run(&script, &settings, &BearerChallenge::default()).await;
            assert!(matches!(found, Err(OAuthError::Refused(_))), "{found:?}");
        }
    }

    #[tokio::test]
    async fn a_configured_issuer_is_the_only_one() {
        let pinned = Settings { issuer: Some("https://id.test".into()), ..settings() };
        let script = Script::default();
        script.document(SERVER, &server("https://id.test"));
        let found = run(&script, &pinned, &BearerChallenge::default()).await;
        assert_eq!(found.expect("a server").server.issuer, "https://id.test");
        script.document(RESOURCE, &resource("https://evil.test"));
        let found = run(&script, &pinned, &BearerChallenge::default()).await;
        let error = "the upstream names the authorization server https://evil.test instead of \
                     https://id.test";
        assert_eq!(found, Err(OAuthError::Refused(error.into())));
        // Its metadata are elsewhere, and name another issuer.
        let metadata_url = Some("https://id.test/meta".to_owned());
        let elsewhere = Settings { metadata_url, ..pinned.clone() };
        let script = Script::default();
        script.document("https://id.test/meta", &server("https://other.test"));
        let found = run(&script, &elsewhere, &BearerChallenge::default()).await;
        assert!(matches!(found, Err(OAuthError::Refused(_))), "{found:?}");
        let metadata_issuer = Some("https://other.test".to_owned());
        let known = Settings { metadata_issuer, ..elsewhere };
        script.requests();
        let found = run(&script, &known, &BearerChallenge::default()).await;
        assert_eq!(found.expect("a server").server.issuer, "https://other.test");
        assert_eq!(script.requests().last().map(String::as_str), Some("GET https://id.test/meta"));
        // One of several is enough.
        let script = Script::default();
        let second = Settings { issuer: Some("https://b.test".into()), ..settings() };
        script.document(RESOURCE, &resource("https://evil.test"));
        script
            .document("https://b.test/.well-known/openid-configuration", &server("https://b.test"));
        let found = run(&script, &second, &BearerChallenge::default()).await;
        assert_eq!(found.expect("a server").server.issuer, "https://b.test");
    }

    #[tokio::test]
    async fn an_upstream_without_tls_is_not_asked_for_its_authorization_server() {
        let script = Script::default();
        script.document(SERVER, &server("https://id.test"));
        let own = "http://mcp.test/.well-known/oauth-authorization-server";
        let resource_url = "http://mcp.test/.well-known/oauth-protected-resource/mcp";
        script.document(resource_url, &resource("https://evil.test"));
        script
            .document(own, r#"{"issuer":"http://mcp.test","token_endpoint":"http://mcp.test/t"}"#);
        let upstream = Url::parse("http://mcp.test/mcp").expect("a URL");
        let pinned = Settings { issuer: Some("https://id.test".into()), upstream, ..settings() };
        script.document("https://evil.test/meta", &resource("https://evil.test"));
        let resource_metadata = Some("https://evil.test/meta".to_owned());
        let challenge = BearerChallenge { resource_metadata, ..BearerChallenge::default() };
        let found = discover(&OAuthClient::new(&script, &pinned), &challenge).await;
        let found = found.expect("a server");
        assert_eq!(found.server.token_endpoint, "https://id.test/token");
        assert_eq!(found.resource(&pinned).as_deref(), Some("http://mcp.test/mcp"));
        assert_eq!(script.requests(), [format!("GET {SERVER}")]);
        // Without an issuer none is found.
        let unpinned = Settings { issuer: None, ..pinned };
        let found = discover(&OAuthClient::new(&script, &unpinned), &challenge).await;
        assert_eq!(found, Err(OAuthError::Refused(format!("{own} is not an https:// URL"))));
        assert!(script.requests().is_empty());
    }

    #[tokio::test]
    async fn a_configured_token_endpoint_needs_no_discovery() {
        let token_url = Some(hyper::Uri::from_static("https://id.test/t"));
        let settings = Settings { token_url, ..settings() };
        let script = Script::default();
        let found = run(&script, &settings, &BearerChallenge::default()).await.expect("a server");
        assert_eq!(found.server.token_endpoint, "https://id.test/t");
        assert_eq!((found.resource, found.scope), (None, None));
        assert!(script.requests().is_empty());
    }

    #[tokio::test]
    async fn a_server_that_fails_decides_nothing() {
        let script = Script::default();
        script.fail(&format!("{RESOURCE}/a/mcp"));
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        let error = format!("{RESOURCE}/a/mcp: the response status is 503 Service Unavailable");
        assert_eq!(found, Err(OAuthError::Unavailable(error)));
        script.respond(&format!("{RESOURCE}/a/mcp"), 429, "");
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        let error = format!("{RESOURCE}/a/mcp: the response status is 429 Too Many Requests");
        assert_eq!(found, Err(OAuthError::Unavailable(error)));
    }

    #[tokio::test]
    async fn a_challenge_with_a_url_that_is_not_protected_leads_to_the_usual_place() {
        let script = Script::default();
        script.document(RESOURCE, &resource("https://id.test"));
        script.document(SERVER, &server("https://id.test"));
        for url in ["http://mcp.test/meta", "/meta", ""] {
            let resource_metadata = Some(url.to_owned());
            let challenge = BearerChallenge { resource_metadata, ..BearerChallenge::default() };
            let found = run(&script, &settings(), &challenge).await;
            assert_eq!(found.expect("a server").server.issuer, "https://id.test");
            assert!(script.requests().iter().all(|request| request.starts_with("GET https://")));
        }
    }

    #[test]
    fn an_upstream_without_metadata_is_named_by_its_url() {
        for (url, expected) in [
            ("HTTPS://Mcp.Test:443/", "https://mcp.test"),
            ("https://mcp.test/mcp", "https://mcp.test/mcp"),
            ("http://mcp.test:8080/a/", "http://mcp.test:8080/a/"),
        ] {
            assert_eq!(name(&Url::parse(url).expect("a URL")), expected);
        }
    }

    #[test]
    fn a_sign_in_of_a_user_is_to_last_where_the_server_supports_that() {
        let scopes = |grant: Grant, scopes: Option<&str>, supported: &[&str]| {
            let settings = Settings { grant, ..settings() };
            let mut server = ServerMetadata::default_of("https://id.test");
            server.scopes_supported = Some(supported.iter().map(|it| (*it).to_owned()).collect());
            let scope = scopes.map(str::to_owned);
            Discovered { server, resource: None, scope }.scope(&settings)
        };
        let user = || Grant::AuthorizationCode { client: None };
        let machine = || settings().grant;
        assert_eq!(
            scopes(user(), Some("a"), &["offline_access"]).as_deref(),
            Some("a offline_access")
        );
        assert_eq!(
            scopes(user(), None, &["x", "offline_access"]).as_deref(),
            Some("offline_access")
        );
        assert_eq!(scopes(user(), Some("a"), &["a"]).as_deref(), Some("a"));
        assert_eq!(scopes(machine(), Some("a"), &["offline_access"]).as_deref(), Some("a"));
        assert_eq!(scopes(machine(), None, &["offline_access"]), None);
        // Configured scopes are the only ones.
        let mut server = ServerMetadata::default_of("https://id.test");
        server.scopes_supported = Some(vec!["offline_access".to_owned()]);
        let found = Discovered { server, resource: None, scope: Some("a".into()) };
        let configured = |scopes: &[&str]| {
            let scopes = scopes.iter().map(|it| (*it).to_owned()).collect();
            found.scope(&Settings { grant: user(), scopes: Some(scopes), ..settings() })
        };
        assert_eq!(configured(&["b", "c"]).as_deref(), Some("b c"));
        assert_eq!(configured(&[]), None);
    }

    #[tokio::test]
    async fn a_document_with_null_is_read_and_a_wrong_or_empty_one_ends_the_discovery() {
        for (document, error) in [
            (resource("https://id.test").replace(r#"["x","y"]"#, "null"), None),
            (
                resource("https://id.test").replace(r#"["x","y"]"#, "7"),
                Some(
                    "https://mcp.test/.well-known/oauth-protected-resource/a/mcp: the metadata are wrong",
                ),
            ),
            (
                r#"{"resource":"https://mcp.test/a/mcp","authorization_servers":null}"#.into(),
                Some("the metadata of the upstream name no authorization server: set auth.issuer"),
            ),
            (
                resource("https://id.test")
                    .replace(r#""x""#, &format!("\"{}\"", "x".repeat(5_000))),
                Some("the upstream names too many scopes: set auth.scopes"),
            ),
        ] {
            let script = Script::default();
            script.document(&format!("{RESOURCE}/a/mcp"), &document);
            let metadata = server("https://id.test");
            let flags = r#","client_id_metadata_document_supported":null}"#;
            script.document(SERVER, &format!("{}{flags}", metadata.trim_end_matches('}')));
            // A server at the upstream's origin is not taken instead.
            let own = "https://mcp.test/.well-known/oauth-authorization-server";
            script.document(own, &server("https://mcp.test"));
            let found = run(&script, &settings(), &BearerChallenge::default()).await;
            match error {
                None => assert_eq!(found.expect("a server").server.issuer, "https://id.test"),
                Some(error) => {
                    let text = found.expect_err("refused").to_string();
                    assert!(text.starts_with(error), "{text}");
                    assert_eq!(script.requests().last().filter(|it| it.ends_with(own)), None);
                }
            }
        }
        // A page of another kind in JSON is none.
        let script = Script::default();
        script.document(&format!("{RESOURCE}/a/mcp"), r#"{"error":"not found"}"#);
        script.document(RESOURCE, &resource("https://id.test"));
        script.document(SERVER, &server("https://id.test"));
        let found = run(&script, &settings(), &BearerChallenge::default()).await;
        assert_eq!(found.expect("a server").server.issuer, "https://id.test");
    }
}
