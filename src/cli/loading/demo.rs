//! Demonstration servers: the fleet that `./dev run` starts, without Node or Python.
//!
//! Two prompt libraries on files of the repository, a legacy server over stdio and a modern one
//! over HTTP, both from `examples/`. It runs from the root of the repository and needs the
//! examples to be built.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::cli::exit::Failure;

/// Configuration with two placeholders: the stdio server's program and the HTTP server's URL.
const CONFIG: &str = include_str!("../demo.toml");

/// Time limit for the HTTP server to print its address.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Running demonstration. Dropping it stops the HTTP server; the stdio server is a child of the
/// gateway.
#[derive(Debug)]
pub(crate) struct Demo {
    config: String,
    _server: Child,
}

impl Demo {
    /// Starts the HTTP server and fills in the configuration.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let examples = examples_folder()?;
        let (server, url) = start_http_server(&examples.join("modern_http")).await?;
        let program = examples.join("legacy_stdio");
        let config = CONFIG
            .replace("{legacy_stdio}", &program.display().to_string())
            .replace("{modern_http}", &url);
        Ok(Self { config, _server: server })
    }

    /// Text of the configuration, as it would be in a file.
    pub(crate) fn config(&self) -> &str {
        &self.config
    }
}

/// Returns whether this process can run the demonstration: the help of other ones does not name it.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: LazyLock<bool> =
        LazyLock::new(|| Path::new(PROMPTS).is_dir() && examples_folder().is_ok());
    *AVAILABLE
}

/// Folder of prompts in the repository, which [`CONFIG`] names.
const PROMPTS: &str = "prompts/engineering";

/// Folder of the built examples, next to the program.
fn examples_folder() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().ok();
    let folder = program.and_then(|program| Some(program.parent()?.join("examples")));
    let built = |folder: &PathBuf| {
        ["legacy_stdio", "modern_http"].iter().all(|name| folder.join(name).is_file())
    };
    let missing = || {
        let text =
            "the demonstration's servers are not built: run `cargo build --examples`, or ./dev run";
        Failure::NoConfig(text.to_owned())
    };
    folder.filter(built).ok_or_else(missing)
}

async fn start_http_server(program: &Path) -> Result<(Child, String), Failure> {
    let failed =
        |what: &str| Failure::Unreachable(format!("the demonstration's HTTP server {what}"));
    let mut server = Command::new(program)
        .args(["--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(&format!("does not start: {error}")))?;
    let stdout = server.stdout.take().ok_or_else(|| failed("has no output"))?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(START_TIMEOUT, lines.next_line()).await;
    let line = line.ok().and_then(Result::ok).flatten().unwrap_or_default();
    let url = line.strip_prefix("listening on ").map(str::to_owned);
    Ok((server, url.ok_or_else(|| failed("did not print its address"))?))
}
