//! Reload of the configuration by an operator, and its outcome as a document.

use std::sync::Arc;
use std::time::SystemTime;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::remaining_quota::encode_query;
use super::status::RefusedReload;
use weir_base::tasks::sync::Mutex;
use weir_base::time::timestamp;

/// Actions of an operator on the running process.
#[derive(Clone)]
pub struct Actions {
    /// Reloads the configuration.
    pub reload: ReloadFn,
    /// Starts an upstream again.
    pub restart: RestartFn,
}

/// Function that reloads the configuration and returns the outcome.
pub type ReloadFn = Arc<dyn Fn() -> BoxFuture<'static, ReloadReport> + Send + Sync>;

/// Function that starts an upstream again and returns the outcome.
pub type RestartFn = Arc<dyn Fn(RestartQuery) -> BoxFuture<'static, ReloadReport> + Send + Sync>;

/// Query for a restart.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartQuery {
    /// Name of the upstream.
    pub upstream: String,
    /// Seconds that calls in flight may take.
    pub grace: u64,
}

impl RestartQuery {
    /// Encodes the query string.
    pub fn to_query(&self) -> String {
        encode_query(self)
    }
}

/// Outcome of the last reload, from any trigger, and what the active configuration disables.
#[derive(Debug, Default)]
pub struct LastReload {
    refused: Mutex<Option<RefusedReload>>,
    disabled: Mutex<Vec<String>>,
}

impl LastReload {
    /// Records that the configuration of the files is active.
    pub fn record_success(&self) {
        *self.refused.lock() = None;
    }

    /// Records the upstreams that the active configuration disables.
    pub fn record_disabled(&self, names: Vec<String>) {
        *self.disabled.lock() = names;
    }

    /// Records that the configuration of the files was refused.
    pub fn record_refusal(&self, why: String) {
        let mut last = self.refused.lock();
        let now = || timestamp::format_rfc3339(SystemTime::now());
        let at = last.take().map_or_else(now, |before| before.at);
        *last = Some(RefusedReload { at, why });
    }

    /// Returns the refused reload, if the last one was refused.
    pub fn refused(&self) -> Option<RefusedReload> {
        self.refused.lock().clone()
    }

    /// Returns the names of the disabled upstreams.
    pub fn disabled(&self) -> Vec<String> {
        self.disabled.lock().clone()
    }
}

/// Outcome of a reload, or of a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ReloadReport {
    /// The new configuration is active.
    Applied {
        /// Differences, as text.
        changes: Vec<String>,
        /// Changed keys that take effect after a restart.
        after_restart: Vec<String>,
    },
    /// The configuration is unchanged.
    Unchanged,
    /// The new configuration was refused; the previous one stays active.
    Refused {
        /// Reason; for errors in the files, the report of `weir check`.
        why: String,
        /// Errors in the files, if there are any.
        #[serde(default)]
        problems: Vec<ReloadProblem>,
    },
}

/// Error in a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadProblem {
    /// File, line and column.
    pub at: String,
    /// The key, from the root.
    pub key: String,
    /// Description of the error.
    pub what: String,
    /// Suggested correction.
    pub remedy: String,
}
