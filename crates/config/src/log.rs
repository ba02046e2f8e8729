//! `[log]`: the log.

use strum::{IntoStaticStr, VariantArray};

use crate::keys::{choice, settings, variant};

settings! {
    /// Weir's own log, always on standard error.
    pub struct LogConfig {
        /// The least severe level that is logged. A reload changes it. The variable `WEIR_LOG`
        /// overrides it, for example `WEIR_LOG=weir=debug`. Without this key it is `info`; for
        /// `weir stdio` it is `warn` unless standard error is a terminal, because clients show each
        /// line as an error.
        ///
        /// ```toml
        /// level = "info"
        /// ```
        level: Option<tracing::Level> = None,
            choice(&LOG_LEVELS).optional().default_text("`info`; for `weir stdio`, `warn`");
        /// Format of the lines. `pretty` is for people, and shorter on a terminal; `json` is for
        /// machines. `auto` is `pretty` on a terminal, and for `weir stdio` without a `level`, and
        /// `json` elsewhere.
        format: LogFormat = LogFormat::Auto, variant();
    }
}

/// Format of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// Text for people.
    Pretty,
    /// JSON for machines.
    Json,
}

const LOG_LEVELS: [(&str, tracing::Level); 5] = [
    ("error", tracing::Level::ERROR),
    ("warn", tracing::Level::WARN),
    ("info", tracing::Level::INFO),
    ("debug", tracing::Level::DEBUG),
    ("trace", tracing::Level::TRACE),
];
