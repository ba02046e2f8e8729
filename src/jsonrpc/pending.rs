//! The table of open requests on one connection.
//!
//! Each request has a [`Ticket`]; dropping the ticket is cancelling. A request is settled at most once:
//! whoever removes its entry from the table owns the outcome, so an answer that is late, doubled or
//! for nobody finds no entry and is dropped. Ids are minted here, count up, and never come again.
//!
//! Knows nothing of: time-outs, and what is told to the other side when a ticket drops; the ticket's
//! holder does that (see [`Ticket::is_open`]).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// The open requests of one connection, each with a `side` value: what is sent beside its answer.
#[derive(Debug)]
pub struct Pending<A, S> {
    table: Arc<Mutex<Table<A, S>>>,
}

impl<A, S> Clone for Pending<A, S> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table) }
    }
}

#[derive(Debug)]
struct Table<A, S> {
    /// `None` once the connection is closed: nothing will be answered any more.
    open: Option<BTreeMap<u64, Entry<A, S>>>,
    next: u64,
}

#[derive(Debug)]
struct Entry<A, S> {
    answer: oneshot::Sender<A>,
    side: S,
}

/// A claim to one answer. A future that resolves once, and to `None` if the connection closes first.
#[derive(Debug)]
pub struct Ticket<A, S> {
    id: u64,
    answer: oneshot::Receiver<A>,
    pending: Pending<A, S>,
}

impl<A, S> Default for Pending<A, S> {
    fn default() -> Self {
        Self { table: Arc::new(Mutex::new(Table { open: Some(BTreeMap::new()), next: 1 })) }
    }
}

impl<A, S> Pending<A, S> {
    /// Enters a request; `None` if the connection is closed.
    pub fn open(&self, side: S) -> Option<Ticket<A, S>> {
        let (sender, answer) = oneshot::channel();
        let mut table = self.lock();
        let id = table.next;
        table.open.as_mut()?.insert(id, Entry { answer: sender, side });
        table.next += 1;
        Some(Ticket { id, answer, pending: self.clone() })
    }

    /// Gives request `id` its answer; `false` if nobody waits for it (any more).
    pub fn settle(&self, id: u64, answer: A) -> bool {
        let entry = self.lock().open.as_mut().and_then(|open| open.remove(&id));
        // Sending fails if the ticket was dropped between the two lines: then nobody waits either.
        entry.is_some_and(|entry| entry.answer.send(answer).is_ok())
    }

    /// Looks at what travels beside the answer of request `id`, if it is still open.
    ///
    /// `look` runs under the table's lock: it must not wait and must not come back here.
    pub fn beside<R>(&self, id: u64, look: impl FnOnce(&S) -> R) -> Option<R> {
        self.lock().open.as_ref()?.get(&id).map(|entry| look(&entry.side))
    }

    /// What `look` finds beside the newest of the open requests beside which it finds anything. It looks
    /// beside all of them, under the lock, as in [`Pending::beside`].
    pub fn newest<R>(&self, look: impl Fn(&S) -> Option<R>) -> Option<R> {
        let table = self.lock();
        let found = table.open.as_ref()?.iter();
        let found = found.filter_map(|(id, entry)| Some((*id, look(&entry.side)?)));
        found.max_by_key(|(id, _)| *id).map(|(_, found)| found)
    }

    /// What `look` finds, if it finds anything beside one open request only; as in [`Pending::newest`].
    pub fn only<R>(&self, look: impl Fn(&S) -> Option<R>) -> Option<R> {
        let table = self.lock();
        let mut found = table.open.as_ref()?.values().filter_map(|entry| look(&entry.side));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// What `look` finds beside the open requests, the oldest first; as in [`Pending::newest`].
    pub fn all<R>(&self, look: impl Fn(&S) -> Option<R>) -> Vec<R> {
        let table = self.lock();
        let open = table.open.iter().flat_map(BTreeMap::values);
        open.filter_map(|entry| look(&entry.side)).collect()
    }

    /// Ends every open request without an answer, and refuses new ones.
    pub fn close(&self) {
        // Dropping the senders under the lock would wake tasks that want the lock.
        let open = self.lock().open.take();
        drop(open);
    }

    /// Whether a request with this id was ever entered.
    pub fn was_minted(&self, id: u64) -> bool {
        (1..self.lock().next).contains(&id)
    }

    /// How many requests are open.
    pub fn len(&self) -> usize {
        self.lock().open.as_ref().map_or(0, BTreeMap::len)
    }

    /// Whether no request is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Table<A, S>> {
        // Every change under the lock is one map operation: a panic leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A, S> Ticket<A, S> {
    /// The id that was minted for this request.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the request is neither answered nor ended: the other side may still be at work.
    pub fn is_open(&self) -> bool {
        let table = self.pending.lock();
        table.open.as_ref().is_some_and(|open| open.contains_key(&self.id))
    }
}

impl<A, S> Future for Ticket<A, S> {
    type Output = Option<A>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<A>> {
        Pin::new(&mut self.answer).poll(cx).map(Result::ok)
    }
}

impl<A, S> Drop for Ticket<A, S> {
    fn drop(&mut self) {
        let entry = self.pending.lock().open.as_mut().and_then(|open| open.remove(&self.id));
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Pending<&'static str, ()> {
        Pending::default()
    }

    #[tokio::test]
    async fn each_ticket_gets_its_own_answer_in_any_order() {
        let pending = pending();
        let (a, b) = (pending.open(()).expect("open"), pending.open(()).expect("open"));
        assert_ne!(a.id(), b.id());
        assert!(pending.settle(b.id(), "b"));
        assert!(pending.settle(a.id(), "a"));
        assert_eq!((a.await, b.await), (Some("a"), Some("b")));
        assert!(pending.is_empty());
    }

    #[tokio::test]
    async fn the_second_answer_finds_nobody() {
        let pending = pending();
        let ticket = pending.open(()).expect("open");
        assert!(pending.settle(ticket.id(), "first"));
        assert!(!pending.settle(ticket.id(), "second"));
        assert_eq!(ticket.await, Some("first"));
    }

    #[test]
    fn a_dropped_ticket_leaves_the_table_and_its_id_never_comes_again() {
        let pending = pending();
        let ticket = pending.open(()).expect("open");
        let id = ticket.id();
        assert!(ticket.is_open());
        drop(ticket);
        assert!(pending.is_empty() && !pending.settle(id, "late"));
        assert_ne!(pending.open(()).map(|ticket| ticket.id()), Some(id));
    }

    #[test]
    fn the_newest_request_that_fits_is_found() {
        let pending: Pending<(), u32> = Pending::default();
        let tickets = [3, 8, 5].map(|side| pending.open(side).expect("open"));
        let odd = |side: &u32| (side % 2 == 1).then_some(*side);
        assert_eq!(pending.newest(odd), Some(5));
        drop(tickets);
        assert_eq!(pending.newest(odd), None);
    }

    /// What can happen to two requests, of whom the first is answered twice and given up.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Step {
        Settle(usize),
        SettleAgain,
        Look(usize),
        GiveUp,
        Close,
        Another,
    }

    /// What has become of a request, by a model that knows no table.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fate {
        Open,
        Answered(&'static str),
        Ended,
        Gone,
    }

    /// Takes the steps in this order, and compares each outcome with the model's.
    fn take(order: &[Step]) {
        let pending = pending();
        let mut tickets = [pending.open(()), pending.open(())];
        let ids = [1, 2];
        let (mut fates, mut is_closed, mut seen) = ([Fate::Open; 2], false, 2);
        let context = &mut Context::from_waker(std::task::Waker::noop());
        for step in order {
            match *step {
                Step::Settle(which) => {
                    let is_open = fates[which] == Fate::Open;
                    assert_eq!(pending.settle(ids[which], "first"), is_open, "{order:?}");
                    if is_open {
                        fates[which] = Fate::Answered("first");
                    }
                }
                Step::SettleAgain => {
                    let is_open = fates[0] == Fate::Open;
                    assert_eq!(pending.settle(ids[0], "second"), is_open, "{order:?}");
                    if is_open {
                        fates[0] = Fate::Answered("second");
                    }
                }
                Step::Look(which) => {
                    let Some(ticket) = &mut tickets[which] else { continue };
                    let expected = match fates[which] {
                        Fate::Open => Poll::Pending,
                        Fate::Answered(answer) => Poll::Ready(Some(answer)),
                        Fate::Ended | Fate::Gone => Poll::Ready(None),
                    };
                    assert_eq!(ticket.is_open(), expected.is_pending(), "{order:?}");
                    assert_eq!(Pin::new(ticket).poll(context), expected, "{order:?}");
                }
                Step::GiveUp => {
                    tickets[0] = None;
                    fates[0] = Fate::Gone;
                }
                Step::Close => {
                    pending.close();
                    is_closed = true;
                    for fate in &mut fates {
                        *fate = if *fate == Fate::Open { Fate::Ended } else { *fate };
                    }
                }
                Step::Another => {
                    let ticket = pending.open(());
                    assert_eq!(ticket.is_none(), is_closed, "{order:?}");
                    seen += u64::from(!is_closed);
                    assert_eq!(ticket.map_or(seen, |ticket| ticket.id()), seen, "{order:?}");
                }
            }
            let open = fates.iter().filter(|fate| **fate == Fate::Open).count();
            assert_eq!(pending.len(), open, "{order:?}");
        }
        drop(tickets);
        assert!(pending.is_empty(), "{order:?}");
    }

    /// Calls `each` with every order of what stands behind `at`.
    fn orders(steps: &mut [Step], at: usize, each: &mut impl FnMut(&[Step])) {
        if at == steps.len() {
            return each(steps);
        }
        for other in at..steps.len() {
            steps.swap(at, other);
            orders(steps, at + 1, each);
            steps.swap(at, other);
        }
    }

    #[test]
    fn in_every_order_each_request_is_settled_once_and_leaves() {
        use Step::*;
        let mut steps =
            [Settle(0), SettleAgain, Look(0), GiveUp, Settle(1), Look(1), Close, Another];
        let mut count = 0;
        orders(&mut steps, 0, &mut |order| {
            take(order);
            count += 1;
        });
        assert_eq!(count, 40_320);
    }

    #[test]
    fn who_answers_gives_up_and_closes_at_the_same_time_settle_it_once() {
        for round in 0..2_000 {
            let pending = pending();
            let mut ticket = pending.open(()).expect("open");
            let (id, start) = (ticket.id(), std::sync::Barrier::new(4));
            let settle = |answer| {
                let (pending, start) = (pending.clone(), &start);
                move || {
                    start.wait();
                    pending.settle(id, answer)
                }
            };
            let (first, second, seen) = std::thread::scope(|scope| {
                let (first, second) = (scope.spawn(settle("a")), scope.spawn(settle("b")));
                scope.spawn(|| {
                    start.wait();
                    if round % 2 == 0 {
                        pending.close();
                    }
                });
                let seeing = scope.spawn(|| {
                    start.wait();
                    let context = &mut Context::from_waker(std::task::Waker::noop());
                    let seen = Pin::new(&mut ticket).poll(context);
                    drop(ticket);
                    seen
                });
                let joined = (first.join(), second.join(), seeing.join());
                (joined.0.expect("a"), joined.1.expect("b"), joined.2.expect("seen"))
            });
            assert!(!(first && second), "{round}: both were taken");
            if let Poll::Ready(Some(answer)) = seen {
                assert!(if answer == "a" { first } else { second }, "{round}: {answer}");
            }
            assert!(pending.is_empty(), "{round}");
        }
    }

    #[tokio::test]
    async fn closing_ends_every_request_and_admits_no_more() {
        let pending = pending();
        let ticket = pending.open(()).expect("open");
        pending.close();
        assert!(!ticket.is_open());
        assert_eq!(ticket.await, None);
        assert!(pending.open(()).is_none());
    }
}
