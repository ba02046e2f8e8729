//! The demonstration fleet: what `./dev run` starts, without Node or Python.
//!
//! Two prompt libraries on real files of the repository, a legacy server over stdio and a modern one
//! over HTTP, both from `examples/`. Run it from the repository's root, with the examples built.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::cli::exit::Failure;

/// The configuration, with two gaps: the stdio server's program and the HTTP server's address.
const CONFIG: &str = include_str!("../demo.toml");

/// How long the HTTP server may take to say where it listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running demonstration. Dropping it stops the HTTP server; the stdio server is Weir's own child.
#[derive(Debug)]
pub(crate) struct Demo {
    config: String,
    _server: Child,
}

impl Demo {
    /// Starts the HTTP server and writes the configuration.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let examples = examples()?;
        let (server, url) = serve(&examples.join("modern_http")).await?;
        let program = examples.join("legacy_stdio");
        let config = CONFIG
            .replace("{legacy_stdio}", &program.display().to_string())
            .replace("{modern_http}", &url);
        Ok(Self { config, _server: server })
    }

    /// The configuration, as a file would hold it.
    pub(crate) fn config(&self) -> &str {
        &self.config
    }
}

/// The folder where cargo puts the examples, beside the program.
fn examples() -> Result<PathBuf, Failure> {
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

async fn serve(program: &std::path::Path) -> Result<(Child, String), Failure> {
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
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.ok().and_then(Result::ok).flatten().unwrap_or_default();
    let url = line.strip_prefix("listening on ").map(str::to_owned);
    Ok((server, url.ok_or_else(|| failed("did not say where it listens"))?))
}
