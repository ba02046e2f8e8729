//! Readiness of the process for clients.
//!
//! Ready means: the process is not draining, each upstream has been listed or has failed once,
//! required upstreams are connected, and the keys are those of the other replicas. Upstreams that
//! are not required delay readiness only for a moment after the start.

use std::fmt::Write as _;

use super::Admin;

/// Results of the readiness checks.
pub(super) struct Health {
    checks: Vec<Check>,
}

struct Check {
    name: String,
    /// Reason of the failure, if the check fails.
    missing: Option<String>,
    /// True if readiness depends on the check.
    counts: bool,
}

impl Health {
    pub(super) fn of(admin: &Admin) -> Self {
        let open = Check {
            name: "endpoint".to_owned(),
            missing: admin.draining.is_cancelled().then(|| "stopping".to_owned()),
            counts: true,
        };
        let unsettled = admin.gateway.pending_upstreams();
        let is_settled = unsettled.is_empty() || admin.started_at.elapsed() >= MOMENT;
        let lists = Check {
            name: "lists".to_owned(),
            missing: (!is_settled).then(|| {
                let names: Vec<_> = unsettled.iter().map(|name| name.as_str()).collect();
                format!("waiting for {}", names.join(", "))
            }),
            counts: true,
        };
        let upstreams = admin.gateway.upstreams();
        let upstreams = upstreams.iter().map(|upstream| {
            let report = upstream.report();
            let missing = (!report.state.takes_calls())
                .then(|| report.reason.unwrap_or_else(|| report.state.as_str().to_owned()));
            let (name, counts) =
                (format!("upstream {}", upstream.name()), upstream.settings().required);
            Check { name, missing, counts }
        });
        let fleet = admin.server_state.now().fleet().map(|fleet| Check {
            name: "fleet".to_owned(),
            missing: fleet.problem().map(str::to_owned),
            counts: true,
        });
        Self { checks: [open, lists].into_iter().chain(fleet).chain(upstreams).collect() }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.checks.iter().all(|check| !check.counts || check.missing.is_none())
    }

    /// Returns one word, or a line per check, with `[+]` for a passed and `[-]` for a failed one.
    pub(super) fn to_text(&self, verbose: bool) -> String {
        let mut text = String::new();
        for check in self.checks.iter().filter(|_| verbose) {
            let Check { name, missing, counts } = check;
            // An upstream's text may contain control characters.
            let missing = missing.as_deref().map(|it| it.replace(char::is_control, " "));
            let _ = match missing {
                None => writeln!(text, "[+]{name} ok"),
                Some(missing) if *counts => writeln!(text, "[-]{name} failed: {missing}"),
                Some(missing) => writeln!(text, "[-]{name} not required: {missing}"),
            };
        }
        text + if self.is_ready() { "ready\n" } else { "not ready\n" }
    }
}

/// Time after the start for which readiness waits for lists of upstreams that are not required.
const MOMENT: std::time::Duration = std::time::Duration::from_millis(900);
