//! Certificates and private keys in PEM (RFC 7468), and the validity periods of certificates.

use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

/// Reads all certificates of a text, at least one. The error is a text for the operator.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err("file contains none in PEM".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("is not in PEM: {error}")),
    }
}

/// Reads a private key. The error contains no part of it.
pub fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|_| "is not a private key in PEM".to_owned())
}

/// Returns the first moment at which a certificate is no longer valid, if it can be read.
pub fn end_of(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, end) = period(&EndEntityCert::try_from(certificate).ok()?);
    Some(end).filter(|end| *end > SystemTime::UNIX_EPOCH)
}

/// Returns the start of the validity period, and the first moment after it.
///
/// The library does not expose either, but reports one of them when it refuses a certificate
/// because of the time, which is the first thing that it checks.
pub fn period(certificate: &EndEntityCert<'_>) -> (SystemTime, SystemTime) {
    let judged_at = |time: UnixTime| {
        let usage = KeyUsage::client_auth();
        certificate.verify_for_usage(&[], &[], &[], time, usage, None, None).err()
    };
    let at = |seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    let first = UnixTime::since_unix_epoch(Duration::ZERO);
    let not_before = match judged_at(first) {
        Some(webpki::Error::CertNotValidYet { not_before, .. }) => at(not_before.as_secs()),
        _ => None,
    };
    let last = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let end = match judged_at(last) {
        // RFC 5280, 4.1.2.5: notAfter is the last second of the period.
        Some(webpki::Error::CertExpired { not_after, .. }) => {
            at(not_after.as_secs().saturating_add(1))
        }
        _ => None,
    };
    // A period that cannot be read counts as expired.
    (not_before.unwrap_or(SystemTime::UNIX_EPOCH), end.unwrap_or(SystemTime::UNIX_EPOCH))
}
