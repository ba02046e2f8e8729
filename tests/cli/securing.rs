//! `weir serve` over TLS, and clients that show certificates instead of keys.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;

use insta::assert_snapshot;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{HOUSE, folder, serve, weir};

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

/// A server over TLS and whoever signed what it takes.
struct Secured {
    weir: Child,
    host: String,
    ours: Issuer,
    clients: Issuer,
    _folder: tempfile::TempDir,
}

/// The house's rules, where the visitor has a certificate beside the key.
fn config() -> String {
    let (upstream, client) = HOUSE.split_once("[clients.visitor]").expect("a visitor");
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
        let (folder, ours, clients) = (folder(&config()), ca(), ca());
        write_certificates(folder.path(), &ours, &clients);
        let (weir, _, ready) = serve(folder.path());
        let (_, rest) = ready.split_once("\"endpoint\":\"https://").expect("an endpoint");
        let host = rest.split_once("/mcp").expect("a path").0.to_owned();
        Self { weir, host, ours, clients, _folder: folder }
    }

    /// Lists prompts; returns the status and the names, or why no answer came.
    fn list(
        &self,
        identity: Option<(CertificateDer<'static>, KeyPair)>,
        key: Option<&str>,
    ) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(self.ours.der().clone()).expect("a CA");
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
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
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::new(client), name).expect("a client");
        let stream = TcpStream::connect(&self.host).expect("it listens");
        let mut stream = StreamOwned::new(connection, stream);
        let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{{"_meta":{meta}}}}}"#
        );
        let host = &self.host;
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: prompts/list\r\n{key}Connection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if let Err(error) = stream.write_all((head + &body).as_bytes()) {
            return format!("refused: {}", error.kind());
        }
        let mut reply = Vec::new();
        // The end of the connection is told, or not: the reply says how long it is.
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let Some(status) = reply.get(9..12) else { return "refused in the handshake".to_owned() };
        let names = reply.split("\"name\":\"").skip(1).filter_map(|rest| rest.split('"').next());
        let names: Vec<_> = names.filter(|name| name.starts_with("house")).collect();
        format!("{status} {}", names.join(" ")).trim_end().to_owned()
    }

    fn identity(&self, ca: &Issuer, name: &str) -> Option<(CertificateDer<'static>, KeyPair)> {
        let (_, certificate, key) = signed(ca, name);
        Some((certificate, key))
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}

#[test]
fn a_certificate_opens_the_role_of_its_holder_and_of_nobody_else() {
    let server = Secured::start();
    let of = |name| server.identity(&server.clients, name);
    assert_eq!(server.list(None, None), "401");
    assert_eq!(server.list(of("visitor.test"), None), "200 house__greeting");
    // Its rules are about tools.
    assert_eq!(server.list(of("farm.test"), None), "200");
    assert_eq!(server.list(of("nobody.test"), None), "401");
    // Who shows a key means the key.
    assert_eq!(server.list(of("visitor.test"), Some("wrong")), "401");
    let stranger = server.identity(&ca(), "visitor.test");
    assert_eq!(server.list(stranger, None), "refused in the handshake");

    let mut plain = TcpStream::connect(&server.host).expect("it listens");
    plain.write_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("room");
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&said));
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
