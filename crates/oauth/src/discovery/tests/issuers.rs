//! Tests of the issuers that documents name, or the configuration.

use super::*;

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
    for (named, own) in
        [("https://id.test/t", "https://id.test/t/"), ("https://id.test/t/", "https://id.test/t")]
    {
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
    script.document("https://b.test/.well-known/openid-configuration", &server("https://b.test"));
    let found = run(&script, &second, &BearerChallenge::default()).await;
    assert_eq!(found.expect("a server").server.issuer, "https://b.test");
}
