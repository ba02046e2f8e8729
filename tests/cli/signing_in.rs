//! `weir login`: at hostile servers no token is requested or kept, and each run leaves one line of
//! audit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use super::folder;
use super::serving::terminate;
use crate::lab::blocking::wait_for_exit;

/// Upstream that is its own authorization server.
struct Server {
    address: String,
    /// Method and path of each request so far, and the form of a revocation.
    requests: Arc<Mutex<Vec<String>>>,
}

/// Response of a token endpoint.
struct TokenResponse {
    body: String,
    /// Bytes that are announced, and do not come before the connection ends.
    missing: usize,
    /// Whether the connection stays open after the last byte.
    hangs: bool,
}

impl TokenResponse {
    fn whole(body: &str) -> Self {
        Self { body: body.to_owned(), missing: 0, hangs: false }
    }
}

impl Server {
    /// Serves these metadata, in which `{own}` stands for its URL.
    fn start(resource: &str, server: &str) -> Self {
        let token = TokenResponse::whole(r#"{"access_token":"x","token_type":"Bearer"}"#);
        Self::start_issuing(resource, server, token)
    }

    /// Serves these metadata and this response to each code.
    fn start_issuing(resource: &str, server: &str, token: TokenResponse) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let port = address.rsplit_once(':').expect("a port").1;
        let fill =
            |text: &str| text.replace("{own}", &format!("http://{address}")).replace("PORT", port);
        let (resource, server) = (fill(resource), fill(server));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let (request, form, _) = read_request(&mut stream);
                let is_token = request == "POST /token";
                let (status, body) = match &*request {
                    "POST /mcp" => ("401 Unauthorized", ""),
                    "GET /.well-known/oauth-protected-resource/mcp" => ("200 OK", &*resource),
                    "GET /.well-known/oauth-authorization-server" => ("200 OK", &*server),
                    "POST /register" => ("201 Created", r#"{"client_id":"new"}"#),
                    "POST /token" => ("200 OK", &*token.body),
                    "POST /revoke" => ("200 OK", ""),
                    _ => ("404 Not Found", ""),
                };
                let missing = if is_token { token.missing } else { 0 };
                let is_revocation = request == "POST /revoke";
                let request = if is_revocation { format!("{request} {form}") } else { request };
                seen.lock().expect("unharmed").push(request);
                // Weir does not read all of a body that is too long.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len() + missing
                );
                if is_token && token.hangs {
                    // Until Weir closes the connection.
                    let _ = stream.read(&mut [0]);
                }
            }
        });
        Self { address, requests }
    }
}

/// Reads a request, and returns its method and path, its body, and its access token.
pub(super) fn read_request(stream: &mut TcpStream) -> (String, String, Option<String>) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length, mut token) = (String::new(), 0, None);
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
        token = line.strip_prefix("authorization: bearer ").map(str::to_owned).or(token);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let target = first.rsplit_once(' ').expect("a version").0.to_owned();
    (target, String::from_utf8(body).expect("text"), token)
}

/// Sends the browser back to Weir with `answer` behind the right state.
pub(super) fn come_back(query: &str, answer: &str) {
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

/// Runs `weir login`, with `act` once it shows a URL with this query. Returns its exit code, and
/// what it has said.
fn log_in(folder: &Path, act: impl Fn(&Child, &str)) -> (i32, String) {
    let mut login = crate::program();
    login.args(["login", "inner", "--no-browser"]).current_dir(folder);
    login.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut login = login.spawn().expect("it starts");
    let mut said = String::new();
    for line in BufReader::new(login.stderr.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        if let Some((_, query)) = line.split_once("/authorize?") {
            act(&login, query);
        }
        said += &line;
    }
    (wait_for_exit(&mut login).code().expect("no signal kills it"), said)
}

/// Configuration with the server as an upstream to which a user signs in.
fn config(server: &Server) -> String {
    format!(
        "[sign_in]\ninsecure_loopback = true\n[state]\ndir = \"state\"\n[audit]\nenabled = true\n\
         [upstreams.inner]\nurl = \"http://{}/mcp\"\nauth.type = \"oauth\"\n",
        server.address
    )
}

/// Returns the lines of the audit log about `weir login`.
fn audited(folder: &Path) -> Vec<String> {
    let audit = std::fs::read_to_string(folder.join("state/audit.jsonl")).expect("a log");
    assert!(audit.ends_with('\n') && audit.contains(r#""event":"stopped""#), "{audit}");
    let lines = audit.lines().filter(|line| line.contains(r#""event":"login""#));
    lines.map(str::to_owned).collect()
}

const RESOURCE: &str = r#"{"resource":"{own}/mcp","authorization_servers":["{own}"]}"#;
const METADATA: &str = r#"{"issuer":"{own}","authorization_endpoint":"{own}/authorize","token_endpoint":"{own}/token","registration_endpoint":"{own}/register","code_challenge_methods_supported":["S256"]}"#;

#[test]
fn a_hostile_server_gets_no_token_request_and_leaves_one_line_of_audit() {
    let (resource, server) = (RESOURCE, METADATA);
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
            &*resource.replace(r#"["{own}"]"#, r#"["https://10.0.0.1"]"#),
            server,
            code,
            "the address is not public",
        ),
        (
            &*resource.replace(r#"["{own}"]"#, r#"["https://METADATA.google.internal."]"#),
            server,
            code,
            "the name is not one of the public DNS",
        ),
        (
            resource,
            &*server.replace("{own}/token", "http://10.0.0.1/token"),
            code,
            "http://10.0.0.1/token is not an https:// URL",
        ),
        (
            resource,
            &*server.replace("{own}/token", "https://169.254.169.254/token"),
            code,
            "the address is not public",
        ),
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
        let folder = folder(&config(&server));
        let (code, said) = log_in(folder.path(), |_, query| come_back(query, answer));
        assert!(code != 0 && said.contains(expected), "{expected}: {said}");
        let requests = server.requests.lock().expect("unharmed").clone();
        assert!(!requests.iter().any(|request| request == "POST /token"), "{requests:?}");
        let kept = std::fs::read_dir(folder.path().join("state/sign-in")).expect("a vault");
        let kept: Vec<_> = kept.map(|file| file.expect("a file").file_name()).collect();
        let is_record = |name: &str| name.len() == 32 && !name.contains('.');
        assert!(!kept.iter().any(|name| name.to_str().is_some_and(is_record)), "{kept:?}");
        let lines = audited(folder.path());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(r#""upstream":"inner","outcome":"error""#), "{lines:?}");
    }
}

#[test]
fn the_host_of_the_page_is_shown_beside_the_issuer_if_it_is_another_one() {
    for (host, shown) in [("127.0.0.1", ""), ("localhost", ", on a page of http://localhost:PORT")]
    {
        let endpoint = METADATA.replace("{own}/authorize", "http://HOST:PORT/authorize?state=x");
        let server = Server::start(RESOURCE, &endpoint.replace("HOST", host));
        let port = server.address.rsplit_once(':').expect("a port").1;
        let folder = folder(&config(&server));
        let (code, said) = log_in(folder.path(), |_, query| come_back(query, "code=c"));
        assert_eq!(code, 0, "{said}");
        let shown = format!("Sign in at http://127.0.0.1:PORT{shown}:").replace("PORT", port);
        assert!(said.starts_with(&shown), "{said}");
    }
}

/// Metadata of a server with a revocation endpoint.
fn revocable() -> String {
    METADATA.replace(r#""code_"#, r#""revocation_endpoint":"{own}/revoke","code_"#)
}

/// Signs in where codes are answered like this; returns what `weir login` has said, and the forms
/// of all revocations. No sign-in is kept.
fn log_in_in_vain(metadata: &str, token: TokenResponse) -> (String, Vec<String>) {
    let server = Server::start_issuing(RESOURCE, metadata, token);
    let folder = folder(&config(&server));
    let (code, said) = log_in(folder.path(), |_, query| come_back(query, "code=c"));
    assert_eq!(code, 4, "{said}");
    assert!(!said.contains("next"), "{said}");
    let (_, listed, _) = crate::weir(folder.path(), &["login", "--list"]);
    assert_eq!(listed, "inner: not signed in\n");
    let lines = audited(folder.path());
    assert!(lines.len() == 1 && lines[0].contains(r#""outcome":"error""#), "{lines:?}");
    let requests = server.requests.lock().expect("unharmed");
    let forms = requests.iter().filter_map(|request| request.strip_prefix("POST /revoke "));
    (said, forms.map(str::to_owned).collect())
}

const REVOKED_REFRESH_TOKEN: &str = "token=next&token_type_hint=refresh_token&client_id=new";

#[test]
fn tokens_that_a_sign_in_cannot_use_are_revoked() {
    let no_bearer = "the token is not of the type Bearer";
    let odd = "the token is longer than 16 KiB, or not visible ASCII";
    let no_token = "the response is not a token";
    let long = "x".repeat(16_385);
    let refresh = r#""refresh_token":"next""#;
    for (body, error) in [
        (format!(r#"{{"access_token":"a","token_type":"mac",{refresh}}}"#), no_bearer),
        (format!(r#"{{{refresh},"access_token":"a"}}"#), no_bearer),
        (format!(r#"{{"access_token":"a b","token_type":"Bearer",{refresh}}}"#), odd),
        (format!(r#"{{"access_token":"{long}","token_type":"Bearer",{refresh}}}"#), odd),
        (format!(r#"{{"access_token":"","token_type":"Bearer",{refresh}}}"#), no_token),
        (format!(r#"{{"access_token":7,"token_type":"Bearer",{refresh}}}"#), no_token),
        (format!(r#"{{{refresh}}}"#), no_token),
        (format!(r#"{{"error":"odd",{refresh}}}"#), no_token),
        // No JSON.
        (format!(r#"{{"access_token":"a","token_type":"Bearer","expires_in":NaN,{refresh}}}"#), {
            no_token
        }),
        (format!("\u{feff}{{\"access_token\":7,{refresh}}}"), no_token),
    ] {
        let (said, revoked) = log_in_in_vain(&revocable(), TokenResponse::whole(&body));
        assert!(said.contains(error) && said.contains("were revoked"), "{error}: {said}");
        assert_eq!(revoked, [REVOKED_REFRESH_TOKEN], "{error}");
    }
    // Without a refresh token it is the access token.
    for (body, token) in [
        (r#"{"access_token":"next","token_type":"mac"}"#.to_owned(), "next"),
        (format!(r#"{{"access_token":"{long}","token_type":"Bearer"}}"#), &*long),
    ] {
        let (said, revoked) = log_in_in_vain(&revocable(), TokenResponse::whole(&body));
        assert!(said.contains("were revoked"), "{said}");
        assert_eq!(revoked, [format!("token={token}&token_type_hint=access_token&client_id=new")]);
    }
    let body = format!(r#"{{"access_token":"a","token_type":"mac",{refresh}}}"#);
    let (said, revoked) = log_in_in_vain(METADATA, TokenResponse::whole(&body));
    let text = "were not revoked: the authorization server does not support that";
    assert!(said.contains(no_bearer) && said.contains(text), "{said}");
    assert!(revoked.is_empty());
    // There is nothing to revoke.
    let (said, revoked) = log_in_in_vain(&revocable(), TokenResponse::whole("{}"));
    assert!(said.contains(no_token) && !said.contains("revoked"), "{said}");
    assert!(revoked.is_empty());
}

#[test]
fn tokens_of_a_response_that_does_not_end_are_revoked() {
    let body = r#"{"access_token":"a","token_type":"Bearer","refresh_token":"next","x":""#;
    let padding = "x".repeat(2 * 1024 * 1024);
    for (padding, hangs, error) in [
        ("", false, "/token: "),
        ("", true, "no response within 10 s"),
        (&*padding, false, "the response is larger than"),
    ] {
        let body = format!("{body}{padding}");
        let token = TokenResponse { body, missing: 7, hangs };
        let (said, revoked) = log_in_in_vain(&revocable(), token);
        assert!(said.contains(error) && said.contains("were revoked"), "{error}: {said}");
        assert_eq!(revoked, [REVOKED_REFRESH_TOKEN], "{error}");
    }
    // The refresh token itself is cut off.
    let body = r#"{"access_token":"next","token_type":"Bearer","refresh_token":"n"#.to_owned();
    let token = TokenResponse { body, missing: 7, hangs: false };
    let (_, revoked) = log_in_in_vain(&revocable(), token);
    assert_eq!(revoked, ["token=next&token_type_hint=access_token&client_id=new"]);
}

#[test]
fn a_large_response_with_usable_tokens_signs_in() {
    let body = format!(
        r#"{{"id_token":"{}","access_token":"a","token_type":"Bearer","refresh_token":"next"}}"#,
        "x".repeat(100_000)
    );
    let server = Server::start_issuing(RESOURCE, &revocable(), TokenResponse::whole(&body));
    let folder = folder(&config(&server));
    let (code, said) = log_in(folder.path(), |_, query| come_back(query, "code=c"));
    assert_eq!(code, 0, "{said}");
    let requests = server.requests.lock().expect("unharmed");
    assert!(!requests.iter().any(|request| request.starts_with("POST /revoke")), "{requests:?}");
}

#[test]
fn a_sign_in_that_a_signal_ends_is_recorded_as_such() {
    let server = Server::start(RESOURCE, METADATA);
    let folder = folder(&config(&server));
    let (code, said) = log_in(folder.path(), |login, _| terminate(login));
    assert_eq!(code, 143, "{said}");
    let lines = audited(folder.path());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(r#""outcome":"error","reason":"stopped by signal 15""#), "{lines:?}");
}

#[test]
fn nobody_signs_in_where_that_cannot_be_recorded() {
    let server = Server::start(RESOURCE, METADATA);
    let folder = folder(&config(&server).replace("[audit]\n", "[audit]\npath = \"/dev/null/x\"\n"));
    let (code, said) = log_in(folder.path(), |_, _| panic!("it shows no URL"));
    assert_eq!(code, 78, "{said}");
    assert!(server.requests.lock().expect("unharmed").is_empty());
}

#[test]
fn a_sign_in_is_listed_with_what_is_wrong_with_it() {
    let server = Server::start(RESOURCE, METADATA);
    let text = config(&server);
    let folder = folder(&text);
    let listed = || crate::weir(folder.path(), &["login", "--list"]).1;
    assert_eq!(listed(), "inner: not signed in\n");
    let (code, said) = log_in(folder.path(), |_, query| come_back(query, "code=c"));
    assert_eq!(code, 0, "{said}");
    assert!(listed().starts_with("inner: signed in at http://127.0.0.1:"), "{}", listed());
    assert!(audited(folder.path())[0].contains(r#""outcome":"ok""#));
    let path = folder.path().join("weir.toml");
    let (code, _, said) = crate::weir(folder.path(), &["remove", "inner"]);
    assert!(code == 0 && said.contains("`weir logout inner` removes the sign-in"), "{said}");
    std::fs::write(path, text + "auth.issuer = \"https://id.test\"\n").expect("written");
    let expected =
        "inner: the sign-in is for another url, issuer, client or resource: sign in again\n";
    assert_eq!(listed(), expected);
}

#[test]
fn a_proxy_is_asked_for_no_server_inside_that_an_upstream_names() {
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = proxy.local_addr().expect("an address");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in proxy.incoming() {
            let mut first = String::new();
            let mut reader = BufReader::new(stream.expect("a connection"));
            reader.read_line(&mut first).expect("a request");
            seen.lock().expect("unharmed").push(first);
        }
    });
    for host in [
        "metadata.google.internal",
        "kubernetes.default.svc",
        "printer.local.",
        "intranet",
        "169.254.169.254",
        "0xa9fea9fe",
        "[::ffff:10.0.0.1]",
    ] {
        let named = format!(r#"["https://{host}"]"#);
        let server = Server::start(&RESOURCE.replace(r#"["{own}"]"#, &named), METADATA);
        let egress = format!("[egress]\nproxy = \"http://{address}\"\n");
        let folder = folder(&(egress + &config(&server)));
        let (code, said) = log_in(folder.path(), |_, _| panic!("it shows no URL"));
        let is_refused = said.contains("public") || said.contains("is not a URL");
        assert!(code != 0 && is_refused, "{host}: {said}");
        assert_eq!(asked.lock().expect("unharmed").clone(), [""; 0], "{host}");
    }
}

#[test]
fn an_upstream_on_the_network_without_tls_gets_tokens_only_where_that_is_written() {
    let server = Server::start(RESOURCE, METADATA);
    // An address that is not loopback, and leads here.
    let text = config(&server).replace("http://127.0.0.1:", "http://0.0.0.0:");
    let folder = folder(&text);
    let (code, said) = log_in(folder.path(), |_, _| panic!("it shows no URL"));
    assert_eq!(code, 78, "{said}");
    assert!(said.contains("upstreams.inner.auth.type") && said.contains("allow_http"), "{said}");
    let (code, said, _) = crate::weir(folder.path(), &["check", "--offline"]);
    assert_eq!(code, 78, "{said}");
    assert!(server.requests.lock().expect("unharmed").is_empty());

    let more = "auth.allow_http = true\nauth.issuer = \"https://127.0.0.1:1\"\n";
    std::fs::write(folder.path().join("weir.toml"), text + more).expect("written");
    let (code, said) = log_in(folder.path(), |_, _| panic!("it shows no URL"));
    assert!(code != 0 && said.contains("upstreams.inner.auth.allow_http"), "{said}");
    let (code, _, said) = crate::weir(folder.path(), &["check", "--offline"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("upstreams.inner.auth.allow_http"), "{said}");
    // It has not been asked for its authorization server, which others could change on the way.
    assert_eq!(*server.requests.lock().expect("unharmed"), ["POST /mcp"]);
}

#[test]
fn a_sign_in_without_a_name_lists_those_that_there_are() {
    let table = |name: &str| {
        format!("[upstreams.{name}]\nurl = \"https://a.example/{name}\"\nauth.type = \"oauth\"\n")
    };
    let library = "[upstreams.house]\nprompts_dir = \"prompts\"\n";
    let several = crate::folder(&[&table("office"), library, &table("wiki")].concat());
    let none = crate::folder(library);
    for command in ["login", "logout"] {
        let expected = format!(
            "weir: which upstream? users sign in to office, wiki; for example `weir {command} \
             office`\n"
        );
        assert_eq!(
            crate::weir(several.path(), &[command]),
            (2, String::new(), expected),
            "{command}"
        );
        let expected =
            "weir: no upstream of the configuration has an `auth` with which a user signs in\n";
        assert_eq!(
            crate::weir(none.path(), &[command]),
            (2, String::new(), expected.to_owned()),
            "{command}"
        );
    }
}
