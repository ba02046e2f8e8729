//! Definition of the command line, and its page in the documents.
//!
//! `docs/cli.md` is generated from the definition, below an introduction that is in this file.
//! After a change: `WEIR_WRITE_DOCS=1 cargo test -p weir --lib cli::tests`.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::reference::command_groups::GROUPS;
use super::{Cli, definition};

/// Options that many commands have; the page describes them once.
const SHARED: [&str; 6] = ["as", "trace", "config", "demo", "color", "help"];

/// Longest line of a paragraph of the page.
const MAX_COLUMNS: usize = 120;

const INTRODUCTION: &str = "\
# The command line

Generated from the program's own definition by a test; `weir help COMMAND` prints the same text.

## Where output goes

Data goes to standard output, everything else to standard error: a pipe receives the requested \
data and nothing more. On a terminal, control characters in an upstream's texts are replaced; a \
file or a pipe receives them unchanged. While a command waits, a line on standard error says for \
which upstream or item, if that is a terminal.

With `--json`, standard output is JSON, and a command that fails writes one line to standard \
error, for every failure, invalid arguments included: `{\"error\": …, \"exit_code\": …}`. For an \
invalid configuration the line also has `problems`: an array with `severity`, `file`, `line`, \
`column`, `key`, `what` and `remedy`. Warnings about the configuration are in `warnings` of \
`weir check --json`; the other commands omit them. `weir check --json` writes its log as lines of \
JSON before that line. Output that is possible in spite of a failure still goes to standard \
output: the rest of a list, the report of a check, the reasons why an item is not visible, the \
result of a tool that failed.

With `--trace`, each message between Weir and an upstream is a line on standard error, from the \
handshake on: the time in UTC, `->` to the server or `<-` from it, the name of the upstream, and \
the message. A message of more than 4 KiB is cut, its line says how many bytes are left out, and \
`--trace=full` shows whole messages. Over HTTP, the method and path of a request, or the status of \
a response, come before its message, with the names of the headers; values are shown of \
`Content-Type` and of headers that begin with `Mcp-`, but not the id of a session. Secrets of at \
least six characters that the upstream was given, tokens of a sign-in, values of parameters in a \
URL, and parts of its path that are like tokens are `***`. Characters that a terminal would not \
show are escaped. A line that is not read within a second is dropped, and a later line says how \
many were.

## Exit codes

| code | meaning | who has to act |
|---|---|---|
| 0 | success; also if the reader closed the pipe early | |
| 1 | `pins diff` found a difference; `status` and `health`: it is alive but has a problem; \
`reload`: the configuration was rejected | you: review it, then `pins approve`; the operator |
| 2 | wrong usage: arguments, a name that does not exist, or a file of a client or of `init` that \
cannot be read or written | you |
| 3 | not authenticated: `--as` names no client, or one whose keys have expired; the running Weir \
rejects the token | you, or the operator |
| 4 | an upstream, the address to listen on, or a running Weir cannot be reached; an upstream is \
disabled; `check`: an upstream is incomplete | the operator |
| 5 | the response was an error, or a request for input that the command line cannot provide; \
`call`: the result has no content; `audit verify`: the log is not intact | the upstream; the operator |
| 6 | denied: the item exists, and the policy hides it from this client | the operator |
| 74 | the output could not be written | you: the disk is full, for example |
| 78 | invalid configuration, or none; a client's file that is not JSON, TOML or YAML, or that contains \
nothing to import | the operator, or you |
| 130, 143, 129, 131 | stopped by Ctrl-C, by SIGTERM, by the end of the terminal, or by SIGQUIT | |

## Environment

| variable | meaning |
|---|---|
| `WEIR_CONFIG` | the configuration file, if `--config` names none |
| `XDG_CONFIG_HOME`, `HOME` | the folder of `weir/weir.toml`, which is tried after `./weir.toml` |
| `WEIR_LOG` | log filter that replaces the configured level: `weir=debug`, \
`weir::upstream=trace,warn` |
| `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE`, `TERM` | whether output is colored, unless `--color` \
decides it; with `TERM=dumb` there is no progress line either |

## Options of many commands

";

fn page() -> String {
    let mut weir = Cli::command().term_width(100);
    weir.build();
    let mut page = INTRODUCTION.to_owned();
    let list = weir.find_subcommand("list").expect("a command with the shared options");
    let is_shared = |arg: &&Arg| SHARED.contains(&arg.get_long().unwrap_or_default());
    let shared: Vec<&Arg> = list.get_arguments().filter(is_shared).collect();
    shared.iter().for_each(|arg| describe(&mut page, arg));
    write_commands(&mut page, "weir", &weir, &shared);
    wrap(&page)
}

/// Breaks the lines of paragraphs and list items at [`MAX_COLUMNS`].
fn wrap(page: &str) -> String {
    let mut wrapped = String::new();
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        let is_whole = is_code || line.starts_with(['|', '#']);
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut columns = 0;
        for (at, word) in line.split(' ').enumerate() {
            let width = word.chars().count();
            if at > 0 && !is_whole && columns + 1 + width > MAX_COLUMNS {
                wrapped.push('\n');
                wrapped.push_str(indent);
                columns = indent.len();
            } else if at > 0 {
                wrapped.push(' ');
                columns += 1;
            }
            wrapped.push_str(word);
            columns += width;
        }
        wrapped.push('\n');
    }
    wrapped
}

fn write_commands(page: &mut String, path: &str, parent: &Command, shared: &[&Arg]) {
    for command in parent.get_subcommands().filter(|command| command.get_name() != "help") {
        let path = format!("{path} {}", command.get_name());
        write_command(page, &path, command, shared);
        write_commands(page, &path, command, shared);
    }
}

fn write_command(page: &mut String, path: &str, command: &Command, shared: &[&Arg]) {
    let about = command.get_about().expect("every command has a description");
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    write!(page, "\n## {path}\n\n{about}.\n\n```text\n{usage}\n```\n\n").expect("a string");
    let is_described = |arg: &&Arg| {
        let help = |arg: &Arg| arg.get_help().map(ToString::to_string);
        let same = |it: &&Arg| it.get_long() == arg.get_long() && help(it) == help(arg);
        shared.iter().any(same) || arg.get_long() == Some("help")
    };
    let mut own = command.get_arguments().filter(|arg| !is_described(arg)).peekable();
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
    let value = match values.join(" ") {
        _ if arg.is_positional() || !takes_value => String::new(),
        value if arg.is_require_equals_set() => format!("[={value}]"),
        value => format!(" {value}"),
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
    definition().debug_assert();
}

#[test]
fn each_command_stands_in_one_group_of_the_help() {
    let mut weir = Cli::command();
    weir.build();
    let mut commands: Vec<_> = weir.get_subcommands().map(Command::get_name).collect();
    let mut listed: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    commands.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, commands);
}

#[test]
fn the_help_lists_the_commands_by_their_use() {
    let help = definition().render_help().to_string();
    let (commands, options) = help.split_once("Options:\n").expect("options");
    let lines: Vec<_> = commands.lines().skip_while(|line| *line != "Start:").collect();
    let headings: Vec<_> = lines.iter().filter(|line| line.ends_with(':')).copied().collect();
    assert_eq!(headings, GROUPS.map(|(heading, _)| format!("{heading}:")));
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{commands}");
    assert!(lines.contains(&"  remove       Removes an upstream from the configuration"), "{help}");
    assert!(options.contains("--color") && options.contains("Exit codes: 0 success"), "{options}");
}

#[test]
fn the_page_about_the_command_line_says_what_the_program_says() {
    check_page("docs/cli.md", &page(), "cli::tests");
}

/// Compares a generated page with its file, or writes the file where `WEIR_WRITE_DOCS` is set.
pub(super) fn check_page(name: &str, page: &str, test: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "{name} is out of date: WEIR_WRITE_DOCS=1 cargo test -p weir --lib {test}"
    );
}

#[test]
fn every_exit_code_stands_in_the_help() {
    let help = definition().render_help().to_string();
    for code in
        ["0 success", "1 a check", "2 ", "3 ", "4 ", "5 ", "6 ", "74 ", "78 ", "130 ", "143 "]
    {
        assert!(help.contains(code), "{code}");
        let cell = code.split(' ').next().unwrap_or_default();
        assert!(INTRODUCTION.contains(&format!("| {cell}")) || cell == "143", "{code}");
    }
}
