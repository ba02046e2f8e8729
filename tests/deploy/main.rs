//! Tests of the files in `deploy/`: they agree with Weir (`files`), also those for several replicas
//! (`several`), programs accept them (`programs`), the proxies forward event streams (`proxies`),
//! all metrics exist (`metrics`), and several replicas run on one machine (`demo`). The programs
//! are available on Linux, where `./dev prepare` installs them.

#![allow(clippy::disallowed_types, reason = "manifests are read, not passed on")]

#[cfg(target_os = "linux")]
#[path = "../lab/mod.rs"]
mod lab;

#[cfg(target_os = "linux")]
mod demo;
mod files;
#[cfg(target_os = "linux")]
mod metrics;
#[cfg(target_os = "linux")]
mod programs;
#[cfg(target_os = "linux")]
mod proxies;
mod several;

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn deploy(path: &str) -> String {
    let path = folder().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(path: &str) -> serde_json::Value {
    serde_saphyr::from_str(&deploy(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs a program in `deploy/` and returns its exit code and its output.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.current_dir(folder()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8([output.stdout, output.stderr].concat());
    (output.status.code(), text.expect("it writes text"))
}

/// Variables that configurations name.
const VARIABLES: [(&str, &str); 3] =
    [("WIKI_TOKEN", "hunter2"), ("REPLICA", "weir-1"), ("POD_IP", "10.1.2.3")];

fn weir(arguments: &[&str]) -> (Option<i32>, String) {
    run(Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).envs(VARIABLES))
}

/// Command for a program that `./dev prepare` installs.
#[cfg(target_os = "linux")]
fn part(path: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/interop").join(path);
    assert!(path.exists(), "{} is missing: run `./dev prepare`", path.display());
    Command::new(path)
}
