//! `./dev dist`: makes what users install, in `dist/`.
//!
//! Each artefact has a file of its own in `dist/`. One that this machine cannot make is named in
//! one line with the reason, and the rest is made all the same. Of the same sources, compiler and
//! tools, two runs make the same bytes in whatever folder: all times are the commit's, all owners
//! are root, and no path of the machine is kept.

mod archive;
mod binary;
mod deb;
mod documents;
mod image;
mod names;
mod npm;
mod release;
mod sums;
mod tool;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{parts, root};
use release::{PLATFORMS, Platform, Release};

/// Makes everything, or these artefacts only. Returns whether all was made.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    let (mut folder, mut given, mut tag, mut wanted) = (root().join("dist"), None, None, arguments);
    while let [option @ ("--binary" | "--into" | "--release"), value, rest @ ..] = wanted {
        match *option {
            "--into" => folder = PathBuf::from(value),
            "--release" => tag = Some(*value),
            _ => given = Some(Path::new(value)),
        }
        wanted = rest;
    }
    if let Some(unknown) = wanted.iter().find(|name| !ARTEFACTS.contains(name)) {
        return Err(format!("no artefact '{unknown}': there are {}", ARTEFACTS.join(", ")));
    }
    let release = Release::of_checkout(folder, given.is_some())?;
    if let Some(tag) = tag {
        release.check_tag(tag)?;
    }
    if given.is_none() {
        tool::text(Command::new(parts::INSTALLER).args(["dist", "zig"]), "what it names")?;
    }
    let _ = fs::remove_dir_all(&release.folder);
    make_folder(&release.folder)?;
    let mut made = Made { release, is_complete: true };
    let binaries = made.binaries(given);
    let is_wanted = |name| wanted.is_empty() || wanted.contains(&name);
    let mut images = Vec::new();
    for binary in &binaries {
        let Some(stage) = made.note("documents", documents::stage(&made.release, binary)) else {
            continue;
        };
        if is_wanted("archive") {
            made.note("archive", archive::make(&made.release, binary.platform, &stage));
        }
        if is_wanted("wheel") {
            made.note("wheel", wheel::make(&made.release, binary));
        }
        if is_wanted("deb") {
            made.note("deb", deb::make(&made.release, binary.platform, &stage));
        }
        images.push(binary);
    }
    if is_wanted("npm") {
        made.note("npm", npm::make(&made.release, &binaries));
    }
    if is_wanted("image") {
        made.note("image", image::make(&made.release, &images));
    }
    let _ = fs::remove_dir_all(made.release.work());
    made.note("sums", sums::make(&made.release));
    Ok(made.is_complete)
}

const ARTEFACTS: [&str; 5] = ["archive", "wheel", "deb", "npm", "image"];

/// A program for a platform.
struct Binary {
    platform: &'static Platform,
    path: PathBuf,
}

/// The release, and whether all of it was made so far.
struct Made {
    release: Release,
    is_complete: bool,
}

impl Made {
    /// The program given, as that of this machine's platform, otherwise all that can be built.
    fn binaries(&mut self, given: Option<&Path>) -> Vec<Binary> {
        let of_this_machine = |platform: &&Platform| {
            given.is_none() || platform.target.starts_with(std::env::consts::ARCH)
        };
        let mut binaries = Vec::new();
        for platform in PLATFORMS.iter().filter(of_this_machine) {
            let path = match given {
                Some(path) => binary::take(&self.release, platform, path),
                None => binary::build(&self.release, platform),
            };
            if let Some(path) = self.note(platform.target, path) {
                binaries.push(Binary { platform, path });
            }
        }
        binaries
    }

    /// Prints why something could not be made.
    fn note<T>(&mut self, name: &str, made: Result<T, String>) -> Option<T> {
        made.map_err(|why| {
            self.is_complete = false;
            eprintln!("dev: dist: no {name}: {why}");
        })
        .ok()
    }
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = fs::copy(from, to).map(drop);
    copied.map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}
