//! Rate limits by the generic cell rate algorithm (GCRA): a rate with a burst, in one number.
//!
//! The number is the theoretical arrival time, at which everything admitted so far will have been
//! paid for, in whole nanoseconds, so that nothing is lost to rounding.
//!
//! Invariant: over any window of the clock, at most rate × window + burst requests are admitted; a
//! clock that is set back makes it stricter.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Rate and burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// Nanoseconds per request.
    interval: u64,
    burst: u32,
    /// Count and period as they were given, for the text form; a share has those of the whole.
    given: (u32, Duration),
}

/// State of one bucket.
#[derive(Debug, Default)]
pub struct Gcra {
    /// Theoretical arrival time, in nanoseconds of the clock.
    paid_at: u64,
}

/// One bucket with its rate and its clock.
#[derive(Debug)]
pub struct RateLimiter {
    rate: RequestRate,
    gcra: Gcra,
    start: Instant,
}

impl RequestRate {
    /// Creates a rate of `count` per `period`, with up to `burst` at once. None of them is zero; a
    /// period is an hour at most.
    pub fn new(count: u32, period: Duration, burst: u32) -> Self {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        // Rounding up makes the rate slower by less than a nanosecond, never faster.
        let interval = nanos.div_ceil(u64::from(count.max(1))).max(1);
        Self { interval, burst: burst.max(1), given: (count, period) }
    }

    /// Returns the share of one of several processes that admit requests on their own: the rate
    /// divided by their number, and at least one request at once.
    pub fn share(self, count: u32) -> Self {
        let count = count.max(1);
        let interval = self.interval.saturating_mul(u64::from(count));
        Self { interval, burst: (self.burst / count).max(1), ..self }
    }

    /// Returns the microseconds per request, rounded up, and those of a whole burst.
    pub fn to_micros(self) -> (u64, u64) {
        let interval = self.interval.div_ceil(1_000);
        (interval, interval.saturating_mul(u64::from(self.burst)))
    }

    /// Returns the time that each request takes of the rate.
    pub fn interval(self) -> Duration {
        Duration::from_nanos(self.interval)
    }

    /// Returns the time until one more request is admitted, if those that were admitted are paid
    /// for after `taken`.
    pub fn wait_after(self, taken: Duration) -> Duration {
        let free = Duration::from_nanos(self.tolerance());
        (taken + self.interval()).saturating_sub(free)
    }

    /// Returns whether three quarters of a burst are left, if the requests that were admitted are
    /// paid for after `taken`, and the burst is enough for `count` processes.
    pub fn is_ample(self, count: u32, taken: Duration) -> bool {
        self.burst >= count && 4 * taken <= Duration::from_nanos(self.tolerance())
    }

    fn tolerance(self) -> u64 {
        self.interval.saturating_mul(u64::from(self.burst))
    }
}

/// Formats a rate as it is written in the configuration: `600/min`, and `600/min, 60 at once` if
/// the burst is another number.
impl fmt::Display for RequestRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, period) = self.given;
        match period.as_secs() {
            1 => write!(f, "{count}/s")?,
            60 => write!(f, "{count}/min")?,
            3_600 => write!(f, "{count}/h")?,
            _ => write!(f, "{count} in {period:?}")?,
        }
        if self.burst == count { Ok(()) } else { write!(f, ", {} at once", self.burst) }
    }
}

impl Gcra {
    /// Returns the time until one more request is admitted; zero if it is admitted now.
    pub fn wait(&self, rate: RequestRate, now: u64) -> Duration {
        let paid_at = self.paid_at.max(now).saturating_add(rate.interval);
        Duration::from_nanos(paid_at.saturating_sub(now.saturating_add(rate.tolerance())))
    }

    /// Charges one request.
    pub fn charge(&mut self, rate: RequestRate, now: u64) {
        self.paid_at = self.paid_at.max(now).saturating_add(rate.interval);
    }

    /// Takes back one charge.
    pub fn refund(&mut self, rate: RequestRate) {
        self.paid_at = self.paid_at.saturating_sub(rate.interval);
    }

    /// Returns the number of requests that would be admitted at once.
    pub fn remaining(&self, rate: RequestRate, now: u64) -> u32 {
        let taken = self.paid_at.saturating_sub(now).div_ceil(rate.interval);
        rate.burst.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX))
    }

    /// Returns whether the state equals that of a new bucket.
    pub fn is_full(&self, now: u64) -> bool {
        self.paid_at <= now
    }
}

impl RateLimiter {
    /// Creates a full bucket of `burst` events, refilled with `per_second`.
    pub fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let rate = RequestRate::new(per_second, Duration::from_secs(1), burst);
        Self { rate, gcra: Gcra::default(), start: now }
    }

    /// Charges one event, if it is admitted now.
    pub fn admit(&mut self, now: Instant) -> bool {
        let is_admitted = self.wait(now).is_zero();
        if is_admitted {
            self.charge(now);
        }
        is_admitted
    }

    /// Returns the time until one more event is admitted; zero if it is admitted now.
    pub fn wait(&self, now: Instant) -> Duration {
        self.gcra.wait(self.rate, self.nanos(now))
    }

    /// Charges one event.
    pub fn charge(&mut self, now: Instant) {
        self.gcra.charge(self.rate, self.nanos(now));
    }

    /// Returns the number of events that would be admitted at once.
    pub fn remaining(&self, now: Instant) -> u32 {
        self.gcra.remaining(self.rate, self.nanos(now))
    }

    fn nanos(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn admit(gcra: &mut Gcra, rate: RequestRate, now: u64) -> bool {
        let admitted = gcra.wait(rate, now).is_zero();
        if admitted {
            gcra.charge(rate, now);
        }
        admitted
    }

    #[test]
    fn a_burst_goes_at_once_and_then_one_an_interval() {
        let (rate, mut gcra) = (RequestRate::new(600, Duration::from_secs(60), 3), Gcra::default());
        let admitted = |gcra: &mut Gcra, now| (0..10).filter(|_| admit(gcra, rate, now)).count();
        assert_eq!(admitted(&mut gcra, 0), 3);
        assert_eq!(gcra.wait(rate, 0), Duration::from_millis(100));
        assert_eq!(admitted(&mut gcra, SECOND / 10 - 1), 0);
        assert_eq!(admitted(&mut gcra, SECOND / 10), 1);
        assert!(!gcra.is_full(SECOND / 10));
        assert_eq!(admitted(&mut gcra, 60 * SECOND), 3);
        assert!(gcra.is_full(61 * SECOND));
    }

    #[test]
    fn a_rate_reads_as_it_is_written_in_the_configuration() {
        let text = |count, seconds, burst| {
            RequestRate::new(count, Duration::from_secs(seconds), burst).to_string()
        };
        assert_eq!(text(5, 60, 5), "5/min");
        assert_eq!(text(600, 60, 60), "600/min, 60 at once");
        assert_eq!([text(1, 1, 1), text(999_999, 3_600, 999_999)], ["1/s", "999999/h"]);
        assert_eq!(text(2, 5, 2), "2 in 5s");
    }

    #[test]
    fn a_share_is_a_part_of_a_limit_and_never_nothing() {
        let rate = RequestRate::new(600, Duration::from_secs(60), 3);
        let admitted = |rate: RequestRate, seconds: u64| {
            let mut gcra = Gcra::default();
            (0..=seconds * 10).filter(|at| admit(&mut gcra, rate, at * SECOND / 10)).count()
        };
        // Ten attempts a second for 70 s: all, every second one, every third one, and so on.
        let all: Vec<_> = [1, 2, 3, 7].map(|count| admitted(rate.share(count), 70)).into();
        assert_eq!(all, [701, 351, 234, 101]);
        let mut gcra = Gcra::default();
        gcra.charge(rate, 0);
        gcra.refund(rate);
        assert!(gcra.is_full(0));
        assert_eq!(rate.to_micros(), (100_000, 300_000));
    }

    /// Reference implementation: a bucket of `burst` tokens, filled in exact fractions.
    struct TokenBucket {
        /// In units of which one token has `interval`.
        level: u128,
        at: u64,
    }

    proptest! {
        #[test]
        fn d_p26_it_agrees_with_a_bucket_of_tokens(
            count in 1_u32..1_000,
            minutes in any::<bool>(),
            burst in 1_u32..20,
            pauses in prop::collection::vec(0_u64..3 * SECOND, 1..200),
        ) {
            let period = Duration::from_secs(if minutes { 60 } else { 1 });
            let rate = RequestRate::new(count, period, burst);
            let (interval, full) = (u128::from(rate.interval), u128::from(rate.tolerance()));
            let mut bucket = TokenBucket { level: full, at: 0 };
            let (mut gcra, mut now) = (Gcra::default(), 0);
            for pause in pauses {
                now += pause / u64::from(count);
                bucket.level = full.min(bucket.level + u128::from(now - bucket.at));
                bucket.at = now;
                let expected = bucket.level >= interval;
                if expected {
                    bucket.level -= interval;
                }
                prop_assert_eq!(admit(&mut gcra, rate, now), expected);
            }
        }

        #[test]
        fn d_p26_no_window_admits_more_than_its_time_and_a_burst_even_if_the_clock_goes_back(
            count in 1_u32..1_000,
            burst in 1_u32..20,
            steps in prop::collection::vec((0_u64..2 * SECOND, 0_u64..SECOND), 1..200),
        ) {
            let rate = RequestRate::new(count, Duration::from_secs(1), burst);
            let (mut gcra, mut now, mut admitted) = (Gcra::default(), 5 * SECOND, Vec::new());
            for (forth, back) in steps {
                now += forth / u64::from(count);
                // The clock goes back for one reading in two.
                let shown = if back % 2 == 0 { now } else { now - back };
                if admit(&mut gcra, rate, shown) {
                    admitted.push(i128::from(shown));
                }
            }
            for (first, from) in admitted.iter().enumerate() {
                for (last, to) in admitted.iter().enumerate().skip(first) {
                    // By the clock: a window that ends before it begins has less than a burst.
                    let paid = (last - first + 1) as i128 * i128::from(rate.interval);
                    prop_assert!(paid <= to - from + i128::from(rate.tolerance()));
                }
            }
        }

        #[test]
        fn d_p26_waiting_as_long_as_it_says_is_enough_and_no_longer_than_needed(
            count in 1_u32..1_000_000, burst in 1_u32..100, taken in 0_u32..1_000, now in 0_u64..SECOND,
        ) {
            let (rate, mut gcra) = (RequestRate::new(count, Duration::from_secs(3_600), burst), Gcra::default());
            (0..taken).for_each(|_| gcra.charge(rate, now));
            prop_assert_eq!(gcra.remaining(rate, now), burst.saturating_sub(taken));
            let wait = u64::try_from(gcra.wait(rate, now).as_nanos()).expect("short");
            prop_assert!(gcra.wait(rate, now + wait).is_zero());
            prop_assert!(wait == 0 || !gcra.wait(rate, now + wait - 1).is_zero());
        }
    }
}
