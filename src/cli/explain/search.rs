//! Search for a name in the lists of the upstreams, before any rule of a role.

use super::report::{Statement, StatementTopic};
use crate::admin::status::CUT;
use crate::app;
use crate::cli::query::oneshot::{OneShotGateway, describe_connection};
use crate::cli::query::required_upstreams::NameMeaning;
use weir_config::{Config, UpstreamConfig, UpstreamSummary, nearest};
use weir_mcp::definition::item::{Item, ItemDefect};
use weir_mcp::kind::Kind;
use weir_upstream::ConnectionStatus;
use weir_upstream::health::status_report::State;

/// Result of the search for a name.
#[derive(Default)]
pub(super) struct SearchResult<'c> {
    /// Items that the name may mean.
    pub(super) items: Vec<SearchHit<'c>>,
    /// At least one list was read.
    any: bool,
    /// Lists that could not be read, with the reasons.
    pub(super) unread: Vec<Statement>,
    /// Candidates for a suggestion: public names, or own names with their upstream.
    near: Vec<String>,
}

/// Item that an upstream lists.
pub(super) struct SearchHit<'c> {
    pub(super) upstream: &'c UpstreamConfig,
    pub(super) kind: Kind,
    pub(super) item: Item,
    /// Public name or URI.
    pub(super) key: Box<str>,
    /// Statement about the connection of its upstream.
    pub(super) state: Statement,
}

impl SearchResult<'_> {
    /// Statements about the reason why nothing was found.
    pub(super) fn not_found_statements(self, name: &str, only: Option<Kind>) -> Vec<Statement> {
        if !self.any {
            return self.unread;
        }
        let what = only.map_or("anything".to_owned(), |kind| format!("a {kind}"));
        let near = nearest(name, self.near.iter().map(String::as_str));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let text = format!("no upstream lists {what} of this name{hint}");
        self.unread.into_iter().chain([StatementTopic::Listed.bad(text)]).collect()
    }
}

/// Searches for a name in the lists of the upstreams.
pub(super) async fn search<'c>(
    oneshot: &'c OneShotGateway,
    meant: &NameMeaning<'_, '_>,
    name: &str,
    only: Option<Kind>,
) -> SearchResult<'c> {
    let config = &oneshot.config;
    let naming = app::naming(&config.naming);
    let mut found = SearchResult::default();
    let NameMeaning { upstream: named, own, .. } = *meant;
    let is_selected =
        |upstream: &&UpstreamConfig| named.is_none_or(|named| upstream.name() == named.name);
    for upstream in config.upstreams.iter().filter(is_selected) {
        let state = connection_statement(oneshot, upstream.name());
        let Some(connected) = oneshot.find_upstream(upstream.name()).filter(|_| state.good) else {
            found.unread.push(state);
            continue;
        };
        let exports = &upstream.exports;
        for kind in Kind::ALL.into_iter().filter(|kind| only.is_none_or(|only| only == *kind)) {
            let listing = match connected.list(kind).await {
                Ok(listing) => listing,
                Err(error) => {
                    let text = format!("{} could not be listed: {error}", upstream.name());
                    found.unread.push(StatementTopic::Upstream.bad(text));
                    continue;
                }
            };
            found.any = true;
            if let Some(limit) = listing.truncated {
                let text = format!("{} {CUT}: {limit} of {}", upstream.name(), kind.list_method());
                found.unread.push(StatementTopic::Listed.bad(text));
            }
            for item in listing.items.into_iter().chain(listing.omitted) {
                // Of two items of one name the first is used, and an element without one has none.
                if let Some(ItemDefect::Duplicate | ItemDefect::Unnamed(_)) = item.defect {
                    continue;
                }
                let key = exports.public_key(&naming, kind, &item.key);
                let (is_it, known) = match own {
                    Some(own) => (*item.key == *own, format!("{}/{}", upstream.name(), item.key)),
                    None => (*key == *name, key.to_string()),
                };
                match is_it {
                    true => {
                        let state = state.clone();
                        found.items.push(SearchHit { upstream, kind, item, key, state });
                    }
                    false => found.near.push(known),
                }
            }
        }
    }
    found
}

/// States how an upstream is connected, in the terms of `weir status`.
pub(super) fn connection_statement(oneshot: &OneShotGateway, name: &str) -> Statement {
    let upstream = oneshot.find_upstream(name);
    let status = upstream.as_ref().map(|upstream| upstream.status().borrow().clone());
    match status {
        Some(ConnectionStatus::Up(about)) => {
            let how = format!("{name} is up: {}", describe_connection(&about));
            StatementTopic::Upstream.good(how)
        }
        Some(ConnectionStatus::Down { reason, .. }) => {
            let state = upstream.map_or(State::Down, |upstream| upstream.report().state);
            StatementTopic::Upstream.bad(format!("{name} is {}: {reason}", state.as_str()))
        }
        Some(ConnectionStatus::Asleep) => {
            StatementTopic::Upstream.good(format!("{name} is asleep until it is used"))
        }
        Some(ConnectionStatus::Starting) | None => {
            StatementTopic::Upstream.bad(format!("{name} is starting: no response yet"))
        }
    }
}

/// States that an upstream is disabled.
pub(super) fn disabled_statement(config: &Config, upstream: &UpstreamSummary) -> Statement {
    let name = &upstream.name;
    let place = config.rule_locations.of(&["upstreams", name, "enabled"]).map(str::to_owned);
    let at = place.as_deref().map(|place| format!(" ({place})")).unwrap_or_default();
    let text = format!("{name} is disabled: `enabled = false`{at}");
    Statement { place, ..StatementTopic::Upstream.bad(text) }
}
