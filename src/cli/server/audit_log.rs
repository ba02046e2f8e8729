//! Opens the audit log for `serve`, `stdio` and commands that write to it.

use std::path::Path;

use crate::app::App;
use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use weir_config::Config;
use weir_record::audit::{Audit, FileHash, OnError, PolicyChange, PolicyEvent, Writer};

/// Opens the audit log of a configuration, if requests are recorded.
pub(crate) fn open(
    config: &Config,
    records: bool,
    files: Vec<FileHash>,
) -> Result<Option<(Audit, Writer)>, Failure> {
    if !records {
        return Ok(None);
    }
    let opened = App::open_audit_log_with(config, files).map_err(|error| {
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
    open_command_log(config, config.records_requests())
}

fn open_command_log(config: &Config, records: bool) -> Result<Option<(Audit, Writer)>, Failure> {
    let log = open(config, records && config.audit.path != Path::new("-"), Vec::new())?;
    if let Some((audit, _)) = &log {
        audit.set_stop_reason("command");
    }
    Ok(log)
}

/// Audit log of a command that changes the policy. It is written by the command itself, in a file
/// of its own while a running Weir writes another one.
pub(crate) struct CommandLog {
    log: Option<(Audit, Writer)>,
    is_mandatory: bool,
}

impl CommandLog {
    /// Opens the log, if requests are recorded or will be after the change.
    pub(crate) fn open(config: &Config, will_record: bool) -> Result<Self, Failure> {
        let is_mandatory = config.audit.on_error == OnError::Refuse;
        let records = config.records_requests() || will_record && config.audit.enabled.is_none();
        let log = match open_command_log(config, records) {
            Ok(log) => log,
            Err(failure) if is_mandatory => return Err(failure),
            Err(failure) => {
                output::print_stderr(&format!("warning: this is not recorded: {failure}"));
                None
            }
        };
        Ok(Self { log, is_mandatory })
    }

    /// Records a change and makes it. Where the log is mandatory, the change is recorded first, and
    /// is not made if that fails; a change that fails then is recorded again.
    pub(crate) fn record<T>(
        &mut self,
        event: PolicyEvent,
        change: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.is_mandatory {
            self.write(event.clone()).map_err(|error| {
                let text = format!("nothing was changed: the audit log cannot be written: {error}");
                Failure::Output(std::io::Error::other(text))
            })?;
        }
        let changed = change();
        let refusal = changed.as_ref().err().map(|failure| sanitize_line(&failure.to_string()));
        if (!self.is_mandatory || refusal.is_some())
            && let Err(error) = self.write(PolicyEvent { refusal, ..event })
        {
            let text = format!("warning: this is not recorded, because of the audit log: {error}");
            output::print_stderr(&text);
        }
        changed
    }

    fn write(&mut self, event: PolicyEvent) -> std::io::Result<()> {
        self.log.as_mut().map_or(Ok(()), |(_, writer)| writer.write_now(event))
    }
}

/// Records that the configuration of the start is refused, and another one is in its place.
pub(crate) fn record_refused_start(audit: &Audit, files: Vec<FileHash>, why: &str) {
    let kind = PolicyChange::Config { files, after_restart: Vec::new() };
    let refusal = Some(why.to_owned());
    audit.record_policy(PolicyEvent { refusal, ..PolicyEvent::new(kind, "start") });
}

/// Opens the audit log for `weir stdio`: only if it is enabled explicitly, and never on standard
/// output, which carries the protocol.
pub(crate) fn open_log_for_stdio(
    config: &Config,
    files: Vec<FileHash>,
) -> Result<Option<(Audit, Writer)>, Failure> {
    let records = config.audit.enabled == Some(true);
    if records && config.audit.path == Path::new("-") {
        let text = "standard output belongs to the protocol here: set another `path` under [audit]";
        return Err(Failure::NoConfig(text.to_owned()));
    }
    open(config, records, files)
}
