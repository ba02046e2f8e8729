//! A line tells of what went out, once, whatever stood in its place before.

use tokio::io::AsyncReadExt;
use weir::mcp::revision::Revision;

use super::Recorded;
use crate::cell::{MODERN_HTTP, Side, Wire};
use crate::client::named;
use crate::pair::bounds::unread;
use crate::pair::{plain, post};
use crate::world::{World, hub, settle, with_pair};

/// A house without clients, which records.
async fn open(more: &str) -> Recorded {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    let config = format!("{more}[audit]\nenabled = true\n[state]\ndir = \"{dir}\"\n");
    let world = World::start_recorded(hub(MODERN_HTTP), &with_pair(&config)).await;
    Recorded { world, folder }
}

/// What an upstream says that has much to say.
fn large(bytes: usize) -> String {
    format!(r#"{{"resultType":"complete","messages":[],"text":"{}"}}"#, "x".repeat(bytes))
}

fn asking(id: u64, method: &str, params: &str) -> bytes::Bytes {
    weir::jsonrpc::write_request(&id.into(), method, params.as_bytes())
}

const OPEN: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;

#[tokio::test(start_paused = true)]
async fn an_answer_for_which_there_is_no_room_is_recorded_as_the_error_that_it_became() {
    let house = open("").await;
    let client = plain(&house.world, None);
    let (mut raw, address) = unread(&house.world).await;
    post(client.http(), &address, asking(0, "initialize", OPEN)).await;
    house.world.upstream("hub").result("prompts/get", &large(4 << 20));
    for id in 1..=20 {
        let message = asking(id, "prompts/get", &named("hub__a"));
        assert_eq!(post(client.http(), &address, message).await.status, 202);
    }
    settle().await;
    let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    let ids = |text: &[u8]| String::from_utf8_lossy(text).matches("\"id\":").count();
    while ids(&text) < 21 {
        let read = raw.read(&mut piece).await.expect("the stream lives");
        // What is counted is short.
        text.extend(piece[..read].iter().filter(|byte| **byte != b'x'));
    }
    let text = String::from_utf8_lossy(&text);
    let refused = text.matches("too many large answers wait").count();
    drop((raw, client));
    settle().await;
    let told = house.told(&["method", "outcome", "code"]).await;
    let count = |line: &str| told.iter().filter(|told| *told == line).count();
    assert!(refused > 0);
    assert_eq!(count("prompts/get error -32603"), refused);
    assert_eq!(count("prompts/get ok -"), 20 - refused);
}

#[tokio::test(start_paused = true)]
async fn an_element_that_a_batch_has_no_room_for_is_recorded_as_too_large() {
    let house = Recorded::start(MODERN_HTTP, "").await;
    house.world.upstream("hub").result("prompts/get", &large(4 << 20));
    let client = house.client(Side::new(Revision::V2025_03_26, Wire::Http)).await;
    let ask = |id| asking(id, "prompts/get", &named("hub__a"));
    let batch = [&b"["[..], &ask(901), b",", &ask(902), b",", &ask(903), b"]"].concat();
    let reply = client.http().post(batch, &client.http().headers("", "{}")).whole().await;
    let refused = reply.body.matches("all upstreams together").count();
    assert!(refused > 0);
    drop(client);
    let mut told = house.told(&["method", "outcome", "code", "status"]).await;
    told.sort();
    let mut expected = vec!["prompts/get error 5130 200"; refused];
    expected.resize(3, "prompts/get ok - 200");
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_on_a_stream_has_one_line() {
    let house = open("[server]\nper_client = { calls = 2, waiting = 1 }\n").await;
    let client = plain(&house.world, None);
    let (raw, address) = unread(&house.world).await;
    post(client.http(), &address, asking(0, "initialize", OPEN)).await;
    house.world.upstream("hub").result("prompts/get", &large(40_000));
    let mut busy = 0;
    for id in 1..=120 {
        let message = asking(id, "prompts/get", &named("hub__a"));
        let reply = post(client.http(), &address, message).await;
        busy += usize::from(reply.status == 429);
    }
    assert!(busy > 0);
    drop((raw, client));
    settle().await;
    let told = house.told(&["method", "outcome", "code", "status"]).await;
    let asked: Vec<_> = told.iter().filter(|line| line.starts_with("prompts/get ")).collect();
    let count = |line: &str| asked.iter().filter(|told| **told == line).count();
    assert_eq!((asked.len(), count("prompts/get refused 4290 429")), (120, busy));
}
