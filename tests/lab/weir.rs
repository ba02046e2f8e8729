//! The real program, observed from outside.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::PATIENCE;
use super::client::{Client, ListenStream, Outcome, Revision};

/// A running `weir serve`.
pub(crate) struct Weir {
    /// `127.0.0.1:port`
    pub(crate) address: String,
    /// Time from the start until Weir was ready.
    pub(crate) took: Duration,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

/// Resources that a process occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    /// Number of child processes, and of zombies among them.
    pub(crate) children: usize,
    pub(crate) zombies: usize,
}

impl Weir {
    /// Starts Weir on the configuration of a folder and waits until it is ready.
    pub(crate) async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[]).await
    }

    /// Starts Weir with these environment variables and waits until it is ready.
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
        // A thread, because the pipe has to be drained whatever the test does.
        std::thread::spawn(move || {
            for line in BufReader::new(std::fs::File::from(stderr)).lines() {
                let Ok(line) = line else { break };
                kept.lock().expect("the lock is not poisoned").push(line);
            }
        });
        let mut weir = Self { address: String::new(), took: Duration::ZERO, child, log };
        weir.wait_until_ready(begin + PATIENCE).await;
        weir.took = begin.elapsed();
        let ready = weir.logged("ready").expect("it is ready");
        let endpoint = ready["endpoint"].as_str().expect("an endpoint");
        let address = endpoint.trim_start_matches("http://").split('/').next();
        weir.address = address.expect("an address").to_owned();
        weir
    }

    async fn wait_until_ready(&mut self, end: Instant) {
        while self.logged("ready").is_none() {
            let code = self.child.try_wait().expect("it can be waited for");
            let is_in_vain = code.is_some() || Instant::now() > end;
            assert!(!is_in_vain, "not ready, {code:?}: {}", self.log().join("\n"));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Lines logged so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("the lock is not poisoned").clone()
    }

    /// First line of the log with this message.
    pub(crate) fn logged(&self, message: &str) -> Option<Value> {
        let log = self.log.lock().expect("the lock is not poisoned");
        let parsed = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        parsed.into_iter().find(|line| line["message"] == message)
    }

    /// Client of this revision, without a key.
    pub(crate) async fn client(&self, revision: Revision) -> Client {
        Client::http(&self.address, revision, None).await
    }

    /// Modern client that listens for changed tools.
    pub(crate) async fn listen(&self) -> ListenStream {
        ListenStream::open(&self.address).await
    }

    /// Makes one call with this fault as a new client; returns its outcome and duration.
    pub(crate) async fn call(&self, upstream: &str, fault: Value) -> (Outcome, Duration) {
        let mut client = self.client(Revision::MODERN).await;
        let begin = Instant::now();
        // Not a ledger's nonce, which is a number.
        let arguments = json!({ "nonce": "one", "fault": fault.to_string() });
        (client.call(upstream, arguments).await, begin.elapsed())
    }

    /// Waits until clients see an item of this upstream, and returns the time that it took.
    pub(crate) async fn wait_until_listed(&self, upstream: &str) -> Duration {
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

    pub(crate) fn resources(&self) -> Resources {
        resources(self.pid())
    }

    /// Processor time used so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_time(self.pid())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.pid()), signal).expect("it runs");
    }

    /// Waits for the exit and returns the exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("it ends").expect("it can be waited for").code()
    }

    /// Stops Weir with SIGTERM, checks the exit code, and returns the time that it took.
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

/// Reads the resources of a process from `/proc`.
pub(crate) fn resources(process: u32) -> Resources {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("its line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").count();
    let children = children(process);
    let zombies = children.iter().filter(|child| state_of(**child) == Some('Z')).count();
    Resources {
        resident_bytes: number("VmRSS:") * 1024,
        descriptors,
        threads: usize::try_from(number("Threads:")).expect("a count"),
        children: children.len(),
        zombies,
    }
}

/// Child processes of this process.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let lists = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("children")));
    let text: String = lists.map(|list| list.unwrap_or_default() + " ").collect();
    text.split_whitespace().map(|child| child.parse().expect("a number")).collect()
}

/// State of a process, as one letter.
pub(crate) fn state_of(process: u32) -> Option<char> {
    stat(process)?.first()?.chars().next()
}

/// Processor time of a process.
pub(crate) fn cpu_time(process: u32) -> Duration {
    let stat = stat(process).expect("it runs");
    // Fields 14 and 15 of /proc/PID/stat, in ticks of a hundredth of a second.
    let ticks = |at: usize| stat[at - 3].parse::<u64>().expect("a number");
    Duration::from_millis(10 * (ticks(14) + ticks(15)))
}

/// Fields of `/proc/PID/stat` from the third on; the second may contain any character.
fn stat(process: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
