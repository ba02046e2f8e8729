//! Explanation of a whole upstream: visible items per kind, and whether its instructions are sent.

use super::ExplainAs;
use super::report::{ExplainedItem, Statement, StatementTopic, Visibility};
use super::search::connection_statement;
use crate::cli::output::render::counted;
use crate::cli::query::oneshot::OneShotGateway;
use weir_access::catalog::RoleView;
use weir_mcp::kind::Kind;
use weir_upstream::ConnectionStatus;

/// Explains what each role sees of an upstream.
pub(super) fn finding(
    oneshot: &OneShotGateway,
    name: &str,
    viewers: &[ExplainAs],
) -> ExplainedItem {
    let mut statements = vec![connection_statement(oneshot, name)];
    if statements[0].good {
        let mut unlisted = Kind::ALL
            .into_iter()
            .map(|kind| oneshot.describe_unlisted(&oneshot.operator_context, kind));
        statements.extend(unlisted.find_map(|text| Some(StatementTopic::Listed.bad(text?))));
    }
    let visibilities = match statements[0].good {
        true => viewers.iter().map(|viewer| visibility(oneshot, name, viewer)).collect(),
        false => Vec::new(),
    };
    ExplainedItem {
        upstream: Some(name.to_owned()),
        statements,
        visibilities,
        ..ExplainedItem::default()
    }
}

fn visibility(oneshot: &OneShotGateway, name: &str, viewer: &ExplainAs) -> Visibility {
    let (view, everything) = (viewer.context.view(), oneshot.operator_context.view());
    let mut statements = Vec::new();
    let counts =
        Kind::ALL.map(|kind| (kind, count(&view, kind, name), count(&everything, kind, name)));
    let visible = counts.iter().any(|(_, seen, _)| *seen > 0);
    let lets_out = counts.iter().any(|(.., all)| *all > 0);
    let words = counts.iter().filter(|(.., all)| *all > 0);
    let words = words.map(|(kind, seen, all)| format!("{seen} of {}", counted(*all as u64, kind)));
    let words = words.collect::<Vec<_>>().join(", ");
    statements.push(match lets_out {
        true => Statement { good: visible, ..StatementTopic::VisibleItems.good(words) },
        false => StatementTopic::Listed.bad(format!("{name} lists nothing, or exports nothing")),
    });
    statements.push(StatementTopic::Instructions.good(instructions(oneshot, name, &view, visible)));
    viewer.visibility(visible, statements)
}

fn count(view: &RoleView, kind: Kind, name: &str) -> usize {
    view.items(kind).iter().filter(|target| target.upstream.as_str() == name).count()
}

/// Describes whether clients with this view receive the upstream's instructions.
fn instructions(
    oneshot: &OneShotGateway,
    name: &str,
    view: &RoleView,
    visible: bool,
) -> &'static str {
    let status = oneshot.find_upstream(name).map(|upstream| upstream.status().borrow().clone());
    let words = match status {
        Some(ConnectionStatus::Up(about)) => about.instructions.clone(),
        _ => None,
    };
    match words {
        None => "it has no instructions",
        Some(_) if !oneshot.config.protocol.instructions => {
            "its instructions are not sent: [protocol] instructions = false"
        }
        Some(_) if !visible => "its instructions are not sent: none of its items is visible",
        Some(words) if view.instructions().is_some_and(|all| all.contains(&*words)) => {
            "its instructions are sent"
        }
        Some(_) => "its instructions are not sent: there are too many others before them",
    }
}
