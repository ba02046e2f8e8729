//! Lists with more than one page, as the clients of the configuration get them: a client that reads
//! only the first page does not see the rest.

use std::collections::BTreeMap;

use crate::cli::exit::ProblemReport;
use crate::cli::output::render::counted;
use crate::cli::query::oneshot::OneShotGateway;
use weir_config::{Config, owner_of};
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::kind::Kind;

/// Returns a warning for each kind of list with several pages and each number of items in it, with
/// the clients that get it.
pub(crate) fn find_cut_lists(oneshot: &OneShotGateway) -> Vec<ProblemReport> {
    let mut readers: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for role in oneshot.config.roles.keys() {
        let view = oneshot.app.gateway().local_client(role).view();
        for kind in Kind::ALL {
            let (first, all) = view.first_page_size(kind, DefinitionForm::Newest);
            if first < all {
                let counts = (kind.index(), first, all);
                readers.entry(counts).or_default().extend(readers_of(&oneshot.config, role));
            }
        }
    }
    let report = |((kind, first, all), readers): (_, Vec<String>)| {
        let what = counted(all as u64, Kind::ALL[kind]);
        ProblemReport {
            severity: "warning",
            key: "protocol.page_size".to_owned(),
            what: format!(
                "a client that reads only the first page sees {first} of {what}: {}",
                shortened(&readers)
            ),
            remedy: "raise it, up to 1 MiB on one page, or allow these clients fewer items"
                .to_owned(),
            ..ProblemReport::default()
        }
    };
    readers.into_iter().map(report).collect()
}

/// Names who has a role: its clients, or the role itself, which tokens, keyless requests and
/// `weir stdio` can have.
fn readers_of(config: &Config, role: &str) -> Vec<String> {
    if let Some(client) = owner_of(role) {
        return vec![client.to_owned()];
    }
    let clients = config.clients.iter().filter(|client| *client.role == *role);
    let names: Vec<_> = clients.map(|client| client.name.to_string()).collect();
    if names.is_empty() { vec![format!("clients with the role {role}")] } else { names }
}

fn shortened(readers: &[String]) -> String {
    let (named, more) = readers.split_at(readers.len().min(MAX_NAMES));
    match more.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Number of clients that one line names.
const MAX_NAMES: usize = 8;
