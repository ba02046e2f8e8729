//! Route of a call: the connection for its caller, and one retry over the next connection.
//!
//! Invariants: a request is sent a second time only if the first one was rejected unexecuted. No
//! part of a call is sent for another sign-in than the first part.

use std::sync::Arc;

use crate::Error;
use crate::health::health_state::CallFailure;
use crate::input_requests::InputRequests;
use crate::message::{SIGN_IN_REPLACED, SentCount, TransportError};
use crate::session::connection::UpstreamConnection;
use crate::session::session_pool::SessionLease;
use crate::shared::Shared;
use crate::supervisor::{FaultKind, FaultReport};
use weir_mcp::call::{CallContext, UpstreamRequest, UpstreamResponse};
use weir_oauth::SignInNumber;

/// Connection that a call uses.
pub(crate) struct CallRoute {
    connection: UpstreamConnection,
    /// Lease of an additional session; `None` for the supervisor's main connection.
    lease: Option<SessionLease>,
}

impl CallRoute {
    /// Runs `send` over the connection for this caller, and once more over the next connection if
    /// the request was rejected unexecuted. The returned route keeps that connection in use.
    pub(crate) async fn send<T, F>(
        shared: &Shared,
        caller: Option<&CallContext>,
        send: impl Fn(UpstreamConnection) -> F,
    ) -> Result<(T, Self), CallFailure>
    where
        F: Future<Output = Result<T, TransportError>>,
    {
        let mut main = shared.connection()?;
        let mut first: Option<(TransportError, Option<SignInNumber>)> = None;
        loop {
            let route = Self::choose(shared, main, caller).await?;
            let about = Arc::clone(route.connection.about());
            // What was sent for one user is not sent for another.
            if let Some((TransportError::SessionLost(_), sign_in)) = &first
                && *sign_in != about.sign_in
            {
                let failure = TransportError::SignInReplaced.of_sent_call();
                return Err(CallFailure::of(failure, about.transport));
            }
            let failure = match send(route.connection.clone()).await {
                Ok(done) => return Ok((done, route)),
                Err(failure) => failure,
            };
            route.report_fault(shared, &failure);
            let is_unsent =
                matches!(failure, TransportError::SessionLost(_) | TransportError::SignInReplaced);
            if first.is_some() || !is_unsent {
                return Err(CallFailure::of(failure, about.transport));
            }
            first = Some((failure, about.sign_in));
            main = match route.lease {
                None => shared.connection_after(about.epoch).await?,
                Some(_) => shared.connection()?,
            };
        }
    }

    /// Chooses the main connection or an additional session for this caller.
    async fn choose(
        shared: &Shared,
        main: UpstreamConnection,
        caller: Option<&CallContext>,
    ) -> Result<Self, Error> {
        if let (UpstreamConnection::Session(session), Some(caller)) = (&main, caller)
            && let Some(lease) = shared.session_pool.lease(session, caller).await?
        {
            return Ok(Self { connection: lease.connection(), lease: Some(lease) });
        }
        Ok(Self { connection: main, lease: None })
    }

    /// Reports a fault to the owner of the connection: the supervisor or the session pool.
    fn report_fault(&self, shared: &Shared, failure: &TransportError) {
        let kind = match failure {
            TransportError::SessionLost(reason) => FaultKind::SessionLost(reason.clone()),
            TransportError::SignInReplaced => FaultKind::SessionLost(SIGN_IN_REPLACED.into()),
            TransportError::NotSent(reason) => FaultKind::Unreachable(reason.clone()),
            _ => return,
        };
        match &self.lease {
            Some(lease) => lease.invalidate(),
            None => {
                let epoch = self.connection.about().epoch;
                let _ = shared.fault_reports.try_send(FaultReport { epoch, kind });
            }
        }
    }
}

/// Response with the connection that it came over, which stays in use until its body has ended.
pub(crate) struct SentResponse {
    pub(crate) response: UpstreamResponse,
    pub(crate) route: CallRoute,
}

/// Sends the request of a call and waits for its response.
pub(crate) async fn send_call(
    shared: Arc<Shared>,
    call: Box<UpstreamRequest>,
    input_requests: InputRequests,
    sent: SentCount,
) -> Result<SentResponse, CallFailure> {
    let settings = &shared.settings;
    let (call, input_requests, sent) = (&*call, &input_requests, &sent);
    let sent = CallRoute::send(&shared, Some(&call.caller), |connection| async move {
        connection.call(call, input_requests, sent, settings).await
    });
    let (response, route) = sent.await?;
    Ok(SentResponse { response, route })
}
