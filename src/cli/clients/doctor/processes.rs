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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::status::RefusedReload;
    use crate::cli::output::wrapped_text::WrappedText;

    fn found(status: Status) -> String {
        let mut report = DoctorReport::default();
        check_process(&status, Path::new("/home/ada/my weir.toml"), &mut report);
        report.format(WrappedText::new(usize::MAX, false))
    }

    #[test]
    fn a_process_of_another_version_or_an_older_configuration_is_found() {
        let own = env!("CARGO_PKG_VERSION");
        let same = Status { version: own.to_owned(), process: 7, ..Status::default() };
        assert_eq!(found(same.clone()), "");
        let endpoint = "http://127.0.0.1:8642/mcp".to_owned();
        let older = Status { version: "0.0.1".to_owned(), endpoint, ..same.clone() };
        let expected = format!(
            "warning  weir  process 7 of `weir serve` is Weir 0.0.1, and this is {own}\n               \
             fix: restart `weir serve`\n"
        );
        assert_eq!(found(older), expected);
        let why = "weir.toml:3: no such key".to_owned();
        let refused = RefusedReload { at: "2026-11-22T01:02:03Z".to_owned(), why };
        let refused = found(Status { refused: Some(refused), ..same.clone() });
        let expected = "warning  weir  process 7 of `weir stdio` has an older configuration: the file \
                        has been refused since 2026-11-22T01:02:03Z, the former one is active\n\
                        \x20              fix: weir check --offline --config '/home/ada/my weir.toml'\n";
        assert_eq!(refused, expected);
        let replaced = found(Status { replaced: true, ..same });
        assert!(replaced.contains("the program of process 7 of `weir stdio`"), "{replaced}");
    }
}
