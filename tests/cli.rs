//! The commands, as a person or a script uses them: whole outputs and exit codes.

#![allow(clippy::disallowed_types, reason = "the lab reads JSON of a running Weir")]

#[path = "cli/auditing.rs"]
mod auditing;
#[path = "cli/author_notes.rs"]
mod author_notes;
#[path = "cli/calling.rs"]
mod calling;
#[path = "cli/checking.rs"]
mod checking;
#[path = "cli/environment.rs"]
mod environment;
#[path = "cli/explain.rs"]
mod explain;
#[path = "cli/failing.rs"]
mod failing;
#[path = "cli/keys.rs"]
mod keys;
#[path = "lab/mod.rs"]
mod lab;
#[path = "cli/logs.rs"]
mod logs;
#[path = "cli/missing.rs"]
mod missing;
#[path = "cli/operating.rs"]
mod operating;
#[path = "cli/orphans.rs"]
mod orphans;
#[path = "cli/pins.rs"]
mod pins;
#[path = "cli/probing.rs"]
mod probing;
#[path = "cli/reading.rs"]
mod reading;
#[path = "cli/reloading.rs"]
mod reloading;
#[path = "cli/renewing.rs"]
mod renewing;
#[path = "cli/restarting.rs"]
mod restarting;
#[path = "cli/secrets.rs"]
mod secrets;
#[path = "cli/securing.rs"]
mod securing;
#[path = "cli/serving.rs"]
mod serving;
#[path = "cli/signals.rs"]
mod signals;
#[path = "cli/signing_in.rs"]
mod signing_in;
#[path = "cli/sleeping.rs"]
mod sleeping;
#[path = "cli/special_files.rs"]
mod special_files;
#[path = "cli/stand_in.rs"]
mod stand_in;
#[path = "cli/starting.rs"]
mod starting;
#[cfg(target_os = "linux")]
#[path = "cli/supervising.rs"]
mod supervising;
#[path = "cli/surroundings.rs"]
mod surroundings;
#[path = "cli/telling.rs"]
mod telling;
#[cfg(target_os = "linux")]
#[path = "cli/terminals.rs"]
mod terminals;
#[path = "cli/tracing.rs"]
mod tracing;
#[path = "cli/unresolved.rs"]
mod unresolved;
#[path = "cli/users.rs"]
mod users;
#[cfg(target_os = "linux")]
#[path = "cli/watching.rs"]
mod watching;

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use assert_cmd::Command;
use insta::assert_snapshot;
use lab::lines::Lines;
use lab::weir::Weir;
use tempfile::TempDir;

const GREETING: &str = "---
title: Greeting
description: Greets somebody.
arguments:
  - name: who
    description: Whom to greet.
    required: true
---
Hello, {{who}}!
<!-- role: assistant -->
Hello!
";

/// Folder with a configuration and a prompt library.
fn folder(config: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write("weir.toml", config);
    write("prompts/greeting.md", GREETING);
    write("prompts/secret-plan.md", "---\ndescription: Nobody may see it.\n---\nPsst.\n");
    folder
}

/// Table for operators with a port of its own: another program may have the usual one.
fn own_admin() -> String {
    format!("[admin]\nlisten = \"127.0.0.1:{}\"\n", lab::ports::free_port())
}

const LIBRARY_CONFIG: &str = r#"
[upstreams.house]
prompts_dir = "prompts"

[roles.guest]
prompts.allow = ["house/*"]
prompts.deny = ["house/secret-*"]

[clients.visitor]
key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111"]
role = "guest"
"#;

/// Command of the program, with a state folder of its own.
fn program() -> std::process::Command {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let state = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("state/{}-{number}", std::process::id()));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("XDG_STATE_HOME", state);
    command
}

/// Starts `weir serve` in a folder and waits until it is ready.
fn serve(folder: &Path) -> Weir {
    let mut command = program();
    command.arg("serve").current_dir(folder);
    Weir::serve(command)
}

/// Starts `weir stdio` in a folder with pipes to this test, and returns the lines of its output.
fn stdio(folder: &Path, arguments: &[&str]) -> (Weir, Lines) {
    let mut command = program();
    command.arg("stdio").args(arguments).current_dir(folder);
    piped(command)
}

/// Starts a command with pipes to this test, and returns the lines of its output.
fn piped(mut command: std::process::Command) -> (Weir, Lines) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut weir = Weir::spawn(command);
    let output = Lines::of(weir.child.stdout.take().expect("piped"));
    (weir, output)
}

/// Runs a command in a folder and returns exit code, standard output and standard error.
fn weir(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::from_std(program());
    command.args(arguments).current_dir(folder).timeout(lab::PATIENCE);
    let output = command.output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes text");
    (output.status.code().expect("it exits"), text(output.stdout), text(output.stderr))
}

/// Runs a command in a folder and returns all its output as a terminal would show it.
fn shown(folder: &Path, arguments: &[&str]) -> String {
    let (code, out, err) = weir(folder, arguments);
    let line = arguments.join(" ");
    format!("$ weir {line}\n{out}{}{err}=> {code}\n", if err.is_empty() { "" } else { "! " })
}

/// Path of an example server.
fn example(name: &str) -> String {
    let examples = Path::new(env!("CARGO_BIN_EXE_weir")).with_file_name("examples");
    examples.join(name).display().to_string()
}

/// Writes `<name>.sh` into a folder: a legacy server that creates the file `<name>.started` and
/// responds to each method with a member of the response; it rejects unknown methods.
fn script(folder: &Path, name: &str, answers: &[(&str, &str)]) {
    let cases = answers.iter().map(|(method, answer)| {
        format!("        *'\"{method}\"'*) printf '%s\\n' '{{\"jsonrpc\":\"2.0\",\"id\":'$id',{answer}}}' ;;\n")
    });
    let text = format!(
        r#"echo > {name}.started
while read -r line; do
    id=${{line#*\"id\":}}; id=${{id%%,*}}
    case $line in
        *'"notifications/'*) ;;
        *'"initialize"'*) printf '%s\n' '{{"jsonrpc":"2.0","id":'$id',"result":{{"protocolVersion":"2025-06-18","capabilities":{{"prompts":{{}},"tools":{{}},"resources":{{}},"completions":{{}}}}}}}}' ;;
{}        *'/list"'*) printf '%s\n' '{{"jsonrpc":"2.0","id":'$id',"result":{{"prompts":[],"tools":[],"resources":[],"resourceTemplates":[]}}}}' ;;
        *) printf '%s\n' '{{"jsonrpc":"2.0","id":'$id',"error":{{"code":-32601,"message":"no"}}}}' ;;
    esac
done
"#,
        cases.collect::<String>()
    );
    std::fs::write(folder.join(format!("{name}.sh")), text).expect("written");
}

/// Has such a script record the id of each of its processes.
fn record_processes(folder: &Path, name: &str) {
    let path = folder.join(format!("{name}.sh"));
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::write(&path, format!("echo $$ >> {name}.pids\n{text}")).expect("written");
}

/// Ids of the processes that were recorded, the first one first.
fn processes(folder: &Path, name: &str) -> Vec<String> {
    let pids = std::fs::read_to_string(folder.join(format!("{name}.pids"))).unwrap_or_default();
    pids.lines().map(str::to_owned).collect()
}

/// Table of an upstream that runs such a script.
fn scripted(name: &str) -> String {
    format!("[upstreams.{name}]\ncommand = \"sh\"\nargs = [\"{name}.sh\"]\n")
}

/// Whether the process with the id that a script wrote runs.
fn runs(process: &str) -> bool {
    lab::runs(process.trim().parse().expect("a number"))
}

/// Whether such a script was started.
fn was_started(folder: &Path, name: &str) -> bool {
    folder.join(format!("{name}.started")).exists()
}

#[test]
fn list_shows_names_and_what_they_are_for() {
    let folder = folder(LIBRARY_CONFIG);
    let (code, out, err) = weir(folder.path(), &["list"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_snapshot!(out, @r"
    prompts
      house__greeting     Greets somebody.
      house__secret-plan  Nobody may see it.
    ");
    let (code, out, err) = weir(folder.path(), &["list", "prompts"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_snapshot!(out, @r"
    house__greeting     Greets somebody.
    house__secret-plan  Nobody may see it.
    ");
}

#[test]
fn a_list_of_a_kind_without_items_says_which_kinds_have_some() {
    let folder = folder(&format!("{LIBRARY_CONFIG}{}", scripted("hub")));
    let tool = |name: &str, more: &str| {
        format!("{{\"name\":\"{name}\",\"inputSchema\":{{\"type\":\"object\"}}{more}}}")
    };
    let tools = [tool("a", ""), tool("b", ""), tool("slow", TASK)].join(",");
    let tools = format!("\"result\":{{\"tools\":[{tools}]}}");
    script(folder.path(), "hub", &[("tools/list", &tools)]);
    let server = folder.path().join("hub.sh");
    let text = std::fs::read_to_string(&server).expect("it was written");
    let text = text.replace("2025-06-18", "2025-11-25");
    let text = text.replace(r#""completions":{}"#, TASKS);
    std::fs::write(server, text).expect("written");
    let all = [
        shown(folder.path(), &["list", "resources"]),
        shown(folder.path(), &["list", "resources", "--json"]),
        shown(folder.path(), &["list", "templates", "--as", "visitor"]),
        shown(folder.path(), &["list", "tools"]),
        shown(folder.path(), &["call", "hub__slow"]),
        shown(folder.path(), &["check"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir list resources
    ! weir: no resources; 2 prompts: `weir list prompts`; 2 tools: `weir list tools`
    => 0
    $ weir list resources --json
    {"resources":[]}
    => 0
    $ weir list templates --as visitor
    ! weir: no templates; 1 prompt: `weir list prompts`
    => 0
    $ weir list tools
    hub__a
    hub__b
    ! weir: 1 more tool for clients of 2025-11-25 only, as a task: hub__slow
    => 0
    $ weir call hub__slow
    ! weir: the tool `hub__slow` can be called only as a task, by clients of 2025-11-25
    => 2
    $ weir check
    ok    house  library  2 prompts
    ok    hub    stdio 2025-11-25  3 tools (1 only as a task)
                 left out: tool "slow" can be called only as a task, so only clients of 2025-11-25 see it
                 note: it lists 1 tool that can be called only as a task ("slow"), which few clients do: set `taskSupport` to "optional", and answer calls without a task
    => 0
    "#);
}

/// Member of a tool that can be called only as a task.
const TASK: &str = r#","execution":{"taskSupport":"required"}"#;

/// Capability of a server with such tools.
const TASKS: &str = r#""tasks":{"requests":{"tools":{"call":{}}}}"#;

#[test]
fn schema_prints_the_files_that_are_shipped() {
    let folder = TempDir::new().expect("a folder");
    let (code, out, err) = weir(folder.path(), &["schema"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out == include_str!("../config.schema.json"), "config.schema.json is another one");
    let (code, out, _) = weir(folder.path(), &["schema", "--markdown"]);
    assert_eq!(code, 0);
    assert!(
        out == include_str!("../docs/configuration.md"),
        "docs/configuration.md is another one"
    );
}

#[test]
fn list_as_a_client_shows_what_that_client_sees() {
    let folder = folder(LIBRARY_CONFIG);
    let (code, out, _) = weir(folder.path(), &["list", "prompts", "--as", "visitor", "--json"]);
    assert_eq!(code, 0);
    assert_snapshot!(out, @r#"{"prompts":[{"name":"house__greeting","title":"Greeting","description":"Greets somebody.","arguments":[{"name":"who","description":"Whom to greet.","required":true}]}]}"#);
    let (code, out, err) = weir(folder.path(), &["list", "tools"]);
    assert_eq!((code, out.as_str()), (0, ""));
    assert_eq!(err, "weir: no tools; 2 prompts: `weir list prompts`\n");
}

#[test]
fn get_prints_the_messages_or_the_result_as_it_came() {
    let folder = folder(LIBRARY_CONFIG);
    let (code, out, _) = weir(folder.path(), &["get", "house__greeting", "who=Ada"]);
    assert_eq!(code, 0);
    assert_snapshot!(out, @r"
    [user]
    Hello, Ada!

    [assistant]
    Hello!
    ");
    let (code, as_in_rules, _) = weir(folder.path(), &["get", "house/greeting", "who=Ada"]);
    assert_eq!((code, as_in_rules), (0, out));
    let (_, out, _) = weir(folder.path(), &["get", "house__greeting", "who=Ada", "--json"]);
    assert_snapshot!(out, @r#"{"description":"Greets somebody.","messages":[{"role":"user","content":{"type":"text","text":"Hello, Ada!"}},{"role":"assistant","content":{"type":"text","text":"Hello!"}}]}"#);
}

#[test]
fn what_goes_wrong_has_an_exit_code_and_a_line() {
    let folder = folder(LIBRARY_CONFIG);
    let report = |arguments: &[&str]| {
        let (code, out, err) = weir(folder.path(), arguments);
        assert_eq!(out, "");
        format!("{code}: {err}")
    };
    let all = [
        report(&["get", "house__greeting"]),
        report(&["get", "house__greeting", "who=Ada", "whom=Bob"]),
        report(&["get", "house__greting", "who=Ada"]),
        report(&["get", "house__secret-plan", "--as", "visitor"]),
        report(&["get", "house__greeting", "who=Ada", "--as", "nobody"]),
        report(&["get", "house__greeting", "--json"]),
        report(&["list", "--config", "elsewhere.toml"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    2: weir: `house__greeting` needs `who`; it takes `who` (required)
    2: weir: `house__greeting` does not take `whom`; it takes `who` (required)
    2: weir: no prompt `house__greting`; did you mean `house__greeting`?
    6: weir: the policy hides the prompt `house__secret-plan` from this client
    3: weir: no client `nobody` in the configuration, which has visitor
    2: {"error":"`house__greeting` needs `who`; it takes `who` (required)","exit_code":2}
    78: error: cannot be read: No such file or directory (os error 2)
    --> elsewhere.toml
     = help: check the path and its permissions
    "#);
    let (code, _, err) = weir(folder.path(), &["get"]);
    assert!(code == 2 && err.contains("Usage: weir get"), "{err}");
}

#[test]
fn without_a_configuration_it_says_where_it_looked() {
    let folder = TempDir::new().expect("a folder");
    let mut command = Command::from_std(program());
    let command = command.arg("list").current_dir(folder.path());
    let output = command.env("XDG_CONFIG_HOME", "/nonexistent").output().expect("it runs");
    assert_eq!(output.status.code(), Some(78));
    let err = String::from_utf8(output.stderr).expect("it writes text");
    assert_snapshot!(err, @"weir: no configuration: neither weir.toml nor /nonexistent/weir/weir.toml exists; `weir init` writes one, --config FILE names one");
}

#[test]
fn a_configuration_is_looked_for_in_one_place_after_the_other() {
    let folder = folder("");
    let place = |name: &str| folder.path().join(name);
    let prompts = place("prompts");
    // Each place, and the upstream that identifies its configuration.
    let places = [
        ("named.toml", "option"),
        ("variable.toml", "variable"),
        ("weir.toml", "beside"),
        ("xdg/weir/weir.toml", "xdg"),
        ("home/.config/weir/weir.toml", "home"),
    ];
    for (name, upstream) in places {
        let text = format!("[upstreams.{upstream}]\nprompts_dir = {prompts:?}\n");
        std::fs::create_dir_all(place(name).parent().expect("a folder")).expect("made");
        std::fs::write(place(name), text).expect("written");
    }
    // All files exist and the first one counts; then that one is removed, or is no longer named.
    for (at, (_, upstream)) in places.into_iter().enumerate() {
        let mut command = Command::from_std(program());
        let command = command.args(["list", "prompts"]).current_dir(folder.path());
        let command = command.env("HOME", place("home"));
        let command = command.env_remove("WEIR_CONFIG").env_remove("XDG_CONFIG_HOME");
        let command = if at == 0 { command.args(["--config", "named.toml"]) } else { command };
        let command = if at <= 1 { command.env("WEIR_CONFIG", "variable.toml") } else { command };
        let command = if at <= 3 { command.env("XDG_CONFIG_HOME", place("xdg")) } else { command };
        if at == 3 {
            std::fs::remove_file(place("weir.toml")).expect("removed");
        }
        let output = command.output().expect("it runs");
        let out = String::from_utf8(output.stdout).expect("it writes text");
        let expected = [format!("{upstream}__greeting"), format!("{upstream}__secret-plan")];
        let names = out.lines().filter_map(|line| line.split_whitespace().next());
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(names.eq(expected), "{upstream}: {out}{err}");
    }
}

#[test]
fn a_list_without_an_upstream_that_cannot_be_reached_is_written_and_exits_with_code_4() {
    let folder =
        folder(&format!("{LIBRARY_CONFIG}[upstreams.gone]\ncommand = \"/nonexistent/server\"\n"));
    let (code, out, err) = weir(folder.path(), &["list", "prompts"]);
    assert_eq!(code, 4, "{err}");
    assert!(out.starts_with("house__greeting ") && out.lines().count() == 2, "{out}");
    assert!(err.contains("the list is incomplete") && err.contains("gone"), "{err}");
    let (code, out, err) = weir(folder.path(), &["list", "--json"]);
    assert_eq!(code, 4, "{err}");
    let list = weir_base::json::Object::parse(out.trim().to_owned()).expect("JSON");
    assert_eq!(list.get_elements("prompts").expect("a list").count(), 2);
    assert!(err.contains("\"exit_code\":4"), "{err}");
}

#[test]
fn the_demonstration_runs_where_a_configuration_is_set_by_variable() {
    let folder = folder(LIBRARY_CONFIG);
    let mut command = Command::from_std(program());
    let command = command.env("WEIR_CONFIG", "weir.toml").current_dir(folder.path());
    let output = command.args(["list", "--as", "visitor"]).output().expect("it runs");
    let out = String::from_utf8(output.stdout).expect("it writes text");
    assert!(out.contains("  house__greeting"), "{out}");
    let output = command.arg("--demo").output().expect("it runs");
    let err = String::from_utf8(output.stderr).expect("it writes text");
    assert!(!err.contains("cannot be used with"), "{err}");
}
