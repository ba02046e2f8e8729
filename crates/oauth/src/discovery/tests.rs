//! Tests of the discovery of authorization servers.

mod issuers;

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
async fn an_upstream_without_tls_is_not_asked_for_its_authorization_server() {
    let script = Script::default();
    script.document(SERVER, &server("https://id.test"));
    let own = "http://mcp.test/.well-known/oauth-authorization-server";
    let resource_url = "http://mcp.test/.well-known/oauth-protected-resource/mcp";
    script.document(resource_url, &resource("https://evil.test"));
    script.document(own, r#"{"issuer":"http://mcp.test","token_endpoint":"http://mcp.test/t"}"#);
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
    assert_eq!(scopes(user(), Some("a"), &["offline_access"]).as_deref(), Some("a offline_access"));
    assert_eq!(scopes(user(), None, &["x", "offline_access"]).as_deref(), Some("offline_access"));
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
            resource("https://id.test").replace(r#""x""#, &format!("\"{}\"", "x".repeat(5_000))),
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
