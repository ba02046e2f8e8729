//! Session ids of the legacy era: sealed texts with the facts that rebuild the session.
//!
//! A client gets its id from `initialize` only, so the id contains nothing that can change. It is
//! good in each process of the installation, for the principal that opened the session.
//!
//! Invariants: an id is visible ASCII of at most [`MAX_ID_CHARS`] characters. Only a
//! process with the keys of the installation can make or open one.

use std::time::Duration;

use super::record_table::key_of;
use crate::legacy::session_facts::SessionFacts;
use weir_access::policy::Principal;
use weir_base::ended_sessions::SessionNumber;
use weir_base::secrets::sealing::{InstanceId, Opened, Sealer, SealingKeys};
use weir_base::text::hex::hex;
use weir_fleet::SessionIdentity;

/// Seals session ids, and opens them.
#[derive(Debug)]
pub(crate) struct SessionIdCodec(Sealer);

impl SessionIdCodec {
    /// Creates the codec of an installation.
    pub(crate) fn new(keys: &SealingKeys) -> Self {
        Self(keys.sealer("session id"))
    }

    /// Creates the id of a new session.
    pub(crate) fn seal(&self, principal: &Principal, facts: &SessionFacts) -> Box<str> {
        self.0.seal(&principal.sealing_name(), &facts.write()).into()
    }

    /// Opens an id of this principal; `None` if it is anything else.
    pub(crate) fn open(&self, principal: &Principal, id: &str) -> Option<OpenedId> {
        if id.len() > MAX_ID_CHARS {
            return None;
        }
        let Opened { instance, content } = self.0.open(&principal.sealing_name(), id)?;
        Some(OpenedId { facts: SessionFacts::read(&content)?, sealed_by: instance })
    }
}

/// Contents of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenedId {
    pub(crate) facts: SessionFacts,
    /// Process that opened the session.
    pub(crate) sealed_by: InstanceId,
}

impl OpenedId {
    /// Returns the session of this `id` as its fleet places it.
    pub(crate) fn placed(&self, id: &str, max_age: Duration) -> SessionIdentity {
        let Self { facts, sealed_by } = self;
        let number = facts.place.map(|place| SessionNumber { opened_by: *sealed_by, place });
        let until = facts.begun + max_age;
        SessionIdentity { key: hex(&key_of(id)), number, sealed_by: *sealed_by, until }
    }
}

/// Longest id: the longest facts, sealed.
pub(crate) const MAX_ID_CHARS: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legacy::session_facts::tests::{NOW, context};

    fn codec() -> SessionIdCodec {
        SessionIdCodec::new(&SealingKeys::random())
    }

    #[test]
    fn an_id_contains_what_rebuilds_its_session_for_its_principal_only() {
        let (codec, ann) = (codec(), Principal::new("ann", "staff"));
        let info = r#"{"name":"ide","version":"1.2"}"#;
        let context = context(r#"{"roots":{"listChanged":true},"x":7}"#, Some(info));
        let now = NOW + Duration::from_millis(1_700_000_000_123);
        let facts = SessionFacts::of(&context, now);
        assert_eq!(facts.begun, NOW + Duration::from_secs(1_700_000_000));
        assert_eq!(
            (&facts.capabilities, facts.info.as_deref()),
            (&context.capabilities, Some(info.as_bytes()))
        );
        assert_eq!(facts.features(), context.features);
        let id = codec.seal(&ann, &facts);
        let opened = codec.open(&ann, &id).expect("its own");
        assert_eq!(opened.facts, facts);
        assert!(id.len() <= 400 && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
        // The role of a client may change, and its name is what it is known by.
        assert!(codec.open(&Principal::new("ann", "other"), &id).is_some());
        assert_eq!(codec.open(&Principal::new("bob", "staff"), &id), None);
        assert_ne!(codec.seal(&ann, &facts), id);
    }

    #[test]
    fn only_an_id_opens() {
        let (codec, ann) = (codec(), Principal::new("ann", "staff"));
        let sealed = |content: &[u8]| codec.0.seal(&ann.sealing_name(), content);
        for content in
            [&b""[..], &[0; 8], &[0; 11], &[255; 11], &[0, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0]]
        {
            let read = codec.open(&ann, &sealed(content));
            assert_eq!(read.is_some(), content == [0; 11], "{content:?}");
        }
        assert_eq!(codec.open(&ann, &sealed(&[0; 2_000])), None, "too long");
        assert_eq!(codec.open(&ann, "nonsense"), None);
    }
}
