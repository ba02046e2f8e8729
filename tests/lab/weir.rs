//! The real program, and what can be seen of it from outside.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::client::{Client, Listening, Outcome, Revision};
use super::{PATIENCE, until};

/// A running `weir serve`.
pub(crate) struct Weir {
    /// `127.0.0.1:port`
    pub(crate) address: String,
    /// From its start until it was ready.
    pub(crate) took: Duration,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

/// What a process occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occupied {
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    /// Processes whose parent it is; and which of them nobody has waited for.
    pub(crate) children: usize,
    pub(crate) zombies: usize,
}

impl Weir {
    /// Starts it on the configuration of a folder and waits until it is ready.
    pub(crate) async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[]).await
    }

    /// The same, with these variables.
    pub(crate) async fn start_with(folder: &Path, variables: &[(&str, &Path)]) -> Self {
        let begin = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["serve", "--config", "weir.toml"]).current_dir(folder);
        command.env("XDG_STATE_HOME", folder.join("state")).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let stderr = child.stderr.take().expect("a pipe").into_owned_fd().expect("a descriptor");
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        // A thread: the pipe has to be drained whatever the test does.
        std::thread::spawn(move || {
            for line in BufReader::new(std::fs::File::from(stderr)).lines() {
                let Ok(line) = line else { break };
                kept.lock().expect("nobody panics").push(line);
            }
        });
        let mut weir = Self { address: String::new(), took: Duration::ZERO, child, log };
        until("it gets ready", || weir.logged("ready").is_some()).await;
        weir.took = begin.elapsed();
        let ready = weir.logged("ready").expect("it is ready");
        let endpoint = ready["endpoint"].as_str().expect("an endpoint");
        let address = endpoint.trim_start_matches("http://").split('/').next();
        weir.address = address.expect("an address").to_owned();
        weir
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("nobody panics").clone()
    }

    /// The first line of its log with this message.
    pub(crate) fn logged(&self, message: &str) -> Option<Value> {
        let log = self.log.lock().expect("nobody panics");
        let parsed = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        parsed.into_iter().find(|line| line["message"] == message)
    }

    /// A client of this revision, without a key.
    pub(crate) async fn client(&self, revision: Revision) -> Client {
        Client::http(&self.address, revision, None).await
    }

    /// A modern client that hears of changed tools.
    pub(crate) async fn listening(&self) -> Listening {
        Listening::open(&self.address).await
    }

    /// One call with this fault, by a client of its own, and how long it took.
    pub(crate) async fn call(&self, upstream: &str, fault: Value) -> (Outcome, Duration) {
        let mut client = self.client(Revision::MODERN).await;
        let begin = Instant::now();
        // No ledger's, which are numbers.
        let arguments = json!({ "nonce": "one", "fault": fault.to_string() });
        (client.call(upstream, arguments).await, begin.elapsed())
    }

    /// Waits until clients are shown something of this upstream, and tells how long that took.
    pub(crate) async fn lists(&self, upstream: &str) -> Duration {
        let begin = Instant::now();
        let prefix = format!("{upstream}__");
        let mut client = self.client(Revision::MODERN).await;
        loop {
            let tools = client.tools().await;
            if tools.iter().any(|name| name.starts_with(&prefix)) {
                return begin.elapsed();
            }
            assert!(begin.elapsed() < PATIENCE, "nothing of {upstream}: {}", self.log().join("\n"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn occupied(&self) -> Occupied {
        occupied(self.pid())
    }

    /// Processor time that it has used.
    pub(crate) fn busy(&self) -> Duration {
        busy(self.pid())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.pid()), signal).expect("it runs");
    }

    /// Waits until it has ended and returns its exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("it ends").expect("it can be waited for").code()
    }

    /// Tells it to stop, checks that it ends well, and tells how long that took.
    pub(crate) async fn stop(mut self) -> Duration {
        let begin = Instant::now();
        self.signal(Signal::TERM);
        assert_eq!(self.ended().await, Some(0), "{}", self.log().join("\n"));
        begin.elapsed()
    }
}

fn pid(process: u32) -> Pid {
    i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process")
}

/// What a process occupies.
pub(crate) fn occupied(process: u32) -> Occupied {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("its line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").count();
    let children = children(process);
    let zombies = children.iter().filter(|child| state_of(**child) == Some('Z')).count();
    Occupied {
        resident_bytes: number("VmRSS:") * 1024,
        descriptors,
        threads: usize::try_from(number("Threads:")).expect("a count"),
        children: children.len(),
        zombies,
    }
}

/// The processes whose parent is this one.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let lists = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("children")));
    let text: String = lists.map(|list| list.unwrap_or_default() + " ").collect();
    text.split_whitespace().map(|child| child.parse().expect("a number")).collect()
}

/// The state of a process, as one letter.
pub(crate) fn state_of(process: u32) -> Option<char> {
    stat(process)?.first()?.chars().next()
}

/// Processor time that a process has used.
pub(crate) fn busy(process: u32) -> Duration {
    let stat = stat(process).expect("it runs");
    // Of /proc/PID/stat the 14th and 15th, in ticks of a hundredth of a second.
    let ticks = |at: usize| stat[at - 3].parse::<u64>().expect("a number");
    Duration::from_millis(10 * (ticks(14) + ticks(15)))
}

/// What `/proc/PID/stat` says from its third word on; the second may hold anything.
fn stat(process: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
