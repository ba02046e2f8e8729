//! Tables in Markdown: one for each workload, a row for each subject, medians, and ratios to direct
//! and to nginx.

use std::fmt::Write as _;

use crate::results::{Results, Taken, Workload};

/// All workloads.
pub(crate) fn tables(results: &Results) -> String {
    results.workloads.iter().map(table).collect()
}

fn table(workload: &Workload) -> String {
    let mut columns: Vec<&str> = Vec::new();
    for (figure, _) in COLUMNS {
        if workload.subjects.iter().any(|taken| taken.figures.contains_key(*figure)) {
            columns.push(figure);
        }
    }
    let mut heads = vec!["subject".to_owned()];
    for column in &columns {
        heads.push(title(column).to_owned());
        heads.extend(references(workload, column).map(|(name, _)| format!("to {name}")));
    }
    let mut text = format!("### {}\n\n| {} |\n", workload.name, heads.join(" | "));
    let _ = writeln!(text, "|---{}|", "|---:".repeat(heads.len() - 1));
    for taken in &workload.subjects {
        let mut cells = vec![taken.subject.clone()];
        if taken.problem.is_none() {
            for column in &columns {
                let value = taken.median(column);
                cells.push(value.map_or("–".into(), formatted));
                for (_, reference) in references(workload, column) {
                    let ratio = value.zip(reference.median(column)).map(|(ours, its)| ours / its);
                    cells.push(ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")));
                }
            }
        }
        let _ = match &taken.problem {
            None => writeln!(text, "| {} |", cells.join(" | ")),
            Some(problem) => writeln!(
                text,
                "| {} | failed: {problem} {}|",
                taken.subject,
                "| ".repeat(heads.len().saturating_sub(2))
            ),
        };
    }
    text.push('\n');
    text
}

/// Subjects that a column is compared with.
fn references<'a>(
    workload: &'a Workload,
    column: &'a str,
) -> impl Iterator<Item = (&'static str, &'a Taken)> {
    let names = COLUMNS.iter().find(|(figure, _)| *figure == column).map_or(&[][..], |(_, to)| to);
    names.iter().filter_map(|name| {
        let taken = workload.subjects.iter().find(|taken| taken.subject == *name)?;
        taken.median(column).map(|_| (*name, taken))
    })
}

fn title(column: &str) -> &str {
    match column {
        "per_s" => "per s",
        "p50_us" => "p50 µs",
        "p99_us" => "p99 µs",
        "p99.9_us" => "p99.9 µs",
        "cpu_us" => "CPU µs",
        "peak_mib" => "peak MiB",
        "idle_mib" => "idle MiB",
        "with_256_mib" => "256 connections MiB",
        "told_ms" => "all notified ms",
        "changed_to_told_ms" => "from the change ms",
        "cpu_ms" => "CPU ms",
        "kib_each" => "KiB a stream",
        "first_list_ms" => "first list ms",
        "idle_10_mib" => "idle MiB",
        "refused_ms" => "owner killed ms",
        "silent_ms" => "owner silent ms",
        other => other,
    }
}

/// A figure in three to five digits.
pub(super) fn formatted(value: f64) -> String {
    match value {
        1_000.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The columns in their order, each with the subjects that it is compared with.
const COLUMNS: &[(&str, &[&str])] = &[
    ("per_s", &["direct", "nginx"]),
    ("p50_us", &[]),
    ("p99_us", &["nginx"]),
    ("p99.9_us", &[]),
    ("cpu_us", &["nginx"]),
    ("peak_mib", &[]),
    ("idle_mib", &[]),
    ("with_256_mib", &[]),
    ("told_ms", &[]),
    ("changed_to_told_ms", &[]),
    ("cpu_ms", &[]),
    ("kib_each", &[]),
    ("first_list_ms", &[]),
    ("idle_10_mib", &[]),
    ("refused_ms", &[]),
    ("silent_ms", &[]),
];
