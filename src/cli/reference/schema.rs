//! `weir schema`: description of the configuration, as JSON schema or as a page.

use crate::cli::exit::Failure;
use crate::cli::output;
use weir_config as config;

/// Arguments of `weir schema`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prints a Markdown page for people instead.
    #[arg(long)]
    markdown: bool,
}

/// Prints the JSON schema or the page.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let text = if args.markdown { config::page() } else { config::schema() };
    output::print(|out| out.write_all(text.as_bytes()))
}
