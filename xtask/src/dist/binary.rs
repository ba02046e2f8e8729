//! The program for a platform: static, built with zig's C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::release::{Platform, Release};
use super::{copy, make_folder, tool};
use crate::{root, step, target};

/// Builds the program for a platform.
pub(super) fn build(release: &Release, platform: &Platform) -> Result<PathBuf, String> {
    let rustup = ["target", "add", platform.target];
    tool::text(Command::new("rustup").args(rustup), "rustup")?;
    let folder = target().join("dist");
    let arguments = ["zigbuild", "--release", "--locked", "--bin", "weir", "--target"];
    let mut command = step::cargo(&arguments);
    command.arg(platform.target).arg("--target-dir").arg(&folder);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(tool::folder("zig")).chain(std::env::split_paths(&path));
    let paths = std::env::join_paths(paths).map_err(|error| format!("PATH: {error}"))?;
    command.env("PATH", paths).env("SOURCE_DATE_EPOCH", &release.time);
    // Paths of this machine would make two builds differ, and would be in messages of a panic.
    let (mut rust, mut c) = (String::new(), String::new());
    for (from, to) in
        [(folder.clone(), "/target"), (cargo_home(), "/cargo"), (root().to_owned(), "/weir")]
    {
        rust += &format!(" --remap-path-prefix={}={to}", from.display());
        c += &format!(" -ffile-prefix-map={}={to}", from.display());
    }
    command.env("RUSTFLAGS", rust.trim()).env("CFLAGS", c.trim());
    command.env("WEIR_COMMIT", &release.commit).env("WEIR_TARGET", platform.target);
    let outcome = step::run(&format!("dist {}", platform.target), command);
    if outcome.failed > 0 {
        return Err("it could not be built (see above)".to_owned());
    }
    let path = place(release, platform)?;
    copy(&folder.join(platform.target).join("release/weir"), &path)?;
    Ok(path)
}

/// Takes a program that was built before, without its symbols.
pub(super) fn take(
    release: &Release,
    platform: &Platform,
    program: &Path,
) -> Result<PathBuf, String> {
    let path = place(release, platform)?;
    let mut strip = Command::new("strip");
    tool::text(strip.args(["--strip-all", "-o"]).arg(&path).arg(program), "binutils")?;
    Ok(path)
}

fn place(release: &Release, platform: &Platform) -> Result<PathBuf, String> {
    let folder = release.work().join(platform.target);
    make_folder(&folder)?;
    Ok(folder.join("weir"))
}

fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}
