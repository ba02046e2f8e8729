//! Clients that authenticate with a certificate in the TLS handshake (mutual TLS).
//!
//! The handshake verifies the certificate chain. This module finds the client of a certificate and
//! checks that it is still valid: a connection may outlive both the certificate and the CA that it
//! was verified with.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{AuthError, ClientCredentials, Principal};

/// Verified certificate of a client.
#[derive(Debug)]
pub struct Certificate {
    /// Names of the certificate: `sha256:<hex>` of the certificate itself first, then the names
    /// that its issuer vouches for, as `dns:<name>` and `uri:<name>`.
    pub names: Vec<String>,
    /// Period in which the certificate may be used.
    pub validity: Validity,
    /// The certificate and its chain in DER, as the client has sent them.
    pub chain: Vec<Vec<u8>>,
}

impl Certificate {
    /// Waits until a connection's client certificate is no longer valid; forever if there is none.
    pub async fn expired(certificate: Option<&Arc<Self>>) {
        match certificate {
            Some(certificate) => certificate.validity.ended.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Returns whether a connection with this client certificate, or without one, may be used.
    pub fn is_valid(certificate: Option<&Arc<Self>>, now: SystemTime) -> bool {
        certificate.is_none_or(|certificate| certificate.validity.is_valid(now))
    }
}

/// Period in which a verified certificate may be used, and its early end.
#[derive(Debug)]
pub struct Validity {
    not_before: SystemTime,
    /// First moment at which the certificate is no longer valid.
    end: SystemTime,
    /// This time on the monotonic clock; `None` if it is too far away for that clock.
    deadline: Option<Instant>,
    ended: CancellationToken,
}

impl Validity {
    /// Creates a validity from `not_before` until just before `end`. `now` is the current time.
    pub fn new(not_before: SystemTime, end: SystemTime, now: SystemTime) -> Self {
        let left = end.duration_since(now).unwrap_or_default();
        let deadline = Instant::now().checked_add(left);
        Self { not_before, end, deadline, ended: CancellationToken::new() }
    }

    /// Returns whether the certificate may be used; never again after [`end`](Self::end).
    ///
    /// A system clock that is set back does not lengthen the period: the client may have to connect
    /// again, and the handshake then uses the system clock.
    pub fn is_valid(&self, now: SystemTime) -> bool {
        let has_time = self.deadline.is_none_or(|deadline| Instant::now() < deadline);
        let is_in_time = self.not_before <= now && now < self.end;
        has_time && is_in_time && !self.ended.is_cancelled()
    }

    /// Ends the validity early, or wakes the waiting tasks at its end.
    pub fn end(&self) {
        self.ended.cancel();
    }
}

/// Clients by certificate name.
#[derive(Debug, Default)]
pub(super) struct Certificates(HashMap<String, (Principal, Option<SystemTime>)>);

impl Certificates {
    pub(super) fn new(clients: &[ClientCredentials]) -> Self {
        let entries = clients.iter().flat_map(|client| {
            let entry = (client.principal(), client.expires);
            client.certificates.iter().map(move |name| (name.clone(), entry.clone()))
        });
        Self(entries.collect())
    }

    /// Returns the client of a certificate. A certificate with names of two clients is refused,
    /// because choosing one would be a guess; the hash of the certificate itself takes precedence
    /// over its names.
    pub(super) fn find(
        &self,
        certificate: &Certificate,
        now: SystemTime,
    ) -> Result<Principal, AuthError> {
        let mut found: Option<&(Principal, Option<SystemTime>)> = None;
        for name in &certificate.names {
            let Some(entry) = self.0.get(name) else { continue };
            match found {
                None => found = Some(entry),
                Some((first, _)) if *first == entry.0 => {}
                Some(_) => return Err(AuthError::Unknown),
            }
            if name.starts_with(OF_ITSELF) {
                break;
            }
        }
        match found.ok_or(AuthError::Unknown)? {
            (_, Some(expires)) if *expires <= now => Err(AuthError::Expired),
            (principal, _) => Ok(principal.clone()),
        }
    }
}

const OF_ITSELF: &str = "sha256:";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn shown(names: &[&str]) -> Certificate {
        let (now, names) = (SystemTime::now(), names.iter().copied().map(str::to_owned).collect());
        let validity = Validity::new(now, now + Duration::from_secs(60), now);
        Certificate { names, validity, chain: Vec::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_validity_ends_with_either_clock_and_never_holds_again_once_ended() {
        let (second, now) = (Duration::from_secs(1), SystemTime::now());
        let new = || Validity::new(now - second, now + 60 * second, now);
        let validity = new();
        let held = [now - 2 * second, now - second, now, now + 59 * second, now + 60 * second];
        assert_eq!(held.map(|at| validity.is_valid(at)), [false, true, true, true, false]);

        // The clock on the wall stands still, or is set back again and again.
        tokio::time::advance(59 * second).await;
        assert!(validity.is_valid(now));
        tokio::time::advance(second).await;
        assert!(!validity.is_valid(now));

        let validity = new();
        validity.end();
        assert!(!validity.is_valid(now));
        let certificate = Arc::new(Certificate { names: Vec::new(), validity, chain: Vec::new() });
        Certificate::expired(Some(&certificate)).await;
        assert!(
            !Certificate::is_valid(Some(&certificate), now) && Certificate::is_valid(None, now)
        );
        let endless = Validity::new(now, now + Duration::from_secs(1 << 40), now);
        assert!(endless.is_valid(now));
    }

    #[test]
    fn a_certificate_is_its_holders_by_itself_or_by_its_names() {
        let now = SystemTime::now();
        let holder = |client: &str, names: &[&str], expires| ClientCredentials {
            name: client.to_owned(),
            role: "dev".to_owned(),
            certificates: shown(names).names,
            expires,
            ..Default::default()
        };
        let certificates = Certificates::new(&[
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
            (&["sha256:1", "dns:ann.lan", "dns:bob.lan"], Err(AuthError::Unknown)),
            (&["sha256:1", "dns:eve.lan"], Err(AuthError::Unknown)),
            (&["sha256:1"], Err(AuthError::Unknown)),
            (&["sha256:1", "dns:old.lan"], Err(AuthError::Expired)),
        ] {
            let found = certificates.find(&shown(names), now).map(|found| found.name.to_string());
            assert_eq!(found, whose.map(str::to_owned), "{names:?}");
        }
        let earlier = now - Duration::from_secs(1);
        assert!(certificates.find(&shown(&["dns:old.lan"]), earlier).is_ok());
    }
}
