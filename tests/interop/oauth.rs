//! Third-party clients log in at a third-party identity provider, and Weir accepts its tokens.
//!
//! Everything is discovered: Weir's 401 leads a client to the metadata, the metadata leads to the
//! provider, and the token comes back to Weir, which has discovered the provider's keys by itself.
//! Another Weir is such a client, too: for an upstream that requires tokens.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rmcp::model::GetPromptRequestParams;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::clients::{Listener, modern, over_http};
use crate::fleet::{Fleet, RUN_PATIENCE, soon, stop_with_log, within};
use crate::lab::by_night;
use crate::lab::ports::free_port;
use crate::lab::weir::Weir;
use crate::parts::{Started, announced, part, script};

/// Client secret of the program without a user.
const ROBOT_SECRET: &str = "the-secret-of-the-robot";

/// Starts a provider for tokens of this resource, signed in this way.
async fn provider(resource: &str, signed_with: &str) -> Started {
    announced(provider_command(resource).env("SIGNED_WITH", signed_with)).await
}

fn provider_command(resource: &str) -> Command {
    let mut command = Command::new(part("bin/node"));
    part("oidc/node_modules/oidc-provider");
    command.arg(script("oidc_provider.mjs")).arg(resource).env("ROBOT_SECRET", ROBOT_SECRET);
    command
}

/// Weir with two prompts; people may use both of them, robots one.
async fn gateway(endpoint_port: u16, issuer: &str) -> Fleet {
    let fleet = Fleet::plain("");
    let config = format!(
        r#"
        [server]
        listen = "127.0.0.1:{endpoint_port}"
        public_url = "http://127.0.0.1:{endpoint_port}"
        [log]
        format = "json"
        level = "debug"
        [upstreams.house]
        prompts_dir = "prompts"
        [roles.person]
        prompts.allow = ["house/*"]
        [roles.robot]
        prompts.allow = ["house/oil"]
        [auth.oidc.there]
        issuer = "{issuer}"
        audience = ["http://127.0.0.1:{endpoint_port}/mcp"]
        roles = {{ people = "person", guests = "robot", robots = "robot" }}
        scopes_required = ["mcp:use"]
        "#
    );
    std::fs::write(fleet.folder().join("weir.toml"), config).unwrap();
    std::fs::create_dir(fleet.folder().join("prompts")).unwrap();
    for name in ["greet", "oil"] {
        let text = format!("---\ndescription: To {name}\n---\nPlease {name}.\n");
        std::fs::write(fleet.folder().join(format!("prompts/{name}.md")), text).unwrap();
    }
    fleet
}

/// Runs a client and returns its one line of output.
async fn run_client(command: &mut Command) -> Value {
    command.env("ROBOT_SECRET", ROBOT_SECRET).kill_on_drop(true);
    let output = command.stdin(Stdio::null()).output();
    let output = within(RUN_PATIENCE, output).await.unwrap();
    let (stdout, log) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{log}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}\n{log}"))
}

#[tokio::test]
async fn sdk_clients_log_in_at_a_real_provider() {
    for signed_with in ["RS256", "ES256", "EdDSA"] {
        let port = free_port();
        let endpoint = format!("http://127.0.0.1:{port}/mcp");
        let provider = provider(&endpoint, signed_with).await;
        let fleet = gateway(port, &provider.url).await;
        let mut served = fleet.serve().await;
        assert_eq!(served.endpoint(), endpoint);
        served.log.logged("upstream listed", "house").await;

        for sdk in ["sdk1", "sdk2"] {
            let mut client = Command::new(part("bin/node"));
            client.arg(script("clients/oauth.mjs")).args([sdk, &endpoint]);
            let seen = run_client(&mut client).await;
            let expected = json!({ "prompts": ["house__greet", "house__oil"] });
            assert_eq!(seen, expected, "{sdk} with {signed_with}");
        }
        let mut client = Command::new(part("mcp2/bin/python"));
        client.arg(script("clients/oauth.py")).args([&endpoint, &provider.url]);
        let seen = run_client(&mut client).await;
        assert_eq!(seen, json!({ "prompts": ["house__oil"] }), "python with {signed_with}");
        let log = stop_with_log(served).await;
        assert!(log.contains("no credentials"), "{log}");
        // No part of a token is logged: all of them begin like this.
        assert!(!log.contains("eyJhbGciOi") && !log.contains(ROBOT_SECRET), "{log}");
    }
}

/// Server that requires tokens, and the provider that issues them.
struct ProtectedServer {
    endpoint: String,
    provider: Started,
    served: Weir,
    _fleet: Fleet,
}

impl ProtectedServer {
    /// Starts both; the variables are those of the provider.
    async fn start(variables: &[(&str, &str)]) -> Self {
        let port = free_port();
        let endpoint = format!("http://127.0.0.1:{port}/mcp");
        let mut command = provider_command(&endpoint);
        let provider = announced(command.envs(variables.iter().copied())).await;
        let fleet = gateway(port, &provider.url).await;
        let mut served = fleet.serve().await;
        served.log.logged("upstream listed", "house").await;
        Self { endpoint, provider, served, _fleet: fleet }
    }
}

/// Weir in front of an upstream that requires tokens of this issuer.
fn signed_in(upstream: &str, issuer: &str, client: &str) -> Fleet {
    Fleet::logging(
        "trace",
        &format!(
            r#"
        [sign_in]
        insecure_loopback = true
        [state]
        dir = "state"
        [admin]
        listen = "127.0.0.1:0"
        [audit]
        enabled = true
        [upstreams.inner]
        url = "{upstream}"
        [upstreams.inner.auth]
        type = "oauth"
        grant = "client_credentials"
        issuer = "{issuer}"
        {client}
        "#
        ),
    )
}

#[tokio::test]
async fn weir_signs_in_at_a_real_provider_with_each_kind_of_credential() {
    let keys = tempfile::TempDir::new().unwrap();
    let inner = ProtectedServer::start(&[("ROBOT_KEYS", keys.path().to_str().unwrap())]).await;
    let with_key = |algorithm: &str| {
        let pem = keys.path().join(format!("{algorithm}.pem"));
        format!("client_id = \"signer-{algorithm}\"\nclient_key = {{ file = {pem:?} }}")
    };
    let with_secret = format!("client_id = \"robot\"\nclient_secret = \"{ROBOT_SECRET}\"");
    for client in [with_secret, with_key("ES256"), with_key("EdDSA"), with_key("RS256")] {
        let outer = signed_in(&inner.endpoint, &inner.provider.url, &client);
        let output = soon(outer.command(&["list", "--json"]).output()).await.unwrap();
        let (listed, log) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(listed.contains("inner__house__oil"), "{client}: {listed}\n{log}");
        assert!(!listed.contains("house__greet"), "{client}: {listed}");
    }
    let wrong = "client_id = \"robot\"\nclient_secret = \"hunter2\"";
    let outer = signed_in(&inner.endpoint, &inner.provider.url, wrong);
    let output = soon(outer.command(&["list"]).output()).await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("invalid_client") && !output.status.success(), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    for command in ["login", "logout"] {
        let (is_well, _, error) = run(&outer, &[command, "inner"]).await;
        assert!(!is_well && error.contains("users do not sign in to it"), "{error}");
    }
    inner.served.stop().await;
}

#[tokio::test]
async fn no_call_fails_while_tokens_expire() {
    let inner = ProtectedServer::start(&[("ROBOT_SECONDS", "2")]).await;
    let client = format!("client_id = \"robot\"\nclient_secret = \"{ROBOT_SECRET}\"");
    let outer = signed_in(&inner.endpoint, &inner.provider.url, &client);
    let mut served = outer.serve().await;
    served.log.logged("upstream listed", "inner").await;
    let client = over_http(&served, modern(), &Listener::default()).await;
    let calls = async {
        loop {
            let prompt = GetPromptRequestParams::new("inner__house__oil");
            client.get_prompt(prompt).await.expect("a prompt");
            tokio::time::sleep(pause()).await;
        }
    };
    let renewals = async {
        for _ in 0..4 {
            served.log.logs("access token issued", "inner").await;
        }
    };
    tokio::select! {
        () = calls => {}
        () = renewals => {}
    }
    drop(client);
    let (is_well, status, error) = run(&outer, &["status", "--json"]).await;
    assert!(is_well && status.contains(r#""state":"up""#), "{status}{error}");
    let metrics = metrics(&served).await;
    assert!(metrics.contains("weir_upstream_up{upstream=\"inner\"} 1"), "{metrics}");
    let log = stop_with_log(served).await;
    let audit = std::fs::read_to_string(outer.folder().join("state/audit.jsonl")).unwrap();
    let issued = r#""event":"sign_in","upstream":"inner","outcome":"ok""#;
    assert_eq!(audit.matches(issued).count(), 1, "{audit}");
    // No part of a token is shown: all of them begin like this.
    for shown in [log, status, metrics, audit] {
        assert!(!shown.contains("eyJhbGciOi") && !shown.contains(ROBOT_SECRET), "{shown}");
    }
    inner.served.stop().await;
}

/// Pause between calls while tokens expire: by day it leaves the processors to other tests.
fn pause() -> Duration {
    Duration::from_millis(if by_night() { 0 } else { 20 })
}

/// Returns what the admin listener of a process says at `/metrics`.
async fn metrics(served: &Weir) -> String {
    let started = served.log.find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let is_it = line["message"].as_str()?.starts_with("admin listener started");
        is_it.then(|| line["address"].as_str().map(str::to_owned))?
    });
    let address = started.expect("an admin listener");
    let mut stream = soon(TcpStream::connect(&address)).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    soon(stream.read_to_string(&mut text)).await.unwrap();
    text
}

/// Weir in front of an upstream to which a user signs in.
fn for_a_user(upstream: &str) -> Fleet {
    Fleet::logging(
        "trace",
        &format!(
            r#"
        [sign_in]
        insecure_loopback = true
        [state]
        dir = "state"
        [admin]
        listen = "127.0.0.1:0"
        [audit]
        enabled = true
        [upstreams.inner]
        url = "{upstream}"
        auth.type = "oauth"
        "#
        ),
    )
}

/// Runs a command to its end, and returns what it has printed.
async fn run(fleet: &Fleet, arguments: &[&str]) -> (bool, String, String) {
    let output = soon(fleet.command(arguments).output()).await.unwrap();
    // Commands that are named have the file that was given.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(" --config weir.toml", "");
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Signs in as a user does, whose browser opens the URL that `weir login` prints. One on another
/// machine cannot come back, so the user pastes the address. Returns what Weir has printed.
async fn log_in(fleet: &Fleet, is_elsewhere: bool) -> String {
    let port = free_port().to_string();
    let mut login = fleet.command(&["login", "inner", "--no-browser", "--port", &port]);
    let mut login =
        login.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(login.stderr.take().unwrap()).lines();
    let mut printed = String::new();
    let url = loop {
        let line = soon(lines.next_line()).await.unwrap().expect("a URL is printed");
        printed += &line;
        if line.starts_with("http://") {
            break line;
        }
    };
    assert!(url.contains(&format!("127.0.0.1%3A{port}%2Fcallback")), "{url}");
    let mut browser = Command::new(part("bin/node"));
    browser.arg(script("browser.mjs")).arg(&url);
    if is_elsewhere {
        let redirect_uri = url.split("redirect_uri=").nth(1).unwrap().split('&').next().unwrap();
        browser.arg(redirect_uri.replace("%3A", ":").replace("%2F", "/"));
    }
    let page = soon(browser.output()).await.unwrap().stdout;
    match is_elsewhere {
        true => {
            let mut typed = b"http://127.0.0.1/callback?state=wrong&code=x\n".to_vec();
            typed.extend(page);
            login.stdin.take().unwrap().write_all(&typed).await.unwrap();
        }
        false => assert!(String::from_utf8_lossy(&page).contains("Weir has the response")),
    }
    let ended = soon(login.wait_with_output()).await.unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success() && said.starts_with("inner: signed in at http://"), "{said}");
    printed + &said
}

/// Returns all lines of the audit logs of this Weir; processes at the same time have one each.
fn audited(fleet: &Fleet) -> String {
    let files = std::fs::read_dir(fleet.folder().join("state")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let logs = files.filter(|path| path.extension().is_some_and(|it| it == "jsonl"));
    logs.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[tokio::test]
async fn a_user_signs_in_once_and_two_processes_renew_the_tokens_together() {
    let secrets = tempfile::NamedTempFile::new().unwrap();
    let refreshes = tempfile::NamedTempFile::new().unwrap();
    let refreshes = refreshes.path();
    let variables = [
        ("USER_SECONDS", "2"),
        ("SECRETS", secrets.path().to_str().unwrap()),
        ("REFRESHES", refreshes.to_str().unwrap()),
    ];
    let inner = ProtectedServer::start(&variables).await;
    let outer = for_a_user(&inner.endpoint);
    let mut shown = String::new();

    // No user is signed in: each command says in one sentence what to do, and a server waits.
    let (is_well, _, error) = run(&outer, &["list"]).await;
    assert!(!is_well && error.contains("sign in with `weir login inner`"), "{error}");
    let (is_well, listed, _) = run(&outer, &["login", "--list"]).await;
    assert!(is_well);
    assert_eq!(listed, "inner: not signed in\n");
    let (is_well, checked, _) = run(&outer, &["check"]).await;
    let expected = "needs sign-in  inner  no access token: sign in with `weir login inner`\n";
    assert!(!is_well);
    assert_eq!(checked, expected);
    let mut first = outer.serve().await;
    first.log.logged("no access token", "inner").await;
    shown += &log_in(&outer, false).await;
    first.log.logged("upstream listed", "inner").await;
    let mut second = outer.serve().await;
    second.log.logged("upstream listed", "inner").await;

    let clients = [
        over_http(&first, modern(), &Listener::default()).await,
        over_http(&second, modern(), &Listener::default()).await,
    ];
    // All of them notice at the same moment that the token expires, in both processes.
    let calls = async {
        loop {
            let both = clients.iter().cycle().take(100);
            let all = both.map(|client| {
                client.get_prompt(GetPromptRequestParams::new("inner__house__greet"))
            });
            let replies = futures::future::join_all(all).await;
            assert!(replies.iter().all(Result::is_ok), "{replies:?}");
            tokio::time::sleep(pause()).await;
        }
    };
    let renewals = async {
        for _ in 0..4 {
            first.log.logs("access token issued", "inner").await;
            // The keys of the vault change meanwhile.
            let (_, sealed, error) = run(&outer, &["login", "--rekey"]).await;
            assert_eq!((&*sealed, &*error), ("1 sealed with a new key\n", ""));
        }
    };
    tokio::select! {
        () = calls => {}
        () = renewals => {}
    }
    drop(clients);
    // Each token is renewed once for both processes. The vault has whole seconds, so that a token
    // of 2 s counts as valid for more than 1 s, and it is renewed once 0.4 s of them are left.
    let renewed = refreshed(refreshes);
    let is_once = |pair: &[Refresh]| pair[1].at - pair[0].at >= Duration::from_millis(590);
    assert!(renewed.len() >= 3 && renewed.windows(2).all(is_once), "{renewed:?}");
    assert!(renewed.iter().all(|refresh| refresh.status == "200"), "{renewed:?}");
    shown += &metrics(&first).await;
    for served in [first, second] {
        let log = stop_with_log(served).await;
        assert!(!log.contains("sign-in ended"), "{log}");
        shown += &log;
    }

    // A process is killed after the provider has replaced the refresh token, and before it has
    // got the new one. Nothing is repeated after that.
    let hold = PathBuf::from(format!("{}.hold", refreshes.display()));
    std::fs::write(&hold, "").unwrap();
    let before = refreshed(refreshes).len();
    loop {
        let mut list = outer.command(&["list"]);
        let mut list = list.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let replaced = async {
            while refreshed(refreshes).len() == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = list.wait() => {}
            () = soon(replaced) => {
                list.kill().await.unwrap();
                break;
            }
        }
    }
    std::fs::remove_file(hold).unwrap();
    let error = refused(&outer).await;
    assert!(error.contains("sign in with `weir login inner`"), "{error}");
    let after = refreshed(refreshes).split_off(before);
    let after: Vec<_> = after.iter().map(|refresh| &*refresh.status).collect();
    assert_eq!(after, ["200", "400"]);
    let (_, listed, _) = run(&outer, &["login", "--list"]).await;
    assert_eq!(listed, "inner: not signed in\n");

    // The user signs in in a browser elsewhere, and out.
    shown += &log_in(&outer, true).await;
    let (_, sealed, error) = run(&outer, &["login", "--rekey"]).await;
    assert_eq!((&*sealed, &*error), ("1 sealed with a new key\n", ""));
    let (is_well, listed, _) = run(&outer, &["list"]).await;
    assert!(is_well && listed.contains("inner__house__greet"), "{listed}");
    let before = kept(&outer);
    let (is_well, said, error) = run(&outer, &["logout", "inner"]).await;
    assert!(is_well && error.is_empty(), "{error}");
    assert_eq!(said, "inner: not signed in\n");
    let (is_well, _, error) = run(&outer, &["list"]).await;
    assert!(!is_well && error.contains("sign in with `weir login inner`"), "{error}");
    // A copy of the sign-in is worth nothing: the provider has revoked it.
    keep(&outer, &before);
    let error = refused(&outer).await;
    assert!(error.contains("sign in with `weir login inner`"), "{error}");
    shown += &error;
    let audited = audited(&outer);
    for event in ["login", "logout", "sign_in"] {
        let line = format!(r#""event":"{event}","upstream":"inner","outcome":"ok""#);
        assert!(audited.contains(&line), "{event}: {audited}");
    }
    shown += &audited;
    let secrets = std::fs::read_to_string(secrets.path()).unwrap();
    assert!(secrets.lines().count() > 20, "{secrets}");
    for secret in secrets.lines() {
        assert!(!shown.contains(secret), "{secret} is shown in {shown}");
    }
    inner.served.stop().await;
}

/// Returns the prompts that a client is listed now.
async fn prompts_of(served: &Weir) -> Vec<String> {
    let client = over_http(served, modern(), &Listener::default()).await;
    let listed = client.list_all_prompts().await.unwrap();
    listed.into_iter().map(|prompt| prompt.name.to_string()).collect()
}

#[tokio::test]
async fn lists_are_those_of_the_user_who_is_signed_in_also_after_a_restart() {
    let user = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(user.path(), "ann").unwrap();
    let inner = ProtectedServer::start(&[("USER_FILE", user.path().to_str().unwrap())]).await;
    let outer = for_a_user(&inner.endpoint);
    let all = ["inner__house__greet", "inner__house__oil"];
    log_in(&outer, false).await;
    let mut served = outer.serve().await;
    served.log.logged("upstream listed", "inner").await;
    assert_eq!(prompts_of(&served).await, all);

    // Bob may use less of it. The tokens of Ann's sign-in are revoked.
    std::fs::write(user.path(), "bob").unwrap();
    let said = log_in(&outer, false).await;
    assert!(!said.contains("not revoked"), "{said}");
    served.log.logs("lists of the former sign-in forgotten", "inner").await;
    served.log.logs("upstream listed", "inner").await;
    assert_eq!(prompts_of(&served).await, [all[1]]);

    let (is_well, _, error) = run(&outer, &["logout", "inner"]).await;
    assert!(is_well && error.is_empty(), "{error}");
    served.log.logs("lists of the former sign-in forgotten", "inner").await;
    assert!(prompts_of(&served).await.is_empty());
    served.stop().await;
    let mut served = outer.serve().await;
    served.log.logged("no access token", "inner").await;
    assert!(prompts_of(&served).await.is_empty());
    let lists = std::fs::read_dir(outer.folder().join("state/catalog")).into_iter().flatten();
    let lists: Vec<_> = lists.map(|file| file.unwrap().file_name()).collect();
    assert!(lists.is_empty(), "{lists:?}");
    served.stop().await;
    inner.served.stop().await;
}

/// Response of the provider to a refresh token.
#[derive(Debug)]
struct Refresh {
    status: String,
    /// Time since 1970.
    at: Duration,
}

/// Returns the responses to refresh tokens so far.
fn refreshed(refreshes: &Path) -> Vec<Refresh> {
    let text = std::fs::read_to_string(refreshes).unwrap();
    let of_line = |line: &str| {
        let (status, at) = line.split_once(' ').unwrap();
        Refresh { status: status.to_owned(), at: Duration::from_millis(at.parse().unwrap()) }
    };
    text.lines().map(of_line).collect()
}

/// Returns the files of the sign-ins, without their locks.
fn kept(fleet: &Fleet) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(fleet.folder().join("state/sign-in")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let files = files.filter(|path| path.extension().is_none());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Brings files of sign-ins back.
fn keep(fleet: &Fleet, files: &BTreeMap<PathBuf, Vec<u8>>) {
    assert!(!files.is_empty(), "{:?} has no sign-in", fleet.folder());
    for (path, content) in files {
        std::fs::write(path, content).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    }
}

/// Uses the upstream until that fails, and returns what is said then.
async fn refused(fleet: &Fleet) -> String {
    loop {
        let (is_well, _, error) = run(fleet, &["list"]).await;
        if !is_well {
            return error;
        }
    }
}
