//! The real program, observed from outside: started, its log, its signals, its end.
//!
//! Tests with a runtime await `start`, `logs`, `ended` and `stop`. Tests without one block, by
//! `serve`, `wait_for_log` and `wait`.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::PATIENCE;
use super::blocking::{wait_for_exit, wait_until};
use super::client::{Client, ListenStream, Outcome, Revision};
use super::lines::Lines;
use super::process::{Resources, cpu_time, resources};

/// A process of Weir. Dropping it kills the process.
pub(crate) struct Weir {
    /// `127.0.0.1:port`, of a `weir serve` that was ready.
    pub(crate) address: String,
    /// Time from the start until Weir was ready.
    pub(crate) took: Duration,
    pub(crate) child: Child,
    begun: Instant,
    pub(crate) log: Lines,
}

impl Weir {
    /// Starts `weir serve` on the configuration of a folder and waits until it is ready.
    pub(crate) async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[]).await
    }

    /// Starts `weir serve` with these environment variables and waits until it is ready.
    pub(crate) async fn start_with(folder: &Path, variables: &[(&str, &Path)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["serve", "--config", "weir.toml"]).current_dir(folder);
        command.env("XDG_STATE_HOME", folder.join("state")).envs(variables.iter().copied());
        command.stdin(Stdio::null());
        Self::start_by(command).await
    }

    /// Starts `weir serve` by this command and waits until it is ready.
    pub(crate) async fn start_by(command: Command) -> Self {
        let mut weir = Self::spawn(command);
        while !weir.is_ready() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        weir
    }

    /// Starts `weir serve` by this command and blocks until it is ready.
    pub(crate) fn serve(command: Command) -> Self {
        let mut weir = Self::spawn(command);
        wait_until("it is ready", || weir.is_ready());
        weir
    }

    /// Starts any command of Weir, or of a shell that becomes Weir.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let begun = Instant::now();
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let log = Lines::of(child.stderr.take().expect("a pipe"));
        Self { address: String::new(), took: Duration::ZERO, child, begun, log }
    }

    /// Whether it has been ready, and if so, where.
    fn is_ready(&mut self) -> bool {
        let Some(ready) = self.logged("ready") else {
            let code = self.child.try_wait().expect("it can be waited for");
            let is_in_vain = code.is_some() || self.begun.elapsed() > PATIENCE;
            assert!(!is_in_vain, "not ready, {code:?}: {}", self.log().join("\n"));
            return false;
        };
        self.took = self.begun.elapsed();
        let endpoint = ready["endpoint"].as_str().expect("an endpoint");
        let (_, address) = endpoint.split_once("://").expect("a URL");
        self.address = address.split('/').next().expect("an address").to_owned();
        true
    }

    /// URL of its MCP endpoint, without TLS.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lines logged so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.all()
    }

    /// First line of the log with this message, if it has been logged.
    pub(crate) fn logged(&self, message: &str) -> Option<Value> {
        let parsed = |line: &String| serde_json::from_str(line).ok();
        self.log.find_map(|line| parsed(line).filter(|line: &Value| line["message"] == message))
    }

    /// Waits for the next log line with this text. More ways to wait are those of `log`.
    pub(crate) async fn logs(&mut self, text: &str) -> String {
        self.log.line(text).await
    }

    /// Blocks until the next log line with this text.
    pub(crate) fn wait_for_log(&mut self, text: &str) -> String {
        self.log.wait_for(text)
    }

    /// Blocks until there is a further log line for each of these texts, in any order.
    pub(crate) fn wait_for_logs<const N: usize>(&mut self, texts: [&str; N]) -> [String; N] {
        self.log.wait_for_each(texts)
    }

    /// Blocks until this process and its successors have ended, and returns the whole log.
    pub(crate) fn wait_for_whole_log(&self) -> Vec<String> {
        self.log.wait_for_end()
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
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for the exit and returns the exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status.code();
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end: {}", self.log().join("\n"));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Blocks until the exit.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for_exit(&mut self.child)
    }

    /// Stops Weir with SIGTERM, checks the exit code, and returns the time that it took.
    pub(crate) async fn stop(mut self) -> Duration {
        let begin = Instant::now();
        self.signal(Signal::TERM);
        assert_eq!(self.ended().await, Some(0), "{}", self.log().join("\n"));
        begin.elapsed()
    }

    /// Stops Weir with SIGTERM, blocks until its exit, and checks the exit code.
    pub(crate) fn end(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.log().join("\n"));
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
