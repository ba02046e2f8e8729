//! Files that stand beside the program: documents, man pages and completions.

use std::path::PathBuf;
use std::process::Command;

use super::release::Release;
use super::{Binary, copy, make_folder, tool, write};
use crate::root;

/// Shells, each with the name of its completion script.
pub(super) const COMPLETIONS: [(&str, &str); 3] =
    [("bash", "weir.bash"), ("zsh", "_weir"), ("fish", "weir.fish")];

/// Makes a folder with the program and its files, which has the name of the release.
pub(super) fn stage(release: &Release, binary: &Binary) -> Result<PathBuf, String> {
    let stage = release.work().join(release.name(binary.platform));
    make_folder(&stage.join("completions"))?;
    make_folder(&stage.join("man"))?;
    copy(&binary.path, &stage.join("weir"))?;
    for name in
        ["README.md", "LICENSE", "CHANGELOG.md", "config.example.toml", "config.schema.json"]
    {
        copy(&root().join(name), &stage.join(name))?;
    }
    // Another platform's program would not run here; that of this machine prints the same.
    let own = release.work().join("weir");
    if !own.exists() {
        copy(&binary.path, &own)?;
    }
    for (shell, name) in COMPLETIONS {
        let script = tool::text(Command::new(&own).args(["completions", shell]), "Weir")?;
        write(&stage.join("completions").join(name), &format!("{script}\n"))?;
    }
    tool::text(Command::new(&own).arg("man").arg(stage.join("man")), "Weir")?;
    Ok(stage)
}
