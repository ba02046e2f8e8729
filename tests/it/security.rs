//! Attacks, row by row (S-02 to S-54): clients that try to get more than they are allowed.
//!
//! A test's name begins with its rows. Rows that other files show are not repeated here:
//!
//! | row | what | where |
//! |---|---|---|
//! | S-02, S-03 | listed, reachable and announced items are the same | `tests/it/sight.rs` |
//! | S-04 | no route is open without valid credentials | `tests/it/routes.rs` |
//! | S-05 | no rule, no access | `tests/it/security.rs`, `crates/access/src/policy/role.rs` |
//! | S-10 | headers with a meaning elsewhere have no effect | `tests/it/security.rs` |
//! | S-11 | another host and another origin are forbidden | `tests/it/origins.rs` |
//! | S-12 | requests upstream do not depend on the host | `tests/it/origins.rs` |
//! | S-13 | duplicate and misspelled members | `tests/it/security.rs`, `crates/base/src/json.rs` |
//! | S-14 | header mismatches (N-15) | `tests/it/security.rs`, `tests/it/bad_input.rs` |
//! | S-16 | credentials stay here (N-83) | `tests/it/security.rs`, `tests/it/forwarding.rs` |
//! | S-18 | sessions cannot be guessed | `crates/base/src/secrets/secret.rs` |
//! | S-18 | sessions belong to their principal | `tests/it/routes.rs`, `tests/it/sessions.rs` |
//! | S-20 | forged cursors | `tests/it/security.rs`, `tests/it/bad_input.rs` |
//! | S-21 | a shared cache leaks nothing to another client | `tests/it/security.rs` |
//! | S-28 | items never collide | `crates/mcp/src/name.rs`, `crates/access/src/catalog/tests.rs` |
//! | S-35 | no secrets in core files; no access to the memory | `tests/cli/surroundings.rs` |
//! | S-36 | no timing leak of keys | `crates/access/src/policy/keys.rs` |
//! | S-37 | denied equals unknown, timing too | `tests/it/policy.rs`, `tests/it/security.rs` |
//! | S-38 | no limit is evaded | `crates/access/src/policy/limits/table.rs` |
//! | S-38 | no limit per client is evaded | `tests/it/limits_per_client.rs` |
//! | S-38 | no limit on suspended calls is evaded | `tests/it/questions/limited.rs` |
//! | S-45 | children get only their own environment and descriptors | `tests/cli/surroundings.rs` |
//! | S-49 | no notification about hidden items | `tests/it/security.rs`, `tests/it/sight.rs` |
//! | S-54 | floods of sessions are harmless | `tests/it/security.rs`, `tests/it/sessions.rs` |

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;

use crate::cell::{
    CLIENTS, LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side, Transport, UPSTREAMS,
};
use crate::client::{Client, HttpReply, SILENCE, keys_of, named, object, set, string};
use crate::upstream::{Script, definition, own_key};
use crate::world::{World, hub, key_of, pass, with_pair};

const GUEST: &str = r#"
    [roles.guest]
    prompts.allow = ["hub/a"]
    tools.allow = ["hub/a"]
    resources.allow = ["hub/file:///a"]
    [roles.staff]
    prompts.allow = ["*"]
    tools.allow = ["*"]
    resources.allow = ["*"]
"#;

// === Access rules ===

#[tokio::test(start_paused = true)]
async fn s05_what_no_rule_allows_nobody_sees_or_reaches() {
    for rules in [
        "",
        "prompts = {}\ntools = {}\nresources = {}",
        "prompts.allow = []\ntools.allow = []\nresources.allow = []",
        "prompts.deny = [\"hub/q\"]\ntools.deny = [\"hub/q\"]\nresources.deny = [\"hub/q\"]",
    ] {
        let config = with_pair(&format!("[roles.nobody]\n{rules}\n"));
        let world = World::start(hub(MODERN_HTTP), &config).await;
        let before = world.requests();
        for side in CLIENTS {
            let client = world.client_as("nobody", side).await;
            for kind in Kind::ALL {
                assert_eq!(client.list_all(kind).await, [""; 0], "{side}: {rules}");
            }
            for reply in [
                client.get_prompt("hub__a").await,
                client.call_tool("hub__a").await,
                client.read(&own_key(Kind::Resource, "a")).await,
                client.read("a:///x").await,
                client.complete("hub__a").await,
            ] {
                assert!(reply.outcome.is_err(), "{side}: {reply:?}");
            }
        }
        assert_eq!(world.requests(), before, "{rules}");
        world.close().await;
    }
}

// === Headers and bodies ===

/// Headers that other systems interpret, with values that an attacker could try here.
fn strange_headers() -> Vec<(String, String)> {
    let names = [
        "x-forwarded-host",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-prefix",
        "x-forwarded-server",
        "x-forwarded-user",
        "x-forwarded-email",
        "x-forwarded-uri",
        "x-forwarded-client-cert",
        "forwarded",
        "via",
        "x-real-ip",
        "x-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "x-original-url",
        "x-original-host",
        "x-original-uri",
        "x-rewrite-url",
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-host",
        "x-upstream",
        "x-backend",
        "x-target",
        "x-route",
        "x-envoy-original-path",
        "x-envoy-internal",
        "x-accel-redirect",
        "x-user",
        "x-role",
        "x-roles",
        "x-groups",
        "x-principal",
        "x-tenant",
        "x-remote-user",
        "remote-user",
        "x-webauth-user",
        "x-auth-request-user",
        "x-api-key",
        "x-internal",
        "x-internal-key",
        "x-admin",
        "x-debug",
        "mcp-server",
        "mcp-upstream",
        "mcp-target",
        "mcp-backend",
        "mcp-route",
        "mcp-tool",
        "mcp-prompt",
        "mcp-resource",
        "mcp-user",
        "mcp-role",
        "mcp-internal",
        "mcp-authorization",
        "mcp-gateway-key",
        "x-mcp-servername",
        "x-mcp-server-url",
    ];
    assert_eq!(names.len(), 60);
    let values = ["rim", "staff", "http://rim.test/mcp", "true", "rim__a", "127.0.0.1"];
    let value = |at: usize| values[at % values.len()].to_owned();
    names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), value(at))).collect()
}

/// Gets a prompt with these additional headers.
async fn get(client: &Client, name: &str, extra: &[(String, String)]) -> HttpReply {
    let params = client.with_request_meta(&named(name));
    let message = weir_mcp::jsonrpc::write_request(&7.into(), "prompts/get", params.as_bytes());
    let mut headers = client.http().headers("prompts/get", &params);
    for (name, value) in extra {
        set(&mut headers, name, value);
    }
    client.http().post(message, &headers).whole().await
}

#[tokio::test(start_paused = true)]
async fn s10_headers_that_route_elsewhere_change_nothing_and_go_nowhere() {
    for upstream in [MODERN_HTTP, LEGACY_HTTP] {
        let scripts = vec![("hub", Script::full(upstream)), ("rim", Script::full(upstream))];
        let world = World::start(scripts, GUEST).await;
        let rim = world.upstream("rim").requests();
        for side in [MODERN_HTTP, LEGACY_HTTP] {
            let client = world.client_as("guest", side).await;
            let plain = get(&client, "hub__a", &[]).await;
            let denied = get(&client, "rim__a", &[]).await;
            assert_eq!(plain.status, 200, "{plain:?}");
            let all = strange_headers();
            for extra in all.iter().map(std::slice::from_ref).chain(all.chunks(20)) {
                let about = format!("{extra:?} from {side} to {upstream}");
                let reply = get(&client, "hub__a", extra).await;
                assert_eq!((reply.status, &reply.body), (200, &plain.body), "{about}");
                let seen = world.upstream("hub").last("prompts/get").headers;
                for (name, _) in extra {
                    assert!(!seen.contains_key(name), "{name} goes on: {about}");
                }
                let reply = get(&client, "rim__a", extra).await;
                assert_eq!((reply.status, &reply.body), (denied.status, &denied.body), "{about}");
            }
        }
        assert_eq!(world.upstream("rim").requests(), rim, "nothing is asked of the other");
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s13_a_member_that_stands_twice_or_is_written_otherwise_decides_nothing() {
    let world = World::start(hub(MODERN_HTTP), GUEST).await;
    let before = world.requests();
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let client = world.client_as("guest", side).await;
        let meta = object(&client.with_request_meta("{}")).get("_meta").unwrap_or("{}").to_owned();
        let good = format!(r#"{{"name":"hub__a","_meta":{meta}}}"#);
        let envelope = |members: &str| format!(r#"{{"jsonrpc":"2.0","id":7,{members}}}"#);
        let params = |members: &str| {
            envelope(&format!(r#""method":"prompts/get","params":{{{members},"_meta":{meta}}}"#))
        };
        for (text, code) in [
            // The member is duplicated: two parsers could each take a different one.
            (
                envelope(&format!(r#""method":"prompts/get","method":"ping","params":{good}"#)),
                -32600,
            ),
            (envelope(&format!(r#""method":"ping","m\u0065thod":"x","params":{good}"#)), -32600),
            (envelope(&format!(r#""id":8,"method":"prompts/get","params":{good}"#)), -32600),
            (envelope(&format!(r#""method":"prompts/get","params":{good},"params":{{}}"#)), -32600),
            (params(r#""name":"hub__a","name":"hub__b""#), -32600),
            (params(r#""name":"hub__b","n\u0061me":"hub__a""#), -32600),
            (params(r#""name":"hub__a","_meta":{}"#), -32600),
            // The member is spelled differently: a parser that folds case or Unicode would take it.
            (envelope(&format!(r#""Method":"prompts/get","params":{good}"#)), -32600),
            (envelope(&format!(r#""METHOD":"prompts/get","params":{good}"#)), -32600),
            (params(r#""Name":"hub__a""#), -32602),
            (params(r#""NAME":"hub__a""#), -32602),
            (params(r#""name ":"hub__a""#), -32602),
            (params(r#""name\u0000":"hub__a""#), -32602),
            (params(r#""nаme":"hub__a""#), -32602),
        ] {
            let mut headers = client.http().headers("prompts/get", &good);
            if !side.is_modern() {
                headers.remove("mcp-name");
            }
            let reply = client.http().post(text.clone(), &headers).whole().await;
            assert_eq!(reply.code(), code, "{side}: {text}: {reply:?}");
        }
        // Only the exact member counts, whatever stands beside it.
        let beside = params(r#""name":"hub__b","Name":"hub__a","nаme":"hub__a""#);
        let mut headers = client.http().headers("prompts/get", &named("hub__b"));
        set(&mut headers, "accept", "*/*");
        let reply = client.http().post(beside, &headers).whole().await;
        assert_eq!(reply.code(), -32602, "{side}: {reply:?}");
        let beside = envelope(&format!(r#""method":"prompts/get","paramſ":{good}"#));
        let headers = client.http().headers("prompts/get", &good);
        let reply = client.http().post(beside, &headers).whole().await;
        assert!(reply.body.contains("\"error\""), "{side}: {reply:?}");
    }
    assert_eq!(world.requests(), before);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s14_n15_a_header_opens_nothing_that_its_body_may_not() {
    let world = World::start(hub(MODERN_HTTP), GUEST).await;
    let before = world.requests();
    let client = world.client_as("guest", MODERN_HTTP).await;
    for (sent, meant) in [("hub__a", "hub__b"), ("hub__b", "hub__a")] {
        for (name, value) in [("mcp-name", sent), ("mcp-method", "prompts/list")] {
            let reply = get(&client, meant, &[(name.to_owned(), value.to_owned())]).await;
            assert_eq!((reply.status, reply.code()), (400, -32020), "{name}: {value}: {reply:?}");
        }
    }
    // The legacy era has no such headers, so they have no effect.
    let client = world.client_as("guest", LEGACY_HTTP).await;
    let denied = get(&client, "hub__b", &[]).await;
    let extra = [("mcp-name", "hub__a"), ("mcp-method", "prompts/list")];
    let extra = extra.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(get(&client, "hub__b", &extra).await.body, denied.body);
    assert_eq!(world.requests(), before);
    assert_eq!(get(&client, "hub__a", &extra).await.status, 200);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s16_n83_no_credential_of_any_revision_reaches_an_upstream() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), &with_pair(GUEST)).await;
        let key = key_of("staff");
        for revision in Revision::ALL {
            let client = world.client_as("staff", Side::new(revision, Transport::Http)).await;
            let extra = ["cookie", "proxy-authorization", "x-api-key", "x-access-token"];
            let extra = extra.map(|name| (name.to_owned(), format!("canary {key}")));
            assert_eq!(get(&client, "hub__a", &extra).await.status, 200, "{revision}");
            client.call_tool("hub__a").await.result();
            client.read(&own_key(Kind::Resource, "a")).await.result();
            client.complete("hub__a").await.result();
            let changes = client.listen().await;
            changes.cancel().await;
        }
        let hub = world.upstream("hub");
        assert_eq!(hub.request_headers().is_empty(), upstream.transport == Transport::Stdio);
        for headers in hub.request_headers() {
            let logged = format!("{headers:?}");
            assert!(!logged.contains(&key) && !logged.contains("canary"), "{upstream}: {logged}");
            for name in ["authorization", "cookie", "proxy-authorization", "x-api-key"] {
                assert!(!headers.contains_key(name), "{upstream}: {logged}");
            }
        }
        assert!(hub.parameters().len() >= 4 * Revision::ALL.len(), "{upstream}");
        for params in hub.parameters() {
            assert!(!string(params.clone()).contains(&key), "{upstream}: {params:?}");
        }
        world.close().await;
    }
}

// === Lists ===

/// The texts that differ from the original in a single character.
fn forged(text: &str) -> impl Iterator<Item = String> {
    (0..text.len()).flat_map(move |at| {
        ["A", "B", "_", "9", "z"].map(|other| format!("{}{other}{}", &text[..at], &text[at + 1..]))
    })
}

#[tokio::test(start_paused = true)]
async fn s20_a_cursor_of_somebody_else_or_of_nobody_shows_nothing_more() {
    let script = |side| {
        let names = ["c", "d", "e"];
        let add = |script: Script, kind| {
            names.iter().fold(script, |script, name| script.raw(kind, &definition(kind, name)))
        };
        vec![("hub", Kind::ALL.into_iter().fold(Script::full(side), add))]
    };
    let rules = r#"
        [protocol]
        page_size = 1
        [roles.guest]
        prompts.allow = ["hub/b", "hub/d"]
        [roles.staff]
        prompts.allow = ["*"]
    "#;
    let world = World::start(script(MODERN_HTTP), rules).await;
    let before = world.requests();
    let (mut shown, mut refused) = (0, 0);
    for side in [MODERN_HTTP, LEGACY_HTTP, LEGACY_STDIO] {
        let staff = world.client_as("staff", side).await;
        let guest = world.client_as("guest", side).await;
        let mut cursor = None::<String>;
        for _ in 0..4 {
            let page = staff.page(Kind::Prompt, cursor.as_deref()).await;
            let next = page.get_string("nextCursor").expect("a page").into_owned();
            for cursor in std::iter::once(next.clone()).chain(forged(&next)) {
                let params = format!(r#"{{"cursor":"{cursor}"}}"#);
                let reply = guest.request("prompts/list", &params).await;
                if reply.outcome.is_err() {
                    assert_eq!(reply.code(), -32602, "{side}: {cursor}");
                    refused += 1;
                    continue;
                }
                let keys = keys_of(Kind::Prompt, &object(reply.result()));
                let own = keys.iter().all(|key| ["hub__b", "hub__d"].contains(&&**key));
                assert!(own, "{side}: {cursor} shows {keys:?}");
                shown += 1;
            }
            cursor = Some(next);
        }
    }
    assert!(shown > 50 && refused > 50, "{shown} shown, {refused} refused");
    assert_eq!(world.requests(), before, "no upstream is asked");
    world.close().await;
}

/// A cache between clients and the gateway, as RFC 9111 specifies it: public responses are shared,
/// and private ones belong to their client.
#[derive(Default)]
struct Cache {
    kept: BTreeMap<(Option<&'static str>, String), String>,
    hits: usize,
}

impl Cache {
    async fn ask(
        &mut self,
        who: &'static str,
        client: &Client,
        requested: &(&str, String),
    ) -> String {
        let (method, params) = requested;
        let key = format!("{method} {params}");
        for whose in [None, Some(who)] {
            if let Some(kept) = self.kept.get(&(whose, key.clone())) {
                self.hits += 1;
                return kept.clone();
            }
        }
        let reply = client.request(method, params).await;
        let Ok(result) = &reply.outcome else { return reply.error().to_owned() };
        let hints = object(result);
        if let Some(scope) = hints.get_string("cacheScope") {
            let whose = if scope == "public" { None } else { Some(who) };
            // The time to live is ignored: no time passes in this test.
            self.kept.insert((whose, key), result.clone());
        }
        result.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn s21_a_cache_that_all_share_gives_nobody_what_is_anothers() {
    let read = r#"{"resultType":"complete","contents":[],"ttlMs":60000,"cacheScope":"public"}"#;
    let rules = [GUEST.to_owned(), format!("{GUEST}[protocol]\npage_size = 1\n")];
    for (rules, upstream) in
        rules.iter().flat_map(|rules| [(rules, MODERN_HTTP), (rules, LEGACY_HTTP)])
    {
        let script = Script::full(upstream).ttl_ms(60_000);
        let world = World::start(vec![("hub", script)], rules).await;
        if upstream.is_modern() {
            world.upstream("hub").result("resources/read", read);
        }
        for side in [MODERN_HTTP, MODERN_STDIO] {
            let guest = world.client_as("guest", side).await;
            let staff = world.client_as("staff", side).await;
            let lists = Kind::ALL.map(|kind| (kind.list_method(), "{}".to_owned()));
            let mut questions = lists.to_vec();
            questions.push(("server/discover", "{}".to_owned()));
            for name in ["a", "b"] {
                let uri = own_key(Kind::Resource, name);
                questions.push(("resources/read", format!(r#"{{"uri":"{uri}"}}"#)));
            }
            let mut cache = Cache::default();
            // Each role is first once, and returns once.
            for turn in [["guest", "staff"], ["staff", "guest"], ["guest", "staff"]] {
                for requested in &questions {
                    for who in turn {
                        let client = if who == "guest" { &guest } else { &staff };
                        let cached = cache.ask(who, client, requested).await;
                        let direct = client.request(requested.0, &requested.1).await;
                        let direct = direct.outcome.unwrap_or_else(|error| error);
                        let names = |text: &str| {
                            ["a", "b"].map(|name| {
                                text.contains(&format!("hub__{name}\""))
                                    || text.contains(&own_key(Kind::Resource, name))
                                    || text.contains(&own_key(Kind::Template, name))
                            })
                        };
                        assert_eq!(names(&cached), names(&direct), "{side}: {who} {requested:?}");
                        let kind = |text: &str| object(text).has("code");
                        assert_eq!(kind(&cached), kind(&direct), "{side}: {who} {requested:?}");
                    }
                }
            }
            assert!(cache.hits > 0, "{side}: it keeps something");
        }
        world.close().await;
    }
}

// === Time ===

/// Requests of each kind, and the greatest distance between the 10th percentiles of their times.
const ASKED: usize = 200;
const APART: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn s37_what_is_denied_takes_as_long_as_what_is_unknown() {
    let world = World::start(hub(MODERN_HTTP), GUEST).await;
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let client = world.client_as("guest", side).await;
        let mut took = [Vec::new(), Vec::new()];
        // The requests take turns, so that other load of the machine affects both.
        for turn in 0..2 * ASKED {
            let name = ["hub__b", "hub__q"][turn % 2];
            let begin = Instant::now();
            let reply = client.get_prompt(name).await;
            took[turn % 2].push(begin.elapsed());
            assert_eq!(reply.code(), -32602, "{name}");
        }
        // Other load of the machine lengthens requests, and hardly the quickest tenth.
        let quick = took.map(|mut times| {
            times.sort();
            times[ASKED / 10]
        });
        assert!(quick[0].abs_diff(quick[1]) < APART, "{side}: {quick:?}");
    }
    world.close().await;
}

// === Many sessions ===

#[tokio::test(start_paused = true)]
async fn s49_a_hundred_who_see_different_things_hear_of_their_own_only() {
    let names: Vec<_> = (0..100).map(|number| format!("p{number}")).collect();
    let rules: String = names
        .iter()
        .map(|name| format!("[roles.{name}]\nprompts.allow = [\"hub/{name}\"]\n"))
        .collect();
    let own: Vec<_> = names.iter().map(String::as_str).collect();
    for upstream in [MODERN_HTTP, LEGACY_STDIO] {
        let script = Script::new(upstream).prompts(&own);
        let world = World::start(vec![("hub", script)], &rules).await;
        let sides = [MODERN_HTTP, LEGACY_HTTP, MODERN_STDIO, LEGACY_STDIO];
        let mut clients = Vec::new();
        for (name, side) in names.iter().zip(sides.into_iter().cycle()) {
            clients.push(world.client_as(name, side).await);
        }
        let mut changes = Vec::new();
        for client in &clients {
            changes.push(client.listen().await);
        }
        // The prompts of every other client change; the remaining clients get no message at all.
        let changed = |number: usize| number % 2 == 1;
        for name in names.iter().enumerate().filter(|(at, _)| changed(*at)).map(|(_, name)| name) {
            world.upstream("hub").remove(Kind::Prompt, name).await;
            // Notifications are spaced; this is longer than their interval.
            pass(Duration::from_secs(2)).await;
        }
        for (number, (changes, client)) in changes.iter_mut().zip(&clients).enumerate() {
            let mut received = 0;
            while let Ok(Some(_)) = tokio::time::timeout(SILENCE, changes.next()).await {
                received += 1;
            }
            let expected = usize::from(changed(number));
            assert_eq!(received, expected, "{number}, {} before {upstream}", client.side);
            let seen = client.prompts().await.len();
            assert_eq!(seen, 1 - expected, "{number}");
        }
        drop(changes);
        drop(clients);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s54_a_flood_of_sessions_stays_within_a_share_and_without_a_key_there_is_none() {
    let world = World::start(hub(MODERN_HTTP), GUEST).await;
    let staff = world.client_as("staff", LEGACY_HTTP).await;
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}"#;
    for (key, opened, statuses) in [("guest", 32, &[200][..]), ("nobody", 32, &[401, 429])] {
        let client = world.uninitialized_client(LEGACY_HTTP, Some(&key_of(key)));
        for turn in 1..=1_000 {
            let mut headers = client.http().headers("initialize", "{}");
            headers.remove("mcp-session-id");
            headers.remove("mcp-protocol-version");
            let reply = client.http().post(initialize, &headers).whole().await;
            assert!(statuses.contains(&reply.status), "{turn}: {reply:?}");
            let most = if key == "guest" { opened.min(turn) } else { opened };
            assert_eq!(world.sessions(), 1 + most, "{turn}");
        }
    }
    assert_eq!(staff.prompts().await.len(), 2, "somebody else's lives on");
    drop(staff);
    world.close().await;
}
