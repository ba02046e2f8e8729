//! Global budget of buffered bytes: what has been received and not processed, and what waits to be
//! read by peers.
//!
//! A [`Reservation`] is one part of the budget and returns it when dropped; bytes wrapped by
//! [`Reservation::attach`] return it with their last copy. A [`GrowingReservation`] belongs to a
//! buffer that grows piece by piece, and reserves nothing while the buffer is small. As the budget
//! fills up, less is allowed ([`MemoryPressure`]). Small buffers always fit, so that a gateway
//! under pressure still answers small requests and can be stopped.
//!
//! Decision: docs/decisions/0026-memory-budget.md

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::watch;

/// The budget. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    held: AtomicUsize,
    pressure: watch::Sender<MemoryPressure>,
}

/// Level of use of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Less than 85 %.
    Normal,
    /// 85 % or more: idle connections are closed.
    Elevated,
    /// 92 % or more: new sessions and streams are refused.
    High,
    /// 95 % or more: large buffers are refused.
    Critical,
}

/// Part of the budget, which returns when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: usize,
}

/// Reservation that grows with a buffer. It returns when dropped, or with the last copy of the
/// complete bytes.
#[derive(Debug)]
pub struct GrowingReservation {
    budget: MemoryBudget,
    /// Set once the buffer is not small any more.
    held: Option<Reservation>,
}

/// The budget is exhausted at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetExhausted;

/// Reason why bytes were not buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// They exceed this number of bytes.
    #[error("more than {0} bytes")]
    TooLarge(usize),
    /// The budget is exhausted at the moment.
    #[error("more than the memory budget allows at present")]
    BudgetExhausted,
}

/// Size limit of one buffered body, and the budget that it counts against. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BufferLimit {
    /// In bytes.
    pub limit: usize,
    /// Budget shared by all bodies.
    pub budget: MemoryBudget,
}

impl BufferLimit {
    /// Creates a limit of `limit` bytes without a shared budget.
    pub fn without_budget(limit: usize) -> Self {
        Self { limit, budget: MemoryBudget::new(usize::MAX) }
    }
}

/// Bytes together with their reservation.
struct ReservedBytes {
    text: Bytes,
    _held: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let pressure = watch::Sender::new(MemoryPressure::Normal);
        Self(Arc::new(Shared { limit, held: AtomicUsize::new(0), pressure }))
    }

    /// Creates an empty reservation.
    pub fn start_reservation(&self) -> Reservation {
        Reservation { shared: Arc::clone(&self.0), bytes: 0 }
    }

    /// Reserves the size of bytes that are in memory already, until their last copy is dropped. An
    /// error means that the bytes are too large for the rest of the budget; the caller must drop
    /// them.
    pub fn charge(&self, text: Bytes) -> Result<Bytes, BudgetExhausted> {
        let mut held = self.start_reservation();
        if text.len() > SMALL_BYTES
            && self.reserved_bytes().saturating_add(text.len()) > self.0.limit
        {
            return Err(BudgetExhausted);
        }
        held.add(text.len());
        Ok(held.attach(text))
    }

    /// Like [`Self::charge`], but small bytes do not count: their number is bounded elsewhere.
    pub fn charge_large(&self, text: Bytes) -> Result<Bytes, BudgetExhausted> {
        if text.len() > SMALL_BYTES { self.charge(text) } else { Ok(text) }
    }

    /// Returns the number of reserved bytes.
    pub fn reserved_bytes(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Returns the level of use.
    pub fn pressure(&self) -> MemoryPressure {
        *self.0.pressure.borrow()
    }

    /// Returns a receiver for changes of the level of use.
    pub fn subscribe_pressure(&self) -> watch::Receiver<MemoryPressure> {
        self.0.pressure.subscribe()
    }
}

impl Reservation {
    /// Reserves `bytes` more, if the budget allows it or the reservation stays small.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        if self.bytes + bytes > SMALL_BYTES {
            let then = self.shared.held.load(Ordering::Relaxed).saturating_add(bytes);
            if self.shared.pressure_at(then) == MemoryPressure::Critical {
                return Err(BudgetExhausted);
            }
        }
        self.add(bytes);
        Ok(())
    }

    /// Attaches the reservation to bytes; it returns when their last copy is dropped.
    pub fn attach(self, text: Bytes) -> Bytes {
        Bytes::from_owner(ReservedBytes { text, _held: self })
    }

    /// Returns what exceeds `bytes`.
    fn shrink(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.shared.release(surplus);
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        let before = self.shared.held.fetch_add(bytes, Ordering::Relaxed);
        self.shared.publish(before, before + bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.release(self.bytes);
    }
}

impl GrowingReservation {
    /// Creates a reservation for an empty buffer.
    pub fn new(budget: &MemoryBudget) -> Self {
        Self { budget: budget.clone(), held: None }
    }

    /// Reserves for a buffer that has grown to `bytes`. Small buffers are not counted; beyond that,
    /// memory is reserved in large steps, so that many small pieces need few reservations.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        if bytes <= SMALL_BYTES {
            return Ok(());
        }
        let held = self.held.get_or_insert_with(|| self.budget.start_reservation());
        match bytes.checked_sub(held.bytes) {
            None | Some(0) => Ok(()),
            Some(more) => held.grow(more.max(GROWTH_STEP_BYTES)),
        }
    }

    /// Attaches the reservation to the complete bytes and starts an empty one.
    pub fn bind(&mut self, whole: Bytes) -> Bytes {
        match self.held.take() {
            Some(mut held) if whole.len() > SMALL_BYTES => {
                held.shrink(whole.len());
                held.attach(whole)
            }
            _ => whole,
        }
    }

    /// Returns the reservation of a buffer that was dropped.
    pub fn clear(&mut self) {
        self.held = None;
    }
}

impl Shared {
    fn release(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.publish(before, before.saturating_sub(bytes));
    }

    fn pressure_at(&self, held: usize) -> MemoryPressure {
        let at_least = |percent: usize| held >= self.limit / 100 * percent;
        match () {
            () if at_least(SPENT) => MemoryPressure::Critical,
            () if at_least(SCARCE) => MemoryPressure::High,
            () if at_least(TIGHT) => MemoryPressure::Elevated,
            () => MemoryPressure::Normal,
        }
    }

    /// Publishes a change of the level. Of two concurrent changes the later one sees both.
    fn publish(&self, before: usize, after: usize) {
        if self.pressure_at(before) != self.pressure_at(after) {
            self.pressure.send_if_modified(|pressure| {
                let now = self.pressure_at(self.held.load(Ordering::Relaxed));
                std::mem::replace(pressure, now) != now
            });
        }
    }
}

/// Size up to which a buffer always fits: most messages do, and the number of connections that
/// bring them is bounded.
pub const SMALL_BYTES: usize = 16 * 1024;

/// Step in which a [`GrowingReservation`] grows.
const GROWTH_STEP_BYTES: usize = 64 * 1024;

/// Lower bounds of the levels, in percent.
const TIGHT: usize = 85;
const SCARCE: usize = 92;
const SPENT: usize = 95;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    const KIB: usize = 1024;

    #[test]
    fn what_is_held_returns_with_the_last_who_has_it() {
        let budget = MemoryBudget::new(1000 * KIB);
        let text = budget.charge(Bytes::from(vec![b'x'; 100 * KIB])).expect("room");
        let slice = text.slice(7..9);
        drop(text);
        assert_eq!(budget.reserved_bytes(), 100 * KIB);
        assert_eq!(slice, "xx");
        drop(slice);
        assert_eq!(budget.reserved_bytes(), 0);
        let mut held = budget.start_reservation();
        held.grow(5).expect("room");
        held.grow(6).expect("room");
        assert_eq!(budget.reserved_bytes(), 11);
        drop(held);
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[test]
    fn what_is_large_finds_no_room_once_it_is_spent_and_what_is_small_does() {
        let budget = MemoryBudget::new(1000 * KIB);
        let mut stages = budget.subscribe_pressure();
        let mut held = budget.start_reservation();
        for (more, pressure) in [
            (849, MemoryPressure::Normal),
            (1, MemoryPressure::Elevated),
            (69, MemoryPressure::Elevated),
            (1, MemoryPressure::High),
            (29, MemoryPressure::High),
        ] {
            held.grow(more * KIB).expect("room");
            assert_eq!(budget.pressure(), pressure, "at {}", budget.reserved_bytes() / KIB);
        }
        assert_eq!(held.grow(KIB), Err(BudgetExhausted));
        assert_eq!(budget.start_reservation().grow(17 * KIB), Err(BudgetExhausted));
        assert!(budget.charge(Bytes::from(vec![0; 60 * KIB])).is_err());
        let mut small = budget.start_reservation();
        assert_eq!(small.grow(16 * KIB), Ok(()));
        assert_eq!(small.grow(1), Err(BudgetExhausted), "what grows is not small any more");
        assert_eq!(budget.pressure(), MemoryPressure::Critical);
        assert!(stages.has_changed().expect("it is there"));
        drop((held, small));
        assert_eq!(*stages.borrow_and_update(), MemoryPressure::Normal);
    }

    #[test]
    fn what_grows_asks_for_nothing_while_it_is_small_and_seldom_afterwards() {
        let budget = MemoryBudget::new(1000 * KIB);
        let mut growing = GrowingReservation::new(&budget);
        for (reached, held) in [(1, 0), (16, 0), (17, 64), (64, 64), (65, 128), (300, 300)] {
            assert_eq!(
                (growing.grow_to(reached * KIB), budget.reserved_bytes()),
                (Ok(()), held * KIB),
                "{reached}"
            );
        }
        let whole = growing.bind(Bytes::from(vec![b'x'; 290 * KIB]));
        assert_eq!(budget.reserved_bytes(), 290 * KIB, "no more than it is");
        let part = whole.slice(..1);
        drop(whole);
        assert_eq!(growing.grow_to(20 * KIB), Ok(()), "the next one");
        assert_eq!(budget.reserved_bytes(), 354 * KIB);
        drop(part);
        growing.clear();
        assert_eq!(budget.reserved_bytes(), 0);
        assert_eq!(growing.grow_to(20 * KIB), Ok(()));
        drop(growing.bind(Bytes::from_static(b"it was an empty wrapper")));
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[test]
    fn what_grows_finds_no_room_once_it_is_spent_unless_it_stays_small() {
        let budget = MemoryBudget::new(1000 * KIB);
        let _others = budget.charge(Bytes::from(vec![0; 940 * KIB])).expect("room");
        let mut growing = GrowingReservation::new(&budget);
        assert_eq!(growing.grow_to(16 * KIB), Ok(()));
        assert_eq!(growing.grow_to(17 * KIB), Err(BudgetExhausted));
        assert_eq!(budget.reserved_bytes(), 940 * KIB);
    }

    #[test]
    fn many_that_take_and_return_at_once_leave_nothing_behind() {
        let (budget, begin) = (MemoryBudget::new(100 * KIB), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    for round in 0..10_000 {
                        let mut held = budget.start_reservation();
                        let _ = held.grow(round % 40 * KIB);
                    }
                });
            }
        });
        assert_eq!((budget.reserved_bytes(), budget.pressure()), (0, MemoryPressure::Normal));
    }
}
