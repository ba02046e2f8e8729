//! Probes: a replica asks others whether they live, over their listeners for replicas.
//!
//! The answer is a TLS handshake, because that needs the process: for one that stands still the
//! kernel accepts connections, too. Replicas of all versions answer it, and none records it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::membership::{Replica, TICK};
use crate::replica_tls::FleetTls;
use crate::{Fleet, Whereabouts};
use weir_base::secrets::sealing::Instance;

/// Asks a replica, and returns whether it has answered.
pub(crate) type Probe =
    Box<dyn Fn(&FleetTls, Arc<Replica>) -> BoxFuture<'static, bool> + Send + Sync>;

/// Asks a replica over the network.
pub(crate) fn ask(tls: &FleetTls, member: Arc<Replica>) -> BoxFuture<'static, bool> {
    let connector = tls.connector.clone();
    async move {
        let opened = timeout(ANSWER_TIMEOUT, super::open(&connector, &member)).await;
        opened.is_ok_and(|opened| opened.is_ok())
    }
    .boxed()
}

impl Fleet {
    /// Asks the members that show no sign of life, until `stop` fires.
    pub(crate) async fn probe_until(&self, stop: &CancellationToken) {
        let (mut asked, mut answers) = (HashSet::new(), FuturesUnordered::new());
        let mut last = Instant::now();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some((instance, has_answered)) = answers.next() => {
                    asked.remove(&instance);
                    if has_answered {
                        self.view().set_answered(instance);
                    }
                }
                _ = ticks.tick() => {
                    // On a busy machine others are late, too: such a tick does not count.
                    let now = Instant::now();
                    if now - std::mem::replace(&mut last, now) > 2 * TICK {
                        continue;
                    }
                    let silent = self.view().tick(now);
                    for member in silent.into_iter().filter(|it| asked.insert(it.instance)) {
                        let instance = member.instance;
                        let answer = (self.probe)(&self.tls, member);
                        answers.push(answer.map(move |has_answered| (instance, has_answered)));
                    }
                }
            }
        }
    }

    /// Returns whether there is such a replica, as far as this one knows.
    pub fn has_member(&self, instance: Instance) -> bool {
        self.view().has_member(instance)
    }

    /// Finds a process that has something for a client, such as a call that waits for it. One that
    /// is not known may have started since the last heartbeat, and is looked for in the store.
    pub async fn find(&self, instance: Instance) -> Whereabouts {
        self.find_by(|it| it == instance).await
    }

    /// Like [`Self::find`], for a process of which something else is known than its number.
    pub async fn find_by(&self, is_it: impl Fn(Instance) -> bool) -> Whereabouts {
        let find = || self.view().find(&is_it, Instant::now());
        let is_member = || self.view().members().any(|member| is_it(member.instance));
        match find() {
            Whereabouts::Unreachable if !is_member() => {
                self.refresh().await;
                find()
            }
            found => found,
        }
    }
}

/// Longest time for an answer, on a machine that is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
