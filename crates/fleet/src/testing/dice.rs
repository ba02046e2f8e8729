//! Random numbers for tests that can be repeated.

use weir_base::time::jitter::split_mix_64;

/// Seeded random numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        split_mix_64(&mut self.0)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let at = self.below(all.len() as u64);
        all.get(usize::try_from(at).unwrap_or_default()).cloned()
    }
}
