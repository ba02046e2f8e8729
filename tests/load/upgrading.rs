//! Upgrading under load: a new program takes the socket over, and no client is refused.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;
use weir_base::json::Object;

use crate::client::{Call, Client, Outcome};
use crate::gateway::Gateway;
use crate::lab::PATIENCE;
use crate::lab::connection::Response;
use crate::lab::http::exchange;
use crate::lab::ledger::{End, Executions, Ledger};
use crate::lab::ports::free_port;
use crate::server::Server;
use crate::{ONE_AT_A_TIME, often};

const CLIENTS: usize = 20;

/// Clients that connect and disconnect all the time.
struct Crowd {
    ledger: Arc<Ledger>,
    is_over: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Crowd {
    fn gather(gateway: &Gateway) -> Self {
        let (ledger, is_over) = (Arc::new(Ledger::default()), Arc::new(AtomicBool::new(false)));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (ledger, is_over) = (Arc::clone(&ledger), Arc::clone(&is_over));
            let address = gateway.address.clone();
            clients.spawn(async move {
                let mut nonce = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let mut client = match Client::connect(&address).await {
                        Ok(client) => client,
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
                            nonce = ledger.begin();
                            ledger.record(nonce, "hub", End::Unreachable, Duration::ZERO);
                            continue;
                        }
                    };
                    // Some clients stay connected for long, and some leave at once.
                    for _ in 0..nonce % 7 + 1 {
                        nonce = ledger.begin();
                        let begin = Instant::now();
                        let call = Call { nonce, wait: nonce % 20, ..Call::default() };
                        let outcome = client.call(call).await;
                        let is_answered = outcome == Outcome::Answered;
                        ledger.record(nonce, "hub", outcome.end(), begin.elapsed());
                        if !is_answered || client.is_closing() {
                            break;
                        }
                    }
                }
            });
        }
        Self { ledger, is_over, clients }
    }

    async fn leave(self) -> Arc<Ledger> {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.join_all().await;
        self.ledger
    }
}

/// Process that has taken over from this one, once the previous one has ended.
async fn successor(gateway: &mut Gateway) -> Pid {
    let line =
        Object::parse(gateway.logs("successor process serves").await).expect("a line of JSON");
    let number = line.get("process").expect("a number").parse().expect("a number");
    gateway.logs("\"stopped\"").await;
    Pid::from_raw(number).expect("a process")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f84_upgrades_under_load_refuse_nobody_and_lose_nothing() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(1_000).await;
    // The admin endpoint uses the same socket, too.
    let operators = format!("127.0.0.1:{}", free_port());
    let config = format!("[admin]\nlisten = \"{operators}\"\n[state]\ndir = \"state\"");
    let mut gateway = Gateway::start(server.address, &config).await;
    let crowd = Crowd::gather(&gateway);
    let mut serving = Pid::from_raw(gateway.pid() as i32).expect("a process");
    for _ in 0..often(5, 100) {
        kill_process(serving, Signal::USR2).expect("it runs");
        serving = successor(&mut gateway).await;
        tokio::task::block_in_place(|| lives(&operators));
    }
    let ledger = crowd.leave().await;
    let calls = server.compare(&ledger);
    eprintln!("{calls:?}");
    assert_eq!(calls.failures(), 0, "{calls:?}");
    assert!(calls.successes > CLIENTS * 5, "{calls:?}");
    kill_process(serving, Signal::TERM).expect("it runs");
    tokio::task::block_in_place(|| gateway.wait_for_whole_log());
}

/// Checks `/healthz` on the admin endpoint.
fn lives(operators: &str) {
    let answer = exchange(operators, "GET /healthz", "", "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f84_a_new_program_that_does_not_get_ready_changes_nothing() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(1_000).await;
    let mut gateway = Gateway::start(server.address, "").await;
    let crowd = Crowd::gather(&gateway);
    let file = gateway.folder.path().join("weir.toml");
    let good = std::fs::read_to_string(&file).expect("read");
    for broken in ["[server]\nlisten = 7\n", "", "[upstreams", "[upstreams.a]\nurl = \"ftp://x\"\n"]
    {
        for _ in 0..often(1, 5) {
            std::fs::write(&file, broken).expect("written");
            gateway.signal(Signal::USR2);
            gateway.logs("upgrade failed").await;
        }
    }
    std::fs::write(&file, good).expect("written");
    let ledger = crowd.leave().await;
    let calls = server.compare(&ledger);
    assert_eq!(calls.failures(), 0, "{calls:?}");
    assert!(calls.successes > CLIENTS, "{calls:?}");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f84_a_signal_to_stop_ends_an_upgrade_that_is_not_done() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(1).await;
    let mut gateway = Gateway::start(server.address, "shutdown_grace = \"1s\"").await;
    gateway.signal(Signal::USR2);
    gateway.logs("successor process starting").await;
    gateway.signal(Signal::TERM);
    let code = gateway.ended().await;
    assert_eq!(code, Some(0));
    tokio::time::timeout(PATIENCE, async {
        while Client::connect(&gateway.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("no process listens any more");
}

/// Starts Weir as systemd does: with a socket that another process owns.
async fn start_activated(server: &Server, socket: &TcpListener, notify_socket: &Path) -> Gateway {
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_weir")]).env("NOTIFY_SOCKET", notify_socket);
    command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().expect("a copy"))));
    Gateway::start_by(command, server.address, "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f84_f85_with_a_socket_of_systemds_a_restart_refuses_nobody_and_systemd_is_told() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    let folder = tempfile::TempDir::new().expect("a folder");
    let notify_socket = folder.path().join("notify");
    let systemd = UnixDatagram::bind(&notify_socket).expect("a socket");
    systemd.set_read_timeout(Some(PATIENCE)).expect("set");
    let wait_for_notification = |text: &str| {
        let mut datagram = [0; 256];
        let length = systemd.recv(&mut datagram).expect("a notification");
        assert_eq!(String::from_utf8_lossy(&datagram[..length]).trim(), text);
    };
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    for signal in [Signal::TERM, Signal::KILL] {
        let mut gateway = start_activated(&server, &socket, &notify_socket).await;
        wait_for_notification("READY=1");
        assert_eq!(gateway.address, socket.local_addr().expect("an address").to_string());
        let nonce = signal.as_raw() as u64;
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        assert_eq!(client.call(Call { nonce, ..Call::default() }).await, Outcome::Answered);
        gateway.signal(signal);
        gateway.ended().await;
        if signal == Signal::TERM {
            wait_for_notification("STOPPING=1");
        }
        // No process accepts, and the connection waits.
        let mut early = Client::connect(&gateway.address).await.expect("systemd listens");
        early
            .send(&early.request(Call { nonce: nonce + 100, ..Call::default() }))
            .await
            .expect("sent");
        let begin = std::time::Instant::now();
        let again = start_activated(&server, &socket, &notify_socket).await;
        wait_for_notification("READY=1");
        eprintln!("ready again after {:?}", begin.elapsed());
        assert_eq!(early.read_response().await.expect("a reply").status, 200);
        drop(again);
    }
}

/// Sends a request of a legacy client: a method, its parameters, and a session.
async fn legacy(
    gateway: &Gateway,
    verb: &str,
    session: Option<&str>,
    (method, params): (&str, &str),
) -> Response {
    let mut client = Client::connect(&gateway.address).await.expect("it serves");
    let body = match verb {
        "POST" => format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#),
        _ => String::new(),
    };
    let session = session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
    let text = format!(
        "{verb} /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{session}Content-Length: {}\r\n\r\n{body}",
        gateway.address,
        body.len()
    );
    client.send(&text).await.expect("it reads");
    client.read_response().await.expect("a response")
}

#[tokio::test]
async fn a_legacy_client_goes_on_after_a_kill_and_a_stop_and_an_ended_session_stays_ended() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(1_000).await;
    let mut gateway = Gateway::start(server.address, "[state]\ndir = \"state\"").await;
    let initialize = r#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"1"}}"#;
    let (mut sessions, mut nonce) = (Vec::new(), 0);
    for _ in 0..2 {
        let opened = legacy(&gateway, "POST", None, ("initialize", initialize)).await;
        sessions.push(opened.header("mcp-session-id").expect("a session").to_owned());
    }
    assert_eq!(legacy(&gateway, "DELETE", Some(&sessions[1]), ("", "")).await.status, 204);
    for signal in [Signal::KILL, Signal::TERM] {
        let begin = Instant::now();
        gateway.restart(signal).await;
        let started = begin.elapsed();
        nonce += 1;
        let call = format!(r#"{{"name":"hub__a","arguments":{{"nonce":{nonce}}}}}"#);
        let answered = legacy(&gateway, "POST", Some(&sessions[0]), ("tools/call", &call)).await;
        println!(
            "{signal:?}: started after {started:?}, answered {:?} later",
            begin.elapsed() - started
        );
        assert_eq!(answered.status, 200, "{answered:?}");
        assert!(answered.body.contains(&format!("\"text\":\"{nonce}.")), "{answered:?}");
        for verb in ["POST", "DELETE"] {
            let ended = legacy(&gateway, verb, Some(&sessions[1]), ("ping", "{}")).await;
            assert_eq!(ended.status, 404, "{verb}: {ended:?}");
        }
    }
    assert_eq!(server.executed(), Executions::from([("1".to_owned(), 1), ("2".to_owned(), 1)]));
}
