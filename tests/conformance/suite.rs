//! The official suite as a program: the scenarios that a revision requires, and the result of each
//! check.
//!
//! Its exit status and its text are not read: it writes one folder per scenario, with a
//! `checks.json`. A required scenario without a successful check counts as failed, whatever else it
//! reports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::process::Command;

use crate::parts::part;
use crate::run::Era;

/// Failures: `scenario/check` → reason.
pub(crate) type Verdicts = BTreeMap<String, String>;

/// Scenarios, and whether each is required or runs without being scored.
type Scenarios = BTreeMap<String, bool>;

/// Scenarios of the suite, by the side that they judge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leg {
    Server,
    /// Those for clients without authorization.
    Client,
    /// Those for clients with authorization. Each is some more programs.
    SignIn,
}

impl Leg {
    fn of(scenario: &str, leg: &str) -> Self {
        match (leg, scenario.starts_with("auth/")) {
            ("server", _) => Self::Server,
            (_, true) => Self::SignIn,
            (_, false) => Self::Client,
        }
    }
}

/// Scenarios of authorization of an earlier revision, which the requirements of no other name.
const OF_2025_03_26: [&str; 2] =
    ["auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"];

/// Requirements of a revision, from the suite's own file.
#[derive(Deserialize)]
struct Requirements {
    server: BTreeSet<String>,
    client: BTreeSet<String>,
    not_scored: Vec<NotScored>,
}

/// Scenario that runs and does not count for conformance.
#[derive(Deserialize)]
struct NotScored {
    scenario: String,
    leg: String,
    reason: String,
}

#[derive(Deserialize)]
struct Check {
    id: String,
    status: Status,
    description: String,
    #[serde(rename = "errorMessage")]
    error_message: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Status {
    Success,
    Failure,
    Warning,
    Skipped,
    Info,
}

/// Path of a program or a page of this folder.
pub(crate) fn script(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(path)
}

/// Runs the scenarios for servers of this revision against this URL.
pub(crate) async fn of_server(url: &str, revision: &str) -> Verdicts {
    let folder = TempDir::new().unwrap();
    run(folder.path(), true, &["server", "--url", url, "--requirements", revision]).await;
    read(folder.path(), "server-", &Requirements::of(revision).scenarios(Leg::Server))
}

/// Runs these scenarios for clients of this revision with Weir as the client, for a client of this
/// era.
pub(crate) async fn of_client(revision: &str, leg: Leg, era: Era) -> Verdicts {
    let folder = TempDir::new().unwrap();
    let mut scenarios = Requirements::of(revision).scenarios(leg);
    if leg == Leg::SignIn && revision == Era::Legacy.revision() {
        scenarios.extend(OF_2025_03_26.map(|scenario| (scenario.to_owned(), false)));
    }
    // The suite passes the command to a shell, and splits it at spaces itself, so no path contains
    // one.
    let command = format!(".cache/interop/bin/node tests/conformance/clients/through.mjs {era}");
    let runs = stream::iter(scenarios.keys()).map(|scenario| async {
        // All at once, as for servers, would run those of authorization, too.
        let is_older = OF_2025_03_26.contains(&&**scenario);
        let revision = if is_older { "2025-03-26" } else { revision };
        let which = ["--scenario", scenario, "--spec-version", revision, "--force"];
        let arguments = [&["client", "--command", &command][..], &which[..]].concat();
        run(folder.path(), false, &arguments).await;
    });
    runs.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    read(folder.path(), "", &scenarios)
}

impl Requirements {
    fn of(revision: &str) -> Self {
        let path = format!("{SUITE}/requirements/{revision}.yaml");
        serde_saphyr::from_str(&std::fs::read_to_string(part(&path)).unwrap()).unwrap()
    }

    /// All scenarios except extensions that neither the fixtures nor Weir have.
    fn scenarios(self, leg: Leg) -> Scenarios {
        let scored = if leg == Leg::Server { self.server } else { self.client };
        let side = if leg == Leg::Server { "server" } else { "client" };
        let others = self.not_scored.into_iter();
        let others = others.filter(|other| {
            let is_of_machine = OF_MACHINES.contains(&&*other.scenario);
            other.leg == side && (other.reason != "extension" || is_of_machine)
        });
        let scored = scored.into_iter().map(|scenario| (scenario, true));
        let all = scored.chain(others.map(|other| (other.scenario, false)));
        all.filter(|(scenario, _)| Leg::of(scenario, side) == leg).collect()
    }
}

/// Runs the suite; a patient one waits four times as long where it waits for 0.2 to 2 s.
async fn run(folder: &Path, is_patient: bool, arguments: &[&str]) {
    let mut command = Command::new(part("bin/node"));
    if is_patient {
        command.arg("--import").arg(script("clients/patience.mjs"));
    }
    command.arg(part(&format!("{SUITE}/dist/index.js"))).args(arguments);
    command.args(["--timeout", "150000"]).arg("--output-dir").arg(folder).kill_on_drop(true);
    command.env("WEIR", env!("CARGO_BIN_EXE_weir")).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = tokio::time::timeout(PATIENCE, command.status());
    ended.await.unwrap_or_else(|_| panic!("the suite does not end: {arguments:?}")).unwrap();
}

/// Failures of these scenarios.
fn read(folder: &Path, prefix: &str, scenarios: &Scenarios) -> Verdicts {
    let mut checks = BTreeMap::new();
    for name in folders(folder) {
        if let Ok(text) = std::fs::read_to_string(folder.join(&name).join("checks.json")) {
            // `server-ping-2026-11-21T13-21-49-842Z`
            let name = name.strip_prefix(prefix).unwrap();
            let scenario = name[..name.len() - "-2026-11-21T13-21-49-842Z".len()].to_owned();
            checks.insert(scenario, serde_json::from_str::<Vec<Check>>(&text).unwrap());
        }
    }
    let mut verdicts = Verdicts::new();
    let mut passed = 0;
    for (scenario, &required) in scenarios {
        let mut checks = checks.remove(scenario).unwrap_or_default();
        // An id may occur several times: the worst result counts.
        checks.sort_by_key(|check| check.status != Status::Failure);
        let is_bad = |check: &Check| [Status::Failure, Status::Warning].contains(&check.status);
        let is_good = |check: &Check| check.status == Status::Success;
        if !checks.iter().any(is_good) && !checks.iter().any(is_bad) {
            verdicts.insert(format!("{scenario}/"), "no check of it succeeded".to_owned());
        }
        // As the suite counts.
        let has_failed = checks.first().is_none_or(|check| check.status == Status::Failure);
        passed += usize::from(required && !has_failed);
        for check in checks {
            if is_bad(&check) {
                let failure = check.error_message.unwrap_or(check.description);
                let warns = check.status == Status::Warning;
                let failure = if warns { format!("warning: {failure}") } else { failure };
                verdicts.entry(format!("{scenario}/{}", check.id)).or_insert(failure);
            }
        }
    }
    let required = scenarios.values().filter(|required| **required).count();
    println!("{passed} of {required} required scenarios passed");
    verdicts
}

/// Names of the folders in a folder, and of those in them: `auth/` is part of a scenario's name.
fn folders(folder: &Path) -> Vec<String> {
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
        let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let mut found = names(folder);
    for outer in found.clone() {
        found.extend(names(&folder.join(&outer)).iter().map(|inner| format!("{outer}/{inner}")));
    }
    found
}

const SUITE: &str = "conformance/node_modules/@modelcontextprotocol/conformance";

/// Scenarios of authorization without a user.
const OF_MACHINES: [&str; 3] =
    ["auth/client-credentials-basic", "auth/client-credentials-jwt", "auth/wif-jwt-bearer"];

/// Number of scenarios for clients that run at once: each is three programs.
const AT_ONCE: usize = 2;

/// Generous, because it only limits how long a broken run takes.
const PATIENCE: Duration = Duration::from_secs(170);
