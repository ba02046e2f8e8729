//! `[guard]`, and what an upstream's own table says of it: what goes in and comes out.
//!
//! Inheritance is an argument, as in `tuning.rs`: what an upstream's table does not say holds as in `[guard]`.

use super::file::{Name, Parsed, Table, Value};
use super::report::Complaint;
use super::value;
use crate::guard::{ArgumentCheck, BadPattern, HiddenText, Output, Pattern, Rules};
use crate::mcp::kind::Kind;

/// Reads what the table says; the rest is inherited.
pub(super) fn guard(t: &Table<'_>, inherited: &Rules) -> Rules {
    let read_argument = |v: &Value<'_>| {
        let size = value::size(v)?;
        match size <= MAX_ARGUMENT {
            true => Ok(size),
            false => Err(Complaint::new("no request is this large", "write at most \"1GiB\"")),
        }
    };
    let results = t.list("results", value::choice(&RESULTS));
    let mut redact = inherited.redact.clone();
    for (name, pattern) in t.map("redact", pattern) {
        redact.retain(|known| known.name() != name);
        redact.push(pattern);
    }
    if redact.len() > MAX_PATTERNS {
        let what = format!("more than {MAX_PATTERNS} patterns");
        t.object("redact", Complaint::new(what, "join some of them with |"));
    }
    Rules {
        arguments: t.read("arguments", value::choice(&ARGUMENTS)).unwrap_or(inherited.arguments),
        max_argument: t.read("max_argument", read_argument).unwrap_or(inherited.max_argument),
        output: t.read("output", value::choice(&OUTPUTS)).unwrap_or(inherited.output),
        hidden_text: t.read("hidden_text", value::choice(&HIDDEN)).unwrap_or(inherited.hidden_text),
        results: results.unwrap_or_else(|| inherited.results.clone()),
        redact,
    }
}

fn pattern(name: Name<'_>, v: &Value<'_>) -> Parsed<(String, Pattern)> {
    let name_text = name.get_ref().as_ref();
    if !value::is_plain_name(name_text) {
        return Err(value::bad_plain_name(name_text).at(name.span()));
    }
    let pattern = Pattern::new(name_text, value::string(v)?).map_err(|bad| match bad {
        BadPattern::Syntax(reason) => Complaint::new(
            format!("this is not a regular expression: {reason}"),
            "write it in Rust's syntax, which has no look-around and no references back",
        ),
        BadPattern::TooLong | BadPattern::TooLarge => {
            Complaint::new(format!("this is {bad}"), "shorten it, or make two of it")
        }
        BadPattern::Empty => {
            Complaint::new(format!("this is {bad}"), "ask for at least one character: a+, not a*")
        }
    })?;
    Ok((name_text.to_owned(), pattern))
}

pub(super) const ARGUMENTS: [(&str, ArgumentCheck); 3] = [
    ("off", ArgumentCheck::Off),
    ("required", ArgumentCheck::Required),
    ("declared", ArgumentCheck::Declared),
];

pub(super) const OUTPUTS: [(&str, Output); 3] =
    [("off", Output::Off), ("flag", Output::Flag), ("refuse", Output::Refuse)];

pub(super) const HIDDEN: [(&str, HiddenText); 5] = [
    ("pass", HiddenText::Pass),
    ("flag", HiddenText::Flag),
    ("escape", HiddenText::Escape),
    ("strip", HiddenText::Strip),
    ("refuse", HiddenText::Refuse),
];

pub(super) const RESULTS: [(&str, Kind); 3] =
    [("prompts", Kind::Prompt), ("tools", Kind::Tool), ("resources", Kind::Resource)];

/// More than one message can hold.
const MAX_ARGUMENT: usize = 1 << 30;
/// Each costs reading every string of a result.
const MAX_PATTERNS: usize = 64;
