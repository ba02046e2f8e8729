//! Command-line clients that call tools for a model, with Weir as their server: Claude Code, Codex
//! and Gemini CLI.
//!
//! By night (`WEIR_NIGHTLY`): only then `./dev prepare` installs them, 1 GB. By day these tests
//! return at once, and rows of `tests/claims.toml` that name them say `nightly`. `parts/model.mjs`
//! stands in for the API of their provider and rejects what providers reject; nothing but the
//! loopback interface is reached. Each client uses the entry that `weir connect` writes, over stdio
//! and over HTTP.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::fleet::{Fleet, soon};
use crate::lab::weir::Weir;
use crate::parts::{Started, announced, part, script};

/// Some clients take half a minute of a busy machine to start.
const PATIENCE: Duration = Duration::from_secs(300);

/// Public name of the upstream's `a.b`; a literal, since it must be the same in every run.
const DOTTED: &str = "names__a_b_17a5ba6d";
/// Public name of the upstream's prompt `say.hello`.
const HELLO: &str = "names__say_hello_f63e90e3";

/// Calls a tool with an altered name, lets the upstream add a tool, and calls that as soon as the
/// client offers it.
const CHANGE: [&str; 4] = [DOTTED, "__grow", "__a_b until __grown", "__grown"];

/// Number of tools that the upstream lists at first; some clients would merge four of them into
/// one.
const LISTED: usize = 6;

/// Transport between a client and Weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Stdio,
    Http,
}

/// Content of a client's file before `weir connect` adds to it, as a function of the model's
/// address.
struct File {
    path: &'static str,
    text: fn(&str) -> String,
}

/// A client's home folder with Weir's entry in its file, and its model.
struct Setting {
    fleet: Fleet,
    home: PathBuf,
    requests: PathBuf,
    model: Started,
    _served: Option<Weir>,
}

impl Setting {
    async fn new(client: &str, transport: Transport, steps: &[&str], file: Option<File>) -> Self {
        Self::with(client, transport, steps, file, "").await
    }

    /// Like [`Self::new`]; `keys` are further ones of the upstream.
    async fn with(
        client: &str,
        transport: Transport,
        steps: &[&str],
        file: Option<File>,
        keys: &str,
    ) -> Self {
        let (node, server) = (part("bin/node"), script("names_server.mjs"));
        let config = format!(
            "[state]\ndir = \"state\"\n[upstreams.names]\ncommand = {node:?}\nargs = [{server:?}]\n{keys}\n"
        );
        let fleet = Fleet::plain(&config);
        let (home, requests) = (fleet.folder().join("home"), fleet.folder().join("requests"));
        let mut model = Command::new(node);
        model.arg(script("model.mjs")).arg(&requests).args(steps);
        let model = announced(&mut model).await;
        std::fs::create_dir(&home).unwrap();
        if let Some(File { path, text }) = file {
            let path = home.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text(&model.url)).unwrap();
        }
        let served = match transport {
            Transport::Stdio => None,
            Transport::Http => Some(fleet.serve().await),
        };
        let mut connect = fleet.command(&["connect", client, "--write"]);
        match &served {
            None => connect.arg("--stdio"),
            Some(served) => connect.args(["--url", &served.endpoint()]),
        };
        connect.env("HOME", &home).env_remove("CLAUDE_CONFIG_DIR").env_remove("CODEX_HOME");
        let connected = soon(connect.stderr(Stdio::null()).status()).await.unwrap();
        assert!(connected.success(), "{client} {transport:?}");
        Self { fleet, home, requests, model, _served: served }
    }

    /// Command of the client's program, which reaches nothing but this machine.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(node());
        command.arg(part("agents/node_modules").join(program));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", &self.home).env("LANG", "C.UTF-8").current_dir(&self.home);
        command.env("HTTPS_PROXY", "http://127.0.0.1:9").env("NO_PROXY", "127.0.0.1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(self.stderr());
        command.kill_on_drop(true);
        command
    }

    fn stderr(&self) -> std::fs::File {
        std::fs::File::create(self.fleet.folder().join("stderr")).unwrap()
    }

    /// Requests to the model that offered tools of Weir.
    fn offers(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.requests).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| !tools(line).is_empty()).collect()
    }

    /// Checks that the model accepted every request, that each tool was offered to it under a
    /// unique name, and that the results of tools came back to it. Returns the last request.
    fn check(&self, who: &str, answers: &[&str]) -> Value {
        let stderr = std::fs::read_to_string(self.fleet.folder().join("stderr")).unwrap();
        let offers = self.offers();
        assert!(!offers.is_empty(), "{who} offered no tool of Weir: {stderr}");
        for offer in &offers {
            assert_eq!(offer["refused"], Value::Null, "{who}");
        }
        let first = tools(&offers[0]);
        let names: BTreeSet<_> = first.iter().collect();
        assert_eq!((first.len(), names.len()), (LISTED, LISTED), "{who}: {first:?}");
        assert!(first.iter().any(|name| name.ends_with(DOTTED)), "{who}: {first:?}");
        assert!(first.iter().all(|name| name.len() <= 64), "{who}: {first:?}");
        let last = offers.last().unwrap().clone();
        let mut results = last["results"].as_array().unwrap().iter().map(Value::to_string);
        for answer in answers {
            let expected = format!("this is <{answer}>");
            assert!(results.any(|text| text.contains(&expected)), "{who}: {answer} in {last}");
        }
        last
    }
}

/// Node.js of the clients' part: on 26, Gemini CLI sees no header of an HTTP response.
fn node() -> PathBuf {
    let packages = std::fs::read_dir(part("agents/node_modules")).unwrap();
    let mut programs = packages.map(|package| package.unwrap().path().join("bin/node"));
    programs.find(|program| program.is_file()).expect("Node.js for this machine")
}

/// Names of Weir's tools in a request.
fn tools(request: &Value) -> Vec<&str> {
    let all = request["tools"].as_array().into_iter().flatten().filter_map(Value::as_str);
    all.filter(|name| name.contains("names__")).collect()
}

/// Variables that keep Claude Code from other addresses than that of the model.
const QUIET: [&str; 4] = [
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
];

fn is_night() -> bool {
    std::env::var_os("WEIR_NIGHTLY").is_some()
}

async fn finish(command: &mut Command, who: &str, folder: &Path) {
    let ended = tokio::time::timeout(PATIENCE, command.status()).await;
    let ended = ended.unwrap_or_else(|_| panic!("{who} goes on in {}", folder.display()));
    assert!(ended.unwrap().success(), "{who}");
}

#[tokio::test]
async fn claude_code_calls_tools_sees_a_change_and_takes_a_prompt_as_a_command() {
    if !is_night() {
        return;
    }
    for transport in [Transport::Stdio, Transport::Http] {
        let who = format!("Claude Code over {transport:?}");
        let setting = Setting::new("claude-code", transport, &CHANGE, None).await;
        let mut command = setting.client("@anthropic-ai/claude-code/cli-wrapper.cjs");
        command.args(["-p", "--verbose", "--allowedTools", "mcp__weir"]);
        command.args(["--input-format", "stream-json", "--output-format", "stream-json"]);
        command.env("ANTHROPIC_BASE_URL", &setting.model.url).env("ANTHROPIC_API_KEY", "none");
        for switch in QUIET {
            command.env(switch, "1");
        }
        // Otherwise the client offers a search instead of the tools.
        command.env("ENABLE_TOOL_SEARCH", "false");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        for text in ["please go".to_owned(), format!("/mcp__weir__{HELLO}")] {
            let message = json!({ "type": "user", "message": { "role": "user", "content": text } });
            input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
            let turn = async {
                while let Some(line) = output.next_line().await.unwrap() {
                    if line.contains(r#""type":"result""#) {
                        return;
                    }
                }
                panic!("{who} ended: {:?}", setting.offers());
            };
            tokio::time::timeout(PATIENCE, turn).await.expect("a turn ends");
        }
        drop(input);
        tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
        let last = setting.check(&who, &["a.b", "grow", "grown"]);
        assert!(last["texts"].to_string().contains("prompt <say.hello>"), "{who}: {last}");
    }
}

/// A short run of Claude Code ends before a changed list reaches it.
#[tokio::test]
async fn claude_code_offers_all_tools_in_its_first_request_nightly() {
    if !is_night() {
        return;
    }
    // Longer than the client waits for tools.
    let slow = "env.DELAY_MS = \"4000\"";
    let setting = Setting::with("claude-code", Transport::Stdio, &[DOTTED], None, slow).await;
    for run in 1..=6 {
        let _ = std::fs::remove_file(&setting.requests);
        let elsewhere = tempfile::TempDir::new().unwrap();
        let mut command = setting.client("@anthropic-ai/claude-code/cli-wrapper.cjs");
        command.args(["-p", "please go", "--allowedTools", "mcp__weir"]);
        command.env("ANTHROPIC_BASE_URL", &setting.model.url).env("ANTHROPIC_API_KEY", "none");
        for switch in QUIET {
            command.env(switch, "1");
        }
        command.env("ENABLE_TOOL_SEARCH", "false").env("TERM", "dumb").env("LANG", "C");
        command.current_dir(elsewhere.path());
        finish(&mut command, &format!("run {run}"), &setting.home).await;
        // The model calls the tool once.
        setting.check(&format!("run {run}"), if run == 1 { &["a.b"] } else { &[] });
    }
}

// Codex 0.169 ignores a changed list while it runs.
#[tokio::test]
async fn codex_calls_tools() {
    if !is_night() {
        return;
    }
    let file = |url: &str| {
        format!(
            "model = \"stand-in\"\nmodel_provider = \"loopback\"\n[model_providers.loopback]\n\
             name = \"loopback\"\nbase_url = \"{url}/v1\"\nwire_api = \"responses\"\n\
             env_key = \"MODEL_KEY\"\n[analytics]\nenabled = false\n"
        )
    };
    for transport in [Transport::Stdio, Transport::Http] {
        let who = format!("Codex over {transport:?}");
        let file = Some(File { path: ".codex/config.toml", text: file });
        let setting = Setting::new("codex", transport, &[DOTTED, "__grow"], file).await;
        let mut command = setting.client("@openai/codex/bin/codex.js");
        command.args(["exec", "--skip-git-repo-check", "--json", "please go"]);
        // The model requests no command; without this flag, Codex requests a confirmation before it
        // calls a tool.
        command.arg("--dangerously-bypass-approvals-and-sandbox").env("MODEL_KEY", "none");
        finish(&mut command, &who, &setting.home).await;
        setting.check(&who, &["a.b", "grow"]);
    }
}

#[tokio::test]
async fn gemini_cli_calls_tools_and_sees_a_change() {
    if !is_night() {
        return;
    }
    let file = |_: &str| {
        json!({
            "security": { "auth": { "selectedType": "gemini-api-key" } },
            "privacy": { "usageStatisticsEnabled": false },
            "general": { "enableAutoUpdate": false, "enableAutoUpdateNotification": false },
        })
        .to_string()
    };
    for transport in [Transport::Stdio, Transport::Http] {
        let who = format!("Gemini CLI over {transport:?}");
        let file = Some(File { path: ".gemini/settings.json", text: file });
        let setting = Setting::new("gemini", transport, &CHANGE, file).await;
        let mut command = setting.client("@google/gemini-cli/bundle/gemini.js");
        command.args(["-m", "gemini-2.5-flash", "-p", "please go"]);
        command.args(["--skip-trust", "--approval-mode", "yolo"]);
        command.env("GOOGLE_GEMINI_BASE_URL", &setting.model.url).env("GEMINI_API_KEY", "none");
        finish(&mut command, &who, &setting.home).await;
        setting.check(&who, &["a.b", "grow", "grown"]);
    }
}
