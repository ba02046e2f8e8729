//! Warnings of a command that reports on upstreams: stored, so that they become part of the report.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::event_text::EventText;
use weir_base::tasks::sync::Mutex;

/// Warning that belongs into a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportedWarning {
    /// Upstream that it is about, if it is about one.
    pub(crate) upstream: Option<String>,
    pub(crate) text: String,
}

/// Takes the warnings that were stored so far.
pub(crate) fn take_warnings() -> Vec<ReportedWarning> {
    std::mem::take(&mut *WARNINGS.lock())
}

/// Warnings of this process, each once.
static WARNINGS: Mutex<Vec<ReportedWarning>> = Mutex::new(Vec::new());

/// Most warnings that are stored; further ones are lines of the log.
const MAX_WARNINGS: usize = 1_000;

/// Event formatter that can store warnings instead of writing them.
pub(super) struct ReportFormat<F> {
    pub(super) form: F,
    pub(super) stores_warnings: bool,
}

impl<S, N, F> FormatEvent<S, N> for ReportFormat<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let is_warning = *event.metadata().level() == Level::WARN;
        match self.stores_warnings && is_warning && store(&EventText::of(event)) {
            true => Ok(()),
            false => self.form.format_event(context, writer, event),
        }
    }
}

/// Stores a warning, unless there are too many; returns whether it is stored.
fn store(event: &EventText) -> bool {
    let warning =
        ReportedWarning { upstream: event.upstream.clone(), text: event.without_upstream() };
    let mut warnings = WARNINGS.lock();
    if warnings.contains(&warning) {
        return true;
    }
    let is_stored = warnings.len() < MAX_WARNINGS;
    if is_stored {
        warnings.push(warning);
    }
    is_stored
}
