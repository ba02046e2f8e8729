//! Differences between a nightly run and one by day.

use std::time::Duration;

/// Whether the long suites run: nightly, in an optimized build. Their measurements need that build.
pub(crate) fn by_night() -> bool {
    std::env::var_os("WEIR_NIGHTLY").is_some() && cfg!(not(debug_assertions))
}

/// Greatest duration in milliseconds: by day, when the machine may stall, it is only far below that
/// of the wrong outcome; by night it is as short as promised.
pub(crate) fn bound(by_day: u64, at_night: u64) -> Duration {
    Duration::from_millis(if by_night() { at_night } else { by_day })
}
