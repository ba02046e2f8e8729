//! Rules that decide visibility, with their places in the configuration.
//!
//! Does not know whether the upstream has such an item.

use super::report::{Statement, StatementTopic};
use crate::app;
use crate::config::{Config, Patterns, RoleConfig, UpstreamConfig};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::pattern::{AllowDeny as Decided, RuleMatch};
use crate::mcp::uri::CanonicalUri;

/// States whether the upstream's own rules export its item.
pub(super) fn export_rule(
    config: &Config,
    upstream: &UpstreamConfig,
    kind: Kind,
    own: &str,
) -> Statement {
    export_statement(config, upstream, kind, own, None)
}

/// States whether the upstream's own rules export a URI that it does not list.
pub(super) fn export_rule_unlisted(
    config: &Config,
    upstream: &UpstreamConfig,
    uri: &str,
) -> Statement {
    let canonical = CanonicalUri::parse(uri).ok();
    export_statement(config, upstream, Kind::Resource, uri, canonical.as_ref())
}

fn export_statement(
    config: &Config,
    upstream: &UpstreamConfig,
    kind: Kind,
    own: &str,
    unlisted: Option<&CanonicalUri<'_>>,
) -> Statement {
    let key = rule_key(kind);
    let patterns = match kind {
        Kind::Prompt => &upstream.prompts,
        Kind::Tool => &upstream.tools,
        Kind::Resource | Kind::Template => &upstream.resources,
    };
    let name = &upstream.name;
    let place = |list: &str, at: usize| {
        config.rule_locations.of_entry(&["upstreams", name, key, list], at).map(str::to_owned)
    };
    let rules = RuleLists { about: [StatementTopic::ExportRules; 2], key, patterns, place: &place };
    let decided = app::rules(patterns);
    let mut statements = match unlisted {
        Some(uri) => rules.uri_statements(&decided, "", uri),
        None => rules.statements(decided.decide(own), own),
    };
    let mut last =
        statements.pop().unwrap_or_else(|| Statement::bad(StatementTopic::ExportRules, ""));
    let what = match (last.good, &last.pattern) {
        (true, _) => "exports it",
        (false, Some(_)) => "does not export it",
        (false, None) => "does not export it:",
    };
    last.text = format!("{name} {what} {}", last.text);
    last
}

/// States which rules of a role allow and deny an item.
pub(super) fn role_rules(
    config: &Config,
    name: &str,
    kind: Kind,
    upstream: &UpstreamName,
    own: &str,
) -> Vec<Statement> {
    role_statements(config, name, kind, (upstream, own), None)
}

/// States which rules of a role allow and deny a URI that no upstream lists.
pub(super) fn role_rules_unlisted(
    config: &Config,
    name: &str,
    upstream: &UpstreamName,
    uri: &str,
) -> Vec<Statement> {
    let canonical = CanonicalUri::parse(uri).ok();
    role_statements(config, name, Kind::Resource, (upstream, uri), canonical.as_ref())
}

fn role_statements(
    config: &Config,
    name: &str,
    kind: Kind,
    (upstream, own): (&UpstreamName, &str),
    unlisted: Option<&CanonicalUri<'_>>,
) -> Vec<Statement> {
    let empty = RoleConfig::default();
    let role = config.roles.get(name).unwrap_or(&empty);
    let key = rule_key(kind);
    let patterns = match kind {
        Kind::Prompt => &role.prompts,
        Kind::Tool => &role.tools,
        Kind::Resource | Kind::Template => &role.resources,
    };
    let place = |list: &str, at: usize| {
        config.rule_locations.of_rule(name, key, list, at).map(str::to_owned)
    };
    let rules = RuleLists {
        about: [StatementTopic::Allowed, StatementTopic::Denied],
        key,
        patterns,
        place: &place,
    };
    let role = app::role(role);
    match unlisted {
        Some(uri) => rules.uri_statements(&role.resources, &format!("{upstream}/"), uri),
        None => rules.statements(role.decide(kind, upstream, own), &format!("{upstream}/{own}")),
    }
}

/// States the limits that apply to an item. Only the serving process has the remaining quota; see
/// [`super::live`].
pub(super) fn limit_statements(
    config: &Config,
    kind: Kind,
    upstream: &UpstreamName,
    own: &str,
) -> Vec<Statement> {
    let (method, item) = (Method::for_kind(kind).as_str(), format!("{upstream}/{own}"));
    let limits = config.limits.iter().enumerate();
    let counting = limits.filter(|(_, limit)| limit.applies_to(method, Some(&item)));
    let statements = counting.map(|(at, limit)| {
        let place = config.rule_locations.of_entry(&["limits"], at).map(str::to_owned);
        let stands = place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
        let text = format!("{method}: {limit}{stands}");
        Statement { place, limit: Some(at), ..Statement::good(StatementTopic::Limit, text) }
    });
    statements.collect()
}

/// Rules for one kind, with their places.
struct RuleLists<'a> {
    /// Topics of an allowing and of a denying statement.
    about: [StatementTopic; 2],
    key: &'static str,
    patterns: &'a Patterns,
    place: &'a dyn Fn(&str, usize) -> Option<String>,
}

impl RuleLists<'_> {
    fn statements(&self, decision: RuleMatch, text: &str) -> Vec<Statement> {
        let [allowed, denied] = self.about;
        let mut statements = vec![match decision.allowed_by {
            Some(at) => self.pattern(allowed, "allow", at),
            None => Statement::bad(allowed, self.describe_no_match(text)),
        }];
        if let Some(at) = decision.denied_by {
            statements.push(Statement { good: false, ..self.pattern(denied, "deny", at) });
        }
        statements
    }

    /// Statements about a URI that is not listed: each of its readings must be allowed, and the
    /// first one that is not is shown.
    fn uri_statements(
        &self,
        decided: &Decided,
        prefix: &str,
        uri: &CanonicalUri<'_>,
    ) -> Vec<Statement> {
        let mut texts = uri.readings().map(|reading| [prefix, reading].concat());
        let barred = texts.find(|text| decided.decide(text).allowed_by.is_none());
        let whole = [prefix, uri.as_str()].concat();
        self.statements(decided.decide_uri(prefix, uri), &barred.unwrap_or(whole))
    }

    fn pattern(&self, about: StatementTopic, list: &str, at: usize) -> Statement {
        let pattern = self.text(list, at);
        let text =
            format!("by `{pattern}` of {}.{list} {}", self.key, self.describe_location(list, at));
        let (pattern, place) = (Some(pattern.to_owned()), (self.place)(list, at));
        Statement { pattern, place, ..Statement::good(about, text) }
    }

    fn describe_no_match(&self, text: &str) -> String {
        let (key, count) = (self.key, self.patterns.allow.len());
        if count == 0 {
            return format!("no rule allows `{text}`: there is no {key}.allow");
        }
        let shown = (0..count.min(MAX_SHOWN)).map(|at| {
            format!("`{}` {}", self.text("allow", at), self.describe_location("allow", at))
        });
        let more = count.saturating_sub(MAX_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = shown.collect::<Vec<_>>().join(", ");
        format!("no rule allows `{text}`: {key}.allow has {shown}{more}")
    }

    fn text(&self, list: &str, at: usize) -> &str {
        let Patterns { allow, deny } = self.patterns;
        let list = if list == "allow" { allow } else { deny };
        list.get(at).map(String::as_str).unwrap_or_default()
    }

    fn describe_location(&self, list: &str, at: usize) -> String {
        match (self.place)(list, at) {
            Some(place) => format!("({place})"),
            None => "(by default)".to_owned(),
        }
    }
}

/// Configuration key of the rules for a kind.
pub(super) fn rule_key(kind: Kind) -> &'static str {
    match kind {
        Kind::Prompt => "prompts",
        Kind::Tool => "tools",
        Kind::Resource | Kind::Template => "resources",
    }
}

/// Most patterns that are shown if none of them matches.
const MAX_SHOWN: usize = 8;
