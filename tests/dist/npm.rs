//! The packages of npm.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::made::artefact;
use super::{part, root, run, succeed, version};
use crate::lab::lines::Lines;
use crate::lab::process::children;

/// A folder with the packages installed. The registry is an address at which nothing listens.
fn installed(packages: &[&Path]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--offline", "--loglevel=error"]);
    succeed(npm.args(packages).current_dir(folder.path()));
    folder
}

fn both() -> TempDir {
    installed(&[
        &artefact("weir-gateway-weir-0", ".tgz"),
        &artefact("weir-gateway-weir-linux-", ".tgz"),
    ])
}

/// The launcher, started by its link in `.bin`.
fn weir(folder: &TempDir) -> Command {
    let mut command = Command::new(part("bin/node"));
    command.arg(folder.path().join("node_modules/.bin/weir")).current_dir(folder.path());
    command
}

#[test]
fn the_launcher_passes_arguments_and_the_exit_code() {
    let folder = both();
    assert!(succeed(weir(&folder).arg("version")).starts_with(&version()));
    let (code, text) = run(weir(&folder).args(["check", "--config", "none.toml"]));
    assert_eq!(code, Some(78), "{text}");
    let mut npx = Command::new("npx");
    npx.args(["--offline", "weir", "version"]).current_dir(folder.path());
    assert!(succeed(&mut npx).starts_with(&version()));
}

#[test]
fn a_signal_to_the_launcher_ends_the_program_as_well() {
    let folder = both();
    for signal in [15, 2] {
        let mut command = weir(&folder);
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[upstreams.house]\nprompts_dir = {:?}\n",
            root().join("prompts/engineering")
        );
        std::fs::write(folder.path().join("weir.toml"), config).expect("written");
        command.args(["serve", "--config", "weir.toml"]).env("WEIR_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut launcher = command.spawn().expect("it starts");
        let mut log = Lines::of(launcher.stderr.take().expect("piped"));
        log.wait_for("ready");
        let program = children(launcher.id());
        assert_eq!(program.len(), 1);
        succeed(Command::new("kill").arg(format!("-{signal}")).arg(launcher.id().to_string()));
        let ended = launcher.wait().expect("it ends");
        assert!(!Path::new(&format!("/proc/{}", program[0])).exists(), "signal {signal}");
        assert_eq!((ended.code(), ended.signal()), (Some(0), None), "signal {signal}");
    }
}

#[test]
fn a_missing_program_is_named_with_what_to_do() {
    let folder = installed(&[&artefact("weir-gateway-weir-0", ".tgz")]);
    let (code, text) = run(weir(&folder).arg("version"));
    assert_eq!(code, Some(1));
    assert!(
        text.contains("@weir-gateway/weir-linux-") && text.contains("--omit=optional"),
        "{text}"
    );
}
