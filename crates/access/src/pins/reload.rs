//! Taking up a changed lock file.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::lock::{BadLock, PinFile, stamp};
use super::{Mode, Pins};
use weir_base::tasks::cpu_bound;

/// Reads the lock file again whenever it has changed, until `stop`: see [`Pins::follow`].
pub(super) async fn follow(pins: &Pins, stop: &CancellationToken) {
    let enforces = pins.modes.values().any(|mode| *mode >= Mode::Enforce);
    if pins.file.is_none() || !(enforces || pins.lock().stamp.is_some()) {
        return;
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RELOAD_INTERVAL) => reload(pins),
        }
    }
}

/// Reads the lock file, if it has changed.
pub(super) fn reload(pins: &Pins) {
    let Some(path) = &pins.file else { return };
    let now = stamp(path);
    let is_as_it_was = {
        let state = pins.lock();
        // A missing or unreadable file may become readable again without another identity.
        now.is_some() && now == state.stamp && !state.may_recover
    };
    if is_as_it_was {
        return;
    }
    // The file is read without the mutex, which every list needs.
    let bytes = now.map_or(0, |(_, bytes, _)| usize::try_from(bytes).unwrap_or(usize::MAX));
    let loaded = cpu_bound::run_on_bytes(bytes, || PinFile::load(path));
    let state = &mut *pins.lock();
    if stamp(path) != now {
        // The file has been written meanwhile; the next check reads it.
        return;
    }
    let why = match loaded {
        // A missing file does not mean that first lists are approved again.
        Ok(None) if state.stamp.is_none() => return,
        Ok(None) => {
            state.may_recover = true;
            "it is missing; earlier approvals stay valid".to_owned()
        }
        Ok(Some(lock)) => {
            // The first read of the process takes up what was approved before.
            let is_change = state.stamp.is_some();
            (state.stamp, state.last_problem, state.may_recover) = (now, None, false);
            if lock != state.lock {
                if is_change {
                    pins.observer.notify("file", &state.lock, &lock);
                }
                state.lock = lock;
                pins.shared.approved.send_modify(|tick| *tick += 1);
            }
            return;
        }
        Err(error) => {
            (state.stamp, state.may_recover) = (now, matches!(error, BadLock::Io(_)));
            format!("{error}; nothing new is approved")
        }
    };
    if state.last_problem.as_ref() != Some(&why) {
        tracing::error!(path = %path.display(), why, "lock file cannot be used");
        state.last_problem = Some(why);
    }
}

/// Interval at which the lock file is checked.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
