//! The definition of the command line, and its page in the documents.
//!
//! `docs/cli.md` is written from the definition, below an introduction that stands here. After a change:
//! `WEIR_WRITE_DOCS=1 cargo test --lib cli::tests`.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::Cli;

/// Options that many commands have: they are told of once.
const SHARED: [&str; 5] = ["as", "config", "demo", "color", "help"];

const INTRODUCTION: &str = "\
# The command line

Written from the program's own definition by a test; `weir help COMMAND` says the same.

## Where output goes

Data goes to standard output, everything else to standard error: a pipe gets what was asked for and nothing more. On a \
terminal, control characters in an upstream's texts are replaced; into a file or a pipe they go as they are. While a \
command waits, a line on standard error says for whom, if that is a terminal.

With `--json`, standard output is JSON, and a command that fails writes one line to standard error, whatever went wrong, wrong \
arguments included: `{\"error\": …, \"exit_code\": …}`. For a wrong configuration it has `problems`, too: an array with `severity`, `file`, \
`line`, `column`, `key`, `what` and `remedy`. Warnings about the configuration stand in `warnings` of `weir check --json`, and the \
other commands leave them out. `weir check --json` writes what its log has to say as lines of JSON before that line. What can be shown in spite of \
a failure is still written to standard output: the rest of a list, the report of a check, why something is not visible, the answer of a tool that failed.

## Exit codes

| code | meaning | whose move it is |
|---|---|---|
| 0 | done; also where a reader closed the pipe early | |
| 1 | `pins diff` found something different; `status` and `health`: it is alive, and something is wrong; `reload`: it was refused | yours: review it, then `pins approve`; the operator's |
| 2 | wrong usage: arguments, a name that is not there, or a file of a client's or of `init`'s that cannot be read or written | yours |
| 3 | not authenticated: `--as` names no client, or one whose keys have expired; the running Weir does not take the token | yours, or the operator's |
| 4 | an upstream, the address to listen on, or a running Weir cannot be reached; an upstream is switched off | the operator's |
| 5 | the answer was an error, or a question that the command line cannot answer; `audit verify`: the log is not whole | the upstream's; the operator's |
| 6 | denied: the item is there, and the policy hides it from this client | the operator's |
| 74 | the output could not be written | yours: a full disk |
| 78 | wrong configuration, or none; a client's file that is no JSON or TOML, or from which there is nothing to take over | the operator's, or yours |
| 130, 143 | stopped by Ctrl-C, or by SIGTERM | |

## Environment

| variable | meaning |
|---|---|
| `WEIR_CONFIG` | the configuration file, where `--config` names none |
| `XDG_CONFIG_HOME`, `HOME` | where `weir/weir.toml` is looked for after `./weir.toml` |
| `WEIR_LOG` | what is logged, instead of the configured level: `weir=debug`, `weir::upstream=trace,warn` |
| `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE`, `TERM` | whether there are colors, unless `--color` says so; with `TERM=dumb` no waiting is shown either |

## What many commands take

";

fn page() -> String {
    let mut weir = Cli::command().term_width(100);
    weir.build();
    let mut page = INTRODUCTION.to_owned();
    let list = weir.find_subcommand("list").expect("a command that asks something");
    let is_shared = |arg: &&Arg| SHARED.contains(&arg.get_long().unwrap_or_default());
    let shared: Vec<&Arg> = list.get_arguments().filter(is_shared).collect();
    shared.iter().for_each(|arg| describe(&mut page, arg));
    write_commands(&mut page, "weir", &weir, &shared);
    page
}

fn write_commands(page: &mut String, path: &str, parent: &Command, shared: &[&Arg]) {
    for command in parent.get_subcommands().filter(|command| command.get_name() != "help") {
        let path = format!("{path} {}", command.get_name());
        write_command(page, &path, command, shared);
        write_commands(page, &path, command, shared);
    }
}

fn write_command(page: &mut String, path: &str, command: &Command, shared: &[&Arg]) {
    let about = command.get_about().expect("every command says what it does");
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    write!(page, "\n## {path}\n\n{about}.\n\n```text\n{usage}\n```\n\n").expect("a string");
    let is_told = |arg: &&Arg| {
        let help = |arg: &Arg| arg.get_help().map(ToString::to_string);
        let same = |it: &&Arg| it.get_long() == arg.get_long() && help(it) == help(arg);
        shared.iter().any(same) || arg.get_long() == Some("help")
    };
    let mut own = command.get_arguments().filter(|arg| !is_told(arg)).peekable();
    let has_own = own.peek().is_some();
    own.for_each(|arg| describe(page, arg));
    if command.has_subcommands() {
        return;
    }
    let examples = command.get_after_help().expect("every command has examples").to_string();
    let examples = examples.strip_prefix("Examples:\n").expect("they come first");
    let (examples, more) = examples.split_once("\n\n").unwrap_or((examples, ""));
    let examples: Vec<_> = examples.lines().map(str::trim_start).collect();
    let gap = if has_own { "\n" } else { "" };
    write!(page, "{gap}```sh\n{}\n```\n", examples.join("\n")).expect("a string");
    if !more.is_empty() {
        write!(page, "\n{more}\n").expect("a string");
    }
}

fn describe(page: &mut String, arg: &Arg) {
    let values: Vec<_> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let takes_value = arg.get_action().takes_values();
    let name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        _ => values.join(" "),
    };
    let value = if arg.is_positional() || !takes_value {
        String::new()
    } else {
        format!(" {}", values.join(" "))
    };
    let help = arg.get_long_help().or(arg.get_help()).expect("every argument is explained");
    let help = help.to_string();
    let paragraphs: Vec<_> = help.split("\n\n").map(|text| text.replace('\n', " ")).collect();
    let stop = if help.ends_with('.') { "" } else { "." };
    write!(page, "- `{name}{value}`: {}{stop}", paragraphs.join(" ")).expect("a string");
    let possible = arg.get_possible_values();
    let possible: Vec<_> = possible.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if takes_value && !possible.is_empty() {
        write!(page, " One of {}.", possible.join(", ")).expect("a string");
    }
    if let ([default], true) = (arg.get_default_values(), takes_value) {
        write!(page, " Default: `{}`.", default.to_string_lossy()).expect("a string");
    }
    page.push('\n');
}

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn the_page_about_the_command_line_says_what_the_program_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/cli.md is out of date: WEIR_WRITE_DOCS=1 cargo test --lib cli::tests"
    );
}

#[test]
fn every_exit_code_stands_in_the_help() {
    let help = Cli::command().render_help().to_string();
    for code in ["0 done", "1 some", "2 ", "3 ", "4 ", "5 ", "6 ", "74 ", "78 ", "130 ", "143 "] {
        assert!(help.contains(code), "{code}");
        let cell = code.split(' ').next().unwrap_or_default();
        assert!(INTRODUCTION.contains(&format!("| {cell}")) || cell == "143", "{code}");
    }
}
