//! Only the upstreams that a command needs are started. Each one here would leave a file.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};

use super::{folder, piped, program, runs, script, scripted, shown, was_started, weir};
use crate::lab::blocking::{make_pipe, read_pipe, wait_for_exit};
use crate::lab::wait_until;

/// Two servers, one whose program does not exist, one that is disabled, and a prompt library.
fn folder_with_servers() -> tempfile::TempDir {
    let config = [
        scripted("near"),
        "prefix = \"n\"\nresources.allow = [\"near:*\"]\n".to_owned(),
        "rename = { \"tools/old\" = \"new\" }\n".to_owned(),
        scripted("far"),
        "resources.deny = [\"near:*\"]\n".to_owned(),
        "[upstreams.gone]\ncommand = \"/nonexistent/server\"\n".to_owned(),
        "resources.allow = [\"gone:*\"]\n".to_owned(),
        scripted("attic"),
        "enabled = false\n".to_owned(),
        "[upstreams.house]\nprompts_dir = \"prompts\"\n".to_owned(),
    ];
    let folder = folder(&config.concat());
    let long = "x".repeat(100);
    let tools = format!(
        r#""result":{{"tools":[{{"name":"old","inputSchema":{{}}}},{{"name":"{long}","inputSchema":{{}}}}]}}"#
    );
    let resources = r#""result":{"resources":[{"uri":"near:1","name":"one"}]}"#;
    let templates = r#""result":{"resourceTemplates":[{"uriTemplate":"near:{id}","name":"t"}]}"#;
    let answers = [
        ("tools/list", tools.as_str()),
        ("resources/list", resources),
        ("resources/templates/list", templates),
        ("tools/call", r#""result":{"content":[{"type":"text","text":"called"}]}"#),
        ("resources/read", r#""result":{"contents":[{"uri":"near:1","text":"read"}]}"#),
        ("completion/complete", r#""result":{"completion":{"values":["done"]}}"#),
    ];
    for name in ["near", "far", "attic"] {
        script(folder.path(), name, &answers);
    }
    folder
}

/// Runs a command, and returns its output and the servers that it started.
fn started(folder: &Path, arguments: &[&str]) -> (String, Vec<&'static str>) {
    let shown = shown(folder, arguments);
    let started: Vec<_> =
        ["near", "far", "attic"].into_iter().filter(|name| was_started(folder, name)).collect();
    for name in &started {
        std::fs::remove_file(folder.join(format!("{name}.started"))).expect("removed");
    }
    (shown, started)
}

#[test]
fn one_item_needs_one_upstream_and_its_neighbours_are_not_heard_of() {
    let folder = folder_with_servers();
    let (_, out, _) = weir(folder.path(), &["list", "tools", "--upstream", "near"]);
    let short = out.split_whitespace().find(|name| name.contains("xxx")).expect("listed");
    for arguments in [
        &["call", "n__new"][..],
        &["call", short],
        &["read", "near:1"],
        &["read", "near:2"],
        &["complete", "template", "near:{id}", "id="],
        &["list", "tools", "--upstream", "near"],
    ] {
        std::fs::remove_file(folder.path().join("near.started")).ok();
        let (shown, started) = started(folder.path(), arguments);
        assert!(shown.ends_with("=> 0\n") && !shown.contains("! "), "{shown}");
        assert_eq!(started, ["near"], "{arguments:?}");
    }
    let (shown, started) = started(folder.path(), &["get", "house__greeting", "who=Ada"]);
    assert!(shown.contains("Hello, Ada!") && !shown.contains("! "), "{shown}");
    assert!(started.is_empty());
}

#[test]
fn lists_of_a_command_are_shown_to_every_client_before_its_servers_have_started() {
    let folder = folder("");
    let server = folder.path().join("near.sh");
    let config = format!("[state]\ndir = \"state\"\n{}", scripted("near"));
    let config = config.replace("\"near.sh\"", &format!("{server:?}"));
    std::fs::write(folder.path().join("weir.toml"), config).expect("written");
    let tools = r#""result":{"tools":[{"name":"old","inputSchema":{}}]}"#;
    for command in [&["check"][..], &["list", "tools"]] {
        std::fs::remove_dir_all(folder.path().join("state")).ok();
        script(folder.path(), "near", &[("tools/list", tools)]);
        let (code, _, err) = weir(folder.path(), command);
        assert_eq!((code, &*err), (0, ""), "{command:?}");
        // From now on the server says nothing.
        std::fs::write(&server, "cat > /dev/null").expect("written");
        let elsewhere = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("weir.toml").display().to_string();
        let mut client = program();
        client.args(["stdio", "--config", &config]).current_dir(elsewhere.path());
        client.env("TERM", "another").env("LANG", "C");
        let (mut client, mut output) = piped(client);
        let mut input = client.child.stdin.take().expect("piped");
        let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"x","version":"1"}}}"#;
        let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
        let begin = Instant::now();
        writeln!(input, "{initialize}\n{list}").expect("it reads");
        let listed = output.wait_for("\"id\":2");
        assert!(listed.contains("near__old") && !listed.contains("partial"), "{listed}");
        // Without them the list would wait for four seconds.
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        drop(input);
        assert!(client.wait().success());
    }
}

#[test]
fn a_list_starts_all_that_are_on_unless_told() {
    let folder = folder_with_servers();
    let (_, all) = started(folder.path(), &["list", "tools"]);
    assert_eq!(all, ["near", "far"]);
    let (_, named) = started(folder.path(), &["list", "--upstream", "far", "--upstream", "house"]);
    assert_eq!(named, ["far"]);
}

#[test]
fn what_no_upstream_can_have_starts_nothing() {
    let folder = folder_with_servers();
    let mut all = String::new();
    for arguments in [
        &["call", "near__new"][..],
        &["call", "hous__greeting"],
        &["get", "greeting"],
        &["get", "attic__x"],
        &["list", "--upstream", "attic"],
        &["list", "--upstream", "fur"],
    ] {
        let (shown, started) = started(folder.path(), arguments);
        assert!(started.is_empty(), "{arguments:?}");
        all += &shown;
    }
    assert_snapshot!(all, @r"
    $ weir call near__new
    ! weir: no tool `near__new`; did you mean `n__new`? upstreams: near (prefix n), far, gone, house, attic (disabled)
    => 2
    $ weir call hous__greeting
    ! weir: no tool `hous__greeting`; did you mean `house__greeting`? upstreams: near (prefix n), far, gone, house, attic (disabled)
    => 2
    $ weir get greeting
    ! weir: no prompt `greeting`: names begin with the prefix of their upstream, as in `n__greeting`; upstreams: near (prefix n), far, gone, house, attic (disabled)
    => 2
    $ weir get attic__x
    ! weir: upstream `attic` is disabled: its table has `enabled = false`
    => 4
    $ weir list --upstream attic
    ! weir: upstream `attic` is disabled: its table has `enabled = false`
    => 4
    $ weir list --upstream fur
    ! weir: no upstream `fur`; did you mean `far`? upstreams: near (prefix n), far, gone, house, attic (disabled)
    => 2
    ");
}

#[test]
fn an_upstream_that_cannot_be_reached_is_named_with_its_reason() {
    let folder = folder_with_servers();
    let all = [
        shown(folder.path(), &["get", "gone__x"]),
        shown(folder.path(), &["read", "gone:1"]),
        shown(folder.path(), &["list", "prompts", "--upstream", "gone"]),
    ];
    assert_snapshot!(all.concat(), @r"
    $ weir get gone__x
    ! weir: no prompt `gone__x`, but upstream `gone` could not be listed: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    => 4
    $ weir read gone:1
    ! weir: no resource `gone:1`, but upstream `gone` could not be listed: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    => 4
    $ weir list prompts --upstream gone
    ! weir: the list is incomplete: upstream `gone` could not be listed: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    => 4
    ");
}

#[test]
fn hints_follow_the_configured_separator() {
    let folder =
        folder("[naming]\nseparator = \"_-\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let all = [
        shown(folder.path(), &["get", "house_-greting"]),
        shown(folder.path(), &["get", "hause_-greeting"]),
        shown(folder.path(), &["get", "house__greeting"]),
    ];
    assert_snapshot!(all.concat(), @r"
    $ weir get house_-greting
    ! weir: no prompt `house_-greting`; did you mean `house_-greeting`?
    => 2
    $ weir get hause_-greeting
    ! weir: no prompt `hause_-greeting`; did you mean `house_-greeting`? upstreams: house
    => 2
    $ weir get house__greeting
    ! weir: no prompt `house__greeting`: names begin with the prefix of their upstream, as in `house_-house__greeting`; upstreams: house
    => 2
    ");
}

#[test]
fn a_signal_ends_a_wait_at_once_and_leaves_no_child() {
    let folder = folder(&format!("{}timeouts.terminate = \"60s\"\n", scripted("deaf")));
    let deaf = "trap '' TERM INT; echo $$ > begun; while :; do sleep 1; done";
    std::fs::write(folder.path().join("deaf.sh"), deaf).expect("written");
    let begun = folder.path().join("begun");
    make_pipe(&begun);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut weir = crate::program();
        let weir = weir.args(["get", "deaf__x"]).current_dir(folder.path());
        let mut weir = weir.spawn().expect("it starts");
        let child = read_pipe(begun.clone());
        let start = Instant::now();
        kill_process(Pid::from_child(&weir), signal).expect("it runs");
        let status = wait_for_exit(&mut weir);
        assert_eq!((status.code(), status.signal()), (Some(code), None));
        // Without the signal the child would be killed after a minute.
        assert!(start.elapsed() < Duration::from_secs(30), "it did not wait for the child");
        // The kernel takes a moment to deliver a signal that was sent before Weir ended.
        wait_until("the child ends", || !runs(&child));
    }
}

#[test]
fn a_signal_counts_while_a_secret_is_fetched_and_ends_its_command() {
    // `$$` in the file means `$`.
    let command = "echo $$$$ > begun; exec sleep 60";
    let secret = format!("headers = {{ X-Key = {{ command = [\"sh\", \"-c\", \"{command}\"] }} }}");
    let folder = folder(&format!("[upstreams.a]\nurl = \"http://127.0.0.1:9/\"\n{secret}\n"));
    let begun = folder.path().join("begun");
    make_pipe(&begun);
    for arguments in [&["list"][..], &["serve"], &["stdio"]] {
        let mut weir = crate::program();
        let weir = weir.args(arguments).current_dir(folder.path());
        let mut weir = weir.stdin(std::process::Stdio::piped()).spawn().expect("it starts");
        let child = read_pipe(begun.clone());
        let start = Instant::now();
        kill_process(Pid::from_child(&weir), Signal::TERM).expect("it runs");
        let status = wait_for_exit(&mut weir);
        assert_eq!((status.code(), status.signal()), (Some(143), None), "{arguments:?}");
        // The command would take a minute, and is ended after half of it.
        assert!(start.elapsed() < Duration::from_secs(20), "{arguments:?} waited for the command");
        wait_until("the command ends", || !runs(&child));
    }
}

#[test]
fn an_answer_does_not_wait_for_a_neighbour_that_will_not_start_or_end() {
    let config = [
        scripted("near"),
        scripted("deaf"),
        "timeouts.terminate = \"60s\"\nresources.allow = [\"near:*\"]\n".to_owned(),
    ];
    let folder = folder(&config.concat());
    let resources = r#""result":{"resources":[{"uri":"near:1","name":"one"}]}"#;
    let read = r#""result":{"contents":[{"uri":"near:1","text":"read"}]}"#;
    script(folder.path(), "near", &[("resources/list", resources), ("resources/read", read)]);
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    std::fs::write(folder.path().join("deaf.sh"), deaf).expect("written");
    let start = Instant::now();
    let (code, out, err) = weir(folder.path(), &["read", "near:1"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "read", ""));
    // The neighbour would start or end within a minute.
    assert!(start.elapsed() < Duration::from_secs(30), "it waited: {:?}", start.elapsed());
}

#[test]
fn a_neighbour_that_is_not_needed_costs_no_secret_and_no_variable() {
    let config = [
        scripted("near"),
        "resources.allow = [\"near:*\"]\n".to_owned(),
        "env.TOKEN = { command = [\"sh\", \"-c\", \"echo > near.asked; echo t\"] }\n".to_owned(),
        "[upstreams.far]\nurl = \"http://${WEIR_TEST_UNSET}/mcp\"\n".to_owned(),
        "resources.deny = [\"near:*\"]\n".to_owned(),
        "[upstreams.far.headers]\nA = { env = \"WEIR_TEST_UNSET\" }\n".to_owned(),
        "B = { command = [\"touch\", \"far.asked\"] }\n".to_owned(),
    ];
    let folder = folder(&config.concat());
    let has_started = |name: &str| folder.path().join(format!("{name}.asked")).exists();
    let answers = [
        ("tools/list", r#""result":{"tools":[{"name":"a","inputSchema":{}}]}"#),
        ("tools/call", r#""result":{"content":[{"type":"text","text":"called"}]}"#),
        ("resources/list", r#""result":{"resources":[{"uri":"near:1","name":"one"}]}"#),
        ("resources/read", r#""result":{"contents":[{"uri":"near:1","text":"read"}]}"#),
    ];
    script(folder.path(), "near", &answers);
    // A command that fails earlier fetches no secret.
    for arguments in [&["call", "nowhere__a"][..], &["call", "near__a", "--as", "nobody"]] {
        let shown = shown(folder.path(), arguments);
        assert!(!shown.contains("is not set") && !has_started("near"), "{shown}");
    }
    for arguments in
        [&["call", "near__a"][..], &["read", "near:1"], &["list", "tools", "--upstream", "near"]]
    {
        let shown = shown(folder.path(), arguments);
        assert!(shown.ends_with("=> 0\n") && !shown.contains("! "), "{shown}");
    }
    assert!(has_started("near") && !has_started("far"));
    for arguments in [&["call", "far__a"][..], &["list"], &["check"]] {
        let shown = shown(folder.path(), arguments);
        assert!(shown.contains("the variable WEIR_TEST_UNSET is not set"), "{shown}");
        assert!(shown.ends_with("=> 4\n"), "{shown}");
    }
}
