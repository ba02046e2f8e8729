//! Load by many clients of both eras at once, each in a closed loop, with repeatable randomness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, Outcome, Revision};
use super::ledger::Ledger;
use super::weir::Weir;
use weir_base::time::jitter::split_mix_64;

/// Pseudo-random numbers from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        split_mix_64(&mut self.0)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(things.len() as u64)).expect("a small number");
        &things[at]
    }
}

/// Chooses the fault that a call to this upstream carries, if any.
pub(crate) type Faults = dyn Fn(&mut Random, &str) -> Option<Value> + Send + Sync;

/// Kind and amount of the load.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Number of clients; those with odd numbers are legacy, of each revision in turn.
    pub(crate) clients: u64,
    pub(crate) upstreams: Vec<String>,
    /// Percentage of list requests.
    pub(crate) lists: u64,
    /// Pause between two requests of a client, so that the machine is not the bottleneck.
    pub(crate) pause: Duration,
    pub(crate) seed: u64,
    pub(crate) faults: Arc<Faults>,
}

/// A running load.
pub(crate) struct Load {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) lists: Arc<AtomicU64>,
    stop: CancellationToken,
    clients: Vec<JoinHandle<()>>,
    begun: Instant,
}

impl Plan {
    /// Calls without faults, and a few lists.
    pub(crate) fn plain(clients: u64, upstreams: &[String]) -> Self {
        Self {
            clients,
            upstreams: upstreams.to_vec(),
            lists: 10,
            pause: Duration::ZERO,
            seed: 1,
            faults: Arc::new(|_, _| None),
        }
    }

    /// Starts the load, which runs until it is stopped.
    pub(crate) fn start(self, weir: &Weir) -> Load {
        let load = Load {
            ledger: Arc::default(),
            lists: Arc::default(),
            stop: CancellationToken::new(),
            clients: Vec::new(),
            begun: Instant::now(),
        };
        let tasks = TaskTracker::new();
        let clients = (0..self.clients).map(|number| {
            let load_client = LoadClient {
                plan: self.clone(),
                number,
                address: weir.address.clone(),
                ledger: Arc::clone(&load.ledger),
                lists: Arc::clone(&load.lists),
                stop: load.stop.clone(),
            };
            tasks.spawn(load_client.run())
        });
        Load { clients: clients.collect(), ..load }
    }
}

impl Load {
    /// Lets every client finish its request, and fails if a client has failed.
    pub(crate) async fn stop(self) -> Arc<Ledger> {
        self.stop.cancel();
        for client in self.clients {
            if let Err(panic) = client.await {
                std::panic::resume_unwind(panic.into_panic());
            }
        }
        self.ledger
    }

    pub(crate) fn running(&self) -> Duration {
        self.begun.elapsed()
    }
}

struct LoadClient {
    plan: Plan,
    number: u64,
    address: String,
    ledger: Arc<Ledger>,
    lists: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl LoadClient {
    async fn run(self) {
        let legacy = usize::try_from(self.number / 2 % 4).expect("a small number");
        let revision = match self.number % 2 {
            0 => Revision::MODERN,
            _ => Revision::ALL[legacy],
        };
        let mut client = Client::http(&self.address, revision, None).await;
        let mut random = Random::new(self.plan.seed ^ (self.number << 32));
        while !self.stop.is_cancelled() {
            if random.below(100) < self.plan.lists {
                let page = client.request("tools/list", serde_json::json!({})).await;
                assert!(matches!(page, Outcome::Result(_)), "a list: {page:?}");
                self.lists.fetch_add(1, Ordering::Relaxed);
            } else {
                let upstream = random.one_of(&self.plan.upstreams).clone();
                let fault = (self.plan.faults)(&mut random, &upstream);
                self.ledger.call(&mut client, &upstream, fault.as_ref()).await;
            }
            if !self.plan.pause.is_zero() {
                self.stop.run_until_cancelled(tokio::time::sleep(self.plan.pause)).await;
            }
        }
    }
}
