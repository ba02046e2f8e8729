//! Dispatcher of all messages that an upstream sends on one connection.
//!
//! Each connection has one [`Dispatcher`]; each text that arrives goes through it, over any
//! transport: responses go back to the transport, progress and input requests to the call that they
//! belong to, `list_changed` to a `watch` that the upstream's list refresher reads. A server
//! request that belongs to no call gets the response of a client without capabilities.
//!
//! Invariant: the dispatcher never waits, so a server that floods a connection loses its own
//! responses and delays no other upstream.

mod attribution;
mod deviations;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::{Notify, watch};

use crate::health::health_state::UpstreamHealth;
use crate::input_requests::{InputRequests, unsupported_method};
use crate::message::{AcceptedSubscriptions, HttpFailure, PendingContext, TransportError};
use crate::subscriptions::{MAX_URIS, SubscriptionRegistry};
use crate::task_owners::TaskOwners;
use crate::transport::dispatcher::attribution::subscription_of;
use crate::transport::junk_limits::JunkCounts;
use crate::url_elicitations::PendingUrlElicitations;
use crate::{Error, ListChangeCounts};
use weir_base::json::{self, Object};
use weir_base::time::backoff::Backoff;
use weir_mcp::call::{Payload, ResponseOutcome};
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::input_request::{ELICITATION_COMPLETE, InputKind};
use weir_mcp::jsonrpc::pending::{PendingRequests, PendingResponse, RequestIds};
use weir_mcp::jsonrpc::{
    self, Id, InvalidMessage, Message, MessageShape, Notification, Request, Response,
    ResponsePayload,
};
use weir_mcp::kind::{ListTopic, RESOURCE_SUBSCRIPTIONS, RESOURCE_UPDATED};
use weir_mcp::meta;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::{Era, Revision};
use weir_mcp::task::{TASK_IDS, TASK_NOTIFICATION, TASK_STATUS_NOTIFICATION, TaskScope};

/// Maximum nesting depth of an upstream's message. Payloads are the upstream's own business, so
/// this only bounds the reading.
const MAX_DEPTH: usize = 512;

/// Maximum number of messages in one batch.
const MAX_BATCH: usize = 1_000;

/// Time for which an opening connection waits for the acknowledgment of its subscription to list
/// changes.
const LISTEN_GRACE: Duration = Duration::from_millis(500);

/// Pause before a stream for list changes is opened again for the first time.
pub(crate) const MIN_REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Back-off of such a stream.
pub(crate) const REOPEN_BACKOFF: Backoff = Backoff::new(MIN_REOPEN_PAUSE, Duration::from_secs(30));
/// Lifetime of a stream after which the back-off starts again.
pub(crate) const LISTEN_STABLE_AFTER: Duration = Duration::from_secs(30);

/// Characters of a server's log message that are copied into Weir's log.
const MAX_LOGGED_CHARS: usize = 1_000;

/// Response future of a request on this connection.
pub(crate) type PendingUpstreamResponse =
    PendingResponse<Result<ResponseOutcome, TransportError>, PendingContext>;

/// Input requests of a call, and the sink of its notifications.
type InputTarget = (InputRequests, Option<NotificationSink>);

/// Dispatches the messages of one server on one connection.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(crate) name: UpstreamName,
    pub(crate) pending: PendingRequests<Result<ResponseOutcome, TransportError>, PendingContext>,
    changes: watch::Sender<ListChangeCounts>,
    /// Subscriptions of the clients to resources and tasks.
    registry: Arc<SubscriptionRegistry>,
    /// Owners of the tasks that were started on this connection.
    tasks: TaskOwners,
    /// URL-mode elicitations that the clients received.
    url_elicitations: PendingUrlElicitations,
    /// Revision that the server speaks, once that is known.
    revision: OnceLock<Revision>,
    /// Scope of the server's task ids, once that is known.
    pub(crate) scope: OnceLock<TaskScope>,
    /// Clients whose calls are made on this connection.
    clients: ConnectionClients,
    /// Number of server requests in a revision that forbids them.
    protocol_violations: AtomicUsize,
    /// Topics whose changes the server announces; set once the first lists may have been read.
    announced_topics: OnceLock<[bool; 3]>,
    listen_settled: Notify,
    /// Set once the server has returned the id of a request as text or with a fraction.
    has_disguised_ids: OnceLock<()>,
    /// True while the standalone stream of the session is open.
    has_standalone: watch::Sender<bool>,
    /// Counts dropped messages.
    pub(crate) health: Arc<UpstreamHealth>,
}

/// Clients whose calls are made on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionClients {
    /// Many clients: a message that names no call belongs to none.
    Many,
    /// One client: a message that names no call belongs to the client's newest call.
    Single,
    /// One principal, which several clients may share: a message that names no call belongs to a
    /// call only while that is the only one.
    SamePrincipal,
}

/// Result of dispatching one text, for the transport.
#[derive(Debug, Default)]
pub(crate) struct Dispatched {
    /// Responses by the local id of their request; `None` where the server could not read the id.
    /// An error where a response has an id and is malformed.
    pub(crate) responses: Vec<(Option<u64>, Result<ResponseOutcome, TransportError>)>,
    /// Responses to the server's own requests.
    pub(crate) outgoing: Vec<Bytes>,
    pub(crate) junk_counts: JunkCounts,
}

impl Dispatched {
    /// Returns the response to request `id` from the texts of its own HTTP response with this
    /// status: an error without an id can only be about this request, from before it was read.
    pub(crate) fn response_to(
        self,
        id: u64,
        status: StatusCode,
    ) -> Option<Result<ResponseOutcome, TransportError>> {
        self.responses.into_iter().find_map(|(answered, outcome)| match (answered, outcome) {
            (Some(answered), outcome) => (answered == id).then_some(outcome),
            (None, Ok(ResponseOutcome::Error(error))) => {
                let failure = HttpFailure { status, error: Some(error), ..HttpFailure::default() };
                Some(Err(TransportError::Http(Box::new(failure))))
            }
            (None, _) => None,
        })
    }
}

/// Text that is not a valid message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnparsableMessage(String);

impl Dispatcher {
    pub(crate) fn new(
        name: UpstreamName,
        changes: watch::Sender<ListChangeCounts>,
        registry: Arc<SubscriptionRegistry>,
        clients: ConnectionClients,
        health: Arc<UpstreamHealth>,
        ids: RequestIds,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            pending: PendingRequests::new(ids),
            changes,
            registry,
            tasks: TaskOwners::default(),
            url_elicitations: PendingUrlElicitations::default(),
            revision: OnceLock::new(),
            scope: OnceLock::new(),
            clients,
            protocol_violations: AtomicUsize::new(0),
            announced_topics: OnceLock::new(),
            listen_settled: Notify::new(),
            has_disguised_ids: OnceLock::new(),
            has_standalone: watch::Sender::new(false),
            health,
        })
    }

    /// Records the revision that the server speaks.
    pub(crate) fn set_revision(&self, revision: Revision) {
        let _ = self.revision.set(revision);
    }

    /// Records that the change stream is open, or that there will be none. If lists may have been
    /// read before, each announced topic counts as changed: changes before this went unnoticed.
    pub(crate) fn on_listen_settled(&self) {
        self.listen_settled.notify_one();
        let Some(announced) =
            self.announced_topics.get().filter(|announced| announced.contains(&true))
        else {
            return;
        };
        self.changes.send_modify(|changes| {
            for (count, announced) in changes.0.iter_mut().zip(announced) {
                *count += u64::from(*announced);
            }
        });
    }

    /// Marks all subscribed resources as possibly changed, since updates were missed for a while.
    pub(crate) fn missed_updates(&self) {
        self.registry.mark_all_updated();
    }

    /// Waits at most [`LISTEN_GRACE`] for [`Dispatcher::on_listen_settled`], so that the first
    /// list misses no change. From then on a late acknowledgment counts as a change of each
    /// announced topic.
    pub(crate) async fn wait_for_listen_ack(&self, announced: [bool; 3]) {
        if announced.contains(&true) {
            let _ = tokio::time::timeout(LISTEN_GRACE, self.listen_settled.notified()).await;
        }
        let _ = self.announced_topics.set(announced);
    }

    /// Dispatches a text that the server sent: one message, or an array of them. `stream_of` is the
    /// id of the request on whose HTTP response stream the text arrived; `None` on a shared or
    /// standalone stream.
    pub(crate) fn dispatch(
        &self,
        text: Bytes,
        stream_of: Option<u64>,
    ) -> Result<Dispatched, UnparsableMessage> {
        let mut dispatched = Dispatched::default();
        let is_array = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        if !is_array {
            self.dispatch_one(text, stream_of, &mut dispatched)
                .map_err(|invalid| UnparsableMessage(invalid.reason))?;
            return Ok(dispatched);
        }
        if self.revision.get().is_some_and(|revision| !revision.has_batches()) {
            let reason = "a batch, which this revision does not support";
            return self.reject_array(&text, reason.into());
        }
        let messages =
            json::elements(&text).ok_or_else(|| UnparsableMessage("not valid JSON".into()))?;
        // The messages are counted before the first is dispatched, so that an oversized batch is
        // rejected as a whole.
        if messages.clone().nth(MAX_BATCH).is_some() {
            let reason = format!("more than {MAX_BATCH} messages in one batch");
            return self.reject_array(&text, reason);
        }
        for message in messages {
            if let Err(invalid) = self.dispatch_one(message, stream_of, &mut dispatched) {
                dispatched.junk_counts.invalid += 1;
                tracing::debug!(upstream = %self.name, %invalid, "invalid message in a batch");
            }
        }
        Ok(dispatched)
    }

    /// Dispatches one message. A malformed response ends the request whose id it bears, because no
    /// better one will follow; a malformed request gets an error with its id.
    fn dispatch_one(
        &self,
        text: Bytes,
        stream_of: Option<u64>,
        dispatched: &mut Dispatched,
    ) -> Result<(), InvalidMessage> {
        match Message::parse_within(text, MAX_DEPTH) {
            Ok(message) => self.route(message, stream_of, dispatched),
            Err(invalid) => {
                let Some(id) = &invalid.id else { return Err(invalid) };
                if invalid.shape == MessageShape::Request {
                    let error = jsonrpc::Error::new(invalid.code, &*invalid.reason);
                    dispatched.outgoing.extend(self.refuse(id, &error));
                    dispatched.junk_counts.invalid += 1;
                    return Ok(());
                }
                let Some(id) = id.as_local() else { return Err(invalid) };
                let broken = broken_response(format!("invalid response: {}", invalid.reason));
                dispatched.responses.push((Some(id), Err(broken)));
            }
        }
        Ok(())
    }

    fn route(&self, message: Message, stream_of: Option<u64>, dispatched: &mut Dispatched) {
        match message {
            Message::Response(response) => self.on_response(response, stream_of, dispatched),
            Message::Notification(notification) => {
                self.on_notification(notification, stream_of, &mut dispatched.junk_counts)
            }
            Message::Request(request) => {
                dispatched.junk_counts.unattributed += 1;
                dispatched.outgoing.extend(self.reply(request, stream_of));
            }
        }
    }

    fn on_response(&self, response: Response, stream_of: Option<u64>, dispatched: &mut Dispatched) {
        let has_error = matches!(response.outcome, ResponsePayload::Error(_));
        let id = match response.id.as_ref().map(Id::as_local) {
            // Weir issues numeric ids only, so a response with another id belongs to no request
            // (JSON-RPC, response object: the id MUST be the same value as in the request).
            Some(None) => {
                let disguised = response.id.as_ref().and_then(Id::disguised_local);
                self.report_disguised(disguised);
                self.note_unknown_id(response.id.as_ref(), has_error, stream_of);
                dispatched.junk_counts.unsolicited += 1;
                self.health.dropped.increment();
                tracing::debug!(upstream = %self.name, "response with unknown id");
                return;
            }
            id => id.flatten(),
        };
        let broken = |text: &str| Err(broken_response(text.to_owned()));
        let may_be_empty =
            || id.and_then(|id| self.pending.with_context(id, |context| context.may_be_empty));
        let outcome = match (response.outcome, response.result) {
            (ResponsePayload::Result(text), _)
                if json::is_empty_array(&text) && may_be_empty() == Some(true) =>
            {
                Ok(ResponseOutcome::Result(Payload::Parsed(Object::new())))
            }
            (ResponsePayload::Result(text), _) if !text.starts_with(b"{") => {
                broken("its result is not an object")
            }
            (ResponsePayload::Result(text), read) => {
                Ok(ResponseOutcome::Result(Payload::from_part(text, read)))
            }
            (ResponsePayload::Error(error), _) if !is_error(&error) => {
                broken("its error lacks a code or a message")
            }
            (ResponsePayload::Error(error), _) => {
                Ok(ResponseOutcome::Error(json::on_one_line(error)))
            }
        };
        if self.count_response(id, stream_of, &mut dispatched.junk_counts) {
            self.note_unknown_id(response.id.as_ref(), has_error, stream_of);
        }
        match &outcome {
            Ok(ResponseOutcome::Result(Payload::Parsed(result))) => self.register_task(id, result),
            Ok(ResponseOutcome::Error(error)) => {
                if let Some(notifications) = id.and_then(|id| self.notification_sink(id)) {
                    self.url_elicitations.add_from_error(error, &notifications);
                }
            }
            _ => {}
        }
        dispatched.responses.push((id, outcome));
    }

    /// Whether a task that was started here is still running, as far as the server reports.
    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks.has_active()
    }

    fn on_notification(
        &self,
        notification: Notification,
        stream_of: Option<u64>,
        junk_counts: &mut JunkCounts,
    ) {
        let Notification { method, mut params } = notification;
        // The count is taken back if the notification belongs to a call.
        let before = *junk_counts;
        junk_counts.unattributed += 1;
        if let Some(topic) = ListTopic::of_notification(&method) {
            self.changes.send_modify(|changes| changes.0[topic.index()] += 1);
            return;
        }
        match &*method {
            "notifications/progress" => {
                let token = params.take(meta::PROGRESS_TOKEN).and_then(Id::parse);
                let id = token.and_then(|token| token.as_local());
                let Some(id) = id.filter(|id| self.pending.was_issued(*id)) else {
                    *junk_counts = JunkCounts { invalid: before.invalid + 1, ..before };
                    return;
                };
                if let Some(notifications) = self.notification_sink(id) {
                    *junk_counts = before;
                    notifications.progress(params);
                }
            }
            "notifications/cancelled" => {
                if let Some(id) = params.get_bytes("requestId").and_then(Id::parse) {
                    self.on_cancelled(&id);
                }
            }
            "notifications/subscriptions/acknowledged" => {
                let id = stream_of.or_else(|| subscription_of(&params));
                match id.and_then(|id| {
                    self.pending.with_context(id, |context| context.accepted_tx.clone())
                }) {
                    // A second acknowledgment carries no news, so a full channel is ignored.
                    Some(Some(waiting)) => drop(waiting.try_send(accepted_names(&params))),
                    _ => self.on_listen_settled(),
                }
            }
            RESOURCE_UPDATED => {
                if let Some(uri) = params.get_string("uri") {
                    self.registry.on_updated(&uri);
                }
            }
            TASK_STATUS_NOTIFICATION => self.tasks.on_status(&params),
            TASK_NOTIFICATION => {
                if let Some(scope) = self.scope.get() {
                    self.registry.task_registry().on_task_status(&params, *scope);
                }
            }
            ELICITATION_COMPLETE => self.url_elicitations.complete(&params),
            "notifications/message" => {
                if let Some(notifications) = self.log_target(stream_of) {
                    *junk_counts = before;
                    return notifications.log(&params);
                }
                let text = String::from_utf8_lossy(&params.to_bytes()).into_owned();
                let text: String = text.chars().take(MAX_LOGGED_CHARS).collect();
                tracing::debug!(upstream = %self.name, message = text, "upstream log message");
            }
            method => {
                tracing::trace!(upstream = %self.name, method, "unknown notification ignored")
            }
        }
    }

    /// Returns the immediate response to a server request. `None`: the client's response will
    /// follow, or none is allowed (spec 2026-07-28, transports: the client MUST NOT send
    /// responses).
    fn reply(&self, request: Request, stream_of: Option<u64>) -> Option<Bytes> {
        let revision = self.revision.get().copied().unwrap_or(Revision::NEWEST_LEGACY);
        let Request { id, method, params, .. } = request;
        if revision.era() == Era::Modern {
            let before = self.protocol_violations.fetch_add(1, Ordering::Relaxed);
            self.health.dropped.increment();
            let upstream = &self.name;
            tracing::debug!(%upstream, method = &*method, before, "unexpected server request");
            return None;
        }
        if &*method == "ping" {
            return Some(jsonrpc::write_result(&id, b"{}"));
        }
        let asked = match InputKind::of_method(&method) {
            Some(subject) => self
                .input_request_target(stream_of, &method)
                .map(|(call, notifications)| (subject, call, notifications)),
            None => Err(unsupported_method(&method)),
        };
        let (subject, call, notifications) = match asked {
            Ok(asked) => asked,
            Err(refused) => return Some(jsonrpc::write_error(Some(&id), &refused.to_bytes())),
        };
        // Only the first of two requests with one id is answered. The second may be a repetition on
        // a resumed stream, and with two responses the server would read both as responses to the
        // first.
        let is_open =
            |context: &PendingContext| context.input_requests.as_ref()?.contains(&id).then_some(());
        if self.pending.find_newest(is_open).is_some() {
            tracing::debug!(upstream = %self.name, %id, "server request ignored, its id is in use");
            return None;
        }
        match call.add(id.clone(), subject, params.clone(), revision) {
            Ok(()) => {
                notifications
                    .inspect(|notifications| self.url_elicitations.add(&params, notifications));
                None
            }
            Err(refused) => Some(jsonrpc::write_error(Some(&id), &refused.to_bytes())),
        }
    }
}

/// Returns the resources or tasks that a server accepts for a subscription; one listen request is
/// about one of the two.
fn accepted_names(params: &Object) -> AcceptedSubscriptions {
    let filter = params.get_object("notifications").unwrap_or_default();
    // Weir never subscribes to more than [`MAX_URIS`], so the rest of a longer list is not read.
    let named = |member| Some(filter.get_elements(member)?.take(MAX_URIS));
    let all = [RESOURCE_SUBSCRIPTIONS, TASK_IDS].into_iter().filter_map(named).flatten();
    all.filter_map(|raw| Some(json::decode_string(std::str::from_utf8(&raw).ok()?)?.into()))
        .collect()
}

/// Whether this is a valid JSON-RPC error object: clients would reject another code.
fn is_error(error: &Bytes) -> bool {
    let Ok(error) = Object::parse_within(error.clone(), usize::MAX) else { return false };
    let code = error.get("code").and_then(|code| code.parse::<i64>().ok());
    code.is_some() && error.get("message").is_some_and(|message| message.starts_with('"'))
}

/// Returns the error of a request whose response is malformed: the server has read the request.
fn broken_response(reason: String) -> TransportError {
    TransportError::Other(Error::Protocol(reason))
}

#[cfg(test)]
mod tests {
    use crate::health::upstream_log::UpstreamLog;
    use crate::transport::dispatcher::*;
    use weir_mcp::call_notifications::CallNotification;
    use weir_mcp::log_level::{LogLevel, LogLevelSetting};

    fn dispatcher() -> Arc<Dispatcher> {
        dispatcher_of(ConnectionClients::Many)
    }

    fn dispatcher_of(clients: ConnectionClients) -> Arc<Dispatcher> {
        let (changes, _) = watch::channel(ListChangeCounts::default());
        let name: UpstreamName = "hub".parse().expect("a name");
        let breaker = crate::health::breaker::Settings::default();
        let health = UpstreamHealth::new(name.clone(), breaker, UpstreamLog::default());
        Dispatcher::new(
            name.clone(),
            changes,
            SubscriptionRegistry::new(name),
            clients,
            health,
            RequestIds::default(),
        )
    }

    fn replies(dispatcher: &Dispatcher, text: &'static str) -> Vec<Bytes> {
        dispatcher.dispatch(text.into(), None).expect(text).outgoing
    }

    #[test]
    fn a_server_gets_the_answers_of_a_client_that_offers_nothing() {
        let dispatcher = dispatcher();
        let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
        assert_eq!(replies(&dispatcher, ping), [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#]);
        let sampling = r#"{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}"#;
        let expected = concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"#,
            r#""message":"Method not found: this client does not support sampling/createMessage"}}"#
        );
        assert_eq!(replies(&dispatcher, sampling), [expected]);
        dispatcher.set_revision(Revision::V2026_07_28);
        assert!(replies(&dispatcher, ping).is_empty(), "a modern client sends no responses");
    }

    #[test]
    fn a_batch_is_heard_only_where_the_revision_knows_it() {
        let dispatcher = dispatcher();
        let batch =
            r#" [{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"result":{}},7]"#;
        assert_eq!(dispatcher.dispatch(batch.into(), None).expect("a batch").responses.len(), 2);
        dispatcher.set_revision(Revision::V2025_06_18);
        assert!(dispatcher.dispatch(batch.into(), None).is_err());
    }

    #[test]
    fn an_array_of_too_many_messages_is_not_heard_at_all() {
        let array = |count: usize| {
            let message = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
            Bytes::from(format!("[{}]", vec![message; count].join(",")))
        };
        let dispatcher = dispatcher();
        assert!(dispatcher.dispatch(array(MAX_BATCH + 1), None).is_err());
        assert_eq!(*dispatcher.changes.borrow(), ListChangeCounts::default());
        assert!(dispatcher.dispatch(array(MAX_BATCH), None).is_ok());
        assert_eq!(*dispatcher.changes.borrow(), ListChangeCounts([0, MAX_BATCH as u64, 0]));
    }

    #[test]
    fn responses_that_no_request_has_asked_for_are_noted_and_late_ones_are_not() {
        let dispatcher = dispatcher();
        let send = |id: &str, outcome: &str, stream_of| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#);
            dispatcher.dispatch(text.into(), stream_of).expect("a response");
        };
        let notes = || -> Vec<_> {
            let notes = dispatcher.health.notes.read(dispatcher.health.log.secrets()).into_iter();
            notes.map(|note| (note.kind.as_str(), note.count, note.first)).collect()
        };
        let (result, error) = (r#""result":{}"#, r#""error":{"code":1,"message":"x"}"#);
        let open = dispatcher.pending.open(PendingContext::default()).expect("open");
        let id = open.id();
        send(&id.to_string(), result, None);
        drop(open);
        send(&id.to_string(), result, None);
        send("null", error, None);
        send("\"server-error\"", error, Some(id));
        assert_eq!(notes(), []);
        send(&format!("\"{id}\""), error, None);
        send(&(id + 1_000).to_string(), result, None);
        send("\"1\"", result, Some(id));
        assert_eq!(notes(), [("unknown-id", 3, format!("\"{id}\""))]);
    }

    #[test]
    fn an_acknowledgment_names_no_more_than_can_be_asked_for() {
        let uris = vec!["\"a:b\""; MAX_URIS + 1].join(",");
        let params = format!(r#"{{"notifications":{{"resourceSubscriptions":[7,{uris}]}}}}"#);
        let params = Object::parse(params).expect("an object");
        assert_eq!(accepted_names(&params).len(), MAX_URIS - 1);
    }

    #[test]
    fn news_of_a_change_count_by_topic() {
        let dispatcher = dispatcher();
        for _ in 0..2 {
            let text = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
            dispatcher.dispatch(text.into(), None).expect("a notification");
        }
        assert_eq!(*dispatcher.changes.borrow(), ListChangeCounts([0, 2, 0]));
    }

    #[test]
    fn messages_with_an_empty_array_of_parameters_are_read() {
        let dispatcher = dispatcher();
        let changed =
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":[]}"#;
        dispatcher.dispatch(changed.into(), None).expect("a notification");
        assert_eq!(*dispatcher.changes.borrow(), ListChangeCounts([0, 1, 0]));
        let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping","params":[]}"#;
        assert_eq!(replies(&dispatcher, ping), [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#]);
    }

    #[test]
    fn empty_array_is_a_result_only_where_no_member_is_required() {
        for may_be_empty in [true, false] {
            let dispatcher = dispatcher();
            let context = PendingContext { may_be_empty, ..PendingContext::default() };
            let request = dispatcher.pending.open(context).expect("open");
            let text = |result: &str| {
                format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request.id())
            };
            let is_result = |result: &str| {
                let dispatched =
                    dispatcher.dispatch(text(result).into(), None).expect("a response");
                matches!(&dispatched.responses[..], [(_, Ok(ResponseOutcome::Result(_)))])
            };
            assert_eq!(is_result("[]"), may_be_empty);
            assert!(is_result("{}") && !is_result("[1]"));
        }
    }

    #[tokio::test]
    async fn a_log_message_belongs_to_the_call_of_its_stream_or_to_the_only_client() {
        for clients in
            [ConnectionClients::Many, ConnectionClients::Single, ConnectionClients::SamePrincipal]
        {
            let dispatcher = dispatcher_of(clients);
            let register = |wanted: Option<LogLevel>| {
                let wanted =
                    wanted.map_or_else(LogLevelSetting::disabled, LogLevelSetting::at_least);
                let (notifications, stream) = NotificationSink::open(true, wanted);
                let notifications = notifications.with_logs_enabled(true);
                let context = PendingContext { notifications, ..PendingContext::default() };
                (dispatcher.pending.open(context).expect("open"), stream)
            };
            let (first, received_first) = register(Some(LogLevel::Debug));
            let (second, received_second) = register(Some(LogLevel::Error));
            let (_third, received_third) = register(None);
            let notify = |stream_of, data: u32| {
                let params = format!(r#"{{"level":"error","data":{data}}}"#);
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{params}}}"#
                );
                dispatcher.dispatch(text.into(), stream_of).expect("a notification");
                CallNotification::Log(params.into())
            };
            let of_first = notify(Some(first.id()), 1);
            let of_second = notify(Some(second.id()), 2);
            notify(Some(99), 3);
            let of_no_call = notify(None, 4);
            assert_eq!(received_first.drain(), [of_first]);
            let mut expected = vec![of_second];
            // With several clients of one principal it may belong to any of them.
            expected.extend((clients == ConnectionClients::Single).then(|| of_no_call.clone()));
            assert_eq!(received_second.drain(), expected);
            assert_eq!(received_third.drain(), []);
        }
    }

    #[test]
    fn only_a_subscription_can_be_cancelled_by_the_server() {
        let dispatcher = dispatcher();
        let context = |listen| PendingContext { listen, ..PendingContext::default() };
        let call = dispatcher.pending.open(context(false)).expect("open");
        let listen = dispatcher.pending.open(context(true)).expect("open");
        let method = "notifications/cancelled";
        for id in [call.id(), listen.id()] {
            let text =
                format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"requestId":{id}}}}}"#);
            dispatcher.dispatch(text.into(), None).expect("a notification");
        }
        assert_eq!((call.is_open(), listen.is_open()), (true, false));
    }
}
