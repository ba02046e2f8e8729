//! Resources that one can subscribe to, and tasks that are told of, in both eras.

use weir::json::{self, Object};
use weir::jsonrpc;
use weir::mcp::kind::{RESOURCE_SUBSCRIPTIONS, RESOURCE_UPDATED};
use weir::mcp::task::{TASK_IDS, TOLD_TO_LISTENERS, TOLD_TO_OWNERS};

use super::call::Out;
use super::{Answer, Ear, State, Upstream, subscription};
use crate::world::settle;

impl Upstream {
    /// Says that a resource has changed, to those conversations and listens that subscribed to exactly
    /// `subscribed`.
    pub(crate) fn update_part(&self, subscribed: &str, uri: &str) {
        let mut state = self.lock();
        state.ears.retain(|ear| !ear.sink.is_closed());
        state.forget_pairs();
        for ear in
            state.ears.iter().filter(|ear| state.resources_of(ear).contains(&subscribed.into()))
        {
            let mut params = Object::new();
            if let Some((id, _)) = &ear.listen {
                params.set("_meta", subscription(id));
            }
            params.set("uri", json::quote(uri));
            ear.sink
                .send(Out::Note(jsonrpc::write_notification(RESOURCE_UPDATED, &params.to_bytes())));
        }
    }

    /// Says that a resource has changed, to whom it may concern.
    pub(crate) fn update(&self, uri: &str) {
        self.update_part(uri, uri);
    }

    /// Says what has become of a task: to the listens that name it, or in the legacy era on every stream. Returns
    /// how many that are.
    pub(crate) fn tell_task(&self, own: &str, members: &str) -> usize {
        let mut state = self.lock();
        state.ears.retain(|ear| !ear.sink.is_closed());
        state.forget_pairs();
        let named = |ear: &&Ear| ear.listen.is_none() || ear.names(TASK_IDS).contains(&own.into());
        let ears: Vec<_> = state.ears.iter().filter(named).collect();
        for ear in &ears {
            let mut params: Object =
                Object::parse(format!(r#"{{"taskId":"{own}",{members}}}"#)).expect("an object");
            let method = match &ear.listen {
                Some((id, _)) => {
                    params.set("_meta", subscription(id));
                    TOLD_TO_LISTENERS
                }
                None => TOLD_TO_OWNERS,
            };
            ear.sink.send(Out::Note(jsonrpc::write_notification(method, &params.to_bytes())));
        }
        ears.len()
    }

    /// Waits until this task would be told of on some stream.
    pub(crate) async fn until_listened(&self, own: &str) {
        let what = format!("somebody listens for {own}");
        let heard = |state: &State| {
            let mut open = state.ears.iter().filter(|ear| !ear.sink.is_closed());
            open.any(|ear| ear.listen.is_none() || ear.names(TASK_IDS).contains(&own.into()))
        };
        self.until(&what, heard).await;
    }

    /// What is subscribed to, as often as it is.
    pub(crate) fn subscribed(&self) -> Vec<String> {
        let mut state = self.lock();
        state.ears.retain(|ear| !ear.sink.is_closed());
        state.forget_pairs();
        let mut all: Vec<_> = match self.side().is_modern() {
            true => state.ears.iter().flat_map(|ear| state.resources_of(ear)).collect(),
            false => state.subscriptions.values().flatten().cloned().collect(),
        };
        all.sort();
        all
    }

    /// Waits until exactly this is subscribed to.
    pub(crate) async fn until_subscribed(&self, uris: &[&str]) {
        for _ in 0..20_000 {
            if self.subscribed() == uris {
                return;
            }
            settle().await;
        }
        panic!("waited in vain for {uris:?}: {:?}", self.subscribed());
    }

    /// A legacy client begins or ends to hear of a resource.
    pub(super) fn change_subscriptions(&self, of: u64, method: &str, params: &Object) -> Answer {
        let uri = params.get_string("uri").expect("a URI").into_owned();
        let mut state = self.lock();
        let own = state.subscriptions.entry(of).or_default();
        let is_news = match method {
            "resources/subscribe" => own.insert(uri.clone()),
            _ => own.remove(&uri),
        };
        if !is_news {
            state.surprises.push(format!("{method} {uri} once too often"));
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

    /// The resources whose changes an ear hears.
    fn resources_of(&self, ear: &Ear) -> Vec<String> {
        match ear.listen {
            None => self.subscriptions.get(&ear.of).into_iter().flatten().cloned().collect(),
            Some(_) => ear.names(RESOURCE_SUBSCRIPTIONS),
        }
    }
}

impl Ear {
    /// What a listen's filter names in this member.
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
