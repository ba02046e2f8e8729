//! The official JSON schema of each revision, with lookups by method.
//!
//! The files are those of `./dev prepare`. A definition is compiled at its first use, once for all
//! tests. The sender of a method and its result are read from the schema as well, so nothing here
//! has to follow a revision.
//!

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jsonschema::{Registry, Validator};
use serde_json::{Value, json};
use weir_mcp::revision::Revision;

/// The schema of one revision.
pub(crate) struct Schema {
    revision: Revision,
    root: Value,
    registry: Registry<'static>,
    compiled: Mutex<HashMap<String, Arc<Validator>>>,
    /// Definitions of the requests that each side may send, by method.
    requests: [BTreeMap<String, String>; 2],
    notifications: [BTreeMap<String, String>; 2],
}

/// Sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Client,
    Server,
}

impl Schema {
    pub(crate) fn of(revision: Revision) -> &'static Self {
        static ALL: LazyLock<BTreeMap<Revision, Schema>> = LazyLock::new(|| {
            Revision::ALL.into_iter().map(|revision| (revision, Schema::read(revision))).collect()
        });
        assert_prepared();
        &ALL[&revision]
    }

    fn read(revision: Revision) -> Self {
        let text = std::fs::read_to_string(path(revision)).expect("a part is readable");
        let mut root: Value = serde_json::from_str(&text).expect("a schema is JSON");
        for (since, place, right) in CORRECTIONS {
            if since == revision.as_str() {
                let right: Value = serde_json::from_str(right).expect("JSON");
                let (within, last) = place.rsplit_once('/').expect("a place within");
                let within = root.pointer_mut(within).expect("what is corrected");
                match (last, within) {
                    ("-", Value::Array(list)) => list.push(right),
                    (name, within) => within[name] = right,
                }
            }
        }
        let registry = Registry::new().add(ADDRESS, root.clone()).expect("an address");
        let registry = registry.prepare().expect("its references stay within");
        let mut schema = Self {
            revision,
            root,
            registry,
            compiled: Mutex::default(),
            requests: Default::default(),
            notifications: Default::default(),
        };
        schema.requests = [Sender::Client, Sender::Server].map(|by| schema.group(by, "Request"));
        schema.notifications =
            [Sender::Client, Sender::Server].map(|by| schema.group(by, "Notification"));
        schema
    }

    /// Error of a value that does not match this definition.
    pub(crate) fn complaint(&self, definition: &str, value: &Value) -> Option<String> {
        let validator = self.validator(definition);
        // Collecting the errors costs several times as much as the mere check.
        if validator.is_valid(value) {
            return None;
        }
        let errors: Vec<_> = validator
            .iter_errors(value)
            .map(|error| {
                format!("at '{}': {}", error.instance_path(), shortened(&error.to_string()))
            })
            .collect();
        Some(format!("{definition} of {}: {}", self.revision, errors.join("; ")))
    }

    /// The definition of a request that this side may send.
    pub(crate) fn request(&self, by: Sender, method: &str) -> Option<&str> {
        self.requests[by as usize].get(method).map(String::as_str)
    }

    /// The definition of a notification that this side may send.
    pub(crate) fn notification(&self, by: Sender, method: &str) -> Option<&str> {
        self.notifications[by as usize].get(method).map(String::as_str)
    }

    /// Definition of the result of a request of this side.
    pub(crate) fn result(&self, by: Sender, method: &str) -> Option<String> {
        let request = self.request(by, method)?;
        let own = format!("{}Result", request.strip_suffix("Request")?);
        Some(if self.has(&own) { own } else { "EmptyResult".into() })
    }

    /// The first of these definitions that this revision has: later revisions renamed some.
    pub(crate) fn first(&self, definitions: &[&'static str]) -> &'static str {
        let found = definitions.iter().find(|definition| self.has(definition));
        found.unwrap_or_else(|| panic!("{} has none of {definitions:?}", self.revision))
    }

    pub(crate) fn has(&self, definition: &str) -> bool {
        self.definitions().get(definition).is_some()
    }

    /// Definitions of the messages of a kind that one side may send, by method.
    fn group(&self, by: Sender, kind: &str) -> BTreeMap<String, String> {
        let Some(group) = self.definitions().get(format!("{by:?}{kind}")) else {
            return BTreeMap::new();
        };
        let names: Vec<&str> = match group.get("anyOf").and_then(Value::as_array) {
            Some(members) => members
                .iter()
                .filter_map(|member| member["$ref"].as_str()?.rsplit('/').next())
                .collect(),
            // A group with a single member is written out in its place.
            None => vec![if by == Sender::Client { "ClientNotification" } else { "" }],
        };
        let methods = names.into_iter().map(|name| {
            let method = &self.definitions()[name]["properties"]["method"]["const"];
            (method.as_str().expect("a method").to_owned(), name.to_owned())
        });
        methods.collect()
    }

    fn definitions(&self) -> &Value {
        &self.root[self.member()]
    }

    fn member(&self) -> &'static str {
        if self.root.get("$defs").is_some() { "$defs" } else { "definitions" }
    }

    fn validator(&self, definition: &str) -> Arc<Validator> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || {
            assert!(self.has(definition), "{} knows no {definition}", self.revision);
            let place = format!("{ADDRESS}#/{}/{definition}", self.member());
            let one = json!({ "$schema": self.root["$schema"], "$ref": place });
            let options = jsonschema::options().should_validate_formats(true);
            let validator = options.with_registry(&self.registry).build(&one);
            Arc::new(validator.expect("an official schema compiles"))
        };
        Arc::clone(compiled.entry(definition.to_owned()).or_insert_with(fresh))
    }
}

/// Fails with one clear message if the schemas have not been fetched.
pub(crate) fn assert_prepared() {
    static MISSING: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| Revision::ALL.map(path).into_iter().find(|path| !path.exists()));
    if let Some(path) = &*MISSING {
        panic!("{} is missing: run `./dev prepare`", path.display());
    }
}

fn path(revision: Revision) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/interop/schemas");
    folder.join(format!("{revision}.json"))
}

/// Shortens a complaint, which quotes the faulty value and so perhaps a whole list.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(600) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Address of a schema in references.
const ADDRESS: &str = "schema:official";

/// Corrections that the specification has made since in its tagged files: generated types that were
/// narrower than its own TypeScript, and a forgotten request. `-` is the position after a list's
/// end.
const CORRECTIONS: [(&str, &str, &str); 7] = [
    (
        "2025-03-26",
        "/definitions/ClientRequest/anyOf/-",
        r##"{"$ref": "#/definitions/ListResourceTemplatesRequest"}"##,
    ),
    ("2025-06-18", "/definitions/NumberSchema/properties/minimum/type", r#""number""#),
    ("2025-06-18", "/definitions/NumberSchema/properties/maximum/type", r#""number""#),
    ("2025-11-25", "/$defs/NumberSchema/properties/minimum/type", r#""number""#),
    ("2025-11-25", "/$defs/NumberSchema/properties/maximum/type", r#""number""#),
    ("2025-11-25", "/$defs/NumberSchema/properties/default/type", r#""number""#),
    ("2025-11-25", "/$defs/Task/properties/ttl/type", r#"["integer", "null"]"#),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_result_of_its_own_is_answered_with_an_empty_one() {
        for revision in Revision::ALL {
            let schema = Schema::of(revision);
            for by in [Sender::Client, Sender::Server] {
                let empty: Vec<_> = schema.requests[by as usize]
                    .keys()
                    .filter(|method| schema.result(by, method).as_deref() == Some("EmptyResult"))
                    .collect();
                let expected: &[&str] = match by {
                    _ if revision == Revision::NEWEST => &[],
                    Sender::Client => &[
                        "logging/setLevel",
                        "ping",
                        "resources/subscribe",
                        "resources/unsubscribe",
                    ],
                    Sender::Server => &["ping"],
                };
                assert_eq!(empty, expected, "{by:?} of {revision}");
            }
        }
    }

    #[test]
    fn each_revision_has_the_methods_that_its_specification_names() {
        let counts = Revision::ALL.map(|revision| {
            let schema = Schema::of(revision);
            let of = |group: &[BTreeMap<_, _>; 2]| [group[0].len(), group[1].len()];
            (of(&schema.requests), of(&schema.notifications))
        });
        let expected = [
            ([13, 3], [4, 7]),
            ([13, 3], [4, 7]),
            ([13, 4], [4, 7]),
            ([17, 8], [5, 9]),
            ([10, 0], [1, 8]),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn every_definition_compiles() {
        for revision in Revision::ALL {
            let schema = Schema::of(revision);
            for definition in schema.definitions().as_object().expect("definitions").keys() {
                schema.validator(definition);
            }
        }
    }
}
