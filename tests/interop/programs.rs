//! Third-party clients as programs of their own: each in each era over each transport that it
//! supports, with one fleet.
//!
//! All of them do the same task, `parts/clients/task.json`, and write one document with their
//! results; the document is the same for all, except for the parts that the table here says a
//! client cannot show. `tests/interop/parts/README.md` describes the contract.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::clients::GREETING;
use crate::expected::{differences, expected, without};
use crate::fleet::{Fleet, RUN_PATIENCE, example, log_of};
use crate::lab::nginx::Nginx;
use crate::lab::ports::free_port;
use crate::lab::store::TestStore;
use crate::lab::weir::Weir;
use crate::parts::{fastmcp, part, script, sdk2};

/// Number of clients that run at once; more would only slow each other down.
const AT_ONCE: usize = 2;

/// A third-party client, as the program that runs it.
struct Client {
    name: &'static str,
    runs_on: &'static str,
    script: &'static str,
    speaks: &'static [(Era, &'static [Transport])],
    /// Parts that it cannot show, as pointers into the document.
    lacks: &'static [&'static str],
}

/// Transport between a client and Weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Http,
    /// The deprecated HTTP+SSE transport.
    Sse,
    Stdio,
    /// Over stdio to `mcp-remote`, which continues over HTTP in the client's era.
    RemoteHttp,
    /// Over stdio to `mcp-remote`, which speaks the modern era to Weir over HTTP for its legacy
    /// client.
    RemoteBridge,
    /// Over stdio to `mcp-remote`, which continues over HTTP+SSE.
    RemoteSse,
    /// Over HTTP to nginx, which has three replicas in turn.
    Replicas,
}

use crate::pipe::Era::{self, Legacy, Modern};
use Transport::{Http, RemoteBridge, RemoteHttp, RemoteSse, Replicas, Sse, Stdio as Pipe};

const CLIENTS: [Client; 5] = [
    Client {
        name: "TypeScript SDK v1",
        runs_on: "bin/node",
        script: "clients/sdk1.mjs",
        speaks: &[(Legacy, &[Http, Sse, Pipe, RemoteHttp, RemoteBridge, RemoteSse])],
        lacks: &[],
    },
    Client {
        name: "TypeScript SDK v2",
        runs_on: "bin/node",
        script: "clients/sdk2.mjs",
        speaks: &[(Legacy, &[Http, Sse, Pipe]), (Modern, &[Http, Pipe, RemoteHttp])],
        lacks: &[],
    },
    Client {
        name: "Python SDK 1.x",
        runs_on: "mcp1/bin/python",
        script: "clients/sdk1.py",
        speaks: &[(Legacy, &[Http, Sse, Pipe])],
        lacks: &[],
    },
    Client {
        name: "Python SDK 2.x",
        runs_on: "mcp2/bin/python",
        script: "clients/sdk2.py",
        speaks: &[(Legacy, &[Http, Sse, Pipe]), (Modern, &[Http, Pipe])],
        lacks: &[],
    },
    // One process per request: it receives no notifications, requests no progress and no
    // completion, and follows the pages by itself. Of each kind of request it makes one.
    Client {
        name: INSPECTOR,
        runs_on: "bin/node",
        script: "clients/inspector.mjs",
        speaks: &[(Legacy, &[Http, Sse, Pipe]), (Modern, &[Http, Pipe])],
        lacks: &[
            "/pages",
            "/again",
            "/completed",
            "/counted/notes__slow_count/progress",
            "/counted/tides__count",
            "/counted/weather__count",
            "/got/notes__summarize-notes",
            "/got/tides__tide-table",
            "/got/weather__forecast",
            "/read/tides:~1~1Den%20Oever~1now",
            "/read/weather:~1~1cities",
            "/structured/tides__depth",
            "/structured/weather__add",
            "/unknown/code",
            "/after",
        ],
    },
];

const INSPECTOR: &str = "Inspector's CLI";

/// A library on a folder, an example over stdio, and two real servers over HTTP: legacy and modern.
const UPSTREAMS: [&str; 4] = ["house", "notes", "tides", "weather"];

/// Content of the file whose change a client is to be notified of.
const FAREWELL: &str = "---\ntitle: Farewell\n---\nGoodbye!\n";

/// One client in one era over one transport.
struct Cell {
    client: &'static Client,
    era: Era,
    wire: Transport,
}

impl fmt::Display for Cell {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}, {:?}, {:?}", self.client.name, self.era, self.wire)
    }
}

impl Cell {
    fn all() -> impl Iterator<Item = Self> {
        CLIENTS.iter().flat_map(|client| {
            let eras = client.speaks.iter();
            eras.flat_map(move |&(era, wires)| {
                wires.iter().map(move |&wire| Self { client, era, wire })
            })
        })
    }

    /// Runs the client and compares its document with the expected one.
    async fn check(&self, tides: &str, weather: &str) -> Result<(), String> {
        let prompts = TempDir::new().unwrap();
        std::fs::write(prompts.path().join("greeting.md"), GREETING).unwrap();
        let config = format!(
            "[upstreams.house]\nprompts_dir = {:?}\n[upstreams.notes]\ncommand = {:?}\n\
             [upstreams.tides]\nurl = {tides:?}\n[upstreams.weather]\nurl = {weather:?}\nera = \"legacy\"\n",
            prompts.path(),
            example("legacy_stdio"),
        );
        let mut expected = expected(self.era);
        for pointer in self.client.lacks {
            without(&mut expected, pointer);
        }
        let start = Instant::now();
        let running = async {
            match self.wire {
                Replicas => self.run_behind_nginx(&config, prompts.path()).await,
                _ => self.run(&Fleet::new(&config), prompts.path(), &UPSTREAMS, "task.json").await,
            }
        };
        let seen = tokio::time::timeout(RUN_PATIENCE, running).await;
        println!("{self}: {:.1?}", start.elapsed());
        match seen {
            Err(_) => Err(format!("{self}: it takes longer than {RUN_PATIENCE:?}")),
            Ok((seen, _)) if seen == expected => Ok(()),
            Ok((seen, log)) => {
                let differs = differences(&seen, &expected);
                Err(format!("{self}:\n{differs}its stderr:\n{log}"))
            }
        }
    }

    /// Document of the client, and the stderr of it and its children.
    async fn run(
        &self,
        fleet: &Fleet,
        prompts: &Path,
        upstreams: &[&str],
        task: &str,
    ) -> (Value, String) {
        let served = match self.wire {
            Pipe => None,
            _ => Some(fleet.serve().await),
        };
        let endpoint = served.as_ref().map(Weir::endpoint);
        let command = self.command(fleet, endpoint.as_deref());
        let mut served = Vec::from_iter(served);
        let seen = self.run_before(&mut served, command, prompts, upstreams, task).await;
        for served in served {
            served.stop().await;
        }
        seen
    }

    /// Like [`Self::run`], with nginx and three replicas.
    async fn run_behind_nginx(&self, config: &str, prompts: &Path) -> (Value, String) {
        let store = TestStore::start().await;
        let (key, mut served, mut fleets) = ("A".repeat(43), Vec::new(), Vec::new());
        for _ in 0..3 {
            let (table, port) = (store.table_with_timeout("5s"), free_port());
            let fleet = Fleet::new(&format!(
                "{config}[fleet]\nstore = {table}\nkeys = \"{key}\"\nlisten = \"127.0.0.1:{port}\"\n"
            ));
            served.push(fleet.serve().await);
            fleets.push(fleet);
        }
        store.wait_for_members(3).await;
        let addresses = served.iter().map(|served| served.address.clone());
        let nginx = Nginx::start(&addresses.collect::<Vec<_>>());
        let endpoint = format!("http://{}/mcp", nginx.address);
        let command = self.command(&fleets[0], Some(&endpoint));
        self.run_before(&mut served, command, prompts, &UPSTREAMS, "task.json").await
    }

    /// Runs a client before these processes, or before none if it starts Weir itself.
    async fn run_before(
        &self,
        served: &mut [Weir],
        mut command: Command,
        prompts: &Path,
        upstreams: &[&str],
        task: &str,
    ) -> (Value, String) {
        let mut child = command.env("TASK", task).spawn().unwrap();
        let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut log = log_of(child.stderr.take());

        // Over stdio Weir is a child of the client, and shares its stderr.
        for upstream in upstreams {
            match &mut *served {
                // It starts Weir anew for each request, and no earlier than that.
                [] if self.client.name == INSPECTOR => {}
                [] => _ = log.logged("upstream listed", upstream).await,
                all => {
                    for served in all {
                        served.log.logged("upstream listed", upstream).await;
                    }
                }
            }
        }
        stdin.write_all(b"go\n").await.unwrap();

        let mut lines = BufReader::new(stdout).lines();
        let talk = async {
            let mut seen = Value::Null;
            while let Some(line) = lines.next_line().await.unwrap() {
                if line == "waiting for a change" {
                    std::fs::write(prompts.join("farewell.md"), FAREWELL).unwrap();
                } else {
                    seen = serde_json::from_str(&line).unwrap();
                }
            }
            seen
        };
        let (seen, status) = tokio::join!(talk, child.wait());
        let log = log.end().await.join("\n");
        assert!(status.unwrap().success(), "{self}: {log}");
        (seen, log)
    }

    fn command(&self, fleet: &Fleet, endpoint: Option<&str>) -> Command {
        let Client { runs_on, script: path, .. } = self.client;
        let mut command = Command::new(part(runs_on));
        command.arg(script(path)).arg("--era");
        command.arg(match self.era {
            Legacy => "legacy",
            Modern => "modern",
        });
        let endpoint = endpoint.unwrap_or_default();
        let pair = endpoint.replace("/mcp", "/sse");
        let remote = |command: &mut Command, url: &str, transport: &str, era: &str| {
            command.args(["--wire", "stdio"]).arg(part("bin/node"));
            command.arg(part("npm/node_modules/mcp-remote/dist/proxy.js"));
            command.args([url, "--transport", transport, "--protocol", era]);
        };
        match self.wire {
            Http | Replicas => _ = command.args(["--wire", "http", endpoint]),
            Sse => _ = command.args(["--wire", "sse", &pair]),
            Pipe => {
                command.args(["--wire", "stdio", env!("CARGO_BIN_EXE_weir"), "stdio"]);
                command.args(["--config", "weir.toml"]);
            }
            RemoteHttp => remote(&mut command, endpoint, "http-only", "legacy"),
            RemoteBridge => remote(&mut command, endpoint, "http-only", "auto"),
            RemoteSse => remote(&mut command, &pair, "sse-only", "legacy"),
        }
        // Their caches are in this folder, and they do not check for updates.
        command.env("HOME", fleet.folder()).env("MCP_REMOTE_CONFIG_DIR", fleet.folder());
        command.current_dir(fleet.folder()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

#[tokio::test]
async fn every_client_sees_the_same_fleet_in_every_era_and_over_every_wire() {
    let (tides, weather) = tokio::join!(sdk2(), fastmcp());
    let checks = stream::iter(Cell::all()).map(|cell| {
        let (tides, weather) = (&tides.url, &weather.url);
        async move { cell.check(tides, weather).await }
    });
    let results: Vec<_> = checks.buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{} of the clients:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test]
async fn every_sdk_sees_the_same_behind_three_replicas_in_turn() {
    let (tides, weather) = tokio::join!(sdk2(), fastmcp());
    let cells = Cell::all().filter(|cell| cell.wire == Http && cell.client.name != INSPECTOR);
    let cells = cells.map(|cell| Cell { wire: Replicas, ..cell });
    // By day one SDK in each era, by night all.
    let is_night = std::env::var_os("WEIR_NIGHTLY").is_some();
    let cells = cells.filter(|cell| is_night || cell.client.name == "TypeScript SDK v2");
    let checks = stream::iter(cells).map(|cell| {
        let (tides, weather) = (&tides.url, &weather.url);
        async move { cell.check(tides, weather).await }
    });
    let results: Vec<_> = checks.buffer_unordered(AT_ONCE).collect().await;
    assert!(results.len() >= 2);
    let failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{} of the clients:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test]
async fn a_list_is_kept_for_as_long_as_weir_says_and_dropped_when_it_tells_of_a_change() {
    for (client, again) in [("TypeScript SDK v2", 0), ("Python SDK 2.x", 1)] {
        // None of these upstreams declares how long its lists are fresh, so Weir does.
        let fleet = Fleet::new(&format!(
            "[upstreams.house]\nprompts_dir = \"prompts\"\n[upstreams.notes]\ncommand = {:?}\n",
            example("legacy_stdio"),
        ));
        std::fs::create_dir(fleet.folder().join("prompts")).unwrap();
        for prompt in ["adieu", "greeting"] {
            std::fs::write(fleet.folder().join(format!("prompts/{prompt}.md")), GREETING).unwrap();
        }
        let client = CLIENTS.iter().find(|known| known.name == client).unwrap();
        let cell = Cell { client, era: Modern, wire: Http };
        let prompts = fleet.folder().join("prompts");
        let running = cell.run(&fleet, &prompts, &["house", "notes"], "lists.json");
        let (seen, log) = tokio::time::timeout(RUN_PATIENCE, running).await.expect("it ends");
        // One SDK caches all pages as one list, the other caches the first page.
        let requested = [&seen["pages"], &seen["again"]];
        assert_eq!(requested, [&json!(2), &json!(again)], "{cell}: {log}");
        let prompts =
            ["adieu", "farewell", "greeting"].map(|name| format!("house__{name}")).into_iter();
        let notes = ["notes__daily-plan", "notes__summarize-notes"].map(str::to_owned);
        let after: Vec<_> = prompts.chain(notes).collect();
        assert_eq!(seen["after"], json!(after), "{cell}: {log}");
    }
}
