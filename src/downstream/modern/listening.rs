//! `subscriptions/listen`: what a client hears of changes, and how the listen ends.
//!
//! Knows nothing of: the stream or the lines that carry it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join, join_all};
use tokio::task::yield_now;

use super::super::response::Refused;
use super::{COMPLETE, input, invalid_params};
use crate::audit::{Ending, Outcome};
use crate::downstream::limits::stream_limit::{Slot, Streams};
use crate::downstream::response::audit_events::Streaming;
use crate::downstream::response::results;
use crate::gateway::{Fault, Guest, Listen, MAX_SUBSCRIPTIONS, News, Subscribed, Subscriptions};
use crate::json::{self, Object};
use crate::jsonrpc::{self, Id};
use crate::mcp::capabilities::Capabilities;
use crate::mcp::input_request::Abilities;
use crate::mcp::kind::{RESOURCE_SUBSCRIPTIONS, Topic};
use crate::mcp::meta;
use crate::mcp::revision::Revision;
use crate::mcp::task::{TASK_IDS, TOLD_TO_LISTENERS, TaskNews};
use crate::policy::limits::Permit;

/// How many resources or tasks of a listen are looked up before other tasks of the thread have their turn.
const AT_A_TIME: usize = 16;

/// The request that opens it.
pub(super) const LISTEN: &str = "subscriptions/listen";

/// An open `subscriptions/listen`.
pub(in crate::downstream) struct Listening {
    id: Id,
    topics: [bool; 3],
    /// Finds out which resources and tasks will be told of; `None` once that has been acknowledged.
    opening: Option<BoxFuture<'static, Honored>>,
    /// What the client can be asked by a task.
    abilities: Abilities,
    listen: Listen,
    _slot: Slot,
    _permit: Permit,
    _record: Streaming,
}

/// The resources and the tasks that will be told of, as the client named them.
type Honored = [Vec<Bytes>; 2];

pub(super) fn listen(
    guest: &Guest,
    permit: Permit,
    id: &Id,
    params: &Object,
    revision: Revision,
    capabilities: &Object,
    streams: &Streams,
) -> Result<Listening, Refused> {
    let filter = params
        .read_object("notifications")
        .map_err(|malformed| invalid_params(&malformed.in_member("notifications")))?;
    let topics = Topic::ALL.map(|topic| filter.get(topic.filter_member()) == Some("true"));
    let resources = read_names(&filter, RESOURCE_SUBSCRIPTIONS)?;
    let tasks = read_names(&filter, TASK_IDS)?;
    // SEP-2663, task status notifications: a MUST.
    if !tasks.is_empty() && !Capabilities::read(capabilities).has_tasks() {
        return Err(input::undeclared_tasks());
    }
    let slot = streams.open(guest.principal()).ok_or_else(|| results::too_busy(STREAM_RETRY))?;
    let subscriptions = guest.subscriptions(&TaskNews::default());
    let listen = guest.listen(&subscriptions, revision);
    let subscribing = subscribe(guest.clone(), subscriptions, resources, tasks);
    Ok(Listening {
        // It stays for as long as its client likes.
        id: id.apart(),
        topics,
        opening: Some(subscribing.boxed()),
        abilities: Abilities::read(capabilities),
        listen,
        _slot: slot,
        _permit: permit,
        _record: Streaming::begin(guest.record().clone()),
    })
}

/// The resources or tasks that a filter names, each once.
fn read_names(filter: &Object, member: &str) -> Result<Vec<Box<str>>, Refused> {
    let list = match filter.get(member) {
        // Some clients write what they do not have as null.
        None | Some("null") => return Ok(Vec::new()),
        Some(_) => filter.get_elements(member),
    };
    let no_strings = || invalid_params(&format!("`{member}` must be an array of strings"));
    let mut list = list.ok_or_else(no_strings)?;
    // Those that are too many are not collected.
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for raw in list.by_ref().take(MAX_SUBSCRIPTIONS) {
        let name: Box<str> = text(&raw).ok_or_else(no_strings)?.into();
        if seen.insert(name.clone()) {
            names.push(name);
        }
    }
    if list.next().is_some() {
        let what = if member == TASK_IDS { "tasks" } else { "resources" };
        return Err(invalid_params(&format!(
            "a listen may subscribe to {MAX_SUBSCRIPTIONS} {what} at most: open another one"
        )));
    }
    Ok(names)
}

fn text(raw: &[u8]) -> Option<Cow<'_, str>> {
    json::decode_string(std::str::from_utf8(raw).ok()?)
}

/// Subscribes to what was asked for, and returns what will be told: not what the client may not read or ask
/// about, what is not there, and what its upstream does not tell of.
async fn subscribe(
    guest: Guest,
    subscriptions: Arc<Subscriptions>,
    resources: Vec<Box<str>>,
    tasks: Vec<Box<str>>,
) -> Honored {
    let (guest, subscriptions) = (&guest, &subscriptions);
    let subscribing = join_all(resources.iter().enumerate().map(|(at, uri)| async move {
        wait_for_turn(at).await;
        // The listen's own record tells of what it will hear; each resource that it will not has one.
        let guest = guest.recorded(guest.record().another());
        guest.record().of_method(LISTEN);
        let subscribed = match guest.admit_part(uri).await {
            Ok(permit) => guest.subscribe(&permit, subscriptions, uri).await,
            Err(fault) => Err(fault),
        };
        let outcome = match subscribed {
            Ok(Subscribed::Agreed) => {
                guest.record().end_if_told(ended(Outcome::Ok));
                return Some(json::quote(uri));
            }
            Ok(Subscribed::Refused(_)) | Err(Fault::Upstream { .. }) => Outcome::Error,
            Err(_) => Outcome::Refused,
        };
        guest.record().end(ended(outcome));
        None
    }));
    let following = join_all(tasks.iter().enumerate().map(|(at, handle)| async move {
        wait_for_turn(at).await;
        let guest = guest.recorded(guest.record().another());
        guest.record().of_method(LISTEN);
        if guest.follow_task(subscriptions, handle).await {
            guest.record().end_if_told(ended(Outcome::Ok));
            return Some(json::quote(handle));
        }
        let outcome = if guest.record().is_sent() { Outcome::Error } else { Outcome::Refused };
        guest.record().end(ended(outcome));
        None
    }));
    let (resources, tasks) = join(subscribing, following).await;
    [resources, tasks].map(|names| names.into_iter().flatten().collect())
}

/// Looking up a URI takes time, which other tasks of the thread have to wait: so a few go at a time.
async fn wait_for_turn(at: usize) {
    for _ in 0..at / AT_A_TIME {
        yield_now().await;
    }
}

fn ended(outcome: Outcome) -> Ending {
    Ending { outcome, code: None, status: None, bytes_out: None }
}

impl Listening {
    /// What goes out next: the acknowledgment (spec, subscriptions: it comes first), then each change that
    /// was asked for. Ends when its client would not be let in any more. Cancel-safe.
    pub(in crate::downstream) async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = &mut self.opening {
            let honored = opening.await;
            self.opening = None;
            return Some(self.acknowledged(&honored));
        }
        loop {
            let news = self.listen.next().await?;
            if let News::Task(task) = &news {
                match self.told(task) {
                    Some(told) => return Some(told),
                    None => continue,
                }
            }
            let is_wanted = match &news {
                News::Lists(topic) => self.topics[topic.index()],
                News::Updated(_) | News::Task(_) => true,
                // Spec 2026-07-28, changelog: this era knows no such news.
                News::Visited(_) => false,
            };
            if is_wanted {
                return Some(results::news(&news, self.params()));
            }
        }
    }

    /// The notification of a task; `None` if the task asks for what the client did not declare, which it will be
    /// told when it asks about the task.
    fn told(&self, task: &Bytes) -> Option<Bytes> {
        let mut task = Object::parse_within(task.clone(), usize::MAX).ok()?;
        input::check(&task, self.abilities).ok()?;
        let mut meta = task.get_object("_meta").unwrap_or_default();
        meta.set(meta::SUBSCRIPTION_ID, self.id.as_bytes().clone());
        task.set("_meta", meta.to_bytes());
        Some(jsonrpc::write_notification(TOLD_TO_LISTENERS, &task.to_bytes()))
    }

    /// The kinds, resources and tasks that will be told of; others that were asked for are left out.
    fn acknowledged(&self, named: &Honored) -> Bytes {
        let mut honored = Object::new();
        for topic in Topic::ALL.into_iter().filter(|topic| self.topics[topic.index()]) {
            honored.set(topic.filter_member(), "true");
        }
        for (member, names) in [RESOURCE_SUBSCRIPTIONS, TASK_IDS].into_iter().zip(named) {
            if !names.is_empty() {
                let list = [&b"["[..], &names.join(&b","[..]), b"]"].concat();
                honored.set(member, list);
            }
        }
        let mut params = self.params();
        params.set("notifications", honored.to_bytes());
        jsonrpc::write_notification("notifications/subscriptions/acknowledged", &params.to_bytes())
    }

    /// The end, where the wire has a stream of its own for it (spec, subscriptions, graceful closure).
    pub(in crate::downstream) fn ended(&self) -> Bytes {
        let mut result = self.params();
        result.set("resultType", COMPLETE);
        jsonrpc::write_result(&self.id, &result.to_bytes())
    }

    /// The end on a shared wire (spec, cancellation: `notifications/cancelled` with the listen's id).
    pub(in crate::downstream) fn cancelled(&self) -> Bytes {
        let mut params = Object::new();
        params.set("requestId", self.id.as_bytes().clone());
        jsonrpc::write_notification("notifications/cancelled", &params.to_bytes())
    }

    /// `_meta` with the subscription's id, which keeps the JSON type of the request's.
    fn params(&self) -> Object {
        let mut meta = Object::new();
        meta.set(meta::SUBSCRIPTION_ID, self.id.as_bytes().clone());
        let mut params = Object::new();
        params.set("_meta", meta.to_bytes());
        params
    }
}

/// When a client with too many streams may try again.
const STREAM_RETRY: Duration = Duration::from_secs(1);
