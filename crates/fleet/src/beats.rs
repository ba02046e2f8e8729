//! Beginnings and ends of heartbeats, for what waits for them.
//!
//! Invariant: a request waits for a heartbeat no longer than for one reply of the store, and not at
//! all while the store is away or late.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::store::{HEARTBEAT, StoreError};
use weir_base::tasks::sync::Mutex;

/// Signals of the heartbeat.
pub(crate) struct Beats {
    /// Longest time that a request waits for a reply of the store.
    reply_timeout: Duration,
    /// Asks for a heartbeat before its time.
    requested: Notify,
    /// Number of beginnings and ends of heartbeats; odd during one.
    count: watch::Sender<u64>,
    /// Time since when a heartbeat waits for the reply of the store.
    asked_at: Mutex<Option<Instant>>,
    /// Whether the last heartbeat has failed, or one in progress is late.
    is_late: AtomicBool,
    /// Whether the store does not allow what this replica needs.
    is_forbidden: AtomicBool,
}

/// Error: a heartbeat was too late for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LateBeat;

impl Beats {
    pub(crate) fn new(reply_timeout: Duration) -> Self {
        Self {
            reply_timeout,
            requested: Notify::new(),
            count: watch::Sender::new(0),
            asked_at: Mutex::default(),
            is_late: AtomicBool::new(false),
            is_forbidden: AtomicBool::new(false),
        }
    }

    // === The heartbeat ===

    /// Records that a heartbeat begins.
    pub(crate) fn begin(&self) {
        self.count.send_modify(|count| *count += 1);
    }

    /// Waits for the reply of the store.
    pub(crate) async fn ask<T>(&self, store: impl Future<Output = T>) -> T {
        *self.asked_at.lock() = Some(Instant::now());
        let reply = store.await;
        *self.asked_at.lock() = None;
        reply
    }

    /// Records that a heartbeat has ended.
    pub(crate) fn end(&self, error: Option<&StoreError>) {
        let is_forbidden = matches!(error, Some(StoreError::Forbidden(_)));
        self.is_forbidden.store(is_forbidden, Ordering::Relaxed);
        self.is_late.store(error.is_some(), Ordering::Release);
        self.count.send_modify(|count| *count += 1);
    }

    /// Waits until a heartbeat is asked for before its time. Cancel-safe.
    pub(crate) async fn requested(&self) {
        self.requested.notified().await;
    }

    // === Those who wait ===

    /// Asks for a heartbeat before its time.
    pub(crate) fn request(&self) {
        self.requested.notify_one();
    }

    /// Makes a heartbeat that begins now, and waits until it has ended, after one that is in
    /// progress. Does not wait for a store that is away or late.
    pub(crate) async fn refresh(&self) -> Result<(), LateBeat> {
        let is_late = || self.is_late.load(Ordering::Acquire);
        if is_late() {
            return Ok(());
        }
        let mut beats = self.count.subscribe();
        let before = *beats.borrow();
        self.request();
        // One that is in progress may not know of what has just happened.
        let ended = beats.wait_for(|count| *count >= before + before % 2 + 2 || is_late());
        if timeout(self.reply_timeout, ended).await.is_err() {
            // Nothing else waits for it.
            self.is_late.store(true, Ordering::Release);
            return Err(LateBeat);
        }
        Ok(())
    }

    /// Waits for the end of the first heartbeat, or the time in which its reply is due.
    pub(crate) async fn first(&self) {
        let mut beats = self.count.subscribe();
        let first = beats.wait_for(|count| *count >= 2);
        let _ = timeout(self.reply_timeout, first).await;
    }

    /// Waits for the next heartbeat, whether it succeeds or not, or for the time of one.
    pub(crate) async fn next(&self) {
        let _ = timeout(HEARTBEAT, self.count.subscribe().changed()).await;
    }

    /// Returns whether a heartbeat waits for the store longer than a request may.
    pub(crate) fn is_store_silent(&self) -> bool {
        let asked_at = *self.asked_at.lock();
        asked_at.is_some_and(|asked_at| asked_at.elapsed() >= self.reply_timeout)
    }

    /// Returns whether the store does not allow what this replica needs.
    pub(crate) fn is_store_forbidden(&self) -> bool {
        self.is_forbidden.load(Ordering::Relaxed)
    }
}
