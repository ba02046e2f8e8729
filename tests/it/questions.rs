//! Input requests during calls: they reach the client of their call, and the responses the
//! upstream, in every cell.

mod asking;
mod endless;
mod limited;
mod parking;
mod sharing;
mod strangers;
mod visiting;

use weir_base::json::Object;
use weir_mcp::jsonrpc::{self, Id};

use crate::cell::{Cell, Side, Transport};
use crate::client::{Client, Exchange, Reply, object, string};
use crate::upstream::{Call, InterceptedCalls, Upstream};
use crate::world::{World, everywhere, hub};

/// All capabilities of a client.
const ALL: &str =
    r#"{"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"roots":{}}"#;

/// Requests in which an upstream may ask for input, with their item.
const ITEMS: [(&str, &str); 3] = [
    ("tools/call", r#""name":"hub__a","arguments":{"n":1.0}"#),
    ("prompts/get", r#""name":"hub__a""#),
    ("resources/read", r#""uri":"file:///a""#),
];

const CALL: (&str, &str) = ITEMS[0];

/// An input request and a response to it.
#[derive(Debug, Clone, Copy)]
struct InputRequest {
    method: &'static str,
    params: &'static str,
    answer: &'static str,
    /// Capability that a client has to declare for it.
    takes: &'static str,
}

const FORM: InputRequest = InputRequest {
    method: "elicitation/create",
    params: r#"{"message":"\u0041","requestedSchema":{ "type" : "object" ,"properties":{}},"x":1e400}"#,
    answer: r#"{"action":"accept","content":{ "n" : 1.0 }}"#,
    takes: r#"{"elicitation":{"form":{}}}"#,
};
const URL_MODE: InputRequest = InputRequest {
    method: "elicitation/create",
    params: r#"{"mode":"url","message":"m","url":"https://x.test/"}"#,
    answer: r#"{"action":"accept"}"#,
    takes: r#"{"elicitation":{"url":{}}}"#,
};
const SAMPLING: InputRequest = InputRequest {
    method: "sampling/createMessage",
    params: r#"{"messages":[],"maxTokens":1.0}"#,
    answer: r#"{"role":"assistant","content":{"type":"text","text":"\u0041"},"model":"m"}"#,
    takes: r#"{"sampling":{}}"#,
};
const ROOTS: InputRequest = InputRequest {
    method: "roots/list",
    params: "{}",
    answer: r#"{"roots":[{"uri":"file:///r","x":1e400}]}"#,
    takes: r#"{"roots":{}}"#,
};
const QUESTIONS: [InputRequest; 4] = [FORM, URL_MODE, SAMPLING, ROOTS];

/// Whether an upstream of this side can ask the client of a call.
fn can_ask(upstream: Side) -> bool {
    upstream.is_modern() || upstream.transport == Transport::Http
}

// === The client's side ===

/// A call of a client that answers input requests in its era's way.
struct Dialog<'a> {
    client: &'a Client,
    item: (&'static str, &'static str),
    exchange: Exchange<'a>,
    /// The `requestState` of the last round, as received.
    state: Option<String>,
}

/// An input request as received.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReceivedRequest {
    /// Id of the request, or its key in the reply.
    key: String,
    method: String,
    params: String,
}

impl<'a> Dialog<'a> {
    fn start(client: &'a Client, item: (&'static str, &'static str)) -> Self {
        let exchange = client.start(item.0, &format!("{{{}}}", item.1));
        Self { client, item, exchange, state: None }
    }

    /// Waits for this many input requests.
    async fn wait_for_requests(&mut self, count: usize) -> Vec<ReceivedRequest> {
        if self.client.side.is_modern() {
            let reply = self.exchange.answer().await.expect("an answer");
            let (questions, state) = read_questions(&reply);
            assert_eq!(questions.len(), count, "{reply:?}");
            self.state = Some(state);
            return questions;
        }
        let mut questions = Vec::new();
        for _ in 0..count {
            let message = self.exchange.next_server_message().await;
            assert!(message.contains("\"method\":"), "no question: {message}");
            let message = object(&message);
            questions.push(ReceivedRequest {
                key: message.get("id").expect("an id").to_owned(),
                method: message.get_string("method").expect("a method").into(),
                params: message.get("params").expect("params").to_owned(),
            });
        }
        questions
    }

    /// Answers input requests by their keys.
    async fn answer(&mut self, answers: &[(&str, &str)]) {
        if self.client.side.is_modern() {
            let state = self.state.take().expect("a state");
            self.exchange = self.client.start(self.item.0, &retry(self.item, &state, answers));
            return;
        }
        for (id, answer) in answers {
            self.client.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{answer}}}"#)).await;
        }
    }

    /// Lets the upstream answer the call, and checks that the client gets the response.
    async fn end(self, call: Call, upstream: &Upstream) {
        call.result(done(upstream));
        check_done(&self.reply().await);
    }

    async fn reply(self) -> Reply {
        self.exchange.reply().await
    }
}

/// A gateway with one upstream, a client with all capabilities, and the intercepted calls.
async fn intercepted_call(
    upstream: Side,
    config: &str,
    side: Side,
) -> (World, Client, InterceptedCalls) {
    let world = World::start(hub(upstream), config).await;
    let client = world.client_declaring(side, ALL).await;
    let intercepted = world.upstream("hub").intercept(CALL.0);
    (world, client, intercepted)
}

/// The input requests of a reply, and its `requestState` as received.
fn read_questions(reply: &Reply) -> (Vec<ReceivedRequest>, String) {
    let result = object(reply.result());
    assert_eq!(result.get("resultType"), Some(r#""input_required""#), "{reply:?}");
    let requests = result.get_object("inputRequests").expect("requests");
    let received = |key: &str| {
        let request = requests.get_object(key).expect("a request");
        ReceivedRequest {
            key: key.to_owned(),
            method: request.get_string("method").expect("a method").into(),
            params: request.get("params").expect("params").to_owned(),
        }
    };
    let state = result.get("requestState").expect("a state").to_owned();
    (requests.keys().map(received).collect(), state)
}

/// Parameters of a further round.
fn retry(item: (&str, &str), state: &str, answers: &[(&str, &str)]) -> String {
    let answers: Vec<_> =
        answers.iter().map(|(key, answer)| format!(r#""{key}":{answer}"#)).collect();
    let item = item.1;
    let answers = answers.join(",");
    format!(r#"{{{item},"inputResponses":{{{answers}}},"requestState":{state}}}"#)
}

// === The upstream's side ===

/// Sends input requests in the upstream's era's way. A legacy server uses the keys as ids.
fn send_input_requests(
    upstream: &Upstream,
    call: Call,
    questions: &[(&str, InputRequest)],
) -> Option<Call> {
    if !upstream.side().is_modern() {
        for (key, question) in questions {
            let id = Id::parse(format!("\"{key}\"").into()).expect("an id");
            let request = jsonrpc::write_request(&id, question.method, question.params.as_bytes());
            call.send_request(&string(request));
        }
        return Some(call);
    }
    let requests = questions.iter().map(|(key, question)| {
        let InputRequest { method, params, .. } = question;
        format!(r#""{key}":{{"method":"{method}","params":{params}}}"#)
    });
    let requests = requests.collect::<Vec<_>>().join(",");
    call.result(&format!(
        r#"{{"resultType":"input_required","inputRequests":{{{requests}}},"requestState":"\u0041"}}"#
    ));
    None
}

/// Waits for the responses to these input requests and returns the call to continue with. `before`
/// responses have been received already.
async fn receive_responses(
    upstream: &Upstream,
    intercepted: &mut InterceptedCalls,
    call: Option<Call>,
    keys: &[&str],
    before: usize,
) -> (Call, Vec<String>) {
    let Some(call) = call else {
        let call = intercepted.next().await;
        assert_eq!(call.params.get("requestState"), Some(r#""\u0041""#));
        let responses = call.params.get_object("inputResponses").expect("responses");
        let answer = |key: &&str| responses.get(key).expect("a response").to_owned();
        let answers = keys.iter().map(answer).collect();
        return (call, answers);
    };
    let all_responses = upstream.received_responses(before + keys.len()).await;
    let all_responses: Vec<Object> =
        all_responses[before..].iter().map(|answer| object(answer)).collect();
    let answer = |key: &&str| {
        let id = format!("\"{key}\"");
        let answer = all_responses.iter().find(|answer| answer.get("id") == Some(&id));
        let answer = answer.unwrap_or_else(|| panic!("no answer to {key}: {all_responses:?}"));
        answer.get("result").or(answer.get("error")).expect("an outcome").to_owned()
    };
    let answers = keys.iter().map(answer).collect();
    (call, answers)
}

/// A result for any of the items, in the form of the upstream's era.
fn done(upstream: &Upstream) -> &'static str {
    match upstream.side().is_modern() {
        true => {
            r#"{"resultType":"complete","content":[],"messages":[],"contents":[],"ttlMs":0,"cacheScope":"private","done":1.0}"#
        }
        false => r#"{"content":[],"messages":[],"contents":[],"done":1.0}"#,
    }
}

fn check_done(reply: &Reply) {
    assert_eq!(object(reply.result()).get("done"), Some("1.0"), "{reply:?}");
}

/// Asserts that an input request came unchanged, except for the elicitation id of this revision.
fn check_input_request(received: &ReceivedRequest, question: InputRequest, cell: Cell) {
    assert_eq!(received.method, question.method);
    let mut params = object(&received.params);
    if question.params.contains("\"url\"") && !cell.client.is_modern() {
        let id = params.take("elicitationId").expect("an id of the elicitation");
        assert_eq!(id.len(), 45, "one that nobody can guess");
    }
    assert_eq!(string(params.to_bytes()), question.params);
}

// === In every cell ===

/// Sends every input request from every kind of call.
async fn each_question_is_answered(world: &World, cell: Cell) {
    let client = world.client_declaring(cell.client, ALL).await;
    let upstream = world.upstream("hub");
    let mut before = 0;
    for item in ITEMS {
        let mut intercepted = upstream.intercept(item.0);
        for question in QUESTIONS {
            let mut dialog = Dialog::start(&client, item);
            let call = send_input_requests(
                upstream,
                intercepted.next().await,
                &[("a-question", question)],
            );
            let questions = dialog.wait_for_requests(1).await;
            check_input_request(&questions[0], question, cell);
            dialog.answer(&[(&questions[0].key, question.answer)]).await;
            let (call, answers) =
                receive_responses(upstream, &mut intercepted, call, &["a-question"], before).await;
            assert_eq!(answers, [question.answer]);
            before += 1;
            dialog.end(call, upstream).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn n59_a_question_reaches_the_client_of_its_call_and_the_answer_its_upstream() {
    everywhere("", hub, async |world, cell| {
        if can_ask(cell.upstream) {
            each_question_is_answered(world, cell).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_questions_at_once_and_two_rounds_are_answered() {
    everywhere("", hub, async |world, cell| {
        if !can_ask(cell.upstream) {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        let mut dialog = Dialog::start(&client, CALL);
        let call =
            send_input_requests(upstream, intercepted.next().await, &[("q1", FORM), ("q2", ROOTS)]);
        let questions = dialog.wait_for_requests(2).await;
        let of = |method: &str| {
            let found = questions.iter().find(|question| question.method == method);
            found.expect("it was asked").key.clone()
        };
        let (form, roots) = (of(FORM.method), of(ROOTS.method));
        assert_ne!(form, roots);
        dialog.answer(&[(&roots, ROOTS.answer), (&form, FORM.answer)]).await;
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, call, &["q1", "q2"], 0).await;
        assert_eq!(answers, [FORM.answer, ROOTS.answer]);

        let call = send_input_requests(upstream, call, &[("q3", SAMPLING)]);
        let questions = dialog.wait_for_requests(1).await;
        check_input_request(&questions[0], SAMPLING, cell);
        dialog.answer(&[(&questions[0].key, SAMPLING.answer)]).await;
        let (call, answers) = receive_responses(upstream, &mut intercepted, call, &["q3"], 2).await;
        assert_eq!(answers, [SAMPLING.answer]);
        dialog.end(call, upstream).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_servers_progress_token_does_not_reach_whoever_is_asked() {
    // Two servers may choose the same token, and a client's progress is not forwarded to them.
    const MARKED: [(&str, &str); 3] = [
        (r#"{"x":1e400,"_meta":{"progressToken":0}}"#, r#"{"x":1e400}"#),
        (r#"{"_meta":{"progressToken":"t","y":1.0}}"#, r#"{"_meta":{"y":1.0}}"#),
        (r#"{"_meta":{ "y" : 1.0 }}"#, r#"{"_meta":{ "y" : 1.0 }}"#),
    ];
    everywhere("", hub, async |world, cell| {
        if cell.upstream.is_modern() || !can_ask(cell.upstream) {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        for (before, (params, expected)) in MARKED.into_iter().enumerate() {
            let mut dialog = Dialog::start(&client, CALL);
            let call = send_input_requests(
                upstream,
                intercepted.next().await,
                &[("q", InputRequest { params, ..ROOTS })],
            );
            let questions = dialog.wait_for_requests(1).await;
            assert_eq!(questions[0].params, expected, "{cell:?}");
            dialog.answer(&[(&questions[0].key, ROOTS.answer)]).await;
            let (call, _) =
                receive_responses(upstream, &mut intercepted, call, &["q"], before).await;
            dialog.end(call, upstream).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n57_a_client_is_not_asked_for_what_it_did_not_declare() {
    everywhere("", hub, async |world, cell| {
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        for (question, capabilities) in [
            (FORM, "{}"),
            (FORM, URL_MODE.takes),
            (URL_MODE, FORM.takes),
            (SAMPLING, FORM.takes),
            (ROOTS, SAMPLING.takes),
        ] {
            let client = world.client_declaring(cell.client, capabilities).await;
            let dialog = Dialog::start(&client, CALL);
            let before = upstream.received_responses(0).await.len();
            let call = send_input_requests(upstream, intercepted.next().await, &[("q1", question)]);
            let is_refused = cell.client.is_modern() && can_ask(cell.upstream);
            if let Some(call) = call {
                let all_responses = upstream.received_responses(before + 1).await;
                let error = object(&all_responses[before]).get_object("error").expect("an error");
                let code = error.get("code").expect("a code");
                assert!(["-32601", "-32602"].contains(&code), "{all_responses:?}");
                if is_refused {
                    call.cancelled().await;
                } else {
                    call.result(done(upstream));
                }
            }
            let reply = dialog.reply().await;
            if is_refused {
                assert_eq!(reply.code(), -32021, "{reply:?}");
                let data = object(reply.error()).get_object("data").expect("data");
                assert_eq!(data.get("requiredCapabilities"), Some(question.takes));
                let status = if cell.client.is_http() { 400 } else { 200 };
                assert_eq!(reply.status, status);
            } else if cell.upstream.is_modern() {
                assert_eq!(reply.code(), -32603, "{reply:?}");
            } else {
                check_done(&reply);
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_shared_stream_cannot_say_for_whom_it_asks() {
    everywhere("", hub, async |world, cell| {
        if can_ask(cell.upstream) {
            return;
        }
        let client = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        for (at, question) in QUESTIONS.into_iter().enumerate() {
            let dialog = Dialog::start(&client, CALL);
            let call = send_input_requests(upstream, intercepted.next().await, &[("q1", question)])
                .expect("a legacy one");
            let all_responses = upstream.received_responses(at + 1).await;
            assert!(all_responses[at].contains("-32601"), "{all_responses:?}");
            dialog.end(call, upstream).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n58_the_answers_of_one_client_never_reach_anothers_call() {
    everywhere("", hub, async |world, cell| {
        if !can_ask(cell.upstream) {
            return;
        }
        let ann = world.client_declaring(cell.client, ALL).await;
        let bob = world.client_declaring(cell.client, ALL).await;
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(CALL.0);
        // Both calls use the same ids, on either side.
        let mut anns = Dialog::start(&ann, CALL);
        let for_ann = send_input_requests(upstream, intercepted.next().await, &[("of-ann", FORM)]);
        let anns_questions = anns.wait_for_requests(1).await;
        let mut bobs = Dialog::start(&bob, CALL);
        let for_bob = send_input_requests(upstream, intercepted.next().await, &[("of-bob", FORM)]);
        let bobs_questions = bobs.wait_for_requests(1).await;
        if !cell.client.is_modern() {
            assert_eq!(anns_questions, bobs_questions, "ids mean something in a conversation only");
        }
        bobs.answer(&[(&bobs_questions[0].key, r#"{"action":"decline"}"#)]).await;
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, for_bob, &["of-bob"], 0).await;
        assert_eq!(answers, [r#"{"action":"decline"}"#]);
        bobs.end(call, upstream).await;
        anns.answer(&[(&anns_questions[0].key, FORM.answer)]).await;
        let (call, answers) =
            receive_responses(upstream, &mut intercepted, for_ann, &["of-ann"], 1).await;
        assert_eq!(answers, [FORM.answer]);
        anns.end(call, upstream).await;
    })
    .await;
}
