//! The packages of npm: one for each platform, and a launcher that depends on all of them, so that
//! npm installs that of the machine and runs no script.

use std::path::Path;
use std::process::Command;

use super::release::Release;
use super::{Binary, copy, make_folder, names, tool, write};
use crate::root;

/// Makes `dist/*.tgz`.
pub(super) fn make(release: &Release, binaries: &[Binary]) -> Result<(), String> {
    let (name, version) = (names::of("npm")?, &release.version);
    let about = |name: &str| {
        format!(
            "\"name\": \"{name}\",\n  \"version\": \"{version}\",\n  \"description\": \
             \"A gateway for the Model Context Protocol\",\n  \"license\": \"Apache-2.0\""
        )
    };
    let mut platforms = Vec::new();
    for binary in binaries {
        let (os, cpu) = binary.platform.npm;
        let name = format!("{name}-{os}-{cpu}");
        let folder = release.work().join("npm").join(&name);
        make_folder(&folder.join("bin"))?;
        copy(&binary.path, &folder.join("bin/weir"))?;
        let about = about(&name);
        let manifest = format!(
            "{{\n  {about},\n  \"os\": [\"{os}\"],\n  \"cpu\": [\"{cpu}\"],\n  \"files\": [\"bin/weir\"]\n}}\n"
        );
        write(&folder.join("package.json"), &manifest)?;
        write(&folder.join("README.md"), &format!("The program of {name} for this platform.\n"))?;
        pack(release, &folder)?;
        platforms.push(format!("\n    \"{name}\": \"{version}\""));
    }
    let folder = release.work().join("npm/launcher");
    make_folder(&folder.join("bin"))?;
    copy(&root().join("deploy/packages/npm/weir.js"), &folder.join("bin/weir.js"))?;
    copy(&root().join("README.md"), &folder.join("README.md"))?;
    let (about, platforms) = (about(&name), platforms.join(","));
    let manifest = format!(
        "{{\n  {about},\n  \"bin\": {{ \"weir\": \"bin/weir.js\" }},\n  \"engines\": {{ \"node\": \">=18\" }},\n  \
         \"files\": [\"bin/weir.js\"],\n  \"optionalDependencies\": {{{platforms}\n  }}\n}}\n"
    );
    write(&folder.join("package.json"), &manifest)?;
    pack(release, &folder)
}

fn pack(release: &Release, folder: &Path) -> Result<(), String> {
    copy(&root().join("LICENSE"), &folder.join("LICENSE"))?;
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", "--pack-destination"]).arg(&release.folder).arg(folder);
    tool::text(&mut npm, "npm").map(drop)
}
