//! Upstreams that lack a variable, a file or the output of a command, and secrets in arguments.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use rustix::process::Signal;

use super::operating::Served;
use super::{folder, script, scripted, serve, shown, stdio, was_started, weir};
use crate::lab::process::children;

const HOUSE: &str = "[upstreams.house]\nprompts_dir = \"prompts\"\n";

/// Head of a configuration whose log is read here.
const HEAD: &str = "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n";

/// Messages of the log.
const LISTED: &str = "\"upstream listed\"";
const RELOADED: &str = "the configuration was reloaded";
const REFUSED: &str = "the configuration is refused";

/// Three upstreams, each without one value.
fn three() -> String {
    [
        scripted("notion"),
        "env.TOKEN = { env = \"WEIR_TEST_UNSET\" }\n".to_owned(),
        scripted("github"),
        "env.TOKEN = { file = \"secrets/github\" }\n".to_owned(),
        scripted("shop"),
        "env.TOKEN = { command = [\"sh\", \"-c\", \"exit 3\"] }\n".to_owned(),
    ]
    .concat()
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("written");
    std::fs::set_permissions(&beside, Permissions::from_mode(0o600)).expect("set");
    std::fs::rename(beside, path).expect("moved");
}

#[test]
fn check_shows_an_upstream_that_lacks_a_value_as_down_and_offline_as_a_warning() {
    let folder = folder(&format!("{HOUSE}{}", three()));
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_snapshot!(out, @r"
    ok    house   library  2 prompts
    down  notion  the variable WEIR_TEST_UNSET is not set: set it where Weir starts (weir.toml:6)
    down  github  secrets/github cannot be read: No such file or directory (os error 2): make it, or correct the path (weir.toml:10)
    down  shop    sh failed with exit code 3: run it by hand to see what it says (weir.toml:14)
    ");
    assert_eq!(code, 4, "{err}");
    // Each is said once, in the row of its upstream.
    assert_eq!(err, "weir: 3 of 4 upstreams cannot be used: notion, github, shop\n");
    let (code, out, err) = weir(folder.path(), &["check", "--offline"]);
    assert_eq!((code, &*out), (0, ""), "{err}");
    assert!(err.contains("upstreams.notion.env.TOKEN.env: the variable WEIR_TEST_UNSET"), "{err}");
    assert!(err.contains("secrets/github cannot be read") && !err.contains("exit code"), "{err}");
    assert!(err.ends_with("the configuration is valid\n"), "{err}");
    // A command that needs another one does not mention them.
    let (code, _, err) = weir(folder.path(), &["get", "house__greeting", "who=Ada"]);
    assert_eq!((code, &*err), (0, ""));
    let said = shown(folder.path(), &["call", "notion__search"]);
    assert!(said.contains("the variable WEIR_TEST_UNSET is not set: set it where"), "{said}");
    assert!(said.ends_with("=> 4\n"), "{said}");
}

#[test]
fn an_upstream_that_lacks_a_value_is_down_and_all_others_are_served() {
    let prepare = |folder: &Path| {
        for name in ["notion", "github", "shop"] {
            script(folder, name, &[]);
        }
    };
    let served = Served::start_in(&format!("{HOUSE}{}", three()), prepare);
    served.wait_for("/readyz", |status, _| status == 200);
    let list = served.post("prompts/list");
    assert!(list.contains("house__greeting"), "{list}");
    assert!(list.contains(r#""weir/partial":["github","notion","shop"]"#), "{list}");
    let (_, page, _) = served.weir(&["status"]);
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for reason in [
        "the variable WEIR_TEST_UNSET is not set: set it where Weir starts (weir.toml:",
        "secrets/github cannot be read: No such file or directory (os error 2): make it, or",
        "sh failed with exit code 3: run it by hand to see what it says (weir.toml:",
    ] {
        assert!(page.contains(reason), "{reason}: {page}");
    }
    for name in ["notion", "github", "shop"] {
        assert!(!was_started(served.folder.path(), name), "{name}");
    }
    let (code, out, err) = served.weir(&["explain", "notion/x"]);
    assert!(code != 0 && out.contains("WEIR_TEST_UNSET"), "{out}{err}");
}

#[test]
fn a_client_on_stdio_gets_the_others_at_once() {
    let folder = folder(&format!("{HOUSE}{}", three()));
    let (mut weir, mut output) = stdio(folder.path(), &[]);
    let mut input = weir.child.stdin.take().expect("piped");
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"prompts/list"}"#;
    writeln!(input, "{initialize}\n{initialized}\n{list}").expect("it reads");
    output.wait_for("protocolVersion");
    let listed = output.wait_for("\"id\":2");
    assert!(listed.contains("house__greeting"), "{listed}");
    drop(input);
    assert!(weir.wait().success());
}

#[test]
fn a_file_that_appears_starts_its_upstream_and_one_that_vanishes_takes_nothing_away() {
    let folder = folder("");
    let folder = folder.path();
    script(folder, "github", &[]);
    script(folder, "other", &[]);
    let file = "env.TOKEN = { file = \"secrets/github\" }\n";
    let arg = "args = [\"other.sh\", \"${file:secrets/other}\"]\n";
    let other = scripted("other").replace("args = [\"other.sh\"]\n", arg);
    let text = format!("{HEAD}{HOUSE}{}{file}{other}", scripted("github"));
    std::fs::write(folder.join("weir.toml"), &text).expect("written");
    let mut served = serve(folder);
    served.wait_for_log(LISTED);
    assert!(!was_started(folder, "github") && !was_started(folder, "other"));

    write_private(&folder.join("secrets/github"), "one\n");
    let [reloaded, _] = served.wait_for_logs([RELOADED, LISTED]);
    assert!(reloaded.contains("upstream github restarted; upstreams kept: 2"), "{reloaded}");
    write_private(&folder.join("secrets/other"), "one\n");
    let [reloaded, _] = served.wait_for_logs([RELOADED, LISTED]);
    assert!(reloaded.contains("upstream other restarted; upstreams kept: 2"), "{reloaded}");

    // A value of an upstream that runs is not lost, and neither is one of a rewritten table.
    std::fs::remove_file(folder.join("secrets/other")).expect("removed");
    let line = served.wait_for_log(REFUSED);
    assert!(line.contains("upstreams.other.args") && line.contains("cannot be read"), "{line}");
    write_private(&folder.join("secrets/other"), "two\n");
    served.wait_for_logs([RELOADED, LISTED]);
    let lost = text.replace(file, "env.TOKEN = \"${WEIR_TEST_UNSET}\"\n");
    std::fs::write(folder.join("weir.toml"), lost).expect("written");
    let line = served.wait_for_log(REFUSED);
    assert!(line.contains("upstreams.github.env.TOKEN"), "{line}");
    // A new upstream may lack one.
    let new = format!("{text}[upstreams.new]\nurl = \"http://${{WEIR_TEST_UNSET}}/mcp\"\n");
    std::fs::write(folder.join("weir.toml"), new).expect("written");
    let line = served.wait_for_log(RELOADED);
    assert!(line.contains("upstream new added; upstreams kept: 3"), "{line}");
    served.signal(Signal::HUP);
    served.wait_for_log("nothing changed");
    served.end();
}

#[test]
fn what_a_required_upstream_lacks_ends_the_start() {
    let folder = folder(&format!("{HOUSE}{}required = true\n", three()));
    for arguments in [&["check"][..], &["check", "--offline"], &["serve"], &["stdio", "--strict"]] {
        let (code, _, err) = weir(folder.path(), arguments);
        let expected = if arguments == ["check", "--offline"] { 0 } else { 78 };
        // Offline the command is not run, and so it is not known to fail.
        assert_eq!(code, expected, "{arguments:?}: {err}");
    }
    let text = format!("{HOUSE}required = true\n").replace("prompts\"", "${WEIR_TEST_UNSET}\"");
    std::fs::write(folder.path().join("weir.toml"), text).expect("written");
    let (code, _, err) = weir(folder.path(), &["check", "--offline"]);
    assert!(code == 78 && err.contains("WEIR_TEST_UNSET"), "{code} {err}");
}

#[test]
fn a_secret_in_an_argument_reaches_the_server_and_no_output() {
    let folder = folder("");
    let folder = folder.path();
    script(folder, "hub", &[]);
    write_private(&folder.join("secrets/hub"), "hunter2-argument\n");
    let args = "args = [\"hub.sh\", \"--key=${file:secrets/hub}\"]\n";
    let text = format!("{HEAD}level = \"trace\"\n{}", scripted("hub"));
    let text = text.replace("args = [\"hub.sh\"]\n", args);
    std::fs::write(folder.join("weir.toml"), text).expect("written");
    for arguments in [&["check"][..], &["check", "--json"], &["check", "--offline"], &["list"]] {
        let said = shown(folder, arguments);
        assert!(said.ends_with("=> 0\n") && !said.contains("hunter2"), "{said}");
        let is_noted = said.contains("`ps` shows the arguments of a process to all users");
        assert_eq!(is_noted, arguments[0] == "check", "{said}");
    }
    let mut served = serve(folder);
    served.wait_for_log(LISTED);
    let shows_it = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("--key=hunter2-argument")
    };
    let started = children(served.pid()).into_iter().flat_map(|it| [vec![it], children(it)]);
    assert!(started.flatten().any(|process| shows_it(&process)));
    served.end();
    let log = served.wait_for_whole_log().join("\n");
    assert!(log.contains("\"DEBUG\"") && !log.contains("hunter2"), "{log}");
}

#[test]
fn a_secret_file_that_is_no_file_or_of_others_is_refused() {
    let folder = folder("");
    let path = folder.path();
    write_private(&path.join("key"), "hunter2");
    let made = Command::new("mkfifo").arg(path.join("fifo")).status();
    assert!(made.expect("mkfifo").success());
    std::fs::write(path.join("open"), "hunter2").expect("written");
    std::fs::set_permissions(path.join("open"), Permissions::from_mode(0o644)).expect("set");
    for (line, text) in [
        ("args = [\"${file:fifo}\"]", "fifo is not a file"),
        ("args = [\"${file:open}\"]", "open is open to its group or to others"),
        ("args = [\"${file:/dev/zero}\"]", "/dev/zero is not a file"),
        ("env.A = \"${file:key}\"", "in args and url of an upstream only"),
        ("cwd = \"${file:key}\"", "in args and url of an upstream only"),
    ] {
        let config = format!("[upstreams.hub]\ncommand = \"sh\"\n{line}\n");
        std::fs::write(path.join("weir.toml"), config).expect("written");
        for arguments in [&["check"][..], &["check", "--offline"]] {
            let (code, _, err) = weir(path, arguments);
            assert!(code == 78 && err.contains(text) && !err.contains("hunter2"), "{line}: {err}");
        }
    }
    let config = "[upstreams.hub]\ncommand = \"${file:key}\"\n";
    std::fs::write(path.join("weir.toml"), config).expect("written");
    let (code, _, err) = weir(path, &["check"]);
    assert!(code == 78 && err.contains("in args and url of an upstream only"), "{err}");
}
