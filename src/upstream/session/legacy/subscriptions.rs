//! Subscriptions to resources, as a legacy client makes them: a request for each.
//!
//! Promises: what is wanted is asked for and what is not wanted any more is ended; of each URI one request
//! is under way at a time.
//!
//! Knows nothing of: who wants what.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout};

use crate::json::{self, Object};
use crate::mcp::call::Outcome;
use crate::upstream::message::{Answer, Cancel, Failure, Outgoing, Wire};
use crate::upstream::session::legacy::Dialect;
use crate::upstream::subscriptions::{Interest, PATIENCE, sleep_until};

/// How a URI stands on this connection.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Making,
    Held,
    Ending,
    /// It could not be made, and is tried again then.
    Resting(Instant),
}

#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and it is taken apart at once"
)]
enum Event {
    Done(Arc<str>, Result<Answer, Failure>),
    Look,
}

impl Dialect {
    /// Keeps the server subscribed to what is wanted until the connection is over. Returns why it must be
    /// opened again, if it must.
    pub(in crate::upstream) async fn follow(&self, wire: Wire, interest: &Interest) -> String {
        let mut news = interest.news();
        interest.begin_anew();
        let mut places: HashMap<Arc<str>, Place> = HashMap::new();
        let mut open = FuturesUnordered::new();
        loop {
            news.borrow_and_update();
            let now = Instant::now();
            places.retain(|_, place| !matches!(place, Place::Resting(until) if *until <= now));
            let wanted = interest.wanted();
            let mut more_to_end = false;
            for (uri, place) in places.iter_mut().filter(|(_, place)| **place == Place::Held) {
                // Held also for whoever came only now.
                if !wanted.uris.contains(uri) || !interest.held(uri) {
                    more_to_end = open.len() >= WIDTH;
                    if more_to_end {
                        break;
                    }
                    *place = Place::Ending;
                    open.push(self.tell(&wire, UNSUBSCRIBE, uri.clone()));
                }
            }
            let is_new = |uri: &Arc<str>| !places.contains_key(uri);
            let mut new: Vec<_> = wanted.uris.into_iter().filter(is_new).collect();
            loop {
                while open.len() < WIDTH
                    && let Some(uri) = new.pop()
                {
                    places.insert(uri.clone(), Place::Making);
                    open.push(self.tell(&wire, SUBSCRIBE, uri));
                }
                let resting = places.values().filter_map(|place| match place {
                    Place::Resting(until) => Some(*until),
                    _ => None,
                });
                let until = resting.chain(wanted.until).min();
                let event = tokio::select! {
                    biased;
                    Some((uri, came)) = open.next(), if !open.is_empty() => Event::Done(uri, came),
                    Ok(()) = news.changed() => Event::Look,
                    () = sleep_until(until) => Event::Look,
                };
                let Event::Done(uri, came) = event else { break };
                match self.settle(interest, &mut places, uri, came) {
                    Ok(is_settled) if is_settled && !more_to_end => {}
                    Ok(_) => break,
                    Err(reason) => return reason,
                }
            }
        }
    }

    /// Takes what came of a request. Tells whether nothing else has to be done about it now; an error is
    /// why the connection must be opened again.
    fn settle(
        &self,
        interest: &Interest,
        places: &mut HashMap<Arc<str>, Place>,
        uri: Arc<str>,
        came: Result<Answer, Failure>,
    ) -> Result<bool, String> {
        if places.get(&uri) == Some(&Place::Ending) {
            places.remove(&uri);
            return match came {
                Err(Failure::Stale(reason)) => Err(reason),
                // Somebody may want it again.
                _ => Ok(false),
            };
        }
        match came {
            Ok(Answer { outcome: Outcome::Result(_), .. }) => {
                let is_wanted = interest.held(&uri);
                places.insert(uri, Place::Held);
                Ok(is_wanted)
            }
            Ok(Answer { outcome: Outcome::Error(error), .. }) => {
                places.remove(&uri);
                interest.refused(&uri, Some(error));
                Ok(true)
            }
            Err(Failure::Stale(reason)) => Err(reason),
            Err(failure) => {
                interest.failed(&uri, &failure.into_reason());
                places.insert(uri, Place::Resting(Instant::now() + AGAIN));
                Ok(true)
            }
        }
    }

    async fn tell(
        &self,
        wire: &Wire,
        method: &'static str,
        uri: Arc<str>,
    ) -> (Arc<str>, Result<Answer, Failure>) {
        let mut params = Object::new();
        params.set("uri", json::quote(&uri));
        let request = Outgoing {
            cancel: Cancel::Notify,
            resume: true,
            ..Outgoing::new(method, params, self.headers())
        };
        let came = timeout(PATIENCE, wire.exchange(request)).await;
        (uri, self.read(came.unwrap_or(Err(Failure::TimedOut(PATIENCE)))))
    }
}

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// With how many requests under way no further resource is subscribed to.
const WIDTH: usize = 16;

/// When a subscription that could not be made is tried again.
const AGAIN: Duration = Duration::from_secs(5);
