//! Message and fields of a log event as text for people.
//!
//! Invariant: the text is one line without control characters.

use std::error::Error;
use std::fmt;

use tracing::Event;
use tracing::field::{Field, Visit};

use crate::cli::output::render::{counted, sanitize_line};

/// Message and fields of one event.
#[derive(Default)]
pub(super) struct EventText {
    message: String,
    /// Name of the upstream that the event is about.
    pub(super) upstream: Option<String>,
    fields: Vec<(&'static str, String)>,
}

impl EventText {
    /// Reads an event.
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut text = Self::default();
        event.record(&mut text);
        text
    }

    /// Returns the message, the upstream and the other fields.
    pub(super) fn with_upstream(&self) -> String {
        self.join(self.upstream.as_deref())
    }

    /// Returns the message and the fields.
    pub(super) fn without_upstream(&self) -> String {
        self.join(None)
    }

    fn join(&self, upstream: Option<&str>) -> String {
        let fields = self.fields.iter().filter_map(|(name, value)| self.describe(name, value));
        let details: Vec<_> = upstream.map(str::to_owned).into_iter().chain(fields).collect();
        match details.is_empty() {
            true => sanitize_line(&self.message),
            false => sanitize_line(&format!("{}: {}", self.message, details.join(", "))),
        }
    }

    /// Describes a field; `None` if the message says it, or if it counts nothing.
    fn describe(&self, name: &str, value: &str) -> Option<String> {
        if let Some((_, word)) = COUNTS.iter().find(|(counts, _)| *counts == name) {
            let count: u64 = value.parse().ok().filter(|count| *count > 0)?;
            return Some(counted(count, word));
        }
        match PLAIN.contains(&name) {
            _ if value.is_empty() || value.len() > 4 && self.message.contains(value) => None,
            true => Some(value.to_owned()),
            false => Some(format!("{} {value}", name.replace('_', " "))),
        }
    }

    fn keep(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            "upstream" => self.upstream = Some(value),
            // Places of events of the `log` crate.
            name if name.starts_with("log.") => {}
            name => self.fields.push((name, value)),
        }
    }
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.keep(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, format!("{value:?}"));
    }
}

/// Fields whose values need no name.
const PLAIN: [&str; 23] = [
    "address",
    "altered",
    "at",
    "bad",
    "broken",
    "bug",
    "cause",
    "changes",
    "dir",
    "endpoint",
    "error",
    "key",
    "kind",
    "outcome",
    "path",
    "problem",
    "problems",
    "reason",
    "remedy",
    "revision",
    "transport",
    "what",
    "why",
];

/// Fields that count things, with the words for one of them.
const COUNTS: [(&str, &str); 5] = [
    ("prompts", "prompt"),
    ("tools", "tool"),
    ("resources", "resource"),
    ("templates", "template"),
    ("upstreams", "upstream"),
];
