//! Forwarding of calls: to the owner under its own name, and the response comes back unchanged.

use weir_base::json::Object;
use weir_mcp::kind::Kind;
use weir_mcp::meta;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, Transport};
use crate::client::{named, object, set, string};
use crate::upstream::{Answer, Script};
use crate::world::{World, everywhere, hub, key_of, settle};

/// Each method with parameters for the item `a` of the upstream `hub`, and that upstream's own
/// form.
const METHODS: [(&str, &str, &str); 5] = [
    ("prompts/get", r#"{"name":"hub__a"}"#, r#""name":"a""#),
    ("tools/call", r#"{"name":"hub__a","arguments":{}}"#, r#""name":"a""#),
    ("resources/read", r#"{"uri":"file:///a"}"#, r#""uri":"file:///a""#),
    (
        "completion/complete",
        r#"{"ref":{"type":"ref/prompt","name":"hub__a"},"argument":{"name":"x","value":""}}"#,
        r#""ref":{"type":"ref/prompt","name":"a"}"#,
    ),
    (
        "completion/complete",
        r#"{"ref":{"type":"ref/resource","uri":"a:///{path}"},"argument":{"name":"path","value":""}}"#,
        r#""ref":{"type":"ref/resource","uri":"a:///{path}"}"#,
    ),
];

/// A result without the members of its revision's envelope.
fn payload(result: &str) -> String {
    let mut result = object(result);
    for member in ["resultType", "ttlMs", "cacheScope"] {
        result.take(member);
    }
    if let Some(mut inner) = result.get_object("_meta") {
        inner.take(meta::SERVER_INFO);
        if inner.is_empty() {
            result.take("_meta");
        } else {
            result.set("_meta", inner.to_bytes());
        }
    }
    string(result.to_bytes())
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_to_its_owner_under_the_owners_own_name() {
    let scripts = |side| {
        let other = Script::new(side).prompts(&["a"]).items(Kind::Tool, &["a"]);
        vec![("hub", Script::full(side)), ("zoo", other)]
    };
    everywhere("", scripts, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = world.upstream("zoo").requests();
        for (method, params, own) in METHODS {
            let reply = client.request(method, params).await;
            assert!(reply.outcome.is_ok(), "{method}: {reply:?}");
            let seen = string(world.upstream("hub").last(method).params);
            assert!(seen.contains(own), "{method}: {seen}");
        }
        assert_eq!(world.upstream("zoo").requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_filled_in_before_goes_along_with_a_completion() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let argument = r#""argument":{"name":"path","value":"\u0061"}"#;
        let context = r#""context":{"arguments":{ "owner":"o", "n":"1.0"}}"#;
        for (item, own) in [
            (r#""type":"ref/prompt","name":"hub__a""#, r#""type":"ref/prompt","name":"a""#),
            (
                r#""type":"ref/resource","uri":"a:///{path}""#,
                r#""type":"ref/resource","uri":"a:///{path}""#,
            ),
        ] {
            let params = format!(r#"{{"ref":{{{item}}},{argument},{context}}}"#);
            let values = r#"{"resultType":"complete","completion":{"values":["b"],"total":1.0}}"#;
            world.upstream("hub").result("completion/complete", values);
            let reply = client.request("completion/complete", &params).await;
            assert!(
                reply.result().contains(r#""completion":{"values":["b"],"total":1.0}"#),
                "{reply:?}"
            );
            let seen = string(world.upstream("hub").last("completion/complete").params);
            assert!(seen.contains(&format!(r#""ref":{{{own}}},{argument},{context}"#)), "{seen}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn parameters_pass_byte_for_byte() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let odd = r#""arguments":{"b":1.0,"a":1e400,"s":"\u0041\/"},"odd":[ 1 ,2]"#;
        let meta = r#""_meta":{"example.org/x":{"z":1,"y":[1e400]}}"#;
        client.request("tools/call", &format!(r#"{{"name":"hub__a",{odd},{meta}}}"#)).await;
        let seen = world.upstream("hub").last("tools/call").params;
        assert!(string(seen.clone()).contains(odd), "{seen:?}");
        let meta = object(&string(seen)).get_object("_meta").expect("_meta");
        assert_eq!(meta.get("example.org/x"), Some(r#"{"z":1,"y":[1e400]}"#));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_result_comes_back_byte_for_byte() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for (method, params, _) in METHODS {
            let odd = r#""z":1e400,"y":1.0,"a":"\u0041\/é","content":[{"type":"new","x":[]}],"completion":{"values":["\u0041"],"new":1.0}"#;
            world.excuse(odd);
            let result = match (cell.upstream.is_modern(), method) {
                (true, "resources/read") => {
                    format!(r#"{{"resultType":"complete",{odd},"ttlMs":5,"cacheScope":"private"}}"#)
                }
                (true, _) => format!(r#"{{"resultType":"complete",{odd}}}"#),
                (false, _) => format!("{{{odd}}}"),
            };
            world.upstream("hub").result(method, &result);
            let reply = client.request(method, params).await;
            assert_eq!(payload(reply.result()), format!("{{{odd}}}"), "{method}");
            if cell.client.is_modern() {
                assert_eq!(object(reply.result()).get("resultType"), Some("\"complete\""));
            } else if !cell.upstream.is_modern() {
                assert_eq!(reply.result(), result, "{method}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_upstreams_error_comes_back_as_it_is() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let error = r#"{"code":-32000,"message":"no \u0041","data":{"x":1e400}, "odd":1.0}"#;
        for (method, params, _) in METHODS {
            world.upstream("hub").answer(method, Answer::Error(error.into()));
            let reply = client.request(method, params).await;
            assert_eq!(reply.error(), error, "{method}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_its_own_id_back() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for id in ["0", "-7", r#""x""#, r#""7""#, "123456789012345678901234567890", r#""\u0041""#] {
            let id = weir_mcp::jsonrpc::Id::parse(id.into()).expect("an id");
            let reply = client.start_as(id.clone(), "prompts/get", &named("hub__a")).reply().await;
            assert_eq!(reply.id, id.to_string());
            assert!(reply.outcome.is_ok());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_calls_at_once_get_their_own_answers_in_any_order() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchanges: Vec<_> = (0..20)
            .map(|n| {
                let params = format!(r#"{{"name":"hub__a","arguments":{{"n":{n}}}}}"#);
                client.start("tools/call", &params)
            })
            .collect();
        let mut calls = Vec::new();
        for _ in 0..20 {
            calls.push(intercepted.next().await);
        }
        for call in calls.into_iter().rev() {
            let arguments = string(call.params.get_bytes("arguments").expect("arguments"));
            call.result(&format!(r#"{{"content":[],"echo":{arguments}}}"#));
        }
        for (n, exchange) in exchanges.into_iter().enumerate() {
            let reply = exchange.reply().await;
            let echo = object(reply.result()).get("echo").map(str::to_owned);
            assert_eq!(echo, Some(format!(r#"{{"n":{n}}}"#)));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_large_reply_is_forwarded_while_it_arrives() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(hub(side), "").await;
        let client = world.client(side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let mut exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        let half = "x".repeat(512 * 1024);
        call.piece(&format!(
            r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"resultType":"complete","content":[],"text":"{half}"#
        ));
        let mut body = Vec::new();
        while body.len() < half.len() / 2 {
            body.extend_from_slice(&exchange.piece().await.expect("the first half"));
        }
        call.piece(&format!(r#"{half}"}}}}"#));
        drop(call);
        while let Some(piece) = exchange.piece().await {
            body.extend_from_slice(&piece);
        }
        let text = String::from_utf8(body).expect("UTF-8");
        // The message follows `data:` if Weir has chosen an event stream.
        let message = &text[text.find('{').expect("an object")..=text.rfind('}').expect("its end")];
        let result = object(message).get_object("result").expect("a result");
        let forwarded = result.get("text").expect("the text");
        assert_eq!(forwarded.len(), 2 * half.len() + 2, "{side}");
        drop(exchange);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_breaks_off_is_an_error_or_a_broken_connection_but_no_result() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        for length in [10, 1 << 20] {
            let world = World::start(hub(side), "").await;
            let client = world.client(side).await;
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let mut exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            let text = "x".repeat(length);
            call.piece(&format!(
                r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"content":[],"text":"{text}"#
            ));
            world.upstream("hub").restart();
            drop(call);
            let mut body = Vec::new();
            while let Some(piece) = exchange.piece().await {
                body.extend_from_slice(&piece);
            }
            let text = String::from_utf8(body).expect("UTF-8");
            let message = text
                .find('{')
                .and_then(|start| Object::parse(text[start..].trim().to_owned()).ok());
            assert!(message.is_none_or(|message| message.has("error")), "{side} {length}");
            drop(exchange);
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_gets_its_own_headers_and_none_of_the_clients() {
    let config = r#"
        [upstreams.hub]
        headers = { X-Api-Key = "for the hub" }
        [roles.staff]
        tools.allow = ["*"]
    "#;
    for upstream in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(hub(upstream), config).await;
        for side in [MODERN_HTTP, LEGACY_HTTP] {
            let client = world.client_as("staff", side).await;
            let http = client.http();
            let params = client.with_request_meta(&named("hub__a"));
            let mut headers = http.headers("tools/call", &params);
            set(&mut headers, "cookie", "secret=1");
            set(&mut headers, "x-forwarded-for", "10.0.0.1");
            let message =
                weir_mcp::jsonrpc::write_request(&7.into(), "tools/call", params.as_bytes());
            assert_eq!(http.post(message, &headers).whole().await.status, 200);
            let seen = world.upstream("hub").last("tools/call").headers;
            assert_eq!(seen.get("x-api-key").expect("its own header"), "for the hub");
            assert_eq!(seen.get("host").expect("its own host"), "hub.test");
            for name in ["authorization", "cookie", "x-forwarded-for"] {
                assert!(!seen.contains_key(name), "{name} from {side} to {upstream}");
            }
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s16_n83_a_clients_key_reaches_no_upstream_over_any_wire() {
    let config = r#"
        [roles.staff]
        prompts.allow = ["*"]
        tools.allow = ["*"]
        resources.allow = ["*"]
    "#;
    everywhere(config, hub, async |world, cell| {
        let client = world.client_as("staff", cell.client).await;
        let changes = client.listen().await;
        for (method, params, _) in METHODS {
            client.request(method, params).await.result();
        }
        // One request is cancelled, and a list is requested again.
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__b"));
        let call = intercepted.next().await;
        exchange.cancel().await;
        call.cancelled().await;
        world.upstream("hub").add(Kind::Prompt, "c").await;
        settle().await;
        changes.cancel().await;

        let (key, upstream) = (key_of("staff"), world.upstream("hub"));
        let request_headers = upstream.request_headers();
        assert_eq!(
            request_headers.is_empty(),
            cell.upstream.transport == Transport::Stdio,
            "{cell}"
        );
        for headers in request_headers {
            assert!(!headers.contains_key("authorization"), "{cell}: {headers:?}");
            assert!(!format!("{headers:?}").contains(&key), "{cell}: {headers:?}");
        }
        let parameters = upstream.parameters();
        assert!(parameters.len() > METHODS.len(), "{cell}");
        for params in parameters {
            let params = string(params);
            assert!(!params.contains(&key), "{cell}: {params}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_trace_context_reaches_an_upstream_only_if_it_is_well_formed() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let good = format!(r#""traceparent":"{PARENT}","tracestate":"a=1,b@c=2","baggage":"k=v;p""#);
    let long = "x".repeat(9_000);
    let cases = [
        (good.clone(), good),
        (
            r#""traceparent":"x\u0000","tracestate":"a=1","baggage":"k=v""#.into(),
            r#""baggage":"k=v""#.into(),
        ),
        (
            format!(r#""traceparent":"{PARENT}","tracestate":"a=\u0000""#),
            format!(r#""traceparent":"{PARENT}""#),
        ),
        (format!(r#""traceparent":"{PARENT}\u000a","baggage":"k=\r\n""#), String::new()),
        (format!(r#""traceparent":7,"tracestate":"a={long}","baggage":"k={long}""#), String::new()),
        (r#""tracestate":"a=1","baggage":[]"#.into(), String::new()),
    ];
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let upstream = world.upstream("hub");
        for (sent, expected) in &cases {
            for (method, item) in [
                ("tools/call", r#""name":"hub__a""#),
                ("prompts/get", r#""name":"hub__a""#),
                ("resources/read", r#""uri":"file:///a""#),
                ("completion/complete", r#""ref":{"type":"ref/prompt","name":"hub__a"},"argument":{"name":"x","value":""}"#),
            ] {
                let params = format!(r#"{{{item},"_meta":{{"example.org/x":1.0,{sent}}}}}"#);
                client.request(method, &params).await;
                let seen = upstream.last(method).params;
                let seen = object(std::str::from_utf8(&seen).expect("text"));
                let meta = seen.get_object("_meta").expect("a _meta");
                assert_eq!(meta.get("example.org/x"), Some("1.0"));
                let expected = object(&format!("{{{expected}}}"));
                for name in ["traceparent", "tracestate", "baggage"] {
                    assert_eq!(meta.get(name), expected.get(name), "{method} {sent}");
                }
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_task_that_a_request_is_not_known_to_be_about_reaches_no_upstream() {
    const RELATED: &str = "io.modelcontextprotocol/related-task";
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for (method, params, _) in METHODS {
            let mut params = object(params);
            params.set("_meta", format!(r#"{{"{RELATED}":{{"taskId":"1"}},"example.org/x":1.0}}"#));
            client.request(method, &string(params.to_bytes())).await.result();
            let seen = object(&string(world.upstream("hub").last(method).params));
            let meta = seen.get_object("_meta").expect("a _meta");
            assert_eq!(
                (meta.get("example.org/x"), meta.get(RELATED)),
                (Some("1.0"), None),
                "{method}"
            );
        }
    })
    .await;
}
