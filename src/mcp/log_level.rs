//! Which log messages of upstreams a client wants.
//!
//! A request of the newest revision says so itself. Before that a client says it once for all its calls,
//! those that are under way included, so that a [`Wanted`] can change while a call runs.
//!
//! Knows nothing of: the messages themselves.

use std::sync::Arc;

use tokio::sync::watch;

use crate::json;

/// How severe a message is, the least severe first (RFC 5424).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For whoever looks for a mistake.
    Debug,
    /// What goes on.
    Info,
    /// Normal, and worth a look.
    Notice,
    /// May become an error.
    Warning,
    /// Something failed.
    Error,
    /// A part of the system failed.
    Critical,
    /// Somebody has to act at once.
    Alert,
    /// Nothing works.
    Emergency,
}

impl Level {
    /// All levels, the least severe first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// What clients get that have not said what they want. The specification leaves it to the server; this
    /// is what loggers everywhere begin with, and one client's debugging reaches nobody else by it.
    pub const USUAL: Self = Self::Info;

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// Where it stands in [`Level::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Reads a JSON text; `None` if that is no level.
    pub fn parse(text: &str) -> Option<Self> {
        let name = json::decode_string(text)?;
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }
}

/// What a client wants, now and from now on. Cheap to clone; the clones change together.
#[derive(Debug, Clone, Default)]
pub struct Wanted(Want);

#[derive(Debug, Clone, Default)]
enum Want {
    #[default]
    Nothing,
    /// For one request.
    From(Level),
    /// For all that one client asks; it has said nothing yet while this is `None`.
    Session(Arc<watch::Sender<Option<Level>>>),
}

impl Wanted {
    /// No messages at all.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Messages of this level and above.
    pub fn from(level: Level) -> Self {
        Self(Want::From(level))
    }

    /// What a client wants that can still say so.
    pub fn undecided() -> Self {
        Self(Want::Session(Arc::new(watch::Sender::new(None))))
    }

    /// The client says what it wants from now on. Means nothing where each request says it.
    pub fn decide(&self, level: Level) {
        if let Want::Session(session) = &self.0 {
            session.send_replace(Some(level));
        }
    }

    /// The least severe level that is wanted; `None` if nothing is.
    pub fn least(&self) -> Option<Level> {
        match &self.0 {
            Want::Nothing => None,
            Want::From(level) => Some(*level),
            Want::Session(session) => Some(session.borrow().unwrap_or(Level::USUAL)),
        }
    }

    /// Whether the client has said so itself.
    pub fn is_said(&self) -> bool {
        match &self.0 {
            Want::Nothing => false,
            Want::From(_) => true,
            Want::Session(session) => session.borrow().is_some(),
        }
    }

    /// Tells what is wanted each time that it changes.
    pub fn follow(&self) -> News {
        match &self.0 {
            Want::Nothing | Want::From(_) => News(None),
            Want::Session(session) => News(Some(session.subscribe())),
        }
    }
}

/// News of what a client wants.
#[derive(Debug)]
pub struct News(Option<watch::Receiver<Option<Level>>>);

impl News {
    /// The level that is wanted from now on. Never comes where nothing can change. Cancel-safe.
    pub async fn next(&mut self) -> Level {
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
        for level in Level::ALL {
            assert_eq!(Level::parse(&format!("\"{}\"", level.as_str())), Some(level));
            assert_eq!(Level::ALL[level.index()], level);
        }
        assert!(Level::ALL.is_sorted());
        assert_eq!(Level::parse(r#""\u0069nfo""#), Some(Level::Info));
        for bad in ["info", "7", "null", "\"INFO\"", "\"warn\"", "\"\"", "{}"] {
            assert_eq!(Level::parse(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn what_a_client_decides_holds_for_all_of_its_calls_and_they_hear_of_it() {
        let wanted = Wanted::undecided();
        let (call, mut news) = (wanted.clone(), wanted.follow());
        assert_eq!((call.least(), call.is_said()), (Some(Level::Info), false));
        wanted.decide(Level::Error);
        assert_eq!((call.least(), call.is_said()), (Some(Level::Error), true));
        assert_eq!(news.next().await, Level::Error);

        let (nothing, one) = (Wanted::nothing(), Wanted::from(Level::Debug));
        one.decide(Level::Alert);
        assert_eq!((nothing.least(), one.least()), (None, Some(Level::Debug)));
    }
}
