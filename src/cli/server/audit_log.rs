//! Opens the audit log for `serve`, `stdio` and commands that write to it.

use std::path::Path;

use crate::app::App;
use crate::audit::{Audit, Writer};
use crate::cli::exit::Failure;
use crate::config::Config;

/// Opens the audit log of a configuration, if requests are recorded.
pub(crate) fn open(config: &Config, records: bool) -> Result<Option<(Audit, Writer)>, Failure> {
    if !records {
        return Ok(None);
    }
    let opened = App::open_audit_log(config).map_err(|error| {
        let remedy = "set `path` under [audit] or `dir` under [state] to a place that can be \
                      written, `path = \"-\"` for standard output, or `enabled = false`";
        Failure::NoConfig(format!("{error}; {remedy}"))
    })?;
    tracing::info!(path = %opened.1.path().display(), "audit log opened");
    Ok(Some(opened))
}

/// Opens the audit log for a command that prints its result on standard output, which is therefore
/// never the log.
pub(crate) fn open_for_command(config: &Config) -> Result<Option<(Audit, Writer)>, Failure> {
    open(config, config.records_requests() && config.audit.path != Path::new("-"))
}

/// Opens the audit log for `weir stdio`: only if it is enabled explicitly, and never on standard
/// output, which carries the protocol.
pub(crate) fn open_log_for_stdio(config: &Config) -> Result<Option<(Audit, Writer)>, Failure> {
    let records = config.audit.enabled == Some(true);
    if records && config.audit.path == Path::new("-") {
        let text = "standard output belongs to the protocol here: set another `path` under [audit]";
        return Err(Failure::NoConfig(text.to_owned()));
    }
    open(config, records)
}
