//! Processes of Weir that run with a configuration, and are of another version or have an older
//! configuration.

use std::path::Path;

use super::finding::{DoctorFinding, DoctorReport};
use crate::admin::status::Status;
use crate::cli::instance::status::find_instance;
use crate::cli::loading::ConfigArgs;
use weir_base::text::shell_word::ShellWord;

/// Checks the processes that run with a configuration; returns whether one serves the network.
pub(super) async fn check(path: &Path, report: &mut DoctorReport) -> bool {
    let config = ConfigArgs::of_file(path.to_owned());
    let Ok(admin) = find_instance(&config).await else { return false };
    let running = admin.connect_to_responding().await;
    for instance in &running {
        check_process(&instance.status, path, report);
    }
    running.iter().any(|instance| serves_network(&instance.status))
}

fn check_process(status: &Status, path: &Path, report: &mut DoctorReport) {
    let own = env!("CARGO_PKG_VERSION");
    let (command, restart) = match serves_network(status) {
        true => ("weir serve", "restart `weir serve`"),
        false => ("weir stdio", "start a new session of its client"),
    };
    let process = status.process;
    if status.version != own {
        let what = format!(
            "process {process} of `{command}` is Weir {}, and this is {own}",
            status.version
        );
        report.add(DoctorFinding::warning(what, restart));
    } else if status.replaced {
        let what = format!("the program of process {process} of `{command}` has been replaced");
        report.add(DoctorFinding::warning(what, restart));
    }
    if let Some(refused) = &status.refused {
        let what = format!(
            "process {process} of `{command}` has an older configuration: {}",
            refused.describe()
        );
        let path = path.display().to_string();
        let fix = format!("weir check --offline --config {}", ShellWord(&path));
        report.add(DoctorFinding::warning(what, fix));
    }
}

/// Returns whether a process is a `weir serve`.
fn serves_network(status: &Status) -> bool {
    status.endpoint.starts_with("http")
}
