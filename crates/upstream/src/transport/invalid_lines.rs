//! Lines on the standard output of a child process that are no messages.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_base::text::quote::quote;

/// Counter of the lines on standard output that were no messages, with the first one.
#[derive(Debug, Default)]
pub(crate) struct InvalidLines {
    count: AtomicUsize,
    first: OnceLock<String>,
}

impl InvalidLines {
    /// Counts a line. Returns it and the first one as they may be shown.
    pub(crate) fn add(&self, line: &[u8]) -> (String, &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let quoted = quote(&String::from_utf8_lossy(line), MAX_QUOTED_CHARS);
        let first = self.first.get_or_init(|| quoted.clone());
        (quoted, first)
    }

    /// Returns the first line, as it may be shown.
    pub(crate) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// Describes the lines for the reason of a failed start; `None` if there are none.
    pub(crate) fn describe(&self) -> Option<String> {
        let first = self.first()?;
        let count = self.count.load(Ordering::Relaxed);
        let lines = if count == 1 { "line".to_owned() } else { format!("{count} lines, first") };
        Some(format!("its standard output contained invalid messages ({lines}: \"{first}\")"))
    }
}

/// Characters of a line that are quoted.
const MAX_QUOTED_CHARS: usize = 200;
