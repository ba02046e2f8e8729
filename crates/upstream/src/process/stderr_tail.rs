//! Last lines of a child's standard error.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_base::tasks::sync::Mutex;

/// Bytes of standard error that are stored.
const STDERR_KEPT_BYTES: usize = 64 * 1024;

/// Longest line of standard error that is logged whole.
pub(crate) const STDERR_LINE_BYTES: usize = 4 * 1024;

/// Last lines of standard error of one process, for the reason of its end. Other processes of its
/// upstream take nothing of it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StderrTail {
    stored: Arc<Mutex<StderrLines>>,
}

#[derive(Debug, Default)]
struct StderrLines {
    lines: VecDeque<Arc<str>>,
    bytes: usize,
}

impl StderrTail {
    pub(crate) fn push(&self, line: Arc<str>) {
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
        self.stored.lock().lines.iter().map(|line| line.to_string()).collect()
    }
}
