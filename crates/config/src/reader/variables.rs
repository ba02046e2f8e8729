//! Variables in strings: `${VAR}`, `${VAR:-default}`, `${VAR:?message}`, and `$$` for a `$`; and
//! the content of a secret's file, `${file:PATH}`.
//!
//! The syntax has the meaning of a shell: `:-` and `:?` treat an empty variable like one that is
//! not set, a default may contain variables, and a default that is not needed is not evaluated. A
//! `$` before anything else is unchanged. The environment and the reader of files are parameters.
//!
//! Invariants: errors contain names of variables and paths as they are written, never values;
//! nesting and length are bounded.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use crate::reader::report::ValueError;
use weir_base::secrets::secret::Secret;

/// Environment variables for the configuration, which uses no others.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Looks up a variable; `None` if it is not set.
    pub(crate) fn get(&self, name: &str) -> Result<Option<&str>, NotText> {
        let value = self.variables.get(OsString::from(name).as_os_str());
        value.map(|value| value.to_str().ok_or(NotText)).transpose()
    }

    /// Returns every variable, for a program that is started.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.variables.iter()
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self { variables: variables.collect() }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} variables", self.variables.len())
    }
}

/// Error for a variable whose value is not UTF-8.
pub(crate) struct NotText;

impl NotText {
    pub(crate) fn to_error(&self, name: &str) -> ValueError {
        ValueError::new(format!("the variable {name} is not UTF-8"), "set it to a text")
    }
}

/// True if a text can be the name of a variable; another text may be the secret itself.
pub fn is_variable_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Makes the error for a variable that is not set.
pub(crate) fn unset_variable_error(name: &str, remedy: String) -> ValueError {
    ValueError::new(format!("the variable {name} is not set"), remedy).missing(SET_IT)
}

/// Reads the secret file at a path; errors name it as it is written, which is the second text.
pub(crate) type ReadFile<'f> = dyn FnMut(&str, &str) -> Result<Secret, ValueError> + 'f;

/// Replaces the variables and the secret files of a text. Returns `None` if there is nothing to
/// replace, and all errors if something cannot be replaced.
pub(crate) fn expand(
    text: &str,
    environment: &Environment,
    read_file: &mut ReadFile<'_>,
) -> Result<Option<String>, Vec<ValueError>> {
    if !text.contains('$') {
        return Ok(None);
    }
    let (errors, end_missing) = (Vec::new(), false);
    let mut expander = Expander { rest: text, environment, read_file, errors, end_missing };
    let expanded = expander.expand_word(0, true);
    if expanded.len() > MAX_EXPANDED_BYTES {
        expander.errors.push(ValueError::new(
            "this is longer than 64 KiB once its variables are replaced",
            "use fewer of them",
        ));
    }
    match expander.errors.is_empty() {
        true => Ok(Some(expanded).filter(|expanded| expanded != text)),
        false => Err(expander.errors),
    }
}

// === Expander ===

/// State of the replacement, which goes from left to right.
struct Expander<'e, 'f> {
    rest: &'e str,
    environment: &'e Environment,
    read_file: &'e mut ReadFile<'f>,
    errors: Vec<ValueError>,
    /// A closing brace is missing, which is reported once.
    end_missing: bool,
}

impl Expander<'_, '_> {
    /// Expands up to the end, or up to the `}` that ends a default, which stays unread. If the text
    /// is not needed only its end is searched: the variables of an unused default may be missing.
    fn expand_word(&mut self, depth: usize, is_needed: bool) -> String {
        let mut word = String::new();
        while let Some(next) = self.rest.chars().next().filter(|c| depth == 0 || *c != '}') {
            if self.skip("$$") {
                word.push('$');
            } else if self.skip("${") {
                word += &self
                    .expand_reference(depth + 1, is_needed && word.len() <= MAX_EXPANDED_BYTES);
            } else {
                word.push(next);
                self.rest = &self.rest[next.len_utf8()..];
            }
        }
        word
    }

    /// Expands the text after `${`, including its `}`.
    fn expand_reference(&mut self, depth: usize, is_needed: bool) -> String {
        if depth > MAX_DEPTH {
            self.error("defaults are nested too deep", "nest at most 16 of them");
            (self.rest, self.end_missing) = ("", true);
            return String::new();
        }
        // `${file:-x}` and `${file:?x}` mean a variable of this name.
        if self.rest.strip_prefix(FILE).is_some_and(|rest| !rest.starts_with(['-', '?'])) {
            return self.expand_file(depth, is_needed);
        }
        let (name, rest) = self
            .rest
            .split_at(self.rest.find(|c: char| !is_name_char(c)).unwrap_or(self.rest.len()));
        let is_name = is_variable_name(name);
        self.rest = rest;
        let value = match self.environment.get(name) {
            Ok(value) => value.unwrap_or_default(),
            Err(not_text) => {
                if is_needed && is_name {
                    self.errors.push(not_text.to_error(name));
                }
                return self.skip_to_end(depth);
            }
        };
        if is_name && self.skip("}") {
            if is_needed && matches!(self.environment.get(name), Ok(None)) {
                let remedy = format!("set {name} where Weir starts, or write ${{{name}:-default}}");
                self.errors.push(unset_variable_error(name, remedy));
            }
            value.to_owned()
        } else if is_name && self.skip(":-") {
            let default = self.expand_word(depth, is_needed && value.is_empty());
            self.close();
            if value.is_empty() { default } else { value.to_owned() }
        } else if is_name && self.skip(":?") {
            let from = self.rest;
            self.expand_word(depth, false);
            let message = &from[..from.len() - self.rest.len()];
            self.close();
            if is_needed && value.is_empty() {
                self.report_unset(name, message);
            }
            value.to_owned()
        } else {
            self.report_unknown_syntax(name);
            self.skip_to_end(depth)
        }
    }

    /// Expands the text after `${`, which begins with `file:`: the content of a secret's file.
    fn expand_file(&mut self, depth: usize, is_needed: bool) -> String {
        self.skip(FILE);
        let (from, errors) = (self.rest, self.errors.len());
        let path = self.expand_word(depth, is_needed);
        let written = &from[..from.len() - self.rest.len()];
        self.close();
        if !is_needed || self.errors.len() > errors {
            return String::new();
        }
        if path.is_empty() || path.contains('\0') {
            self.error("this names no file", "write ${file:PATH}");
            return String::new();
        }
        match (self.read_file)(&path, written) {
            Ok(secret) => secret.expose().to_owned(),
            Err(error) => {
                self.errors.push(error);
                String::new()
            }
        }
    }

    /// Reports that a variable is not set, with the message of the file.
    fn report_unset(&mut self, name: &str, message: &str) {
        let message: String = message.trim().chars().take(MAX_MESSAGE_CHARS).collect();
        let what = match message.as_str() {
            "" => format!("the variable {name} is not set, or empty"),
            message => format!("the variable {name} is not set, or empty: {message}"),
        };
        let remedy = format!("set {name} where Weir starts");
        self.errors.push(ValueError::new(what, remedy).missing(SET_IT));
    }

    /// Reports syntax of other programs, or invalid syntax.
    fn report_unknown_syntax(&mut self, name: &str) {
        if self.rest.is_empty() {
            // The missing brace is reported by `close`.
            return;
        }
        let argument = self.rest.strip_prefix(':').and_then(|rest| rest.split('}').next());
        match (name, argument) {
            ("env", Some(argument)) if is_variable_name(argument) => {
                self.error(
                    "${env:…} is another program's way to name a variable",
                    format!("write ${{{argument}}}"),
                );
            }
            ("env", Some(_)) => {
                self.error("${env:…} is another program's way to name a variable", "write ${NAME}");
            }
            ("input", Some(_)) => self.error(
                "${input:…} prompts a person, which Weir never does",
                "write ${NAME} for a variable, or a secret that is read from a file or a command",
            ),
            _ if is_variable_name(name) => {
                self.error("this is not a way to write a variable", SYNTAX_REMEDY)
            }
            _ => self.error("this cannot name a variable", SYNTAX_REMEDY),
        }
    }

    fn error(&mut self, what: &'static str, remedy: impl Into<std::borrow::Cow<'static, str>>) {
        self.errors.push(ValueError::new(what, remedy));
    }

    fn skip_to_end(&mut self, depth: usize) -> String {
        self.expand_word(depth, false);
        self.close();
        String::new()
    }

    fn close(&mut self) {
        if !self.skip("}") && !std::mem::replace(&mut self.end_missing, true) {
            self.error("${ is not closed", "write } after the variable, or $$ for a $ itself");
        }
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }
}

const SYNTAX_REMEDY: &str =
    "write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a $ itself";

/// Short remedy for a variable that is not set.
const SET_IT: &str = "set it where Weir starts";

/// Beginning of a reference to a secret's file, after `${`.
const FILE: &str = "file:";

/// Maximum nesting of defaults; the stack is safe far beyond this.
const MAX_DEPTH: usize = 16;

/// Maximum size of an expanded string. A file of 4 MiB can contain a long variable many times.
const MAX_EXPANDED_BYTES: usize = 64 * 1024;

/// Maximum length of a file's own message in an error.
const MAX_MESSAGE_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::reader::variables::*;

    fn environment() -> Environment {
        [("HOME", "/home/ann"), ("TOKEN", "hunter2"), ("EMPTY", ""), ("BRACES", "${TOKEN}")]
            .into_iter()
            .collect()
    }

    /// Expands a text; the only secret file is `key`.
    fn expand_with(
        text: &str,
        environment: &Environment,
    ) -> Result<Option<String>, Vec<ValueError>> {
        expand(text, environment, &mut |path, written| match path {
            "key" | "/home/ann/key" => Ok(Secret::from("s3cr3t ${TOKEN}")),
            _ => Err(ValueError::new(format!("no {written}"), "make it")),
        })
    }

    /// Returns the expanded text, or the errors.
    fn expanded(text: &str) -> String {
        match expand_with(text, &environment()) {
            Ok(expanded) => expanded.unwrap_or_else(|| text.to_owned()),
            Err(errors) => {
                let messages = errors.iter().map(|c| format!("{} ({})", c.what, c.remedy));
                format!("! {}", messages.collect::<Vec<_>>().join("; "))
            }
        }
    }

    #[test]
    fn variables_are_replaced_as_a_shell_does() {
        for (text, expected) in [
            ("${TOKEN}", "hunter2"),
            ("Bearer ${TOKEN}, ${HOME}", "Bearer hunter2, /home/ann"),
            ("[${EMPTY}]", "[]"),
            ("${UNSET:-}", ""),
            ("${UNSET:-fallback}", "fallback"),
            ("${EMPTY:-fallback}", "fallback"),
            ("${TOKEN:-fallback}", "hunter2"),
            ("${UNSET:-${HOME}/.local}/state", "/home/ann/.local/state"),
            ("${UNSET:-${EMPTY:-${TOKEN}}}", "hunter2"),
            ("${TOKEN:-${UNSET}}", "hunter2"),
            ("${TOKEN:?is needed}", "hunter2"),
            ("${UNSET:-a$$b}", "a$b"),
            // What a variable stands for is not looked at again.
            ("${BRACES}", "${TOKEN}"),
            ("$$", "$"),
            ("$${TOKEN}", "${TOKEN}"),
            ("$$$${TOKEN}", "$${TOKEN}"),
            ("$", "$"),
            ("$HOME $( $5 a$", "$HOME $( $5 a$"),
            ("}{", "}{"),
        ] {
            assert_eq!(expanded(text), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_replaced_says_what_to_do() {
        let texts = [
            "${UNSET}",
            "${UNSET} and ${GONE}",
            "${UNSET:-${GONE}}",
            "${UNSET:?ask the team for it}",
            "${EMPTY:?}",
            "${env:TOKEN}",
            "${env:to ken}",
            "${input:token}",
            "${TOKEN",
            "${TOKEN:-a",
            "${TOKEN:-${HOME}",
            "${",
            "${}",
            "${1}",
            "${TO KEN}",
            "${TOKEN-x}",
            "${TOKEN:+x}",
        ];
        let messages: Vec<_> =
            texts.iter().map(|text| format!("{text} {}", expanded(text))).collect();
        insta::assert_snapshot!(messages.join("\n"), @r"
        ${UNSET} ! the variable UNSET is not set (set UNSET where Weir starts, or write ${UNSET:-default})
        ${UNSET} and ${GONE} ! the variable UNSET is not set (set UNSET where Weir starts, or write ${UNSET:-default}); the variable GONE is not set (set GONE where Weir starts, or write ${GONE:-default})
        ${UNSET:-${GONE}} ! the variable GONE is not set (set GONE where Weir starts, or write ${GONE:-default})
        ${UNSET:?ask the team for it} ! the variable UNSET is not set, or empty: ask the team for it (set UNSET where Weir starts)
        ${EMPTY:?} ! the variable EMPTY is not set, or empty (set EMPTY where Weir starts)
        ${env:TOKEN} ! ${env:…} is another program's way to name a variable (write ${TOKEN})
        ${env:to ken} ! ${env:…} is another program's way to name a variable (write ${NAME})
        ${input:token} ! ${input:…} prompts a person, which Weir never does (write ${NAME} for a variable, or a secret that is read from a file or a command)
        ${TOKEN ! ${ is not closed (write } after the variable, or $$ for a $ itself)
        ${TOKEN:-a ! ${ is not closed (write } after the variable, or $$ for a $ itself)
        ${TOKEN:-${HOME} ! ${ is not closed (write } after the variable, or $$ for a $ itself)
        ${ ! ${ is not closed (write } after the variable, or $$ for a $ itself)
        ${} ! this cannot name a variable (write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a $ itself)
        ${1} ! this cannot name a variable (write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a $ itself)
        ${TO KEN} ! this is not a way to write a variable (write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a $ itself)
        ${TOKEN-x} ! this is not a way to write a variable (write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a $ itself)
        ${TOKEN:+x} ! this is not a way to write a variable (write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a $ itself)
        ");
    }

    #[test]
    fn the_content_of_a_secrets_file_is_taken_as_it_is() {
        for (text, expected) in [
            ("${file:key}", "s3cr3t ${TOKEN}"),
            ("--key=${file:${HOME}/key}&x", "--key=s3cr3t ${TOKEN}&x"),
            ("${UNSET:-${file:key}}", "s3cr3t ${TOKEN}"),
            // A file that is not needed is not read, and neither is one whose path is incomplete.
            ("${TOKEN:-${file:gone}}", "hunter2"),
            ("$${file:key}", "${file:key}"),
            ("${file:-x}", "x"),
            ("${file:gone}", "! no gone (make it)"),
            ("${file:${HOME}/gone}", "! no ${HOME}/gone (make it)"),
            ("${file:}", "! this names no file (write ${file:PATH})"),
            (
                "${file:${UNSET}/key}",
                "! the variable UNSET is not set (set UNSET where Weir starts, or write \
                 ${UNSET:-default})",
            ),
            ("${file:key", "! ${ is not closed (write } after the variable, or $$ for a $ itself)"),
        ] {
            assert_eq!(expanded(text), expected, "{text}");
        }
    }

    #[test]
    fn nesting_and_length_are_bounded() {
        let nested = |depth: usize| "${U:-".repeat(depth) + "x" + &"}".repeat(depth);
        assert_eq!(expanded(&nested(16)), "x");
        assert!(expanded(&nested(17)).contains("nested too deep"));
        assert!(expanded(&nested(100_000)).contains("nested too deep"));
        let long: Environment = [("LONG", "x".repeat(40_000))].into_iter().collect();
        assert!(expand_with("${LONG}", &long).is_ok_and(|text| text.is_some()));
        let errors = expand_with(&"${LONG}".repeat(1000), &long).err().unwrap_or_default();
        assert_eq!(errors.len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_told_by_its_name() {
        use std::os::unix::ffi::OsStringExt;
        let bytes = OsString::from_vec(vec![b'h', 0xff]);
        let environment: Environment = [("RAW", bytes)].into_iter().collect();
        let errors = expand_with("${RAW} ${RAW:-x} ${UNSET:-${RAW}}", &environment)
            .err()
            .unwrap_or_default();
        let messages: Vec<_> = errors.iter().map(|c| &*c.what).collect();
        assert_eq!(messages, ["the variable RAW is not UTF-8"; 3]);
    }

    proptest! {
        #[test]
        fn a_text_without_a_dollar_is_unchanged(text in "[^$]*") {
            prop_assert!(matches!(expand_with(&text, &environment()), Ok(None)));
        }

        #[test]
        fn doubling_every_dollar_gives_the_text_back(text in "([${}:?a-]|.)*") {
            let doubled = text.replace('$', "$$");
            let expanded = expand_with(&doubled, &environment()).ok().flatten().unwrap_or(doubled);
            prop_assert_eq!(expanded, text);
        }

        #[test]
        fn no_complaint_holds_what_a_variable_stands_for(text in "(\\$\\{|\\}|:-|:\\?|TOKEN|HOME|UNSET|env:|file:|key|[ -~])*") {
            if let Err(errors) = expand_with(&text, &environment()) {
                for error in errors {
                    let messages = format!("{} {}", error.what, error.remedy);
                    prop_assert!(!messages.contains("hunter2") || text.contains("hunter2"));
                    prop_assert!(!messages.contains("s3cr3t") || text.contains("s3cr3t"));
                }
            }
        }
    }
}
