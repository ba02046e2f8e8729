//! Summary of a run: one table and one plot (SVG) that compare the gateways with nginx.

use std::fmt::Write as _;

use super::table::formatted;
use crate::results::Results;

/// Workloads of the summary with their description; the plot has those that are marked.
const WORKLOADS: [(&str, &str, bool); 11] = [
    ("get-1k-modern-32", "prompt, 1 KiB, modern", true),
    ("get-1k-legacy-32", "prompt, 1 KiB, legacy", true),
    ("call-1k-modern-32", "tool call, 1 KiB, modern", true),
    ("call-1k-legacy-32", "tool call, 1 KiB, legacy", true),
    ("call-1k-modern-256", "tool call, 1 KiB, 256 connections", false),
    ("mixed-legacy-modern", "tool call, legacy client, modern server", false),
    ("call-256k", "tool result, 256 KiB", true),
    ("call-1m", "tool result, 1 MiB", true),
    ("get-1m", "prompt, 1 MiB", false),
    ("list-one", "list of 1,000 prompts, one page", true),
    ("list-200", "list of 1,000 prompts, pages of 200", false),
];

/// Gateways of the plot: name in the results, label, color.
const GATEWAYS: [(&str, &str, &str); 5] = [
    ("weir", "Weir", "#1f6feb"),
    ("weir-policy", "Weir with keys, limits and audit log", "#8ab4f8"),
    ("hyper", "hyper, forwarding only", "#9aa0a6"),
    ("fastmcp", "FastMCP", "#e8a33d"),
    ("contextforge", "ContextForge", "#b5651d"),
];

/// A figure of one gateway divided by that of nginx.
fn to_nginx(results: &Results, workload: &str, subject: &str, figure: &str) -> Option<f64> {
    let nginx = results.median(workload, "nginx", figure)?;
    Some(results.median(workload, subject, figure)? / nginx)
}

/// Workloads that this run has measured for nginx.
fn measured(
    results: &Results,
) -> impl Iterator<Item = &'static (&'static str, &'static str, bool)> {
    WORKLOADS.iter().filter(|(name, ..)| results.median(name, "nginx", "per_s").is_some())
}

/// A ratio in at most three significant digits.
fn ratio(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The table: throughput and processor time per request, each as a multiple of nginx.
pub(super) fn table(results: &Results) -> String {
    let mut text =
        "| request | nginx per s | Weir per s | Weir ÷ nginx | hyper ÷ nginx | FastMCP ÷ nginx \
         | ContextForge ÷ nginx | Weir CPU µs | CPU Weir ÷ nginx | CPU hyper ÷ nginx \
         | CPU FastMCP ÷ nginx \
         | CPU ContextForge ÷ nginx |\n|---|"
            .to_owned();
    text.push_str(&"---:|".repeat(11));
    text.push('\n');
    for (name, label, _) in measured(results) {
        let _ = write!(text, "| {label} (`{name}`)");
        let cell = |value: Option<String>| value.unwrap_or("–".to_owned());
        for subject in ["nginx", "weir"] {
            let value = results.median(name, subject, "per_s").map(formatted);
            let _ = write!(text, " | {}", cell(value));
        }
        for figure in ["per_s", "cpu_us"] {
            if figure == "cpu_us" {
                let value = results.median(name, "weir", figure).map(formatted);
                let _ = write!(text, " | {}", cell(value));
            }
            for subject in ["weir", "hyper", "fastmcp", "contextforge"] {
                let value = to_nginx(results, name, subject, figure).map(ratio);
                let _ = write!(text, " | {}", cell(value));
            }
        }
        text.push_str(" |\n");
    }
    let _ = write!(text, "\n{}", others(results));
    text
}

/// Figures that are not compared per request: memory, start, notifications.
fn others(results: &Results) -> String {
    let figures = [
        ("memory", "weir", "idle_mib", "MiB of memory when idle"),
        ("memory", "weir", "with_256_mib", "MiB with 256 connections"),
        ("start", "weir", "first_list_ms", "ms from the start to the first list of ten servers"),
        ("start", "weir", "idle_10_mib", "MiB of memory when idle, with ten servers"),
        ("fanout-10000", "weir", "told_ms", "ms until 10,000 streams have a change"),
        ("fanout-10000", "weir", "kib_each", "KiB of memory per stream"),
    ];
    let mut text = String::new();
    for (workload, subject, figure, unit) in figures {
        if let Some(value) = results.median(workload, subject, figure) {
            let nginx = results.median(workload, "nginx", figure);
            let nginx = nginx.map_or(String::new(), |its| format!(" (nginx: {})", formatted(its)));
            let _ = writeln!(text, "- {} {unit}{nginx}", formatted(value));
        }
    }
    text
}

/// Width of the plot and of its parts, in pixels.
const WIDTH: f64 = 960.0;
const LABELS: f64 = 190.0;
const PANEL: f64 = 330.0;
const GAP: f64 = 55.0;
const TOP: f64 = 92.0;
const BAR: f64 = 13.0;
const BETWEEN_GROUPS: f64 = 12.0;

/// A panel of the plot: a figure, its title, and the ratio at its right end. Longer bars are cut
/// there.
struct Panel {
    figure: &'static str,
    title: &'static str,
    left: f64,
    end: f64,
}

/// The plot: two panels of horizontal bars, one group for each workload.
pub(super) fn svg(results: &Results) -> String {
    let panels = [
        Panel {
            figure: "per_s",
            title: "Throughput (nginx = 1, more is better)",
            left: LABELS,
            end: 4.5,
        },
        Panel {
            figure: "cpu_us",
            title: "Processor time per request (nginx = 1, less is better)",
            left: LABELS + PANEL + GAP,
            end: 3.0,
        },
    ];
    let (mut bars, mut values, mut top) = (String::new(), String::new(), TOP);
    for (name, label, _) in measured(results).filter(|(.., is_plotted)| *is_plotted) {
        let shown = |subject: &str| to_nginx(results, name, subject, "per_s").is_some();
        let gateways: Vec<_> = GATEWAYS.iter().filter(|(subject, ..)| shown(subject)).collect();
        #[allow(clippy::cast_precision_loss, reason = "five bars at most")]
        let height = gateways.len() as f64 * BAR;
        let middle = top + height / 2.0 + 4.0;
        let _ = writeln!(
            bars,
            r#"<text x="{}" y="{middle:.1}" text-anchor="end">{label}</text>"#,
            LABELS - 10.0
        );
        for (subject, _, color) in gateways {
            for panel in &panels {
                if let Some(value) = to_nginx(results, name, subject, panel.figure) {
                    let (bar, text) = bar(panel, top, value, color);
                    bars.push_str(&bar);
                    values.push_str(&text);
                }
            }
            top += BAR;
        }
        top += BETWEEN_GROUPS;
    }
    let frames: String = panels.iter().map(|panel| frame(panel, top)).collect();
    let height = top + 14.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <title>Throughput and processor time of Weir and others, compared with nginx</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}{bars}{frames}{values}</svg>\n",
        legend()
    )
}

/// One bar, and its value behind it. A bar that is cut has its value inside, with an arrow.
fn bar(panel: &Panel, top: f64, value: f64, color: &str) -> (String, String) {
    let (left, is_cut) = (panel.left, value > panel.end);
    let width = value.min(panel.end) / panel.end * PANEL;
    let bar = format!(
        "<rect x=\"{left}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{color}\"/>\n",
        BAR - 2.0
    );
    // The white outline keeps a value readable on the line of nginx.
    let (x, style, mark) = match is_cut {
        true => (left + PANEL - 4.0, "text-anchor=\"end\" font-weight=\"bold\"", " →"),
        false => {
            (left + width + 4.0, "paint-order=\"stroke\" stroke=\"#ffffff\" stroke-width=\"3\"", "")
        }
    };
    let (y, value) = (top + BAR - 4.0, ratio(value));
    let text =
        format!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"9.5\" {style}>{value}{mark}</text>\n");
    (bar, text)
}

/// The title of a panel, its axis, and a dashed line where nginx is.
fn frame(panel: &Panel, bottom: f64) -> String {
    let Panel { title, left, end, .. } = panel;
    let one = left + PANEL / end;
    let (begin, bottom) = (TOP - 6.0, bottom - 6.0);
    format!(
        "<text x=\"{left}\" y=\"{}\" font-size=\"12\" font-weight=\"bold\">{title}</text>\n\
         <path d=\"M{left} {begin}V{bottom:.1}\" stroke=\"#333333\"/>\n\
         <path d=\"M{one:.1} {begin}V{bottom:.1}\" stroke=\"#d1242f\" stroke-dasharray=\"4 3\"/>\n\
         <text x=\"{one:.1}\" y=\"{}\" fill=\"#d1242f\" text-anchor=\"middle\">nginx</text>\n",
        TOP - 26.0,
        TOP - 10.0
    )
}

/// The names of the gateways with their colors.
fn legend() -> String {
    let (mut text, mut left) = (String::new(), LABELS);
    for (_, label, color) in GATEWAYS {
        let _ = writeln!(
            text,
            r#"<rect x="{left}" y="20" width="11" height="11" fill="{color}"/><text x="{}" y="30">{label}</text>"#,
            left + 16.0
        );
        #[allow(clippy::cast_precision_loss, reason = "a label is short")]
        let width = label.len() as f64 * 5.8;
        left += width + 40.0;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::default();
        for (subject, per_s, cpu) in
            [("nginx", 100.0, 10.0), ("weir", 80.0, 15.0), ("fastmcp", 0.1, 9000.0)]
        {
            results.note("get-1k-legacy-32", subject, "per_s", per_s);
            results.note("get-1k-legacy-32", subject, "cpu_us", cpu);
        }
        results.note("memory", "weir", "idle_mib", 9.96);
        results
    }

    #[test]
    fn table_compares_each_gateway_with_nginx() {
        let text = table(&results());
        let row = "| prompt, 1 KiB, legacy (`get-1k-legacy-32`) | 100.0 | 80.0 | 0.80 | – | 0.0010 | – \
                   | 15.0 | 1.50 | – | 900 | – |\n";
        assert!(text.contains(row), "{text}");
        assert!(text.ends_with("- 9.96 MiB of memory when idle\n"), "{text}");
    }

    #[test]
    fn bar_that_does_not_fit_is_cut_and_keeps_its_value() {
        let text = svg(&results());
        assert!(text.contains("900 →</text>"), "{text}");
        assert_eq!(text.matches("width=\"330.0\"").count(), 1, "{text}");
    }
}
