//! Replicas that stand still, while the kernel still accepts connections for them: nothing that
//! they have counts as ended, and nothing waits for them without bound.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::links::{Cut, Links};
use crate::lab::night::bound;
use crate::lab::{PATIENCE, example, until};
use crate::links::linked_with;
use crate::once::descendants;
use crate::own::World as OwnWorld;
use crate::questions::{asked_call, asked_client, asking, wait_for_answer};
use crate::replicas::{HUB, PATIENT, Replicas};

/// Time after which the record of a replica that stands still may have expired on a busy machine.
const RECORD_LIFE: Duration = Duration::from_secs(4);

/// A replica that stands still until this is dropped.
struct Still<'a> {
    replicas: &'a Replicas,
    number: usize,
    since: Instant,
}

impl<'a> Still<'a> {
    async fn stop(replicas: &'a Replicas, number: usize) -> Self {
        stop(replicas, number).await;
        Self { replicas, number, since: Instant::now() }
    }

    /// Checks a refusal, unless the replica may count as ended by now.
    fn check(&self, is_right: bool, what: &str) {
        assert!(is_right || self.since.elapsed() > RECORD_LIFE, "{what}");
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.replicas[self.number].signal(Signal::CONT);
    }
}

/// Stops a replica with SIGSTOP, and waits until all of its threads stand still: on a busy machine
/// some go on for a while.
async fn stop(replicas: &Replicas, number: usize) {
    replicas[number].signal(Signal::STOP);
    let tasks = format!("/proc/{}/task", replicas[number].pid());
    until("it stands still", || {
        let mut threads = fs::read_dir(&tasks).expect("it runs").flatten();
        threads.all(|thread| {
            let state = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            state.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
        })
    })
    .await;
}

fn says_repeat(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Error { message, .. } if message.contains("repeat the same request"))
}

/// Retry of a suspended call, with its answer.
fn retry(result: &Value, nonce: &str) -> Value {
    let (key, _) =
        result["inputRequests"].as_object().expect("requests").iter().next().expect("one");
    let answer = json!({ "action": "accept", "content": {} });
    json!({
        "name": format!("{HUB}__call"), "arguments": asking(nonce),
        "requestState": result["requestState"], "inputResponses": { key: answer },
    })
}

#[tokio::test]
async fn c04_the_retry_of_a_call_whose_replica_stands_still_is_repeated_and_resumes_it() {
    let replicas = Replicas::start(2).await;
    let mut client = asked_client(&replicas, 0, Revision::MODERN).await;
    let result = client.call(HUB, asking("asked")).await.result();
    client.move_to(&replicas[1].address);
    {
        let still = Still::stop(&replicas, 0).await;
        let refused = client.request("tools/call", retry(&result, "asked")).await;
        still.check(says_repeat(&refused), &format!("{refused:?}"));
        // It is known now, and nothing waits for it again.
        let again = client.request("tools/call", retry(&result, "asked")).await;
        still.check(says_repeat(&again), &format!("{again:?}"));
    }
    let begin = Instant::now();
    loop {
        tokio::select! {
            refused = client.request("tools/call", retry(&result, "asked")) => {
                assert!(says_repeat(&refused), "{refused:?}");
                assert!(begin.elapsed() < PATIENCE, "it is not tried again");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            () = wait_for_answer(&replicas) => break,
        }
    }
    assert_eq!(replicas.executions("asked"), 1);
}

#[tokio::test]
async fn an_answer_to_a_replica_that_stands_still_is_not_taken() {
    let replicas = Replicas::start(2).await;
    let mut client = asked_client(&replicas, 0, Revision::LEGACY).await;
    let mut asked = client.open("tools/call", asked_call("asked")).await;
    let question = asked.next().await;
    let mut answerer = asked_client(&replicas, 1, Revision::LEGACY).await;
    answerer.set_session(client.session().expect("a session"));
    let answer = json!({ "action": "accept", "content": {} });
    {
        let still = Still::stop(&replicas, 0).await;
        let status = answerer.respond(&question["id"], answer.clone()).await;
        still.check(status == 503, &status.to_string());
    }
    let begin = Instant::now();
    while answerer.respond(&question["id"], answer.clone()).await != 202 {
        assert!(begin.elapsed() < PATIENCE, "it is not taken");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    wait_for_answer(&replicas).await;
    assert_eq!(replicas.executions("asked"), 1);
}

#[tokio::test]
async fn a_message_for_a_stream_whose_replica_stands_still_is_repeated() {
    let replicas = Replicas::start_with(2, "[protocol]\nlegacy_sse = true\n", "").await;
    let (owner, other) = (&replicas[0].address, &replicas[1].address);
    let mut stream = TcpStream::connect(owner).await.expect("it listens");
    let request =
        format!("GET /sse HTTP/1.1\r\nHost: {owner}\r\nAccept: text/event-stream\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut lines = BufReader::new(stream).lines();
    let path = loop {
        let line = lines.next_line().await.expect("text").expect("a line");
        if let Some(path) = line.strip_prefix("data: ") {
            break path.to_owned();
        }
    };
    let post = async || {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {other}\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
        let mut post = TcpStream::connect(other).await.expect("it listens");
        post.write_all(request.as_bytes()).await.expect("sent");
        let mut response = String::new();
        post.read_to_string(&mut response).await.expect("text");
        response
    };
    {
        let still = Still::stop(&replicas, 0).await;
        let response = post().await;
        let is_right = response.starts_with("HTTP/1.1 503") && response.contains("repeat the same");
        still.check(is_right, &response);
    }
    let begin = Instant::now();
    while !post().await.starts_with("HTTP/1.1 202") {
        assert!(begin.elapsed() < PATIENCE, "it is not taken");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_client_gets_no_second_connection_while_the_replica_with_its_first_one_stands_still() {
    let world = OwnWorld::start(3).await;
    let mut client = world.replicas[0].client(Revision::MODERN).await;
    let place = world.open_connection(&mut client).await;
    let processes = world.processes();
    // One that has no kept connection to it.
    let other = if place == 1 { 2 } else { 1 };
    client.move_to(&world.replicas[other].address);
    {
        let still = Still::stop(&world.replicas, place).await;
        let refused = world.call(&mut client, "still").await;
        still.check(says_repeat(&refused), &format!("{refused:?}"));
        still.check(world.processes() == processes, "it has another one");
    }
    let begin = Instant::now();
    while !world.call(&mut client, "after").await.is_result() {
        assert!(begin.elapsed() < PATIENCE, "it is not served");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn the_stream_of_a_call_whose_replica_stands_still_can_be_resumed_later() {
    let replicas = Replicas::start_with(2, "[protocol]\nresumable = true\n", "").await;
    let client = asked_client(&replicas, 0, Revision::LEGACY).await;
    let session = client.session().expect("a session");
    let open = async |address: &str, request: String| {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let head = format!(
            "Host: {address}\r\nMcp-Session-Id: {session}\r\n\
             MCP-Protocol-Version: 2025-11-25\r\n"
        );
        stream.write_all(request.replace("HEAD", &head).as_bytes()).await.expect("sent");
        BufReader::new(stream).lines()
    };
    let text = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": asked_call("asked"),
    });
    let text = text.to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHEADContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    let mut lines = open(&replicas[0].address, request).await;
    let id = loop {
        let line = lines.next_line().await.expect("text").expect("a line");
        if let Some(id) = line.strip_prefix("id: ") {
            break id.to_owned();
        }
    };
    drop(lines);
    let resume = async || {
        let request = format!(
            "GET /mcp HTTP/1.1\r\nHEADAccept: text/event-stream\r\nLast-Event-ID: {id}\r\n\r\n"
        );
        let mut lines = open(&replicas[1].address, request).await;
        lines.next_line().await.expect("text").expect("a line")
    };
    {
        let still = Still::stop(&replicas, 0).await;
        let status = resume().await;
        still.check(status.contains("503"), &status);
    }
    let begin = Instant::now();
    while !resume().await.contains("200") {
        assert!(begin.elapsed() < PATIENCE, "it is not resumed");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Opens a session at the first replica whose requests come through the second one.
async fn passed_on(replicas: &Replicas, revision: Revision) -> Client {
    replicas.through(1, async || asked_client(replicas, 0, revision).await).await
}

/// Has the second replica wait for the first one, which stands still, without the store.
async fn part(links: &Links, replicas: &Replicas) -> Instant {
    links.cut(Cut::Store(1));
    stop(replicas, 0).await;
    Instant::now()
}

/// Longest time until it is found out that a replica stands still.
fn soon() -> Duration {
    bound(20_000, 5_500)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_replica_that_stands_still_ends_without_the_store() {
    let (replicas, links) = linked_with(2, "", PATIENT).await;
    let mut client = passed_on(&replicas, Revision::LEGACY).await;
    let mut streaming = passed_on(&replicas, Revision::LEGACY).await;
    let mut notifications = client.notifications().await.expect("it opens");
    let mut asked = streaming.open("tools/call", asked_call("asked")).await;
    assert_eq!(asked.next().await["method"], "elicitation/create");
    let arguments = json!({ "nonce": "lost", "fault": json!({ "never": true }).to_string() });
    let stopping = async {
        until("it is executed", || replicas.executions("lost") == 1).await;
        part(&links, &replicas).await
    };
    let (outcome, begin) = tokio::join!(client.call(HUB, arguments), stopping);
    let Outcome::Error { message, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(message.contains("may have been executed"), "{message}");
    let took = begin.elapsed();
    assert!(took < soon(), "{took:?}");
    let ended = async {
        while asked.try_next().await.is_ok() {}
        while notifications.try_next().await.is_ok() {}
    };
    tokio::time::timeout(soon(), ended).await.expect("the streams end");
    // The next request does not wait for it.
    assert!(client.call(HUB, json!({ "nonce": "next" })).await.is_result());
    assert_eq!((replicas.executions("lost"), replicas.executions("next")), (1, 1));
    links.cut(Cut::Nothing);
    replicas[0].signal(Signal::CONT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_takes_long_is_awaited_without_the_store() {
    let (replicas, links) = linked_with(2, "", PATIENT).await;
    let mut client = passed_on(&replicas, Revision::LEGACY).await;
    let arguments = json!({ "nonce": "long", "fault": json!({ "delay_ms": 8_000 }).to_string() });
    let cutting = async {
        until("it is executed", || replicas.executions("long") == 1).await;
        links.cut(Cut::Store(1));
    };
    let (outcome, ()) = tokio::join!(client.call(HUB, arguments), cutting);
    assert!(outcome.is_result(), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_to_a_server_that_runs_on_a_replica_that_stands_still_ends_without_the_store() {
    let made = tempfile::TempDir::new().expect("a folder");
    let folder = made.path();
    fs::write(folder.join("script.json"), "{}").expect("written");
    let program = example("evil_upstream");
    let config = format!(
        "[upstreams.once]\ncommand = {program:?}\nargs = [{folder:?}, \"stdio\"]\n\
         replicas = \"one\"\n"
    );
    let (replicas, links) = linked_with(2, &config, PATIENT).await;
    for number in [0, 1] {
        replicas[number].wait_until_listed("once").await;
    }
    let process = fs::read_to_string(folder.join("pids")).expect("it runs");
    let process = process.lines().last().and_then(|it| it.parse().ok()).expect("a number");
    let runs_it = |number: &usize| descendants(replicas[*number].pid()).contains(&process);
    let runner = [0, 1].into_iter().find(runs_it).expect("a replica runs it");
    let mut client = replicas[1 - runner].client(Revision::MODERN).await;
    let arguments = json!({ "nonce": "lost", "fault": json!({ "never": true }).to_string() });
    let stopping = async {
        let executed = || fs::read_to_string(folder.join("executed")).unwrap_or_default();
        until("it is executed", || executed().contains("lost")).await;
        links.cut(Cut::Store(1 - runner));
        stop(&replicas, runner).await;
        Instant::now()
    };
    let (outcome, begin) = tokio::join!(client.call("once", arguments), stopping);
    let Outcome::Error { message, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(message.contains("may have been carried out"), "{message}");
    let took = begin.elapsed();
    assert!(took < soon(), "{took:?}");
    links.cut(Cut::Nothing);
    replicas[runner].signal(Signal::CONT);
}
