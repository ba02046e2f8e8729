//! Tests of token requests and their responses.

mod responses;

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use serde::Deserialize;
use url::form_urlencoded::{self, byte_serialize};

use super::client_authentication::{JWT_BEARER_ASSERTION, basic};
use super::form::FORM;
use super::*;
use crate::testing::{Script, settings};
use crate::{ClientCredential, SigningKey};

const TOKEN_URL: &str = "https://id.test/token";

/// Sends a request for a token, and returns the result, the `Authorization` and the form.
async fn send(
    grant: &Grant,
    methods: Option<&[&str]>,
    (status, response): (u16, &str),
) -> (Result<IssuedToken, OAuthError>, Option<String>, BTreeMap<String, String>) {
    let script = Script::default();
    script.respond(TOKEN_URL, status, response);
    let settings = settings();
    let client = OAuthClient::new(&script, &settings);
    let methods = methods.map(|methods| methods.iter().map(|it| (*it).to_owned()).collect());
    let issuer = "https://id.test".to_owned();
    let server = ServerMetadata::of_token_endpoint(issuer, TOKEN_URL.into(), methods);
    let (resource, scope) = (Some("https://mcp.test/mcp"), Some("a b"));
    let (grant, registered) = match grant {
        Grant::ClientCredentials(client) => (TokenGrant::ClientCredentials, Some(client)),
        Grant::JwtBearer { assertion } => (TokenGrant::JwtBearer(assertion), None),
        Grant::AuthorizationCode { .. } => unreachable!("it has other tests"),
    };
    let request = TokenRequest { grant, client: registered, server: &server, resource, scope };
    let issued = request.send(&client).await;
    let Some(request) = script.take_requests().pop() else {
        return (issued, None, BTreeMap::new());
    };
    assert_eq!(request.headers()[CONTENT_TYPE], FORM);
    let authorization = request.headers().get(AUTHORIZATION);
    let authorization = authorization.map(|value| value.to_str().expect("text").to_owned());
    let form = form_urlencoded::parse(request.body()).into_owned().collect();
    (issued, authorization, form)
}

fn with_secret(secret: &str) -> Grant {
    let credential = ClientCredential::Secret(secret.into());
    Grant::ClientCredentials(RegisteredClient { id: "we:ir".into(), credential })
}

fn form(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let always = [("resource", "https://mcp.test/mcp"), ("scope", "a b")];
    let pairs = pairs.iter().chain(&always);
    pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const TOKEN: (u16, &str) =
    (200, r#"{"access_token":"t0k","token_type":"bearer","expires_in":3600}"#);

#[tokio::test]
async fn a_secret_is_sent_in_the_way_that_the_server_accepts() {
    let grant = with_secret("p@ss word");
    let issued = IssuedToken {
        token: Ok("t0k".into()),
        refresh_token: None,
        lifetime: Some(Duration::from_hours(1)),
    };
    let basic = format!("Basic {}", STANDARD.encode("we%3Air:p%40ss+word"));
    for methods in [None, Some(&["private_key_jwt", "client_secret_basic"][..])] {
        let (result, authorization, sent) = send(&grant, methods, TOKEN).await;
        assert_eq!((result.as_ref(), authorization), (Ok(&issued), Some(basic.clone())));
        assert_eq!(sent, form(&[("grant_type", "client_credentials")]));
    }
    let (result, authorization, sent) = send(&grant, Some(&["client_secret_post"]), TOKEN).await;
    assert_eq!((result, authorization), (Ok(issued), None));
    let own = [("client_id", "we:ir"), ("client_secret", "p@ss word")];
    assert_eq!(sent, form(&[own[0], own[1], ("grant_type", "client_credentials")]));
    let (result, _, sent) = send(&grant, Some(&["private_key_jwt"]), TOKEN).await;
    let error = "the authorization server https://id.test does not accept a client_secret";
    assert_eq!(result, Err(OAuthError::Refused(error.into())));
    assert!(sent.is_empty(), "{sent:?}");
}

#[tokio::test]
async fn a_key_signs_an_assertion_for_the_issuer_alone() {
    let pair = rcgen::KeyPair::generate().expect("a key");
    let key = SigningKey::from_pem(pair.serialize_pem().into(), None).expect("a key");
    let credential = ClientCredential::Key(key);
    let grant = Grant::ClientCredentials(RegisteredClient { id: "weir".into(), credential });
    let (result, authorization, mut sent) = send(&grant, Some(&["private_key_jwt"]), TOKEN).await;
    assert_eq!((result.is_ok(), authorization), (true, None));
    let assertion = sent.remove("client_assertion").expect("an assertion");
    let own = [("client_assertion_type", JWT_BEARER_ASSERTION)];
    assert_eq!(sent, form(&[own[0], ("grant_type", "client_credentials")]));
    #[derive(Deserialize)]
    struct Claims {
        iss: String,
        sub: String,
        aud: String,
        jti: String,
        iat: u64,
        exp: u64,
    }
    let claims = assertion.split('.').nth(1).expect("three parts");
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims);
    let claims: Claims = serde_json::from_slice(&claims.expect("base64url")).expect("claims");
    let names = [&*claims.iss, &claims.sub, &claims.aud];
    assert_eq!(names, ["weir", "weir", "https://id.test"]);
    assert_eq!((claims.jti.len(), claims.exp - claims.iat), (43, 60));
    let (result, ..) = send(&grant, Some(&["client_secret_basic"]), TOKEN).await;
    let error = "the authorization server https://id.test does not accept a client_key";
    assert_eq!(result, Err(OAuthError::Refused(error.into())));
}

#[tokio::test]
async fn an_assertion_of_the_platform_is_read_for_each_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let assertion = folder.path().join("token");
    let grant = Grant::JwtBearer { assertion: assertion.clone() };
    let (result, ..) = send(&grant, None, TOKEN).await;
    assert!(matches!(result, Err(OAuthError::Unavailable(_))), "{result:?}");
    for text in ["a.b.c", "d.e.f"] {
        std::fs::write(&assertion, format!("{text}\n")).expect("written");
        let (result, authorization, sent) = send(&grant, None, TOKEN).await;
        assert_eq!((result.is_ok(), authorization), (true, None));
        assert_eq!(sent, form(&[("grant_type", JWT_BEARER_GRANT), ("assertion", text)]));
    }
    std::fs::write(&assertion, "x".repeat(16 * 1024 + 1)).expect("written");
    let (result, _, sent) = send(&grant, None, TOKEN).await;
    let error = format!(
        "the assertion {} cannot be used: it is larger than 16384 bytes",
        assertion.display()
    );
    assert_eq!(result, Err(OAuthError::Unavailable(error)));
    assert!(sent.is_empty());
}

#[tokio::test]
async fn a_parameter_of_the_endpoint_does_not_come_twice() {
    let script = Script::default();
    let called = "https://id.test/token?tenant=a%20b&x";
    script.document(called, TOKEN.1);
    let params = vec![("audience".to_owned(), "mine".to_owned())];
    let settings = Settings { params, ..settings() };
    let client = OAuthClient::new(&script, &settings);
    let endpoint = "https://id.test/token?grant_type=password&tenant=a%20b&sco%70e=all&x\
                    &audience=theirs#part";
    let issuer = "https://id.test".to_owned();
    let server = ServerMetadata::of_token_endpoint(issuer, endpoint.into(), None);
    let registered = RegisteredClient { id: "weir".into(), credential: ClientCredential::None };
    let request = TokenRequest {
        grant: TokenGrant::ClientCredentials,
        client: Some(&registered),
        server: &server,
        resource: None,
        scope: Some("a"),
    };
    request.send(&client).await.expect("issued");
    assert_eq!(script.requests(), [format!("POST {called}")]);
}

#[tokio::test]
async fn what_a_server_repeats_of_a_request_in_another_encoding_is_not_shown() {
    let secret = "p@ss/w+rd \"ü\\ hunter2-canary";
    let grant = with_secret(secret);
    let percent = |text: &str, is_all: bool| -> String {
        let encode = |byte: u8| match byte {
            byte if byte.is_ascii_alphanumeric() && !is_all => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        text.bytes().map(encode).collect()
    };
    let json = serde_json::to_string(secret).expect("JSON");
    let json = &json[1..json.len() - 1];
    let unicode: String = secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let form: String = byte_serialize(secret.as_bytes()).collect();
    let basic = basic("we:ir", &secret.into()).expect("a header");
    let basic = basic.to_str().expect("text").trim_start_matches("Basic ");
    for repeated in [
        secret,
        &form,
        &form.to_lowercase(),
        &percent(secret, false),
        &percent(secret, false).to_lowercase(),
        &percent(secret, true),
        &percent(secret, true).to_lowercase(),
        &percent(&percent(secret, false), false),
        json,
        &json.replace('/', "\\/"),
        &unicode,
        &unicode.to_uppercase().replace("\\U", "\\u"),
        basic,
        &percent(basic, false),
        // A part of it.
        &form[..30],
        &basic[..20],
    ] {
        let text = format!("bad client_secret={repeated}");
        let body = serde_json::json!({ "error": text, "error_description": text });
        let (refused, ..) = send(&grant, None, (400, &body.to_string())).await;
        let shown = "bad client_secret=***";
        let expected = format!("{TOKEN_URL} refuses the request: {shown}: {shown}");
        assert_eq!(refused, Err(OAuthError::Refused(expected)), "{repeated}");
    }
}

#[tokio::test]
async fn what_a_server_repeats_of_a_request_is_not_shown_however_long_it_is() {
    let script = Script::default();
    let settings = Settings { grant: Grant::AuthorizationCode { client: None }, ..settings() };
    let client = OAuthClient::new(&script, &settings);
    let folder = tempfile::tempdir().expect("a folder");
    let assertion = folder.path().join("assertion");
    let canary = |name: &str| format!("{name}-{}", "canary".repeat(60));
    std::fs::write(&assertion, canary("assertion")).expect("written");
    let [code, verifier, refresh, secret] =
        ["code", "verifier", "refresh", "secret"].map(|name| Secret::from(canary(name)));
    let redirect_uri = "http://127.0.0.1:7/callback";
    let registered = RegisteredClient {
        id: "weir".into(),
        credential: ClientCredential::Secret(secret.clone()),
    };
    for methods in [None, Some(vec!["client_secret_post".to_owned()])] {
        let issuer = "https://id.test".to_owned();
        let server = ServerMetadata::of_token_endpoint(issuer, TOKEN_URL.into(), methods);
        for grant in [
            TokenGrant::ClientCredentials,
            TokenGrant::JwtBearer(&assertion),
            TokenGrant::Code { code: &code, verifier: &verifier, redirect_uri },
            TokenGrant::Refresh(&refresh),
        ] {
            let basic = basic("weir", &secret).expect("a header");
            let echo = format!(
                "{} {} {} {} {} {}",
                code.expose(),
                verifier.expose(),
                refresh.expose(),
                secret.expose(),
                canary("assertion"),
                basic.to_str().expect("text")
            );
            let sent: Vec<&str> = match grant {
                TokenGrant::ClientCredentials => vec![],
                TokenGrant::JwtBearer(_) => vec!["assertion"],
                TokenGrant::Code { .. } => vec!["code", "verifier"],
                TokenGrant::Refresh(_) => vec!["refresh"],
            };
            let body = serde_json::json!({ "error": echo, "error_description": echo });
            script.respond(TOKEN_URL, 400, &body.to_string());
            let (client_of_request, resource, scope) = (Some(&registered), None, None);
            let request =
                TokenRequest { grant, client: client_of_request, server: &server, resource, scope };
            let error = request.send(&client).await.expect_err("refused").to_string();
            for name in sent.into_iter().chain(["secret"]) {
                assert!(!error.contains(&format!("{name}-can")), "{name}: {error}");
            }
            assert!(error.len() < 700, "{error}");
        }
    }
}
