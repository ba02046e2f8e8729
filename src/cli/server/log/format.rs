//! How a line of the log looks, and whether it is written at all.
//!
//! Promises: what is said again and again is said a few times a second, and then how often it was not said; a line that
//! concerns a request names it, its client, its upstream and its trace, where programs read the log.
//!
//! Knows nothing of: where the lines go.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::json;
use crate::request_scope::{self, Known};

/// The form of a line, with what is known of its request.
pub(super) struct Lines<F> {
    form: F,
    is_json: bool,
    rates: Rates,
}

impl<F> Lines<F> {
    /// Lines of JSON.
    pub(super) fn of_json(form: F) -> Self {
        Self { form, is_json: true, rates: Rates::default() }
    }

    /// Lines for people, who do not want to read numbers.
    pub(super) fn for_people(form: F) -> Self {
        Self { form, is_json: false, rates: Rates::default() }
    }
}

impl<S, N, F> FormatEvent<S, N> for Lines<F>
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
        // Who asks for everything gets everything.
        let metadata = event.metadata();
        let untold = match *metadata.level() <= Level::INFO {
            true => match self.rates.admit(metadata.callsite(), Instant::now()) {
                Some(untold) => untold,
                None => return Ok(()),
            },
            false => 0,
        };
        if !self.is_json {
            self.form.format_event(context, writer.by_ref(), event)?;
            return match untold {
                0 => Ok(()),
                untold => writeln!(writer, "{untold} lines like the last one were left out"),
            };
        }
        let mut line = String::new();
        self.form.format_event(context, Writer::new(&mut line), event)?;
        let Some(open) = line.trim_end().strip_suffix('}') else {
            return writer.write_str(&line);
        };
        let mut line = open.to_owned();
        let says = |name: &str| metadata.fields().field(name).is_some();
        request_scope::look(|number, known| add(&mut line, number, known, says));
        if untold > 0 {
            let _ = write!(line, ",\"left_out\":{untold}");
        }
        writeln!(writer, "{line}}}")
    }
}

/// Adds what is known of the request, but for what the line itself says.
fn add(line: &mut String, number: u64, known: &Known, says: impl Fn(&str) -> bool) {
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

/// How often each thing is said. There are as many as places in the program that say something.
#[derive(Default)]
struct Rates(Mutex<HashMap<Identifier, Rate>>);

struct Rate {
    room: f64,
    at: Instant,
    /// How often it was not said since it last was.
    untold: u64,
}

impl Rates {
    /// Whether it may be said now; then how often it was not, since the last time.
    fn admit(&self, what: Identifier, now: Instant) -> Option<u64> {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = rates.entry(what).or_insert(Rate { room: BURST, at: now, untold: 0 });
        let passed = now.saturating_duration_since(rate.at).as_secs_f64();
        rate.at = now;
        rate.room = (rate.room + passed * PER_SECOND).min(BURST);
        if rate.room < 1.0 {
            rate.untold += 1;
            return None;
        }
        rate.room -= 1.0;
        Some(std::mem::take(&mut rate.untold))
    }
}

/// How many lines of one place are written one behind the other: each of some hundred upstreams may say the same.
const BURST: f64 = 200.0;
/// And how many a second after that.
const PER_SECOND: f64 = 5.0;

#[cfg(test)]
mod tests {
    use std::io::{self, Seek};
    use std::sync::Arc;
    use std::time::Duration;

    use crate::cli::server::log::format::*;
    use crate::request_scope::Trail;

    #[tokio::test]
    async fn a_line_names_its_request_once() {
        let logged = Arc::new(tempfile::tempfile().expect("a file"));
        let logger = tracing_subscriber::fmt().json().flatten_event(true).without_time();
        let logger = logger.with_target(false).with_writer(Arc::clone(&logged));
        let logger = logger.map_event_format(Lines::of_json).finish();
        let _here = tracing::subscriber::set_default(logger);
        tracing::warn!("of nobody");
        let trail = Trail::begin();
        let number = trail.number();
        trail
            .walk(async {
                request_scope::leave(|known| {
                    known.client = Some("a\"b".into());
                    known.upstream = Some("hub".into());
                    known.trace = Some("4bf9".into());
                });
                tracing::warn!(upstream = "other", "of a request");
            })
            .await;
        let expected = [
            r#"{"level":"WARN","message":"of nobody"}"#.to_owned(),
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
        let (rates, now) = (Rates::default(), Instant::now());
        let what =
            tracing::callsite!(name: "x", kind: tracing::metadata::Kind::EVENT, fields: message);
        let what = tracing::Callsite::metadata(what).callsite();
        let said = (0..1_000).filter(|_| rates.admit(what.clone(), now).is_some()).count();
        assert_eq!(said, 200);
        let later = now + Duration::from_millis(200);
        assert_eq!(rates.admit(what.clone(), later), Some(800));
        assert_eq!(rates.admit(what, later), None);
    }
}
