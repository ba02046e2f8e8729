//! `weir completions`: what a shell needs to complete the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use super::exit::Failure;
use super::{Cli, output};

/// What `weir completions` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell that is to complete.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the shell's script.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut script);
    output::print(|out| out.write_all(&script))
}
