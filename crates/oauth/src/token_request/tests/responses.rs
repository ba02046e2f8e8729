//! Tests of responses to token requests.

use super::*;

#[tokio::test]
async fn only_a_usable_token_is_taken() {
    let grant = with_secret("hunter2");
    let long = format!(r#"{{"access_token":"{}","token_type":"Bearer"}}"#, "x".repeat(16_385));
    for (status, response, error) in [
        (200, "<!doctype html>", "the response is not a token"),
        (200, r#"{"access_token":"x"}"#, "the token is not of the type Bearer"),
        (200, r#"{"access_token":"","token_type":"Bearer"}"#, "the response is not a token"),
        (200, r#"{"access_token":7,"token_type":"Bearer"}"#, "the response is not a token"),
        (200, r#"{"access_token":"x","token_type":"mac"}"#, "the token is not of the type Bearer"),
        (
            200,
            r#"{"access_token":"x\r\ny: z","token_type":"Bearer"}"#,
            "the token is longer than 16 KiB, or not visible ASCII",
        ),
        (200, &long, "the token is longer than 16 KiB, or not visible ASCII"),
        (302, "", "the response status is 302 Found"),
        (429, r#"{"error":"slow_down"}"#, "the response status is 429 Too Many Requests"),
        (500, r#"{"error":"x"}"#, "the response status is 500 Internal Server Error"),
    ] {
        let (result, ..) = send(&grant, None, (status, response)).await;
        assert_eq!(result, Err(OAuthError::Unavailable(format!("{TOKEN_URL}: {error}"))));
    }
    let (result, ..) = send(&grant, None, (201, TOKEN.1)).await;
    assert!(result.is_ok(), "{result:?}");
    for (response, error) in [
        (r#"{"error":"invalid_client"}"#, "invalid_client"),
        (
            r#"{"error":"invalid_client","error_description":"\u0007 hunter2 is wrong"}"#,
            r"invalid_client: \u{7} *** is wrong",
        ),
        // A token of the response itself.
        (
            r#"{"error":"x","error_description":"got a1 and r2","access_token":"a1","refresh_token":"r2"}"#,
            "x: got *** and ***",
        ),
    ] {
        let (result, ..) = send(&grant, None, (401, response)).await;
        let error = format!("{TOKEN_URL} refuses the request: {error}");
        assert_eq!(result, Err(OAuthError::Refused(error)));
    }
}

#[tokio::test]
async fn a_lifetime_is_a_number_of_seconds_in_any_form_and_an_odd_one_is_unknown() {
    for (text, seconds) in [
        ("60", Some(60)),
        ("60.0", Some(60)),
        (r#""60""#, Some(60)),
        ("null", None),
        (r#""soon""#, None),
        ("0", Some(0)),
        ("1e300", Some(31_536_000)),
        ("-1", None),
        (r#""-1""#, None),
        ("1e400", None),
        (r#""1e400""#, None),
        (r#""NaN""#, None),
        (r#""""#, None),
        ("true", None),
        ("[60]", None),
        (r#"{"seconds":60}"#, None),
    ] {
        let response =
            format!(r#"{{"access_token":"x","token_type":"Bearer","expires_in":{text}}}"#);
        let (result, ..) = send(&with_secret("x"), None, (200, &response)).await;
        let lifetime = result.expect("a token").lifetime;
        assert_eq!(lifetime, seconds.map(Duration::from_secs), "{text}");
    }
}

#[tokio::test]
async fn a_response_with_odd_members_beside_the_tokens_is_used() {
    let grant = with_secret("hunter2");
    for odd in [
        r#""scope":7"#,
        r#""scope":["a"],"id_token":null"#,
        r#""expires_in":{},"expires_in":1e999"#,
        r#""token_type":"bearer""#,
        r#""error":null"#,
        r#""x":"\ud800""#,
    ] {
        let body =
            format!(r#"{{"access_token":"t","token_type":"Bearer","refresh_token":"r",{odd}}}"#);
        let (issued, ..) = send(&grant, None, (200, &body)).await;
        let issued = issued.expect(odd);
        assert_eq!((issued.token, issued.refresh_token), (Ok("t".into()), Some("r".into())));
    }
    let body = format!("\u{feff}{}", TOKEN.1);
    assert!(send(&grant, None, (200, &body)).await.0.is_ok(), "a byte order mark");
    for odd in ["7", "[]", "null", "{}", "\"\""] {
        let body = format!(r#"{{"access_token":"t","token_type":"Bearer","refresh_token":{odd}}}"#);
        let (issued, ..) = send(&grant, None, (200, &body)).await;
        assert_eq!(issued.expect(odd).refresh_token, None);
    }
}

#[tokio::test]
async fn a_refresh_token_is_not_lost_with_an_access_token_that_cannot_be_used() {
    let grant = with_secret("hunter2");
    let long = format!(r#""access_token":"{}","token_type":"Bearer""#, "x".repeat(16_385));
    for (members, error) in [
        (r#""access_token":"t""#, "the token is not of the type Bearer"),
        (r#""access_token":"t","token_type":null"#, "the token is not of the type Bearer"),
        (r#""access_token":"t","token_type":"N_A""#, "the token is not of the type Bearer"),
        (r#""access_token":"t","token_type":"DPoP""#, "the token is not of the type Bearer"),
        (r#""access_token":"t","token_type":["Bearer"]"#, "the token is not of the type Bearer"),
        (r#""access_token":7,"token_type":"Bearer""#, "the response is not a token"),
        (r#""token_type":"Bearer""#, "the response is not a token"),
        (
            r#""access_token":"t t","token_type":"Bearer""#,
            "the token is longer than 16 KiB, or not visible ASCII",
        ),
        (&long, "the token is longer than 16 KiB, or not visible ASCII"),
    ] {
        let body = format!(r#"{{{members},"refresh_token":"next"}}"#);
        let (issued, ..) = send(&grant, None, (200, &body)).await;
        let issued = issued.expect(members);
        let error = OAuthError::Unavailable(format!("{TOKEN_URL}: {error}"));
        assert_eq!(issued.token.map_err(|unusable| unusable.error), Err(error));
        assert_eq!(issued.refresh_token, Some("next".into()));
    }
}

#[tokio::test]
async fn an_error_with_the_status_200_is_a_refusal_and_an_empty_refresh_token_is_none() {
    let grant = with_secret("hunter2");
    let body = r#"{"error":"bad_verification_code","error_description":"expired"}"#;
    let (issued, ..) = send(&grant, None, (200, body)).await;
    let text = "https://id.test/token refuses the request: bad_verification_code: expired";
    assert_eq!(issued, Err(OAuthError::Refused(text.into())));
    let body = r#"{"access_token":"x","token_type":"bearer","refresh_token":""}"#;
    let (issued, ..) = send(&grant, None, (200, body)).await;
    assert_eq!(issued.expect("issued").refresh_token, None);
    // One that is too long for the record does not replace the former one.
    for (length, is_taken) in [(16_385, true), (32_768, true), (32_769, false)] {
        let long = "r".repeat(length);
        let body =
            format!(r#"{{"access_token":"x","token_type":"bearer","refresh_token":"{long}"}}"#);
        let (issued, ..) = send(&grant, None, (200, &body)).await;
        let expected = is_taken.then(|| Secret::from(long));
        assert!(issued.expect("issued").refresh_token == expected, "{length}");
    }
}
