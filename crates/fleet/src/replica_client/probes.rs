//! Probes: a replica asks another whether it lives, over its listener for replicas.
//!
//! The answer is a TLS handshake, because that needs the process: for one that stands still the
//! kernel accepts connections, too. Replicas of all versions answer it, and none records it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::timeout;

use crate::membership::Replica;
use crate::replica_client::pool;
use crate::replica_tls::ReplicaTls;

/// Asks a replica, and returns whether it has answered.
pub(crate) type Probe =
    Box<dyn Fn(&ReplicaTls, Arc<Replica>) -> BoxFuture<'static, bool> + Send + Sync>;

/// Asks a replica over the network.
pub(crate) fn ask(tls: &ReplicaTls, replica: Arc<Replica>) -> BoxFuture<'static, bool> {
    let connector = tls.connector.clone();
    async move {
        let opened = timeout(ANSWER_TIMEOUT, pool::open(&connector, &replica)).await;
        opened.is_ok_and(|opened| opened.is_ok())
    }
    .boxed()
}

/// Longest time for an answer, on a machine that is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
