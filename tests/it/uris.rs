//! Spellings of URIs: another spelling of its URI does not reach a resource that a role may not
//! read (docs/resource-uris.md). `tests/interop/uris.rs` tests real readers of such spellings.

use weir_base::json;
use weir_mcp::kind::Kind;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, Side};
use crate::client::{Client, Reply, object, string};
use crate::upstream::Script;
use crate::world::{Scripts, World, everywhere};

const ROLES: &str = r#"
    [roles.public]
    resources.allow = ["hub/file:///pub/*", "hub/db://pub/*"]
    [roles.most]
    resources.allow = ["*"]
    resources.deny = ["hub/file:///secret/*", "hub/db://secret/*", "hub/file:///*.key"]
"#;

/// An upstream that answers for any URI of two schemes.
fn hub(side: Side) -> Scripts {
    let script = Script::new(side).subscribable();
    let script = script
        .raw(Kind::Resource, r#"{"uri":"file:///pub/a.txt","name":"a"}"#)
        .raw(Kind::Resource, r#"{"uri":"file:///secret/b.txt","name":"b"}"#)
        .raw(Kind::Resource, r#"{"uri":"db://pub/1","name":"1"}"#)
        .raw(Kind::Template, r#"{"uriTemplate":"file:///{+path}","name":"files"}"#)
        .raw(Kind::Template, r#"{"uriTemplate":"db://{table}/{+key}","name":"rows"}"#);
    vec![("hub", script)]
}

/// URIs that lead out of `/pub` for some reader.
const OUT_OF_PUBLIC: [&str; 12] = [
    "file:///pub/../secret/b.txt",
    "file:///pub/..\t/secret/b.txt",
    "file:///pub/.\n./secret/b.txt",
    "file:///pub/.\r./secret/b.txt",
    "file:///pub/%2\te%2e/secret/b.txt",
    "file:///pub/%2e%2e/secret/b.txt",
    "file:///pub/%252e%252e/secret/b.txt",
    "file:///pub/..%2fsecret/b.txt",
    "file:///pub/..\\secret/b.txt",
    "file:///pub/..;x/secret/b.txt",
    "file:///pub/?/../../secret/b.txt",
    "db://pub/%EF%BC%8E%EF%BC%8E/secret",
];

/// URIs that are denied in the reading of some reader, though not as written.
const INTO_SECRET: [&str; 21] = [
    "file:///sec\tret/b.txt",
    "file:///secret\\b.txt",
    "file:////secret/b.txt",
    "file:///pub//../secret/b.txt",
    "file:///./secret/b.txt",
    "FILE:///secret/b.txt",
    "file:/secret/b.txt",
    "file:secret/b.txt",
    "file://localhost/secret/b.txt",
    " file:///secret/b.txt",
    "file:///%73ecret/b.txt",
    "file:///SECRET/b.txt",
    "file:///secret./b.txt",
    "file:///secret;x/b.txt",
    "file:///a.key?x",
    "file:///a.key#x",
    "file:///a.key/",
    "db://%73ecret/1",
    "db://SECRET/1",
    "db://secret:1/1",
    "db://user@secret/1",
];

/// Replies to each kind of request for this URI.
async fn ask(client: &Client, uri: &str) -> Vec<Reply> {
    let template = string(json::quote(uri));
    let complete = format!(
        r#"{{"ref":{{"type":"ref/resource","uri":{template}}},"argument":{{"name":"path","value":""}}}}"#
    );
    let mut replies =
        vec![client.read(uri).await, client.request("completion/complete", &complete).await];
    if client.side.is_modern() {
        let (changes, honored) = client.follow(&[uri]).await;
        assert_eq!(honored, [""; 0], "{uri:?}");
        changes.cancel().await;
    } else {
        replies.push(client.subscribe(uri).await);
    }
    replies
}

/// Status and text of an error, without the URI in it.
fn without_uri(reply: &Reply, uri: &str) -> (u16, String) {
    let quoted = string(json::quote(uri));
    (reply.status, reply.error().replace(quoted.trim_matches('"'), "?"))
}

#[tokio::test(start_paused = true)]
async fn another_spelling_of_a_uri_that_is_not_allowed_is_unknown_and_nothing_is_sent() {
    everywhere(ROLES, hub, async |world, cell| {
        for (role, spellings) in [("public", &OUT_OF_PUBLIC[..]), ("most", &INTO_SECRET[..])] {
            let client = world.client_as(role, cell.client).await;
            assert!(client.read("file:///pub/x/y.txt").await.outcome.is_ok());
            assert!(client.read("db://pub/A%20b").await.outcome.is_ok());
            let unknown = "nowhere:///x";
            let expected = ask(&client, unknown).await;
            let before = world.requests();
            for uri in spellings {
                let found = ask(&client, uri).await;
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(found.outcome.is_err(), "{role}: {uri:?}: {found:?}");
                    let found = without_uri(found, uri);
                    assert_eq!(found, without_uri(expected, unknown), "{role}: {uri:?}");
                }
            }
            assert_eq!(world.requests(), before, "{role}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn rules_of_an_upstream_are_passed_by_no_spelling_either() {
    let rules = [
        (r#"resources.allow = ["file:///pub/*", "db://pub/*"]"#, &OUT_OF_PUBLIC[..]),
        (
            "resources = { allow = [\"*\"], deny = [\"file:///secret/*\", \"db://secret/*\", \"file:///*.key\"] }",
            &INTO_SECRET[..],
        ),
    ];
    for (rules, spellings) in rules {
        let config = format!("[upstreams.hub]\n{rules}\n");
        for side in [MODERN_HTTP, LEGACY_HTTP] {
            let world = World::start(hub(side), &config).await;
            for client_side in [MODERN_HTTP, LEGACY_HTTP] {
                let client = world.client(client_side).await;
                assert!(client.read("file:///pub/x/y.txt").await.outcome.is_ok());
                let before = world.requests();
                for uri in spellings {
                    for reply in ask(&client, uri).await {
                        assert!(reply.outcome.is_err(), "{uri:?}: {reply:?}");
                    }
                }
                assert_eq!(world.requests(), before, "{rules}");
                drop(client);
            }
            world.close().await;
        }
    }
}

/// Completes a variable of a template, with these values of others.
async fn complete(client: &Client, template: &str, argument: [&str; 2], known: &str) -> Reply {
    let [name, value] = argument.map(|text| string(json::quote(text)));
    let params = format!(
        r#"{{"ref":{{"type":"ref/resource","uri":"{template}"}},"argument":{{"name":{name},"value":{value}}},"context":{{"arguments":{known}}}}}"#
    );
    client.request("completion/complete", &params).await
}

/// Values of a completion.
fn values(reply: &Reply) -> Vec<String> {
    let completion = object(reply.result()).get_object("completion").expect("a completion");
    assert!(!completion.has("total") && !completion.has("hasMore"), "{reply:?}");
    let values = completion.get_bytes("values").expect("values");
    serde_json::from_slice(&values).expect("strings")
}

/// Sets these values as the upstream's completion of everything.
fn complete_with(world: &World, values: &[&str]) {
    let hub = world.upstream("hub");
    let complete = if hub.side().is_modern() { r#""resultType":"complete","# } else { "" };
    let values = serde_json::to_string(values).expect("JSON");
    let completion = format!(r#"{{"values":{values},"total":70,"hasMore":true}}"#);
    hub.result("completion/complete", &format!(r#"{{{complete}"completion":{completion}}}"#));
}

const FILES: &str = "file:///{+path}";
const ROWS: &str = "db://{table}/{+key}";

#[tokio::test(start_paused = true)]
async fn a_completion_tells_nothing_of_what_a_role_may_not_read() {
    let narrow =
        "[roles.narrow]\nresources.allow = [\"hub/file:///{+path}\", \"hub/file:///pub/*\"]";
    everywhere(&format!("{ROLES}\n{narrow}"), hub, async |world, cell| {
        let most = world.client_as("most", cell.client).await;
        let narrow = world.client_as("narrow", cell.client).await;
        let names = ["pub/", "pub/a b.txt", "secret/", "secret/b.txt", "SECRET/b", "x.key"];
        let odd = ["pub/../secret/b.txt", "other", "p", "sec\tret/b.txt", "", "secret"];
        complete_with(world, &[&names[..], &odd].concat());
        // `p` and the empty text are prefixes of URIs that the narrow role may read.
        let shown: [(&Client, &[&str]); 2] = [
            (&most, &["pub/", "pub/a b.txt", "other", "p", "", "secret"]),
            (&narrow, &["pub/", "pub/a b.txt", "p", ""]),
        ];
        for (client, shown) in shown {
            let reply = complete(client, FILES, ["path", ""], "{}").await;
            assert_eq!(values(&reply), shown, "{reply:?}");
        }
        complete_with(world, &["pub", "secret", "SECRET"]);
        let reply = complete(&most, ROWS, ["table", ""], "{}").await;
        assert_eq!(values(&reply), ["pub"]);
        complete_with(world, &["1"]);
        let reply = complete(&most, ROWS, ["key", ""], r#"{"table":"pub"}"#).await;
        assert_eq!(values(&reply), ["1"]);

        let before = world.requests();
        let unknown = complete(&most, "nowhere:///{x}", ["x", ""], "{}").await;
        let expected = without_uri(&unknown, "nowhere:///{x}");
        for (client, template, argument, known) in [
            (&most, FILES, ["path", "secret/"], "{}"),
            (&most, FILES, ["path", "SECRET/b"], "{}"),
            (&most, FILES, ["path", "pub/../secret/"], "{}"),
            (&most, FILES, ["path", "secret\\"], "{}"),
            (&most, FILES, ["another", ""], "{}"),
            (&narrow, FILES, ["path", "secret/"], "{}"),
            (&narrow, FILES, ["path", "publ"], "{}"),
            (&most, ROWS, ["key", ""], r#"{"table":"secret"}"#),
            (&most, ROWS, ["key", ""], r#"{"table":"Secret"}"#),
            // The value could complete a row of a denied table.
            (&most, ROWS, ["key", ""], "{}"),
        ] {
            let reply = complete(client, template, argument, known).await;
            assert!(reply.outcome.is_err(), "{template} {argument:?} {known}: {reply:?}");
            let found = without_uri(&reply, template);
            assert_eq!(found, expected, "{template} {argument:?} {known}");
        }
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_completion_passes_as_it_is_where_no_rule_keeps_anything_back() {
    let config = "[roles.full]\nresources = { allow = [\"hub/*\"], deny = [\"other/*\"] }";
    everywhere(config, hub, async |world, cell| {
        let client = world.client_as("full", cell.client).await;
        complete_with(world, &["a", "../b", "\t"]);
        for (template, argument) in
            [(FILES, ["path", "../"]), (FILES, ["another", ""]), (ROWS, ["key", ""])]
        {
            let reply = complete(&client, template, argument, "{}").await;
            let completion = object(reply.result()).get_object("completion").expect("one");
            let values = completion.get("values").expect("values");
            assert_eq!((values, completion.get("total")), (r#"["a","../b","\t"]"#, Some("70")));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_completion_tells_nothing_of_what_does_not_leave_its_upstream() {
    for (rules, shown) in [
        (r#"allow = ["*"], deny = ["file:///secret/*"]"#, &["pub/a", "x"][..]),
        (r#"allow = ["file:///{+path}", "file:///pub/*"]"#, &["pub/a"]),
    ] {
        let config = format!("[upstreams.hub]\nresources = {{ {rules} }}\n");
        for side in [MODERN_HTTP, LEGACY_HTTP] {
            let world = World::start(hub(side), &config).await;
            for client_side in [MODERN_HTTP, LEGACY_HTTP] {
                let client = world.client(client_side).await;
                complete_with(&world, &["pub/a", "secret/b", "x"]);
                let reply = complete(&client, FILES, ["path", ""], "{}").await;
                assert_eq!(values(&reply), shown, "{rules}");
                let before = world.requests();
                let reply = complete(&client, FILES, ["path", "secret/"], "{}").await;
                assert!(reply.outcome.is_err(), "{reply:?}");
                assert_eq!(world.requests(), before);
                drop(client);
            }
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_uri_is_good_as_it_is_where_an_upstream_lists_it_so() {
    let odd = ["FILE:///Pub//My File.txt", "file:///pub/%2e%2e/é", "https://H:443/a"];
    let list = |side| {
        let script = odd.iter().fold(Script::new(side), |script, uri| {
            let uri = string(json::quote(uri));
            script.raw(Kind::Resource, &format!(r#"{{"uri":{uri},"name":"odd"}}"#))
        });
        vec![("hub", script)]
    };
    let config = "[roles.guest]\nresources.allow = [\"hub/*\"]\nresources.deny = [\"hub/https:*\"]";
    everywhere(config, list, async |world, cell| {
        // The schema requires URIs of RFC 3986; Weir forwards these as they were listed.
        odd[..2].iter().for_each(|uri| world.excuse(uri));
        let client = world.client_as("guest", cell.client).await;
        for uri in &odd[..2] {
            assert!(client.read(uri).await.outcome.is_ok(), "{uri}");
            let folded = uri.to_lowercase();
            assert!(folded == *uri || client.read(&folded).await.outcome.is_err(), "{folded}");
        }
        assert!(client.read(odd[2]).await.outcome.is_err());
        assert!(client.read("https://h/a").await.outcome.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn equal_spelling_of_a_listed_uri_is_that_resource_in_every_request() {
    let listed = "file:///My File/\u{e9}.txt";
    let script = |side| {
        let uri = string(json::quote(listed));
        let script = Script::new(side).subscribable();
        let script = script.raw(Kind::Resource, &format!(r#"{{"uri":{uri},"name":"n"}}"#));
        vec![
            ("hub", script),
            // Without the listed URI, the request would go to one of two upstreams.
            ("other", Script::new(side).raw(Kind::Resource, r#"{"uri":"file:///x","name":"x"}"#)),
        ]
    };
    everywhere("", script, async |world, cell| {
        world.excuse(listed);
        let client = world.client(cell.client).await;
        for spelling in ["file:///My%20File/%C3%A9.txt", "FILE:///My%20File/./%c3%a9.txt"] {
            let reply = client.read(spelling).await;
            assert!(reply.outcome.is_ok(), "{spelling}: {reply:?}");
            let sent = world.upstream("hub").last("resources/read");
            let sent = object(&string(sent.params));
            assert_eq!(sent.get_string("uri").as_deref(), Some(listed), "{spelling}");
            if !client.side.is_modern() {
                let reply = client.subscribe(spelling).await;
                assert!(reply.outcome.is_ok(), "{spelling}: {reply:?}");
            }
        }
        assert!(client.read("file:///my%20file/%C3%A9.txt").await.outcome.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn template_that_no_client_could_use_is_left_out_and_named() {
    let script = Script::new(MODERN_HTTP)
        .raw(Kind::Template, r#"{"uriTemplate":"FILE:///{x}","name":"odd"}"#)
        .raw(Kind::Template, r#"{"uriTemplate":"note:///{x}","name":"good"}"#);
    let world = World::start(vec![("hub", script)], "").await;
    let client = world.client(MODERN_HTTP).await;
    assert_eq!(client.list_all(Kind::Template).await, ["note:///{x}"]);
    assert_eq!(
        world.left_out("hub", Kind::Template),
        [r#""FILE:///{x}" cannot be used: it yields no URI in normal form"#]
    );
    world.close().await;
}

/// Names that are equal for a reader that folds case or normalizes: the first is allowed, the
/// others are not.
const FOLDING: [&str; 4] = ["caf\u{e9}", "cafe\u{301}", "CAF\u{c9}", "ｃａｆé"];

#[tokio::test(start_paused = true)]
async fn names_that_fold_to_each_other_are_different_items_under_their_own_bytes() {
    let list = |side| {
        let kinds = [Kind::Prompt, Kind::Tool];
        vec![("hub", kinds.iter().fold(Script::new(side), |it, kind| it.items(*kind, &FOLDING)))]
    };
    let allow = format!("{:?}", format!("hub/{}", FOLDING[0]));
    let config = format!("[roles.guest]\nprompts.allow = [{allow}]\ntools.allow = [{allow}]\n");
    everywhere(&config, list, async |world, cell| {
        let client = world.client_as("guest", cell.client).await;
        for kind in [Kind::Prompt, Kind::Tool] {
            let listed = client.list_all(kind).await;
            assert_eq!(listed.len(), 1, "{kind}");
            let method = if kind == Kind::Prompt { "prompts/get" } else { "tools/call" };
            let named = |name: &str| format!(r#"{{"name":{}}}"#, string(json::quote(name)));
            let reply = client.request(method, &named(&listed[0])).await;
            assert!(reply.outcome.is_ok(), "{reply:?}");
            let sent = world.upstream("hub").last(method);
            let sent = object(&string(sent.params));
            assert_eq!(sent.get_string("name").as_deref(), Some(FOLDING[0]));
            let before = world.requests();
            for other in &FOLDING[1..] {
                for name in [format!("hub__{other}"), listed[0].to_uppercase(), (*other).to_owned()]
                {
                    assert_ne!(name, listed[0]);
                    let reply = client.request(method, &named(&name)).await;
                    assert_eq!(reply.code(), -32602, "{name}");
                }
            }
            assert_eq!(world.requests(), before);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_a_resource_counts_each_of_its_spellings() {
    let config = "[[limits]]\nper = \"client\"\nmethod = \"resources/read\"\n\
                  match = \"hub/file:///pub/big\"\nrate = \"3/h\"\n";
    let world = World::start(hub(MODERN_HTTP), config).await;
    let client = world.client(MODERN_HTTP).await;
    for uri in ["file:///pub/big", "file:///pub/big?x", "file:///PUB/big"] {
        assert!(client.read(uri).await.outcome.is_ok(), "{uri}");
    }
    for uri in ["file:///pub/big;x", "file:///pub/big/", "file:///pub/b%C4%B1g"] {
        assert_eq!(client.read(uri).await.code(), 4290, "{uri}");
    }
    assert!(client.read("file:///pub/bigger").await.outcome.is_ok());
    drop(client);
    world.close().await;
}
