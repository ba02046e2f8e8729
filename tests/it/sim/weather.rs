//! Simulated network around the gateway: odd chunks, delays, and in a storm connections that break.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join, select};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio_util::task::TaskTracker;

use super::dice::Dice;
use crate::world::ConnectionWrapper;

const PIPE: usize = 64 * 1024;

#[derive(Clone)]
pub(super) struct FaultyNetwork {
    /// Number of connections by owner, so that the faults of a connection follow from its owner.
    counts: Arc<Mutex<HashMap<String, u64>>>,
    seed: u64,
    is_stormy: Arc<AtomicBool>,
    tasks: TaskTracker,
}

impl FaultyNetwork {
    pub(super) fn new(mut dice: Dice, tasks: TaskTracker) -> Self {
        let (counts, is_stormy) = (Arc::default(), Arc::default());
        Self { counts, seed: dice.next(), is_stormy, tasks }
    }

    /// Lets connections break from now on.
    pub(super) fn storm(&self) {
        self.is_stormy.store(true, Ordering::Relaxed);
    }

    /// Lets no connection break from now on.
    pub(super) fn calm(&self) {
        self.is_stormy.store(false, Ordering::Relaxed);
    }

    pub(super) fn wrapper(&self) -> ConnectionWrapper {
        let weather = self.clone();
        Arc::new(move |whose, end| weather.wrap(whose, end))
    }

    fn wrap(&self, whose: &str, end: DuplexStream) -> DuplexStream {
        let number = {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(whose.to_owned()).or_default();
            *count += 1;
            *count
        };
        let whose_seed = whose.bytes().fold(7, |sum: u64, byte| sum * 31 + u64::from(byte));
        let mut dice = Dice::new(self.seed ^ whose_seed ^ (number << 20));
        let (near, far) = tokio::io::duplex(PIPE);
        let may_break = whose != "pipe";
        let (there, back) = (tokio::io::split(end), tokio::io::split(far));
        let one = self.clone().carry(there.0, back.1, may_break, dice.fork());
        let other = self.clone().carry(back.0, there.1, may_break, dice.fork());
        // A socket that is closed in one direction is closed in both; of two pipes each ends by
        // itself, after its contents have arrived.
        let (one, other) = (one.boxed(), other.boxed());
        let both = async move {
            match may_break {
                true => drop(select(one, other).await),
                false => drop(join(one, other).await),
            }
        };
        self.tasks.spawn(both);
        near
    }

    async fn carry(
        self,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
        may_break: bool,
        mut dice: Dice,
    ) {
        let breaks_after = dice.one_in(4).then(|| dice.below(6_000) as usize).filter(|_| may_break);
        let is_slow = dice.one_in(3);
        let mut chunk = vec![0; 8 * 1024];
        let mut carried = 0;
        loop {
            let most = match dice.below(8) {
                0 => 1 + dice.below(7),
                1 => 1 + dice.below(200),
                _ => 8 * 1024,
            };
            let Ok(count @ 1..) = from.read(&mut chunk[..most as usize]).await else {
                let _ = to.shutdown().await;
                return;
            };
            if is_slow && dice.one_in(4) {
                tokio::time::sleep(Duration::from_millis(1 + dice.below(30))).await;
            }
            carried += count;
            let breaks = breaks_after.is_some_and(|after| carried > after);
            if breaks && self.is_stormy.load(Ordering::Relaxed) {
                return;
            }
            if to.write_all(&chunk[..count]).await.is_err() {
                return;
            }
        }
    }
}
