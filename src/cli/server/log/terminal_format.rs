//! Log lines for a terminal: time of day in UTC, level, message, and the values of the fields.
//!
//! Invariants: lines break between words, at the width of the terminal; no event moves the cursor.

use std::fmt;
use std::time::SystemTime;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::event_text::EventText;
use crate::cli::output;
use crate::cli::output::wrapped_text::{TextColor, WrappedText};
use weir_base::time::timestamp::format_rfc3339;

/// Event formatter for standard error, if that is a terminal.
pub(super) struct TerminalFormat;

impl<S, N> FormatEvent<S, N> for TerminalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let text = WrappedText::new(output::stderr_columns(), output::Color::on_stderr());
        let now = format_rfc3339(SystemTime::now());
        writer.write_str(&format(text, &now, *event.metadata().level(), &EventText::of(event)))
    }
}

/// Formats an event at a time in the form of RFC 3339.
fn format(mut text: WrappedText, now: &str, level: Level, event: &EventText) -> String {
    let time = now.split_once('T').map_or(now, |(_, time)| time);
    let color = match level {
        Level::ERROR => TextColor::Red,
        Level::WARN => TextColor::Yellow,
        Level::INFO => TextColor::Green,
        _ => TextColor::Dim,
    };
    let word = format!("{level:5}");
    let width = time.len() + word.len() + 2;
    let head = [text.colorize(time, TextColor::Dim), text.colorize(&word, color)].join(" ");
    let indent = if text.is_wide() { width } else { 4 };
    text.add(&format!("{head} "), width, &event.with_upstream(), indent);
    text.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use insta::assert_snapshot;
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    use super::*;
    use weir_base::tasks::sync::Mutex;

    /// Layer that formats each event for a terminal of some width.
    struct Recorder {
        columns: usize,
        lines: Arc<Mutex<String>>,
    }

    impl<S: Subscriber> Layer<S> for Recorder {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let text = WrappedText::new(self.columns, false);
            let level = *event.metadata().level();
            let line = format(text, "2026-11-29T19:36:03Z", level, &EventText::of(event));
            self.lines.lock().push_str(&line);
        }
    }

    /// Logs events of a start and returns the lines.
    fn logged(columns: usize) -> String {
        let lines = Arc::new(Mutex::new(String::new()));
        let recorder = Recorder { columns, lines: Arc::clone(&lines) };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(recorder), || {
            let (address, upstream, transport) = ("127.0.0.1:9464", "notes", "stdio");
            tracing::info!(address, "admin listener started at http://{address}");
            tracing::info!(upstream, revision = %"2025-11-25", transport, "upstream connected");
            let (prompts, tools, resources) = (0_usize, 1_usize, 4_usize);
            tracing::info!(upstream, prompts, tools, resources, "upstream listed");
            let reason = "it's not there:\u{1b}[2J no such program: /opt/server; install it";
            tracing::warn!(upstream = "gone", reason, "upstream disconnected");
            tracing::error!(max_connections = 7, sse = None::<&str>, "limit lowered");
        });
        let lines = lines.lock();
        lines.clone()
    }

    #[test]
    fn an_event_is_a_short_line_that_breaks_between_words() {
        assert_snapshot!(logged(80), @r"
        19:36:03Z INFO  admin listener started at http://127.0.0.1:9464
        19:36:03Z INFO  upstream connected: notes, 2025-11-25, stdio
        19:36:03Z INFO  upstream listed: notes, 1 tool, 4 resources
        19:36:03Z WARN  upstream disconnected: gone, it's not there:�[2J no such
                        program: /opt/server; install it
        19:36:03Z ERROR limit lowered: max connections 7
        ");
        assert!(logged(50).lines().all(|line| line.chars().count() <= 50), "{}", logged(50));
    }
}
