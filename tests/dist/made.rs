//! The artefacts, made once for all tests, and their checksums.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::{part, root, run, succeed};

/// Folder with the artefacts of the program under test.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
        let mut dist = Command::new(root().join("dev"));
        dist.args(["dist", "--binary", env!("CARGO_BIN_EXE_weir"), "--into"]).arg(&folder);
        succeed(dist.env_remove("WEIR_SIGNING_KEY").current_dir(root()));
        folder
    });
    &FOLDER
}

/// The one artefact whose name has this start and this end.
pub(crate) fn artefact(start: &str, end: &str) -> PathBuf {
    let files = folder().read_dir().expect("a folder").map(|file| file.expect("a file").path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(start) && name.ends_with(end)
    };
    let found: Vec<_> = files.filter(is_it).collect();
    assert_eq!(found.len(), 1, "{start}…{end}: {found:?}");
    found.into_iter().next().expect("one")
}

#[test]
fn every_artefact_has_its_checksum() {
    let checked = succeed(
        Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(folder()),
    );
    let files = folder().read_dir().expect("a folder").count();
    assert_eq!(checked.matches(": OK").count(), files - 1, "{checked}");
}

#[test]
fn a_second_run_in_another_folder_makes_the_same_bytes() {
    let again = tempfile::TempDir::new().expect("a folder");
    let mut dist = Command::new(root().join("dev"));
    dist.args(["dist", "--binary", env!("CARGO_BIN_EXE_weir"), "--into"]).arg(again.path());
    succeed(dist.env_remove("WEIR_SIGNING_KEY").current_dir(root()));
    let sums = |folder: &Path| std::fs::read_to_string(folder.join("SHA256SUMS")).expect("there");
    assert_eq!(sums(again.path()), sums(folder()));
}

#[test]
fn the_checksums_are_signed_with_the_version_and_the_commit() {
    let keys = tempfile::TempDir::new().expect("a folder");
    let (public, secret) = (keys.path().join("key.pub"), keys.path().join("key"));
    succeed(Command::new("minisign").args(["-G", "-W", "-p"]).arg(&public).arg("-s").arg(&secret));
    let made = keys.path().join("dist");
    let mut dist = Command::new(root().join("dev"));
    dist.args(["dist", "--binary", env!("CARGO_BIN_EXE_weir"), "--into"]).arg(&made);
    succeed(dist.arg("archive").env("WEIR_SIGNING_KEY", &secret).current_dir(root()));
    let sums = made.join("SHA256SUMS");
    let verified =
        succeed(Command::new("minisign").arg("-V").arg("-p").arg(&public).arg("-m").arg(sums));
    let commit = succeed(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()));
    let comment = format!("weir {} {}", env!("CARGO_PKG_VERSION"), commit.trim());
    assert!(verified.contains(&comment), "{verified}");
}

#[test]
fn a_release_has_the_version_of_its_tag() {
    let dist = |tag: &str| {
        let folder = tempfile::TempDir::new().expect("a folder");
        let mut dist = Command::new(root().join("dev"));
        dist.args(["dist", "--release", tag, "--into"]).arg(folder.path().join("dist"));
        run(dist.arg("archive").current_dir(root()))
    };
    let (code, text) = dist("v99.0.0");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("the tag v99.0.0 is not v"), "{text}");
}

#[test]
fn the_workflow_keeps_to_its_schema_and_pins_what_it_uses() {
    let path = root().join(".github/workflows/release.yml");
    let mut check = Command::new(part("dist/bin/check-jsonschema"));
    succeed(check.args(["--builtin-schema", "vendor.github-workflows"]).arg(&path));
    let text = std::fs::read_to_string(&path).expect("there");
    for line in text.lines().filter(|line| line.contains("uses: ")) {
        let commit = line.split_once('@').expect(line).1.split(' ').next().expect("a commit");
        assert!(commit.len() == 40 && commit.chars().all(|it| it.is_ascii_hexdigit()), "{line}");
    }
}
