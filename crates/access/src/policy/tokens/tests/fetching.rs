//! Tests of the fetches of keys: their rate, and the validity of old keys.

use std::time::Duration;

use super::mint;
use super::{FakeProvider, TestPolicy, settings};
use crate::policy::AuthError;
use crate::policy::tokens::Settings;
use crate::policy::tokens::TokenError;

const KEYS: &str = "https://id.test/keys";
const METADATA: &str = "https://id.test/a/.well-known/openid-configuration";
const OTHER_METADATA: &str = "https://id.test/.well-known/oauth-authorization-server/a";

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// A token whose key has this id.
fn naming(id: &str) -> String {
    let header = format!(r#"{{"alg":"ES256","kid":"{id}"}}"#);
    mint::signed("ES256", &header, &mint::claims())
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_at_the_start_and_every_five_minutes() {
    let fixture = TestPolicy::new(settings(), FakeProvider::with_keys(&mint::jwks()));
    fixture.settle().await;
    assert_eq!(fixture.provider.take_requests(), [METADATA, KEYS]);
    pass(299).await;
    assert_eq!(fixture.provider.take_requests(), Vec::<String>::new());
    pass(2).await;
    assert_eq!(fixture.provider.take_requests(), [KEYS]);
    // The URL of the keys is discovered again once an hour.
    pass(60 * 60).await;
    let asked = fixture.provider.take_requests();
    assert_eq!(asked.iter().filter(|asked| **asked == METADATA).count(), 1);
    assert_eq!(asked.len(), 13);
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_unknown_keys_make_one_fetch_in_thirty_seconds() {
    let fixture = TestPolicy::open().await;
    for round in 0..3 {
        pass(31).await;
        fixture.provider.take_requests();
        for n in 0..3_400 {
            let found = fixture.authenticate(&naming(&format!("made-up-{round}-{n}"))).await;
            assert_eq!(found, Err(TokenError::UnknownKey.into()));
        }
        assert_eq!(fixture.provider.take_requests(), [KEYS]);
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_keys_are_fetched_waits_for_that_fetch() {
    let provider = FakeProvider::with_keys(&mint::jwks());
    *provider.delay.lock() = Duration::from_secs(2);
    let fixture = TestPolicy::new(settings(), provider);
    let tokens: Vec<_> = (0..50).map(|_| mint::token("ES256")).collect();
    let all = tokens.iter().map(|token| fixture.authenticate(token));
    assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
    assert_eq!(fixture.provider.take_requests(), [METADATA, KEYS]);
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_fetched_when_its_first_token_comes() {
    let provider = FakeProvider::with_keys(&mint::set_of(&[mint::ec_jwk(
        &mint::keys().other_p256,
        "old",
        "P-256",
    )]));
    let fixture = TestPolicy::new(settings(), provider);
    pass(31).await;
    let old = mint::signed("other ES256", r#"{"alg":"ES256","kid":"old"}"#, &mint::claims());
    assert!(fixture.authenticate(&old).await.is_ok());
    fixture.provider.set_response(KEYS, Ok(&mint::jwks()));
    assert!(fixture.authenticate(&mint::token("ES256")).await.is_ok());
    // The one that is gone is no longer good, though it was a moment ago and is remembered.
    assert_eq!(fixture.authenticate(&old).await, Err(TokenError::UnknownKey.into()));
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn known_keys_go_on_for_a_day_while_the_provider_is_away() {
    let fixture = TestPolicy::open().await;
    let (known, later) = (mint::token("ES256"), mint::token("EdDSA"));
    assert!(fixture.authenticate(&known).await.is_ok());
    fixture.provider.go_offline();
    pass(24 * 60 * 60 - 10).await;
    assert!(fixture.authenticate(&known).await.is_ok());
    assert!(fixture.authenticate(&later).await.is_ok());
    assert_eq!(fixture.authenticate(&naming("new")).await, Err(TokenError::UnknownKey.into()));
    pass(20).await;
    assert_eq!(fixture.authenticate(&known).await, Err(AuthError::Unverifiable));
    assert_eq!(fixture.authenticate(&later).await, Err(AuthError::Unverifiable));
    // It is asked again all the while, and no more than once a minute, at two places.
    let asked = fixture.provider.take_requests().len();
    assert!((2 * 1_430..2 * 1_460).contains(&asked), "{asked}");
    let back = FakeProvider::with_keys(&mint::jwks()).responses.lock().clone();
    *fixture.provider.responses.lock() = back;
    pass(61).await;
    assert!(fixture.authenticate(&known).await.is_ok());
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn without_keys_nothing_gets_in_and_nobody_waits_for_long() {
    let fixture = TestPolicy::new(settings(), FakeProvider::default());
    *fixture.provider.delay.lock() = Duration::from_secs(3_600);
    let start = tokio::time::Instant::now();
    assert_eq!(fixture.authenticate(&mint::token("ES256")).await, Err(AuthError::Unverifiable));
    assert!(start.elapsed() <= Duration::from_secs(16), "{:?}", start.elapsed());
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn junk_leaves_the_keys_that_were_there() {
    let private =
        mint::ec_jwk(&mint::keys().p256, "x", "P-256").replace("\"kty\"", "\"d\":\"AA\",\"kty\"");
    let private = mint::set_of(&[private]);
    let fixture = TestPolicy::open().await;
    let junk = [
        "",
        "<html>",
        "[]",
        "{}",
        r#"{"keys":{}}"#,
        r#"{"keys":[]}"#,
        r#"{"keys":[1,null,"x",[],{}]}"#,
        r#"{"keys":[{"kty":"oct","k":"AAAA","kid":"ES256"}]}"#,
        r#"{"keys":[],"keys":[]}"#,
        &private,
    ];
    for junk in junk {
        fixture.provider.set_response(KEYS, Ok(junk));
        pass(301).await;
        assert!(!fixture.provider.take_requests().is_empty(), "{junk}");
        assert!(fixture.authenticate(&mint::token("ES256")).await.is_ok(), "{junk}");
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_key_is_left_out_and_takes_no_other_with_it() {
    let good = mint::ec_jwk(&mint::keys().p256, "ES256", "P-256");
    let but = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace("\"ES256\"", "\"bad\"").replace(from, to)
    };
    let short = mint::rsa_jwk(&mint::keys().rsa, "bad", None);
    let short = short.replace(&short[short.find("\"n\":\"").expect("n") + 5..][..100], "");
    let bad = [
        "{}".to_owned(),
        but("P-256", "P-384"),
        but("P-256", "P-257"),
        but("\"EC\"", "\"RSA\""),
        but("\"sig\"", "\"enc\""),
        but("\"use\":\"sig\"", "\"key_ops\":[\"sign\"]"),
        but("\"use\":\"sig\"", "\"alg\":\"ES384\""),
        but("\"use\":\"sig\"", "\"alg\":\"HS256\""),
        but("\"use\":\"sig\"", "\"alg\":\"none\""),
        but("\"use\":\"sig\"", "\"d\":\"AAAA\""),
        but("\"use\":\"sig\"", "\"x\":\"AAAA\""),
        but("\"x\":\"", "\"x\":\"AAAA"),
        but("\"y\":", "\"z\":"),
        good.clone(),
        good.replace("\"ES256\"", &format!("\"{}\"", "k".repeat(129))),
        good.replace("\"ES256\"", "7"),
        r#"{"kty":"oct","kid":"bad","k":"c2VjcmV0"}"#.to_owned(),
        r#"{"kty":"OKP","crv":"X25519","kid":"bad","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#.to_owned(),
        short,
    ];
    let allowed = settings().algorithms;
    for bad in &bad {
        let set = mint::set_of(&[good.clone(), bad.clone()]);
        let (keys, left_out) =
            crate::policy::tokens::key_set::KeySet::parse(set.into(), &allowed).expect("a set");
        assert_eq!(left_out.len(), 1, "{bad}");
        assert!(left_out[0].what.starts_with("number 2: "), "{left_out:?}");
        let is_for_others =
            ["\"enc\"", "\"sign\"", "P-257", "X25519"].iter().any(|it| bad.contains(it));
        assert_eq!(left_out[0].is_malformed, !is_for_others, "{bad}: {left_out:?}");
        let token = crate::policy::tokens::key::Algorithm::Es256;
        let found = keys.find(Some("ES256"), token);
        assert!(found.is_ok(), "{bad}");
    }
    let fixture = TestPolicy::new(
        settings(),
        FakeProvider::with_keys(&mint::set_of(&[&bad[..], &[good]].concat())),
    );
    fixture.settle().await;
    assert!(fixture.authenticate(&mint::token("ES256")).await.is_ok());
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn the_second_place_of_metadata_is_asked_when_the_first_is_no_good() {
    let good = r#"{"issuer":"https://id.test/a","jwks_uri":"https://id.test/keys"}"#;
    let foreign = r#"{"issuer":"https://id.test","jwks_uri":"https://evil.test/keys"}"#;
    for first in [Err("404"), Ok("<html>"), Ok(foreign)] {
        let provider = FakeProvider::with_keys(&mint::jwks());
        provider.set_response(METADATA, first);
        provider.set_response(OTHER_METADATA, Ok(good));
        let fixture = TestPolicy::new(settings(), provider);
        fixture.settle().await;
        assert_eq!(fixture.provider.take_requests(), [METADATA, OTHER_METADATA, KEYS]);
        assert!(fixture.authenticate(&mint::token("ES256")).await.is_ok());
        fixture.close().await;
    }
    let provider = FakeProvider::with_keys(&mint::jwks());
    provider.set_response(METADATA, Ok(foreign));
    let fixture = TestPolicy::new(settings(), provider);
    fixture.settle().await;
    assert_eq!(fixture.provider.take_requests(), [METADATA, OTHER_METADATA]);
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_configured_needs_no_metadata() {
    let jwks_uri = Some(hyper::Uri::from_static(KEYS));
    let fixture = TestPolicy::new(
        Settings { jwks_uri, ..settings() },
        FakeProvider::with_keys(&mint::jwks()),
    );
    fixture.settle().await;
    assert_eq!(fixture.provider.take_requests(), [KEYS]);
    assert!(fixture.authenticate(&mint::token("ES256")).await.is_ok());
    fixture.close().await;
}
