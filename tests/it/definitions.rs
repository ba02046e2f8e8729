//! Definitions of items: the bytes that pass, the forms for older clients, and the tool arguments
//! that are repeated in headers.

use hyper::HeaderMap;
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::revision::Revision;

use crate::cell::{
    LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, SIDES, Side, Transport, UPSTREAMS,
};
use crate::client::{Client, HttpReply, named, object, set, string};
use crate::upstream::Script;
use crate::world::{World, everywhere};

/// Members that the newest revision and many before it allow in every definition.
const ODD: &str = r#""title":"\u0041\/é","description":"d","icons":[{"src":"https://example.org/i.png","mimeType":"image/png","sizes":["48x48","any"],"theme":"dark"}],"_meta":{"example.org/x":{"n":1e300,"f":1.0}},"novel":[ 1 ,{}]"#;

#[tokio::test(start_paused = true)]
async fn every_member_of_a_definition_passes_byte_for_byte() {
    let tool = format!(
        r#"{{"name":"a","inputSchema":{{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{{"p":{{"$ref":"https://example.org/p.json"}}}},"required":["p"]}},"outputSchema":{{"type":"object","properties":{{"q":{{"type":"integer"}}}}}},"annotations":{{"readOnlyHint":true,"x":1.0}},{ODD}}}"#
    );
    let prompt = format!(
        r#"{{"name":"a","arguments":[{{"name":"p","title":"t","required":true,"x":1.0}}],{ODD}}}"#
    );
    let notifications = r#""annotations":{"audience":["user"],"priority":0.50,"lastModified":"2025-01-12T15:00:58Z","x":1.0},"mimeType":"text/plain""#;
    let resource = format!(
        r#"{{"uri":"file:///a","name":"a",{notifications},"size":9007199254740993,{ODD}}}"#
    );
    let template = format!(r#"{{"uriTemplate":"a:///{{path}}","name":"a",{notifications},{ODD}}}"#);
    let definitions = [prompt, tool, resource, template];
    let script = |side| {
        let script = Kind::ALL.into_iter().zip(&definitions);
        let script = script.fold(Script::new(side), |script, (kind, text)| script.raw(kind, text));
        vec![("hub", script)]
    };
    everywhere("", script, async |world, cell| {
        let client = world.client(cell.client).await;
        for (kind, text) in Kind::ALL.into_iter().zip(&definitions) {
            let page = client.page(kind, None).await;
            let public = text.replacen(r#""name":"a""#, r#""name":"hub__a""#, 1);
            let expected = if kind.has_name() { &public } else { text };
            assert_eq!(page.get(kind.list_member()), Some(&*format!("[{expected}]")));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_member_of_a_call_and_its_result_passes_byte_for_byte() {
    let notifications = r#""annotations":{"audience":["assistant"],"priority":1,"lastModified":"2025-01-12T15:00:58Z"},"_meta":{"example.org/y":1e400}"#;
    let text = format!(r#"{{"type":"text","text":"\u0041\/é",{notifications}}}"#);
    let image =
        format!(r#"{{"type":"image","data":"AA==","mimeType":"image/png",{notifications}}}"#);
    let audio =
        format!(r#"{{"type":"audio","data":"AA==","mimeType":"audio/wav",{notifications}}}"#);
    let link = format!(
        r#"{{"type":"resource_link","uri":"file:///b","name":"b","size":1.0,{ODD},"annotations":{{}}}}"#
    );
    let embedded = format!(
        r#"{{"type":"resource","resource":{{"uri":"file:///b","blob":"AA==","_meta":{{"n":1.0}}}},{notifications}}}"#
    );
    let blocks = [text.as_str(), &image, &audio, &link, &embedded].join(",");
    let cases = [
        (
            "tools/call",
            r#""name":"hub__a","arguments":{"b":1.0,"s":"\u0041\/","deep":[{"x":1e400}]}"#,
            format!(
                r#""content":[{blocks}],"structuredContent":{{ "list":[1.0,1e400],"null":null}},"isError":false,"novel":[]"#
            ),
        ),
        (
            "prompts/get",
            r#""name":"hub__a","arguments":{"p":"\u0041"}"#,
            format!(r#""description":"d","messages":[{{"role":"user","content":{embedded}}}],"novel":1.0"#),
        ),
        (
            "resources/read",
            r#""uri":"file:///a""#,
            r#""contents":[{"uri":"file:///a","mimeType":"text/plain","text":"\u0041","_meta":{"n":1.0}}],"novel":1.0"#
                .to_owned(),
        ),
        (
            "completion/complete",
            r#""ref":{"type":"ref/prompt","title":"\u0041","name":"hub__a"},"argument":{"name":"x","value":"\u0041"},"context":{"arguments":{"y":"\u0042","z":"é"}}"#,
            r#""completion":{"values":["\u0041"],"total":1.0,"hasMore":false},"novel":1e400"#.to_owned(),
        ),
        (
            "completion/complete",
            r#""ref":{"type":"ref/resource","uri":"a:///{path}"},"argument":{"name":"path","value":""},"context":{ "arguments":{"y":"1"} }"#,
            r#""completion":{"values":[]}"#.to_owned(),
        ),
    ];
    let hub = |side| vec![("hub", Script::full(side))];
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for (method, params, result) in &cases {
            let meta = r#""_meta":{"example.org/x":[1e400],"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;
            let envelope = match (cell.upstream.is_modern(), *method) {
                (false, _) => "",
                (true, "resources/read") => {
                    r#","resultType":"complete","ttlMs":5,"cacheScope":"public""#
                }
                (true, _) => r#","resultType":"complete""#,
            };
            // This upstream must not send blocks that its revision does not have yet.
            let result = match cell.upstream.revision >= Revision::V2025_06_18 {
                true => result.clone(),
                false => result.replace(&format!("{audio},{link},"), ""),
            };
            world.upstream("hub").result(method, &format!("{{{result}{envelope}}}"));
            let reply = client.request(method, &format!("{{{params},{meta}}}")).await;
            let found = reply.result();
            assert!(found.starts_with(&format!("{{{result}")), "{method}: {found}");
            let seen = string(world.upstream("hub").last(method).params);
            let own = params.replacen("hub__a", "a", 1);
            assert!(seen.contains(&own), "{method}: {seen}");
            let seen = object(&seen).get_object("_meta").expect("_meta");
            assert_eq!(seen.get("example.org/x"), Some("[1e400]"), "{method}");
        }
    })
    .await;
}

// === Older clients ===

#[tokio::test(start_paused = true)]
async fn a_legacy_client_gets_definitions_that_it_can_take() {
    let newest = [
        r#"{"name":"array","inputSchema":{"type":"object"},"outputSchema":{"type":"array","items":{}},"x":1e300}"#,
        r#"{"name":"flags","inputSchema":{"type":"object","properties":{"a":true,"b":false}}}"#,
        r#"{"name":"plain","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}"#,
    ];
    let older = [
        r#"{"name":"array","inputSchema":{"type":"object"},"x":1e300}"#,
        r#"{"name":"flags","inputSchema":{"type":"object","properties":{"a":{},"b":{"not":{}}}}}"#,
        newest[2],
    ];
    let script = |side| {
        let script = newest.iter();
        let script = script.fold(Script::new(side), |script, text| script.raw(Kind::Tool, text));
        vec![("hub", script)]
    };
    everywhere("", script, async |world, cell| {
        let client = world.client(cell.client).await;
        let expected = if cell.client.is_modern() { newest } else { older };
        let expected = expected.join(",").replace(r#"{"name":""#, r#"{"name":"hub__"#);
        let page = client.page(Kind::Tool, None).await;
        assert_eq!(page.get("tools"), Some(&*format!("[{expected}]")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_client_gets_structured_content_that_is_no_object_as_text() {
    let sent = r#""content":[{"type":"text","text":"2 found"}],"structuredContent":[ 1.0 ,"\u0041"],"x":1e400"#;
    let older = r#""content":[{"type":"text","text":"2 found"},{"type":"text","text":"[ 1.0 ,\"\\u0041\"]"}],"x":1e400"#;
    for upstream in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(vec![("hub", Script::full(upstream))], "").await;
        let result = format!(r#"{{"resultType":"complete",{sent}}}"#);
        world.upstream("hub").result("tools/call", &result);
        for side in SIDES {
            let client = world.client(side).await;
            let reply = client.call_tool("hub__a").await;
            let expected = if side.is_modern() { sent } else { older };
            assert!(reply.result().contains(expected), "{side}: {reply:?}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_needs_a_task_is_there_for_whom_can_begin_one() {
    let tool = |name: &str, support: &str| {
        format!(
            r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"execution":{{"taskSupport":"{support}"}}}}"#
        )
    };
    let all = [("a", "required"), ("b", "optional"), ("c", "forbidden")];
    let listed = all.map(|(name, support)| tool(&format!("hub__{name}"), support));
    let older = Side::new(Revision::V2025_06_18, Transport::Http);
    for upstream in [LEGACY_HTTP, LEGACY_STDIO] {
        // The tools of an upstream without the tasks capability have no tasks, whatever they
        // declare.
        for (declared, needs_task) in [
            (r#"{"tools":{},"tasks":{"requests":{"tools":{"call":{}}}}}"#, true),
            (r#"{"tools":{}}"#, false),
        ] {
            let script = all
                .iter()
                .fold(Script::new(upstream).capabilities(declared), |script, (name, support)| {
                    script.raw(Kind::Tool, &tool(name, support))
                });
            let world = World::start(vec![("hub", script)], "").await;
            for side in SIDES.into_iter().chain([older]) {
                let client = world.client(side).await;
                let is_hidden = needs_task && side.revision != Revision::V2025_11_25;
                let page = client.page(Kind::Tool, None).await;
                let expected = if is_hidden { &listed[1..] } else { &listed[..] }.join(",");
                assert_eq!(
                    page.get("tools"),
                    Some(&*format!("[{expected}]")),
                    "{side}: {declared}"
                );
                let before = world.requests();
                let reply = client.call_tool("hub__a").await;
                if is_hidden {
                    // The reply is the same as for an unknown tool.
                    let unknown = client.call_tool("hub__x").await;
                    assert_eq!(reply.error(), unknown.error().replace("hub__x", "hub__a"));
                    assert_eq!(world.requests(), before, "{side}");
                } else {
                    reply.result();
                }
                for name in ["hub__b", "hub__c"] {
                    client.call_tool(name).await.result();
                }
            }
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_tools_that_a_client_cannot_use_is_not_told_to_it() {
    let declared = r#"{"tools":{"listChanged":true},"tasks":{"requests":{"tools":{"call":{}}}}}"#;
    let script = Script::new(LEGACY_HTTP).items(Kind::Tool, &["a"]).capabilities(declared);
    let world = World::start(vec![("hub", script)], "").await;
    let (modern, legacy) = (world.client(MODERN_HTTP).await, world.client(LEGACY_HTTP).await);
    let (mut blind, mut seeing) = (modern.listen().await, legacy.listen().await);
    let tool =
        r#"{"name":"t","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}"#;
    world.upstream("hub").change(Kind::Tool, |list| list.push(tool.into())).await;
    assert_eq!(seeing.next_change().await, ListTopic::Tools);
    blind.stays_silent().await;
    world.upstream("hub").add(Kind::Tool, "z").await;
    assert_eq!(seeing.next_change().await, ListTopic::Tools);
    assert_eq!(blind.next_change().await, ListTopic::Tools);
    drop((blind, seeing));
    drop((modern, legacy));
    world.close().await;
}

// === Arguments in headers ===

/// A tool that asks for three of its arguments to be repeated in headers.
const MARKED: &str = r#"{"name":"t","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"flag":{"type":"boolean","x-mcp-header":"Flag"}}}}"#;

fn marked(side: Side) -> Script {
    Script::full(side).raw(Kind::Tool, MARKED)
}

/// Calls a tool over HTTP with these headers beside the usual ones.
async fn call(client: &Client, params: &str, extra: &[(&'static str, &str)]) -> HttpReply {
    let http = client.http();
    let params = client.with_request_meta(params);
    let mut headers = http.headers("tools/call", &params);
    for (name, value) in extra {
        set(&mut headers, name, value);
    }
    let message = weir_mcp::jsonrpc::write_request(&7.into(), "tools/call", params.as_bytes());
    http.post(message, &headers).whole().await
}

/// The headers that repeat arguments, sorted.
fn repeated(headers: &HeaderMap) -> Vec<String> {
    let repeated = headers.iter().filter(|(name, _)| name.as_str().starts_with("mcp-param-"));
    let text = |value: &hyper::header::HeaderValue| value.to_str().expect("text").to_owned();
    let mut repeated: Vec<_> =
        repeated.map(|(name, value)| format!("{name}: {}", text(value))).collect();
    repeated.sort();
    repeated
}

#[tokio::test(start_paused = true)]
async fn a_modern_clients_headers_have_to_repeat_its_arguments() {
    let body = r#"{"name":"hub__t","arguments":{"region":"Zürich","deep":{"n":42},"flag":null}}"#;
    let good = [("mcp-param-region", "=?base64?WsO8cmljaA==?="), ("mcp-param-n", "42.0")];
    for upstream in UPSTREAMS {
        let world = World::start(vec![("hub", marked(upstream))], "").await;
        let client = world.client(MODERN_HTTP).await;
        for (extra, is_good) in [
            (&good[..], true),
            (&good[..1], false),
            (&good[1..], false),
            (&[good[0], ("mcp-param-n", "43")][..], false),
            (&[good[0], good[1], ("mcp-param-flag", "null")][..], false),
            (&[("mcp-param-region", "=?base64?WsO8cmljaA=?="), good[1]][..], false),
        ] {
            let before = world.upstream("hub").count("tools/call");
            let reply = call(&client, body, extra).await;
            let reached = world.upstream("hub").count("tools/call") - before;
            if is_good {
                assert_eq!((reply.status, reached), (200, 1), "{upstream}: {reply:?}");
            } else {
                assert_eq!((reply.status, reached), (400, 0), "{upstream}: {reply:?}");
                let error = object(&reply.body).get_object("error").expect("an error");
                assert_eq!(error.get("code"), Some("-32020"), "{upstream}");
            }
        }
        // A tool without annotations, or an unknown item, needs no such header.
        assert_eq!(call(&client, &named("hub__a"), &[]).await.status, 200, "{upstream}");
        let unknown = call(&client, &named("hub__x"), &good).await;
        let unknown = object(&unknown.body).get_object("error").expect("an error");
        assert_eq!(unknown.get("code"), Some("-32602"), "{upstream}");
        drop(client);
        // Other transports and eras have no such headers.
        for side in [MODERN_STDIO, LEGACY_HTTP, LEGACY_STDIO] {
            let client = world.client(side).await;
            assert!(client.request("tools/call", body).await.outcome.is_ok(), "{side}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_http_server_gets_its_own_headers_and_those_that_mean_nothing_here() {
    let body = r#"{"name":"hub__t","arguments":{"region":"b\u0061r","deep":{"n":4.2e1}}}"#;
    let sent = [
        ("mcp-param-region", "bar"),
        ("mcp-param-n", "42"),
        ("mcp-param-other", "=?base64?not ours?="),
        ("x-other", "secret"),
    ];
    let world = World::start(vec![("hub", marked(MODERN_HTTP))], "").await;
    let client = world.client(MODERN_HTTP).await;
    assert_eq!(call(&client, body, &sent).await.status, 200);
    let seen = world.upstream("hub").last("tools/call").headers;
    let expected =
        ["mcp-param-n: 42", "mcp-param-other: =?base64?not ours?=", "mcp-param-region: bar"];
    assert_eq!(repeated(&seen), expected);
    assert!(!seen.contains_key("x-other"));
    drop(client);
    // The server gets its headers even if the client's transport or era has none.
    for side in [MODERN_STDIO, LEGACY_HTTP, LEGACY_STDIO] {
        let client = world.client(side).await;
        assert!(client.request("tools/call", body).await.outcome.is_ok());
        let seen = world.upstream("hub").last("tools/call").headers;
        assert_eq!(repeated(&seen), [expected[0], expected[2]], "{side}");
    }
    world.close().await;

    let world = World::start(vec![("hub", marked(LEGACY_HTTP))], "").await;
    let client = world.client(MODERN_HTTP).await;
    assert_eq!(call(&client, body, &sent).await.status, 200);
    let seen = world.upstream("hub").last("tools/call").headers;
    assert_eq!(repeated(&seen), Vec::<String>::new(), "the older era has no such headers");
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_tool_with_bad_marks_is_left_out_where_headers_are_spoken() {
    let bad = r#"{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A B"}}}}"#;
    for upstream in UPSTREAMS {
        let script = Script::new(upstream).raw(Kind::Tool, bad).items(Kind::Tool, &["a"]);
        let world = World::start(vec![("hub", script)], "").await;
        for side in SIDES {
            let client = world.client(side).await;
            let expected: &[&str] = match upstream {
                MODERN_HTTP => &["hub__a"],
                // Spec 2026-07-28, Streamable HTTP, schema extension: other transports may ignore
                // the annotations.
                _ => &["hub__a", "hub__bad"],
            };
            assert_eq!(client.list_all(Kind::Tool).await, expected, "{side} of {upstream}");
            let is_there = client.call_tool("hub__bad").await.outcome.is_ok();
            assert_eq!(is_there, expected.len() == 2, "{side} of {upstream}");
        }
        world.close().await;
    }
}
