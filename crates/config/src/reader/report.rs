//! Report of the problems in a configuration, rendered as annotated source lines.
//!
//! A [`ConfigReport`] contains every problem, in the order of the files; each has its file, its key
//! and a remedy. A rendered problem shows its source line, therefore the text is redacted first
//! wherever it contains, or might contain, a secret.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use annotate_snippets::renderer::Renderer;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Snippet};

use super::partly_secret::has_secret_segment;
use super::rule_locations::{is_below, join};
use super::secret_names::{
    HARMLESS_KEYS, HARMLESS_WORDS, SECRET_WORDS, is_like_a_secret, secrets_of_urls,
};

/// Problems of one configuration. Its `Display` is [`ConfigReport::render`] without colors.
#[derive(Clone, PartialEq)]
pub struct ConfigReport {
    problems: Vec<ConfigProblem>,
}

impl ConfigReport {
    pub(crate) fn new(problems: Vec<ConfigProblem>) -> Self {
        Self { problems }
    }

    /// Makes a report about a file that cannot be read.
    pub(crate) fn about_file(
        path: &Path,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let source = RedactedSource::redacted(path.display().to_string(), "", &[]);
        let (severity, what, remedy) = (Severity::Error, what.into(), remedy.into());
        Self::new(vec![ConfigProblem {
            severity,
            key: String::new(),
            what,
            remedy,
            is_missing_value: false,
            span: None,
            source,
        }])
    }

    /// Makes a report that refuses a configuration because these upstreams lack values, from its
    /// warnings. `None` if no upstream is named.
    pub fn of_missing_values(warnings: &[Warning], upstreams: &[&str]) -> Option<Self> {
        let is_lost = |it: &Warning| {
            it.is_missing_value
                && upstreams.iter().any(|name| is_below(&it.key, &join("upstreams", name)))
        };
        let refused = |it: &Warning| ConfigProblem {
            severity: if is_lost(it) { Severity::Error } else { it.severity },
            ..it.clone()
        };
        (!upstreams.is_empty()).then(|| Self::new(warnings.iter().map(refused).collect()))
    }

    /// Returns the problems in the order of the file; at least one of them is an error.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }

    /// Renders every problem at its location; `styled` adds colors for a terminal.
    pub fn render(&self, styled: bool) -> String {
        let shown = self.problems.iter().take(MAX_RENDERED);
        let mut text = shown.map(|p| p.render(styled)).collect::<Vec<_>>().join("\n\n");
        if let Some(more) = self.problems.len().checked_sub(MAX_RENDERED).filter(|n| *n > 0) {
            text.push_str(&format!("\n\nand {more} more"));
        }
        text
    }
}

impl fmt::Display for ConfigReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl fmt::Debug for ConfigReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigReport {}

// === Problem ===

/// One mistake, with a remedy. Its `Display` is [`ConfigProblem::render`] without colors.
#[derive(Clone, PartialEq)]
pub struct ConfigProblem {
    /// Severity, which decides whether Weir can start.
    pub severity: Severity,
    /// Key, as `server.listen`; empty for a problem of the whole file.
    pub key: String,
    /// Description of the mistake.
    pub what: String,
    /// Remedy.
    pub remedy: String,
    /// Whether a value is missing that comes from outside: a variable, a file or a command's
    /// output.
    pub is_missing_value: bool,
    pub(crate) span: Option<Span>,
    pub(crate) source: Arc<RedactedSource>,
}

/// Problem with which Weir can start; its severity is [`Severity::Warning`].
pub type Warning = ConfigProblem;

/// Severity of a [`ConfigProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but contains a value that is probably not intended.
    Warning,
}

impl ConfigProblem {
    /// Renders the line, carets under the span, and the remedy; `styled` adds colors for a
    /// terminal.
    pub fn render(&self, styled: bool) -> String {
        let renderer = if styled { Renderer::styled() } else { Renderer::plain() };
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let group = Group::with_title(level.primary_title(self.to_line()));
        let group = match &self.span {
            Some(span) => group.element(
                Snippet::source(self.source.text.as_str())
                    .path(self.source.name.as_str())
                    .annotation(
                        AnnotationKind::Primary
                            .span(span.clone())
                            .label(annotate_snippets::normalize_untrusted_str(&self.remedy)),
                    ),
            ),
            None => group.element(Origin::path(self.source.name.as_str())).element(
                Level::HELP.message(annotate_snippets::normalize_untrusted_str(&self.remedy)),
            ),
        };
        // The renderer leaves spaces at the end of its margin lines.
        let rendered = renderer.render(&[group]);
        rendered.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    /// Returns the location as `weir.toml:12:5`, or the file's name alone.
    pub fn location(&self) -> String {
        match self.position() {
            Some((line, column)) => format!("{}:{line}:{column}", self.file()),
            None => self.file().to_owned(),
        }
    }

    /// Returns the file's name.
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// Returns line and column, both from 1; `None` for a problem of the whole file.
    pub fn position(&self) -> Option<(usize, usize)> {
        let before = self.source.text.get(..self.span.as_ref()?.start)?;
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
        Some((line, column))
    }

    fn to_line(&self) -> String {
        match self.key.as_str() {
            "" => self.what.clone(),
            key => format!("{key}: {}", self.what),
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl fmt::Debug for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.location(), self.to_line(), self.remedy)
    }
}

// === Source ===

/// Byte range in a text.
pub(crate) type Span = Range<usize>;

/// Source text for rendered problems. It never contains a secret: see [`RedactedSource::redacted`].
#[derive(PartialEq)]
pub(crate) struct RedactedSource {
    name: String,
    text: String,
}

impl RedactedSource {
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Makes a source with the bytes of every secret replaced, so that all spans stay valid.
    pub(crate) fn redacted(name: String, text: &str, secrets: &[Span]) -> Arc<Self> {
        let mut bytes = text.as_bytes().to_vec();
        for secret in secrets {
            redact(&mut bytes, secret.clone());
        }
        for secret in secrets_of_urls(text) {
            redact(&mut bytes, secret);
        }
        Arc::new(Self { name, text: into_text(bytes) })
    }

    /// Makes a source of invalid TOML, in which secrets cannot be located reliably: only table
    /// headers and lines that begin with a harmless key are kept, and of other known keys the text
    /// before `=`.
    pub(crate) fn redacted_invalid_toml(name: String, text: &str) -> Arc<Self> {
        let mut bytes = text.as_bytes().to_vec();
        let mut start = 0;
        // In a table like `[upstreams.a.headers]` each key is the name of a secret.
        let mut is_secret_table = false;
        for line in text.split_inclusive('\n') {
            if line.trim_start().starts_with('[') {
                is_secret_table = words(line).skip(1).any(is_like_a_secret);
            }
            if is_secret_table && !line.trim_start().starts_with('[') || !is_harmless(line) {
                let from = line.find('=').filter(|_| begins_with_a_key(line));
                redact(&mut bytes, start + from.map_or(0, |equals| equals + 1)..start + line.len());
            } else if let Some(at) = line.find('?').filter(|_| line.contains("://")) {
                // Where the URL ends is not known.
                redact(&mut bytes, start + at + 1..start + line.len());
            }
            start += line.len();
        }
        Arc::new(Self { name, text: into_text(bytes) })
    }
}

fn is_harmless(line: &str) -> bool {
    if line.trim_start().starts_with('[') {
        return !line.contains(['=', '"', '\'']);
    }
    let mut words = words(line);
    let (key, value) = line.split_once('=').map_or(("", ""), |(key, value)| (key.trim(), value));
    let starts_harmless = words.next().is_none_or(|first| {
        // A string of a list may be the name of a key.
        let begins_line = line.trim_start().starts_with(first);
        let is_command_line = first == "command" && value.trim().contains(char::is_whitespace);
        begins_line && HARMLESS_KEYS.contains(&first) && !is_command_line
            || first == key && HARMLESS_WORDS.contains(&first)
    });
    let is_secret = |word: &str| SECRET_WORDS.iter().any(|secret| word.starts_with(secret));
    let continues_harmless = !words.any(|word| is_secret(word) || word == "args");
    let holds_secret = line.contains("://") && line.contains('@') || has_secret_segment(value);
    starts_harmless && continues_harmless && !holds_secret
}

/// True if a line begins with a known key, so that it is not the continuation of a text.
fn begins_with_a_key(line: &str) -> bool {
    words(line).next().is_some_and(|first| {
        HARMLESS_KEYS.contains(&first)
            || SECRET_WORDS.contains(&first)
            || OTHER_KEYS.contains(&first)
    })
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let between = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    line.split(between).skip_while(|word| word.is_empty())
}

fn redact(bytes: &mut [u8], secret: Span) {
    for byte in bytes.get_mut(secret).unwrap_or_default() {
        if !byte.is_ascii_whitespace() {
            *byte = b'*';
        }
    }
}

/// Converts redacted bytes to a text. Spans are at character boundaries, so the bytes stay UTF-8.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

// === ValueError ===

/// Error of a parser about a value. The reader adds the key and the location.
pub(crate) struct ValueError {
    pub(crate) what: Cow<'static, str>,
    pub(crate) remedy: Cow<'static, str>,
    /// Span, if it is not that of the whole value.
    pub(crate) at: Option<Span>,
    /// Short remedy, if a value is missing that comes from outside: a variable, a file or a
    /// command's output.
    pub(crate) missing: Option<Cow<'static, str>>,
}

impl ValueError {
    pub(crate) fn new(
        what: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { what: what.into(), remedy: remedy.into(), at: None, missing: None }
    }

    /// Marks the error as one about a value that is missing, with the remedy in a few words. Such a
    /// value of an upstream stops that upstream, and not Weir.
    pub(crate) fn missing(self, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { missing: Some(remedy.into()), ..self }
    }

    /// True if its texts are constants, which cannot contain a value.
    pub(crate) fn is_static(&self) -> bool {
        matches!((&self.what, &self.remedy), (Cow::Borrowed(_), Cow::Borrowed(_)))
    }

    pub(crate) fn at(self, span: Span) -> Self {
        Self { at: Some(span), ..self }
    }
}

/// Suggests the most similar known word, as "did you mean `listen`?".
pub(crate) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest(word, known).map(|meant| format!("did you mean `{meant}`?"))
}

/// Finds the most similar known word.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // One typing error in three characters is accepted; with more it is another word.
    let tolerance = (word.chars().count() / 3).max(1);
    let (distance, meant) = known
        .into_iter()
        .map(|k| (strsim::osa_distance(word, k), k))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= tolerance).then_some(meant)
}

/// Maximum number of rendered problems.
const MAX_RENDERED: usize = 50;

/// Known keys whose values may contain secrets.
const OTHER_KEYS: [&str; 4] = ["args", "pass_env", "key_sha256", "rename"];
