//! Commands of Weir that messages name: each gets the option with which the user has named the
//! configuration's file, so that it can be typed as it is shown.
//!
//! Invariants: a text without such a command is unchanged; a second completion changes nothing.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::ArgMatches;

use crate::cli::output::render::sanitize_line;
use weir_base::text::shell_word::ShellWord;

/// Option of the command that runs, and the commands that have it.
struct CommandHints {
    /// Option and file, as they are typed.
    option: String,
    /// Commands without `weir`, such as `keys add`.
    commands: Vec<String>,
}

/// Remembers the file that the arguments name, for all later output of the process.
pub(crate) fn remember(definition: &clap::Command, matches: &ArgMatches) {
    let mut innermost = matches;
    while let Some((_, matches)) = innermost.subcommand() {
        innermost = matches;
    }
    let file = innermost.try_get_one::<PathBuf>("config").ok().flatten();
    if let Some(file) = file {
        let mut commands = Vec::new();
        collect(definition, "", &mut commands);
        // A process parses its arguments once.
        let _ = HINTS.set(CommandHints { option: config_option(file), commands });
    }
}

/// Returns a text in which the commands have the option of the user.
pub(crate) fn complete(text: &str) -> Cow<'_, str> {
    match HINTS.get() {
        Some(hints) if text.contains(BEGIN) => hints.complete(text).into(),
        _ => Cow::Borrowed(text),
    }
}

/// Option that names a file, quoted for a shell.
pub(crate) fn config_option(file: &Path) -> String {
    let file = sanitize_line(&file.display().to_string());
    format!("--config {}", ShellWord(&file))
}

impl CommandHints {
    fn complete(&self, text: &str) -> String {
        let mut completed = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, from)) = rest.split_once(BEGIN) {
            completed.extend([before, BEGIN]);
            rest = from;
            let Some((command, _)) = from.split_once('`').filter(|(it, _)| self.lacks_option(it))
            else {
                continue;
            };
            // What follows the dashes belongs to another program.
            let end = command.find(" -- ").unwrap_or(command.len());
            completed.extend([&from[..end], " ", self.option.as_str()]);
            rest = &from[end..];
        }
        completed + rest
    }

    /// Returns whether a command has the option, and is written without it.
    fn lacks_option(&self, command: &str) -> bool {
        let mut words = command.split(' ');
        let first = words.next().unwrap_or_default();
        let second = words.next().map(|second| format!("{first} {second}"));
        let is_known = |command: &str| self.commands.iter().any(|known| known == command);
        let has_option = command.contains("--config") || command.contains(" -c ");
        !has_option && (is_known(first) || second.is_some_and(|second| is_known(&second)))
    }
}

/// Collects the commands below one that have the option.
fn collect(command: &clap::Command, path: &str, commands: &mut Vec<String>) {
    if !path.is_empty() && command.get_arguments().any(|it| it.get_long() == Some("config")) {
        commands.push(path.to_owned());
    }
    for below in command.get_subcommands() {
        collect(below, format!("{path} {}", below.get_name()).trim_start(), commands);
    }
}

static HINTS: OnceLock<CommandHints> = OnceLock::new();

/// Beginning of a command in a message.
const BEGIN: &str = "`weir ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn hints(file: &str) -> CommandHints {
        let mut commands = Vec::new();
        collect(&cli::definition(), "", &mut commands);
        CommandHints { option: config_option(Path::new(file)), commands }
    }

    #[test]
    fn commands_of_messages_get_the_file_of_the_user() {
        for (text, expected) in [
            ("run `weir check`", "run `weir check --config a/w.toml`"),
            (
                "`weir keys rotate ann`, then `weir reload`",
                "`weir keys rotate ann --config a/w.toml`, then `weir reload --config a/w.toml`",
            ),
            ("`weir add fs -- npx -y x`", "`weir add fs --config a/w.toml -- npx -y x`"),
            ("`weir check --config b.toml`", "`weir check --config b.toml`"),
            ("`weir init` writes one", "`weir init` writes one"),
            ("`weir`, a `weir check", "`weir`, a `weir check"),
            ("weir check", "weir check"),
        ] {
            let hints = hints("a/w.toml");
            let completed = hints.complete(text);
            assert_eq!(completed, expected);
            assert_eq!(hints.complete(&completed), expected, "twice");
        }
    }

    #[test]
    fn a_file_with_unusual_characters_is_quoted() {
        for (file, expected) in [
            ("/etc/weir.toml", "--config /etc/weir.toml"),
            ("my file.toml", "--config 'my file.toml'"),
            ("it's", r"--config 'it'\''s'"),
            ("~/x$y", "--config '~/x$y'"),
            ("", "--config ''"),
        ] {
            assert_eq!(config_option(Path::new(file)), expected);
        }
    }
}
