//! Messages related to a task: they name it by its handle, and towards the upstream by its own id.

use super::{EXTENSION, about, begin_tasks, begun, has_tasks, is_unknown, task, working};
use crate::cell::{SIDES, Transport};
use crate::client::object;
use crate::world::{World, everywhere};

/// Capabilities of a client that answers input requests.
const ASKED: &str =
    r#"{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// Id of the related task of an object.
fn related(params: &weir_base::json::Object) -> Option<String> {
    let related = params.get_object("_meta")?.get_object(RELATED)?;
    related.get_string("taskId").map(|id| id.into_owned())
}

#[tokio::test(start_paused = true)]
async fn a_question_beside_a_tasks_result_and_its_answer_name_the_task_as_each_side_knows_it() {
    everywhere("", working, async |world, cell| {
        // Weir knows the call of an input request only where the call has a stream of its own.
        let upstream = cell.upstream;
        if !has_tasks(cell) || upstream.is_modern() || upstream.transport != Transport::Http {
            return;
        }
        let client = world.client_declaring(cell.client, ASKED).await;
        let hub = world.upstream("hub");
        begin_tasks(world, "hub", "own-1");
        let handle = begun(&client, "hub__a").await;
        // The task waits for its client, which asks for the result.
        hub.result(
            "tasks/get",
            &task(cell.upstream, "", "own-1").replace("working", "input_required"),
        );
        let state = about(&client, "tasks/get", &handle).await;
        let state = object(state.result());
        assert_eq!(state.get_string("status").as_deref(), Some("input_required"));
        assert_eq!(state.get_string("taskId").as_deref(), Some(&*handle), "one handle for a task");

        let mut intercepted = hub.intercept("tasks/result");
        let params =
            format!(r#"{{"taskId":"{handle}","_meta":{{"progressToken":"p","{RELATED}":{{"taskId":"{handle}"}}}}}}"#);
        let mut exchange = client.start("tasks/result", &params);
        let call = intercepted.next().await;
        assert_eq!(related(&call.params).as_deref(), Some("own-1"));
        let meta = r#""_meta":{"io.modelcontextprotocol/related-task":{"taskId":"own-1"},"x":1.0}"#;
        let ask = |id: u32| {
            call.send_request(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create","params":{{"message":"m","requestedSchema":{{"type":"object","properties":{{}}}},{meta}}}}}"#
            ));
        };
        let answers = [
            (format!(r#"{{"taskId":"{handle}","y":1.0}}"#), Some("own-1")),
            (r#"{"taskId":"own-1"}"#.to_owned(), None),
            (format!(r#"{{"taskId":"{}"}}"#, &handle[1..]), None),
        ];
        for (at, (answer, expected)) in answers.into_iter().enumerate() {
            ask(at as u32 + 1);
            let question = object(&exchange.next_server_message().await);
            let params = question.get_object("params").expect("params");
            assert_eq!(related(&params).as_deref(), Some(&*handle));
            assert_eq!(params.get_object("_meta").expect("meta").get("x"), Some("1.0"));
            let id = question.get("id").expect("an id");
            client
                .send(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"action":"accept","content":{{}},"_meta":{{"{RELATED}":{answer},"z":1.0}}}}}}"#
                ))
                .await;
            let received = hub.received_responses(at + 1).await;
            let result = object(&received[at]).get_object("result").expect("a result");
            assert_eq!(related(&result).as_deref(), expected);
            assert_eq!(result.get_object("_meta").expect("meta").get("z"), Some("1.0"));
        }
        call.progress(&format!(r#""progress":1,{meta}"#));
        let note = object(&exchange.next_server_message().await);
        let params = note.get_object("params").expect("params");
        let announced = (params.get("progress"), related(&params));
        assert_eq!(announced, (Some("1"), Some(handle.clone())));
        call.result(&format!(r#"{{"content":[],{meta}}}"#));
        let reply = exchange.reply().await;
        assert_eq!(related(&object(reply.result())).as_deref(), Some(&*handle));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_large_result_of_a_call_that_is_related_to_a_task_names_it_by_its_handle() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) || cell.upstream.is_modern() {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        let hub = world.upstream("hub");
        begin_tasks(world, "hub", "own-1");
        let handle = begun(&client, "hub__a").await;
        let large = "x".repeat(70_000);
        let meta = format!(r#""_meta":{{"{RELATED}":{{"taskId":"own-1"}}}}"#);
        for members in [format!(r#"{meta},"x":"{large}""#), format!(r#""x":"{large}",{meta}"#)] {
            hub.result("tools/call", &format!(r#"{{"content":[],{members}}}"#));
            let params =
                format!(r#"{{"name":"hub__b","_meta":{{"{RELATED}":{{"taskId":"{handle}"}}}}}}"#);
            let reply = client.request("tools/call", &params).await;
            assert_eq!(related(&object(reply.result())).as_deref(), Some(&*handle));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_task_of_the_newer_era_asks_is_answered_by_an_update() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) || !cell.upstream.is_modern() {
            return;
        }
        let client = world.client_declaring(cell.client, ASKED).await;
        let hub = world.upstream("hub");
        begin_tasks(world, "hub", "own-1");
        let handle = begun(&client, "hub__a").await;
        let input_required = r#""resultType":"complete","inputRequests":{"a":{"method":"elicitation/create","params":{ "message" : "\u0041","requestedSchema":{"type":"object","properties":{}}}}},"#;
        hub.result(
            "tasks/get",
            &task(cell.upstream, input_required, "own-1").replace("working", "input_required"),
        );
        let state = about(&client, "tasks/get", &handle).await;
        assert_eq!(
            object(state.result()).get("inputRequests").expect("questions"),
            r#"{"a":{"method":"elicitation/create","params":{ "message" : "\u0041","requestedSchema":{"type":"object","properties":{}}}}}"#
        );
        hub.result("tasks/update", r#"{"resultType":"complete"}"#);
        let answers = r#"{"a":{"action":"accept","content":{ "n" : 1e400 }}}"#;
        let params = format!(r#"{{"taskId":"{handle}","inputResponses":{answers}}}"#);
        client.request("tasks/update", &params).await.result();
        let seen = hub.last("tasks/update");
        let params = object(std::str::from_utf8(&seen.params).expect("text"));
        assert_eq!(params.get("inputResponses"), Some(answers));
        assert_eq!(params.get("taskId"), Some("\"own-1\""));

        // A client without the capability gets no input request, but an error that names the
        // capability.
        let silent = world.client_declaring(cell.client, EXTENSION).await;
        let handle = begun(&silent, "hub__a").await;
        let reply = about(&silent, "tasks/get", &handle).await;
        assert_eq!(reply.code(), -32021, "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_good_for_nothing_but_its_task_and_for_no_longer_than_the_process() {
    for side in SIDES {
        let world = World::start(working(side), "").await;
        let client = world.client_declaring(side, EXTENSION).await;
        begin_tasks(&world, "hub", "own-1");
        let handle = begun(&client, "hub__a").await;
        let before = world.requests();
        let named = format!(r#"{{"name":"{handle}"}}"#);
        for method in ["tools/call", "prompts/get"] {
            assert_eq!(client.request(method, &named).await.code(), -32602, "{side} {method}");
        }
        let read = client.read(&handle).await;
        assert!([-32002, -32602].contains(&read.code()), "{read:?}");
        assert_eq!(client.request("tasks/list", "{}").await.code(), -32601);
        assert_eq!(world.requests(), before);
        drop(client);
        world.close().await;

        let world = World::start(working(side), "").await;
        let client = world.client_declaring(side, EXTENSION).await;
        let before = world.requests();
        is_unknown(&about(&client, "tasks/get", &handle).await);
        assert_eq!(world.requests(), before);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_is_not_asked_for_where_the_client_has_none_of_that_kind() {
    for (side, upstream) in SIDES.into_iter().flat_map(|side| SIDES.map(|other| (side, other))) {
        if upstream.is_modern() {
            continue;
        }
        let world = World::start(working(upstream), "").await;
        let client = world.client(side).await;
        let params = r#"{"name":"hub__a","task":{"ttl":1}}"#;
        client.request("tools/call", params).await.result();
        let seen = world.upstream("hub").last("tools/call");
        let params = object(std::str::from_utf8(&seen.params).expect("text"));
        assert_eq!(params.has("task"), !side.is_modern(), "{side}");
        drop(client);
        world.close().await;
    }
}
