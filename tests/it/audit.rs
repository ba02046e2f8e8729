//! The audit log: one line for each request, however it ends, over both eras and all transports.

mod policy;
mod rules;
mod sent;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use hyper::Method;
use tempfile::TempDir;
use weir_base::json::Object;
use weir_mcp::jsonrpc::Id;
use weir_mcp::kind::Kind;
use weir_record::audit::{log_files, verify};

use crate::cell::{
    CLIENTS, LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side,
};
use crate::cell::{Transport, UPSTREAMS};
use crate::client::set;
use crate::upstream::{Answer, Script};
use crate::world::{World, hub, pass, settle, with_pair};

/// A gateway with an audit log, and the folder of the log.
struct AuditedGateway {
    world: World,
    folder: TempDir,
}

const ROLES: &str = r#"
[roles.guest]
prompts.allow = ["hub/*"]
tools.allow = ["hub/*"]
tools.deny = ["hub/b"]
resources.allow = ["*"]
"#;

impl AuditedGateway {
    async fn start(side: Side, more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().display();
        let config = format!("{ROLES}[audit]\nenabled = true\n{more}\n[state]\ndir = \"{dir}\"\n");
        let world = World::start_recorded(hub(side), &with_pair(&config)).await;
        Self { world, folder }
    }

    async fn client(&self, side: Side) -> crate::client::Client {
        self.world.client_as("guest", side).await
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("audit.jsonl")
    }

    /// Closes the gateway and returns these members of each line about a request after the
    /// handshake.
    async fn close_and_read(self, members: &[&str]) -> Vec<String> {
        let path = self.path();
        self.world.close().await;
        let files = log_files(&path).concat();
        verify::verify(&files).unwrap_or_else(|trouble| panic!("{trouble}"));
        lines(&path, members)
    }
}

fn lines(path: &Path, members: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a log");
    let objects = text.lines().map(|line| Object::parse(line.to_owned()).expect("JSON"));
    let own = ["initialize", "server/discover"].map(|method| format!("\"{method}\""));
    let about = objects.filter(|line| {
        line.has("wire") && !line.get("method").is_some_and(|method| own.contains(&method.into()))
    });
    let member =
        |line: &Object, member: &str| line.get(member).unwrap_or("-").trim_matches('"').to_owned();
    about
        .map(|line| members.iter().map(|it| member(&line, it)).collect::<Vec<_>>().join(" "))
        .collect()
}

const ENDS: [&str; 6] = ["client", "method", "item", "decision", "outcome", "code"];

#[tokio::test(start_paused = true)]
async fn each_request_has_one_line_that_says_what_became_of_it() {
    for upstream in UPSTREAMS {
        for side in CLIENTS {
            let audited = AuditedGateway::start(upstream, "").await;
            let client = audited.client(side).await;
            client.list_all(Kind::Tool).await;
            assert!(client.call_tool("hub__a").await.outcome.is_ok());
            assert!(client.get_prompt("hub__a").await.outcome.is_ok());
            client.call_tool("hub__b").await.code();
            client.call_tool("hub__c").await.code();
            client.request("tools/call", "{}").await.code();
            client.request("no/method", "{}").await.code();
            let hub = audited.world.upstream("hub");
            hub.answer("tools/call", Answer::Error(r#"{"code":7,"message":"x"}"#.into()));
            assert_eq!(client.call_tool("hub__a").await.code(), 7);
            drop(client);
            let expected = [
                "guest tools/list - - ok -",
                "guest tools/call a allowed ok -",
                "guest prompts/get a allowed ok -",
                "guest tools/call b denied refused -32602",
                "guest tools/call - unknown refused -32602",
                "guest tools/call - - refused -32602",
                "guest no/method - - refused -32601",
                "guest tools/call a allowed error 7",
            ];
            let entries: Vec<_> = audited.close_and_read(&ENDS).await;
            let entries: Vec<_> =
                entries.into_iter().filter(|line| !line.starts_with("guest - ")).collect();
            assert_eq!(entries, expected, "{side}, {upstream}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_tells_who_asked_what_of_whom_and_over_what() {
    for side in CLIENTS {
        let audited = AuditedGateway::start(MODERN_HTTP, "").await;
        let client = audited.client(side).await;
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let params = format!(
            r#"{{"name":"hub__a","arguments":{{"text":"hunter2"}},"_meta":{{"traceparent":"{trace}"}}}}"#
        );
        assert!(client.request("tools/call", &params).await.outcome.is_ok());
        drop(client);
        let (transport, from, status) = match side.transport {
            Transport::Http => ("http", "127.0.0.1", "200"),
            Transport::Sse => ("sse", "127.0.0.1", "-"),
            Transport::Stdio => ("stdio", "-", "-"),
        };
        let members = [
            "role",
            "wire",
            "from",
            "revision",
            "kind",
            "upstream",
            "item",
            "name",
            "rule",
            "status",
            "arguments",
            "trace_id",
        ];
        let expected = format!(
            "guest {transport} {from} {} tool hub a hub__a hub/* {status} [\"text\"] 4bf92f3577b34da6a3ce929d0e0e4736",
            side.revision
        );
        let entries = audited.close_and_read(&members).await;
        assert_eq!(
            entries.iter().filter(|line| line.contains("tool ")).collect::<Vec<_>>(),
            [&expected]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_waits_for_is_cancelled_and_what_only_lost_its_stream_is_not() {
    for side in CLIENTS {
        let audited = AuditedGateway::start(LEGACY_STDIO, "").await;
        let client = audited.client(side).await;
        let mut intercepted = audited.world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", r#"{"name":"hub__a"}"#);
        let call = intercepted.next().await;
        exchange.cancel().await;
        call.cancelled().await;
        settle().await;
        drop(client);
        let entries = audited.close_and_read(&["method", "outcome", "item"]).await;
        let calls: Vec<_> = entries.iter().filter(|line| line.starts_with("tools/call")).collect();
        assert_eq!(calls, ["tools/call cancelled a"], "{side}");
    }
    let audited = AuditedGateway::start(LEGACY_STDIO, "").await;
    let client = audited.client(LEGACY_HTTP).await;
    let mut intercepted = audited.world.upstream("hub").intercept("tools/call");
    let exchange = client.start("tools/call", r#"{"name":"hub__a"}"#);
    let call = intercepted.next().await;
    drop(exchange);
    settle().await;
    call.result("{}");
    settle().await;
    drop(client);
    let entries = audited.close_and_read(&["method", "outcome", "item"]).await;
    assert_eq!(entries.last().map(String::as_str), Some("tools/call ok a"));
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_down_or_too_slow_is_an_error() {
    for side in [MODERN_HTTP, LEGACY_STDIO, LEGACY_SSE] {
        let audited = AuditedGateway::start(MODERN_STDIO, "").await;
        let client = audited.client(side).await;
        let hub = audited.world.upstream("hub");
        let intercepted = hub.intercept("tools/call");
        let exchange = client.start("tools/call", r#"{"name":"hub__a"}"#);
        pass(Duration::from_secs(61)).await;
        assert_eq!(exchange.reply().await.code(), 5040);
        drop(intercepted);
        hub.go_down();
        pass(Duration::from_secs(2)).await;
        assert_eq!(client.call_tool("hub__a").await.code(), 5030);
        drop(client);
        let entries = audited.close_and_read(&["method", "decision", "outcome", "code"]).await;
        let calls: Vec<_> =
            entries.into_iter().filter(|line| line.starts_with("tools/call")).collect();
        let expected = ["tools/call allowed error 5040", "tools/call allowed error 5030"];
        assert_eq!(calls, expected, "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_has_a_line_when_it_begins_and_one_when_it_ends() {
    for side in [MODERN_HTTP, MODERN_STDIO, LEGACY_HTTP, LEGACY_SSE] {
        let audited = AuditedGateway::start(MODERN_STDIO, "").await;
        let client = audited.client(side).await;
        let mut changes = client.listen().await;
        audited.world.upstream("hub").add(Kind::Tool, "c").await;
        changes.next_change().await;
        changes.cancel().await;
        settle().await;
        drop(client);
        let entries =
            audited.close_and_read(&["event", "method", "http", "outcome", "request"]).await;
        let about = if side.is_modern() { "subscriptions/listen -" } else { "- GET" };
        let streams: Vec<_> = entries.iter().filter(|line| line.contains(about)).collect();
        // The number is the same in both; the log's lines name the request by it, too.
        let number = streams[0].rsplit(' ').next().expect("a number");
        assert!(number.parse::<u64>().is_ok(), "{side}: {streams:?}");
        let expected =
            [format!("begun {about} - {number}"), format!("request {about} ok {number}")];
        assert_eq!(streams, expected.iter().collect::<Vec<_>>(), "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_a_listen_will_not_hear_of_has_a_line_of_its_own() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!(
            "[roles.guest]\nresources.allow = [\"*\"]\nresources.deny = [\"hub/file:///b\"]\n\
             [audit]\nenabled = true\n[state]\ndir = \"{}\"\n",
            folder.path().display()
        );
        let scripts = vec![("hub", Script::full(MODERN_STDIO).subscribable())];
        let world = World::start_recorded(scripts, &config).await;
        let audited = AuditedGateway { world, folder };
        let client = audited.client(side).await;
        let (changes, honored) = client.follow(&["file:///a", "file:///b", "other://x/c"]).await;
        assert_eq!(honored, ["file:///a"]);
        changes.cancel().await;
        settle().await;
        drop(client);
        let entries =
            audited.close_and_read(&["event", "name", "decision", "rule", "outcome"]).await;
        let expected = [
            "begun - - - -",
            "request file:///b denied hub/file:///b refused",
            "request other://x/c unknown - refused",
            "request - - - ok",
        ];
        assert_eq!(entries, expected, "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_element_of_a_batch_has_a_line_of_its_own() {
    use weir_mcp::revision::Revision;
    for transport in [Transport::Http, Transport::Stdio] {
        let audited = AuditedGateway::start(MODERN_STDIO, "").await;
        let side = Side::new(Revision::V2025_03_26, transport);
        let client = audited.client(side).await;
        let call = |id: u64, name: &str| {
            let params = format!(r#"{{"name":"{name}"}}"#);
            weir_mcp::jsonrpc::write_request(&Id::from(id), "tools/call", params.as_bytes())
        };
        let batch = [call(901, "hub__a"), call(902, "hub__b"), "7".into()]
            .map(|element| String::from_utf8(element.to_vec()).expect("text"));
        let batch = format!("[{}]", batch.join(","));
        match transport {
            Transport::Http => {
                let http = client.http();
                http.post(batch, &http.headers("", "{}")).whole().await;
            }
            _ => client.stdio().send(batch.as_bytes()),
        }
        settle().await;
        drop(client);
        let mut entries =
            audited.close_and_read(&["method", "item", "outcome", "code", "status"]).await;
        entries.sort();
        let status = if transport == Transport::Http { "200" } else { "-" };
        let expected = ["- - refused -32600", "tools/call a ok -", "tools/call b refused -32602"];
        assert_eq!(entries, expected.map(|line| format!("{line} {status}")), "{transport:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_has_a_line_and_what_is_no_request_has_none() {
    let audited = AuditedGateway::start(MODERN_STDIO, "").await;
    let client = audited.client(LEGACY_HTTP).await;
    let http = client.http();
    let good = http.headers("ping", "{}");
    let with = |name: &str, value: &str| {
        let mut headers = good.clone();
        set(&mut headers, name, value);
        headers
    };
    let ping = r#"{"jsonrpc":"2.0","id":901,"method":"ping"}"#;
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(5 << 20));
    for (method, path, headers, body, status) in [
        (Method::POST, "/mcp", with("host", "evil.test"), ping, 403),
        (Method::POST, "/mcp", with("origin", "http://evil.test"), ping, 403),
        (Method::POST, "/elsewhere", good.clone(), ping, 404),
        (Method::POST, "/mcp", with("authorization", "Bearer wrong"), ping, 401),
        (Method::POST, "/mcp", with("authorization", "Basic x"), ping, 401),
        (Method::PUT, "/mcp", good.clone(), ping, 405),
        (Method::POST, "/mcp", with("accept", "text/html"), ping, 406),
        (Method::POST, "/mcp", with("content-type", "text/plain"), ping, 415),
        (Method::POST, "/mcp", good.clone(), "{", 400),
        (Method::POST, "/mcp", good.clone(), "[", 400),
        (Method::POST, "/mcp", with("mcp-session-id", "unknown"), ping, 404),
        (Method::POST, "/mcp", good.clone(), &long, 413),
        (Method::POST, "/messages?sessionId=x", good.clone(), ping, 404),
        (Method::POST, "/mcp", good.clone(), r#"{"jsonrpc":"2.0","method":"n"}"#, 202),
        (Method::POST, "/mcp", good.clone(), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, 202),
        (Method::DELETE, "/mcp", good.clone(), "", 204),
    ] {
        let reply = http.send(method, path, body.to_owned(), &headers).whole().await;
        assert_eq!(reply.status, status, "{path} {body:.40}");
    }
    drop(client);
    let entries =
        audited.close_and_read(&["client", "http", "method", "outcome", "code", "status"]).await;
    let expected = [
        "- POST - refused -32600 403",
        "- POST - refused -32600 403",
        "- POST - refused -32600 404",
        "- POST - refused -32600 401",
        "- POST - refused -32600 401",
        "guest PUT - refused -32600 405",
        "guest POST - refused -32600 406",
        "guest POST - refused -32600 415",
        "guest POST - refused -32700 400",
        "guest POST - refused -32600 400",
        "guest - ping refused -32600 404",
        "guest POST - refused 5130 413",
        "guest POST - refused -32600 404",
        "guest DELETE - ok - 204",
    ];
    assert_eq!(entries, expected);
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_ends_its_record_with_its_last_piece() {
    let half = "x".repeat(100_000);
    for is_broken in [false, true] {
        let audited = AuditedGateway::start(MODERN_HTTP, "").await;
        let client = audited.client(MODERN_HTTP).await;
        let mut intercepted = audited.world.upstream("hub").intercept("tools/call");
        let mut exchange = client.start("tools/call", r#"{"name":"hub__a"}"#);
        let call = intercepted.next().await;
        call.piece(&format!(
            r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"resultType":"complete","content":[],"text":"{half}"#
        ));
        exchange.piece().await.expect("a piece");
        if !is_broken {
            call.piece(&format!(r#"{half}"}}}}"#));
        } else {
            audited.world.upstream("hub").restart();
        }
        drop(call);
        while exchange.piece().await.is_some() {}
        drop(exchange);
        drop(client);
        let entries = audited.close_and_read(&["method", "outcome", "bytes_out"]).await;
        let last = entries.last().expect("a line");
        let (end, bytes) = last.rsplit_once(' ').expect("bytes");
        let bytes: usize = bytes.parse().expect("a number");
        match is_broken {
            false => assert!(end == "tools/call ok" && bytes > 200_000, "{last}"),
            true => assert!(end == "tools/call error" && bytes < 110_000, "{last}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hostile_names_stay_one_line_and_within_their_bounds() {
    for side in [MODERN_STDIO, LEGACY_HTTP] {
        let audited = AuditedGateway::start(MODERN_STDIO, "").await;
        let client = audited.client(side).await;
        let long = "n".repeat(3_000);
        for name in [r#"a\r\n{\"seq\":1}"#, r"\u202eevil\u2066", r"\u0000\u001b[2J", &long] {
            client.request("tools/call", &format!(r#"{{"name":"{name}"}}"#)).await.code();
        }
        client.request(&format!("x{long}"), "{}").await.code();
        drop(client);
        let entries = audited.close_and_read(&["name", "method"]).await;
        assert!(entries.iter().all(|line| line.len() < 1_200), "{entries:?}");
        let names: Vec<_> = entries.iter().filter(|line| line.ends_with(" tools/call")).collect();
        assert_eq!(names.len(), 4, "{side}");
        assert_eq!(names[0], r#"a\u000d\u000a{\"seq\":1} tools/call"#);
        assert_eq!(names[1], r"\u202eevil\u2066 tools/call");
        assert_eq!(names[2], r"\u0000\u001b[2J tools/call");
        assert!(names[3].ends_with("… (1976 bytes more) tools/call"));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_of_which_there_is_no_line_where_that_is_a_must() {
    for side in CLIENTS {
        let audited = AuditedGateway::start(MODERN_STDIO, "on_error = \"refuse\"").await;
        let client = audited.client(side).await;
        let hub = audited.world.upstream("hub");
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
        let calls = hub.count("tools/call");
        let (there, gone) = (audited.folder.path().to_owned(), audited.folder.path().join("gone"));
        settle().await;
        std::fs::create_dir(&gone).expect("made");
        std::fs::rename(there.join("audit.jsonl"), gone.join("audit.jsonl")).expect("moved");
        // A folder in the place of the file cannot be written to.
        std::fs::create_dir(there.join("audit.jsonl")).expect("made");
        for _ in 0..3 {
            assert_eq!(client.call_tool("hub__a").await.code(), 5031, "{side}");
        }
        assert_eq!(client.request("tools/list", "{}").await.code(), 5031, "{side}");
        assert_eq!(hub.count("tools/call"), calls, "nothing was called");
        std::fs::remove_dir(there.join("audit.jsonl")).expect("removed");
        pass(Duration::from_secs(1)).await;
        assert!(client.call_tool("hub__a").await.outcome.is_ok(), "{side}");
        assert_eq!(hub.count("tools/call"), calls + 1);
        drop(client);
        let path = audited.path();
        audited.world.close().await;
        let files = [gone.join("audit.jsonl"), path.clone()];
        verify::verify(&files).unwrap_or_else(|trouble| panic!("{trouble}"));
        let entries = lines(&path, &["event", "method", "outcome", "code"]);
        let calls: Vec<_> = entries.iter().filter(|line| line.contains("tools/call")).collect();
        let refused = "request tools/call refused 5031";
        let expected =
            [refused, refused, refused, "admitted tools/call - -", "request tools/call ok -"];
        assert_eq!(calls, expected, "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_put_aside_under_load_is_whole() {
    let audited =
        AuditedGateway::start(MODERN_STDIO, "rotate = { size = \"64KiB\", keep = 100 }").await;
    let client = audited.client(MODERN_HTTP).await;
    let calls = (0..1_000).map(|_| client.call_tool("hub__a"));
    for reply in futures::stream::iter(calls).buffer_unordered(32).collect::<Vec<_>>().await {
        assert!(reply.outcome.is_ok());
    }
    drop(client);
    let path = audited.path();
    audited.world.close().await;
    let files = log_files(&path).concat();
    assert!(files.len() > 3, "{files:?}");
    let report = verify::verify(&files).unwrap_or_else(|trouble| panic!("{trouble}"));
    let entries: Vec<_> =
        files.iter().flat_map(|file| lines(file, &["method", "outcome"])).collect();
    let calls = entries.iter().filter(|line| *line == "tools/call ok").count();
    assert_eq!((report.first, report.lost, calls), (1, 0, 1_000));
}
