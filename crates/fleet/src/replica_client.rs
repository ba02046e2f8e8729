//! Client of the other replicas: requests that are forwarded to them, connections to upstreams that
//! run there, and the question whether they live.
//!
//! Invariants: a request is sent once. An attempt that failed before the request was sent returns
//! it ([`ForwardError::NotSent`]); after that the other replica may have executed it
//! ([`ForwardError::NoResponse`]). What waits for a replica ends when that has ended, or shows no
//! sign of life, also if its machine or process stands still without a word.

mod pool;
pub(super) mod probes;
mod runner_stream;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use http_body_util::Full;
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::membership::signs::TICK;
use crate::membership::{Replica, Whereabouts};
use crate::replica_tls::{ACCEPTED, ReplicaTls};
use crate::shared::Shared;
use pool::{CONNECT_TIMEOUT, ReplicaPool};
pub use pool::{ForwardError, ReplicaBody, UnsentRequest};
use probes::Probe;
pub use runner_stream::RunnerStream;

/// Client of the other replicas.
pub struct ReplicaClient {
    shared: Arc<Shared>,
    tls: ReplicaTls,
    pool: ReplicaPool,
    probe: Probe,
}

/// Reply of a replica to a request that may be sent more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageReply {
    /// Status of its response.
    Status(StatusCode),
    /// The replica has ended.
    Ended,
    /// It does not reply in time.
    Silent,
}

impl ReplicaClient {
    pub(crate) fn new(shared: Arc<Shared>, probe: Probe) -> Self {
        let tls = ReplicaTls::new(&shared.keys);
        Self { shared, pool: ReplicaPool::new(tls.clone()), tls, probe }
    }

    /// TLS between replicas.
    pub fn tls(&self) -> &ReplicaTls {
        &self.tls
    }

    /// Forwards a request to another replica. One that cannot be reached twice, with a look at its
    /// record between, is not tried again for some time.
    pub async fn forward(
        &self,
        replica: &Replica,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ReplicaBody>, ForwardError> {
        let sent = self.try_twice(replica, request).await;
        let metrics = &self.shared.metrics;
        match &sent {
            Ok(_) => metrics.responses.increment(),
            Err(ForwardError::NotSent(_)) => metrics.unreachable.increment(),
            Err(ForwardError::NoResponse) => metrics.broken.increment(),
        }
        sent
    }

    async fn try_twice(
        &self,
        replica: &Replica,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ReplicaBody>, ForwardError> {
        let unsent = match self.pool.send(replica, request).await {
            Err(ForwardError::NotSent(unsent)) => unsent,
            sent => return sent,
        };
        self.shared.refresh().await;
        let found =
            self.shared.state().membership.find(|it| it == replica.instance, Instant::now());
        let Whereabouts::Other(replica) = found else {
            return Err(ForwardError::NotSent(unsent));
        };
        let sent = self.pool.send(&replica, *unsent.request).await;
        if let Err(ForwardError::NotSent(unsent)) = &sent {
            let mut state = self.shared.state();
            state.membership.set_unreachable(replica.instance, Instant::now());
            if unsent.is_replica_absent() {
                state.membership.pass_over(replica.instance);
            }
        }
        sent
    }

    /// Sends a request without a body of interest in its response to another replica, again until
    /// it replies: what the request says has an effect once only.
    pub async fn send_message(
        &self,
        replica: &Replica,
        request: Request<Full<Bytes>>,
        patience: Duration,
    ) -> MessageReply {
        let sending = async {
            loop {
                match self.pool.send(replica, request.clone()).await {
                    Ok(response) => {
                        let status = response.status();
                        // Read to its end, so that the connection is kept.
                        let mut body = response.into_body();
                        while body.chunk().await.is_some_and(|chunk| chunk.is_ok()) {}
                        return MessageReply::Status(status);
                    }
                    Err(ForwardError::NotSent(unsent)) if unsent.is_replica_absent() => {
                        return MessageReply::Ended;
                    }
                    Err(_) => sleep(RETRY_PAUSE).await,
                }
            }
        };
        let reply = timeout(patience, replica.gone.run_until_cancelled(sending)).await;
        let reply = reply.ok().flatten().unwrap_or(MessageReply::Silent);
        let metrics = &self.shared.metrics;
        match reply {
            MessageReply::Status(_) => metrics.responses.increment(),
            MessageReply::Ended | MessageReply::Silent => metrics.unreachable.increment(),
        }
        reply
    }

    /// Connects to an upstream on the replica that runs it. Fails if that does not run it any more.
    pub async fn connect_to(&self, runner: &Replica, upstream: &str) -> io::Result<RunnerStream> {
        let opening = async {
            let mut stream = pool::open(&self.tls.upstream_connector, runner).await?;
            stream.write_all(format!("{upstream}\n").as_bytes()).await?;
            match stream.read_u8().await? {
                ACCEPTED => Ok(stream),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        let stream = timeout(CONNECT_TIMEOUT, opening).await.map_err(io::Error::from).flatten()?;
        Ok(RunnerStream::new(stream, runner))
    }

    /// Asks the replicas that show no sign of life, and closes connections that are not needed,
    /// until `stop` fires.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
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
                        self.shared.state().membership.set_answered(instance);
                    }
                }
                _ = ticks.tick() => {
                    self.pool.close_unusable();
                    // On a busy machine others are late, too: such a tick does not count.
                    let now = Instant::now();
                    if now - std::mem::replace(&mut last, now) > 2 * TICK {
                        continue;
                    }
                    let silent = self.shared.state().membership.tick(now);
                    for replica in silent.into_iter().filter(|it| asked.insert(it.instance)) {
                        let instance = replica.instance;
                        let answer = (self.probe)(&self.tls, replica);
                        answers.push(answer.map(move |has_answered| (instance, has_answered)));
                    }
                }
            }
        }
    }

    /// Closes all connections that are not in use, now and later.
    pub(crate) fn close(&self) {
        self.pool.close();
    }
}

/// Pause before a request is sent again to a replica that does not reply.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;
    use crate::records::ReplicaRecord;
    use crate::{Fleet, FleetSettings};
    use weir_base::secrets::sealing::SealingKeys;

    #[tokio::test]
    async fn a_replica_that_is_silent_is_distinguished_from_one_that_has_ended() {
        let keys = SealingKeys::random();
        let fleet = Fleet::new(keys.clone(), FleetSettings::of_replica("a"), None);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let record = ReplicaRecord::of("b", "");
        let instance = keys.of_another_process().instance();
        let mut replica = Replica { instance, record, gone: CancellationToken::new() };
        let send = async |replica: &Replica, patience| {
            let request = Request::new(Full::new(Bytes::new()));
            fleet.client().send_message(replica, request, patience).await
        };
        let (moment, long) = (Duration::from_millis(500), Duration::from_secs(600));
        // It accepts connections, as the kernel does for a process that stands still.
        replica.record.address = listener.local_addr().expect("bound").to_string();
        assert_eq!(send(&replica, moment).await, MessageReply::Silent);
        let unused = TcpSocket::new_v4().expect("a socket");
        unused.bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        replica.record.address = unused.local_addr().expect("bound").to_string();
        assert_eq!(send(&replica, long).await, MessageReply::Ended);
        replica.gone.cancel();
        assert_eq!(send(&replica, long).await, MessageReply::Silent, "its record is missing");
    }
}
