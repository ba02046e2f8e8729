//! Rules that decide visibility, with their places in the configuration.
//!
//! Does not know whether the upstream has such an item.

use super::report::{Statement, StatementTopic};
use weir_access::policy::role::Role;
use weir_config::{Config, UpstreamConfig};
use weir_mcp::call::Method;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::pattern::{AllowDeny, Pattern};
use weir_mcp::uri::CanonicalUri;

/// Item whose rules are explained.
#[derive(Clone, Copy)]
pub(super) struct RuleSubject<'a> {
    pub(super) kind: Kind,
    /// Name or URI at its upstream.
    pub(super) own: &'a str,
    /// False for a URI that no upstream lists.
    pub(super) is_listed: bool,
}

impl RuleSubject<'_> {
    /// Returns the configuration key of the rules for its kind.
    fn key(self) -> &'static str {
        self.kind.topic().capability()
    }
}

/// States whether the upstream's own rules export an item.
pub(super) fn export_rule(
    config: &Config,
    upstream: &UpstreamConfig,
    subject: RuleSubject<'_>,
) -> Statement {
    let (name, key) = (upstream.name(), subject.key());
    let patterns = upstream.exports.rules(subject.kind);
    let place = |list: &str, at: usize| {
        config.rule_locations.of_entry(&["upstreams", name, key, list], at).map(str::to_owned)
    };
    let rules = RuleLists { about: [StatementTopic::ExportRules; 2], key, patterns, place: &place };
    let mut statements = rules.statements("", subject);
    let mut last = statements.pop().unwrap_or_else(|| StatementTopic::ExportRules.bad(""));
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
    role: &str,
    upstream: &UpstreamName,
    subject: RuleSubject<'_>,
) -> Vec<Statement> {
    // The names of several are joined.
    let roles: Vec<_> =
        role.split('+').filter_map(|name| Some((name, config.roles.get(name)?))).collect();
    let union = Role::union(roles.iter().map(|(_, rules)| *rules));
    let (key, patterns) = (subject.key(), union.rules(subject.kind));
    let place = |list: &str, at: usize| {
        let of = |rules: &AllowDeny| match list {
            "allow" => rules.allow.clone(),
            _ => rules.deny.clone(),
        };
        let pattern = of(patterns).get(at)?.clone();
        roles.iter().find_map(|(name, rules)| {
            let at = of(rules.rules(subject.kind)).iter().position(|it| *it == pattern)?;
            config.rule_locations.of_rule(name, key, list, at).map(str::to_owned)
        })
    };
    let about = [StatementTopic::Allowed, StatementTopic::Denied];
    let rules = RuleLists { about, key, patterns, place: &place };
    rules.statements(&format!("{upstream}/"), subject)
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
        Statement { place, limit: Some(at), ..StatementTopic::Limit.good(text) }
    });
    statements.collect()
}

/// Rules for one kind, with their places.
struct RuleLists<'a> {
    /// Topics of an allowing and of a denying statement.
    about: [StatementTopic; 2],
    key: &'static str,
    patterns: &'a AllowDeny,
    place: &'a dyn Fn(&str, usize) -> Option<String>,
}

impl RuleLists<'_> {
    /// Statements about a subject; `prefix` precedes its own name in the patterns.
    fn statements(&self, prefix: &str, subject: RuleSubject<'_>) -> Vec<Statement> {
        let rules = self.patterns;
        let text = [prefix, subject.own].concat();
        let unlisted = (!subject.is_listed).then_some(subject.own);
        let uri = unlisted.and_then(|uri| CanonicalUri::parse(uri).ok());
        let (decision, text) = match &uri {
            None => (rules.decide(&text), text),
            // Each reading of the URI must be allowed; the first one that is not is shown.
            Some(uri) => {
                let mut readings = uri.readings().map(|reading| [prefix, reading].concat());
                let barred = readings.find(|text| rules.decide(text).allowed_by.is_none());
                (rules.decide_uri(prefix, uri), barred.unwrap_or(text))
            }
        };
        let [allowed, denied] = self.about;
        let mut statements = vec![match decision.allowed_by {
            Some(at) => self.pattern(allowed, "allow", at),
            None => allowed.bad(self.describe_no_match(&text)),
        }];
        if let Some(at) = decision.denied_by {
            statements.push(Statement { good: false, ..self.pattern(denied, "deny", at) });
        }
        statements
    }

    fn pattern(&self, about: StatementTopic, list: &str, at: usize) -> Statement {
        let pattern = self.text(list, at);
        let text =
            format!("by `{pattern}` of {}.{list} {}", self.key, self.describe_location(list, at));
        let (pattern, place) = (Some(pattern.to_owned()), (self.place)(list, at));
        Statement { pattern, place, ..about.good(text) }
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
        let AllowDeny { allow, deny } = self.patterns;
        let list = if list == "allow" { allow } else { deny };
        list.get(at).map(Pattern::as_str).unwrap_or_default()
    }

    fn describe_location(&self, list: &str, at: usize) -> String {
        match (self.place)(list, at) {
            Some(place) => format!("({place})"),
            None => "(by default)".to_owned(),
        }
    }
}

/// Most patterns that are shown if none of them matches.
const MAX_SHOWN: usize = 8;
