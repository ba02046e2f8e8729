//! Clients that prove who they are by a certificate, in the TLS handshake (mutual TLS).
//!
//! Whether a certificate is good (its chain, its time) is the handshake's to check; here is asked only
//! whose it is. Knows nothing of: how a certificate is read.

use std::collections::HashMap;
use std::time::SystemTime;

use super::{Principal, Refusal};

/// A certificate that a client has proven to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// What it may be known by: `sha256:<hex>` of the certificate itself first, then the names that its
    /// issuer vouches for, as `dns:<name>` and `uri:<name>`.
    pub names: Vec<String>,
}

/// A client, and the names that its certificates go by.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The client's name.
    pub client: String,
    /// The client's role.
    pub role: String,
    /// As in [`Certificate::names`]; no two clients have the same.
    pub names: Vec<String>,
    /// When the client is let in no more, however long the certificate is good.
    pub expires: Option<SystemTime>,
}

/// Whose certificates go by which name.
#[derive(Debug, Default)]
pub(super) struct Certificates(HashMap<String, (Principal, Option<SystemTime>)>);

impl Certificates {
    pub(super) fn new(holders: Vec<Holder>) -> Self {
        let entries = holders.into_iter().flat_map(|holder| {
            let principal = Principal::new(holder.client, holder.role);
            let entry = move |name| (name, (principal.clone(), holder.expires));
            holder.names.into_iter().map(entry)
        });
        Self(entries.collect())
    }

    /// Tells whose certificate this is. One that goes by names of two clients is nobody's: which of the
    /// two it should be would be a guess. The certificate itself says more than its names.
    pub(super) fn find(
        &self,
        certificate: &Certificate,
        now: SystemTime,
    ) -> Result<Principal, Refusal> {
        let mut found: Option<&(Principal, Option<SystemTime>)> = None;
        for name in &certificate.names {
            let Some(entry) = self.0.get(name) else { continue };
            match found {
                None => found = Some(entry),
                Some((first, _)) if *first == entry.0 => {}
                Some(_) => return Err(Refusal::Unknown),
            }
            if name.starts_with(OF_ITSELF) {
                break;
            }
        }
        match found.ok_or(Refusal::Unknown)? {
            (_, Some(expires)) if *expires <= now => Err(Refusal::Expired),
            (principal, _) => Ok(principal.clone()),
        }
    }

    pub(super) fn principal(&self, name: &str) -> Option<Principal> {
        let mut principals = self.0.values().map(|(principal, _)| principal);
        principals.find(|principal| *principal.name == *name).cloned()
    }
}

const OF_ITSELF: &str = "sha256:";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn shown(names: &[&str]) -> Certificate {
        Certificate { names: names.iter().copied().map(str::to_owned).collect() }
    }

    #[test]
    fn a_certificate_is_its_holders_by_itself_or_by_its_names() {
        let now = SystemTime::now();
        let holder = |client: &str, names: &[&str], expires| Holder {
            client: client.to_owned(),
            role: "dev".to_owned(),
            names: shown(names).names,
            expires,
        };
        let certificates = Certificates::new(vec![
            holder("ann", &["dns:ann.lan", "uri:spiffe://lan/ann"], None),
            holder("bob", &["dns:bob.lan", "sha256:b0b"], None),
            holder("old", &["dns:old.lan"], Some(now)),
        ]);
        for (names, whose) in [
            (&["sha256:1", "dns:ann.lan"][..], Ok("ann")),
            (&["sha256:1", "dns:ann.lan", "uri:spiffe://lan/ann"], Ok("ann")),
            (&["sha256:b0b"], Ok("bob")),
            // Its issuer may call it what it likes: it is bob's own.
            (&["sha256:b0b", "dns:ann.lan"], Ok("bob")),
            (&["sha256:1", "dns:ann.lan", "dns:bob.lan"], Err(Refusal::Unknown)),
            (&["sha256:1", "dns:eve.lan"], Err(Refusal::Unknown)),
            (&["sha256:1"], Err(Refusal::Unknown)),
            (&["sha256:1", "dns:old.lan"], Err(Refusal::Expired)),
        ] {
            let found = certificates.find(&shown(names), now).map(|found| found.name.to_string());
            assert_eq!(found, whose.map(str::to_owned), "{names:?}");
        }
        let earlier = now - Duration::from_secs(1);
        assert!(certificates.find(&shown(&["dns:old.lan"]), earlier).is_ok());
        assert_eq!(certificates.principal("bob").map(|found| found.role), Some("dev".into()));
    }
}
