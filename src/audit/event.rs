//! What becomes of one request, told once.
//!
//! A record has many holders: the door that has read the request, the guest in whose name it is asked, the task
//! that waits for its answer. Each adds what it learns. Whoever knows how the request ended says so; if nobody
//! does until the last holder has let go of it, it was cancelled.
//!
//! Promises: one line when it is over, and none of it in a log that is off; a second end is ignored.
//!
//! Knows nothing of: what ends mean on a wire.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::entry::{Line, Moment, SessionMark, Told, Who, Word};
use super::params::arguments;
use super::writer::{Entry, Place};
use super::{OnError, PATIENCE, Shared, Wire};
use crate::json::Object;
use crate::mcp::kind::Kind;
use crate::mcp::method_label::Operation;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::Revision;
use crate::mcp::trace_context::{TRACEPARENT, trace_id};
use crate::request_scope;

/// The record of one request. Cheap to clone; all clones are the same record.
#[derive(Clone, Default)]
pub struct Record(Option<Arc<Open>>);

/// What was decided about the item that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The client may use it.
    Allowed,
    /// It is there, and the client may not use it.
    Denied,
    /// Nobody lists it.
    Unknown,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With a result.
    Ok,
    /// With an error, of its upstream's or because of it.
    Error,
    /// Weir did not carry it out.
    Refused,
    /// Nobody waits for it any more.
    Cancelled,
}

/// How a request ended, and with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// How.
    pub outcome: Outcome,
    /// The code of the JSON-RPC error.
    pub code: Option<i64>,
    /// The status of the HTTP response.
    pub status: Option<u16>,
    /// How many bytes of answer there were, where somebody has counted.
    pub bytes_out: Option<u64>,
}

/// The request must be recorded, and cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request cannot be recorded")]
pub struct Unrecorded;

struct Open {
    audit: Arc<Shared>,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    /// Told with each line; kept behind the end, for records beside this one.
    who: Who,
    /// `None` once it is over.
    draft: Option<Draft>,
}

struct Draft {
    told: Box<Told>,
    /// Where its last line will go, if it must not be lost.
    place: Option<Place>,
    /// Whether somebody behind the door has taken it on.
    is_taken: bool,
    /// Whether it went to an upstream.
    is_sent: bool,
    /// Whether a rule stood in its way, and not its upstream.
    is_refused: bool,
    /// Whether its end may still become another one.
    is_held: bool,
}

impl Decision {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unknown => "unknown",
        }
    }
}

impl Outcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Record {
    /// The record of a log that is off.
    pub fn off() -> Self {
        Self::default()
    }

    pub(super) fn begin(audit: &Arc<Shared>, wire: Wire, from: Option<IpAddr>) -> Self {
        Self::of(
            audit,
            Who { wire, from, client: None, role: None, application: None, session: None },
        )
    }

    fn of(audit: &Arc<Shared>, who: Who) -> Self {
        let told = Box::new(Told::of(who.clone()));
        let draft = Some(Draft::of(told));
        let state = Mutex::new(State { who, draft });
        Self(Some(Arc::new(Open { audit: Arc::clone(audit), begun: Instant::now(), state })))
    }

    /// Whether anything will be written.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The record of another request of the same client, which begins now.
    pub fn another(&self) -> Self {
        self.0
            .as_ref()
            .map_or_else(Self::off, |open| Self::of(&open.audit, open.lock().who.clone()))
    }

    // === Who asks, and what ===

    /// Who asks, in which role, and with which application, if that is known.
    pub fn by(&self, client: &Arc<str>, role: &Arc<str>, application: Option<&Arc<str>>) {
        self.who(|who| {
            (who.client, who.role) = (Some(client.clone()), Some(role.clone()));
            who.application = application.cloned();
        });
    }

    /// In which session.
    pub fn in_session(&self, session: &SessionMark) {
        self.who(|who| who.session = Some(session.clone()));
    }

    /// The HTTP method, where no request of the protocol's could be read yet.
    pub fn over_http(&self, method: &str) {
        self.tell(|told| told.http = Some(verb(method)));
    }

    /// By which number the lines of the log tell of it.
    pub fn trailed(&self, number: u64) {
        self.tell(|told| told.trail = Some(number));
    }

    /// How large the message was.
    pub fn took(&self, bytes: usize) {
        self.tell(|told| told.bytes_in = Some(bytes as u64));
    }

    /// Which method is asked for.
    pub fn of_method(&self, method: &str) {
        self.tell(|told| {
            told.http = None;
            // Said at the door, and once more by the dialect.
            if told.method.as_deref() != Some(method) {
                told.method = Some(word(Operation::of(method).known(), method));
            }
        });
    }

    /// In which revision.
    pub fn speaks(&self, revision: Revision) {
        self.tell(|told| told.revision = Some(revision));
    }

    /// What is asked, and in which revision; whoever says so will say how it ended, too.
    pub fn asks(&self, revision: Revision, method: &str, params: &Object) {
        let Some(open) = &self.0 else { return };
        let arguments = arguments(open.audit.arguments, method, params);
        // Read only where it is worth it.
        let has_trace = params.get("_meta").is_some_and(|meta| meta.contains(TRACEPARENT));
        let meta = has_trace.then(|| params.get_object("_meta")).flatten();
        let trace = meta.and_then(|meta| trace_id(&meta.get_string(TRACEPARENT)?));
        if trace.is_some() {
            request_scope::leave(|known| known.trace.clone_from(&trace));
        }
        self.of_method(method);
        self.draft(|draft| {
            draft.is_taken = true;
            draft.told.revision = Some(revision);
            draft.told.arguments = arguments;
            draft.told.trace = trace.or(draft.told.trace.take());
        });
    }

    /// The trace that a `traceparent` header names, if it is well-formed (W3C Trace Context).
    pub fn traced(&self, traceparent: &str) {
        if self.is_on() {
            let trace = trace_id(traceparent);
            self.tell(|told| told.trace = trace);
        }
    }

    // === What is decided ===

    /// What kind of thing the request is about.
    pub fn about(&self, kind: Kind) {
        self.tell(|told| told.kind = Some(kind));
    }

    /// Under which public name or URI.
    pub fn named(&self, name: &str) {
        self.tell(|told| told.name_it(name));
    }

    /// What was decided about the item of this kind and public name, and by which rule; `item` is the upstream's
    /// own name or URI.
    pub fn decided(
        &self,
        (kind, name): (Kind, &str),
        decision: Decision,
        item: Option<(&UpstreamName, &str)>,
        rule: Option<&str>,
    ) {
        self.tell(|told| {
            told.kind = Some(kind);
            told.name_it(name);
            told.decision = Some(decision);
            told.upstream = item.map(|(upstream, _)| upstream.clone());
            told.item = item.map(|(_, own)| own.into());
            told.rule = rule.map(Into::into);
        });
    }

    /// It is refused by this rule, whatever the role says.
    pub fn refused_by(&self, rule: &str) {
        self.draft(|draft| {
            draft.told.rule = Some(rule.into());
            draft.is_refused = true;
        });
    }

    /// So many things were found in an answer that passes.
    pub fn flagged(&self, findings: usize) {
        self.tell(|told| told.flags += findings);
    }

    /// Makes sure that there will be room for the record, where it is a must. Before anything is done for
    /// the request.
    pub async fn reserve(&self) -> Result<(), Unrecorded> {
        let Some(open) = self.must() else { return Ok(()) };
        if open.audit.is_failing() {
            return Err(Unrecorded);
        }
        let reserved = timeout(PATIENCE, open.audit.queue.clone().reserve_owned()).await;
        let place = reserved.map_err(|_| Unrecorded)?.map_err(|_| Unrecorded)?;
        self.draft(|draft| draft.place = Some(place));
        Ok(())
    }

    /// The same without waiting.
    pub fn reserve_at_once(&self) -> Result<(), Unrecorded> {
        let Some(open) = self.must() else { return Ok(()) };
        if open.audit.is_failing() {
            return Err(Unrecorded);
        }
        let place = open.audit.queue.clone().try_reserve_owned().map_err(|_| Unrecorded)?;
        self.draft(|draft| draft.place = Some(place));
        Ok(())
    }

    /// The request is about to go to an upstream. Where a record is a must, waits until a line that says so is in
    /// the file.
    pub async fn admit(&self) -> Result<(), Unrecorded> {
        self.draft(|draft| draft.is_sent = true);
        let admitted = self.write_admitted().await;
        if admitted.is_err() {
            self.draft(|draft| draft.is_sent = false);
        }
        admitted
    }

    async fn write_admitted(&self) -> Result<(), Unrecorded> {
        let Some(open) = self.must() else { return Ok(()) };
        if open.audit.is_failing() {
            return Err(Unrecorded);
        }
        let Some(line) = open.line(Moment::Admitted) else { return Ok(()) };
        let (written, is_written) = oneshot::channel();
        let entry = Entry { line, at: SystemTime::now(), written: Some(written) };
        let sent = async {
            open.audit.queue.send(entry).await.map_err(|_| Unrecorded)?;
            is_written.await.map_err(|_| Unrecorded)
        };
        timeout(PATIENCE, sent).await.unwrap_or(Err(Unrecorded))
    }

    fn must(&self) -> Option<&Arc<Open>> {
        self.0.as_ref().filter(|open| open.audit.on_error == OnError::Refuse)
    }

    /// A stream begins, which is told at once, at the record's place if it has one: a stream may be open for days,
    /// and would keep that from others. Its end is another line.
    pub fn stream(&self) {
        let mut place = None;
        self.draft(|draft| {
            draft.is_taken = true;
            place = draft.place.take();
        });
        if let Some(open) = &self.0
            && let Some(line) = open.line(Moment::Begun)
        {
            open.audit.put(line, place);
        }
    }

    /// What would be written now; `None` once it is over.
    pub fn line(&self) -> Option<Line> {
        self.0.as_ref()?.line(Moment::Begun)
    }

    // === The end ===

    /// Whether nobody behind the door has taken the record on, and it is not over.
    pub fn is_at_the_door(&self) -> bool {
        let open = self.0.as_ref();
        open.is_some_and(|open| open.lock().draft.as_ref().is_some_and(|draft| !draft.is_taken))
    }

    /// How the request came; `None` in a log that is off.
    pub fn wire(&self) -> Option<Wire> {
        self.0.as_ref().map(|open| open.lock().who.wire)
    }

    /// Whether the request went to an upstream.
    pub fn is_sent(&self) -> bool {
        let open = self.0.as_ref();
        open.is_some_and(|open| open.lock().draft.as_ref().is_some_and(|draft| draft.is_sent))
    }

    /// Whether a rule stood in the request's way.
    pub fn is_refused(&self) -> bool {
        let open = self.0.as_ref();
        open.is_some_and(|open| open.lock().draft.as_ref().is_some_and(|draft| draft.is_refused))
    }

    /// The answer may still be replaced: the last end is told, once nobody holds the record any more.
    pub fn hold(&self, is_held: bool) {
        self.draft(|draft| draft.is_held = is_held);
    }

    /// Ends what another line has told of; of the rest nothing is told.
    pub fn end_if_told(&self, ending: Ending) {
        let mut is_told = false;
        self.draft(|draft| is_told = draft.told.number.is_some());
        if is_told { self.end(ending) } else { self.forget() }
    }

    /// The request is over.
    pub fn end(&self, ending: Ending) {
        if let Some(open) = &self.0 {
            open.end(ending);
        }
    }

    /// Nothing is told: what came was no request.
    pub fn forget(&self) {
        if let Some(open) = &self.0 {
            open.lock().draft = None;
        }
    }

    fn who(&self, learn: impl FnOnce(&mut Who)) {
        if let Some(open) = &self.0 {
            learn(&mut open.lock().who);
        }
    }

    fn tell(&self, learn: impl FnOnce(&mut Told)) {
        self.draft(|draft| learn(&mut draft.told));
    }

    fn draft(&self, learn: impl FnOnce(&mut Draft)) {
        if let Some(open) = &self.0 {
            open.lock().draft.as_mut().map(learn).unwrap_or_default();
        }
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_on() { "Record(on)" } else { "Record(off)" })
    }
}

impl Open {
    /// A line about a request that is not over.
    fn line(&self, moment: Moment) -> Option<Line> {
        let mut state = self.lock();
        let who = state.who.clone();
        let told = &mut state.draft.as_mut()?.told;
        let number = self.audit.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let number = Some(*told.number.get_or_insert(number));
        Some(Line::Request(Box::new(Told { who, moment, number, ..(**told).clone() })))
    }

    fn end(&self, ending: Ending) {
        let mut state = self.lock();
        let Some(draft) = &mut state.draft else { return };
        draft.told.ending = Some(ending);
        draft.told.duration = self.begun.elapsed();
        let is_held = draft.is_held;
        drop(state);
        if !is_held {
            self.put();
        }
    }

    fn put(&self) {
        let mut state = self.lock();
        if let Some(Draft { mut told, place, .. }) = state.draft.take() {
            told.who = state.who.clone();
            drop(state);
            self.audit.put(Line::Request(told), place);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.lock().draft.as_ref().is_some_and(|draft| draft.told.ending.is_none()) {
            let outcome = Outcome::Cancelled;
            self.end(Ending { outcome, code: None, status: None, bytes_out: None });
        }
        self.put();
    }
}

impl Draft {
    fn of(told: Box<Told>) -> Self {
        let (place, is_taken, is_sent) = (None, false, false);
        Self { told, place, is_taken, is_sent, is_refused: false, is_held: false }
    }
}

/// A text as the one that is known to be the same, if there is one: then nothing is copied.
fn word(known: Option<&'static str>, text: &str) -> Word {
    known.map_or_else(|| Word::from(text.to_owned()), Word::from)
}

fn verb(method: &str) -> Word {
    word(["POST", "GET", "DELETE"].into_iter().find(|it| *it == method), method)
}
