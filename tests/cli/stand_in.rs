//! `weir stdio` with a configuration that cannot be used: the client gets the reason.

use std::io::Write;
use std::process::ChildStdin;

use super::auditing::{events, of_kind};
use super::lab::lines::Lines;
use super::lab::weir::Weir;
use super::reloading::replace_file;
use super::{LIBRARY_CONFIG, folder, own_admin, piped, program, stdio, weir};

/// Client of a `weir stdio`, which has initialized its session.
struct Client {
    weir: Weir,
    input: ChildStdin,
    output: Lines,
    /// Response to `initialize`.
    introduction: String,
    requests: usize,
}

impl Client {
    fn new(folder: &std::path::Path, arguments: &[&str]) -> Self {
        Self::of(stdio(folder, arguments))
    }

    fn of((mut weir, mut output): (Weir, Lines)) -> Self {
        let mut input = weir.child.stdin.take().expect("piped");
        let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        writeln!(input, "{initialize}\n{initialized}").expect("it reads");
        let introduction = output.wait_for("protocolVersion");
        Self { weir, input, output, introduction, requests: 0 }
    }

    fn request(&mut self, method: &str, params: &str) -> String {
        self.requests += 1;
        let id = self.requests;
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        writeln!(self.input, "{request}").expect("it reads");
        self.output.wait_for(&format!(r#""id":{id},"#))
    }

    /// Waits until the tools change, and returns their list.
    fn changed_tools(&mut self) -> String {
        self.output.wait_for("notifications/tools/list_changed");
        self.request("tools/list", "{}")
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.weir.wait().success());
    }
}

const LIBRARY: &str = "[upstreams.house]\nprompts_dir = \"prompts\"\n";

const TOOL: &str = "weir__configuration_error";

#[test]
fn a_mistake_in_the_file_is_told_to_the_client_until_it_is_corrected() {
    let good = "[upstreams.house]\nprompts_dir = \"prompts\"\n";
    let folder = folder(&format!("{good}promts.allow = [\"*\"]\n"));
    let mut client = Client::new(folder.path(), &[]);
    let first = "weir.toml:3:1: upstreams.house.promts";
    assert!(client.introduction.contains(first), "{}", client.introduction);
    let list = client.request("tools/list", "{}");
    assert!(list.contains(TOOL) && list.contains(first) && list.contains("prompts"), "{list}");
    let called = client.request("tools/call", &format!(r#"{{"name":"{TOOL}"}}"#));
    assert!(called.contains(first) && called.contains(r#""isError":true"#), "{called}");

    // Another mistake, and a file that is not TOML.
    replace_file(folder.path(), "weir.toml", &format!("{good}[servr]\n"));
    let list = client.changed_tools();
    assert!(list.contains("servr") && !list.contains("promts"), "{list}");
    replace_file(folder.path(), "weir.toml", "[upstreams");
    let list = client.changed_tools();
    assert!(list.contains("weir.toml:1") && !list.contains("servr"), "{list}");

    replace_file(folder.path(), "weir.toml", good);
    let list = client.changed_tools();
    assert!(!list.contains(TOOL), "{list}");
    let prompts = client.request("prompts/list", "{}");
    assert!(prompts.contains("house__greeting"), "{prompts}");

    // From now on a mistake changes nothing, as with every running Weir.
    replace_file(folder.path(), "weir.toml", "[upstreams");
    client.weir.wait_for_log("the previous one stays active");
    let prompts = client.request("prompts/list", "{}");
    assert!(prompts.contains("house__greeting"), "{prompts}");
    client.end();
}

#[test]
fn the_policy_of_the_client_holds_once_the_file_is_corrected() {
    let folder = folder(&format!("{LIBRARY_CONFIG}\n[servr]\n"));
    let mut client = Client::new(folder.path(), &["--as", "visitor"]);
    assert!(client.introduction.contains("servr"), "{}", client.introduction);
    replace_file(folder.path(), "weir.toml", LIBRARY_CONFIG);
    client.changed_tools();
    let prompts = client.request("prompts/list", "{}");
    assert!(prompts.contains("house__greeting") && !prompts.contains("secret"), "{prompts}");
    client.end();
}

#[test]
fn a_client_that_the_file_does_not_have_sees_nothing_but_the_reason() {
    let folder = folder(LIBRARY_CONFIG);
    let mut client = Client::new(folder.path(), &["--as", "visitr"]);
    assert!(client.introduction.contains("no client `visitr`"), "{}", client.introduction);
    let prompts = client.request("prompts/list", "{}");
    assert!(prompts.contains(r#""prompts":[]"#), "{prompts}");
    // Another change does not make it a client.
    replace_file(folder.path(), "weir.toml", &format!("{LIBRARY_CONFIG}\n[servr]\n"));
    assert!(client.changed_tools().contains("servr"));
    replace_file(folder.path(), "weir.toml", LIBRARY_CONFIG);
    assert!(client.changed_tools().contains("no client `visitr`"));
    replace_file(folder.path(), "weir.toml", &LIBRARY_CONFIG.replace("visitor", "visitr"));
    assert!(!client.changed_tools().contains(TOOL));
    let prompts = client.request("prompts/list", "{}");
    assert!(prompts.contains("house__greeting") && !prompts.contains("secret"), "{prompts}");
    client.end();
}

#[test]
fn a_file_that_is_not_there_is_told_and_served_when_it_is() {
    let folder = folder(LIBRARY_CONFIG);
    let mut client = Client::new(folder.path(), &["--config", "other.toml"]);
    assert!(client.introduction.contains("other.toml"), "{}", client.introduction);
    replace_file(folder.path(), "other.toml", "[upstreams.house]\nprompts_dir = \"prompts\"\n");
    client.changed_tools();
    let prompts = client.request("prompts/list", "{}");
    assert!(prompts.contains("house__greeting"), "{prompts}");
    client.end();
    // Nowhere a file at all.
    let nowhere = tempfile::tempdir().expect("a folder");
    let mut command = program();
    command.arg("stdio").current_dir(nowhere.path()).env_remove("XDG_CONFIG_HOME");
    command.env_remove("WEIR_CONFIG").env("HOME", nowhere.path());
    let mut client = Client::of(piped(command));
    assert!(client.introduction.contains("weir init"), "{}", client.introduction);
    // The user's own place is watched, although its folder is not there yet.
    std::fs::create_dir_all(nowhere.path().join(".config/weir")).expect("made");
    std::fs::create_dir(nowhere.path().join(".config/weir/prompts")).expect("made");
    replace_file(&nowhere.path().join(".config/weir"), "weir.toml", LIBRARY);
    assert!(!client.changed_tools().contains(TOOL));
    client.end();
}

#[test]
fn an_audit_log_that_the_file_wants_is_not_left_out_after_a_correction() {
    let rest = "[upstreams.house]\nprompts_dir = \"prompts\"\n";
    let folder = folder(&format!("{rest}[audit]\nenabled = \"yes\"\n"));
    let mut client = Client::new(folder.path(), &[]);
    replace_file(folder.path(), "weir.toml", &format!("{rest}[audit]\nenabled = true\n"));
    client.weir.wait_for_log("restart the client");
    let list = client.request("tools/list", "{}");
    assert!(list.contains(TOOL), "{list}");
    client.end();
}

#[test]
fn an_audit_log_that_cannot_be_opened_is_told_to_the_client() {
    let recorded = |state: &str, path: &str| {
        format!("[state]\ndir = \"{state}\"\n[audit]\nenabled = true\n{path}{LIBRARY}")
    };
    for (state, path, said) in [
        ("state", "path = \"-\"\n", "standard output belongs to the protocol"),
        ("prompts/greeting.md", "", "audit.jsonl"),
        ("state", "path = \"/dev/null/audit.jsonl\"\n", "/dev/null/audit.jsonl"),
    ] {
        let text = recorded(state, path);
        let folder = folder(&text);
        let (code, out, err) = weir(folder.path(), &["stdio", "--strict"]);
        assert!(code == 78 && out.is_empty() && err.contains(said), "{code}: {out}{err}");

        let mut client = Client::new(folder.path(), &[]);
        assert!(client.introduction.contains(said), "{}", client.introduction);
        let list = client.request("tools/list", "{}");
        assert!(list.contains(TOOL) && list.contains("restart the client"), "{list}");
        // Nothing is served without the log.
        replace_file(folder.path(), "weir.toml", &recorded("state", ""));
        client.weir.wait_for_log("the mistake was in [audit] or [state]");
        let list = client.request("tools/list", "{}");
        assert!(list.contains(TOOL), "{list}");
        client.end();

        let mut client = Client::new(folder.path(), &[]);
        let prompts = client.request("prompts/list", "{}");
        assert!(prompts.contains("house__greeting"), "{prompts}");
        client.end();
    }
}

#[test]
fn a_configuration_in_the_place_of_a_file_with_mistakes_is_recorded_as_refused() {
    let rest = format!("[state]\ndir = \"state\"\n[audit]\nenabled = true\n{LIBRARY}");
    let folder = folder(&format!("{rest}[servr]\n"));
    let mut client = Client::new(folder.path(), &[]);
    for text in [format!("{rest}[serv]\n"), rest] {
        replace_file(folder.path(), "weir.toml", &text);
        client.changed_tools();
    }
    client.end();
    let events = events(folder.path(), "audit.jsonl");
    let configs = of_kind(&events, "config");
    let seen: Vec<_> =
        configs.iter().map(|it| (it["by"].as_str(), it["outcome"].as_str())).collect();
    let [start, file] = ["start", "file"].map(Some);
    let [refused, ok] = ["refused", "ok"].map(Some);
    assert_eq!(seen, [(start, refused), (file, refused), (file, ok)], "{configs:?}");
    for (at, table) in ["servr", "serv"].into_iter().enumerate() {
        let reason = configs[at]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(table), "{reason}");
    }
    assert!(of_kind(&events, "started")[0]["files"].is_null(), "{events:?}");
}

#[test]
fn operators_are_not_told_that_a_file_with_mistakes_is_in_use() {
    let state = format!("{}[state]\ndir = \"state\"\n", own_admin());
    let folder = folder(&format!("{state}{LIBRARY}[servr]\n"));
    let client = Client::new(folder.path(), &[]);
    let (code, _, err) = weir(folder.path(), &["reload"]);
    assert!(code == 1 && err.contains("servr"), "{code}: {err}");
    let (code, out, err) = weir(folder.path(), &["status"]);
    assert!(code == 1 && out.contains("servr"), "{code}: {out}{err}");
    replace_file(folder.path(), "weir.toml", &format!("{state}{LIBRARY}"));
    let (code, out, err) = weir(folder.path(), &["reload"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert_eq!(weir(folder.path(), &["status"]).0, 0);
    client.end();
}

#[test]
fn with_strict_it_ends_as_every_command_does() {
    let folder = folder("[servr]\n");
    let (code, out, err) = weir(folder.path(), &["stdio", "--strict"]);
    assert_eq!((code, &*out), (78, ""));
    assert!(err.contains("servr"), "{err}");
}

#[test]
fn no_upstream_may_have_the_name_of_weirs_own_tools() {
    for table in ["[upstreams.weir]", "[upstreams.house]\nprefix = \"weir\""] {
        let folder = folder(&format!("{table}\nprompts_dir = \"prompts\"\n"));
        let (code, _, err) = weir(folder.path(), &["check", "--offline"]);
        assert!(code == 78 && err.contains("names the tools of Weir itself"), "{err}");
    }
}
