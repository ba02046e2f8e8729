//! Tests of what users install: `./dev dist` makes it from the program under test (`made`), and
//! each way to install is tried as a user would, without a network: npm (`npm`), PyPI (`pypi`),
//! Debian (`debian`), the archive (`archive`) and the image (`image`).

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, reason = "a test reads what others typed")]

#[path = "../lab/mod.rs"]
mod lab;

mod archive;
mod debian;
mod image;
mod made;
mod npm;
mod pypi;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command to its end, and returns its exit code and all that it prints.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8([output.stdout, output.stderr].concat());
    (output.status.code(), text.expect("it writes text"))
}

/// Runs a command that succeeds, and returns what it prints.
fn succeed(command: &mut Command) -> String {
    let (code, text) = run(command);
    assert_eq!(code, Some(0), "{command:?}: {text}");
    text
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Program of a part that `./dev prepare` installs.
fn part(path: &str) -> PathBuf {
    let path = root().join(".cache/interop").join(path);
    assert!(path.exists(), "{} is missing: run `./dev prepare`", path.display());
    path
}

/// First line of `weir version`.
fn version() -> String {
    format!("weir {} (", env!("CARGO_PKG_VERSION"))
}
