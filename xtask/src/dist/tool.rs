//! Programs that make artefacts.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::root;

/// Runs a program, and returns what it prints. An error says what it printed, or how to get it:
/// `package` has the program in Debian.
pub(super) fn text(command: &mut Command, package: &str) -> Result<String, String> {
    if command.get_current_dir().is_none() {
        command.current_dir(root());
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        let name = command.get_program().to_string_lossy().into_owned();
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{name} is missing: install {package}, then run ./dev dist again")
            }
            _ => format!("{name}: {error}"),
        }
    })?;
    if !output.status.success() {
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        return Err(format!("{command:?} failed:\n{}", printed.trim_end()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Folder of the programs of a part that is installed from PyPI.
pub(super) fn folder(part: &str) -> PathBuf {
    root().join(".cache/interop").join(part).join("bin")
}
