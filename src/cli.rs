//! Command line: one file per command.
//!
//! Invariants: data goes to standard output, everything else to standard error. A command that
//! fails prints one line, the cause and what to do, and ends with the exit code of
//! [`exit::Failure`]. With `--json` that line is JSON for every failure.

mod admin;
mod audit;
mod check;
mod clients;
mod config_edit;
mod exit;
mod explain;
mod files;
mod instance;
mod loading;
mod login;
mod output;
mod pins;
mod query;
mod reference;
mod server;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli::server::signals::Signals;
use config_edit::{keys, upstreams};
use exit::Failure;
use output::Color;
use weir_base::time::timestamp;
use weir_downstream::http::LAST_TASKS;
use weir_oauth::finish_exchanges;

/// One MCP endpoint in front of many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100, after_help = reference::help::WEIR)]
struct Cli {
    /// When to use colors; `auto` follows NO_COLOR, CLICOLOR_FORCE and TERM.
    // `run` reads this option before clap parses the others, because clap's own messages are
    // colored as well.
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value = "auto")]
    #[arg(hide_possible_values = true, help_heading = "Everywhere")]
    color: Color,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves clients over HTTP.
    #[command(after_help = reference::help::SERVE)]
    Serve(server::serve::Args),
    /// Serves one client over standard input and output; the client starts it.
    #[command(after_help = reference::help::STDIO)]
    Stdio(server::stdio::Args),
    /// Checks the configuration, then starts and lists each upstream and reports the result.
    #[command(after_help = reference::help::CHECK)]
    Check(check::Args),
    /// Starts the upstreams and lists their prompts, tools, resources or templates.
    #[command(after_help = reference::help::LIST, alias = "ls")]
    List(query::list::Args),
    /// Explains why an item is visible to a client or not: which rule decides, in which line.
    #[command(after_help = reference::help::EXPLAIN)]
    Explain(explain::Args),
    /// Gets a prompt with its arguments filled in.
    #[command(after_help = reference::help::GET)]
    Get(query::get::Args),
    /// Calls a tool.
    #[command(after_help = reference::help::CALL)]
    Call(query::call::Args),
    /// Reads a resource.
    #[command(after_help = reference::help::READ)]
    Read(query::read::Args),
    /// Completes an argument of a prompt or of a resource template.
    #[command(after_help = reference::help::COMPLETE)]
    Complete(query::complete::Args),
    /// Compares definitions with the approved ones, and approves them.
    #[command(after_help = reference::help::PINS)]
    Pins(pins::Args),
    /// Prints a completion script for a shell.
    #[command(after_help = reference::help::COMPLETIONS)]
    Completions(reference::completions::Args),
    /// Writes the manual pages of all commands to a folder.
    #[command(after_help = reference::help::MAN)]
    Man(reference::man::Args),
    /// Prints the version and the supported protocol revisions and transports.
    #[command(after_help = reference::help::VERSION)]
    Version(reference::version::Args),
    /// Prints the JSON schema of the configuration, for completion and checks in editors.
    #[command(after_help = reference::help::SCHEMA)]
    Schema(reference::schema::Args),
    /// Adds an upstream to the configuration, then starts and lists it.
    #[command(after_help = reference::help::ADD)]
    Add(upstreams::add::Args),
    /// Removes an upstream from the configuration.
    #[command(after_help = reference::help::REMOVE, alias = "rm")]
    Remove(upstreams::change::Args),
    /// Enables an upstream that is disabled.
    #[command(after_help = reference::help::ENABLE)]
    Enable(upstreams::change::Args),
    /// Disables an upstream, which keeps its table.
    #[command(after_help = reference::help::DISABLE)]
    Disable(upstreams::change::Args),
    /// Writes a configuration: a starter file, or the imported servers of an MCP client.
    #[command(after_help = reference::help::INIT)]
    Init(clients::init::Args),
    /// Prints the status of the running Weir of a configuration.
    #[command(after_help = reference::help::STATUS)]
    Status(loading::ReportArgs),
    /// Checks whether the running Weir of a configuration is alive and ready, for container probes.
    #[command(after_help = reference::help::HEALTH)]
    Health(instance::health::Args),
    /// Makes the running Weir of a configuration reload it.
    #[command(after_help = reference::help::RELOAD)]
    Reload(loading::ReportArgs),
    /// Starts an upstream of the running Weir of a configuration again.
    #[command(after_help = reference::help::RESTART)]
    Restart(instance::restart::Args),
    /// Shows the standard error of an upstream of the running Weir, its starts and its ends.
    #[command(after_help = reference::help::LOGS)]
    Logs(instance::logs::Args),
    /// Shows the load of the running Weir of a configuration, once a second.
    #[command(after_help = reference::help::TOP)]
    Top(instance::top::Args),
    /// Shows the replicas of a fleet, or makes a key for one.
    #[command(after_help = reference::help::FLEET)]
    Fleet(instance::fleet::Args),
    /// Shows the audit log, or verifies that it is intact.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Prints or writes the entry that points an MCP client at Weir.
    #[command(after_help = reference::help::CONNECT)]
    Connect(clients::connect::Args),
    /// Looks for what keeps MCP clients from Weir's servers, and says how to mend it.
    #[command(after_help = reference::help::DOCTOR)]
    Doctor(clients::doctor::Args),
    /// Signs in to an upstream, or shows the sign-ins.
    #[command(after_help = reference::help::LOGIN)]
    Login(login::LoginArgs),
    /// Removes the sign-in to an upstream.
    #[command(after_help = reference::help::LOGOUT)]
    Logout(login::LogoutArgs),
    /// Adds clients with keys, rotates keys, and removes clients.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
}

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    // Any command may have keys or tokens in its memory, and in its arguments.
    server::hardening::protect_memory();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    Color::from_arguments(&arguments).apply();
    let json = wants_json(&arguments);
    let ended = match parse(&arguments) {
        Ok(cli) => run_command(cli.command, json),
        Err(message) => match reference::corrections::correct(&message, &arguments) {
            Some(failure) => Err(failure),
            None => handle_parse_error(&message, json),
        },
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::print_failure(&failure, json);
            failure.exit_code()
        }
    }
}

/// Definition of the command line, with the list of commands in groups.
fn definition() -> clap::Command {
    reference::command_groups::group(Cli::command())
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut definition = definition();
    let matches = definition.try_get_matches_from_mut(arguments)?;
    output::command_hints::remember(&definition, &matches);
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut definition))
}

/// Returns whether failures are printed as JSON, including the failure to parse the arguments.
fn wants_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// Prints clap's help, or turns its error into a failure.
fn handle_parse_error(message: &clap::Error, json: bool) -> Result<(), Failure> {
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
            // Only the first paragraph: the usage text is meant for people.
            let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
            let text = lines.collect::<Vec<_>>().join(" ");
            Err(Failure::Usage(text.trim_start_matches("error: ").to_owned()))
        }
        _ => Err(Failure::Arguments(message.render().ansi().to_string())),
    }
}

fn run_command(command: Command, json: bool) -> Result<(), Failure> {
    let is_service = matches!(command, Command::Serve(_) | Command::Stdio(_));
    server::fd_limit::check_available()?;
    server::thread_check::check_available()?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().thread_keep_alive(IDLE_THREAD).build();
    let runtime = runtime.map_err(server::thread_check::start_failure)?;
    let command = async {
        match command {
            Command::Serve(args) => server::serve::run(args).await,
            Command::Stdio(args) => server::stdio::run(args).await,
            Command::Check(args) => run_until_signal(check::run(args)).await,
            Command::List(args) => run_until_signal(query::list::run(args)).await,
            Command::Explain(args) => run_until_signal(explain::run(args)).await,
            Command::Get(args) => run_until_signal(query::get::run(args)).await,
            Command::Call(args) => run_until_signal(query::call::run(args)).await,
            Command::Read(args) => run_until_signal(query::read::run(args)).await,
            Command::Complete(args) => run_until_signal(query::complete::run(args)).await,
            Command::Pins(args) => run_until_signal(pins::run(args)).await,
            Command::Status(args) => run_until_signal(instance::status::run(args)).await,
            Command::Health(args) => run_until_signal(instance::health::run(args)).await,
            Command::Reload(args) => run_until_signal(instance::reload::run(args)).await,
            Command::Restart(args) => run_until_signal(instance::restart::run(args)).await,
            Command::Logs(args) => run_until_signal(instance::logs::run(args)).await,
            Command::Top(args) => instance::top::run(args).await,
            Command::Fleet(args) => run_until_signal(instance::fleet::run(args)).await,
            Command::Login(args) => login::login(args).await,
            Command::Logout(args) => login::logout(args).await,
            Command::Add(args) => run_until_signal(upstreams::add::run(args)).await,
            Command::Remove(args) => upstreams::change::remove(&args),
            Command::Enable(args) => upstreams::change::set_enabled(&args, true),
            Command::Disable(args) => upstreams::change::set_enabled(&args, false),
            Command::Init(args) => clients::init::run(&args, upstreams::merge::merge),
            Command::Connect(args) => {
                run_until_signal(clients::connect::run(args, upstreams::merge::merge)).await
            }
            Command::Doctor(args) => run_until_signal(clients::doctor::run(args)).await,
            Command::Keys(command) => keys::run(&command),
            Command::Audit(command) => run_until_signal(audit::run(command)).await,
            Command::Completions(args) => reference::completions::run(args).await,
            Command::Man(args) => reference::man::run(&args),
            Command::Version(args) => reference::version::run(args).await,
            Command::Schema(args) => reference::schema::run(args).await,
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(command)));
    // Whatever has ended the command, a sign-in that is being renewed must not be lost.
    runtime.block_on(finish_exchanges(|upstreams| match is_service {
        true => tracing::warn!("{}", output::waiting_for_answer(upstreams)),
        false => output::print_waiting_for_answer(upstreams, json),
    }));
    // This drops the remaining tasks and with them their child processes. A blocking read of
    // standard input cannot be cancelled, therefore the wait is bounded.
    runtime.shutdown_timeout(LAST_TASKS);
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Time after which an idle thread for blocking work ends: each keeps memory of the allocator.
const IDLE_THREAD: Duration = Duration::from_secs(1);

/// Runs a command that a signal ends at once. Child processes do not receive the terminal's
/// Ctrl-C, because each leads a process group of its own; they are killed when their tasks are
/// dropped.
async fn run_until_signal(
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    Signals::of_command()?.run_until_signal(command).await
}
