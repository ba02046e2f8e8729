//! `weir man`: manual pages of all commands.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::cli::exit::Failure;

/// Arguments of `weir man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder, which has to exist.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Writes a page for each command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    clap_mangen::generate_to(Cli::command(), &args.folder)
        .map_err(|error| Failure::Usage(format!("{}: {error}", args.folder.display())))
}
