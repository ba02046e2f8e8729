//! Committed figures of the hot paths, `benches/harness/counts.txt`: comparing and writing them.
//!
//! A row is a name and a number. Rows that are no calls are paths of the program that is counted:
//! it runs such a path a hundred times, and callgrind prints the total.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::Arguments;

/// Largest difference from the committed figure, in percent.
const TOLERANCE_PERCENT: u64 = 3;

/// Compares these figures of calls, and those of the paths, with the rows of a file. Fails if one
/// differs by more than 3 %, after all have been printed; writes them into the file instead if the
/// arguments say so.
pub(super) fn compare(
    file: &Path,
    calls: &[(String, u64)],
    arguments: &Arguments,
) -> io::Result<()> {
    let text = fs::read_to_string(file)?;
    let (mut written, mut differences, mut counted) = (String::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        let row = line.split_once(' ').filter(|_| !line.starts_with('#'));
        let Some((name, committed)) = row else {
            written += &format!("{line}\n");
            continue;
        };
        let committed: u64 = committed.trim().parse().map_err(io::Error::other)?;
        let figure = match calls.iter().find(|(call, _)| call == name) {
            Some((_, figure)) => *figure,
            None if super::is_call(name) => {
                println!("{name}: not counted, {committed} committed");
                let _ = writeln!(written, "{line}");
                continue;
            }
            None => count_path(name, arguments)?,
        };
        println!("{name}: {figure}, {committed} committed");
        if !is_close(figure, committed) {
            differences.push(format!("{name} takes {figure} instead of {committed}"));
        }
        let _ = writeln!(written, "{name} {figure}");
        counted.push((name, figure));
    }
    if arguments.write {
        fs::write(file, written)?;
        differences.clear();
    }
    let named = |wanted: &str| counted.iter().find(|(name, _)| *name == wanted).map(|it| it.1);
    // A token that Weir has requested may cost at most 3 % more than one in the configuration.
    if let [Some(oauth), Some(bearer)] = ["call_modern_oauth", "call_modern_bearer"].map(named)
        && 100 * oauth > 103 * bearer
    {
        differences
            .push("call_modern_oauth takes over 3 % more than call_modern_bearer".to_owned());
    }
    if differences.is_empty() {
        return Ok(());
    }
    let remedy = "if that is intended, run ./dev counts --write and explain it in the commit";
    Err(io::Error::other(format!("{}: {remedy}", differences.join("; "))))
}

/// Returns whether a figure is within 3 % of the committed one, `None` if none is committed.
pub(super) fn is_as_committed(committed: &str, name: &str, figure: u64) -> Option<bool> {
    let mut rows = committed.lines().filter_map(|line| line.split_once(' '));
    let (_, committed) = rows.find(|(row, _)| *row == name)?;
    Some(is_close(figure, committed.trim().parse().ok()?))
}

fn is_close(figure: u64, committed: u64) -> bool {
    100 * figure.abs_diff(committed) <= TOLERANCE_PERCENT * committed
}

/// Instructions of a path of the program, once.
fn count_path(name: &str, arguments: &Arguments) -> io::Result<u64> {
    let output = Command::new(&arguments.valgrind)
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted_path*")
        .arg(&arguments.weir)
        .arg(name)
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let total = text.lines().find_map(|line| line.split_once("Collected : ")?.1.parse().ok());
    let total: Option<u64> = total;
    total.map(|total| total / 100).ok_or_else(|| {
        io::Error::other(format!("{name} could not be counted: {}", text.trim_end()))
    })
}
