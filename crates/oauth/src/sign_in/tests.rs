//! Tests of the code flow.

mod responses;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use url::form_urlencoded;

use super::*;
use crate::testing::{Filtered, Script, record, settings};
use weir_base::secrets::sha256::sha256;

const SERVER: &str = "https://mcp.test/.well-known/oauth-authorization-server";

fn metadata(more: &str) -> String {
    format!(
        r#"{{"issuer":"https://mcp.test","authorization_endpoint":"https://mcp.test/authorize?a=b",
        "token_endpoint":"https://mcp.test/token","registration_endpoint":"https://mcp.test/register",
        "code_challenge_methods_supported":["plain","S256"]{more}}}"#
    )
}

/// Begins a sign-in at a server with these metadata.
async fn begin(script: &Script, metadata: &str, settings: Settings) -> Result<SignIn, OAuthError> {
    script.document(SERVER, metadata);
    script.respond("https://mcp.test/register", 201, r#"{"client_id":"new","client_secret":""}"#);
    let redirect_uri = "http://127.0.0.1:7/callback".to_owned();
    SignIn::begin(script, "hub", &settings, &BearerChallenge::default(), redirect_uri, None).await
}

fn of_user() -> Settings {
    Settings { grant: Grant::AuthorizationCode { client: None }, ..settings() }
}

fn parameters(sign_in: &SignIn) -> std::collections::BTreeMap<String, String> {
    sign_in.request.url.query_pairs().into_owned().collect()
}

#[tokio::test]
async fn a_user_signs_in_with_pkce_at_a_client_that_was_registered_for_it() {
    let script = Script::default();
    let scopes = Some(vec!["x".to_owned(), "y".to_owned()]);
    let params = vec![("access_type".to_owned(), "offline".to_owned())];
    let settings = Settings { scopes, params, ..of_user() };
    let sign_in = begin(&script, &metadata(""), settings).await;
    let sign_in = sign_in.expect("it begins");
    let registration = script.take_requests().pop().expect("a registration");
    assert_eq!(
        std::str::from_utf8(registration.body()),
        Ok(concat!(
            r#"{"client_name":"Weir","redirect_uris":["http://127.0.0.1:7/callback"],"#,
            r#""grant_types":["authorization_code","refresh_token"],"response_types":["code"],"#,
            r#""application_type":"native","token_endpoint_auth_method":"client_secret_basic","scope":"x y"}"#
        ))
    );
    assert!(sign_in.url().starts_with("https://mcp.test/authorize?a=b&response_type=code&"));
    let asked = parameters(&sign_in);
    let [state, challenge] = ["state", "code_challenge"].map(|name| &asked[name]);
    assert_eq!((state.len(), challenge.len()), (43, 43));
    for (name, value) in [
        ("client_id", "new"),
        ("redirect_uri", "http://127.0.0.1:7/callback"),
        ("code_challenge_method", "S256"),
        ("resource", "https://mcp.test/mcp"),
        ("scope", "x y"),
        ("access_type", "offline"),
    ] {
        assert_eq!(asked[name], value, "{name}");
    }
    let response = r#"{"access_token":"t0k","token_type":"Bearer","refresh_token":"r"}"#;
    script.document("https://mcp.test/token", response);
    let query = format!("code=c%2B1&state={state}");
    let challenge = challenge.clone();
    let record = sign_in.finish(&script, &query).await.expect("signed in");
    assert_eq!(
        (&*record.issuer, &*record.client_id, record.access_token.expose()),
        ("https://mcp.test", "new", "t0k")
    );
    assert_eq!((record.refresh_token, record.expires), (Some("r".into()), None));
    let request = script.take_requests().pop().expect("a request");
    let form: std::collections::BTreeMap<_, _> =
        form_urlencoded::parse(request.body()).into_owned().collect();
    for (name, value) in [
        ("grant_type", "authorization_code"),
        ("code", "c+1"),
        ("redirect_uri", "http://127.0.0.1:7/callback"),
        ("client_id", "new"),
        ("resource", "https://mcp.test/mcp"),
    ] {
        assert_eq!(form[name], value, "{name}");
    }
    assert_eq!(URL_SAFE_NO_PAD.encode(sha256(form["code_verifier"].as_bytes())), challenge);
}

#[tokio::test]
async fn a_parameter_of_the_endpoint_or_of_the_configuration_does_not_come_twice() {
    let params = vec![("audience".to_owned(), "mine".to_owned())];
    let settings = Settings { params, scopes: Some(vec!["x".to_owned()]), ..of_user() };
    let query = "response_type=token&a=b&client_id=x&redirect_uri=https%3A%2F%2Fevil.test&state=s\
                 &code_challenge=c&code_challenge_method=plain&resource=r&scope=y&sco%70e=z\
                 &audience=theirs&c=d%20e&a=f";
    let server = metadata("").replace("?a=b", &format!("?{query}#part"));
    let sign_in = begin(&Script::default(), &server, settings).await.expect("it begins");
    assert!(sign_in.url().starts_with("https://mcp.test/authorize?a=b&c=d%20e&a=f&response_type"));
    let asked = parameters(&sign_in);
    for (name, value) in [
        ("response_type", "code"),
        ("client_id", "new"),
        ("redirect_uri", "http://127.0.0.1:7/callback"),
        ("code_challenge_method", "S256"),
        ("resource", "https://mcp.test/mcp"),
        ("scope", "x"),
        ("audience", "mine"),
    ] {
        assert_eq!(asked[name], value, "{name}");
        assert_eq!(
            sign_in.request.url.query_pairs().filter(|(it, _)| it == name).count(),
            1,
            "{name}"
        );
    }
    assert!(!sign_in.url().contains('#'));
}

#[tokio::test]
async fn the_page_of_a_sign_in_is_shown_where_its_host_is_not_that_of_the_issuer() {
    for (endpoint, expected) in [
        ("https://mcp.test/authorize", "https://mcp.test"),
        ("https://MCP.test:443/x", "https://mcp.test"),
        ("https://login.test/x?y", "https://mcp.test, on a page of https://login.test"),
        ("https://mcp.test:8443/", "https://mcp.test, on a page of https://mcp.test:8443"),
        (
            "https://mcp.test.evil.test/",
            "https://mcp.test, on a page of https://mcp.test.evil.test",
        ),
    ] {
        let server = metadata("").replace("https://mcp.test/authorize?a=b", endpoint);
        let sign_in = begin(&Script::default(), &server, of_user()).await.expect("it begins");
        assert_eq!(sign_in.place(), expected);
    }
}

#[tokio::test]
async fn what_the_upstream_demands_since_the_earlier_sign_in_is_requested_too() {
    let script = Script::default();
    script.document(SERVER, &metadata(r#","client_id_metadata_document_supported":true"#));
    let document = Some("https://weir.test/client.json".to_owned());
    let settings = Settings { client_metadata_url: document, ..of_user() };
    let challenge = BearerChallenge { scope: Some("a".into()), ..BearerChallenge::default() };
    let mut step_up = StepUp::default();
    step_up.demand("c", Some("b"), &settings, Duration::ZERO).expect("followed");
    let scope = Some("b".to_owned());
    let earlier = SignInRecord { issuer: "https://mcp.test".into(), scope, ..record() };
    let demanded = SignInRecord { step_up, ..earlier.clone() };
    let elsewhere = SignInRecord { issuer: "https://id.test".into(), ..demanded.clone() };
    for (record, expected) in [(earlier, "a"), (demanded, "a b c"), (elsewhere, "a")] {
        let redirect_uri = "http://127.0.0.1:7/callback".to_owned();
        let begun =
            SignIn::begin(&script, "hub", &settings, &challenge, redirect_uri, Some(&record));
        assert_eq!(parameters(&begun.await.expect("it begins"))["scope"], expected);
    }
}

#[tokio::test]
async fn what_a_sign_in_needs_is_there_or_the_reason_is_said() {
    let configured = RegisteredClient { id: "mine".into(), credential: ClientCredential::None };
    let mine =
        Settings { grant: Grant::AuthorizationCode { client: Some(configured) }, ..settings() };
    let document = Some("https://weir.test/client.json".to_owned());
    let described = Settings { client_metadata_url: document, ..of_user() };
    let supported = r#","client_id_metadata_document_supported":true"#;
    for (metadata, settings, client) in [
        (metadata(supported), mine, "mine"),
        (metadata(supported), described.clone(), "https://weir.test/client.json"),
        (metadata(""), described, "new"),
    ] {
        let script = Script::default();
        let sign_in = begin(&script, &metadata, settings).await.expect("it begins");
        assert_eq!(parameters(&sign_in)["client_id"], client);
    }
    // The operator knows more than the metadata say, and does not contradict them.
    let assumed = Settings { assumes_pkce: true, ..of_user() };
    let unsaid = metadata("").replace("code_challenge_methods", "x");
    let sign_in = begin(&Script::default(), &unsaid, assumed.clone()).await;
    assert_eq!(parameters(&sign_in.expect("it begins"))["code_challenge_method"], "S256");
    let plain = metadata("").replace(r#"["plain","S256"]"#, r#"["plain"]"#);
    assert!(begin(&Script::default(), &plain, assumed).await.is_err());
    let server = "the authorization server https://mcp.test";
    for (metadata, error) in [
        (
            metadata("").replace(r#"["plain","S256"]"#, r#"["plain"]"#),
            format!("{server} does not support PKCE with S256"),
        ),
        (
            metadata("").replace("code_challenge_methods", "x"),
            format!(
                "{server} does not say that it supports PKCE: if it does, set auth.assume_pkce"
            ),
        ),
        (
            metadata("").replace("authorization_endpoint", "x"),
            format!("{server} has no authorization endpoint"),
        ),
        (
            metadata("").replace("https://mcp.test/authorize", "javascript:alert(1)//"),
            "javascript:alert(1)//?a=b is not an https:// URL".to_owned(),
        ),
        (
            metadata("").replace("registration_endpoint", "x"),
            format!(
                "{server} registers no clients by itself: register Weir there with the \
                 redirect URI http://127.0.0.1:7/callback, and set client_id"
            ),
        ),
    ] {
        let script = Script::default();
        let refused = begin(&script, &metadata, of_user()).await.err();
        assert_eq!(refused, Some(OAuthError::Refused(error)), "{metadata}");
    }
}

#[tokio::test]
async fn the_credentials_of_a_client_are_not_for_another_server_than_that_of_the_sign_in() {
    let script = Script::default();
    script.document(SERVER, &metadata(""));
    let credential = ClientCredential::Secret("hunter2".into());
    let client = RegisteredClient { id: "weir".into(), credential };
    let settings =
        Settings { grant: Grant::AuthorizationCode { client: Some(client) }, ..settings() };
    let earlier = SignInRecord { is_configured_client: true, ..record() };
    let redirect_uri = "http://127.0.0.1:7/callback".to_owned();
    let challenge = BearerChallenge::default();
    let begun = SignIn::begin(&script, "hub", &settings, &challenge, redirect_uri, Some(&earlier));
    let text = "the upstream names the authorization server https://mcp.test instead of \
                https://id.test: if that is right, set auth.issuer";
    assert_eq!(begun.await.err(), Some(OAuthError::Refused(text.into())));
    assert!(script.requests().iter().all(|request| request.starts_with("GET ")));
}

#[tokio::test]
async fn a_registered_client_authenticates_in_the_way_that_the_server_has_chosen() {
    let script = Script::default();
    let more =
        r#","token_endpoint_auth_methods_supported":["client_secret_basic","client_secret_post"]"#;
    let begun = begin(&script, &metadata(more), of_user()).await.expect("it begins");
    assert_eq!(begun.client.credential, ClientCredential::None);
    script.respond(
        "https://mcp.test/register",
        201,
        r#"{"client_id":"new","client_secret":"hunter2","token_endpoint_auth_method":"client_secret_post"}"#,
    );
    let redirect_uri = "http://127.0.0.1:7/callback".to_owned();
    let (settings, challenge) = (of_user(), BearerChallenge::default());
    let begun = SignIn::begin(&script, "hub", &settings, &challenge, redirect_uri, None).await;
    let begun = begun.expect("it begins");
    let query = format!("code=c&state={}", parameters(&begun)["state"]);
    script.document("https://mcp.test/token", r#"{"access_token":"t","token_type":"Bearer"}"#);
    script.take_requests();
    let record = begun.finish(&script, &query).await.expect("signed in");
    let request = script.take_requests().pop().expect("a request");
    assert!(!request.headers().contains_key("authorization"));
    assert!(String::from_utf8_lossy(request.body()).contains("client_secret=hunter2"));
    let methods = record.token_endpoint_auth_methods_supported;
    assert_eq!(methods, Some(vec!["client_secret_post".to_owned()]));
}

#[tokio::test]
async fn each_server_that_the_upstream_names_is_called_at_allowed_addresses_only() {
    let script = Script::default();
    script.document(
        "https://meta.test/resource",
        r#"{"resource":"https://mcp.test/mcp","authorization_servers":["https://id.test"]}"#,
    );
    let server = metadata(r#","revocation_endpoint":"https://revoke.test/""#)
        .replace("https://mcp.test/token", "https://token.test/")
        .replace("https://mcp.test/register", "https://register.test/")
        .replace("https://mcp.test", "https://id.test");
    script.document("https://id.test/.well-known/oauth-authorization-server", &server);
    script.respond("https://register.test/", 201, r#"{"client_id":"new"}"#);
    script.document("https://token.test/", r#"{"access_token":"t","token_type":"Bearer"}"#);
    script.respond("https://revoke.test/", 200, "");
    let resource_metadata = Some("https://meta.test/resource".to_owned());
    let challenge = BearerChallenge { resource_metadata, ..BearerChallenge::default() };
    let (settings, uri) = (of_user(), "http://127.0.0.1:7/callback".to_owned());
    let sign_in = SignIn::begin(&script, "hub", &settings, &challenge, uri, None).await;
    let sign_in = sign_in.expect("it begins");
    let query = format!("code=c&state={}", parameters(&sign_in)["state"]);
    let record = sign_in.finish(&script, &query).await.expect("signed in");
    assert_eq!(record.revoke(&script, &settings).await, Ok(true));
    let called: Vec<_> = script
        .take_requests()
        .iter()
        .map(|request| {
            (request.uri().host().map(str::to_owned), request.extensions().get().copied())
        })
        .collect();
    let foreign = ["meta.test", "id.test", "register.test", "token.test", "revoke.test"];
    let expected = foreign.map(|host| (Some(host.to_owned()), Some(Filtered(true))));
    assert_eq!(called, expected);
    // The upstream itself is where the operator has said.
    let own = begin(&script, &metadata(""), of_user()).await.expect("it begins");
    drop(own);
    let requests = script.take_requests();
    assert!(requests.iter().all(|it| it.extensions().get() == Some(&Filtered(false))));
}

#[tokio::test]
async fn a_redirection_is_followed_nowhere() {
    for place in [SERVER, "https://mcp.test/register", "https://mcp.test/token"] {
        let script = Script::default();
        let sign_in = match place {
            "https://mcp.test/token" => {
                Some(begin(&script, &metadata(""), of_user()).await.expect("it begins"))
            }
            _ => None,
        };
        script.document(SERVER, &metadata(""));
        script.respond(place, 302, "");
        script.requests();
        let failed = match sign_in {
            Some(sign_in) => {
                let query = format!("code=c&state={}", parameters(&sign_in)["state"]);
                sign_in.finish(&script, &query).await.is_err()
            }
            None => {
                let uri = "http://127.0.0.1:7/callback".to_owned();
                let challenge = BearerChallenge::default();
                SignIn::begin(&script, "hub", &of_user(), &challenge, uri, None).await.is_err()
            }
        };
        assert!(failed, "{place}");
        let requests = script.requests();
        let hosts = requests.iter().filter(|request| !request.contains("https://mcp.test/"));
        assert_eq!(hosts.count(), 0, "{requests:?}");
    }
}
