//! `[guard]` and the `guard` table of an upstream: content checks and definition pinning.
//!
//! Inheritance is a parameter, as in `upstream_defaults.rs`: keys that are missing in an upstream's
//! table are as in `[guard]`.

use std::path::{Path, PathBuf};

use crate::keys::shape::{self, ValueShape};
use crate::keys::{
    Described, Key, KeySpec, choice, custom, list, settings, size_of, string, variant,
};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedName, SpannedValue, TableReader};
use crate::reader::value;
use weir_access::guard::{BadPattern, GuardRules, RedactionPattern};
use weir_access::pins::{Mode, PinFile};
use weir_mcp::kind::Kind;

settings! {
    /// Content checks on requests and responses: arguments of prompts, malformed results, invisible
    /// text, and redaction. An upstream's own `guard` table can override each key.
    ///
    /// ```toml
    /// [guard]
    /// arguments = "declared"
    /// output = "refuse"
    /// hidden_text = "strip"
    /// results = ["prompts", "tools"]
    /// redact = { aws-key = "AKIA[0-9A-Z]{16}" }
    /// ```
    pub(super) struct GuardConfig {
        /// Handling of a prompt, tool or resource template, or of instructions, that an upstream
        /// has changed from the definition in `lock_file` (without that file: from its first list
        /// since the start). `alert`: the change is served, and logged; `enforce`: a new or changed
        /// definition is neither listed nor callable until it is approved, but the definitions of
        /// the first list of a new upstream are approved and written to the file; `locked`: like
        /// `enforce`, and only definitions that you put into the file are approved. Resources are
        /// not pinned, because their definitions contain the size and the date of their contents.
        pinning: Mode = Mode::Alert, choice(&PINNING);
        =>
        /// Content checks.
        rules: GuardRules = GuardRules::default();
    }
}

settings! {
    for GuardRules {
        /// The kinds of items whose results `output` and `hidden_text` check. A large result is
        /// streamed as it arrives, and is checked on the way if its kind is listed here; a result
        /// that may be rewritten or refused is buffered until it is complete.
        results: list(ValueShape::choice(&RESULTS), value::choice(RESULTS.to_vec()))
            .written(|kinds| kinds.iter().map(|kind| shape::word(&RESULTS, kind)).collect());
        /// Text to redact: names, and regular expressions in Rust's syntax. Each match, in any
        /// string of any result, error or definition and in instructions, becomes
        /// `[redacted:<name>]`; data in base64 is a string, too. An item is left out of the lists
        /// if a pattern matches a text that its upstream must get back unchanged: the item's name
        /// or URI, the name of an argument or of any member. With a pattern every result is
        /// buffered until it is complete. An upstream's own patterns are added to those of
        /// `[guard]`; a pattern of the same name replaces the inherited one. In one string at most
        /// 1000 matches are replaced one by one, and the rest of the string as one.
        ///
        /// ```toml
        /// redact = { aws-key = "AKIA[0-9A-Z]{16}", token = "ghp_[A-Za-z0-9]{36}" }
        /// ```
        redact: redactions();
        /// Checks of the arguments of `prompts/get` before the request goes to the upstream.
        /// `required`: they are strings of at most `max_argument`, and none is missing that the
        /// prompt declares as required; `declared`: in addition there is none that the prompt does
        /// not declare; `off`: they are not checked. Arguments of tools have a JSON schema, which
        /// their upstream enforces.
        arguments: variant();
        /// The longest argument of a prompt, unless `arguments` is `off`.
        max_argument: size_of(max_argument);
        /// Handling of a malformed result: a wrong role, content without the members that its type
        /// needs, invalid base64, MIME types or URIs. Content of unknown types is accepted. `flag`:
        /// the result is passed on, logged and counted; `refuse`: the client gets an error instead.
        output: variant();
        /// Handling of text that a person does not see but a model reads, in results and in the
        /// definitions of all items: control characters (including ESC), characters that change the
        /// writing direction, tag characters, zero-width characters. `flag`: the text is passed on,
        /// logged and counted; `escape`: such a character is written as `<U+202E>`; `strip`: it is
        /// removed; `refuse`: the client gets an error instead of a result, and a definition is
        /// left out of the lists. An item whose own name or URI contains such text is left out
        /// under `escape` and `strip`, too.
        hidden_text: variant();
    }
}

settings! {
    /// Key of `[guard]` only.
    pub(super) struct LockFile {
        /// The file with the approved definitions, made for review in version control: `weir pins
        /// diff` compares, `weir pins approve` writes. A relative path starts from the folder of
        /// the file that contains it. Weir itself writes the file only under `enforce`, for an
        /// upstream that it sees for the first time.
        lock_file: String = "weir.lock".to_owned(),
            string("path", shape::NOT_EMPTY, value::text);
    }
}

/// Describes the keys of `[guard]` that an upstream's own table can also set.
pub(super) fn guard_keys() -> Vec<KeySpec> {
    let mut keys = GuardRules::keys();
    // The texts of the first two refer to those of the others.
    keys.rotate_left(2);
    keys.extend(GuardConfig::keys());
    keys
}

/// Reads a table; missing keys are inherited.
pub(super) fn read_guard(t: &TableReader<'_>, inherited: &GuardConfig) -> GuardConfig {
    let guard = GuardConfig::read_keys(t, inherited);
    let rules = GuardRules::read_keys(t, &inherited.rules);
    if rules.redact.len() > MAX_PATTERNS {
        let what = format!("more than {MAX_PATTERNS} patterns");
        t.error("redact", ValueError::new(what, "join some of them with |"));
    }
    GuardConfig { rules, ..guard }
}

/// Reads the path of the lock file. With `on_disk` the file must be valid, if it exists.
pub(super) fn read_lock_file(t: &TableReader<'_>, on_disk: bool) -> PathBuf {
    let path = t.base_folder("lock_file").join(LockFile::read(t).lock_file);
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

fn max_argument(v: &SpannedValue<'_>) -> Parsed<usize> {
    match value::size(v)? {
        size if size <= MAX_ARGUMENT => Ok(size),
        _ => Err(ValueError::new("no request is this large", "write at most \"1GiB\"")),
    }
}

/// Patterns by name; they are added to the inherited ones, or replace those of the same name.
fn redactions() -> Key<Vec<RedactionPattern>> {
    let of = ValueShape::Text("regular expression", shape::NOT_EMPTY);
    let shape = ValueShape::map(shape::PLAIN_NAME, of);
    custom(shape, |t, name, inherited: Option<&Vec<RedactionPattern>>| {
        let mut redact = inherited.cloned().unwrap_or_default();
        for (name, pattern) in t.map(name, pattern) {
            redact.retain(|known| known.name() != name);
            redact.push(pattern);
        }
        Some(redact)
    })
    .written(|_| shape::empty_table())
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

const RESULTS: [(&str, Kind); 3] =
    [("prompts", Kind::Prompt), ("tools", Kind::Tool), ("resources", Kind::Resource)];

const PINNING: [(&str, Mode); 4] = [
    ("off", Mode::Off),
    ("alert", Mode::Alert),
    ("enforce", Mode::Enforce),
    ("locked", Mode::Locked),
];

/// Maximum of `max_argument`; no message is as large.
const MAX_ARGUMENT: usize = 1 << 30;
/// Maximum number of redaction patterns; each one scans every string of a result.
const MAX_PATTERNS: usize = 64;
