//! TLS towards clients: the certificate, its key, and whose certificates clients may show.
//!
//! Promises: what is served with is read again when a file changes, and kept while the new one is not
//! whole or does not fit; a handshake takes a bounded time; a client's certificate that the CA did not
//! sign, or that is out of its time, ends the handshake.
//!
//! Knows nothing of: who a certificate's holder is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoClientAuth, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use webpki::EndEntityCert;
use zeroize::Zeroizing;

use crate::hex::hex;
use crate::policy::Certificate;
use crate::secret::Secret;
use crate::sha256::sha256;

/// Where the certificates are.
#[derive(Debug, Clone, PartialEq)]
pub struct Files {
    /// The server's certificate and those between it and its CA, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: Key,
    /// The CAs whose certificates clients may show, in PEM; without it none is asked for.
    pub client_ca: Option<PathBuf>,
    /// Whether a client has to show a certificate to get in at all.
    pub client_required: bool,
}

/// A private key.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    /// In a file, which is read again when it changes.
    File(PathBuf),
    /// As it was told.
    Text(Secret),
}

/// Which of the files is not what it should be, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The certificate.
    #[error("the certificate {0}")]
    Certificate(String),
    /// The private key.
    #[error("the private key {0}")]
    Key(String),
    /// The CAs of clients.
    #[error("the client CA {0}")]
    ClientCa(String),
}

/// What connections are secured with.
#[derive(Debug)]
pub struct Tls {
    files: Files,
    current: RwLock<Arc<ServerConfig>>,
    /// Of what was read first: what changes before anybody watches has changed, too.
    opened: [u8; 32],
}

impl Tls {
    /// Reads the files.
    pub fn open(files: Files) -> Result<Self, Broken> {
        let text = Text::read(&files)?;
        let current = RwLock::new(text.build(&files)?);
        Ok(Self { opened: text.digest(), files, current })
    }

    /// Shakes hands. Returns what the client has proven to hold.
    pub(super) async fn accept<S>(
        &self,
        stream: S,
    ) -> io::Result<(TlsStream<S>, Option<Certificate>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long");
        let handshake = TlsAcceptor::from(current).accept(stream);
        let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(late)??;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = shown.map(certificate).transpose()?;
        Ok((stream, certificate))
    }

    /// Reads the files again whenever they change, until `stop`.
    pub async fn watch(&self, stop: &CancellationToken) {
        let mut last = self.opened;
        let mut ticks = interval(LOOK_AGAIN);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let files = self.files.clone();
            let reading = tokio::task::spawn_blocking(move || Text::read(&files)).await;
            let Ok(read) = reading else { continue };
            // A file that is being replaced may be away for a moment; the next look tells.
            let Ok(text) = read else { continue };
            let digest = text.digest();
            if last == digest {
                continue;
            }
            last = digest;
            match text.build(&self.files) {
                Ok(config) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
                    info!("new TLS certificates are in use");
                }
                Err(broken) => {
                    warn!(%broken, "the TLS certificates have changed, and the former stay in use");
                }
            }
        }
    }
}

/// What a certificate goes by.
fn certificate(der: &CertificateDer<'_>) -> io::Result<Certificate> {
    let parsed = EndEntityCert::try_from(der).map_err(io::Error::other)?;
    let itself = format!("sha256:{}", hex(&sha256(der)));
    let dns = parsed.valid_dns_names().map(|name| format!("dns:{}", name.to_ascii_lowercase()));
    let uris = parsed.valid_uri_names().map(|name| format!("uri:{name}"));
    let names = std::iter::once(itself).chain(dns).chain(uris);
    Ok(Certificate { names: names.take(MAX_NAMES).collect() })
}

/// The files' contents.
struct Text {
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    client_ca: Option<Vec<u8>>,
}

impl Text {
    fn read(files: &Files) -> Result<Self, Broken> {
        let read = |path: &Path| {
            let unreadable = |error| format!("cannot be read: {}: {error}", path.display());
            let size = fs::metadata(path).map_err(unreadable)?.len();
            if size > MAX_FILE_BYTES {
                return Err(format!("is too large for one: {}", path.display()));
            }
            fs::read(path).map_err(unreadable)
        };
        let key = match &files.key {
            Key::File(path) => read(path).map_err(Broken::Key)?,
            Key::Text(text) => text.expose().as_bytes().to_vec(),
        };
        Ok(Self {
            certificate: read(&files.certificate).map_err(Broken::Certificate)?,
            key: Zeroizing::new(key),
            client_ca: files
                .client_ca
                .as_deref()
                .map(read)
                .transpose()
                .map_err(Broken::ClientCa)?,
        })
    }

    fn digest(&self) -> [u8; 32] {
        let parts = [&self.certificate[..], &self.key, self.client_ca.as_deref().unwrap_or(b"")];
        sha256(parts.map(sha256).concat())
    }

    fn build(&self, files: &Files) -> Result<Arc<ServerConfig>, Broken> {
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let chain = certificates(&self.certificate).map_err(Broken::Certificate)?;
        // What is wrong in it is not told: the text would be the key's.
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| Broken::Key("is no private key in PEM".to_owned()))?;
        let verifier = match &self.client_ca {
            None => Arc::new(NoClientAuth),
            Some(text) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(text).map_err(Broken::ClientCa)? {
                    let bad = |error| Broken::ClientCa(format!("is not one: {error}"));
                    roots.add(root).map_err(bad)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    Arc::new(roots),
                    Arc::clone(&provider),
                );
                let verifier = match files.client_required {
                    true => verifier,
                    false => verifier.allow_unauthenticated(),
                };
                let bad = |error| Broken::ClientCa(format!("cannot be used: {error}"));
                verifier.build().map_err(bad)?
            }
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Broken::Certificate(format!("cannot be used: {error}")))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| Broken::Key(format!("does not fit the certificate: {error}")))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err("file holds none in PEM".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("is not in PEM: {error}")),
    }
}

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the files are looked at. Not by notices of the kernel: where secrets are mounted they are
/// swapped by links, or come over a network.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A chain of certificates is far smaller.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// How many names of a certificate are looked at.
const MAX_NAMES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
    use tempfile::TempDir;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_util::task::TaskTracker;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn ca() -> Issuer {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
    }

    /// A certificate of this CA, and its key.
    fn signed(ca: &Issuer, names: &[SanType]) -> (CertificateDer<'static>, KeyPair) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, ca).expect("signed").der().clone(), key)
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().expect("a name"))
    }

    fn pem(der: &CertificateDer<'_>) -> String {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }

    /// What lies in a folder for a server of this CA's.
    fn write(folder: &TempDir, ca: &Issuer) -> (Files, CertificateDer<'static>) {
        let (certificate, key) = signed(ca, &[dns("weir.test")]);
        let at = |name: &str| folder.path().join(name);
        fs::write(at("cert"), pem(&certificate)).expect("written");
        fs::write(at("key"), key.serialize_pem()).expect("written");
        let files = Files {
            certificate: at("cert"),
            key: Key::File(at("key")),
            client_ca: None,
            client_required: false,
        };
        (files, certificate)
    }

    type Identity = Option<(CertificateDer<'static>, KeyPair)>;

    /// Shakes hands with a client that trusts `ca`: what the server knows of the client, and the
    /// certificate that the client has seen.
    async fn shake(
        tls: &Tls,
        ca: &Issuer,
        identity: Identity,
    ) -> io::Result<(Option<Certificate>, CertificateDer<'static>)> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).expect("a CA");
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let client = match identity {
            None => client.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
                client.with_client_auth_cert(vec![certificate], key).expect("they fit")
            }
        };
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from("weir.test").expect("a name");
        let connecting = TlsConnector::from(Arc::new(client)).connect(name, theirs);
        let (accepted, connected) = tokio::join!(tls.accept(ours), connecting);
        let seen = connected?.get_ref().1.peer_certificates().expect("some")[0].clone();
        Ok((accepted?.1, seen.into_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn new_files_are_used_once_they_are_whole_and_fit() {
        let (folder, ca) = (TempDir::new().expect("a folder"), ca());
        let (files, first) = write(&folder, &ca);
        let tls = Arc::new(Tls::open(files.clone()).expect("good"));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (watched, stopped) = (Arc::clone(&tls), stop.clone());
        tasks.spawn(async move { watched.watch(&stopped).await });
        let seen = async || shake(&tls, &ca, None).await.expect("hands are shaken").1;
        assert_eq!(seen().await, first);

        // The key of another certificate, and nothing at all.
        fs::write(&files.certificate, pem(&signed(&ca, &[dns("weir.test")]).0)).expect("written");
        tokio::time::sleep(2 * LOOK_AGAIN).await;
        assert_eq!(seen().await, first);
        fs::remove_file(&files.certificate).expect("removed");
        tokio::time::sleep(2 * LOOK_AGAIN).await;
        assert_eq!(seen().await, first);

        let (_, second) = write(&folder, &ca);
        tokio::time::sleep(2 * LOOK_AGAIN).await;
        assert_eq!(seen().await, second);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_before_anybody_watches_is_seen() {
        let (folder, ca) = (TempDir::new().expect("a folder"), ca());
        let tls = Tls::open(write(&folder, &ca).0).expect("good");
        let (_, second) = write(&folder, &ca);
        let stop = CancellationToken::new();
        let look = async {
            tokio::time::sleep(2 * LOOK_AGAIN).await;
            stop.cancel();
        };
        tokio::join!(tls.watch(&stop), look);
        assert_eq!(shake(&tls, &ca, None).await.expect("hands are shaken").1, second);
    }

    #[tokio::test]
    async fn a_clients_certificate_says_what_it_goes_by_if_its_ca_is_the_right_one() {
        let (folder, ours, clients, others) = (TempDir::new().expect("a folder"), ca(), ca(), ca());
        let (mut files, _) = write(&folder, &ours);
        let path = folder.path().join("clients");
        fs::write(&path, pem(clients.der())).expect("written");
        files.client_ca = Some(path);
        let names = [dns("Ann.Test"), SanType::URI("spiffe://test/ann".try_into().expect("a URI"))];
        for required in [false, true] {
            files.client_required = required;
            let tls = Tls::open(files.clone()).expect("good");
            let (certificate, key) = signed(&clients, &names);
            let hex = hex(&sha256(&certificate));
            let shown = shake(&tls, &ours, Some((certificate, key))).await.expect("let in").0;
            let expected = [&format!("sha256:{hex}"), "dns:ann.test", "uri:spiffe://test/ann"];
            assert_eq!(shown.expect("one is shown").names, expected);

            let stranger = signed(&others, &names);
            assert!(shake(&tls, &ours, Some(stranger)).await.is_err(), "of another CA");
            match shake(&tls, &ours, None).await {
                Ok((shown, _)) => assert!(!required && shown.is_none()),
                Err(_) => assert!(required),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_never_comes_ends() {
        let (folder, ca) = (TempDir::new().expect("a folder"), ca());
        let tls = Tls::open(write(&folder, &ca).0).expect("good");
        let (ours, _theirs) = tokio::io::duplex(64);
        let begin = tokio::time::Instant::now();
        let ended = tls.accept(ours).await.map(|_| ()).map_err(|error| error.kind());
        assert_eq!((ended, begin.elapsed()), (Err(io::ErrorKind::TimedOut), HANDSHAKE_TIMEOUT));
    }

    #[test]
    fn what_is_no_certificate_is_told_and_never_shown() {
        let (folder, ca) = (TempDir::new().expect("a folder"), ca());
        let (files, _) = write(&folder, &ca);
        let secret = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        let at = |name: &str| folder.path().join(name);
        fs::write(at("junk"), secret).expect("written");
        let (key, other) = (KeyPair::generate().expect("a key"), at("other"));
        fs::write(&other, key.serialize_pem()).expect("written");
        let told = |files: Files| {
            let broken = Tls::open(files).expect_err("broken").to_string();
            broken.replace(&folder.path().display().to_string(), "DIR")
        };
        let key_of = |path: PathBuf| Files { key: Key::File(path), ..files.clone() };
        assert_eq!(
            told(key_of(at("junk"))),
            "the private key does not fit the certificate: unexpected error: failed to parse private key as RSA, ECDSA, or EdDSA"
        );
        assert_eq!(told(key_of(at("cert"))), "the private key is no private key in PEM");
        assert_eq!(
            told(key_of(at("gone"))),
            "the private key cannot be read: DIR/gone: No such file or directory (os error 2)"
        );
        assert!(told(key_of(other)).starts_with("the private key does not fit the certificate: "));
        let certificate = Files { certificate: at("junk"), ..files.clone() };
        assert_eq!(told(certificate), "the certificate file holds none in PEM");
        let client_ca = Files { client_ca: Some(at("key")), ..files.clone() };
        assert_eq!(told(client_ca), "the client CA file holds none in PEM");
    }
}
