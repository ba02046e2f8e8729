//! Capabilities of a server, or of several together, beyond lists of prompts, tools and resources.
//!
//! Invariants: a value is small, whatever a server sends; [`Capabilities::forwarded`] contains
//! nothing that Weir does not forward between clients and upstreams.

use bytes::Bytes;

use crate::definition::shape;
use weir_base::json::{self, Object};

/// The extension of the modern era for tasks.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Capabilities that Weir declares for its own requests: the extensions that it forwards unchanged.
/// Some servers list the user interface of a tool only to clients that declare MCP Apps.
pub const OWN: &str =
    r#"{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}"#;

/// Everything that a server may declare and Weir forwards, and of the extensions those that it
/// knows.
const ALL: &str = concat!(
    r#"{"completions":{},"logging":{},"resources":{"subscribe":true},"#,
    r#""tasks":{"cancel":{},"requests":{"tools":{"call":{}}}},"#,
    r#""extensions":{"io.modelcontextprotocol/ui":{},"io.modelcontextprotocol/tasks":{}}}"#,
);

/// Capabilities that Weir declares when it listens for tasks, for clients that declare the same.
pub const TASKS: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// Capabilities of a server, or of several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it completes arguments.
    pub completions: bool,
    /// Whether it sends log messages.
    pub logging: bool,
    /// Whether clients can subscribe to single resources.
    pub subscribe: bool,
    /// The tasks of 2025-11-25.
    pub tasks: Tasks,
    /// Extensions and their settings.
    pub extensions: Extensions,
    /// Non-standard capabilities and their settings.
    pub experimental: Extensions,
}

/// Task capabilities of 2025-11-25.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tasks {
    /// `tasks/list`.
    pub(crate) list: bool,
    /// `tasks/cancel`.
    pub cancel: bool,
    /// Tool calls as tasks.
    pub tools_call: bool,
}

impl Capabilities {
    /// Parses the capabilities that a server declares.
    pub fn read(declared: &Object) -> Self {
        let resources = declared.get_object("resources").unwrap_or_default();
        let tasks = declared.get_object("tasks").unwrap_or_default();
        let tools = tasks.get_object("requests").and_then(|requests| requests.get_object("tools"));
        Self {
            completions: declares(declared, "completions"),
            logging: declares(declared, "logging"),
            subscribe: resources.get("subscribe") == Some("true"),
            tasks: Tasks {
                list: declares(&tasks, "list"),
                cancel: declares(&tasks, "cancel"),
                tools_call: tools.is_some_and(|tools| declares(&tools, "call")),
            },
            extensions: Extensions::read(declared, "extensions"),
            experimental: Extensions::read(declared, "experimental"),
        }
    }

    /// Everything that a server may turn out to have, for clients that ask before it is connected.
    pub fn all() -> Self {
        Self::read(&Object::parse(ALL).expect("an object"))
    }

    /// The capabilities that Weir forwards: all but `tasks/list`, which would list the tasks of all
    /// clients.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.tasks.list = false;
        self
    }

    /// The JSON object by which a server declares them.
    pub fn to_object(&self) -> Object {
        let mut object = Object::new();
        if self.subscribe {
            object.set("resources", r#"{"subscribe":true}"#);
        }
        self.add_to(&mut object);
        object
    }

    /// Adds all members but those of topics to the object by which a server declares them.
    pub fn add_to(&self, object: &mut Object) {
        for (name, has) in [("completions", self.completions), ("logging", self.logging)] {
            if has {
                object.set(name, "{}");
            }
        }
        let entries = [
            ("tasks", self.tasks.to_object()),
            ("extensions", self.extensions.to_object()),
            ("experimental", self.experimental.to_object()),
        ];
        for (name, settings) in entries {
            if let Some(settings) = settings {
                object.set(name, settings.to_bytes());
            }
        }
    }

    /// Whether the extension for tasks is among them (modern era).
    pub fn has_tasks(&self) -> bool {
        self.extensions.0.iter().any(|(name, _)| &**name == TASKS_EXTENSION)
    }

    /// The capabilities without the extension for tasks, for clients of the legacy era.
    #[must_use]
    pub fn without_tasks(mut self) -> Self {
        self.extensions.0.retain(|(name, _)| &**name != TASKS_EXTENSION);
        self
    }

    /// Adds the capabilities of another server. If both have settings for the same name, the
    /// existing ones stay.
    pub fn join(&mut self, other: &Self) {
        self.completions |= other.completions;
        self.logging |= other.logging;
        self.subscribe |= other.subscribe;
        self.tasks.list |= other.tasks.list;
        self.tasks.cancel |= other.tasks.cancel;
        self.tasks.tools_call |= other.tasks.tools_call;
        self.extensions.join(&other.extensions);
        self.experimental.join(&other.experimental);
    }
}

impl Tasks {
    /// The JSON object by which a server declares it; `None` without any.
    pub(crate) fn to_object(self) -> Option<Object> {
        let mut object = Object::new();
        for (name, has) in [("list", self.list), ("cancel", self.cancel)] {
            if has {
                object.set(name, "{}");
            }
        }
        if self.tools_call {
            object.set("requests", r#"{"tools":{"call":{}}}"#);
        }
        Some(object).filter(|object| !object.is_empty())
    }
}

fn declares(object: &Object, member: &str) -> bool {
    object.get(member).is_some_and(|value| value != "null")
}

// === Settings ===

/// Names of extensions with their settings as raw JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extensions(Vec<(Box<str>, Bytes)>);

impl Extensions {
    /// Parses a member that is an object of objects, as far as it is within bounds.
    fn read(declared: &Object, member: &str) -> Self {
        let object = declared.get_object(member).unwrap_or_default();
        let entries = object.members().filter_map(|(name, settings)| {
            let settings = match json::is_empty_array(&settings) {
                true => Bytes::from_static(b"{}"),
                false => Object::parse_trusted(settings).ok()?.to_bytes(),
            };
            let is_small = name.len() <= MAX_NAME_BYTES && settings.len() <= MAX_SETTINGS_BYTES;
            // Unreadable settings would break the first response to each client.
            let fits = is_small && shape::is_readable(&settings);
            // A copy, because a slice would keep the whole message in memory.
            fits.then(|| (name.into(), json::on_one_line(Bytes::copy_from_slice(&settings))))
        });
        Self(entries.take(MAX_SETTINGS).collect())
    }

    fn join(&mut self, other: &Self) {
        for (name, settings) in &other.0 {
            if !self.0.iter().any(|(known, _)| known == name) {
                self.0.push((name.clone(), settings.clone()));
            }
        }
    }

    /// The JSON object by which a server declares them; `None` if there are none.
    pub fn to_object(&self) -> Option<Object> {
        let mut object = Object::new();
        for (name, settings) in &self.0 {
            object.set(String::from(&**name), settings.clone());
        }
        Some(object).filter(|object| !object.is_empty())
    }
}

/// Maximum number of extensions of one server.
const MAX_SETTINGS: usize = 32;
/// Maximum lengths of an extension's name and of its settings.
const MAX_NAME_BYTES: usize = 256;
const MAX_SETTINGS_BYTES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Capabilities {
        Capabilities::read(&Object::parse(text.to_owned()).expect("an object"))
    }

    fn text(settings: &Extensions) -> String {
        let object = settings.to_object().map(|object| object.to_bytes());
        String::from_utf8_lossy(&object.unwrap_or_default()).into_owned()
    }

    #[test]
    fn a_servers_capabilities_are_read() {
        assert_eq!(read("{}"), Capabilities::default());
        let odd = r#"{"completions":null,"resources":{"subscribe":"true"},"tasks":[],"extensions":{"a":7},"experimental":1}"#;
        assert_eq!(read(odd), Capabilities::default());
        let all = read(
            r#"{"completions":{},"logging":{},"resources":{"subscribe":true},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}},
               "extensions":{"x/a":{"n":1e300},"x/b":{"n":1e400},"x/c":{"n":"\ud800"}},"experimental":{"b":{}}}"#,
        );
        assert!(all.completions && all.logging && all.subscribe);
        let tasks = all.tasks.to_object().expect("tasks").to_bytes();
        assert_eq!(tasks, r#"{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}"#);
        assert_eq!(text(&all.extensions), r#"{"x/a":{"n":1e300}}"#);
        assert_eq!(text(&all.experimental), r#"{"b":{}}"#);
        assert_eq!(Capabilities::read(&all.to_object()), all);
        assert_eq!(Tasks::default().to_object(), None);
    }

    #[test]
    fn empty_array_declares_a_capability_without_settings() {
        let of = |empty: &str| {
            read(&format!(
                r#"{{"completions":{empty},"logging":{empty},"resources":{empty},
                    "tasks":{{"list":{empty},"requests":{{"tools":{{"call":{empty}}}}}}},
                    "extensions":{{"x/a":{empty}}},"experimental":{{"x/b":{empty}}}}}"#
            ))
        };
        assert_eq!(of("[]"), of("{}"));
        assert!(of("[ ]").completions && text(&of("[ ]").extensions) == r#"{"x/a":{}}"#);
        for outer in ["extensions", "experimental", "tasks", "resources"] {
            assert_eq!(read(&format!(r#"{{"{outer}":[]}}"#)), Capabilities::default());
        }
        assert_eq!(read(r#"{"extensions":{"x/a":[1]}}"#), Capabilities::default());
    }

    #[test]
    fn of_two_settings_the_first_stays() {
        let mut both = read(r#"{"completions":{},"extensions":{"x/a":{"n":1}}}"#);
        both.join(&read(r#"{"logging":{},"extensions":{"x/b":{},"x/a":{"n":2}}}"#));
        assert!(both.completions && both.logging && !both.subscribe);
        assert_eq!(text(&both.extensions), r#"{"x/a":{"n":1},"x/b":{}}"#);
    }

    #[test]
    fn all_is_carried_but_a_list_of_everybodys_tasks() {
        let all = r#"{"logging":{},"resources":{"subscribe":true},"tasks":{"list":{},"cancel":{}},"extensions":{"io.modelcontextprotocol/tasks":{},"x/a":{}}}"#;
        let forwarded = read(all).forwarded();
        assert!(forwarded.logging && forwarded.subscribe && forwarded.has_tasks());
        assert_eq!(forwarded.tasks, Tasks { cancel: true, ..Tasks::default() });
        assert!(!forwarded.without_tasks().has_tasks());
        assert!(Object::parse(OWN).is_ok() && read(TASKS).has_tasks());
    }

    #[test]
    fn a_boastful_server_is_known_by_little() {
        let many: Vec<_> = (0..100).map(|n| format!(r#""x/{n}":{{}}"#)).collect();
        let many = read(&format!(r#"{{"extensions":{{{}}}}}"#, many.join(",")));
        assert_eq!(many.extensions.0.len(), MAX_SETTINGS);
        let long = "x".repeat(MAX_SETTINGS_BYTES);
        let long = read(&format!(r#"{{"extensions":{{"{long}":{{}},"b":{{"t":"{long}"}}}}}}"#));
        assert_eq!(long.extensions, Extensions::default());
    }
}
