//! Clock that also runs while the machine is suspended. In tests it is the clock of tokio, which
//! can be paused.

use std::time::Duration;

#[cfg(not(test))]
use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the machine was started, with the time in which it was suspended. All
/// processes of a machine have the same.
#[cfg(not(test))]
pub(crate) fn now() -> Duration {
    let now = clock_gettime(CLOCK);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(all(not(test), target_os = "linux"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(all(not(test), not(target_os = "linux")))]
const CLOCK: ClockId = ClockId::Monotonic;

#[cfg(test)]
pub(crate) fn now() -> Duration {
    use std::sync::LazyLock;
    use tokio::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start = *START;
    Instant::now().saturating_duration_since(start)
}
