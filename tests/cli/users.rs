//! Users of an identity provider: the role of one, and what `weir explain` says of it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{SystemTime, UNIX_EPOCH};

use insta::assert_snapshot;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::operating::Served;
use super::{folder, shown};
use crate::lab::signing::{jwks, signed};

/// Identity provider of this machine, which serves its keys.
struct Provider {
    issuer: String,
}

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if !matches!(stream.read(&mut byte), Ok(1)) {
                        break;
                    }
                    head.push(byte[0]);
                }
                let body = jwks();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{body}").as_bytes());
            }
        });
        Self { issuer }
    }

    /// Token of a user in these groups.
    fn token(&self, user: &str, groups: &[&str]) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let claims = json!({
            "iss": self.issuer, "aud": "api://weir", "sub": user, "exp": now + 600,
            "roles": groups,
        });
        signed(&claims.to_string())
    }

    fn config(&self, more: &str) -> String {
        config(&self.issuer, more)
    }
}

/// Configuration with a provider, whose table has these further lines.
fn config(issuer: &str, more: &str) -> String {
    format!(
        r#"
[auth.oidc.corp]
issuer = "{issuer}"
jwks_uri = "{issuer}/keys"
audience = ["api://weir"]
roles = {{ devs = "dev", ops = "ops", "CN=a,OU=b" = "ops" }}
{more}
[roles.dev]
prompts.allow = ["house/greeting"]
[roles.ops]
prompts.allow = ["house/*"]
prompts.deny = ["house/greeting"]
[upstreams.house]
prompts_dir = "prompts"
[clients.ci]
key_sha256 = ["2222222222222222222222222222222222222222222222222222222222222222"]
role = "dev"
"#
    )
}

const PUBLIC: &str = "public_url = \"http://127.0.0.1:8642\"\n";

/// Starts Weir with this configuration; the listeners are in the table before it.
fn start(provider: &Provider, more: &str) -> Served {
    let config = provider.config(more);
    let served = Served::start_in(&config, |folder| {
        let path = folder.join("weir.toml");
        let text = std::fs::read_to_string(&path).expect("written");
        let text = text.replacen("[server]\n", &format!("[server]\n{PUBLIC}"), 1);
        std::fs::write(path, text).expect("written");
    });
    served.wait_for("/readyz?verbose", |_, body| body.contains("[+]upstream house ok"));
    served
}

fn offline(more: &str) -> TempDir {
    folder(&format!("[server]\n{PUBLIC}{}", config("http://127.0.0.1:9", more)))
}

fn explained(folder: &TempDir, all: &[&[&str]]) -> String {
    let output = |arguments: &&[&str]| {
        shown(folder.path(), &[&["explain", "house__greeting"], *arguments].concat())
    };
    all.iter().map(output).collect()
}

#[test]
fn a_role_or_groups_are_explained_from_the_configuration_alone() {
    let output = explained(
        &offline(""),
        &[
            &["--role", "dev"],
            &["--role", "dev,ops"],
            &["--groups", "devs,others"],
            &["--as", "corp/bob", "--groups", "others"],
            &["--as", "corp/a/b", "--groups", "CN=a,OU=b"],
            &["--as", "corp/bob", "--role", "dev"],
        ],
    );
    assert_snapshot!(output);
    let with_default = explained(&offline("default_role = \"dev\"\n"), &[&["--groups", "x"]]);
    assert_snapshot!(with_default);
}

#[test]
fn a_user_or_a_role_that_cannot_be_found_is_answered_with_what_to_do() {
    let output = explained(
        &offline("blocked = [\"eve\"]\n"),
        &[
            &["--as", "corp/bob"],
            &["--as", "crop/bob"],
            &["--as", "corp"],
            &["--as", "bob"],
            &["--as", "ci", "--role", "dev"],
            &["--role", "dve"],
            &["--role", "dev+"],
            &["--as", "corp/eve", "--groups", "devs"],
        ],
    );
    assert_snapshot!(output);
    let none = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    assert_snapshot!(explained(&none, &[&["--groups", "devs"], &["--as", "corp/bob"]]));
}

#[test]
fn a_user_of_a_running_weir_is_explained_with_the_role_last_seen() {
    let provider = Provider::start();
    let mut served = start(&provider, "");
    let call = |user: &str, groups: &[&str]| {
        let token = provider.token(user, groups);
        let answer = served.post_as(Some(&token), "prompts/list", None);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    let explain = |user: &str| {
        let (code, out, err) = served.weir(&["explain", "house__greeting", "--as", user]);
        (code, format!("{out}{err}"))
    };
    let is_unseen = |user: &str, hint: &str| {
        let (code, text) = explain(user);
        assert!(code == 3 && text.contains(" was not seen since 20"), "{user}: {code} {text}");
        assert!(text.contains(hint) && text.contains("--groups"), "{user}: {text}");
    };
    is_unseen("corp/bob", "weir audit tail");
    for (groups, expected) in [
        (&["devs"][..], (0, "corp/bob had the role dev at 20")),
        (&["devs", "ops"], (6, "corp/bob had the role dev+ops at 20")),
        (&["others"], (6, "corp/bob had no role at 20")),
    ] {
        call("bob", groups);
        let (code, text) = explain("corp/bob");
        assert!(code == expected.0 && text.contains(expected.1), "{groups:?}: {code} {text}");
    }
    call("team/Bob", &["devs"]);
    call("a\u{200b}b", &["devs"]);
    assert_eq!(["corp/team/Bob", "corp/a\u{200b}b"].map(|user| explain(user).0), [0, 0]);
    is_unseen("corp/team/bob", "a user \"corp/team/Bob\" was seen");
    is_unseen("corp/ab", "a user \"corp/a\\u{200b}b\" was seen");
    let (code, out, _) =
        served.weir(&["explain", "house__greeting", "--as", "corp/team/Bob", "--json"]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (code, &json["client"], &json["visible"]),
        (0, &json!("corp/team/Bob"), &json!(true))
    );
    assert_eq!(json["findings"][0]["roles"][0]["role"], "dev");

    // Under another mapping the user is remembered, and the command says that it is another one.
    let file = served.folder.path().join("weir.toml");
    let text = std::fs::read_to_string(&file).expect("written");
    std::fs::write(&file, text.replace("devs = \"dev\"", "devs = \"ops\"")).expect("written");
    assert_eq!(served.weir(&["reload"]).0, 0);
    let (_, text) = explain("corp/team/Bob");
    assert!(text.contains("had the role dev at") && text.contains("has changed since"), "{text}");
    let token = provider.token("team/Bob", &["devs"]);
    let mut answer = String::new();
    // The keys of a changed provider are fetched anew.
    while !answer.starts_with("HTTP/1.1 200") {
        answer = served.post_as(Some(&token), "prompts/list", None);
        assert!(!answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let (code, text) = explain("corp/team/Bob");
    assert!(code == 6 && text.contains("had the role ops at"), "{code} {text}");
    assert!(!text.contains("has changed since"), "{text}");
    served.weir.end();
    let (code, _, text) = served.weir(&["explain", "house__greeting", "--as", "corp/team/Bob"]);
    assert!(code == 4 && text.contains("only a running one knows the role"), "{code} {text}");
}

#[test]
fn users_without_a_role_are_logged_once_and_counted_by_status_and_metrics() {
    let provider = Provider::start();
    let mut served = start(&provider, "");
    for user in ["bob", "eve", "bob", "ann"] {
        // Each token is another one.
        for groups in [&["x", user][..], &["y"]] {
            let groups = if user == "ann" { &["devs"] } else { groups };
            served.post_as(Some(&provider.token(user, groups)), "prompts/list", None);
        }
    }
    let token = provider.token("bob", &["z"]);
    for name in ["house__greeting", "house__other"] {
        served.post_as(Some(&token), "prompts/get", Some(name));
    }
    let (_, out, _) = served.weir(&["status"]);
    assert!(out.contains("users     2 users of corp without a role"), "{out}");
    let metrics = served.get("/metrics").1;
    for line in [
        "weir_users_without_role{provider=\"corp\"} 2.0",
        "weir_role_requests_total{role=\"dev\"} 2",
        "weir_role_requests_total{role=\"(none)\"} 8",
        "weir_role_refusals_total{role=\"(none)\",reason=\"denied\"} 1",
        "weir_role_refusals_total{role=\"(none)\",reason=\"unknown\"} 1",
        "weir_role_requests_total{role=\"ops\"} 0",
    ] {
        assert!(metrics.contains(&format!("{line}\n")), "{line}: {metrics}");
    }
    assert!(!metrics.contains("bob"), "{metrics}");
    assert_eq!(served.get("/users?about=e30").0, 401);
    // A query about nothing, and none.
    for path in ["/users?about=e30", "/users?about=%%", "/users"] {
        assert_eq!(served.with_token(path).0, 404, "{path}");
    }
    served.weir.end();
    let log = served.weir.wait_for_whole_log();
    for user in ["corp/bob", "corp/eve", "corp/ann"] {
        let lines = log.iter().filter(|line| {
            line.contains("user has no role") && line.contains(&format!("\"{user}\""))
        });
        assert_eq!(lines.count(), usize::from(user != "corp/ann"), "{user}: {log:?}");
    }
}
