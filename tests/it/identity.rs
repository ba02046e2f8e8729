//! An identity provider in memory: its documents, its one key, and the tokens that it signs.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::task::TaskTracker;
use weir::upstream::connect::ByteStream;

pub(crate) const ISSUER: &str = "https://id.test/a";
/// Token that it issues to Weir, for an upstream.
pub(crate) const TOKEN_OF_WEIR: &str = "token-of-weir-itself";
pub(crate) const AUDIENCE: &str = "http://127.0.0.1:8642/mcp";

/// Opens a connection to the provider, which answers one request.
pub(crate) fn connect() -> Box<dyn ByteStream> {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    TaskTracker::new().spawn(async move {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n")
            && theirs.read_buf(&mut head).await.is_ok_and(|n| n > 0)
        {}
        let head = String::from_utf8_lossy(&head);
        let body = match head.split(' ').nth(1) {
            Some("/a/.well-known/openid-configuration") => {
                format!(r#"{{"issuer":"{ISSUER}","jwks_uri":"https://id.test/keys"}}"#)
            }
            Some("/keys") => jwks(),
            Some("/token") => {
                format!(r#"{{"access_token":"{TOKEN_OF_WEIR}","token_type":"Bearer"}}"#)
            }
            _ => String::new(),
        };
        let status = if body.is_empty() { "404 Not Found" } else { "200 OK" };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
        let _ = theirs.write_all(answer.as_bytes()).await;
    });
    Box::new(ours)
}

/// A token for this user with these further claims, valid for ten minutes.
pub(crate) fn token(user: &str, more: &str) -> String {
    token_until(user, more, now() + 600)
}

/// A token for this user with these further claims, valid until `end`.
pub(crate) fn token_until(user: &str, more: &str, end: u64) -> String {
    let claims = format!(
        r#"{{"iss":"{ISSUER}","aud":"{AUDIENCE}","sub":"{user}","exp":{end}{}{more}}}"#,
        if more.is_empty() { "" } else { "," }
    );
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"k","typ":"at+jwt"}"#);
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
    let signature = key().sign(&SystemRandom::new(), message.as_bytes()).expect("signed");
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn key() -> &'static EcdsaKeyPair {
    static KEY: OnceLock<EcdsaKeyPair> = OnceLock::new();
    KEY.get_or_init(|| {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key pair")
    })
}

fn jwks() -> String {
    let point = key().public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..]].map(|number| URL_SAFE_NO_PAD.encode(number));
    format!(
        r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"k","use":"sig","x":"{x}","y":"{y}"}}]}}"#
    )
}
