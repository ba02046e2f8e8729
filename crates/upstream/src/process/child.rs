//! Started child process: its pipes, and a handle of its process.

use futures::future::BoxFuture;

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
