//! The command line: one file a command.
//!
//! Data goes to standard output, everything else to standard error. A command that fails says what
//! happened and whose move it is, in one line, and ends with the exit code of [`failure::Failure`].

mod check;
mod clients;
mod connect;
mod demo;
mod failure;
mod files;
mod get;
mod house;
mod init;
mod list;
mod log;
mod serve;
mod signals;
mod stdio;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// One MCP endpoint in front of many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves clients over HTTP.
    Serve(serve::Args),
    /// Serves one client over standard input and output, as an IDE starts it.
    Stdio(stdio::Args),
    /// Checks the configuration, then starts, lists and reports each upstream.
    Check(check::Args),
    /// Starts the upstreams and lists their prompts, tools, resources or templates.
    List(list::Args),
    /// Starts the upstreams and gets a prompt.
    Get(get::Args),
    /// Writes a configuration: a beginning, or the servers of an MCP client.
    Init(init::Args),
    /// Prints or writes the entry that points an MCP client at Weir.
    Connect(connect::Args),
}

const EXIT_CODES: &str = "Exit codes: 0 done, 2 wrong usage, 3 not authenticated, 4 an upstream cannot be \
reached, 5 the answer was an error, 6 denied, 78 wrong configuration.";

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            anstream::eprintln!("weir: the threads could not be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (json, ended) = match cli.command {
        Command::Serve(args) => (false, runtime.block_on(serve::run(args))),
        Command::Stdio(args) => (false, runtime.block_on(stdio::run(args))),
        Command::Check(args) => (args.json, runtime.block_on(check::run(args))),
        Command::List(args) => (args.json, runtime.block_on(list::run(args))),
        Command::Get(args) => (args.json, runtime.block_on(get::run(args))),
        Command::Init(args) => (false, init::run(&args)),
        Command::Connect(args) => (false, connect::run(&args)),
    };
    // Tasks that are left are dropped here, and with them the children that they keep. A blocking read
    // of standard input cannot be cancelled, and is not waited for longer than that takes.
    runtime.shutdown_timeout(LAST_TASKS);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(json);
            failure.exit_code()
        }
    }
}

/// How long the tasks that are left may take to be dropped.
const LAST_TASKS: Duration = Duration::from_millis(250);
