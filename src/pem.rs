//! Certificates and private keys in PEM (RFC 7468).

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Reads all certificates of a text, at least one. The error is a text for the operator.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err("file contains none in PEM".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("is not in PEM: {error}")),
    }
}

/// Reads a private key. The error contains no part of it.
pub(crate) fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|_| "is not a private key in PEM".to_owned())
}
