//! Third-party servers behind Weir. `tests/interop/parts/README.md` describes them.

use std::path::{Path, PathBuf};

use rmcp::model::{
    ArgumentInfo, CallToolRequestParams, CompleteRequestParams, GetPromptRequestParams,
    ReadResourceRequestParams, Reference, SubscriptionFilter,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::clients::{Client, Listener, legacy, modern, notified, object, over_http, until_heard};
use crate::fleet::{Fleet, soon};
use crate::lab::ports::free_port;
use crate::parts::{
    Started, everything, everything_on, everything_over_http, fastmcp, page, part, script, sdk2,
};

fn arguments(name: &'static str, arguments: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(name).with_arguments(object(arguments))
}

async fn call(client: &Client, tool: &'static str, with: Value) -> String {
    let called = soon(client.call_tool(arguments(tool, with))).await.unwrap();
    let called = serde_json::to_value(called).unwrap();
    assert_ne!(called["isError"], true, "{called}");
    called["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

async fn prompt(client: &Client, name: &str, with: Value) -> String {
    let get = GetPromptRequestParams::new(name).with_arguments(object(with));
    let got = serde_json::to_value(soon(client.get_prompt(get)).await.unwrap()).unwrap();
    got["messages"][0]["content"]["text"].as_str().unwrap().to_owned()
}

async fn complete(client: &Client, name: &str, argument: &str, value: &str) -> Vec<String> {
    let reference = Reference::for_prompt(name);
    let complete = CompleteRequestParams::new(reference, ArgumentInfo::new(argument, value));
    soon(client.complete(complete)).await.unwrap().completion.values
}

/// Weir with every real server, a broken one among them.
struct RealFleet {
    fleet: Fleet,
    repository: tempfile::TempDir,
    _servers: [Started; 2],
}

impl RealFleet {
    async fn open() -> Self {
        let (everything_http, fastmcp) = (everything_over_http().await, fastmcp().await);
        let repository = tempfile::TempDir::new().unwrap();
        let git = Command::new("git").arg("init").arg("--quiet").arg(repository.path()).status();
        assert!(soon(git).await.unwrap().success());
        let stdio = |name: &str, program: PathBuf, arguments: &[&str], rest: &str| {
            format!("[upstreams.{name}]\ncommand = {program:?}\nargs = {arguments:?}\n{rest}\n")
        };
        let everything = everything();
        let everything = [everything.to_str().unwrap(), "stdio"];
        let repo = ["--repository", repository.path().to_str().unwrap()];
        // The tool would start npm if it found a node.
        let no_node = "env = { PATH = \"/nonexistent\" }";
        let upstreams = [
            stdio("everything", part("bin/node"), &everything, ""),
            format!("[upstreams.everything-http]\nurl = {:?}\n", everything_http.url),
            stdio("fetch", part("mcp2/bin/mcp-server-fetch"), &["--allow-private-ips"], no_node),
            stdio(
                "fetch-old",
                part("mcp1/bin/mcp-server-fetch"),
                &["--allow-private-ips"],
                no_node,
            ),
            stdio("git", part("mcp2/bin/mcp-server-git"), &repo, ""),
            stdio("git-old", part("mcp1/bin/mcp-server-git"), &repo, ""),
            format!("[upstreams.weather]\nurl = {:?}\n", fastmcp.url),
            format!("[upstreams.weather-old]\nurl = {:?}\nera = \"legacy\"\n", fastmcp.url),
            stdio("sqlite", part("mcp2/bin/mcp-server-sqlite"), &["--db-path", "x.db"], ""),
        ];
        Self {
            fleet: Fleet::new(&upstreams.concat()),
            repository,
            _servers: [everything_http, fastmcp],
        }
    }
}

/// Uses each server through Weir.
async fn use_every_server(client: &Client, repository: &Path, page: &str) {
    let prompts = soon(client.list_all_prompts()).await.unwrap();
    let prompts: Vec<_> = prompts.iter().map(|prompt| prompt.name.as_str()).collect();
    for name in [
        "everything__args-prompt",
        "everything__completable-prompt",
        "everything-http__simple-prompt",
        "fetch__fetch",
        "fetch-old__fetch",
        "weather__forecast",
        "weather-old__greet",
    ] {
        assert!(prompts.contains(&name), "{name} is not among {prompts:?}");
    }
    let mut sorted = prompts.clone();
    sorted.sort_by_key(|name| name.split_once("__"));
    assert_eq!(prompts, sorted);

    for server in ["everything", "everything-http"] {
        let name = format!("{server}__args-prompt");
        let text = prompt(client, &name, json!({ "city": "Delft", "state": "Zuid-Holland" })).await;
        assert!(text.contains("Delft"), "{text}");
        let name = format!("{server}__completable-prompt");
        let completed = complete(client, &name, "department", "E").await;
        assert_eq!(completed, ["Engineering"]);
    }
    for server in ["weather", "weather-old"] {
        let text = prompt(client, &format!("{server}__greet"), json!({ "name": "Ada" })).await;
        assert_eq!(text, "Greet Ada in English.");
        let completed = complete(client, &format!("{server}__forecast"), "city", "a").await;
        assert_eq!(completed, ["Amsterdam", "Antwerp", "Athens"]);
    }

    assert_eq!(call(client, "everything__echo", json!({ "message": "ä" })).await, "Echo: ä");
    let sum = call(client, "everything-http__get-sum", json!({ "a": 2, "b": 3 })).await;
    assert!(sum.contains('5'), "{sum}");
    for tool in ["weather__add", "weather-old__add"] {
        assert_eq!(call(client, tool, json!({ "a": 2, "b": 3 })).await, "5");
    }
    let repository = json!({ "repo_path": repository });
    for tool in ["git__git_status", "git-old__git_status"] {
        let status = call(client, tool, repository.clone()).await;
        assert!(status.contains("No commits yet"), "{status}");
    }
    for tool in ["fetch__fetch", "fetch-old__fetch"] {
        let fetched = call(client, tool, json!({ "url": page, "raw": true })).await;
        assert!(fetched.contains("a weir holds water back"), "{fetched}");
    }

    let resources = soon(client.list_all_resources()).await.unwrap();
    let uris: Vec<_> = resources.iter().map(|resource| resource.uri.as_str()).collect();
    assert!(uris.contains(&"weather://cities"), "{uris:?}");
    for uri in
        [uris[0], "weather://cities", "demo://resource/dynamic/text/1", "weather://Bern/today"]
    {
        let read = soon(client.read_resource(ReadResourceRequestParams::new(uri))).await.unwrap();
        let read = serde_json::to_value(read).unwrap();
        assert_eq!(read["contents"][0]["uri"], uri);
    }
}

#[tokio::test]
async fn real_servers_of_both_eras_work_beside_a_broken_one() {
    let local = tokio::task::LocalSet::new();
    let everyone = async {
        let page = page().await;
        let real = RealFleet::open().await;
        let mut served = real.fleet.serve().await;
        for upstream in [
            "fetch",
            "fetch-old",
            "git",
            "git-old",
            "everything",
            "everything-http",
            "weather",
            "weather-old",
        ] {
            served.log.logged("upstream listed", upstream).await;
        }
        for lifecycle in [legacy(), modern()] {
            let client = over_http(&served, lifecycle, &Listener::default()).await;
            use_every_server(&client, real.repository.path(), &page).await;
            soon(client.cancel()).await.unwrap();
        }
        served.log.logged("upstream disconnected", "sqlite").await;
        served.stop().await;
    };
    local.run_until(everyone).await;
}

#[tokio::test]
async fn a_real_servers_change_reaches_clients_of_both_eras_whatever_era_the_server_is_spoken_to_in()
 {
    let (python, typescript) = (fastmcp().await, sdk2().await);
    let stdio = format!(
        "command = {:?}\nargs = [{:?}, \"stdio\"]",
        part("bin/node"),
        script("sdk2_server.mjs"),
    );
    for (server, era) in [
        (format!("url = {:?}", python.url), "legacy"),
        (format!("url = {:?}", python.url), "modern"),
        (stdio.clone(), "legacy"),
        (stdio, "modern"),
        // To a legacy client over HTTP this SDK sends no notification.
        (format!("url = {:?}", typescript.url), "modern"),
    ] {
        let fleet = Fleet::new(&format!("[upstreams.real]\n{server}\nera = {era:?}\n"));
        let mut served = fleet.serve().await;
        served.log.logged("upstream listed", "real").await;
        let (old_listener, new_listener) = (Listener::default(), Listener::default());
        let old = over_http(&served, legacy(), &old_listener).await;
        let new = over_http(&served, modern(), &new_listener).await;
        let filter = SubscriptionFilter::builder().prompts_list_changed().build();
        let mut changes = soon(new.listen(filter)).await.unwrap();

        call(&new, "real__add_prompt", json!({ "name": "storm" })).await;

        let old_heard = async || old_listener.prompts_changed.notified().await;
        until_heard(&old, "real__storm", old_heard).await;
        until_heard(&new, "real__storm", async || notified(&mut changes).await).await;
        for client in [&old, &new] {
            let text = prompt(client, "real__storm", json!({ "topic": "wind" })).await;
            assert_eq!(text, "storm: wind");
        }
        call(&new, "real__remove_prompt", json!({ "name": "storm" })).await;
        served.stop().await;
    }
}

#[tokio::test]
async fn a_real_server_of_the_older_transport_is_found_used_and_found_again() {
    let (port, ready) = (free_port(), "running on port");
    let mut server = everything_on(port, "sse", ready).await;
    let url = format!("http://127.0.0.1:{port}/sse");
    let fleet = Fleet::new(&format!(
        "[upstreams.found]\nurl = {url:?}\n[upstreams.pinned]\nurl = {url:?}\ntransport = \"sse\"\n"
    ));
    let checked = soon(fleet.command(&["check"]).output()).await.unwrap();
    let report = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(report.matches("http+sse 2025-11-25  4 prompts, 13 tools").count(), 2, "{report}");

    let mut served = fleet.serve().await;
    for upstream in ["found", "pinned"] {
        served.log.logged("upstream listed", upstream).await;
    }
    let listener = Listener::default();
    for lifecycle in [legacy(), modern()] {
        let client = over_http(&served, lifecycle, &listener).await;
        let prompts = soon(client.list_all_prompts()).await.unwrap();
        assert_eq!(prompts.len(), 8, "{prompts:?}");
        for upstream in ["found", "pinned"] {
            let name = format!("{upstream}__args-prompt");
            let text = prompt(&client, &name, json!({ "city": "Delft", "state": "ZH" })).await;
            assert!(text.contains("Delft"), "{text}");
            let name = format!("{upstream}__completable-prompt");
            assert_eq!(complete(&client, &name, "department", "E").await, ["Engineering"]);
        }
        assert_eq!(call(&client, "found__echo", json!({ "message": "ä" })).await, "Echo: ä");
        let uri = "demo://resource/dynamic/text/1";
        let read = soon(client.read_resource(ReadResourceRequestParams::new(uri))).await.unwrap();
        assert_eq!(serde_json::to_value(read).unwrap()["contents"][0]["uri"], uri);
        let slow = json!({ "duration": 0.2, "steps": 2 });
        let done = call(&client, "pinned__trigger-long-running-operation", slow).await;
        assert!(done.contains("completed"), "{done}");
        soon(listener.progressed.notified()).await;
        soon(client.cancel()).await.unwrap();
    }

    // A call in flight ends at once when the server dies, and the next server is detected.
    let listener = Listener::default();
    let client = over_http(&served, modern(), &listener).await;
    let slow = json!({ "duration": 600, "steps": 6000 });
    let under_way = client.call_tool(arguments("found__trigger-long-running-operation", slow));
    let dies = async {
        listener.progressed.notified().await;
        server.kill().await.unwrap();
    };
    let (ended, ()) = soon(async { tokio::join!(under_way, dies) }).await;
    assert!(ended.is_err(), "{ended:?}");
    served.log.logged("upstream disconnected", "found").await;
    let _server = everything_on(port, "sse", ready).await;
    served.log.logs("upstream connected", "found").await;
    assert_eq!(call(&client, "found__echo", json!({ "message": "b" })).await, "Echo: b");
    soon(client.cancel()).await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_real_server_that_is_restarted_several_times_serves_the_next_call() {
    let (port, ready) = (free_port(), "listening on port");
    let mut server = everything_on(port, "streamableHttp", ready).await;
    // A session that is given up soon after another one waits for the end of a pause: none here.
    let fleet = Fleet::new(&format!(
        "[upstreams.real]\nurl = \"http://127.0.0.1:{port}/mcp\"\n\
         retry = {{ backoff = \"10ms\", max_backoff = \"10ms\" }}\n"
    ));
    let mut served = fleet.serve().await;
    served.log.logged("upstream listed", "real").await;
    let listener = Listener::default();
    let clients = [legacy(), modern()].map(|lifecycle| over_http(&served, lifecycle, &listener));
    let clients = futures::future::join_all(clients).await;
    for message in ["a", "b", "c"] {
        for client in &clients {
            let echoed = call(client, "real__echo", json!({ "message": message })).await;
            assert_eq!(echoed, format!("Echo: {message}"));
        }
        // The next server knows none of the sessions, and says so with status 400.
        server.kill().await.unwrap();
        server = everything_on(port, "streamableHttp", ready).await;
    }
    for client in clients {
        assert_eq!(call(&client, "real__echo", json!({ "message": "d" })).await, "Echo: d");
        soon(client.cancel()).await.unwrap();
    }
    served.stop().await;
}
