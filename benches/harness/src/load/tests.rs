//! A wrong response is counted as failed, whatever is wrong with it.

use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::drive::{Client, Driven, Length, drive};
use super::exchange::Want;
use super::peer::{Era, Peer};

const RIGHT: &str =
    r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a: text"}]}}"#;

/// Result of one connection to a server that responds with `first` to the first requests, and then
/// with `later`.
async fn driven(first: &'static str, later: &'static str) -> Driven {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut read = vec![0; 4096];
        for number in 0.. {
            let Ok(1..) = stream.read(&mut read).await else { return };
            let text = String::from_utf8_lossy(&read);
            let id =
                text.split("\"id\":").nth(1).expect("an id").split(',').next().expect("digits");
            let body = if number < 3 { first } else { later }.replace("ID", id);
            let (status, body) = body.split_once('|').unwrap_or(("200 OK", &body));
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
            if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let peer = Peer::new(address, "/mcp", None, Era::Modern);
    let ask = peer.request("tools/call", json!({ "name": "a" }), Want::Text("a: text".into()));
    let client = Client { peer, script: Arc::new(vec![ask]), is_walk: false };
    let driven = drive(&[client], Length::Count(10), || {}).await.expect("it is there");
    serving.abort();
    driven
}

async fn fails(later: &'static str, because: &str) {
    for first in [RIGHT, later] {
        let driven = driven(first, later).await;
        assert!(driven.wrong > 0, "{later} was taken for right");
        let output = driven.first_wrong.expect("a reason");
        assert!(output.contains(because), "{output}");
        // The two right responses, behind the one before the clock.
        assert!(driven.times.len() <= 2, "{} counted", driven.times.len());
    }
}

#[tokio::test]
async fn right_replies_count() {
    let driven = driven(RIGHT, RIGHT).await;
    assert_eq!((driven.wrong, driven.first_wrong), (0, None));
    assert!(driven.times.len() > 3);
}

#[tokio::test]
async fn a_right_reply_in_another_form_counts() {
    let other = "event: message\r\ndata: {\"id\":ID, \"jsonrpc\":\"2.0\",\"result\":{\"content\":[{\"text\":\"a: text\"}]}}\r\n\r\n";
    assert_eq!(driven(RIGHT, other).await.wrong, 0);
}

#[tokio::test]
async fn a_wrong_id_fails() {
    let text = r#"{"jsonrpc":"2.0","id":1234567890,"result":{"content":[{"type":"text","text":"a: text"}]}}"#;
    fails(text, "no answer to").await;
}

#[tokio::test]
async fn a_wrong_content_fails_even_if_it_is_as_long() {
    let text =
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"b: text"}]}}"#;
    fails(text, "another content").await;
}

#[tokio::test]
async fn an_error_object_fails() {
    fails(r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"no"}}"#, "an error").await;
}

#[tokio::test]
async fn a_call_that_says_it_failed_fails() {
    let text = r#"{"jsonrpc":"2.0","id":ID,"result":{"isError":true,"content":[{"type":"text","text":"a: text"}]}}"#;
    fails(text, "a failed call").await;
}

#[tokio::test]
async fn another_status_fails() {
    let text = r#"429 Too Many|{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a: text"}]}}"#;
    fails(text, "status 429").await;
}

#[tokio::test]
async fn what_breaks_off_fails() {
    fails("", "no answer").await;
}
