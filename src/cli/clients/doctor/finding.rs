//! Findings of `weir doctor`, and their text and JSON forms.
//!
//! Invariant: each finding that is no note has one command or edit that mends it.

use std::path::Path;

use serde::Serialize;

use crate::cli::clients::McpClient;
use crate::cli::exit::Failure;
use crate::cli::output::render::sanitize_line;
use crate::cli::output::wrapped_text::{TextColor, WrappedText};

/// Severity of a finding, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FindingLevel {
    /// A client gets nothing.
    Error,
    /// Something is missing, wrong or unsafe.
    Warning,
    /// Nothing has to be done.
    Note,
}

/// Something that was found, and its remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DoctorFinding {
    pub(super) level: FindingLevel,
    /// Clients that it is about; empty if it is about Weir itself.
    pub(super) clients: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// Client in which everything is as it should be.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SoundClient {
    pub(super) name: &'static str,
    pub(super) summary: String,
}

/// All findings, and the clients without any.
#[derive(Debug, Default, Serialize)]
pub(super) struct DoctorReport {
    pub(super) findings: Vec<DoctorFinding>,
    pub(super) sound: Vec<SoundClient>,
}

impl DoctorFinding {
    pub(super) fn error(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(FindingLevel::Error, what.into(), Some(fix.into()))
    }

    pub(super) fn warning(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(FindingLevel::Warning, what.into(), Some(fix.into()))
    }

    pub(super) fn note(what: impl Into<String>) -> Self {
        Self::new(FindingLevel::Note, what.into(), None)
    }

    /// Makes an error of a failure, whose text has the remedy behind the last semicolon.
    pub(super) fn of_failure(failure: &Failure) -> Self {
        let text = failure.to_string();
        let (what, fix) = text.rsplit_once("; ").unwrap_or((&*text, "correct it"));
        Self::error(what, fix)
    }

    fn new(level: FindingLevel, what: String, fix: Option<String>) -> Self {
        Self { level, clients: Vec::new(), file: None, line: None, what, fix }
    }

    /// Says which client it is about.
    pub(super) fn of(mut self, client: &McpClient) -> Self {
        self.clients = vec![client.name];
        self
    }

    /// Says where it is.
    pub(super) fn at(mut self, file: &Path, line: Option<usize>) -> Self {
        (self.file, self.line) = (Some(file.display().to_string()), line);
        self
    }

    /// Says where it is, as `weir.toml:12`.
    pub(super) fn at_location(mut self, location: Option<&str>) -> Self {
        let Some(location) = location else { return self };
        let parts = location.rsplit_once(':');
        let line = parts.and_then(|(file, line)| Some((file, line.parse().ok()?)));
        (self.file, self.line) = match line {
            Some((file, line)) => (Some(file.to_owned()), Some(line)),
            None => (Some(location.to_owned()), None),
        };
        self
    }

    /// Returns whether another finding differs at most in its clients.
    fn is_like(&self, other: &Self) -> bool {
        let without = |one: &Self| Self { clients: Vec::new(), ..one.clone() };
        without(self) == without(other)
    }

    fn place_and_text(&self) -> String {
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: "),
            (Some(file), None) => format!("{file}: "),
            (None, _) => String::new(),
        };
        format!("{place}{}", self.what)
    }
}

impl DoctorReport {
    /// Adds a finding; one of several clients is added once.
    pub(super) fn add(&mut self, finding: DoctorFinding) {
        match self.findings.iter_mut().find(|old| old.is_like(&finding)) {
            Some(old) if !old.clients.is_empty() && !finding.clients.is_empty() => {
                let new = finding.clients.into_iter().filter(|it| !old.clients.contains(it));
                let new: Vec<_> = new.collect();
                old.clients.extend(new);
            }
            Some(_) => {}
            None => self.findings.push(finding),
        }
    }

    /// Sorts the findings, the worst first, and otherwise as they were found.
    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| finding.level);
    }

    /// Returns the number of findings with something to do.
    pub(super) fn count_to_do(&self) -> usize {
        self.findings.iter().filter(|it| it.level != FindingLevel::Note).count()
    }

    /// Returns whether something has to be done about a client.
    pub(super) fn is_sound(&self, client: &McpClient) -> bool {
        !self.findings.iter().any(|finding| {
            finding.level != FindingLevel::Note && finding.clients.contains(&client.name)
        })
    }

    /// Formats the report for people.
    pub(super) fn format(&self, mut text: WrappedText) -> String {
        let findings = self.findings.iter().map(subject);
        let sound = self.sound.iter().map(|client| client.name);
        let names = findings.chain(sound).map(str::len).max().unwrap_or(0);
        let indent = if text.is_wide() { WORD_COLUMNS + names + 4 } else { 4 };
        let mut add = |word: &str, color, name: &str, line: &str, fix: Option<&str>| {
            let head = format!("{word:WORD_COLUMNS$}  {name:names$}  ");
            let width = head.len();
            let head = head.replacen(word, &text.colorize(word, color), 1);
            text.add(&head, width, &sanitize_line(line), indent);
            if let Some(fix) = fix {
                text.add_indented(indent, &format!("fix: {}", sanitize_line(fix)));
            }
        };
        let (notes, to_do): (Vec<_>, Vec<_>) =
            self.findings.iter().partition(|it| it.level == FindingLevel::Note);
        let mut add_finding = |finding: &DoctorFinding| {
            let (word, color) = match finding.level {
                FindingLevel::Error => ("error", TextColor::Red),
                FindingLevel::Warning => ("warning", TextColor::Yellow),
                FindingLevel::Note => ("note", TextColor::Dim),
            };
            let others = finding.clients.get(1..).unwrap_or_default();
            let also = match others {
                [] => String::new(),
                others => format!(" (also {})", others.join(", ")),
            };
            let line = finding.place_and_text() + &also;
            add(word, color, subject(finding), &line, finding.fix.as_deref());
        };
        to_do.into_iter().for_each(&mut add_finding);
        notes.into_iter().for_each(add_finding);
        for SoundClient { name, summary } in &self.sound {
            add("ok", TextColor::Green, name, summary, None);
        }
        text.finish()
    }
}

/// Returns the first client of a finding, or Weir itself.
fn subject(finding: &DoctorFinding) -> &'static str {
    finding.clients.first().copied().unwrap_or("weir")
}

/// Columns of the longest word for a level.
const WORD_COLUMNS: usize = "warning".len();

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn report() -> DoctorReport {
        let mut report = DoctorReport::default();
        let client = |name| McpClient::named(name).expect("a client");
        let slow = || {
            let text = "`protocol.list_wait` is 15s, and the client waits 10s for the first lists";
            DoctorFinding::warning(text, "set list_wait = \"4s\" under [protocol]")
        };
        report.add(DoctorFinding::note("190 tools, of which it takes 128").of(client("vscode")));
        report.add(slow().of(client("codex")));
        report.add(slow().of(client("zed")));
        report.add(slow().of(client("zed")));
        let file = Path::new("/home/ada/.cursor/mcp.json");
        let gone = "the entry `weir` starts /opt/weir\u{1b}[31m/bin/weir, which is not there";
        let gone = DoctorFinding::error(gone, "weir connect cursor --write");
        report.add(gone.of(client("cursor")).at(file, Some(7)));
        let summary = "starts Weir with /home/ada/.config/weir/weir.toml".to_owned();
        report.sound.push(SoundClient { name: "gemini", summary });
        report.sort();
        report
    }

    #[test]
    fn the_worst_comes_first_and_lines_fit_their_terminal() {
        let text = |columns| report().format(WrappedText::new(columns, false));
        for columns in [80, 50] {
            let text = text(columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
        assert_snapshot!(text(80), @r#"
        error    cursor  /home/ada/.cursor/mcp.json:7: the entry `weir` starts
                         /opt/weir�[31m/bin/weir, which is not there
                         fix: weir connect cursor --write
        warning  codex   `protocol.list_wait` is 15s, and the client waits 10s for the
                         first lists (also zed)
                         fix: set list_wait = "4s" under [protocol]
        note     vscode  190 tools, of which it takes 128
        ok       gemini  starts Weir with /home/ada/.config/weir/weir.toml
        "#);
        assert_snapshot!(text(50), @r#"
        error    cursor  /home/ada/.cursor/mcp.json:7: the
            entry `weir` starts /opt/weir�[31m/bin/weir,
            which is not there
            fix: weir connect cursor --write
        warning  codex   `protocol.list_wait` is 15s, and
            the client waits 10s for the first lists (also
            zed)
            fix: set list_wait = "4s" under [protocol]
        note     vscode  190 tools, of which it takes 128
        ok       gemini  starts Weir with
            /home/ada/.config/weir/weir.toml
        "#);
        let colored = report().format(WrappedText::new(80, true));
        for word in ["\u{1b}[31merror", "\u{1b}[33mwarning", "\u{1b}[2mnote", "\u{1b}[32mok"] {
            assert!(colored.contains(word), "{colored}");
        }
    }

    #[test]
    fn a_finding_of_several_clients_is_there_once() {
        let report = report();
        let clients = report.findings.iter().map(|finding| finding.clients.clone());
        let expected = [vec!["cursor"], vec!["codex", "zed"], vec!["vscode"]];
        assert_eq!(clients.collect::<Vec<_>>(), expected);
        assert_eq!(report.count_to_do(), 2);
    }

    #[test]
    fn a_place_has_a_line_where_there_is_one() {
        let at = |location| {
            let finding = DoctorFinding::note("x").at_location(location);
            (finding.file, finding.line)
        };
        let file = |name: &str| Some(name.to_owned());
        assert_eq!(at(Some("conf.d/a.toml:12")), (file("conf.d/a.toml"), Some(12)));
        assert_eq!(at(Some("/a:b/weir.toml")), (file("/a:b/weir.toml"), None));
        assert_eq!(at(None), (None, None));
    }
}
