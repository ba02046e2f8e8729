//! Which rules decide, and where they stand.
//!
//! Knows nothing of: whether the upstream has such an item.

use super::report::{About, Fact};
use crate::app;
use crate::config::{Config, Patterns, Role, Upstream};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::pattern::{Decision, Rules as Decided};
use crate::mcp::uri::CanonicalUri;

/// Whether the upstream's own rules let its item out.
pub(super) fn of_outlet(config: &Config, upstream: &Upstream, kind: Kind, own: &str) -> Fact {
    outlet_fact(config, upstream, kind, own, None)
}

/// The same of a URI that the upstream does not list.
pub(super) fn of_outlet_unlisted(config: &Config, upstream: &Upstream, uri: &str) -> Fact {
    let canonical = CanonicalUri::parse(uri).ok();
    outlet_fact(config, upstream, Kind::Resource, uri, canonical.as_ref())
}

fn outlet_fact(
    config: &Config,
    upstream: &Upstream,
    kind: Kind,
    own: &str,
    unlisted: Option<&CanonicalUri<'_>>,
) -> Fact {
    let key = key_of(kind);
    let patterns = match kind {
        Kind::Prompt => &upstream.prompts,
        Kind::Tool => &upstream.tools,
        Kind::Resource | Kind::Template => &upstream.resources,
    };
    let name = &upstream.name;
    let place = |list: &str, at: usize| {
        config.places.of_entry(&["upstreams", name, key, list], at).map(str::to_owned)
    };
    let rules = Rules { about: [About::Outlet; 2], key, patterns, place: &place };
    let decided = app::rules(patterns);
    let mut facts = match unlisted {
        Some(uri) => rules.told_of_uri(&decided, "", uri),
        None => rules.told(decided.decide(own), own),
    };
    let mut last = facts.pop().unwrap_or_else(|| Fact::bad(About::Outlet, ""));
    let what = match (last.good, &last.pattern) {
        (true, _) => "lets it out",
        (false, Some(_)) => "keeps it in",
        (false, None) => "keeps it in:",
    };
    last.text = format!("{name} {what} {}", last.text);
    last
}

/// Whether a role may use an item: what allows it, and what denies it.
pub(super) fn of_role(
    config: &Config,
    name: &str,
    kind: Kind,
    upstream: &UpstreamName,
    own: &str,
) -> Vec<Fact> {
    role_facts(config, name, kind, (upstream, own), None)
}

/// The same of a URI that no upstream lists.
pub(super) fn of_role_unlisted(
    config: &Config,
    name: &str,
    upstream: &UpstreamName,
    uri: &str,
) -> Vec<Fact> {
    let canonical = CanonicalUri::parse(uri).ok();
    role_facts(config, name, Kind::Resource, (upstream, uri), canonical.as_ref())
}

fn role_facts(
    config: &Config,
    name: &str,
    kind: Kind,
    (upstream, own): (&UpstreamName, &str),
    unlisted: Option<&CanonicalUri<'_>>,
) -> Vec<Fact> {
    let nobody = Role::default();
    let role = config.roles.get(name).unwrap_or(&nobody);
    let key = key_of(kind);
    let patterns = match kind {
        Kind::Prompt => &role.prompts,
        Kind::Tool => &role.tools,
        Kind::Resource | Kind::Template => &role.resources,
    };
    let place =
        |list: &str, at: usize| config.places.of_rule(name, key, list, at).map(str::to_owned);
    let rules = Rules { about: [About::Allowed, About::Denied], key, patterns, place: &place };
    let role = app::role(role);
    match unlisted {
        Some(uri) => rules.told_of_uri(&role.resources, &format!("{upstream}/"), uri),
        None => rules.told(role.decide(kind, upstream, own), &format!("{upstream}/{own}")),
    }
}

/// What limits the use of an item, for whoever may use it. How much is left only the process knows that
/// serves; see `left`.
pub(super) fn of_limits(
    config: &Config,
    kind: Kind,
    upstream: &UpstreamName,
    own: &str,
) -> Vec<Fact> {
    let (method, item) = (Method::about(kind).as_str(), format!("{upstream}/{own}"));
    let limits = config.limits.iter().enumerate();
    let counting = limits.filter(|(_, limit)| limit.counts(method, Some(&item)));
    let told = counting.map(|(at, limit)| {
        let place = config.places.of_entry(&["limits"], at).map(str::to_owned);
        let stands = place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
        let text = format!("{method}: {limit}{stands}");
        Fact { place, limit: Some(at), ..Fact::good(About::Limit, text) }
    });
    told.collect()
}

/// Rules for one kind, with their places.
struct Rules<'a> {
    /// What is told under, if it allows and if it denies.
    about: [About; 2],
    key: &'static str,
    patterns: &'a Patterns,
    place: &'a dyn Fn(&str, usize) -> Option<String>,
}

impl Rules<'_> {
    fn told(&self, decision: Decision, text: &str) -> Vec<Fact> {
        let [allowed, denied] = self.about;
        let mut facts = vec![match decision.allowed_by {
            Some(at) => self.pattern(allowed, "allow", at),
            None => Fact::bad(allowed, self.nothing_allows(text)),
        }];
        if let Some(at) = decision.denied_by {
            facts.push(Fact { good: false, ..self.pattern(denied, "deny", at) });
        }
        facts
    }

    /// Of a URI that is not listed each reading must be allowed: the first that is not is shown.
    fn told_of_uri(&self, decided: &Decided, prefix: &str, uri: &CanonicalUri<'_>) -> Vec<Fact> {
        let mut texts = uri.readings().map(|reading| [prefix, reading].concat());
        let barred = texts.find(|text| decided.decide(text).allowed_by.is_none());
        let whole = [prefix, uri.as_str()].concat();
        self.told(decided.decide_uri(prefix, uri), &barred.unwrap_or(whole))
    }

    fn pattern(&self, about: About, list: &str, at: usize) -> Fact {
        let pattern = self.text(list, at);
        let text =
            format!("by `{pattern}` of {}.{list} {}", self.key, self.place_in_words(list, at));
        let (pattern, place) = (Some(pattern.to_owned()), (self.place)(list, at));
        Fact { pattern, place, ..Fact::good(about, text) }
    }

    fn nothing_allows(&self, text: &str) -> String {
        let (key, count) = (self.key, self.patterns.allow.len());
        if count == 0 {
            return format!("no rule allows `{text}`: there is no {key}.allow");
        }
        let shown = (0..count.min(MAX_SHOWN))
            .map(|at| format!("`{}` {}", self.text("allow", at), self.place_in_words("allow", at)));
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

    fn place_in_words(&self, list: &str, at: usize) -> String {
        match (self.place)(list, at) {
            Some(place) => format!("({place})"),
            None => "(by default)".to_owned(),
        }
    }
}

/// The key under which the rules for a kind stand.
pub(super) fn key_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Prompt => "prompts",
        Kind::Tool => "tools",
        Kind::Resource | Kind::Template => "resources",
    }
}

/// How many patterns are shown where none of them matches.
const MAX_SHOWN: usize = 8;
