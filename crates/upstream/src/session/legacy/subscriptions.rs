//! Resource subscriptions to a legacy server: one request for each URI.
//!
//! Invariants: each wanted URI is subscribed and each unwanted one unsubscribed; each URI has at
//! most one request in flight.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout};

use crate::Error;
use crate::message::TransportError;
use crate::session::legacy::LegacyDialect;
use crate::subscriptions::{ACCEPT_TIMEOUT, SubscriptionRegistry};
use crate::transport::Transport;
use weir_base::json::{self, Object};
use weir_base::tasks::fairness::sleep_until;
use weir_mcp::call::ResponseOutcome;

/// State of a URI on this connection.
#[derive(Debug, Clone, Copy, PartialEq)]
enum UriState {
    Subscribing,
    Subscribed,
    Unsubscribing,
    /// The subscription failed, and is tried again at this time.
    Failed(Instant),
}

enum Event {
    Done(Arc<str>, Result<ResponseOutcome, TransportError>),
    Recheck,
}

impl LegacyDialect {
    /// Subscribes the server's resources as the registry wants them, until the connection is over.
    /// Returns the reason why it must be opened again, if it must.
    pub(crate) async fn sync_subscriptions(
        &self,
        transport: &Transport,
        registry: &SubscriptionRegistry,
    ) -> String {
        let mut changes = registry.changes();
        registry.reset();
        let mut states: HashMap<Arc<str>, UriState> = HashMap::new();
        let mut in_flight = FuturesUnordered::new();
        loop {
            changes.borrow_and_update();
            let now = Instant::now();
            states.retain(|_, state| !matches!(state, UriState::Failed(until) if *until <= now));
            let wanted = registry.desired();
            let mut more_to_end = false;
            for (uri, state) in
                states.iter_mut().filter(|(_, state)| **state == UriState::Subscribed)
            {
                // This also confirms the subscription to subscribers that were added only now.
                if !wanted.uris.contains(uri) || !registry.on_accepted(uri) {
                    more_to_end = in_flight.len() >= MAX_IN_FLIGHT;
                    if more_to_end {
                        break;
                    }
                    *state = UriState::Unsubscribing;
                    in_flight.push(self.send(transport, UNSUBSCRIBE, uri.clone()));
                }
            }
            let is_new = |uri: &Arc<str>| !states.contains_key(uri);
            let mut new: Vec<_> = wanted.uris.into_iter().filter(is_new).collect();
            loop {
                while in_flight.len() < MAX_IN_FLIGHT
                    && let Some(uri) = new.pop()
                {
                    states.insert(uri.clone(), UriState::Subscribing);
                    in_flight.push(self.send(transport, SUBSCRIBE, uri));
                }
                let resting = states.values().filter_map(|state| match state {
                    UriState::Failed(until) => Some(*until),
                    _ => None,
                });
                let until = resting.chain(wanted.recheck_at).min();
                let event = tokio::select! {
                    biased;
                    Some((uri, result)) = in_flight.next(), if !in_flight.is_empty() => {
                        Event::Done(uri, result)
                    }
                    Ok(()) = changes.changed() => Event::Recheck,
                    () = sleep_until(until) => Event::Recheck,
                };
                let Event::Done(uri, result) = event else { break };
                match self.apply_result(registry, &mut states, uri, result) {
                    Ok(is_settled) if is_settled && !more_to_end => {}
                    Ok(_) => break,
                    Err(reason) => return reason,
                }
            }
        }
    }

    /// Applies the result of a request. Returns whether nothing else has to be done for the URI
    /// now; an error is the reason why the connection must be opened again.
    fn apply_result(
        &self,
        registry: &SubscriptionRegistry,
        states: &mut HashMap<Arc<str>, UriState>,
        uri: Arc<str>,
        result: Result<ResponseOutcome, TransportError>,
    ) -> Result<bool, String> {
        if states.get(&uri) == Some(&UriState::Unsubscribing) {
            states.remove(&uri);
            return match result {
                Err(TransportError::SessionLost(reason)) => Err(reason),
                // A client may want the URI again.
                _ => Ok(false),
            };
        }
        match result {
            Ok(ResponseOutcome::Result(_)) => {
                let is_wanted = registry.on_accepted(&uri);
                states.insert(uri, UriState::Subscribed);
                Ok(is_wanted)
            }
            Ok(ResponseOutcome::Error(error)) => {
                states.remove(&uri);
                registry.on_refused(&uri, Some(error));
                Ok(true)
            }
            Err(TransportError::SessionLost(reason)) => Err(reason),
            Err(failure) => {
                registry.on_failed(&uri, &failure.into_reason());
                states.insert(uri, UriState::Failed(Instant::now() + RETRY_AFTER));
                Ok(true)
            }
        }
    }

    async fn send(
        &self,
        transport: &Transport,
        method: &'static str,
        uri: Arc<str>,
    ) -> (Arc<str>, Result<ResponseOutcome, TransportError>) {
        let mut params = Object::new();
        params.set("uri", json::quote(&uri));
        let mut request = self.request(method, &params);
        request.context.may_be_empty = true;
        let exchange = transport.exchange(Box::new(request));
        let result = timeout(ACCEPT_TIMEOUT, exchange).await;
        let late = TransportError::Other(Error::TimedOut(ACCEPT_TIMEOUT));
        let result = result.unwrap_or(Err(late));
        let lost = match &result {
            Ok(_) => None,
            Err(failure) => self.judge(failure, transport).await,
        };
        match lost {
            Some(reason) => (uri, Err(TransportError::SessionLost(reason))),
            None => (uri, self.interpret(result)),
        }
    }
}

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// Maximum number of requests in flight.
const MAX_IN_FLIGHT: usize = 16;

/// Pause after which a failed subscription is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
