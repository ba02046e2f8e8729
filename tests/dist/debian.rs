//! The Debian package, in a root of Debian that has its required packages only.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::made::artefact;
use super::{part, run, succeed, version};

/// An unpacked root.
struct Root {
    folder: TempDir,
}

impl Root {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        succeed(
            Command::new("tar")
                .arg("-xf")
                .arg(part("debian/root.tar"))
                .arg("-C")
                .arg(folder.path()),
        );
        Self { folder }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn dpkg(&self, action: &str, subject: &Path) -> String {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.folder.path().display()))
            .args(["--force-confold", action]);
        succeed(dpkg.arg(subject).env("DEBIAN_FRONTEND", "noninteractive"))
    }

    fn inside(&self, arguments: &[&str]) -> (Option<i32>, String) {
        run(Command::new("chroot").arg(self.folder.path()).args(arguments))
    }
}

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    let (root, package) = (Root::new(), artefact("weir_", ".deb"));
    root.dpkg("--install", &package);
    let (code, text) = root.inside(&["weir", "version"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with(&version()), "{text}");
    let (_, owner) = root.inside(&["stat", "-c", "%U:%G %a", "/etc/weir/weir.toml"]);
    assert_eq!(owner, "root:weir 640\n");
    let check = ["weir", "check", "--offline", "--config", "/etc/weir/weir.toml"];
    let (code, text) = root.inside(&check);
    assert_eq!(code, Some(0), "{text}");

    // Of an operator's file, nothing is lost by an upgrade.
    let edited = root.read("etc/weir/weir.toml") + "\n[log]\nlevel = \"warn\"\n";
    std::fs::write(root.path("etc/weir/weir.toml"), &edited).expect("written");
    root.dpkg("--install", &package);
    assert_eq!(root.read("etc/weir/weir.toml"), edited);

    std::fs::create_dir_all(root.path("var/lib/weir")).expect("made");
    root.dpkg("--remove", Path::new("weir"));
    assert!(!root.path("usr/bin/weir").exists());
    assert_eq!(root.read("etc/weir/weir.toml"), edited);
    root.dpkg("--purge", Path::new("weir"));
    assert!(!root.path("etc/weir").exists() && !root.path("var/lib/weir").exists());
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let root = Root::new();
    root.dpkg("--install", &artefact("weir_", ".deb"));
    let unit = root.read("usr/lib/systemd/system/weir.service");
    assert!(unit.contains("User=weir") && !unit.contains("/usr/local/"), "{unit}");
    let folder = TempDir::new().expect("a folder");
    let unit = unit.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"));
    std::fs::write(folder.path().join("weir.service"), unit).expect("written");
    let mut verify = Command::new(part("bin/systemd-analyze"));
    let (code, text) = run(verify.arg("verify").arg(folder.path().join("weir.service")));
    assert!(code == Some(0) && !text.contains("weir.service:"), "{text}");
}
