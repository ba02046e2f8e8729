//! Command line and environment of a child process.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::Extent;
use crate::process::search_path;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_parts::url_credentials;

/// Command line and environment of a child process. Comes from the configuration file only.
#[derive(Clone, PartialEq, Default)]
pub struct ChildCommand {
    /// Program: a path, or a name to be looked up in `PATH`.
    pub program: String,
    /// Name of the program in messages: without values of variables, which may be secrets.
    pub display_name: String,
    /// Arguments; no shell interprets them. Each may hold a secret.
    pub args: Vec<Secret>,
    /// Contents of secret files that are part of arguments.
    pub arg_secrets: Vec<Secret>,
    /// Variables that the child inherits, whatever the upstream.
    pub inherited: Vec<(String, Secret)>,
    /// Variables of this upstream, which take precedence; the child has no others.
    pub env: Vec<(String, Secret)>,
    /// Names of the variables of Weir that the child does not get.
    pub withheld: Vec<String>,
    /// Use of the search path of the user's login shell.
    pub login_path: LoginPath,
    /// Working directory; `None` means Weir's own.
    pub cwd: Option<PathBuf>,
}

impl ChildCommand {
    /// The complete environment of the child; of two values for a name the last one counts.
    pub(crate) fn environment(&self) -> impl DoubleEndedIterator<Item = &(String, Secret)> {
        self.inherited.iter().chain(&self.env)
    }

    /// The folders in which the program, and what the child starts, are looked up.
    pub(crate) fn search_path(&self) -> Option<&str> {
        let path = self.environment().rfind(|(name, _)| name == PATH);
        path.map(|(_, path)| path.expose())
    }

    /// Returns whether the child gets the search path that Weir itself has, and not a configured
    /// one.
    pub(crate) fn inherits_search_path(&self) -> bool {
        !self.env.iter().any(|(name, _)| name == PATH)
    }

    /// Returns this command with an inherited search path that begins with `first`.
    pub(crate) fn with_search_path_from(&self, first: &str) -> Self {
        let path = search_path::join(first, self.search_path().unwrap_or_default());
        let mut command = self.clone();
        command.inherited.retain(|(name, _)| name != PATH);
        command.inherited.push((PATH.to_owned(), path.into()));
        command
    }

    /// Returns what the process is given and may be a secret: parts of its arguments, and values of
    /// its variables of [`MIN_SECRET_BYTES`] or more.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let arguments = self.arg_secrets.iter().map(Secret::expose);
        let own = self.env.iter().map(|(_, value)| value.expose());
        // A proxy's password is between these two.
        let inherited = self.inherited.iter();
        let inherited = inherited.filter_map(|(_, value)| url_credentials(value.expose()));
        let variables = own.chain(inherited.flatten());
        arguments.chain(variables.filter(|value| value.len() >= MIN_SECRET_BYTES))
    }

    /// The working directory, as far as this depends on it.
    pub(crate) fn folder(&self, extent: Extent) -> Option<PathBuf> {
        let is_in_use = |own: &PathBuf| {
            extent == Extent::Process
                || self.program.contains('/') && Path::new(&self.program).is_relative()
                || self.args.iter().any(|arg| is_relative(arg.expose(), own))
        };
        let own = || Some(std::env::current_dir().unwrap_or_default()).filter(is_in_use);
        self.cwd.clone().or_else(own)
    }
}

/// Returns whether an argument, or the value of an option, names a file or folder relative to the
/// working directory `own`.
fn is_relative(argument: &str, own: &Path) -> bool {
    let value = match argument.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value,
        _ => argument,
    };
    let path = Path::new(value);
    let begins_here =
        matches!(path.components().next(), Some(Component::CurDir | Component::ParentDir));
    begins_here || !value.is_empty() && path.is_relative() && own.join(path).exists()
}

/// Shortest value that is taken for a secret: shorter ones are words and numbers.
pub(crate) const MIN_SECRET_BYTES: usize = 6;

/// Leaves out arguments, which may be secrets without being marked as such.
impl fmt::Debug for ChildCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.display_name)
            .field("args", &format_args!("{} of them", self.args.len()))
            .field("env", &self.env)
            .field("login_path", &self.login_path)
            .finish_non_exhaustive()
    }
}

/// Use of the search path of the user's login shell for a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum LoginPath {
    /// Used if a client has started Weir, and Weir's own search path is that of a desktop or does
    /// not lead to the program.
    #[default]
    Auto,
    /// Never used.
    Never,
    /// Used in any case.
    Always,
}

const PATH: &str = "PATH";
