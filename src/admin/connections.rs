//! Open connections of the listener, and which of them is closed when another one needs its place.
//!
//! Promises: there are never more than [`MAX_CONNECTIONS`]; opening one never waits and is never refused. A
//! connection that has not sent a complete head goes first, one that has shown the token goes last. Among equals
//! goes the oldest one of the address that has the most, so that who opens many closes their own.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::{CancellationToken, DropGuard};

/// The table. All clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    /// The number of the next one.
    next: u64,
    /// The oldest one first.
    entries: Vec<Entry>,
}

struct Entry {
    number: u64,
    peer: IpAddr,
    stage: Stage,
    close: CancellationToken,
    ended: CancellationToken,
}

/// How far a connection is. Those at the first stage are closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Its head has not arrived in full.
    Head,
    /// Its request is answered, or the client reads the answer.
    Answer,
    /// The same of a client that has shown the token.
    TrustedAnswer,
}

/// An open connection. Dropped, it has ended.
pub(super) struct Connection {
    table: Connections,
    number: u64,
    close: CancellationToken,
    _ended: DropGuard,
}

impl Connections {
    /// Adds a connection, and has another one closed if there is no place left.
    pub(super) fn open(&self, peer: IpAddr) -> Connection {
        let mut open = self.lock();
        if open.entries.len() >= MAX_CONNECTIONS {
            open.close_one();
        }
        let (number, close, ended) =
            (open.next, CancellationToken::new(), CancellationToken::new());
        open.next += 1;
        let stage = Stage::Head;
        open.entries.push(Entry {
            number,
            peer,
            stage,
            close: close.clone(),
            ended: ended.clone(),
        });
        drop(open);
        Connection { table: self.clone(), number, close, _ended: ended.drop_guard() }
    }

    /// Has one connection closed, if there is any. What is returned fires when it has ended.
    pub(super) fn close_one(&self) -> Option<CancellationToken> {
        self.lock().close_one()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn close_one(&mut self) -> Option<CancellationToken> {
        let stage = self.entries.iter().map(|it| it.stage).min()?;
        let of_peer =
            |peer| self.entries.iter().filter(move |it| it.stage == stage && it.peer == peer);
        let candidates = self.entries.iter().enumerate().filter(|(_, it)| it.stage == stage);
        // The first of several that are equal: the oldest.
        let at = candidates.rev().max_by_key(|(_, it)| of_peer(it.peer).count())?.0;
        let entry = self.entries.remove(at);
        entry.close.cancel();
        Some(entry.ended)
    }
}

impl Connection {
    /// Tells how far it is.
    pub(super) fn reaches(&self, stage: Stage) {
        let mut open = self.table.lock();
        // One that is being closed is not there any more.
        if let Some(entry) = open.entries.iter_mut().find(|it| it.number == self.number) {
            entry.stage = stage;
        }
    }

    /// Waits until its place is needed for another one.
    pub(super) async fn closed(&self) {
        self.close.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.table.lock().entries.retain(|it| it.number != self.number);
    }
}

/// How many connections there are at a time.
const MAX_CONNECTIONS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 66));

    fn open(table: &Connections, peer: IpAddr, count: usize, stage: Stage) -> Vec<Connection> {
        let one = |_| {
            let connection = table.open(peer);
            connection.reaches(stage);
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
        let trusted = open(&table, KUBELET, 1, Stage::TrustedAnswer);
        let probe = open(&table, KUBELET, 1, Stage::Head);
        let answered = open(&table, STRANGER, 27, Stage::Answer);
        let silent = open(&table, STRANGER, 3, Stage::Head);
        assert_eq!(table.lock().entries.len(), MAX_CONNECTIONS);

        // Silent ones of whoever has the most, the oldest first.
        let next = open(&table, STRANGER, 2, Stage::Head);
        assert_eq!(closed(&silent), [true, true, false]);
        let more = open(&table, STRANGER, 100, Stage::Head);
        assert_eq!(closed(&silent), [true; 3]);
        assert_eq!(closed(&next), [true; 2]);
        assert_eq!(closed(&probe), [false]);
        drop((next, silent));
        more.iter().for_each(|it| it.reaches(Stage::Answer));
        probe[0].reaches(Stage::Answer);
        // None is silent: then who reads its answer slowly goes, before who has shown the token.
        let last = open(&table, STRANGER, 40, Stage::TrustedAnswer);
        assert_eq!(closed(&answered), [true; 27]);
        assert_eq!((closed(&probe), closed(&trusted)), (vec![true], vec![false]));
        assert_eq!(closed(&last).iter().filter(|it| **it).count(), 40 - 31);
        assert_eq!(table.lock().entries.len(), MAX_CONNECTIONS);
        drop((last, more, answered, probe, trusted));
        assert!(table.lock().entries.is_empty() && table.close_one().is_none());
    }
}
