//! Table of the test suites.

/// A test binary of the package `weir`, and what it needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Suite {
    /// `lib`, or the name of the file or folder in `tests/`.
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// Parts that have to be installed first, as `tests/interop/parts/install.sh` names them.
    pub(crate) parts: &'static [&'static str],
}

/// Kind of work that most tests of a suite do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// They compute, as many at a time as there are processors.
    Compute,
    /// They wait for programs and for time to pass, so that several suites' worth of them run at
    /// once.
    Wait,
}

impl Work {
    /// Number of tests that run at once, if it is not the number of processors.
    pub(crate) fn threads(self) -> Option<&'static str> {
        match self {
            Self::Compute => None,
            Self::Wait => Some("6"),
        }
    }
}

use Work::{Compute, Wait};

/// All suites. Suites of one kind of work run in this order.
pub(crate) const SUITES: [Suite; 14] = [
    Suite { name: "tidy", work: Compute, parts: &[] },
    Suite { name: "lib", work: Compute, parts: &[] },
    Suite { name: "it", work: Compute, parts: &["schemas"] },
    Suite { name: "amplification", work: Compute, parts: &[] },
    Suite { name: "cli", work: Wait, parts: &[] },
    Suite { name: "faults", work: Wait, parts: &["faketime"] },
    Suite { name: "fleet", work: Wait, parts: &["store", "nginx", "faketime", "deploy"] },
    Suite { name: "load", work: Wait, parts: &[] },
    Suite { name: "setup", work: Wait, parts: &[] },
    Suite { name: "examples", work: Wait, parts: &[] },
    Suite { name: "deploy", work: Wait, parts: &["store", "nginx", "deploy"] },
    Suite { name: "dist", work: Wait, parts: &["node", "dist"] },
    Suite {
        name: "interop",
        work: Wait,
        parts: &[
            "store",
            "nginx",
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
            "oidc",
        ],
    },
    Suite {
        name: "conformance",
        work: Wait,
        parts: &["node", "npm", "conformance", "store", "nginx"],
    },
];

/// The suite of this name.
pub(crate) fn find(name: &str) -> Option<Suite> {
    SUITES.into_iter().find(|suite| suite.name == name)
}
