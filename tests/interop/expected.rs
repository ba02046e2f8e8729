//! Expected document of a client that can show everything, for the fleet in `programs.rs`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::pipe::Era::{self, Legacy, Modern};

/// Document of a client that can show everything.
pub(crate) fn expected(era: Era) -> Value {
    let prompts = [
        "house__greeting",
        "notes__daily-plan",
        "notes__summarize-notes",
        "tides__mooring",
        "tides__tide-table",
        "weather__forecast",
        "weather__greet",
        "weather__plain",
    ];
    let after: Vec<_> = std::iter::once("house__farewell").chain(prompts).collect();
    let counted = json!({ "said": "counted to 3", "progress": [1, 2, 3] });
    json!({
        "server": "weir",
        "revision": match era { Legacy => "2025-11-25", Modern => "2026-07-28" },
        "prompts": prompts,
        // Three prompts a page.
        "pages": 3,
        // Two upstreams declare their lists stale at once, so the client caches none.
        "again": 3,
        "got": {
            "house__greeting": ["Hello, Ada {{who}}!"],
            "notes__summarize-notes": [
                "Summarize what these notes say about weirs, style: brief.\n\
                 Buy oat milk\nWater the ferns\nCall Ada about the gauge\nRead RFC 6570"
            ],
            "tides__tide-table": ["Make a table of the tides in Harlingen, today."],
            "weather__forecast": ["What is the weather in Bern?", "Answer in one line."],
        },
        "completed": {
            // Values with the typed prefix come before those that contain it elsewhere.
            "house__greeting": ["Ada", "Alan", "Grace"],
            "tides__tide-table": ["Den Helder", "Den Oever"],
            "weather__forecast": ["Berlin", "Bern"],
            "note:///{id}": ["1", "2", "3", "4"],
            "tides://{port}/now": ["Harlingen"],
            "weather://{city}/today": ["Amsterdam", "Antwerp", "Athens"],
        },
        "tools": [
            "notes__add_note",
            "notes__add_prompt",
            "notes__cancelled_count",
            "notes__echo",
            "notes__slow_count",
            "tides__add_prompt",
            "tides__count",
            "tides__depth",
            "tides__remove_prompt",
            "tides__wait",
            "weather__add",
            "weather__add_prompt",
            "weather__add_tool",
            "weather__count",
            "weather__remove_prompt",
            "weather__remove_tool",
        ],
        "structured": {
            "notes__echo": { "n": 1.5, "text": "ä" },
            "tides__depth": { "port": "Vlissingen", "metres": 7.25 },
            "weather__add": { "result": 5 },
        },
        "counted": {
            "notes__slow_count": counted,
            "tides__count": counted,
            "weather__count": counted,
        },
        "resources": [
            "note:///1", "note:///2", "note:///3", "note:///4", "tides://ports", "weather://cities",
        ],
        "templates": ["note:///{id}", "tides://{port}/now", "weather://{city}/today"],
        "read": {
            "note:///2": "Water the ferns",
            "tides://Den%20Oever/now": "Den Oever: rising",
            "weather://cities": "Amsterdam\nAntwerp\nAthens\nBerlin\nBern",
        },
        "unknown": { "code": -32602, "message": "Unknown prompt: house__nobody" },
        "after": after,
    })
}

/// Removes the member at a pointer.
pub(crate) fn without(document: &mut Value, pointer: &str) {
    let (parent, member) = pointer.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).and_then(Value::as_object_mut);
    let gone = parent.unwrap().remove(&member.replace("~1", "/"));
    assert!(gone.is_some(), "{pointer} is no member");
}

/// Members of a document that are not as expected, a line each.
pub(crate) fn differences(seen: &Value, expected: &Value) -> String {
    let members = |document: &Value| document.as_object().cloned().unwrap_or_default();
    let (seen, expected) = (members(seen), members(expected));
    let keys: BTreeSet<_> = seen.keys().chain(expected.keys()).collect();
    let line = |key: &String| {
        let (seen, expected) = (seen.get(key), expected.get(key));
        let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
        (seen != expected).then(|| format!("{key} is {}, not {}\n", show(seen), show(expected)))
    };
    keys.into_iter().filter_map(line).collect()
}
