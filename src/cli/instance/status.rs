//! `weir status`: prints the status of the running Weir of a configuration.
//!
//! Invariant: the exit code is 0 if all is well, 1 if it serves but has a problem, 3 if the token
//! is rejected, 4 if no instance is running, so a script need not parse the text.

mod page;

use crate::admin::logs::unknown_upstream;
use crate::admin::status::{RefusedReload, Status};
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::{AdminClient, RunningInstance};
use crate::cli::loading::{ConfigArgs, ReportArgs};
use crate::cli::output;
use page::StatusPage;
pub(crate) use page::format_duration;

/// Requests the status and prints it.
pub(crate) async fn run(args: ReportArgs) -> Result<(), Failure> {
    let status = connect(&args.config).await?.status;
    output::print_report(args.json, &status, |out| {
        let page = StatusPage::new(output::columns(), output::Color::on_stdout());
        out.write_all(page.format(&status).as_bytes())
    })?;
    check_status(&status)
}

/// Returns a client of the admin listener of the configuration's instance, whatever mistakes the
/// files have now.
pub(crate) async fn find_instance(config: &ConfigArgs) -> Result<AdminClient, Failure> {
    let (listeners, path, report) = config.listeners().await?;
    AdminClient::new(&listeners.admin, &listeners.state, &path)
        .map_err(|failure| report.map_or(failure, Failure::Config))
}

/// Connects to the configuration's instance.
pub(crate) async fn connect(config: &ConfigArgs) -> Result<RunningInstance, Failure> {
    match find_instance(config).await?.connect().await {
        Err(failure) => Err(or_mistakes(config, failure).await),
        connected => connected,
    }
}

/// Connects to all instances of the configuration, of which at least one has this upstream.
pub(crate) async fn connect_to_all(
    config: &ConfigArgs,
    upstream: &str,
) -> Result<Vec<RunningInstance>, Failure> {
    let found = match find_instance(config).await?.connect_to_all().await {
        Err(failure) => return Err(or_mistakes(config, failure).await),
        Ok(found) => found,
    };
    let all = || found.iter().flat_map(|it| &it.status.upstreams).map(|it| it.name.as_str());
    if !all().any(|name| name == upstream) {
        return Err(Failure::Usage(unknown_upstream(upstream, all())));
    }
    Ok(found)
}

/// If no instance was found, returns the mistakes of the configuration instead, if it has any:
/// with them none starts, and they may be the reason why a running one is not found.
pub(crate) async fn or_mistakes(config: &ConfigArgs, failure: Failure) -> Failure {
    match failure {
        Failure::NotRunning(_) => config.load_without_upstreams().await.err().unwrap_or(failure),
        failure => failure,
    }
}

/// Fails with the problems of a status, if there are any.
fn check_status(status: &Status) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    if status.draining {
        wrong.push("it is stopping".to_owned());
    }
    let down = status.upstreams.iter().filter(|it| !it.is_well());
    let down: Vec<_> = down.map(|it| it.name.as_str()).collect();
    if !down.is_empty() {
        let (some, all) = (down.len(), status.upstreams.len());
        wrong.push(format!("{some} of {all} upstreams not up: {}", down.join(", ")));
    }
    wrong.extend(status.refused.as_ref().map(RefusedReload::describe));
    if status.audit.as_ref().is_some_and(|audit| audit.failing) {
        wrong.push("the audit log cannot be written".to_owned());
    }
    if !status.ready && wrong.is_empty() {
        wrong.push("it is still starting".to_owned());
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::CheckFailed(wrong.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use crate::admin::status::UpstreamStatus;
    use crate::cli::instance::status::*;

    #[test]
    fn all_is_well_where_each_upstream_is_up_half_open_or_asleep() {
        for (state, is_well) in [
            ("up", true),
            ("half-open", true),
            ("asleep", true),
            ("starting", false),
            ("open", false),
            ("down", false),
            ("crash-loop", false),
            ("needs-sign-in", false),
        ] {
            let upstream = UpstreamStatus { state: state.to_owned(), ..UpstreamStatus::default() };
            let status = Status { ready: true, upstreams: vec![upstream], ..Status::default() };
            assert_eq!(check_status(&status).is_ok(), is_well, "{state}");
        }
    }
}
