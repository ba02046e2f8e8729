//! The guard in every cell: prompt arguments, malformed results, invisible text, redaction.

use weir_mcp::kind::Kind;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, Side};
use crate::client::object;
use crate::introductions::introduction;
use crate::upstream::{Answer, Script};
use crate::world::{World, everywhere, hub};

const PROMPT: &str = r#"{"name":"p","arguments":[{"name":"need","required":true},{"name":"may"}]}"#;

fn declaring(side: Side) -> Vec<(&'static str, Script)> {
    vec![("hub", Script::new(side).raw(Kind::Prompt, PROMPT))]
}

/// A result as an upstream of this side writes it.
fn result(upstream: Side, members: &str) -> String {
    match upstream.is_modern() {
        true => format!(r#"{{"resultType":"complete",{members}}}"#),
        false => format!("{{{members}}}"),
    }
}

/// A prompt result with this text.
fn saying(text: &str) -> String {
    format!(r#""messages":[{{"role":"user","content":{{"type":"text","text":"{text}"}}}}]"#)
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_not_asked_for_without_what_it_needs() {
    let config = "[guard]\nmax_argument = 8\n";
    everywhere(config, declaring, async |world, cell| {
        let client = world.client(cell.client).await;
        let get = async |arguments: &str| {
            let params = format!(r#"{{"name":"hub__p"{arguments}}}"#);
            client.request("prompts/get", &params).await
        };
        let before = world.requests();
        for (arguments, text) in [
            ("", "missing required argument \\\"need\\\""),
            (r#","arguments":{}"#, "missing required argument \\\"need\\\""),
            (r#","arguments":{"may":"x"}"#, "missing required argument \\\"need\\\""),
            (r#","arguments":{"need":7}"#, "argument \\\"need\\\" must be a string"),
            (r#","arguments":{"need":"123456789"}"#, "argument \\\"need\\\" has more than 8 bytes"),
            (r#","arguments":["need"]"#, "`arguments` must be an object"),
        ] {
            let reply = get(arguments).await;
            let expected = format!(r#"{{"code":-32602,"message":"{text}"}}"#);
            assert_eq!(reply.error(), expected, "{arguments}");
        }
        assert_eq!(world.requests(), before);
        let good = r#","arguments":{"need":"1","odd":"x"}"#;
        assert!(get(good).await.outcome.is_ok());
        assert_eq!(world.upstream("hub").count("prompts/get"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn arguments_that_no_prompt_declares_are_refused_by_setting() {
    let config = "[upstreams.hub]\nguard.arguments = \"declared\"\n";
    everywhere(config, declaring, async |world, cell| {
        let client = world.client(cell.client).await;
        let params = r#"{"name":"hub__p","arguments":{"need":"1","odd":"x"}}"#;
        let reply = client.request("prompts/get", params).await;
        assert_eq!(reply.error(), r#"{"code":-32602,"message":"unknown argument \"odd\""}"#);
        assert_eq!(world.upstream("hub").count("prompts/get"), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tools_and_whoever_wants_no_guard_pass_unread() {
    let config = "[guard]\narguments = \"off\"\noutput = \"off\"\nhidden_text = \"pass\"\n";
    let odd = r#""content":[{"type":"text","text":"\u001b[0m"},7]"#;
    for (config, method) in [("", "tools/call"), (config, "tools/call"), (config, "prompts/get")] {
        everywhere(config, hub, async |world, cell| {
            world.excuse(odd);
            let client = world.client(cell.client).await;
            world.upstream("hub").result(method, &result(cell.upstream, odd));
            let reply = client.request(method, r#"{"name":"hub__a","arguments":{}}"#).await;
            assert!(reply.result().contains(odd), "{reply:?}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn hidden_text_in_a_result_is_dealt_with_by_setting() {
    let says = r"a\u001b[0m\udb40\udc41\u0042";
    for (setting, expected) in [
        ("flag", Some(says)),
        ("escape", Some("a<U+001B>[0m<U+E0041>B")),
        ("strip", Some("a[0mB")),
        ("refuse", None),
    ] {
        let config = format!("[guard]\nhidden_text = \"{setting}\"\n");
        everywhere(&config, hub, async |world, cell| {
            let client = world.client(cell.client).await;
            world.upstream("hub").result("prompts/get", &result(cell.upstream, &saying(says)));
            let reply = client.get_prompt("hub__a").await;
            match expected {
                Some(text) => assert!(reply.result().contains(&saying(text)), "{reply:?}"),
                None => assert_eq!(
                    reply.error(),
                    r#"{"code":-32603,"message":"the response of upstream hub was refused by the guard: hidden text, <U+001B>"}"#
                ),
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn hidden_text_in_definitions_is_dealt_with_before_anybody_lists_them() {
    let script = |side| {
        let odd = r#"{"name":"odd","description":"a\u202eb"}"#;
        let script = Script::new(side).raw(Kind::Prompt, odd).instructions("c\u{200b}d");
        vec![("hub", script.prompts(&["plain"]))]
    };
    for (setting, listed) in [
        ("flag", r#"{"name":"hub__odd","description":"a\u202eb"},{"name":"hub__plain"}"#),
        ("strip", r#"{"name":"hub__odd","description":"ab"},{"name":"hub__plain"}"#),
        ("escape", r#"{"name":"hub__odd","description":"a<U+202E>b"},{"name":"hub__plain"}"#),
        ("refuse", r#"{"name":"hub__plain"}"#),
    ] {
        let config = format!("[guard]\nhidden_text = \"{setting}\"\n");
        everywhere(&config, script, async |world, cell| {
            let client = world.client(cell.client).await;
            let page = client.page(Kind::Prompt, None).await;
            assert_eq!(page.get("prompts"), Some(&*format!("[{listed}]")), "{setting}");
            let is_there = client.get_prompt("hub__odd").await.outcome.is_ok();
            assert_eq!(is_there, setting != "refuse", "{setting}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_prompt_is_refused_by_setting() {
    let bad = r#""messages":[{"role":"system","content":{"type":"text","text":"x"}}]"#;
    for setting in ["flag", "refuse"] {
        let config = format!("[guard]\noutput = \"{setting}\"\n");
        everywhere(&config, hub, async |world, cell| {
            let client = world.client(cell.client).await;
            world.upstream("hub").result("prompts/get", &result(cell.upstream, bad));
            if setting == "flag" {
                world.excuse(bad);
                assert!(client.get_prompt("hub__a").await.result().contains(bad));
                return;
            }
            let reply = client.get_prompt("hub__a").await;
            let text =
                "the response of upstream hub was refused by the guard: a role is neither user nor assistant";
            assert_eq!(reply.error(), format!(r#"{{"code":-32603,"message":"{text}"}}"#));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_are_redacted_from_results_and_errors_of_every_kind() {
    let config = "[guard]\nredact = { key = \"AKIA[A-Z]{4}\" }\n";
    let methods = [
        ("prompts/get", r#"{"name":"hub__a"}"#),
        ("tools/call", r#"{"name":"hub__a","arguments":{}}"#),
        ("resources/read", r#"{"uri":"file:///a"}"#),
    ];
    everywhere(config, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for (method, params) in methods {
            let says = |text: &str| match method {
                "prompts/get" => saying(text),
                "tools/call" => format!(r#""content":[{{"type":"text","text":"{text}"}}]"#),
                _ => format!(
                    r#""contents":[{{"uri":"file:///a","text":"{text}"}}],"ttlMs":0,"cacheScope":"private""#
                ),
            };
            // The second is far larger than the limit for other results.
            for filling in ["", &"x".repeat(200_000)] {
                let secret = says(&format!("{filling}AKIA\\u0041BCD{filling}"));
                world.upstream("hub").result(method, &result(cell.upstream, &secret));
                let reply = client.request(method, params).await;
                let redacted = format!("{filling}[redacted:key]{filling}\"");
                assert!(reply.result().contains(&redacted), "{method}");
                assert!(!reply.result().contains("AKIA"), "{method}");
            }
            let error = r#"{"code":-32000,"message":"with AKIAABCD","data":{"x":1e400}}"#;
            world.upstream("hub").answer(method, Answer::Error(error.into()));
            let reply = client.request(method, params).await;
            assert_eq!(reply.error(), error.replace("AKIAABCD", "[redacted:key]"), "{method}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_comes_after_questions_is_looked_at_too() {
    let config = "[guard]\nhidden_text = \"refuse\"\n";
    let world = World::start(hub(LEGACY_HTTP), config).await;
    let mut intercepted = world.upstream("hub").intercept("prompts/get");
    let client = world.client_declaring(LEGACY_HTTP, r#"{"elicitation":{}}"#).await;
    let mut exchange = client.start("prompts/get", r#"{"name":"hub__a"}"#);
    let asking = async {
        let call = intercepted.next().await;
        let form = r#"{"message":"m","requestedSchema":{"type":"object","properties":{}}}"#;
        call.send_request(&format!(
            r#"{{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{form}}}"#
        ));
        world.upstream("hub").received_responses(1).await;
        call.result(&format!("{{{}}}", saying(r"\u202e")));
    };
    let answering = async {
        let id = object(&exchange.next_server_message().await).get("id").expect("an id").to_owned();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"action":"cancel"}}}}"#);
        client.send(&answer).await;
        exchange.reply().await
    };
    let ((), reply) = tokio::join!(asking, answering);
    assert!(reply.error().contains("hidden text, <U+202E>"), "{reply:?}");
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_may_have_rules_of_its_own() {
    let config = r#"
        [guard]
        hidden_text = "refuse"
        [upstreams.zoo]
        guard.hidden_text = "strip"
    "#;
    let scripts = vec![("hub", Script::full(MODERN_HTTP)), ("zoo", Script::full(MODERN_HTTP))];
    let world = World::start(scripts, config).await;
    let client = world.client(MODERN_HTTP).await;
    for name in ["hub", "zoo"] {
        let odd = result(MODERN_HTTP, &saying(r"a\u0007"));
        world.upstream(name).result("prompts/get", &odd);
    }
    assert_eq!(client.get_prompt("hub__a").await.code(), -32603);
    assert!(client.get_prompt("zoo__a").await.result().contains(&saying("a")));
    drop(client);
    world.close().await;
}

// === Redaction of definitions ===

#[tokio::test(start_paused = true)]
async fn secrets_are_redacted_from_definitions_and_instructions() {
    const TOOL: &str = r#"{"name":"t","title":"AKIAABCD","description":"d AKI\u0041ABCD d","inputSchema":{"type":"object","description":"AKIAABCD","properties":{"x":{"type":"string","default":"AKIAABCD","enum":["AKIAABCD"]}}},"outputSchema":{"type":"object","title":"AKIAABCD"},"annotations":{"title":"AKIAABCD"},"icons":[{"src":"https://example.org/AKIAABCD"}],"_meta":{"x":["AKIAABCD"]},"novel":"AKIAABCD"}"#;
    const PROMPT: &str =
        r#"{"name":"p","arguments":[{"name":"x","title":"AKIAABCD","description":"AKIAABCD"}]}"#;
    const RESOURCE: &str = r#"{"uri":"a:r","name":"AKIAABCD","description":"AKIAABCD"}"#;
    const TEMPLATE: &str = r#"{"uriTemplate":"a:{t}","name":"AKIAABCD","title":"AKIAABCD"}"#;
    let script = |side| {
        let script = Script::new(side).instructions("use AKIAABCD").raw(Kind::Tool, TOOL);
        let script = script.raw(Kind::Prompt, PROMPT);
        let script = script.raw(Kind::Resource, RESOURCE).raw(Kind::Template, TEMPLATE);
        // The upstream has to get these members back unchanged.
        let script =
            script.raw(Kind::Tool, r#"{"name":"AKIAABCD","inputSchema":{"type":"object"}}"#);
        let script = script.raw(
            Kind::Tool,
            r#"{"name":"u","inputSchema":{"type":"object","properties":{"AKIAABCD":{}}}}"#,
        );
        let script = script.raw(Kind::Prompt, r#"{"name":"q","arguments":[{"name":"AKIAABCD"}]}"#);
        let script = script.raw(Kind::Resource, r#"{"uri":"a:AKIAABCD","name":"r"}"#);
        vec![("hub", script.raw(Kind::Template, r#"{"uriTemplate":"a:AKIAABCD{t}","name":"t"}"#))]
    };
    let config = "[guard]\nredact = { key = \"AKIA[A-Z]{4}\" }\n";
    everywhere(config, script, async |world, cell| {
        let client = world.client(cell.client).await;
        let redacted = |text: &str| {
            let text = text.replace("AKI\\u0041", "AKIA");
            // A redacted icon's address is no URI any more, so the icon is left out.
            let text = text.replace(r#""icons":[{"src":"https://example.org/AKIAABCD"}],"#, "");
            text.replace("AKIAABCD", "[redacted:key]").replacen(
                r#""name":""#,
                r#""name":"hub__"#,
                1,
            )
        };
        for (kind, text) in [(Kind::Tool, TOOL), (Kind::Prompt, PROMPT)] {
            let page = client.page(kind, None).await;
            let expected = format!("[{}]", redacted(text));
            assert_eq!(page.get(kind.list_member()), Some(&*expected));
        }
        for (kind, text) in [(Kind::Resource, RESOURCE), (Kind::Template, TEMPLATE)] {
            let page = client.page(kind, None).await;
            let expected = format!("[{}]", text.replace("AKIAABCD", "[redacted:key]"));
            assert_eq!(page.get(kind.list_member()), Some(&*expected));
        }
        let why = "text to redact is in its name, its URI or the name of a member or argument";
        let reasons = Kind::ALL.map(|kind| world.left_out("hub", kind));
        let expected = [
            vec![format!("\"q\" cannot be used: {why}")],
            vec![
                format!("\"[redacted:key]\" cannot be used: {why}"),
                format!("\"u\" cannot be used: {why}"),
            ],
            vec![format!("\"a:[redacted:key]\" cannot be used: {why}")],
            vec![format!("\"a:[redacted:key]{{t}}\" cannot be used: {why}")],
        ];
        assert_eq!(reasons, expected);
        for name in ["hub__AKIAABCD", "hub__u", "hub__[redacted:key]"] {
            assert!(client.call_tool(name).await.outcome.is_err(), "{name}");
        }
        assert_eq!(world.upstream("hub").count("tools/call"), 0);
        let introduction = introduction(world, None, cell.client).await;
        let instructions = introduction.get_string("instructions").expect("instructions");
        assert!(instructions.ends_with("use [redacted:key]"), "{instructions}");
    })
    .await;
}
