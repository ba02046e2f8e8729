//! Format of log lines, and suppression of repetitions.
//!
//! Invariants: lines of one call site are written a few times per second, with the number of
//! suppressed ones; in a JSON log, a line that belongs to a request contains the request id, the
//! client, the upstream and the trace id.

use std::collections::HashMap;
use std::fmt::{self, Write};

use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use weir_base::json;
use weir_base::tasks::request_scope::{self, LogContext};
use weir_base::tasks::sync::Mutex;
use weir_base::time::rate_limit::RateLimiter;

/// Event formatter that adds the context of the request.
pub(super) struct LogFormatter<F> {
    form: F,
    is_json: bool,
    rates: RepeatLimiter,
}

impl<F> LogFormatter<F> {
    /// Formats lines as JSON.
    pub(super) fn json(form: F) -> Self {
        Self { form, is_json: true, rates: RepeatLimiter::default() }
    }

    /// Formats lines for people, without the request context.
    pub(super) fn pretty(form: F) -> Self {
        Self { form, is_json: false, rates: RepeatLimiter::default() }
    }
}

impl<S, N, F> FormatEvent<S, N> for LogFormatter<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // At DEBUG and TRACE nothing is suppressed.
        let metadata = event.metadata();
        let suppressed = match *metadata.level() <= Level::INFO {
            true => match self.rates.allow(metadata.callsite(), Instant::now()) {
                Some(suppressed) => suppressed,
                None => return Ok(()),
            },
            false => 0,
        };
        if !self.is_json {
            self.form.format_event(context, writer.by_ref(), event)?;
            return match suppressed {
                0 => Ok(()),
                suppressed => {
                    writeln!(writer, "{suppressed} repetitions of the last line suppressed")
                }
            };
        }
        let mut line = String::new();
        self.form.format_event(context, Writer::new(&mut line), event)?;
        let Some(open) = line.trim_end().strip_suffix('}') else {
            return writer.write_str(&line);
        };
        let mut line = open.to_owned();
        let says = |name: &str| metadata.fields().field(name).is_some();
        request_scope::current(|number, known| add(&mut line, number, known, says));
        if suppressed > 0 {
            let _ = write!(line, ",\"left_out\":{suppressed}");
        }
        writeln!(writer, "{line}}}")
    }
}

/// Adds the context of the request, except members that the line already has.
fn add(line: &mut String, number: u64, known: &LogContext, says: impl Fn(&str) -> bool) {
    let _ = write!(line, ",\"request\":{number}");
    for (name, value) in [
        ("client", known.client.as_deref()),
        ("upstream", known.upstream.as_deref()),
        ("trace_id", known.trace.as_deref()),
    ] {
        if let Some(value) = value.filter(|_| !says(name)) {
            let quoted = json::quote(value);
            let _ = write!(line, ",\"{name}\":{}", String::from_utf8_lossy(&quoted));
        }
    }
}

/// Rate limit per call site. Call sites are static, so the map is bounded.
#[derive(Default)]
struct RepeatLimiter(Mutex<HashMap<Identifier, LineBudget>>);

struct LineBudget {
    rate: RateLimiter,
    /// Lines suppressed since the last one that was written.
    suppressed: u64,
}

impl RepeatLimiter {
    /// Admits a line, and returns the number of suppressed ones before it; `None` suppresses it.
    fn allow(&self, what: Identifier, now: Instant) -> Option<u64> {
        let mut rates = self.0.lock();
        let new = || LineBudget { rate: RateLimiter::new(PER_SECOND, BURST, now), suppressed: 0 };
        let budget = rates.entry(what).or_insert_with(new);
        if !budget.rate.admit(now) {
            budget.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut budget.suppressed))
    }
}

/// Lines of one call site that may be written in a burst: some hundred upstreams may log the same.
const BURST: u32 = 200;
/// Lines of one call site per second after the burst.
const PER_SECOND: u32 = 5;

#[cfg(test)]
mod tests {
    use std::io::{self, Seek};
    use std::sync::Arc;
    use std::time::Duration;

    use crate::cli::server::log::format::*;
    use weir_base::tasks::request_scope::RequestScope;

    #[tokio::test]
    async fn a_line_names_its_request_once() {
        let logged = Arc::new(tempfile::tempfile().expect("a file"));
        let logger = tracing_subscriber::fmt().json().flatten_event(true).without_time();
        let logger = logger.with_target(false).with_writer(Arc::clone(&logged));
        let logger = logger.map_event_format(LogFormatter::json).finish();
        let _here = tracing::subscriber::set_default(logger);
        tracing::warn!("without a request");
        let trail = RequestScope::begin();
        let number = trail.number();
        trail
            .run(async {
                request_scope::record(|known| {
                    known.client = Some("a\"b".into());
                    known.upstream = Some("hub".into());
                    known.trace = Some("4bf9".into());
                });
                tracing::warn!(upstream = "other", "of a request");
            })
            .await;
        let expected = [
            r#"{"level":"WARN","message":"without a request"}"#.to_owned(),
            format!(
                r#"{{"level":"WARN","message":"of a request","upstream":"other","request":{number},"client":"a\"b","trace_id":"4bf9"}}"#
            ),
        ];
        (&*logged).rewind().expect("a file");
        let lines = io::read_to_string(&*logged).expect("text");
        assert_eq!(Vec::from_iter(lines.lines()), expected);
    }

    #[test]
    fn what_is_said_too_often_is_counted_instead() {
        let (rates, now) = (RepeatLimiter::default(), Instant::now());
        let what =
            tracing::callsite!(name: "x", kind: tracing::metadata::Kind::EVENT, fields: message);
        let what = tracing::Callsite::metadata(what).callsite();
        let said = (0..1_000).filter(|_| rates.allow(what.clone(), now).is_some()).count();
        assert_eq!(said, 200);
        let later = now + Duration::from_millis(200);
        assert_eq!(rates.allow(what.clone(), later), Some(800));
        assert_eq!(rates.allow(what, later), None);
    }
}
