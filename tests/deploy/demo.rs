//! `./dev run --replicas 3`, as a user runs it in a terminal.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::lab::client::{Client, Revision};
use crate::lab::process::children;
use crate::lab::{runs, until, until_disconnected};

/// Running demonstration.
struct Demo {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    port: u16,
    /// Processes of the replicas, by their number.
    replicas: [u32; 3],
    folder: PathBuf,
}

impl Demo {
    async fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Path::new(env!("CARGO_BIN_EXE_weir"));
        let target = program.parent().and_then(Path::parent).expect("a folder of cargo");
        let port = free_ports();
        // A shell cannot trap a signal that is ignored when it starts, as in a background job.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(root.join("dev"));
        command.args(["run", "--replicas", "3"]).current_dir(root).process_group(0);
        command.env("CARGO_TARGET_DIR", target).env("WEIR_PORT", port.to_string());
        // With this variable, which measures tests, cargo would build everything anew.
        command.env_remove("RUSTC_BOOTSTRAP");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = tokio::process::Command::from(command).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut demo = Self { child, output, port, replicas: [0; 3], folder: PathBuf::new() };
        for number in 1..=3 {
            demo.replicas[number - 1] = demo.next_process(number).await;
        }
        demo.next_line("    http://").await;
        let logs = demo.next_line("The logs are in ").await;
        demo.folder = logs.trim_end_matches('.').into();
        demo.next_line("shows the replicas.").await;
        demo
    }

    /// Waits for a line with these words, and returns the rest of it.
    async fn next_line(&mut self, words: &str) -> String {
        loop {
            let line = self.output.next_line().await.expect("text").expect("a further line");
            if let Some((_, rest)) = line.split_once(words) {
                return rest.to_owned();
            }
        }
    }

    /// Waits until a replica is started, and returns its process.
    async fn next_process(&mut self, number: usize) -> u32 {
        let process = self.next_line(&format!("replica {number}: process ")).await;
        process.parse().expect("a number")
    }

    fn id(&self) -> Pid {
        pid(self.child.id().expect("it runs"))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            let _ = kill_process_group(self.id(), Signal::TERM);
        }
    }
}

fn pid(process: u32) -> Pid {
    i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process")
}

/// Returns a port that is free, as are the following ones that the demonstration uses; below those
/// that the system gives to others.
fn free_ports() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut bases = (20_000..32_000).step_by(50);
    bases.find(|base| (*base..base + 40).all(is_free)).expect("there are free ports")
}

fn descendants(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut next = 0;
    while next < all.len() {
        all.extend(children(all[next]));
        next += 1;
    }
    all
}

async fn all_succeed(clients: [&mut Client; 2], folder: &Path, when: &str) {
    for client in clients {
        for number in 0..6 {
            let call = json!({ "name": "shop__search_products", "arguments": { "query": "gau" } });
            let outcome = client.request("tools/call", call).await;
            let log = std::fs::read_to_string(folder.join("nginx.log"));
            assert!(outcome.is_result(), "{when}, call {number}: {outcome:?}, {log:?}");
        }
    }
}

#[tokio::test]
async fn replicas_of_the_demonstration_are_killed_under_clients_and_end_with_ctrl_c() {
    let mut demo = Demo::start().await;
    let address = format!("127.0.0.1:{}", demo.port);
    let mut legacy = Client::http(&address, Revision::LEGACY, None).await;
    let mut modern = Client::http(&address, Revision::MODERN, None).await;
    let session = legacy.session().expect("a session").to_owned();
    all_succeed([&mut legacy, &mut modern], &demo.folder, "before").await;
    // nginx gives one that it could not reach no requests for 2 s, so the last one stays.
    for (number, port) in [(1, demo.port + 11), (2, demo.port + 12)] {
        let process = demo.replicas[number - 1];
        kill_process(pid(process), Signal::KILL).expect("it runs");
        until("it ends", || !runs(process)).await;
        until_disconnected(&format!("127.0.0.1:{port}")).await;
        all_succeed([&mut legacy, &mut modern], &demo.folder, &format!("without replica {number}"))
            .await;
        demo.replicas[number - 1] = demo.next_process(number).await;
        until("it is back", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        all_succeed(
            [&mut legacy, &mut modern],
            &demo.folder,
            &format!("with replica {number} again"),
        )
        .await;
    }
    assert_eq!(legacy.session(), Some(&*session));

    let processes = descendants(demo.child.id().expect("it runs"));
    assert!(processes.len() > 10, "{processes:?}");
    kill_process_group(demo.id(), Signal::INT).expect("it runs");
    assert_eq!(demo.child.wait().await.expect("it ends").code(), Some(130));
    until("nothing is left", || !processes.iter().any(|process| runs(*process))).await;
    assert!(!demo.folder.exists() && demo.folder.is_absolute(), "{:?}", demo.folder);
}
