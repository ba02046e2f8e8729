//! TLS for connections to servers: the settings of the system, or of one upstream, and the
//! handshake.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, InvalidMessage, RootCertStore, crypto};

use weir_base::files::regular_file;
use weir_base::net::http_connection::ByteStream;
use weir_base::secrets::pem;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// TLS settings of one upstream, in place of those of the system. Equal if all files are.
#[derive(Clone)]
pub struct TlsSettings {
    /// Opens connections with these settings.
    pub(super) connector: TlsConnector,
    /// Hash of the texts from which they were made.
    digest: [u8; 32],
    /// Time from which Weir's certificate, or one of its chain, is invalid.
    pub(super) expiry: Option<SystemTime>,
}

/// Reason why TLS settings cannot be used, as a text for the operator.
#[derive(Debug, thiserror::Error)]
pub enum TlsProblem {
    /// The CAs of the server.
    #[error("the CA {0}")]
    Ca(String),
    /// Weir's certificate.
    #[error("the certificate {0}")]
    Certificate(String),
    /// Its private key.
    #[error("the key {0}")]
    Key(String),
}

impl TlsSettings {
    /// Creates settings from texts in PEM: the CAs of the server, and Weir's certificate with its
    /// private key.
    ///
    /// # Errors
    ///
    /// A text is not of this kind, or the two of the identity do not fit.
    pub fn new(ca: Option<&[u8]>, identity: Option<(&[u8], &[u8])>) -> Result<Self, TlsProblem> {
        let roots = match ca {
            None => system_roots().map_err(TlsProblem::Ca)?,
            Some(text) => {
                let mut roots = RootCertStore::empty();
                for root in pem::certificates(text).map_err(TlsProblem::Ca)? {
                    let bad = |error| TlsProblem::Ca(format!("is invalid: {error}"));
                    roots.add(root).map_err(bad)?;
                }
                roots
            }
        };
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsProblem::Ca(error.to_string()))?
            .with_root_certificates(roots);
        let mut expiry = None;
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = pem::certificates(chain).map_err(TlsProblem::Certificate)?;
                expiry = chain.iter().filter_map(pem::end_of).min();
                let key = pem::private_key(key).map_err(TlsProblem::Key)?;
                let bad = |error| TlsProblem::Key(format!("does not fit the certificate: {error}"));
                builder.with_client_auth_cert(chain, key).map_err(bad)?
            }
        };
        let (chain, key) = identity.unwrap_or_default();
        let digest = sha256([ca.unwrap_or_default(), chain, key].map(sha256).concat());
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), digest, expiry })
    }
}

impl PartialEq for TlsSettings {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsSettings").field(&hex(&self.digest)).finish()
    }
}

/// Opens connections with the settings of the system.
pub(super) fn system_connector() -> Result<TlsConnector, String> {
    let settings = TlsSettings::new(None, None);
    settings.map(|settings| settings.connector).map_err(|problem| {
        let (TlsProblem::Ca(text) | TlsProblem::Certificate(text) | TlsProblem::Key(text)) =
            problem;
        format!("TLS: {text}")
    })
}

/// Protects a stream to this host with TLS.
pub(super) async fn protect(
    stream: Box<dyn ByteStream>,
    host: &str,
    tls: &TlsConnector,
) -> io::Result<Box<dyn ByteStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake timed out");
    let handshake = timeout(HANDSHAKE_TIMEOUT, tls.connect(name, stream));
    let stream = handshake.await.map_err(timed_out)?;
    let stream = stream.map_err(|error| match answers_without_tls(&error) {
        true => io::Error::other("TLS: the server answers without TLS; try http:// in its URL"),
        false => io::Error::other(format!("TLS: {error}")),
    })?;
    Ok(Box::new(stream))
}

/// Returns whether the first bytes of the peer are no TLS, such as those of an HTTP response.
fn answers_without_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    // Reading a named pipe would block.
    if let Some(path) = std::env::var_os("SSL_CERT_FILE")
        && let Err(error) = regular_file::open(Path::new(&path))
        && error.kind() == io::ErrorKind::InvalidInput
    {
        return Err(format!("the file that SSL_CERT_FILE names cannot be read: {error}"));
    }
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err("this machine has no root certificates".into());
    }
    Ok(roots)
}

/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn the_expiry_of_a_certificate_for_an_upstream_is_that_of_its_chain() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let certified = |end: u64| {
            let mut params = CertificateParams::default();
            params.not_after = at(end).into();
            let key = KeyPair::generate().expect("a key");
            (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
        };
        let ((leaf, key), (issuer, _)) = (certified(4_000_000_000), certified(3_000_000_000));
        let expiry = |identity: Option<&str>, ca: Option<&str>| {
            let identity = identity.map(|chain| (chain.as_bytes(), key.as_bytes()));
            TlsSettings::new(ca.map(str::as_bytes), identity).expect("they fit").expiry
        };
        assert_eq!(expiry(Some(&leaf), Some(&issuer)), Some(at(4_000_000_001)));
        let chain = [&*leaf, &*issuer].concat();
        assert_eq!(expiry(Some(&chain), Some(&issuer)), Some(at(3_000_000_001)));
        assert_eq!(expiry(None, Some(&issuer)), None);
    }
}
