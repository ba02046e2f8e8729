//! `weir schema`: what can be written in a configuration, for editors and for people.

use super::exit::Failure;
use super::output;
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
    output::print(|out| out.write_all(text.as_bytes()))
}
