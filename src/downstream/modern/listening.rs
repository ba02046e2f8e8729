//! `subscriptions/listen`: what a client hears of changes, and how the listen ends.
//!
//! Knows nothing of: the stream or the lines that carry it.

use std::time::Duration;

use bytes::Bytes;

use super::super::answer::Refused;
use super::super::encode;
use super::super::streams::{Slot, Streams};
use super::{COMPLETE, invalid_params};
use crate::gateway::{Guest, Listen};
use crate::json::Object;
use crate::mcp::kind::Topic;
use crate::mcp::meta;
use crate::rpc::{self, Id};

/// An open `subscriptions/listen`.
pub(in crate::downstream) struct Listening {
    id: Id,
    wanted: [bool; 3],
    listen: Listen,
    _slot: Slot,
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
    let slot = streams.open(guest.principal()).ok_or_else(|| encode::too_busy(STREAM_RETRY))?;
    let wanted = Topic::ALL.map(|topic| filter.get(topic.filter_member()) == Some("true"));
    Ok(Listening { id: id.clone(), wanted, listen: guest.listen(), _slot: slot })
}

impl Listening {
    /// What goes out first: the kinds that will be told (spec, subscriptions, acknowledgment). Others
    /// that were asked for are left out.
    pub(in crate::downstream) fn acknowledged(&self) -> Bytes {
        let mut honored = Object::new();
        for topic in Topic::ALL.into_iter().filter(|topic| self.wanted[topic.index()]) {
            honored.set(topic.filter_member(), "true");
        }
        let mut params = self.params();
        params.set("notifications", honored.to_bytes());
        rpc::write_notification("notifications/subscriptions/acknowledged", &params.to_bytes())
    }

    /// The next change that was asked for. Never ends. Cancel-safe.
    pub(in crate::downstream) async fn changed(&mut self) -> Bytes {
        loop {
            let topic = self.listen.next().await;
            if self.wanted[topic.index()] {
                return rpc::write_notification(topic.notification(), &self.params().to_bytes());
            }
        }
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
