//! The fixture: the server behind every gateway, in either era, over HTTP or stdio.
//!
//! It responds with bytes that were rendered at its start, so that it is never the bottleneck. Its
//! prompt list can grow by one prompt (`POST /control/add`), and then it sends a notification on
//! every open stream; `GET /control/listed` reports when the list was last requested.
//!
//! Invariants: an item's text begins with its name, so that the responses for two items always
//! differ; a request of the modern era gets a response of that era, any other a legacy one; over
//! HTTP a legacy request needs its session.

mod answers;
mod http;
mod stdio;

use std::sync::Arc;

use answers::Answers;
pub(crate) use answers::text_of;
pub(crate) use http::TOKEN;

/// Arguments of the fixture.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Settings {
    /// Serves over standard input and output instead of HTTP
    #[arg(long)]
    pub(crate) stdio: bool,
    /// Number of servers, each on a port of its own
    #[arg(long, default_value_t = 1)]
    pub(crate) servers: usize,
    /// Number of prompts of each server
    #[arg(long, default_value_t = 100)]
    pub(crate) prompts: usize,
    /// Number of tools of each server
    #[arg(long, default_value_t = 100)]
    pub(crate) tools: usize,
    /// Number of resources of each server
    #[arg(long, default_value_t = 0)]
    pub(crate) resources: usize,
    /// Length of the text in each response
    #[arg(long, default_value_t = 1024)]
    pub(crate) bytes: usize,
    /// Fills the text with characters that JSON escapes
    #[arg(long)]
    pub(crate) escapes: bool,
    /// Number of items on a page of a list
    #[arg(long, default_value_t = 1000)]
    pub(crate) page: usize,
    /// Duration of each get, call and read, in milliseconds
    #[arg(long, default_value_t = 0)]
    pub(crate) delay: u64,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
}

/// Serves until it is killed, or until its input ends. Over HTTP each server's address is a line on
/// standard output.
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
