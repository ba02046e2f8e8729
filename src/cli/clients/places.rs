//! Locations of a client's files on this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::known::CLIENTS;
use super::{BaseFolder, McpClient};

/// Scope of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Scope {
    /// All projects of this user.
    User,
    /// The project in the current folder.
    Project,
}

/// Returns the client's file of a scope; `None` if the client has no such file or the folder is
/// unknown. `project` is the project's folder.
pub(crate) fn file(client: &McpClient, scope: Scope, project: &Path) -> Option<PathBuf> {
    if scope == Scope::Project {
        return client.project_file.map(|file| project.join(file));
    }
    let files = user_files(client);
    let first = files.first()?;
    let other = files.iter().find(|file| file.exists()).filter(|_| !first.exists());
    Some(other.unwrap_or(first).clone())
}

/// Returns all files of a client that may contain servers for a project, whether they exist or not.
pub(crate) fn all_files(client: &McpClient, project: &Path) -> Vec<(Scope, PathBuf)> {
    let of_project = client.project_file.map(|file| (Scope::Project, project.join(file)));
    let of_user = user_files(client).into_iter().map(|file| (Scope::User, file));
    of_project.into_iter().chain(of_user).collect()
}

/// Returns the user's files of a client; one if a variable names its folder.
fn user_files(client: &McpClient) -> Vec<PathBuf> {
    let moved = |(variable, file): (&str, &str)| Some(folder(variable)?.join(file));
    if let Some(moved) = client.override_variable.and_then(moved) {
        return vec![moved];
    }
    let files = client.user_files.iter();
    files.filter_map(|(root, file)| Some(root_folder(*root)?.join(file))).collect()
}

/// Returns the other files of a client that enable and disable servers, the one that counts most
/// first.
pub(crate) fn settings_files(client: &McpClient, project: &Path) -> Vec<PathBuf> {
    let in_project = client.settings_files.iter().map(|file| project.join(file));
    let home = home().filter(|_| !client.settings_files.is_empty());
    let in_home = home.map(|home| home.join(".claude/settings.json"));
    in_project.chain(in_home).collect()
}

/// Returns the folder of the project that a file belongs to; `None` if it is not a project's file,
/// or the user's own file.
pub(crate) fn project_of(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let files = CLIENTS.iter().filter_map(|client| client.project_file);
    let file = files.into_iter().find(|file| path.ends_with(file))?;
    let folder = path.ancestors().nth(Path::new(file).components().count())?;
    (home().as_deref() != Some(folder)).then(|| folder.to_owned())
}

fn root_folder(root: BaseFolder) -> Option<PathBuf> {
    match root {
        BaseFolder::Home => home(),
        BaseFolder::Application if cfg!(target_os = "macos") => {
            Some(home()?.join("Library/Application Support"))
        }
        BaseFolder::Application | BaseFolder::Config => {
            folder("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")))
        }
    }
}

fn home() -> Option<PathBuf> {
    folder("HOME").or_else(|| folder("USERPROFILE"))
}

fn folder(variable: &str) -> Option<PathBuf> {
    let value: OsString = std::env::var_os(variable)?;
    (!value.is_empty()).then(|| PathBuf::from(value))
}
