//! TLS settings for connections to servers: those of the system, or of one upstream.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::hex::hex;
use crate::pem;
use crate::regular_file;
use crate::sha256::sha256;

/// TLS settings of one upstream, in place of those of the system. Equal if all files are.
#[derive(Clone)]
pub struct TlsSettings {
    /// Opens connections with these settings.
    pub(super) connector: TlsConnector,
    /// Hash of the texts from which they were made.
    digest: [u8; 32],
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
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = pem::certificates(chain).map_err(TlsProblem::Certificate)?;
                let key = pem::private_key(key).map_err(TlsProblem::Key)?;
                let bad = |error| TlsProblem::Key(format!("does not fit the certificate: {error}"));
                builder.with_client_auth_cert(chain, key).map_err(bad)?
            }
        };
        let (chain, key) = identity.unwrap_or_default();
        let digest = sha256([ca.unwrap_or_default(), chain, key].map(sha256).concat());
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), digest })
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
