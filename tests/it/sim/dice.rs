//! Pseudo-random numbers from a seed.

use crate::by_night;
use weir_base::time::jitter::split_mix_64;

#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x5EED)
    }

    /// Derives an independent generator, so that the order of use does not matter.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        split_mix_64(&mut self.0)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A random index below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    pub(crate) fn one_of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.index(things.len())]
    }

    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// First seed of a test that counts its seeds up: by day 0; by night one that the seed of the
/// property tests determines, so that each night tries other ones.
pub(crate) fn first_seed() -> u64 {
    if !by_night() {
        return 0;
    }
    let run = std::env::var("PROPTEST_RNG_SEED").expect("cargo sets it");
    let run: u64 = run.parse().expect("a number");
    // A test counts less far, so that two nights have no seed in common.
    (run % (1 << 32)) << 20
}
