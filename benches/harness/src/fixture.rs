//! The fixture: the server that stands behind every gateway, in either era, over HTTP or stdio.
//!
//! It answers from bytes that were rendered at its start, so that it is never what is measured. What it lists can
//! grow by one prompt (`POST /control/add`), and then it says so on every open stream; `GET /control/listed` tells when
//! the list was last read.
//!
//! Promises: an item's text begins with its name, so that two replies are never alike; a request of the modern era gets what that
//! era wants, any other what the legacy one does; over HTTP a legacy request needs the session that it was given.
//! Knows nothing of: gateways, and whether it is asked by one.

mod answers;
mod http;
mod stdio;

use std::sync::Arc;

use answers::Answers;
pub(crate) use answers::text_of;

/// What it is started with.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Settings {
    /// Speaks over standard input and output instead of HTTP
    #[arg(long)]
    pub(crate) stdio: bool,
    /// How many servers there are, each on a port of its own
    #[arg(long, default_value_t = 1)]
    pub(crate) servers: usize,
    /// How many prompts each has
    #[arg(long, default_value_t = 100)]
    pub(crate) prompts: usize,
    /// How many tools
    #[arg(long, default_value_t = 100)]
    pub(crate) tools: usize,
    /// How many resources
    #[arg(long, default_value_t = 0)]
    pub(crate) resources: usize,
    /// Of the text in each reply
    #[arg(long, default_value_t = 1024)]
    pub(crate) bytes: usize,
    /// How many items are on a page of a list
    #[arg(long, default_value_t = 1000)]
    pub(crate) page: usize,
    /// How long each get, call and read takes, in milliseconds
    #[arg(long, default_value_t = 0)]
    pub(crate) delay: u64,
    /// Threads that answer
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
}

/// Serves until it is killed, or until its input ends. Over HTTP each server's address is a line on standard output.
pub(crate) fn run(settings: &Settings) -> std::io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(settings.threads).enable_all().build()?;
    let answers: Vec<_> = (0..settings.servers).map(|_| Arc::new(Answers::new(settings))).collect();
    runtime.block_on(async {
        match settings.stdio {
            true => stdio::serve(&answers[0]).await,
            false => http::serve(answers).await,
        }
    })
}
