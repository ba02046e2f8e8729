//! What is wrong with a config file, drawn at its place.
//!
//! A [`Report`] holds every problem that was found, in the order of the file; each names the file, the
//! key and the remedy. A drawing shows the line it speaks of, so the text is blanked first wherever it
//! holds, or might hold, a secret.
//!
//! Knows nothing of: which keys exist and what they mean.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use annotate_snippets::renderer::Renderer;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Snippet};

/// Every problem that was found in one config file. Its `Display` is [`Report::draw`] without colors.
#[derive(Clone, PartialEq)]
pub struct Report {
    problems: Vec<Problem>,
}

impl Report {
    pub(crate) fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// Reports that the file cannot even be read.
    pub(crate) fn about_file(
        path: &Path,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let source = Source::blanked(path.display().to_string(), "", &[]);
        let (severity, what, remedy) = (Severity::Error, what.into(), remedy.into());
        Self::new(vec![Problem { severity, key: String::new(), what, remedy, span: None, source }])
    }

    /// Returns the problems in the order of the file; at least one of them is an error.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Draws every problem at its place; `styled` adds colors for a terminal.
    pub fn draw(&self, styled: bool) -> String {
        let drawn = self.problems.iter().take(MAX_DRAWN);
        let mut text = drawn.map(|p| p.draw(styled)).collect::<Vec<_>>().join("\n\n");
        if let Some(more) = self.problems.len().checked_sub(MAX_DRAWN).filter(|n| *n > 0) {
            text.push_str(&format!("\n\nand {more} more"));
        }
        text
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(false))
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Report {}

// === Problem ===

/// One thing that is wrong, and what to do about it. Its `Display` is [`Problem::draw`] without colors.
#[derive(Clone, PartialEq)]
pub struct Problem {
    /// Whether Weir can start all the same.
    pub severity: Severity,
    /// The key it is about, as `server.listen`; empty when it is about the whole file.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    pub(crate) span: Option<Span>,
    pub(crate) source: Arc<Source>,
}

/// A problem that Weir can start with; its severity is [`Severity::Warning`].
pub type Warning = Problem;

/// Whether Weir can start in spite of a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but probably does not say what its author meant.
    Warning,
}

impl Problem {
    /// Draws the line, a caret under the place, and the remedy; `styled` adds colors for a terminal.
    pub fn draw(&self, styled: bool) -> String {
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
        // The renderer leaves blanks at the end of its margin lines.
        let drawn = renderer.render(&[group]);
        drawn.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    /// Returns the place as `weir.toml:12:5`, or the file's name alone.
    pub fn place(&self) -> String {
        match self.position() {
            Some((line, column)) => format!("{}:{line}:{column}", self.file()),
            None => self.file().to_owned(),
        }
    }

    /// Returns the file's name.
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// Returns line and column, both from 1; none where it is about the whole file.
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

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(false))
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.place(), self.to_line(), self.remedy)
    }
}

// === Source ===

/// Bytes of the text that something stands at.
pub(crate) type Span = Range<usize>;

/// The text that problems are drawn on. It never holds a secret: see [`Source::blanked`].
#[derive(PartialEq)]
pub(crate) struct Source {
    name: String,
    text: String,
}

impl Source {
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Keeps the text with the bytes of every secret replaced, so that all places stay where they are.
    pub(crate) fn blanked(name: String, text: &str, secrets: &[Span]) -> Arc<Self> {
        let mut bytes = text.as_bytes().to_vec();
        for secret in secrets {
            blank(&mut bytes, secret.clone());
        }
        for user_info in user_infos(text) {
            blank(&mut bytes, user_info);
        }
        Arc::new(Self { name, text: into_text(bytes) })
    }

    /// Keeps a text that is not TOML, where nobody can tell for sure what is a secret: only headers of
    /// tables and lines that begin with a harmless key stay; of other known keys what precedes the first `=`.
    pub(crate) fn blanked_blindly(name: String, text: &str) -> Arc<Self> {
        let mut bytes = text.as_bytes().to_vec();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            if !is_harmless(line) {
                let from = line.find('=').filter(|_| begins_with_a_key(line));
                blank(&mut bytes, start + from.map_or(0, |equals| equals + 1)..start + line.len());
            }
            start += line.len();
        }
        Arc::new(Self { name, text: into_text(bytes) })
    }
}

/// The user information of each URL in a text (RFC 3986, 3.2.1): a value of any key may be a URL with a password.
fn user_infos(text: &str) -> impl Iterator<Item = Span> {
    text.match_indices("://").filter_map(|(at, separator)| {
        let start = at + separator.len();
        let rest = &text[start..];
        let ends_url = |c: char| c.is_whitespace() || matches!(c, '"' | '\'');
        let url = &rest[..rest.find(ends_url).unwrap_or(rest.len())];
        url.rfind('@').map(|length| start..start + length)
    })
}

fn is_harmless(line: &str) -> bool {
    if line.trim_start().starts_with('[') {
        return !line.contains(['=', '"', '\'']);
    }
    let mut words = words(line);
    let begins_well = words.next().is_none_or(|first| HARMLESS_KEYS.contains(&first));
    let goes_on_well =
        !words.any(|word| SECRET_WORDS.iter().any(|secret| word.starts_with(secret)));
    begins_well && goes_on_well && !(line.contains("://") && line.contains('@'))
}

/// Whether a line begins as one that is no continuation of a text does.
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

fn blank(bytes: &mut [u8], secret: Span) {
    for byte in bytes.get_mut(secret).unwrap_or_default() {
        if !byte.is_ascii_whitespace() {
            *byte = b'*';
        }
    }
}

/// Secrets begin and end at characters, so that the text stays UTF-8.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

// === Complaint ===

/// What a parser has against a value. The reader adds the key and the place.
pub(crate) struct Complaint {
    pub(crate) what: Cow<'static, str>,
    pub(crate) remedy: Cow<'static, str>,
    /// Where, if not at the whole value.
    pub(crate) at: Option<Span>,
}

impl Complaint {
    pub(crate) fn new(
        what: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { what: what.into(), remedy: remedy.into(), at: None }
    }

    /// Whether its words stand in Weir's own source, so that they cannot repeat a value.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!((&self.what, &self.remedy), (Cow::Borrowed(_), Cow::Borrowed(_)))
    }

    pub(crate) fn at(self, span: Span) -> Self {
        Self { at: Some(span), ..self }
    }
}

/// Says which known word was probably meant, as "did you mean `listen`?".
pub(crate) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest(word, known).map(|meant| format!("did you mean `{meant}`?"))
}

/// Finds the known word that was probably meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // One slip in three characters; more than that is another word.
    let tolerance = (word.chars().count() / 3).max(1);
    let (distance, meant) = known
        .into_iter()
        .map(|k| (strsim::osa_distance(word, k), k))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= tolerance).then_some(meant)
}

/// Whoever made fifty mistakes does not read the fifty-first.
const MAX_DRAWN: usize = 50;

/// Keys whose values never are secrets. One that is missing here costs a little of the drawing, no more.
const HARMLESS_KEYS: [&str; 27] = [
    "include",
    "listen",
    "path",
    "public_url",
    "allowed_hosts",
    "allowed_origins",
    "max_body",
    "max_connections",
    "versions",
    "page_size",
    "mode",
    "separator",
    "era",
    "timeouts",
    "retry",
    "limits",
    "prompts_dir",
    "enabled",
    "prefix",
    "prompts",
    "tools",
    "resources",
    "command",
    "cwd",
    "url",
    "role",
    "level",
];

/// Keys that hold secrets, or lead to them.
const SECRET_WORDS: [&str; 5] = ["env", "headers", "auth", "token", "password"];

/// Keys whose values may hold secrets, but whose names do not.
const OTHER_KEYS: [&str; 4] = ["args", "pass_env", "key_sha256", "rename"];
