//! The archive.

use std::process::Command;

use super::made::artefact;
use super::{succeed, version};

#[test]
fn the_archive_has_the_program_its_pages_and_its_completions() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let archive = artefact("weir-", ".tar.gz");
    let listed = succeed(Command::new("tar").arg("-tvf").arg(&archive));
    assert!(listed.lines().all(|line| line.contains(" 0/0 ")), "{listed}");
    succeed(Command::new("tar").arg("-xf").arg(&archive).current_dir(folder.path()));
    let name = archive.file_name().and_then(|name| name.to_str()).expect("a name");
    let inside = folder.path().join(name.trim_end_matches(".tar.gz"));
    assert!(succeed(Command::new(inside.join("weir")).arg("version")).starts_with(&version()));
    let page = succeed(Command::new("cat").arg(inside.join("man/weir-serve.1")));
    assert!(page.contains(".SH NAME"), "{page}");
    for file in
        ["LICENSE", "README.md", "CHANGELOG.md", "config.example.toml", "config.schema.json"]
            .into_iter()
            .chain(["completions/weir.bash", "completions/_weir", "completions/weir.fish"])
    {
        assert!(inside.join(file).exists(), "{file}");
    }
    succeed(Command::new("bash").arg("-n").arg(inside.join("completions/weir.bash")));
}
