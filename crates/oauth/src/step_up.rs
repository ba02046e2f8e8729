//! Step-up: scopes that an upstream demands beyond those of the token (spec 2026-07-28,
//! authorization, step-up authorization flow).

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::url_rules::MAX_SHOWN_CHARS;
use super::{OAuthError, Settings};
use weir_base::text::quote::quote;

/// Scopes that an upstream has demanded of an account beyond those that it named at first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StepUp {
    scope: Option<String>,
    /// Unix times in seconds of the last demands that were followed.
    times: Vec<u64>,
}

impl StepUp {
    /// Follows a demand of the upstream. `requested` are the scopes that were requested so far.
    ///
    /// # Errors
    ///
    /// It would be useless, or never end: the scopes were requested already, are not among the
    /// configured ones, or are too many.
    pub(super) fn demand(
        &mut self,
        demanded: &str,
        requested: Option<&str>,
        settings: &Settings,
        now: Duration,
    ) -> Result<(), OAuthError> {
        let shown = quote(demanded, MAX_SHOWN_CHARS);
        let refuse =
            |why: &str| Err(OAuthError::Refused(format!("the upstream demands {shown}, {why}")));
        if demanded.len() > MAX_SCOPE_BYTES {
            return refuse("which are too many scopes");
        }
        if contains(requested, demanded) {
            return refuse("a scope that was requested, and was not granted or is not enough");
        }
        if settings.scopes.is_some() {
            return refuse("which is not in auth.scopes");
        }
        if contains(self.scope.as_deref(), demanded) {
            return Ok(());
        }
        let wanted = union([self.scope.as_deref(), Some(demanded)]);
        let length = union([requested, wanted.as_deref()]).map_or(0, |scopes| scopes.len());
        if length > MAX_SCOPE_BYTES {
            return refuse("which are too many scopes");
        }
        // Times after now are from before the clock was set back.
        let (begin, end) = (now.saturating_sub(WINDOW).as_secs(), now.as_secs());
        self.times.retain(|time| (begin + 1..=end).contains(time));
        if self.times.len() >= MAX_DEMANDS {
            return refuse("and has demanded other scopes shortly before: try again in 10 min");
        }
        self.times.push(now.as_secs());
        self.scope = wanted;
        Ok(())
    }

    /// Forgets what was demanded beyond the scopes that were `granted`: the authorization server
    /// refuses it. The demands still count.
    pub(super) fn forget(&mut self, granted: Option<&str>) {
        self.scope = self.scope.take().and(granted.map(str::to_owned));
    }

    /// Returns the scopes to request instead of `scope`. Those that were requested before stay.
    pub(super) fn widen(&self, scope: Option<String>, before: Option<&str>) -> Option<String> {
        match &self.scope {
            Some(demanded) => union([scope.as_deref(), before, Some(demanded)]),
            None => scope,
        }
    }
}

/// Returns the scopes of several lists, each once; `None` if there are none.
fn union<'a>(lists: impl IntoIterator<Item = Option<&'a str>>) -> Option<String> {
    let mut seen = HashSet::new();
    let all = lists.into_iter().flatten().flat_map(str::split_whitespace);
    let all: Vec<&str> = all.filter(|scope| seen.insert(*scope)).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Returns whether a list has all scopes of another one, such as one without any.
fn contains(list: Option<&str>, wanted: &str) -> bool {
    let has: HashSet<&str> = list.into_iter().flat_map(str::split_whitespace).collect();
    wanted.split_whitespace().all(|scope| has.contains(scope))
}

/// Most demands that are followed within [`WINDOW`]: with the first token three requests.
const MAX_DEMANDS: usize = 2;
const WINDOW: Duration = Duration::from_mins(10);
/// Longest list of scopes that is requested.
pub(super) const MAX_SCOPE_BYTES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::settings;

    #[test]
    fn scopes_are_united_in_their_order() {
        assert_eq!(union([Some("b a"), None, Some("a  c")]).as_deref(), Some("b a c"));
        assert_eq!(union([None, Some(" ")]), None);
    }

    #[test]
    fn what_cannot_help_is_not_requested() {
        let (settings, mut step_up) = (settings(), StepUp::default());
        let mut demand = |demanded: &str, requested, settings: &Settings| {
            let followed = step_up.demand(demanded, requested, settings, Duration::ZERO);
            (followed.map_err(|error| error.to_string()), step_up.scope.clone())
        };
        let (refused, scope) = demand("a b", Some("b c a"), &settings);
        let text = "the upstream demands a b, a scope that was requested, and was not granted or \
                    is not enough";
        assert_eq!((refused, scope), (Err(text.to_owned()), None));
        assert!(demand("", None, &settings).0.is_err(), "no scope is named");
        let configured = Settings { scopes: Some(vec!["a".into()]), ..settings.clone() };
        let (refused, _) = demand("b", Some("a"), &configured);
        assert_eq!(refused, Err("the upstream demands b, which is not in auth.scopes".to_owned()));
        let (refused, _) = demand(&"x".repeat(MAX_SCOPE_BYTES + 1), None, &settings);
        assert!(refused.is_err_and(|text| text.ends_with("which are too many scopes")));
        assert_eq!(demand("b", Some("a"), &settings), (Ok(()), Some("b".to_owned())));
    }

    #[test]
    fn an_upstream_that_demands_ever_more_is_followed_twice_in_ten_minutes() {
        let (settings, mut step_up) = (settings(), StepUp::default());
        let mut demand =
            |scope, at| step_up.demand(scope, Some("a"), &settings, Duration::from_secs(at));
        assert!(demand("b", 1_000).is_ok() && demand("b", 1_001).is_ok());
        assert!(demand("c", 1_002).is_ok() && demand("d", 1_599).is_err());
        assert!(demand("d", 1_600).is_ok() && demand("e", 1_601).is_err());
        let scope = |before| step_up.widen(Some("x".to_owned()), before);
        assert_eq!(scope(Some("a")).as_deref(), Some("x a b c d"));
        assert_eq!(StepUp::default().widen(None, Some("a")), None, "nothing was demanded");
    }

    #[test]
    fn what_was_refused_is_forgotten_and_counts_nevertheless() {
        let (settings, mut step_up) = (settings(), StepUp::default());
        let now = Duration::from_secs(10_000);
        step_up.demand("b", Some("a"), &settings, now).expect("followed");
        step_up.forget(Some("a"));
        assert_eq!(step_up.widen(Some("a".into()), Some("a")).as_deref(), Some("a"));
        step_up.demand("b", Some("a"), &settings, now).expect("followed");
        assert!(step_up.demand("c", Some("a"), &settings, now).is_err());
        // The clock was set back.
        let before = Duration::from_secs(5_000);
        step_up.demand("c", Some("a"), &settings, before).expect("followed");
        let mut unused = StepUp::default();
        unused.forget(Some("a"));
        assert_eq!(unused, StepUp::default());
    }

    #[test]
    fn an_endless_demand_is_refused_before_it_is_read() {
        let (settings, mut step_up) = (settings(), StepUp::default());
        let endless = "scope ".repeat(100_000);
        let refused = step_up.demand(&endless, None, &settings, Duration::ZERO);
        let text = refused.expect_err("refused").to_string();
        assert!(text.ends_with("which are too many scopes") && text.len() < 300, "{text}");
        assert_eq!(step_up, StepUp::default());
    }
}
