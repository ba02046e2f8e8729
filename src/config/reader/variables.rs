//! Variables in the strings of a file: `${VAR}`, `${VAR:-default}`, `${VAR:?message}`, and `$$` for a `$`.
//!
//! They mean what they mean to a shell: `:-` and `:?` take an empty variable for one that is not set, a default
//! may hold variables itself, and one that is not needed is not looked up. A `$` before anything else stays.
//!
//! Promises: a complaint names variables and never says what they stand for; nesting and length are bounded.
//! Knows nothing of: the process's environment, which is handed in; the places of strings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use crate::config::reader::report::Complaint;

/// The variables that a file may name. The configuration reads no others.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Looks up a variable; none if it is not set.
    pub(crate) fn get(&self, name: &str) -> Result<Option<&str>, NotText> {
        let value = self.variables.get(OsString::from(name).as_os_str());
        value.map(|value| value.to_str().ok_or(NotText)).transpose()
    }

    /// Every variable, for a program that is started.
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

/// The variable is set to something that is not UTF-8.
pub(crate) struct NotText;

impl NotText {
    pub(crate) fn complain(&self, name: &str) -> Complaint {
        Complaint::new(format!("the variable {name} is not UTF-8"), "set it to a text")
    }
}

/// Whether a text can name a variable of a file: what else stands there may be the secret itself.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(is_named)
}

fn is_named(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What is said of a variable that is not set, here and where a secret names one.
pub(crate) fn is_not_set(name: &str, remedy: String) -> Complaint {
    Complaint::new(format!("the variable {name} is not set"), remedy)
}

/// Replaces the variables of a text. Returns none if there is nothing to replace, and every complaint if one
/// of them cannot be.
pub(crate) fn expand(
    text: &str,
    environment: &Environment,
) -> Result<Option<String>, Vec<Complaint>> {
    if !text.contains('$') {
        return Ok(None);
    }
    let mut expander = Expander { rest: text, environment, complaints: Vec::new(), is_lost: false };
    let expanded = expander.word(0, true);
    if expanded.len() > MAX_EXPANDED_BYTES {
        expander.complaints.push(Complaint::new(
            "this is longer than 64 KiB once its variables are replaced",
            "use fewer of them",
        ));
    }
    match expander.complaints.is_empty() {
        true => Ok(Some(expanded).filter(|expanded| expanded != text)),
        false => Err(expander.complaints),
    }
}

// === Expander ===

/// A text that is being replaced from left to right.
struct Expander<'e> {
    rest: &'e str,
    environment: &'e Environment,
    complaints: Vec<Complaint>,
    /// Its end was missed: that is told once.
    is_lost: bool,
}

impl Expander<'_> {
    /// Reads to the end, or to the `}` that ends a default, which stays unread. What is not `live` is read for
    /// its end only: the variables of a default that is not needed may be missing.
    fn word(&mut self, depth: usize, live: bool) -> String {
        let mut word = String::new();
        while let Some(next) = self.rest.chars().next().filter(|c| depth == 0 || *c != '}') {
            if self.skip("$$") {
                word.push('$');
            } else if self.skip("${") {
                word += &self.reference(depth + 1, live && word.len() <= MAX_EXPANDED_BYTES);
            } else {
                word.push(next);
                self.rest = &self.rest[next.len_utf8()..];
            }
        }
        word
    }

    /// Reads what follows `${`, with its `}`.
    fn reference(&mut self, depth: usize, live: bool) -> String {
        if depth > MAX_DEPTH {
            self.object("defaults are nested too deep", "nest at most 16 of them");
            (self.rest, self.is_lost) = ("", true);
            return String::new();
        }
        let (name, rest) =
            self.rest.split_at(self.rest.find(|c: char| !is_named(c)).unwrap_or(self.rest.len()));
        let is_name = is_name(name);
        self.rest = rest;
        let value = match self.environment.get(name) {
            Ok(value) => value.unwrap_or_default(),
            Err(not_text) => {
                if live && is_name {
                    self.complaints.push(not_text.complain(name));
                }
                return self.skip_to_the_end(depth);
            }
        };
        if is_name && self.skip("}") {
            if live && matches!(self.environment.get(name), Ok(None)) {
                let remedy = format!("set {name} where Weir starts, or write ${{{name}:-default}}");
                self.complaints.push(is_not_set(name, remedy));
            }
            value.to_owned()
        } else if is_name && self.skip(":-") {
            let default = self.word(depth, live && value.is_empty());
            self.close();
            if value.is_empty() { default } else { value.to_owned() }
        } else if is_name && self.skip(":?") {
            let from = self.rest;
            self.word(depth, false);
            let message = &from[..from.len() - self.rest.len()];
            self.close();
            if live && value.is_empty() {
                self.demand(name, message);
            }
            value.to_owned()
        } else {
            self.foreign(name);
            self.skip_to_the_end(depth)
        }
    }

    /// Complains in the words of the file that a variable is not set.
    fn demand(&mut self, name: &str, message: &str) {
        let message: String = message.trim().chars().take(MAX_MESSAGE_CHARS).collect();
        let what = match message.as_str() {
            "" => format!("the variable {name} is not set, or empty"),
            message => format!("the variable {name} is not set, or empty: {message}"),
        };
        let remedy = format!("set {name} where Weir starts");
        self.complaints.push(Complaint::new(what, remedy));
    }

    /// Complains about what other programs replace, or what nobody does.
    fn foreign(&mut self, name: &str) {
        if self.rest.is_empty() {
            // Told by whoever closes it.
            return;
        }
        let argument = self.rest.strip_prefix(':').and_then(|rest| rest.split('}').next());
        match (name, argument) {
            ("env", Some(argument)) if is_name(argument) => {
                self.object(
                    "${env:…} is another program's way to name a variable",
                    format!("write ${{{argument}}}"),
                );
            }
            ("env", Some(_)) => {
                self.object(
                    "${env:…} is another program's way to name a variable",
                    "write ${NAME}",
                );
            }
            ("input", Some(_)) => self.object(
                "${input:…} asks a person, and Weir asks nobody when it starts",
                "write ${NAME} for a variable, or a secret that is read from a file or a command",
            ),
            _ if is_name(name) => self.object("this is not a way to write a variable", WAYS),
            _ => self.object("this cannot name a variable", WAYS),
        }
    }

    fn object(&mut self, what: &'static str, remedy: impl Into<std::borrow::Cow<'static, str>>) {
        self.complaints.push(Complaint::new(what, remedy));
    }

    fn skip_to_the_end(&mut self, depth: usize) -> String {
        self.word(depth, false);
        self.close();
        String::new()
    }

    fn close(&mut self) {
        if !self.skip("}") && !std::mem::replace(&mut self.is_lost, true) {
            self.object("${ is not closed", "write } after the variable, or $$ for a $ itself");
        }
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }
}

const WAYS: &str = "write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a $ itself";

/// Nobody reads deeper than three; the stack is safe far beyond this.
const MAX_DEPTH: usize = 16;

/// Far more than any value needs; a variable can be named often in a file of 4 MiB.
const MAX_EXPANDED_BYTES: usize = 64 * 1024;

/// How much of a file's own message is repeated.
const MAX_MESSAGE_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::config::reader::variables::*;

    fn environment() -> Environment {
        [("HOME", "/home/ann"), ("TOKEN", "hunter2"), ("EMPTY", ""), ("BRACES", "${TOKEN}")]
            .into_iter()
            .collect()
    }

    /// What a text becomes, or what is said of it.
    fn expanded(text: &str) -> String {
        match expand(text, &environment()) {
            Ok(expanded) => expanded.unwrap_or_else(|| text.to_owned()),
            Err(complaints) => {
                let told = complaints.iter().map(|c| format!("{} ({})", c.what, c.remedy));
                format!("! {}", told.collect::<Vec<_>>().join("; "))
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
        let told: Vec<_> = texts.iter().map(|text| format!("{text} {}", expanded(text))).collect();
        insta::assert_snapshot!(told.join("\n"), @r"
        ${UNSET} ! the variable UNSET is not set (set UNSET where Weir starts, or write ${UNSET:-default})
        ${UNSET} and ${GONE} ! the variable UNSET is not set (set UNSET where Weir starts, or write ${UNSET:-default}); the variable GONE is not set (set GONE where Weir starts, or write ${GONE:-default})
        ${UNSET:-${GONE}} ! the variable GONE is not set (set GONE where Weir starts, or write ${GONE:-default})
        ${UNSET:?ask the team for it} ! the variable UNSET is not set, or empty: ask the team for it (set UNSET where Weir starts)
        ${EMPTY:?} ! the variable EMPTY is not set, or empty (set EMPTY where Weir starts)
        ${env:TOKEN} ! ${env:…} is another program's way to name a variable (write ${TOKEN})
        ${env:to ken} ! ${env:…} is another program's way to name a variable (write ${NAME})
        ${input:token} ! ${input:…} asks a person, and Weir asks nobody when it starts (write ${NAME} for a variable, or a secret that is read from a file or a command)
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
    fn nesting_and_length_are_bounded() {
        let nested = |depth: usize| "${U:-".repeat(depth) + "x" + &"}".repeat(depth);
        assert_eq!(expanded(&nested(16)), "x");
        assert!(expanded(&nested(17)).contains("nested too deep"));
        assert!(expanded(&nested(100_000)).contains("nested too deep"));
        let long: Environment = [("LONG", "x".repeat(40_000))].into_iter().collect();
        assert!(expand("${LONG}", &long).is_ok_and(|text| text.is_some()));
        let complaints = expand(&"${LONG}".repeat(1000), &long).err().unwrap_or_default();
        assert_eq!(complaints.len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_told_by_its_name() {
        use std::os::unix::ffi::OsStringExt;
        let bytes = OsString::from_vec(vec![b'h', 0xff]);
        let environment: Environment = [("RAW", bytes)].into_iter().collect();
        let complaints =
            expand("${RAW} ${RAW:-x} ${UNSET:-${RAW}}", &environment).err().unwrap_or_default();
        let told: Vec<_> = complaints.iter().map(|c| &*c.what).collect();
        assert_eq!(told, ["the variable RAW is not UTF-8"; 3]);
    }

    proptest! {
        #[test]
        fn a_text_without_a_dollar_is_unchanged(text in "[^$]*") {
            prop_assert!(matches!(expand(&text, &environment()), Ok(None)));
        }

        #[test]
        fn doubling_every_dollar_gives_the_text_back(text in "([${}:?a-]|.)*") {
            let doubled = text.replace('$', "$$");
            let expanded = expand(&doubled, &environment()).ok().flatten().unwrap_or(doubled);
            prop_assert_eq!(expanded, text);
        }

        #[test]
        fn no_complaint_holds_what_a_variable_stands_for(text in "(\\$\\{|\\}|:-|:\\?|TOKEN|HOME|UNSET|env:|[ -~])*") {
            if let Err(complaints) = expand(&text, &environment()) {
                for complaint in complaints {
                    let told = format!("{} {}", complaint.what, complaint.remedy);
                    prop_assert!(!told.contains("hunter2") || text.contains("hunter2"));
                }
            }
        }
    }
}
