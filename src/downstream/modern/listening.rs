//! `subscriptions/listen`: what a client hears of changes, and how the listen ends.
//!
//! Knows nothing of: the stream or the lines that carry it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};

use super::super::answer::Refused;
use super::super::encode;
use super::super::recording::Streaming;
use super::super::streams::{Slot, Streams};
use super::{COMPLETE, invalid_params};
use crate::audit::{Ending, Outcome};
use crate::gateway::{Fault, Guest, Listen, MAX_SUBSCRIPTIONS, News, Subscribed, Subscriptions};
use crate::json::{self, Object};
use crate::mcp::kind::{RESOURCE_SUBSCRIPTIONS, Topic};
use crate::mcp::meta;
use crate::rpc::{self, Id};

/// The request that opens it.
pub(super) const LISTEN: &str = "subscriptions/listen";

/// An open `subscriptions/listen`.
pub(in crate::downstream) struct Listening {
    id: Id,
    topics: [bool; 3],
    /// Finds out which resources will be told of; `None` once that has been acknowledged.
    opening: Option<BoxFuture<'static, Vec<Bytes>>>,
    listen: Listen,
    _slot: Slot,
    _record: Streaming,
}

pub(super) fn listen(
    guest: &Guest,
    id: &Id,
    params: &Object,
    streams: &Streams,
) -> Result<Listening, Refused> {
    let filter = params
        .get_object("notifications")
        .ok_or_else(|| invalid_params("`notifications` must be an object"))?;
    let topics = Topic::ALL.map(|topic| filter.get(topic.filter_member()) == Some("true"));
    let resources = read_resources(&filter)?;
    let slot = streams.open(guest.principal()).ok_or_else(|| encode::too_busy(STREAM_RETRY))?;
    let subscriptions = guest.subscriptions();
    let listen = guest.listen(&subscriptions);
    let opening = Some(subscribe(guest.clone(), subscriptions, resources).boxed());
    let record = Streaming::begin(guest.record().clone());
    Ok(Listening { id: id.clone(), topics, opening, listen, _slot: slot, _record: record })
}

/// The resources that a filter names, each once.
fn read_resources(filter: &Object) -> Result<Vec<Box<str>>, Refused> {
    let list = match filter.get(RESOURCE_SUBSCRIPTIONS) {
        // Some clients write what they do not have as null.
        None | Some("null") => return Ok(Vec::new()),
        Some(_) => filter.get_bytes(RESOURCE_SUBSCRIPTIONS).and_then(|list| json::elements(&list)),
    };
    let uri = |raw: &Bytes| Some(json::decode_string(std::str::from_utf8(raw).ok()?)?.into());
    let uris = list.and_then(|list| list.iter().map(uri).collect::<Option<Vec<Box<str>>>>());
    let mut uris = uris.ok_or_else(|| {
        invalid_params(&format!("`{RESOURCE_SUBSCRIPTIONS}` must be an array of strings"))
    })?;
    if uris.len() > MAX_SUBSCRIPTIONS {
        return Err(invalid_params(&format!(
            "a listen may subscribe to {MAX_SUBSCRIPTIONS} resources at most: open another one"
        )));
    }
    let mut seen = HashSet::new();
    uris.retain(|uri| seen.insert(uri.clone()));
    Ok(uris)
}

/// Subscribes to what was asked for, and returns what will be told: not what the client may not read, what
/// is not there, and what its upstream does not tell of.
async fn subscribe(
    guest: Guest,
    subscriptions: Arc<Subscriptions>,
    resources: Vec<Box<str>>,
) -> Vec<Bytes> {
    let subscribing = resources.iter().map(|uri| async {
        // The listen's own record tells of what it will hear; each resource that it will not has one.
        let guest = guest.recorded(guest.record().another());
        guest.record().of_method(LISTEN);
        let outcome = match guest.subscribe(&subscriptions, uri).await {
            Ok(Subscribed::Agreed) => {
                guest.record().forget();
                return Some(json::quote(uri));
            }
            Ok(Subscribed::Refused(_)) | Err(Fault::Upstream { .. }) => Outcome::Error,
            Err(_) => Outcome::Refused,
        };
        guest.record().end(Ending { outcome, code: None, status: None, bytes_out: None });
        None
    });
    join_all(subscribing).await.into_iter().flatten().collect()
}

impl Listening {
    /// What goes out next: the acknowledgment (spec, subscriptions: it comes first), then each change that
    /// was asked for. Never ends. Cancel-safe.
    pub(in crate::downstream) async fn next(&mut self) -> Bytes {
        if let Some(opening) = &mut self.opening {
            let honored = opening.await;
            self.opening = None;
            return self.acknowledged(&honored);
        }
        loop {
            let news = self.listen.next().await;
            let is_wanted = match &news {
                News::Lists(topic) => self.topics[topic.index()],
                News::Updated(_) => true,
            };
            if is_wanted {
                return encode::news(&news, self.params());
            }
        }
    }

    /// The kinds and resources that will be told of; others that were asked for are left out.
    fn acknowledged(&self, resources: &[Bytes]) -> Bytes {
        let mut honored = Object::new();
        for topic in Topic::ALL.into_iter().filter(|topic| self.topics[topic.index()]) {
            honored.set(topic.filter_member(), "true");
        }
        if !resources.is_empty() {
            let list = [&b"["[..], &resources.join(&b","[..]), b"]"].concat();
            honored.set(RESOURCE_SUBSCRIPTIONS, list);
        }
        let mut params = self.params();
        params.set("notifications", honored.to_bytes());
        rpc::write_notification("notifications/subscriptions/acknowledged", &params.to_bytes())
    }

    /// The end, where the wire has a stream of its own for it (spec, subscriptions, graceful closure).
    pub(in crate::downstream) fn ended(&self) -> Bytes {
        let mut result = self.params();
        result.set("resultType", COMPLETE);
        rpc::write_result(&self.id, &result.to_bytes())
    }

    /// The end on a shared wire (spec, cancellation: `notifications/cancelled` with the listen's id).
    pub(in crate::downstream) fn cancelled(&self) -> Bytes {
        let mut params = Object::new();
        params.set("requestId", self.id.as_bytes().clone());
        rpc::write_notification("notifications/cancelled", &params.to_bytes())
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
