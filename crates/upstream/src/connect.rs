//! Interface to the operating system: opening network connections and starting processes.
//!
//! Tests implement [`Connect`] themselves, so that the whole gateway runs in memory.

pub mod egress;
mod http_request;
mod proxy;
pub mod system;
pub mod tls;
mod trace_sink;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;

pub use crate::connect::http_request::HttpRequests;
pub use crate::process::child::{Child, ProcessHandle};
pub use crate::process::child_command::{ChildCommand, LoginPath};
pub use crate::process::deadline::Deadline;
pub use egress::Egress;
pub use trace_sink::{TraceDirection, TraceLine, TraceSink};
use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_base::net::http_connection::ByteStream;

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
    /// Returns the search path of the user's login shell, if a process is to be started with it.
    /// That takes a few seconds at most, the first time.
    fn login_path<'a>(&'a self, command: &'a ChildCommand) -> BoxFuture<'a, Option<String>> {
        let _ = command;
        Box::pin(std::future::ready(None))
    }
    /// Returns the receiver of all messages between Weir and the upstreams; `None` for services.
    fn trace_sink(&self) -> Option<Arc<dyn TraceSink>> {
        None
    }
}
