//! `weir login` at hostile servers: no token is requested or kept, and one line of audit is left.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use super::folder;

/// Upstream that is its own authorization server.
struct Server {
    address: String,
    /// Method and path of each request so far.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves these metadata, in which `{own}` stands for its URL.
    fn start(resource: &str, server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let fill = |text: &str| text.replace("{own}", &format!("http://{address}"));
        let (resource, server) = (fill(resource), fill(server));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let request = read_request(&mut stream);
                let (status, body) = match &*request {
                    "POST /mcp" => ("401 Unauthorized", ""),
                    "GET /.well-known/oauth-protected-resource/mcp" => ("200 OK", &*resource),
                    "GET /.well-known/oauth-authorization-server" => ("200 OK", &*server),
                    "POST /register" => ("201 Created", r#"{"client_id":"new"}"#),
                    "POST /token" => ("200 OK", r#"{"access_token":"x","token_type":"Bearer"}"#),
                    _ => ("404 Not Found", ""),
                };
                seen.lock().expect("unharmed").push(request);
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )
                .expect("written");
            }
        });
        Self { address, requests }
    }
}

/// Reads a request, and returns its method and path.
fn read_request(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).expect("a request");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    reader.read_exact(&mut vec![0; length]).expect("a body");
    first.rsplit_once(' ').expect("a version").0.to_owned()
}

/// Runs `weir login`. The browser comes back with `answer` behind the right state, if Weir opens
/// it. Returns whether the sign-in has succeeded, and what was said.
fn log_in(folder: &Path, answer: &str) -> (bool, String) {
    let mut login = crate::program();
    login.args(["login", "inner", "--no-browser"]).current_dir(folder);
    login.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut login = login.spawn().expect("it starts");
    let mut said = String::new();
    for line in BufReader::new(login.stderr.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        if let Some((_, query)) = line.split_once("/authorize?") {
            let find = |name: &str| {
                let mut pairs = url::form_urlencoded::parse(query.as_bytes());
                pairs.find(|(it, _)| it == name).expect("a parameter").1.into_owned()
            };
            let uri = url::Url::parse(&find("redirect_uri")).expect("a URL");
            let address = ("127.0.0.1", uri.port().expect("a port"));
            let mut browser = TcpStream::connect(address).expect("it listens");
            write!(
                browser,
                "GET {}?state={}&{answer} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                uri.path(),
                find("state")
            )
            .expect("written");
            browser.read_to_end(&mut Vec::new()).expect("a page");
        }
        said += &line;
    }
    (login.wait().expect("it ends").success(), said)
}

#[test]
fn a_hostile_server_gets_no_token_request_and_leaves_one_line_of_audit() {
    let resource = r#"{"resource":"{own}/mcp","authorization_servers":["{own}"]}"#;
    let server = r#"{"issuer":"{own}","authorization_endpoint":"{own}/authorize","token_endpoint":"{own}/token","registration_endpoint":"{own}/register","code_challenge_methods_supported":["S256"]}"#;
    let code = "code=c";
    for (resource, server, answer, expected) in [
        (
            &*resource.replace("{own}/mcp", "https://bank.test/mcp"),
            server,
            code,
            "the metadata of the upstream are about another server",
        ),
        (
            resource,
            &*server.replace(r#""issuer":"{own}""#, r#""issuer":"https://id.test""#),
            code,
            "are of another issuer, https://id.test",
        ),
        (
            resource,
            &*server.replace("{own}/authorize", "javascript:alert(1)"),
            code,
            "javascript:alert(1) is not an https:// URL",
        ),
        (resource, &*server.replace("S256", "plain"), code, "does not support PKCE with S256"),
        (
            resource,
            server,
            "code=c&iss=https%3A%2F%2Fevil.test",
            "the response is of another authorization server",
        ),
        (resource, server, "code=c&code=d", "the response contains a parameter twice"),
        (resource, server, "error=access_denied", "refuses the sign-in: access_denied"),
    ] {
        let server = Server::start(resource, server);
        let folder = folder(&format!(
            "[sign_in]\ninsecure_loopback = true\n[state]\ndir = \"state\"\n[audit]\n\
             enabled = true\n[upstreams.inner]\nurl = \"http://{}/mcp\"\nauth.type = \"oauth\"\n",
            server.address
        ));
        let (is_well, said) = log_in(folder.path(), answer);
        assert!(!is_well && said.contains(expected), "{expected}: {said}");
        let requests = server.requests.lock().expect("unharmed").clone();
        assert!(!requests.iter().any(|request| request == "POST /token"), "{requests:?}");
        let state = folder.path().join("state");
        let kept = std::fs::read_dir(state.join("sign-in")).expect("a vault");
        let kept: Vec<_> = kept.map(|file| file.expect("a file").file_name()).collect();
        let is_record = |name: &str| name.len() == 32 && !name.contains('.');
        assert!(!kept.iter().any(|name| name.to_str().is_some_and(is_record)), "{kept:?}");
        let audit = std::fs::read_to_string(state.join("audit.jsonl")).expect("a log");
        let (login, failed) = (r#""event":"login""#, r#""upstream":"inner","outcome":"error""#);
        let lines: Vec<_> = audit.lines().filter(|line| line.contains(login)).collect();
        assert_eq!(lines.len(), 1, "{audit}");
        assert!(lines[0].contains(failed), "{audit}");
    }
}
