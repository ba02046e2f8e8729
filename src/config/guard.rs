//! `[guard]` and the `guard` table of an upstream: content checks and definition pinning.
//!
//! Inheritance is a parameter, as in `upstream_defaults.rs`: keys that are missing in an upstream's
//! table are as in `[guard]`.

use std::path::{Path, PathBuf};

use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::{Parsed, SpannedName, SpannedValue, TableReader};
use crate::config::reader::value;
use crate::guard::{
    ArgumentCheck, BadPattern, GuardRules, HiddenText, RedactionPattern, ResultCheck,
};
use crate::mcp::kind::Kind;
use crate::pins::{Mode, PinFile};

/// Values that both `[guard]` and an upstream's own table can set.
#[derive(Clone)]
pub(super) struct GuardConfig {
    pub(super) rules: GuardRules,
    pub(super) pinning: Mode,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self { rules: GuardRules::default(), pinning: Mode::Alert }
    }
}

/// Reads a table; missing keys are inherited.
pub(super) fn read_guard(t: &TableReader<'_>, inherited: &GuardConfig) -> GuardConfig {
    let pinning = t.read("pinning", value::choice(&PINNING)).unwrap_or(inherited.pinning);
    GuardConfig { rules: rules(t, &inherited.rules), pinning }
}

/// Reads the path of the lock file. With `on_disk` the file must be valid, if it exists.
pub(super) fn read_lock_file(t: &TableReader<'_>, on_disk: bool) -> PathBuf {
    let path = t.read("lock_file", value::text).unwrap_or_else(|| LOCK_FILE.to_owned());
    let path = t.base_folder("lock_file").join(path);
    if let (true, Err(error)) = (on_disk, PinFile::load(&path)) {
        let what = format!("the lock file cannot be used: {error}");
        let remedy = "restore it from version control, or remove it and run `weir pins approve`";
        t.error("lock_file", ValueError::new(what, remedy));
    }
    path
}

/// Warns that nothing is served of an upstream without approved definitions.
pub(super) fn warn_of_unapproved(
    t: &TableReader<'_>,
    pinning: Mode,
    name: &str,
    file: &Path,
    on_disk: bool,
) {
    if pinning != Mode::Locked || !on_disk {
        return;
    }
    // An unusable file has been reported already.
    let Ok(lock) = PinFile::load(file) else { return };
    if !lock.unwrap_or_default().upstreams.contains_key(name) {
        let what = "the lock file approves nothing of this upstream, so nothing is served";
        let remedy = format!("look at it with `weir pins diff`, then `weir pins approve {name}`");
        t.warning("guard", ValueError::new(what, remedy));
    }
}

fn rules(t: &TableReader<'_>, inherited: &GuardRules) -> GuardRules {
    let read_argument = |v: &SpannedValue<'_>| {
        let size = value::size(v)?;
        match size <= MAX_ARGUMENT {
            true => Ok(size),
            false => Err(ValueError::new("no request is this large", "write at most \"1GiB\"")),
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
        t.error("redact", ValueError::new(what, "join some of them with |"));
    }
    GuardRules {
        arguments: t.read("arguments", value::choice(&ARGUMENTS)).unwrap_or(inherited.arguments),
        max_argument: t.read("max_argument", read_argument).unwrap_or(inherited.max_argument),
        output: t.read("output", value::choice(&OUTPUTS)).unwrap_or(inherited.output),
        hidden_text: t.read("hidden_text", value::choice(&HIDDEN)).unwrap_or(inherited.hidden_text),
        results: results.unwrap_or_else(|| inherited.results.clone()),
        redact,
    }
}

fn pattern(name: SpannedName<'_>, v: &SpannedValue<'_>) -> Parsed<(String, RedactionPattern)> {
    let name_text = name.get_ref().as_ref();
    if !value::is_plain_name(name_text) {
        return Err(value::bad_plain_name(name_text).at(name.span()));
    }
    let pattern = RedactionPattern::new(name_text, value::string(v)?).map_err(|bad| match bad {
        BadPattern::Syntax(reason) => ValueError::new(
            format!("this is not a regular expression: {reason}"),
            "write it in Rust's syntax, which has no look-around and no references back",
        ),
        BadPattern::TooLong | BadPattern::TooLarge => {
            ValueError::new(format!("this is {bad}"), "shorten it, or make two of it")
        }
        BadPattern::Empty => {
            ValueError::new(format!("this is {bad}"), "match at least one character: a+, not a*")
        }
    })?;
    Ok((name_text.to_owned(), pattern))
}

pub(super) const ARGUMENTS: [(&str, ArgumentCheck); 3] = [
    ("off", ArgumentCheck::Off),
    ("required", ArgumentCheck::Required),
    ("declared", ArgumentCheck::Declared),
];

pub(super) const OUTPUTS: [(&str, ResultCheck); 3] =
    [("off", ResultCheck::Off), ("flag", ResultCheck::Flag), ("refuse", ResultCheck::Refuse)];

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

/// Default lock file, next to the configuration and so in its version control.
pub(super) const LOCK_FILE: &str = "weir.lock";
/// Maximum of `max_argument`; no message is as large.
const MAX_ARGUMENT: usize = 1 << 30;
/// Maximum number of redaction patterns; each one scans every string of a result.
const MAX_PATTERNS: usize = 64;
