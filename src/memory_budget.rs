//! How many bytes are held for others at a time, all together: what has been sent and not yet worked on, and what
//! waits to be read.
//!
//! A [`Held`] is somebody's part of it and returns when it is dropped; a text that [`Held::around`] has wrapped returns
//! it with its last byte. What is put together piece by piece is a [`Growing`], which asks for nothing while it is
//! small. As the budget fills up, less and less is allowed ([`Stage`]); what is small always fits, so
//! that a house under pressure can still be asked, told and stopped.
//!
//! Knows nothing of: whose bytes these are, and what is done at which stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::watch;

/// The budget. Cheap to clone: all clones are the same one.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    held: AtomicUsize,
    stage: watch::Sender<Stage>,
}

/// How much of it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Less than 85 %.
    Easy,
    /// 85 % or more: whoever is idle is in the way.
    Tight,
    /// 92 % or more: nobody new settles down.
    Scarce,
    /// 95 % or more: nothing large is taken in.
    Spent,
}

/// A part of the budget; it returns when dropped.
#[derive(Debug)]
pub struct Held {
    shared: Arc<Shared>,
    bytes: usize,
}

/// What takes more and more of the budget until it is whole. It returns when dropped, or with the last who has the
/// whole.
#[derive(Debug)]
pub struct Growing {
    budget: Budget,
    /// From the moment on when it is not small any more.
    held: Option<Held>,
}

/// There is no room at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// Why a text is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unheld {
    /// It is larger than this many bytes.
    #[error("more than {0} bytes")]
    TooLarge(usize),
    /// There is no room for it at the moment.
    #[error("more than there is room for at the moment")]
    NoRoom,
}

/// How much a text may have that is held until it is whole, and what it counts against. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Allowance {
    /// In bytes.
    pub limit: usize,
    /// For all texts together.
    pub budget: Budget,
}

impl Allowance {
    /// For a text of at most so many bytes that counts together with no other.
    pub fn alone(limit: usize) -> Self {
        Self { limit, budget: Budget::new(usize::MAX) }
    }
}

/// A text, and what it takes of the budget.
struct Text {
    text: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Self {
        let stage = watch::Sender::new(Stage::Easy);
        Self(Arc::new(Shared { limit, held: AtomicUsize::new(0), stage }))
    }

    /// Begins to hold: nothing yet.
    pub fn hold(&self) -> Held {
        Held { shared: Arc::clone(&self.0), bytes: 0 }
    }

    /// Holds a text that is there already until nobody has it any more. A large one for which there is no room has to
    /// be let go of.
    pub fn keep(&self, text: Bytes) -> Result<Bytes, NoRoom> {
        let mut held = self.hold();
        if text.len() > SMALL_BYTES && self.held().saturating_add(text.len()) > self.0.limit {
            return Err(NoRoom);
        }
        held.add(text.len());
        Ok(held.around(text))
    }

    /// The same, where a small one does not count: there are only so many of them.
    pub fn keep_large(&self, text: Bytes) -> Result<Bytes, NoRoom> {
        if text.len() > SMALL_BYTES { self.keep(text) } else { Ok(text) }
    }

    /// How many bytes are held.
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// How much that is of what there is.
    pub fn stage(&self) -> Stage {
        *self.0.stage.borrow()
    }

    /// News of that.
    pub fn stages(&self) -> watch::Receiver<Stage> {
        self.0.stage.subscribe()
    }
}

impl Held {
    /// Takes more, if there is room or if all of it stays small.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if self.bytes + bytes > SMALL_BYTES {
            let then = self.shared.held.load(Ordering::Relaxed).saturating_add(bytes);
            if self.shared.stage_at(then) == Stage::Spent {
                return Err(NoRoom);
            }
        }
        self.add(bytes);
        Ok(())
    }

    /// Binds it to a text: it returns when nobody has any of that any more.
    pub fn around(self, text: Bytes) -> Bytes {
        Bytes::from_owner(Text { text, _held: self })
    }

    /// Gives back what is more than this.
    fn shrink(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.shared.give_back(surplus);
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        let before = self.shared.held.fetch_add(bytes, Ordering::Relaxed);
        self.shared.tell(before, before + bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.give_back(self.bytes);
    }
}

impl Growing {
    /// Nothing is there yet.
    pub fn new(budget: &Budget) -> Self {
        Self { budget: budget.clone(), held: None }
    }

    /// So many bytes are there by now. What is small is not even counted; beyond that room is asked for, some of it
    /// ahead, so that many small pieces do not ask each time.
    pub fn reach(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes <= SMALL_BYTES {
            return Ok(());
        }
        let held = self.held.get_or_insert_with(|| self.budget.hold());
        match bytes.checked_sub(held.bytes) {
            None | Some(0) => Ok(()),
            Some(more) => held.grow(more.max(AHEAD_BYTES)),
        }
    }

    /// The whole is there: what it takes is bound to it, and the next one begins.
    pub fn bind(&mut self, whole: Bytes) -> Bytes {
        match self.held.take() {
            Some(mut held) if whole.len() > SMALL_BYTES => {
                held.shrink(whole.len());
                held.around(whole)
            }
            _ => whole,
        }
    }

    /// What was there has been dropped.
    pub fn clear(&mut self) {
        self.held = None;
    }
}

impl Shared {
    fn give_back(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.tell(before, before.saturating_sub(bytes));
    }

    fn stage_at(&self, held: usize) -> Stage {
        let at_least = |percent: usize| held >= self.limit / 100 * percent;
        match () {
            () if at_least(SPENT) => Stage::Spent,
            () if at_least(SCARCE) => Stage::Scarce,
            () if at_least(TIGHT) => Stage::Tight,
            () => Stage::Easy,
        }
    }

    /// Tells of another stage. Of two that change it at once the later one looks at what both have done.
    fn tell(&self, before: usize, after: usize) {
        if self.stage_at(before) != self.stage_at(after) {
            self.stage.send_if_modified(|stage| {
                let now = self.stage_at(self.held.load(Ordering::Relaxed));
                std::mem::replace(stage, now) != now
            });
        }
    }
}

/// What is no larger always fits: most messages, and there are only so many connections to bring them.
pub const SMALL_BYTES: usize = 16 * 1024;

/// How much what grows asks for at a time.
const AHEAD_BYTES: usize = 64 * 1024;

/// Where the stages begin, in percent.
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
        let budget = Budget::new(1000 * KIB);
        let text = budget.keep(Bytes::from(vec![b'x'; 100 * KIB])).expect("room");
        let slice = text.slice(7..9);
        drop(text);
        assert_eq!(budget.held(), 100 * KIB);
        assert_eq!(slice, "xx");
        drop(slice);
        assert_eq!(budget.held(), 0);
        let mut held = budget.hold();
        held.grow(5).expect("room");
        held.grow(6).expect("room");
        assert_eq!(budget.held(), 11);
        drop(held);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn what_is_large_finds_no_room_once_it_is_spent_and_what_is_small_does() {
        let budget = Budget::new(1000 * KIB);
        let mut stages = budget.stages();
        let mut held = budget.hold();
        for (more, stage) in [
            (849, Stage::Easy),
            (1, Stage::Tight),
            (69, Stage::Tight),
            (1, Stage::Scarce),
            (29, Stage::Scarce),
        ] {
            held.grow(more * KIB).expect("room");
            assert_eq!(budget.stage(), stage, "at {}", budget.held() / KIB);
        }
        assert_eq!(held.grow(KIB), Err(NoRoom));
        assert_eq!(budget.hold().grow(17 * KIB), Err(NoRoom));
        assert!(budget.keep(Bytes::from(vec![0; 60 * KIB])).is_err());
        let mut small = budget.hold();
        assert_eq!(small.grow(16 * KIB), Ok(()));
        assert_eq!(small.grow(1), Err(NoRoom), "what grows is not small any more");
        assert_eq!(budget.stage(), Stage::Spent);
        assert!(stages.has_changed().expect("it is there"));
        drop((held, small));
        assert_eq!(*stages.borrow_and_update(), Stage::Easy);
    }

    #[test]
    fn what_grows_asks_for_nothing_while_it_is_small_and_seldom_afterwards() {
        let budget = Budget::new(1000 * KIB);
        let mut growing = Growing::new(&budget);
        for (reached, held) in [(1, 0), (16, 0), (17, 64), (64, 64), (65, 128), (300, 300)] {
            assert_eq!(
                (growing.reach(reached * KIB), budget.held()),
                (Ok(()), held * KIB),
                "{reached}"
            );
        }
        let whole = growing.bind(Bytes::from(vec![b'x'; 290 * KIB]));
        assert_eq!(budget.held(), 290 * KIB, "no more than it is");
        let part = whole.slice(..1);
        drop(whole);
        assert_eq!(growing.reach(20 * KIB), Ok(()), "the next one");
        assert_eq!(budget.held(), 354 * KIB);
        drop(part);
        growing.clear();
        assert_eq!(budget.held(), 0);
        assert_eq!(growing.reach(20 * KIB), Ok(()));
        drop(growing.bind(Bytes::from_static(b"it was an empty wrapper")));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn what_grows_finds_no_room_once_it_is_spent_unless_it_stays_small() {
        let budget = Budget::new(1000 * KIB);
        let _others = budget.keep(Bytes::from(vec![0; 940 * KIB])).expect("room");
        let mut growing = Growing::new(&budget);
        assert_eq!(growing.reach(16 * KIB), Ok(()));
        assert_eq!(growing.reach(17 * KIB), Err(NoRoom));
        assert_eq!(budget.held(), 940 * KIB);
    }

    #[test]
    fn many_that_take_and_return_at_once_leave_nothing_behind() {
        let (budget, begin) = (Budget::new(100 * KIB), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    for round in 0..10_000 {
                        let mut held = budget.hold();
                        let _ = held.grow(round % 40 * KIB);
                    }
                });
            }
        });
        assert_eq!((budget.held(), budget.stage()), (0, Stage::Easy));
    }
}
