//! Questions in mid-call: they reach the client of their call, and the answers their upstream, in every cell.

mod asking;
mod endless;
mod limited;
mod parking;
mod sharing;
mod strangers;
mod visiting;

use weir::json::Object;
use weir::jsonrpc::{self, Id};

use crate::cell::{Cell, Side, Wire};
use crate::client::{Client, Exchange, Reply, object, string};
use crate::upstream::{Call, Held, Upstream};
use crate::world::{World, everywhere, hub};

/// Everything that a client can declare.
const ALL: &str =
    r#"{"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"roots":{}}"#;

/// What may ask, and its item.
const ITEMS: [(&str, &str); 3] = [
    ("tools/call", r#""name":"hub__a","arguments":{"n":1.0}"#),
    ("prompts/get", r#""name":"hub__a""#),
    ("resources/read", r#""uri":"file:///a""#),
];

const CALL: (&str, &str) = ITEMS[0];

/// A question, and an answer to it.
#[derive(Debug, Clone, Copy)]
struct Question {
    method: &'static str,
    params: &'static str,
    answer: &'static str,
    /// What a client has to declare for it.
    takes: &'static str,
}

const FORM: Question = Question {
    method: "elicitation/create",
    params: r#"{"message":"\u0041","requestedSchema":{ "type" : "object" ,"properties":{}},"x":1e400}"#,
    answer: r#"{"action":"accept","content":{ "n" : 1.0 }}"#,
    takes: r#"{"elicitation":{"form":{}}}"#,
};
const VISIT: Question = Question {
    method: "elicitation/create",
    params: r#"{"mode":"url","message":"m","url":"https://x.test/"}"#,
    answer: r#"{"action":"accept"}"#,
    takes: r#"{"elicitation":{"url":{}}}"#,
};
const SAMPLING: Question = Question {
    method: "sampling/createMessage",
    params: r#"{"messages":[],"maxTokens":1.0}"#,
    answer: r#"{"role":"assistant","content":{"type":"text","text":"\u0041"},"model":"m"}"#,
    takes: r#"{"sampling":{}}"#,
};
const ROOTS: Question = Question {
    method: "roots/list",
    params: "{}",
    answer: r#"{"roots":[{"uri":"file:///r","x":1e400}]}"#,
    takes: r#"{"roots":{}}"#,
};
const QUESTIONS: [Question; 4] = [FORM, VISIT, SAMPLING, ROOTS];

/// Whether an upstream of this side can say for whom it asks.
fn can_ask(upstream: Side) -> bool {
    upstream.is_modern() || upstream.wire == Wire::Http
}

// === The client's side ===

/// A call of a client that answers questions in its era's way.
struct Talk<'a> {
    client: &'a Client,
    item: (&'static str, &'static str),
    exchange: Exchange<'a>,
    /// Of the last round, as it came.
    state: Option<String>,
}

/// A question as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Put {
    /// The id of the request, or the key in the reply.
    key: String,
    method: String,
    params: String,
}

impl<'a> Talk<'a> {
    fn start(client: &'a Client, item: (&'static str, &'static str)) -> Self {
        let exchange = client.start(item.0, &format!("{{{}}}", item.1));
        Self { client, item, exchange, state: None }
    }

    /// Waits until so many questions have been asked.
    async fn asked(&mut self, count: usize) -> Vec<Put> {
        if self.client.side.is_modern() {
            let reply = self.exchange.answer().await.expect("an answer");
            let (questions, state) = read_questions(&reply);
            assert_eq!(questions.len(), count, "{reply:?}");
            self.state = Some(state);
            return questions;
        }
        let mut questions = Vec::new();
        for _ in 0..count {
            let message = self.exchange.question().await;
            assert!(message.contains("\"method\":"), "no question: {message}");
            let message = object(&message);
            questions.push(Put {
                key: message.get("id").expect("an id").to_owned(),
                method: message.get_string("method").expect("a method").into(),
                params: message.get("params").expect("params").to_owned(),
            });
        }
        questions
    }

    /// Answers questions by their keys.
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

    /// Lets the upstream answer the call, and the client have the answer.
    async fn end(self, call: Call, upstream: &Upstream) {
        call.result(done(upstream));
        check_done(&self.reply().await);
    }

    async fn reply(self) -> Reply {
        self.exchange.reply().await
    }
}

/// A house before one upstream, a client of it that can be asked everything, and the upstream's calls, held.
async fn held_call(upstream: Side, config: &str, side: Side) -> (World, Client, Held) {
    let world = World::start(hub(upstream), config).await;
    let client = world.client_declaring(side, ALL).await;
    let held = world.upstream("hub").hold(CALL.0);
    (world, client, held)
}

/// The questions of a reply, and its state as it came.
fn read_questions(reply: &Reply) -> (Vec<Put>, String) {
    let result = object(reply.result());
    assert_eq!(result.get("resultType"), Some(r#""input_required""#), "{reply:?}");
    let requests = result.get_object("inputRequests").expect("requests");
    let put = |key: &str| {
        let request = requests.get_object(key).expect("a request");
        Put {
            key: key.to_owned(),
            method: request.get_string("method").expect("a method").into(),
            params: request.get("params").expect("params").to_owned(),
        }
    };
    let state = result.get("requestState").expect("a state").to_owned();
    (requests.keys().map(put).collect(), state)
}

/// The parameters of a further round.
fn retry(item: (&str, &str), state: &str, answers: &[(&str, &str)]) -> String {
    let answers: Vec<_> =
        answers.iter().map(|(key, answer)| format!(r#""{key}":{answer}"#)).collect();
    let item = item.1;
    let answers = answers.join(",");
    format!(r#"{{{item},"inputResponses":{{{answers}}},"requestState":{state}}}"#)
}

// === The upstream's side ===

/// Asks in its era's way. A legacy server's ids are these keys.
fn put(upstream: &Upstream, call: Call, questions: &[(&str, Question)]) -> Option<Call> {
    if !upstream.side().is_modern() {
        for (key, question) in questions {
            let id = Id::parse(format!("\"{key}\"").into()).expect("an id");
            let request = jsonrpc::write_request(&id, question.method, question.params.as_bytes());
            call.question(&string(request));
        }
        return Some(call);
    }
    let requests = questions.iter().map(|(key, question)| {
        let Question { method, params, .. } = question;
        format!(r#""{key}":{{"method":"{method}","params":{params}}}"#)
    });
    let requests = requests.collect::<Vec<_>>().join(",");
    call.result(&format!(
        r#"{{"resultType":"input_required","inputRequests":{{{requests}}},"requestState":"\u0041"}}"#
    ));
    None
}

/// Waits for the answers to what was put, and returns the call to go on with. `before` answers have been heard
/// already.
async fn hear(
    upstream: &Upstream,
    held: &mut Held,
    call: Option<Call>,
    keys: &[&str],
    before: usize,
) -> (Call, Vec<String>) {
    let Some(call) = call else {
        let call = held.next().await;
        assert_eq!(call.params.get("requestState"), Some(r#""\u0041""#));
        let responses = call.params.get_object("inputResponses").expect("responses");
        let answer = |key: &&str| responses.get(key).expect("a response").to_owned();
        let answers = keys.iter().map(answer).collect();
        return (call, answers);
    };
    let heard = upstream.answers_heard(before + keys.len()).await;
    let heard: Vec<Object> = heard[before..].iter().map(|answer| object(answer)).collect();
    let answer = |key: &&str| {
        let id = format!("\"{key}\"");
        let answer = heard.iter().find(|answer| answer.get("id") == Some(&id));
        let answer = answer.unwrap_or_else(|| panic!("no answer to {key}: {heard:?}"));
        answer.get("result").or(answer.get("error")).expect("an outcome").to_owned()
    };
    let answers = keys.iter().map(answer).collect();
    (call, answers)
}

/// A result of whatever may ask, as the upstream's era has it.
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

/// That a question came as it was asked, but for the id that this revision wants of a visit.
fn check_put(put: &Put, question: Question, cell: Cell) {
    assert_eq!(put.method, question.method);
    let mut params = object(&put.params);
    if question.params.contains("\"url\"") && !cell.client.is_modern() {
        let id = params.take("elicitationId").expect("an id of the elicitation");
        assert_eq!(id.len(), 45, "one that nobody can guess");
    }
    assert_eq!(string(params.to_bytes()), question.params);
}

// === In every cell ===

/// Asks everything of everybody, from every kind of call.
async fn each_question_is_answered(world: &World, cell: Cell) {
    let client = world.client_declaring(cell.client, ALL).await;
    let upstream = world.upstream("hub");
    let mut before = 0;
    for item in ITEMS {
        let mut held = upstream.hold(item.0);
        for question in QUESTIONS {
            let mut talk = Talk::start(&client, item);
            let call = put(upstream, held.next().await, &[("a-question", question)]);
            let questions = talk.asked(1).await;
            check_put(&questions[0], question, cell);
            talk.answer(&[(&questions[0].key, question.answer)]).await;
            let (call, answers) = hear(upstream, &mut held, call, &["a-question"], before).await;
            assert_eq!(answers, [question.answer]);
            before += 1;
            talk.end(call, upstream).await;
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
        let mut held = upstream.hold(CALL.0);
        let mut talk = Talk::start(&client, CALL);
        let call = put(upstream, held.next().await, &[("q1", FORM), ("q2", ROOTS)]);
        let questions = talk.asked(2).await;
        let of = |method: &str| {
            let found = questions.iter().find(|question| question.method == method);
            found.expect("it was asked").key.clone()
        };
        let (form, roots) = (of(FORM.method), of(ROOTS.method));
        assert_ne!(form, roots);
        talk.answer(&[(&roots, ROOTS.answer), (&form, FORM.answer)]).await;
        let (call, answers) = hear(upstream, &mut held, call, &["q1", "q2"], 0).await;
        assert_eq!(answers, [FORM.answer, ROOTS.answer]);

        let call = put(upstream, call, &[("q3", SAMPLING)]);
        let questions = talk.asked(1).await;
        check_put(&questions[0], SAMPLING, cell);
        talk.answer(&[(&questions[0].key, SAMPLING.answer)]).await;
        let (call, answers) = hear(upstream, &mut held, call, &["q3"], 2).await;
        assert_eq!(answers, [SAMPLING.answer]);
        talk.end(call, upstream).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_servers_progress_token_does_not_reach_whoever_is_asked() {
    // Two servers may choose the same, and nobody takes a client's progress to them.
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
        let mut held = upstream.hold(CALL.0);
        for (before, (params, expected)) in MARKED.into_iter().enumerate() {
            let mut talk = Talk::start(&client, CALL);
            let call = put(upstream, held.next().await, &[("q", Question { params, ..ROOTS })]);
            let questions = talk.asked(1).await;
            assert_eq!(questions[0].params, expected, "{cell:?}");
            talk.answer(&[(&questions[0].key, ROOTS.answer)]).await;
            let (call, _) = hear(upstream, &mut held, call, &["q"], before).await;
            talk.end(call, upstream).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n57_a_client_is_not_asked_for_what_it_did_not_declare() {
    everywhere("", hub, async |world, cell| {
        let upstream = world.upstream("hub");
        let mut held = upstream.hold(CALL.0);
        for (question, capabilities) in [
            (FORM, "{}"),
            (FORM, VISIT.takes),
            (VISIT, FORM.takes),
            (SAMPLING, FORM.takes),
            (ROOTS, SAMPLING.takes),
        ] {
            let client = world.client_declaring(cell.client, capabilities).await;
            let talk = Talk::start(&client, CALL);
            let before = upstream.answers_heard(0).await.len();
            let call = put(upstream, held.next().await, &[("q1", question)]);
            let is_refused = cell.client.is_modern() && can_ask(cell.upstream);
            if let Some(call) = call {
                let heard = upstream.answers_heard(before + 1).await;
                let error = object(&heard[before]).get_object("error").expect("an error");
                let code = error.get("code").expect("a code");
                assert!(["-32601", "-32602"].contains(&code), "{heard:?}");
                if is_refused {
                    call.cancelled().await;
                } else {
                    call.result(done(upstream));
                }
            }
            let reply = talk.reply().await;
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
        let mut held = upstream.hold(CALL.0);
        for (at, question) in QUESTIONS.into_iter().enumerate() {
            let talk = Talk::start(&client, CALL);
            let call = put(upstream, held.next().await, &[("q1", question)]).expect("a legacy one");
            let heard = upstream.answers_heard(at + 1).await;
            assert!(heard[at].contains("-32601"), "{heard:?}");
            talk.end(call, upstream).await;
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
        let mut held = upstream.hold(CALL.0);
        // Both under the same ids, on either side.
        let mut anns = Talk::start(&ann, CALL);
        let for_ann = put(upstream, held.next().await, &[("of-ann", FORM)]);
        let anns_questions = anns.asked(1).await;
        let mut bobs = Talk::start(&bob, CALL);
        let for_bob = put(upstream, held.next().await, &[("of-bob", FORM)]);
        let bobs_questions = bobs.asked(1).await;
        if !cell.client.is_modern() {
            assert_eq!(anns_questions, bobs_questions, "ids mean something in a conversation only");
        }
        bobs.answer(&[(&bobs_questions[0].key, r#"{"action":"decline"}"#)]).await;
        let (call, answers) = hear(upstream, &mut held, for_bob, &["of-bob"], 0).await;
        assert_eq!(answers, [r#"{"action":"decline"}"#]);
        bobs.end(call, upstream).await;
        anns.answer(&[(&anns_questions[0].key, FORM.answer)]).await;
        let (call, answers) = hear(upstream, &mut held, for_ann, &["of-ann"], 1).await;
        assert_eq!(answers, [FORM.answer]);
        anns.end(call, upstream).await;
    })
    .await;
}
