//! Translation between the eras: error codes, result types, input requests.

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, MODERN_STDIO, SIDES};
use crate::client::{named, object, string};
use crate::upstream::Answer;
use crate::world::{World, everywhere, hub};

#[tokio::test(start_paused = true)]
async fn codes_of_the_other_era_are_put_in_the_clients_own() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let (modern, legacy) = ([-32020, -32021, -32022], [-32002, -32042]);
        let foreign = if cell.upstream.is_modern() { &modern[..] } else { &legacy[..] };
        for code in foreign {
            let data =
                r#"{"requiredCapabilities":{},"supported":[],"requested":"x","elicitations":[]}"#;
            let error =
                format!(r#"{{"code":{code},"message":"told by the server","data":{data}}}"#);
            world.upstream("hub").answer("resources/read", Answer::Error(error));
            let reply = client.read("file:///a").await;
            // The other codes concern Weir's own messages, or look like those for denied items.
            if [-32021, -32042].contains(code) {
                assert!(reply.error().contains("told by the server"), "{code}: {reply:?}");
            }
            let own = reply.code();
            if cell.client.is_modern() {
                // Spec 2026-07-28, error codes: these two are never used.
                assert!(!legacy.contains(&own), "{code} became {own}");
                assert!(*code != -32002 || own == -32602, "{code} became {own}");
                assert!(*code != -32042 || own == -32021, "{code} became {own}");
            } else {
                assert!(!modern.contains(&own), "{code} became {own}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n56_a_question_passes_through_between_two_of_the_modern_era() {
    let question = r#"{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"\u0041","x":1e400,"requestedSchema":{"type":"object","properties":{}}}}},"requestState":"s\u0041"}"#;
    let answers = r#""inputResponses":{"q":{"action":"accept","content":{"n":1.0}}},"requestState":"s\u0041""#;
    for upstream in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(upstream), "").await;
        for side in [MODERN_HTTP, MODERN_STDIO] {
            let client = world.client(side).await;
            let declared = r#""_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}"#;
            for (method, item) in [
                ("tools/call", r#""name":"hub__a""#),
                ("prompts/get", r#""name":"hub__a""#),
                ("resources/read", r#""uri":"file:///a""#),
            ] {
                world.upstream("hub").result(method, question);
                let reply = client.request(method, &format!("{{{item},{declared}}}")).await;
                assert_eq!(reply.result(), question, "{side}: {method}");
                let seen = object(&string(world.upstream("hub").last(method).params));
                let capabilities = seen.get_object("_meta").expect("_meta");
                assert_eq!(
                    capabilities.get("io.modelcontextprotocol/clientCapabilities"),
                    Some(r#"{"elicitation":{"form":{}}}"#),
                    "what the client declared is what the upstream is offered"
                );
                world.upstream("hub").reset_answer(method);
                let reply =
                    client.request(method, &format!("{{{item},{answers},{declared}}}")).await;
                assert!(reply.outcome.is_ok(), "{side}: {method}: {reply:?}");
                let seen = string(world.upstream("hub").last(method).params);
                assert!(seen.contains(answers), "{side}: {method}: {seen}");
            }
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_client_has_not_declared_is_not_offered_to_its_upstream() {
    for upstream in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(upstream), "").await;
        for side in SIDES {
            let client = world.client(side).await;
            client.call_tool("hub__a").await;
            let seen = object(&string(world.upstream("hub").last("tools/call").params));
            let inner = seen.get_object("_meta").expect("_meta");
            let offered = inner.get("io.modelcontextprotocol/clientCapabilities");
            assert_eq!(offered, Some("{}"), "{side}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37i_a_result_of_an_unknown_type_is_an_error() {
    for upstream in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(upstream), "").await;
        world.upstream("hub").result("tools/call", r#"{"resultType":"novel","x":1}"#);
        for side in SIDES {
            let client = world.client(side).await;
            let reply = client.call_tool("hub__a").await;
            assert_eq!(reply.code(), -32603, "{side}: {reply:?}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_to_a_client_that_cannot_be_asked_is_an_error() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let question = r#"{"resultType":"input_required","inputRequests":{},"requestState":"s"}"#;
    world.upstream("hub").result("tools/call", question);
    for side in SIDES.into_iter().filter(|side| !side.is_modern()) {
        let client = world.client(side).await;
        let reply = client.call_tool("hub__a").await;
        assert_eq!(reply.code(), -32603, "{side}: {reply:?}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_says_of_itself_decides_nothing() {
    let world = World::start(hub(LEGACY_HTTP), "").await;
    let client = world.client(MODERN_HTTP).await;
    let expected = client.request("prompts/list", "{}").await.outcome;
    for info in [r#"{"name":"weir","version":"1"}"#, "{}", "7", r#"{"name":"admin"}"#] {
        let params = format!(r#"{{"_meta":{{"io.modelcontextprotocol/clientInfo":{info}}}}}"#);
        let found = client.request("prompts/list", &params).await.outcome;
        let items = |outcome: &Result<String, String>| {
            let result = object(outcome.as_ref().expect("a result"));
            result.get("prompts").expect("prompts").to_owned()
        };
        assert_eq!(items(&found), items(&expected), "{info}");
    }
    let params = named("hub__a");
    assert!(client.request("prompts/get", &params).await.outcome.is_ok());
    drop(client);
    world.close().await;
}
