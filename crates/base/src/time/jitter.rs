//! Jitter for timers, so that they do not all expire at once, and for counters, so that they do not
//! begin at the same number everywhere.
//!
//! On a thread that was given a seed the sequence is deterministic, so that a simulated gateway has
//! the same history each time. Therefore nothing that must be unpredictable comes from here: ids,
//! states and keys are made from the system's random numbers, where they are needed.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Returns `time`, changed by up to a fifth in either direction.
pub fn apply(time: Duration) -> Duration {
    time.mul_f64(0.8 + 0.4 * unit_interval())
}

/// Makes the jitter of this thread follow from a seed.
#[doc(hidden)]
pub fn seed(seed: u64) {
    SEEDED.set(Some(seed));
}

/// Returns a number that is less than `bound`, which is at most 2³².
pub fn number_below(bound: u64) -> u64 {
    (unit_interval() * bound as f64) as u64 % bound
}

/// Returns a number evenly distributed between 0 and 1.
fn unit_interval() -> f64 {
    let random = match SEEDED.get() {
        Some(mut seed) => {
            let random = split_mix_64(&mut seed);
            SEEDED.set(Some(seed));
            random
        }
        // Without random numbers the times merely have no jitter.
        None => getrandom::u64().unwrap_or(u64::MAX / 2),
    };
    random as f64 / u64::MAX as f64
}

/// Advances the state, and returns the random number that follows from it (SplitMix64).
#[doc(hidden)]
pub fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn times_differ_by_a_fifth_at_most() {
        let times: Vec<_> = (0..1_000).map(|_| apply(SECOND)).collect();
        assert!(times.iter().all(|time| (800..=1_200).contains(&time.as_millis())), "{times:?}");
        assert!(times.iter().any(|time| time.as_millis() < 900));
        assert!(times.iter().any(|time| time.as_millis() > 1_100));
    }

    #[test]
    fn the_same_seed_gives_the_same_times() {
        let some = |number| {
            seed(number);
            [apply(SECOND), apply(SECOND), apply(SECOND)]
        };
        assert_eq!(some(7), some(7));
        assert_ne!(some(7), some(8));
    }
}
