//! Completion of one variable of a URI template, restricted to the URIs that a role may read.
//!
//! A value that completes a template stands for a set of URIs. A role may receive the value if it
//! may read one of them and no rule denies the known part of them (docs/resource-uris.md).
//!
//! Invariant: no value is returned that yields, with the other values that the client has given, a
//! URI that a rule denies.

use std::collections::HashMap;
use std::sync::Arc;

use super::expansion::{Expansion, VariableValue, expand};
use super::{ExportedItem, RoleView};
use weir_base::json::{self, Object};
use weir_mcp::kind::Kind;
use weir_mcp::pattern::AllowDeny;
use weir_mcp::uri::CanonicalUri;

/// Placeholder for an unknown text. No rule names it, so a rule that matches it matches any text.
const ANY: &str = "~~any~~";

/// Filter of the values of one variable of a template that a role may receive.
#[derive(Clone)]
pub struct Completion {
    view: Arc<RoleView>,
    target: Arc<ExportedItem>,
    variable: Box<str>,
    /// The values of other variables that the client has given.
    known: HashMap<Box<str>, Box<str>>,
}

impl Completion {
    /// Creates the filter for a completion of this template; `None` if no rule hides anything from
    /// the role. `known` has the values of other variables.
    pub fn new(
        view: &Arc<RoleView>,
        target: &Arc<ExportedItem>,
        variable: &str,
        known: &Object,
    ) -> Option<Self> {
        let mut completion = Self {
            view: Arc::clone(view),
            target: Arc::clone(target),
            variable: variable.into(),
            known: HashMap::new(),
        };
        if completion.rules().all(|(prefix, rules)| rules.allow_all_uris_behind(&prefix)) {
            return None;
        }
        let values = known.members().filter_map(|(name, value)| {
            let value = json::decode_bytes(&value)?.into();
            Some((name.into(), value))
        });
        completion.known = values.collect();
        Some(completion)
    }

    /// Whether a value with this beginning may be returned: the role may read a URI that it yields.
    pub fn may_begin(&self, value: &str) -> bool {
        self.expand(&[value, ANY].concat()).is_some_and(|expansion| self.is_allowed(&expansion))
    }

    /// Whether this value may be returned: the role may read a URI that it yields, or one that
    /// begins with it.
    pub fn may_return(&self, value: &str) -> bool {
        self.expand(value).is_some_and(|expansion| {
            // A resource that the role's list contains needs no further check.
            self.view.resolve(Kind::Resource, &expansion.uri).is_some()
                || self.is_allowed(&expansion)
        })
    }

    fn expand(&self, value: &str) -> Option<Expansion> {
        expand(&self.target.own, |name| match self.known.get(name) {
            _ if *name == *self.variable => VariableValue::Queried(value),
            Some(known) => VariableValue::Known(known),
            None => VariableValue::Unknown(ANY),
        })
    }

    /// Whether no rule denies the known part of the URIs, and the rules allow one of them or one
    /// that begins with it.
    fn is_allowed(&self, expansion: &Expansion) -> bool {
        let Expansion { uri, end, is_behind_unknown } = expansion;
        let Ok(canonical) = CanonicalUri::parse(uri) else { return false };
        let beginning = &uri[..*end];
        let beginning = beginning.strip_suffix(ANY).unwrap_or(beginning);
        self.rules().all(|(prefix, rules)| {
            // The value may belong to a denied URI, because the text before it is unknown.
            if *is_behind_unknown && rules.may_deny_uris_with_prefix(&prefix) {
                return false;
            }
            let decision = rules.decide_uri(&prefix, &canonical);
            let beginning = [&prefix, beginning].concat();
            let may_allow_one =
                || rules.allow.iter().any(|it| it.may_match_with_prefix(&beginning));
            decision.denied_by.is_none() && (decision.allowed_by.is_some() || may_allow_one())
        })
    }

    /// The rules of the upstream and of the role, each with the prefix of URIs in them.
    fn rules(&self) -> impl Iterator<Item = (String, &AllowDeny)> {
        let upstream = &self.target.upstream;
        let of_upstream = self.view.export_rules(upstream).map(|it| (String::new(), &it.resources));
        let of_role = (format!("{upstream}/"), self.view.resource_rules());
        of_upstream.into_iter().chain([of_role])
    }
}
