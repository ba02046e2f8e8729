//! Where something was written, for whoever explains what it does.
//!
//! Promise: no place makes two configurations differ that say the same.
//! Knows nothing of: what was written there.

use std::collections::BTreeMap;

use crate::config::reader::table_reader::join;

/// Lines like `conf.d/a.toml:12` by paths like `roles.dev.tools.deny[0]`. Only rules have them, and the few
/// keys that decide about rules; what stands in no file has none.
#[derive(Clone, Debug, Default)]
pub struct Places(BTreeMap<String, String>);

impl Places {
    /// Where the key of this path stands.
    pub fn of(&self, path: &[&str]) -> Option<&str> {
        self.0.get(&joined(path)).map(String::as_str)
    }

    /// Where an entry of the list of this path stands.
    pub fn of_entry(&self, path: &[&str], at: usize) -> Option<&str> {
        self.0.get(&entry(&joined(path), at)).map(String::as_str)
    }

    /// Where an entry of a rule of a role in [`Config::roles`](crate::config::Config::roles) stands; `kind` and `list`
    /// are its keys, like `tools` and `deny`.
    pub fn of_rule(&self, role: &str, kind: &str, list: &str, at: usize) -> Option<&str> {
        match crate::config::access::owner_of(role) {
            Some(client) => self.of_entry(&["clients", client, kind, list], at),
            None => self.of_entry(&["roles", role, kind, list], at),
        }
    }

    pub(crate) fn keep(&mut self, path: String, line: String) {
        self.0.insert(path, line);
    }

    pub(crate) fn keep_entry(&mut self, path: &str, at: usize, line: String) {
        self.0.insert(entry(path, at), line);
    }
}

impl PartialEq for Places {
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
