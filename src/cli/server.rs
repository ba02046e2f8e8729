//! Commands that run the gateway, `serve` and `stdio`, with logging, signals and process limits.

pub(crate) mod audit_log;
pub(crate) mod fd_limit;
pub(crate) mod fleet;
pub(crate) mod hardening;
pub(crate) mod log;
pub(crate) mod reload_triggers;
pub(crate) mod serve;
pub(crate) mod signals;
pub(crate) mod stdio;
pub(crate) mod systemd;
pub(crate) mod thread_check;
pub(crate) mod upgrade;
