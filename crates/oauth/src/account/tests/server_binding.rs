//! Tests of the authorization server to which an account's credentials belong.

use super::*;
use crate::ResourceIndicator;
use crate::vault::BoundClient;

#[tokio::test(start_paused = true)]
async fn the_binding_of_credentials_outlives_a_restart_and_changes_with_the_configuration() {
    let state = tempfile::tempdir().expect("a folder");
    let kept = Settings { state: Some(state.path().into()), ..settings() };
    let place = "https://mcp.test/.well-known/oauth-protected-resource/mcp";
    let begin = async |settings: Settings, issuer: &str| {
        let (account, script) = open(settings);
        let resource = format!(
            r#"{{"resource":"https://mcp.test/mcp","authorization_servers":["{issuer}"]}}"#
        );
        script.document(place, &resource);
        let metadata = format!(r#"{{"issuer":"{issuer}","token_endpoint":"{TOKEN_URL}"}}"#);
        script.document(&format!("{issuer}/.well-known/oauth-authorization-server"), &metadata);
        issue(&script, "token", 100);
        let issued = account.refresh(None, BearerChallenge::default()).await;
        let posts = script.requests().iter().filter(|it| it.starts_with("POST")).count();
        (issued.map(|token| sent(&token)), posts)
    };
    let of_client = |id: &str| Settings {
        grant: Grant::ClientCredentials(RegisteredClient {
            id: id.into(),
            credential: ClientCredential::Secret("hunter2".into()),
        }),
        ..kept.clone()
    };
    let issued = || (Ok("Bearer token".to_owned()), 1);
    let error = |issuer: &str, before: &str| {
        let text = format!(
            "the upstream names the authorization server {issuer} instead of {before}: if that \
             is right, set auth.issuer"
        );
        (Err(OAuthError::Refused(text)), 0)
    };
    let (first, other) = ("https://id.test", "https://evil.test");
    assert_eq!(begin(of_client("weir"), first).await, issued());
    assert_eq!(begin(of_client("weir"), other).await, error(other, first));
    // The call limit, or the URL, is another one.
    let elsewhere = Settings { url_hash: "another".into(), ..of_client("weir") };
    assert_eq!(begin(elsewhere, other).await, error(other, first));
    let pinned = Settings { issuer: Some(other.into()), ..of_client("weir") };
    assert_eq!(begin(pinned, other).await, issued());
    assert_eq!(begin(of_client("weir"), first).await, error(first, other));
    assert_eq!(begin(of_client("next"), first).await, issued());
    assert_eq!(begin(of_client("next"), other).await, error(other, first));
    // Those of the former client are still bound.
    assert_eq!(begin(of_client("weir"), first).await, error(first, other));
    // Without a state folder the account that replaces another one knows it.
    let (before, _) = open(settings());
    for (id, issuer) in [("weir", first), ("next", other)] {
        let bound = BoundClient { client_id: Some(id.into()), issuer: issuer.into() };
        before.state.lock().server.bind(bound);
    }
    let (after, script) = open(settings());
    after.succeed(&before);
    script.document(
        "https://mcp.test/.well-known/oauth-authorization-server",
        r#"{"issuer":"https://mcp.test","token_endpoint":"https://mcp.test/token"}"#,
    );
    let refused = after.refresh(None, BearerChallenge::default()).await;
    let text = error("https://mcp.test", first).0;
    assert_eq!(refused.map(|token| sent(&token)), text);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_metadata_repeat_is_not_shown() {
    let (secret, access_token) = ("canary-of-a-client-secret", "canary-of-an-access-token");
    let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let own = "https://mcp.test/.well-known/oauth-protected-resource/mcp";
    let place = "https://id.test/.well-known/oauth-authorization-server";
    let resource =
        r#"{"resource":"https://mcp.test/mcp","authorization_servers":["https://id.test"]}"#;
    let server = r#"{"issuer":"https://id.test","token_endpoint":"https://id.test/token"}"#;
    for canary in [secret.to_owned(), access_token.to_owned(), percent(secret)] {
        for (url, document) in [
            (own, resource.replace("mcp.test/mcp", &format!("mcp.test/{canary}"))),
            (own, resource.replace("id.test", &format!("evil.test/{canary}"))),
            (own, resource.replace(r#"["https://id.test"]"#, &format!("\"{canary}\""))),
            (place, server.replace("id.test\"", &format!("id.test/{canary}\""))),
            (place, server.replace("https://id.test/token", &canary)),
            (place, server.replace("/token", &format!("/{canary}"))),
        ] {
            let credential = ClientCredential::Secret(secret.into());
            let client = RegisteredClient { id: "weir".into(), credential };
            let grant = Grant::ClientCredentials(client);
            let (account, script) = open(Settings { grant, ..settings() });
            script.document(own, resource);
            script.document(place, server);
            issue(&script, access_token, 100);
            let issued = account.refresh(None, BearerChallenge::default()).await;
            script.document(url, &document);
            let failed = account.refresh(issued.as_ref().ok(), BearerChallenge::default()).await;
            let error = failed.expect_err(&document).to_string();
            assert!(error.contains("***") && !error.contains(&canary), "{error}");
            assert!(account.is_repeated_in(&canary));
            let outcome = format!("{:?}", *account.outcomes().borrow());
            assert!(!outcome.contains(&canary), "{outcome}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_go_to_the_first_authorization_server_only() {
    let (account, script) = open(settings());
    assert_eq!(token(&account).await, Ok(None));
    let place = "https://mcp.test/.well-known/oauth-protected-resource/mcp";
    let resource = |issuer: &str| {
        format!(r#"{{"resource":"https://mcp.test/mcp","authorization_servers":["{issuer}"]}}"#)
    };
    let server = |issuer: &str| {
        let metadata = format!(r#"{{"issuer":"{issuer}","token_endpoint":"{issuer}/token"}}"#);
        script.document(&format!("{issuer}/.well-known/oauth-authorization-server"), &metadata);
    };
    server("https://id.test");
    server("https://evil.test");
    script.document(place, &resource("https://id.test"));
    issue(&script, "first", 100);
    let first = account.refresh(None, BearerChallenge::default()).await.expect("issued");
    assert_eq!(sent(&first), "Bearer first");
    script.requests();
    script.document(place, &resource("https://evil.test"));
    let refreshed = account.refresh(Some(&first), BearerChallenge::default()).await;
    let error = "the upstream names the authorization server https://evil.test instead of \
                 https://id.test: if that is right, set auth.issuer";
    assert_eq!(refreshed.map(|token| sent(&token)), Err(OAuthError::Refused(error.into())));
    let requests = script.requests();
    assert!(requests.iter().all(|request| request.starts_with("GET ")), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_moved_is_found_after_a_failure() {
    let (account, script) = open(settings());
    let place = "https://mcp.test/.well-known/oauth-authorization-server";
    let moved = |to: &str| {
        format!(r#"{{"issuer":"https://mcp.test","token_endpoint":"https://mcp.test/{to}"}}"#)
    };
    script.document(place, &moved("token"));
    let issued = r#"{"access_token":"x","token_type":"Bearer","expires_in":10}"#;
    script.document("https://mcp.test/token", issued);
    account.refresh(None, BearerChallenge::default()).await.expect("issued");
    script.respond("https://mcp.test/token", 404, "");
    script.document(place, &moved("new"));
    script.document("https://mcp.test/new", issued);
    tokio::time::advance(Duration::from_secs(11)).await;
    token(&account).await.expect_err("the former endpoint is gone");
    tokio::time::advance(Duration::from_secs(75)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer x".into())));
}

#[tokio::test(start_paused = true)]
async fn a_request_names_the_configured_scopes_and_resource_or_those_of_the_upstream() {
    let place = "https://mcp.test/.well-known/oauth-protected-resource";
    let metadata = r#"{"resource":"https://mcp.test","authorization_servers":["https://mcp.test"],"scopes_supported":["x","y"]}"#;
    let scope = |text: &str| Some(("scope".to_owned(), text.to_owned()));
    let resource = |text: &str| Some(("resource".to_owned(), text.to_owned()));
    let named = ResourceIndicator::Named("urn:x".into());
    let configured = Some(vec!["a".to_owned(), "b".to_owned()]);
    for (has_metadata, settings, expected) in [
        (true, settings(), [resource("https://mcp.test"), scope("x y")]),
        (false, settings(), [resource("https://mcp.test/mcp"), None]),
        (
            true,
            Settings { resource: named, scopes: configured, ..settings() },
            [resource("urn:x"), scope("a b")],
        ),
        (
            true,
            Settings { resource: ResourceIndicator::None, scopes: Some(vec![]), ..settings() },
            [None, None],
        ),
        (
            true,
            Settings {
                resource: ResourceIndicator::None,
                scopes: Some(vec![]),
                params: vec![("audience".into(), "urn:y".into())],
                ..settings()
            },
            [Some(("audience".to_owned(), "urn:y".to_owned())), None],
        ),
    ] {
        let (account, script) = open(settings);
        if has_metadata {
            script.document(place, metadata);
        }
        script.document(
            "https://mcp.test/.well-known/oauth-authorization-server",
            r#"{"issuer":"https://mcp.test","token_endpoint":"https://mcp.test/token"}"#,
        );
        script.document("https://mcp.test/token", r#"{"access_token":"x","token_type":"Bearer"}"#);
        account.refresh(None, BearerChallenge::default()).await.expect("issued");
        let request = script.take_requests().pop().expect("a request");
        let form = url::form_urlencoded::parse(request.body()).into_owned();
        let grant = ("grant_type".to_owned(), "client_credentials".to_owned());
        let expected: Vec<_> = [Some(grant)].into_iter().chain(expected).flatten().collect();
        assert_eq!(form.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_credentials_belong_to_the_first_server_that_has_issued_a_token() {
    let (account, script) = open(settings());
    let place = "https://mcp.test/.well-known/oauth-protected-resource";
    let name_server = |issuer: &str| {
        let text = format!(
            r#"{{"resource":"https://mcp.test/mcp","authorization_servers":["{issuer}"]}}"#
        );
        script.document(place, &text);
        let text = format!(r#"{{"issuer":"{issuer}","token_endpoint":"https://id.test/token"}}"#);
        script.document(&format!("{issuer}/.well-known/oauth-authorization-server"), &text);
    };
    name_server("https://down.test");
    script.fail(TOKEN_URL);
    let failed = account.refresh(None, BearerChallenge::default()).await;
    assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{failed:?}");
    name_server("https://id.test");
    issue(&script, "first", 100);
    tokio::time::advance(Duration::from_secs(5)).await;
    let issued = account.refresh(None, BearerChallenge::default()).await;
    assert_eq!(issued.as_ref().map(sent), Ok("Bearer first".into()));
}
