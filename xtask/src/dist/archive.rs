//! The archive of a platform: the program and its files.

use std::path::Path;
use std::process::Command;

use super::release::{Platform, Release};
use super::tool;

/// Makes `weir-VERSION-TARGET.tar.gz` of a folder.
pub(super) fn make(release: &Release, platform: &Platform, stage: &Path) -> Result<(), String> {
    let archive = release.folder.join(format!("{}.tar.gz", release.name(platform)));
    let level = if release.is_test { 1 } else { 9 };
    let mut tar = tar(release, &archive, &release.work());
    tar.arg(format!("--use-compress-program=gzip -{level}n"));
    tool::text(tar.arg(stage.file_name().unwrap_or_default()), "tar").map(drop)
}

/// Command that archives files of a folder, with nothing in it that differs between two runs.
pub(super) fn tar(release: &Release, archive: &Path, folder: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--format=ustar", "--mode=u=rwX,go=rX"]).arg(format!("--mtime=@{}", release.time));
    tar.arg("--file").arg(archive).arg("--directory").arg(folder);
    tar
}
