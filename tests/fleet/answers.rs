//! Answers and cancellations of legacy clients: they reach the call that they concern, on whichever
//! replica it runs, and through whichever they come.

use std::fs;
use std::time::Instant;

use futures::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

use crate::lab::client::{CallStream, Client, Revision, cancellation};
use crate::lab::{PATIENCE, until};
use crate::questions::{asked_client, asking, asks, wait_for_answer, wait_for_answer_with};
use crate::replicas::{HUB, Replicas};

/// A client with two calls that wait on a replica: it cancels one, and answers what the other has
/// asked.
struct Waiting {
    client: Client,
    cancelled: u64,
    question: Value,
    _streams: [CallStream; 2],
}

impl Waiting {
    /// Makes the calls in a new session at this replica.
    async fn at(replicas: &Replicas, number: usize, revision: Revision) -> Self {
        let capabilities = json!({ "elicitation": {}, "sampling": {} });
        let address = &replicas[number].address;
        Self::of(Client::declaring(capabilities, address, revision, None).await).await
    }

    async fn of(mut client: Client) -> Self {
        let (one, _) = Self::call(&mut client, "cancelled").await;
        let cancelled = client.last_id();
        let (other, question) = Self::call(&mut client, "question").await;
        Self { client, cancelled, question, _streams: [one, other] }
    }

    /// Makes a call, and returns the id of what it asks.
    async fn call(client: &mut Client, nonce: &str) -> (CallStream, Value) {
        // Elicitation came later than sampling.
        let (method, params) = match client.revision {
            Revision::LEGACY => (
                "elicitation/create",
                json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } }),
            ),
            _ => ("sampling/createMessage", json!({ "messages": [], "maxTokens": 1 })),
        };
        let question = json!({ "jsonrpc": "2.0", "id": nonce, "method": method, "params": params });
        let arguments = asks(nonce, &question);
        let params = json!({ "name": format!("{HUB}__call"), "arguments": arguments });
        let mut stream = client.open("tools/call", params).await;
        let asked = stream.next().await;
        assert_eq!(asked["method"], method, "{asked}");
        (stream, asked["id"].clone())
    }

    /// Response to the question.
    fn answer(&self) -> Value {
        let result = match self.client.revision {
            Revision::LEGACY => json!({ "action": "accept", "content": {} }),
            _ => json!({
                "role": "assistant", "content": { "type": "text", "text": "-" }, "model": "-",
            }),
        };
        json!({ "jsonrpc": "2.0", "id": self.question, "result": result })
    }

    /// Answers and cancels through this replica, and waits until both have reached their calls.
    async fn finish(&mut self, replicas: &Replicas, through: usize) {
        self.client.move_to(&replicas[through].address);
        assert!(!is_cancelled(replicas));
        let answer = self.answer();
        assert_eq!(post(&mut self.client, &answer).await, 202, "through {through}");
        wait_for_answer(replicas).await;
        assert!(!is_cancelled(replicas));
        let cancellation = cancellation(self.cancelled);
        assert_eq!(post(&mut self.client, &cancellation).await, 202, "through {through}");
        wait_for_cancellation(replicas).await;
        assert_eq!((replicas.executions("question"), replicas.executions("cancelled")), (1, 1));
    }
}

/// Posts messages that expect no response, again as long as a replica says so: one that is busy may
/// not reach another one in time.
async fn post(client: &mut Client, message: &Value) -> u16 {
    let begin = Instant::now();
    loop {
        match client.post_status(message).await {
            503 => assert!(begin.elapsed() < PATIENCE, "it is never taken"),
            status => return status,
        }
    }
}

/// Has the session of a client taken over by a replica, because the one that has it is about to
/// stop.
async fn take_over(replicas: &Replicas, client: &mut Client, by: usize) {
    let last_claim =
        || replicas.store.run::<Option<u64>>(&["GET", "{weir}:last-claim"]).unwrap_or_default();
    let (begin, before) = (Instant::now(), last_claim());
    client.move_to(&replicas[by].address);
    while last_claim() == before {
        // One that waits for a replica that stands still ends with an error.
        client.request("ping", json!({})).await;
        assert!(begin.elapsed() < PATIENCE, "no replica takes it over");
    }
}

/// Waits until the server has learned that a call was cancelled.
async fn wait_for_cancellation(replicas: &Replicas) {
    until("the call is cancelled", || is_cancelled(replicas)).await;
}

fn is_cancelled(replicas: &Replicas) -> bool {
    let heard = replicas.lab.evil(HUB).received();
    let is_end = |line: &String| {
        line.starts_with("notifications/cancelled") || line.starts_with("hang-up tools/call")
    };
    heard.iter().any(is_end)
}

#[tokio::test]
async fn answers_and_cancellations_reach_calls_on_a_replica_that_stops_through_any() {
    for through in [0, 1, 2] {
        let replicas = Replicas::start_announcing(3).await;
        let mut waiting = Waiting::at(&replicas, 0, Revision::LEGACY).await;
        replicas[0].signal(Signal::TERM);
        take_over(&replicas, &mut waiting.client, 1).await;
        waiting.finish(&replicas, through).await;
    }
}

#[tokio::test]
async fn they_reach_calls_on_an_earlier_owner_of_a_session_whose_first_one_is_gone() {
    for through in [0, 2] {
        let mut replicas = Replicas::start_announcing(3).await;
        let mut client = asked_client(&replicas, 0, Revision::LEGACY).await;
        replicas.kill(0).await;
        take_over(&replicas, &mut client, 1).await;
        replicas.restart(0).await;
        replicas.wait_until_known(3).await;
        let mut waiting = Waiting::of(client).await;
        replicas[1].signal(Signal::TERM);
        take_over(&replicas, &mut waiting.client, 2).await;
        waiting.finish(&replicas, through).await;
    }
}

#[tokio::test]
async fn those_of_a_batch_reach_the_calls_that_they_concern() {
    let [_, batched, ..] = Revision::ALL;
    for through in [0, 1, 2] {
        let replicas = Replicas::start_announcing(3).await;
        let mut waiting = Waiting::at(&replicas, 0, batched).await;
        replicas[0].signal(Signal::TERM);
        take_over(&replicas, &mut waiting.client, 1).await;
        waiting.client.move_to(&replicas[through].address);
        assert!(!is_cancelled(&replicas));
        let batch = json!([waiting.answer(), cancellation(waiting.cancelled)]);
        assert_eq!(post(&mut waiting.client, &batch).await, 202, "through {through}");
        wait_for_answer(&replicas).await;
        wait_for_cancellation(&replicas).await;
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_ends_the_wait_of_its_call_on_any_replica() {
    let replicas = Replicas::start(2).await;
    let mut waiting = Waiting::at(&replicas, 0, Revision::LEGACY).await;
    waiting.client.move_to(&replicas[1].address);
    let unreadable = json!({ "jsonrpc": "2.0", "id": waiting.question, "result": 1, "error": 2 });
    assert_eq!(waiting.client.post_status(&unreadable).await, 400);
    wait_for_answer_with(&replicas, "cannot be read").await;
}

#[tokio::test]
async fn they_reach_calls_that_began_before_their_session_left_and_came_back() {
    let mut replicas = Replicas::start(2).await;
    let mut waiting = Waiting::at(&replicas, 0, Revision::LEGACY).await;
    // The replica stands still until another one has taken the session over.
    replicas[0].signal(Signal::STOP);
    take_over(&replicas, &mut waiting.client, 1).await;
    replicas[0].signal(Signal::CONT);
    replicas.wait_until_known(2).await;
    replicas.kill(1).await;
    take_over(&replicas, &mut waiting.client, 0).await;
    waiting.finish(&replicas, 0).await;
}

#[tokio::test]
async fn what_concerns_no_call_is_taken_and_has_no_effect() {
    let replicas = Replicas::start(2).await;
    let mut waiting = Waiting::at(&replicas, 0, Revision::LEGACY).await;
    let other = asked_client(&replicas, 0, Revision::LEGACY).await;
    let own = waiting.client.session().expect("a session").to_owned();
    let unknown = json!(format!("{}9", waiting.question.as_str().expect("text")));
    let unknown = json!({ "jsonrpc": "2.0", "id": unknown, "result": {} });
    for (session, messages) in [
        (&*own, [unknown, cancellation(999)]),
        // Those of another session have none either, even if they name the calls.
        (other.session().expect("one"), [waiting.answer(), cancellation(waiting.cancelled)]),
    ] {
        waiting.client.set_session(session);
        for through in [0, 1] {
            waiting.client.move_to(&replicas[through].address);
            for message in &messages {
                assert_eq!(post(&mut waiting.client, message).await, 202, "{message}");
            }
        }
    }
    waiting.client.set_session(&own);
    waiting.finish(&replicas, 1).await;
}

// === Limits ===

/// Configuration of a client, whose lists are limited to one per hour.
fn limited() -> String {
    let hash = hex(&sha256(KEY));
    format!(
        "[roles.staff]\ntools.allow = [\"{HUB}/*\"]\n\
         [clients.ann]\nkey_sha256 = [\"{hash}\"]\nrole = \"staff\"\n\
         [[limits]]\nper = \"client\"\nmethod = \"tools/list\"\nrate = \"1/h\"\n"
    )
}

const KEY: &str = "ann";

/// Runs this work while a client lists in vain at a replica, which refuses it unread then.
async fn beside_flood<T>(replicas: &Replicas, number: usize, work: impl Future<Output = T>) -> T {
    let address = &replicas[number].address;
    let flood = async {
        let listing = async || {
            let mut client = Client::http(address, Revision::MODERN, Some(KEY)).await;
            loop {
                let outcome = client.request("tools/list", json!({})).await;
                assert!(outcome.is_result() || outcome.code() == 4290, "{outcome:?}");
            }
        };
        join_all((0..4).map(|_| listing())).await;
    };
    tokio::select! {
        _ = flood => unreachable!("it does not end"),
        done = work => done,
    }
}

/// Waits until a replica refuses this client unread, as the answer to a call that there is not.
async fn wait_until_refused(client: &mut Client) {
    let begin = Instant::now();
    while client.respond(&json!("0.0"), json!({})).await != 429 {
        assert!(begin.elapsed() < PATIENCE, "it is never refused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_over_its_rate_limit_answers_and_cancels_its_own_call_through_any_replica() {
    let replicas = Replicas::start_with(2, &limited(), "").await;
    let open = async |number: usize| {
        let capabilities = json!({ "elicitation": {} });
        let address = &replicas[number].address;
        Client::declaring(capabilities, address, Revision::LEGACY, Some(KEY)).await
    };
    let mut idle = open(0).await;
    let mut waiting = Waiting::of(open(0).await).await;
    idle.move_to(&replicas[1].address);
    beside_flood(&replicas, 1, async {
        wait_until_refused(&mut idle).await;
        waiting.finish(&replicas, 1).await;
        // A session without a call is still refused, whatever the client sends in it.
        wait_until_refused(&mut idle).await;
    })
    .await;
}

/// Begins a call that asks its client something, and returns the parameters of the request that
/// resumes it with an answer.
async fn begin_call(client: &mut Client) -> Value {
    let result = client.call(HUB, asking("asked")).await.result();
    let requests = result["inputRequests"].as_object().expect("requests");
    let key = requests.keys().next().expect("one").clone();
    json!({
        "name": format!("{HUB}__call"), "arguments": asking("asked"),
        "requestState": result["requestState"],
        "inputResponses": { key: { "action": "accept", "content": {} } },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_over_its_rate_limit_resumes_its_call_through_any_replica() {
    let replicas = Replicas::start_with(2, &limited(), "").await;
    let (capabilities, address) = (json!({ "elicitation": {} }), &replicas[0].address);
    let mut client = Client::declaring(capabilities, address, Revision::MODERN, Some(KEY)).await;
    let params = begin_call(&mut client).await;
    let mut idle = Client::http(&replicas[1].address, Revision::LEGACY, Some(KEY)).await;
    client.move_to(&replicas[1].address);
    beside_flood(&replicas, 1, async {
        wait_until_refused(&mut idle).await;
        tokio::select! {
            outcome = client.request("tools/call", params) => panic!("{outcome:?}"),
            () = wait_for_answer(&replicas) => {}
        }
    })
    .await;
}

// === Clients that leave ===

#[tokio::test]
async fn a_client_that_leaves_the_replica_that_passes_its_call_on_cancels_it() {
    let replicas = Replicas::start(2).await;
    let mut client = asked_client(&replicas, 0, Revision::MODERN).await;
    let params = begin_call(&mut client).await;
    client.move_to(&replicas[1].address);
    tokio::select! {
        outcome = client.request("tools/call", params) => panic!("{outcome:?}"),
        () = wait_for_answer(&replicas) => {}
    }
    drop(client);
    wait_for_cancellation(&replicas).await;
}

#[tokio::test]
async fn a_stream_that_is_passed_on_ends_when_a_reload_removes_its_client() {
    let mut replicas = Replicas::start_with(2, &limited(), "").await;
    let open = async || Client::http(&replicas[0].address, Revision::LEGACY, Some(KEY)).await;
    let client = replicas.through(1, open).await;
    let mut stream = client.notifications().await.expect("it opens");
    let path = replicas.config(1);
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, text.replace("[clients.ann]", "[clients.bob]")).expect("written");
    let other = hex(&sha256("bob"));
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, text.replace(&hex(&sha256(KEY)), &other)).expect("written");
    let (code, text) = replicas.command(1, "reload");
    assert_eq!(code, 0, "{text}");
    let ended = async { while stream.try_next().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    replicas.take(0);
}
