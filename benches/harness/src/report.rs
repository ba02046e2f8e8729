//! A run, told: as tables for people, as JSON for programs, and between two marks of `docs/performance.md`.

mod goals;
mod machine;
mod table;

use std::io;
use std::path::Path;

use serde_json::json;

pub(crate) use goals::checked;
pub(crate) use machine::Machine;

use crate::results::Results;

/// How a run was made.
pub(crate) struct Made {
    pub(crate) command: String,
    pub(crate) turns: usize,
    pub(crate) seconds: f64,
    pub(crate) machine: Machine,
}

/// Everything as Markdown: what it was made on, the tables, and which goals are reached.
pub(crate) fn markdown(results: &Results, made: &Made) -> String {
    let Made { command, turns, seconds, machine } = made;
    let mut text = format!(
        "Made by `{command}`: {turns} turns of {seconds} s for each subject, in rotated order, medians. {machine}\n\n"
    );
    text.push_str(&table::tables(results));
    text.push_str("### Goals\n\n");
    text.push_str(&goals::table(results));
    text.push_str(LIMITS);
    text
}

/// The same with the figure of every turn.
pub(crate) fn as_json(results: &Results, made: &Made) -> String {
    let Made { command, turns, seconds, machine } = made;
    let document = json!({
        "command": command, "turns": turns, "seconds": seconds,
        "machine": machine.to_string(), "workloads": results.workloads,
    });
    format!("{document:#}\n")
}

/// Puts the text between the marks of a document; all else in it stays.
pub(crate) fn write_into(document: &Path, text: &str) -> io::Result<()> {
    let whole = std::fs::read_to_string(document)?;
    let parts = whole.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| {
        io::Error::other(format!("{}: the marks {BEGIN} and {END} are missing", document.display()))
    })?;
    std::fs::write(document, format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", text.trim()))
}

const BEGIN: &str = "<!-- ./dev bench writes from here -->";
const END: &str = "<!-- to here -->";
/// What nobody should read out of the tables.
const LIMITS: &str = "
What the numbers do not show: load, gateway and fixture share the processors of one machine, so throughput is that of all three together, and a
cheaper gateway leaves more to the others; the network is the loopback interface, without TLS; the fixture answers at once, so a gateway's cost is as large beside
it as it can be; one run on one machine. Ratios within the run hold better than absolute figures. Processor time is utime and stime of the
gateway's processes, without those of upstreams (what a change costs, less than a tick, is what their threads ran); memory is the sum of their peaks, with what they share counted for each.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_the_one_before_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("page.md");
        std::fs::write(&file, format!("a\n{BEGIN}\nold\n{END}\nb\n")).expect("written");
        for text in ["new\n", "newer"] {
            write_into(&file, text).expect("it has marks");
        }
        let page = std::fs::read_to_string(&file).expect("it is there");
        assert_eq!(page, format!("a\n{BEGIN}\n\nnewer\n\n{END}\nb\n"));
    }

    #[test]
    fn a_page_without_marks_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("page.md");
        std::fs::write(&file, "a").expect("written");
        assert!(write_into(&file, "new").is_err());
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "a");
    }
}
