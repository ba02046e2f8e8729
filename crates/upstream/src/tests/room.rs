//! Memory budget of an upstream: a message that is assembled counts against it, and is released
//! however that ends.

use bytes::Bytes;
use serde_json::{Value, json};

use super::calls::RunningCall;
use super::pair::pair;
use crate::Error;
use crate::testing::{BUDGET_BYTES, SendCall, World, call};
use weir_mcp::revision::{Era, Revision};

const LEGACY: Revision = Revision::V2025_11_25;

/// Result that has to be buffered.
fn large_result() -> Value {
    json!({ "text": "x".repeat(200_000) })
}

fn answer(request: &Value, result: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string()
}

/// Uses up the budget, so that nothing large fits.
fn exhaust_budget(world: &World) -> Bytes {
    world.budget.charge(vec![0; BUDGET_BYTES / 100 * 95].into()).expect("the budget is unused")
}

#[tokio::test(start_paused = true)]
async fn f72_without_room_a_line_ends_its_call_and_no_other() {
    let (world, mut peer) = World::stdio(Era::Legacy).await;
    let others = exhaust_budget(&world);
    let [refused, small] = [(); 2].map(|()| RunningCall::start(&world, call(LEGACY)));
    let (first, second) = (peer.read().await, peer.read().await);
    peer.write(&answer(&first, &large_result())).await;
    peer.write(&answer(&second, &json!({ "text": "x".repeat(15_000) }))).await;
    let ends = [refused.end().await, small.end().await];
    let refused = ends.iter().filter(|end| matches!(end, Err(Error::MemoryExhausted))).count();
    assert_eq!((refused, ends.iter().filter(|end| end.is_ok()).count()), (1, 1));

    drop(others);
    let passes = RunningCall::start(&world, call(LEGACY));
    let request = peer.read().await;
    peer.write(&answer(&request, &large_result())).await;
    assert_eq!(passes.end().await.expect("the budget is free again"), large_result().to_string());
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f72_a_line_that_is_never_whole_is_given_back_with_its_child() {
    let (world, mut peer) = World::stdio(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    peer.read().await;
    peer.begin(&"x".repeat(200_000)).await;
    while world.budget.reserved_bytes() < 100_000 {
        tokio::task::yield_now().await;
    }
    peer.exit("with code 1");
    assert!(running.end().await.is_err());
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f72_without_room_an_event_of_the_pair_ends_its_call_and_no_other() {
    let (mut world, pair) = pair().await;
    let others = exhaust_budget(&world);
    let [refused, small] = [(); 2].map(|()| RunningCall::start(&world, call(LEGACY)));
    let (first, second) = (pair.read(&mut world).await, pair.read(&mut world).await);
    pair.events.raw(format!("event: message\ndata: {}\n\n", answer(&first, &large_result())));
    pair.answer(&second, json!({}));
    let ends = [refused.end().await, small.end().await];
    let refused = ends.iter().filter(|end| matches!(end, Err(Error::MemoryExhausted))).count();
    assert_eq!((refused, ends.iter().filter(|end| end.is_ok()).count()), (1, 1));
    drop(others);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f72_without_room_a_body_or_an_event_over_http_ends_its_call() {
    for is_event in [false, true] {
        let mut world = World::http(Era::Legacy).await;
        for has_capacity in [false, true] {
            let others = (!has_capacity).then(|| exhaust_budget(&world));
            let running = RunningCall::start(&world, call(Revision::V2026_07_28));
            let request = world.post().await;
            match is_event {
                true => {
                    let id = request.id();
                    let events = request.events();
                    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": large_result() }));
                }
                false => request.answer(large_result()),
            }
            match running.end().await {
                Ok(text) => assert_eq!((has_capacity, text), (true, large_result().to_string())),
                Err(Error::MemoryExhausted) => assert!(!has_capacity),
                Err(error) => panic!("{error}"),
            }
            drop(others);
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f72_who_cancels_while_a_body_arrives_gives_it_back() {
    let mut world = World::http(Era::Legacy).await;
    let upstream = world.upstream.clone();
    // A response that its caller cannot take as a stream is buffered.
    let calling = world
        .tracker
        .spawn(async move { upstream.send(call(Revision::V2026_07_28)).await.map(|_| ()) });
    let request = world.post().await;
    let head = format!(r#"{{"jsonrpc":"2.0","id":{},"x":""#, request.id());
    let events = request.pieces();
    events.raw(head + &"x".repeat(200_000));
    while world.budget.reserved_bytes() < 200_000 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    calling.abort();
    events.closed().await;
    world.finish().await;
}
