//! Resources with subscriptions, and task notifications, in both eras.

use weir_base::json::{self, Object};
use weir_mcp::jsonrpc;
use weir_mcp::kind::{RESOURCE_SUBSCRIPTIONS, RESOURCE_UPDATED};
use weir_mcp::task::{TASK_IDS, TASK_NOTIFICATION, TASK_STATUS_NOTIFICATION};

use super::call::Output;
use super::{Answer, Listener, State, Upstream, subscription};
use crate::world::settle;

impl Upstream {
    /// Announces a change of a resource, to the conversations and listens that subscribed to
    /// exactly `subscribed`.
    pub(crate) fn update_part(&self, subscribed: &str, uri: &str) {
        let mut state = self.lock();
        state.listeners.retain(|listener| !listener.sink.is_closed());
        state.forget_pairs();
        for listener in state
            .listeners
            .iter()
            .filter(|listener| state.resources_of(listener).contains(&subscribed.into()))
        {
            let mut params = Object::new();
            if let Some((id, _)) = &listener.listen {
                params.set("_meta", subscription(id));
            }
            params.set("uri", json::quote(uri));
            listener.sink.send(Output::Note(jsonrpc::write_notification(
                RESOURCE_UPDATED,
                &params.to_bytes(),
            )));
        }
    }

    /// Announces a change of a resource to its subscribers.
    pub(crate) fn update(&self, uri: &str) {
        self.update_part(uri, uri);
    }

    /// Announces the status of a task: to the listens that name it, or in the legacy era on every
    /// stream. Returns the number of these streams.
    pub(crate) fn announce_task(&self, own: &str, members: &str) -> usize {
        let mut state = self.lock();
        state.listeners.retain(|listener| !listener.sink.is_closed());
        state.forget_pairs();
        let named = |listener: &&Listener| {
            listener.listen.is_none() || listener.names(TASK_IDS).contains(&own.into())
        };
        let listeners: Vec<_> = state.listeners.iter().filter(named).collect();
        for listener in &listeners {
            let mut params: Object =
                Object::parse(format!(r#"{{"taskId":"{own}",{members}}}"#)).expect("an object");
            let method = match &listener.listen {
                Some((id, _)) => {
                    params.set("_meta", subscription(id));
                    TASK_NOTIFICATION
                }
                None => TASK_STATUS_NOTIFICATION,
            };
            listener
                .sink
                .send(Output::Note(jsonrpc::write_notification(method, &params.to_bytes())));
        }
        listeners.len()
    }

    /// Waits until a stream is open on which this task would be announced.
    pub(crate) async fn until_task_listener(&self, own: &str) {
        let what = format!("somebody listens for {own}");
        let received = |state: &State| {
            let mut open = state.listeners.iter().filter(|listener| !listener.sink.is_closed());
            open.any(|listener| {
                listener.listen.is_none() || listener.names(TASK_IDS).contains(&own.into())
            })
        };
        self.until(&what, received).await;
    }

    /// All subscribed resources, with duplicates.
    pub(crate) fn subscribed(&self) -> Vec<String> {
        let mut state = self.lock();
        state.listeners.retain(|listener| !listener.sink.is_closed());
        state.forget_pairs();
        let mut all: Vec<_> = match self.side().is_modern() {
            true => {
                state.listeners.iter().flat_map(|listener| state.resources_of(listener)).collect()
            }
            false => state.subscriptions.values().flatten().cloned().collect(),
        };
        all.sort();
        all
    }

    /// Waits until exactly these resources are subscribed to.
    pub(crate) async fn until_subscribed(&self, uris: &[&str]) {
        for _ in 0..20_000 {
            if self.subscribed() == uris {
                return;
            }
            settle().await;
        }
        panic!("waited in vain for {uris:?}: {:?}", self.subscribed());
    }

    /// Adds or removes a legacy subscription.
    pub(super) fn change_subscriptions(&self, of: u64, method: &str, params: &Object) -> Answer {
        let uri = params.get_string("uri").expect("a URI").into_owned();
        let mut state = self.lock();
        let own = state.subscriptions.entry(of).or_default();
        let is_news = match method {
            "resources/subscribe" => own.insert(uri.clone()),
            _ => own.remove(&uri),
        };
        if !is_news {
            state.violations.push(format!("{method} {uri} once too often"));
        }
        Answer::Result("{}".into())
    }
}

impl State {
    /// A conversation over the pair ends with its stream.
    fn forget_pairs(&mut self) {
        let Self { streams, subscriptions, .. } = self;
        subscriptions.retain(|of, _| streams.get(of).is_none_or(|stream| !stream.is_closed()));
    }

    /// Resources whose changes are announced on a stream.
    fn resources_of(&self, listener: &Listener) -> Vec<String> {
        match listener.listen {
            None => self.subscriptions.get(&listener.of).into_iter().flatten().cloned().collect(),
            Some(_) => listener.names(RESOURCE_SUBSCRIPTIONS),
        }
    }
}

impl Listener {
    /// Elements of this member of a listen's filter.
    fn names(&self, member: &str) -> Vec<String> {
        let filter = self.listen.as_ref().map(|(_, filter)| filter);
        let list = filter.and_then(|filter| filter.get_bytes(member)).unwrap_or_default();
        let text = |raw: bytes::Bytes| {
            let raw = std::str::from_utf8(&raw).expect("UTF-8");
            json::decode_string(raw).expect("a string").into_owned()
        };
        json::elements(&list).unwrap_or_default().map(text).collect()
    }
}
