//! Observability of a running Weir: health, metrics, and `weir status`.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{LIBRARY_CONFIG, folder, script, scripted, serve};
use crate::lab::blocking::{make_pipe, pause, read_pipe, write_pipe};
use crate::lab::ports::free_port;
use crate::lab::weir::Weir;
use crate::lab::{PATIENCE, by_night, http, wait_until};

/// A running `weir serve` with an admin endpoint.
pub(super) struct Served {
    pub(super) weir: Weir,
    pub(super) folder: TempDir,
    /// Address of the admin endpoint.
    pub(super) admin: String,
    /// Address of the MCP endpoint.
    pub(super) host: String,
}

/// Configuration of the listeners and of the state folder.
fn listeners(port: u16) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:{port}\"\n\
         [log]\nformat = \"json\"\n[state]\ndir = \"state\"\n"
    )
}

impl Served {
    pub(super) fn start(config: &str) -> Self {
        Self::start_in(config, |_| {})
    }

    pub(super) fn start_in(config: &str, prepare: impl FnOnce(&Path)) -> Self {
        let port = free_port();
        let folder = folder(&format!("{}{config}", listeners(port)));
        prepare(folder.path());
        Self::run(folder, port)
    }

    /// Restarts Weir after its end; between the two runs `prepare` may change the folder.
    pub(super) fn again(mut self, prepare: impl FnOnce(&Path)) -> Self {
        self.weir.end();
        prepare(self.folder.path());
        self.weir = serve(self.folder.path());
        self.host.clone_from(&self.weir.address);
        self
    }

    fn run(folder: TempDir, port: u16) -> Self {
        let weir = serve(folder.path());
        let host = weir.address.clone();
        Self { weir, folder, admin: format!("127.0.0.1:{port}"), host }
    }

    fn token(&self) -> String {
        let path = self.folder.path().join("state/admin-token");
        std::fs::read_to_string(path).expect("a token").trim().to_owned()
    }

    /// Sends a request, and returns status and body.
    fn send(&self, method: &str, path: &str, headers: &str) -> (u16, String) {
        let answer = http::exchange(&self.admin, &format!("{method} {path}"), headers, "");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    pub(super) fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, "")
    }

    pub(super) fn with_token(&self, path: &str) -> (u16, String) {
        self.send("GET", path, &format!("Authorization: Bearer {}\r\n", self.token()))
    }

    /// Waits until a page has the expected status and text.
    pub(super) fn wait_for(&self, path: &str, expected: impl Fn(u16, &str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let (status, body) = self.get(path);
            if expected(status, &body) {
                return body;
            }
            assert!(begin.elapsed() < PATIENCE, "{status} {body}");
            pause();
        }
    }

    /// Posts a request of the newest revision to the endpoint and returns the response.
    pub(super) fn post(&self, method: &str) -> String {
        self.post_about(method, None)
    }

    /// Posts a request about the item of this name.
    pub(super) fn post_about(&self, method: &str, name: Option<&str>) -> String {
        self.post_as(None, method, name)
    }

    /// Posts a request with this key.
    pub(super) fn post_as(&self, key: Option<&str>, method: &str, name: Option<&str>) -> String {
        let params = name.map_or_else(|| json!({}), |name| json!({ "name": name }));
        http::post(&self.host, key, method, params)
    }

    /// Runs a command in the same folder.
    pub(super) fn weir(&self, arguments: &[&str]) -> (i32, String, String) {
        let (code, out, err) = super::weir(self.folder.path(), arguments);
        let clean = |text: String| {
            let folder = self.folder.path().canonicalize().expect("it is there");
            let text = text.replace(&folder.display().to_string(), "FOLDER");
            text.replace(&self.host, "HOST").replace(&self.admin, "ADMIN")
        };
        (code, clean(out), clean(err))
    }
}

/// The configuration without its policy, so that all clients may connect.
pub(super) const OPEN: &str = "[upstreams.house]\nprompts_dir = \"prompts\"\n";

#[test]
fn each_page_is_there_for_whoever_may_see_it() {
    let served = Served::start(OPEN);
    assert_eq!(served.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(served.send("HEAD", "/healthz", ""), (200, String::new()));
    served.wait_for("/readyz", |status, body| (status, body) == (200, "ready\n"));
    assert_snapshot!(served.get("/readyz?verbose").1, @r"
    [+]endpoint ok
    [+]lists ok
    [+]upstream house ok
    ready
    ");
    let (status, metrics) = served.get("/metrics");
    assert!(status == 200 && metrics.ends_with("# EOF\n"), "{metrics}");
    for (path, expected) in [("/status", 401), ("/", 404), ("/mcp", 404), ("/status/", 404)] {
        assert_eq!(served.get(path).0, expected, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let length = "Content-Length: 0\r\n";
        assert_eq!(served.send(method, "/status", length).0, 405, "{method}");
        assert_eq!(served.send(method, "/nothing", length).0, 404, "{method}");
    }
    let (status, body) = served.with_token("/status");
    assert!(status == 200 && body.contains("\"name\":\"house\""), "{body}");
    for token in ["", "x", &served.token()[1..], &format!("{}x", served.token())] {
        let shown = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(served.send("GET", "/status", &shown).0, 401, "{token}");
    }
    let token = served.token();
    for shown in [format!("Authorization: {token}\r\n"), format!("X-Token: {token}\r\n")] {
        assert_eq!(served.send("GET", "/status", &shown).0, 401);
    }
    let twice = format!("Authorization: Bearer {token}\r\n").repeat(2);
    assert_eq!(served.send("GET", "/status", &twice).0, 401);
}

#[test]
fn on_a_network_address_metrics_and_details_are_for_whoever_shows_the_token() {
    let served = Served::start_in(OPEN, |folder| {
        let file = folder.join("weir.toml");
        let text = std::fs::read_to_string(&file).expect("it was written");
        let everywhere =
            text.replace("[admin]\nlisten = \"127.0.0.1", "[admin]\nlisten = \"0.0.0.0");
        assert_ne!(text, everywhere);
        std::fs::write(file, everywhere).expect("written");
    });
    served.wait_for("/readyz", |status, body| (status, body) == (200, "ready\n"));
    assert_eq!(served.get("/healthz"), (200, "ok\n".to_owned()));
    for path in ["/metrics", "/readyz?verbose", "/status"] {
        assert_eq!(served.get(path).0, 401, "{path}");
        assert_eq!(served.with_token(path).0, 200, "{path}");
    }
}

#[test]
fn while_a_required_upstream_starts_it_is_not_ready() {
    let required = format!("{}required = true\n", scripted("slow"));
    let served = Served::start_in(&required, |folder| {
        script(folder, "slow", &[]);
        let path = folder.join("slow.sh");
        let text = std::fs::read_to_string(&path).expect("written");
        std::fs::write(path, format!("read -r _ < go\n{text}")).expect("written");
        make_pipe(&folder.join("go"));
    });
    assert_eq!(served.get("/readyz"), (503, "not ready\n".to_owned()));
    let output = served.get("/readyz?verbose").1;
    assert!(output.contains("[-]upstream slow failed: starting"), "{output}");
    write_pipe(served.folder.path().join("go"));
    served.wait_for("/readyz", |status, body| (status, body) == (200, "ready\n"));
}

#[test]
fn the_metrics_say_whether_the_files_hold_a_configuration_that_was_refused() {
    let served = Served::start(OPEN);
    let file = served.folder.path().join("weir.toml");
    let good = std::fs::read_to_string(&file).expect("it was written");
    assert!(served.get("/metrics").1.contains("\nweir_config_refused 0.0\n"));
    for (text, refused) in [(format!("{good}nonsense = 1\n"), "1.0"), (good, "0.0")] {
        std::fs::write(&file, text).expect("written");
        let line = format!("\nweir_config_refused {refused}\n");
        served.wait_for("/metrics", |_, body| body.contains(&line));
    }
}

#[test]
fn a_page_in_a_browser_learns_nothing_by_another_name() {
    let served = Served::start(OPEN);
    for headers in [
        "Host: evil.example\r\n",
        "Host: 127.0.0.1.nip.io:9464\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
        "Host: localhost\r\nOrigin: https://evil.example\r\n",
        "Host: 10.0.0.5\r\n",
    ] {
        for path in ["/healthz", "/readyz", "/metrics", "/status"] {
            assert_eq!(served.send("GET", path, headers).0, 403, "{headers} {path}");
        }
    }
}

#[test]
fn the_token_is_made_once_for_its_owner_and_is_not_shown() {
    use std::os::unix::fs::PermissionsExt;
    let served = Served::start(OPEN);
    let path = served.folder.path().join("state/admin-token");
    let mode = std::fs::metadata(&path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode, served.token().len()), (0o600, 43));
    let pages = ["/status", "/metrics", "/readyz?verbose"].map(|path| served.with_token(path).1);
    assert!(!pages.concat().contains(&served.token()));
    let output = served.weir(&["status"]);
    assert!(!format!("{output:?}").contains(&served.token()));

    let own = "[admin]\ntoken = \"0123456789abcdef\"\n";
    let config = format!("{}{OPEN}", listeners(free_port()).replace("[admin]\n", own));
    let folder = folder(&config);
    let (code, _, err) = super::weir(folder.path(), &["status"]);
    assert!(code == 4 && err.contains("no Weir of this configuration runs"), "{code} {err}");
    assert!(!folder.path().join("state").exists());
    let short = config.replace("0123456789abcdef", "short");
    std::fs::write(folder.path().join("weir.toml"), short).expect("written");
    let (code, _, err) = super::weir(folder.path(), &["status"]);
    assert!(code == 78 && err.contains("at least 16") && !err.contains("short\""), "{code} {err}");
}

#[test]
fn status_says_how_everything_is_doing_and_its_exit_code_whether_all_is_well() {
    let served = Served::start(OPEN);
    served.wait_for("/readyz?verbose", |_, body| body.contains("[+]upstream house"));
    served.post("prompts/list");
    // Weir may notice a moment later that the client has left.
    served.wait_for("/metrics", |_, body| body.contains("\nweir_connections 0.0\n"));
    let (code, out, err) = served.weir(&["status"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let steady = |line: &str| !["weir ", "process "].iter().any(|name| line.starts_with(name));
    let output: Vec<_> = out.lines().filter(|line| steady(line)).collect();
    assert_snapshot!(output.join("\n").replace(env!("CARGO_PKG_VERSION"), "VERSION"), @r"
    endpoint  http://HOST/mcp
    config    FOLDER/weir.toml
    clients   0 connections, 0 sessions, 0 streams
    requests  1, 0 of them failed
    audit     off

    up    house  library; 2 prompts
                 0 calls, 0 errors, 0 in flight
    ");
    assert!(!out.contains('\u{1b}'), "{out}");
    let (code, out, _) = served.weir(&["status", "--json"]);
    let output = weir_base::json::Object::parse(out.trim().to_owned()).expect("JSON");
    assert_eq!(
        (code, output.get("ready"), output.get("draining")),
        (0, Some("true"), Some("false"))
    );
}

#[test]
fn status_names_prompt_files_with_a_mistake() {
    let served = Served::start_in(OPEN, |folder| {
        std::fs::write(folder.join("prompts/bad.md"), "Hello!\n").expect("written");
    });
    served.wait_for("/readyz?verbose", |_, body| body.contains("[+]upstream house"));
    let (code, out, err) = served.weir(&["status"]);
    let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("left out: file bad.md:1: there is no front matter: begin"), "{out}");
}

#[test]
fn what_is_down_is_told_with_its_reason_and_whose_move_it_is() {
    let served = Served::start(&format!(
        "{OPEN}[upstreams.gone]\ncommand = \"/nonexistent/server\"\nrequired = true\n"
    ));
    served.wait_for("/readyz?verbose", |_, body| body.contains("[+]upstream house"));
    let output =
        served.wait_for("/readyz?verbose", |_, body| body.contains("[-]upstream gone failed"));
    assert!(output.ends_with("not ready\n"), "{output}");
    assert_eq!(served.get("/readyz"), (503, "not ready\n".to_owned()));
    let (code, out, err) = served.weir(&["status"]);
    assert_eq!((code, &*err), (1, "weir: 1 of 2 upstreams not up: gone\n"), "{out}");
    assert!(out.contains("down  gone") && out.contains("check that it runs"), "{out}");
    let missing = "never read, and so missing from clients' lists: prompts/list";
    assert!(out.split_whitespace().collect::<Vec<_>>().join(" ").contains(missing), "{out}");
    // Clients see the same state.
    assert!(served.post("prompts/list").contains(r#""weir/partial":["gone"]"#));
}

#[test]
fn an_upstream_that_is_not_required_keeps_nobody_from_being_ready_within_a_second() {
    let start = Instant::now();
    // The server is started and never writes anything.
    let served = Served::start(&format!(
        "{OPEN}[upstreams.silent]\ncommand = \"sh\"\nargs = [\"-c\", \"read -r _; read -r _; read -r _\"]\n"
    ));
    let output = served.wait_for("/readyz?verbose", |status, _| status == 200);
    assert!(output.contains("[-]upstream silent not required: starting"), "{output}");
    // A server may take a minute to start.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn while_it_is_about_to_stop_it_is_not_ready_and_serves_on() {
    let served = Served::start_in("[upstreams.house]\nprompts_dir = \"prompts\"\n", |folder| {
        let file = folder.join("weir.toml");
        let text = std::fs::read_to_string(&file).expect("it was written");
        let text = text.replace("[server]\n", "[server]\nshutdown_delay = \"60s\"\n");
        std::fs::write(file, text).expect("written");
    });
    served.wait_for("/readyz", |status, _| status == 200);
    served.weir.signal(Signal::TERM);
    served.wait_for("/readyz", |status, body| (status, body) == (503, "not ready\n"));
    let answer = served.post("prompts/list");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // The second signal, after which Weir does not wait, comes with the end of this test.
}

#[test]
fn while_it_stops_it_is_not_ready_and_says_so_until_the_last_call_has_ended() {
    let hesitant = r#"'$(echo asked > asked; read -r _ < go)'"result":{"messages":[]}"#;
    let slow = r#""result":{"prompts":[{"name":"slow"}]}"#;
    let served = Served::start_in(&scripted("hub"), |folder| {
        script(folder, "hub", &[("prompts/list", slow), ("prompts/get", hesitant)]);
        ["asked", "go"].iter().for_each(|name| make_pipe(&folder.join(name)));
    });
    served.wait_for("/readyz", |status, _| status == 200);
    let params = json!({ "name": "hub__slow" });
    let call = http::send_post(&served.host, None, "prompts/get", params);
    // The call has reached the server.
    read_pipe(served.folder.path().join("asked"));
    let (_, out, _) = served.weir(&["status"]);
    assert!(out.contains("1 in flight"), "{out}");
    served.weir.signal(Signal::TERM);
    served.wait_for("/readyz", |status, body| (status, body) == (503, "not ready\n"));
    assert!(served.get("/readyz?verbose").1.contains("[-]endpoint failed: stopping"));
    assert_eq!(served.get("/healthz").0, 200);
    let (code, out, err) = served.weir(&["status"]);
    assert!(code == 1 && out.contains("stopping") && err.contains("it is stopping"), "{out}{err}");
    write_pipe(served.folder.path().join("go"));
    let answer = http::response(call);
    assert!(answer.contains(r#""id":1,"result""#), "{answer}");
}

#[test]
fn an_upstream_that_is_disabled_is_in_the_status_and_is_no_problem() {
    let off = "[upstreams.attic]\ncommand = \"/nowhere/server\"\nenabled = false\n";
    let served = Served::start(&format!("{OPEN}{off}"));
    served.wait_for("/readyz", |status, _| status == 200);
    let (code, out, err) = served.weir(&["status"]);
    assert_eq!((code, &*err), (0, ""));
    assert!(out.ends_with("disabled  attic  `weir enable attic` enables it\n"), "{out}");
    let (_, out, _) = served.weir(&["status", "--json"]);
    assert!(out.contains(r#""disabled":["attic"]"#), "{out}");
    // A reload changes it.
    assert_eq!(served.weir(&["enable", "attic"]).0, 0);
    served.weir(&["reload"]);
    let (_, out, _) = served.weir(&["status"]);
    assert!(!out.contains("disabled") && out.contains("attic"), "{out}");
}

#[test]
fn where_nothing_runs_it_says_what_to_do() {
    let folder = folder(&format!(
        "[admin]\nlisten = \"127.0.0.1:1\"\n[state]\ndir = \"state\"\n{LIBRARY_CONFIG}"
    ));
    let output = super::shown(folder.path(), &["status"]);
    assert_snapshot!(output, @r"
    $ weir status
    ! weir: no Weir of this configuration runs: nothing listens at 127.0.0.1:1; start it with `weir serve`
    => 4
    ");
    let off = folder_without_admin();
    let output = super::shown(off.path(), &["status", "--json"]);
    assert_snapshot!(output, @r#"
    $ weir status --json
    ! {"error":"the admin listener of this configuration is disabled: [admin] enabled = false","exit_code":78}
    => 78
    "#);
}

#[test]
fn a_token_that_is_not_taken_is_exit_code_3_and_health_needs_none() {
    let served = Served::start(OPEN);
    served.wait_for("/readyz", |status, _| status == 200);
    std::fs::write(served.folder.path().join("state/admin-token"), "x".repeat(43))
        .expect("written");
    for arguments in [&["status"][..], &["reload"], &["top", "--once"]] {
        let (code, out, err) = served.weir(arguments);
        assert_eq!((code, &*out), (3, ""), "{arguments:?}: {err}");
        assert!(err.contains("rejects the token"), "{arguments:?}: {err}");
    }
    assert_eq!(served.weir(&["health"]), (0, "ready\n".to_owned(), String::new()));
}

fn folder_without_admin() -> TempDir {
    folder(&format!("[admin]\nenabled = false\n{LIBRARY_CONFIG}"))
}

#[test]
fn the_weir_of_another_configuration_is_not_taken_for_this_one() {
    let served = Served::start(OPEN);
    let other = served.folder.path().join("other.toml");
    let config = std::fs::read_to_string(served.folder.path().join("weir.toml")).expect("read");
    std::fs::write(&other, config).expect("written");
    let (code, _, err) = served.weir(&["status", "--config", "other.toml"]);
    assert_eq!(code, 4);
    assert_snapshot!(err, @"weir: the Weir at ADMIN runs with FOLDER/weir.toml; start one with this configuration, and with a `listen` of its own under [admin]");
}

#[test]
fn a_program_that_is_no_weir_is_not_taken_for_one() {
    for answer in [
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "SSH-2.0-OpenSSH_9.2\r\n",
    ] {
        let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = other.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for connection in other.incoming() {
                let mut connection = connection.expect("a connection");
                let mut read = || connection.read(&mut [0; 1_024]).unwrap_or_default();
                let is_asked = answer.starts_with("HTTP") && read() > 0;
                let _ = connection.write_all(answer.as_bytes());
                // Closed with unread bytes, the connection would be reset.
                if !is_asked {
                    let _ = connection.read(&mut [0; 1_024]);
                }
            }
        });
        let folder = folder(&format!("{}{OPEN}", listeners(port)));
        // With a token of a former Weir, and without.
        for has_token in [false, true] {
            if has_token {
                let state = folder.path().join("state");
                std::fs::create_dir_all(&state).expect("made");
                let token = state.join("admin-token");
                std::fs::write(&token, "x".repeat(43)).expect("written");
                std::fs::set_permissions(token, Permissions::from_mode(0o600)).expect("ours");
            }
            for arguments in [&["status"][..], &["reload"], &["restart", "house"]] {
                let (code, out, err) = super::weir(folder.path(), arguments);
                let expected = format!(
                    "weir: something else answers at 127.0.0.1:{port}, and no Weir: a Weir of this \
                     configuration cannot listen there for operators; set another `listen` under \
                     [admin], then start it again\n"
                );
                assert_eq!((code, &*out, err), (4, "", expected), "{answer} {arguments:?}");
            }
        }
    }
}

#[test]
fn an_address_that_is_written_has_to_be_free() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let folder = folder(&format!("{}{OPEN}", listeners(port)));
    let (code, _, err) = super::weir(folder.path(), &["serve"]);
    assert_eq!(code, 4);
    let err = err.lines().last().unwrap_or_default().replace(&port.to_string(), "PORT");
    assert_snapshot!(err, @"weir: cannot listen on 127.0.0.1:PORT for operators: Address already in use (os error 98); set another `listen` under [admin]");
}

#[test]
fn where_somebody_else_has_the_usual_address_it_serves_without_operators() {
    // Another test's process may have the address and leave it later; a program that keeps it
    // longer than any test takes it as well as this one.
    let start = Instant::now();
    let mut taken = None;
    wait_until("the address is taken", || {
        taken = std::net::TcpListener::bind("127.0.0.1:9464").ok();
        taken.is_some() || start.elapsed() > Duration::from_secs(30)
    });
    let folder = folder(&format!("[server]\nlisten = \"127.0.0.1:0\"\n{LIBRARY_CONFIG}"));
    // No format is configured, and the log goes into a pipe.
    let mut weir = serve(folder.path());
    weir.end();
    let log = weir.log();
    let message =
        "\"admin listener not started: set `listen` under [admin] for `weir status` and metrics\"";
    let mut before = log.iter().take_while(|line| !line.contains("\"ready\""));
    let is_so = |line: &String| line.contains(message) && line.contains("\"127.0.0.1:9464\"");
    assert!(before.any(is_so), "{log:?}");
}

#[test]
fn whatever_clients_invent_makes_no_series() {
    let served = Served::start(OPEN);
    // The state of an upstream is a time series, too.
    served.wait_for("/metrics", |_, text| text.contains(r#",state="up"}"#));
    // Methods, items and clients, each with a name that no text format accepts unescaped. The first
    // of each kind create all the time series that there are.
    const KINDS: usize = 4;
    let of = |number: usize| {
        let odd = format!(r#"{number}\"}} 1\n# EOF\u2028\\"#);
        let (method, own) = match number % KINDS {
            0 => (format!("x/{number}"), String::new()),
            1 => ("prompts/get".to_owned(), format!(r#""name":"{odd}","#)),
            2 => ("tools/call".to_owned(), format!(r#""name":"house__{odd}","#)),
            _ => ("resources/read".to_owned(), format!(r#""uri":"odd://{odd}","#)),
        };
        let client = format!(
            r#""io.modelcontextprotocol/clientInfo":{{"name":"{odd}","version":"{odd}"}},"#
        );
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{own}"_meta":{{{client}"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        );
        (method, body)
    };
    let series = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, _)| name.to_owned())
            .collect::<Vec<_>>()
    };
    let mut before = Vec::new();
    let mut stream = TcpStream::connect(&served.host).expect("it listens");
    let mut answers = BufReader::new(stream.try_clone().expect("a copy"));
    let count = if by_night() { 10_000 } else { 1_000 };
    for number in 0..count {
        if number == KINDS {
            before = series(&served.get("/metrics").1);
        }
        let (method, body) = of(number);
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nMcp-Method: {method}\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Content-Length: {}\r\n\r\n{body}",
            served.host,
            body.len()
        );
        // In one write: each further piece would wait for the acknowledgment of the one before.
        stream.write_all(request.as_bytes()).expect("written");
        let mut length = 0;
        loop {
            let mut line = String::new();
            answers.read_line(&mut line).expect("a line");
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().expect("a number");
            }
            if line == "\r\n" {
                break;
            }
        }
        std::io::copy(&mut (&mut answers).take(length), &mut std::io::sink()).expect("read");
    }
    let metrics = served.get("/metrics").1;
    let counted = r#"mcp_server_operation_duration_seconds_count{mcp_method_name="other",error_type="-32601",rpc_response_status_code="-32601"}"#;
    let counted = format!("{counted} {}\n", count / KINDS);
    assert!(metrics.contains(&counted), "{metrics}");
    assert_eq!(series(&metrics), before);
    assert!(!metrics.contains("x/") && metrics.matches("# EOF").count() == 1, "{metrics}");
}

#[test]
fn operators_are_answered_while_all_connections_are_taken() {
    let served = Served::start_in(OPEN, |folder| {
        let file = folder.join("weir.toml");
        let text = std::fs::read_to_string(&file).expect("it was written");
        let text = text.replace("[server]\n", "[server]\ntimeouts.head = \"60s\"\n");
        std::fs::write(file, text).expect("written");
    });
    let hanging: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(&served.host).expect("it listens");
            write!(stream, "POST /mcp HTTP/1.1\r\nHost: x\r\n").expect("written");
            stream
        })
        .collect();
    let silent: Vec<_> =
        (0..20).map(|_| TcpStream::connect(&served.admin).expect("it listens")).collect();
    let start = Instant::now();
    assert_eq!(served.get("/healthz").0, 200);
    // None of those connections ends by itself within this time.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    served.wait_for("/metrics", |_, body| {
        body.contains(&format!("weir_connections {}", hanging.len()))
    });
    drop((hanging, silent));
}

#[test]
fn what_is_left_of_the_limits_on_an_item_is_told_for_a_client() {
    let key = "a long and random text that is somebody's key";
    let hash = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let config = format!(
        "{OPEN}[roles.guest]\nprompts.allow = [\"house/*\"]\n\
         [clients.ann]\nrole = \"guest\"\nkey_sha256 = [\"{hash}\"]\n\
         [clients.bob]\nrole = \"guest\"\nkey_sha256 = [\"{}\"]\n\
         [[limits]]\nper = \"client\"\nmethod = \"prompts/get\"\nrate = \"10/h\"\nburst = 5\nconcurrency = 4\n",
        "1".repeat(64)
    );
    let served = Served::start(&config);
    for _ in 0..2 {
        served.post_as(Some(key), "prompts/get", Some("house__greeting"));
    }
    let explained = |client: &str| served.weir(&["explain", "house__greeting", "--as", client]).1;
    for (client, left) in
        [("ann", "left now: 3 at once, 4 more"), ("bob", "left now: 5 at once, 4 more")]
    {
        let text = explained(client);
        assert!(text.contains(left), "{text}");
    }
    let (status, _) = served.get("/limits?about=e30");
    assert_eq!(status, 401);
    assert_eq!(served.with_token("/limits?about=e30").0, 404);

    let folder = folder(&config);
    let (_, text, _) = super::weir(folder.path(), &["explain", "house__greeting", "--as", "ann"]);
    assert!(
        text.contains("the remaining quota is known only while a Weir of this configuration runs"),
        "{text}"
    );
}

#[test]
fn an_instance_is_found_although_its_file_has_mistakes_now() {
    let mut served = Served::start(&format!("[audit]\nenabled = true\n{OPEN}"));
    served.wait_for("/readyz?verbose", |_, body| body.contains("[+]upstream house"));
    let file = served.folder.path().join("weir.toml");
    let good = std::fs::read_to_string(&file).expect("it was written");
    let port = served.admin.rsplit(':').next().expect("a port").to_owned();
    let admin = format!("listen = \"127.0.0.1:{port}\"");
    let refused = "the file has been refused since ";
    for bad in [
        format!("{good}nonsense = 1\n"),
        good.replace(&admin, "listen = \"nowhere\""),
        good.replace(&admin, "listen = 5"),
        good.replace("enabled = true", "enabled = \"perhaps\"\npath = 7"),
        good.replace("[server]\n", "[server]\nlisten = []\n"),
        // Not TOML: an open string, an open table and an open list at the end.
        format!("{good}command = \"x\n"),
        format!("{good}[upstreams"),
        format!("{good}args = [\n"),
        format!("include = [\"gone.toml\"]\n{good}"),
    ] {
        assert_ne!(bad, good);
        std::fs::write(&file, &bad).expect("written");
        served.wait_for("/metrics", |_, body| body.contains("\nweir_config_refused 1.0\n"));
        let (code, out, err) = served.weir(&["status"]);
        assert!(code == 1 && err.contains(refused), "{bad}: {code} {err}");
        assert!(out.contains(refused), "{bad}: {out}");
        let (code, out, err) = served.weir(&["top", "--once"]);
        assert!(code == 0 && out.contains(refused), "{bad}: {code} {out} {err}");
        let (code, out, err) = served.weir(&["audit", "tail"]);
        assert!(code == 0 && out.contains("  started "), "{bad}: {code} {out} {err}");
        assert!(err.starts_with(&format!("weir: {refused}")), "{bad}: {err}");
        let (code, out, err) = served.weir(&["audit", "verify"]);
        assert!(code == 0 && out.contains("intact"), "{bad}: {code} {err}");
        let (code, _, err) = served.weir(&["reload"]);
        assert!(code == 1 && err.contains("weir.toml:"), "{bad}: {code} {err}");
    }
    std::fs::write(&file, &good).expect("written");
    served.wait_for("/metrics", |_, body| body.contains("\nweir_config_refused 0.0\n"));
    assert_eq!(served.weir(&["status"]).0, 0);
    // Where nothing runs, the mistakes are what has to be corrected first.
    served.weir.end();
    std::fs::write(&file, format!("{good}nonsense = 1\n")).expect("written");
    for arguments in [&["status"][..], &["top", "--once"], &["audit", "tail"], &["reload"]] {
        let (code, _, err) = served.weir(arguments);
        assert!(code == 78 && err.contains("nonsense"), "{arguments:?}: {code} {err}");
    }
}

#[test]
fn the_next_expiry_of_a_key_is_a_metric_and_an_expired_one_is_none() {
    let key = |name: &str, digit: &str, expires: &str| {
        let hash = digit.repeat(64);
        format!("[clients.{name}]\nrole = \"local\"\nkey_sha256 = [\"{hash}\"]\n{expires}\n")
    };
    let start = |clients: &[String]| Served::start(&format!("{OPEN}{}", clients.concat()));
    let expiry = |served: &Served| {
        let metrics = served.get("/metrics").1;
        let name = "weir_expiry_seconds{what=\"client_key\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.parse::<f64>().expect("a number"))
    };
    let past = key("old", "1", "expires = 2020-01-01T00:00:00Z");
    let (far, near) = ("expires = 2098-01-01T00:00:00Z", "expires = 2097-01-01T00:00:00Z");
    let served = start(&[past, key("a", "2", far), key("b", "3", near), key("c", "4", "")]);
    let seconds = expiry(&served).expect("a series");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // 2097-01-01T00:00:00Z
    let expected = 4_007_836_800.0 - now.expect("after 1970").as_secs_f64();
    assert!((seconds - expected).abs() < 60.0, "{seconds}, not {expected}");
    assert_eq!(expiry(&start(&[key("c", "4", "")])), None);
}

#[test]
fn the_status_in_the_documents_is_what_the_command_prints() {
    let page = include_str!("../../docs/operations.md");
    let (_, sample) = page.split_once("$ weir status\n").expect("a sample");
    let (sample, _) = sample.split_once("```").expect("its end");
    let notes = super::example("legacy_stdio");
    let served = Served::start(&format!(
        "[audit]\nenabled = true\n[upstreams.notes]\ncommand = {notes:?}\n\
         [upstreams.wiki]\nurl = \"http://127.0.0.1:9/mcp\"\n"
    ));
    served.wait_for("/readyz?verbose", |_, body| body.contains("[+]upstream notes ok"));
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "x", "version": "1" },
    } });
    let headers =
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    let answer = http::exchange(&served.host, "POST /mcp", headers, &initialize.to_string());
    let session = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
    });
    let headers = format!("{headers}Mcp-Session-Id: {}\r\n", session.expect("a session"));
    let call = |name: &str| {
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": name, "arguments": { "title": "a", "text": "b" },
        } })
    };
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
    for body in [list, call("notes__add_note"), call("notes__find_note")] {
        http::exchange(&served.host, "POST /mcp", &headers, &body.to_string());
    }
    // Numbers differ, lines break elsewhere, and the next attempt may have begun.
    let simplified = |text: &str| {
        let text = text.replace("http://127.0.0.1:8642/mcp", "http://HOST/mcp");
        let text = text.replace("/home/me", "FOLDER");
        let mut text: String =
            text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        while text.contains("00") {
            text = text.replace("00", "0");
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (before, after) = text.split_once("; Weir retries").expect("an attempt");
        let (_, after) = after.split_once(" 0 calls").expect("calls");
        let after = after.replace(" restarts", " restart").replace(", 0 restart", "");
        format!("{before} 0 calls{after}")
    };
    let (_, out, err) = served.weir(&["status"]);
    assert_eq!(simplified(&format!("{out}{err}")), simplified(sample), "{out}{err}");
}
