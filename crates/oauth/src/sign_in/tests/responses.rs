//! Tests of the responses with which a browser comes back.

use super::*;

#[tokio::test]
async fn a_response_names_the_issuer_as_the_metadata_of_the_server_do() {
    for (issuer, named, is_used) in [
        ("https://mcp.test/", "https://mcp.test/", true),
        ("https://mcp.test/", "https://mcp.test", false),
        ("https://mcp.test", "https://mcp.test/", false),
    ] {
        let script = Script::default();
        let server = metadata("")
            .replace(r#""issuer":"https://mcp.test""#, &format!(r#""issuer":"{issuer}""#));
        let sign_in = begin(&script, &server, of_user()).await.expect("it begins");
        script.document("https://mcp.test/token", r#"{"access_token":"t","token_type":"Bearer"}"#);
        let query = format!("code=c&state={}&iss={named}", sign_in.request.state.expose());
        let finished = sign_in.finish(&script, &query).await;
        assert_eq!(finished.is_ok(), is_used, "{issuer} {named}: {finished:?}");
    }
}

#[tokio::test]
async fn a_response_is_used_only_if_state_and_issuer_are_right() {
    let advertised = r#","authorization_response_iss_parameter_supported":true"#;
    let other_server = "the response is of another authorization server";
    let unnamed = "the response does not name its authorization server";
    for (more, response, error) in [
        (advertised, "code=c&state=STATE&iss=https%3A%2F%2Fmcp.test", None),
        ("", "code=c&state=STATE&iss=https%3A%2F%2Fmcp.test", None),
        ("", "code=c&state=STATE", None),
        (advertised, "code=c&state=STATE", Some(unnamed)),
        ("", "code=c&state=STATE&iss=https://mcp.test/", Some(other_server)),
        ("", "code=c&state=STATE&iss=HTTPS://mcp.test", Some(other_server)),
        ("", "code=c&state=STATE&iss=https://mcp.test:443", Some(other_server)),
        ("", "error=secret&state=STATE&iss=https://evil.test", Some(other_server)),
        (advertised, "error=secret&state=STATE", Some(unnamed)),
        ("", "code=c&state=other", Some("the response belongs to another sign-in")),
        ("", "code=c", Some("the response belongs to another sign-in")),
        ("", "state=STATE&code=", Some("the response contains no code")),
        (
            "",
            "state=STATE&error=access_denied&error_description=no%0Anever",
            Some("the authorization server refuses the sign-in: access_denied: no\\nnever"),
        ),
    ] {
        let script = Script::default();
        let sign_in = begin(&script, &metadata(more), of_user()).await.expect("it begins");
        script
            .document("https://mcp.test/token", r#"{"access_token":"t0k","token_type":"Bearer"}"#);
        script.take_requests();
        let query = response.replace("STATE", sign_in.request.state.expose());
        let finished = sign_in.finish(&script, &query).await;
        let sent = script.requests();
        match error {
            None => assert!(finished.is_ok() && sent.len() == 1, "{response}: {finished:?}"),
            Some(error) => {
                assert_eq!(finished, Err(OAuthError::Refused(error.into())), "{response}");
                assert!(sent.is_empty(), "{sent:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_secret_that_a_server_repeats_is_not_shown() {
    let secret = "canary-of-a-secret";
    let credential = ClientCredential::Secret(secret.into());
    let client = RegisteredClient { id: "weir".into(), credential };
    let grant = Grant::AuthorizationCode { client: Some(client) };
    let settings = Settings { grant, ..settings() };
    let script = Script::default();
    let sign_in = begin(&script, &metadata(""), settings.clone()).await.expect("it begins");
    let (state, code) = (sign_in.request.state.expose(), "canary-of-a-code");
    let query =
        format!("error={secret}&error_description={code}+{state}&code={code}&state={state}");
    let refused = sign_in.finish(&script, &query).await;
    let text = "the authorization server refuses the sign-in: ***: *** ***";
    assert_eq!(refused, Err(OAuthError::Refused(text.into())));
    // The server knows the tokens of the earlier sign-in.
    let tokens = ["canary-of-an-access-token", "canary-of-a-refresh-token"].map(Secret::from);
    let [access_token, refresh_token] = tokens.clone();
    let refresh_token = Some(refresh_token);
    let earlier = SignInRecord { access_token, refresh_token, ..record() };
    for canary in [secret, tokens[0].expose(), tokens[1].expose()] {
        let server = metadata("").replace("\"https://mcp.test\"", &format!("\"{canary}\""));
        script.document(SERVER, &server);
        let redirect_uri = "http://127.0.0.1:7/callback".to_owned();
        let challenge = BearerChallenge::default();
        let begun =
            SignIn::begin(&script, "hub", &settings, &challenge, redirect_uri, Some(&earlier));
        let error = begun.await.err().expect("refused").to_string();
        assert!(error.contains("another issuer, ***:"), "{error}");
    }
}

#[tokio::test]
async fn a_response_with_a_parameter_twice_is_refused() {
    let script = Script::default();
    for more in ["&code=d", "&iss=https%3A%2F%2Fmcp.test&iss=x", "&error=a&error=b", "&state=x"] {
        let sign_in = begin(&script, &metadata(""), of_user()).await.expect("it begins");
        let query = format!("state={}&code=c{more}", parameters(&sign_in)["state"]);
        script.requests();
        let refused = sign_in.finish(&script, &query).await;
        let text = "the response contains a parameter twice";
        assert_eq!(refused, Err(OAuthError::Refused(text.into())), "{more}");
        assert!(script.requests().is_empty());
    }
}
