//! Weir as a process, with a configuration of the test's own.

use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

/// Generous, because it only limits how long a broken test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// For a program that does many things one after the other, beside other tests.
pub(crate) const RUN_PATIENCE: Duration = Duration::from_secs(300);

/// Awaits a future that a working Weir completes at once.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    within(PATIENCE, future).await
}

/// Awaits a future that a working Weir completes long before this time.
pub(crate) async fn within<T>(patience: Duration, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(patience, future).await;
    done.unwrap_or_else(|_| panic!("it does not happen within {patience:?}"))
}

/// Folder with a configuration, and the program that runs on it.
pub(crate) struct Fleet {
    folder: TempDir,
}

/// A running `weir serve`.
pub(crate) struct Served {
    pub(crate) endpoint: String,
    child: Child,
    pub(crate) log: Log,
}

/// Log lines of Weir, among the other lines of a shared stderr.
pub(crate) struct Log {
    pub(crate) lines: Lines<BufReader<ChildStderr>>,
    /// Lines read so far.
    pub(crate) seen: Vec<String>,
}

impl Fleet {
    /// Writes the configuration; a free port, a JSON log, small pages and HTTP+SSE are added.
    pub(crate) fn new(upstreams: &str) -> Self {
        Self::plain(&format!("[protocol]\npage_size = 3\nlegacy_sse = true\n{upstreams}"))
    }

    /// Writes the configuration; only a free port and a JSON log are added.
    pub(crate) fn plain(config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let config =
            format!("[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n{config}");
        std::fs::write(folder.path().join("weir.toml"), config).unwrap();
        Self { folder }
    }

    /// The folder of the configuration.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command of the program on this configuration.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(arguments).args(["--config", "weir.toml"]);
        command.current_dir(self.folder()).kill_on_drop(true).stdin(Stdio::null());
        command
    }

    /// Starts `weir serve` and waits until it is ready.
    pub(crate) async fn serve(&self) -> Served {
        let mut child = self.command(&["serve"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = Log::of(child.stderr.take().unwrap());
        let ready = log.line(|line| line["message"] == "ready").await;
        let endpoint = ready["endpoint"].as_str().unwrap().to_owned();
        Served { endpoint, child, log }
    }
}

impl Log {
    /// Creates a log that has read nothing yet.
    pub(crate) fn of(stderr: ChildStderr) -> Self {
        Self { lines: BufReader::new(stderr).lines(), seen: Vec::new() }
    }

    /// Waits until the log has a line of this message for this upstream; earlier lines count.
    pub(crate) async fn logged(&mut self, message: &str, upstream: &str) -> Value {
        self.line(|line| is_about(line, message, upstream)).await
    }

    async fn line(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        match self.seen.iter().map(parsed).find(&fits) {
            Some(line) => line,
            None => self.next(fits).await,
        }
    }

    async fn next(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        let next = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the log goes on");
                let found = parsed(&line);
                self.seen.push(line);
                if fits(&found) {
                    break found;
                }
            }
        };
        soon(next).await
    }

    /// Reads the log to its end, so that the pipe never fills, and returns all of it.
    pub(crate) async fn rest(mut self) -> String {
        self.read().await;
        self.seen.join("\n")
    }

    async fn read(&mut self) {
        while let Ok(Some(line)) = self.lines.next_line().await {
            self.seen.push(line);
        }
    }
}

impl Served {
    /// Waits until the log has a line of this message for this upstream; earlier lines count.
    pub(crate) async fn logged(&mut self, message: &str, upstream: &str) -> Value {
        self.log.logged(message, upstream).await
    }

    /// Waits until the log has a further line of this message for this upstream.
    pub(crate) async fn logs(&mut self, message: &str, upstream: &str) {
        self.log.next(|line| is_about(line, message, upstream)).await;
    }

    /// Reads the log while the test does something else, so that the pipe never fills.
    pub(crate) async fn drain(&mut self) -> Infallible {
        self.log.read().await;
        panic!("Weir has ended: {}", self.log.seen.join("\n"));
    }

    /// Memory of the program without the pages of its file, which are three times as many without
    /// optimization and are evicted when they are not needed.
    pub(crate) fn own_bytes(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id().expect("it runs"));
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Stops Weir and returns whether the exit code was 0.
    pub(crate) async fn stop(self) -> bool {
        self.stop_with_log().await.0
    }

    /// Stops Weir and returns whether the exit code was 0, with its whole log.
    pub(crate) async fn stop_with_log(mut self) -> (bool, String) {
        let pid = self.child.id().expect("it runs");
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        // The log must not fill the pipe while Weir stops.
        let drain = self.log.rest();
        let (status, log) = soon(async { tokio::join!(self.child.wait(), drain) }).await;
        (status.unwrap().success(), log)
    }
}

/// Lines of other programs become null.
fn parsed(line: impl AsRef<str>) -> Value {
    serde_json::from_str(line.as_ref()).unwrap_or_default()
}

fn is_about(line: &Value, message: &str, upstream: &str) -> bool {
    line["message"] == message && line["upstream"] == upstream
}

/// Path of a program from `examples/`. A plain `cargo test` builds them first; narrowed to this
/// file it does not.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let path = profile.join("examples").join(name);
    assert!(path.is_file(), "{} is not built: run `cargo build --examples`", path.display());
    path
}

/// The modern example server on a port of its own.
pub(crate) struct Shop {
    pub(crate) url: String,
    _child: Child,
}

impl Shop {
    /// Starts the server.
    pub(crate) async fn open() -> Self {
        let mut child = Command::new(example("modern_http"))
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = soon(lines.next_line()).await.unwrap().unwrap();
        Self { url: line.strip_prefix("listening on ").unwrap().to_owned(), _child: child }
    }
}
