//! `weir completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::exit::Failure;
use crate::cli::{Cli, output};

/// Arguments of `weir completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the completion script of the shell.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut script);
    output::print(|out| out.write_all(&script))
}
