//! Whether clients should be sent here.
//!
//! Ready means: the door is open, each upstream has been listed or has failed once, and those that the configuration
//! calls required are up. Upstreams that take longer than a moment delay nobody, unless they are required.
//!
//! Knows nothing of: how it is asked.

use std::fmt::Write as _;

use super::Ops;

/// What was looked at.
pub(super) struct Health {
    checks: Vec<Check>,
}

struct Check {
    name: String,
    /// What is missing, if anything is.
    missing: Option<String>,
    /// Whether nothing is ready without it.
    counts: bool,
}

impl Health {
    pub(super) fn of(ops: &Ops) -> Self {
        let open = Check {
            name: "door".to_owned(),
            missing: ops.leaving.is_cancelled().then(|| "stopping".to_owned()),
            counts: true,
        };
        let unsettled = ops.gateway.unsettled();
        let is_settled = unsettled.is_empty() || ops.begun.elapsed() >= MOMENT;
        let lists = Check {
            name: "lists".to_owned(),
            missing: (!is_settled).then(|| {
                let names: Vec<_> = unsettled.iter().map(|name| name.as_str()).collect();
                format!("waiting for {}", names.join(", "))
            }),
            counts: true,
        };
        let mut upstreams: Vec<_> = ops
            .gateway
            .upstreams()
            .iter()
            .map(|upstream| {
                let report = upstream.report();
                let missing = (!report.state.takes_calls()).then(|| match report.reason {
                    Some(reason) => reason,
                    None => report.state.as_str().to_owned(),
                });
                let (name, counts) =
                    (format!("upstream {}", upstream.name()), upstream.is_required());
                Check { name, missing, counts }
            })
            .collect();
        upstreams.sort_by(|one, other| one.name.cmp(&other.name));
        Self { checks: [open, lists].into_iter().chain(upstreams).collect() }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.checks.iter().all(|check| !check.counts || check.missing.is_none())
    }

    /// What is told: one word, or a line for each check, `[+]` for what is well and `[-]` for what is not.
    pub(super) fn to_text(&self, verbose: bool) -> String {
        let mut text = String::new();
        for check in self.checks.iter().filter(|_| verbose) {
            let Check { name, missing, counts } = check;
            // What an upstream says may have any form.
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

/// How long after the start lists are waited for. Whoever is not required and takes longer is waited for no more.
const MOMENT: std::time::Duration = std::time::Duration::from_millis(900);
