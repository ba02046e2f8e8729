//! Details in a line beside its outcome: the refusing rule, the requested item, the findings, the
//! actor.

use std::time::Duration;

use hyper::Method;

use super::AuditedGateway;
use crate::cell::{CLIENTS, LEGACY_HTTP, MODERN_HTTP};
use crate::client::{named, set};
use crate::identity::{now, token, token_until};
use crate::tasks::{BOTH, EXTENSION, begin_tasks, begun};
use crate::upstream::Script;
use crate::world::{World, pass, settle, with_pair};

const ONE_CALL: &str =
    "[[limits]]\nper = \"client\"\nmethod = \"tools/call\"\nrate = \"1/h\"\nburst = 1";

/// Identity provider, whose table further lines complete.
const CORP: &str = r#"
    [server]
    public_url = "http://127.0.0.1:8642"
    [auth.oidc.corp]
    issuer = "https://id.test/a"
    audience = ["http://127.0.0.1:8642/mcp"]
"#;

#[tokio::test(start_paused = true)]
async fn what_a_limit_refuses_names_the_limit_and_what_was_asked_for() {
    for side in CLIENTS {
        let audited = AuditedGateway::start(MODERN_HTTP, ONE_CALL).await;
        let client = audited.client(side).await;
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
        for name in ["hub__a", "hub__b", "hub__c"] {
            assert_eq!(client.call_tool(name).await.code(), 4290);
        }
        client.request("resources/unsubscribe", r#"{"uri":"file:///a"}"#).await.code();
        client.request("tasks/get", r#"{"taskId":"t"}"#).await.code();
        drop(client);
        let members = ["method", "name", "upstream", "item", "decision", "rule", "outcome", "code"];
        let entries = audited.close_and_read(&members).await;
        let entries: Vec<_> = entries.iter().filter(|line| !line.starts_with("- ")).collect();
        let expected = [
            "tools/call hub__a hub a allowed hub/* ok -",
            "tools/call hub__a hub a allowed limits[0] refused 4290",
            "tools/call hub__b - - - limits[0] refused 4290",
            "tools/call hub__c - - - limits[0] refused 4290",
            "resources/unsubscribe file:///a - - - - refused -32601",
            "tasks/get t - - - - refused -32601",
        ];
        assert_eq!(entries, expected, "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_floods_is_named_though_nothing_is_read() {
    let audited = AuditedGateway::start(MODERN_HTTP, ONE_CALL).await;
    let client = audited.client(MODERN_HTTP).await;
    for _ in 0..101 {
        let _ = client.call_tool("hub__a").await;
    }
    let http = client.http();
    let unread = http.post("{", &http.headers("tools/call", &named("hub__a"))).whole().await;
    assert_eq!(unread.status, 429);
    drop(client);
    let entries =
        audited.close_and_read(&["client", "role", "http", "outcome", "code", "status"]).await;
    let last = entries.last().map(String::as_str);
    assert_eq!(last, Some("guest guest POST refused 4290 429"));
}

#[tokio::test(start_paused = true)]
async fn what_the_guard_finds_is_told_and_what_it_refuses_is_refused() {
    let says = r#""messages":[{"role":"user","content":{"type":"text","text":"a\u001b[0m"}}]"#;
    for (setting, expected) in [
        ("flag", "prompts/get a hub/* 1 ok -"),
        ("strip", "prompts/get a hub/* 1 ok -"),
        ("pass", "prompts/get a hub/* - ok -"),
        ("refuse", "prompts/get a guard - refused -32603"),
    ] {
        for side in CLIENTS {
            let guard = format!("[guard]\nhidden_text = \"{setting}\"\nmax_argument = 8\n");
            let audited = AuditedGateway::start(MODERN_HTTP, &guard).await;
            let client = audited.client(side).await;
            let result = format!(r#"{{"resultType":"complete",{says}}}"#);
            audited.world.upstream("hub").result("prompts/get", &result);
            let _ = client.get_prompt("hub__a").await;
            let long = r#"{"name":"hub__a","arguments":{"x":"123456789"}}"#;
            assert_eq!(client.request("prompts/get", long).await.code(), -32602);
            drop(client);
            let entries = audited
                .close_and_read(&["method", "item", "rule", "flags", "outcome", "code"])
                .await;
            let entries: Vec<_> =
                entries.iter().filter(|line| line.starts_with("prompts/")).collect();
            let bad = "prompts/get a guard - refused -32602";
            assert_eq!(entries, [expected, bad], "{side}, {setting}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_guard_finds_in_a_large_prompt_is_told_when_that_has_passed() {
    let half = "x".repeat(100_000);
    let audited = AuditedGateway::start(MODERN_HTTP, "").await;
    let client = audited.client(MODERN_HTTP).await;
    let mut intercepted = audited.world.upstream("hub").intercept("prompts/get");
    let mut exchange = client.start("prompts/get", r#"{"name":"hub__a"}"#);
    let call = intercepted.next().await;
    call.piece(&format!(
        r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"resultType":"complete","messages":[{{"role":"user","content":{{"type":"text","text":"{half}"#
    ));
    // The first piece arrives before the rest is sent.
    let mut arrived = exchange.piece().await.expect("a piece").len();
    call.piece(&format!(r#"\u001b{half}"}}}}]}}}}"#));
    drop(call);
    while let Some(piece) = exchange.piece().await {
        arrived += piece.len();
    }
    assert!(arrived > 200_000, "{arrived}");
    drop(exchange);
    drop(client);
    let entries = audited.close_and_read(&["method", "flags", "outcome"]).await;
    assert_eq!(entries.last().map(String::as_str), Some("prompts/get 1 ok"));
}

#[tokio::test(start_paused = true)]
async fn a_token_tells_its_application_and_what_everybody_may_read_has_no_line() {
    let corp = format!("{CORP}roles = {{ devs = \"guest\" }}");
    let audited = AuditedGateway::start(MODERN_HTTP, &corp).await;
    let shown = token("ann", r#""roles":["devs"],"client_id":"editor""#);
    let client = audited.world.client_with(MODERN_HTTP, &shown, "guest").await;
    client.prompts().await;
    let http = client.http();
    let path = "/.well-known/oauth-protected-resource";
    for method in [Method::GET, Method::HEAD, Method::POST] {
        http.send(method, path, "", &http.plain_headers()).whole().await;
    }
    let mut evil = http.plain_headers();
    set(&mut evil, "origin", "https://evil.test");
    http.send(Method::GET, path, "", &evil).whole().await;
    drop(client);
    let entries = audited
        .close_and_read(&["client", "role", "application", "http", "method", "status"])
        .await;
    assert_eq!(entries, ["corp/ann guest corp/editor - prompts/list 200", "- - - GET - 403"]);
}

#[tokio::test(start_paused = true)]
async fn a_line_about_a_refused_client_has_the_reason_and_the_unverified_user_of_its_token() {
    let corp = format!("{CORP}blocked = [\"eve\"]\ndefault_role = \"guest\"");
    let audited = AuditedGateway::start(MODERN_HTTP, &corp).await;
    pass(Duration::from_secs(5)).await;
    let good = token("ann", "");
    let forged = good.replace('.', "x.");
    let (head, rest) = good.split_once('.').expect("three parts");
    let (_, signature) = rest.split_once('.').expect("three parts");
    let encode = |claims: &str| {
        use base64::Engine;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims)
    };
    let other = encode(r#"{"iss":"https://evil.test","sub":"mal\nlory","exp":1}"#);
    let changed = encode(r#"{"iss":"https://id.test/a","sub":"mallory","exp":1}"#);
    let expected = [
        ("wrong-key".to_owned(), "unknown_key -"),
        (token_until("ann", "", now() - 61), "exp ann"),
        (token("bob", r#""nbf":99999999999"#), "nbf bob"),
        (token("eve", ""), "blocked eve"),
        (token("dan", r#""cnf":{}"#), "cnf dan"),
        (forged, "form -"),
        (format!("{head}.{changed}.{signature}"), "signature mallory"),
        // A control character makes it no name.
        (format!("{head}.{other}.{signature}"), "iss -"),
        ("a.b.c".to_owned(), "form -"),
    ];
    for (shown, _) in &expected {
        let client = audited.world.uninitialized_client(MODERN_HTTP, None);
        let mut headers = client.http().headers("prompts/list", "{}");
        set(&mut headers, "authorization", &format!("Bearer {shown}"));
        assert_eq!(client.http().post("{}", &headers).whole().await.status, 401, "{shown}");
    }
    let client = audited.world.uninitialized_client(MODERN_HTTP, None);
    let mut headers = client.http().headers("prompts/list", "{}");
    assert_eq!(client.http().post("{}", &headers).whole().await.status, 401);
    set(&mut headers, "authorization", "Basic YTpi");
    assert_eq!(client.http().post("{}", &headers).whole().await.status, 401);
    drop(client);
    let entries = audited.close_and_read(&["reason", "unverified_user"]).await;
    let expected = expected.iter().map(|(_, expected)| *expected);
    let more = ["no_credentials -", "authorization_header -"];
    assert_eq!(entries, expected.chain(more).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_a_listen_asks_of_upstreams_has_lines_with_an_end() {
    for side in CLIENTS.into_iter().filter(|side| side.is_modern()) {
        for (on_error, is_must) in [("refuse", true), ("continue", false)] {
            let folder = tempfile::tempdir().expect("a folder");
            let config = format!(
                "{}[audit]\nenabled = true\non_error = \"{on_error}\"\n[state]\ndir = \"{}\"\n",
                super::ROLES,
                folder.path().display()
            );
            let script = Script::full(MODERN_HTTP).subscribable();
            let tasks = Script::full(MODERN_HTTP).capabilities(BOTH);
            let scripts = vec![("other", script), ("hub", tasks)];
            let world = World::start_recorded(scripts, &with_pair(&config)).await;
            let audited = AuditedGateway { world, folder };
            let client = audited.world.client_as_declaring("guest", side, EXTENSION).await;
            begin_tasks(&audited.world, "hub", "own");
            let handle = begun(&client, "hub__a").await;
            let (changes, honored) = client.follow_tasks(&[&handle, "x"]).await;
            assert_eq!(honored, [&*handle]);
            changes.cancel().await;
            let (changes, honored) = client.follow(&["file:///a"]).await;
            assert_eq!(honored, ["file:///a"]);
            changes.cancel().await;
            settle().await;
            drop(client);
            let entries = audited.close_and_read(&["event", "method", "name", "outcome"]).await;
            let entries: Vec<_> = entries
                .iter()
                .filter_map(|line| line.split_once(" subscriptions/listen "))
                .collect();
            let mut expected = vec![("begun", "- -"), ("request", "x refused")];
            let own = [("admitted", "hub__a -"), ("request", "hub__a ok")];
            expected.extend(own.iter().filter(|_| is_must));
            expected.extend([("request", "- ok"), ("begun", "- -")]);
            let own = [("admitted", "file:///a -"), ("request", "file:///a ok")];
            expected.extend(own.iter().filter(|_| is_must));
            expected.push(("request", "- ok"));
            let (mut entries, transport) = (entries, side.transport);
            entries.sort_unstable();
            expected.sort_unstable();
            assert_eq!(entries, expected, "{transport:?}, {on_error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_must_be_recorded_and_cannot_be_is_refused() {
    let audited = AuditedGateway::start(MODERN_HTTP, "on_error = \"refuse\"").await;
    let client = audited.client(LEGACY_HTTP).await;
    let there = audited.folder.path().to_owned();
    settle().await;
    std::fs::rename(there.join("audit.jsonl"), there.join("gone")).expect("moved");
    std::fs::create_dir(there.join("audit.jsonl")).expect("made");
    assert_eq!(client.call_tool("hub__a").await.code(), 5031);
    let http = client.http();
    let mut headers = http.headers("", "{}");
    set(&mut headers, "accept", "text/event-stream");
    let reply = http.send(Method::GET, "/mcp", "", &headers).whole().await;
    assert_eq!(reply.code(), 5031);
    std::fs::remove_dir(there.join("audit.jsonl")).expect("removed");
    drop(client);
    audited.world.close().await;
}
