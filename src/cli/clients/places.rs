//! Where a client's files are on this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{CLIENTS, Client};

/// What a user's file is relative to.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum Root {
    /// The home folder.
    Home,
    /// Where desktop applications keep their settings.
    Application,
    /// Where programs of the terminal keep theirs, on a Mac, too.
    Config,
}

/// For whom a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Scope {
    /// All projects of this user.
    User,
    /// The project in the current folder.
    Project,
}

impl Scope {
    /// As it is typed and told.
    pub(in crate::cli) fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
        }
    }
}

/// The client's file of a scope; none where it has no such file or the machine no such folder.
/// `project` is the project's folder.
pub(in crate::cli) fn file(client: &Client, scope: Scope, project: &Path) -> Option<PathBuf> {
    if scope == Scope::Project {
        return client.project_file.map(|file| project.join(file));
    }
    let moved = client.moved_by.and_then(|(variable, file)| Some(folder(variable)?.join(file)));
    let (root, file) = client.user_file;
    moved.or_else(|| Some(root_folder(root)?.join(file)))
}

/// The folder of the project whose file this is; none if it is no project's file, or the user's own.
pub(in crate::cli) fn project_of(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let files = CLIENTS.iter().filter_map(|client| client.project_file);
    let file = files.into_iter().find(|file| path.ends_with(file))?;
    let folder = path.ancestors().nth(Path::new(file).components().count())?;
    (home().as_deref() != Some(folder)).then(|| folder.to_owned())
}

fn root_folder(root: Root) -> Option<PathBuf> {
    let config = || folder("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")));
    match root {
        Root::Home => home(),
        Root::Application if cfg!(target_os = "macos") => {
            Some(home()?.join("Library/Application Support"))
        }
        Root::Application | Root::Config if cfg!(windows) => folder("APPDATA"),
        Root::Application | Root::Config => config(),
    }
}

fn home() -> Option<PathBuf> {
    folder("HOME").or_else(|| folder("USERPROFILE"))
}

fn folder(variable: &str) -> Option<PathBuf> {
    let value: OsString = std::env::var_os(variable)?;
    (!value.is_empty()).then(|| PathBuf::from(value))
}
