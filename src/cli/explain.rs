//! `weir explain`: explains why a client sees an item or not.
//!
//! The client's own view decides visibility, as it does for every request; the statements give the
//! reasons, from the upstream to the client. Nothing is concealed, because the reader owns the
//! configuration.

mod live;
mod reasons;
mod report;
mod route;
mod search;
mod upstream;
mod user;

use super::exit::Failure;
use super::loading::{LoadedConfig, ReportArgs, options};
use super::output;
use crate::admin::status::held_back;
use crate::app;
use crate::cli::output::progress;
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs, plural_kind};
use crate::cli::query::required_upstreams::{NameMeaning, UpstreamSelection};
use reasons::RuleSubject;
use report::{ExplainedItem, Explanation, Statement, StatementTopic, Visibility};
use search::{SearchHit, search};
use user::{UserArgs, Viewer};
use weir_access::catalog::{ExclusionReason, ExportProblem};
use weir_config::{Options, owner_of};
use weir_gateway::ClientContext;
use weir_mcp::kind::Kind;

/// Arguments of `weir explain`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A name or URI as clients use it; or `<upstream>/<name>`, as in rules, with the upstream's
    /// own name or URI; or an upstream.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// Considers only items of this kind.
    #[arg(long, value_parser = plural_kind())]
    kind: Option<Kind>,
    #[command(flatten)]
    viewer: UserArgs,
    #[command(flatten)]
    query: QueryArgs,
}

/// Explains the visibility for one client, user or role, or for each role.
pub(super) async fn run(mut args: Args) -> Result<(), Failure> {
    let user = find_user(&args).await?;
    if user.is_some() {
        // No client of the configuration.
        args.query.client = None;
    }
    let selection = UpstreamSelection::Matching(args.kind, &args.name);
    OneShotGateway::run(&args.query, selection, async |oneshot| {
        let mut findings = explained_items(oneshot, &args, user.as_ref()).await;
        let live_state = live::LiveState::find(oneshot).await;
        let client = args.query.client.as_ref();
        let client = client.or(user.as_ref().and_then(|user| user.user.as_ref()));
        for finding in &mut findings {
            live_state.add_running_state(finding);
            if let Some(client) = client {
                live_state.add_remaining_quota(client, finding).await;
            }
        }
        let label = client.or(user.as_ref().map(|user| &user.label));
        let explanation = Explanation::new(&args.name, client, label, findings);
        output::print_report(oneshot.json, &explanation, |out| {
            out.write_all(explanation.to_text(output::stdout_text()).as_bytes())
        })?;
        explanation.end()
    })
    .await
}

/// Finds the viewer, if it is no client of the configuration.
async fn find_user(args: &Args) -> Result<Option<Viewer>, Failure> {
    let client = args.query.client.as_deref();
    if client.is_none() && args.viewer.is_empty() {
        return Ok(None);
    }
    let ReportArgs { config, .. } = &args.query.report;
    // Without upstreams: nothing of them is needed to find a role.
    let options = Options { only: Some(Vec::new()), ..options(true) };
    let LoadedConfig { config, source, .. } = config.load(&options).await?;
    user::find(&args.viewer, client, &config, &source).await
}

async fn explained_items(
    oneshot: &OneShotGateway,
    args: &Args,
    user: Option<&Viewer>,
) -> Vec<ExplainedItem> {
    let (config, kind) = (&oneshot.config, args.kind);
    let viewers = viewers(oneshot, args, user);
    let meant = NameMeaning::classify(config, kind, &args.name);
    let NameMeaning { upstream, own, is_uri } = meant;
    let name = upstream.map(|it| it.name.clone());
    let unknown_item = |statements| ExplainedItem {
        kind,
        upstream: name.clone(),
        own: own.map(str::to_owned),
        statements,
        ..ExplainedItem::default()
    };
    if let Some(off) = upstream.filter(|upstream| !upstream.enabled) {
        return vec![unknown_item(vec![search::disabled_statement(config, off)])];
    }
    if let (Some(it), None) = (upstream, own) {
        return vec![upstream::finding(oneshot, &it.name, &viewers)];
    }
    let about = || "waiting for what the upstreams list".to_owned();
    let found = search(oneshot, &meant, &args.name, kind);
    let found = progress::show_while(oneshot.json, about, found).await;
    let uri = is_uri.then_some(own.unwrap_or(&args.name));
    let uri = uri.filter(|_| kind.is_none_or(|kind| kind == Kind::Resource));
    let mut findings: Vec<_> =
        found.items.iter().map(|hit| explain_item(oneshot, hit, &viewers)).collect();
    match uri {
        Some(uri) if findings.is_empty() => {
            let nothing = found.not_found_statements(&args.name, kind);
            findings.push(route::finding(oneshot, uri, name.as_deref(), nothing, &viewers));
        }
        Some(uri) if name.is_none() => {
            findings.extend(route::alternative_route(oneshot, uri, &findings, viewers))
        }
        None if findings.is_empty() => {
            findings.push(unknown_item(found.not_found_statements(&args.name, kind)));
        }
        _ => {}
    }
    findings
}

/// Client or role for which visibility is explained.
struct ExplainAs {
    role: String,
    context: ClientContext,
    /// Statements about the client that has this role; empty for a role of the configuration.
    client: Vec<Statement>,
}

impl ExplainAs {
    /// Adds the statement about the client to the others about the visibility.
    fn visibility(&self, visible: bool, statements: Vec<Statement>) -> Visibility {
        // A user who is refused sees nothing, whatever the role allows.
        let visible = visible && self.client.iter().all(|statement| statement.good);
        let statements = self.client.iter().cloned().chain(statements).collect();
        Visibility { role: self.role.clone(), visible, statements }
    }
}

/// Returns the user or the client of `--as`, else each role.
fn viewers(oneshot: &OneShotGateway, args: &Args, user: Option<&Viewer>) -> Vec<ExplainAs> {
    if let Some(Viewer { label, roles, statements, .. }) = user {
        let context = oneshot.app.gateway().client_with_roles(label, roles);
        let role = context.principal().role.to_string();
        return vec![ExplainAs { role, context, client: statements.clone() }];
    }
    let Some(client) = &args.query.client else {
        let gateway = oneshot.app.gateway();
        let roles = oneshot.config.roles.keys();
        return roles
            .map(|role| ExplainAs {
                role: role.clone(),
                context: gateway.local_client(role),
                client: Vec::new(),
            })
            .collect();
    };
    let context = oneshot.client_context.clone();
    let principal = context.principal().clone();
    let role = principal.role.to_string();
    let places = &oneshot.config.rule_locations;
    let place = match principal.is_anonymous() {
        true => places.of(&["auth", "anonymous_role"]),
        false => places.of(&["clients", client, "role"]),
    };
    let text = match (owner_of(&role), place) {
        (Some(_), _) => format!("{client} has rules of its own"),
        (None, Some(place)) => format!("{client} has the role {role} ({place})"),
        (None, None) => format!("{client} has the role {role} (by default)"),
    };
    let place = place.map(str::to_owned);
    let statement = Statement { place, ..StatementTopic::Client.good(text) };
    vec![ExplainAs { role, context, client: vec![statement] }]
}

/// Explains an item that an upstream lists.
fn explain_item(
    oneshot: &OneShotGateway,
    hit: &SearchHit<'_>,
    viewers: &[ExplainAs],
) -> ExplainedItem {
    let SearchHit { upstream, kind, item, key, state } = hit;
    let config = &oneshot.config;
    let exports = reasons::export_rule(config, upstream, listed_subject(hit));
    let is_out = exports.good;
    let listed = format!("{} lists it as `{}/{}`", upstream.name(), upstream.name(), item.key);
    let mut statements = vec![state.clone(), StatementTopic::Listed.good(listed), exports];
    if is_out {
        let naming = app::naming(&config.naming);
        let altered = upstream.exports.altered(&naming, *kind, &item.key).map(|(_, it)| it);
        statements.extend(altered.map(|reason| {
            StatementTopic::List.good(format!("its name is altered for clients: {reason}"))
        }));
        statements.extend(list_anomaly(oneshot, hit));
    }
    let (kind, own) = (Some(*kind), Some(item.key.to_string()));
    let (name, key) = (Some(upstream.name().to_owned()), Some(key.to_string()));
    let mut finding =
        ExplainedItem { kind, upstream: name, own, key, statements, ..ExplainedItem::default() };
    // If no client can see the item, roles explain nothing, unless `--as` names a client.
    let is_open = finding.is_open();
    let viewers = viewers.iter().filter(|viewer| is_open || !viewer.client.is_empty());
    finding.visibilities =
        viewers.map(|viewer| visibility(oneshot, hit, viewer, is_open)).collect();
    finding
}

fn listed_subject<'a>(hit: &'a SearchHit<'_>) -> RuleSubject<'a> {
    RuleSubject { kind: hit.kind, own: &hit.item.key, is_listed: true }
}

/// Statement about an exported item that is missing from some or all lists nevertheless.
fn list_anomaly(oneshot: &OneShotGateway, hit: &SearchHit<'_>) -> Option<Statement> {
    let SearchHit { upstream, kind, item, key, .. } = hit;
    let problems = oneshot.app.gateway().problems();
    let mut problems = problems
        .iter()
        .filter(|(name, of, _)| name.as_str() == upstream.name() && of == kind)
        .flat_map(|(.., problems)| &problems.unlisted.first);
    let is_of_item = |problem: &&ExportProblem| {
        problem.own == item.key && problem.reason != ExclusionReason::Duplicate
    };
    if let Some(problem) = problems.find(is_of_item) {
        return Some(StatementTopic::List.bad(format!("it is left out: {problem}")));
    }
    let withheld = oneshot.app.gateway().awaiting_approval();
    if let Some((name, ..)) = withheld.iter().find(|(name, of, own)| {
        name.as_str() == upstream.name() && *of == Some(*kind) && **own == *item.key
    }) {
        let text = format!("it {}", held_back(name, Some(&item.key)));
        return Some(StatementTopic::List.bad(text));
    }
    let view = oneshot.operator_context.view();
    match view.resolve(*kind, key) {
        Some(other) if other.upstream.as_str() != upstream.name() => {
            // Clients that cannot see the other item see this one.
            let text = format!("{} also lists it and comes first in the file", other.upstream);
            Some(StatementTopic::List.good(text))
        }
        Some(target) if target.needs_task => {
            let text = "it can be called only as a task, so only clients of 2025-11-25 see it";
            Some(StatementTopic::List.good(text))
        }
        Some(_) => None,
        None => {
            Some(StatementTopic::List.bad("it is left out of the list; `weir check` may show why"))
        }
    }
}

/// Explains the visibility of an item for one role.
fn visibility(
    oneshot: &OneShotGateway,
    hit: &SearchHit<'_>,
    viewer: &ExplainAs,
    mut is_open: bool,
) -> Visibility {
    let SearchHit { upstream, kind, item, key, .. } = hit;
    let mut statements = Vec::new();
    let name = &upstream.settings.name;
    let subject = listed_subject(hit);
    statements.extend(reasons::role_rules(&oneshot.config, &viewer.role, name, subject));
    is_open &= statements.iter().all(|statement| statement.good);
    if is_open {
        statements.extend(reasons::limit_statements(&oneshot.config, *kind, name, &item.key));
    }
    let target = viewer.context.view().resolve(*kind, key);
    let visible =
        target.as_ref().is_some_and(|target| target.upstream == *name && target.own == item.key);
    if let Some(other) = target.filter(|_| !visible && is_open) {
        let text = format!("the visible one is of {}, which comes first", other.upstream);
        statements.push(StatementTopic::List.bad(text));
    }
    viewer.visibility(visible, statements)
}
