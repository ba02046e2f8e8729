//! Parts of the nightly run, and `tests/nightly.toml`, which says when each ran last.
//!
//! Each part takes at most 30 minutes on two processors. The optimized build runs tests with a
//! million iterations, with narrow bounds of time and memory, and with hours of faults. The 20,000
//! cases of each property run without optimization, where numbers that overflow panic.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::step::{self, Outcome};
use crate::{parts, report, root, sources};

/// A part of the nightly run.
struct Part {
    name: &'static str,
    /// Parts of `tests/interop/parts/install.sh` beside those of the day.
    installs: &'static [&'static str],
    steps: &'static [Step],
    /// Its own sources, beside those that all parts have.
    sources: &'static [&'static str],
}

/// A command of a part: arguments of cargo or of `./dev`.
enum Step {
    Cargo(&'static str, &'static [(&'static str, &'static str)]),
    Dev(&'static str),
    /// `./dev test` in a clone where nothing is installed or built.
    Cold,
}

use Step::{Cargo, Cold, Dev};

/// Builds the servers that the optimized tests start.
const LONG_EXAMPLES: Step = Cargo("build --profile long --examples", &[]);

const PARTS: [Part; 15] = [
    Part {
        name: "properties",
        installs: &[],
        steps: &[Cargo("test --lib", &[("PROPTEST_CASES", "20000")])],
        sources: &[],
    },
    Part {
        name: "programs",
        installs: &["agents"],
        steps: &[
            Cargo("build --examples", &[]),
            Cargo("test --test cli --test interop -- --skip many::", &[("RUST_TEST_THREADS", "4")]),
        ],
        sources: &["tests/cli.rs", "tests/cli", "tests/interop"],
    },
    Part {
        name: "servers",
        installs: &["servers"],
        steps: &[Cargo("test --test interop -- many::", &[])],
        sources: &["tests/interop"],
    },
    Part {
        name: "conformance",
        installs: &[],
        steps: &[
            Cargo("build --examples", &[]),
            Cargo("test --test conformance", &[("RUST_TEST_THREADS", "4")]),
        ],
        sources: &["tests/conformance", "tests/interop/parts"],
    },
    // The crowds run alone, because they measure milliseconds.
    Part {
        name: "crowds",
        installs: &[],
        steps: &[Cargo("test --profile long --test it -- crowd", &[])],
        sources: &["tests/it"],
    },
    Part {
        name: "histories",
        installs: &[],
        steps: &[Cargo("test --profile long --test it -- --skip crowd", &[])],
        sources: &["tests/it"],
    },
    Part { name: "fuzz", installs: &[], steps: &[Dev("fuzz")], sources: &["fuzz"] },
    // By themselves, because a forwarded call costs more instructions on a busy machine.
    Part { name: "counts", installs: &[], steps: &[Dev("counts")], sources: &["benches/harness"] },
    Part {
        name: "release",
        installs: &[],
        steps: &[Dev("release")],
        sources: &["benches/harness"],
    },
    // These tests mostly wait; those that measure run alone.
    Part {
        name: "faults",
        installs: &[],
        steps: &[
            LONG_EXAMPLES,
            Cargo(
                "test --profile long --test faults -- --test-threads 4 --skip g9_ --skip soak",
                &[],
            ),
        ],
        sources: &["tests/faults"],
    },
    Part {
        name: "neighbours",
        installs: &[],
        steps: &[LONG_EXAMPLES, Cargo("test --profile long --test faults -- g9_ soak", &[])],
        sources: &["tests/faults"],
    },
    Part {
        name: "load",
        installs: &[],
        steps: &[LONG_EXAMPLES, Cargo("test --profile long --test load --test amplification", &[])],
        sources: &["tests/load", "tests/amplification.rs", "tests/amplification"],
    },
    Part {
        name: "fleet",
        installs: &[],
        steps: &[LONG_EXAMPLES, Cargo("test --profile long --test fleet -- --skip endurance", &[])],
        sources: &["tests/fleet"],
    },
    Part {
        name: "endurance",
        installs: &[],
        steps: &[
            LONG_EXAMPLES,
            Cargo("test --profile long --test fleet -- endurance", &[("WEIR_SOAK", "20m")]),
        ],
        sources: &["tests/fleet"],
    },
    Part { name: "cold", installs: &[], steps: &[Cold], sources: &["tests", "benches", "xtask"] },
];

/// Sources of all parts.
const SOURCES: [&str; 9] = [
    "crates",
    "src",
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "config.example.toml",
    "dev",
    "examples",
    "tests/lab",
];

impl Part {
    /// Paths for git of all its sources. The record is none, or a part that has all tests among
    /// its sources would be due as soon as it is recorded.
    fn sources(&self) -> Vec<&'static str> {
        SOURCES.iter().chain(self.sources).copied().chain([EXCEPT_RECORD]).collect()
    }
}

const RECORD: &str = "tests/nightly.toml";
const EXCEPT_RECORD: &str = ":(exclude)tests/nightly.toml";
const HEADER: &str = "\
# When each part of the nightly run ran last, at which commit and with which result. `./dev test --nightly PART` writes
# its row; `./dev test --nightly --due` names the parts that have not passed for the present sources. A release needs
# all of them.
";

/// Row of a part in the record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    commit: String,
    /// Hash of the part's sources.
    sources: String,
    date: String,
    minutes: u64,
    passed: usize,
    failed: usize,
}

/// Prints the names of the parts that have not passed for the present sources, one in a line;
/// returns whether there are none.
pub(crate) fn print_due() -> Result<bool, String> {
    let due = due()?;
    due.iter().for_each(|part| println!("{}", part.name));
    Ok(due.is_empty())
}

/// Runs these parts, or all that are due if no name is given, and records each that is committed.
pub(crate) fn run(names: &[&str]) -> Result<bool, String> {
    let known = || PARTS.map(|part| part.name).join(", ");
    let found = names.iter().map(|name| {
        let part = PARTS.iter().find(|part| part.name == *name);
        part.ok_or_else(|| format!("no part '{name}' of the nightly run: there are {}", known()))
    });
    let parts = if names.is_empty() { due()? } else { found.collect::<Result<Vec<_>, _>>()? };
    let begin = Instant::now();
    let mut outcomes = Vec::new();
    let mut install = Command::new(parts::INSTALLER);
    outcomes.push(step::run("parts", {
        install.args(["system"]).args(parts::BY_DAY);
        install
    }));
    for part in parts {
        outcomes.extend(run_part(part)?);
    }
    Ok(report::print(&outcomes, begin.elapsed()))
}

fn due() -> Result<Vec<&'static Part>, String> {
    let rows = read(&fs::read_to_string(root().join(RECORD)).unwrap_or_default());
    let mut due = Vec::new();
    for part in &PARTS {
        let present = sources::hash(&part.sources())?;
        let passed = |row: &Row| row.sources == present && row.failed == 0;
        if !rows.get(part.name).is_some_and(passed) {
            due.push(part);
        }
    }
    Ok(due)
}

fn run_part(part: &Part) -> Result<Vec<Outcome>, String> {
    let sources = part.sources();
    let (present, commit) = (sources::hash(&sources)?, sources::commit(&sources)?);
    // Unless it is repeated, with inputs that no earlier night had.
    let seed = std::env::var(step::SEED.0).unwrap_or_else(|_| new_seed());
    eprintln!("dev: {} with {}={seed}", part.name, step::SEED.0);
    let begin = Instant::now();
    let mut outcomes = Vec::new();
    for name in part.installs {
        let mut command = Command::new(parts::INSTALLER);
        outcomes.push(step::run(&format!("part {name}"), {
            command.arg(name);
            command
        }));
    }
    let steps = part.steps.iter().enumerate();
    outcomes.extend(steps.map(|(at, step)| {
        step::run(&format!("night {} {}", part.name, at + 1), command(step, &seed))
    }));
    match commit {
        Some(commit) => {
            let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum();
            record(
                part.name,
                Row {
                    commit,
                    sources: present,
                    date: today()?,
                    minutes: minutes(begin.elapsed()),
                    passed: sum(|it| it.passed),
                    failed: sum(|it| it.failed),
                },
            )?;
        }
        None => {
            eprintln!("dev: {} is not recorded: its sources have uncommitted changes", part.name)
        }
    }
    Ok(outcomes)
}

fn command(step: &Step, seed: &str) -> Command {
    let mut command = match step {
        Cargo(arguments, variables) => {
            let mut command = step::cargo(&arguments.split(' ').collect::<Vec<_>>());
            command.envs(variables.iter().copied());
            command
        }
        Dev(arguments) => {
            let mut command = Command::new(root().join("dev"));
            command.args(arguments.split(' '));
            command
        }
        Cold => {
            let mut command = Command::new("sh");
            command.args(["-c", COLD]).env_remove("CARGO_TARGET_DIR");
            return command;
        }
    };
    command.env("WEIR_NIGHTLY", "1").env(step::SEED.0, seed);
    step::without_proxies(&mut command);
    command
}

/// Runs the tests in an empty clone, and removes it.
const COLD: &str = r#"
folder=$(mktemp -d "${TMPDIR:-/tmp}/weir-cold.XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
git clone --quiet . "$folder/weir" && cd "$folder/weir" && ./dev test
"#;

fn new_seed() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_nanos().to_string()
}

fn minutes(time: Duration) -> u64 {
    time.as_secs().div_ceil(60)
}

fn today() -> Result<String, String> {
    let output = Command::new("date").args(["-u", "+%F"]).output();
    let output = output.map_err(|error| format!("date: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn record(part: &str, row: Row) -> Result<(), String> {
    let path = root().join(RECORD);
    let mut rows = read(&fs::read_to_string(&path).unwrap_or_default());
    rows.insert(part.to_owned(), row);
    fs::write(&path, write(&rows)).map_err(|error| format!("{RECORD}: {error}"))
}

/// Rows of a record. A row that this program did not write that way is left out, so that its part
/// is due.
fn read(text: &str) -> BTreeMap<String, Row> {
    let row = |section: &str| {
        let (name, keys) = section.split_once(']')?;
        let text = |key: &str| {
            let prefix = format!("{key} = ");
            let value = keys.lines().find_map(|line| line.strip_prefix(&prefix))?;
            Some(value.trim_matches('"').to_owned())
        };
        let row = Row {
            commit: text("commit")?,
            sources: text("sources")?,
            date: text("date")?,
            minutes: text("minutes")?.parse().ok()?,
            passed: text("passed")?.parse().ok()?,
            failed: text("failed")?.parse().ok()?,
        };
        Some((name.to_owned(), row))
    };
    text.split("\n[").skip(1).filter_map(row).collect()
}

fn write(rows: &BTreeMap<String, Row>) -> String {
    let mut text = HEADER.to_owned();
    for (name, row) in rows {
        let Row { commit, sources, date, minutes, passed, failed } = row;
        let _ = write!(
            text,
            "\n[{name}]\ncommit = \"{commit}\"\nsources = \"{sources}\"\ndate = \"{date}\"\n\
             minutes = {minutes}\npassed = {passed}\nfailed = {failed}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(minutes: u64) -> Row {
        let [commit, sources, date] = ["abc", "0123", "2026-11-28"].map(str::to_owned);
        Row { commit, sources, date, minutes, passed: 12, failed: 0 }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let rows = BTreeMap::from([("faults".to_owned(), row(7)), ("it".to_owned(), row(30))]);
        assert_eq!(read(&write(&rows)), rows);
        assert_eq!(read(HEADER), BTreeMap::new());
    }

    #[test]
    fn a_row_that_lacks_a_key_is_due() {
        let text = write(&BTreeMap::from([("faults".to_owned(), row(7))]));
        assert_eq!(read(&text.replace("sources", "source")), BTreeMap::new());
    }

    #[test]
    fn the_record_is_no_source_of_a_part() {
        let hash = |paths: &[&str]| sources::hash(paths).expect("git names the files");
        assert_eq!(hash(&[RECORD, EXCEPT_RECORD]), hash(&["xtask/none", EXCEPT_RECORD]));
        assert_ne!(hash(&["tests"]), hash(&["tests", EXCEPT_RECORD]));
    }

    #[test]
    fn the_committed_record_names_parts_that_exist() {
        let text = fs::read_to_string(root().join(RECORD)).expect("it is committed");
        for name in read(&text).keys() {
            assert!(PARTS.iter().any(|part| part.name == name), "{name}");
        }
    }
}
