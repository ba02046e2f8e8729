//! Rules of a role: patterns over `<upstream>/<original name>`, per kind.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_base::tasks::sync::RwLock;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::pattern::{AllowDeny, Pattern, RuleMatch};
use weir_mcp::uri::CanonicalUri;

/// Rules per kind. The default allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Role {
    /// Rules for prompts.
    pub prompts: AllowDeny,
    /// Rules for tools.
    pub tools: AllowDeny,
    /// Rules for resources and resource templates.
    pub resources: AllowDeny,
}

impl Role {
    /// Returns a role that may use everything.
    pub fn everything() -> Self {
        let rules = AllowDeny::everything;
        Self { prompts: rules(), tools: rules(), resources: rules() }
    }

    /// Returns whether the rules obviously allow everything.
    pub fn allows_everything(&self) -> bool {
        [&self.prompts, &self.tools, &self.resources].into_iter().all(AllowDeny::allow_everything)
    }

    /// Returns whether the role may use an item, by its name or URI at the upstream.
    pub(crate) fn allows(&self, kind: Kind, upstream: &UpstreamName, own: &str) -> bool {
        let rules = self.rules(kind);
        rules.allow_everything() || rules.allow(&format!("{upstream}/{own}"))
    }

    /// Returns whether the role may use a resource that its upstream does not list.
    pub(crate) fn allows_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> bool {
        self.resources.allow_everything() || self.decide_uri(upstream, uri).allows()
    }

    /// Returns the pattern that decides about an item, if there is one: a matching deny pattern,
    /// else a matching allow pattern. An unlisted resource is matched as such.
    pub fn rule(
        &self,
        kind: Kind,
        upstream: &UpstreamName,
        own: &str,
        is_listed: bool,
    ) -> Option<&Pattern> {
        let unlisted = (!is_listed).then(|| CanonicalUri::parse(own)).and_then(Result::ok);
        let decision = match unlisted {
            Some(uri) => self.decide_uri(upstream, &uri),
            None => self.decide(kind, upstream, own),
        };
        let rules = self.rules(kind);
        let denied = decision.denied_by.map(|at| &rules.deny[at]);
        denied.or_else(|| decision.allowed_by.map(|at| &rules.allow[at]))
    }

    /// Returns which of the [`rules`](Self::rules) decide about an item; consistent with
    /// [`Role::allows`].
    pub(crate) fn decide(&self, kind: Kind, upstream: &UpstreamName, own: &str) -> RuleMatch {
        self.rules(kind).decide(&[upstream.as_str(), "/", own].concat())
    }

    /// Returns which of the rules for resources decide about one that its upstream does not list.
    pub(crate) fn decide_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> RuleMatch {
        self.resources.decide_uri(&[upstream.as_str(), "/"].concat(), uri)
    }

    /// Returns whether any rule allows the role an item of this upstream; deny patterns of single
    /// names are ignored.
    pub(crate) fn reaches(&self, upstream: &UpstreamName) -> bool {
        let prefix = format!("{upstream}/");
        [&self.prompts, &self.tools, &self.resources].into_iter().any(|rules| {
            let denied = rules.deny.iter().any(|pattern| {
                let pattern = pattern.as_str();
                pattern == "*" || pattern.strip_suffix('*') == Some(&prefix)
            });
            !denied && rules.allow.iter().any(|pattern| pattern.may_match_with_prefix(&prefix))
        })
    }

    /// Returns the rules for a kind.
    pub fn rules(&self, kind: Kind) -> &AllowDeny {
        match kind {
            Kind::Prompt => &self.prompts,
            Kind::Tool => &self.tools,
            Kind::Resource | Kind::Template => &self.resources,
        }
    }
}

// === Roles ===

/// All roles by name: those of the configuration, and the combinations of several that clients
/// have.
#[derive(Debug, Default)]
pub(super) struct Roles {
    named: HashMap<Arc<str>, RoleEntry>,
    /// Combinations by the sorted, joined names: no role of the configuration has a `+` in its
    /// name.
    combined: RwLock<HashMap<Arc<str>, RoleEntry>>,
    /// For each set of rules, in canonical order, the role of the configuration that names the
    /// shared view.
    view_by_rules: HashMap<Role, Arc<str>>,
    /// True once the limit on combinations has been logged.
    is_full: AtomicBool,
}

/// Rules of a role, and the name of its view.
type RoleEntry = (Arc<Role>, Arc<str>);

impl Roles {
    pub(super) fn new(named: impl IntoIterator<Item = (String, Role)>) -> Self {
        let mut view_by_rules = HashMap::new();
        let named = named.into_iter().map(|(name, role)| {
            let name: Arc<str> = name.into();
            let view = view_by_rules.entry(role.sorted()).or_insert_with(|| Arc::clone(&name));
            (name, (Arc::new(role), Arc::clone(view)))
        });
        let (named, combined) = (named.collect(), RwLock::default());
        Self { named, combined, view_by_rules, is_full: AtomicBool::new(false) }
    }

    /// Returns the rules of a role, which are empty if it is undefined, and the name of its view:
    /// roles with the same rules share a view.
    pub(super) fn get(&self, name: &str) -> RoleEntry {
        if let Some(named) = self.named.get(name) {
            return named.clone();
        }
        let combined = self.combined.read();
        combined.get(name).cloned().unwrap_or_else(|| (Arc::default(), NO_ROLE.into()))
    }

    /// Returns the names of the roles of the configuration.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(|name| &**name)
    }

    /// Returns whether the configuration has a role of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Creates the combinations that `others` has, from the current roles.
    pub(super) fn combine_like(&self, others: &Self) {
        let combined = others.combined.read();
        for name in combined.keys() {
            self.combine(&name.split('+').map(Arc::from).collect());
        }
    }

    /// Returns the name of the role that may use what any of these roles allows, except what any of
    /// them denies; `None` if there are [`MAX_COMBINATIONS`] already. Without roles it is a role
    /// that may use nothing.
    pub(super) fn combine(&self, names: &BTreeSet<Arc<str>>) -> Option<Arc<str>> {
        let mut each = names.iter();
        match (each.next(), each.next()) {
            (None, _) => return Some(NO_ROLE.into()),
            (Some(only), None) => return Some(Arc::clone(only)),
            _ => {}
        }
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let name: Arc<str> = names.join("+").into();
        let known = self.combined.read().contains_key(&name);
        if known {
            return Some(name);
        }
        let roles: Vec<_> = names.into_iter().map(|name| self.get(name).0).collect();
        let union = Role::union(roles.iter().map(|role| &**role));
        let view = self.view_by_rules.get(&union.sorted()).unwrap_or(&name);
        let named = (union.into(), Arc::clone(view));
        let mut combined = self.combined.write();
        if combined.len() >= MAX_COMBINATIONS && !combined.contains_key(&name) {
            if !self.is_full.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "limit of {MAX_COMBINATIONS} role combinations reached, tokens with another \
                     combination are refused until a restart"
                );
            }
            return None;
        }
        combined.insert(Arc::clone(&name), named);
        Some(name)
    }
}

impl Role {
    /// Returns the same rules in canonical order.
    fn sorted(&self) -> Self {
        let Self { prompts, tools, resources } = self;
        let (prompts, tools) = (prompts.in_order(), tools.in_order());
        Self { prompts, tools, resources: resources.in_order() }
    }

    /// Returns a role that may use what any of these allows, except for what any of them denies.
    pub fn union<'r>(roles: impl IntoIterator<Item = &'r Self>) -> Self {
        let mut union = Self::default();
        roles.into_iter().for_each(|role| union.add(role));
        union
    }

    /// Adds the allow and deny rules of another role.
    fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.prompts, &other.prompts),
            (&mut self.tools, &other.tools),
            (&mut self.resources, &other.resources),
        ];
        for (ours, theirs) in pairs {
            for (ours, theirs) in [(&mut ours.allow, &theirs.allow), (&mut ours.deny, &theirs.deny)]
            {
                for pattern in theirs {
                    if !ours.contains(pattern) {
                        ours.push(pattern.clone());
                    }
                }
            }
        }
    }
}

/// Prefix of a role that belongs to one client, before its name: no role of the configuration can
/// have such a name.
pub const OWN_ROLE_PREFIX: &str = "client:";

/// Role of clients without a role: no role of the configuration can have this name.
pub const NO_ROLE: &str = "(none)";

/// Most combinations of roles, each with a view of its own.
pub(crate) const MAX_COMBINATIONS: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> UpstreamName {
        text.parse().expect(text)
    }

    #[test]
    fn patterns_see_the_upstream_and_the_original_name() {
        let prompts = AllowDeny::new(&["hub/public_*"], &["hub/public_draft"]);
        let role = Role { prompts, ..Role::default() };
        let allows = |upstream, own| role.allows(Kind::Prompt, &name(upstream), own);
        assert!(allows("hub", "public_a"));
        assert!(!allows("hub", "public_draft") && !allows("hub", "a") && !allows("x", "public_a"));
        assert!(!role.allows(Kind::Tool, &name("hub"), "public_a"));
    }

    #[test]
    fn resources_and_templates_go_by_the_same_rules() {
        let role =
            Role { resources: AllowDeny::new(&["wiki/https://w/*"], &[]), ..Role::default() };
        for kind in [Kind::Resource, Kind::Template] {
            assert!(role.allows(kind, &name("wiki"), "https://w/a/{page}"));
            assert!(!role.allows(kind, &name("wiki"), "https://x/"));
        }
    }

    #[test]
    fn roles_with_the_same_rules_have_the_same_view() {
        let rules = |allow: &[&str], deny: &[&str]| Role {
            prompts: AllowDeny::new(allow, deny),
            ..Role::default()
        };
        let same = |n: usize| match n % 3 {
            0 => rules(&["hub/*", "x/a"], &["*/secret"]),
            1 => rules(&["x/a", "hub/*"], &["*/secret"]),
            _ => rules(&["x/a", "hub/*", "x/a"], &["*/secret", "*/secret"]),
        };
        let mut named: Vec<_> = (0..1_000).map(|n| (format!("same-{n}"), same(n))).collect();
        named.push(("other".to_owned(), rules(&["hub/*", "x/a"], &[])));
        named.push(("part".to_owned(), rules(&["hub/*"], &["*/secret"])));
        named.push(("tools".to_owned(), Role { tools: same(0).prompts, ..Role::default() }));
        let roles = Roles::new(named);
        let view = |name: &str| roles.get(name).1;
        let first = view("same-0");
        assert!((0..1_000).all(|n| view(&format!("same-{n}")) == first));
        for name in ["other", "part", "tools"] {
            assert_eq!(&*view(name), name);
        }
        let join = |names: &[&str]| {
            let names = names.iter().map(|name| Arc::from(*name)).collect();
            view(&roles.combine(&names).expect("room"))
        };
        assert_eq!(join(&["same-1", "same-999", "part"]), first);
        assert_eq!(&*join(&["part", "tools"]), "part+tools");
        assert_eq!(&*view("nobody's"), NO_ROLE);
        assert_eq!(*roles.get("nobody's").0, Role::default());
    }

    #[test]
    fn a_role_reaches_an_upstream_that_some_pattern_may_match() {
        let reaches = |allow: &str, deny: &[&str], upstream: &str| {
            let tools = AllowDeny {
                allow: AllowDeny::new(&[allow], &[]).allow,
                deny: AllowDeny::new(deny, &[]).allow,
            };
            Role { tools, ..Role::default() }.reaches(&name(upstream))
        };
        assert!(reaches("*", &[], "a") && reaches("a/*", &[], "a") && reaches("a*/x", &[], "ab"));
        assert!(reaches("a/x", &["a/y"], "a") && reaches("a/x*y", &[], "a"));
        assert!(!reaches("b/*", &[], "a") && !reaches("ab/*", &[], "a"));
        assert!(!reaches("*", &["a/*"], "a") && !reaches("*", &["*"], "a"));
        assert!(!Role::default().reaches(&name("a")));
    }

    proptest! {
        #[test]
        fn s05_d_p7_one_rule_less_or_one_denial_more_grants_nothing(
            mut allow in prop::collection::vec("[ab*]{0,3}/?[ab*]{0,2}", 1..4),
            deny in prop::collection::vec("[ab*]{0,2}/?[ab*]{0,2}", 0..3),
            denial in "[ab*]{0,2}/?[ab*]{0,2}",
            upstream in "[ab]{1,2}",
            own in "[ab/]{1,3}",
        ) {
            let allows = |allow: &[String], deny: &[String]| {
                let role = Role { tools: AllowDeny::new(allow, deny), ..Role::default() };
                role.allows(Kind::Tool, &name(&upstream), &own)
            };
            let before = allows(&allow, &deny);
            let denied = [deny.clone(), vec![denial]].concat();
            prop_assert!(before || !allows(&allow, &denied));
            allow.pop();
            prop_assert!(before || !allows(&allow, &deny));
        }

        #[test]
        fn what_a_role_allows_it_reaches(
            allow in prop::collection::vec("[ab*]{0,3}/?[ab*]{0,2}", 1..3),
            deny in prop::collection::vec("[ab*]{0,2}/?[ab*]{0,2}", 0..2),
            upstream in "[ab]{1,2}",
            own in "[ab/]{1,3}",
        ) {
            let role = Role { tools: AllowDeny::new(&allow, &deny), ..Role::default() };
            if role.allows(Kind::Tool, &name(&upstream), &own) {
                prop_assert!(role.reaches(&name(&upstream)));
            }
        }

        #[test]
        fn what_decides_comes_to_what_a_role_allows(
            allow in prop::collection::vec("[ab*]{0,3}/?[ab*]{0,2}", 0..3),
            deny in prop::collection::vec("[ab*]{0,2}/?[ab*]{0,2}", 0..2),
            upstream in "[ab]{1,2}",
            own in "[ab/]{1,3}",
        ) {
            let rules = || AllowDeny::new(&allow, &deny);
            let role = Role { prompts: rules(), tools: rules(), resources: rules() };
            for kind in Kind::ALL {
                let allows = role.allows(kind, &name(&upstream), &own);
                prop_assert_eq!(role.decide(kind, &name(&upstream), &own).allows(), allows);
            }
        }
    }
}
