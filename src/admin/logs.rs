//! Log of one upstream, as lines of JSON: about the log first, then one for each entry.
//!
//! Invariants: a response is bounded, as the log is, and what is secret or invisible has been
//! replaced. A client that follows a log asks again with the number of the last entry; a gap in the
//! numbers shows how many entries were dropped before they were read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Admin;
use weir_base::text::quote::quote;
use weir_base::time::timestamp;
use weir_config::nearest;
use weir_upstream::health::upstream_log::{LogKind, LogLine};
use weir_upstream::{Upstream as LiveUpstream, UpstreamSource};

/// Query for entries of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogQuery {
    /// Name of the upstream.
    pub upstream: String,
    /// Number of the last entry that is known; 0 if none is.
    pub after: u64,
    /// Most entries: the last ones of those after that one.
    pub lines: usize,
}

impl LogQuery {
    /// Returns the query string. The name is that of an upstream, so it needs no encoding.
    pub fn to_query(&self) -> String {
        let Self { upstream, after, lines } = self;
        format!("upstream={upstream}&after={after}&lines={lines}")
    }

    /// Parses a query string; `after` and `lines` may be missing.
    fn parse(query: &str) -> Option<Self> {
        let mut parsed = Self { upstream: String::new(), after: 0, lines: usize::MAX };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "upstream" => value.clone_into(&mut parsed.upstream),
                "after" => parsed.after = value.parse().ok()?,
                "lines" => parsed.lines = value.parse().ok()?,
                _ => {}
            }
        }
        (!parsed.upstream.is_empty()).then_some(parsed)
    }
}

/// First line of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogHead {
    /// Name of the upstream.
    pub upstream: String,
    /// Id of the process of Weir that has the log.
    pub weir: u32,
    /// `process`, `http`, `library`, `one-replica`, `unresolved` or `notice`: only a process has
    /// standard error.
    pub source: String,
    /// Id of the log: another one has other numbers.
    pub log: u64,
    /// Number of the last entry of the log.
    pub last: u64,
}

/// Entry of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogRecord {
    /// Number within the log.
    pub number: u64,
    /// Time in UTC, to the millisecond.
    pub time: String,
    /// Number of the process of the upstream; `None` for its connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u64>,
    /// `stderr`, `started`, `ended` or `connection`.
    pub event: String,
    /// Line of standard error, or description of the event.
    pub text: String,
}

impl LogRecord {
    fn of(line: LogLine) -> Self {
        let mut time = String::new();
        timestamp::push_millis(&mut time, line.time);
        let kind: &str = line.kind.into();
        let (number, process, text) = (line.number, line.process, line.text);
        Self { number, time, process, event: kind.to_owned(), text }
    }

    /// Returns whether the upstream has written the text itself, to its standard error.
    pub fn is_output(&self) -> bool {
        self.event == <&str>::from(LogKind::Stderr)
    }
}

/// Processes a query; an error says why there is no log, with a line break at its end.
pub(super) async fn respond(admin: &Arc<Admin>, query: &str) -> Result<String, String> {
    let query = LogQuery::parse(query).ok_or(MALFORMED)?;
    let upstreams = admin.gateway.upstreams();
    let Some(upstream) = upstreams.iter().find(|it| it.name().as_str() == query.upstream) else {
        let names = upstreams.iter().map(|it| it.name().as_str());
        return Err(unknown_upstream(&query.upstream, names) + "\n");
    };
    let (upstream, LogQuery { after, lines, .. }) = (upstream.clone(), query);
    // Secrets are searched for in each line.
    let read = tokio::task::spawn_blocking(move || to_json_lines(&upstream, after, lines)).await;
    read.map_err(|bug| format!("{bug}\n"))
}

/// Text for a name that no upstream has.
pub fn unknown_upstream<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let hint = match nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`weir status` shows which there are".to_owned(),
    };
    format!("no upstream `{}`; {hint}", quote(name, MAX_NAME_CHARS))
}

fn to_json_lines(upstream: &LiveUpstream, after: u64, count: usize) -> String {
    let page = upstream.read_log(after, count);
    let head = LogHead {
        upstream: upstream.name().to_string(),
        weir: std::process::id(),
        source: source_name(&upstream.settings().source).to_owned(),
        log: page.id,
        last: page.last,
    };
    let records = page.lines.into_iter().map(|line| json_line(&LogRecord::of(line)));
    std::iter::once(json_line(&head)).chain(records).collect()
}

fn source_name(source: &UpstreamSource) -> &'static str {
    match source {
        UpstreamSource::Process(_) => "process",
        UpstreamSource::Http { .. } => "http",
        UpstreamSource::Library { .. } => "library",
        UpstreamSource::OnOneReplica { .. } => "one-replica",
        UpstreamSource::Unresolved { .. } => "unresolved",
        UpstreamSource::Notice { .. } => "notice",
    }
}

/// Encodes one line, with its line break.
fn json_line(value: &impl Serialize) -> String {
    // Encoding cannot fail: every member has a JSON form.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

/// Media type of a response.
pub(super) const CONTENT_TYPE: &str = "application/x-ndjson";
const MALFORMED: &str = "malformed query: it is upstream=NAME&after=NUMBER&lines=COUNT\n";
/// Longest part of an unknown name that is repeated.
const MAX_NAME_CHARS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_an_upstream_and_may_have_bounds() {
        let query = LogQuery { upstream: "hub".to_owned(), after: 7, lines: 100 };
        assert_eq!(LogQuery::parse(&query.to_query()), Some(query.clone()));
        let all = LogQuery { after: 0, lines: usize::MAX, ..query };
        assert_eq!(LogQuery::parse("x&upstream=hub&y=1"), Some(all));
        for query in ["", "after=1", "upstream=", "upstream=a&after=-1", "upstream=a&lines=x"] {
            assert_eq!(LogQuery::parse(query), None, "{query}");
        }
    }

    #[test]
    fn an_unknown_name_is_quoted_and_answered_with_one_that_is_near() {
        let known = || ["hub", "notes"].into_iter();
        assert_eq!(unknown_upstream("hab", known()), "no upstream `hab`; did you mean `hub`?");
        assert_eq!(
            unknown_upstream("\u{1b}[2J", known()),
            r"no upstream `\u{1b}[2J`; `weir status` shows which there are"
        );
    }
}
