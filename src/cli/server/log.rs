//! Where the log goes: always to standard error, since standard output belongs to data and protocol.

mod format;

use std::io::IsTerminal;

use tracing::{Metadata, warn};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::cli::output;
use crate::cli::query::oneshot::draw;
use crate::cli::query::progress;
use crate::config::{Log, LogFormat, Warning};
use format::Lines;

/// Starts logging as the configuration says, and tells its warnings: drawn at their places for people, and
/// in a log that programs read as lines like the others. `WEIR_LOG` overrides the level, in the syntax of
/// `tracing_subscriber::EnvFilter`.
pub(crate) fn start(log: &Log, warnings: &[Warning]) {
    start_filtered(&format!("weir={}", log.level), log.format, Style::Log);
    if !is_json(log.format) {
        return draw(warnings);
    }
    for warning in warnings {
        let (at, Warning { key, what, remedy, .. }) = (warning.place(), warning);
        warn!(at, key, what, remedy, "the configuration probably does not say what is meant");
    }
}

/// Whether programs read the log.
fn is_json(format: LogFormat) -> bool {
    match format {
        LogFormat::Json => true,
        LogFormat::Pretty => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    }
}

/// What the lines are read as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A log: when did it happen?
    Log,
    /// A part of what a command answers.
    Report,
}

fn start_filtered(default: &str, format: LogFormat, style: Style) {
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    // A line that cannot be written is lost. To tell of that on standard error, as is usual, would be a panic wherever
    // something is logged: a full disk under the log, or nobody who reads it any more, would end every request.
    let logger = fmt().with_env_filter(filter).log_internal_errors(false);
    let logger = logger.with_writer(|| progress::Beside).with_target(false);
    // Beside the filter, not a directive of it: there the more specific one wins, such as `notify::inotify=trace`.
    let logged = filter_fn(is_logged);
    // Failing means that a logger is there already, which only tests do.
    let _ = if is_json(format) {
        let logger = logger.json().flatten_event(true).map_event_format(Lines::of_json);
        logger.finish().with(logged).try_init()
    } else if style == Style::Report {
        logger.without_time().with_ansi(false).finish().with(logged).try_init()
    } else {
        let logger = logger.with_ansi(output::Color::on_stderr());
        logger.map_event_format(Lines::for_people).finish().with(logged).try_init()
    };
}

/// Whether lines of this kind are logged, if the level allows it. The library that watches folders logs each change in
/// them at `trace`: where the log itself is a file of such a folder, each of these lines would be the cause of the next
/// one. What matters of it is logged by `folder_watch`.
fn is_logged(metadata: &Metadata<'_>) -> bool {
    metadata.target().split("::").next() != Some("notify")
}

/// Starts logging for a command that answers on the terminal and ends: errors only.
pub(crate) fn start_quietly() {
    start_filtered("weir=error", LogFormat::Pretty, Style::Report);
}

/// Starts logging for a command that reports on upstreams: what was left out of their lists, too.
pub(crate) fn start_for_a_report(json: bool) {
    let mut filter = "weir=error".to_owned();
    for room in ["gateway::refresh", "upstream::library", "upstream::modern", "upstream::walk"] {
        filter += &format!(",weir::{room}=warn");
    }
    let format = if json { LogFormat::Json } else { LogFormat::Pretty };
    start_filtered(&filter, format, Style::Report);
}

#[cfg(test)]
mod tests {
    use tracing::{Level, enabled};

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
