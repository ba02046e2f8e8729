//! Weir reaches its upstreams through a real proxy, and shows them a certificate.
//!
//! Requests to this machine use no proxy, so the upstreams are called by `0.0.0.0`, which leads
//! here, too.

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::fleet::{Fleet, Served, soon};
use crate::parts::{free_port, part};

/// tinyproxy that admits one user.
struct Proxy {
    folder: TempDir,
    port: u16,
    _child: Child,
}

impl Proxy {
    async fn start() -> Self {
        let (folder, port) = (TempDir::new().unwrap(), free_port().await);
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
                tokio::task::yield_now().await;
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
fn write_certificates(folder: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
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
async fn inner(tls: &str) -> (Served, String, Fleet) {
    let (fleet, port) = (Fleet::plain(""), free_port().await);
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
    served.logged("upstream listed", "house").await;
    (served, format!("{scheme}://0.0.0.0:{port}/mcp"), fleet)
}

/// Lists the items of an upstream. Returns the output, or what is said about the failure.
async fn list(url: &str, more: &str, variables: &[(&str, &str)]) -> Result<String, String> {
    let outer = Fleet::plain(&format!("[upstreams.inner]\nurl = \"{url}\"\n{more}"));
    let mut command = outer.command(&["list", "--json"]);
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
    assert!(served.stop().await);
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
    assert!(served.stop().await);
}

/// Serves requests one after another: issues an access token, and has nothing else. Keeps the
/// requests, in lower case.
async fn issue_tokens(listener: &TcpListener, requests: &Mutex<Vec<String>>) -> Infallible {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut request, mut piece) = (String::new(), [0; 4096]);
        while !request.contains("\r\n\r\n") {
            let length = stream.read(&mut piece).await.unwrap();
            assert!(length > 0, "{request}");
            request += &String::from_utf8_lossy(&piece[..length]).to_lowercase();
        }
        let token = r#"{"access_token":"canary-0123456789","token_type":"Bearer"}"#;
        let (status, body) = match request.starts_with("post /token ") {
            true => ("200 OK", token),
            false => ("404 Not Found", ""),
        };
        requests.lock().unwrap().push(request);
        let response = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(response.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn access_tokens_are_requested_through_the_proxy_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://0.0.0.0:{}", listener.local_addr().unwrap().port());
    let requests = Mutex::default();
    let proxy = Proxy::start().await;
    let more = format!(
        "[upstreams.inner.auth]\ntype = \"oauth\"\ngrant = \"client_credentials\"\n\
         client_id = \"weir\"\nclient_secret = \"secret-0123456789\"\ntoken_url = \"{url}/token\"\n\
         [egress]\nproxy = \"{}\"",
        proxy.url("hunter2")
    );
    let endpoint = format!("{url}/mcp");
    let failed = tokio::select! {
        listed = list(&endpoint, &more, &[]) => listed.expect_err("no MCP server"),
        never = issue_tokens(&listener, &requests) => match never {},
    };
    for secret in ["canary", "secret", "hunter"] {
        assert!(!failed.contains(secret), "{failed}");
    }
    let through = proxy.requests();
    for path in ["token", "mcp"] {
        let expected = format!("POST {url}/{path} HTTP/1.1");
        assert!(through.contains(&expected), "{through:?}");
    }
    let requests = requests.lock().unwrap();
    let used = requests.iter().filter(|request| request.starts_with("post /mcp "));
    assert!(used.clone().count() > 0, "{requests:?}");
    for request in used {
        assert!(request.contains("authorization: bearer canary-0123456789\r\n"), "{request}");
    }
    // The credentials of the proxy stay there.
    assert!(requests.iter().all(|request| !request.contains("proxy-authorization")));
}
