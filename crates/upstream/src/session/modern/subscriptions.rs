//! Subscriptions to resources and tasks of a modern server: one `subscriptions/listen` request that
//! names them all.
//!
//! The filter of a listen request cannot be changed. A request with the new names is therefore
//! opened beside the old one, which is closed once the new one is acknowledged, so no update is
//! lost in between. List changes have a listen request of their own, which lasts as long as the
//! connection.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::Error;
use crate::message::{TransportError, error_code, error_text};
use crate::session::modern::ModernDialect;
use crate::subscriptions::{ACCEPT_TIMEOUT, DesiredSubscriptions, SubscriptionRegistry};
use crate::transport::Transport;
use crate::transport::dispatcher::{LISTEN_STABLE_AFTER, REOPEN_BACKOFF};
use weir_base::json::{self, Object};
use weir_base::tasks::fairness::sleep_until;
use weir_mcp::call::ResponseOutcome;
use weir_mcp::capabilities;
use weir_mcp::jsonrpc;
use weir_mcp::kind::RESOURCE_SUBSCRIPTIONS;
use weir_mcp::task::TASK_IDS;

/// Open listen request.
struct ListenRequest<'a> {
    /// Resources or tasks that the server has accepted.
    accepted_names: HashSet<Arc<str>>,
    /// End of the request. It has to be polled for notifications to be received.
    end: Pin<Box<dyn Future<Output = Result<ResponseOutcome, TransportError>> + Send + 'a>>,
    since: Instant,
}

/// Outcome of opening a listen request.
enum ListenOutcome<'a> {
    Acknowledged(ListenRequest<'a>),
    /// Refused with this error object.
    Refused(Bytes),
    Failed(TransportError),
}

enum Event {
    Recheck,
    Ended(Result<ResponseOutcome, TransportError>),
}

impl ModernDialect {
    /// Subscribes the server's resources as the registry wants them, until the connection is over.
    /// Returns the reason why it must be opened again, if it must.
    pub(crate) async fn sync_subscriptions(
        &self,
        transport: &Transport,
        registry: &SubscriptionRegistry,
    ) -> String {
        self.sync_listen(transport, registry, RESOURCE_SUBSCRIPTIONS).await
    }

    /// Subscribes to the tasks that the registry wants, until the connection is over. Returns the
    /// reason why it must be opened again, if it must.
    pub(crate) async fn sync_task_subscriptions(
        &self,
        transport: &Transport,
        registry: &SubscriptionRegistry,
    ) -> String {
        self.sync_listen(transport, registry, TASK_IDS).await
    }

    /// Keeps a listen request open whose filter lists the wanted names in `member`.
    async fn sync_listen(
        &self,
        transport: &Transport,
        registry: &SubscriptionRegistry,
        member: &'static str,
    ) -> String {
        let mut changes = registry.changes();
        registry.reset();
        let mut current: Option<ListenRequest<'_>> = None;
        // Maximum number of new names in one request: fewer if the server refuses them together.
        let mut step = usize::MAX;
        let (mut backoff, mut retry_at) = (REOPEN_BACKOFF, None);
        loop {
            changes.borrow_and_update();
            let DesiredSubscriptions { uris: wanted, recheck_at: until } = registry.desired();
            if wanted.is_empty() {
                current = None;
            }
            let accepted_names = current.as_ref().map(|listen| &listen.accepted_names);
            let old =
                wanted.iter().filter(|uri| accepted_names.is_some_and(|it| it.contains(*uri)));
            let mut names: HashSet<Arc<str>> = old.cloned().collect();
            // This also confirms the subscription to subscribers that were added only now.
            for uri in &names {
                registry.on_accepted(uri);
            }
            let is_narrower =
                accepted_names.is_some_and(|accepted_names| names.len() < accepted_names.len());
            let new = wanted.into_iter().filter(|uri| !names.contains(uri)).take(step);
            let new: Vec<_> = new.collect();
            if retry_at.is_none() && (is_narrower || !new.is_empty()) {
                names.extend(new.iter().cloned());
                match self.open(transport, registry, member, names, &mut current).await {
                    ListenOutcome::Acknowledged(listen) => {
                        for uri in &new {
                            if listen.accepted_names.contains(uri) {
                                registry.on_accepted(uri);
                            } else {
                                registry.on_refused(uri, None);
                            }
                        }
                        // The old request is closed only now.
                        current = Some(listen);
                        step = step.saturating_mul(2);
                        continue;
                    }
                    ListenOutcome::Failed(TransportError::SessionLost(reason)) => return reason,
                    ListenOutcome::Failed(failure) => {
                        let reason = failure.into_reason();
                        new.iter().for_each(|uri| registry.on_failed(uri, &reason));
                        retry_at = Some(Instant::now() + backoff.next_pause());
                    }
                    ListenOutcome::Refused(error) => {
                        let unknown = error_code(&error) == Some(jsonrpc::code::METHOD_NOT_FOUND);
                        tracing::debug!(error = error_text(&error), "subscription refused");
                        if new.len() > 1 && !unknown {
                            // One of the names may be the cause.
                            step = new.len() / 2;
                        } else {
                            let error = (!unknown).then_some(error);
                            new.iter().for_each(|uri| registry.on_refused(uri, error.clone()));
                        }
                        if !new.is_empty() {
                            continue;
                        }
                        // The server refused even fewer names: the old request stays open.
                        retry_at = Some(Instant::now() + backoff.next_pause());
                    }
                }
            }
            let event = tokio::select! {
                biased;
                ended = end_of(&mut current) => Event::Ended(ended),
                Ok(()) = changes.changed() => Event::Recheck,
                () = sleep_until(until) => Event::Recheck,
                () = sleep_until(retry_at) => {
                    retry_at = None;
                    Event::Recheck
                }
            };
            let Event::Ended(ended) = event else { continue };
            if let Err(TransportError::SessionLost(reason)) = ended {
                return reason;
            }
            tracing::debug!(?ended, "subscription ended");
            // The pause that earlier failures led to applies once more, also after a stable listen;
            // its stability shortens the next one.
            let since = current.take().map_or_else(Instant::now, |listen| listen.since);
            registry.reset();
            retry_at = Some(Instant::now() + backoff.next_pause());
            if since.elapsed() >= LISTEN_STABLE_AFTER {
                backoff.reset();
            }
        }
    }

    /// Opens a listen request for these names and waits for its acknowledgment; the old one still
    /// receives notifications.
    async fn open<'a>(
        &'a self,
        transport: &'a Transport,
        registry: &SubscriptionRegistry,
        member: &'static str,
        names: HashSet<Arc<str>>,
        old: &mut Option<ListenRequest<'a>>,
    ) -> ListenOutcome<'a> {
        let (accepted_tx, mut acknowledgment) = mpsc::channel(1);
        let listed: Vec<_> = names.iter().map(|uri| json::quote(uri)).collect();
        let mut filter = Object::new();
        filter.set(member, [&b"["[..], &listed.join(&b","[..]), b"]"].concat());
        // SEP-2663, task status notifications: a client that has not declared the extension is
        // refused.
        let declared = if member == TASK_IDS { capabilities::TASKS } else { capabilities::OWN };
        let request = self.listen_request(transport, &filter, Some(accepted_tx), declared);
        let since = Instant::now();
        let mut end =
            Box::pin(async move { self.interpret(transport.exchange(Box::new(request)).await) });
        let opening = async {
            loop {
                tokio::select! {
                    biased;
                    ended = end_of(old) => {
                        tracing::debug!(?ended, "subscription ended");
                        // Without the old request no updates arrive for its subscriptions.
                        *old = None;
                        registry.reset();
                    }
                    Some(accepted_names) = acknowledgment.recv() => return Ok(accepted_names),
                    result = &mut end => return Err(result),
                }
            }
        };
        match timeout(ACCEPT_TIMEOUT, opening).await {
            Ok(Ok(accepted_names)) => {
                let accepted_names: HashSet<Box<str>> = accepted_names.into_iter().collect();
                let accepted_names =
                    names.into_iter().filter(|uri| accepted_names.contains(&**uri)).collect();
                ListenOutcome::Acknowledged(ListenRequest { accepted_names, end, since })
            }
            Ok(Err(Ok(ResponseOutcome::Error(error)))) => ListenOutcome::Refused(error),
            Ok(Err(Ok(_))) => ListenOutcome::Failed(TransportError::ConnectionLost(
                "the subscription ended at once".into(),
            )),
            Ok(Err(Err(failure))) => ListenOutcome::Failed(failure),
            Err(_) => ListenOutcome::Failed(TransportError::Other(Error::TimedOut(ACCEPT_TIMEOUT))),
        }
    }
}

/// Waits for the end of a listen request. Cancel-safe.
async fn end_of(listen: &mut Option<ListenRequest<'_>>) -> Result<ResponseOutcome, TransportError> {
    match listen {
        Some(listen) => listen.end.as_mut().await,
        None => std::future::pending().await,
    }
}
