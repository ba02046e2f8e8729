//! Records in the store, sealed with the keys of the fleet.
//!
//! A record is sealed for its place (the name of its key), so that it cannot be moved to another
//! one. The process that has sealed it stands in it, authenticated.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use weir_base::secrets::sealing::{InstanceId, KeyId, Opened, Sealer, SealingKeys};

/// Seals the records of a fleet, and opens them.
pub(crate) struct Records {
    replicas: Sealer,
    claims: Sealer,
    settings: Sealer,
    /// Names of the keys with which this process opens records.
    keys: Vec<KeyId>,
}

/// Record of a replica about itself, which it writes each second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// Name for operators.
    pub name: String,
    /// Host and port of its listener for replicas.
    pub address: String,
    /// Version of Weir.
    pub version: String,
    /// Names of its keys: the first one seals. Empty up to version 0.1.0.
    #[serde(default)]
    pub(crate) keys: Vec<String>,
    /// Short hash of its configuration.
    pub configuration: String,
    /// True if it is about to stop: other replicas take over its sessions.
    pub draining: bool,
    /// Number of sessions in its memory.
    pub sessions: usize,
    /// Upstreams that run on this replica only, with the numbers of their leases.
    #[serde(default)]
    pub running: BTreeMap<String, u64>,
    /// Digest of its lists.
    #[serde(default)]
    pub(crate) lists: Option<String>,
    /// Whether they have not changed for a while.
    #[serde(default)]
    pub(crate) has_settled: bool,
    /// Whether it reads ids of sessions with numbers. Up to version 0.1.0 replicas do not.
    #[serde(default)]
    pub(crate) reads_numbers: bool,
    /// Seconds since 1970 at which it started.
    pub started: u64,
}

#[cfg(test)]
impl ReplicaRecord {
    /// Creates the record of a replica that has nothing to show but its name and its address.
    pub(crate) fn of(name: &str, address: &str) -> Self {
        Self {
            name: name.to_owned(),
            address: address.to_owned(),
            version: String::new(),
            keys: Vec::new(),
            configuration: String::new(),
            draining: false,
            sessions: 0,
            running: BTreeMap::new(),
            lists: None,
            has_settled: false,
            reads_numbers: true,
            started: 0,
        }
    }
}

/// Content of the claim of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The session is on this replica.
    Owner(InstanceId),
    /// Its client has ended it.
    Ended,
}

impl Records {
    pub(crate) fn new(keys: &SealingKeys) -> Self {
        Self {
            replicas: keys.sealer("fleet member"),
            claims: keys.sealer("fleet claim"),
            settings: keys.sealer("fleet settings"),
            keys: keys.ids().collect(),
        }
    }

    pub(crate) fn seal_replica(&self, name: &str, record: &ReplicaRecord) -> String {
        let text = serde_json::to_vec(record).expect("texts and numbers are JSON");
        self.replicas.seal(name, &text)
    }

    /// Opens the record of a replica; `None` unless that replica has sealed it.
    pub(crate) fn open_replica(
        &self,
        name: &str,
        text: &str,
    ) -> Option<(InstanceId, ReplicaRecord)> {
        let Opened { instance, content } = self.replicas.open(name, text)?;
        (instance.to_string() == name).then_some(())?;
        Some((instance, serde_json::from_slice(&content).ok()?))
    }

    /// Seals the claim of this process, or the end of a session.
    pub(crate) fn seal_claim(&self, session: &str, is_ended: bool) -> String {
        self.claims.seal(session, if is_ended { ENDED } else { OWNED })
    }

    pub(crate) fn open_claim(&self, session: &str, text: &str) -> Option<Claim> {
        let Opened { instance, content } = self.claims.open(session, text)?;
        match &*content {
            OWNED => Some(Claim::Owner(instance)),
            ENDED => Some(Claim::Ended),
            _ => None,
        }
    }

    /// Returns whether a text is no claim of the session, but that of another one, or damaged. One
    /// that is sealed with a key which this process does not have may be one.
    pub(crate) fn is_misplaced(&self, session: &str, text: &str) -> bool {
        let is_readable = KeyId::of_sealed(text).is_none_or(|id| self.keys.contains(&id));
        is_readable && !text.is_empty() && self.claims.open(session, text).is_none()
    }

    pub(crate) fn seal_settings(&self, session: &str, settings: &[u8]) -> String {
        self.settings.seal(session, settings)
    }

    pub(crate) fn open_settings(&self, session: &str, text: &str) -> Option<Vec<u8>> {
        Some(self.settings.open(session, text)?.content)
    }
}

const OWNED: &[u8] = b"owner";
const ENDED: &[u8] = b"ended";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_opens_in_its_place_only_and_names_the_process_that_made_it() {
        let keys = SealingKeys::random();
        let other = keys.of_another_process();
        let (records, others) = (Records::new(&keys), Records::new(&other));
        let record = ReplicaRecord {
            name: "a".into(),
            address: "10.0.0.1:1".into(),
            version: "1".into(),
            keys: vec!["k".into()],
            configuration: "c".into(),
            draining: true,
            sessions: 7,
            running: [("hub".to_owned(), 1)].into(),
            lists: Some("l".into()),
            has_settled: true,
            reads_numbers: true,
            started: 9,
        };
        let name = keys.instance().to_string();
        let text = records.seal_replica(&name, &record);
        assert_eq!(others.open_replica(&name, &text), Some((keys.instance(), record.clone())));
        let forged = others.seal_replica(&name, &record);
        assert_eq!(records.open_replica(&name, &forged), None, "of another replica");
        assert_eq!(Records::new(&SealingKeys::random()).open_replica(&name, &text), None);
        let claim = records.seal_claim("s", false);
        assert_eq!(others.open_claim("s", &claim), Some(Claim::Owner(keys.instance())));
        assert_eq!(others.open_claim("t", &claim), None, "of another session");
        assert!(others.is_misplaced("t", &claim) && !others.is_misplaced("s", &claim));
        let stranger = Records::new(&SealingKeys::random());
        assert!(others.is_misplaced("s", "x") && !stranger.is_misplaced("s", &claim));
        assert_eq!(others.open_claim("s", &records.seal_claim("s", true)), Some(Claim::Ended));
        let settings = records.seal_settings("s", b"x");
        assert_eq!(others.open_settings("s", &settings), Some(b"x".to_vec()));
        assert_eq!(others.open_claim("s", &settings), None, "a record of another kind");
    }
}
