//! Locations of rules in the configuration files, for `weir explain`.
//!
//! Invariant: locations do not affect the equality of configurations.

use std::collections::BTreeMap;

use weir_access::policy::role::OWN_ROLE_PREFIX;

/// Lines like `conf.d/a.toml:12` by paths like `roles.dev.tools.deny[0]`, for rules and for the few
/// keys that decide about rules. Default values have no location.
#[derive(Clone, Debug, Default)]
pub struct RuleLocations(BTreeMap<String, String>);

impl RuleLocations {
    /// Returns the location of a key.
    pub fn of(&self, path: &[&str]) -> Option<&str> {
        self.0.get(&joined(path)).map(String::as_str)
    }

    /// Returns the location of an entry of a list.
    pub fn of_entry(&self, path: &[&str], at: usize) -> Option<&str> {
        self.0.get(&entry(&joined(path), at)).map(String::as_str)
    }

    /// Returns the location of a pattern of a role in
    /// [`Config::roles`](crate::Config::roles); `kind` and `list` are its keys, like
    /// `tools` and `deny`.
    pub fn of_rule(&self, role: &str, kind: &str, list: &str, at: usize) -> Option<&str> {
        match owner_of(role) {
            Some(client) => self.of_entry(&["clients", client, kind, list], at),
            None => self.of_entry(&["roles", role, kind, list], at),
        }
    }

    pub(crate) fn record(&mut self, path: String, line: String) {
        self.0.insert(path, line);
    }

    pub(crate) fn record_entry(&mut self, path: &str, at: usize, line: String) {
        self.0.insert(entry(path, at), line);
    }
}

impl PartialEq for RuleLocations {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

fn joined(path: &[&str]) -> String {
    path.iter().fold(String::new(), |path, key| join(&path, key))
}

fn entry(path: &str, at: usize) -> String {
    format!("{path}[{at}]")
}

/// Appends a key to the path of its table, in quotes if TOML requires them.
pub(crate) fn join(path: &str, key: &str) -> String {
    let bare =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let key = if bare { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// Returns whether a path is that of a table, or leads into it.
pub(crate) fn is_below(path: &str, table: &str) -> bool {
    path.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the client of a client's own role.
pub fn owner_of(role: &str) -> Option<&str> {
    role.strip_prefix(OWN_ROLE_PREFIX)
}
