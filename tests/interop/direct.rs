//! Lists and responses of a real server, directly and through Weir: equal, under other names.
//!
//! Each server is spoken to in raw lines, once directly and once through Weir, by clients of both
//! eras. `tests/interop/parts/README.md` describes the servers.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::fleet::{Fleet, soon};
use crate::parts::{everything, page, part, script};
use crate::pipe::Era::{self, Legacy, Modern};
use crate::pipe::Pipe;

/// A real server over stdio.
pub(crate) struct Server {
    /// Name of its upstream.
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Its working folder, if that is its own.
    pub(crate) folder: Option<PathBuf>,
    /// Newest era that the server speaks, which Weir has to detect.
    pub(crate) era: Era,
    /// Revision that it speaks in the legacy era.
    pub(crate) legacy_revision: &'static str,
    /// Requests with a repeatable response, with the server's own names.
    pub(crate) requests: Vec<(&'static str, Value)>,
    /// Names of items with members that Weir leaves out.
    pub(crate) left_out: Vec<(&'static str, &'static str)>,
    /// Names of items that Weir does not list.
    pub(crate) unlisted: Vec<&'static str>,
}

impl Server {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stderr(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    fn configuration(&self) -> String {
        let Self { name, program, arguments, .. } = self;
        let variables = self.environment.iter().map(|(name, value)| format!("{name} = {value:?}"));
        let variables = variables.collect::<Vec<_>>().join(", ");
        let folder = self.folder.as_ref().map(|folder| format!("cwd = {folder:?}\n"));
        let folder = folder.unwrap_or_default();
        format!(
            "[upstreams.{name}]\ncommand = {program:?}\nargs = {arguments:?}\n\
             env = {{ {variables} }}\n{folder}"
        )
    }

    /// Public name of one of its prompts or tools.
    fn public(&self, own: &Value) -> Value {
        json!(format!("{}__{}", self.name, own.as_str().unwrap()))
    }
}

fn servers(repository: &Path, page: &str) -> Vec<Server> {
    // The servers must find neither `kubectl` nor a `node` to start npm with.
    let nowhere = Some("/nonexistent");
    let repository = repository.to_str().unwrap();
    let at = |program: &str| part(program);
    let server = |name, program, arguments: &[&str], path: Option<&str>, era, requests| {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let environment = path.map(|path| ("PATH", path.to_owned())).into_iter().collect();
        Server {
            name,
            program,
            arguments,
            environment,
            folder: None,
            era,
            legacy_revision: "2025-11-25",
            requests,
            left_out: Vec::new(),
            unlisted: Vec::new(),
        }
    };
    let call = |name: &str, with: Value| ("tools/call", json!({ "name": name, "arguments": with }));
    let get = |name: &str, with: Value| ("prompts/get", json!({ "name": name, "arguments": with }));
    let read = |uri: &str| ("resources/read", json!({ "uri": uri }));
    let complete = |of: Value, name: &str, typed: &str| {
        let argument = json!({ "name": name, "value": typed });
        ("completion/complete", json!({ "ref": of, "argument": argument }))
    };
    let prompt = |name: &str| json!({ "type": "ref/prompt", "name": name });

    let fetched = || {
        let page = json!({ "url": page, "raw": true });
        vec![get("fetch", json!({ "url": page["url"] })), call("fetch", page)]
    };
    let status = || vec![call("git_status", json!({ "repo_path": repository }))];
    // The response for a real zone depends on the day.
    let zone = || vec![call("get_current_time", json!({ "timezone": "Weir/Nowhere" }))];
    let tides = script("sdk2_server.mjs");
    let kubernetes = part("kubernetes/node_modules/mcp-server-kubernetes/dist/index.js");
    vec![
        server(
            "everything",
            at("bin/node"),
            &[everything().to_str().unwrap(), "stdio"],
            None,
            Legacy,
            vec![
                get("args-prompt", json!({ "city": "Delft", "state": "Zuid-Holland" })),
                get("args-prompt", json!({})),
                get("simple-prompt", json!({})),
                complete(prompt("completable-prompt"), "department", "E"),
                call("echo", json!({ "message": "ä" })),
                call("get-structured-content", json!({ "location": "Chicago" })),
                call("get-tiny-image", json!({})),
                read("demo://resource/static/document/features.md"),
            ],
        ),
        server(
            "fetch",
            at("mcp2/bin/mcp-server-fetch"),
            &["--allow-private-ips"],
            nowhere,
            Modern,
            fetched(),
        ),
        server(
            "fetch-old",
            at("mcp1/bin/mcp-server-fetch"),
            &["--allow-private-ips"],
            nowhere,
            Legacy,
            fetched(),
        ),
        server(
            "git",
            at("mcp2/bin/mcp-server-git"),
            &["--repository", repository],
            None,
            Modern,
            status(),
        ),
        server(
            "git-old",
            at("mcp1/bin/mcp-server-git"),
            &["--repository", repository],
            None,
            Legacy,
            status(),
        ),
        server(
            "time",
            at("mcp2/bin/mcp-server-time"),
            &["--local-timezone", "UTC"],
            None,
            Modern,
            zone(),
        ),
        server(
            "time-old",
            at("mcp1/bin/mcp-server-time"),
            &["--local-timezone", "UTC"],
            None,
            Legacy,
            zone(),
        ),
        server(
            "kubernetes",
            at("bin/node"),
            &[kubernetes.to_str().unwrap()],
            nowhere,
            Legacy,
            vec![
                get("k8s-diagnose", json!({ "keyword": "web" })),
                get("k8s-diagnose", json!({ "keyword": "web", "namespace": "shop" })),
                call("ping", json!({})),
                // There is no cluster.
                read("k8s://nodes"),
            ],
        ),
        server(
            "tides",
            at("bin/node"),
            &[tides.to_str().unwrap(), "stdio"],
            None,
            Modern,
            vec![
                get("tide-table", json!({ "port": "Harlingen" })),
                get("tide-table", json!({})),
                complete(prompt("tide-table"), "port", "den"),
                complete(
                    json!({ "type": "ref/resource", "uri": "tides://{port}/now" }),
                    "port",
                    "h",
                ),
                call("depth", json!({ "port": "Delfzijl", "metres": 7.25 })),
                call("depth", json!({ "port": "Delfzijl" })),
                read("tides://ports"),
                read("tides://Den%20Oever/now"),
            ],
        ),
    ]
}

const LISTS: [(&str, &str); 4] = [
    ("prompts/list", "prompts"),
    ("tools/list", "tools"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
];

/// Direct lists of a server in one era, in the form in which Weir lists them, and its responses.
async fn direct_results(server: &Server, era: Era) -> (Vec<Vec<Value>>, Vec<Value>) {
    let mut pipe = Pipe::open_server(server.command(), era).await;
    let mut lists = Vec::new();
    let mut unlisted = 0;
    for (method, member) in LISTS {
        let mut items = pipe.list(era, method, member).await;
        let all = items.len();
        items.retain(|item| !server.unlisted.iter().any(|name| item["name"] == *name));
        unlisted += all - items.len();
        for item in items.iter_mut().filter(|_| matches!(member, "prompts" | "tools")) {
            let own = item["name"].clone();
            for (_, member) in server.left_out.iter().filter(|(name, _)| own == *name) {
                let removed = item.as_object_mut().unwrap().remove(*member);
                assert!(removed.is_some(), "{}: {own} has no {member}", server.name);
            }
            item["name"] = server.public(&own);
        }
        lists.push(items);
    }
    assert_eq!(unlisted, server.unlisted.len(), "{}", server.name);
    let mut answers = Vec::new();
    for (method, params) in &server.requests {
        answers.push(pipe.request(era, method, params.clone()).await);
    }
    (lists, answers)
}

/// Compares Weir's lists and responses with those of each server. Returns the number of items in
/// each list.
async fn compare(
    weir: &mut Pipe,
    era: Era,
    servers: &[Server],
    direct: &[(Vec<Vec<Value>>, Vec<Value>)],
) -> [usize; 4] {
    let mut counts = [0; 4];
    for (kind, (method, member)) in LISTS.into_iter().enumerate() {
        // A tool that requires a task is not listed to clients without tasks.
        let needs_task = |item: &&Value| item["execution"]["taskSupport"] == "required";
        let listed = direct.iter().flat_map(|(lists, _)| lists[kind].iter());
        let usable = listed.filter(|item| era == Era::Legacy || !needs_task(item));
        let mut expected: Vec<_> = usable.map(Value::to_string).collect();
        let listed = weir.list(era, method, member).await;
        let mut listed: Vec<_> = listed.iter().map(Value::to_string).collect();
        // The order is Weir's own.
        expected.sort();
        listed.sort();
        counts[kind] = listed.len();
        let surplus: Vec<_> = listed.iter().filter(|item| !expected.contains(item)).collect();
        let missing: Vec<_> = expected.iter().filter(|item| !listed.contains(item)).collect();
        let none: Vec<&String> = Vec::new();
        assert_eq!((surplus, missing), (none.clone(), none), "{method}, {era:?}");
        assert_eq!(listed, expected, "{method}, {era:?}");
    }
    for (server, (_, answers)) in servers.iter().zip(direct) {
        for ((method, params), expected) in server.requests.iter().zip(answers) {
            let mut params = params.clone();
            if let Some(own) = params.get("name") {
                params["name"] = server.public(own);
            } else if let Some(own) = params.pointer("/ref/name") {
                params["ref"]["name"] = server.public(own);
            }
            let answer = weir.request(era, method, params.clone()).await;
            assert_eq!(answer, *expected, "{}, {method}, {params}, {era:?}", server.name);
        }
    }
    counts
}

/// Starts Weir in front of the servers, each in its declared era, and compares. Returns the number
/// of items in each list for a legacy client.
pub(crate) async fn compare_all(servers: &[Server], rest: &str) -> [usize; 4] {
    let configuration: Vec<_> =
        servers.iter().map(|server| server.configuration() + rest).collect();
    // Responses to a prompt without its arguments are compared, too.
    let guard = "[guard]\narguments = \"off\"\n";
    let fleet = Fleet::new(&(configuration.concat() + guard));
    let mut command = fleet.command(&["stdio"]);
    command.stderr(Stdio::piped());
    let mut weir = Pipe::open(command, Modern).await;
    let mut log = weir.log();
    // Weir starts its upstreams after its client's first message.
    weir.request(Modern, "server/discover", json!({})).await;
    let direct = join_all(servers.iter().map(|server| direct_results(server, server.era)));
    let direct = direct.await;
    for server in servers {
        let up = log.logged("upstream connected", server.name).await;
        let revision = match server.era {
            Legacy => server.legacy_revision,
            Modern => "2026-07-28",
        };
        assert_eq!(up["revision"], revision, "{}", server.name);
        log.logged("upstream listed", server.name).await;
    }
    compare(&mut weir, Modern, servers, &direct).await;
    weir.shake_hands().await;
    compare(&mut weir, Legacy, servers, &direct).await
}

#[tokio::test]
async fn a_real_server_lists_and_answers_through_weir_what_it_does_directly() {
    let everyone = async {
        let repository = tempfile::TempDir::new().unwrap();
        let git = Command::new("git").arg("init").arg("--quiet").arg(repository.path()).status();
        assert!(soon(git).await.unwrap().success());
        let mut servers = servers(repository.path(), &page().await);
        let counts = compare_all(&servers, "").await;
        assert!(!counts.contains(&0), "no server has items of a kind: {counts:?}");

        // Servers of both eras once more in the legacy era, where the configuration forces it.
        servers.retain(|server| server.era == Modern);
        for server in &mut servers {
            server.era = Legacy;
        }
        let counts = compare_all(&servers, "era = \"legacy\"\n").await;
        assert!(!counts.contains(&0), "no server has items of a kind: {counts:?}");
    };
    tokio::task::LocalSet::new().run_until(everyone).await;
}
