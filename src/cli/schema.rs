//! `weir schema`: what can be written in a configuration, for editors and for people.

use std::io::Write;

use super::failure::Failure;
use crate::config;

/// What `weir schema` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prints a page for people instead, as Markdown.
    #[arg(long)]
    markdown: bool,
}

/// Prints the JSON schema of the configuration, or the page.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let text = if args.markdown { config::page() } else { config::schema() };
    // A reader that has seen enough closes the pipe; that is no failure.
    let _ = anstream::stdout().write_all(text.as_bytes());
    Ok(())
}
