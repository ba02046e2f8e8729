//! Client certificates of open connections: their validity periods and their verification after CA
//! changes.
//!
//! The handshake verifies a certificate once, but a connection may outlive that: it is kept alive,
//! its streams stay open, the CA file is replaced. So each certificate keeps its validity period,
//! and is verified again when the CAs change.
//!
//! Invariant: a certificate that has expired, or that no current CA has signed, is ended at the
//! next check; the caller determines the interval.

use std::io;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use webpki::EndEntityCert;

use weir_access::policy::{Certificate, Validity};
use weir_base::secrets::pem::period;
use weir_base::secrets::sha256::sha256;
use weir_base::tasks::sync::Mutex;
use weir_base::text::hex::hex;

/// Verifier of client certificates.
pub(super) type Verifier = Arc<dyn ClientCertVerifier>;

/// Client certificates in use.
#[derive(Debug, Default)]
pub(super) struct ClientCertificates(Mutex<Vec<PresentedCertificate>>);

/// Certificate with the chain that the client has sent.
#[derive(Debug)]
struct PresentedCertificate {
    /// Dropped once no connection and no session uses it.
    certificate: Weak<Certificate>,
    /// Leaf certificate first. The handshake bounds its size.
    chain: Vec<CertificateDer<'static>>,
}

impl ClientCertificates {
    /// Adds the certificate of a handshake that has just succeeded.
    pub(super) fn add(&self, chain: &[CertificateDer<'_>]) -> io::Result<Arc<Certificate>> {
        let certificate = Arc::new(read(chain, SystemTime::now())?);
        let chain = chain.iter().map(|it| it.clone().into_owned()).collect();
        self.0
            .lock()
            .push(PresentedCertificate { certificate: Arc::downgrade(&certificate), chain });
        Ok(certificate)
    }

    /// Ends certificates that have expired and, if the CAs have `changed`, those that none of the
    /// new ones has signed. Removes unused ones. May take a while if the CAs have changed.
    pub(super) fn end_invalid(&self, changed: Option<&Verifier>) {
        let now = SystemTime::now();
        // Verified without the lock, because handshakes would have to wait for it.
        let mut shown = std::mem::take(&mut *self.0.lock());
        shown.retain(|PresentedCertificate { certificate, chain }| {
            let Some(certificate) = certificate.upgrade() else { return false };
            let is_trusted = changed.is_none_or(|verifier| is_signed(chain, verifier));
            let holds = is_trusted && certificate.validity.is_valid(now);
            if !holds {
                certificate.validity.end();
            }
            holds
        });
        self.0.lock().append(&mut shown);
    }
}

/// True if a chain leads to one of these CAs now.
pub(super) fn is_signed(chain: &[CertificateDer<'_>], verifier: &Verifier) -> bool {
    let verified = chain.split_first().map(|(certificate, intermediates)| {
        verifier.verify_client_cert(certificate, intermediates, UnixTime::now())
    });
    matches!(verified, Some(Ok(_)))
}

/// Reads the names and the validity period of a certificate.
fn read(chain: &[CertificateDer<'_>], now: SystemTime) -> io::Result<Certificate> {
    let (first, intermediates) =
        chain.split_first().ok_or_else(|| io::Error::other("no certificate"))?;
    let parsed = EndEntityCert::try_from(first).map_err(io::Error::other)?;
    let itself = format!("sha256:{}", hex(&sha256(first)));
    let dns = parsed.valid_dns_names().map(|name| format!("dns:{}", name.to_ascii_lowercase()));
    let uris = parsed.valid_uri_names().map(|name| format!("uri:{name}"));
    let names = std::iter::once(itself).chain(dns).chain(uris);
    let (mut not_before, mut end) = period(&parsed);
    // Intermediates outside their validity period are in no chain that was verified.
    let in_time = intermediates
        .iter()
        .filter_map(|it| Some(period(&EndEntityCert::try_from(it).ok()?)))
        .filter(|(not_before, end)| (*not_before..*end).contains(&now));
    for period in in_time {
        (not_before, end) = (not_before.max(period.0), end.min(period.1));
    }
    let validity = Validity::new(not_before, end, now);
    let chain = chain.iter().map(|it| it.to_vec()).collect();
    Ok(Certificate { names: names.take(MAX_NAMES).collect(), validity, chain })
}

/// Largest number of names read from a certificate.
const MAX_NAMES: usize = 32;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::http::connection::tls::clients::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tokio_rustls::rustls::server::WebPkiClientVerifier;
    use tokio_rustls::rustls::{RootCertStore, crypto};

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn seconds(count: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(count)
    }

    fn params(from: u64, to: u64) -> CertificateParams {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (seconds(from).into(), seconds(to).into());
        params
    }

    fn authority(mut params: CertificateParams) -> Issuer {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
    }

    fn signed(params: &CertificateParams, ca: &Issuer) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("a key");
        params.signed_by(&key, ca).expect("signed").der().clone()
    }

    fn verifier(ca: &Issuer) -> Verifier {
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).expect("a CA");
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        verifier.build().expect("a verifier")
    }

    #[test]
    fn a_chain_is_valid_while_all_of_its_certificates_are_that_were_valid_at_first() {
        let ca = authority(CertificateParams::default());
        let der = |from, to| signed(&params(from, to), &ca);
        let at = 5_000;
        for (chain, expected) in [
            (vec![der(1_000, 9_000)], (1_000, 9_001)),
            (vec![der(0, 9_000)], (0, 9_001)),
            (vec![der(1_000, 253_402_300_799)], (1_000, 253_402_300_800)),
            (vec![der(1_000, 9_000), der(2_000, 8_000)], (2_000, 8_001)),
            (vec![der(1_000, 9_000), der(2_000, 3_000), der(6_000, 8_000)], (1_000, 9_001)),
        ] {
            let validity = read(&chain, seconds(at)).expect("a certificate").validity;
            let holds = |seconds_since: u64| validity.is_valid(seconds(seconds_since));
            let (from, end) = expected;
            assert!(holds(from) && holds(end - 1) && !holds(end), "{expected:?}");
            assert!(from == 0 || !holds(from - 1), "{expected:?}");
        }
        assert!(read(&[], seconds(at)).is_err());
    }

    #[test]
    fn other_cas_end_what_they_have_not_signed_and_nothing_else() {
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("since").as_secs();
        let (first, second) =
            (authority(params(0, now + 9_000)), authority(params(0, now + 9_000)));
        let shown = ClientCertificates::default();
        let add = |ca, until| shown.add(&[signed(&params(1, until), ca)]).expect("a certificate");
        let (gone, expired) = (add(&first, now + 60), add(&first, now - 60));
        let (withdrawn, kept) = (add(&first, now + 60), add(&second, now + 60));
        drop(gone);
        let hold = || [&expired, &withdrawn, &kept].map(|it| it.validity.is_valid(seconds(now)));
        shown.end_invalid(None);
        assert_eq!((hold(), shown.0.lock().len()), ([false, true, true], 2));
        shown.end_invalid(Some(&verifier(&second)));
        assert_eq!((hold(), shown.0.lock().len()), ([false, false, true], 1));
    }
}
