//! Corrections of command lines that cannot be parsed, where clap's own suggestion would mislead.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::exit::Failure;

/// Returns the failure for arguments that clap refuses; `None` if clap's own message is right.
pub(crate) fn correct(message: &clap::Error, arguments: &[OsString]) -> Option<Failure> {
    let words: Vec<_> = arguments.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(|word| &**word).collect();
    let text = match message.kind() {
        ErrorKind::InvalidSubcommand => {
            let Some(ContextValue::String(word)) = message.get(ContextKind::InvalidSubcommand)
            else {
                return None;
            };
            // Other commands have subcommands of their own.
            let is_first = words.iter().find(|word| !word.starts_with('-')) == Some(&&**word);
            remedy_for(word).filter(|_| is_first)?
        }
        ErrorKind::UnknownArgument => lacking_dashes(&words)?,
        _ => return None,
    };
    Some(Failure::Usage(text))
}

/// Message for a word of other programs that is no command of Weir.
fn remedy_for(word: &str) -> Option<String> {
    let (_, remedy) = OTHER_WORDS.iter().find(|(words, _)| words.contains(&word))?;
    Some(format!("there is no command `{word}`: {remedy}"))
}

/// Message for `weir add` with a program and its arguments, but without the two dashes.
fn lacking_dashes(words: &[&str]) -> Option<String> {
    let mut words = words.iter();
    words.find(|word| !word.starts_with('-')).filter(|command| **command == "add")?;
    let mut plain = Vec::new();
    while let Some(word) = words.next() {
        match *word {
            "--" => return None,
            option if OPTIONS_WITH_VALUE.contains(&option) => _ = words.next(),
            word if word.starts_with('-') && plain.len() < 2 => {}
            word => plain.push(word),
        }
    }
    match plain[..] {
        // The arguments may contain secrets.
        [name, program, _, ..] if !program.contains("://") => Some(format!(
            "a program and its arguments stand behind two dashes: `weir add {name} -- {program} …`"
        )),
        _ => None,
    }
}

/// Words of other programs, and what to do instead.
const OTHER_WORDS: [(&[&str], &str); 5] = [
    (
        &["stop", "kill", "quit", "exit", "end", "shutdown", "down"],
        "Ctrl-C or SIGTERM ends `weir serve`, whose process `weir status` shows, and \
         `systemctl stop weir` a service; `weir stdio` ends with the client that started it",
    ),
    (
        &["start", "run", "up", "server"],
        "`weir serve` serves clients over HTTP; `weir stdio` is started by a client, for which \
         `weir connect CLIENT` prints the entry",
    ),
    (
        &["import", "setup", "configure", "config"],
        "`weir init` writes a configuration, and `weir init --from CLIENT` imports the servers of a \
         client",
    ),
    (
        &["tools", "prompts", "resources", "templates"],
        "`weir list` lists what there is, `weir list tools` one kind",
    ),
    (
        &["validate", "test", "verify", "lint"],
        "`weir check` checks the configuration and all servers",
    ),
];

/// Options of `weir add` that are followed by a value.
const OPTIONS_WITH_VALUE: [&str; 7] =
    ["--env", "-e", "--header", "--file", "--config", "-c", "--color"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definition;

    fn corrected(line: &str) -> Option<String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let refused = definition().try_get_matches_from(&arguments).expect_err("it is refused");
        correct(&refused, &arguments).map(|failure| failure.to_string())
    }

    #[test]
    fn words_of_other_programs_lead_to_the_command_or_to_what_to_do() {
        for (line, expected) in [
            ("weir stop", Some("there is no command `stop`: Ctrl-C or SIGTERM ends `weir serve`")),
            ("weir --color never stop", None),
            ("weir start", Some("there is no command `start`: `weir serve` serves clients")),
            ("weir import", Some("there is no command `import`: `weir init` writes")),
            ("weir tools", Some("there is no command `tools`: `weir list` lists")),
            ("weir lst", None),
            ("weir keys stop", None),
        ] {
            let corrected = corrected(line);
            let is_expected = match (&corrected, expected) {
                (Some(corrected), Some(expected)) => corrected.starts_with(expected),
                (corrected, expected) => corrected.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{line}: {corrected:?}");
        }
    }

    #[test]
    fn a_program_with_arguments_is_shown_behind_two_dashes_and_without_them() {
        let expected =
            "a program and its arguments stand behind two dashes: `weir add fs -- npx …`";
        for line in [
            "weir add fs npx -y @scope/server",
            "weir add fs npx server /tmp",
            "weir add --env A=b fs npx --token canary",
            "weir add fs --json npx server --port 1",
        ] {
            assert_eq!(corrected(line).as_deref(), Some(expected), "{line}");
        }
        for line in ["weir add fs https://a.example/mcp --heder A=b", "weir add fs --oath"] {
            assert_eq!(corrected(line), None, "{line}");
        }
    }
}
