//! Connections of other replicas, on which each request has a client of its own.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::tls::Tls;
use crate::fleet::Fleet;
use crate::policy::Certificate;

/// Sender of the requests on a connection.
pub(in crate::downstream::http) enum RequestOrigin {
    /// A client.
    Client,
    /// Another replica, on whose connection each request has a client of its own.
    Listener(ReplicaListener),
    /// A client of another replica, which has sent the request on.
    Replica,
}

/// Listener for other replicas.
#[derive(Clone)]
pub struct ReplicaListener {
    /// This replica.
    pub fleet: Arc<Fleet>,
    /// TLS of the listener for clients, which verifies their certificates.
    pub client_tls: Option<Arc<Tls>>,
}

impl ReplicaListener {
    /// Verifies the certificate of a client whose request another replica has sent on: DER in
    /// base64, the certificate first, separated by commas.
    pub(in crate::downstream::http) fn verify(&self, chain: &str) -> Option<Arc<Certificate>> {
        let decode = |part: &str| Some(CertificateDer::from(STANDARD.decode(part).ok()?));
        let chain: Vec<_> = chain.split(',').map(decode).collect::<Option<_>>()?;
        self.client_tls.as_ref()?.verify_forwarded(&chain)
    }
}
