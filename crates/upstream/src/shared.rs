//! State that an upstream's handle, its calls and the bodies of their responses share.
//!
//! Invariant: when the last of them is dropped, the supervisor stops.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call_metrics::CallMetrics;
use crate::health::health_state::UpstreamHealth;
use crate::health::on_demand::OnDemand;
use crate::input_requests::InputBudget;
use crate::session::connection::UpstreamConnection;
use crate::session::session_pool::SessionPool;
use crate::subscriptions::SubscriptionRegistry;
use crate::supervisor::FaultReport;
use crate::{ConnectionStatus, Error, ListChangeCounts, Settings};
use weir_base::memory::memory_budget::MemoryBudget;
use weir_base::metrics::Gauge;
use weir_oauth::Account;

/// State of one upstream.
pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    /// Main connection, while there is one.
    pub(crate) connection: watch::Receiver<Option<UpstreamConnection>>,
    /// Additional sessions.
    pub(crate) session_pool: Arc<SessionPool>,
    pub(crate) status: watch::Receiver<ConnectionStatus>,
    pub(crate) changes: watch::Receiver<ListChangeCounts>,
    pub(crate) fault_reports: mpsc::Sender<FaultReport>,
    /// Resource and task subscriptions of clients.
    pub(crate) subscriptions: Arc<SubscriptionRegistry>,
    /// Permits of the calls in flight.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) waiting: Arc<Gauge>,
    pub(crate) health: Arc<UpstreamHealth>,
    /// Account at the upstream, if it needs one.
    pub(crate) account: Option<Arc<Account>>,
    /// Memory budget of its messages.
    pub(crate) budget: MemoryBudget,
    /// Users of an on-demand upstream.
    pub(crate) on_demand: Arc<OnDemand>,
    /// Slots of the calls that wait for client input.
    pub(crate) suspended_slots: Arc<Semaphore>,
    /// Byte budget of their input requests.
    pub(crate) input_budget: InputBudget,
    /// Tracker of the tasks in which suspended calls run.
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) calls: CallMetrics,
}

impl Shared {
    /// Returns the main connection, or the reason why there is none.
    pub(crate) fn connection(&self) -> Result<UpstreamConnection, Error> {
        let connection = self.connection.borrow().clone();
        connection.ok_or_else(|| self.unavailable())
    }

    /// Waits until the connection numbered `epoch` has been replaced.
    pub(crate) async fn connection_after(&self, epoch: u64) -> Result<UpstreamConnection, Error> {
        let mut receiver = self.connection.clone();
        let next = receiver.wait_for(|connection| {
            connection.as_ref().is_none_or(|connection| connection.about().epoch > epoch)
        });
        let next = next.await.ok().and_then(|connection| connection.clone());
        next.ok_or_else(|| self.unavailable())
    }

    fn unavailable(&self) -> Error {
        let account = self.account.as_ref();
        if let Some(reason) = account.and_then(|account| account.sign_in_needed()) {
            return Error::SignInNeeded(reason);
        }
        Error::Unavailable(match &*self.status.borrow() {
            ConnectionStatus::Starting => "the upstream is still starting".into(),
            ConnectionStatus::Asleep => "the upstream is stopped because it was idle".into(),
            ConnectionStatus::Up(_) => "the upstream is reconnecting".into(),
            ConnectionStatus::Down { reason, .. } => reason.clone(),
        })
    }
}

/// The last handle is gone and no call is in flight: the supervisor stops.
impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
