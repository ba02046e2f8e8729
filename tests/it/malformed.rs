//! Definitions and completions that some client cannot parse: repaired or left out, without losing
//! the rest of the list.
//!
//! The judge of each [`World`] checks every list of Weir by the schema of its client's revision.
//! The results of the official SDKs with the same corpus are in `tests/interop`.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use weir_base::json::Object;
use weir_mcp::definition::downgrade::{self, DefinitionForm};
use weir_mcp::definition::item::Item;
use weir_mcp::definition::shape;
use weir_mcp::kind::Kind;
use weir_mcp::revision::{Era, Revision};

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, Side, Transport};
use crate::schema::Schema;
use crate::upstream::Script;
use crate::world::{World, everywhere, hub};

/// One definition of the corpus.
struct Case {
    kind: Kind,
    becomes: &'static str,
    definition: &'static str,
}

fn corpus() -> Vec<Case> {
    let lines = include_str!("../fixtures/malformed_definitions.txt").lines();
    let cases = lines.filter(|line| !line.starts_with('#')).map(|line| {
        let [kind, becomes, _, definition] = line.splitn(4, " | ").collect::<Vec<_>>()[..] else {
            panic!("four parts: {line}")
        };
        let kind = Kind::ALL.into_iter().find(|it| it.json_name() == kind).expect("a kind");
        Case { kind, becomes, definition }
    });
    cases.collect()
}

fn keys(kind: Kind, becomes: &[&str]) -> Vec<String> {
    let cases = corpus().into_iter();
    let chosen = cases.filter(|case| case.kind == kind && becomes.contains(&case.becomes));
    let mut keys: Vec<_> = chosen
        .filter_map(|case| Item::parse(kind, case.definition.into()).ok())
        .map(|item| if kind.has_name() { format!("hub__{}", item.key) } else { item.key.into() })
        .collect();
    keys.sort();
    keys
}

#[tokio::test(start_paused = true)]
async fn malformed_definitions_take_nothing_else_from_a_client_of_any_revision() {
    assert!(corpus().iter().filter(|case| case.becomes != "good").count() >= 80);
    for upstream in [MODERN_HTTP, LEGACY_HTTP] {
        let script = corpus()
            .iter()
            .fold(Script::new(upstream), |script, case| script.raw(case.kind, case.definition));
        let world = World::start(vec![("hub", script)], "").await;
        // SDKs accept this URI, though RFC 3986 does not.
        world.excuse("a b/é.txt");
        for revision in Revision::ALL {
            let client = world.client(Side::new(revision, Transport::Stdio)).await;
            for kind in Kind::ALL {
                let expected = keys(kind, &["good", "mended"]);
                assert_eq!(client.list_all(kind).await, expected, "{revision}");
            }
            for (kind, method) in [(Kind::Tool, "tools/call"), (Kind::Prompt, "prompts/get")] {
                for key in keys(kind, &["out"]) {
                    let params = json!({ "name": key, "arguments": {} }).to_string();
                    let reply = client.request(method, &params).await;
                    assert_eq!(reply.code(), -32602, "{key}");
                }
                assert_eq!(world.upstream("hub").count(method), 0);
            }
        }
        for kind in Kind::ALL {
            let left_out = world.left_out("hub", kind);
            assert_eq!(left_out.len(), keys(kind, &["out"]).len(), "{left_out:?}");
            assert!(left_out.iter().all(|it| it.contains(" cannot be used: ")), "{left_out:?}");
        }
        world.close().await;
    }
}

/// Definitions with all members that any revision has.
fn whole(kind: Kind) -> Value {
    let mut definition = json!({
        "name": "n", "title": "t", "description": "d", "_meta": { "x": [1] },
        "icons": [{ "src": "https://example.org/i", "mimeType": "image/png", "sizes": ["1x1"], "theme": "dark" }],
    });
    let more = match kind {
        Kind::Prompt => json!({ "arguments": [
            { "name": "a", "title": "t", "description": "d", "required": true }, { "name": "b" },
        ] }),
        Kind::Tool => json!({
            "inputSchema": { "$schema": "s", "type": "object", "properties": { "x": {} }, "required": ["x"] },
            "outputSchema": {
                "$schema": "s", "type": "object", "required": ["y"], "additionalProperties": false,
                "properties": { "y": { "type": ["string", "null"], "pattern": "^a", "enum": ["a"] } },
            },
            "annotations": {
                "title": "t", "readOnlyHint": true, "destructiveHint": true, "idempotentHint": true, "openWorldHint": true,
            },
            "execution": { "taskSupport": "optional" },
        }),
        Kind::Resource => json!({ "uri": "file:///a", "size": 1 }),
        Kind::Template => json!({ "uriTemplate": "file:///{a}" }),
    };
    let of_contents = json!({
        "mimeType": "a/b",
        "annotations": { "audience": ["user"], "priority": 0.5, "lastModified": "2025-01-12T15:00:58Z" },
    });
    let more = [more, if kind.has_name() { json!({}) } else { of_contents }];
    for (name, value) in more.iter().flat_map(|more| more.as_object().expect("an object")) {
        definition[name] = value.clone();
    }
    definition
}

/// All places within a value, as JSON pointers.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), all));
        }
        Value::Array(elements) => {
            (0..).zip(elements).for_each(|(n, value): (usize, _)| {
                places(value, &format!("{at}/{n}"), all);
            });
        }
        _ => {}
    }
}

/// Name of the items' definition in the specification.
fn definition_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Prompt => "Prompt",
        Kind::Tool => "Tool",
        Kind::Resource => "Resource",
        Kind::Template => "ResourceTemplate",
    }
}

/// Definition as clients of a revision get it; `None` if it is left out.
fn shown(kind: Kind, text: &str, revision: Revision) -> Option<Value> {
    let item = Item::parse(kind, text.to_owned().into()).ok()?;
    let mended = shape::conform(kind, &item.key, &item.definition).ok()?;
    let definition: Object = mended.unwrap_or(item.definition);
    let older = match DefinitionForm::of(revision) {
        DefinitionForm::Newest => None,
        DefinitionForm::WithTasks | DefinitionForm::Older => {
            downgrade::definition(kind, &definition)
        }
    };
    let text = older.unwrap_or(definition).to_bytes();
    Some(serde_json::from_slice(&text).expect("JSON"))
}

#[test]
fn definition_with_every_member_is_shown_as_it_is() {
    for (kind, revision) in
        Kind::ALL.into_iter().flat_map(|kind| Revision::ALL.map(|it| (kind, it)))
    {
        let whole = whole(kind);
        assert_eq!(shown(kind, &whole.to_string(), revision), Some(whole), "{revision}");
    }
}

proptest! {
    #[test]
    fn whatever_is_listed_fits_the_schema_of_its_clients_revision(
        kind in select(&Kind::ALL[..]),
        changes in prop::collection::vec((any::<Index>(), 0..JUNK + 1), 1..4),
    ) {
        let mut value = whole(kind);
        for (place, change) in changes {
            let mut all = Vec::new();
            places(&value, "", &mut all);
            let place = place.get(&all).clone();
            match (junk(change), place.rsplit_once('/')) {
                (_, None) => {}
                (Some(junk), _) => *value.pointer_mut(&place).expect("it is there") = junk,
                (None, Some((around, name))) => match value.pointer_mut(around) {
                    Some(Value::Object(members)) => _ = members.shift_remove(name),
                    Some(Value::Array(elements)) => _ = elements.pop(),
                    _ => unreachable!("a place is in an object or an array"),
                },
            }
        }
        for revision in Revision::ALL {
            if let Some(shown) = shown(kind, &value.to_string(), revision) {
                let complaint = Schema::of(revision).complaint(definition_of(kind), &shown);
                prop_assert_eq!(complaint, None, "{}", value);
            }
        }
    }
}

/// Number of the junk values.
const JUNK: usize = 12;

fn junk(number: usize) -> Option<Value> {
    let all = json!([null, 7, -1.5, "x", "", [], {}, true, [7], { "x": 7 }, ["object"], { "type": "string" }]);
    all.get(number).cloned()
}

// === Completions ===

#[tokio::test(start_paused = true)]
async fn completion_has_at_most_a_hundred_strings() {
    let values = |count: usize| {
        (0..count).map(|number| format!("\"{number}\"")).collect::<Vec<_>>().join(",")
    };
    let hundred = format!(r#"{{"values":[{}],"total":150,"hasMore":true}}"#, values(100));
    let cases = [
        (format!(r#"{{"values":[{}],"total":150}}"#, values(150)), Ok(hundred.clone())),
        (hundred.clone(), Ok(hundred)),
        (r#"{"values":["a"],"total":"1","hasMore":1}"#.into(), Ok(r#"{"values":["a"]}"#.into())),
        (
            r#"{ "values" : ["\u0041"], "total":1.0}"#.into(),
            Ok(r#"{ "values" : ["\u0041"], "total":1.0}"#.into()),
        ),
        (r#"{"values":["a"],"total":1e30}"#.into(), Ok(r#"{"values":["a"]}"#.into())),
        (
            r#"{"values":["a","\ud800"]}"#.into(),
            Err("`completion` has a lone surrogate, or a number that is too large"),
        ),
        (r#"{"values":["a",7]}"#.into(), Err("a value is not a string")),
        (r#"{"values":"a"}"#.into(), Err("`values` is not an array")),
        ("7".into(), Err("`completion` is not an object")),
    ];
    // Completions are checked even if the guard is switched off.
    let config = "[guard]\noutput = \"off\"\nhidden_text = \"pass\"\n";
    everywhere(config, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for (sent, expected) in &cases {
            let envelope = match cell.upstream.revision.era() {
                Era::Modern => r#","resultType":"complete""#,
                Era::Legacy => "",
            };
            let result = format!(r#"{{"completion":{sent}{envelope}}}"#);
            world.upstream("hub").result("completion/complete", &result);
            let reply = client.complete("hub__a").await;
            match expected {
                Ok(expected) => {
                    let expected = format!(r#"{{"completion":{expected}"#);
                    assert!(reply.result().starts_with(&expected), "{}", reply.result());
                }
                Err(why) => {
                    let text =
                        format!("the response of upstream hub was refused by the guard: {why}");
                    assert_eq!(
                        reply.error(),
                        json!({ "code": -32603, "message": text }).to_string()
                    );
                }
            }
        }
    })
    .await;
}
