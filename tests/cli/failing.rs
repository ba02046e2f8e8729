//! Failures with `--json` are one line of JSON; failures of the output; clients without permission.

use std::fs::OpenOptions;
use std::process::Stdio;

use insta::assert_snapshot;

use super::{LIBRARY_CONFIG, folder, shown};

#[test]
fn with_json_every_failure_is_one_line_of_json() {
    let mistakes = folder("[server]\nlistn = 1\n[naming]\nmode = \"all\"\n");
    let config = folder(LIBRARY_CONFIG);
    // A configuration without anything to start gives a warning, which would be a second line.
    let warned = folder("[upstreams.a]\nprompts_dir = \"prompts\"\nenabled = false\n");
    let all = [
        shown(mistakes.path(), &["list", "--json"]),
        shown(mistakes.path(), &["check", "--offline", "--json"]),
        shown(config.path(), &["get", "--json"]),
        shown(config.path(), &["list", "--json", "--colour"]),
        shown(config.path(), &["frobnicate", "--json"]),
        shown(config.path(), &["get", "house__x", "--json", "--as", "nobody"]),
        shown(config.path(), &["list", "--json", "--config", "elsewhere.toml"]),
        shown(warned.path(), &["list", "--json", "--upstream", "a"]),
        shown(warned.path(), &["check", "--offline", "--json"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir list --json
    ! {"error":"weir.toml: upstreams: there is nothing to serve; add at least one [upstreams.<name>] table with prompts_dir, command or url (and 2 more)","exit_code":78,"problems":[{"severity":"error","file":"weir.toml","key":"upstreams","what":"there is nothing to serve","remedy":"add at least one [upstreams.<name>] table with prompts_dir, command or url"},{"severity":"error","file":"weir.toml","line":2,"column":1,"key":"server.listn","what":"no such key","remedy":"did you mean `listen`?"},{"severity":"error","file":"weir.toml","line":4,"column":8,"key":"naming.mode","what":"\"all\" is not a choice here","remedy":"one of: always, none"}]}
    => 78
    $ weir check --offline --json
    ! {"error":"weir.toml: upstreams: there is nothing to serve; add at least one [upstreams.<name>] table with prompts_dir, command or url (and 2 more)","exit_code":78,"problems":[{"severity":"error","file":"weir.toml","key":"upstreams","what":"there is nothing to serve","remedy":"add at least one [upstreams.<name>] table with prompts_dir, command or url"},{"severity":"error","file":"weir.toml","line":2,"column":1,"key":"server.listn","what":"no such key","remedy":"did you mean `listen`?"},{"severity":"error","file":"weir.toml","line":4,"column":8,"key":"naming.mode","what":"\"all\" is not a choice here","remedy":"one of: always, none"}]}
    => 78
    $ weir get --json
    ! {"error":"the following required arguments were not provided: <NAME>","exit_code":2}
    => 2
    $ weir list --json --colour
    ! {"error":"unexpected argument '--colour' found","exit_code":2}
    => 2
    $ weir frobnicate --json
    ! {"error":"unrecognized subcommand 'frobnicate'","exit_code":2}
    => 2
    $ weir get house__x --json --as nobody
    ! {"error":"no client `nobody` in the configuration, which has visitor","exit_code":3}
    => 3
    $ weir list --json --config elsewhere.toml
    ! {"error":"elsewhere.toml: cannot be read: No such file or directory (os error 2); check the path and its permissions","exit_code":78,"problems":[{"severity":"error","file":"elsewhere.toml","key":"","what":"cannot be read: No such file or directory (os error 2)","remedy":"check the path and its permissions"}]}
    => 78
    $ weir list --json --upstream a
    ! {"error":"upstream `a` is disabled: its table has `enabled = false`","exit_code":4}
    => 4
    $ weir check --offline --json
    {"warnings":[{"severity":"warning","file":"weir.toml","line":1,"column":2,"key":"upstreams","what":"every upstream is disabled","remedy":"remove enabled = false from one"}]}
    => 0
    "#);
}

#[test]
fn a_client_whose_keys_have_expired_is_refused_with_the_moment() {
    let folder = folder(&format!("{LIBRARY_CONFIG}expires = 2026-01-02T03:04:05+01:00\n"));
    let all = [
        shown(folder.path(), &["list", "--as", "visitor"]),
        shown(folder.path(), &["get", "house__greeting", "who=x", "--as", "visitor", "--json"]),
        shown(folder.path(), &["stdio", "--strict", "--as", "visitor"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir list --as visitor
    ! weir: the keys of client `visitor` have expired, at 2026-01-02T02:04:05Z: set another `expires` under [clients.visitor]
    => 3
    $ weir get house__greeting who=x --as visitor --json
    ! {"error":"the keys of client `visitor` have expired, at 2026-01-02T02:04:05Z: set another `expires` under [clients.visitor]","exit_code":3}
    => 3
    $ weir stdio --strict --as visitor
    ! weir: the keys of client `visitor` have expired, at 2026-01-02T02:04:05Z: set another `expires` under [clients.visitor]
    => 3
    "#);
}

#[test]
fn an_output_that_is_full_is_a_failure_and_one_that_is_closed_is_none() {
    let folder = folder(LIBRARY_CONFIG);
    for arguments in [
        &["list"][..],
        &["list", "--json"],
        &["get", "house__greeting", "who=Ada"],
        &["check"],
        &["version"],
        &["completions", "fish"],
        &["--help"],
    ] {
        let run = |output: Stdio| {
            let mut weir = crate::program();
            let weir = weir.args(arguments).current_dir(folder.path()).stdout(output);
            weir.stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a device");
        let output = run(full.into()).wait_with_output().expect("it ends");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{arguments:?}: {err}");
        let line = "standard output cannot be written to: No space left on device (os error 28)";
        assert!(err.contains(line) && err.lines().count() == 1, "{err}");
        let mut closed = run(Stdio::piped());
        drop(closed.stdout.take());
        let output = closed.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
    // A failure to write the output cannot be reported on the output.
    let full = OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let mut weir = crate::program();
    let status = weir.args(["get", "house__x"]).current_dir(folder.path()).stderr(full).status();
    assert_eq!(status.expect("it runs").code(), Some(2));
}

#[test]
fn warnings_are_told_to_people_and_stand_in_the_report_for_programs() {
    let folder = folder(&LIBRARY_CONFIG.replace("house/secret", "hous/secret"));
    let requested = shown(folder.path(), &["get", "house__greeting", "who=Ada"]);
    assert_snapshot!(requested, @r#"
    $ weir get house__greeting who=Ada
    [user]
    Hello, Ada!

    [assistant]
    Hello!
    ! warning: roles.guest.prompts.deny: there is no upstream "hous"
     --> weir.toml:7:17
      |
    7 | prompts.deny = ["hous/secret-*"]
      |                 ^^^^^^^^^^^^^^^ did you mean `house`?
    => 0
    "#);
    let json = shown(folder.path(), &["list", "--json", "--as", "visitor"]);
    assert!(!json.contains("! "), "{json}");
    assert_snapshot!(shown(folder.path(), &["check", "--json"]), @r#"
    $ weir check --json
    {"upstreams":[{"name":"house","ok":true,"state":"library","prompts":2,"tools":0,"resources":0,"resourceTemplates":0,"problems":[],"altered":[]}],"warnings":[{"severity":"warning","file":"weir.toml","line":7,"column":17,"key":"roles.guest.prompts.deny","what":"there is no upstream \"hous\"","remedy":"did you mean `house`?"}]}
    => 0
    "#);
}
