//! Text form of the report of `weir check`: one row per upstream, with its problems below it.

use super::CheckRow;
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::output::wrapped_text::{TextColor, WrappedText};
use weir_mcp::kind::Kind;

/// Formats the rows.
pub(super) fn format_table(rows: &[CheckRow], mut text: WrappedText) -> String {
    let names = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let words = rows.iter().map(|row| word(row).0.len()).max().unwrap_or(0).max(4);
    let indent = if text.is_wide() { words + names + 4 } else { 4 };
    for row in rows {
        let (word, color) = word(row);
        let name = &row.name;
        let head = format!("{word:words$}  {name:names$}  ");
        let width = head.len();
        let head = head.replacen(word, &text.colorize(word, color), 1);
        text.add(&head, width, &describe(row), indent);
        let below =
            [("left out", &row.problems), ("altered", &row.altered), ("warning", &row.warnings)];
        for (what, lines) in below {
            for line in lines {
                text.add_indented(indent, &format!("{what}: {}", sanitize_line(line)));
            }
        }
        for note in &row.notes {
            text.add_indented(indent, &format!("note: {}", sanitize_line(&note.text)));
        }
    }
    text.finish()
}

/// Returns the state of an upstream in one word, with its color.
fn word(row: &CheckRow) -> (&'static str, TextColor) {
    match row {
        CheckRow { ok: true, .. } => ("ok", TextColor::Green),
        CheckRow { disabled: true, .. } => ("disabled", TextColor::Dim),
        CheckRow { needs_sign_in: true, .. } => ("needs sign-in", TextColor::Yellow),
        CheckRow { incomplete: true, .. } => ("incomplete", TextColor::Yellow),
        _ => ("down", TextColor::Red),
    }
}

/// Describes the connection and the items; or why there are none.
fn describe(row: &CheckRow) -> String {
    let state = sanitize_line(&row.state);
    if !row.ok && !row.incomplete {
        return state;
    }
    let counts = [row.prompts, row.tools, row.resources, row.templates];
    let counts = Kind::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
    let counts = counts.map(|(kind, count)| match kind {
        Kind::Tool if row.task_tools > 0 => {
            format!("{} ({} only as a task)", counted(count as u64, kind), row.task_tools)
        }
        _ => counted(count as u64, kind),
    });
    let counts: Vec<_> = counts.collect();
    match counts.is_empty() {
        true => format!("{state}  no items"),
        false => format!("{state}  {}", counts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn rows() -> Vec<CheckRow> {
        let row = |name: &str, state: &str| CheckRow {
            name: name.to_owned(),
            state: state.to_owned(),
            ..CheckRow::default()
        };
        vec![
            CheckRow { ok: true, prompts: 2, ..row("house", "library") },
            CheckRow {
                ok: true,
                tools: 13,
                task_tools: 1,
                resources: 1,
                problems: vec!["tool \"bad\" cannot be used: `title` is not a string".to_owned()],
                ..row("everything", "stdio 2025-06-18")
            },
            CheckRow { ok: true, ..row("idle", "http 2026-07-28") },
            CheckRow {
                needs_sign_in: true,
                ..row("notion", "no access token: sign in with `weir login notion`")
            },
            row(
                "gone",
                "it cannot be started: no such program: /opt/gone; install it, or correct `command`",
            ),
        ]
    }

    fn table(columns: usize) -> String {
        format_table(&rows(), WrappedText::new(columns, false))
    }

    #[test]
    fn what_there_is_stands_in_columns_and_breaks_between_words() {
        for columns in [80, 50] {
            let text = table(columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
        assert_snapshot!(table(80), @r#"
        ok             house       library  2 prompts
        ok             everything  stdio 2025-06-18  13 tools (1 only as a task), 1
                                   resource
                                   left out: tool "bad" cannot be used: `title` is not a
                                   string
        ok             idle        http 2026-07-28  no items
        needs sign-in  notion      no access token: sign in with `weir login notion`
        down           gone        it cannot be started: no such program: /opt/gone;
                                   install it, or correct `command`
        "#);
        assert_snapshot!(table(50), @r#"
        ok             house       library  2 prompts
        ok             everything  stdio 2025-06-18  13
            tools (1 only as a task), 1 resource
            left out: tool "bad" cannot be used: `title`
            is not a string
        ok             idle        http 2026-07-28  no
            items
        needs sign-in  notion      no access token: sign
            in with `weir login notion`
        down           gone        it cannot be started:
            no such program: /opt/gone; install it, or
            correct `command`
        "#);
        assert_eq!(table(usize::MAX).lines().count(), rows().len() + 1);
    }

    #[test]
    fn colors_tell_the_states_apart_and_change_no_word() {
        let colored = format_table(&rows(), WrappedText::new(80, true));
        for word in ["\u{1b}[32mok", "\u{1b}[33mneeds sign-in", "\u{1b}[31mdown"] {
            assert!(colored.contains(word), "{colored}");
        }
        let plain = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"];
        let plain = plain.iter().fold(colored, |text, code| text.replace(code, ""));
        assert_eq!(plain, table(80));
    }
}
