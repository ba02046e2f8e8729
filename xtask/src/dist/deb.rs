//! The Debian package of a platform: the program, a service that is off until it is enabled, its
//! user, and a configuration to fill in.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::documents::COMPLETIONS;
use super::release::{Platform, Release};
use super::{copy, make_folder, names, read, tool, write};
use crate::root;

/// Prompts of the configuration, so that the service has something to serve.
const PROMPTS: [&str; 1] = ["code-review.md"];

/// Makes `dist/weir_VERSION_ARCHITECTURE.deb` of a folder with the program and its files.
pub(super) fn make(release: &Release, platform: &Platform, stage: &Path) -> Result<(), String> {
    let (name, version) = (names::of("deb")?, &release.version);
    let root_folder = release.work().join("deb").join(platform.deb);
    let place = |folder: &str, name: &str| {
        make_folder(&root_folder.join(folder)).map(|()| root_folder.join(folder).join(name))
    };
    copy(&stage.join("weir"), &place("usr/bin", "weir")?)?;
    let unit = read(&root().join("deploy/systemd/weir.service"))?;
    // A user of its own owns the secrets that the configuration names.
    let unit = unit.replace("/usr/local/bin/", "/usr/bin/").replace("DynamicUser=yes", "User=weir");
    write(&place("usr/lib/systemd/system", "weir.service")?, &unit)?;
    let packages = root().join("deploy/packages/deb");
    copy(&packages.join("weir.sysusers"), &place("usr/lib/sysusers.d", "weir.conf")?)?;
    copy(&packages.join("weir.toml"), &place("etc/weir", "weir.toml")?)?;
    for prompt in PROMPTS {
        copy(
            &root().join("prompts/engineering").join(prompt),
            &place("etc/weir/prompts", prompt)?,
        )?;
    }
    let documents = format!("usr/share/doc/{name}");
    copy(&stage.join("LICENSE"), &place(&documents, "copyright")?)?;
    for document in ["README.md", "CHANGELOG.md", "config.example.toml", "config.schema.json"] {
        copy(&stage.join(document), &place(&documents, document)?)?;
    }
    let folders =
        ["bash-completion/completions", "zsh/vendor-completions", "fish/vendor_completions.d"];
    for ((_, script), folder) in COMPLETIONS.into_iter().zip(folders) {
        let installed = if script == "weir.bash" { "weir" } else { script };
        let from = stage.join("completions").join(script);
        copy(&from, &place(&format!("usr/share/{folder}"), installed)?)?;
    }
    let pages = fs::read_dir(stage.join("man")).map_err(|error| format!("man: {error}"))?;
    for page in pages.flatten() {
        let page = page.file_name().to_string_lossy().into_owned();
        copy(&stage.join("man").join(&page), &place("usr/share/man/man1", &page)?)?;
    }
    let prompts: String = PROMPTS.map(|prompt| format!("/etc/weir/prompts/{prompt}\n")).concat();
    write(&place("DEBIAN", "conffiles")?, &format!("/etc/weir/weir.toml\n{prompts}"))?;
    for script in ["postinst", "prerm", "postrm"] {
        copy(&packages.join(script), &place("DEBIAN", script)?)?;
    }
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: {}\nSection: net\nPriority: optional\n\
         Maintainer: The Weir maintainers <weir@localhost>\nRecommends: ca-certificates\n\
         Description: gateway for the Model Context Protocol\n Many MCP servers behind one endpoint, \
         in every revision of the protocol.\n",
        platform.deb
    );
    write(&place("DEBIAN", "control")?, &control)?;
    let package = release.folder.join(format!("{name}_{version}_{}.deb", platform.deb));
    let mut build = Command::new("dpkg-deb");
    build
        .args(["--root-owner-group", if release.is_test { "-Znone" } else { "-Zxz" }, "--build"])
        .arg(&root_folder)
        .arg(package);
    tool::text(build.env("SOURCE_DATE_EPOCH", &release.time), "dpkg").map(drop)
}
