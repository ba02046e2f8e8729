//! `weir check`, and the report on a configuration: mistakes at their locations, and no secrets.

use std::path::Path;

use assert_cmd::Command;
use insta::assert_snapshot;

use super::{LIBRARY_CONFIG, folder, script, scripted, serve, was_started, weir};
use crate::lab::ports::free_port;

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
    ok    house  library  2 prompts
    down  gone   it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    down  away   127.0.0.1:9: Connection refused (os error 111)
    weir: 2 of 3 upstreams cannot be used: gone, away
    ");
    let (code, out, err) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 4);
    assert_snapshot!(out + &err, @r#"
    {"upstreams":[{"name":"house","ok":true,"state":"library","prompts":2,"tools":0,"resources":0,"resourceTemplates":0,"problems":[],"altered":[]},{"name":"gone","ok":false,"state":"it cannot be started: no such program: /nonexistent/server; install it, or correct `command`","prompts":0,"tools":0,"resources":0,"resourceTemplates":0,"problems":[],"altered":[]},{"name":"away","ok":false,"state":"127.0.0.1:9: Connection refused (os error 111)","prompts":0,"tools":0,"resources":0,"resourceTemplates":0,"problems":[],"altered":[]}],"warnings":[]}
    {"error":"2 of 3 upstreams cannot be used: gone, away","exit_code":4}
    "#);
}

#[test]
fn check_fails_for_an_upstream_that_is_up_and_cannot_be_listed() {
    let folder = folder(&scripted("hub"));
    let answers = [
        ("prompts/list", r#""result":{"prompts":[{"name":"one"}]}"#),
        ("tools/list", r#""error":{"code":-32603,"message":"no"}"#),
    ];
    script(folder.path(), "hub", &answers);
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 4);
    assert_snapshot!(out + &err, @r"
    incomplete  hub  stdio 2025-06-18, but could not be listed: tools/list  1 prompt
                     warning: list request failed, last list stays: tool, it refuses `tools/list`: no
    weir: 1 of 1 upstreams incomplete: hub
    ");
}

#[test]
fn check_with_json_writes_its_log_as_lines_of_json_before_its_failure() {
    let folder = folder(&scripted("hub"));
    let refusal = r#""error":{"code":-32603,"message":"no"}"#;
    script(folder.path(), "hub", &[("tools/list", refusal)]);
    let (code, out, err) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 4, "{err}");
    let object = |line: &str| weir_base::json::Object::parse(line.to_owned()).expect(line);
    assert!(object(out.trim_end()).has("upstreams"), "{out}");
    let mut lines: Vec<_> = err.lines().map(object).collect();
    let failure = lines.pop().expect("a failure");
    assert_eq!(failure.get("exit_code"), Some("4"), "{err}");
    assert!(!lines.is_empty(), "{err}");
    for line in &lines {
        assert_eq!(line.get_string("level").as_deref(), Some("WARN"), "{err}");
        assert!(line.has("message") && !line.has("exit_code"), "{err}");
    }
}

#[test]
fn check_offline_starts_nothing() {
    let folder = folder(&scripted("hub"));
    script(folder.path(), "hub", &[]);
    for arguments in [&["check", "--offline"][..], &["check", "--offline", "--json"]] {
        assert_eq!(weir(folder.path(), arguments).0, 0);
        assert!(!was_started(folder.path(), "hub"), "{arguments:?}");
    }
    assert_eq!(weir(folder.path(), &["check"]).0, 0);
    assert!(was_started(folder.path(), "hub"));
}

// Providers answer with 400 to every request that holds such a name, and some clients keep one of
// `a.b` and `a/b`.
#[test]
fn check_and_explain_name_what_clients_know_by_an_altered_name() {
    let folder = folder(&format!("{}rename = {{ \"tools/plain\" = \"x.y\" }}\n", scripted("hub")));
    let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
    let long = "long_".repeat(12);
    let tools = ["a.b", "a/b", "a_b", "plain", &long].map(tool).join(",");
    script(folder.path(), "hub", &[("tools/list", &format!(r#""result":{{"tools":[{tools}]}}"#))]);
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_snapshot!(out, @r#"
    ok    hub  stdio 2025-06-18  5 tools
               altered: tool "a.b" is hub__a_b_1b1ee3d3 for clients: it has other characters than A-Z, a-z, 0-9, _ and -
               altered: tool "a/b" is hub__a_b_2d8efb71 for clients: it has other characters than A-Z, a-z, 0-9, _ and -
               altered: tool "long_long_long_long_long_long_long_long_long_long_long_long_" is hub__ong_long_long_long_long_long_long_long_dd85a315 for clients: it is too long
               altered: tool "plain" is hub__x_y_2fd47e5f for clients: it has other characters than A-Z, a-z, 0-9, _ and -
    "#);
    let (_, json, _) = weir(folder.path(), &["check", "--json"]);
    assert!(
        json.contains(r#""altered":["tool \"a.b\" is hub__a_b_1b1ee3d3 for clients"#),
        "{json}"
    );
    let (_, json, _) = weir(folder.path(), &["list", "tools", "--json"]);
    assert!(json.contains(r#""title":"a.b""#) && !json.contains(r#""title":"a_b""#), "{json}");
    let (code, out, _) = weir(folder.path(), &["explain", "hub__a_b_1b1ee3d3"]);
    assert_eq!(code, 0);
    assert!(out.contains("lists it as `hub/a.b`"), "{out}");
    assert!(out.contains("its name is altered for clients: it has other characters"), "{out}");

    let kept = format!("[naming]\ncharacters = \"any\"\nmax_length = 128\n{}", scripted("hub"));
    std::fs::write(folder.path().join("weir.toml"), kept).expect("written");
    let (_, out, _) = weir(folder.path(), &["check"]);
    assert_eq!(out.lines().count(), 1, "{out}");
}

#[test]
fn check_tells_of_prompt_files_that_are_left_out() {
    let folder = folder(LIBRARY_CONFIG);
    let bad = "---\narguments:\n  - name: who\n    require: true\n---\nHello!\n";
    std::fs::write(folder.path().join("prompts/bad.md"), bad).expect("written");
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 4);
    assert_snapshot!(out + &err, @r"
    incomplete  house  library  2 prompts
                       left out: file bad.md:4: unknown field `require`, expected one of name, title, description, required, default, values
    weir: 1 of 1 upstreams incomplete: house
    ");
    let (code, out, _) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 4);
    assert!(out.contains(r#""ok":false,"incomplete":true,"state":"library""#), "{out}");
    assert!(out.contains(r#""problems":["file bad.md:4: unknown field"#), "{out}");
}

#[test]
fn what_is_malformed_is_named_with_its_member_by_the_log_status_and_check() {
    let listeners = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n\
         [state]\ndir = \"state\"\n[log]\nformat = \"json\"\n",
        free_port()
    );
    let folder = folder(&format!("{listeners}{}", scripted("hub")));
    let tools = r#""result":{"tools":[{"name":"good","inputSchema":{"type":"object"}},{"name":"bad","title":7,"inputSchema":{"type":"object"}}]}"#;
    script(folder.path(), "hub", &[("tools/list", tools)]);
    let mut running = serve(folder.path());
    let line = running.wait_for_log("items excluded from the list");
    assert!(
        line.contains(r#""problems":"\"bad\" cannot be used: `title` is not a string""#),
        "{line}"
    );
    let left_out = r#"left out: tool "bad" cannot be used: `title` is not a string"#;
    for command in ["status", "check"] {
        let (code, out, err) = weir(folder.path(), &[command]);
        assert!(code == 0 && out.contains(left_out), "{code} {out}{err}");
    }
    running.end();
}

#[test]
fn whatever_is_left_out_or_altered_is_named_by_the_log_status_and_check() {
    let listeners = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n\
         [state]\ndir = \"state\"\n[log]\nformat = \"json\"\n",
        free_port()
    );
    let folder = folder(&format!("{listeners}{}{}", scripted("hub"), scripted("next")));
    let large = "x".repeat(70_000);
    let tools = [
        format!(
            r#"{{"name":"place","inputSchema":{{"type":"object"}},"outputSchema":{{"type":"object","title":"{large}"}}}}"#
        ),
        format!(r#"{{"name":"huge","inputSchema":{{"type":"object","title":"{large}"}}}}"#),
        r#"{"name":"php","inputSchema":{"type":"object","properties":[]}}"#.to_owned(),
        r#"{"name":"php","inputSchema":{"type":"object"}}"#.to_owned(),
        r#"{"title":"nameless","inputSchema":{"type":"object"}}"#.to_owned(),
    ];
    let tools = format!(r#""result":{{"tools":[{}]}}"#, tools.join(","));
    let resources = r#""result":{"resources":[{"uri":"note:1","name":"n"}]}"#;
    script(folder.path(), "hub", &[("tools/list", &tools), ("resources/list", resources)]);
    script(folder.path(), "next", &[("resources/list", resources)]);
    let left_out = [
        r#"tool "huge" cannot be used: its definition has more than 65536 bytes"#,
        r#"tool "php" is listed twice, the first one is used"#,
        "tool number 5 of the list cannot be used: `name` is missing or not a string",
        r#"resource "note:1" is listed by hub, too, which comes first in the file"#,
    ];
    let altered = [
        r#"tool "place": `outputSchema` is left out, since the definition has more than 65536 bytes"#,
        r#"tool "php": `inputSchema` is repaired, so that every client can read it"#,
    ];
    let mut running = serve(folder.path());
    let logged = running.wait_for_logs([
        "items excluded from the list",
        "definitions altered for clients",
        "items of several upstreams",
    ]);
    let logged = logged.join("\n");
    for name in ["huge", "php", "number 5", "place", "note:1"] {
        assert!(logged.contains(name), "{name}: {logged}");
    }
    for command in ["status", "check"] {
        let (code, out, err) = weir(folder.path(), &[command]);
        // The page of `status` wraps long lines.
        let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(code, 0, "{out}{err}");
        for (what, lines) in [("left out", &left_out[..]), ("altered", &altered[..])] {
            for line in lines {
                assert!(out.contains(&format!("{what}: {line}")), "{command}: {line}: {out}");
            }
        }
    }
    running.end();
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
    3 | listn = "127.0.0.1:1"
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
    let report =
        [&["check", "--offline"][..], &["check"], &["serve"], &["list"]].map(|arguments| {
            let mut command = Command::from_std(crate::program());
            let command = command.args(arguments).current_dir(&folder).env_remove("HOUSE_PREFIX");
            let output = command.output().expect("it runs");
            assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0));
            String::from_utf8(output.stderr).expect("it writes text")
        });
    assert!(report.iter().all(|other| *other == report[0]));
    assert_eq!(report[0], include_str!("../ten_mistakes/report.txt"));
}

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
    write("conf.d/hub.toml", &scripted("hub"));
    write("secrets/three", "drei\n");
    // The prompt's description contains the secrets that the server received.
    let report = r#""result":{"prompts":[{"name":"p","description":"'$A,$B,$C,$D'"}]}"#;
    script(folder.path(), "hub", &[("prompts/list", report)]);
    let weir = |arguments: &[&str]| {
        let mut command = Command::from_std(crate::program());
        let command = command.args(arguments).current_dir(folder.path());
        let output = command.envs([("ONE", "eins"), ("TWO", "zwei"), ("FOUR", "vier")]).output();
        let output = output.expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("it writes text"))
    };
    let refused =
        "error: upstreams.hub.env.C.file: secrets/three is open to its group or to others";
    let open = |mode| {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path().join("secrets/three"), mode).expect("ours");
    };
    open(0o640);
    let (code, report) = weir(&["check", "--offline"]);
    assert!(code == Some(78) && report.starts_with(refused), "{report}");
    open(0o600);
    let (code, report) = weir(&["check", "--offline"]);
    assert_eq!((code, report.as_str()), (Some(0), "the configuration is valid\n"));
    assert!(!folder.path().join("ran").exists(), "offline nothing is started");
    let (code, report) = weir(&["list"]);
    assert!(code == Some(0) && report.contains("hub__p  eins,zwei,drei,vier"), "{report}");
    let (_, report) = weir(&["check"]);
    assert!(
        !["eins", "zwei", "drei", "vier"].iter().any(|secret| report.contains(secret)),
        "{report}"
    );
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
    the configuration is valid
    "#);
}

#[test]
fn an_upstream_that_is_disabled_has_a_row_and_does_not_count() {
    let off = "[upstreams.attic]\ncommand = \"/nowhere/server\"\nenabled = false\n";
    let folder = folder(&format!("{off}[upstreams.house]\nprompts_dir = \"prompts\"\n"));
    assert_snapshot!(super::shown(folder.path(), &["check"]), @r"
    $ weir check
    ok        house  library  2 prompts
    disabled  attic  `weir enable attic` enables it
    => 0
    ");
    let (_, out, _) = weir(folder.path(), &["check", "--json"]);
    assert!(out.contains(r#"{"upstreams":[{"name":"house""#), "{out}");
    assert!(out.ends_with("}],\"disabled\":[\"attic\"],\"warnings\":[]}\n"), "{out}");
    std::fs::rename(folder.path().join("weir.toml"), folder.path().join("own.toml")).expect("ours");
    let (_, out, _) = weir(folder.path(), &["check", "-c", "own.toml"]);
    assert!(out.contains("`weir enable attic --config own.toml` enables it"), "{out}");
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
fn check_names_the_clients_that_see_a_part_of_a_list_on_its_first_page() {
    let key = |digit: &str| digit.repeat(64);
    let config = format!(
        "[protocol]\npage_size = 2\n{}[roles.all]\ntools.allow = [\"*\"]\n\
         [roles.some]\ntools.allow = [\"hub/a\", \"hub/b\"]\nprompts.allow = [\"*\"]\n\
         [clients.ann]\nrole = \"all\"\nkey_sha256 = [\"{}\"]\n\
         [clients.bob]\nrole = \"some\"\nkey_sha256 = [\"{}\"]\n\
         [clients.cid]\ntools.allow = [\"*\"]\nkey_sha256 = [\"{}\"]\n",
        scripted("hub"),
        key("1"),
        key("2"),
        key("3"),
    );
    let folder = folder(&config);
    let list = |member: &str, names: &[&str], more: &str| {
        let items = names.iter().map(|name| format!("{{\"name\":\"{name}\"{more}}}"));
        format!("\"result\":{{\"{member}\":[{}]}}", items.collect::<Vec<_>>().join(","))
    };
    let tools = list("tools", &["a", "b", "c"], ",\"inputSchema\":{\"type\":\"object\"}");
    let prompts = list("prompts", &["p", "q", "r", "s"], "");
    script(folder.path(), "hub", &[("tools/list", &tools), ("prompts/list", &prompts)]);
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 0);
    assert_snapshot!(out + &err, @r"
    ok    hub  stdio 2025-06-18  4 prompts, 3 tools
    warning: protocol.page_size: a client that reads only the first page sees 2 of 4 prompts: clients with the role local, bob
    warning: protocol.page_size: a client that reads only the first page sees 2 of 3 tools: ann, cid, clients with the role local
    ");
    let (code, out, _) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 0);
    assert_snapshot!(out, @r#"{"upstreams":[{"name":"hub","ok":true,"state":"stdio 2025-06-18","prompts":4,"tools":3,"resources":0,"resourceTemplates":0,"problems":[],"altered":[]}],"warnings":[{"severity":"warning","key":"protocol.page_size","what":"a client that reads only the first page sees 2 of 4 prompts: clients with the role local, bob","remedy":"raise it, up to 1 MiB on one page, or allow these clients fewer items"},{"severity":"warning","key":"protocol.page_size","what":"a client that reads only the first page sees 2 of 3 tools: ann, cid, clients with the role local","remedy":"raise it, up to 1 MiB on one page, or allow these clients fewer items"}]}"#);
    // Lists that fit on one page need no word.
    std::fs::write(folder.path().join("weir.toml"), config.replace("= 2", "= 4")).expect("written");
    let (code, _, err) = weir(folder.path(), &["check"]);
    assert_eq!((code, err.as_str()), (0, ""));
}
