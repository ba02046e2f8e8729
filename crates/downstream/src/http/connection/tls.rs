//! TLS for clients: server certificate, private key, and verification of client certificates.
//!
//! Invariants: the files are read again when they change, and the former ones stay in use while the
//! new ones are incomplete or do not match; a handshake takes a bounded time; a client certificate
//! that the CA did not sign, or that is outside its validity period, ends the handshake, and later
//! the connection.

mod clients;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use zeroize::Zeroizing;

use clients::{ClientCertificates, Verifier, is_signed};
use weir_access::policy::Certificate;
use weir_base::files::regular_file;
use weir_base::secrets::pem;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::sha256::sha256;
use weir_base::tasks::sync::RwLock;

/// TLS files.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsFiles {
    /// Server certificate and intermediates, in PEM.
    pub certificate: PathBuf,
    /// Private key of the server certificate, in PEM.
    pub key: TlsKey,
    /// CAs of client certificates, in PEM; without it no client certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// True if every client must present a certificate.
    pub client_required: bool,
}

/// Source of the private key.
#[derive(Debug, Clone, PartialEq)]
pub enum TlsKey {
    /// A file, which is read again when it changes.
    File(PathBuf),
    /// The key itself.
    Text(Secret),
}

/// Unusable TLS file, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsFileError {
    /// Server certificate.
    #[error("the certificate {0}")]
    Certificate(String),
    /// Private key.
    #[error("the private key {0}")]
    Key(String),
    /// CAs of client certificates.
    #[error("the client CA {0}")]
    ClientCa(String),
}

/// TLS acceptor that follows changes of its files.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Arc<ActiveTls>>,
    clients: Arc<ClientCertificates>,
    /// Digest of the files that were read first: a change before the watch starts is detected, too.
    initial_digest: [u8; 32],
}

/// Configuration of handshakes, until a file changes.
#[derive(Debug)]
struct ActiveTls {
    config: Arc<ServerConfig>,
    /// Verifier of client certificates and the hash of its CAs; `None` if no certificate is
    /// requested.
    verifier: Option<(Verifier, [u8; 32])>,
    /// Times from which the server certificate, one of its intermediates, and each CA of client
    /// certificates are invalid.
    chain_ends: Vec<SystemTime>,
    ca_ends: Vec<SystemTime>,
}

impl Tls {
    /// Reads the files.
    pub fn open(files: TlsFiles) -> Result<Self, TlsFileError> {
        let text = PemFiles::read(&files)?;
        let current = RwLock::new(Arc::new(text.build(&files)?));
        Ok(Self { initial_digest: text.digest(), files, current, clients: Arc::default() })
    }

    /// Returns the times at which the server certificate or one of its intermediates expires, and
    /// the next CA of client certificates. If all CAs have expired, that of the last one is
    /// returned.
    pub fn expiries(&self, now: SystemTime) -> (Option<SystemTime>, Option<SystemTime>) {
        let current = self.current();
        let cas = current.ca_ends.iter().copied();
        let next_ca = cas.clone().filter(|end| *end > now).min().or_else(|| cas.max());
        (current.chain_ends.iter().copied().min(), next_ca)
    }

    fn current(&self) -> Arc<ActiveTls> {
        Arc::clone(&self.current.read())
    }

    /// Performs a handshake within a time limit. Returns the verified client certificate.
    pub(crate) async fn accept<S>(
        &self,
        stream: S,
        handshake_timeout: Duration,
    ) -> io::Result<(TlsStream<S>, Option<Arc<Certificate>>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let current = self.current();
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long");
        let handshake = TlsAcceptor::from(Arc::clone(&current.config)).accept(stream);
        let stream = timeout(handshake_timeout, handshake).await.map_err(late)??;
        let Some(chain) = stream.get_ref().1.peer_certificates() else { return Ok((stream, None)) };
        let certificate = self.clients.add(chain)?;
        // If the CAs changed during the handshake, the check against the new CAs may have run
        // before this certificate was added.
        if let Some(verifier) = self.current().changed_since(&current)
            && !is_signed(chain, &verifier)
        {
            return Err(io::Error::other("the CA of the client's certificate was replaced"));
        }
        Ok((stream, Some(certificate)))
    }

    /// Verifies the chain of a client whose request another replica has forwarded.
    pub(crate) fn verify_forwarded(
        &self,
        chain: &[CertificateDer<'static>],
    ) -> Option<Arc<Certificate>> {
        let current = self.current();
        let (verifier, _) = current.verifier.as_ref()?;
        let is_good = is_signed(chain, verifier);
        is_good.then(|| self.clients.add(chain).ok()).flatten()
    }

    /// Reads the files again when they change, and ends the use of client certificates that have
    /// become invalid, until `stop`.
    pub(crate) async fn watch(&self, stop: &CancellationToken) {
        let mut last = self.initial_digest;
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let files = self.files.clone();
            let reading = tokio::task::spawn_blocking(move || PemFiles::read(&files)).await;
            // A file that is being replaced may be missing for a moment; the next round reads it.
            let changed = match reading {
                Ok(Ok(text)) => self.replace(&text, &mut last),
                Ok(Err(_)) | Err(_) => None,
            };
            let clients = Arc::clone(&self.clients);
            // Verifying thousands of certificates takes a processor for a second.
            let ending = move || clients.end_invalid(changed.as_ref());
            if let Err(error) = tokio::task::spawn_blocking(ending).await {
                warn!(%error, "cannot check client certificates of open connections");
            }
        }
    }

    /// Uses these texts if they differ from the `last` ones and are valid. Returns the verifier of
    /// client certificates if it has changed.
    fn replace(&self, text: &PemFiles, last: &mut [u8; 32]) -> Option<Verifier> {
        let digest = text.digest();
        if std::mem::replace(last, digest) == digest {
            return None;
        }
        match text.build(&self.files) {
            Ok(next) => {
                let next = Arc::new(next);
                let mut current = self.current.write();
                let before = std::mem::replace(&mut *current, Arc::clone(&next));
                drop(current);
                info!("TLS certificates reloaded");
                next.changed_since(&before)
            }
            Err(broken) => {
                warn!(%broken, "changed TLS certificates are unusable, former ones stay in use");
                None
            }
        }
    }
}

impl ActiveTls {
    /// Returns the verifier of client certificates if its CAs differ from those of `before`.
    fn changed_since(&self, before: &Self) -> Option<Verifier> {
        let cas = |it: &Self| it.verifier.as_ref().map(|(_, cas)| *cas);
        let (verifier, _) = self.verifier.as_ref().filter(|_| cas(self) != cas(before))?;
        Some(Arc::clone(verifier))
    }
}

/// Contents of the files.
struct PemFiles {
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    client_ca: Option<Vec<u8>>,
}

impl PemFiles {
    fn read(files: &TlsFiles) -> Result<Self, TlsFileError> {
        let read = |path: &Path| {
            regular_file::read(path, MAX_FILE_BYTES).map_err(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => {
                    format!("is larger than 1 MiB: {}", path.display())
                }
                _ => format!("cannot be read: {}: {error}", path.display()),
            })
        };
        let key = match &files.key {
            TlsKey::File(path) => read(path).map_err(TlsFileError::Key)?,
            TlsKey::Text(text) => text.expose().as_bytes().to_vec(),
        };
        Ok(Self {
            certificate: read(&files.certificate).map_err(TlsFileError::Certificate)?,
            key: Zeroizing::new(key),
            client_ca: files
                .client_ca
                .as_deref()
                .map(read)
                .transpose()
                .map_err(TlsFileError::ClientCa)?,
        })
    }

    fn digest(&self) -> [u8; 32] {
        let parts = [&self.certificate[..], &self.key, self.client_ca.as_deref().unwrap_or(b"")];
        sha256(parts.map(sha256).concat())
    }

    fn build(&self, files: &TlsFiles) -> Result<ActiveTls, TlsFileError> {
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let chain = pem::certificates(&self.certificate).map_err(TlsFileError::Certificate)?;
        let chain_ends = chain.iter().filter_map(pem::end_of).collect();
        let mut ca_ends = Vec::new();
        let key = pem::private_key(&self.key).map_err(TlsFileError::Key)?;
        let verifier: Option<(Verifier, [u8; 32])> = match &self.client_ca {
            None => None,
            Some(text) => {
                let mut roots = RootCertStore::empty();
                for root in pem::certificates(text).map_err(TlsFileError::ClientCa)? {
                    ca_ends.extend(pem::end_of(&root));
                    let bad = |error| TlsFileError::ClientCa(format!("is invalid: {error}"));
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
                let bad = |error| TlsFileError::ClientCa(format!("cannot be used: {error}"));
                Some((verifier.build().map_err(bad)?, sha256(text)))
            }
        };
        let of_clients = verifier.as_ref().map(|(verifier, _)| Arc::clone(verifier));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsFileError::Certificate(format!("cannot be used: {error}")))?
            .with_client_cert_verifier(of_clients.unwrap_or_else(|| Arc::new(NoClientAuth)))
            .with_single_cert(chain, key)
            .map_err(|error| TlsFileError::Key(format!("does not fit the certificate: {error}")))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if verifier.is_some() {
            // A resumed TLS session carries the certificate of its first handshake, unverified: it
            // may have expired or been renewed meanwhile. So resumption is disabled, in TLS 1.2 and
            // 1.3.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(ActiveTls { config: Arc::new(config), verifier, chain_ends, ca_ends })
    }
}

/// Interval of the file checks. File system notifications are not enough: mounted secrets are
/// swapped by symbolic links, or are on a network file system.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Size limit per file; a certificate chain is far smaller.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::http::connection::tls::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
    use tempfile::TempDir;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;
    use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio_util::task::TaskTracker;
    use weir_base::text::hex::hex;

    const PATIENCE: Duration = Duration::from_secs(10);

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

    /// Writes the files of a server with a certificate of this CA.
    fn write(folder: &TempDir, ca: &Issuer) -> (TlsFiles, CertificateDer<'static>) {
        let (certificate, key) = signed(ca, &[dns("weir.test")]);
        let at = |name: &str| folder.path().join(name);
        fs::write(at("cert"), pem(&certificate)).expect("written");
        fs::write(at("key"), key.serialize_pem()).expect("written");
        let files = TlsFiles {
            certificate: at("cert"),
            key: TlsKey::File(at("key")),
            client_ca: None,
            client_required: false,
        };
        (files, certificate)
    }

    type Identity = Option<(CertificateDer<'static>, KeyPair)>;

    /// Performs a handshake with a client that trusts `ca`; returns the client certificate that the
    /// server has verified, and the server certificate that the client has received.
    async fn shake(
        tls: &Tls,
        ca: &Issuer,
        identity: Identity,
    ) -> io::Result<(Option<Arc<Certificate>>, CertificateDer<'static>)> {
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
        let (accepted, connected) = tokio::join!(tls.accept(ours, PATIENCE), connecting);
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

        // A certificate that does not match the key, and then a missing file.
        fs::write(&files.certificate, pem(&signed(&ca, &[dns("weir.test")]).0)).expect("written");
        tokio::time::sleep(2 * CHECK_INTERVAL).await;
        assert_eq!(seen().await, first);
        fs::remove_file(&files.certificate).expect("removed");
        tokio::time::sleep(2 * CHECK_INTERVAL).await;
        assert_eq!(seen().await, first);

        let (_, second) = write(&folder, &ca);
        tokio::time::sleep(2 * CHECK_INTERVAL).await;
        assert_eq!(seen().await, second);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_expiry_of_certificates_is_that_of_their_files() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let ca_until = |end: u64| {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_after = at(end).into();
            let key = KeyPair::generate().expect("a key");
            CertifiedIssuer::self_signed(params, key).expect("signed")
        };
        let (folder, ca) = (TempDir::new().expect("a folder"), ca());
        let certified = |end: u64| {
            let mut params = CertificateParams::default();
            params.not_after = at(end).into();
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &ca).expect("signed");
            let intermediate = ca_until(5_000_000_000);
            let chain = [pem(certificate.der()), pem(intermediate.der())].concat();
            (chain, key.serialize_pem())
        };
        let place = |name: &str| folder.path().join(name);
        let (mut files, _) = write(&folder, &ca);
        let put = |end: u64| {
            let (chain, key) = certified(end);
            fs::write(place("cert"), chain).expect("written");
            fs::write(place("key"), key).expect("written");
        };
        put(4_000_000_000);
        let cas = [2_000_000_000, 3_000_000_000].map(|end| pem(ca_until(end).der())).concat();
        fs::write(place("cas"), cas).expect("written");
        files.client_ca = Some(place("cas"));
        let tls = Arc::new(Tls::open(files.clone()).expect("good"));
        // The last second of the period counts as valid.
        for (now, next_ca) in [
            (1_900_000_000, 2_000_000_001),
            (2_000_000_001, 3_000_000_001),
            (3_500_000_000, 3_000_000_001),
        ] {
            let expected = (Some(at(4_000_000_001)), Some(at(next_ca)));
            assert_eq!(tls.expiries(at(now)), expected, "at {now}");
        }
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (watched, stopped) = (Arc::clone(&tls), stop.clone());
        tasks.spawn(async move { watched.watch(&stopped).await });
        put(6_000_000_000);
        tokio::time::sleep(2 * CHECK_INTERVAL).await;
        assert_eq!(tls.expiries(at(0)).0, Some(at(5_000_000_001)), "that of the intermediate");
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        files.client_ca = None;
        let without_ca = Tls::open(files).expect("good");
        assert_eq!(without_ca.expiries(at(0)).1, None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_before_anybody_watches_is_seen() {
        let (folder, ca) = (TempDir::new().expect("a folder"), ca());
        let tls = Tls::open(write(&folder, &ca).0).expect("good");
        let (_, second) = write(&folder, &ca);
        let stop = CancellationToken::new();
        let look = async {
            tokio::time::sleep(2 * CHECK_INTERVAL).await;
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
        let ended = tls.accept(ours, PATIENCE).await.map(|_| ()).map_err(|error| error.kind());
        assert_eq!((ended, begin.elapsed()), (Err(io::ErrorKind::TimedOut), PATIENCE));
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
        let error_of = |files: TlsFiles| {
            let broken = Tls::open(files).expect_err("broken").to_string();
            broken.replace(&folder.path().display().to_string(), "DIR")
        };
        let key_of = |path: PathBuf| TlsFiles { key: TlsKey::File(path), ..files.clone() };
        assert_eq!(
            error_of(key_of(at("junk"))),
            "the private key does not fit the certificate: unexpected error: failed to parse private key as RSA, ECDSA, or EdDSA"
        );
        assert_eq!(error_of(key_of(at("cert"))), "the private key is not a private key in PEM");
        assert_eq!(
            error_of(key_of(at("gone"))),
            "the private key cannot be read: DIR/gone: No such file or directory (os error 2)"
        );
        assert!(
            error_of(key_of(other)).starts_with("the private key does not fit the certificate: ")
        );
        let certificate = TlsFiles { certificate: at("junk"), ..files.clone() };
        assert_eq!(error_of(certificate), "the certificate file contains none in PEM");
        let client_ca = TlsFiles { client_ca: Some(at("key")), ..files.clone() };
        assert_eq!(error_of(client_ca), "the client CA file contains none in PEM");
    }
}
