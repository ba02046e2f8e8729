//! Each line records the bytes that were sent, exactly once, even if they replaced another
//! response.

use tokio::io::AsyncReadExt;
use weir_mcp::revision::Revision;

use super::AuditedGateway;
use crate::cell::{MODERN_HTTP, Side, Transport};
use crate::client::named;
use crate::pair::bounds::unread;
use crate::pair::{plain, post};
use crate::world::{World, hub, settle, with_pair};

/// A gateway with an audit log and without clients.
async fn open(more: &str) -> AuditedGateway {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    let config = format!("{more}[audit]\nenabled = true\n[state]\ndir = \"{dir}\"\n");
    let world = World::start_recorded(hub(MODERN_HTTP), &with_pair(&config)).await;
    AuditedGateway { world, folder }
}

/// A result of this size.
fn large(bytes: usize) -> String {
    format!(r#"{{"resultType":"complete","messages":[],"text":"{}"}}"#, "x".repeat(bytes))
}

fn asking(id: u64, method: &str, params: &str) -> bytes::Bytes {
    weir_mcp::jsonrpc::write_request(&id.into(), method, params.as_bytes())
}

const OPEN: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;

#[tokio::test(start_paused = true)]
async fn an_answer_for_which_there_is_no_room_is_recorded_as_the_error_that_it_became() {
    let audited = open("").await;
    let client = plain(&audited.world, None);
    let (mut raw, address) = unread(&audited.world).await;
    post(client.http(), &address, asking(0, "initialize", OPEN)).await;
    audited.world.upstream("hub").result("prompts/get", &large(4 << 20));
    for id in 1..=20 {
        let message = asking(id, "prompts/get", &named("hub__a"));
        assert_eq!(post(client.http(), &address, message).await.status, 202);
    }
    settle().await;
    let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    let ids = |text: &[u8]| String::from_utf8_lossy(text).matches("\"id\":").count();
    while ids(&text) < 21 {
        let read = raw.read(&mut piece).await.expect("the stream lives");
        // The filler is dropped, so that the counted text is short.
        text.extend(piece[..read].iter().filter(|byte| **byte != b'x'));
    }
    let text = String::from_utf8_lossy(&text);
    let refused = text.matches("too many large responses are unread").count();
    drop((raw, client));
    settle().await;
    let entries = audited.close_and_read(&["method", "outcome", "code"]).await;
    let count = |line: &str| entries.iter().filter(|entries| *entries == line).count();
    assert!(refused > 0);
    assert_eq!(count("prompts/get error -32603"), refused);
    assert_eq!(count("prompts/get ok -"), 20 - refused);
}

#[tokio::test(start_paused = true)]
async fn an_element_that_a_batch_has_no_room_for_is_recorded_as_too_large() {
    let audited = AuditedGateway::start(MODERN_HTTP, "").await;
    audited.world.upstream("hub").result("prompts/get", &large(4 << 20));
    let client = audited.client(Side::new(Revision::V2025_03_26, Transport::Http)).await;
    let ask = |id| asking(id, "prompts/get", &named("hub__a"));
    let batch = [&b"["[..], &ask(901), b",", &ask(902), b",", &ask(903), b"]"].concat();
    let reply = client.http().post(batch, &client.http().headers("", "{}")).whole().await;
    let refused = reply.body.matches("all upstreams together").count();
    assert!(refused > 0);
    drop(client);
    let mut entries = audited.close_and_read(&["method", "outcome", "code", "status"]).await;
    entries.sort();
    let mut expected = vec!["prompts/get error 5130 200"; refused];
    expected.resize(3, "prompts/get ok - 200");
    assert_eq!(entries, expected);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_on_a_stream_has_one_line() {
    let audited = open("[server]\nper_client = { calls = 2, waiting = 1 }\n").await;
    let client = plain(&audited.world, None);
    let (raw, address) = unread(&audited.world).await;
    post(client.http(), &address, asking(0, "initialize", OPEN)).await;
    audited.world.upstream("hub").result("prompts/get", &large(40_000));
    let mut busy = 0;
    for id in 1..=120 {
        let message = asking(id, "prompts/get", &named("hub__a"));
        let reply = post(client.http(), &address, message).await;
        busy += usize::from(reply.status == 429);
    }
    assert!(busy > 0);
    drop((raw, client));
    settle().await;
    let entries = audited.close_and_read(&["method", "outcome", "code", "status"]).await;
    let gets: Vec<_> = entries.iter().filter(|line| line.starts_with("prompts/get ")).collect();
    let count = |line: &str| gets.iter().filter(|entries| **entries == line).count();
    assert_eq!((gets.len(), count("prompts/get refused 4290 429")), (120, busy));
}
