//! The release: all that its artefacts have in common, and its platforms.

use std::path::PathBuf;
use std::process::Command;

use super::{read, tool};
use crate::root;

/// Version, source and place of a release.
pub(crate) struct Release {
    pub(crate) version: String,
    pub(crate) commit: String,
    /// Time of the commit in seconds since 1970, which all files of the artefacts have.
    pub(crate) time: String,
    /// Folder of the artefacts.
    pub(crate) folder: PathBuf,
    /// Whether a test makes it, for which large artefacts will do.
    pub(crate) is_test: bool,
}

impl Release {
    /// The release of this checkout, to be made in a folder.
    pub(crate) fn of_checkout(folder: PathBuf, is_test: bool) -> Result<Self, String> {
        let git = |arguments: &[&str]| tool::text(Command::new("git").args(arguments), "git");
        let manifest = read(&root().join("Cargo.toml"))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
        let version = version.and_then(|it| it.strip_suffix('"'));
        Ok(Self {
            version: version.ok_or("Cargo.toml has no version of the workspace")?.to_owned(),
            commit: git(&["rev-parse", "HEAD"])?,
            time: git(&["log", "-1", "--format=%ct"])?,
            folder,
            is_test,
        })
    }

    /// Fails unless a tag and a section of CHANGELOG.md have the version.
    pub(crate) fn check_tag(&self, tag: &str) -> Result<(), String> {
        let version = &self.version;
        if tag != format!("v{version}") {
            return Err(format!("the tag {tag} is not v{version}, the version in Cargo.toml"));
        }
        let changes = read(&root().join("CHANGELOG.md"))?;
        let heading = format!("## {version} ");
        match changes.lines().any(|line| format!("{line} ").starts_with(&heading)) {
            true => Ok(()),
            false => Err(format!("CHANGELOG.md has no section {}", heading.trim_end())),
        }
    }

    /// Folder of what is needed only while artefacts are made.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Start of the names of the artefacts for a platform.
    pub(crate) fn name(&self, platform: &Platform) -> String {
        format!("weir-{}-{}", self.version, platform.target)
    }
}

/// A platform in the words of each way to install.
#[derive(Debug)]
pub(crate) struct Platform {
    /// Target of the compiler.
    pub(crate) target: &'static str,
    /// `os` and `cpu` of a package of npm.
    pub(crate) npm: (&'static str, &'static str),
    /// Tags of a wheel: a static program runs with every C library.
    pub(crate) wheel: &'static [&'static str],
    /// Architecture of a Debian package, and of an image.
    pub(crate) deb: &'static str,
}

/// The platforms, that of the profile first.
pub(crate) const PLATFORMS: [Platform; 2] = [
    Platform {
        target: "x86_64-unknown-linux-musl",
        npm: ("linux", "x64"),
        wheel: &["manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"],
        deb: "amd64",
    },
    Platform {
        target: "aarch64-unknown-linux-musl",
        npm: ("linux", "arm64"),
        wheel: &["manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"],
        deb: "arm64",
    },
];
