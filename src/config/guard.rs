//! `[guard]`, and what an upstream's own table says of it: what goes in and comes out.
//!
//! Inheritance is an argument, as in `tuning.rs`: what an upstream's table does not say holds as in `[guard]`.

use std::path::{Path, PathBuf};

use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::{Name, Parsed, Table, Value};
use crate::config::reader::value;
use crate::guard::{ArgumentCheck, BadPattern, HiddenText, Output, Pattern, Rules};
use crate::mcp::kind::Kind;
use crate::pins::{Lock, Mode};

/// What `[guard]` and an upstream's own table can both say.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) rules: Rules,
    pub(super) pinning: Mode,
}

impl Default for Guard {
    fn default() -> Self {
        Self { rules: Rules::default(), pinning: Mode::Alert }
    }
}

/// Reads what the table says; the rest is inherited.
pub(super) fn guard(t: &Table<'_>, inherited: &Guard) -> Guard {
    let pinning = t.read("pinning", value::choice(&PINNING)).unwrap_or(inherited.pinning);
    Guard { rules: rules(t, &inherited.rules), pinning }
}

/// Reads where the lock file is. On disk it has to be one that can be used, if it is there.
pub(super) fn lock_file(t: &Table<'_>, on_disk: bool) -> PathBuf {
    let path = t.read("lock_file", value::text).unwrap_or_else(|| LOCK_FILE.to_owned());
    let path = t.folder("lock_file").join(path);
    if let (true, Err(error)) = (on_disk, Lock::load(&path)) {
        let what = format!("the lock file cannot be used: {error}");
        let remedy = "restore it from version control, or remove it and run `weir pins approve`";
        t.object("lock_file", Complaint::new(what, remedy));
    }
    path
}

/// Tells that nothing will be served of an upstream whose definitions nobody has approved.
pub(super) fn warn_of_nothing(
    t: &Table<'_>,
    pinning: Mode,
    name: &str,
    file: &Path,
    on_disk: bool,
) {
    if pinning != Mode::Locked || !on_disk {
        return;
    }
    // One that cannot be used is told already.
    let Ok(lock) = Lock::load(file) else { return };
    if !lock.unwrap_or_default().upstreams.contains_key(name) {
        let what = "the lock file approves nothing of this upstream, so nothing is served";
        let remedy = format!("look at it with `weir pins diff`, then `weir pins approve {name}`");
        t.warn("guard", Complaint::new(what, remedy));
    }
}

fn rules(t: &Table<'_>, inherited: &Rules) -> Rules {
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

pub(super) const PINNING: [(&str, Mode); 4] = [
    ("off", Mode::Off),
    ("alert", Mode::Alert),
    ("enforce", Mode::Enforce),
    ("locked", Mode::Locked),
];

/// Beside the configuration, and so in its version control.
pub(super) const LOCK_FILE: &str = "weir.lock";
/// More than one message can hold.
const MAX_ARGUMENT: usize = 1 << 30;
/// Each costs reading every string of a result.
const MAX_PATTERNS: usize = 64;
