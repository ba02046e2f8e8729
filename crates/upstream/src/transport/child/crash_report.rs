//! Reason for the end of a child process, in words that say what to do.
//!
//! A process that ends before its handshake most often lacks something: the reason has the last
//! lines of its standard error, and names of variables that it may lack, because Weir holds them
//! back or because they are set nowhere.
//!
//! Invariants: no value of a variable and no secret argument of the process is in it, and of other
//! variables only names; control characters are escaped; lengths and numbers are bounded.
//!
//! Decision: docs/decisions/0049-environment-of-child-processes.md

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::child_command::ChildCommand;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::text::quote::quote;
use weir_base::text::terminal_styles::without_styles;
use weir_mcp::name::UpstreamName;

/// Maker of the reason for the end of one process.
pub(crate) struct CrashReport {
    command: ChildCommand,
    /// Beginning of the names of the upstream's own variables, such as `NOTION_`.
    prefix: String,
    /// Whether the handshake has succeeded.
    is_open: AtomicBool,
}

impl CrashReport {
    pub(crate) fn new(upstream: &UpstreamName, command: ChildCommand) -> Self {
        let prefix = upstream.as_str().replace('-', "_").to_ascii_uppercase() + "_";
        Self { command, prefix, is_open: AtomicBool::new(false) }
    }

    /// Records a successful handshake: the process has all that it needs to start.
    pub(crate) fn mark_open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Replaces what the process was given and may be a secret in a text that it has written.
    pub(crate) fn redact(&self, text: &str) -> String {
        self.secrets().redact(&without_styles(text))
    }

    /// Makes the reason from `how` the process has ended, the stored lines of standard error, and
    /// the first line on standard output that was no message.
    pub(crate) fn describe(&self, how: String, stderr: &[String], stdout: Option<&str>) -> String {
        let secrets = self.secrets();
        let redacted = stderr.iter().map(|line| secrets.redact(&without_styles(line)));
        let lines: Vec<_> = redacted.filter(|line| !line.trim().is_empty()).collect();
        if self.is_open.load(Ordering::Relaxed) {
            return how + &describe_lines(&lines, 1);
        }
        let stdout = stdout.map(|line| secrets.redact(&without_styles(line)));
        let output: Vec<_> = lines.iter().chain(&stdout).map(String::as_str).collect();
        let variables = describe_variables(&self.command, &self.prefix, &output);
        how + &describe_lines(&lines, MAX_LINES) + &variables
    }

    fn secrets(&self) -> SecretPatterns {
        SecretPatterns::of_request(&self.command.secrets())
    }
}

/// Quotes the last lines of standard error.
fn describe_lines(lines: &[String], count: usize) -> String {
    let (earlier, last) = lines.split_at(lines.len().saturating_sub(count));
    // Some runtimes write the error first, and then where it occurred.
    let is_error = |line: &&String| line.contains("Error:") || line.contains("error:");
    let has_error = count == 1 || last.iter().any(|line| is_error(&line));
    let cause = earlier.iter().rev().find(is_error).filter(|_| !has_error);
    let last = &last[usize::from(cause.is_some())..];
    let shown: Vec<_> = cause.into_iter().chain(last).collect();
    let quoted = shown.iter().map(|line| format!("\"{}\"", quote(line, MAX_QUOTED_CHARS)));
    let quoted = quoted.collect::<Vec<_>>().join(", ");
    match shown.len() {
        0 => String::new(),
        1 => format!("; last line of standard error: {quoted}"),
        _ => format!("; last lines of standard error: {quoted}"),
    }
}

/// Names the variables that a process may lack: those of Weir that its output names, or if there
/// are none, those that tools read; and those in its output that are set nowhere.
fn describe_variables(command: &ChildCommand, prefix: &str, output: &[&str]) -> String {
    let mut reason = String::new();
    let withheld = || {
        let is_own = |name: &str| name.starts_with(OWN_PREFIX);
        command.withheld.iter().map(String::as_str).filter(move |it| is_name(it) && !is_own(it))
    };
    let named: BTreeSet<_> = output.iter().flat_map(|line| words(line)).collect();
    let in_output: Vec<_> = withheld().filter(|it| named.contains(it)).take(MAX_NAMES).collect();
    if in_output.is_empty() {
        let is_about_credentials = output.iter().any(|line| is_about_credentials(line));
        let may_help = |name: &&str| {
            is_of_a_tool(name, prefix) || is_about_credentials && is_of_credentials(name)
        };
        let mut of_tools: Vec<_> = withheld().filter(may_help).collect();
        of_tools.sort_by_key(|name| !name.starts_with(prefix));
        of_tools.truncate(MAX_NAMES);
        if !of_tools.is_empty() {
            let names = format!("{of_tools:?}");
            reason +=
                &format!("; it may need what is held back: pass_env = {names} passes that on");
        }
    } else {
        let names = format!("{in_output:?}");
        reason += &format!("; it names what is held back: pass_env = {names} passes that on");
    }
    let given: BTreeSet<_> = command.environment().map(|(name, _)| name.as_str()).collect();
    let known = |name: &str| given.contains(name) || command.withheld.iter().any(|it| it == name);
    let unset = output.iter().flat_map(|line| wanted_variables(line));
    let unset: BTreeSet<_> = unset.filter(|name| !known(name)).collect();
    if !unset.is_empty() {
        let names: Vec<_> = unset.into_iter().take(MAX_NAMES).collect();
        let names = names.join(", ");
        reason += &format!("; it names what is set nowhere: {names}: set that in {PLACE}");
    }
    reason
}

/// Returns whether a variable is like a setting of a tool, or of the upstream with this prefix.
fn is_of_a_tool(name: &str, prefix: &str) -> bool {
    ["NODE_", "UV_", "npm_", prefix].iter().any(|begin| name.starts_with(begin))
}

fn is_of_credentials(name: &str) -> bool {
    ["_TOKEN", "_KEY"].iter().any(|end| name.ends_with(end))
}

/// Returns whether a line is about credentials: only then those of others are worth a thought.
fn is_about_credentials(line: &str) -> bool {
    let lower_case = line.to_ascii_lowercase();
    CREDENTIAL_WORDS.iter().any(|word| lower_case.contains(word))
}

/// Splits a text into words, of which a name of a variable is one.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// Returns whether a word can only be the name of a variable, and not another word of a text.
fn is_name(word: &str) -> bool {
    let is_like_one = word.contains('_') || !word.contains(|c: char| c.is_ascii_lowercase());
    (MIN_NAME_BYTES..=MAX_NAME_BYTES).contains(&word.len())
        && is_like_one
        && word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the names of variables that a line misses. A code of an error looks like one, so the
/// name or the line has to say that it is a variable.
fn wanted_variables(line: &str) -> impl Iterator<Item = &str> {
    let lower_case = line.to_ascii_lowercase();
    let is_about_variables = ABOUT_VARIABLES.iter().any(|words| lower_case.contains(words));
    // A name behind an option, as in `[--proxy-url PROXY_URL]`, is that of its value.
    let behind_options = line.split_whitespace().scan("", |before, word| {
        let is_value = before.trim_start_matches('[').starts_with("--");
        *before = word;
        Some(is_value.then(|| word.trim_matches([']', ','])))
    });
    let values: BTreeSet<_> = behind_options.flatten().collect();
    words(line).filter(move |word| !values.contains(word)).filter(move |word| {
        let is_constant = word.contains('_') && !word.contains(|c: char| c.is_ascii_lowercase());
        let is_setting = SETTINGS.iter().any(|end| word.ends_with(end));
        is_name(word)
            && is_constant
            && !word.starts_with("ERR_")
            && (is_about_variables || is_setting)
    })
}

/// Place in which a variable is set for one process.
const PLACE: &str = "`env` of the upstream";

/// Lines of standard error in a reason.
const MAX_LINES: usize = 5;
/// Names of variables that are held back in a reason, and those that are set nowhere.
const MAX_NAMES: usize = 8;
/// Characters of a line that are quoted.
const MAX_QUOTED_CHARS: usize = 200;

/// Lengths of the name of a variable that is shown.
const MIN_NAME_BYTES: usize = 3;
const MAX_NAME_BYTES: usize = 64;

/// Beginning of Weir's own variables, which no server needs.
const OWN_PREFIX: &str = "WEIR_";

/// Parts of lines about credentials.
const CREDENTIAL_WORDS: [&str; 8] =
    ["token", "key", "credential", "password", "auth", "login", "401", "403"];

/// Parts of lines about variables that are not set.
const ABOUT_VARIABLES: [&str; 8] = [
    "environment",
    "env var",
    "env.",
    "environ[",
    "getenv",
    "not set",
    "unset",
    "undefined variable",
];

/// Ends of the names of settings.
const SETTINGS: [&str; 5] = ["_TOKEN", "_KEY", "_SECRET", "_PASSWORD", "_URL"];

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::secrets::secret::Secret;

    /// Reason for the end of a process that has written these lines, if Weir holds `withheld` back.
    fn reason(withheld: &[&str], lines: &[&str]) -> String {
        report(withheld).describe("it ended".to_owned(), &owned(lines), None)
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn report(withheld: &[&str]) -> CrashReport {
        let pair = |name: &str, value: &str| (name.to_owned(), Secret::from(value));
        let command = ChildCommand {
            withheld: owned(withheld),
            args: ["--api-key", "canary-6", "--token=canary-7", "-H", "X-Team: canary-8"]
                .map(Secret::from)
                .into(),
            arg_secrets: vec!["canary-5".into()],
            inherited: vec![
                pair("HOME", "/home/ann"),
                pair("HTTPS_PROXY", "http://ann:canary-4@proxy.lan:3128"),
            ],
            env: vec![
                pair("GIVEN_TOKEN", "canary-1"),
                pair("LOG_LEVEL", "info"),
                pair("GIVEN_KEY", "canary-of-line-1\ncanary-of-line-2\n"),
                pair("DATABASE_URL", "postgres://me:canary%2B9@db/x"),
            ],
            ..ChildCommand::default()
        };
        CrashReport::new(&"notion".parse().expect("a name"), command)
    }

    #[test]
    fn a_reason_has_the_last_five_lines_before_the_handshake_and_one_after_it() {
        let lines = ["one", "two", "", "three", "four", "five", "six", "  "];
        assert_eq!(
            reason(&[], &lines),
            r#"it ended; last lines of standard error: "two", "three", "four", "five", "six""#
        );
        assert_eq!(reason(&[], &["one"]), r#"it ended; last line of standard error: "one""#);
        assert_eq!(reason(&[], &["", " "]), "it ended");
        let open = report(&["NOTION_TOKEN"]);
        open.mark_open();
        assert_eq!(
            open.describe("it ended".to_owned(), &owned(&lines), Some("NOTION_TOKEN")),
            r#"it ended; last line of standard error: "six""#
        );
    }

    #[test]
    fn variables_that_the_output_names_come_before_those_that_tools_read() {
        let withheld = ["EDITOR", "GITHUB_TOKEN", "NODE_OPTIONS", "NOTION_SPACE", "NOTION_TOKEN"];
        let line = "Error: set NOTION_TOKEN, or $EDITOR";
        assert_eq!(
            reason(&withheld, &[line]),
            format!(
                "it ended; last line of standard error: \"{line}\"; it names what is held back: \
                 pass_env = [\"EDITOR\", \"NOTION_TOKEN\"] passes that on"
            )
        );
        assert_eq!(
            reason(&withheld, &[]),
            "it ended; it may need what is held back: pass_env = [\"NOTION_SPACE\", \
             \"NOTION_TOKEN\", \"NODE_OPTIONS\"] passes that on"
        );
        // The tokens of others only where it is about credentials.
        let refused = reason(&withheld, &["HTTP 401"]);
        assert!(refused.contains("\"GITHUB_TOKEN\""), "{refused}");
        let other = reason(&withheld, &["fatal: cannot open database"]);
        assert!(!other.contains("GITHUB_TOKEN"), "{other}");
        let named = report(&withheld).describe("it ended".to_owned(), &[], Some("no NOTION_TOKEN"));
        assert!(named.ends_with("pass_env = [\"NOTION_TOKEN\"] passes that on"), "{named}");
        assert_eq!(reason(&["EDITOR", "WEIR_ADMIN_TOKEN", "_", "x_KEY y_KEY"], &[]), "it ended");
    }

    #[test]
    fn variables_that_are_set_nowhere_are_named_and_codes_of_errors_are_not() {
        for (line, names) in [
            ("NOTION_API_KEY is required", "NOTION_API_KEY"),
            ("please set the environment variable NOTION_SPACE", "NOTION_SPACE"),
            ("process.env.NOTION_DB and NOTION_PAGE: undefined", "NOTION_DB, NOTION_PAGE"),
            ("KeyError: os.environ['NOTION_DB']", "NOTION_DB"),
        ] {
            let shown = format!("last line of standard error: \"{}\"", quote(line, 200));
            assert_eq!(
                reason(&[], &[line]),
                format!(
                    "it ended; {shown}; it names what is set nowhere: {names}: set that in {PLACE}"
                )
            );
        }
        for line in [
            "code: 'SELF_SIGNED_CERT_IN_CHAIN'",
            "UNABLE_TO_GET_ISSUER_CERT_LOCALLY: unable to get local issuer certificate",
            "environment: ERR_MODULE_NOT_FOUND",
            "Cannot find module: MODULE_NOT_FOUND",
            "GIVEN_TOKEN is invalid, HOME is not set",
            "usage: server [--proxy-url PROXY_URL] [--key API_KEY]",
        ] {
            assert!(!reason(&[], &[line]).contains("nowhere"), "{line}");
        }
    }

    #[test]
    fn an_error_is_shown_also_if_many_lines_follow_it() {
        let lines = ["x", "Error: Cannot find module '/a'", "at 1", "at 2", "at 3", "at 4", "v26"];
        let expected = r#"error: "Error: Cannot find module '/a'", "at 2", "at 3", "at 4", "v26""#;
        assert!(reason(&[], &lines).contains(expected), "{}", reason(&[], &lines));
        let last = ["Error: a", "1", "2", "3", "Error: b", "4"];
        assert!(reason(&[], &last).contains(r#"error: "1", "2", "3", "Error: b", "4""#));
    }

    #[test]
    fn at_most_eight_names_of_each_kind_are_shown() {
        let names: Vec<_> = (10..30).map(|number| format!("A{number}_TOKEN")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let line = names.join(" ");
        assert_eq!(reason(&names, &["no login"]).matches("_TOKEN").count(), MAX_NAMES);
        let named = reason(&names, &[&line]);
        let (_, variables) = named.split_once("held back").expect("names");
        assert_eq!(variables.matches("_TOKEN").count(), MAX_NAMES);
        let unset = reason(&[], &[&line]);
        let (_, variables) = unset.split_once("nowhere").expect("names");
        assert_eq!(variables.matches("_TOKEN").count(), MAX_NAMES);
    }

    #[test]
    fn no_value_of_a_variable_and_no_control_character_is_in_a_reason() {
        let lines = [
            "token canary-1 is invalid \u{1b}[2J\u{202e}",
            "proxy http://ann:canary-4@proxy.lan:3128 refuses, password canary-4",
            "canary%2D1 canary-1canary-1, --key=canary-5",
            "canary-6 or canary-7 or canary-8: canary-of-line-2",
            "password canary+9, as in postgres://me:canary%2B9@db/y",
        ];
        let shown = reason(&["NOTION_TOKEN"], &lines);
        assert!(!shown.contains("canary"), "{shown}");
        assert_eq!(report(&[]).redact("first: \"canary-1, canary-5\""), "first: \"***, ***\"");
        assert!(!shown.contains(|c: char| c.is_control() || c == '\u{202e}'), "{shown}");
        assert!(shown.contains(r#""token *** is invalid \u{1b}[2J\u{202e}""#), "{shown}");
        let long = "x".repeat(10_000);
        assert!(reason(&[], &[long.as_str(); 10]).len() < 5 * 300);
    }
}
