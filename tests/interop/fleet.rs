//! Weir as a process, with a configuration of the test's own.

use std::future::Future;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};

use crate::lab::lines::Lines;
use crate::lab::weir::Weir;
pub(crate) use crate::lab::{PATIENCE, example};

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

impl Fleet {
    /// Writes the configuration; a free port, a JSON log, small pages and HTTP+SSE are added.
    pub(crate) fn new(upstreams: &str) -> Self {
        Self::plain(&format!("[protocol]\npage_size = 3\nlegacy_sse = true\n{upstreams}"))
    }

    /// Writes the configuration; only a free port and a JSON log are added.
    pub(crate) fn plain(config: &str) -> Self {
        Self::logging("info", config)
    }

    /// Like [`Self::plain`], with this level of the log.
    pub(crate) fn logging(level: &str, config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let log = format!("[log]\nlevel = \"{level}\"\nformat = \"json\"\n");
        let config = format!("[server]\nlisten = \"127.0.0.1:0\"\n{log}{config}");
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
        // Not that of the user who runs the tests, in which other tests leave sign-ins.
        command.env("XDG_STATE_HOME", self.folder().join("state-home"));
        command
    }

    /// Starts `weir serve` and waits until it is ready.
    pub(crate) async fn serve(&self) -> Weir {
        Weir::start_by(self.command(&["serve"]).into_std()).await
    }
}

/// Log lines of Weir, among the other lines of a shared stderr.
pub(crate) fn log_of(stderr: Option<ChildStderr>) -> Lines {
    let pipe = stderr.expect("a pipe").into_owned_fd().unwrap();
    Lines::of(std::fs::File::from(pipe))
}

/// Stops Weir, and returns its whole log.
pub(crate) async fn stop_with_log(mut weir: Weir) -> String {
    weir.signal(Signal::TERM);
    let code = weir.ended().await;
    let log = weir.log.end().await.join("\n");
    assert_eq!(code, Some(0), "{log}");
    log
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
