//! Callback for changes of the approvals, for the audit log.

use std::fmt;
use std::sync::Arc;

use super::lock::{PinFile, changes};

/// Callback for changes of the approvals that a running Weir makes or takes up: the name of the
/// upstream, the origin, and what has changed. It must not block.
#[derive(Clone, Default)]
pub struct ApprovalObserver(pub Option<Arc<ObserveApproval>>);

/// Function of an [`ApprovalObserver`].
pub type ObserveApproval = dyn Fn(&str, &'static str, Vec<String>) + Send + Sync;

impl fmt::Debug for ApprovalObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ApprovalObserver(on)" } else { "ApprovalObserver(off)" })
    }
}

impl ApprovalObserver {
    pub(super) fn notify(&self, by: &'static str, before: &PinFile, now: &PinFile) {
        let Some(observe) = &self.0 else { return };
        for (upstream, changes) in changes(before, now) {
            observe(upstream, by, changes);
        }
    }
}
