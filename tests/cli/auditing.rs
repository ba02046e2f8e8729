//! The audit log seen from outside the program: its location, its state after a crash, and the
//! commands that read it.

use std::path::Path;
use std::process::Stdio;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::serving::terminate;
use super::{folder, serve, weir};
use crate::lab::blocking::wait_for_exit;
use crate::lab::http::post;
use crate::lab::lines::Lines;
use crate::lab::weir::Weir;

/// Configuration that records into `state/audit.jsonl`.
fn config(audit: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n[upstreams.house]\n\
         prompts_dir = \"prompts\"\n[state]\ndir = \"state\"\n[audit]\nenabled = true\n{audit}\n"
    )
}

/// Prompt with its argument.
fn greet() -> Value {
    json!({ "name": "house__greeting", "arguments": { "who": "Ada" } })
}

fn get(served: &Weir, key: Option<&str>, params: Value) -> String {
    post(&served.address, key, "prompts/get", params)
}

#[test]
fn a_log_is_read_in_words_and_checked() {
    let folder = folder(&config(""));
    let mut served = serve(folder.path());
    assert!(get(&served, None, greet()).contains("Hello, Ada!"));
    assert!(get(&served, None, json!({ "name": "house__x" })).contains("Unknown prompt"));
    served.end();

    let (code, out, err) = weir(folder.path(), &["audit", "tail"]);
    assert_eq!((code, &*err), (0, ""));
    // Drops the timestamps.
    let words: Vec<_> =
        out.lines().map(|line| line.split("  ").skip(1).collect::<Vec<_>>()).collect();
    let words = words.iter().map(|line| line.iter().filter(|it| !it.ends_with(" ms")).copied());
    let words: Vec<String> = words.map(|line| line.collect::<Vec<_>>().join("  ")).collect();
    assert_snapshot!(words.join("\n"), @r"
    started 0.1.0
    anonymous  prompts/get  house__greeting  ok
    anonymous  prompts/get  house__x  refused unknown -32602
    stopped SIGTERM
    ");
    let (_, out, _) = weir(folder.path(), &["audit", "tail", "--client", "nobody"]);
    assert_eq!(out, "");
    let (_, out, _) = weir(folder.path(), &["audit", "tail", "--json", "-n", "1"]);
    let path = folder.path().join("state/audit.jsonl");
    let text = std::fs::read_to_string(&path).expect("a log");
    assert!(text.ends_with(&out) && out.starts_with("{\"seq\":4,"), "{out}");
    assert!(!text.contains("Ada"));

    let (code, out, _) = weir(folder.path(), &["audit", "verify"]);
    let whole = format!("{}: intact; 1 file, 4 lines (1 to 4)", "state/audit.jsonl");
    assert!(code == 0 && out.contains(&whole), "{out}");
    std::fs::write(&path, text.replace("house__x", "house__y")).expect("written");
    let (code, out, err) = weir(folder.path(), &["audit", "verify"]);
    assert_eq!((code, &*out), (5, ""));
    assert!(err.contains("state/audit.jsonl:4: hash mismatch"), "{err}");
    let (code, _, err) = weir(folder.path(), &["audit", "verify", "gone", "--json"]);
    assert_eq!(code, 2);
    assert!(err.starts_with("{\"error\":\"gone cannot be read: "), "{err}");
}

#[test]
fn the_log_is_followed_for_one_client() {
    let more = "[auth]\nmode = \"anonymous\"\n[roles.guest]\nprompts.allow = [\"*\"]\n[clients.ann]\n\
                role = \"guest\"\nkey_sha256 = [\"";
    let key = "a long and random text that is somebody's key";
    let hash = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let folder = folder(&config(&format!("{more}{hash}\"]")));
    let mut served = serve(folder.path());
    let prompt = |name: &str| json!({ "name": format!("house__{name}") });
    get(&served, None, prompt("first"));
    let mut command = crate::program();
    command.args(["audit", "tail", "-f", "--client", "anonymous"]).current_dir(folder.path());
    let mut tail = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = Lines::of(tail.stdout.take().expect("a pipe"));
    // After this line, all other lines are written while the log is followed.
    lines.wait_for("anonymous  prompts/get  house__first");
    for number in 0..3 {
        get(&served, Some(key), prompt("hers"));
        get(&served, None, prompt(&number.to_string()));
        lines.wait_for(&format!("anonymous  prompts/get  house__{number}  refused"));
    }
    terminate(&tail);
    wait_for_exit(&mut tail);
    assert_eq!(lines.wait_for_end().len(), 4, "{:?}", lines.all());
    served.end();
    let (_, out, _) = weir(folder.path(), &["audit", "tail", "--client", "ann"]);
    assert_eq!(out.matches("  ann  prompts/get  house__hers  refused").count(), 3, "{out}");
    assert_eq!(out.lines().count(), 3, "{out}");
}

#[test]
fn what_is_killed_leaves_a_log_that_goes_on() {
    let folder = folder(&config("on_error = \"refuse\""));
    let path = folder.path().join("state/audit.jsonl");
    for torn in ["", "{\"seq\":9,\"ti"] {
        let mut served = serve(folder.path());
        assert!(get(&served, None, greet()).contains("Hello, Ada!"));
        served.signal(Signal::KILL);
        served.wait();
        let text = std::fs::read_to_string(&path).expect("a log");
        assert!(text.lines().any(|line| line.contains("\"admitted\"")), "{text}");
        std::fs::write(&path, text + torn).expect("written");
        let (code, out, err) = weir(folder.path(), &["audit", "verify"]);
        assert_eq!((code, &*err), (0, ""), "{out}");
        assert_eq!(out.contains("1 line was torn by a crash"), !torn.is_empty(), "{out}");
    }
    let mut served = serve(folder.path());
    served.end();
    let (code, out, err) = weir(folder.path(), &["audit", "verify"]);
    assert!(code == 0 && out.contains("1 line was torn by a crash"), "{out}{err}");
}

#[test]
fn a_log_that_cannot_be_written_is_a_mistake_of_the_configuration() {
    let remedy = "set `path` under [audit] or `dir` under [state] to a place that can be written";
    for (path, why) in [
        ("/dev/full", "/dev/full cannot be written: No space left on device"),
        ("/proc/none/audit.jsonl", "/proc/none/audit.jsonl cannot be written: "),
    ] {
        let folder = folder(&config(&format!("path = \"{path}\"")));
        let (code, _, err) = weir(folder.path(), &["serve"]);
        assert_eq!(code, 78);
        assert!(err.contains(why) && err.contains(remedy), "{err}");
    }
    let folder = folder(&config("path = \"-\""));
    let (code, _, err) = weir(folder.path(), &["stdio", "--strict"]);
    assert_eq!(code, 78);
    assert!(err.contains("standard output belongs to the protocol"), "{err}");
}

#[test]
fn two_processes_write_beside_each_other_and_standard_output_is_good_too() {
    let folder = folder(&config(""));
    for mut served in [serve(folder.path()), serve(folder.path())] {
        assert!(get(&served, None, greet()).contains("Hello, Ada!"));
        served.end();
    }
    let (code, out, _) = weir(folder.path(), &["audit", "verify"]);
    let whole = out.lines().filter(|line| line.contains("intact; 1 file, 3 lines")).count();
    assert_eq!((code, whole), (0, 2), "{out}");

    std::fs::write(folder.path().join("weir.toml"), config("path = \"-\"")).expect("written");
    let mut command = crate::program();
    command.arg("serve").current_dir(folder.path()).stdout(Stdio::piped());
    let mut served = Weir::serve(command);
    let output = Lines::of(served.child.stdout.take().expect("a pipe"));
    assert!(get(&served, None, greet()).contains("Hello, Ada!"));
    served.end();
    let out = output.wait_for_end();
    assert!(out.len() == 3 && out.concat().contains("\"prompts/get\""), "{out:?}");
}

#[test]
fn nothing_is_recorded_of_one_person_alone() {
    let folder = folder(&config("").replace("enabled = true\n", ""));
    let mut served = serve(folder.path());
    assert!(get(&served, None, greet()).contains("Hello, Ada!"));
    served.end();
    assert!(!folder.path().join("state/audit.jsonl").exists());
    let (code, _, err) = weir(folder.path(), &["audit", "tail"]);
    assert_eq!(code, 2);
    assert!(err.contains("there is no audit log at "), "{err}");
}

/// Events of a log, without time, numbers and hashes of the chain.
pub(super) fn events(folder: &Path, log: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("state").join(log)).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

pub(super) fn of_kind<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

#[test]
fn a_reload_by_signal_or_file_and_a_failed_upgrade_are_recorded_with_their_origin() {
    let folder = folder(&config(""));
    let path = folder.path().join("weir.toml");
    let mut served = serve(folder.path());
    let mut tail = crate::program();
    tail.args(["audit", "tail", "-f"]).current_dir(folder.path());
    let mut tail = tail.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = Lines::of(tail.stdout.take().expect("a pipe"));
    lines.wait_for("started");
    std::fs::write(&path, config("") + "[roles.one]\n").expect("written");
    lines.wait_for("config  by file  ok  role one added");
    let quiet = config("").replace("[server]\n", "[server]\nwatch = false\n");
    std::fs::write(&path, &quiet).expect("written");
    lines.wait_for("config  by file  ok  role one removed");
    std::fs::write(&path, quiet + "[roles.two]\n").expect("written");
    served.signal(Signal::HUP);
    lines.wait_for("config  by signal  ok  role two added");
    std::fs::write(&path, "broken").expect("written");
    served.signal(Signal::USR2);
    lines.wait_for("upgrade  by signal  error");
    terminate(&tail);
    wait_for_exit(&mut tail);
    served.end();
    let events = events(folder.path(), "audit.jsonl");
    assert_eq!(events.last().map(|event| event["reason"].clone()), Some(json!("SIGTERM")));
}

fn sha256_of(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_configuration_that_is_taken_up_or_refused_is_recorded_with_its_hash_and_its_origin() {
    // The watcher is off, so that each line has one known origin.
    let first = config("").replace("[server]\n", "[server]\nwatch = false\n");
    let first = first + "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let folder = folder(&first);
    let path = folder.path().join("weir.toml");
    let mut served = serve(folder.path());
    let reload = || weir(folder.path(), &["reload"]);
    let write = |text: &str| std::fs::write(&path, text).expect("written");
    // Another text of the same meaning.
    let quiet = format!("{first}# A comment.\n");
    write(&quiet);
    assert_eq!(reload().0, 0);
    // Nothing has changed.
    assert_eq!(reload().0, 0);
    let good = format!("{quiet}[roles.staff]\nprompts.allow = [\"*\"]\n");
    write(&good);
    assert_eq!(reload().0, 0);
    // One refusal for one content.
    let bad = format!("{good}[naming]\nseparator = 7\n");
    write(&bad);
    assert_eq!([reload().0, reload().0], [1, 1]);
    write(&good);
    assert_eq!(reload().0, 0);
    served.end();
    let events = events(folder.path(), "audit.jsonl");
    assert_eq!(events[0]["files"][0]["sha256"], sha256_of(&first));
    let configs = of_kind(&events, "config");
    let seen: Vec<_> = configs
        .iter()
        .map(|event| (event["outcome"].clone(), event["files"][0]["sha256"].clone()))
        .collect();
    let expected = [("ok", &quiet), ("ok", &good), ("refused", &bad)];
    let expected = expected.map(|(outcome, text)| (json!(outcome), json!(sha256_of(text))));
    assert_eq!(seen, expected);
    assert!(configs[1]["changes"].to_string().contains("role staff added"), "{configs:?}");
    let reason = configs[2]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("naming.separator"), "{reason}");
    assert!(configs.iter().all(|event| event["by"] == "command"), "{configs:?}");
    assert_eq!(of_kind(&events, "stopped")[0]["reason"], "SIGTERM");
    let (_, out, _) = weir(folder.path(), &["audit", "tail"]);
    assert!(out.contains("config  by command  refused"), "{out}");
    assert!(out.contains("stopped SIGTERM"), "{out}");
    assert_eq!(weir(folder.path(), &["audit", "verify"]).0, 0);
}

#[test]
fn keys_and_approvals_are_recorded_by_the_command_that_changes_them() {
    let folder = folder(&(config("") + "[roles.guest]\nprompts.allow = [\"*\"]\n"));
    let path = folder.path();
    for arguments in [
        &["keys", "add", "ann", "--role", "guest", "--dry-run"][..],
        &["keys", "add", "ann", "--role", "guest", "--expires", "90d"],
        &["keys", "rotate", "ann"],
        &["keys", "rotate", "ann", "--finish"],
        &["keys", "revoke", "ann"],
        &["pins", "approve"],
        // Nothing is left to approve.
        &["pins", "approve"],
    ] {
        let (code, _, err) = weir(path, arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
    }
    let events = events(path, "audit.jsonl");
    let keys = of_kind(&events, "keys");
    let actions: Vec<_> = keys.iter().map(|event| event["action"].clone()).collect();
    assert_eq!(actions, ["add", "rotate", "finish", "revoke"]);
    assert!(keys.iter().all(|it| it["client"] == "ann" && it["outcome"] == "ok"), "{keys:?}");
    assert_eq!(keys[2]["keys"], keys[0]["keys"]);
    assert_eq!(keys[3]["keys"], keys[1]["keys"]);
    let pins = of_kind(&events, "pins");
    assert_eq!(pins.len(), 1, "{pins:?}");
    assert_eq!((&pins[0]["upstream"], &pins[0]["by"]), (&json!("house"), &json!("command")));
    assert!(pins[0]["changes"].to_string().contains("new prompt greeting"), "{pins:?}");
    assert!(of_kind(&events, "stopped").iter().all(|event| event["reason"] == "command"));
    assert_eq!(weir(path, &["audit", "verify"]).0, 0);
}

#[test]
fn tail_shows_what_commands_record_beside_a_running_weir_in_the_order_of_time() {
    let folder = folder(&(config("") + "[roles.guest]\nprompts.allow = [\"*\"]\n"));
    let mut served = serve(folder.path());
    assert!(get(&served, None, greet()).contains("Hello, Ada!"));
    assert_eq!(weir(folder.path(), &["keys", "add", "ann", "--role", "guest"]).0, 0);
    served.end();
    let (_, out, _) = weir(folder.path(), &["audit", "tail"]);
    let place = |text: &str| out.find(text).unwrap_or_else(|| panic!("{text}: {out}"));
    let places = ["prompts/get", "keys add ann", "stopped command", "stopped SIGTERM"].map(place);
    assert!(places.is_sorted(), "{out}");
    let (_, out, _) = weir(folder.path(), &["audit", "verify"]);
    assert_eq!(out.matches("intact").count(), 2, "{out}");
}

#[test]
fn nothing_is_changed_that_a_mandatory_log_cannot_record() {
    let text = config("path = \"/dev/full\"\non_error = \"refuse\"");
    let folder = folder(&(text + "[roles.guest]\nprompts.allow = [\"*\"]\n"));
    let before = std::fs::read_to_string(folder.path().join("weir.toml")).expect("read");
    let (code, out, err) = weir(folder.path(), &["keys", "add", "ann", "--role", "guest"]);
    assert!(code != 0 && out.is_empty() && err.contains("/dev/full"), "{code} {out} {err}");
    let (code, _, err) = weir(folder.path(), &["pins", "approve"]);
    assert!(code != 0 && err.contains("/dev/full"), "{code} {err}");
    assert!(!folder.path().join("weir.lock").exists());
    let after = std::fs::read_to_string(folder.path().join("weir.toml")).expect("read");
    assert_eq!(before, after);
}
