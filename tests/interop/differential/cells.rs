//! Clients and servers of the differential test, and the way to start each.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::rmcp;
use crate::fleet::{RUN_PATIENCE, log_of, within};
use crate::lab::lines::Lines;
use crate::parts::{
    Started, everything, everything_over_http, part, python, script, sdk2, sdk2_input_requests,
};
use crate::pipe::Era::{self, Legacy, Modern};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// The server of the TypeScript SDK v1.
    Everything,
    /// A server of the TypeScript SDK v2.
    Sdk2,
    /// A server of the TypeScript SDK v2 with tools that send input requests; it keeps sessions.
    Asking,
    Python1,
    Python2,
}

impl Server {
    pub(crate) const ALL: [Self; 5] =
        [Self::Everything, Self::Sdk2, Self::Asking, Self::Python1, Self::Python2];

    pub(crate) fn eras(self) -> &'static [Era] {
        match self {
            Self::Everything | Self::Python1 => &[Legacy],
            Self::Sdk2 | Self::Asking | Self::Python2 => &[Legacy, Modern],
        }
    }

    /// Command line that runs the server over stdio.
    pub(crate) fn command(self) -> Vec<String> {
        let (runs_on, program) = match self {
            Self::Everything => ("bin/node", everything()),
            Self::Sdk2 => ("bin/node", script("sdk2_server.mjs")),
            Self::Asking => ("bin/node", script("sdk2_asking.mjs")),
            Self::Python1 => ("mcp1/bin/python", script("python_server.py")),
            Self::Python2 => ("mcp2/bin/python", script("python_server.py")),
        };
        let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
        vec![text(part(runs_on)), text(program), "stdio".to_owned()]
    }

    pub(crate) async fn over_http(self) -> Started {
        match self {
            Self::Everything => everything_over_http().await,
            Self::Sdk2 => sdk2().await,
            Self::Asking => sdk2_input_requests().await,
            Self::Python1 => python("mcp1").await,
            Self::Python2 => python("mcp2").await,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Rmcp,
    TypeScript1,
    TypeScript2,
    Python1,
    Python2,
}

/// Server that a client connects to.
pub(crate) enum Target<'a> {
    Url(&'a str),
    Command(Vec<String>),
}

impl Client {
    pub(crate) const ALL: [Self; 5] =
        [Self::Rmcp, Self::TypeScript1, Self::TypeScript2, Self::Python1, Self::Python2];

    pub(crate) fn eras(self) -> &'static [Era] {
        match self {
            Self::TypeScript1 | Self::Python1 => &[Legacy],
            Self::Rmcp | Self::TypeScript2 | Self::Python2 => &[Legacy, Modern],
        }
    }

    /// Takes the script's steps and returns the ending of each. Over stdio all started processes
    /// have ended then; `upstream` is the upstream that Weir has to have listed before, if the
    /// target is Weir.
    pub(crate) async fn run(
        self,
        era: Era,
        target: Target<'_>,
        upstream: Option<&str>,
        steps: &Value,
    ) -> Vec<String> {
        let Some(mut command) = self.program(era) else {
            return rmcp::run(era, target, upstream, steps).await;
        };
        match target {
            Target::Url(url) => command.args(["--wire", "http", url]),
            Target::Command(line) => command.args(["--wire", "stdio"]).args(line),
        };
        let mut child = command.env("SCRIPT", steps.to_string()).spawn().unwrap();
        let mut log = log_of(child.stderr.take());
        if let Some(upstream) = upstream {
            log.logged("upstream listed", upstream).await;
        }
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"go\n").await.unwrap();
        let mut endings = self.endings(child, log).await;
        assert_eq!(endings.len(), 1, "{self:?}");
        endings.remove(0)
    }

    /// Takes the steps of each script at its URL, and returns the endings of each script.
    pub(crate) async fn run_all(self, era: Era, scripts: &[(&str, &Value)]) -> Vec<Vec<String>> {
        let mut endings = Vec::new();
        if let Self::Python1 | Self::Python2 = self {
            // The program forks for each script once it has imported its SDK.
            let mut command = self.program(era).expect("it is a program");
            command.args(["--wire", "http"]).env("SCRIPTS", json!(scripts).to_string());
            let mut child = command.spawn().unwrap();
            let log = log_of(child.stderr.take());
            endings = self.endings(child, log).await;
        } else {
            for (url, steps) in scripts {
                endings.push(self.run(era, Target::Url(url), None, steps).await);
            }
        }
        assert_eq!(endings.len(), scripts.len(), "{self:?}");
        endings
    }

    /// Command of the client's program; `None` if it has none.
    fn program(self, era: Era) -> Option<Command> {
        let (runs_on, program) = match self {
            Self::Rmcp => return None,
            Self::TypeScript1 => ("bin/node", "clients/sdk1.mjs"),
            Self::TypeScript2 => ("bin/node", "clients/sdk2.mjs"),
            Self::Python1 => ("mcp1/bin/python", "clients/sdk1.py"),
            Self::Python2 => ("mcp2/bin/python", "clients/sdk2.py"),
        };
        let mut command = Command::new(part(runs_on));
        command.arg(script(program)).arg("--era");
        command.arg(if era == Legacy { "legacy" } else { "modern" });
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        Some(command)
    }

    /// Endings that a program writes, a line for each script.
    async fn endings(self, child: Child, log: Lines) -> Vec<Vec<String>> {
        let output = within(RUN_PATIENCE, child.wait_with_output()).await.unwrap();
        // The log ends when all processes that share it have ended.
        let log = log.end().await.join("\n");
        assert!(output.status.success(), "{self:?}: {log}");
        let endings = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
        endings.collect::<Result<_, _>>().unwrap_or_else(|_| panic!("{self:?}: {log}"))
    }
}
