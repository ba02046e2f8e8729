//! Where an upstream room touches the world: opening a connection and starting a process.
//!
//! Tests put their own [`Dial`] in its place, and the whole house runs in memory.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::secret::Secret;

/// A byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// What to start. Comes from the configuration file alone.
#[derive(Clone, PartialEq)]
pub struct Command {
    /// The program: a path, or a name to be looked up in `PATH`.
    pub program: String,
    /// How messages name the program: without what came out of a variable, which may be a secret.
    pub shown: String,
    /// Its arguments; no shell reads them.
    pub args: Vec<String>,
    /// The whole environment of the child: nothing else is inherited.
    pub env: Vec<(String, Secret)>,
    /// Where it runs; `None` is where Weir runs.
    pub cwd: Option<PathBuf>,
}

/// Without what may be a secret, though not written as one.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.shown)
            .field("args", &format_args!("{} of them", self.args.len()))
            .field("env", &self.env)
            .finish_non_exhaustive()
    }
}

/// A started process.
pub struct Child {
    /// Its standard input.
    pub stdin: Box<dyn tokio::io::AsyncWrite + Send + Unpin>,
    /// Its standard output.
    pub stdout: Box<dyn tokio::io::AsyncRead + Send + Unpin>,
    /// Its standard error; `None` if there is none (in memory).
    pub stderr: Option<Box<dyn tokio::io::AsyncRead + Send + Unpin>>,
    /// Waits for its end, and stops it.
    pub process: Box<dyn Process>,
}

/// The life of a started process.
pub trait Process: Send {
    /// Its number, where it has one.
    fn id(&self) -> Option<Number> {
        None
    }
    /// Waits until the process has ended and tells how, in words. Cancel-safe.
    fn wait(&mut self) -> BoxFuture<'_, String>;
    /// Asks the process and all it has started to end (SIGTERM to the group).
    fn terminate(&mut self);
    /// Ends the process and all it has started (SIGKILL to the group, and on Linux to what has left it).
    fn kill(&mut self);
}

/// The number of a process, for those who look for it on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Its own.
    Own(u32),
    /// That of the process that keeps it, which has started it or is about to.
    Keeper(u32),
}

impl Number {
    /// The process's own number, or its keeper's as long as there is none.
    pub fn now(self) -> u32 {
        match self {
            Self::Own(number) => number,
            Self::Keeper(keeper) => {
                let path = format!("/proc/{keeper}/task/{keeper}/children");
                let children = std::fs::read_to_string(path).unwrap_or_default();
                // What it was handed stands behind what it has started.
                let first = children.split_whitespace().next().and_then(|it| it.parse().ok());
                first.unwrap_or(keeper)
            }
        }
    }
}

/// Opens connections and starts processes.
pub trait Dial: Send + Sync + 'static {
    /// Opens a connection to the server of `url`, with TLS where its scheme says so. Each of its addresses is tried for
    /// no longer than `time`.
    fn connect<'a>(
        &'a self,
        url: &'a Uri,
        time: Duration,
    ) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
    /// Starts a process.
    fn spawn(&self, command: &Command) -> io::Result<Child>;
}
