//! TLS between replicas: certificates of a CA that every replica derives from the keys of the
//! fleet.
//!
//! Each process makes a certificate of its own at its start. The certificate contains the number of
//! the process, so that a replica connects only to the process that it looks for, and not to a
//! later one at the same address. No file has to be distributed: a process without a key of the
//! fleet can neither make a certificate that is accepted nor accept one.

use std::sync::Arc;

use aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use weir_base::secrets::sealing::{InstanceId, SealingKeys};

/// Both sides of the connections between replicas.
#[derive(Clone)]
pub struct ReplicaTls {
    /// Accepts connections of processes that have a key of the fleet.
    pub acceptor: TlsAcceptor,
    /// Connects to one process of the fleet, by [`name_of`].
    pub(crate) connector: TlsConnector,
    /// Connects to it with the protocol [`UPSTREAM`].
    pub(crate) upstream_connector: TlsConnector,
}

/// Protocol of connections to an upstream that runs on one replica: a line with the name of the
/// upstream, whose reply is [`ACCEPTED`]; then HTTP.
pub const UPSTREAM: &[u8] = b"weir-upstream";
/// Reply of a replica that runs the upstream.
pub const ACCEPTED: u8 = b'+';

impl ReplicaTls {
    /// Makes a certificate for this process.
    pub(crate) fn new(keys: &SealingKeys) -> Self {
        Self::make(keys).expect("keys of 32 bytes make a certificate")
    }

    fn make(keys: &SealingKeys) -> Result<Self, Box<dyn std::error::Error>> {
        let mut roots = RootCertStore::empty();
        let mut first_issuer = None;
        for seed in keys.derive("fleet certificates") {
            let key = Ed25519KeyPair::from_seed_unchecked(&*seed)?.to_pkcs8v1()?;
            let key = KeyPair::try_from(&PrivatePkcs8KeyDer::from(key.as_ref()))?;
            let ca = ca();
            roots.add(ca.self_signed(&key)?.der().clone())?;
            first_issuer.get_or_insert_with(|| Issuer::new(ca, key));
        }
        let issuer = first_issuer.ok_or("no key")?;
        let key = KeyPair::generate()?;
        let mut params = with_long_validity(CertificateParams::new([name_of(keys.instance())])?);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let chain = vec![params.signed_by(&key, &issuer)?.der().clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let (provider, roots) = (Arc::new(crypto::aws_lc_rs::default_provider()), Arc::new(roots));
        let verifier = Self::verifier(&roots, &provider)?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let mut upstream_client = client.clone();
        for protocols in [&mut server.alpn_protocols, &mut upstream_client.alpn_protocols] {
            protocols.push(UPSTREAM.to_vec());
        }
        Ok(Self {
            acceptor: Arc::new(server).into(),
            connector: Arc::new(client).into(),
            upstream_connector: Arc::new(upstream_client).into(),
        })
    }

    fn verifier(
        roots: &Arc<RootCertStore>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<
        Arc<dyn tokio_rustls::rustls::server::danger::ClientCertVerifier>,
        Box<dyn std::error::Error>,
    > {
        let (roots, provider) = (Arc::clone(roots), Arc::clone(provider));
        Ok(WebPkiClientVerifier::builder_with_provider(roots, provider).build()?)
    }
}

/// Returns the name in the certificate of a process.
fn name_of(instance: InstanceId) -> String {
    format!("{instance}.replica.weir")
}

/// Returns the name that the certificate of a process must have.
pub(crate) fn server_name(instance: InstanceId) -> ServerName<'static> {
    ServerName::try_from(name_of(instance)).expect("digits and letters are a name")
}

fn ca() -> CertificateParams {
    let mut params = with_long_validity(CertificateParams::default());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, "weir fleet");
    params
}

/// A certificate ends with its process, and clocks of machines differ.
fn with_long_validity(mut params: CertificateParams) -> CertificateParams {
    (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2100, 1, 1));
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use weir_base::secrets::secret::random_token;

    /// Connects `client` to `server`, which it takes for `expected`, and sends a byte each way.
    async fn connect(client: &SealingKeys, server: &SealingKeys, expected: InstanceId) -> bool {
        let (client, server) = (ReplicaTls::new(client), ReplicaTls::new(server));
        let (near, far) = tokio::io::duplex(16 * 1024);
        let accepting = async {
            let mut stream = server.acceptor.accept(far).await.ok()?;
            stream.write_all(b"x").await.ok()?;
            stream.read_u8().await.ok()
        };
        let connecting = async {
            let mut stream = client.connector.connect(server_name(expected), near).await.ok()?;
            stream.write_all(b"y").await.ok()?;
            stream.read_u8().await.ok()
        };
        tokio::join!(accepting, connecting) == (Some(b'y'), Some(b'x'))
    }

    #[tokio::test]
    async fn only_processes_with_a_common_key_connect_and_only_to_the_one_they_look_for() {
        let (old, new) = (random_token(), random_token());
        let keys = |lines: &[&str]| SealingKeys::parse(&lines.join("\n")).expect("keys");
        let (one, other) = (keys(&[&old]), keys(&[&old]));
        assert!(connect(&one, &other, other.instance()).await);
        assert!(!connect(&one, &other, one.instance()).await, "another process");
        let stranger = keys(&[&new]);
        assert!(!connect(&one, &stranger, stranger.instance()).await, "another key");
        assert!(!connect(&stranger, &one, one.instance()).await, "another key");
        let (added, promoted) = (keys(&[&old, &new]), keys(&[&new, &old]));
        assert!(connect(&added, &promoted, promoted.instance()).await, "while keys are rotated");
        assert!(connect(&promoted, &added, added.instance()).await, "while keys are rotated");
    }
}
