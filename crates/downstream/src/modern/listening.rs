//! `subscriptions/listen`: the filter, the acknowledgment, the notifications, and the end of a
//! stream.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join, join_all};
use futures::stream::{SelectAll, select_all};
use futures::{FutureExt, StreamExt};
use tokio::task::yield_now;

use super::super::request_parts::RequestParts;
use super::super::response::ErrorResponse;
use super::remote_tasks::{RemoteListen, RemoteMessages, RemoteTasks};
use super::{COMPLETE, input};
use crate::ServerState;
use crate::limits::stream_limit::StreamPermit;
use crate::response::results::{self, invalid_params};
use weir_access::policy::limits::Permit;
use weir_base::json::{self, Object};
use weir_gateway::{
    Admission, ClientContext, ClientNotification, ClientNotifications, Error, MAX_SUBSCRIPTIONS,
    SubscribeOutcome, Subscriptions,
};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::kind::{ListTopic, RESOURCE_SUBSCRIPTIONS};
use weir_mcp::meta;
use weir_mcp::revision::Revision;
use weir_mcp::task::{TASK_IDS, TASK_NOTIFICATION};
use weir_record::audit::{AuditOutcome, EventCompletion, OpenStreamEvent, RequestProgress};

/// Resources or tasks that one request looks up before it yields to other tasks of the thread.
const LOOKUPS_PER_YIELD: usize = 16;

/// Method that opens the stream.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// An open `subscriptions/listen` stream.
pub(crate) struct ListenSubscription {
    id: Id,
    topics: [bool; 3],
    /// Subscribes at the upstreams; `None` once the acknowledgment is sent.
    opening: Option<ListenOpening>,
    /// Notifications about tasks from other replicas.
    remote: Option<Box<SelectAll<RemoteMessages>>>,
    /// Features that a task may request from the client.
    features: ClientFeatures,
    listen: ClientNotifications,
    _stream_permit: StreamPermit,
    _permit: Permit,
    _audit_event: OpenStreamEvent,
}

/// Accepted resources and tasks, as the client named them.
type AcceptedTargets = [Vec<Bytes>; 2];

/// A listen whose acknowledgment is not sent yet.
enum ListenOpening {
    /// It has not begun.
    Prepared(Box<ListenTargets>),
    Begun(BoxFuture<'static, (AcceptedTargets, Vec<RemoteTasks>)>),
}

/// Resources and tasks that a client listens for.
struct ListenTargets {
    client: ClientContext,
    subscriptions: Arc<Subscriptions>,
    resources: Vec<Box<str>>,
    tasks: Vec<Box<str>>,
    elsewhere: Vec<RemoteListen>,
}

impl ListenTargets {
    /// Subscribes here and at the other replicas.
    async fn open(self) -> (AcceptedTargets, Vec<RemoteTasks>) {
        let Self { client, subscriptions, resources, tasks, elsewhere } = self;
        let here = subscribe(client, subscriptions, resources, tasks);
        let (mut accepted, remote) = join(here, join_all(elsewhere)).await;
        let remote: Vec<_> = remote.into_iter().flatten().collect();
        let [_, tasks] = &mut accepted;
        tasks.extend(remote.iter().flat_map(|remote| remote.accepted.iter().cloned()));
        (accepted, remote)
    }
}

pub(super) fn listen(
    RequestParts { client, id, params, .. }: &RequestParts,
    permit: Permit,
    revision: Revision,
    capabilities: &Object,
    state: &ServerState,
) -> Result<ListenSubscription, ErrorResponse> {
    let filter = params
        .require_object("notifications")
        .map_err(|malformed| invalid_params(&malformed.in_member("notifications")))?;
    let topics = ListTopic::ALL.map(|topic| filter.get(topic.filter_member()) == Some("true"));
    let resources = read_names(&filter, RESOURCE_SUBSCRIPTIONS)?;
    let tasks = read_names(&filter, TASK_IDS)?;
    // SEP-2663, task status notifications: a client without the tasks extension MUST be refused.
    if !tasks.is_empty() && !Capabilities::read(capabilities).has_tasks() {
        return Err(input::undeclared_tasks());
    }
    let stream_permit = state
        .streams
        .acquire(client.principal(), state.settings.per_client.streams)
        .ok_or_else(|| results::too_busy(STREAM_RETRY))?;
    let subscriptions = Subscriptions::new(client, client.client_handle());
    let mut listen = ClientNotifications::new(client, &subscriptions, revision);
    // Without a session, the client lists from any replica.
    if let Some(fleet) = state.fleet() {
        listen = listen.with_lists_elsewhere(fleet.lists_elsewhere());
    }
    let (client, elsewhere) = (client.clone(), Vec::new());
    let stream = client.audit_event().begin_stream();
    let targets = ListenTargets { client, subscriptions, resources, tasks, elsewhere };
    Ok(ListenSubscription {
        // Copied, because the stream may stay open for long.
        id: id.detached(),
        topics,
        opening: Some(ListenOpening::Prepared(Box::new(targets))),
        remote: None,
        features: ClientFeatures::read(capabilities),
        listen,
        _stream_permit: stream_permit,
        _permit: permit,
        _audit_event: stream,
    })
}

/// Parses the resources or tasks of a filter, without duplicates.
fn read_names(filter: &Object, member: &str) -> Result<Vec<Box<str>>, ErrorResponse> {
    let list = match filter.get(member) {
        // Some clients write what they do not have as null.
        None | Some("null") => return Ok(Vec::new()),
        Some(_) => filter.get_elements(member),
    };
    let no_strings = || invalid_params(&format!("`{member}` must be an array of strings"));
    let mut list = list.ok_or_else(no_strings)?;
    // Names beyond the limit are not collected.
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for raw in list.by_ref().take(MAX_SUBSCRIPTIONS) {
        let name: Box<str> = json::decode_bytes(&raw).ok_or_else(no_strings)?.into();
        if seen.insert(name.clone()) {
            names.push(name);
        }
    }
    if list.next().is_some() {
        let what = if member == TASK_IDS { "tasks" } else { "resources" };
        return Err(invalid_params(&format!(
            "a listen may subscribe to {MAX_SUBSCRIPTIONS} {what} at most: open another stream"
        )));
    }
    Ok(names)
}

/// Subscribes to the requested resources and tasks and returns the accepted ones. Left out are
/// those that the client may not access, that do not exist, or whose upstream sends no
/// notifications.
async fn subscribe(
    client: ClientContext,
    subscriptions: Arc<Subscriptions>,
    resources: Vec<Box<str>>,
    tasks: Vec<Box<str>>,
) -> AcceptedTargets {
    let (client, subscriptions) = (&client, &subscriptions);
    let subscribing = join_all(resources.iter().enumerate().map(|(at, uri)| async move {
        yield_before(at).await;
        let client = client_for_target(client);
        let subscribed = match Admission::acquire_subscription(&client, uri).await {
            Ok(mut admission) => subscriptions.subscribe(&client, &mut admission, uri).await,
            Err(error) => Err(error),
        };
        let outcome = match subscribed {
            Ok(SubscribeOutcome::Accepted) => AuditOutcome::Ok,
            Ok(SubscribeOutcome::Refused(_)) | Err(Error::Upstream { .. }) => AuditOutcome::Error,
            Err(_) => AuditOutcome::Refused,
        };
        end_target(&client, uri, outcome)
    }));
    let following = join_all(tasks.iter().enumerate().map(|(at, handle)| async move {
        yield_before(at).await;
        let client = client_for_target(client);
        let is_accepted = subscriptions.follow_task(&client, handle).await;
        let outcome = match client.audit_event().progress() {
            _ if is_accepted => AuditOutcome::Ok,
            RequestProgress::Sent => AuditOutcome::Error,
            RequestProgress::Received | RequestProgress::Refused => AuditOutcome::Refused,
        };
        end_target(&client, handle, outcome)
    }));
    let (resources, tasks) = join(subscribing, following).await;
    [resources, tasks].map(|names| names.into_iter().flatten().collect())
}

/// Returns the client with an audit event for one resource or task.
fn client_for_target(client: &ClientContext) -> ClientContext {
    let client = client.with_next_audit_event();
    client.audit_event().set_method(LISTEN);
    client
}

/// Ends the audit event of one resource or task, and returns its name if it was accepted: the audit
/// event of the stream covers the accepted ones.
fn end_target(client: &ClientContext, name: &str, outcome: AuditOutcome) -> Option<Bytes> {
    let completion = EventCompletion::of(outcome);
    if outcome == AuditOutcome::Ok {
        client.audit_event().end_if_written(completion);
        return Some(json::quote(name));
    }
    client.audit_event().end(completion);
    None
}

/// Yields before every further group of lookups: looking up a URI takes time, for which other tasks
/// of the thread would wait.
async fn yield_before(at: usize) {
    for _ in 0..at / LOOKUPS_PER_YIELD {
        yield_now().await;
    }
}

impl ListenSubscription {
    /// Takes out the tasks that are elsewhere, as this function tells, before the listen begins.
    pub(crate) fn take_tasks<T>(
        &mut self,
        elsewhere: impl Fn(&str) -> Option<T>,
    ) -> Vec<(Box<str>, T)> {
        let Some(ListenOpening::Prepared(targets)) = &mut self.opening else { return Vec::new() };
        let mut taken = Vec::new();
        targets.tasks.retain_mut(|handle| match elsewhere(handle) {
            Some(place) => {
                taken.push((std::mem::take(handle), place));
                false
            }
            None => true,
        });
        taken
    }

    /// Adds a listen at another replica, before this one begins.
    pub(crate) fn join(&mut self, remote: RemoteListen) {
        if let Some(ListenOpening::Prepared(targets)) = &mut self.opening {
            targets.elsewhere.push(remote);
        }
    }

    /// Waits until the listen is open, and returns what was accepted. Cancel-safe.
    async fn opened(&mut self) -> Option<AcceptedTargets> {
        if let Some(ListenOpening::Prepared(_)) = &self.opening
            && let Some(ListenOpening::Prepared(targets)) = self.opening.take()
        {
            self.opening = Some(ListenOpening::Begun(targets.open().boxed()));
        }
        let Some(ListenOpening::Begun(opening)) = &mut self.opening else { return None };
        let (accepted, remote) = opening.await;
        self.opening = None;
        if !remote.is_empty() {
            let notifications = remote.into_iter().map(|remote| remote.notifications);
            self.remote = Some(Box::new(select_all(notifications)));
        }
        Some(accepted)
    }

    /// Returns the next message: the acknowledgment (spec, subscriptions: it comes first), then
    /// each requested notification. Ends when the client's credentials are no longer valid.
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if let Some(accepted) = self.opened().await {
            return Some(self.acknowledged(&accepted));
        }
        loop {
            let notification = tokio::select! {
                biased;
                notification = self.listen.next() => notification?,
                Some(message) = next_of(&mut self.remote) => return Some(message),
            };
            if let ClientNotification::Task(task) = &notification {
                match self.task_notification(task) {
                    Some(task_notification) => return Some(task_notification),
                    None => continue,
                }
            }
            let is_wanted = match &notification {
                ClientNotification::Lists(topic) => self.topics[topic.index()],
                ClientNotification::Updated(_) | ClientNotification::Task(_) => true,
                // Spec 2026-07-28, changelog: this era has no `elicitation/complete`.
                ClientNotification::ElicitationComplete(_) => false,
            };
            if is_wanted {
                return Some(results::change_notification(&notification, self.params()));
            }
        }
    }

    /// Builds a task notification; `None` if the task requests input that the client did not
    /// declare. The client gets that error when it requests the task.
    fn task_notification(&self, task: &Bytes) -> Option<Bytes> {
        let mut task = Object::parse_within(task.clone(), usize::MAX).ok()?;
        input::check(&task, self.features).ok()?;
        let meta = task.get_object("_meta").unwrap_or_default();
        let meta = meta.with(meta::SUBSCRIPTION_ID, self.id.as_bytes().clone());
        task.set("_meta", meta.to_bytes());
        Some(jsonrpc::write_notification(TASK_NOTIFICATION, &task.to_bytes()))
    }

    /// Builds the acknowledgment: accepted list kinds, resources and tasks.
    fn acknowledged(&self, named: &AcceptedTargets) -> Bytes {
        let mut accepted = Object::new();
        for topic in ListTopic::ALL.into_iter().filter(|topic| self.topics[topic.index()]) {
            accepted.set(topic.filter_member(), "true");
        }
        for (member, names) in [RESOURCE_SUBSCRIPTIONS, TASK_IDS].into_iter().zip(named) {
            if !names.is_empty() {
                let list = [&b"["[..], &names.join(&b","[..]), b"]"].concat();
                accepted.set(member, list);
            }
        }
        let params = self.params().with("notifications", accepted.to_bytes());
        jsonrpc::write_notification("notifications/subscriptions/acknowledged", &params.to_bytes())
    }

    /// Builds the final result, on a stream of its own (spec, subscriptions, graceful closure).
    pub(crate) fn final_result(&self) -> Bytes {
        let result = self.params().with("resultType", COMPLETE);
        jsonrpc::write_result(&self.id, &result.to_bytes())
    }

    /// Builds the cancellation, on a shared stream (spec, cancellation: `notifications/cancelled`
    /// with the request id of the listen).
    pub(crate) fn cancel_notification(&self) -> Bytes {
        let params = Object::new().with("requestId", self.id.as_bytes().clone());
        jsonrpc::write_notification("notifications/cancelled", &params.to_bytes())
    }

    /// Builds `_meta` with the subscription id, which keeps the JSON type of the request id.
    fn params(&self) -> Object {
        let meta = Object::new().with(meta::SUBSCRIPTION_ID, self.id.as_bytes().clone());
        Object::new().with("_meta", meta.to_bytes())
    }
}

/// Returns the next message of another replica; `None` if there are no more.
async fn next_of(remote: &mut Option<Box<SelectAll<RemoteMessages>>>) -> Option<Bytes> {
    remote.as_mut()?.next().await
}

/// Delay after which a client that has reached its stream limit may retry.
const STREAM_RETRY: Duration = Duration::from_secs(1);
