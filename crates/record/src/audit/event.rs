//! Audit event of one request, filled in along its way and written once.
//!
//! An event has several owners: the HTTP handler that has read the request, the client context, the
//! task that waits for the response. Each adds what it knows. [`RequestProgress`] says how far the
//! request came, [`EndedBy`] which owner ends the event with the outcome. If none has done so when
//! the last copy is dropped, the request was cancelled.
//!
//! Invariants: one final entry per event, and none in a log that is off; a second end is ignored,
//! unless the event was deferred ([`AuditEvent::defer_end`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memchr::memmem;
use tokio::time::{Instant, timeout};

use super::entry::{
    Actor, AuditDecision, AuditEntry, AuditOutcome, EntryText, EventCompletion, Phase,
    RequestDetails, RequestEntry, SessionMark,
};
use super::params::arguments;
use super::writer::QueuePermit;
use super::{MANDATORY_WAIT, OnError, Shared, TransportKind};
use weir_base::json::Object;
use weir_base::tasks::request_scope;
use weir_base::tasks::sync::Mutex;
use weir_mcp::kind::Kind;
use weir_mcp::methods::MethodLabel;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::Revision;
use weir_mcp::trace_context::{TRACEPARENT, trace_id};

/// Audit event of one request. Cheap to clone; all clones are the same event.
#[derive(Clone, Default)]
pub struct AuditEvent(Option<Arc<SharedEvent>>);

/// The audit log is mandatory, and the request cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request cannot be recorded")]
pub struct AuditUnavailable;

/// Step that a request has reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestProgress {
    /// It has arrived.
    #[default]
    Received,
    /// It was sent to an upstream.
    Sent,
    /// A rule refused it or its response, rather than its upstream.
    Refused,
}

/// Owner that ends an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum EndedBy {
    /// The transport, unless a handler behind it takes over.
    #[default]
    Transport,
    /// The handler of the request.
    Handler,
    /// The last copy, with the end that was set last.
    LastCopy,
}

struct SharedEvent {
    audit: Arc<Shared>,
    started_at: Instant,
    state: Mutex<EventState>,
}

struct EventState {
    /// Written with each entry; kept after the end for the next events of the same client.
    actor: Actor,
    /// `None` once the event has ended.
    open: Option<OpenEvent>,
}

#[derive(Default)]
struct OpenEvent {
    details: Box<RequestDetails>,
    /// Reserved queue permit for the last entry, if the log is mandatory.
    permit: Option<QueuePermit>,
    progress: RequestProgress,
    ended_by: EndedBy,
}

impl AuditEvent {
    /// Creates an event of a log that is off.
    pub fn off() -> Self {
        Self::default()
    }

    /// Begins the event of a request of this client.
    pub(super) fn begin(audit: &Arc<Shared>, actor: Actor) -> Self {
        let details = Box::new(RequestDetails {
            request_number: request_scope::number(),
            ..RequestDetails::default()
        });
        let open = Some(OpenEvent { details, ..OpenEvent::default() });
        Self(Some(Arc::new(SharedEvent {
            audit: Arc::clone(audit),
            started_at: Instant::now(),
            state: Mutex::new(EventState { actor, open }),
        })))
    }

    /// Returns whether the log is on.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins the event of another request of the same client.
    pub fn begin_next(&self) -> Self {
        self.0.as_ref().map_or_else(Self::off, |event| {
            Self::begin(&event.audit, event.state.lock().actor.clone())
        })
    }

    // === Client and request ===

    /// Sets the client, its role, and its application if that is known.
    pub fn set_client(&self, client: &Arc<str>, role: &Arc<str>, application: Option<&Arc<str>>) {
        self.actor(|actor| {
            (actor.client, actor.role) = (Some(client.clone()), Some(role.clone()));
            actor.application = application.cloned();
        });
    }

    /// Sets the session.
    pub fn set_session(&self, session: &SessionMark) {
        self.actor(|actor| actor.session = Some(session.clone()));
    }

    /// Sets the name of the replica that has sent the request on.
    pub fn set_via(&self, replica: &Arc<str>) {
        self.details(|details| details.via = Some(Arc::clone(replica)));
    }

    /// Records that this replica has got the request and was lost: it may have been executed.
    pub fn set_lost_at(&self, replica: &Arc<str>) {
        self.details(|details| details.lost_at = Some(Arc::clone(replica)));
    }

    /// Sets the HTTP method, for requests whose protocol message is not known yet.
    pub fn set_http_method(&self, method: &str) {
        self.details(|details| details.http = Some(http_method(method)));
    }

    /// Sets the request number that log lines show.
    pub fn set_request_number(&self, number: u64) {
        self.details(|details| details.request_number = Some(number));
    }

    /// Sets the size of the message.
    pub fn set_bytes_in(&self, bytes: usize) {
        self.details(|details| details.bytes_in = Some(bytes as u64));
    }

    /// Sets the method.
    pub fn set_method(&self, method: &str) {
        self.details(|details| {
            details.http = None;
            // The method is set by the HTTP handler, and again by the era's code.
            if details.method.as_deref() != Some(method) {
                details.method = Some(word(MethodLabel::of(method).known(), method));
            }
        });
    }

    /// Sets the revision.
    pub fn set_revision(&self, revision: Revision) {
        self.details(|details| details.revision = Some(revision));
    }

    /// Sets revision, method and parameters. The caller takes over: it will end the event.
    pub fn set_request(&self, revision: Revision, method: &str, params: &Object) {
        self.set_revision(revision);
        self.set_message(method, params);
    }

    /// Sets method and parameters. The caller takes over: it will end the event.
    pub fn set_message(&self, method: &str, params: &Object) {
        let Some(event) = &self.0 else { return };
        let arguments = arguments(event.audit.arguments, method, params);
        // `_meta` is parsed only if it can contain a trace.
        let has_trace = params
            .get("_meta")
            .is_some_and(|meta| memmem::find(meta.as_bytes(), TRACEPARENT.as_bytes()).is_some());
        let meta = has_trace.then(|| params.get_object("_meta")).flatten();
        let trace = meta.and_then(|meta| trace_id(&meta.get_string(TRACEPARENT)?));
        if trace.is_some() {
            request_scope::record(|known| known.trace.clone_from(&trace));
        }
        self.set_method(method);
        self.open(|open| {
            open.claim();
            open.details.arguments = arguments;
            open.details.trace = trace.or(open.details.trace.take());
        });
    }

    /// Sets the trace that a `traceparent` header names, if it is well-formed (W3C Trace Context).
    pub fn set_trace(&self, traceparent: &str) {
        if self.is_on() {
            let trace = trace_id(traceparent);
            self.details(|details| details.trace = trace);
        }
    }

    // === Decisions ===

    /// Sets the kind of the item.
    pub fn set_kind(&self, kind: Kind) {
        self.details(|details| details.kind = Some(kind));
    }

    /// Sets the kind and the public name or URI of the item, before it is looked up.
    pub fn set_requested(&self, kind: Kind, name: &str) {
        self.details(|details| {
            details.kind = Some(kind);
            details.set_name(name);
        });
    }

    /// Sets the public name or URI of the item.
    pub fn set_public_name(&self, name: &str) {
        self.details(|details| details.set_name(name));
    }

    /// Sets the decision about the item of this kind and public name, and the rule behind it;
    /// `item` is the name or URI at the upstream.
    pub fn set_decision(
        &self,
        (kind, name): (Kind, &str),
        decision: AuditDecision,
        item: Option<(&UpstreamName, &str)>,
        rule: Option<&str>,
    ) {
        self.details(|details| {
            details.kind = Some(kind);
            details.set_name(name);
            details.decision = Some(decision);
            details.upstream = item.map(|(upstream, _)| upstream.clone());
            details.item = item.map(|(_, own)| own.into());
            details.rule = rule.map(Into::into);
        });
    }

    /// Records that this rule refuses the request, regardless of the role.
    pub fn set_refused_by(&self, rule: &str) {
        self.open(|open| {
            open.details.rule = Some(rule.into());
            open.progress = RequestProgress::Refused;
        });
    }

    /// Records why the client was not authenticated, and the user that its token names, of which
    /// nothing was verified.
    pub fn set_refusal(&self, reason: &'static str, claimed_user: impl Fn() -> Option<String>) {
        self.details(|details| {
            details.reason = Some(reason);
            details.claimed_user = claimed_user().map(String::into_boxed_str);
        });
    }

    /// Adds findings in a response that was forwarded nevertheless.
    pub fn add_findings(&self, findings: usize) {
        self.details(|details| details.flags += findings);
    }

    /// Reserves a queue permit for the event, where the log is mandatory. Called before anything is
    /// done for the request.
    pub async fn reserve(&self) -> Result<(), AuditUnavailable> {
        let Some(event) = self.mandatory()? else { return Ok(()) };
        let reserved = timeout(MANDATORY_WAIT, event.audit.queue.clone().reserve_owned()).await;
        let permit = reserved.map_err(|_| AuditUnavailable)?.map_err(|_| AuditUnavailable)?;
        self.open(|open| open.permit = Some(permit));
        Ok(())
    }

    /// Reserves a queue permit like [`Self::reserve`], without waiting.
    pub fn try_reserve(&self) -> Result<(), AuditUnavailable> {
        let Some(event) = self.mandatory()? else { return Ok(()) };
        let permit = event.audit.queue.clone().try_reserve_owned().map_err(|_| AuditUnavailable)?;
        self.open(|open| open.permit = Some(permit));
        Ok(())
    }

    /// Records that the request is about to go to an upstream. Where the log is mandatory, waits
    /// until an entry that says so is in the file.
    pub async fn before_sending(&self) -> Result<(), AuditUnavailable> {
        if let Some(event) = self.mandatory()?
            && let Some(line) = event.line(Phase::Admitted)
        {
            event.audit.write(line).await?;
        }
        self.open(|open| {
            if open.progress == RequestProgress::Received {
                open.progress = RequestProgress::Sent;
            }
        });
        Ok(())
    }

    /// Returns the event if the log is mandatory, or an error if it cannot be written at present.
    fn mandatory(&self) -> Result<Option<&SharedEvent>, AuditUnavailable> {
        let must = |event: &&SharedEvent| event.audit.on_error == OnError::Refuse;
        match self.0.as_deref().filter(must) {
            Some(event) if event.audit.is_failing() => Err(AuditUnavailable),
            event => Ok(event),
        }
    }

    /// Writes an entry about the start of a stream, with the event's queue permit if it has one: a
    /// stream may be open for days and would block the permit for others. The end of the stream is
    /// another entry.
    pub fn begin_stream(&self) -> OpenStreamEvent {
        let permit = self.open(|open| {
            open.claim();
            open.permit.take()
        });
        if let Some(event) = &self.0
            && let Some(line) = event.line(Phase::Begun)
        {
            event.audit.put(line, permit.flatten());
        }
        OpenStreamEvent(self.clone())
    }

    /// Returns the entry that would be written now; `None` once the event has ended.
    pub fn current_entry(&self) -> Option<AuditEntry> {
        self.0.as_ref()?.line(Phase::Begun)
    }

    // === The end ===

    /// Returns whether no handler behind the transport has taken over, and the event has not ended.
    pub fn is_unclaimed(&self) -> bool {
        self.open(|open| open.ended_by) == Some(EndedBy::Transport)
    }

    /// Returns the transport of the request; `None` in a log that is off.
    pub fn transport(&self) -> Option<TransportKind> {
        self.0.as_ref().map(|event| event.state.lock().actor.transport)
    }

    /// Returns the step that the request has reached, until the event has ended.
    pub fn progress(&self) -> RequestProgress {
        self.open(|open| open.progress).unwrap_or_default()
    }

    /// Defers the end, because the response may still be replaced: the last end is written when the
    /// last copy of the event is dropped.
    pub fn defer_end(&self, is_deferred: bool) {
        let ended_by = if is_deferred { EndedBy::LastCopy } else { EndedBy::Handler };
        self.open(|open| open.ended_by = ended_by);
    }

    /// Ends an event that has an entry already, and discards any other.
    pub fn end_if_written(&self, ending: EventCompletion) {
        match self.open(|open| open.details.number).flatten() {
            Some(_) => self.end(ending),
            None => self.discard(),
        }
    }

    /// Ends the event.
    pub fn end(&self, ending: EventCompletion) {
        if let Some(event) = &self.0 {
            event.end(ending);
        }
    }

    /// Discards the event, because the message was not a request.
    pub fn discard(&self) {
        if let Some(event) = &self.0 {
            event.state.lock().open = None;
        }
    }

    fn actor(&self, update: impl FnOnce(&mut Actor)) {
        if let Some(event) = &self.0 {
            update(&mut event.state.lock().actor);
        }
    }

    fn details(&self, update: impl FnOnce(&mut RequestDetails)) {
        self.open(|open| update(&mut open.details));
    }

    /// Reads or changes the event, unless it has ended or the log is off.
    fn open<T>(&self, update: impl FnOnce(&mut OpenEvent) -> T) -> Option<T> {
        self.0.as_ref()?.state.lock().open.as_mut().map(update)
    }
}

impl std::fmt::Debug for AuditEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_on() { "AuditEvent(on)" } else { "AuditEvent(off)" })
    }
}

/// Event of a request whose response is a stream that stays open. It ends when this is dropped.
#[derive(Debug)]
pub struct OpenStreamEvent(AuditEvent);

impl Drop for OpenStreamEvent {
    fn drop(&mut self) {
        let status = (self.0.transport() != Some(TransportKind::Stdio)).then_some(200);
        self.0.end(EventCompletion { status, ..EventCompletion::of(AuditOutcome::Ok) });
    }
}

impl OpenEvent {
    /// Records that a handler has taken over and will end the event.
    fn claim(&mut self) {
        if self.ended_by == EndedBy::Transport {
            self.ended_by = EndedBy::Handler;
        }
    }
}

impl SharedEvent {
    /// Returns an entry about a request that has not ended.
    fn line(&self, phase: Phase) -> Option<AuditEntry> {
        let mut state = self.state.lock();
        let actor = state.actor.clone();
        let details = &mut state.open.as_mut()?.details;
        let number = self.audit.requests.fetch_add(1, Ordering::Relaxed) + 1;
        details.number.get_or_insert(number);
        Some(AuditEntry::Request(RequestEntry { actor, phase, details: details.clone() }))
    }

    fn end(&self, ending: EventCompletion) {
        let mut state = self.state.lock();
        let Some(open) = &mut state.open else { return };
        open.details.completion = Some(ending);
        open.details.duration = self.started_at.elapsed();
        if open.ended_by != EndedBy::LastCopy {
            drop(state);
            self.put();
        }
    }

    /// Writes the last entry.
    fn put(&self) {
        let mut state = self.state.lock();
        let Some(OpenEvent { details, permit, .. }) = state.open.take() else { return };
        let actor = state.actor.clone();
        drop(state);
        let entry = RequestEntry { actor, phase: Phase::Done, details };
        self.audit.put(AuditEntry::Request(entry), permit);
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        let open = &self.state.get_mut().open;
        if open.as_ref().is_some_and(|open| open.details.completion.is_none()) {
            self.end(EventCompletion::of(AuditOutcome::Cancelled));
        }
        self.put();
    }
}

/// Returns the known text that equals `text`, if there is one, so that nothing is copied.
fn word(known: Option<&'static str>, text: &str) -> EntryText {
    known.map_or_else(|| EntryText::from(text.to_owned()), EntryText::from)
}

fn http_method(method: &str) -> EntryText {
    word(["POST", "GET", "DELETE"].into_iter().find(|it| *it == method), method)
}
