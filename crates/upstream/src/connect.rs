//! Interface to the operating system: opening network connections and starting processes.
//!
//! Tests implement [`Connect`] themselves, so that the whole gateway runs in memory.

pub mod egress;
mod http_request;
mod proxy;
pub mod system;
pub mod tls;

use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;

use crate::Extent;
pub use crate::connect::http_request::HttpRequests;
pub use crate::process::deadline::Deadline;
pub use egress::Egress;
use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_base::net::http_connection::ByteStream;
use weir_base::secrets::secret::Secret;

/// Command line and environment of a child process. Comes from the configuration file only.
#[derive(Clone, PartialEq)]
pub struct ChildCommand {
    /// Program: a path, or a name to be looked up in `PATH`.
    pub program: String,
    /// Name of the program in messages: without values of variables, which may be secrets.
    pub display_name: String,
    /// Arguments; no shell interprets them. Each may hold a secret.
    pub args: Vec<Secret>,
    /// Variables that the child inherits, whatever the upstream.
    pub inherited: Vec<(String, Secret)>,
    /// Variables of this upstream, which take precedence; the child has no others.
    pub env: Vec<(String, Secret)>,
    /// Working directory; `None` means Weir's own.
    pub cwd: Option<PathBuf>,
}

impl ChildCommand {
    /// The complete environment of the child; of two values for a name the last one counts.
    pub(crate) fn environment(&self) -> impl DoubleEndedIterator<Item = &(String, Secret)> {
        self.inherited.iter().chain(&self.env)
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

/// Leaves out arguments, which may be secrets without being marked as such.
impl fmt::Debug for ChildCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.display_name)
            .field("args", &format_args!("{} of them", self.args.len()))
            .field("env", &self.env)
            .finish_non_exhaustive()
    }
}

/// Started child process.
pub struct Child {
    /// Standard input.
    pub stdin: Box<dyn tokio::io::AsyncWrite + Send + Unpin>,
    /// Standard output.
    pub stdout: Box<dyn tokio::io::AsyncRead + Send + Unpin>,
    /// Standard error; `None` in memory.
    pub stderr: Option<Box<dyn tokio::io::AsyncRead + Send + Unpin>>,
    /// Handle that waits for the process and stops it.
    pub process: Box<dyn ProcessHandle>,
}

/// Handle of a started process.
pub trait ProcessHandle: Send {
    /// Waits until the process has ended and describes how. Cancel-safe.
    fn wait(&mut self) -> BoxFuture<'_, String>;
    /// Requests termination of the process and its descendants (SIGTERM to the group).
    fn terminate(&mut self);
    /// Kills the process and its descendants (SIGKILL to the group, and on Linux also descendants
    /// that left it).
    fn kill(&mut self);
}

/// Server to connect to.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// URL of the server; with `https` the connection is protected by TLS.
    pub url: &'a Uri,
    /// Time limit of each address that is tried.
    pub timeout: Duration,
    /// Addresses to which the connection may lead; `None` allows all.
    pub(crate) allowed: Option<&'a AllowedAddresses>,
    /// Way to the server.
    pub(crate) egress: &'a Egress,
}

/// Opens network connections and starts processes.
pub trait Connect: Send + Sync + 'static {
    /// Opens a connection to a server.
    fn connect<'a>(&'a self, to: Destination<'a>)
    -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>>;
    /// Starts a process.
    fn spawn(&self, command: &ChildCommand) -> io::Result<Child>;
    /// Starts a process that ends at the deadline. Where the operating system does not offer this,
    /// the caller alone ends it.
    fn spawn_until(&self, command: &ChildCommand, deadline: &Deadline) -> io::Result<Child> {
        let _ = deadline;
        self.spawn(command)
    }
}
