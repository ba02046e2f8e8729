//! The package of PyPI for a platform: a wheel that has the program as a script.

use std::process::Command;

use super::release::Release;
use super::{Binary, copy, make_folder, names, read, tool, write};
use crate::root;

/// Makes `dist/*.whl`.
pub(super) fn make(release: &Release, binary: &Binary) -> Result<(), String> {
    let name = names::of("pypi")?;
    let stem = format!("{}-{}", name.replace('-', "_"), release.version);
    let folder = release.work().join("wheel").join(binary.platform.deb);
    let scripts = folder.join(format!("{stem}.data/scripts"));
    let about = folder.join(format!("{stem}.dist-info"));
    make_folder(&scripts)?;
    make_folder(&about.join("licenses"))?;
    copy(&binary.path, &scripts.join("weir"))?;
    copy(&root().join("LICENSE"), &about.join("licenses/LICENSE"))?;
    let readme = read(&root().join("README.md"))?;
    let metadata = format!(
        "Metadata-Version: 2.4\nName: {name}\nVersion: {}\nSummary: A gateway for the Model Context Protocol\n\
         License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.8\n\
         Description-Content-Type: text/markdown\n\n{readme}",
        release.version
    );
    write(&about.join("METADATA"), &metadata)?;
    let tags: String =
        binary.platform.wheel.iter().map(|it| format!("Tag: py3-none-{it}\n")).collect();
    let wheel = format!("Wheel-Version: 1.0\nGenerator: weir\nRoot-Is-Purelib: false\n{tags}");
    write(&about.join("WHEEL"), &wheel)?;
    let mut pack = Command::new(tool::folder("dist").join("wheel"));
    pack.arg("pack").arg(&folder).arg("--dest-dir").arg(&release.folder);
    tool::text(pack.env("SOURCE_DATE_EPOCH", &release.time), "it with ./dev prepare dist").map(drop)
}
