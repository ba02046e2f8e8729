//! `weir serve` over TLS, and clients that authenticate with certificates instead of keys.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use insta::assert_snapshot;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use super::{LIBRARY_CONFIG, folder, serve, weir};
use crate::lab::blocking::pause;
use crate::lab::night::bound;
use crate::lab::weir::Weir;

const TLS: &str = r#"
[server]
listen = "127.0.0.1:0"
[server.tls]
cert = "tls.crt"
key = { file = "tls.key" }
client_ca = "clients.crt"
[log]
format = "json"
[clients.farm]
certificates = ["dns:farm.test"]
tools.allow = ["house/*"]
[clients.visitor]
certificates = ["uri:spiffe://test/visitor", "dns:visitor.test"]
"#;

type Issuer = CertifiedIssuer<'static, KeyPair>;
type Identity = (CertificateDer<'static>, KeyPair);
type Secure = StreamOwned<ClientConnection, TcpStream>;

/// Time within which a connection that a certificate no longer allows has to end. By day, on a busy
/// machine, it only has to end.
fn soon() -> Duration {
    bound(30_000, 8_000)
}

/// Maximum wait for an expected event.
const LONGEST: Duration = Duration::from_secs(60);

fn ca() -> Issuer {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

fn signed(ca: &Issuer, name: &str) -> (String, CertificateDer<'static>, KeyPair) {
    let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, ca).expect("signed");
    (certificate.pem(), certificate.der().clone(), key)
}

/// Server over TLS, and the authorities that signed its own and its clients' certificates.
struct Secured {
    _weir: Weir,
    host: String,
    ours: Issuer,
    clients: Issuer,
    folder: tempfile::TempDir,
}

/// The policy, with a certificate beside the key of the visitor.
fn config() -> String {
    let (upstream, client) = LIBRARY_CONFIG.split_once("[clients.visitor]").expect("a visitor");
    format!("{upstream}{TLS}{client}")
}

fn write_certificates(folder: &Path, ours: &Issuer, clients: &Issuer) {
    let (certificate, _, key) = signed(ours, "localhost");
    let write = |name: &str, text: String| fs::write(folder.join(name), text).expect("written");
    write("tls.crt", certificate);
    write("tls.key", key.serialize_pem());
    write("clients.crt", clients.pem());
    use std::os::unix::fs::PermissionsExt;
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(folder.join("tls.key"), private).expect("ours");
}

impl Secured {
    fn start() -> Self {
        Self::start_with(&config())
    }

    fn start_with(config: &str) -> Self {
        let (folder, ours, clients) = (folder(config), ca(), ca());
        write_certificates(folder.path(), &ours, &clients);
        let weir = serve(folder.path());
        let ready = weir.logged("ready").expect("it is ready");
        let endpoint = ready["endpoint"].as_str().expect("an endpoint");
        assert!(endpoint.starts_with("https://"), "{ready}");
        let host = weir.address.clone();
        Self { _weir: weir, host, ours, clients, folder }
    }

    /// Lists prompts on a new connection; returns the status and the names, or the reason for no
    /// response.
    fn list(&self, identity: Option<Identity>, key: Option<&str>) -> String {
        self.list_with(&self.client(identity, &[&TLS12, &TLS13]), key)
    }

    /// Lists prompts as a client that caches its TLS sessions.
    fn list_with(&self, client: &Arc<ClientConfig>, key: Option<&str>) -> String {
        let mut stream = self.connect(client);
        if let Err(error) = self.write_list(&mut stream, key, "Connection: close\r\n") {
            return format!("refused: {}", error.kind());
        }
        let mut reply = Vec::new();
        // TLS close_notify may be missing, because the response states its length.
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let Some(status) = reply.get(9..12) else { return "refused in the handshake".to_owned() };
        let names = reply.split("\"name\":\"").skip(1).filter_map(|rest| rest.split('"').next());
        let names: Vec<_> = names.filter(|name| name.starts_with("house")).collect();
        format!("{status} {}", names.join(" ")).trim_end().to_owned()
    }

    /// Client that trusts the server and presents this certificate.
    fn client(
        &self,
        identity: Option<Identity>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ours.der().clone()).expect("a CA");
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => client.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
                client.with_client_auth_cert(vec![certificate], key).expect("they fit")
            }
        })
    }

    fn connect(&self, client: &Arc<ClientConfig>) -> Secure {
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::clone(client), name).expect("a client");
        let stream = TcpStream::connect(&self.host).expect("it listens");
        stream.set_read_timeout(Some(LONGEST)).expect("a time");
        StreamOwned::new(connection, stream)
    }

    fn write_list(&self, to: &mut Secure, key: Option<&str>, headers: &str) -> io::Result<()> {
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        self.write(to, "prompts/list", "", &format!("{key}{headers}"))
    }

    /// Writes a request of the newest revision.
    fn write(&self, to: &mut Secure, method: &str, params: &str, headers: &str) -> io::Result<()> {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{meta}}}}}"#
        );
        let (host, length) = (&self.host, body.len());
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n{headers}Content-Length: {length}\r\n\r\n"
        );
        to.write_all((head + &body).as_bytes())
    }

    /// Lists prompts on a persistent connection; returns the head of the response, in lower case.
    fn list_on(&self, stream: &mut Secure) -> io::Result<String> {
        self.write_list(stream, None, "")?;
        let head = read_head(stream)?;
        let length = head.split("content-length: ").nth(1).and_then(|it| it.split("\r\n").next());
        let length = length.and_then(|it| it.parse().ok()).expect("a length");
        stream.read_exact(&mut vec![0; length])?;
        Ok(head)
    }

    /// Lists prompts on a connection again and again until the server closes it. Returns the head
    /// of a response other than 200, if there was one before the close.
    fn list_until_closed(&self, stream: &mut Secure) -> Option<String> {
        let start = Instant::now();
        loop {
            match self.list_on(stream) {
                Ok(head) if head.starts_with("http/1.1 200") => {}
                Ok(head) => return Some(head),
                Err(error) => {
                    assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "it is answered or closed");
                    return None;
                }
            }
            assert!(start.elapsed() < LONGEST, "it is served for {LONGEST:?}");
            pause();
        }
    }

    /// Opens a `subscriptions/listen` stream on a connection of its own and waits for the
    /// acknowledgment.
    fn listen(&self, client: &Arc<ClientConfig>) -> Secure {
        let mut stream = self.connect(client);
        let params = r#""notifications":{"promptsListChanged":true},"#;
        self.write(&mut stream, "subscriptions/listen", params, "").expect("written");
        let head = read_head(&mut stream).expect("an answer");
        assert!(head.starts_with("http/1.1 200"), "{head}");
        stream
    }

    fn identity(&self, ca: &Issuer, name: &str) -> Option<Identity> {
        let (_, certificate, key) = signed(ca, name);
        Some((certificate, key))
    }
}

/// Reads a head up to its empty line; in lower case.
fn read_head(stream: &mut Secure) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).to_lowercase())
}

fn is_refused_and_closed(head: &str) -> bool {
    head.starts_with("http/1.1 401") && head.contains("connection: close")
}

/// Whether the server has closed a connection without sending more than it sends now.
fn is_closed(mut stream: Secure) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::UnexpectedEof,
    }
}

#[test]
fn a_certificate_opens_the_role_of_its_holder_and_of_nobody_else() {
    let server = Secured::start();
    let of = |name| server.identity(&server.clients, name);
    assert_eq!(server.list(None, None), "401");
    assert_eq!(server.list(of("visitor.test"), None), "200 house__greeting");
    // The rules of this role are about tools.
    assert_eq!(server.list(of("farm.test"), None), "200");
    assert_eq!(server.list(of("nobody.test"), None), "401");
    // A presented key takes precedence over the certificate.
    assert_eq!(server.list(of("visitor.test"), Some("wrong")), "401");
    let stranger = server.identity(&ca(), "visitor.test");
    assert_eq!(server.list(stranger, None), "refused in the handshake");

    let mut plain = TcpStream::connect(&server.host).expect("it listens");
    plain.write_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("room");
    let mut output = Vec::new();
    let _ = plain.read_to_end(&mut output);
    assert!(!output.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&output));
}

#[test]
fn a_certificate_that_expires_ends_its_connections_streams_and_tls_sessions() {
    let server = Secured::start();
    let mut params = CertificateParams::new(vec!["visitor.test".to_owned()]).expect("a name");
    // Long enough for six handshakes on a busy machine.
    let until = SystemTime::now() + Duration::from_secs(20);
    params.not_after = until.into();
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &server.clients).expect("signed").der().clone();
    let key_der = key.serialize_der();
    let again = || KeyPair::try_from(key_der.as_slice()).expect("a key");

    let clients = [&TLS12, &TLS13].map(|version| {
        let client = server.client(Some((certificate.clone(), again())), &[version]);
        let stream = server.listen(&client);
        let [kept, idle] = [(); 2].map(|()| {
            let mut connection = server.connect(&client);
            let head = server.list_on(&mut connection).expect("an answer");
            assert!(head.starts_with("http/1.1 200"), "{head}");
            connection
        });
        (stream, kept, idle, client)
    });
    for (stream, mut kept, idle, client) in clients {
        let head = server.list_until_closed(&mut kept);
        assert!(SystemTime::now() >= until - Duration::from_secs(1), "it was good until then");
        assert!(head.as_deref().is_none_or(is_refused_and_closed), "{head:?}");
        assert!(is_closed(kept) && is_closed(idle) && is_closed(stream));
        let late = SystemTime::now().duration_since(until).unwrap_or_default();
        assert!(late < soon(), "after {late:?}");
        // Neither a ticket nor a session id nor a new handshake is accepted.
        let refused = server.list_with(&client, None);
        assert!(refused.starts_with("refused"), "{refused}");
    }
}

#[test]
fn a_client_ca_that_is_replaced_ends_the_connections_that_it_alone_vouched_for() {
    let server = Secured::start();
    let (stays, comes) = (ca(), ca());
    let folder = server.folder.path();
    let write = |cas: [&Issuer; 2]| {
        fs::write(folder.join("clients.crt"), cas.map(|ca| ca.pem()).concat()).expect("written");
    };
    write([&server.clients, &stays]);
    let client = |ca| server.client(server.identity(ca, "visitor.test"), &[&TLS13]);
    let (first, second) = (client(&server.clients), client(&stays));
    // No connection succeeds until the second CA is loaded.
    let start = Instant::now();
    while server.list_with(&second, None) != "200 house__greeting" {
        assert!(start.elapsed() < LONGEST, "the CA is taken up");
        pause();
    }
    let (mut withdrawn, mut trusted) = (server.connect(&first), server.connect(&second));
    let (stream, stays_open) = (server.listen(&first), server.listen(&second));
    assert!(server.list_on(&mut trusted).expect("an answer").starts_with("http/1.1 200"));

    write([&comes, &stays]);
    let replaced = Instant::now();
    let head = server.list_until_closed(&mut withdrawn);
    assert!(head.as_deref().is_none_or(is_refused_and_closed), "{head:?}");
    assert!(is_closed(withdrawn) && is_closed(stream));
    assert!(replaced.elapsed() < soon(), "after {:?}", replaced.elapsed());
    assert_eq!(server.list_with(&first, None), "refused in the handshake");
    assert!(server.list_on(&mut trusted).expect("an answer").starts_with("http/1.1 200"));
    let mut later = server.connect(&client(&comes));
    assert!(server.list_on(&mut later).expect("an answer").starts_with("http/1.1 200"));
    stays_open.sock.set_read_timeout(Some(Duration::from_millis(1))).expect("a time");
    assert!(!is_closed(stays_open), "its CA is still there");
}

#[test]
fn health_takes_a_tls_handshake_for_an_answer_where_operators_have_no_listener() {
    let port = crate::lab::ports::free_port();
    let listen = format!("listen = \"127.0.0.1:{port}\"");
    let text = config().replace("listen = \"127.0.0.1:0\"", &listen);
    let text = text.replace("[log]", "[admin]\nenabled = false\n[log]");
    let text = text.replace("client_ca =", "client_certificates = \"required\"\nclient_ca =");
    let server = Secured::start_with(&text);
    let folder = server.folder.path();
    assert_eq!(weir(folder, &["health"]), (0, "ready\n".to_owned(), String::new()));
    let other = folder.join("other.toml");
    fs::write(&other, text.replace(&listen, "listen = \"127.0.0.1:1\"")).expect("written");
    assert_eq!(weir(folder, &["health", "--config", "other.toml"]).0, 4);
}

#[test]
fn what_is_wrong_with_certificates_is_told_at_its_place() {
    let folder = folder(&config().replace("dns:farm.test", "farm.test"));
    write_certificates(folder.path(), &ca(), &ca());
    fs::write(folder.path().join("clients.crt"), "junk").expect("written");
    let (code, _, err) = weir(folder.path(), &["check", "--offline"]);
    assert_eq!(code, 78);
    assert_snapshot!(err);
}
