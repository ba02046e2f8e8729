//! Text form of a status, for any terminal width.
//!
//! Invariants: no line is wider than requested, unless a single word is; texts from upstreams
//! cannot move the cursor; colors change no word.

use crate::admin::status::{Status, UpstreamStatus};
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::output::wrapped_text::{TextColor, WrappedText};
use weir_mcp::kind::Kind;

/// Builder of the text.
pub(crate) struct StatusPage {
    text: WrappedText,
}

impl StatusPage {
    /// Creates an empty page of this width.
    pub(crate) fn new(columns: usize, colored: bool) -> Self {
        Self { text: WrappedText::new(columns, colored) }
    }

    /// Formats the whole status.
    pub(crate) fn format(mut self, status: &Status) -> String {
        let state = match (status.draining, status.ready) {
            (true, _) => "stopping",
            (false, true) => "ready",
            (false, false) => "not ready",
        };
        self.row(
            "weir",
            &format!("{}, {state}, for {}", status.version, format_duration(status.uptime_seconds)),
        );
        self.row("endpoint", &status.endpoint);
        if let Some(file) = &status.configuration {
            self.row("config", file);
        }
        if let Some(refused) = &status.refused {
            let text =
                format!("{}: {}; run `weir check` for details", refused.describe(), refused.why);
            self.row("", &text);
        }
        let clients = [
            counted(status.connections, "connection"),
            counted(status.sessions, "session"),
            counted(status.streams, "stream"),
        ];
        self.row("clients", &clients.join(", "));
        let count: u64 = status.methods.iter().map(|it| it.count).sum();
        let errors: u64 = status.methods.iter().map(|it| it.errors).sum();
        self.row("requests", &format!("{count}, {errors} of them failed"));
        let refusals = status.refusals.iter().filter(|(_, count)| **count > 0);
        let refusals: Vec<_> =
            refusals.map(|(reason, count)| format!("{count} {reason}")).collect();
        if !refusals.is_empty() {
            self.row("refused", &refusals.join(", "));
        }
        for (provider, count) in status.users_without_role.iter().filter(|(_, count)| **count > 0) {
            let users = counted(*count as u64, "user");
            self.row("users", &format!("{users} of {provider} without a role: see the log"));
        }
        if let Some(fleet) = &status.fleet {
            let members = counted(fleet.members as u64, "replica");
            let store = if fleet.store { "connected" } else { "away" };
            let text = format!("{} as {}, {members}, store {store}", fleet.name, fleet.member);
            self.row("fleet", &text);
            fleet.differences.iter().for_each(|it| self.row("", &sanitize_line(it)));
        }
        match &status.audit {
            None => self.row("audit", "off"),
            Some(audit) => {
                let state = match audit.failing {
                    true => FAILING_AUDIT,
                    false => "on",
                };
                let lost = match audit.lost {
                    0 => "nothing".to_owned(),
                    lost => lost.to_string(),
                };
                self.row("audit", &format!("{state}, {lost} lost"));
            }
        }
        if let Some(usage) = &status.usage {
            let (mib, cpu) = (usage.memory >> 20, usage.cpu_seconds);
            let (process, files) = (status.process, usage.files);
            let text = format!("{process}, {mib} MiB, {cpu:.1} s of processor time, {files} files");
            self.row("process", &text);
        }
        for limit in &status.limits {
            let ago = format_duration(limit.ago_seconds as f64);
            let text = format!(
                "limits[{}] ({}) refused {}, last {ago} ago",
                limit.number, limit.what, limit.refused
            );
            self.row("limit", &text);
        }
        let widest = |of: fn(&UpstreamStatus) -> &str, most| {
            status.upstreams.iter().map(|it| of(it).len()).max().unwrap_or(0).min(most)
        };
        let disabled = status.disabled.iter().map(|name| name.len()).max().unwrap_or(0);
        let state = if status.disabled.is_empty() { 4 } else { DISABLED.len() };
        let states = widest(|it| &it.state, usize::MAX).max(state);
        let width = (states, widest(|it| &it.name, 16).max(disabled.min(16)));
        if !status.upstreams.is_empty() || !status.disabled.is_empty() {
            self.text.add_gap();
        }
        for upstream in &status.upstreams {
            self.upstream(upstream, width);
        }
        for name in &status.disabled {
            self.disabled(name, width);
        }
        self.text.finish()
    }

    /// Adds an upstream that the configuration disables.
    fn disabled(&mut self, name: &str, (states, names): (usize, usize)) {
        let mark = self.text.colorize(DISABLED, TextColor::Dim);
        let invisible = mark.len() - DISABLED.len();
        let head = format!("{mark:pad$}  {name:names$}  ", pad = states + invisible);
        let indent = if self.text.is_wide() { 4 + states + names } else { 4 };
        let text = format!("`weir enable {name}` enables it");
        self.text.add(&head, head.len() - invisible, &text, indent);
    }

    /// Adds an upstream; the widths are those of the states and of the names.
    fn upstream(&mut self, it: &UpstreamStatus, (states, names): (usize, usize)) {
        let mark = match &*it.state {
            "asleep" => "asleep".to_owned(),
            "up" => self.text.colorize("up", TextColor::Green),
            state @ ("starting" | "needs-sign-in") => self.text.colorize(state, TextColor::Yellow),
            other => self.text.colorize(other, TextColor::Red),
        };
        let invisible = mark.len() - it.state.len();
        let head = format!("{mark:pad$}  {:names$}  ", it.name, pad = states + invisible);
        let indent = if self.text.is_wide() { 4 + states + names } else { 4 };
        let how = [it.wire.as_deref(), it.revision.as_deref()].into_iter().flatten();
        let items = Kind::ALL.into_iter().filter_map(|kind| {
            let count = *it.items.get(kind.list_member())? as u64;
            (count > 0).then(|| counted(count, kind.json_name()))
        });
        let about = [
            it.reason.as_deref().map(sanitize_line).unwrap_or_default(),
            how.collect::<Vec<_>>().join(" "),
            items.collect::<Vec<_>>().join(", "),
            if it.required { "required".to_owned() } else { String::new() },
        ];
        let about: Vec<_> = about.into_iter().filter(|part| !part.is_empty()).collect();
        self.text.add(&head, head.len() - invisible, &about.join("; "), indent);
        if !it.is_connected() && !matches!(&*it.state, "starting" | "asleep") {
            self.line(indent, &describe_action(it));
        }
        let mut load = vec![counted(it.calls, "call"), counted(it.errors, "error")];
        load.push(format!("{} in flight", it.in_flight));
        if it.waiting > 0 {
            load.push(format!("{} waiting", it.waiting));
        }
        if it.restarts > 0 {
            load.push(counted(it.restarts, "restart"));
        }
        self.line(indent, &load.join(", "));
        // The state is in the first line already.
        let lists = UpstreamStatus { state: "up".to_owned(), ..it.clone() }.problems_for_clients();
        lists.iter().for_each(|why| self.line(indent, why));
        for (what, lines) in [("left out", &it.left_out), ("altered", &it.altered)] {
            for line in lines.iter().take(MAX_LEFT_OUT) {
                self.line(indent, &format!("{what}: {line}"));
            }
            if let more @ 1.. = lines.len().saturating_sub(MAX_LEFT_OUT) {
                let text = format!("{what}: {more} more; `weir status --json` lists them");
                self.line(indent, &text);
            }
        }
        it.notes.iter().for_each(|note| self.line(indent, &format!("note: {}", note.text)));
    }

    /// Adds an indented line.
    fn line(&mut self, indent: usize, text: &str) {
        self.text.add_indented(indent, &sanitize_line(text));
    }

    fn row(&mut self, name: &str, text: &str) {
        let head = format!("{name:9} ");
        let indent = if self.text.is_wide() { head.len() } else { 2 };
        self.text.add(&head, head.len(), &sanitize_line(text), indent);
    }
}

const DISABLED: &str = "disabled";

const FAILING_AUDIT: &str =
    "cannot be written: see the log, and free disk space or correct the path";

/// Most left-out items that are listed for one upstream.
const MAX_LEFT_OUT: usize = 5;

/// Advice for an upstream that is not connected.
fn describe_action(it: &UpstreamStatus) -> String {
    let again = match it.next_try_seconds {
        Some(seconds) => format!("Weir retries in {}", format_duration(seconds as f64)),
        None => "Weir retries automatically".to_owned(),
    };
    let since = format_duration(it.since_seconds as f64);
    format!("for {since}; check that it runs and that its table is correct; {again}")
}

/// Formats a duration with its two largest units.
pub(crate) fn format_duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use insta::assert_snapshot;

    use crate::admin::status::{AuditStatus, LimitStatus, MethodStatus, Usage};
    use crate::cli::instance::status::page::*;

    fn status() -> Status {
        let items = [("prompts", 2), ("tools", 41), ("resources", 0), ("resourceTemplates", 1)];
        let items = BTreeMap::from(items.map(|(kind, count)| (kind.to_owned(), count)));
        let name = |name: &str| name.to_owned();
        Status {
            version: name("0.1.0"),
            configuration: Some(name("/etc/weir/weir.toml")),
            refused: None,
            endpoint: name("http://127.0.0.1:8642/mcp"),
            process: 4_711,
            replaced: false,
            started: name("2026-11-22T01:02:03Z"),
            uptime_seconds: 93_784.2,
            ready: true,
            draining: false,
            connections: 12,
            sessions: 1,
            streams: 3,
            upstreams: vec![
                UpstreamStatus {
                    name: name("github"),
                    state: name("up"),
                    required: true,
                    wire: Some(name("http")),
                    revision: Some(name("2025-11-25")),
                    items,
                    left_out: vec![name("tool `a b`: its name holds what no name may")],
                    in_flight: 3,
                    waiting: 2,
                    restarts: 1,
                    calls: 1_200,
                    errors: 4,
                    ..UpstreamStatus::default()
                },
                UpstreamStatus {
                    name: name("notes"),
                    state: name("down"),
                    reason: Some(name(
                        "connection\u{1b}[2J refused by the host that its url names",
                    )),
                    missing: vec![name("tools/list")],
                    ..UpstreamStatus::default()
                },
            ],
            disabled: vec![name("attic")],
            methods: vec![MethodStatus { count: 5_000, errors: 12, ..MethodStatus::default() }],
            refusals: BTreeMap::from([(name("auth"), 7), (name("limit"), 0)]),
            users_without_role: BTreeMap::from([(name("corp"), 3), (name("okta"), 0)]),
            fleet: None,
            limits: vec![LimitStatus {
                number: 1,
                what: name("60/min, per client"),
                refused: 9,
                ago_seconds: 75,
                ..LimitStatus::default()
            }],
            audit: Some(AuditStatus { lost: 2, ..AuditStatus::default() }),
            usage: Some(Usage { memory: 24 << 20, cpu_seconds: 1.25, files: 19 }),
        }
    }

    #[test]
    fn a_status_is_readable_on_wide_and_on_narrow_terminals() {
        let [wide, narrow] =
            [80, 40].map(|columns| StatusPage::new(columns, false).format(&status()));
        for (columns, text) in [(80, &wide), (40, &narrow)] {
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert!(!text.contains('\u{1b}'), "{text}");
        }
        assert_snapshot!(wide);
        assert_snapshot!(narrow);
    }

    #[test]
    fn colors_change_no_word() {
        let colored = StatusPage::new(80, true).format(&status());
        let plain = ["\u{1b}[2m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[0m"];
        let plain = plain.iter().fold(colored.clone(), |text, code| text.replace(code, ""));
        assert_ne!(colored, plain);
        assert_eq!(plain, StatusPage::new(80, false).format(&status()));
    }
}
