//! The command line: one file a command.
//!
//! Data goes to standard output, everything else to standard error. A command that fails says what
//! happened and whose move it is, in one line, and ends with the exit code of [`failure::Failure`]. With
//! `--json` that line is JSON, whatever went wrong.

mod admin;
mod audit;
mod check;
mod clients;
mod completions;
mod connect;
mod exit;
mod explain;
mod files;
mod help;
mod init;
mod instance;
mod keys;
mod output;
mod pins;
mod query;
mod schema;
mod server;
#[cfg(test)]
mod tests;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::cli::server::signals::Signals;
use crate::downstream::http::LAST_TASKS;
use crate::timestamp;
use exit::Failure;
use output::Color;

/// One MCP endpoint in front of many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100, after_help = help::WEIR)]
struct Cli {
    /// When to write colors; `auto` heeds NO_COLOR, CLICOLOR_FORCE and TERM.
    // Read before the others, in `run`: it holds for clap's own messages, too.
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value = "auto")]
    #[arg(hide_possible_values = true, help_heading = "Everywhere")]
    color: Color,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves clients over HTTP.
    #[command(after_help = help::SERVE)]
    Serve(server::serve::Args),
    /// Serves one client over standard input and output, as an IDE starts it.
    #[command(after_help = help::STDIO)]
    Stdio(server::stdio::Args),
    /// Checks the configuration, then starts, lists and reports each upstream.
    #[command(after_help = help::CHECK)]
    Check(check::Args),
    /// Starts the upstreams and lists their prompts, tools, resources or templates.
    #[command(after_help = help::LIST)]
    List(query::list::Args),
    /// Says why a client sees something, or does not: by which rule, in which line.
    #[command(after_help = help::EXPLAIN)]
    Explain(explain::Args),
    /// Gets a prompt, filled in.
    #[command(after_help = help::GET)]
    Get(query::get::Args),
    /// Calls a tool.
    #[command(after_help = help::CALL)]
    Call(query::call::Args),
    /// Reads a resource.
    #[command(after_help = help::READ)]
    Read(query::read::Args),
    /// Completes an argument of a prompt or of a resource template.
    #[command(after_help = help::COMPLETE)]
    Complete(query::complete::Args),
    /// Compares definitions with those that were approved, and approves them.
    #[command(after_help = help::PINS)]
    Pins(pins::Args),
    /// Prints what a shell needs to complete this command line.
    #[command(after_help = help::COMPLETIONS)]
    Completions(completions::Args),
    /// Prints the version, and what is spoken.
    #[command(after_help = help::VERSION)]
    Version(version::Args),
    /// Prints the JSON schema of the configuration, with which editors complete and check it.
    #[command(after_help = help::SCHEMA)]
    Schema(schema::Args),
    /// Writes a configuration: a beginning, or the servers of an MCP client.
    #[command(after_help = help::INIT)]
    Init(init::Args),
    /// Says how the running Weir of a configuration is doing.
    #[command(after_help = help::STATUS)]
    Status(instance::status::Args),
    /// Tells whether the running Weir of a configuration is alive and ready, for probes of containers.
    #[command(after_help = help::HEALTH)]
    Health(instance::health::Args),
    /// Has the running Weir of a configuration read it again.
    #[command(after_help = help::RELOAD)]
    Reload(instance::reload::Args),
    /// Shows what the running Weir of a configuration does, once a second.
    #[command(after_help = help::TOP)]
    Top(instance::top::Args),
    /// Reads the audit log: shows it, or checks that it is whole.
    #[command(subcommand)]
    Audit(audit::Command),
    /// Prints or writes the entry that points an MCP client at Weir.
    #[command(after_help = help::CONNECT)]
    Connect(connect::Args),
    /// Makes clients and keys, changes keys, and takes them away.
    Keys(keys::Args),
}

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    Color::of_arguments(&arguments).apply();
    let json = asks_for_json(&arguments);
    let ended = match Cli::try_parse_from(arguments) {
        Ok(cli) => start(cli.command),
        Err(message) => unparsed(&message, json),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(json);
            failure.exit_code()
        }
    }
}

/// Whether failures are to be told as JSON, the failure to read the arguments included.
fn asks_for_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// Says what clap has to say instead of a command: the help, or what is wrong.
fn unparsed(message: &clap::Error, json: bool) -> Result<(), Failure> {
    match message.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = message.render();
            let colored = output::Color::on_stdout();
            output::print(|out| match colored {
                true => write!(out, "{}", text.ansi()),
                false => write!(out, "{text}"),
            })
        }
        _ if json => {
            let text = message.render().to_string();
            // The first paragraph; the usage is for people.
            let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
            let text = lines.collect::<Vec<_>>().join(" ");
            Err(Failure::Usage(text.trim_start_matches("error: ").to_owned()))
        }
        _ => Err(Failure::Arguments(message.render().ansi().to_string())),
    }
}

fn start(command: Command) -> Result<(), Failure> {
    server::thread_check::try_all()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(server::thread_check::not_started)?;
    let ended = runtime.block_on(async {
        match command {
            Command::Serve(args) => server::serve::run(args).await,
            Command::Stdio(args) => server::stdio::run(args).await,
            Command::Check(args) => stoppable(check::run(args)).await,
            Command::List(args) => stoppable(query::list::run(args)).await,
            Command::Explain(args) => stoppable(explain::run(args)).await,
            Command::Get(args) => stoppable(query::get::run(args)).await,
            Command::Call(args) => stoppable(query::call::run(args)).await,
            Command::Read(args) => stoppable(query::read::run(args)).await,
            Command::Complete(args) => stoppable(query::complete::run(args)).await,
            Command::Pins(args) => stoppable(pins::run(args)).await,
            Command::Status(args) => stoppable(instance::status::run(args)).await,
            Command::Health(args) => stoppable(instance::health::run(args)).await,
            Command::Reload(args) => stoppable(instance::reload::run(args)).await,
            Command::Top(args) => instance::top::run(args).await,
            Command::Init(args) => init::run(&args),
            Command::Connect(args) => connect::run(&args),
            Command::Keys(args) => keys::run(&args),
            Command::Audit(command) => stoppable(audit::run(command)).await,
            Command::Completions(args) => completions::run(args).await,
            Command::Version(args) => version::run(args).await,
            Command::Schema(args) => schema::run(args).await,
        }
    });
    // Tasks that are left are dropped here, and with them the children that they keep. A blocking read
    // of standard input cannot be cancelled, and is not waited for longer than that takes.
    runtime.shutdown_timeout(LAST_TASKS);
    ended
}

/// Runs a command that a signal ends at once. Children do not hear our terminal's Ctrl-C: they lead
/// groups of their own, and are killed as their tasks are dropped.
async fn stoppable(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    Signals::new()?.end(command).await
}
