//! List of the commands in the help text, in groups by their use.

use std::fmt::Write;

use clap::Command;

use crate::cli::output;

/// Replaces the list of commands in the help text of `weir` by groups.
pub(crate) fn group(weir: Command) -> Command {
    let header = *weir.get_styles().get_header();
    let literal = *weir.get_styles().get_literal();
    let commands = GROUPS.iter().flat_map(|(_, names)| names.iter());
    let indent = commands.map(|name| name.len()).max().unwrap_or(0) + 4;
    let columns = output::columns().min(MAX_COLUMNS);
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(groups, "{header}{heading}:{header:#}");
        for name in names {
            let command = weir.find_subcommand(name);
            let about = command.and_then(Command::get_about).map(ToString::to_string);
            let about = wrap(&about.unwrap_or(HELP.to_owned()), indent, columns);
            let gap = " ".repeat(indent - 2 - name.len());
            let _ = writeln!(groups, "  {literal}{name}{literal:#}{gap}{about}");
        }
        groups.push('\n');
    }
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}\
         {header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    weir.help_template(template)
}

/// Breaks a text into lines of at most `columns`, each after the first behind an indent.
fn wrap(text: &str, indent: usize, columns: usize) -> String {
    let mut wrapped = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > indent && column + 1 + width > columns {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += width;
    }
    wrapped
}

/// Groups, each with its commands.
pub(crate) const GROUPS: [(&str, &[&str]); 6] = [
    ("Start", &["init", "connect", "doctor", "serve", "stdio"]),
    ("Look", &["check", "list", "explain", "get", "call", "read", "complete"]),
    ("Change", &["add", "remove", "enable", "disable", "pins"]),
    ("Access", &["keys", "login", "logout"]),
    ("Operate", &["status", "health", "reload", "restart", "logs", "top", "fleet", "audit"]),
    ("Reference", &["completions", "man", "version", "schema", "help"]),
];

/// Description of the command that clap adds.
const HELP: &str = "Prints the help of a command";

/// Longest line, as of the other parts of the help text.
const MAX_COLUMNS: usize = 100;
