//! Resources that one can subscribe to, in both eras.

use weir::json::{self, Object};
use weir::mcp::kind::{RESOURCE_SUBSCRIPTIONS, RESOURCE_UPDATED};
use weir::rpc;

use super::call::Out;
use super::{Answer, Ear, State, Upstream, subscription};
use crate::world::settle;

impl Upstream {
    /// Says that a resource has changed, to those conversations and listens that subscribed to exactly
    /// `subscribed`.
    pub(crate) fn update_part(&self, subscribed: &str, uri: &str) {
        let mut state = self.lock();
        state.ears.retain(|ear| !ear.sink.is_closed());
        for ear in
            state.ears.iter().filter(|ear| state.resources_of(ear).contains(&subscribed.into()))
        {
            let mut params = Object::new();
            if let Some((id, _)) = &ear.listen {
                params.set("_meta", subscription(id));
            }
            params.set("uri", json::quote(uri));
            ear.sink.send(Out::Note(rpc::write_notification(RESOURCE_UPDATED, &params.to_bytes())));
        }
    }

    /// Says that a resource has changed, to whom it may concern.
    pub(crate) fn update(&self, uri: &str) {
        self.update_part(uri, uri);
    }

    /// What is subscribed to, as often as it is.
    pub(crate) fn subscribed(&self) -> Vec<String> {
        let mut state = self.lock();
        state.ears.retain(|ear| !ear.sink.is_closed());
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
    /// The resources whose changes an ear hears.
    fn resources_of(&self, ear: &Ear) -> Vec<String> {
        let Some((_, filter)) = &ear.listen else {
            return self.subscriptions.get(&ear.of).into_iter().flatten().cloned().collect();
        };
        let list = filter.get_bytes(RESOURCE_SUBSCRIPTIONS).unwrap_or_default();
        let text = |raw: &bytes::Bytes| {
            let raw = std::str::from_utf8(raw).expect("UTF-8");
            json::decode_string(raw).expect("a string").into_owned()
        };
        json::elements(&list).unwrap_or_default().iter().map(text).collect()
    }
}
