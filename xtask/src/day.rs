//! Checks and tests of a day: format and clippy, the builds, then three lanes side by side.
//!
//! The suites that wait and the counts have the processors first, and those that compute take what
//! is left of them. No test of a day measures time so narrowly that it needs the machine alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::parts::{self, Parts};
use crate::step::{self, Outcome};
use crate::suites::{self, SUITES, Suite, Work};
use crate::{report, root, sources, target};

const HARNESS: &str = "benches/harness/Cargo.toml";

/// All that the instruction counts depend on.
const COUNTED: [&str; 6] =
    ["crates", "src", "Cargo.toml", "Cargo.lock", "benches/harness", "rust-toolchain.toml"];

/// Format, clippy, and the suites that need nothing but the sources and the schemas.
pub(crate) fn check() -> Result<bool, String> {
    let suites = ["tidy", "lib", "it"].map(|name| suites::find(name).expect("it is in the table"));
    run(&[fmt, clippy], &suites, false)
}

/// Everything.
pub(crate) fn test() -> Result<bool, String> {
    run(&[fmt, clippy, harness_fmt, harness_clippy, harness_tests, own_tests], &SUITES, true)
}

/// These suites, or `counts`.
pub(crate) fn test_only(names: &[&str]) -> Result<bool, String> {
    let named: Vec<&str> = names.iter().copied().filter(|name| *name != "counts").collect();
    let found = named.iter().map(|name| {
        let known = || SUITES.map(|suite| suite.name).join(", ");
        suites::find(name)
            .ok_or_else(|| format!("no suite '{name}': there are {}, counts", known()))
    });
    run(&[], &found.collect::<Result<Vec<_>, _>>()?, named.len() < names.len())
}

/// Runs these checks and suites, with the parts that they need, and prints the summary. Returns
/// whether all passed.
fn run(checks: &[fn() -> Outcome], suites: &[Suite], counts_too: bool) -> Result<bool, String> {
    let (begin, installed) = (Instant::now(), Parts::default());
    let mut needed: Vec<_> = parts::BY_DAY.to_vec();
    needed.retain(|part| {
        let is_counted = counts_too && ["valgrind", "store"].contains(part);
        is_counted || suites.iter().any(|suite| suite.parts.contains(part))
    });
    let mut outcomes = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| installed.install(&needed));
        outcomes.extend(checks.iter().map(|check| check()));
        let (built, binaries) = build(suites);
        outcomes.extend(built);
        let lane = |work: Work| {
            let suites = suites.iter().filter(move |suite| suite.work == work);
            let run = |suite: &Suite| {
                installed.wait_for(suite.parts);
                Some(run_suite(suite, binaries.get(suite.name)?))
            };
            suites.filter_map(run).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lane(Work::Wait));
            let counting = counts_too.then(|| {
                scope.spawn(|| {
                    installed.wait_for(&["valgrind", "store"]);
                    counts()
                })
            });
            outcomes.extend(lane(Work::Compute));
            let ended = "a lane does not panic";
            outcomes.extend(waiting.join().expect(ended));
            outcomes.extend(counting.map(|counting| counting.join().expect(ended)));
        });
    });
    outcomes.splice(0..0, installed.outcomes(begin));
    Ok(report::print(&outcomes, begin.elapsed()))
}

fn fmt() -> Outcome {
    step::run("fmt", step::cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Outcome {
    // The fuzzer has dependencies of its own, which nothing else of a day builds.
    let packages = ["--workspace", "--exclude", "weir-fuzz"];
    let (begin, end) = (["clippy", "--quiet", "--all-targets"], ["--", "-D", "warnings"]);
    step::run("clippy", step::cargo(&[&begin[..], &packages, &end].concat()))
}

/// The benchmark harness is a package with a lock file of its own.
fn harness_fmt() -> Outcome {
    step::run("harness fmt", step::cargo(&["fmt", "--check", "--manifest-path", HARNESS]))
}

fn harness_clippy() -> Outcome {
    let mut command = step::cargo(&["clippy", "--quiet", "--locked", "--all-targets"]);
    command.args(["--manifest-path", HARNESS, "--target-dir"]).arg(target());
    step::run("harness clippy", {
        command.args(["--", "-D", "warnings"]);
        command
    })
}

fn harness_tests() -> Outcome {
    let mut command =
        step::cargo(&["test", "--locked", "--manifest-path", HARNESS, "--target-dir"]);
    step::run("harness tests", {
        command.arg(target());
        command
    })
}

/// Tests of this package.
fn own_tests() -> Outcome {
    step::run("xtask tests", step::cargo(&["test", "--package", "xtask"]))
}

/// Test binary and the folder of its package.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    path: PathBuf,
    package: PathBuf,
}

/// Builds the test binaries of these suites and the example programs, which some start. Returns the
/// binaries of each suite.
fn build(suites: &[Suite]) -> (Vec<Outcome>, BTreeMap<String, Vec<Binary>>) {
    if suites.is_empty() {
        return (Vec::new(), BTreeMap::new());
    }
    let examples = step::run("build examples", step::cargo(&["build", "--examples"]));
    // Of all default members, as `./dev run` builds them: if fewer were selected, the dependencies
    // would have fewer features, and all would be built again.
    let mut command = step::cargo(&["test", "--no-run"]);
    for suite in suites {
        match suite.name {
            "lib" => command.arg("--lib"),
            name => command.args(["--test", name]),
        };
    }
    let built = step::run("build tests", command);
    let binaries = executables(&step::log("build tests"));
    (vec![examples, built], binaries)
}

/// Test binaries by the names of their suites, as `cargo test --no-run` prints them:
/// `Executable tests/it/main.rs (target/debug/deps/it-0123456789abcdef)`. The suite `lib` has one
/// of each package.
fn executables(log: &str) -> BTreeMap<String, Vec<Binary>> {
    let mut suites = BTreeMap::<_, Vec<_>>::new();
    for line in log.lines() {
        let executable = || {
            let line = line.trim().strip_prefix("Executable ")?;
            let (source, path) = line.rsplit_once(" (")?;
            let path = root().join(path.strip_suffix(')')?);
            let name = path.file_name()?.to_str()?.rsplit_once('-')?.0.to_owned();
            let package = match name.strip_prefix("weir_") {
                Some(package) => root().join("crates").join(package),
                None => root().to_owned(),
            };
            let suite = if source == "unittests src/lib.rs" { "lib".to_owned() } else { name };
            Some((suite, Binary { path, package }))
        };
        if let Some((suite, binary)) = executable() {
            suites.entry(suite).or_default().push(binary);
        }
    }
    suites
}

/// Runs the test binaries of a suite one after the other, and adds up their results.
fn run_suite(suite: &Suite, binaries: &[Binary]) -> Outcome {
    let mut total = Outcome::skipped(suite.name, "");
    for binary in binaries {
        let name = match binary.package.strip_prefix(root().join("crates")) {
            Ok(package) => format!("{} {}", suite.name, package.display()),
            Err(_) => suite.name.to_owned(),
        };
        let mut outcome = run_binary(&name, suite, binary);
        if let Some((_, package)) = name.split_once(' ') {
            outcome.tests.iter_mut().for_each(|(test, _)| *test = format!("{package} {test}"));
        }
        total.add(outcome);
    }
    total
}

/// Runs a test binary as `cargo test` does, with the time of each test.
fn run_binary(name: &str, suite: &Suite, binary: &Binary) -> Outcome {
    let mut command = Command::new(&binary.path);
    // The stable test harness reports times only with this variable.
    command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    command.current_dir(&binary.package).env("CARGO_MANIFEST_DIR", &binary.package);
    command.env_remove("WEIR_NIGHTLY");
    if std::env::var_os(step::SEED.0).is_none() {
        command.env(step::SEED.0, step::SEED.1);
    }
    step::without_proxies(&mut command);
    if let Some(threads) = suite.work.threads()
        && std::env::var_os("RUST_TEST_THREADS").is_none()
    {
        command.env("RUST_TEST_THREADS", threads);
    }
    if suite.work == Work::Compute {
        command = step::nice(&command, COMPUTING);
    }
    step::run(name, command)
}

/// Counts the instructions of the hot paths, unless nothing that they depend on has changed since
/// they were last counted here.
fn counts() -> Outcome {
    let stamp = target().join("counted");
    // Without git there is no stamp, and they are counted.
    let present = sources::hash(&COUNTED).ok();
    if present.is_some() && std::fs::read_to_string(&stamp).ok() == present {
        let remark =
            "skipped: nothing that they depend on has changed since they were last counted";
        let outcome = Outcome::skipped("counts", remark);
        eprintln!("dev: {}", report::line(&outcome));
        return outcome;
    }
    let mut command = Command::new(root().join("dev"));
    command.args(["counts", "--by-day"]);
    let outcome = step::run("counts", command);
    if let (0, Some(present)) = (outcome.failed, present) {
        // If it cannot be written, they are counted again.
        let _ = std::fs::write(stamp, present);
    }
    outcome
}

/// Niceness of the suites that compute, so that those that wait have the processors first, and the
/// counts, which for the most part compile one package after the other. Beside another build on
/// both processors, each of their threads gets a quarter of one: with more niceness, they would not
/// end within the time of a step.
const COMPUTING: &str = "4";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_have_the_names_of_their_suites() {
        let log = "    Finished `test` profile [unoptimized] target(s) in 1.0s\n\
            \x20 Executable unittests src/lib.rs (target/debug/deps/weir-0123456789abcdef)\n\
            \x20 Executable unittests src/lib.rs (target/debug/deps/weir_base-0123456789abcdef)\n\
            \x20 Executable tests/it/main.rs (/elsewhere/debug/deps/it-0123456789abcdef)\n";
        let found = executables(log);
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["it", "lib"]);
        let binary = |path: &str, package: &str| Binary {
            path: root().join(path),
            package: root().join(package),
        };
        let lib = [
            binary("target/debug/deps/weir-0123456789abcdef", ""),
            binary("target/debug/deps/weir_base-0123456789abcdef", "crates/base"),
        ];
        assert_eq!(found["lib"], lib);
        assert_eq!(found["it"], [binary("/elsewhere/debug/deps/it-0123456789abcdef", "")]);
    }

    #[test]
    fn every_test_of_the_package_is_a_suite() {
        let folder = std::fs::read_dir(root().join("tests")).expect("a folder");
        let mut names: Vec<_> = folder
            .map(|entry| entry.expect("it can be read").path())
            .filter(|path| {
                path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").exists()
            })
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        names.push("lib".to_owned());
        names.sort();
        let mut suites = SUITES.map(|suite| suite.name.to_owned()).to_vec();
        suites.sort();
        assert_eq!(suites, names);
    }
}
