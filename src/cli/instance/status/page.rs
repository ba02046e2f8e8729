//! A status as text, for any width.
//!
//! Promises: no line is wider than asked for, but for a single word that is; what upstreams say cannot move the cursor;
//! whoever reads without colors reads the same words.
//!
//! Knows nothing of: how a status is asked for.

use crate::admin::status::{Status, Upstream};
use crate::cli::query::render::plain;

/// A text that grows by lines.
pub(in crate::cli) struct Page {
    columns: usize,
    colored: bool,
    text: String,
}

impl Page {
    /// An empty page of this width.
    pub(in crate::cli) fn new(columns: usize, colored: bool) -> Self {
        Self { columns, colored, text: String::new() }
    }

    /// The whole status.
    pub(in crate::cli) fn of(mut self, status: &Status) -> String {
        let state = match (status.draining, status.ready) {
            (true, _) => "stopping",
            (false, true) => "ready",
            (false, false) => "not ready",
        };
        self.row(
            "weir",
            &format!("{}, {state}, for {}", status.version, lasted(status.uptime_seconds)),
        );
        self.row("endpoint", &status.endpoint);
        if let Some(file) = &status.configuration {
            self.row("config", file);
        }
        if let Some(refused) = &status.refused {
            let text = format!(
                "refused at {}, the former one holds: {}; your move: `weir check` tells all",
                refused.at, refused.why
            );
            self.row("", &text);
        }
        let clients = [
            counted(status.connections, "connection"),
            counted(status.sessions, "session"),
            counted(status.streams, "stream"),
        ];
        self.row("clients", &clients.join(", "));
        let (count, errors) = status
            .methods
            .iter()
            .fold((0, 0), |(count, errors), it| (count + it.count, errors + it.errors));
        self.row("requests", &format!("{count}, {errors} of them failed"));
        let refusals: Vec<_> = status
            .refusals
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        if !refusals.is_empty() {
            self.row("refused", &refusals.join(", "));
        }
        match &status.audit {
            None => self.row("audit", "off"),
            Some(audit) => {
                let mut words = vec![match audit.failing {
                    true => "cannot be written: see the log, and make room or correct the path"
                        .to_owned(),
                    false => "on".to_owned(),
                }];
                words.push(match audit.lost {
                    0 => "nothing lost".to_owned(),
                    lost => format!("{lost} lost"),
                });
                self.row("audit", &words.join(", "));
            }
        }
        if let Some(usage) = &status.usage {
            let (mib, cpu) = (usage.memory >> 20, usage.cpu_seconds);
            self.row(
                "process",
                &format!(
                    "{}, {mib} MiB, {cpu:.1} s of processor time, {} files",
                    status.process, usage.files
                ),
            );
        }
        for limit in &status.limits {
            let ago = lasted(limit.ago_seconds as f64);
            let text = format!(
                "limits[{}] ({}) refused {}, last {ago} ago",
                limit.number, limit.what, limit.refused
            );
            self.row("limit", &text);
        }
        let widest = |of: fn(&Upstream) -> &str, most| {
            status.upstreams.iter().map(|it| of(it).len()).max().unwrap_or(0).min(most)
        };
        let width = (widest(|it| &it.state, usize::MAX).max(4), widest(|it| &it.name, 16));
        if !status.upstreams.is_empty() {
            self.text.push('\n');
        }
        for upstream in &status.upstreams {
            self.upstream(upstream, width);
        }
        self.text
    }

    /// `width` is that of the states, and that of the names.
    fn upstream(&mut self, it: &Upstream, (states, names): (usize, usize)) {
        let mark = match (&*it.state, it.required) {
            ("up", _) => self.paint("up", 32),
            ("asleep", _) => "asleep".to_owned(),
            ("starting", _) => self.paint("starting", 33),
            (other, _) => self.paint(other, 31),
        };
        let head = format!(
            "{mark:pad$}  {:names$}  ",
            it.name,
            pad = states + mark.len() - it.state.len()
        );
        let indent = if self.columns >= 60 { 4 + states + names } else { 4 };
        let how: Vec<_> =
            [it.wire.as_deref(), it.revision.as_deref()].into_iter().flatten().collect();
        let items: Vec<_> = [
            ("prompts", "prompt"),
            ("tools", "tool"),
            ("resources", "resource"),
            ("resourceTemplates", "template"),
        ]
        .into_iter()
        .filter_map(|(member, word)| match it.items.get(member).copied().unwrap_or(0) {
            0 => None,
            count => Some(counted(count as u64, word)),
        })
        .collect();
        let mut first = how.join(" ");
        if !items.is_empty() {
            first = [first, items.join(", ")]
                .into_iter()
                .filter(|it| !it.is_empty())
                .collect::<Vec<_>>()
                .join("; ");
        }
        if let Some(reason) = &it.reason {
            let reason = plain(reason);
            first = if first.is_empty() { reason } else { format!("{reason}; {first}") };
        }
        if it.required {
            first += if first.is_empty() { "required" } else { "; required" };
        }
        let visible = head.len() - (mark.len() - it.state.len());
        self.wrap(&head, visible, &first, indent);
        if !it.is_connected() && !matches!(&*it.state, "starting" | "asleep") {
            self.wrap(&" ".repeat(indent), indent, &move_of(it), indent);
        }
        let mut load = vec![counted(it.calls, "call"), counted(it.errors, "error")];
        load.push(format!("{} in flight", it.in_flight));
        if it.waiting > 0 {
            load.push(format!("{} waiting", it.waiting));
        }
        if it.restarts > 0 {
            load.push(counted(it.restarts, "restart"));
        }
        self.wrap(&" ".repeat(indent), indent, &load.join(", "), indent);
        // Its state stands in the first line.
        let lists = Upstream { state: "up".to_owned(), ..it.clone() }.why_not_whole();
        for why in lists {
            self.wrap(&" ".repeat(indent), indent, &plain(&why), indent);
        }
        for left_out in it.left_out.iter().take(MAX_LEFT_OUT) {
            self.wrap(
                &" ".repeat(indent),
                indent,
                &format!("left out: {}", plain(left_out)),
                indent,
            );
        }
        if let more @ 1.. = it.left_out.len().saturating_sub(MAX_LEFT_OUT) {
            let text = format!("left out: {more} more; `weir status --json` tells them");
            self.wrap(&" ".repeat(indent), indent, &text, indent);
        }
    }

    fn row(&mut self, name: &str, text: &str) {
        let head = format!("{name:9} ");
        self.wrap(&head, head.len(), &plain(text), if self.columns >= 60 { head.len() } else { 2 });
    }

    /// A line that begins with `head`, which is `width` columns wide, and goes on below if it has to.
    fn wrap(&mut self, head: &str, width: usize, text: &str, indent: usize) {
        self.text.push_str(head);
        let mut at = width;
        let mut is_first = true;
        for word in text.split(' ') {
            let length = word.chars().count();
            if !is_first && at + 1 + length > self.columns
                || is_first && at + length > self.columns && at > indent
            {
                while self.text.ends_with(' ') {
                    self.text.pop();
                }
                self.text.push('\n');
                self.text.push_str(&" ".repeat(indent));
                at = indent;
            } else if !is_first {
                self.text.push(' ');
                at += 1;
            }
            self.text.push_str(word);
            at += length;
            is_first = false;
        }
        while self.text.ends_with(' ') {
            self.text.pop();
        }
        self.text.push('\n');
    }

    fn paint(&self, word: &str, color: u8) -> String {
        match self.colored {
            true => format!("\u{1b}[{color}m{word}\u{1b}[0m"),
            false => word.to_owned(),
        }
    }
}

/// The most items that are told to be left out, of one upstream.
const MAX_LEFT_OUT: usize = 5;

/// Whose move it is at an upstream that is not connected.
fn move_of(it: &Upstream) -> String {
    let again = match it.next_try_seconds {
        Some(seconds) => format!("Weir tries again in {}", lasted(seconds as f64)),
        None => "Weir tries again by itself".to_owned(),
    };
    let since = lasted(it.since_seconds as f64);
    format!("for {since}; your move: see that it runs and that its table is right; {again}")
}

fn counted(count: u64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

/// A time in words, to its two largest units.
pub(crate) fn lasted(seconds: f64) -> String {
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

    use crate::admin::status::{Audit, Limit, Method, Usage};
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
            started: name("2026-11-22T01:02:03Z"),
            uptime_seconds: 93_784.2,
            ready: true,
            draining: false,
            connections: 12,
            sessions: 1,
            streams: 3,
            upstreams: vec![
                Upstream {
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
                    ..Upstream::default()
                },
                Upstream {
                    name: name("notes"),
                    state: name("down"),
                    reason: Some(name(
                        "connection\u{1b}[2J refused by the host that its url names",
                    )),
                    missing: vec![name("tools/list")],
                    ..Upstream::default()
                },
            ],
            methods: vec![Method { count: 5_000, errors: 12, ..Method::default() }],
            refusals: BTreeMap::from([(name("auth"), 7), (name("limit"), 0)]),
            limits: vec![Limit {
                number: 1,
                what: name("one in 1s, 60 at once, per client"),
                refused: 9,
                ago_seconds: 75,
                ..Limit::default()
            }],
            audit: Some(Audit { lost: 2, left_out: 0, failing: false }),
            usage: Some(Usage { memory: 24 << 20, cpu_seconds: 1.25, files: 19 }),
        }
    }

    #[test]
    fn a_status_is_readable_on_wide_and_on_narrow_terminals() {
        let [wide, narrow] = [80, 40].map(|columns| Page::new(columns, false).of(&status()));
        for (columns, text) in [(80, &wide), (40, &narrow)] {
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert!(!text.contains('\u{1b}'), "{text}");
        }
        assert_snapshot!(wide);
        assert_snapshot!(narrow);
    }

    #[test]
    fn colors_change_no_word() {
        let colored = Page::new(80, true).of(&status());
        let plain = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[0m"];
        let plain = plain.iter().fold(colored.clone(), |text, code| text.replace(code, ""));
        assert_ne!(colored, plain);
        assert_eq!(plain, Page::new(80, false).of(&status()));
    }
}
