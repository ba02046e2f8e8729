//! The package of PyPI.

use std::process::Command;

use tempfile::TempDir;

use super::made::artefact;
use super::{part, succeed, version};

#[test]
fn pip_installs_the_wheel() {
    let folder = TempDir::new().expect("a folder");
    let environment = folder.path().join("environment");
    succeed(Command::new(part("dist/bin/python")).args(["-m", "venv"]).arg(&environment));
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--no-index", "--disable-pip-version-check"]);
    succeed(pip.arg(artefact("weir_gateway-", ".whl")));
    assert!(
        succeed(Command::new(environment.join("bin/weir")).arg("version")).starts_with(&version())
    );
    let shown = succeed(Command::new(environment.join("bin/pip")).args(["show", "weir-gateway"]));
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(shown.contains(&version), "{shown}");
}

#[test]
fn uvx_runs_the_wheel() {
    let folder = TempDir::new().expect("a folder");
    let mut uvx = Command::new(part("dist/bin/uvx"));
    uvx.args(["--offline", "--no-index", "--cache-dir"]).arg(folder.path().join("cache"));
    uvx.arg("--python").arg(part("dist/bin/python"));
    uvx.arg("--from").arg(artefact("weir_gateway-", ".whl")).args(["weir", "version"]);
    assert!(succeed(&mut uvx).contains(&version()));
}
