//! Audit event of one request, filled in along its way and written once.
//!
//! An event has several owners: the HTTP handler that has read the request, the client context, the
//! task that waits for the response. Each adds what it knows. One of them ends the event with the
//! outcome. If none has done so when the last copy is dropped, the request was cancelled.
//!
//! Invariants: one final entry per event, and none in a log that is off; a second end is ignored,
//! unless the event was deferred ([`AuditEvent::defer_end`]).

use crate::sync::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::entry::{
    Actor, AuditDecision, AuditEntry, AuditOutcome, EntryText, EventCompletion, Phase,
    RequestDetails, SessionMark,
};
use super::params::arguments;
use super::writer::{QueuePermit, QueuedEntry};
use super::{MANDATORY_WAIT, OnError, Shared, TransportKind};
use crate::json::Object;
use crate::mcp::kind::Kind;
use crate::mcp::method_label::MethodLabel;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::Revision;
use crate::mcp::trace_context::{TRACEPARENT, trace_id};
use crate::request_scope;

/// Audit event of one request. Cheap to clone; all clones are the same event.
#[derive(Clone, Default)]
pub struct AuditEvent(Option<Arc<OpenEvent>>);

/// The audit log is mandatory, and the request cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request cannot be recorded")]
pub struct AuditUnavailable;

struct OpenEvent {
    audit: Arc<Shared>,
    started_at: Instant,
    state: Mutex<State>,
}

struct State {
    /// Written with each entry; kept after the end for the next events of the same client.
    actor: Actor,
    /// `None` once the event has ended.
    builder: Option<EventBuilder>,
}

struct EventBuilder {
    details: Box<RequestDetails>,
    /// Reserved queue permit for the last entry, if the log is mandatory.
    permit: Option<QueuePermit>,
    /// True if a handler behind the transport has taken over and will end the event.
    is_claimed: bool,
    /// True if the request was sent to an upstream.
    is_sent: bool,
    /// True if a rule refused the request, rather than its upstream.
    is_refused: bool,
    /// True if the end may still be replaced by another one.
    is_deferred: bool,
}

impl AuditEvent {
    /// Creates an event of a log that is off.
    pub fn off() -> Self {
        Self::default()
    }

    pub(super) fn begin(
        audit: &Arc<Shared>,
        transport: TransportKind,
        from: Option<IpAddr>,
    ) -> Self {
        Self::of(
            audit,
            Actor { transport, from, client: None, role: None, application: None, session: None },
        )
    }

    fn of(audit: &Arc<Shared>, actor: Actor) -> Self {
        let details = Box::new(RequestDetails::of(actor.clone()));
        let builder = Some(EventBuilder::of(details));
        let state = Mutex::new(State { actor, builder });
        Self(Some(Arc::new(OpenEvent {
            audit: Arc::clone(audit),
            started_at: Instant::now(),
            state,
        })))
    }

    /// Returns whether the log is on.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins the event of another request of the same client.
    pub fn begin_next(&self) -> Self {
        self.0.as_ref().map_or_else(Self::off, |event| {
            Self::of(&event.audit, event.state.lock().actor.clone())
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

    /// Sets the HTTP method, for requests whose protocol message is not known yet.
    pub fn set_http_method(&self, method: &str) {
        self.update_details(|details| details.http = Some(http_method(method)));
    }

    /// Sets the request number that log lines show.
    pub fn set_request_number(&self, number: u64) {
        self.update_details(|details| details.request_number = Some(number));
    }

    /// Sets the size of the message.
    pub fn set_bytes_in(&self, bytes: usize) {
        self.update_details(|details| details.bytes_in = Some(bytes as u64));
    }

    /// Sets the method.
    pub fn set_method(&self, method: &str) {
        self.update_details(|details| {
            details.http = None;
            // The method is set by the HTTP handler, and again by the era's code.
            if details.method.as_deref() != Some(method) {
                details.method = Some(word(MethodLabel::of(method).known(), method));
            }
        });
    }

    /// Sets the revision.
    pub fn set_revision(&self, revision: Revision) {
        self.update_details(|details| details.revision = Some(revision));
    }

    /// Sets revision, method and parameters. The caller takes over: it will end the event.
    pub fn set_request(&self, revision: Revision, method: &str, params: &Object) {
        let Some(event) = &self.0 else { return };
        let arguments = arguments(event.audit.arguments, method, params);
        // `_meta` is parsed only if it can contain a trace.
        let has_trace = params.get("_meta").is_some_and(|meta| meta.contains(TRACEPARENT));
        let meta = has_trace.then(|| params.get_object("_meta")).flatten();
        let trace = meta.and_then(|meta| trace_id(&meta.get_string(TRACEPARENT)?));
        if trace.is_some() {
            request_scope::record(|known| known.trace.clone_from(&trace));
        }
        self.set_method(method);
        self.builder(|builder| {
            builder.is_claimed = true;
            builder.details.revision = Some(revision);
            builder.details.arguments = arguments;
            builder.details.trace = trace.or(builder.details.trace.take());
        });
    }

    /// Sets the trace that a `traceparent` header names, if it is well-formed (W3C Trace Context).
    pub fn set_trace(&self, traceparent: &str) {
        if self.is_on() {
            let trace = trace_id(traceparent);
            self.update_details(|details| details.trace = trace);
        }
    }

    // === Decisions ===

    /// Sets the kind of the item.
    pub fn set_kind(&self, kind: Kind) {
        self.update_details(|details| details.kind = Some(kind));
    }

    /// Sets the public name or URI of the item.
    pub fn set_public_name(&self, name: &str) {
        self.update_details(|details| details.set_name(name));
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
        self.update_details(|details| {
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
        self.builder(|builder| {
            builder.details.rule = Some(rule.into());
            builder.is_refused = true;
        });
    }

    /// Adds findings in a response that was forwarded nevertheless.
    pub fn add_findings(&self, findings: usize) {
        self.update_details(|details| details.flags += findings);
    }

    /// Reserves a queue permit for the event, where the log is mandatory. Called before anything is
    /// done for the request.
    pub async fn reserve(&self) -> Result<(), AuditUnavailable> {
        let Some(event) = self.must() else { return Ok(()) };
        if event.audit.is_failing() {
            return Err(AuditUnavailable);
        }
        let reserved = timeout(MANDATORY_WAIT, event.audit.queue.clone().reserve_owned()).await;
        let permit = reserved.map_err(|_| AuditUnavailable)?.map_err(|_| AuditUnavailable)?;
        self.builder(|builder| builder.permit = Some(permit));
        Ok(())
    }

    /// Reserves a queue permit like [`Self::reserve`], without waiting.
    pub fn try_reserve(&self) -> Result<(), AuditUnavailable> {
        let Some(event) = self.must() else { return Ok(()) };
        if event.audit.is_failing() {
            return Err(AuditUnavailable);
        }
        let permit = event.audit.queue.clone().try_reserve_owned().map_err(|_| AuditUnavailable)?;
        self.builder(|builder| builder.permit = Some(permit));
        Ok(())
    }

    /// Records that the request is about to go to an upstream. Where the log is mandatory, waits
    /// until an entry that says so is in the file.
    pub async fn before_sending(&self) -> Result<(), AuditUnavailable> {
        self.builder(|builder| builder.is_sent = true);
        let admitted = self.write_sending().await;
        if admitted.is_err() {
            self.builder(|builder| builder.is_sent = false);
        }
        admitted
    }

    async fn write_sending(&self) -> Result<(), AuditUnavailable> {
        let Some(event) = self.must() else { return Ok(()) };
        if event.audit.is_failing() {
            return Err(AuditUnavailable);
        }
        let Some(line) = event.line(Phase::Admitted) else { return Ok(()) };
        let (written, is_written) = oneshot::channel();
        let entry = QueuedEntry { line, at: SystemTime::now(), written: Some(written) };
        let sent = async {
            event.audit.queue.send(entry).await.map_err(|_| AuditUnavailable)?;
            is_written.await.map_err(|_| AuditUnavailable)
        };
        timeout(MANDATORY_WAIT, sent).await.unwrap_or(Err(AuditUnavailable))
    }

    fn must(&self) -> Option<&Arc<OpenEvent>> {
        self.0.as_ref().filter(|event| event.audit.on_error == OnError::Refuse)
    }

    /// Writes an entry about the start of a stream, with the event's queue permit if it has one: a
    /// stream may be open for days and would block the permit for others. The end of the stream is
    /// another entry.
    pub fn record_stream_start(&self) {
        let mut permit = None;
        self.builder(|builder| {
            builder.is_claimed = true;
            permit = builder.permit.take();
        });
        if let Some(event) = &self.0
            && let Some(line) = event.line(Phase::Begun)
        {
            event.audit.put(line, permit);
        }
    }

    /// Returns the entry that would be written now; `None` once the event has ended.
    pub fn current_entry(&self) -> Option<AuditEntry> {
        self.0.as_ref()?.line(Phase::Begun)
    }

    // === The end ===

    /// Returns whether no handler behind the transport has taken over, and the event has not ended.
    pub fn is_unclaimed(&self) -> bool {
        let event = self.0.as_ref();
        event.is_some_and(|event| {
            event.state.lock().builder.as_ref().is_some_and(|builder| !builder.is_claimed)
        })
    }

    /// Returns the transport of the request; `None` in a log that is off.
    pub fn transport(&self) -> Option<TransportKind> {
        self.0.as_ref().map(|event| event.state.lock().actor.transport)
    }

    /// Returns whether the request was sent to an upstream.
    pub fn is_sent(&self) -> bool {
        let event = self.0.as_ref();
        event.is_some_and(|event| {
            event.state.lock().builder.as_ref().is_some_and(|builder| builder.is_sent)
        })
    }

    /// Returns whether a rule refused the request.
    pub fn is_refused(&self) -> bool {
        let event = self.0.as_ref();
        event.is_some_and(|event| {
            event.state.lock().builder.as_ref().is_some_and(|builder| builder.is_refused)
        })
    }

    /// Defers the end, because the response may still be replaced: the last end is written when the
    /// last copy of the event is dropped.
    pub fn defer_end(&self, is_deferred: bool) {
        self.builder(|builder| builder.is_deferred = is_deferred);
    }

    /// Ends an event that has an entry already, and discards any other.
    pub fn end_if_written(&self, ending: EventCompletion) {
        let mut is_written = false;
        self.builder(|builder| is_written = builder.details.number.is_some());
        if is_written { self.end(ending) } else { self.discard() }
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
            event.state.lock().builder = None;
        }
    }

    fn actor(&self, update: impl FnOnce(&mut Actor)) {
        if let Some(event) = &self.0 {
            update(&mut event.state.lock().actor);
        }
    }

    fn update_details(&self, update: impl FnOnce(&mut RequestDetails)) {
        self.builder(|builder| update(&mut builder.details));
    }

    fn builder(&self, update: impl FnOnce(&mut EventBuilder)) {
        if let Some(event) = &self.0 {
            event.state.lock().builder.as_mut().map(update).unwrap_or_default();
        }
    }
}

impl std::fmt::Debug for AuditEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_on() { "AuditEvent(on)" } else { "AuditEvent(off)" })
    }
}

impl OpenEvent {
    /// Returns an entry about a request that has not ended.
    fn line(&self, phase: Phase) -> Option<AuditEntry> {
        let mut state = self.state.lock();
        let actor = state.actor.clone();
        let details = &mut state.builder.as_mut()?.details;
        let number = self.audit.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let number = Some(*details.number.get_or_insert(number));
        Some(AuditEntry::Request(Box::new(RequestDetails {
            actor,
            phase,
            number,
            ..(**details).clone()
        })))
    }

    fn end(&self, ending: EventCompletion) {
        let mut state = self.state.lock();
        let Some(builder) = &mut state.builder else { return };
        builder.details.completion = Some(ending);
        builder.details.duration = self.started_at.elapsed();
        let is_deferred = builder.is_deferred;
        drop(state);
        if !is_deferred {
            self.put();
        }
    }

    fn put(&self) {
        let mut state = self.state.lock();
        if let Some(EventBuilder { mut details, permit, .. }) = state.builder.take() {
            details.actor = state.actor.clone();
            drop(state);
            self.audit.put(AuditEntry::Request(details), permit);
        }
    }
}

impl Drop for OpenEvent {
    fn drop(&mut self) {
        if self
            .state
            .lock()
            .builder
            .as_ref()
            .is_some_and(|builder| builder.details.completion.is_none())
        {
            let outcome = AuditOutcome::Cancelled;
            self.end(EventCompletion { outcome, code: None, status: None, bytes_out: None });
        }
        self.put();
    }
}

impl EventBuilder {
    fn of(details: Box<RequestDetails>) -> Self {
        let (permit, is_claimed, is_sent) = (None, false, false);
        Self { details, permit, is_claimed, is_sent, is_refused: false, is_deferred: false }
    }
}

/// Returns the known text that equals `text`, if there is one, so that nothing is copied.
fn word(known: Option<&'static str>, text: &str) -> EntryText {
    known.map_or_else(|| EntryText::from(text.to_owned()), EntryText::from)
}

fn http_method(method: &str) -> EntryText {
    word(["POST", "GET", "DELETE"].into_iter().find(|it| *it == method), method)
}
