//! Weir reaches its upstreams through a real proxy, and shows them a certificate.
//!
//! Requests to this machine use no proxy, so the upstreams are called by `0.0.0.0`, which leads
//! here, too.

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fleet::{Fleet, soon};
use crate::lab::ports::free_port;
use crate::lab::weir::Weir;
use crate::parts::part;

/// tinyproxy that admits one user.
struct Proxy {
    folder: TempDir,
    port: u16,
    _child: Child,
}

impl Proxy {
    async fn start() -> Self {
        let (folder, port) = (TempDir::new().unwrap(), free_port());
        let log = folder.path().join("log");
        let config = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 60\nLogFile \"{}\"\nLogLevel Connect\n\
             BasicAuth weir hunter2\nMaxClients 20\n",
            log.display()
        );
        let path = folder.path().join("tinyproxy.conf");
        std::fs::write(&path, config).unwrap();
        let mut proxy = Command::new(part("bin/tinyproxy"));
        proxy.arg("-d").arg("-c").arg(path).kill_on_drop(true);
        let child = proxy.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let listening = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        soon(listening).await;
        Self { folder, port, _child: child }
    }

    fn url(&self, password: &str) -> String {
        format!("http://weir:{password}@127.0.0.1:{}", self.port)
    }

    /// Returns the first lines of all requests so far.
    fn requests(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
        let requests = log.lines().filter(|line| line.contains("HTTP/1.1"));
        requests.map(|line| line.split("): ").last().unwrap_or_default().to_owned()).collect()
    }
}

/// Writes a CA, and a certificate of the server and of a client, each with its key.
pub(crate) fn write_certificates(folder: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate for self-signed if it has the name of its issuer.
    params.distinguished_name.push(DnType::CommonName, "Authority of a test");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca.crt"), ca.pem()).unwrap();
    let server = SanType::IpAddress("0.0.0.0".parse().unwrap());
    let client = SanType::DnsName("weir.test".try_into().unwrap());
    for (name, of) in [("server", server), ("client", client)] {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![of];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &ca).unwrap();
        std::fs::write(folder.join(format!("{name}.crt")), signed.pem()).unwrap();
        let path = folder.join(format!("{name}.key"));
        std::fs::write(&path, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    }
}

/// Weir with one prompt, and its URL for others. With `tls` it demands a certificate of clients.
async fn inner(tls: &str) -> (Weir, String, Fleet) {
    let (fleet, port) = (Fleet::plain(""), free_port());
    write_certificates(fleet.folder());
    let scheme = if tls.is_empty() { "http" } else { "https" };
    let config = format!(
        r#"
        [server]
        listen = "127.0.0.1:{port}"
        public_url = "{scheme}://0.0.0.0:{port}"
        {tls}
        [log]
        format = "json"
        [upstreams.house]
        prompts_dir = "prompts"
        "#
    );
    std::fs::write(fleet.folder().join("weir.toml"), config).unwrap();
    std::fs::create_dir(fleet.folder().join("prompts")).unwrap();
    std::fs::write(fleet.folder().join("prompts/oil.md"), "---\ndescription: Oil\n---\nOil.\n")
        .unwrap();
    let mut served = fleet.serve().await;
    served.log.logged("upstream listed", "house").await;
    (served, format!("{scheme}://0.0.0.0:{port}/mcp"), fleet)
}

/// Lists the items of an upstream. Returns the output, or what is said about the failure.
async fn list(url: &str, more: &str, variables: &[(&str, &str)]) -> Result<String, String> {
    let outer = Fleet::plain(&format!("[upstreams.inner]\nurl = \"{url}\"\n{more}"));
    let mut command = outer.command(&["list", "prompts", "--json"]);
    for name in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.envs(variables.iter().copied());
    let output = soon(command.output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

fn is_listed(listed: &Result<String, String>) -> bool {
    listed.as_ref().is_ok_and(|listed| listed.contains("inner__house__oil"))
}

const CLIENT_TLS: &str = r#"
    [server.tls]
    cert = "server.crt"
    key = { file = "server.key" }
    client_ca = "ca.crt"
    client_certificates = "required"
    [roles.all]
    prompts.allow = ["*"]
    [clients.outer]
    role = "all"
    certificates = ["dns:weir.test"]
"#;

#[tokio::test]
async fn a_protected_upstream_is_reached_through_a_proxy_that_sees_its_name_only() {
    let (served, url, files) = inner(CLIENT_TLS).await;
    let proxy = Proxy::start().await;
    let egress = |password: &str| format!("[egress]\nproxy = \"{}\"", proxy.url(password));
    let folder = files.folder().display();
    let tls = format!(
        "tls = {{ ca = \"{folder}/ca.crt\", cert = \"{folder}/client.crt\", key = {{ file = \
         \"{folder}/client.key\" }} }}\n"
    );
    let through = format!("{tls}{}", egress("hunter2"));
    let listed = list(&url, &through, &[]).await;
    assert!(is_listed(&listed), "{listed:?}");
    let authority = url.trim_start_matches("https://").trim_end_matches("/mcp");
    let expected = format!("CONNECT {authority} HTTP/1.1");
    let requests = proxy.requests();
    assert!(!requests.is_empty() && requests.iter().all(|it| *it == expected), "{requests:?}");

    // The variables say the same, and the keys replace them.
    let variable = proxy.url("hunter2");
    let before = proxy.requests().len();
    assert!(is_listed(&list(&url, &tls, &[("HTTPS_PROXY", &variable)]).await));
    assert!(proxy.requests().len() > before);
    let before = proxy.requests().len();
    for (more, variables) in [
        ("[egress]\nproxy = \"none\"", vec![("HTTPS_PROXY", &*variable)]),
        ("[egress]\nno_proxy = [\"0.0.0.0/8\"]", vec![("HTTPS_PROXY", &*variable)]),
        ("", vec![("HTTPS_PROXY", &*variable), ("NO_PROXY", "0.0.0.0")]),
    ] {
        let listed = list(&url, &format!("{tls}{more}"), &variables).await;
        assert!(is_listed(&listed), "{more}: {listed:?}");
    }
    assert_eq!(proxy.requests().len(), before, "directly");

    // What fails says who has to act, and names no password.
    for (more, expected) in [
        (format!("{tls}{}", egress("hunter3")), "correct them in egress.proxy"),
        (egress("hunter2"), "TLS: invalid peer certificate: UnknownIssuer"),
        (
            format!("tls = {{ ca = \"{folder}/ca.crt\" }}\n{}", egress("hunter2")),
            "CertificateRequired",
        ),
        (format!("{tls}[egress]\nproxy = \"http://127.0.0.1:9\""), "the proxy 127.0.0.1:9: "),
    ] {
        let failed = list(&url, &more, &[]).await.expect_err("it fails");
        assert!(failed.contains(expected) && !failed.contains("hunter"), "{failed}");
    }
    served.stop().await;
}

#[tokio::test]
async fn an_unprotected_upstream_is_reached_through_a_proxy_that_forwards_its_requests() {
    let (served, url, _files) = inner("").await;
    let proxy = Proxy::start().await;
    let egress = |password: &str| format!("[egress]\nproxy = \"{}\"", proxy.url(password));
    let listed = list(&url, &egress("hunter2"), &[]).await;
    assert!(is_listed(&listed), "{listed:?}");
    let expected = format!("POST {url} HTTP/1.1");
    let requests = proxy.requests();
    assert!(requests.contains(&expected), "{requests:?}");
    let failed = list(&url, &egress("hunter3"), &[]).await.expect_err("it fails");
    assert!(!failed.contains("hunter"), "{failed}");
    served.stop().await;
}

/// Upstream that requires access tokens, and issues them. It has nothing else.
struct TokenServer {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    url: String,
    /// Requests so far, in lower case.
    requests: Mutex<Vec<String>>,
}

impl TokenServer {
    /// Listens, with TLS if there is a folder with its certificate.
    async fn bind(certificates: Option<&Path>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://0.0.0.0:{}", listener.local_addr().unwrap().port());
        let tls = certificates.map(|folder| {
            let certificates = CertificateDer::pem_file_iter(folder.join("server.crt")).unwrap();
            let certificates = certificates.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
            let config = ServerConfig::builder().with_no_client_auth();
            TlsAcceptor::from(Arc::new(config.with_single_cert(certificates, key).unwrap()))
        });
        Self { listener, tls, url, requests: Mutex::default() }
    }

    /// Serves requests one after another.
    async fn serve(&self) -> Infallible {
        loop {
            let (stream, _) = self.listener.accept().await.unwrap();
            match &self.tls {
                Some(tls) => self.respond(tls.accept(stream).await.unwrap()).await,
                None => self.respond(stream).await,
            }
        }
    }

    async fn respond(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let (mut request, mut piece) = (String::new(), [0; 4096]);
        while !request.contains("\r\n\r\n") {
            let length = stream.read(&mut piece).await.unwrap();
            assert!(length > 0, "{request}");
            request += &String::from_utf8_lossy(&piece[..length]).to_lowercase();
        }
        let (url, path) = (&self.url, request.split_once(" http/1.1\r\n").unwrap().0);
        let (status, body) = match path {
            "get /.well-known/oauth-protected-resource/mcp" => {
                let text =
                    format!(r#"{{"resource":"{url}/mcp","authorization_servers":["{url}"]}}"#);
                ("200 OK", text)
            }
            "get /.well-known/oauth-authorization-server" => {
                ("200 OK", format!(r#"{{"issuer":"{url}","token_endpoint":"{url}/token"}}"#))
            }
            "post /token" => {
                let text = r#"{"access_token":"canary-0123456789","token_type":"Bearer"}"#;
                ("200 OK", text.to_owned())
            }
            "post /mcp" if !request.contains("authorization: ") => {
                ("401 Unauthorized", String::new())
            }
            _ => ("404 Not Found", String::new()),
        };
        self.requests.lock().unwrap().push(request);
        let response = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(response.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn authorization_servers_are_found_and_tokens_requested_through_the_proxy_too() {
    let folder = TempDir::new().unwrap();
    write_certificates(folder.path());
    let ca = folder.path().join("ca.crt");
    for certificates in [None, Some(folder.path())] {
        let server = TokenServer::bind(certificates).await;
        let (url, proxy) = (&server.url, Proxy::start().await);
        // Without TLS nothing is discovered, and secrets do not leave this machine.
        let (tls, token_url) = match certificates {
            Some(_) => (format!("tls = {{ ca = {ca:?} }}"), String::new()),
            None => {
                let token_url = format!("{}/token", url.replace("0.0.0.0", "127.0.0.1"));
                (String::new(), format!("token_url = \"{token_url}\"\nallow_http = true"))
            }
        };
        let more = format!(
            "{tls}\n[upstreams.inner.auth]\ntype = \"oauth\"\ngrant = \"client_credentials\"\n\
             client_id = \"weir\"\nclient_secret = \"secret-0123456789\"\n{token_url}\n\
             [sign_in]\ninsecure_loopback = true\n[egress]\nproxy = \"{}\"",
            proxy.url("hunter2")
        );
        let endpoint = format!("{url}/mcp");
        let failed = tokio::select! {
            listed = list(&endpoint, &more, &[]) => listed.expect_err("no MCP server"),
            never = server.serve() => match never {},
        };
        for secret in ["canary", "secret", "hunter"] {
            assert!(!failed.contains(secret), "{failed}");
        }
        let authority = url.split_once("://").unwrap().1;
        let expected = match certificates {
            Some(_) => vec![format!("CONNECT {authority} HTTP/1.1")],
            None => vec![format!("POST {url}/mcp HTTP/1.1")],
        };
        let through = proxy.requests();
        assert!(expected.iter().all(|line| through.contains(line)), "{through:?}: {failed}");
        let requests = server.requests.lock().unwrap();
        let used: Vec<_> =
            requests.iter().filter(|it| it.contains("authorization: bearer")).collect();
        // The token endpoint on this machine is reached without the proxy.
        let direct = requests.iter().filter(|it| it.contains("\r\nhost: 127.0.0.1:")).count();
        assert_eq!(direct > 0, certificates.is_none(), "{requests:?}");
        assert!(!used.is_empty() && through.len() + direct >= requests.len(), "{requests:?}");
        for request in used {
            assert_eq!(request.split(' ').nth(1), Some("/mcp"), "{request}");
            assert!(request.contains("authorization: bearer canary-0123456789\r\n"), "{request}");
        }
        // The credentials of the proxy stay there.
        assert!(requests.iter().all(|request| !request.contains("proxy-authorization")));
    }
}
