//! The image: the program and CA certificates only, for all platforms.

use std::path::Path;
use std::process::Command;

use super::archive::tar;
use super::release::Release;
use super::{Binary, copy, make_folder, tool, write};
use crate::root;

/// Makes `dist/weir-VERSION-image.tar`, an OCI archive that `podman load` and `skopeo copy` read.
pub(super) fn make(release: &Release, binaries: &[&Binary]) -> Result<(), String> {
    let work = release.work().join("image");
    make_folder(&work)?;
    let list = format!("localhost/weir:{}", release.version);
    buildah(&work, &["manifest", "create", &list])?;
    for Binary { platform, path } in binaries {
        let context = work.join(platform.deb);
        make_context(&context, path)?;
        let architecture = format!("--arch={}", platform.deb);
        let time = format!("--timestamp={}", release.time);
        let (version, revision) = (
            format!("--label=org.opencontainers.image.version={}", release.version),
            format!("--label=org.opencontainers.image.revision={}", release.commit),
        );
        let file = root().join("deploy/packages/image/Dockerfile");
        let (file, context) = (file.to_string_lossy(), context.to_string_lossy());
        let identity = "--identity-label=false";
        let options = ["bud", "--isolation=chroot", "--format=oci", "--layers=false", identity];
        let own = [&architecture, &time, &version, &revision, "--manifest", &list, "--file"];
        buildah(&work, &[&options[..], &own, &[&file, &context]].concat())?;
    }
    let layout = work.join("layout");
    buildah(&work, &["manifest", "push", "--all", &list, &format!("oci:{}", layout.display())])?;
    let archive = release.folder.join(format!("weir-{}-image.tar", release.version));
    tool::text(tar(release, &archive, &layout).arg("."), "tar").map(drop)
}

/// Makes the folder that the Dockerfile copies.
fn make_context(context: &Path, program: &Path) -> Result<(), String> {
    let image = context.join("root");
    make_folder(&image.join("etc/ssl/certs"))?;
    copy(program, &image.join("weir"))?;
    let certificates = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if !certificates.exists() {
        return Err(format!("{} is missing: install ca-certificates", certificates.display()));
    }
    copy(certificates, &image.join("etc/ssl/certs/ca-certificates.crt"))?;
    write(&image.join("etc/passwd"), "weir:x:65532:65532:Weir:/:/sbin/nologin\n")?;
    write(&image.join("etc/group"), "weir:x:65532:\n")?;
    // A program that is linked dynamically, as of a test, needs its libraries.
    let libraries = tool::text(Command::new("ldd").arg(program), "libc-bin").unwrap_or_default();
    let paths = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    for path in paths.map(Path::new) {
        let inside = image.join(path.strip_prefix("/").unwrap_or(path));
        make_folder(inside.parent().unwrap_or(&image))?;
        copy(path, &inside)?;
    }
    Ok(())
}

/// Runs buildah with a storage of its own, which needs no privileges and no daemon.
fn buildah(work: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("buildah");
    command.arg("--storage-driver=vfs").arg("--root").arg(work.join("storage"));
    command.arg("--runroot").arg(work.join("run")).args(arguments);
    tool::text(&mut command, "buildah")
}
