//! Event streams of legacy clients that are lost and resumed.

use std::time::Duration;

use hyper::Method;
use weir_base::text::sse::{Event, SseDecoder};
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;

use crate::cell::{CLIENTS, LEGACY_HTTP, Side, Transport, UPSTREAMS};
use crate::client::{Client, HttpExchange, named, object, set};
use crate::upstream::{Call, Script};
use crate::world::{Scripts, World, hub, key_of, pass, settle, with_pair};

const ON: &str = "[protocol]\nresumable = true\n";
const WITH_PROGRESS: &str = r#"{"name":"hub__a","_meta":{"progressToken":70}}"#;
const RESULT: &str = r#"{"resultType":"complete","content":[{"type":"text","text":"last"}]}"#;

fn older(revision: Revision) -> Side {
    Side::new(revision, Transport::Http)
}

/// An event stream as it arrives.
struct Stream {
    exchange: HttpExchange,
    reader: SseDecoder,
    ready: std::collections::VecDeque<Event>,
}

impl Stream {
    fn new(exchange: HttpExchange) -> Self {
        Self { exchange, reader: SseDecoder::new(1 << 24), ready: Default::default() }
    }

    /// Starts a request under the id 70.
    fn post(client: &Client, method: &str, params: &str) -> Self {
        let message = jsonrpc::write_request(&Id::from(70), method, params.as_bytes());
        Self::new(client.http().post(message, &client.http().headers(method, params)))
    }

    /// Requests the events after this one.
    fn get(client: &Client, last: &str) -> Self {
        let mut headers = client.http().plain_headers();
        set(&mut headers, "last-event-id", last);
        Self::new(client.http().send(Method::GET, "/mcp", "", &headers))
    }

    async fn status(&mut self) -> u16 {
        self.exchange.opened().await;
        self.exchange.status()
    }

    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            let piece = self.exchange.piece().await?;
            self.ready.extend(self.reader.feed(&piece).expect("a small event"));
        }
        self.ready.pop_front()
    }

    /// All events up to the stream's end.
    async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// The first bytes, which the gateway has sent by now.
    async fn first(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            bytes.extend(self.exchange.piece().await.expect("so many bytes"));
        }
        bytes.truncate(count);
        bytes
    }
}

fn id_of(event: &Event) -> String {
    event.id.as_deref().expect("an id").to_owned()
}

/// Data of the events, without those that only have an id.
fn texts(events: &[Event]) -> Vec<String> {
    let full = events.iter().filter(|event| !event.data.is_empty());
    full.map(|event| String::from_utf8(event.data.to_vec()).expect("UTF-8")).collect()
}

fn progress(step: u32) -> String {
    let params = format!(r#"{{"progress":{step},"progressToken":70}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
}

fn answer() -> String {
    format!(r#"{{"jsonrpc":"2.0","id":70,"result":{RESULT}}}"#)
}

/// Sends progress from `from` to `to`.
async fn go_on(call: &Call, from: u32, to: u32) {
    for step in from..=to {
        call.progress(&format!(r#""progress":{step}"#));
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_cut_at_any_byte_is_taken_up_without_a_gap() {
    let world = World::start(hub(LEGACY_HTTP), ON).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let client = world.client(LEGACY_HTTP).await;
    let expected = [progress(1), progress(2), progress(3), answer()];
    let (mut cut, mut whole) = (0, usize::MAX);
    while cut < whole {
        let mut stream = Stream::post(&client, "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        go_on(&call, 1, 3).await;
        call.result(RESULT);
        if cut == 0 {
            let mut bytes = Vec::new();
            while let Some(piece) = stream.exchange.piece().await {
                bytes.extend_from_slice(&piece);
            }
            whole = bytes.len();
            // Before the end of the first event there is no id to resume with.
            cut = bytes.windows(2).position(|two| two == b"\n\n").expect("an event") + 2;
            continue;
        }
        let seen = stream.first(cut).await;
        drop(stream);
        let before = SseDecoder::new(1 << 20).feed(&seen).expect("small");
        let mut again = Stream::get(&client, &id_of(before.last().expect("an event")));
        assert_eq!(again.status().await, 200);
        let behind = again.rest().await;
        assert_eq!([texts(&before), texts(&behind)].concat(), expected, "cut at {cut}");
        cut += 17;
    }
    assert!(whole > 400, "{whole} bytes");
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_begins_with_a_place_to_come_back_to_and_each_event_has_its_own() {
    let world = World::start(hub(LEGACY_HTTP), ON).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let client = world.client(LEGACY_HTTP).await;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..2 {
        let mut stream = Stream::post(&client, "tools/call", WITH_PROGRESS);
        let first = stream.next().await.expect("an event before anything has happened");
        assert_eq!(first.data, "");
        assert_eq!(stream.reader.retry_ms(), Some(1_000));
        let call = intercepted.next().await;
        go_on(&call, 1, 2).await;
        call.result(RESULT);
        let rest = stream.rest().await;
        assert_eq!(texts(&rest), [progress(1), progress(2), answer()]);
        ids.extend(rest.iter().chain([&first]).map(id_of));
    }
    assert_eq!(ids.len(), 8, "{ids:?}");
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_on_without_its_stream_and_what_it_says_waits() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), ON).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let client = world.client(LEGACY_HTTP).await;
        let mut stream = Stream::post(&client, "tools/call", WITH_PROGRESS);
        let place = id_of(&stream.next().await.expect("a place"));
        let call = intercepted.next().await;
        go_on(&call, 1, 1).await;
        assert_eq!(texts(&[stream.next().await.expect("a note")]), [progress(1)]);
        drop(stream);
        go_on(&call, 2, 2).await;
        assert!(call.is_wanted());

        // The stream is resumed, lost and resumed again, once during the call and once after the
        // response.
        let mut again = Stream::get(&client, &place);
        let first = [again.next().await.expect("a note"), again.next().await.expect("a note")];
        assert_eq!(texts(&first), [progress(1), progress(2)], "{upstream}");
        go_on(&call, 3, 3).await;
        assert_eq!(texts(&[again.next().await.expect("a note")]), [progress(3)]);
        drop(again);
        call.result(RESULT);
        settle().await;
        let mut last = Stream::get(&client, &id_of(&first[1]));
        assert_eq!(texts(&last.rest().await), [progress(3), answer()], "{upstream}");
        // Even the response may have been lost on its way.
        let mut last = Stream::get(&client, &id_of(&first[1]));
        assert_eq!(texts(&last.rest().await), [progress(3), answer()], "{upstream}");
        pass(Duration::from_secs(121)).await;
        assert_eq!(Stream::get(&client, &place).status().await, 400);
        drop((last, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_newest_to_take_a_stream_up_has_it() {
    let world = World::start(hub(LEGACY_HTTP), ON).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let client = world.client(LEGACY_HTTP).await;
    let mut old = Stream::post(&client, "tools/call", WITH_PROGRESS);
    let place = id_of(&old.next().await.expect("a place"));
    let call = intercepted.next().await;
    let mut new = Stream::get(&client, &place);
    assert_eq!(new.status().await, 200);
    go_on(&call, 1, 1).await;
    call.result(RESULT);
    assert_eq!(texts(&new.rest().await), [progress(1), answer()]);
    assert_eq!(texts(&old.rest().await), Vec::<String>::new());
    drop((old, new, client));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_elses_stream_can_be_taken_up() {
    let config =
        format!("{ON}[roles.ann]\ntools.allow = [\"*\"]\n[roles.bob]\ntools.allow = [\"*\"]\n");
    let world = World::start(hub(LEGACY_HTTP), &config).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let ann = world.client_as("ann", LEGACY_HTTP).await;
    let other = world.client_as("ann", LEGACY_HTTP).await;
    let bob = world.client_as("bob", LEGACY_HTTP).await;
    let mut stream = Stream::post(&ann, "tools/call", WITH_PROGRESS);
    let place = id_of(&stream.next().await.expect("a place"));
    let call = intercepted.next().await;
    go_on(&call, 1, 1).await;
    for stranger in [&other, &bob] {
        assert_eq!(Stream::get(stranger, &place).status().await, 400);
    }
    // The headers have the session's id and another client's key.
    let mut headers = ann.http().plain_headers();
    set(&mut headers, "last-event-id", &place);
    set(&mut headers, "authorization", &format!("Bearer {}", key_of("bob")));
    let stolen = ann.http().send(Method::GET, "/mcp", "", &headers).whole().await;
    assert_eq!(stolen.status, 404);
    for odd in ["", "x", "x.1", ".", &format!("{place}9"), "é"] {
        let mut headers = ann.http().plain_headers();
        headers.insert("last-event-id", odd.as_bytes().try_into().expect("a header value"));
        let refused = ann.http().send(Method::GET, "/mcp", "", &headers).whole().await;
        assert_eq!(refused.status, 400, "{odd}");
    }
    call.result(RESULT);
    assert_eq!(texts(&stream.rest().await), [progress(1), answer()], "it was left alone");
    drop((stream, ann, other, bob));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn earlier_clients_get_no_event_without_a_message_but_can_come_back_too() {
    for revision in [Revision::V2025_03_26, Revision::V2025_06_18] {
        let world = World::start(hub(LEGACY_HTTP), ON).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let client = world.client(older(revision)).await;
        let mut stream = Stream::post(&client, "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        go_on(&call, 1, 1).await;
        let first = stream.next().await.expect("a note");
        assert_eq!(texts(std::slice::from_ref(&first)), [progress(1)], "{revision}");
        drop(stream);
        go_on(&call, 2, 2).await;
        call.result(RESULT);
        let mut again = Stream::get(&client, &id_of(&first));
        assert_eq!(texts(&again.rest().await), [progress(2), answer()], "{revision}");
        assert_eq!(again.reader.retry_ms(), None);

        let reply = client.http().post(
            jsonrpc::write_request(&Id::from(70), "tools/call", named("hub__a").as_bytes()),
            &client.http().headers("tools/call", "{}"),
        );
        intercepted.next().await.result(RESULT);
        let reply = reply.whole().await;
        assert_eq!(reply.headers["content-type"], "application/json", "{revision}");
        assert_eq!(reply.body, answer());
        drop((again, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_there_at_once_is_answered_as_ever() {
    let world = World::start(hub(LEGACY_HTTP), ON).await;
    let client = world.client(LEGACY_HTTP).await;
    for method in ["ping", "tools/list", "nonsense"] {
        let message = jsonrpc::write_request(&Id::from(1), method, b"{}");
        let reply = client.http().post(message, &client.http().headers(method, "{}")).whole().await;
        assert_eq!(
            (reply.status, &reply.headers["content-type"]),
            (200, &"application/json".parse().expect("a value"))
        );
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn by_default_nothing_can_be_taken_up_and_no_event_has_an_id() {
    let world = World::start(hub(LEGACY_HTTP), "").await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let client = world.client(LEGACY_HTTP).await;
    let mut stream = Stream::post(&client, "tools/call", WITH_PROGRESS);
    let call = intercepted.next().await;
    go_on(&call, 1, 1).await;
    call.result(RESULT);
    let events = stream.rest().await;
    assert_eq!(texts(&events), [progress(1), answer()]);
    assert!(events.iter().all(|event| event.id.is_none()) && events.len() == 2, "{events:?}");
    let mut changes = Stream::get(&client, "anything.1");
    assert_eq!(changes.status().await, 200);
    world.upstream("hub").add_prompt("c").await;
    let event = changes.next().await.expect("a change");
    assert!(event.id.is_none() && texts(&[event])[0].contains("prompts/list_changed"));
    drop((changes, client));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_changes_is_taken_up_where_it_was_lost() {
    let world = World::start(hub(LEGACY_HTTP), ON).await;
    let client = world.client(LEGACY_HTTP).await;
    let hub = world.upstream("hub");
    let mut stream = Stream::new(client.http().get());
    let place = id_of(&stream.next().await.expect("a place"));
    hub.add_prompt("c").await;
    let prompts = stream.next().await.expect("a change");
    hub.add(Kind::Tool, "c").await;
    let tools = stream.next().await.expect("a change");
    drop(stream);
    hub.add(Kind::Resource, "c").await;
    pass(Duration::from_secs(2)).await;
    let mut again = Stream::get(&client, &id_of(&prompts));
    let mut methods = Vec::new();
    for _ in 0..3 {
        let text = texts(&[again.next().await.expect("a change")]);
        let method = text
            .first()
            .and_then(|text| object(text).get_string("method").map(std::borrow::Cow::into_owned));
        methods.extend(method);
    }
    // The priming event has no message.
    let expected = ["notifications/tools/list_changed", "notifications/resources/list_changed"];
    assert_eq!(methods, expected);

    // A new stream is separate: its messages are not replayed for event ids of the old one.
    let mut other = Stream::new(client.http().get());
    other.next().await.expect("a place");
    hub.add_prompt("d").await;
    let on_other = other.next().await.expect("a change");
    assert!(texts(&[on_other])[0].contains("prompts"));
    drop((again, other));
    let mut old = Stream::get(&client, &id_of(&tools));
    assert_eq!(old.status().await, 200);
    let (_, behind) = (old.next().await.expect("its place"), old.next().await.expect("a change"));
    assert!(texts(&[behind])[0].contains("resources"));
    hub.add(Kind::Tool, "d").await;
    let next = old.next().await.expect("a change");
    assert!(texts(&[next])[0].contains("tools"), "not the prompts of the other stream");
    assert_ne!(place, id_of(&tools));
    drop((old, client));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_for_the_stream_of_its_call() {
    let world = World::start(hub(LEGACY_HTTP), ON).await;
    let hub = world.upstream("hub");
    let mut intercepted = hub.intercept("tools/call");
    let client = world.uninitialized_client(LEGACY_HTTP, None);
    let opening = r#"{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"raw","version":"1"}}"#;
    assert!(client.request("initialize", opening).await.outcome.is_ok());
    client.notify("notifications/initialized", "{}").await;
    let mut stream = Stream::post(&client, "tools/call", WITH_PROGRESS);
    let place = id_of(&stream.next().await.expect("a place"));
    let call = intercepted.next().await;
    drop(stream);
    settle().await;
    call.send_request(
        r#"{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}"#,
    );
    pass(Duration::from_secs(1)).await;
    let mut again = Stream::get(&client, &place);
    let question = object(&texts(&[again.next().await.expect("a question")])[0]);
    assert_eq!(question.get("method"), Some("\"sampling/createMessage\""));
    let id = question.get("id").expect("an id");
    let sampled = r#"{"role":"assistant","content":{"type":"text","text":""},"model":"m"}"#;
    let reply = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{sampled}}}"#);
    let posted = client.http().post(reply, &client.http().headers("", "{}")).whole().await;
    assert_eq!(posted.status, 202);
    let received = hub.received_responses(1).await;
    assert_eq!(received, [format!(r#"{{"jsonrpc":"2.0","id":"s","result":{sampled}}}"#)]);
    call.result(RESULT);
    assert_eq!(texts(&again.rest().await), [answer()]);
    drop((again, client));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_and_the_sessions_end_reach_a_call_whose_stream_is_lost() {
    for ends in [false, true] {
        let world = World::start(hub(LEGACY_HTTP), ON).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let client = world.client(LEGACY_HTTP).await;
        let mut stream = Stream::post(&client, "tools/call", WITH_PROGRESS);
        let place = id_of(&stream.next().await.expect("a place"));
        let call = intercepted.next().await;
        drop(stream);
        if ends {
            let headers = client.http().plain_headers();
            let gone = client.http().send(Method::DELETE, "/mcp", "", &headers).whole().await;
            assert_eq!(gone.status, 204);
            call.cancelled().await;
            assert_eq!(Stream::get(&client, &place).status().await, 404);
        } else {
            client.notify("notifications/cancelled", r#"{"requestId":70}"#).await;
            call.cancelled().await;
            let mut again = Stream::get(&client, &place);
            assert_eq!(texts(&again.rest().await), Vec::<String>::new());
        }
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_clients_that_read_and_waits_for_no_other() {
    let world = World::start(hub(LEGACY_HTTP), ON).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let client = world.client(LEGACY_HTTP).await;
    let mut lost = Stream::post(&client, "tools/call", WITH_PROGRESS);
    lost.next().await.expect("a place");
    let forgotten = intercepted.next().await;
    drop(lost);
    let message = jsonrpc::write_request(&Id::from(71), "tools/call", named("hub__a").as_bytes());
    let mut read =
        Stream::new(client.http().post(message, &client.http().headers("tools/call", "{}")));
    read.next().await.expect("a place");
    let call = intercepted.next().await;
    world.stop_downstream();
    settle().await;
    assert!(call.is_wanted() && !forgotten.is_wanted());
    call.result(RESULT);
    assert!(texts(&read.rest().await)[0].contains("last"));
    drop((read, client));
    world.close().await;
}

/// Results that any method may have: a short one, and one that arrives in several chunks.
fn results() -> [String; 2] {
    let all = r#""resultType":"complete", "content":[],"messages":[],"contents":[]"#;
    let large = "x".repeat(200_000);
    [format!(r#"{{{all},"odd":[1e400 ,"\u0041"]}}"#), format!(r#"{{{all},"x":"{large}"}}"#)]
}

#[tokio::test(start_paused = true)]
async fn with_it_on_every_upstream_is_served_as_without() {
    let scripts = |side| -> Scripts {
        vec![("hub", Script::full(side).replies(crate::upstream::Replies::Events))]
    };
    for upstream in UPSTREAMS {
        for revision in [Revision::V2025_03_26, Revision::V2025_06_18, Revision::V2025_11_25] {
            let world = World::start(scripts(upstream), ON).await;
            let hub = world.upstream("hub");
            let client = world.client(older(revision)).await;
            for (method, params) in [
                ("tools/call", named("hub__a")),
                ("prompts/get", named("hub__b")),
                ("resources/read", r#"{"uri":"file:///a"}"#.to_owned()),
            ] {
                for result in results() {
                    hub.result(method, &result);
                    let reply = client.request(method, &params).await;
                    assert_eq!(reply.result(), result, "{revision}, {upstream}");
                    assert_eq!(reply.status, 200);
                }
            }
            let mut intercepted = hub.intercept("tools/call");
            let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
            let call = intercepted.next().await;
            go_on(&call, 1, 3).await;
            call.result(RESULT);
            let reply = exchange.reply().await;
            assert_eq!(
                reply.notifications,
                [progress(1), progress(2), progress(3)],
                "{revision}, {upstream}"
            );
            assert_eq!(reply.result(), RESULT);
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            exchange.cancel().await;
            call.cancelled().await;
            assert_eq!(client.call_tool("hub__zzz").await.code(), -32602);
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_ends_its_stream_to_be_polled_is_asked_for_the_rest() {
    for side in CLIENTS {
        let world = World::start(hub(LEGACY_HTTP), &with_pair(ON)).await;
        let hub = world.upstream("hub");
        let client = world.client(side).await;
        hub.until_listener(weir_mcp::kind::ListTopic::Tools).await;
        let mut intercepted = hub.intercept("tools/call");
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        go_on(&call, 1, 1).await;
        call.piece("id: p1\nretry: 700\ndata: \n\n");
        let (id, token) = (call.id(), call.progress_token());
        drop(call);
        let began = tokio::time::Instant::now();
        let polls = || {
            let request_headers = hub.request_headers();
            request_headers
                .iter()
                .filter(|it| it.get("last-event-id").is_some_and(|id| id == "p1"))
                .count()
        };
        while polls() == 0 {
            pass(Duration::from_millis(10)).await;
        }
        assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
        settle().await;
        let params = format!(r#"{{"progress":2,"progressToken":{token}}}"#);
        hub.say(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#
        ));
        settle().await;
        hub.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{RESULT}}}"#));
        let reply = exchange.reply().await;
        assert_eq!(reply.notifications, [progress(1), progress(2)], "{side}");
        assert!(reply.result().contains("last"), "{side}: {reply:?}");
        assert_eq!((hub.count("tools/call"), polls()), (1, 1), "{side}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_the_next_process_a_stream_of_changes_begins_anew_and_one_of_a_call_is_lost() {
    let mut world = World::start(hub(LEGACY_HTTP), ON).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let client = world.client(LEGACY_HTTP).await;
    let mut changes = Stream::new(client.http().get());
    let place = id_of(&changes.next().await.expect("a place"));
    let mut call = Stream::post(&client, "tools/call", WITH_PROGRESS);
    let of_call = id_of(&call.next().await.expect("a place"));
    drop(intercepted.next().await);
    drop((changes, call));
    world.restart().await;
    assert_eq!(Stream::get(&client, &of_call).status().await, 400);
    let mut again = Stream::get(&client, &place);
    assert_eq!(again.status().await, 200);
    let new_place = id_of(&again.next().await.expect("a place"));
    assert_ne!(new_place, place);
    let mut methods = Vec::new();
    for _ in 0..3 {
        let event = again.next().await.expect("a change");
        methods.push(object(&texts(&[event])[0]).get_string("method").expect("one").into_owned());
    }
    methods.sort_unstable();
    let expected = ["prompts", "resources", "tools"];
    assert_eq!(methods, expected.map(|kind| format!("notifications/{kind}/list_changed")));
    drop((again, client));
    world.close().await;
}
