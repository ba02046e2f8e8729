//! Installation of the parts that the tests start, in the background of the builds.

#![expect(clippy::disallowed_types, reason = "it is built before any package of Weir")]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::step::{self, Outcome};

/// Installs the parts that its arguments name; without arguments, all that are needed by day.
pub(crate) const INSTALLER: &str = "tests/interop/parts/install.sh";

/// The parts by day, in the order in which the installer has them.
pub(crate) const BY_DAY: [&str; 18] = [
    "schemas",
    "store",
    "nginx",
    "faketime",
    "node",
    "git",
    "deploy",
    "mcp1",
    "mcp2",
    "npm",
    "inspector",
    "inspector1",
    "chromium",
    "kubernetes",
    "conformance",
    "oidc",
    "valgrind",
    "dist",
];

/// Parts that are being installed. A part that cannot be installed is a failed step of its own; the
/// suites that need it run all the same, and their tests say what is missing.
#[derive(Default)]
pub(crate) struct Parts {
    ended: Mutex<BTreeMap<&'static str, Outcome>>,
    changed: Condvar,
}

impl Parts {
    /// Installs these parts one after the other, after the Debian packages of all of them.
    pub(crate) fn install(&self, parts: &[&'static str]) {
        // One part needs no other step before it.
        let system = ["system"].into_iter().filter(|_| parts.len() > 1);
        for part in system.chain(parts.iter().copied()) {
            let mut command = Command::new(INSTALLER);
            command.arg(part);
            let outcome = step::run(&format!("part {part}"), command);
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).insert(part, outcome);
            self.changed.notify_all();
        }
    }

    /// Waits until the installation of these parts has ended.
    pub(crate) fn wait_for(&self, parts: &[&str]) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let is_missing =
            |ended: &mut BTreeMap<_, _>| parts.iter().any(|it| !ended.contains_key(it));
        drop(self.changed.wait_while(ended, is_missing));
    }

    /// One outcome for all parts that were installed, and one for each that was not.
    pub(crate) fn outcomes(&self, begin: Instant) -> Vec<Outcome> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Outcome::skipped("parts", "installed in the background");
        all.time = ended.values().map(|it| it.time).sum::<Duration>().min(begin.elapsed());
        let failed = ended.values().filter(|it| it.failed > 0).cloned();
        std::iter::once(all).chain(failed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installer_has_the_same_parts_in_the_same_order() {
        let installer = std::fs::read_to_string(crate::root().join(INSTALLER)).expect("there");
        let line = installer.lines().find_map(|line| line.strip_prefix("BY_DAY="));
        let parts: Vec<_> = line.expect("a list").trim_matches('"').split(' ').collect();
        assert_eq!(parts, [&["system"][..], &BY_DAY].concat());
    }

    #[test]
    fn suites_need_parts_that_are_installed() {
        for suite in crate::suites::SUITES {
            for part in suite.parts {
                assert!(BY_DAY.contains(part), "{}: {part}", suite.name);
            }
        }
    }
}
