//! What goes in and comes out: arguments of prompts, the make of results, text that nobody sees, and what must not
//! be passed on.
//!
//! A [`Guard`] holds the [`Rules`] of each upstream. [`Guard::admit`] judges a request before its upstream is asked;
//! [`Guard::watch`] gives a [`Watch`] where the reply has to be looked at, and nothing where it has not: then its
//! bytes pass unread, as they arrive. [`Guard::publish`] looks at definitions before anybody can list them.
//!
//! Promises: what is not rewritten keeps every byte; looking again at what was let through changes nothing more; what is
//! logged says no word of an upstream's or a client's but an item's name, quoted, and is logged at a bounded rate.
//!
//! Knows nothing of: the catalog, policy, protocol eras, codes, and who asks.

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

use crate::json::{self, Malformed, Object};
use crate::mcp::call::{Body, Broken, Method, Outcome, Reply, Uncollected};
use crate::mcp::definition::arguments::Declared;
use crate::mcp::definition::item::Item;
use crate::mcp::input_request::REQUEST_STATE;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::memory_budget::{Allowance, Growing, NoRoom};

pub use arguments::BadArguments;
pub use redact::{BadPattern, Pattern};
pub use stats::Counts;
use stats::Tally;
use streaming::{Abridged, WINDOW_BYTES};

/// How an upstream's traffic is guarded.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// How the arguments of prompts are checked.
    pub arguments: ArgumentCheck,
    /// The longest argument of a prompt, in bytes.
    pub max_argument: usize,
    /// What becomes of a malformed result.
    pub output: Output,
    /// What becomes of text that nobody sees.
    pub hidden_text: HiddenText,
    /// Whose results `output` and `hidden_text` are about. Definitions of all kinds are looked at.
    pub results: Vec<Kind>,
    /// What is not passed on: in definitions, instructions, results of every kind and errors.
    pub redact: Vec<Pattern>,
}

/// How the arguments of prompts are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentCheck {
    /// Not at all.
    Off,
    /// They are strings within their size, and no required one is missing.
    Required,
    /// And none is unknown.
    Declared,
}

/// What becomes of a malformed result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nobody looks.
    Off,
    /// It passes, and the operator is told.
    Flag,
    /// It is refused.
    Refuse,
}

/// What becomes of text that nobody sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenText {
    /// Nobody looks.
    Pass,
    /// It passes, and the operator is told.
    Flag,
    /// Each such character is written as `<U+202E>`.
    Escape,
    /// It is taken out.
    Strip,
    /// A result is refused, a definition is left out.
    Refuse,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            arguments: ArgumentCheck::Required,
            max_argument: 64 * 1024,
            output: Output::Flag,
            hidden_text: HiddenText::Flag,
            results: vec![Kind::Prompt],
            redact: Vec::new(),
        }
    }
}

/// What was found in one reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What is wrong with its make, in Weir's own words.
    pub malformed: Option<&'static str>,
    /// The first character that nobody sees.
    pub hidden: Option<char>,
    /// In how many strings something was redacted.
    pub redacted: usize,
}

impl Findings {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How many things there are to tell.
    pub fn count(&self) -> usize {
        usize::from(self.malformed.is_some()) + usize::from(self.hidden.is_some()) + self.redacted
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden =
            self.hidden.map(|letter| format!("hidden text, {}", invisible_text::shown(letter)));
        let redacted = (self.redacted > 0).then(|| format!("{} strings redacted", self.redacted));
        let all = [self.malformed.map(str::to_owned), hidden, redacted];
        f.write_str(&all.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// Why a reply is not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// The rules refuse it.
    Refused(Findings),
    /// It is not there as a whole.
    Uncollected(Uncollected),
}

/// The rules of all upstreams, and what has been found.
#[derive(Default)]
pub struct Guard {
    posts: HashMap<UpstreamName, Arc<Post>>,
}

/// What is done for one upstream.
struct Post {
    upstream: UpstreamName,
    rules: Rules,
    tally: Arc<Tally>,
}

impl Guard {
    /// A guard with the rules of each upstream; one that is not named is not guarded.
    pub fn new(rules: impl IntoIterator<Item = (UpstreamName, Rules)>) -> Self {
        Self::default().then(rules)
    }

    /// A guard with other rules, which goes on with what this one has counted.
    pub fn then(&self, rules: impl IntoIterator<Item = (UpstreamName, Rules)>) -> Self {
        let post = |(upstream, rules): (UpstreamName, Rules)| {
            let tally = self.posts.get(&upstream).map(|post| Arc::clone(&post.tally));
            let tally = tally.unwrap_or_default();
            (upstream.clone(), Arc::new(Post { upstream, rules, tally }))
        };
        Self { posts: rules.into_iter().map(post).collect() }
    }

    /// Judges a request by the item's upstream before that is asked. `declared` is what a prompt says of its arguments.
    pub fn admit(
        &self,
        upstream: &UpstreamName,
        method: Method,
        declared: Option<&Declared>,
        params: &Object,
    ) -> Result<(), BadArguments> {
        match self.posts.get(upstream) {
            Some(post) if method == Method::GetPrompt => {
                let judged = arguments::check(&post.rules, declared, params);
                judged.inspect_err(|_| post.tally.count(|counts| counts.arguments += 1))
            }
            _ => Ok(()),
        }
    }

    /// Who looks at the reply to a request about the item that clients know as `key`; nobody if nothing is to be
    /// looked for.
    pub fn watch(
        &self,
        upstream: &UpstreamName,
        method: Method,
        kind: Kind,
        key: &str,
    ) -> Option<Watch> {
        let post = self.posts.get(upstream)?;
        let kind = if kind == Kind::Template { Kind::Resource } else { kind };
        let rules = &post.rules;
        let (mut output, mut hidden_text) = (rules.output, rules.hidden_text);
        if !rules.results.contains(&kind) {
            (output, hidden_text) = (Output::Off, HiddenText::Pass);
        }
        let is_idle = output == Output::Off
            && hidden_text == HiddenText::Pass
            && rules.redact.is_empty()
            // A completion is always read: it is small, and clients refuse one that is too long.
            && method != Method::Complete;
        let watch = || {
            let post = Arc::clone(post);
            Watch { post, method, item: key.into(), output, hidden_text }
        };
        (!is_idle).then(watch)
    }

    /// Looks at what an upstream lists of a kind, before anybody can list it: some items are rewritten, others get a
    /// flaw.
    pub fn publish(&self, upstream: &UpstreamName, kind: Kind, items: &mut [Item]) {
        if let Some(post) = self.posts.get(upstream) {
            post.publish(kind, items);
        }
    }

    /// Looks at what an upstream tells models about its use.
    pub fn introduce(&self, upstream: &UpstreamName, text: Option<Arc<str>>) -> Option<Arc<str>> {
        match (self.posts.get(upstream), text) {
            (Some(post), Some(text)) => post.introduce(text),
            (_, text) => text,
        }
    }

    /// What has been found at each upstream since the start, in no order.
    pub fn counts(&self) -> impl Iterator<Item = (&UpstreamName, Counts)> {
        self.posts.values().map(|post| (&post.upstream, post.tally.counts()))
    }
}

// === Replies ===

/// Somebody who looks at one reply.
#[derive(Clone)]
pub struct Watch {
    post: Arc<Post>,
    method: Method,
    /// What clients call the item.
    item: Box<str>,
    output: Output,
    hidden_text: HiddenText,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("item", &self.item).finish_non_exhaustive()
    }
}

impl Watch {
    /// Looks at the reply, and tells what was found in what is passed on: before it returns or, of a result that passes as
    /// it arrives, at the end of that. Where something may have to be rewritten or refused a result has to be whole for it.
    pub async fn look(
        self,
        reply: Reply,
        allowed: &Allowance,
        tell: impl FnOnce(Findings) + Send + 'static,
    ) -> Result<Reply, Unfit> {
        let Reply { era, scope, outcome } = reply;
        let body = match outcome {
            Outcome::Result(Body::Arriving(pieces)) if self.only_tells() => {
                let pieces = self.read_along(pieces, Growing::new(&allowed.budget), tell);
                return Ok(Reply { era, scope, outcome: Outcome::Result(Body::Arriving(pieces)) });
            }
            Outcome::Result(body) => body,
            Outcome::Error(error) => {
                let (new, findings) = self.judge(&error, None)?;
                tell(findings);
                return Ok(Reply { era, scope, outcome: Outcome::Error(new.unwrap_or(error)) });
            }
        };
        let (text, read) = match body {
            Body::Read(object) => (object.to_bytes(), Ok(object)),
            body => {
                let text = body.collect(allowed).await.map_err(Unfit::Uncollected)?;
                (text.clone(), Object::parse_within(text, usize::MAX))
            }
        };
        let (new, findings) = self.judge(&text, Some(read.as_ref()))?;
        let body = match (new, read) {
            (Some(new), _) => Body::unread(new),
            (None, Ok(object)) => Body::Read(object),
            (None, Err(_)) => Body::Whole(text),
        };
        tell(findings);
        Ok(Reply { era, scope, outcome: Outcome::Result(body) })
    }

    /// Whether nothing of a reply is rewritten or refused, whatever is found in it.
    fn only_tells(&self) -> bool {
        self.output != Output::Refuse
            && self.method != Method::Complete
            && matches!(self.hidden_text, HiddenText::Pass | HiddenText::Flag)
            && self.post.rules.redact.is_empty()
    }

    /// The pieces of a result, with somebody who reads along and judges it at its end. If there is no room for what that
    /// takes, the result ends there.
    fn read_along(
        self,
        pieces: BoxStream<'static, Result<Bytes, Broken>>,
        growing: Growing,
        tell: impl FnOnce(Findings) + Send + 'static,
    ) -> BoxStream<'static, Result<Bytes, Broken>> {
        let abridged = Abridged::new(WINDOW_BYTES, self.hidden_text);
        let reader = Some((self, abridged, growing, tell));
        stream::unfold((pieces, reader), |(mut pieces, reader)| async move {
            let (watch, mut abridged, mut growing, tell) = reader?;
            let piece = match pieces.next().await {
                Some(Ok(piece)) => piece,
                Some(Err(broken)) => return Some((Err(broken), (pieces, None))),
                None => {
                    let text = Bytes::from(abridged.finish());
                    let read = Object::parse_within(text.clone(), usize::MAX);
                    // Nothing is refused here.
                    watch.judge(&text, Some(read.as_ref())).map(|(_, found)| tell(found)).ok();
                    return None;
                }
            };
            abridged.feed(&piece);
            match growing.reach(abridged.len()) {
                Ok(()) => Some((Ok(piece), (pieces, Some((watch, abridged, growing, tell))))),
                Err(NoRoom) => {
                    let broken = Broken("there is no room to look at it".into());
                    Some((Err(broken), (pieces, None)))
                }
            }
        })
        .boxed()
    }

    /// Looks at a whole result, and how it reads, or at an error; returns what is passed on in its place, if it does not
    /// stay.
    fn judge(
        &self,
        text: &[u8],
        result: Option<Result<&Object, &Malformed>>,
    ) -> Result<(Option<Bytes>, Findings), Unfit> {
        let mut findings = Findings::default();
        if let Some(result) = result.filter(|_| self.output != Output::Off) {
            let judged = result.map_err(|_| "it is no JSON object");
            findings.malformed = judged.and_then(|it| result_check::check(self.method, it)).err();
        }
        let mut new = self.rewrite(text, &mut findings);
        let mut is_unreadable = false;
        if let Some(Ok(result)) = result.filter(|_| self.method == Method::Complete) {
            match completion::conform(result, new.as_deref()) {
                Ok(shorter) => new = shorter.or(new),
                Err(malformed) => (findings.malformed, is_unreadable) = (Some(malformed), true),
            }
        }
        let refused = is_unreadable
            || (findings.malformed.is_some() && self.output == Output::Refuse)
            || (findings.hidden.is_some() && self.hidden_text == HiddenText::Refuse);
        if !findings.is_empty() {
            let (upstream, item) = (&self.post.upstream, &*self.item);
            self.post.tally.tell(upstream, self.method, item, &findings, refused);
        }
        match refused {
            true => Err(Unfit::Refused(findings)),
            false => Ok((new.map(Bytes::from), findings)),
        }
    }

    /// The text with its strings rewritten; `None` if all of them stay.
    fn rewrite(&self, text: &[u8], findings: &mut Findings) -> Option<Vec<u8>> {
        let patterns = &self.post.rules.redact;
        let looks_for_hidden =
            self.hidden_text != HiddenText::Pass && invisible_text::may_hide(text);
        if patterns.is_empty() && !looks_for_hidden {
            return None;
        }
        // One that still arrives was not read before: what is no text is read as far as it is one.
        let text = String::from_utf8_lossy(text);
        json::rewrite_strings(&text, |string| {
            // Its upstream wants it back as it is, and nobody else reads it.
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

/// What became of a string.
struct Clean {
    /// What is to stand in its place, if it does not stay.
    text: Option<String>,
    redacted: bool,
}

/// Rewrites a string until nothing is left to rewrite; `None` if there is nothing to say about it.
fn clean(
    text: &str,
    setting: HiddenText,
    patterns: &[Pattern],
    is_name: bool,
    found: &mut Option<char>,
) -> Option<Clean> {
    let mut clean = Clean { text: None, redacted: false };
    // Mostly there is one round: what is replaced may be what a pattern, or a joiner, stood beside.
    for _ in 0..MAX_ROUNDS {
        let hidden = invisible_text::look(clean.text.as_deref().unwrap_or(text), setting, is_name);
        let instead = hidden.and_then(|hidden| {
            found.get_or_insert(hidden.first);
            hidden.instead
        });
        let is_seen = instead.is_some();
        clean.text = instead.or(clean.text.take());
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
    // Patterns that never come to an end: nothing of the string is left.
    let mark = patterns.first().map(Pattern::mark).unwrap_or_default();
    Some(Clean { text: Some(mark.to_owned()), redacted: true })
}

/// How often a string is gone through.
const MAX_ROUNDS: usize = 16;
