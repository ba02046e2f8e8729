//! Survey of a configuration for `weir doctor`: all upstreams, the times that they took, and the
//! tools that each client would get.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::cli::check::{CheckRow, rows};
use crate::cli::exit::Failure;
use crate::cli::loading::{ConfigArgs, options};
use crate::cli::query::oneshot::OneShotGateway;
use crate::cli::query::required_upstreams::UpstreamSelection;
use crate::cli::server::log;
use weir_mcp::kind::Kind;

/// Result of starting and listing all upstreams of a configuration.
pub(crate) struct ConfigSurvey {
    /// Upstreams in the order of the file.
    pub(crate) upstreams: Vec<SurveyedUpstream>,
    /// Tools by the client of `--as`, or without one.
    pub(crate) tools: BTreeMap<Option<String>, Vec<ListedTool>>,
}

/// State of one upstream.
pub(crate) struct SurveyedUpstream {
    pub(crate) name: String,
    /// Reason why it cannot be used, if it cannot.
    pub(crate) fault: Option<String>,
    /// Whether a user has to sign in first.
    pub(crate) needs_sign_in: bool,
    /// Time until it was connected, if it is.
    pub(crate) took: Option<Duration>,
}

/// Tool as a client gets it.
pub(crate) struct ListedTool {
    /// Public name.
    pub(crate) name: String,
    /// Size of its definition.
    pub(crate) bytes: usize,
}

impl ConfigSurvey {
    /// Starts and lists all upstreams, which fills the cache of lists, and waits no longer than
    /// `patience`. `clients` are those of `--as` in the entries.
    pub(crate) async fn take(
        config: &ConfigArgs,
        clients: &BTreeSet<Option<String>>,
        patience: Duration,
    ) -> Result<Self, Failure> {
        log::start_errors_only();
        let (selection, options) = (UpstreamSelection::Named(&[]), options(true));
        let started = Instant::now();
        // Like JSON output: the findings contain the configuration's warnings.
        let oneshot =
            OneShotGateway::open_within(config, true, None, selection, options, |_| {}, patience)
                .await?;
        let upstreams = rows(&oneshot).into_iter();
        let upstreams = upstreams.map(|row| surveyed(row, &oneshot, started)).collect();
        let tools = clients.iter().map(|client| (client.clone(), tools_of(client, &oneshot)));
        let survey = Self { upstreams, tools: tools.collect() };
        oneshot.close().await;
        Ok(survey)
    }
}

fn surveyed(row: CheckRow, oneshot: &OneShotGateway, started: Instant) -> SurveyedUpstream {
    let report = oneshot.find_upstream(&row.name).map(|upstream| upstream.report());
    let connected = report.filter(|report| report.about.is_some()).map(|report| report.since);
    SurveyedUpstream {
        fault: (!row.ok).then_some(row.state),
        needs_sign_in: row.needs_sign_in,
        took: connected.map(|at| at.saturating_duration_since(started)),
        name: row.name,
    }
}

/// Returns the tools that `weir stdio` serves to this client; none if there is no such client.
fn tools_of(client: &Option<String>, oneshot: &OneShotGateway) -> Vec<ListedTool> {
    let gateway = oneshot.app.gateway();
    let context = match client {
        None => Some(gateway.local_client(&oneshot.config.auth.anonymous_role)),
        Some(name) => gateway.named_client(name),
    };
    let view = context.map(|context| context.view());
    let items = view.iter().flat_map(|view| view.items(Kind::Tool));
    items.map(|item| ListedTool { name: item.key.to_string(), bytes: item.json.len() }).collect()
}
