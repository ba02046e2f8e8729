//! `SHA256SUMS` of all artefacts, and its signature.

use std::process::Command;

use super::release::Release;
use super::{tool, write};

/// Variable with the path of the secret key of minisign. The public key is in the repository.
const KEY: &str = "WEIR_SIGNING_KEY";

/// Makes `dist/SHA256SUMS`, and signs it if there is a key.
pub(super) fn make(release: &Release) -> Result<(), String> {
    let entries = std::fs::read_dir(&release.folder).map_err(|error| format!("dist: {error}"))?;
    let names = entries.flatten().map(|it| it.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let mut sums = Command::new("sha256sum");
    let sums = tool::text(sums.current_dir(&release.folder).arg("--").args(&names), "coreutils")?;
    let path = release.folder.join("SHA256SUMS");
    write(&path, &format!("{sums}\n"))?;
    println!("{sums}");
    let Some(key) = std::env::var_os(KEY) else {
        eprintln!("dev: dist: unsigned: {KEY} names no secret key of minisign");
        return Ok(());
    };
    let comment = format!("weir {} {}", release.version, release.commit);
    let mut minisign = Command::new("minisign");
    minisign.arg("-S").arg("-s").arg(key).arg("-t").arg(comment).arg("-m").arg(path);
    tool::text(&mut minisign, "minisign").map(drop)
}
