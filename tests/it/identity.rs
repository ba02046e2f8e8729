//! An identity provider in memory: its documents, its one key, and the tokens that it signs.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::task::TaskTracker;
use weir_base::net::http_connection::ByteStream;

use crate::signing::{jwks, signed};

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
    signed(&format!(
        r#"{{"iss":"{ISSUER}","aud":"{AUDIENCE}","sub":"{user}","exp":{end}{}{more}}}"#,
        if more.is_empty() { "" } else { "," }
    ))
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}
