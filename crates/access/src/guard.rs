//! Content checks: arguments of prompts, form of results, invisible text, and redaction.
//!
//! A [`Guard`] has the [`GuardRules`] of each upstream. [`Guard::check_request`] checks a request
//! before it goes to its upstream. [`Guard::inspector`] returns a [`ResponseInspector`] if the
//! response has to be checked; otherwise its bytes pass unread, as they arrive.
//! [`Guard::inspect_definitions`] checks definitions before they are published.
//!
//! Invariants: text that is not rewritten keeps every byte. Checking accepted text again changes
//! nothing. Log lines quote no text of an upstream or client except an item's name, and their rate
//! is bounded.

mod arguments;
mod completion;
mod definitions;
mod invisible_text;
mod redact;
mod result_check;
mod stats;
mod streaming;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use strum::{IntoStaticStr, VariantArray};

use weir_base::json::{self, Object, ParseError};
use weir_base::memory::memory_budget::{BudgetExhausted, BufferLimit, GrowingReservation};
use weir_base::text::invisible_chars::visible_form;
use weir_mcp::call::{
    CollectError, Method, Payload, PayloadBroken, ResponseOutcome, UpstreamResponse,
};
use weir_mcp::definition::arguments::PromptArguments;
use weir_mcp::definition::item::Item;
use weir_mcp::input_request::REQUEST_STATE;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

pub(crate) use arguments::BadArguments;
pub use redact::{BadPattern, RedactionPattern};
pub use stats::FindingCounts;
use stats::FindingStats;
use streaming::{StreamingInspector, WINDOW_BYTES};

/// Content rules of one upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardRules {
    /// Extent to which the arguments of prompts are checked.
    pub arguments: ArgumentCheck,
    /// Longest argument of a prompt, in bytes.
    pub max_argument: usize,
    /// Treatment of malformed results.
    pub output: ResultCheck,
    /// Treatment of invisible text.
    pub hidden_text: HiddenText,
    /// Kinds of items whose results `output` and `hidden_text` apply to. Definitions of all kinds
    /// are checked.
    pub results: Vec<Kind>,
    /// Patterns of text that is redacted: in definitions, instructions, results of every kind and
    /// errors.
    pub redact: Vec<RedactionPattern>,
}

/// Extent to which the arguments of prompts are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum ArgumentCheck {
    /// Not at all.
    Off,
    /// Arguments must be strings within the size limit, and no required one may be missing.
    Required,
    /// In addition, unknown arguments are refused.
    Declared,
}

/// Treatment of malformed results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum ResultCheck {
    /// No check.
    Off,
    /// The result is forwarded, and logged.
    Flag,
    /// The result is refused.
    Refuse,
}

/// Treatment of invisible text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum HiddenText {
    /// No check.
    Pass,
    /// The text is forwarded, and logged.
    Flag,
    /// Each such character is replaced by a form such as `<U+202E>`.
    Escape,
    /// Each such character is removed.
    Strip,
    /// A result is refused, a definition is not published.
    Refuse,
}

impl Default for GuardRules {
    fn default() -> Self {
        Self {
            arguments: ArgumentCheck::Required,
            max_argument: 64 * 1024,
            output: ResultCheck::Flag,
            hidden_text: HiddenText::Flag,
            results: vec![Kind::Prompt],
            redact: Vec::new(),
        }
    }
}

/// Findings in one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Violation of the result's form, in Weir's own words.
    pub malformed: Option<&'static str>,
    /// First invisible character.
    pub hidden: Option<char>,
    /// Number of strings with redacted text.
    pub redacted: usize,
}

impl Findings {
    /// Returns whether there are no findings.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the number of findings.
    pub fn count(&self) -> usize {
        usize::from(self.malformed.is_some()) + usize::from(self.hidden.is_some()) + self.redacted
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = self.hidden.map(|letter| format!("hidden text, {}", visible_form(letter)));
        let redacted = (self.redacted > 0).then(|| format!("{} strings redacted", self.redacted));
        let all = [self.malformed.map(str::to_owned), hidden, redacted];
        f.write_str(&all.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// Reason why a response is not forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InspectionError {
    /// The rules refuse the response.
    Refused(Findings),
    /// The response could not be collected.
    Uncollected(CollectError),
}

/// Content rules of all upstreams, and statistics of the findings.
#[derive(Default)]
pub struct Guard {
    upstreams: HashMap<UpstreamName, Arc<UpstreamGuard>>,
}

/// Rules and statistics of one upstream.
struct UpstreamGuard {
    upstream: UpstreamName,
    rules: GuardRules,
    stats: Arc<FindingStats>,
}

impl Guard {
    /// Creates a guard with the rules of each upstream; an upstream without rules is not checked.
    #[cfg(test)]
    fn new(rules: impl IntoIterator<Item = (UpstreamName, GuardRules)>) -> Self {
        Self::default().with_rules(rules)
    }

    /// Creates a guard with other rules that continues the statistics of this one.
    pub fn with_rules(&self, rules: impl IntoIterator<Item = (UpstreamName, GuardRules)>) -> Self {
        let upstream_guard = |(upstream, rules): (UpstreamName, GuardRules)| {
            let stats = self
                .upstreams
                .get(&upstream)
                .map(|upstream_guard| Arc::clone(&upstream_guard.stats));
            let stats = stats.unwrap_or_default();
            (upstream.clone(), Arc::new(UpstreamGuard { upstream, rules, stats }))
        };
        Self { upstreams: rules.into_iter().map(upstream_guard).collect() }
    }

    /// Checks a request before it goes to the item's upstream. `declared` are the arguments that a
    /// prompt declares.
    pub fn check_request(
        &self,
        upstream: &UpstreamName,
        method: Method,
        declared: Option<&PromptArguments>,
        params: &Object,
    ) -> Result<(), BadArguments> {
        match self.upstreams.get(upstream) {
            Some(upstream_guard) if method == Method::GetPrompt => {
                let judged = arguments::check(&upstream_guard.rules, declared, params);
                judged.inspect_err(|_| upstream_guard.stats.count(|counts| counts.arguments += 1))
            }
            _ => Ok(()),
        }
    }

    /// Returns an inspector of the response to a request about the item with the public name `key`,
    /// or `None` if no check is configured.
    pub fn inspector(
        &self,
        upstream: &UpstreamName,
        method: Method,
        kind: Kind,
        key: &str,
    ) -> Option<ResponseInspector> {
        let upstream_guard = self.upstreams.get(upstream)?;
        let kind = if kind == Kind::Template { Kind::Resource } else { kind };
        let rules = &upstream_guard.rules;
        let (mut output, mut hidden_text) = (rules.output, rules.hidden_text);
        if !rules.results.contains(&kind) {
            (output, hidden_text) = (ResultCheck::Off, HiddenText::Pass);
        }
        let is_idle = output == ResultCheck::Off
            && hidden_text == HiddenText::Pass
            && rules.redact.is_empty()
            // A completion is always checked: it is small, and clients reject one that is too long.
            && method != Method::Complete;
        let inspector = || {
            let upstream_guard = Arc::clone(upstream_guard);
            ResponseInspector { upstream_guard, method, item: key.into(), output, hidden_text }
        };
        (!is_idle).then(inspector)
    }

    /// Checks listed definitions of a kind before they are published: some items are rewritten,
    /// others are marked with a defect.
    pub fn inspect_definitions(&self, upstream: &UpstreamName, kind: Kind, items: &mut [Item]) {
        if let Some(upstream_guard) = self.upstreams.get(upstream) {
            definitions::inspect_definitions(upstream_guard, kind, items);
        }
    }

    /// Checks the instructions of an upstream.
    pub fn inspect_instructions(
        &self,
        upstream: &UpstreamName,
        text: Option<Arc<str>>,
    ) -> Option<Arc<str>> {
        match (self.upstreams.get(upstream), text) {
            (Some(upstream_guard), Some(text)) => {
                definitions::inspect_instructions(upstream_guard, text)
            }
            (_, text) => text,
        }
    }

    /// Returns the statistics of each upstream since the start, in no order.
    pub fn counts(&self) -> impl Iterator<Item = (&UpstreamName, FindingCounts)> {
        self.upstreams
            .values()
            .map(|upstream_guard| (&upstream_guard.upstream, upstream_guard.stats.counts()))
    }
}

// === ResponseInspector ===

/// Inspector of one response.
#[derive(Clone)]
pub struct ResponseInspector {
    upstream_guard: Arc<UpstreamGuard>,
    method: Method,
    /// Public name of the item.
    item: Box<str>,
    output: ResultCheck,
    hidden_text: HiddenText,
}

impl fmt::Debug for ResponseInspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseInspector").field("item", &self.item).finish_non_exhaustive()
    }
}

impl ResponseInspector {
    /// Checks the response and reports the findings in what is forwarded: before returning, or at
    /// the end of a result that is forwarded as it arrives. A result that may have to be rewritten
    /// or refused is collected first.
    pub async fn inspect(
        self,
        response: UpstreamResponse,
        allowed: &BufferLimit,
        report: impl FnOnce(Findings) + Send + 'static,
    ) -> Result<UpstreamResponse, InspectionError> {
        let UpstreamResponse { era, scope, outcome } = response;
        let body = match outcome {
            ResponseOutcome::Result(Payload::Streaming(pieces)) if self.only_reports() => {
                let pieces =
                    self.inspect_stream(pieces, GrowingReservation::new(&allowed.budget), report);
                return Ok(UpstreamResponse {
                    era,
                    scope,
                    outcome: ResponseOutcome::Result(Payload::Streaming(pieces)),
                });
            }
            ResponseOutcome::Result(body) => body,
            ResponseOutcome::Error(error) => {
                let (new, findings) = self.evaluate(&error, None)?;
                report(findings);
                return Ok(UpstreamResponse {
                    era,
                    scope,
                    outcome: ResponseOutcome::Error(new.unwrap_or(error)),
                });
            }
        };
        let (text, read) = match body {
            Payload::Parsed(object) => (object.to_bytes(), Ok(object)),
            body => {
                let text = body.collect(allowed).await.map_err(InspectionError::Uncollected)?;
                (text.clone(), Object::parse_within(text, usize::MAX))
            }
        };
        let (new, findings) = self.evaluate(&text, Some(read.as_ref()))?;
        let body = match (new, read) {
            (Some(new), _) => Payload::from_text(new),
            (None, Ok(object)) => Payload::Parsed(object),
            (None, Err(_)) => Payload::Complete(text),
        };
        report(findings);
        Ok(UpstreamResponse { era, scope, outcome: ResponseOutcome::Result(body) })
    }

    /// Returns whether no finding leads to rewriting or refusing the response.
    fn only_reports(&self) -> bool {
        self.output != ResultCheck::Refuse
            && self.method != Method::Complete
            && matches!(self.hidden_text, HiddenText::Pass | HiddenText::Flag)
            && self.upstream_guard.rules.redact.is_empty()
    }

    /// Returns the chunks of a result, and inspects a copy, which is evaluated at the end. If the
    /// memory budget does not allow the copy, the result is cut off with an error.
    fn inspect_stream(
        self,
        pieces: BoxStream<'static, Result<Bytes, PayloadBroken>>,
        growing: GrowingReservation,
        report: impl FnOnce(Findings) + Send + 'static,
    ) -> BoxStream<'static, Result<Bytes, PayloadBroken>> {
        let streaming = StreamingInspector::new(WINDOW_BYTES, self.hidden_text);
        let reader = Some((self, streaming, growing, report));
        stream::unfold((pieces, reader), |(mut pieces, reader)| async move {
            let (inspector, mut streaming, mut growing, report) = reader?;
            let piece = match pieces.next().await {
                Some(Ok(piece)) => piece,
                Some(Err(broken)) => return Some((Err(broken), (pieces, None))),
                None => {
                    let text = Bytes::from(streaming.finish());
                    let read = Object::parse_within(text.clone(), usize::MAX);
                    // In this mode the evaluation never refuses a result.
                    inspector
                        .evaluate(&text, Some(read.as_ref()))
                        .map(|(_, found)| report(found))
                        .ok();
                    return None;
                }
            };
            streaming.feed(&piece);
            match growing.grow_to(streaming.len()) {
                Ok(()) => {
                    Some((Ok(piece), (pieces, Some((inspector, streaming, growing, report)))))
                }
                Err(BudgetExhausted) => {
                    let broken = PayloadBroken(
                        "memory budget exhausted while the response was inspected".into(),
                    );
                    Some((Err(broken), (pieces, None)))
                }
            }
        })
        .boxed()
    }

    /// Evaluates a complete result with its parsed form, or an error; returns the replacement, if
    /// there is one.
    fn evaluate(
        &self,
        text: &[u8],
        result: Option<Result<&Object, &ParseError>>,
    ) -> Result<(Option<Bytes>, Findings), InspectionError> {
        let mut findings = Findings::default();
        if let Some(result) = result.filter(|_| self.output != ResultCheck::Off) {
            let judged = result.map_err(|_| "it is not a JSON object");
            findings.malformed = judged.and_then(|it| result_check::check(self.method, it)).err();
        }
        let is_plain = matches!(result, Some(Ok(object)) if object.is_plain());
        let mut new = self.rewrite(text, is_plain, &mut findings);
        let mut is_unreadable = false;
        if let Some(Ok(result)) = result.filter(|_| self.method == Method::Complete) {
            match completion::conform(result, new.as_deref()) {
                Ok(shorter) => new = shorter.or(new),
                Err(malformed) => (findings.malformed, is_unreadable) = (Some(malformed), true),
            }
        }
        let refused = is_unreadable
            || (findings.malformed.is_some() && self.output == ResultCheck::Refuse)
            || (findings.hidden.is_some() && self.hidden_text == HiddenText::Refuse);
        if !findings.is_empty() {
            let (upstream, item) = (&self.upstream_guard.upstream, &*self.item);
            self.upstream_guard.stats.report(upstream, self.method, item, &findings, refused);
        }
        match refused {
            true => Err(InspectionError::Refused(findings)),
            false => Ok((new.map(Bytes::from), findings)),
        }
    }

    /// Returns the text with its strings rewritten; `None` if all of them stay unchanged.
    /// `is_plain` tells that nothing invisible was found when the text was parsed.
    fn rewrite(&self, text: &[u8], is_plain: bool, findings: &mut Findings) -> Option<Vec<u8>> {
        let patterns = &self.upstream_guard.rules.redact;
        let checks_hidden = self.hidden_text != HiddenText::Pass
            && !is_plain
            && invisible_text::may_contain_hidden(text);
        if patterns.is_empty() && !checks_hidden {
            return None;
        }
        // A streamed result was not validated before; invalid UTF-8 is replaced.
        let text = String::from_utf8_lossy(text);
        json::rewrite_strings(&text, |string| {
            // The upstream needs its state back unchanged, and clients do not interpret it.
            if string.member == REQUEST_STATE {
                return None;
            }
            let meant = string.text();
            let mut hidden = None;
            let clean = clean(&meant, self.hidden_text, patterns, string.is_name, &mut hidden)?;
            findings.hidden = findings.hidden.or(hidden);
            findings.redacted += usize::from(clean.redacted);
            clean.text
        })
    }
}

/// Result of cleaning a string.
struct CleanedText {
    /// Replacement of the string, if it changes.
    text: Option<String>,
    redacted: bool,
}

/// Rewrites a string until nothing is left to rewrite; `None` if there are no findings.
fn clean(
    text: &str,
    setting: HiddenText,
    patterns: &[RedactionPattern],
    is_name: bool,
    found: &mut Option<char>,
) -> Option<CleanedText> {
    let mut clean = CleanedText { text: None, redacted: false };
    // One round is usual. A replacement can change how its neighbours match a pattern or count as
    // joined, therefore the checks are repeated.
    for _ in 0..MAX_CLEAN_ROUNDS {
        let hidden =
            invisible_text::inspect(clean.text.as_deref().unwrap_or(text), setting, is_name);
        let replacement = hidden.and_then(|hidden| {
            found.get_or_insert(hidden.first);
            hidden.replacement
        });
        let is_seen = replacement.is_some();
        clean.text = replacement.or(clean.text.take());
        let redacted = redact::redact(clean.text.as_deref().unwrap_or(text), patterns);
        let is_redacted = redacted.is_some();
        clean.redacted |= is_redacted;
        clean.text = redacted.or(clean.text.take());
        if !is_seen && !is_redacted {
            return (found.is_some() || clean.text.is_some()).then_some(clean);
        }
        if patterns.is_empty() {
            return Some(clean);
        }
    }
    // The patterns match their own replacements without end: the whole string is redacted.
    let mark = patterns.first().map(RedactionPattern::mark).unwrap_or_default();
    Some(CleanedText { text: Some(mark.to_owned()), redacted: true })
}

/// Most rounds per string.
const MAX_CLEAN_ROUNDS: usize = 16;
