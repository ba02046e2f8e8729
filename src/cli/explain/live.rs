//! State that only the serving process has: remaining quotas of an item, and problems of its
//! upstreams.
//!
//! Invariant: the process is looked up once per command.

use super::report::{ExplainedItem, StatementTopic};
use super::user;
use crate::admin::remaining_quota::{QuotaQuery, RemainingQuota};
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::RunningInstance;
use crate::cli::query::oneshot::OneShotGateway;
use weir_access::policy;
use weir_mcp::call::Method;

/// Process that serves with the same file, or why there is none.
pub(super) struct LiveState(Result<RunningInstance, String>);

impl LiveState {
    pub(super) async fn find(oneshot: &OneShotGateway) -> Self {
        let connected = user::connect(&oneshot.config, &oneshot.source).await;
        Self(connected.map_err(describe_unreachable))
    }

    /// Adds the client's remaining quota to the statements about limits, or why it is unknown.
    pub(super) async fn add_remaining_quota(&self, client: &str, finding: &mut ExplainedItem) {
        let (Some(kind), Some(upstream), Some(item)) =
            (finding.kind, &finding.upstream, &finding.own)
        else {
            return;
        };
        let Some(visibility) = finding.visibilities.first_mut() else { return };
        let Some(last) =
            visibility.statements.iter().rposition(|statement| statement.limit.is_some())
        else {
            return;
        };
        let query = QuotaQuery {
            client: client.to_owned(),
            method: Method::for_kind(kind).as_str().to_owned(),
            upstream: upstream.clone(),
            item: item.clone(),
        };
        let result = match client {
            // Anonymous clients are counted by address.
            policy::ANONYMOUS => Err("the remaining quota is counted by address".to_owned()),
            _ if client.contains('/') => Err(
                "the remaining quota of a user is not shown: a client is the application that the \
                 token was issued to"
                    .to_owned(),
            ),
            _ => self.request_quota(&query).await,
        };
        match result {
            Ok(remaining) => {
                for statement in &mut visibility.statements {
                    if let Some(remaining) =
                        remaining.iter().find(|remaining| statement.limit == Some(remaining.limit))
                    {
                        statement.text.push_str(&describe_remaining(remaining));
                    }
                }
            }
            Err(why) => visibility.statements.insert(last + 1, StatementTopic::Limit.good(why)),
        }
    }

    /// Adds the problems of the item's upstream in the serving process, or of every upstream if the
    /// name may belong to any: the gateway of this command started a moment ago and does not have
    /// them.
    pub(super) fn add_running_state(&self, finding: &mut ExplainedItem) {
        let Ok(running) = &self.0 else { return };
        let asked = finding.upstream.as_deref();
        let upstreams = running.status.upstreams.iter();
        let upstreams = upstreams.filter(|it| asked.is_none_or(|name| name == it.name));
        let statements = upstreams.flat_map(|it| {
            let why = it.problems_for_clients().into_iter();
            let mut why: Vec<_> = why.map(|why| format!("{}: {why}", it.name)).collect();
            // Each text contains the item's name.
            let own = finding.own.as_ref().map(|own| format!("{own:?}"));
            let of_it = |text: &&String| own.as_ref().is_some_and(|own| text.contains(&**own));
            why.extend(
                it.left_out.iter().find(of_it).map(|text| format!("{}: left out: {text}", it.name)),
            );
            why
        });
        let statements = statements.map(|text| StatementTopic::Running.bad(text));
        let statements: Vec<_> = statements.take(MAX_SHOWN_PROBLEMS).collect();
        finding.statements.extend(statements);
    }

    async fn request_quota(&self, query: &QuotaQuery) -> Result<Vec<RemainingQuota>, String> {
        let running = self.0.as_ref().map_err(String::clone)?;
        running.limits(query).await.map_err(describe_unreachable)
    }
}

fn describe_unreachable(failure: Failure) -> String {
    match failure {
        Failure::NotRunning(_) => {
            "the remaining quota is known only while a Weir of this configuration runs".to_owned()
        }
        failure => format!("the remaining quota cannot be read: {failure}"),
    }
}

/// Most problems that are shown if a name may belong to any upstream.
const MAX_SHOWN_PROBLEMS: usize = 8;

fn describe_remaining(remaining: &RemainingQuota) -> String {
    let requests = remaining.requests.map(|count| format!("{count} at once"));
    let places = remaining.places.map(|count| format!("{count} more under way"));
    let words: Vec<_> = requests.into_iter().chain(places).collect();
    format!("; left now: {}", words.join(", "))
}
