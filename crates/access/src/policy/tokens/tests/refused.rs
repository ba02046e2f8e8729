//! Tests of invalid tokens: each is refused for its own reason, and causes no fetch.

use proptest::prelude::*;

use super::mint::{self, NOW, claims, claims_but, encode, hmac_signed, signed, token, token_of};
use super::{AUDIENCE, ISSUER, TestPolicy, settings};
use crate::policy::AuthError;
use crate::policy::tokens::TokenError::{self, *};
use crate::policy::tokens::jws::CompactJws;
use crate::policy::tokens::{self, Preset, Settings, is_token};

/// A bad token: what it tries, itself, and why it is refused.
type Row = (&'static str, String, TokenError);

/// A good signature under this header.
fn headed(header: &str) -> String {
    signed("ES256", header, &claims())
}

/// A token whose parts are these, as they are.
fn parts(parts: &[&str]) -> String {
    parts.join(".")
}

/// A good token with one part changed.
fn changed(at: usize, change: impl Fn(&str) -> String) -> String {
    let good = token("ES256");
    let mut all: Vec<String> = good.split('.').map(str::to_owned).collect();
    all[at] = change(&all[at]);
    all.join(".")
}

fn flipped(at: usize, bit: usize) -> String {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    changed(at, |part| {
        let mut bytes = URL_SAFE_NO_PAD.decode(part).expect("base64url");
        let place = (bit / 8) % bytes.len();
        bytes[place] ^= 1 << (bit % 8);
        encode(bytes)
    })
}

/// Defects of the form and the header.
fn misshapen() -> Vec<Row> {
    let good = token("ES256");
    let [header, payload, signature] =
        <[String; 3]>::try_from(good.split('.').map(str::to_owned).collect::<Vec<_>>())
            .expect("three parts");
    let (header, payload, signature) = (header.as_str(), payload.as_str(), signature.as_str());
    let huge = |bytes: usize| {
        headed(&format!(r#"{{"alg":"ES256","kid":"ES256","pad":"{}"}}"#, "x".repeat(bytes)))
    };
    vec![
        ("three empty parts", "..".to_owned(), Header),
        ("no header", parts(&["", payload, signature]), Header),
        ("no claims", parts(&[header, "", signature]), Claims),
        ("no signature", parts(&[header, payload, ""]), Signature),
        ("an encrypted one", parts(&[header, "a", "b", "c", "d"]), Encrypted),
        ("padding", changed(2, |part| format!("{part}==")), Form),
        ("the other base64", changed(2, |part| format!("{part}+/")), Form),
        ("a bit that base64url has no place for", changed(2, with_stray_bits), Form),
        ("a length that base64url cannot have", changed(2, |part| format!("{part}AAA")), Form),
        ("a header that is no JSON", parts(&[&encode("ES256"), payload, signature]), Header),
        ("a header that is a list", headed(r#"["ES256"]"#), Header),
        (
            "a header that is not UTF-8",
            parts(&[&encode(b"{\"\xff\":1}"), payload, signature]),
            Header,
        ),
        ("a header with more behind it", headed(r#"{"alg":"ES256"}{"alg":"none"}"#), Header),
        ("alg twice", headed(r#"{"alg":"ES256","kid":"ES256","alg":"none"}"#), Header),
        (
            "alg twice, once escaped",
            headed(r#"{"alg":"ES256","kid":"ES256","\u0061lg":"none"}"#),
            Header,
        ),
        ("kid twice", headed(r#"{"alg":"ES256","kid":"EdDSA","kid":"ES256"}"#), Header),
        (
            "a deep header",
            headed(&format!(r#"{{"alg":"ES256","a":{}}}"#, "[".repeat(100) + &"]".repeat(100))),
            Header,
        ),
        ("a huge header", huge(1 << 20), TooLong),
        ("a header that is a little too large", huge(16 * 1024), TooLong),
        (
            "a critical extension",
            headed(r#"{"alg":"ES256","kid":"ES256","crit":["exp"],"exp":1}"#),
            Critical,
        ),
        (
            "an unencoded payload",
            headed(r#"{"alg":"ES256","kid":"ES256","crit":["b64"],"b64":false}"#),
            Critical,
        ),
        (
            "nothing critical, which is not allowed",
            headed(r#"{"alg":"ES256","kid":"ES256","crit":[]}"#),
            Critical,
        ),
        ("a logout token", headed(r#"{"alg":"ES256","kid":"ES256","typ":"logout+jwt"}"#), Type),
        ("a proof", headed(r#"{"alg":"ES256","kid":"ES256","typ":"dpop+jwt"}"#), Type),
        ("an event", headed(r#"{"alg":"ES256","kid":"ES256","typ":"secevent+jwt"}"#), Type),
        ("a type that is no text", headed(r#"{"alg":"ES256","kid":"ES256","typ":7}"#), Type),
        ("a null type", headed(r#"{"alg":"ES256","kid":"ES256","typ":null}"#), Type),
        ("claims that are no JSON", token_of("ann"), Claims),
        ("claims that are a token", token_of(&format!("\"{good}\"")), Claims),
        (
            "aud twice",
            token_of(&claims_but("\"sub\"", &format!(r#""aud":"{AUDIENCE}","sub""#))),
            Claims,
        ),
        ("exp twice", token_of(&claims_but("\"sub\"", r#""exp":9999999999,"sub""#)), Claims),
    ]
}

/// Another encoding of the same signature.
fn with_stray_bits(part: &str) -> String {
    // 64 bytes: the last of 86 characters carries two bits.
    let (rest, last) = part.split_at(part.len() - 1);
    let next = match last {
        "A" => "B",
        "Q" => "R",
        "g" => "h",
        _ => "x",
    };
    format!("{rest}{next}")
}

/// Defects of the signature and its key.
fn unsigned() -> Vec<Row> {
    let public = mint::public_rsa();
    let jwk = mint::ec_jwk(&mint::keys().other_p256, "ES256", "P-256");
    let long = "k".repeat(129);
    let claims = claims();
    let mut rows = vec![
        ("no algorithm", headed(r#"{"kid":"ES256"}"#), Algorithm),
        ("none", signed("none", r#"{"alg":"none"}"#, &claims), Algorithm),
        ("None", signed("none", r#"{"alg":"None","kid":"ES256"}"#, &claims), Algorithm),
        ("nOnE", signed("none", r#"{"alg":"nOnE","kid":"ES256"}"#, &claims), Algorithm),
        (
            "none with a signature",
            signed("ES256", r#"{"alg":"none","kid":"ES256"}"#, &claims),
            Algorithm,
        ),
        ("an empty algorithm", headed(r#"{"alg":"","kid":"ES256"}"#), Algorithm),
        ("a null algorithm", headed(r#"{"alg":null,"kid":"ES256"}"#), Algorithm),
        ("two algorithms", headed(r#"{"alg":["ES256"],"kid":"ES256"}"#), Algorithm),
        ("es256", headed(r#"{"alg":"es256","kid":"ES256"}"#), Algorithm),
        ("ES256K", headed(r#"{"alg":"ES256K","kid":"ES256"}"#), Algorithm),
        ("RSA1_5", headed(r#"{"alg":"RSA1_5","kid":"RS256"}"#), Algorithm),
        (
            "HS256 with the public RSA key",
            hmac_signed(r#"{"alg":"HS256","kid":"RS256"}"#, &claims, &public),
            Algorithm,
        ),
        ("HS256 without a secret", hmac_signed(r#"{"alg":"HS256"}"#, &claims, b""), Algorithm),
        (
            "HS512 with the public RSA key",
            hmac_signed(r#"{"alg":"HS512","kid":"RS256"}"#, &claims, &public),
            Algorithm,
        ),
        (
            "HMAC under the name of RS256",
            hmac_signed(r#"{"alg":"RS256","kid":"RS256"}"#, &claims, &public),
            Signature,
        ),
        (
            "RS256 with a key for PS256",
            signed("RS256", r#"{"alg":"RS256","kid":"PS256"}"#, &claims),
            KeyMismatch,
        ),
        (
            "PS256 with a key for RS256",
            signed("PS256", r#"{"alg":"PS256","kid":"RS256"}"#, &claims),
            KeyMismatch,
        ),
        (
            "RS512 with a key for RS256",
            signed("RS512", r#"{"alg":"RS512","kid":"RS256"}"#, &claims),
            KeyMismatch,
        ),
        (
            "PS256 with a key that is for RS256 by default",
            signed("PS256", r#"{"alg":"PS256","kid":"plain"}"#, &claims),
            KeyMismatch,
        ),
        (
            "ES256 with a key on P-384",
            signed("ES384", r#"{"alg":"ES256","kid":"ES384"}"#, &claims),
            KeyMismatch,
        ),
        (
            "a signature on the wrong curve",
            signed("ES384", r#"{"alg":"ES256","kid":"ES256"}"#, &claims),
            Signature,
        ),
        (
            "ES256 with an RSA key",
            signed("ES256", r#"{"alg":"ES256","kid":"RS256"}"#, &claims),
            KeyMismatch,
        ),
        (
            "RS256 with a key on P-256",
            signed("RS256", r#"{"alg":"RS256","kid":"ES256"}"#, &claims),
            KeyMismatch,
        ),
        (
            "somebody else's RSA key",
            signed("other RS256", r#"{"alg":"RS256","kid":"RS256"}"#, &claims),
            Signature,
        ),
        (
            "somebody else's key on P-256",
            signed("other ES256", r#"{"alg":"ES256","kid":"ES256"}"#, &claims),
            Signature,
        ),
        (
            "a key in the header",
            signed(
                "other ES256",
                &format!(r#"{{"alg":"ES256","kid":"ES256","jwk":{jwk}}}"#),
                &claims,
            ),
            Signature,
        ),
        (
            "a place of keys in the header",
            signed(
                "other ES256",
                r#"{"alg":"ES256","kid":"ES256","jku":"https://evil.test/keys"}"#,
                &claims,
            ),
            Signature,
        ),
        (
            "a place of certificates in the header",
            signed(
                "other ES256",
                r#"{"alg":"ES256","kid":"ES256","x5u":"https://evil.test/c"}"#,
                &claims,
            ),
            Signature,
        ),
        (
            "a certificate in the header",
            signed("other ES256", r#"{"alg":"ES256","kid":"ES256","x5c":["AAAA"]}"#, &claims),
            Signature,
        ),
        (
            "a place of keys and no known key",
            signed(
                "other ES256",
                r#"{"alg":"ES256","kid":"evil","jku":"https://evil.test/keys"}"#,
                &claims,
            ),
            UnknownKey,
        ),
        ("a path as key id", headed(r#"{"alg":"ES256","kid":"../../dev/null"}"#), UnknownKey),
        ("a query as key id", headed(r#"{"alg":"ES256","kid":"x' UNION SELECT 'k"}"#), UnknownKey),
        ("a key id with NUL", headed(r#"{"alg":"ES256","kid":"ES256\u0000"}"#), UnknownKey),
        ("another case in the key id", headed(r#"{"alg":"ES256","kid":"es256"}"#), UnknownKey),
        ("an empty key id", headed(r#"{"alg":"ES256","kid":""}"#), UnknownKey),
        (
            "a URL as key id",
            headed(r#"{"alg":"ES256","kid":"https://evil.test/keys"}"#),
            UnknownKey,
        ),
        ("a long key id", headed(&format!(r#"{{"alg":"ES256","kid":"{long}"}}"#)), KeyId),
        ("a number as key id", headed(r#"{"alg":"ES256","kid":1}"#), KeyId),
        ("a null key id", headed(r#"{"alg":"ES256","kid":null}"#), KeyId),
        (
            "no key id where there are two keys",
            signed("RS256", r#"{"alg":"RS256"}"#, &claims),
            NoKeyId,
        ),
        (
            "a signature that is cut",
            changed(2, |part| part[..part.len() - 2].to_owned()),
            Signature,
        ),
        ("a signature that goes on", changed(2, |part| format!("{part}AA")), Signature),
        ("a signature in DER", changed(2, |_| encode(der_like())), Signature),
        ("a signature of zeros", changed(2, |_| encode([0; 64])), Signature),
        ("a signature of ones", changed(2, |_| encode([255; 64])), Signature),
        (
            "another token's signature",
            changed(2, |_| {
                token_of(&claims_but("ann", "bob")).rsplit('.').next().expect("a part").to_owned()
            }),
            Signature,
        ),
        (
            "other claims under the signature",
            changed(1, |_| encode(claims_but("ann", "bob"))),
            Signature,
        ),
        (
            "another header over the signature",
            changed(0, |_| encode(r#"{"kid":"ES256","alg":"ES256"}"#)),
            Signature,
        ),
    ];
    for bit in [0, 7, 100, 255, 511] {
        rows.push(("a bit of the signature", flipped(2, bit), Signature));
    }
    rows
}

fn der_like() -> Vec<u8> {
    [&[0x30, 0x44, 0x02, 0x20][..], &[1; 32], &[0x02, 0x20], &[1; 32]].concat()
}

/// Defects of the claims.
fn misclaimed() -> Vec<Row> {
    let end = format!(r#""exp":{}"#, NOW + 600);
    let with_end = |exp: &str| token_of(&claims_but(&end, exp));
    let audience = format!(r#""aud":"{AUDIENCE}""#);
    let with_audience = |aud: &str| token_of(&claims_but(&audience, aud));
    let issuer = format!(r#""iss":"{ISSUER}""#);
    let with_issuer = |iss: &str| token_of(&claims_but(&issuer, iss));
    let begin = format!(r#""nbf":{NOW}"#);
    let issued = format!(r#""iat":{NOW}"#);
    vec![
        ("no issuer", with_issuer(r#""a":1"#), Issuer),
        ("another issuer", with_issuer(r#""iss":"https://evil.test/a""#), Issuer),
        ("the issuer with a slash", with_issuer(r#""iss":"https://id.test/a/""#), Issuer),
        ("the issuer in capitals", with_issuer(r#""iss":"https://ID.test/a""#), Issuer),
        ("two issuers", with_issuer(r#""iss":["https://id.test/a"]"#), Issuer),
        ("no audience", with_audience(r#""a":1"#), Audience),
        ("another audience", with_audience(r#""aud":"https://other.test/mcp""#), Audience),
        ("a longer audience", with_audience(r#""aud":"https://weir.test/mcp/x""#), Audience),
        ("a shorter audience", with_audience(r#""aud":"https://weir.test""#), Audience),
        ("the audience with a slash", with_audience(r#""aud":"https://weir.test/mcp/""#), Audience),
        ("an empty audience", with_audience(r#""aud":"""#), Audience),
        ("no audience in a list", with_audience(r#""aud":[]"#), Audience),
        ("other audiences", with_audience(r#""aud":["a","b"]"#), Audience),
        (
            "an audience that is a member",
            with_audience(r#""aud":{"https://weir.test/mcp":1}"#),
            Audience,
        ),
        (
            "an audience in a list in a list",
            with_audience(r#""aud":[["https://weir.test/mcp"]]"#),
            Audience,
        ),
        (
            "a client for an audience",
            with_audience(r#""client_id":"https://weir.test/mcp""#),
            Audience,
        ),
        ("no end", with_end(r#""a":1"#), Time),
        ("a text for an end", with_end(r#""exp":"1900000600""#), Time),
        ("a null end", with_end(r#""exp":null"#), Time),
        ("an end before all time", with_end(r#""exp":-1"#), Time),
        ("an end after all time", with_end(r#""exp":1e300"#), Time),
        ("an end beyond numbers", with_end(r#""exp":1e400"#), Time),
        ("milliseconds", with_end(r#""exp":1900000600000"#), Time),
        ("an end a minute ago", with_end(&format!(r#""exp":{}"#, NOW - 60)), Expired),
        ("an end long ago", with_end(r#""exp":0"#), Expired),
        (
            "a beginning in two minutes",
            token_of(&claims_but(&begin, r#""nbf":1900000120"#)),
            NotYet,
        ),
        ("a text for a beginning", token_of(&claims_but(&begin, r#""nbf":"now""#)), Time),
        ("issued in two minutes", token_of(&claims_but(&issued, r#""iat":1900000120"#)), NotYet),
        ("bound to a key", token_of(&claims_but("\"sub\"", r#""cnf":{"jkt":"x"},"sub""#)), Bound),
        ("an ID token", token_of(&claims_but("\"sub\"", r#""nonce":"n","sub""#)), Use),
        (
            "an ID token beside another",
            token_of(&claims_but("\"sub\"", r#""at_hash":"h","sub""#)),
            Use,
        ),
        ("no user", token_of(&claims_but(r#""sub":"ann","#, "")), User),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_bad_token_is_refused_for_its_own_reason_and_makes_nobody_fetch() {
    let fixture = TestPolicy::open().await;
    let rows = [misshapen(), unsigned(), misclaimed()].concat();
    assert!(rows.len() >= 60, "{}", rows.len());
    let mut otherwise = Vec::new();
    for (what, token, why) in &rows {
        let found = fixture.authenticate(token).await;
        // A credential without the form of a token is looked up among the keys.
        let expected = match why {
            Form if !is_token(token) => AuthError::Unknown,
            why => (*why).into(),
        };
        if found != Err(expected) {
            otherwise.push((*what, *why, found));
        }
    }
    assert_eq!(otherwise, []);
    assert_eq!(fixture.provider.take_requests(), Vec::<String>::new());
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn each_bit_of_a_token_counts() {
    let fixture = TestPolicy::open().await;
    for part in 0..3 {
        for bit in 0..8 * 64 {
            let token = flipped(part, bit);
            let found = fixture.authenticate(&token).await;
            assert!(found.is_err(), "part {part}, bit {bit}: {token}");
        }
    }
    let good = token("ES256");
    for cut in 1..good.len() {
        assert!(fixture.authenticate(&good[..cut]).await.is_err(), "{cut}");
    }
    assert!(fixture.authenticate(&good).await.is_ok());
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_algorithm_that_is_not_allowed_is_refused() {
    let only = vec![tokens::Algorithm::Rs256];
    let fixture = TestPolicy::open_with(Settings { algorithms: only, ..settings() }).await;
    assert!(fixture.authenticate(&token("RS256")).await.is_ok());
    for other in ["RS384", "PS256", "ES256", "EdDSA"] {
        assert_eq!(
            fixture.authenticate(&token(other)).await,
            Err(TokenError::Algorithm.into()),
            "{other}"
        );
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_products_other_tokens_are_refused() {
    for (preset, claims) in [
        (Preset::Cognito, r#""token_use":"id""#),
        (Preset::Cognito, r#""a":1"#),
        (Preset::Keycloak, r#""typ":"ID""#),
        (Preset::Keycloak, r#""typ":"Refresh""#),
        (Preset::Keycloak, r#""a":1"#),
        (Preset::Okta, r#""a":1"#),
        (Preset::Entra, r#""oid":"o","nonce":"n""#),
        (Preset::Auth0, r#""nonce":"n""#),
    ] {
        let fixture = TestPolicy::open_with(Settings { preset, ..settings() }).await;
        let token = token_of(&claims_but("\"sub\"", &format!(r#"{claims},"sub""#)));
        assert_eq!(fixture.authenticate(&token).await, Err(Use.into()), "{preset:?}: {claims}");
        fixture.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_stands_for_the_audience_only_where_the_product_has_none() {
    let fixture = TestPolicy::open_with(Settings { preset: Preset::Cognito, ..settings() }).await;
    let audience = format!(r#""aud":"{AUDIENCE}""#);
    for (claims, good) in [
        (r#""token_use":"access","client_id":"api://weir""#, true),
        (r#""token_use":"access","client_id":"other""#, false),
        // If the token names an audience, that one counts.
        (r#""token_use":"access","client_id":"api://weir","aud":"other""#, false),
    ] {
        let found = fixture.authenticate(&token_of(&claims_but(&audience, claims))).await;
        assert_eq!(found.is_ok(), good, "{claims}: {found:?}");
        assert!(good || found == Err(Audience.into()));
    }
    fixture.close().await;
}

proptest! {
    #[test]
    fn whatever_is_shown_is_read_or_refused(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..7),
        text in "\\PC*",
        header in "\\{(\"(alg|kid|typ|crit|b64)\":(\"(ES256|none|x)\"|1|null|\\[\\])[,}]){0,5}\\}?",
    ) {
        let encoded = parts.iter().map(encode).collect::<Vec<_>>().join(".");
        let headed = format!("{}.{}.AA", encode(&header), encode(claims()));
        for shown in [encoded, text, headed] {
            if let Ok(read) = CompactJws::parse(&shown) {
                prop_assert!(is_token(&shown));
                prop_assert_eq!(shown.rsplit_once('.').map(|(signed, _)| signed.as_bytes()), Some(read.signed));
            }
        }
    }
}
