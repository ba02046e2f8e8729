//! Table of the pending requests of one connection.
//!
//! Each request has a [`PendingResponse`]; dropping it cancels the request. A request is completed
//! at most once: the code that removes its entry from the table owns the outcome, so a late,
//! duplicate or unexpected response finds no entry and is dropped. Ids come from [`RequestIds`].
//!
//! The owner of a [`PendingResponse`] handles time limits, and notifies the peer when it is dropped
//! (see [`PendingResponse::is_open`]).

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use weir_base::tasks::sync::Mutex;
use weir_base::time::jitter;

/// Source of the ids of one connection's requests, or of several connections' ones. Cheap to clone.
///
/// An id is an integer from 1 to 2³¹ − 1, which a peer can keep in any integer type. Ids count up
/// and then begin at 1 again, so that a request and 2³¹ − 2 later ones have different ids.
#[derive(Debug, Clone, Default)]
pub struct RequestIds {
    /// Number of the next request, which is not bounded.
    next: Arc<AtomicU64>,
}

impl RequestIds {
    /// Number of different ids.
    const COUNT: u64 = (1 << 31) - 1;

    /// Creates a source that begins with a random id: other processes send requests to the same
    /// peer, and some peers take requests of different connections with the same id for one.
    pub fn random() -> Self {
        Self { next: Arc::new(AtomicU64::new(jitter::number_below(Self::COUNT))) }
    }

    fn issue(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn id_of(number: u64) -> u64 {
        number % Self::COUNT + 1
    }

    /// Returns the number of the last request that has got this id.
    fn number_of(&self, id: u64) -> Option<u64> {
        let last = self.next.load(Ordering::Relaxed).checked_sub(1)?;
        let earlier = (Self::id_of(last) + Self::COUNT).checked_sub(id)?;
        (1..=Self::COUNT).contains(&id).then_some(())?;
        last.checked_sub(earlier % Self::COUNT)
    }
}

/// Pending requests of one connection, each with a context value.
#[derive(Debug)]
pub struct PendingRequests<A, S> {
    table: Arc<Mutex<RequestTable<A, S>>>,
}

impl<A, S> Clone for PendingRequests<A, S> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table) }
    }
}

#[derive(Debug)]
struct RequestTable<A, S> {
    /// Requests by their number; `None` once the connection is closed and no response can arrive.
    open: Option<BTreeMap<u64, PendingEntry<A, S>>>,
    ids: RequestIds,
    /// Numbers of all requests of the connection, and of others that share the ids.
    issued: Range<u64>,
}

#[derive(Debug)]
struct PendingEntry<A, S> {
    answer: oneshot::Sender<A>,
    context: S,
}

/// Future of one response. Resolves once, with `None` if the connection closes first.
#[derive(Debug)]
pub struct PendingResponse<A, S> {
    number: u64,
    answer: oneshot::Receiver<A>,
    pending: PendingRequests<A, S>,
}

impl<A, S> Default for PendingRequests<A, S> {
    fn default() -> Self {
        Self::new(RequestIds::default())
    }
}

impl<A, S> PendingRequests<A, S> {
    /// Creates an empty table, whose requests get their ids from there.
    pub fn new(ids: RequestIds) -> Self {
        let (open, issued) = (Some(BTreeMap::new()), 0..0);
        Self { table: Arc::new(Mutex::new(RequestTable { open, ids, issued })) }
    }

    /// Adds a request; `None` if the connection is closed.
    pub fn open(&self, context: S) -> Option<PendingResponse<A, S>> {
        let (sender, answer) = oneshot::channel();
        let mut table = self.table.lock();
        let RequestTable { open, ids, issued } = &mut *table;
        let open = open.as_mut()?;
        let number = ids.issue();
        open.insert(number, PendingEntry { answer: sender, context });
        let begin = if issued.is_empty() { number } else { issued.start };
        *issued = begin..number + 1;
        Some(PendingResponse { number, answer, pending: self.clone() })
    }

    /// Completes request `id`; `false` if it is not pending (any more).
    pub fn complete(&self, id: u64, answer: A) -> bool {
        let entry = {
            let mut table = self.table.lock();
            let number = table.ids.number_of(id);
            number.and_then(|number| table.open.as_mut()?.remove(&number))
        };
        // Sending fails if the future was dropped between the two lines; then nothing waits for the
        // response either.
        entry.is_some_and(|entry| entry.answer.send(answer).is_ok())
    }

    /// Calls `look` with the context of request `id`, if it is still pending.
    ///
    /// `look` runs under the table's lock: it must not block and must not use this table.
    pub fn with_context<R>(&self, id: u64, look: impl FnOnce(&S) -> R) -> Option<R> {
        let table = self.table.lock();
        let number = table.ids.number_of(id)?;
        table.open.as_ref()?.get(&number).map(|entry| look(&entry.context))
    }

    /// Returns the result of `look` for the newest pending request for which it has one. `look` is
    /// called under the lock, as in [`PendingRequests::with_context`], for no older ones.
    pub fn find_newest<R>(&self, look: impl Fn(&S) -> Option<R>) -> Option<R> {
        let table = self.table.lock();
        table.open.as_ref()?.values().rev().find_map(|entry| look(&entry.context))
    }

    /// Returns the result of `look`, if it has one for exactly one pending request; under the lock,
    /// as in [`PendingRequests::with_context`].
    pub fn find_unique<R>(&self, look: impl Fn(&S) -> Option<R>) -> Option<R> {
        let table = self.table.lock();
        let mut found = table.open.as_ref()?.values().filter_map(|entry| look(&entry.context));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Returns the results of `look` for the pending requests, the oldest first; under the lock, as
    /// in [`PendingRequests::with_context`].
    pub fn find_all<R>(&self, look: impl Fn(&S) -> Option<R>) -> Vec<R> {
        let table = self.table.lock();
        let open = table.open.iter().flat_map(BTreeMap::values);
        open.filter_map(|entry| look(&entry.context)).collect()
    }

    /// Ends every pending request without a response, and refuses new ones.
    pub fn close(&self) {
        // Dropping the senders under the lock would wake tasks that need the lock.
        let open = self.table.lock().open.take();
        drop(open);
    }

    /// Returns whether a request with this id was ever added here. With shared ids that may be
    /// said of one that was added elsewhere since the first request.
    pub fn was_issued(&self, id: u64) -> bool {
        let table = self.table.lock();
        table.ids.number_of(id).is_some_and(|number| table.issued.contains(&number))
    }

    /// Returns the number of pending requests.
    pub fn len(&self) -> usize {
        self.table.lock().open.as_ref().map_or(0, BTreeMap::len)
    }

    /// Returns whether no request is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A, S> PendingResponse<A, S> {
    /// Returns the id that was issued for this request.
    pub fn id(&self) -> u64 {
        RequestIds::id_of(self.number)
    }

    /// Returns whether the request is still pending: the peer may be processing it.
    pub fn is_open(&self) -> bool {
        let table = self.pending.table.lock();
        table.open.as_ref().is_some_and(|open| open.contains_key(&self.number))
    }
}

impl<A, S> Future for PendingResponse<A, S> {
    type Output = Option<A>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<A>> {
        Pin::new(&mut self.answer).poll(cx).map(Result::ok)
    }
}

impl<A, S> Drop for PendingResponse<A, S> {
    fn drop(&mut self) {
        let mut table = self.pending.table.lock();
        let entry = table.open.as_mut().and_then(|open| open.remove(&self.number));
        drop(table);
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> PendingRequests<&'static str, ()> {
        PendingRequests::default()
    }

    #[tokio::test]
    async fn each_ticket_gets_its_own_answer_in_any_order() {
        let pending = pending();
        let (a, b) = (pending.open(()).expect("open"), pending.open(()).expect("open"));
        assert_ne!(a.id(), b.id());
        assert!(pending.complete(b.id(), "b"));
        assert!(pending.complete(a.id(), "a"));
        assert_eq!((a.await, b.await), (Some("a"), Some("b")));
        assert!(pending.is_empty());
    }

    #[tokio::test]
    async fn the_second_answer_finds_nobody() {
        let pending = pending();
        let ticket = pending.open(()).expect("open");
        assert!(pending.complete(ticket.id(), "first"));
        assert!(!pending.complete(ticket.id(), "second"));
        assert_eq!(ticket.await, Some("first"));
    }

    #[test]
    fn a_dropped_ticket_leaves_the_table_and_its_id_never_comes_again() {
        let pending = pending();
        let ticket = pending.open(()).expect("open");
        let id = ticket.id();
        assert!(ticket.is_open());
        drop(ticket);
        assert!(pending.is_empty() && !pending.complete(id, "late"));
        assert_ne!(pending.open(()).map(|ticket| ticket.id()), Some(id));
    }

    /// Returns a source whose next request is that of this number.
    fn ids_from(number: u64) -> RequestIds {
        RequestIds { next: Arc::new(AtomicU64::new(number)) }
    }

    #[tokio::test]
    async fn requests_of_several_connections_have_ids_of_31_bits_that_differ() {
        const MAX: u64 = (1 << 31) - 1;
        let ids = ids_from(MAX - 2);
        let (one, other) = (PendingRequests::new(ids.clone()), PendingRequests::new(ids));
        let tables = [&one, &other, &one, &other];
        let tickets = tables.map(|table| table.open(()).expect("open"));
        let issued = tickets.each_ref().map(PendingResponse::id);
        assert_eq!(issued, [MAX - 1, MAX, 1, 2]);
        for id in issued {
            assert_ne!(one.with_context(id, |()| ()), other.with_context(id, |()| ()), "{id}");
        }
        assert!(!one.complete(MAX, "of another connection"));
        assert!(one.complete(1, "b") && one.complete(MAX - 1, "a"));
        let [first, _second, third, _fourth] = tickets;
        assert_eq!((first.await, third.await), (Some("a"), Some("b")));
        for unknown in [0, 3, MAX - 2, MAX + 1, MAX + 2, u64::MAX] {
            assert!(!one.complete(unknown, "x") && !one.was_issued(unknown), "{unknown}");
        }
        jitter::seed(1);
        let starts = [(); 2].map(|()| RequestIds::random().issue());
        assert_ne!(starts[0], starts[1]);
        assert!(starts.into_iter().all(|start| start < MAX), "{starts:?}");
    }

    #[test]
    fn the_newest_request_is_found_also_where_ids_begin_at_1_again() {
        let pending: PendingRequests<(), u32> = PendingRequests::new(ids_from((1 << 31) - 2));
        let tickets = [3, 5].map(|context| pending.open(context).expect("open"));
        assert_eq!(tickets.each_ref().map(PendingResponse::id), [(1 << 31) - 1, 1]);
        assert_eq!(pending.find_newest(|context| Some(*context)), Some(5));
    }

    #[test]
    fn the_newest_request_that_fits_is_found() {
        let pending: PendingRequests<(), u32> = PendingRequests::default();
        let tickets = [3, 8, 5].map(|context| pending.open(context).expect("open"));
        let odd = |context: &u32| (context % 2 == 1).then_some(*context);
        assert_eq!(pending.find_newest(odd), Some(5));
        drop(tickets);
        assert_eq!(pending.find_newest(odd), None);
    }

    /// Events of two requests, of which the first gets two responses and is dropped.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum PendingStep {
        Settle(usize),
        SettleAgain,
        Look(usize),
        GiveUp,
        Close,
        Another,
    }

    /// State of a request in a model without a table.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fate {
        Open,
        Answered(&'static str),
        Ended,
        Gone,
    }

    /// Applies the steps in this order, and compares each outcome with the model's.
    fn take(order: &[PendingStep]) {
        let pending = pending();
        let mut tickets = [pending.open(()), pending.open(())];
        let ids = [1, 2];
        let (mut fates, mut is_closed, mut seen) = ([Fate::Open; 2], false, 2);
        let context = &mut Context::from_waker(std::task::Waker::noop());
        for step in order {
            match *step {
                PendingStep::Settle(which) => {
                    let is_open = fates[which] == Fate::Open;
                    assert_eq!(pending.complete(ids[which], "first"), is_open, "{order:?}");
                    if is_open {
                        fates[which] = Fate::Answered("first");
                    }
                }
                PendingStep::SettleAgain => {
                    let is_open = fates[0] == Fate::Open;
                    assert_eq!(pending.complete(ids[0], "second"), is_open, "{order:?}");
                    if is_open {
                        fates[0] = Fate::Answered("second");
                    }
                }
                PendingStep::Look(which) => {
                    let Some(ticket) = &mut tickets[which] else { continue };
                    let expected = match fates[which] {
                        Fate::Open => Poll::Pending,
                        Fate::Answered(answer) => Poll::Ready(Some(answer)),
                        Fate::Ended | Fate::Gone => Poll::Ready(None),
                    };
                    assert_eq!(ticket.is_open(), expected.is_pending(), "{order:?}");
                    assert_eq!(Pin::new(ticket).poll(context), expected, "{order:?}");
                }
                PendingStep::GiveUp => {
                    tickets[0] = None;
                    fates[0] = Fate::Gone;
                }
                PendingStep::Close => {
                    pending.close();
                    is_closed = true;
                    for fate in &mut fates {
                        *fate = if *fate == Fate::Open { Fate::Ended } else { *fate };
                    }
                }
                PendingStep::Another => {
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
    fn orders(steps: &mut [PendingStep], at: usize, each: &mut impl FnMut(&[PendingStep])) {
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
        use PendingStep::*;
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
                    pending.complete(id, answer)
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
