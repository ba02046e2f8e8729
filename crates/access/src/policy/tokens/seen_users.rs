//! Users of identity providers, and the role that the last verified token of each was mapped to.
//!
//! It answers the operator's question about a user, whose role is in no file, and decides nothing.
//!
//! Invariants: at most `2 × SEEN_USERS` users per provider are remembered, those that were seen
//! last. The log names each user without a role once, and at most [`MAX_NAMED_USERS`] users.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::generations::Generations;
use super::provider::Provider;
use crate::policy::Principal;
use crate::policy::role::NO_ROLE;
use weir_base::tasks::sync::Mutex;

/// User of an identity provider, as last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenUser {
    /// Name of the role that the token was mapped to.
    pub role: Arc<str>,
    /// Time of the last request with such a token.
    pub at: SystemTime,
    /// Whether the mapping of that time is still that of the configuration.
    pub is_current: bool,
}

/// Result of a search for a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserSearch {
    /// The user was seen.
    Seen(SeenUser),
    /// The user was not seen, but one whose name differs in letter case, punctuation or hidden
    /// characters only.
    Similar(Arc<str>),
    /// Neither was seen.
    Unseen,
}

/// Users of all providers.
#[derive(Default)]
pub(super) struct SeenUsers(Mutex<UserTable>);

#[derive(Default)]
struct UserTable {
    /// Users by the name of their principal, by provider.
    providers: HashMap<String, Generations<Arc<str>, SeenEntry>>,
    /// Users without a role that the log has named.
    named: HashSet<Arc<str>>,
}

struct SeenEntry {
    role: Arc<str>,
    at: SystemTime,
    /// Number of the provider, which is another one under another mapping.
    provider: u64,
}

impl SeenUsers {
    /// Remembers the role of a user. Returns whether the log has to name the user: one without a
    /// role that it has not named.
    pub(super) fn record(&self, provider: &Provider, user: &Principal, now: SystemTime) -> bool {
        let name = &provider.settings.name;
        let UserTable { providers, named } = &mut *self.0.lock();
        let users = match providers.get_mut(name) {
            Some(users) => users,
            None => providers.entry(name.clone()).or_insert(Generations::new(SEEN_USERS)),
        };
        let entry = SeenEntry { role: Arc::clone(&user.role), at: now, provider: provider.number };
        match users.find(&*user.name) {
            Some(known) => *known = entry,
            None => users.insert(Arc::clone(&user.name), entry),
        }
        *user.role == *NO_ROLE
            && named.len() < MAX_NAMED_USERS
            && named.insert(Arc::clone(&user.name))
    }

    /// Finds a user by the name of the principal, `<provider>/<user>`. `providers` are those of the
    /// configuration.
    pub(super) fn find(&self, name: &str, providers: &[Arc<Provider>]) -> UserSearch {
        let Some((provider, _)) = name.split_once('/') else { return UserSearch::Unseen };
        let table = self.0.lock();
        let Some(users) = table.providers.get(provider) else { return UserSearch::Unseen };
        if let Some(SeenEntry { role, at, provider }) = users.peek(name) {
            let is_current = providers.iter().any(|known| known.number == *provider);
            return UserSearch::Seen(SeenUser { role: Arc::clone(role), at: *at, is_current });
        }
        let wanted = simplified(name);
        let similar = users.iter().find(|(known, _)| simplified(known) == wanted);
        similar.map_or(UserSearch::Unseen, |(known, _)| UserSearch::Similar(Arc::clone(known)))
    }

    /// Returns the number of users without a role under the current mapping, by provider.
    pub(super) fn without_role(&self, providers: &[Arc<Provider>]) -> BTreeMap<String, usize> {
        let table = self.0.lock();
        let count = |provider: &Arc<Provider>| {
            let name = &provider.settings.name;
            let is_one =
                |entry: &SeenEntry| entry.provider == provider.number && *entry.role == *NO_ROLE;
            let users = table.providers.get(name).into_iter().flat_map(Generations::iter);
            (name.clone(), users.filter(|(_, entry)| is_one(entry)).count())
        };
        providers.iter().map(count).collect()
    }

    /// Forgets the users of providers other than these.
    pub(super) fn retain(&self, providers: &[Arc<Provider>]) {
        let is_known = |name: &String| providers.iter().any(|known| known.settings.name == *name);
        self.0.lock().providers.retain(|name, _| is_known(name));
    }
}

/// Returns the letters and digits of a name, in lower case.
fn simplified(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Users per provider that are remembered; up to twice as many are stored.
pub(super) const SEEN_USERS: usize = 10_000;

/// Most users without a role that the log names.
pub(super) const MAX_NAMED_USERS: usize = 1_000;
