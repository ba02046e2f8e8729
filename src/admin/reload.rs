//! A reload that an operator asks for, and what became of it as a document.
//!
//! Knows nothing of: what a reload does, and how this is shown.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::status::RefusedReload;
use crate::timestamp;

/// Has the configuration read again, and tells what became of that.
pub type Reload = Arc<dyn Fn() -> BoxFuture<'static, Reloaded> + Send + Sync>;

/// What became of the last reload, whoever asked for it.
#[derive(Debug, Default)]
pub struct Reloads(Mutex<Option<RefusedReload>>);

impl Reloads {
    /// The configuration of the files holds.
    pub fn went_well(&self) {
        *self.lock() = None;
    }

    /// It was refused.
    pub fn went_wrong(&self, why: String) {
        let at = timestamp::to_words(SystemTime::now());
        *self.lock() = Some(RefusedReload { at, why });
    }

    /// The one that was refused, if that is what the files hold.
    pub fn refused(&self) -> Option<RefusedReload> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<RefusedReload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Reloaded {
    /// The new configuration holds.
    Applied {
        /// What is different, in words.
        changes: Vec<String>,
        /// The keys that were changed and take effect after a restart.
        after_restart: Vec<String>,
    },
    /// It says the same as the one that holds.
    Unchanged,
    /// The former one holds.
    Refused {
        /// Why, in words; where there are problems, as `weir check` draws them.
        why: String,
        /// What is wrong with the files, if anything is.
        #[serde(default)]
        problems: Vec<Problem>,
    },
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// File, line and column.
    pub at: String,
    /// The key, from the root.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl Reloaded {
    /// The document.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the document.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }
}
