//! Sixty planted secrets, none of which appears in any output of Weir: no output of a command, no
//! line of the log at its most verbose level, no line of an audit log, no command line.
//!
//! Responses to clients are not checked: they may contain the client's own arguments.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::example;
use crate::lab::http::exchange;
use crate::lab::ports::free_port;
use crate::lab::process::children;
use crate::lab::weir::Weir;

/// The secrets; each names its place, so that a leak identifies its source.
#[derive(Default)]
struct Planted(BTreeSet<String>);

impl Planted {
    fn plant(&mut self, place: &str) -> String {
        let secret = format!("hunter2-{:02}-{place}", self.0.len());
        self.0.insert(secret.clone());
        secret
    }

    /// Writes a file with a secret, readable by its owner only.
    fn file(&mut self, folder: &Path, place: &str) -> String {
        let (name, secret) = (format!("file-{}", self.0.len()), self.plant(place));
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600);
        write!(file.open(folder.join(&name)).expect("made"), "{secret}").expect("written");
        name
    }

    /// Writes a private key, with its certificate beside it; each line of the key is a secret.
    fn key(&mut self, folder: &Path, name: &str) -> String {
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::default().self_signed(&key).expect("signed");
        fs::write(folder.join(format!("{name}.crt")), certificate.pem()).expect("written");
        let pem = key.serialize_pem();
        self.0.extend(pem.lines().filter(|line| !line.starts_with('-')).map(str::to_owned));
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(folder.join(name));
        file.expect("made").write_all(pem.as_bytes()).expect("written");
        name.to_owned()
    }

    fn leaked(&self, where_: &str, text: &str) {
        let found: Vec<_> = self.0.iter().filter(|secret| text.contains(secret.as_str())).collect();
        let lines = text.lines().filter(|line| line.contains("hunter2-"));
        assert!(found.is_empty(), "{where_}: {found:?} in {:?}", lines.collect::<Vec<_>>());
        // A URL would contain it unencoded.
        let part = encoded("hunter2").find(|part| text.contains(part));
        assert_eq!(part, None, "{where_}: a part of one");
    }
}

/// Text in plain, in hexadecimal digits and, at any offset of the encoded input, in base64 of
/// either alphabet.
fn encoded(text: &str) -> impl Iterator<Item = String> {
    let hexadecimal = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let base64 = (0..3).map(move |before| {
        let digits = STANDARD.encode(format!("{}{text}", "?".repeat(before)));
        // Without the digits that also encode neighboring bytes.
        let [start, end] = [before * 8, (before + text.len()) * 8];
        digits[start.div_ceil(6)..end / 6].to_owned()
    });
    [text.to_owned(), hexadecimal].into_iter().chain(base64)
}

#[test]
fn what_was_encoded_is_found() {
    for text in ["hunter2", "a hunter2", "ab hunter2-x", "Basic: weir:hunter2"] {
        let digits = STANDARD.encode(text);
        assert_eq!(encoded("hunter2").filter(|part| digits.contains(part)).count(), 1, "{digits}");
    }
}

/// Configuration that is full of secrets, and the variables that it names.
struct PlantedConfig {
    folder: TempDir,
    planted: Planted,
    variables: Vec<(String, String)>,
    keys: Vec<String>,
    strange: TcpListener,
    /// Address of the admin endpoint.
    admin: String,
}

impl PlantedConfig {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let mut planted = Planted::default();
        let mut variables = Vec::new();
        let path = folder.path().to_owned();
        let strange = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut secret = |how: usize, place: &str| match how % 5 {
            0 => format!("\"{}\"", planted.plant(place)),
            1 => format!("{{ file = \"{}\" }}", planted.file(&path, place)),
            2 => {
                let command = planted.file(&path, place);
                format!("{{ command = [\"cat\", \"{command}\"] }}")
            }
            how => {
                let name = format!("SECRET_{}", variables.len());
                variables.push((name.clone(), planted.plant(place)));
                if how == 3 {
                    format!("{{ env = \"{name}\" }}")
                } else {
                    format!("\"${{{name}}}\"")
                }
            }
        };
        let env: Vec<_> = (0..15).map(|at| format!("E{at} = {}", secret(at, "env"))).collect();
        let mut headers = |count: usize, place: &str| {
            let all = (0..count).map(|at| format!("X-Key-{at} = {}", secret(at, place)));
            all.collect::<Vec<_>>().join(", ")
        };
        let (away, refused) = (headers(10, "header"), headers(5, "header"));
        let tokens: Vec<_> = (0..7).map(|at| secret(at, "auth")).collect();
        let client_secrets: Vec<_> = (0..5).map(|at| secret(at, "client-secret")).collect();
        let address = strange.local_addr().expect("bound");
        let admin = format!("127.0.0.1:{}", free_port());
        let queries = [planted.plant("query"), planted.plant("query")];
        let in_urls = ["url-path", "url-query"].map(|place| planted.file(&path, place));
        let keys: Vec<_> = ["key", "expired"].map(|place| planted.plant(place)).to_vec();
        let proxy = planted.plant("proxy-password");
        let [client_key, tls_key] = ["client.pem", "tls.pem"].map(|name| planted.key(&path, name));
        let client_secrets = client_secrets.iter().enumerate().map(|(at, secret)| {
            format!(
                "[upstreams.machine{at}]\nurl = \"http://{address}/mcp\"\n[upstreams.machine{at}.auth]\n\
                 type = \"oauth\"\ngrant = \"client_credentials\"\nclient_id = \"weir\"\n\
                 client_secret = {secret}\ntoken_url = \"http://{address}/token\"\n"
            )
        });
        let machines: String = client_secrets.collect();
        let hash = |key: &String| -> String {
            Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let config = format!(
            r#"
[server]
listen = "127.0.0.1:0"
[log]
level = "trace"
format = "json"
[audit]
enabled = true
arguments = "ARGUMENTS"
[state]
dir = "state"
[admin]
listen = "{admin}"
token = "{admin_token}"
[protocol]
legacy_sse = true
[upstreams.notes]
command = "{notes}"
env = {{ {env} }}
[upstreams.gone]
command = "no-such-program"
env = {{ X = {t0} }}
[upstreams.away]
url = "http://127.0.0.1:9/mcp?key={q0}"
headers = {{ {away} }}
auth = {{ type = "bearer", token = {t1} }}
[upstreams.refused]
url = "http://{address}/mcp?key={q1}"
headers = {{ {refused} }}
auth = {{ type = "basic", user = "weir", password = {t2} }}
[upstreams.hidden]
url = "http://{address}/${{file:{u0}}}/mcp?key=${{file:{u1}}}"
[upstreams.bearer]
url = "http://{address}/mcp"
auth = {{ type = "bearer", token = {t3} }}
[upstreams.older]
url = "http://{address}/sse"
transport = "sse"
auth = {{ type = "bearer", token = {t4} }}
[upstreams.off]
url = "http://{address}/mcp"
enabled = false
auth = {{ type = "basic", user = "weir", password = {t5} }}
headers = {{ X = {t6} }}
[sign_in]
insecure_loopback = true
[egress]
proxy = "http://weir:{proxy}@127.0.0.1:9"
[upstreams.outside]
url = "http://outside.test/mcp"
[upstreams.signed]
url = "https://{address}/mcp"
tls = {{ cert = "tls.pem.crt", key = {{ file = "{tls_key}" }} }}
[upstreams.signed.auth]
type = "oauth"
grant = "client_credentials"
client_id = "weir"
client_key = {{ file = "{client_key}" }}
token_url = "http://{address}/token"
{machines}
[clients.ann]
key_sha256 = ["{ann}"]
role = "local"
[clients.old]
key_sha256 = ["{old}"]
role = "local"
expires = 2020-01-01T00:00:00Z
"#,
            admin_token = planted.plant("admin-token"),
            notes = example("legacy_stdio"),
            env = env.join(", "),
            q0 = queries[0],
            q1 = queries[1],
            u0 = in_urls[0],
            u1 = in_urls[1],
            t0 = tokens[0],
            t1 = tokens[1],
            t2 = tokens[2],
            t3 = tokens[3],
            t4 = tokens[4],
            t5 = tokens[5],
            t6 = tokens[6],
            ann = hash(&keys[0]),
            old = hash(&keys[1]),
        );
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = file.open(folder.path().join("weir.toml")).expect("made");
        file.write_all(config.as_bytes()).expect("written");
        Self { folder, planted, variables, keys, strange, admin }
    }

    fn command(&self) -> Command {
        let mut command = crate::program();
        command.current_dir(self.folder.path()).envs(self.variables.clone());
        command.env("WEIR_LOG", "trace");
        command
    }

    fn arguments(&self, choice: &str) {
        let path = self.folder.path().join("weir.toml");
        let text = fs::read_to_string(&path).expect("text");
        let (before, rest) = text.split_once("arguments = \"").expect("there");
        let (_, behind) = rest.split_once('"').expect("its end");
        fs::write(path, format!("{before}arguments = \"{choice}\"{behind}")).expect("written");
    }
}

/// Server that rejects every request.
fn refuse_all(listener: &TcpListener) {
    let listener = listener.try_clone().expect("a listener");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let _ = lines.find(String::is_empty);
            let answer =
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
}

/// Sends a request and waits for the end of the response, which is ignored.
fn send(address: &str, head: &str, headers: &[String], body: &str) {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    exchange(address, head, &headers, body);
}

/// Sends requests with secrets that no other party may learn.
fn send_secrets(address: &str, keys: &[String], planted: &mut Planted) {
    let json = "Content-Type: application/json".to_owned();
    let bearer = |key: &str| format!("Authorization: Bearer {key}");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for shown in [
        bearer(&keys[1]),
        bearer(&planted.plant("wrong-key")),
        format!("Authorization: Basic {}", planted.plant("basic")),
        format!("Authorization: {}", planted.plant("no-scheme")),
        format!("{}\r\n{}", bearer(&planted.plant("first")), bearer(&planted.plant("second"))),
        format!("Cookie: session={}", planted.plant("cookie")),
        format!("X-Api-Key: {}", planted.plant("api-key")),
        format!("Proxy-Authorization: Bearer {}", planted.plant("proxy")),
        format!("{}\r\nMcp-Session-Id: {}", bearer(&keys[0]), planted.plant("session")),
        format!("{}\r\nLast-Event-ID: {}", bearer(&keys[0]), planted.plant("event")),
        format!("{}\r\ntraceparent: {}", bearer(&keys[0]), planted.plant("trace")),
    ] {
        send(address, "POST /mcp", &[json.clone(), shown.clone()], ping);
        send(address, "GET /mcp", &[shown], "");
    }
    let good = [json, bearer(&keys[0])];
    for place in [
        format!("POST /mcp?token={}", planted.plant("query-of-a-client")),
        format!("POST /messages?sessionId={}", planted.plant("pair")),
        format!("GET /{}", planted.plant("path")),
    ] {
        send(address, &place, &good, ping);
    }
    send(address, "POST /mcp", &good, &format!("{{\"{}", planted.plant("junk")));
    let meta = format!(
        r#""_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}},"com.example/token":"{}"}}"#,
        planted.plant("meta")
    );
    for (method, name, more) in [
        (
            "tools/call",
            "notes__add_note",
            format!(r#""arguments":{{"text":"{}"}},"#, planted.plant("argument")),
        ),
        (
            "tools/call",
            "notes__none",
            format!(r#""arguments":{{"text":"{}"}},"#, planted.plant("argument")),
        ),
        (
            "prompts/get",
            "notes__none",
            format!(r#""arguments":{{"a":"{}"}},"#, planted.plant("argument")),
        ),
        (
            "tools/call",
            "notes__add_note",
            format!(r#""requestState":"{}","#, planted.plant("state")),
        ),
        ("prompts/list", "", format!(r#""cursor":"{}","#, planted.plant("cursor"))),
    ] {
        let own =
            format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\nMcp-Name: {name}");
        let headers = [&good[..], &[own]].concat();
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"name":"{name}",{more}{meta}}}}}"#
        );
        send(address, "POST /mcp", &headers, &body);
    }
}

/// Output for operators: each admin page, and the commands that show it.
fn operator_outputs(planted_config: &PlantedConfig) -> Vec<(String, String)> {
    let token =
        planted_config.planted.0.iter().find(|it| it.ends_with("admin-token")).expect("planted");
    let page = |path: &str| {
        let headers = format!("Authorization: Bearer {token}\r\n");
        (path.to_owned(), exchange(&planted_config.admin, &format!("GET {path}"), &headers, ""))
    };
    let command = |arguments: &str| {
        let output = planted_config.command().args(arguments.split(' ')).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (arguments.to_owned(), String::from_utf8_lossy(&text).into_owned())
    };
    let pages = ["/readyz?verbose", "/metrics", "/status"].map(page);
    let commands = ["status", "status --json", "top --once"].map(command);
    pages.into_iter().chain(commands).collect()
}

/// Command lines of a process and of its children.
fn command_lines(weir: u32) -> String {
    let of = |process: u32| fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let all = std::iter::once(weir).chain(children(weir)).flat_map(of);
    String::from_utf8_lossy(&all.collect::<Vec<_>>()).into_owned()
}

#[test]
fn none_of_sixty_secrets_is_in_anything_that_weir_says() {
    let mut planted_config = PlantedConfig::new();
    refuse_all(&planted_config.strange);
    for arguments in [
        "check",
        "check --json",
        "check --offline",
        "check --trace=full",
        "list",
        "list tools --json",
        "list --trace",
        "audit tail",
    ] {
        let output = planted_config.command().args(arguments.split(' ')).output().expect("it runs");
        for text in [output.stdout, output.stderr] {
            planted_config.planted.leaked(arguments, &String::from_utf8_lossy(&text));
        }
    }
    for choice in ["none", "names", "hash"] {
        planted_config.arguments(choice);
        let mut command = planted_config.command();
        command.arg("serve");
        let mut weir = Weir::serve(command);
        send_secrets(&weir.address, &planted_config.keys, &mut planted_config.planted);
        for (what, text) in operator_outputs(&planted_config) {
            assert!(text.contains("notes"), "{what}: {text}");
            planted_config.planted.leaked(&what, &text);
        }
        planted_config.planted.leaked("a command line", &command_lines(weir.pid()));
        weir.end();
        let received = weir.wait_for_whole_log().join("\n");
        assert!(received.contains("\"DEBUG\"") && received.contains("client not authenticated"));
        planted_config.planted.leaked("the log", &received);
    }
    assert!(planted_config.planted.0.len() > 60, "{} secrets", planted_config.planted.0.len());
    let log =
        fs::read_to_string(planted_config.folder.path().join("state/audit.jsonl")).expect("a log");
    for report in ["[\"text\"]", "\"sha256:", "\"unknown\"", "401", "notes__add_note"] {
        assert!(log.contains(report), "{report} in {log}");
    }
    planted_config.planted.leaked("the audit log", &log);
}
