//! The commands, as a person or a script meets them: whole outputs and exit codes.

#[path = "cli/calling.rs"]
mod calling;
#[path = "cli/failing.rs"]
mod failing;
#[path = "cli/reading.rs"]
mod reading;
#[path = "cli/starting.rs"]
mod starting;
#[path = "cli/surroundings.rs"]
mod surroundings;
#[path = "cli/telling.rs"]
mod telling;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
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

/// A folder with a configuration and a prompt library.
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

const HOUSE: &str = r#"
[upstreams.house]
prompts_dir = "prompts"

[roles.guest]
prompts.allow = ["house/*"]
prompts.deny = ["house/secret-*"]

[clients.visitor]
key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111"]
role = "guest"
"#;

/// Runs a command in a folder and returns exit code, standard output and standard error.
fn weir(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.args(arguments).current_dir(folder).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes text");
    (output.status.code().expect("it exits"), text(output.stdout), text(output.stderr))
}

/// Runs a command in a folder and tells it all, as a terminal would show it.
fn shown(folder: &Path, arguments: &[&str]) -> String {
    let (code, out, err) = weir(folder, arguments);
    let line = arguments.join(" ");
    format!("$ weir {line}\n{out}{}{err}=> {code}\n", if err.is_empty() { "" } else { "! " })
}

/// One of the example servers.
fn example(name: &str) -> String {
    let examples = Path::new(env!("CARGO_BIN_EXE_weir")).with_file_name("examples");
    examples.join(name).display().to_string()
}

/// Writes `<name>.sh` into a folder: a legacy server that leaves the mark `<name>.started` and answers
/// each method with a member of the answer; what it does not know it refuses.
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

/// The table of an upstream that is such a script.
fn scripted(name: &str) -> String {
    format!("[upstreams.{name}]\ncommand = \"sh\"\nargs = [\"{name}.sh\"]\n")
}

/// Whether such a script was started.
fn was_started(folder: &Path, name: &str) -> bool {
    folder.join(format!("{name}.started")).exists()
}

#[test]
fn list_shows_names_and_what_they_are_for() {
    let folder = folder(HOUSE);
    let (code, out, err) = weir(folder.path(), &["list"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_snapshot!(out, @r"
    house__greeting     Greets somebody.
    house__secret-plan  Nobody may see it.
    ");
}

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
    let folder = folder(HOUSE);
    let (code, out, _) = weir(folder.path(), &["list", "prompts", "--as", "visitor", "--json"]);
    assert_eq!(code, 0);
    assert_snapshot!(out, @r#"{"prompts":[{"name":"house__greeting","title":"Greeting","description":"Greets somebody.","arguments":[{"name":"who","description":"Whom to greet.","required":true}]}]}"#);
    let (code, out, _) = weir(folder.path(), &["list", "tools"]);
    assert_eq!((code, out.as_str()), (0, ""));
}

#[test]
fn get_prints_the_messages_or_the_result_as_it_came() {
    let folder = folder(HOUSE);
    let (code, out, _) = weir(folder.path(), &["get", "house__greeting", "who=Ada"]);
    assert_eq!(code, 0);
    assert_snapshot!(out, @r"
    [user]
    Hello, Ada!

    [assistant]
    Hello!
    ");
    let (_, out, _) = weir(folder.path(), &["get", "house__greeting", "who=Ada", "--json"]);
    assert_snapshot!(out, @r#"{"description":"Greets somebody.","messages":[{"role":"user","content":{"type":"text","text":"Hello, Ada!"}},{"role":"assistant","content":{"type":"text","text":"Hello!"}}]}"#);
}

#[test]
fn what_goes_wrong_has_an_exit_code_and_a_line() {
    let folder = folder(HOUSE);
    let told = |arguments: &[&str]| {
        let (code, out, err) = weir(folder.path(), arguments);
        assert_eq!(out, "");
        format!("{code}: {err}")
    };
    let all = [
        told(&["get", "house__greeting"]),
        told(&["get", "house__greeting", "who=Ada", "whom=Bob"]),
        told(&["get", "house__greting", "who=Ada"]),
        told(&["get", "house__secret-plan", "--as", "visitor"]),
        told(&["get", "house__greeting", "who=Ada", "--as", "nobody"]),
        told(&["get", "house__greeting", "--json"]),
        told(&["list", "--config", "elsewhere.toml"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    2: weir: `house__greeting` needs `who`; it takes `who` (required)
    2: weir: `house__greeting` does not take `whom`; it takes `who` (required)
    2: weir: no prompt `house__greting`; did you mean `house__greeting`?
    6: weir: the policy hides the prompt `house__secret-plan` from this client
    3: weir: no client `nobody` in the configuration
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let command = command.arg("list").current_dir(folder.path());
    let output = command.env("XDG_CONFIG_HOME", "/nonexistent").output().expect("it runs");
    assert_eq!(output.status.code(), Some(78));
    let err = String::from_utf8(output.stderr).expect("it writes text");
    assert_snapshot!(err, @"weir: no configuration: neither weir.toml nor /nonexistent/weir/weir.toml exists; name one with --config FILE");
}

#[test]
fn the_demonstration_runs_where_a_configuration_is_set_by_variable() {
    let folder = folder(HOUSE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let command = command.env("WEIR_CONFIG", "weir.toml").current_dir(folder.path());
    let output = command.args(["list", "--as", "visitor"]).output().expect("it runs");
    let out = String::from_utf8(output.stdout).expect("it writes text");
    assert!(out.starts_with("house__greeting"), "{out}");
    let output = command.arg("--demo").output().expect("it runs");
    let err = String::from_utf8(output.stderr).expect("it writes text");
    assert!(!err.contains("cannot be used with"), "{err}");
}

/// Answers prompts/get when it is told to through one pipe, after it has told of the request through
/// another.
const HESITANT: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    case $line in
        *'"initialize"'*) result='"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}}}' ;;
        *'"prompts/list"'*) result='"result":{"prompts":[{"name":"slow"}]}' ;;
        *'"prompts/get"'*) echo asked > asked; read -r _ < go; result='"result":{"messages":[]}' ;;
        *'"notifications/'*) continue ;;
        *) result='"error":{"code":-32601,"message":"no"}' ;;
    esac
    echo '{"jsonrpc":"2.0","id":'$id','$result'}'
done
"#;

#[test]
fn a_signal_lets_the_calls_of_a_stdio_client_end() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    let folder = folder("[upstreams.hub]\ncommand = \"sh\"\nargs = [\"server.sh\"]\n");
    std::fs::write(folder.path().join("server.sh"), HESITANT).expect("written");
    let pipes = Command::new("mkfifo").args(["asked", "go"]).current_dir(folder.path()).status();
    assert!(pipes.expect("mkfifo runs").success());
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("stdio")
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = weir.stdin.take().expect("a pipe");
    let get = r#"{"jsonrpc":"2.0","id":7,"method":"prompts/get","params":{"name":"hub__slow","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    writeln!(input, "{get}").expect("written");
    // Opening a pipe waits for its other end: the call has reached the server.
    std::fs::read(folder.path().join("asked")).expect("read");
    let kill = Command::new("kill").args(["-TERM", &weir.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    let mut log = BufReader::new(weir.stderr.take().expect("a pipe")).lines();
    assert!(log.any(|line| line.expect("text").contains("stopping")));
    std::fs::write(folder.path().join("go"), "go\n").expect("written");
    let mut answer = String::new();
    let mut output = BufReader::new(weir.stdout.take().expect("a pipe"));
    output.read_line(&mut answer).expect("text");
    assert!(answer.starts_with(r#"{"jsonrpc":"2.0","id":7,"result":{"messages":[]"#), "{answer}");
    assert!(weir.wait().expect("it ends").success());
}

#[test]
fn check_reports_each_upstream_and_fails_if_one_cannot_be_used() {
    let config = "
[upstreams.house]
prompts_dir = \"prompts\"
[upstreams.gone]
command = \"/nonexistent/server\"
[upstreams.away]
url = \"http://127.0.0.1:9/mcp\"
";
    let folder = folder(config);
    let (code, _, err) = weir(folder.path(), &["get", "gone__prompt"]);
    assert_eq!(code, 4, "nobody knows whether there is one");
    assert_snapshot!(err, @"weir: no prompt `gone__prompt`, but upstream `gone` could not be listed: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`");
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 4);
    assert_snapshot!(out + &err, @r"
    ok    house  library  2 prompts, 0 tools, 0 resources, 0 resource templates
    down  gone   it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    down  away   127.0.0.1:9: Connection refused (os error 111)
    weir: 2 of 3 upstreams cannot be used: gone, away
    ");
    let (code, out, err) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 4);
    assert_snapshot!(out + &err, @r#"
    {"upstreams":[{"name":"house","ok":true,"state":"library","prompts":2,"tools":0,"resources":0,"resourceTemplates":0,"problems":[]},{"name":"gone","ok":false,"state":"it cannot be started: no such program: /nonexistent/server; install it, or correct `command`","prompts":0,"tools":0,"resources":0,"resourceTemplates":0,"problems":[]},{"name":"away","ok":false,"state":"127.0.0.1:9: Connection refused (os error 111)","prompts":0,"tools":0,"resources":0,"resourceTemplates":0,"problems":[]}],"warnings":[]}
    {"error":"2 of 3 upstreams cannot be used: gone, away","exit_code":4}
    "#);
}

/// Lists its prompts and refuses to list its tools.
const HALF: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    case $line in
        *'"initialize"'*) result='"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{},"tools":{}}}' ;;
        *'"prompts/list"'*) result='"result":{"prompts":[{"name":"one"}]}' ;;
        *'"notifications/'*) continue ;;
        *) result='"error":{"code":-32603,"message":"no"}' ;;
    esac
    echo '{"jsonrpc":"2.0","id":'$id','$result'}'
done
"#;

#[test]
fn check_fails_for_an_upstream_that_is_up_and_cannot_be_listed() {
    let folder = folder("[upstreams.hub]\ncommand = \"sh\"\nargs = [\"server.sh\"]\n");
    std::fs::write(folder.path().join("server.sh"), HALF).expect("written");
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 4);
    assert_snapshot!(out + &err, @r"
    down  hub  stdio 2025-06-18, but could not be listed: tools/list
     WARN the list could not be read; the last one stays upstream=hub kind=tool error=it refuses `tools/list`: no
    weir: 1 of 1 upstreams cannot be used: hub
    ");
}

#[test]
fn check_tells_of_prompt_files_that_are_left_out() {
    let folder = folder(HOUSE);
    let bad = "---\narguments:\n  - name: who\n    require: true\n---\nHello!\n";
    std::fs::write(folder.path().join("prompts/bad.md"), bad).expect("written");
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("ok    house  library"), "{out}");
    assert!(err.contains("bad.md:4") && err.contains("require"), "{err}");
}

#[test]
fn check_draws_every_mistake_at_its_place() {
    let config = "
[server]
listn = \"127.0.0.1:1\"
[upstreams.house]
prompts_dir = \"prompts\"
[clients.ann]
key_sha256 = [\"1111111111111111111111111111111111111111111111111111111111111111\"]
role = \"gest\"
[roles.guest]
prompts.allow = [\"house/*\"]
";
    let folder = folder(config);
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!((code, out.as_str()), (78, ""));
    assert_snapshot!(err, @r#"
    error: server.listn: no such key
     --> weir.toml:3:1
      |
    3 | listn = *************
      | ^^^^^ did you mean `listen`?

    error: clients.ann.role: there is no role "gest"
     --> weir.toml:8:8
      |
    8 | role = "gest"
      |        ^^^^^^ did you mean `guest`?
    "#);
    let (code, _, err) = weir(folder.path(), &["check", "--offline", "--json"]);
    assert_eq!(code, 78);
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn ten_mistakes_in_two_files_are_told_in_one_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ten_mistakes");
    let told = [&["check", "--offline"][..], &["check"], &["serve"], &["list"]].map(|arguments| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let command = command.args(arguments).current_dir(&folder).env_remove("HOUSE_PREFIX");
        let output = command.output().expect("it runs");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0));
        String::from_utf8(output.stderr).expect("it writes text")
    });
    assert!(told.iter().all(|other| *other == told[0]));
    assert_snapshot!(told[0], @r#"
    error: server.listne: no such key
     --> weir.toml:4:1
      |
    4 | listne = ****************
      | ^^^^^^ did you mean `listen`?

    error: server.max_connections: expected a whole number, found a string
     --> weir.toml:5:19
      |
    5 | max_connections = "many"
      |                   ^^^^^^ write a number without quotes

    error: server.shutdown_grace: "30 seconds" is not a duration
     --> weir.toml:6:18
      |
    6 | shutdown_grace = "30 seconds"
      |                  ^^^^^^^^^^^^ write it like "250ms", "60s", "10m" or "1h"

    error: protocol.page_size: 20000 is out of bounds
     --> weir.toml:9:13
      |
    9 | page_size = 20000
      |             ^^^^^ write 1 to 10000

    error: upstreams.house.prefix: the variable HOUSE_PREFIX is not set
      --> weir.toml:13:10
       |
    13 | prefix = "${HOUSE_PREFIX}"
       |          ^^^^^^^^^^^^^^^^^ set HOUSE_PREFIX where Weir starts, or write ${HOUSE_PREFIX:-default}

    warning: roles.guest.prompts.allow: there is no upstream "hosue"
      --> weir.toml:16:18
       |
    16 | prompts.allow = ["hosue/*"]
       |                  ^^^^^^^^^ did you mean `house`?

    error: protocol.page_size: weir.toml:9 defines this already
     --> conf.d/wiki.toml:2:1
      |
    2 | page_size = ***
      | ^^^^^^^^^ remove one of the two

    error: upstreams.wiki.url: this is not a URL
     --> conf.d/wiki.toml:5:7
      |
    5 | url = **********************
      |       ^^^^^^^^^^^^^^^^^^^^^^ write it like "https://mcp.example.com/mcp"

    error: upstreams.wiki.headers.X-Key.file: secrets/wiki cannot be read: No such file or directory (os error 2)
     --> conf.d/wiki.toml:6:30
      |
    6 | headers = { X-Key = { file = "secrets/wiki" } }
      |                              ^^^^^^^^^^^^^^ check the path, which starts from the folder of this file, and its permissions

    error: clients.ann.role: there is no role "gest"
      --> conf.d/wiki.toml:10:8
       |
    10 | role = "gest"
       |        ^^^^^^ did you mean `guest`?
    "#);
}

/// Lists one prompt, whose description is what it got as secrets.
const TELLTALE: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    case $line in
        *'"initialize"'*) result='"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}}}' ;;
        *'"prompts/list"'*) result='"result":{"prompts":[{"name":"p","description":"'$A,$B,$C,$D'"}]}' ;;
        *'"notifications/'*) continue ;;
        *) result='"error":{"code":-32601,"message":"no"}' ;;
    esac
    echo '{"jsonrpc":"2.0","id":'$id','$result'}'
done
"#;

#[test]
fn secrets_reach_the_upstream_from_wherever_they_are() {
    let config = "
include = [\"conf.d/*.toml\"]
[upstreams.hub.env]
A = \"${ONE}\"
B = { env = \"TWO\" }
C = { file = \"secrets/three\" }
D = { command = [\"sh\", \"-c\", \"echo $FOUR; touch ran\"] }
";
    let folder = folder(config);
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write("conf.d/hub.toml", "[upstreams.hub]\ncommand = \"sh\"\nargs = [\"server.sh\"]\n");
    write("secrets/three", "drei\n");
    write("server.sh", TELLTALE);
    let weir = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let command = command.args(arguments).current_dir(folder.path());
        let output = command.envs([("ONE", "eins"), ("TWO", "zwei"), ("FOUR", "vier")]).output();
        let output = output.expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("it writes text"))
    };
    let warning =
        "warning: upstreams.hub.env.C.file: secrets/three is open to its group or to others";
    let (code, told) = weir(&["check", "--offline"]);
    assert!(code == Some(0) && told.starts_with(warning), "{told}");
    assert!(told.ends_with("\nthe configuration is good\n"), "{told}");
    assert!(!folder.path().join("ran").exists(), "offline nothing is started");
    let (code, told) = weir(&["list"]);
    assert!(code == Some(0) && told.contains("hub__p  eins,zwei,drei,vier"), "{told}");
    let (_, told) = weir(&["check"]);
    assert!(!["eins", "zwei", "drei", "vier"].iter().any(|secret| told.contains(secret)), "{told}");
}

#[test]
fn offline_tells_of_folders_that_are_not_there() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"promts\"\n");
    let (code, out, err) = weir(folder.path(), &["check", "--offline"]);
    assert_eq!((code, out.as_str()), (0, ""));
    assert_snapshot!(err, @r#"
    warning: upstreams.house.prompts_dir: there is no folder promts
     --> weir.toml:2:15
      |
    2 | prompts_dir = "promts"
      |               ^^^^^^^^ make it, or correct the path: it starts from the folder of this file
    the configuration is good
    "#);
}

#[test]
fn json_in_place_of_toml_is_recognized() {
    let folder = folder("{\"mcpServers\": {\"a\": {\"env\": {\"TOKEN\": \"hunter2\"}}}}");
    let (code, _, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 78);
    assert_snapshot!(err, @r"
    error: this is JSON, and the configuration is TOML
     --> weir.toml:1:1
      |
    1 | {
      | ^ `weir init --from FILE` makes one from the configuration of an MCP client
    ");
}

#[test]
fn serve_refuses_a_network_address_without_keys_unless_told() {
    let config = "
[server]
listen = \"0.0.0.0:0\"
allowed_hosts = [\"mcp.example.com\"]
[auth]
mode = \"anonymous\"
[upstreams.house]
prompts_dir = \"prompts\"
";
    let folder = folder(config);
    let (code, _, err) = weir(folder.path(), &["serve"]);
    assert_eq!(code, 78);
    assert!(err.contains("--allow-anonymous-network"), "{err}");
    let (code, _, err) = weir(folder.path(), &["check", "--offline", "--allow-anonymous-network"]);
    assert_eq!((code, err.as_str()), (0, "the configuration is good\n"));
}

#[test]
fn a_port_in_use_is_one_line_that_says_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound");
    let config =
        format!("[server]\nlisten = \"{address}\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let folder = folder(&config);
    let (code, _, err) = weir(folder.path(), &["serve"]);
    assert_eq!(code, 4);
    let err = err.replace(&address.to_string(), "ADDRESS");
    assert_snapshot!(err, @"weir: cannot listen on ADDRESS: Address already in use (os error 98); stop whatever listens there, or set another `listen` under [server]");
}

#[test]
fn serve_tells_where_http_sse_is_if_it_is_on_and_ends_its_streams() {
    use std::io::Read;

    for on in [false, true] {
        let folder = folder(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[protocol]\nlegacy_sse = {on}\n\
             [log]\nformat = \"json\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n"
        ));
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("serve").current_dir(folder.path()).stderr(Stdio::piped());
        let mut weir = command.spawn().expect("it starts");
        let mut log = BufReader::new(weir.stderr.take().expect("a pipe")).lines();
        let ready = log.find_map(|line| line.ok().filter(|line| line.contains("\"ready\"")));
        let ready = ready.expect("it gets ready");
        let told = ready.split_once("\"sse\":\"http://").map(|(_, rest)| rest);
        assert_eq!(told.is_some(), on, "{ready}");
        if let Some((host, _)) = told.and_then(|rest| rest.split_once("/sse\"")) {
            let mut stream = std::net::TcpStream::connect(host).expect("it listens");
            write!(stream, "GET /sse HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("written");
            let mut said = Vec::new();
            while !said.ends_with(b"\n\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("an event");
                said.extend(byte);
            }
            terminate(&weir);
            let mut rest = String::new();
            stream.read_to_string(&mut rest).expect("the stream ends");
            assert_eq!(rest, "0\r\n\r\n", "after {}", String::from_utf8_lossy(&said));
        } else {
            terminate(&weir);
        }
        assert!(weir.wait().expect("it ends").success());
    }
}

/// Starts `weir stdio` with its pipes in our hands.
fn stdio(folder: &Path) -> Child {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("stdio").current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn terminate(child: &Child) {
    let id = Pid::from_child(child);
    kill_process(id, Signal::TERM).expect("it runs");
}

/// The first line of `lines` that holds `text`.
fn line_with(lines: &mut impl BufRead, text: &str) -> String {
    let mut lines = lines.lines().map_while(Result::ok);
    lines.find(|line| line.contains(text)).expect("it is said")
}

#[test]
fn a_signal_lets_the_call_of_a_client_on_stdio_end_first() {
    let server = Path::new(env!("CARGO_BIN_EXE_weir")).with_file_name("examples/legacy_stdio");
    let folder = folder(&format!("[upstreams.notes]\ncommand = \"{}\"\n", server.display()));
    let mut weir = stdio(folder.path());
    let meta = r#""_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let count = r#""name":"notes__slow_count","arguments":{"to":5,"delay_ms":100}"#;
    let call = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{{count},{meta}}}}}\n"
    );
    // Held open: the end of the input would cancel the call.
    let mut input = weir.stdin.take().expect("piped");
    input.write_all(call.as_bytes()).expect("it reads");
    let mut output = BufReader::new(weir.stdout.take().expect("piped"));
    line_with(&mut output, "notifications/progress");
    terminate(&weir);
    assert!(line_with(&mut output, r#""id":7"#).contains("counted to 5"));
    assert!(weir.wait().expect("it ends").success());
}

#[test]
fn a_signal_while_it_ends_kills_a_child_that_will_not() {
    let script = "trap 'echo asked >&2' TERM; echo begun $$ >&2; while :; do sleep 1; done";
    let folder = folder(&format!(
        "[log]\nlevel = \"debug\"\n[upstreams.deaf]\ncommand = \"sh\"\nargs = [\"-c\", \"{script}\"]\n"
    ));
    let mut weir = stdio(folder.path());
    let mut log = BufReader::new(weir.stderr.take().expect("piped"));
    let begun = line_with(&mut log, "begun ");
    let child = begun.split("begun ").nth(1).expect("a number");
    let child: String = child.chars().take_while(char::is_ascii_digit).collect();
    // As clients do it: they close its input, then ask it to end, then kill it.
    drop(weir.stdin.take());
    line_with(&mut log, "asked");
    let start = Instant::now();
    terminate(&weir);
    assert!(weir.wait().expect("it ends").success());
    assert!(start.elapsed() < Duration::from_secs(2), "it did not wait for the child");
    // The signal is sent before Weir ends; the kernel takes a moment to carry it out.
    while runs(&child) {
        assert!(start.elapsed() < Duration::from_secs(5), "the child is still there");
        std::thread::yield_now();
    }
}

/// Whether a process runs. One that has ended and that nobody has waited for yet does not.
fn runs(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}
