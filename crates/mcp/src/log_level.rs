//! Log level of a client for messages of upstreams.
//!
//! A request of the newest revision has its own level. In older revisions a client sets it for all
//! its calls (`logging/setLevel`), including those in flight, so that a [`LogLevelSetting`] can
//! change during a call.

use std::sync::Arc;

use strum::{IntoStaticStr, VariantArray};
use tokio::sync::watch;

use weir_base::json;

/// Severity of a message, the least severe first (RFC 5424).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum LogLevel {
    /// Detailed debugging information.
    Debug,
    /// Informational message.
    Info,
    /// Normal but significant event.
    Notice,
    /// Warning condition.
    Warning,
    /// Error condition.
    Error,
    /// Critical condition.
    Critical,
    /// Action must be taken immediately.
    Alert,
    /// System is unusable.
    Emergency,
}

impl LogLevel {
    /// All levels, the least severe first.
    pub const ALL: [Self; Self::VARIANTS.len()] =
        *Self::VARIANTS.as_array().expect("the length is its own");

    /// Level for clients that have not set one. The specification leaves it to the server; this is
    /// the usual default of loggers, and it keeps debug messages of one client from the others.
    pub const DEFAULT: Self = Self::Info;

    /// The name in the protocol.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Index in [`LogLevel::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Parses a JSON string; `None` if it is no level.
    pub fn parse(text: &str) -> Option<Self> {
        let name = json::decode_string(text)?;
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }
}

/// Log level setting of a client. Cheap to clone; clones share the setting.
#[derive(Debug, Clone, Default)]
pub struct LogLevelSetting(LogScope);

#[derive(Debug, Clone, Default)]
enum LogScope {
    #[default]
    Disabled,
    /// Minimum level for one request.
    Request(LogLevel),
    /// Minimum level for all calls of a client; `None` until the client sets it.
    Session(Arc<watch::Sender<Option<LogLevel>>>),
}

impl LogLevelSetting {
    /// Setting for no messages.
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Setting for messages of this level and above.
    pub fn at_least(level: LogLevel) -> Self {
        Self(LogScope::Request(level))
    }

    /// Setting of a client that may set its level later.
    pub fn unset() -> Self {
        Self(LogScope::Session(Arc::new(watch::Sender::new(None))))
    }

    /// Sets the client's level. Without effect for a setting of one request.
    pub fn set(&self, level: LogLevel) {
        if let LogScope::Session(session) = &self.0 {
            session.send_replace(Some(level));
        }
    }

    /// The minimum level; `None` for no messages.
    pub fn minimum(&self) -> Option<LogLevel> {
        match &self.0 {
            LogScope::Disabled => None,
            LogScope::Request(level) => Some(*level),
            LogScope::Session(session) => Some(session.borrow().unwrap_or(LogLevel::DEFAULT)),
        }
    }

    /// Whether the client has set the level itself.
    pub fn is_explicit(&self) -> bool {
        match &self.0 {
            LogScope::Disabled => false,
            LogScope::Request(_) => true,
            LogScope::Session(session) => session.borrow().is_some(),
        }
    }

    /// Subscribes to changes of the level.
    pub fn subscribe(&self) -> LogLevelWatch {
        match &self.0 {
            LogScope::Disabled | LogScope::Request(_) => LogLevelWatch(None),
            LogScope::Session(session) => LogLevelWatch(Some(session.subscribe())),
        }
    }
}

/// Receiver of changes of a client's log level.
#[derive(Debug)]
pub struct LogLevelWatch(Option<watch::Receiver<Option<LogLevel>>>);

impl LogLevelWatch {
    /// Waits for the next level. Never returns if the level cannot change. Cancel-safe.
    pub async fn next(&mut self) -> LogLevel {
        if let Some(receiver) = &mut self.0 {
            while receiver.changed().await.is_ok() {
                if let Some(level) = *receiver.borrow_and_update() {
                    return level;
                }
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_read_as_it_is_written() {
        for level in LogLevel::ALL {
            assert_eq!(LogLevel::parse(&format!("\"{}\"", level.as_str())), Some(level));
            assert_eq!(LogLevel::ALL[level.index()], level);
        }
        assert!(LogLevel::ALL.is_sorted());
        assert_eq!(LogLevel::parse(r#""\u0069nfo""#), Some(LogLevel::Info));
        for bad in ["info", "7", "null", "\"INFO\"", "\"warn\"", "\"\"", "{}"] {
            assert_eq!(LogLevel::parse(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn what_a_client_decides_holds_for_all_of_its_calls_and_they_hear_of_it() {
        let wanted = LogLevelSetting::unset();
        let (call, mut changes) = (wanted.clone(), wanted.subscribe());
        assert_eq!((call.minimum(), call.is_explicit()), (Some(LogLevel::Info), false));
        wanted.set(LogLevel::Error);
        assert_eq!((call.minimum(), call.is_explicit()), (Some(LogLevel::Error), true));
        assert_eq!(changes.next().await, LogLevel::Error);

        let (nothing, one) =
            (LogLevelSetting::disabled(), LogLevelSetting::at_least(LogLevel::Debug));
        one.set(LogLevel::Alert);
        assert_eq!((nothing.minimum(), one.minimum()), (None, Some(LogLevel::Debug)));
    }
}
