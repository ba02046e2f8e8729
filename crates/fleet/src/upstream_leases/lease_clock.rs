//! Clock of leases, which also runs while the machine is suspended. In the tests of this crate it
//! is the clock of tokio, which can be paused.

#[cfg(not(test))]
pub(crate) use weir_base::time::boot_clock::now;

#[cfg(test)]
pub(crate) fn now() -> std::time::Duration {
    use std::sync::LazyLock;
    use tokio::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start = *START;
    Instant::now().saturating_duration_since(start)
}
