//! Subscriptions to resources, and to tasks, as a modern client makes them: a listen that names them all.
//!
//! What is listened to cannot be changed, so a listen with the new names is opened beside the old one,
//! which closes once the new one is acknowledged: nothing goes unheard in between. It is apart from the
//! listen for changes of lists, which lives as long as the connection.
//!
//! Knows nothing of: who wants what.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::json::{self, Object};
use crate::jsonrpc;
use crate::mcp::call::Outcome;
use crate::mcp::capabilities;
use crate::mcp::kind::RESOURCE_SUBSCRIPTIONS;
use crate::mcp::task::TASK_IDS;
use crate::upstream::message::{Answer, Failure, Outgoing, Wire};
use crate::upstream::session::connection::{error_code, error_text};
use crate::upstream::session::modern::{Dialect, cancel_on, dressed_declaring};
use crate::upstream::subscriptions::{Interest, PATIENCE, Wanted, sleep_until};
use crate::upstream::transport::dispatcher::{LISTEN_AGAIN, next_pause};

/// An open listen.
struct Listen<'a> {
    /// What the server has agreed to tell of.
    honored: HashSet<Arc<str>>,
    /// Its end. It has to be polled for the server to be heard.
    end: Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>,
    since: Instant,
}

/// How opening a listen went.
enum Opened<'a> {
    Acknowledged(Listen<'a>),
    /// With the error object that it was answered with.
    Refused(Bytes),
    Failed(Failure),
}

enum Event {
    Look,
    Ended(Result<Answer, Failure>),
}

impl Dialect {
    /// Keeps the server subscribed to what is wanted until the connection is over. Returns why it must be
    /// opened again, if it must.
    pub(in crate::upstream) async fn follow(&self, wire: Wire, interest: &Interest) -> String {
        self.keep(wire, interest, RESOURCE_SUBSCRIPTIONS).await
    }

    /// The same of tasks.
    pub(in crate::upstream) async fn follow_tasks(
        &self,
        wire: Wire,
        interest: &Interest,
    ) -> String {
        self.keep(wire, interest, TASK_IDS).await
    }

    /// Keeps a listen open whose filter names in `member` what is wanted.
    async fn keep(&self, wire: Wire, interest: &Interest, member: &'static str) -> String {
        let mut news = interest.news();
        interest.begin_anew();
        let mut current: Option<Listen<'_>> = None;
        // How many new names go into one listen: fewer where the server refuses them together.
        let mut step = usize::MAX;
        let (mut pause, mut rest_until) = (LISTEN_AGAIN, None);
        loop {
            news.borrow_and_update();
            let Wanted { uris: wanted, until } = interest.wanted();
            if wanted.is_empty() {
                current = None;
            }
            let honored = current.as_ref().map(|listen| &listen.honored);
            let old = wanted.iter().filter(|uri| honored.is_some_and(|it| it.contains(*uri)));
            let mut names: HashSet<Arc<str>> = old.cloned().collect();
            // Held also for whoever came only now.
            for uri in &names {
                interest.held(uri);
            }
            let is_narrower = honored.is_some_and(|honored| names.len() < honored.len());
            let new = wanted.into_iter().filter(|uri| !names.contains(uri)).take(step);
            let new: Vec<_> = new.collect();
            if rest_until.is_none() && (is_narrower || !new.is_empty()) {
                names.extend(new.iter().cloned());
                match self.open(&wire, interest, member, names, &mut current).await {
                    Opened::Acknowledged(listen) => {
                        for uri in &new {
                            if listen.honored.contains(uri) {
                                interest.held(uri);
                            } else {
                                interest.refused(uri, None);
                            }
                        }
                        // Only now does the old one close.
                        current = Some(listen);
                        step = step.saturating_mul(2);
                        continue;
                    }
                    Opened::Failed(Failure::Stale(reason)) => return reason,
                    Opened::Failed(failure) => {
                        let reason = failure.into_reason();
                        new.iter().for_each(|uri| interest.failed(uri, &reason));
                        rest_until = Some(Instant::now() + pause);
                        pause = next_pause(pause, Instant::now());
                    }
                    Opened::Refused(error) => {
                        let unknown = error_code(&error) == Some(jsonrpc::code::METHOD_NOT_FOUND);
                        tracing::debug!(error = error_text(&error), "a listen is refused");
                        if new.len() > 1 && !unknown {
                            // One of them may be to blame.
                            step = new.len() / 2;
                        } else {
                            let error = (!unknown).then_some(error);
                            new.iter().for_each(|uri| interest.refused(uri, error.clone()));
                        }
                        if !new.is_empty() {
                            continue;
                        }
                        // It would not even take fewer: the old one stays.
                        rest_until = Some(Instant::now() + pause);
                        pause = next_pause(pause, Instant::now());
                    }
                }
            }
            let event = tokio::select! {
                biased;
                ended = end_of(&mut current) => Event::Ended(ended),
                Ok(()) = news.changed() => Event::Look,
                () = sleep_until(until) => Event::Look,
                () = sleep_until(rest_until) => {
                    rest_until = None;
                    Event::Look
                }
            };
            let Event::Ended(ended) = event else { continue };
            if let Err(Failure::Stale(reason)) = ended {
                return reason;
            }
            tracing::debug!(?ended, "a subscription has ended");
            let since = current.take().map_or_else(Instant::now, |listen| listen.since);
            interest.begin_anew();
            rest_until = Some(Instant::now() + pause);
            pause = next_pause(pause, since);
        }
    }

    /// Opens a listen for these names and waits for its acknowledgment, while the old one is still heard.
    async fn open<'a>(
        &'a self,
        wire: &'a Wire,
        interest: &Interest,
        member: &'static str,
        names: HashSet<Arc<str>>,
        old: &mut Option<Listen<'a>>,
    ) -> Opened<'a> {
        let (acknowledged, mut acknowledgment) = mpsc::channel(1);
        let listed: Vec<_> = names.iter().map(|uri| json::quote(uri)).collect();
        let mut filter = Object::new();
        filter.set(member, [&b"["[..], &listed.join(&b","[..]), b"]"].concat());
        let mut params = Object::new();
        params.set("notifications", filter.to_bytes());
        // SEP-2663, task status notifications: who has not declared the extension is refused.
        let declared = if member == TASK_IDS { capabilities::TASKS } else { capabilities::OWN };
        let declared = Bytes::from_static(declared.as_bytes());
        let request = Outgoing {
            cancel: cancel_on(wire),
            listen: true,
            acknowledged: Some(acknowledged),
            ..dressed_declaring("subscriptions/listen", params, None, declared)
        };
        let since = Instant::now();
        let mut end = Box::pin(async move { self.read(wire.exchange(request).await) });
        let opening = async {
            loop {
                tokio::select! {
                    biased;
                    ended = end_of(old) => {
                        tracing::debug!(?ended, "a subscription has ended");
                        // From here on nobody hears of what was subscribed to.
                        *old = None;
                        interest.begin_anew();
                    }
                    Some(honored) = acknowledgment.recv() => return Ok(honored),
                    came = &mut end => return Err(came),
                }
            }
        };
        match timeout(PATIENCE, opening).await {
            Ok(Ok(honored)) => {
                let honored: HashSet<Box<str>> = honored.into_iter().collect();
                let honored = names.into_iter().filter(|uri| honored.contains(&**uri)).collect();
                Opened::Acknowledged(Listen { honored, end, since })
            }
            Ok(Err(Ok(Answer { outcome: Outcome::Error(error), .. }))) => Opened::Refused(error),
            Ok(Err(Ok(_))) => Opened::Failed(Failure::Broke("the listen ended at once".into())),
            Ok(Err(Err(failure))) => Opened::Failed(failure),
            Err(_) => Opened::Failed(Failure::TimedOut(PATIENCE)),
        }
    }
}

/// Waits for the end of a listen. Cancel-safe.
async fn end_of(listen: &mut Option<Listen<'_>>) -> Result<Answer, Failure> {
    match listen {
        Some(listen) => listen.end.as_mut().await,
        None => std::future::pending().await,
    }
}
