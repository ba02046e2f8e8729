//! Last lines of a child's standard error.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_base::tasks::sync::Mutex;
use weir_base::text::quote::quote;

/// Bytes of standard error that are stored.
const STDERR_KEPT_BYTES: usize = 64 * 1024;

/// Longest line of standard error that is logged whole.
pub(crate) const STDERR_LINE_BYTES: usize = 4 * 1024;

/// Last lines of standard error. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StderrTail {
    stored: Arc<Mutex<StderrLines>>,
}

#[derive(Debug, Default)]
struct StderrLines {
    lines: VecDeque<String>,
    bytes: usize,
}

impl StderrTail {
    pub(crate) fn push(&self, line: String) {
        let mut stored = self.stored.lock();
        stored.bytes += line.len();
        stored.lines.push_back(line);
        while stored.bytes > STDERR_KEPT_BYTES {
            let Some(oldest) = stored.lines.pop_front() else { break };
            stored.bytes -= oldest.len();
        }
    }

    /// Returns all stored lines as they were written, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.stored.lock().lines.iter().cloned().collect()
    }

    /// Returns the last lines, oldest first, each bounded and without control characters.
    pub(crate) fn last_lines(&self, count: usize) -> Vec<String> {
        let stored = self.stored.lock();
        let omitted = stored.lines.len().saturating_sub(count);
        stored.lines.iter().skip(omitted).map(|line| quote(line, STDERR_LINE_BYTES)).collect()
    }
}
