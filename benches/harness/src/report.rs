//! Report of a run: `docs/performance.json` with every figure, and from it the summary, the tables
//! and the plot of `docs/performance.md`.

mod goals;
mod machine;
mod summary;
mod table;

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub(crate) use goals::checked;
pub(crate) use machine::Machine;

use crate::results::Results;

/// A run with the figure of every turn, and how it was made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) command: String,
    pub(crate) turns: usize,
    pub(crate) seconds: f64,
    /// Processors, memory, kernel and versions as text.
    pub(crate) machine: String,
    #[serde(flatten)]
    pub(crate) results: Results,
}

impl Run {
    /// Reads what [`Run::as_json`] has written.
    pub(crate) fn read(file: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(file)?)?)
    }

    pub(crate) fn as_json(&self) -> io::Result<String> {
        Ok(format!("{:#}\n", serde_json::to_value(self)?))
    }

    /// Tables of all workloads, and which goals are reached.
    pub(crate) fn tables(&self) -> String {
        let Self { command, turns, seconds, results, .. } = self;
        // One line would be too long for a document.
        let machine = self.machine.replace("; ", ";\n");
        format!(
            "Made by `{command}`: {turns} turns of {seconds} s for each subject, in rotated order, medians.\n{machine}\n\n\
             {}### Goals\n\n{}{LIMITS}",
            table::tables(results),
            goals::table(results)
        )
    }

    /// Rewrites the generated parts of a document, and the plot beside it: `performance.svg` of
    /// `performance.md`.
    pub(crate) fn write_into(&self, document: &Path) -> io::Result<()> {
        let plot = document.with_extension("svg");
        let name = plot.file_name().unwrap_or_default().to_string_lossy();
        let summary = format!(
            "{}\n![Throughput and processor time of Weir and others, compared with nginx]({name})",
            summary::table(&self.results)
        );
        let text = std::fs::read_to_string(document)?;
        let text = replaced(&text, "summary", &summary)?;
        let text = replaced(&text, "tables", &self.tables())?;
        std::fs::write(plot, summary::svg(&self.results))?;
        std::fs::write(document, text)
    }
}

/// Replaces the text between the two marks of a part; everything else stays.
fn replaced(document: &str, part: &str, text: &str) -> io::Result<String> {
    let (begin, end) =
        (format!("<!-- {part}: written by ./dev bench -->"), format!("<!-- end of {part} -->"));
    let around = document.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    let (before, after) = around
        .ok_or_else(|| io::Error::other(format!("the document has no marks {begin} and {end}")))?;
    Ok(format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim()))
}

/// Limits of what the tables show.
const LIMITS: &str = "
Limits of these figures: load, gateway and fixture share the processors of one machine. So \
throughput is that of all
three together, and a cheaper gateway leaves more to the others. The network is \
the loopback interface, without TLS.
The fixture answers at once, so the cost of a gateway is as visible as it can be. It is \
one run on one machine: ratios
within the run hold better than absolute figures. Processor time is utime and stime \
of the gateway's processes, without
its upstreams. (`fanout` takes it from their threads' run time, since a change costs less than a \
tick.) Memory is the
sum of the peaks of the gateway's processes, with shared pages counted for each.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_part_replaces_the_one_before_and_nothing_else() {
        let marks = ["<!-- summary: written by ./dev bench -->", "<!-- end of summary -->"];
        let page = format!("a\n{}\nold\n{}\nb\n", marks[0], marks[1]);
        let page = replaced(&page, "summary", "new\n").expect("it has marks");
        let page = replaced(&page, "summary", "newer").expect("it has marks");
        assert_eq!(page, format!("a\n{}\n\nnewer\n\n{}\nb\n", marks[0], marks[1]));
    }

    #[test]
    fn document_without_marks_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("page.md");
        std::fs::write(&file, "a").expect("written");
        assert!(committed().write_into(&file).is_err());
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "a");
        assert!(!file.with_extension("svg").exists());
    }

    #[test]
    fn committed_document_and_plot_are_those_of_the_committed_figures() {
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join("performance.md");
        std::fs::copy(docs().join("performance.md"), &copy).expect("copied");
        committed().write_into(&copy).expect("it has marks");
        let rerun = "run `./dev bench --report`";
        for extension in ["md", "svg"] {
            let read = |file: &Path| std::fs::read_to_string(file.with_extension(extension)).ok();
            assert!(read(&copy) == read(&docs().join("performance.md")), "{extension}: {rerun}");
        }
    }

    fn docs() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))
    }

    fn committed() -> Run {
        Run::read(&docs().join("performance.json")).expect("the committed figures can be read")
    }
}
