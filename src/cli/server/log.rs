//! Logging to standard error; standard output is reserved for data and for the protocol.

mod event_text;
mod filter;
mod format;
mod report_format;
mod terminal_format;

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing::{Level, Metadata, Subscriber, warn};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::{Formatter, SubscriberBuilder};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::cli::loading::print_warnings;
use crate::cli::output;
use crate::cli::output::progress;
use format::LogFormatter;
use report_format::ReportFormat;
pub(crate) use report_format::{ReportedWarning, take_warnings};
use terminal_format::TerminalFormat;
use weir_config::{LogConfig, LogFormat, Warning};

/// Starts logging as configured and reports the configuration's warnings: with their source lines
/// for people, as log lines in a JSON log. `WEIR_LOG` overrides the level, in the syntax of
/// `tracing_subscriber::EnvFilter`.
pub(crate) fn start(log: &LogConfig, warnings: &[Warning]) {
    start_with(log.level, Level::INFO, log.format, warnings);
}

/// Starts logging for `weir stdio`. Its client collects standard error, and shows each line of it
/// as an error: without a configured level only what needs a user's attention is logged, as text.
pub(crate) fn start_for_stdio(log: &LogConfig, warnings: &[Warning]) {
    if log.level.is_some() || std::io::stderr().is_terminal() {
        return start(log, warnings);
    }
    let format = match log.format {
        LogFormat::Auto => LogFormat::Pretty,
        configured @ (LogFormat::Pretty | LogFormat::Json) => configured,
    };
    start_with(None, Level::WARN, format, warnings);
}

fn start_with(level: Option<Level>, default: Level, format: LogFormat, warnings: &[Warning]) {
    // It is set already only in tests, which start logging several times.
    let _ = DEFAULT_LEVEL.set(default);
    start_filtered(&level_filter(level.unwrap_or(default)), format, LogStyle::Log);
    if !is_json(format) {
        return print_warnings(warnings);
    }
    for warning in warnings {
        let (at, Warning { key, what, remedy, .. }) = (warning.location(), warning);
        warn!(at, key, what, remedy, "configuration warning");
    }
}

/// Changes the least severe level that is logged, unless `WEIR_LOG` overrides it.
pub(crate) fn set_level(level: Option<Level>) {
    if let (Some(set), true) = (FILTER.get(), std::env::var_os("WEIR_LOG").is_none()) {
        let default = DEFAULT_LEVEL.get().copied().unwrap_or(Level::INFO);
        set(EnvFilter::new(level_filter(level.unwrap_or(default))));
    }
}

/// Level of this process if the configuration has none.
static DEFAULT_LEVEL: OnceLock<Level> = OnceLock::new();

/// Replaces the filter of the subscriber, whose type depends on the format.
static FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

fn level_filter(level: Level) -> String {
    format!("weir={level}")
}

/// Returns whether log lines are JSON.
fn is_json(format: LogFormat) -> bool {
    match format {
        LogFormat::Json => true,
        LogFormat::Pretty => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    }
}

/// Purpose of the log lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogStyle {
    /// Log of a service, with timestamps.
    Log,
    /// Part of a command's output, whose report may contain the warnings.
    Report { stores_warnings: bool },
}

fn start_filtered(default: &str, format: LogFormat, style: LogStyle) {
    let wanted = std::env::var("WEIR_LOG").ok().and_then(|text| filter::parse(&text).ok());
    let filter = wanted.unwrap_or_else(|| EnvFilter::new(default));
    // A line that cannot be written is lost. By default the subscriber reports that on standard
    // error, which panics if standard error is the broken stream: a full disk or a closed pipe
    // would then abort every request that logs something.
    let logger = fmt().with_env_filter(filter).log_internal_errors(false);
    let logger = logger.with_writer(|| progress::LogWriter).with_target(false);
    // A separate filter instead of a directive: among directives the more specific one wins, such
    // as `notify::inotify=trace`.
    let logged = filter_fn(is_logged);
    // This fails only if a subscriber is installed already, which happens in tests.
    let _ = if is_json(format) {
        let logger = logger.json().flatten_event(true).map_event_format(LogFormatter::json);
        keep_filter(logger).finish().with(logged).try_init()
    } else if let LogStyle::Report { stores_warnings } = style {
        let logger = logger.without_time().with_ansi(false);
        let logger = logger.map_event_format(|form| ReportFormat { form, stores_warnings });
        // A command's filter does not change.
        logger.finish().with(logged).try_init()
    } else if std::io::stderr().is_terminal() {
        let logger = logger.map_event_format(|_| LogFormatter::pretty(TerminalFormat));
        keep_filter(logger).finish().with(logged).try_init()
    } else {
        let logger = logger.with_ansi(output::Color::on_stderr());
        let logger = logger.map_event_format(LogFormatter::pretty);
        keep_filter(logger).finish().with(logged).try_init()
    };
}

type ReplaceableFilter<N, E, W> = reload::Layer<EnvFilter, Formatter<N, E, W>>;

/// Lets [`set_level`] replace the filter of a subscriber.
fn keep_filter<N, E, W>(
    logger: SubscriberBuilder<N, E, EnvFilter, W>,
) -> SubscriberBuilder<N, E, ReplaceableFilter<N, E, W>, W>
where
    Formatter<N, E, W>: Subscriber + 'static,
{
    let logger = logger.with_filter_reloading();
    let handle = logger.reload_handle();
    // It is set already only in tests, which start logging several times.
    let _ = FILTER.set(Box::new(move |filter| _ = handle.reload(filter)));
    logger
}

/// Returns whether events of this target are logged at all. The `notify` library logs each change
/// in a watched folder at `trace`: if the log file is in such a folder, each line would cause the
/// next one. `folder_watch` logs the events that matter.
fn is_logged(metadata: &Metadata<'_>) -> bool {
    metadata.target().split("::").next() != Some("notify")
}

/// Starts logging for a command that prints its result and exits: errors only.
pub(crate) fn start_errors_only() {
    let style = LogStyle::Report { stores_warnings: false };
    start_filtered("weir=error", LogFormat::Pretty, style);
}

/// Starts logging for a command that reports on upstreams: also items left out of their lists. The
/// command takes these warnings into its report, unless that is JSON, or `WEIR_LOG` is set.
pub(crate) fn start_for_report(json: bool) {
    let modules = REPORTED_MODULES.map(|module| format!(",{module}=warn"));
    let filter = format!("weir=error{}", modules.concat());
    let format = if json { LogFormat::Json } else { LogFormat::Pretty };
    let stores_warnings = !json && std::env::var_os("WEIR_LOG").is_none();
    start_filtered(&filter, format, LogStyle::Report { stores_warnings });
}

/// Modules whose warnings are about items left out of a list.
const REPORTED_MODULES: [&str; 5] = [
    "weir_gateway::lists::list_refresher",
    "weir_prompts::loaded",
    "weir_prompts::watch",
    "weir_upstream::session::modern",
    "weir_upstream::session::pagination",
];

#[cfg(test)]
mod tests {
    use tracing::enabled;

    use crate::cli::server::log::*;

    #[test]
    fn the_folder_watcher_logs_nothing_whatever_is_asked_for() {
        let filter = EnvFilter::new("trace,notify=trace,notify::inotify=trace");
        let logger = fmt().with_env_filter(filter).finish().with(filter_fn(is_logged));
        tracing::subscriber::with_default(logger, || {
            assert!(!enabled!(target: "notify", Level::ERROR));
            assert!(!enabled!(target: "notify::inotify", Level::TRACE));
            assert!(enabled!(target: "notifying", Level::TRACE));
        });
    }
}
