//! Sign-ins that are being made, renewed or removed when a command ends: the answer of the
//! authorization server is not lost, and what a sign-in needs is protected.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use tempfile::TempDir;

use super::signing_in::{come_back, read_request};
use super::{folder, program, serve, stdio, weir};
use crate::lab::PATIENCE;
use crate::lab::blocking::wait_until;
use crate::lab::process::{children, status};
use crate::lab::weir::Weir;

/// Upstream that is its own authorization server. It rotates refresh tokens, and answers a form
/// when the test says so.
struct Server {
    address: String,
    /// Forms that wait for their answer.
    forms: Receiver<String>,
    answers: Sender<()>,
    served: Arc<Served>,
}

/// Part of the server that its connections share.
struct Served {
    address: String,
    forms: Sender<String>,
    /// Answers that the test allows.
    allowed: Mutex<Receiver<()>>,
    /// Number of tokens that were issued.
    issued: AtomicUsize,
    /// Whether responses whose body is not needed never end.
    is_endless: bool,
    /// Whether only forms with a refresh token wait for the test.
    holds_refreshes_only: AtomicBool,
    /// Number of clients that have registered themselves.
    clients: AtomicUsize,
    /// Access tokens that have come.
    tokens: Mutex<Vec<String>>,
}

impl Server {
    fn start(is_endless: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let ((sender, forms), (answers, allowed)) = (channel(), channel());
        let served = Arc::new(Served {
            address: address.clone(),
            forms: sender,
            allowed: Mutex::new(allowed),
            issued: AtomicUsize::new(0),
            is_endless,
            holds_refreshes_only: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            tokens: Mutex::default(),
        });
        let shared = Arc::clone(&served);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (served, stream) = (Arc::clone(&shared), stream.expect("a connection"));
                std::thread::spawn(move || served.serve(stream));
            }
        });
        Self { address, forms, answers, served }
    }

    /// Configuration with the server as an upstream to which a user signs in.
    fn config(&self) -> String {
        format!(
            "[sign_in]\ninsecure_loopback = true\n[state]\ndir = \"state\"\n\
             [audit]\nenabled = true\n[log]\nformat = \"json\"\n[admin]\nenabled = false\n\
             [server]\nlisten = \"127.0.0.1:0\"\nwatch = false\n\
             [upstreams.house]\nprompts_dir = \"prompts\"\n\
             [upstreams.inner]\nurl = \"http://{}/mcp\"\nauth.type = \"oauth\"\n",
            self.address
        )
    }

    /// Folder with the configuration, in which a user has signed in: `refresh-1` is kept.
    fn signed_in(&self) -> TempDir {
        let folder = folder(&self.config());
        let (mut login, _) = self.begin_login(folder.path());
        self.answer();
        assert!(login.wait().success(), "{:?}", login.log());
        folder
    }

    /// Starts `weir login`, up to the form with the code, and returns the URL that it shows.
    fn begin_login(&self, folder: &Path) -> (Weir, String) {
        let mut login = start(folder, &["login", "inner", "--no-browser"]);
        let url = login.wait_for_log("/authorize?");
        come_back(url.split_once('?').expect("a query").1, "code=c");
        let form = self.next_form();
        assert!(form.contains("grant_type=authorization_code&code=c"), "{form}");
        (login, url)
    }

    fn next_form(&self) -> String {
        self.forms.recv_timeout(PATIENCE).expect("a form")
    }

    /// Waits until this refresh token was sent.
    fn expect_refresh(&self, number: usize) {
        let form = self.next_form();
        assert!(form.contains(&format!("refresh_token=refresh-{number}&")), "{number}: {form}");
    }

    /// Answers the form that waits.
    fn answer(&self) {
        self.answers.send(()).expect("it serves");
    }
}

impl Served {
    fn serve(&self, mut stream: TcpStream) {
        let (request, body, token) = read_request(&mut stream);
        self.tokens.lock().expect("unharmed").extend(token);
        let own = format!("http://{}", self.address);
        let (status, body) = match &*request {
            "GET /.well-known/oauth-protected-resource/mcp" if !self.is_endless => {
                ("200 OK", resource(&own))
            }
            "GET /.well-known/oauth-protected-resource" => ("200 OK", resource(&own)),
            "GET /.well-known/oauth-authorization-server" => ("200 OK", metadata(&own)),
            "POST /register" => {
                let number = self.clients.fetch_add(1, Ordering::Relaxed);
                ("201 Created", format!(r#"{{"client_id":"client-{number}"}}"#))
            }
            "POST /token" | "POST /revoke" => ("200 OK", self.answer(&request, body)),
            "POST /mcp" => ("401 Unauthorized", String::new()),
            _ => ("404 Not Found", String::new()),
        };
        let rest = if self.is_endless && body.is_empty() { 100_000 } else { 0 };
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len() + rest
        );
        if rest > 0 {
            // Until Weir closes the connection.
            let _ = stream.read(&mut [0]);
        }
    }

    /// Returns the body for a form, once the test says so.
    fn answer(&self, request: &str, form: String) -> String {
        let is_refresh = form.contains("grant_type=refresh_token");
        let is_held = is_refresh || !self.holds_refreshes_only.load(Ordering::Relaxed);
        self.forms.send(form).expect("the test runs");
        if is_held {
            // The test may have ended.
            let _ = self.allowed.lock().expect("unharmed").recv();
        }
        if request == "POST /revoke" {
            return String::new();
        }
        let number = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
        // A token that has expired at once is renewed by the next process.
        format!(
            r#"{{"access_token":"access-{0}","token_type":"Bearer","expires_in":0,"refresh_token":"refresh-{0}"}}"#,
            number
        )
    }
}

fn resource(own: &str) -> String {
    format!(r#"{{"resource":"{own}/mcp","authorization_servers":["{own}"]}}"#)
}

fn metadata(own: &str) -> String {
    format!(
        r#"{{"issuer":"{own}","authorization_endpoint":"{own}/authorize","token_endpoint":"{own}/token","registration_endpoint":"{own}/register","revocation_endpoint":"{own}/revoke","code_challenge_methods_supported":["S256"]}}"#
    )
}

/// Starts a command in a folder.
fn start(folder: &Path, arguments: &[&str]) -> Weir {
    let mut command = program();
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    Weir::spawn(command)
}

/// Line on standard error of a command that waits.
const WAITING: &str = "waiting for the answer of the authorization server of `inner`";

/// Checks that a process writes no core file.
#[cfg(target_os = "linux")]
fn writes_no_core(weir: &Weir) {
    let limits = fs::read_to_string(format!("/proc/{}/limits", weir.pid())).expect("it runs");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
    assert_eq!(core.split_whitespace().skip(4).collect::<Vec<_>>(), ["0", "0", "bytes"]);
}

#[test]
fn a_command_that_signals_end_keeps_the_refresh_token_that_replaces_the_one_it_has_sent() {
    let server = Server::start(false);
    let folder = server.signed_in();
    let commands: [&[&str]; 9] = [
        &["check"],
        &["check", "--json"],
        &["list", "tools"],
        &["get", "inner__x"],
        &["call", "inner__x"],
        &["read", "inner:1"],
        &["complete", "prompt", "inner__x", "a="],
        &["explain", "inner__x"],
        &["pins", "approve"],
    ];
    let signals = [Signal::TERM, Signal::INT, Signal::QUIT].into_iter().cycle();
    for (number, (arguments, signal)) in (1..).zip(commands.into_iter().zip(signals)) {
        let mut weir = start(folder.path(), arguments);
        server.expect_refresh(number);
        #[cfg(target_os = "linux")]
        writes_no_core(&weir);
        weir.signal(signal);
        let line = weir.wait_for_log(WAITING);
        let is_json = serde_json::from_str::<serde_json::Value>(&line).is_ok();
        assert_eq!(is_json, arguments.contains(&"--json"), "{line}");
        [signal, Signal::TERM, Signal::INT].into_iter().for_each(|signal| weir.signal(signal));
        server.answer();
        assert_eq!(weir.wait().code(), Some(128 + signal.as_raw()), "{arguments:?}");
    }
    let _weir = start(folder.path(), &["check"]);
    server.expect_refresh(commands.len() + 1);
}

#[test]
fn a_service_that_signals_end_keeps_the_refresh_token_that_replaces_the_one_it_has_sent() {
    let server = Server::start(false);
    let folder = server.signed_in();
    let signals = [
        &[Signal::TERM][..],
        &[Signal::INT, Signal::TERM],
        &[Signal::TERM, Signal::QUIT, Signal::TERM],
    ];
    for (number, signals) in (1..).zip(signals) {
        let mut weir = serve(folder.path());
        server.expect_refresh(number);
        for signal in signals {
            weir.signal(*signal);
        }
        weir.wait_for_log(WAITING);
        weir.signal(Signal::TERM);
        server.answer();
        assert!(weir.wait().success(), "{signals:?}");
    }
    // The client of a process on stdio goes.
    let (mut weir, _output) = stdio(folder.path(), &[]);
    let mut input = weir.child.stdin.take().expect("piped");
    writeln!(input, "{INITIALIZE}").expect("it reads");
    server.expect_refresh(signals.len() + 1);
    drop(input);
    weir.wait_for_log(WAITING);
    server.answer();
    assert!(weir.wait().success());
    // A reload removes the upstream.
    let mut weir = serve(folder.path());
    server.expect_refresh(signals.len() + 2);
    let config = server.config();
    let (rest, _) = config.split_once("[upstreams.inner]").expect("an upstream");
    fs::write(folder.path().join("weir.toml"), rest).expect("written");
    weir.signal(Signal::HUP);
    weir.wait_for_log("the configuration was reloaded");
    weir.signal(Signal::TERM);
    weir.wait_for_log(WAITING);
    server.answer();
    assert!(weir.wait().success());
    // A program that is to take over has the upstream; the one before is stopped meanwhile.
    let mut weir = serve(folder.path());
    fs::write(folder.path().join("weir.toml"), &config).expect("written");
    weir.signal(Signal::USR2);
    server.expect_refresh(signals.len() + 3);
    weir.signal(Signal::TERM);
    weir.wait_for_log(WAITING);
    server.answer();
    assert!(weir.wait().success());
    let _weir = start(folder.path(), &["check"]);
    server.expect_refresh(signals.len() + 4);
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;

#[test]
fn a_command_that_waits_for_the_renewal_of_another_one_ends_at_once() {
    let server = Server::start(false);
    let folder = server.signed_in();
    let _renewing = start(folder.path(), &["check"]);
    server.expect_refresh(1);
    let mut waiting = start(folder.path(), &["list", "tools"]);
    // It has opened the file of the lock.
    #[cfg(target_os = "linux")]
    wait_until("it waits for the lock", || {
        let open = fs::read_dir(format!("/proc/{}/fd", waiting.pid())).into_iter().flatten();
        let mut open = open.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        open.any(|path| path.to_string_lossy().contains("/state/sign-in/"))
    });
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.wait().code(), Some(143));
    assert!(!waiting.wait_for_whole_log().iter().any(|line| line.contains(WAITING)));
}

#[cfg(target_os = "linux")]
#[test]
fn the_end_of_the_terminal_ends_a_command_that_was_not_started_to_outlive_it() {
    let server = Server::start(false);
    let folder = server.signed_in();
    let start = |prefix: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("{prefix} exec \"$0\" check")]).arg(program().get_program());
        Weir::spawn({
            shell.current_dir(folder.path()).stdout(Stdio::null());
            shell
        })
    };
    let mut kept = start("trap '' HUP;");
    server.expect_refresh(1);
    kept.signal(Signal::HUP);
    kept.signal(Signal::TERM);
    kept.wait_for_log(WAITING);
    server.answer();
    assert_eq!(kept.wait().code(), Some(143));
    let mut ended = start("");
    let mask = status(ended.pid(), "SigIgn");
    if u64::from_str_radix(&mask, 16).expect("a mask") & 1 == 1 {
        // These tests were started to outlive their terminal.
        return;
    }
    server.expect_refresh(2);
    ended.signal(Signal::HUP);
    ended.wait_for_log(WAITING);
    server.answer();
    assert_eq!(ended.wait().code(), Some(129));
}

/// Sends two signals to a command that has sent a form, and answers the form.
fn end_with_answer(server: &Server, mut weir: Weir) -> (ExitStatus, Vec<String>) {
    weir.signal(Signal::TERM);
    weir.wait_for_log(WAITING);
    weir.signal(Signal::INT);
    server.answer();
    (weir.wait(), weir.wait_for_whole_log())
}

#[test]
fn a_code_that_was_sent_is_redeemed_and_a_revocation_that_was_sent_is_waited_for() {
    let server = Server::start(false);
    let folder = folder(&server.config());
    let (login, url) = server.begin_login(folder.path());
    let (ended, log) = end_with_answer(&server, login);
    assert!(ended.success(), "{log:?}");
    let (code, listed, _) = weir(folder.path(), &["login", "--list", "--json"]);
    assert_eq!(code, 0);
    assert!(listed.contains(r#""signed_in":true"#), "{listed}");
    let logout = start(folder.path(), &["logout", "inner"]);
    assert!(server.next_form().starts_with("token=refresh-1&"));
    let (ended, log) = end_with_answer(&server, logout);
    assert!(ended.success() && !log.concat().contains("not revoked"), "{log:?}");
    let audit = fs::read_to_string(folder.path().join("state/audit.jsonl")).expect("a log");
    for event in ["login", "logout"] {
        let event = format!(r#""event":"{event}""#);
        let lines: Vec<_> = audit.lines().filter(|line| line.contains(&event)).collect();
        let [line] = lines[..] else { panic!("{audit}") };
        assert!(line.contains(r#""outcome":"ok""#), "{line}");
    }
    // Nothing of the sign-in is shown or recorded.
    let state = url.split_once("state=").expect("a state").1;
    let state = state.split('&').next().expect("a state");
    for secret in ["refresh-", "access-", state] {
        assert!(!listed.contains(secret) && !audit.contains(secret), "{secret}");
    }
}

/// Starts `weir serve` and three commands, the first of which sends `refresh-1`. The others wait
/// for it.
fn renew_in_four_processes(server: &Server, folder: &Path, is_service_first: bool) -> Vec<Weir> {
    let arguments: [&[&str]; 3] = [&["check"], &["list", "tools"], &["call", "inner__x"]];
    let mut all = Vec::new();
    if is_service_first {
        all.push(serve(folder));
        server.expect_refresh(1);
    }
    for arguments in arguments {
        all.push(start(folder, arguments));
        if all.len() == 1 {
            server.expect_refresh(1);
        }
    }
    if !is_service_first {
        all.push(serve(folder));
    }
    all
}

/// Signs in anew, while the forms of the other processes are held.
fn log_in_beside(server: &Server, folder: &Path) {
    let (mut login, _) = server.begin_login(folder);
    assert!(login.wait().success(), "{:?}", login.log());
}

#[test]
fn a_user_signs_out_and_in_while_four_processes_wait_for_a_refresh_which_is_revoked_then() {
    for (is_service_first, signs_out, signs_in) in [
        (true, true, true),
        (false, true, true),
        (true, true, false),
        (false, true, false),
        (true, false, true),
        (false, false, true),
    ] {
        let server = Server::start(false);
        let folder = server.signed_in();
        let folder = folder.path();
        server.served.holds_refreshes_only.store(true, Ordering::Relaxed);
        let all = renew_in_four_processes(&server, folder, is_service_first);
        if signs_out {
            let mut logout = start(folder, &["logout", "inner"]);
            assert!(server.next_form().starts_with("token=refresh-1&"));
            assert!(logout.wait().success(), "{:?}", logout.log());
        }
        if signs_in {
            log_in_beside(&server, folder);
            if !signs_out {
                assert!(server.next_form().starts_with("token=refresh-1&"));
            }
        }
        // The refresh ends now.
        server.answer();
        let (renewed, present) = if signs_in { (3, 2) } else { (2, 0) };
        let mut forms = vec![server.next_form()];
        if signs_in {
            forms.push(server.next_form());
        }
        let revoked = format!("token=refresh-{renewed}&");
        assert!(forms.iter().any(|form| form.starts_with(&revoked)), "{forms:?}");
        if signs_in {
            let own = format!("refresh_token=refresh-{present}&");
            assert!(forms.iter().any(|form| form.contains(&own)), "{forms:?}");
        }
        let unused = format!("access-{renewed}");
        let tokens = server.served.tokens.lock().expect("unharmed").clone();
        assert!(!tokens.contains(&unused), "{tokens:?}");
        let (_, listed, _) = weir(folder, &["login", "--list", "--json"]);
        assert!(listed.contains(&format!(r#""signed_in":{signs_in}"#)), "{listed}");
        drop(all);
    }
}

#[test]
fn a_process_that_is_stopped_in_a_refresh_holds_up_no_sign_in_and_revokes_later() {
    let server = Server::start(false);
    let folder = server.signed_in();
    let folder = folder.path();
    server.served.holds_refreshes_only.store(true, Ordering::Relaxed);
    let stopped = serve(folder);
    server.expect_refresh(1);
    stopped.signal(Signal::STOP);
    let mut logout = start(folder, &["logout", "inner"]);
    assert!(server.next_form().starts_with("token=refresh-1&"));
    assert!(logout.wait().success(), "{:?}", logout.log());
    log_in_beside(&server, folder);
    server.answer();
    // It is waited for as long as a refresh may take.
    let _check = start(folder, &["check"]);
    server.expect_refresh(2);
    stopped.signal(Signal::CONT);
    let form = server.next_form();
    assert!(form.starts_with("token=refresh-3&"), "{form} {:?}", stopped.log());
    let tokens = server.served.tokens.lock().expect("unharmed").clone();
    assert!(!tokens.contains(&"access-3".to_owned()), "{tokens:?}");
}

#[test]
fn a_sign_in_that_was_kept_is_the_result_although_the_revocation_of_the_former_one_hangs() {
    let server = Server::start(false);
    let folder = server.signed_in();
    let (mut login, _) = server.begin_login(folder.path());
    login.signal(Signal::TERM);
    login.wait_for_log(WAITING);
    server.answer();
    assert!(server.next_form().starts_with("token=refresh-1&"));
    let ended = login.wait();
    let log = login.wait_for_whole_log();
    assert!(ended.success(), "{ended:?} {log:?}");
    assert!(log.concat().contains("the former sign-in were not revoked"), "{log:?}");
    let audit = fs::read_to_string(folder.path().join("state/audit.jsonl")).expect("a log");
    let mut lines = audit.lines().filter(|line| line.contains(r#""event":"login""#));
    assert!(lines.next_back().expect("a line").contains(r#""outcome":"ok""#), "{audit}");
}

#[test]
fn a_sign_in_needs_no_body_of_a_response_that_only_refuses() {
    let server = Server::start(true);
    let folder = server.signed_in();
    let logout = start(folder.path(), &["logout", "inner", "--json"]);
    server.next_form();
    let (ended, log) = end_with_answer(&server, logout);
    assert!(ended.success(), "{log:?}");
    assert!(log.iter().all(|line| line.starts_with('{')), "{log:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_browser_gets_neither_the_url_of_the_sign_in_nor_secrets_of_weir() {
    let server = Server::start(false);
    let folder = folder(&server.config());
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("bin")).expect("made");
    fs::create_dir(path("home")).expect("made");
    let script = "#!/bin/sh\nenv >environment\ncut -d' ' -f5 </proc/$$/stat >group\n\
                  echo $$ >process\ncp \"$1\" page\necho \"$*\" >new\nmv new arguments\n";
    fs::write(path("bin/xdg-open"), script).expect("written");
    let set = |name: &str, mode| {
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).expect("changed");
    };
    set("bin/xdg-open", 0o755);
    let read = |name: &str| fs::read_to_string(path(name)).expect("written");
    for (mode, place) in [(0o700, "home"), (0o777, "state/sign-in")] {
        set("home", mode);
        let mut command = program();
        command.args(["login", "inner"]).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let found = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{found}", path("bin").display()));
        command.env("HOME", path("home")).env("DISPLAY", ":7").env("LC_ALL", "C");
        command.env("WEIR_SEALING_KEY", "hunter2").env("PROXY_PASSWORD", "hunter3");
        let mut login = Weir::spawn(command);
        let url = login.wait_for_log("/authorize?");
        wait_until("a browser is opened", || path("arguments").exists());
        let arguments = read("arguments");
        let page = Path::new(arguments.trim_end());
        assert!(page.starts_with(path(place)), "{arguments}");
        assert_eq!(fs::metadata(page).expect("a page").permissions().mode() & 0o777, 0o600);
        let text = read("page");
        assert!(text.contains(&url.replace('&', "&amp;")), "{text}");
        assert!(text.contains("default-src 'none'") && text.contains("no-referrer"), "{text}");
        let environment = read("environment");
        for variable in ["DISPLAY=:7", "LC_ALL=C", "PATH=", "HOME="] {
            let is_it = |line: &str| line.starts_with(variable);
            assert!(environment.lines().any(is_it), "{variable}: {environment}");
        }
        assert!(!environment.contains("hunter"), "{environment}");
        assert_eq!(read("group"), read("process"), "it leads a group of its own");
        wait_until("the browser is reaped", || children(login.pid()).is_empty());
        login.signal(Signal::INT);
        assert_eq!(login.wait().code(), Some(130));
        assert!(!page.exists(), "the page is removed");
        fs::remove_file(path("arguments")).expect("it is there");
    }
}

#[test]
fn a_state_folder_that_is_open_or_read_only_gets_no_sign_in_and_no_refresh_token_is_sent() {
    let server = Server::start(false);
    let folder = server.signed_in();
    let state = folder.path().join("state");
    let set = |folder: &Path, mode| {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("changed");
    };
    for (name, mode, what, remedy) in [
        ("state", 0o777, "can be changed by other users", "run `chmod o-w "),
        ("state/sign-in", 0o733, "can be changed by other users", "run `chmod go-w "),
        ("state", 0o500, "is read-only", "run `chmod u+rwx "),
        ("state/sign-in", 0o500, "is read-only", "run `chmod u+rwx "),
    ] {
        let changed = folder.path().join(name);
        set(&changed, mode);
        let commands: [(&[&str], i32); 4] = [
            (&["check"], 4),
            (&["check", "--offline"], 0),
            (&["login", "inner"], 78),
            (&["login", "--list"], 4),
        ];
        for (arguments, expected) in commands {
            let (code, _, said) = weir(folder.path(), arguments);
            assert_eq!(code, expected, "{mode:o} {arguments:?}: {said}");
            let said = said.replace('\n', " ");
            assert!(said.contains(what) && said.contains(remedy), "{arguments:?}: {said}");
        }
        if name != "state" || mode != 0o500 {
            let mut served = serve(folder.path());
            let warned = served.logged("configuration warning").expect("a warning");
            assert!(warned["what"].as_str().expect("text").contains(what), "{warned}");
            served.end();
        }
        set(&changed, 0o700);
        assert!(server.forms.try_recv().is_err(), "no refresh token is sent");
    }
    set(&state, 0o755);
    let (_, _, said) = weir(folder.path(), &["check", "--offline"]);
    assert!(said.contains("can be listed by other users"), "{said}");
    let mut check = start(folder.path(), &["check"]);
    server.expect_refresh(1);
    check.signal(Signal::TERM);
    server.answer();
    check.wait();
}
