//! Explanation of a URI that no upstream lists: it may be readable through a template or by its
//! scheme.

use super::ExplainAs;
use super::reasons::{self, RuleSubject};
use super::report::{ExplainedItem, Statement, StatementTopic, Visibility};
use crate::cli::query::oneshot::OneShotGateway;
use weir_access::catalog::UriRoute;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// Explains the route of the URI for each role. `nothing` are the statements if there is no route
/// at all; `only` is the upstream in the argument.
pub(super) fn finding(
    oneshot: &OneShotGateway,
    uri: &str,
    only: Option<&str>,
    nothing: Vec<Statement>,
    viewers: &[ExplainAs],
) -> ExplainedItem {
    let config = &oneshot.config;
    let everything = oneshot.operator_context.view().route(uri);
    let mut finding = ExplainedItem {
        kind: Some(Kind::Resource),
        upstream: owner(&everything).map(UpstreamName::as_str).or(only).map(str::to_owned),
        key: Some(uri.to_owned()),
        ..ExplainedItem::default()
    };
    finding.statements = match &everything {
        UriRoute::None => {
            let kept =
                config.upstreams.iter().filter(|it| only.is_none_or(|only| it.name() == only));
            let kept = kept.map(|it| reasons::export_rule(config, it, unlisted_subject(uri)));
            nothing.into_iter().chain(kept.filter(|statement| !statement.good)).collect()
        }
        UriRoute::Listed(target) => {
            let text = format!("it is {} that lists it", target.upstream);
            nothing.into_iter().chain([StatementTopic::Route.good(text)]).collect()
        }
        UriRoute::NotCanonical(_) => vec![unlisted_statement(), route_statement(&everything)],
        UriRoute::Template(_) | UriRoute::Origin(_) | UriRoute::Several(_) => {
            vec![unlisted_statement()]
        }
    };
    if finding.is_open() {
        let visibility = |viewer| visibility(oneshot, uri, only, &everything, viewer);
        finding.visibilities = viewers.iter().map(visibility).collect();
    }
    finding
}

/// Explains the route of a listed URI for roles that do not see it in a list: another upstream may
/// serve it to them.
pub(super) fn alternative_route(
    oneshot: &OneShotGateway,
    uri: &str,
    findings: &[ExplainedItem],
    viewers: Vec<ExplainAs>,
) -> Option<ExplainedItem> {
    let sees_it = |viewer: &ExplainAs| {
        let visibilities = findings.iter().flat_map(|finding| &finding.visibilities);
        visibilities
            .into_iter()
            .any(|visibility| visibility.role == viewer.role && visibility.visible)
    };
    let strays =
        |viewer: &ExplainAs| !sees_it(viewer) && owner(&viewer.context.view().route(uri)).is_some();
    let viewers: Vec<_> = viewers.into_iter().filter(strays).collect();
    let everything = oneshot.operator_context.view().route(uri);
    let visibility = |viewer: &ExplainAs| visibility(oneshot, uri, None, &everything, viewer);
    let visibilities: Vec<_> = viewers.iter().map(visibility).collect();
    let text = "clients that do not see it in a list may still read it";
    let statements = vec![StatementTopic::Listed.good(text)];
    let (kind, key) = (Some(Kind::Resource), Some(uri.to_owned()));
    (!visibilities.is_empty()).then(|| ExplainedItem {
        kind,
        key,
        statements,
        visibilities,
        ..ExplainedItem::default()
    })
}

fn unlisted_subject(uri: &str) -> RuleSubject<'_> {
    RuleSubject { kind: Kind::Resource, own: uri, is_listed: false }
}

fn unlisted_statement() -> Statement {
    StatementTopic::Listed.good("no upstream lists it")
}

fn visibility(
    oneshot: &OneShotGateway,
    uri: &str,
    only: Option<&str>,
    everything: &UriRoute,
    viewer: &ExplainAs,
) -> Visibility {
    let config = &oneshot.config;
    let route = viewer.context.view().route(uri);
    let mut statements = Vec::new();
    // If this role has no route, the operator's route shows which rule blocks it.
    if let Some(upstream) = owner(&route).or(owner(everything)) {
        let subject = unlisted_subject(uri);
        let exports = config.upstreams.iter().find(|it| it.name() == upstream.as_str());
        let exports = exports.filter(|_| !viewer.client.is_empty());
        statements.extend(exports.map(|it| reasons::export_rule(config, it, subject)));
        statements.extend(reasons::role_rules(config, &viewer.role, upstream, subject));
    }
    match &route {
        UriRoute::None if statements.iter().all(|statement| statement.good) => {
            let text = match everything {
                UriRoute::Template(template) => format!(
                    "the template `{}` of {} would lead there, but is hidden",
                    template.key, template.upstream
                ),
                _ => "no visible item leads there".to_owned(),
            };
            statements.push(StatementTopic::Allowed.bad(text));
        }
        UriRoute::None => {}
        route => statements.push(route_statement(route)),
    }
    let visible = owner(&route).is_some_and(|it| only.is_none_or(|only| it.as_str() == only));
    if let (Some(only), Some(other), false) = (only, owner(&route), visible) {
        statements.push(
            StatementTopic::Route.bad(format!("so the request goes to {other}, not to {only}")),
        );
    }
    viewer.visibility(visible, statements)
}

/// Upstream that the route leads to.
fn owner(route: &UriRoute) -> Option<&UpstreamName> {
    match route {
        UriRoute::Listed(target) | UriRoute::Template(target) => Some(&target.upstream),
        UriRoute::Origin(upstream) => Some(upstream),
        UriRoute::Several(_) | UriRoute::NotCanonical(_) | UriRoute::None => None,
    }
}

/// Statement that describes a route.
fn route_statement(route: &UriRoute) -> Statement {
    match route {
        UriRoute::Listed(target) => {
            StatementTopic::Route.good(format!("{} lists it", target.upstream))
        }
        UriRoute::Template(template) => {
            let (key, upstream) = (&template.key, &template.upstream);
            StatementTopic::Route.good(format!("the template `{key}` leads to {upstream}"))
        }
        UriRoute::Origin(upstream) => {
            let text = format!("its scheme leads to {upstream}, which alone lists such URIs");
            StatementTopic::Route.good(text)
        }
        UriRoute::Several(upstreams) => {
            let names: Vec<_> = upstreams.iter().map(UpstreamName::as_str).collect();
            let text = format!(
                "it could be of {}: no upstream receives the request",
                names.join(" or of ")
            );
            StatementTopic::Route.bad(text)
        }
        UriRoute::NotCanonical(why) => {
            let text = format!("a URI that is not listed must be in normal form: {why}");
            StatementTopic::Route.bad(text)
        }
        UriRoute::None => StatementTopic::Route.bad("it leads nowhere"),
    }
}
