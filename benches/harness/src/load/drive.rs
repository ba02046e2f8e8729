//! Many connections, each of which sends its next request after each response, for a given time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::connection::Connection;
use super::exchange::{Exchange, FIRST_ID};
use super::peer::Peer;

/// One client: its endpoint, and its requests, in turn. Where `is_walk`, each round through all of
/// them is one piece of work.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) peer: Peer,
    pub(crate) script: Arc<Vec<Exchange>>,
    pub(crate) is_walk: bool,
}

/// Result of a load.
#[derive(Debug, Default)]
pub(crate) struct Driven {
    /// Durations in nanoseconds, sorted: of each successful piece of work.
    pub(crate) times: Vec<u64>,
    /// Number of failed pieces of work.
    pub(crate) wrong: usize,
    /// Reason of the first failure.
    pub(crate) first_wrong: Option<String>,
    pub(crate) seconds: f64,
}

impl Driven {
    /// Percentile of the durations, in microseconds.
    pub(crate) fn micros(&self, share: f64) -> f64 {
        let at = (self.times.len() as f64 * share) as usize;
        let found = self.times.get(at.min(self.times.len().saturating_sub(1)));
        found.map_or(f64::NAN, |nanos| *nanos as f64 / 1_000.0)
    }

    pub(crate) fn rate(&self) -> f64 {
        self.times.len() as f64 / self.seconds
    }

    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
    }
}

/// Length of the load of each client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    Time(Duration),
    /// Pieces of work.
    Count(usize),
}

/// Connects all clients, sends one uncounted request each, and then requests for this long. `begin`
/// is called in between.
pub(crate) async fn drive(
    clients: &[Client],
    length: Length,
    begin: impl FnOnce(),
) -> io::Result<Driven> {
    let mut ready = Vec::with_capacity(clients.len());
    let mut connecting = JoinSet::new();
    for (number, client) in clients.iter().cloned().enumerate() {
        connecting.spawn(async move {
            let connection = Connection::open(client.peer.address).await?;
            // Each client begins with another item, so that all items are requested evenly.
            let at = if client.is_walk { 0 } else { number * 7 };
            let id = FIRST_ID + number as u64 * IDS_PER_CLIENT;
            let buffer = Vec::new();
            let mut active = ActiveClient { connection, client, at, id, buffer };
            let first = tokio::time::timeout(PATIENCE, active.work()).await;
            let first = first.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            io::Result::Ok((active, first))
        });
    }
    while let Some(connected) = connecting.join_next().await {
        let (active, first) = connected.map_err(io::Error::other)??;
        if let Err(wrong) = first {
            return Ok(Driven {
                wrong: 1,
                first_wrong: Some(wrong),
                seconds: 1.0,
                ..Driven::default()
            });
        }
        ready.push(active);
    }
    begin();
    let start = Instant::now();
    let mut active = JoinSet::new();
    for one in ready {
        active.spawn(one.work_for(length));
    }
    let mut driven = Driven::default();
    while let Some(one) = active.join_next().await {
        driven.add(one.map_err(io::Error::other)?);
    }
    driven.seconds = start.elapsed().as_secs_f64();
    driven.times.sort_unstable();
    Ok(driven)
}

struct ActiveClient {
    connection: Connection,
    client: Client,
    at: usize,
    id: u64,
    buffer: Vec<u8>,
}

impl ActiveClient {
    async fn work_for(mut self, length: Length) -> Driven {
        let mut driven = Driven::default();
        let start = Instant::now();
        for count in 0.. {
            let begin = Instant::now();
            let is_over = match length {
                Length::Time(time) => begin >= start + time,
                Length::Count(most) => count >= most,
            };
            if is_over {
                break;
            }
            let limit = tokio::time::timeout(PATIENCE, self.work()).await;
            let done = limit.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            match done {
                Ok(Ok(())) => driven.times.push(begin.elapsed().as_nanos() as u64),
                Ok(Err(wrong)) => {
                    driven.wrong += 1;
                    driven.first_wrong.get_or_insert(wrong);
                }
                // A broken connection counts as a failure and sends nothing more.
                Err(error) => {
                    driven.wrong += 1;
                    driven.first_wrong.get_or_insert(format!("the connection: {error}"));
                    break;
                }
            }
        }
        driven
    }

    /// One piece of work: one exchange, or a whole walk.
    async fn work(&mut self) -> io::Result<Result<(), String>> {
        let Self { connection, client, at, id, buffer } = self;
        let count = if client.is_walk { client.script.len() } else { 1 };
        for _ in 0..count {
            let exchange = &client.script[*at % client.script.len()];
            (*at, *id) = (*at + 1, *id + 1);
            exchange.write(*id, buffer);
            let response = connection.exchange(buffer).await?;
            if let Err(wrong) = exchange.check(*id, &response) {
                return Ok(Err(wrong));
            }
        }
        Ok(Ok(()))
    }
}

/// Range of ids per client, so that no two connections use one id.
const IDS_PER_CLIENT: u64 = 10_000_000;
const PATIENCE: Duration = Duration::from_secs(30);
