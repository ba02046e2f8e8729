//! Check of a session after a failure that may be its end.
//!
//! Servers say in many words that they do not know a session any more, and say the same of requests
//! that they refuse for other reasons. Therefore no words decide: a harmless request is sent in the
//! session, and the session is given up if that fails alike.
//!
//! Invariants: a failure that names the request, or is about credentials, a rate or a busy server,
//! is none of the session. A failure that may be that of a server in trouble has to last. One
//! check runs at a time, and at most one a second: after one that has shown neither, a failure in
//! another form waits for its turn. After a session was given up, the next one of its owner is not
//! given up before the back-off is over. So no client ends the sessions of others.

use std::iter::repeat_with;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::health::keyed_backoff::KeyedBackoff;
use crate::message::{OutboundRequest, TransportError, error_code};
use crate::transport::Transport;

/// Back-off between the sessions of one owner that are given up.
pub(crate) type GiveUpBackoff = Arc<KeyedBackoff<()>>;

/// Check of one session.
pub(crate) struct SessionCheck {
    backoff: GiveUpBackoff,
    /// Last check; locked while one runs.
    last: Arc<Mutex<Option<Checked>>>,
    /// Reason why the session was given up.
    given_up: watch::Sender<Option<String>>,
}

/// Time of a check, and the form of the failure that it was about if it has not shown that the
/// session works.
struct Checked(Instant, Option<FailureForm>);

/// Outcome of the harmless requests of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckOutcome {
    /// The session works.
    Works,
    /// The session is lost.
    FailsAlike,
    /// Nothing is known about the session.
    FailsOtherwise,
}

/// Failure that may be that of the session, in a form that another one can have, too.
#[derive(Debug, PartialEq, Eq)]
enum FailureForm {
    /// HTTP status, and the code of a JSON-RPC error that names no request.
    Status(u16, Option<i64>),
    /// No response that Weir can read.
    Unreadable,
    /// The connection was lost before the response.
    Cut,
}

impl FailureForm {
    fn of(failure: &TransportError) -> Option<Self> {
        match failure {
            TransportError::Http(failure) => {
                let status = failure.status.as_u16();
                let is_of_session = !failure.names_request
                    && failure.retry_after.is_none()
                    && !matches!(status, 401 | 403 | 429);
                let code = failure.error.as_ref().and_then(error_code);
                is_of_session.then_some(Self::Status(status, code))
            }
            TransportError::Protocol(_) => Some(Self::Unreadable),
            TransportError::ConnectionLost(_) => Some(Self::Cut),
            _ => None,
        }
    }

    /// Whether the server has refused the request before it executed anything: a status of 5xx
    /// proves nothing (RFC 9110, 15.6), nor does a request that took too long (15.5.9).
    fn is_unexecuted(&self) -> bool {
        matches!(self, Self::Status(200..300 | 400..=407 | 409..500, _))
    }
}

impl SessionCheck {
    /// Creates the check of a session whose owner has this back-off.
    pub(crate) fn new(backoff: GiveUpBackoff) -> Arc<Self> {
        let (last, given_up) = (Arc::default(), watch::Sender::new(None));
        Arc::new(Self { backoff, last, given_up })
    }

    /// Judges the session after the failure of a request. If it is given up and the failure proves
    /// that the request was not executed, returns the reason: the request may be sent once more in
    /// another session. Nothing waits for the judgment about another failure. Over stdio only the
    /// end of the process ends a session.
    pub(crate) async fn judge(
        self: &Arc<Self>,
        failure: &TransportError,
        transport: &Transport,
        harmless: impl Fn() -> OutboundRequest,
    ) -> Option<String> {
        let form = FailureForm::of(failure)?;
        let tasks = &transport.http_client()?.pool.tracker;
        let (check, last, failed) = (Arc::clone(self), Arc::clone(&self.last), Instant::now());
        let (transport, is_unexecuted) = (transport.clone(), form.is_unexecuted());
        let requests = repeat_with(harmless).take(if is_unexecuted { 1 } else { 2 }).collect();
        if !is_unexecuted {
            if let Ok(last) = last.try_lock_owned() {
                tasks.spawn(check.run(last, (failed, form), transport, requests));
            }
            return None;
        }
        // The check outlives a caller that stops waiting.
        let last = last.lock_owned().await;
        let _ = tasks.spawn(check.run(last, (failed, form), transport, requests)).await;
        self.given_up.borrow().clone()
    }

    /// Sends the harmless requests, unless some were sent a short time ago because of such a
    /// failure, and gives the session up if all fail alike. After a check because of another
    /// failure, one that came meanwhile waits for the rest of the second, and no others do.
    async fn run(
        self: Arc<Self>,
        mut last: OwnedMutexGuard<Option<Checked>>,
        (failed, form): (Instant, FailureForm),
        transport: Transport,
        requests: Vec<OutboundRequest>,
    ) {
        let due = last.as_ref().map_or(failed, |Checked(at, _)| *at + MIN_CHECK_INTERVAL);
        let waits = failed.elapsed() < MIN_CHECK_INTERVAL
            && matches!(&*last, Some(Checked(_, Some(of))) if *of != form);
        let is_recent = Instant::now() < due && !waits;
        if is_recent || self.is_given_up() || self.backoff.check(&()).is_err() {
            return;
        }
        let checks = async {
            sleep_until(due).await;
            Self::send_harmless(&form, &transport, requests).await
        };
        let outcome = tokio::select! {
            outcome = checks => outcome,
            _ = self.given_up() => return,
        };
        let reason = match form {
            _ if outcome != CheckOutcome::FailsAlike => {
                let is_undecided = outcome == CheckOutcome::FailsOtherwise;
                *last = Some(Checked(Instant::now(), is_undecided.then_some(form)));
                return;
            }
            FailureForm::Status(404, _) => SESSION_ENDED.to_owned(),
            FailureForm::Status(status, _) => {
                format!("it refuses each request of the session with HTTP {status}")
            }
            FailureForm::Unreadable | FailureForm::Cut => {
                "it answers no request of the session".to_owned()
            }
        };
        self.backoff.failed(&(), &reason);
        self.given_up.send_replace(Some(reason));
    }

    fn is_given_up(&self) -> bool {
        self.given_up.borrow().is_some()
    }

    /// Sends the harmless requests until one does not fail alike.
    async fn send_harmless(
        form: &FailureForm,
        transport: &Transport,
        requests: Vec<OutboundRequest>,
    ) -> CheckOutcome {
        for (count, request) in requests.into_iter().enumerate() {
            if count > 0 {
                sleep(CHECK_PAUSE).await;
            }
            let answer = timeout(CHECK_TIMEOUT, transport.exchange(Box::new(request))).await;
            let failure = match answer {
                Ok(Ok(_)) => return CheckOutcome::Works,
                Ok(Err(failure)) => FailureForm::of(&failure),
                Err(_) => None,
            };
            if failure.as_ref() != Some(form) {
                return CheckOutcome::FailsOtherwise;
            }
        }
        CheckOutcome::FailsAlike
    }

    /// Records that the session is over for another reason.
    pub(crate) fn session_ended(&self) {
        self.given_up.send_if_modified(|reason| {
            let is_first = reason.is_none();
            reason.get_or_insert_with(|| SESSION_ENDED.into());
            is_first
        });
    }

    /// Waits until the session is given up, and returns the reason. Cancel-safe.
    pub(crate) async fn given_up(&self) -> String {
        let mut given_up = self.given_up.subscribe();
        let reason = given_up.wait_for(Option::is_some).await;
        match reason.ok().and_then(|reason| reason.clone()) {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }
}

/// Reason to reconnect when the server does not know the session any more.
pub(crate) const SESSION_ENDED: &str = "its session has ended";
/// Shortest time between two checks of a session that works.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a failure has to last that may be that of a server in trouble.
const CHECK_PAUSE: Duration = Duration::from_secs(2);
/// Time for a harmless request. A server that does not answer it may be busy.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::StatusCode;

    use super::*;
    use crate::message::HttpFailure;

    fn form(failure: HttpFailure) -> Option<FailureForm> {
        FailureForm::of(&TransportError::Http(Box::new(failure)))
    }

    fn status(code: u16) -> HttpFailure {
        let status = StatusCode::from_u16(code).expect("a status");
        HttpFailure { status, ..HttpFailure::default() }
    }

    #[test]
    fn only_a_refusal_from_before_the_request_was_read_proves_that_it_was_not_executed() {
        for code in [200, 400, 404, 405, 409, 410, 422] {
            assert!(form(status(code)).expect("of the session").is_unexecuted(), "{code}");
        }
        for code in [301, 307, 408, 500, 502, 503, 504] {
            assert!(!form(status(code)).expect("of the session").is_unexecuted(), "{code}");
        }
        for failure in
            [TransportError::Protocol("x".into()), TransportError::ConnectionLost("x".into())]
        {
            assert!(!FailureForm::of(&failure).expect("of the session").is_unexecuted());
        }
    }

    #[test]
    fn a_failure_about_credentials_a_rate_or_the_request_itself_is_none_of_the_session() {
        for code in [401, 403, 429] {
            assert_eq!(form(status(code)), None, "{code}");
        }
        let error = Some(Bytes::from_static(br#"{"code":-32001,"message":"Session not found"}"#));
        let unnamed = HttpFailure { error, ..status(404) };
        assert_eq!(form(unnamed.clone()), Some(FailureForm::Status(404, Some(-32001))));
        assert_eq!(form(HttpFailure { names_request: true, ..unnamed }), None);
        let busy = HttpFailure { retry_after: Some(Duration::from_secs(1)), ..status(503) };
        assert_eq!(form(busy), None);
    }
}
