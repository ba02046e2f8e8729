//! Tests of valid tokens.

use std::time::Duration;

use strum::VariantArray;

use super::mint::{self, NOW};
use super::{AUDIENCE, TestPolicy, settings};
use crate::policy::tokens::key::{Algorithm, KeyError, VerificationKey};
use crate::policy::tokens::{Preset, Settings};
use crate::policy::{AuthAttempt, AuthError, Credentials, Policy, Principal};
use weir_base::secrets::sha256::sha256;

fn ann() -> Principal {
    let application = Some("corp/ide".into());
    Principal { application, ..Principal::new("corp/ann", "dev") }
}

#[tokio::test(start_paused = true)]
async fn a_token_of_each_algorithm_is_accepted() {
    let fixture = TestPolicy::open().await;
    for algorithm in Algorithm::VARIANTS.iter().map(<&str>::from) {
        assert_eq!(fixture.authenticate(&mint::token(algorithm)).await, Ok(ann()), "{algorithm}");
    }
    assert_eq!(fixture.provider.take_requests(), Vec::<String>::new());
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_may_differ_makes_no_difference() {
    let fixture = TestPolicy::open().await;
    let with = |header: &str| mint::signed("ES256", header, &mint::claims());
    let headers = [
        r#"{"alg":"ES256","kid":"ES256"}"#,
        r#"{"alg":"ES256","kid":"ES256","typ":"JWT"}"#,
        r#"{"alg":"ES256","kid":"ES256","typ":"AT+JWT"}"#,
        r#"{"alg":"ES256","kid":"ES256","typ":"application/at+jwt"}"#,
        // There is one key for this algorithm only.
        r#"{"alg":"ES256"}"#,
        // Keys in a header are ignored.
        r#"{"alg":"ES256","kid":"ES256","jku":"https://evil.test/keys","x5u":"https://evil.test/"}"#,
        r#" { "kid" : "ES256" , "alg" : "ES256" , "unknown" : { "a" : [ 1 ] } } "#,
    ];
    for header in headers {
        assert_eq!(fixture.authenticate(&with(header)).await, Ok(ann()), "{header}");
    }
    let audiences = [
        (format!(r#""aud":"{AUDIENCE}""#), r#""aud":["https://other.test","api://weir"]"#),
        (format!(r#""exp":{}"#, NOW + 600), r#""exp":1.9000006005e9"#),
        (format!(r#""exp":{}"#, NOW + 600), r#""exp":1899999941"#),
        (format!(r#""nbf":{NOW},"iat":{NOW},"#), ""),
        (format!(r#""nbf":{NOW}"#), r#""nbf":1900000060"#),
    ];
    for (from, to) in audiences {
        let token = mint::token_of(&mint::claims_but(&from, to));
        assert_eq!(fixture.authenticate(&token).await, Ok(ann()), "{to}");
    }
    let by_curve = mint::signed("EdDSA", r#"{"alg":"Ed25519","kid":"EdDSA"}"#, &mint::claims());
    assert_eq!(fixture.authenticate(&by_curve).await, Ok(ann()));
    // An RSA key that does not say its algorithm is for the first one that is allowed.
    let plain = mint::signed("RS256", r#"{"alg":"RS256","kid":"plain"}"#, &mint::claims());
    assert_eq!(fixture.authenticate(&plain).await, Ok(ann()));
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_good_token_is_good_until_it_ends() {
    let fixture = TestPolicy::open().await;
    let token = mint::token("ES256");
    // Remembered from the first time on.
    for (after, expected) in [(0, true), (600, true), (659, true), (660, false), (0, true)] {
        let found = fixture.authenticate_at(&token, mint::now() + Duration::from_secs(after)).await;
        assert_eq!(found.is_ok(), expected, "{after}: {found:?}");
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn each_product_is_taken_at_its_own_words() {
    let cases = [
        (
            Preset::Entra,
            r#""oid":"o-1","sub":"pairwise","azp":"app","scp":"mcp.use","roles":["devs","operators"]"#,
            ("corp/o-1", "dev+ops", Some("app")),
        ),
        (
            Preset::Entra,
            r#""oid":"o-1","appid":"v1","roles":["devs"]"#,
            ("corp/o-1", "dev", Some("v1")),
        ),
        (
            Preset::Okta,
            r#""sub":"ann@corp","cid":"0oa","scp":["mcp.use"],"groups":["devs"]"#,
            ("corp/ann@corp", "dev", Some("0oa")),
        ),
        (
            Preset::Auth0,
            r#""sub":"auth0|1","azp":"spa","permissions":["devs"]"#,
            ("corp/auth0|1", "dev", Some("spa")),
        ),
        (
            Preset::Keycloak,
            r#""sub":"u","typ":"Bearer","azp":"cli","realm_access":{"roles":["x","devs"]}"#,
            ("corp/u", "dev", Some("cli")),
        ),
        (Preset::Google, r#""sub":"108","hd":"devs","azp":"g""#, ("corp/108", "dev", Some("g"))),
        (
            Preset::Cognito,
            r#""sub":"c","token_use":"access","client_id":"https://weir.test/mcp","cognito:groups":["devs"]"#,
            ("corp/c", "dev", Some(AUDIENCE)),
        ),
    ];
    for (preset, claims, (name, role, application)) in cases {
        let user_claim = preset.user_claim().to_owned();
        let role_claim = preset.role_claim().to_owned();
        let fixture =
            TestPolicy::open_with(Settings { preset, user_claim, role_claim, ..settings() }).await;
        let audience = match preset {
            Preset::Cognito => String::new(),
            _ => format!(r#","aud":"{AUDIENCE}""#),
        };
        let (issuer, end) = (super::ISSUER, NOW + 60);
        let token =
            mint::token_of(&format!(r#"{{"iss":"{issuer}","exp":{end}{audience},{claims}}}"#));
        let expected = Principal {
            application: application.map(|it: &str| format!("corp/{it}").into()),
            ..Principal::new(name, role)
        };
        assert_eq!(fixture.authenticate(&token).await, Ok(expected), "{preset:?}");
        fixture.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_and_a_token_are_told_apart_by_their_form() {
    let client = crate::policy::ClientCredentials {
        name: "bob".into(),
        role: "dev".into(),
        key_sha256: vec![sha256("a.b.c"), sha256("abc")],
        ..Default::default()
    };
    let authenticate = async |providers: Vec<Settings>, shown: &str| {
        let policy = Policy::new(crate::policy::Settings {
            clients: vec![client.clone()],
            providers,
            ..Default::default()
        });
        let arrival =
            AuthAttempt { credentials: Credentials::Bearer(shown), certificate: None, from: None };
        policy.authenticate(arrival, mint::now()).await.map(|found| found.0.name.to_string())
    };
    assert_eq!(authenticate(vec![settings()], "abc").await, Ok("bob".to_owned()));
    let malformed = crate::policy::tokens::TokenError::Form.into();
    assert_eq!(authenticate(vec![settings()], "a.b.c").await, Err(malformed));
    assert_eq!(authenticate(vec![settings()], "a.b").await, Err(AuthError::Unknown));
    // Without providers nothing is a token.
    assert_eq!(authenticate(Vec::new(), "a.b.c").await, Ok("bob".to_owned()));
}

/// RFC 7515, A.2 and A.3; RFC 8037, A.4: signatures that others made.
#[test]
fn the_signatures_of_the_standards_are_good() {
    const MESSAGE_A2: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const MESSAGE_A3: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let cases = [
        (
            r#"{"kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#,
            MESSAGE_A2,
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        ),
        (
            r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
            MESSAGE_A3,
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
        (
            r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#,
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ),
    ];
    for (jwk, message, signature) in cases {
        let jwk = weir_base::json::Object::parse(jwk).expect("an object");
        let allowed = Algorithm::VARIANTS;
        let key = VerificationKey::from_jwk(&jwk, allowed).expect("a key");
        use base64::Engine;
        let mut signature =
            base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(signature).expect("base64url");
        assert!(key.has_signed(message.as_bytes(), &signature), "{jwk:?}");
        signature[10] ^= 1;
        assert!(!key.has_signed(message.as_bytes(), &signature), "{jwk:?}");
    }
}

/// NIST SP 800-131A: fewer than 2048 bits are too few; more than 8192 take too long.
#[test]
fn an_rsa_key_has_2048_to_8192_bits() {
    let read = |bits: usize| {
        let mut n = vec![0xff; bits.div_ceil(8)];
        n[0] >>= n.len() * 8 - bits;
        let n = mint::encode(n);
        let jwk = format!(r#"{{"kty":"RSA","n":"{n}","e":"AQAB"}}"#);
        let jwk = weir_base::json::Object::parse(jwk).expect("an object");
        VerificationKey::from_jwk(&jwk, &[Algorithm::Rs256]).map(|_| bits)
    };
    let refused = KeyError::Malformed("an RSA key has 2048 to 8192 bits");
    assert_eq!([2048, 8192].map(read), [Ok(2048), Ok(8192)]);
    assert_eq!([2047, 8193].map(read), [Err(refused), Err(refused)]);
}
