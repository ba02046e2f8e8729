//! Connections of the listener, and the eviction of one when another needs its place.
//!
//! Invariants: there are never more than [`MAX_CONNECTIONS`]. Opening one never waits and is never
//! refused. A connection without a complete request head is evicted first, one with the token last.
//! Among equals the oldest connection of the address with the most connections is evicted, so that
//! a client that opens many closes its own.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

use weir_base::tasks::sync::Mutex;

/// Table of connections. All clones share it.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<ConnectionTable>>);

#[derive(Default)]
struct ConnectionTable {
    /// Number of the next connection.
    next: u64,
    /// Entries, the oldest first.
    entries: Vec<ConnectionEntry>,
}

struct ConnectionEntry {
    number: u64,
    peer: IpAddr,
    stage: ConnectionStage,
    close: CancellationToken,
    ended: CancellationToken,
}

/// Stage of a connection. Those in the first stage are evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionStage {
    /// The request head has not arrived completely.
    Head,
    /// The request is processed, or the client reads the response.
    Response,
    /// The request, which has the token, is processed, or the client reads the response.
    TrustedResponse,
}

/// Open connection, which leaves the table when this is dropped.
pub(super) struct Connection {
    table: Connections,
    number: u64,
    close: CancellationToken,
    _ended: DropGuard,
}

impl Connections {
    /// Adds a connection, and evicts another one if the table is full.
    pub(super) fn open(&self, peer: IpAddr) -> Connection {
        let mut table = self.0.lock();
        if table.entries.len() >= MAX_CONNECTIONS {
            table.evict_one();
        }
        let (number, close, ended) =
            (table.next, CancellationToken::new(), CancellationToken::new());
        table.next += 1;
        let stage = ConnectionStage::Head;
        table.entries.push(ConnectionEntry {
            number,
            peer,
            stage,
            close: close.clone(),
            ended: ended.clone(),
        });
        drop(table);
        Connection { table: self.clone(), number, close, _ended: ended.drop_guard() }
    }

    /// Evicts one connection, if there is any. The returned token fires when it has ended.
    pub(super) fn evict_one(&self) -> Option<CancellationToken> {
        self.0.lock().evict_one()
    }
}

impl ConnectionTable {
    fn evict_one(&mut self) -> Option<CancellationToken> {
        let stage = self.entries.iter().map(|it| it.stage).min()?;
        let of_peer =
            |peer| self.entries.iter().filter(move |it| it.stage == stage && it.peer == peer);
        let candidates = self.entries.iter().enumerate().filter(|(_, it)| it.stage == stage);
        // Of several equal ones, the first is the oldest.
        let at = candidates.rev().max_by_key(|(_, it)| of_peer(it.peer).count())?.0;
        let entry = self.entries.remove(at);
        entry.close.cancel();
        Some(entry.ended)
    }
}

impl Connection {
    /// Sets the stage.
    pub(super) fn set_stage(&self, stage: ConnectionStage) {
        let mut table = self.table.0.lock();
        // An evicted connection has left the table already.
        if let Some(entry) = table.entries.iter_mut().find(|it| it.number == self.number) {
            entry.stage = stage;
        }
    }

    /// Waits until the connection is evicted.
    pub(super) async fn closed(&self) {
        self.close.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.table.0.lock().entries.retain(|it| it.number != self.number);
    }
}

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 66));

    fn open(
        table: &Connections,
        peer: IpAddr,
        count: usize,
        stage: ConnectionStage,
    ) -> Vec<Connection> {
        let one = |_| {
            let connection = table.open(peer);
            connection.set_stage(stage);
            connection
        };
        (0..count).map(one).collect()
    }

    fn closed(connections: &[Connection]) -> Vec<bool> {
        connections.iter().map(|it| it.close.is_cancelled()).collect()
    }

    #[test]
    fn a_full_table_closes_the_oldest_of_whom_has_most_at_the_earliest_stage() {
        let table = Connections::default();
        let trusted = open(&table, KUBELET, 1, ConnectionStage::TrustedResponse);
        let probe = open(&table, KUBELET, 1, ConnectionStage::Head);
        let answered = open(&table, STRANGER, 27, ConnectionStage::Response);
        let silent = open(&table, STRANGER, 3, ConnectionStage::Head);
        assert_eq!(table.0.lock().entries.len(), MAX_CONNECTIONS);

        // Silent ones of the address with the most, the oldest first.
        let next = open(&table, STRANGER, 2, ConnectionStage::Head);
        assert_eq!(closed(&silent), [true, true, false]);
        let more = open(&table, STRANGER, 100, ConnectionStage::Head);
        assert_eq!(closed(&silent), [true; 3]);
        assert_eq!(closed(&next), [true; 2]);
        assert_eq!(closed(&probe), [false]);
        drop((next, silent));
        more.iter().for_each(|it| it.set_stage(ConnectionStage::Response));
        probe[0].set_stage(ConnectionStage::Response);
        // None is silent: then slow readers are evicted, before those with the token.
        let last = open(&table, STRANGER, 40, ConnectionStage::TrustedResponse);
        assert_eq!(closed(&answered), [true; 27]);
        assert_eq!((closed(&probe), closed(&trusted)), (vec![true], vec![false]));
        assert_eq!(closed(&last).iter().filter(|it| **it).count(), 40 - 31);
        assert_eq!(table.0.lock().entries.len(), MAX_CONNECTIONS);
        drop((last, more, answered, probe, trusted));
        assert!(table.0.lock().entries.is_empty() && table.evict_one().is_none());
    }
}
