//! A crowd of clients of both eras: they call, list, answer questions, subscribe, begin tasks, and
//! open and end sessions, each in a loop. What fails is recorded with its time, and judged later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lab::PATIENCE;
use crate::lab::client::{CallStream, Client, Outcome, Revision};
use crate::lab::load::Random;
use crate::replicas::HUB;

/// Name of the server that begins tasks.
pub(crate) const JOBS: &str = "jobs";
/// Number of principals; their keys are their names.
pub(crate) const PRINCIPALS: usize = 20;
/// Resource of the hub that changes all the time.
const CHANGING: &str = "evil://hub/thing";
/// Members of a task beside its id.
const TASK: &str = r#""status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttlMs":3600000"#;
/// Longest time without an update of a resource that changes twice a second.
const SILENCE: Duration = Duration::from_secs(20);

/// Longest time until the end of a session is known to all replicas.
const ENDING: Duration = Duration::from_secs(3);

/// Script of the server that most requests go to.
pub(crate) fn hub_script() -> Value {
    let capabilities =
        json!({ "tools": {}, "prompts": {}, "resources": { "subscribe": true }, "logging": {} });
    let initialized = json!({
        "protocolVersion": "2025-11-25", "capabilities": capabilities,
        "serverInfo": { "name": "evil", "version": "1" },
    });
    let updated = json!({
        "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": CHANGING },
    });
    json!({
        "on": {
            "initialize": { "text": response(&initialized.to_string()) },
            "resources/subscribe": { "text": response("{}") },
            "resources/unsubscribe": { "text": response("{}") },
        },
        "storm": { "text": updated.to_string(), "per_second": 2 },
    })
}

/// Script of the server that begins tasks.
pub(crate) fn jobs_script() -> Value {
    let discovered = r#"{"resultType":"complete","ttlMs":3600000,"cacheScope":"public","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;
    let task = format!(r#"{{"resultType":"complete","taskId":"$TASK",{TASK}}}"#);
    json!({
        "revision": "2026-07-28",
        "on": {
            "server/discover": { "text": response(discovered) },
            "tasks/get": { "text": response(&task) },
        },
    })
}

/// Text of a response with this result.
fn response(result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)
}

/// Occupation of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occupation {
    /// Calls and lists.
    Calls,
    /// Calls whose server asks the client.
    Asked,
    /// Has a stream for notifications.
    Subscribes,
    /// Begins tasks and looks at them.
    Tasks,
}

impl Occupation {
    /// Occupation of the client with this number.
    fn of(number: usize) -> Self {
        match number % 10 {
            0..6 => Self::Calls,
            6 | 7 => Self::Asked,
            8 => Self::Subscribes,
            _ if number % 20 == 9 => Self::Tasks,
            _ => Self::Subscribes,
        }
    }
}

/// Request or stream that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
    pub(crate) what: &'static str,
    pub(crate) how: String,
}

/// Record of one client.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Calls that have succeeded, each executed once.
    pub(crate) executed: Vec<String>,
    pub(crate) failures: Vec<Failure>,
    /// Numbers of lists, answers, updates, streams, looks at tasks, and sessions.
    pub(crate) counts: [usize; 6],
    pub(crate) longest_silence: Duration,
    /// Ends of sessions after which a request was still served.
    pub(crate) late_ends: Vec<Instant>,
}

pub(crate) const COUNTED: [&str; 6] =
    ["lists", "answers", "updates", "streams", "looks at tasks", "sessions"];

const LISTS: usize = 0;
const ANSWERS: usize = 1;
const UPDATES: usize = 2;
const STREAMS: usize = 3;
const LOOKS: usize = 4;
const SESSIONS: usize = 5;

/// A crowd at work.
pub(crate) struct Crowd {
    clients: Vec<tokio::task::JoinHandle<Record>>,
    stop: CancellationToken,
}

impl Crowd {
    /// Starts this number of clients at an address. Each pauses between its requests, and a legacy
    /// one makes so many in a session.
    pub(crate) async fn start(
        address: &str,
        count: usize,
        pause: Duration,
        session_length: usize,
    ) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let mut clients = Vec::new();
        for number in 0..count {
            let (occupation, is_legacy) = (Occupation::of(number), number / 10 % 2 == 0);
            let revision = match occupation {
                Occupation::Tasks => Revision::MODERN,
                _ if is_legacy => Revision::LEGACY,
                _ => Revision::MODERN,
            };
            let capabilities = json!({
                "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} },
            });
            // Of each occupation few have the same one, whose streams are limited.
            let key = format!("principal-{}", (number / 10 + number) % PRINCIPALS);
            let client = Client::declaring(capabilities, address, revision, Some(&key)).await;
            let member = Member {
                number,
                client,
                session_length,
                turn: 0,
                random: Random::new(number as u64),
                record: Record::default(),
                tasks: VecDeque::new(),
            };
            clients.push(tasks.spawn(member.run(occupation, pause, stop.clone())));
        }
        Self { clients, stop }
    }

    /// Stops all clients and returns their records.
    pub(crate) async fn stop(self) -> Vec<Record> {
        self.stop.cancel();
        let mut records = Vec::new();
        for client in self.clients {
            records.push(client.await.expect("it does not panic"));
        }
        records
    }

    /// Fails if a client has ended.
    pub(crate) fn check(&self) {
        assert!(!self.clients.iter().any(|client| client.is_finished()), "a client has panicked");
    }
}

struct Member {
    number: usize,
    client: Client,
    session_length: usize,
    turn: usize,
    random: Random,
    record: Record,
    /// Handles of its last tasks.
    tasks: VecDeque<String>,
}

impl Member {
    async fn run(
        mut self,
        occupation: Occupation,
        pause: Duration,
        stop: CancellationToken,
    ) -> Record {
        let stop = Arc::new(stop);
        while !stop.is_cancelled() {
            self.turn += 1;
            match occupation {
                Occupation::Subscribes => {
                    // A stream stays open until it breaks.
                    stop.run_until_cancelled(self.subscribe()).await;
                }
                _ if !self.client.revision.is_modern()
                    && self.turn.is_multiple_of(self.session_length) =>
                {
                    self.change_session().await;
                }
                Occupation::Calls if self.random.below(10) == 0 => self.list().await,
                Occupation::Calls => self.call().await,
                Occupation::Asked if self.client.revision.is_modern() => self.resume().await,
                Occupation::Asked => self.answer().await,
                Occupation::Tasks => self.look_at_tasks().await,
            }
            stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
        self.record
    }

    fn nonce(&self) -> String {
        format!("{}-{}", self.number, self.turn)
    }

    fn fail(&mut self, begin: Instant, what: &'static str, how: String) {
        self.record.failures.push(Failure { begin, end: Instant::now(), what, how });
    }

    /// Records the outcome of a call.
    fn note(&mut self, begin: Instant, what: &'static str, outcome: &Outcome) {
        let nonce = self.nonce();
        match outcome {
            Outcome::Result(result) if result["content"][0]["text"] == format!("{HUB}:{nonce}") => {
                self.record.executed.push(nonce);
            }
            other => self.fail(begin, what, format!("{other:?}")),
        }
    }

    async fn call(&mut self) {
        let begin = Instant::now();
        // Some take long, so that they are in progress when a replica ends.
        let delay = if self.random.below(10) == 0 { self.random.below(500) } else { 0 };
        let fault = json!({ "delay_ms": delay }).to_string();
        let outcome = self.client.call(HUB, json!({ "nonce": self.nonce(), "fault": fault })).await;
        self.note(begin, "call", &outcome);
    }

    async fn list(&mut self) {
        let begin = Instant::now();
        match self.client.request("tools/list", json!({})).await {
            Outcome::Result(page) if page["tools"].as_array().map(Vec::len) == Some(2) => {
                self.record.counts[LISTS] += 1;
            }
            other => self.fail(begin, "list", format!("{other:?}")),
        }
    }

    fn asking(&self) -> Value {
        let question = json!({
            "jsonrpc": "2.0", "id": "$NONCE", "method": "elicitation/create",
            "params": { "message": "?", "requestedSchema": { "type": "object", "properties": {} } },
        });
        let fault = json!({ "before": [question.to_string()], "asks": true });
        json!({ "nonce": self.nonce(), "fault": fault.to_string() })
    }

    /// Answers the question of a call on its open stream.
    async fn answer(&mut self) {
        let begin = Instant::now();
        let done = tokio::time::timeout(PATIENCE, async {
            let params = json!({ "name": format!("{HUB}__call"), "arguments": self.asking() });
            let mut stream = self.client.try_open("tools/call", params).await?;
            loop {
                let message = stream.try_next().await?;
                if message["method"] == "elicitation/create" {
                    let answer = json!({ "action": "accept", "content": {} });
                    let status = self.client.try_respond(&message["id"], answer).await?;
                    if status != 202 {
                        return Err(format!("the answer gets {status}"));
                    }
                    self.record.counts[ANSWERS] += 1;
                } else if message.get("method").is_none() {
                    return Ok(message);
                }
            }
        });
        let outcome = match done.await {
            Ok(Ok(mut message)) if message.get("result").is_some() => {
                Outcome::Result(message["result"].take())
            }
            Ok(Ok(message)) => Outcome::Broken(message.to_string()),
            Ok(Err(error)) => Outcome::Broken(error),
            Err(_) => Outcome::Broken("it has not ended".to_owned()),
        };
        self.note(begin, "asked call", &outcome);
    }

    /// Retries a call with the answer to its question.
    async fn resume(&mut self) {
        let (begin, arguments) = (Instant::now(), self.asking());
        let mut outcome = self.client.call(HUB, arguments.clone()).await;
        if let Outcome::Result(result) = &outcome
            && let Some((key, _)) =
                result["inputRequests"].as_object().and_then(|it| it.iter().next())
        {
            let answer = json!({ "action": "accept", "content": {} });
            let params = json!({
                "name": format!("{HUB}__call"), "arguments": arguments,
                "requestState": result["requestState"], "inputResponses": { key: answer },
            });
            self.record.counts[ANSWERS] += 1;
            outcome = self.client.request("tools/call", params).await;
        }
        self.note(begin, "resumed call", &outcome);
    }

    /// Begins a task, and looks at the last ones.
    async fn look_at_tasks(&mut self) {
        let (begin, nonce) = (Instant::now(), self.nonce());
        let begun = format!(r#"{{"resultType":"task","taskId":"$NONCE",{TASK}}}"#);
        let fault = json!({ "text": response(&begun) }).to_string();
        match self.client.call(JOBS, json!({ "nonce": nonce, "fault": fault })).await {
            Outcome::Result(result) if result["taskId"].is_string() => {
                let handle = result["taskId"].as_str().expect("text").to_owned();
                self.record.executed.push(nonce);
                self.tasks.push_back(handle);
            }
            other => self.fail(begin, "task", format!("{other:?}")),
        }
        if self.tasks.len() > 20 {
            self.tasks.pop_front();
        }
        for task in self.tasks.clone() {
            let begin = Instant::now();
            match self.client.request("tasks/get", json!({ "taskId": task })).await {
                Outcome::Result(result) if result["taskId"] == task => {
                    self.record.counts[LOOKS] += 1;
                }
                other => self.fail(begin, "look at a task", format!("{other:?}")),
            }
        }
    }

    /// Ends the session, checks that it has ended, and begins another.
    async fn change_session(&mut self) {
        let begin = Instant::now();
        let status = self.client.end_session().await;
        if status == 204 {
            let ended = Instant::now();
            while self.client.request("ping", json!({})).await.is_result() {
                if ended.elapsed() > ENDING {
                    self.fail(ended, "request in a session that has ended", String::new());
                    break;
                }
                self.record.late_ends.push(ended);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        } else {
            self.fail(begin, "end of a session", status.to_string());
        }
        while let Err(outcome) = self.client.begin_anew().await {
            self.fail(begin, "initialize", format!("{outcome:?}"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.record.counts[SESSIONS] += 1;
    }

    /// Subscribes to a resource, and reads its updates until the stream ends.
    async fn subscribe(&mut self) {
        let begin = Instant::now();
        if !self.client.revision.is_modern() && self.turn == 1 {
            let outcome =
                self.client.request("resources/subscribe", json!({ "uri": CHANGING })).await;
            if !outcome.is_result() {
                self.turn = 0;
                return self.fail(begin, "subscription", format!("{outcome:?}"));
            }
        }
        let opened = match self.client.revision.is_modern() {
            true => self.client.listen(json!({ "resourceSubscriptions": [CHANGING] })).await,
            false => self.client.notifications().await,
        };
        match opened {
            Ok(stream) => self.read_updates(stream).await,
            Err(error) => self.fail(begin, "opening of a stream", error),
        }
    }

    async fn read_updates(&mut self, mut stream: CallStream) {
        self.record.counts[STREAMS] += 1;
        let mut last = Instant::now();
        loop {
            let message = match tokio::time::timeout(SILENCE, stream.try_next()).await {
                Ok(Ok(message)) => message,
                Ok(Err(error)) => return self.fail(Instant::now(), "stream", error),
                Err(_) => return self.fail(Instant::now(), "updates", "none came".to_owned()),
            };
            if message["method"] == "notifications/resources/updated" {
                self.record.counts[UPDATES] += 1;
                self.record.longest_silence = self.record.longest_silence.max(last.elapsed());
                last = Instant::now();
            }
        }
    }
}
