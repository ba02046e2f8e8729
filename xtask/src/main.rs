//! `./dev check` and `./dev test`: runs the checks and test suites, and prints one closing line.
//!
//! `suites.rs` is the table of what there is to run, `day.rs` and `night.rs` are the two orders of
//! it, `step.rs` runs one command and reads what it prints, `sources.rs` tells whether anything has
//! changed since a step ran last. The programs that the tests start are installed by
//! `tests/interop/parts/install.sh`.

mod day;
mod dist;
mod night;
mod parts;
mod report;
mod sources;
mod step;
mod suites;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: ./dev check                       format, clippy, and the suites lib, it and tidy
       ./dev test                        all checks and tests of a day
       ./dev test SUITE...               only these
       ./dev test -- CARGO_ARGS          cargo test with these arguments, with all parts installed
       ./dev test --nightly [PART...]    parts of the nightly run; without a name, all that are due
       ./dev test --nightly --due        name the parts that have not passed for the present sources
       ./dev dist [ARTEFACT...]          make what users install, in dist/
       ./dev dist --release TAG          the same, if the tag, Cargo.toml and CHANGELOG.md have one version
       ./dev dist --binary FILE --into FOLDER [ARTEFACT...]
                                         the same from a program that is built, elsewhere
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Without git they are as they are, and all of Weir is built.
    if !target().starts_with(root())
        && let Err(problem) = sources::restore_times(root(), &target().join("times"))
    {
        eprintln!("dev: {problem}");
    }
    let ended = match words.as_slice() {
        ["check"] => day::check(),
        ["test"] => day::test(),
        ["test", "--", arguments @ ..] => cargo_test(arguments),
        ["test", "--nightly", "--due"] => night::print_due(),
        ["test", "--nightly", parts @ ..] => night::run(parts),
        ["test", suites @ ..] => day::test_only(suites),
        ["dist", arguments @ ..] => dist::run(arguments),
        _ => Err(USAGE.to_owned()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("dev: {}", problem.trim_end());
            ExitCode::from(2)
        }
    }
}

/// Runs `cargo test` with these arguments once all parts are installed.
fn cargo_test(arguments: &[&str]) -> Result<bool, String> {
    let installed = run(Command::new(parts::INSTALLER))?;
    let examples = run(step::cargo(&["build", "--quiet", "--examples"]))?;
    let mut command = step::cargo(&["test"]);
    step::without_proxies(command.args(arguments));
    Ok(run(command)? && installed && examples)
}

/// Runs a command with the terminal of this program; returns whether it succeeded.
fn run(mut command: Command) -> Result<bool, String> {
    let status = command.current_dir(root()).status();
    status.map(|status| status.success()).map_err(|error| format!("{command:?}: {error}"))
}

/// Folder of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in a folder of it")
}

/// Folder of what is built.
fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
