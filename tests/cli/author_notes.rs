//! Notes for the authors of servers in `weir check` and `weir status`, and results of tools without
//! content.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::operating::Served;
use super::{TASK, TASKS, folder, script, scripted, shown, weir};
use crate::lab::wait_until;

/// Lines that a server writes before it reads: of them only the last one is a message.
const BEFORE: &str = r#"echo 'Starting with canary-1'
echo ready
printf '%s\n' '{"jsonrpc":"2.0","id":"first","result":{}}'
"#;

/// Changes the text of a script.
fn change(folder: &Path, name: &str, change: impl FnOnce(String) -> String) {
    let path = folder.join(format!("{name}.sh"));
    let text = std::fs::read_to_string(&path).expect("it was written");
    std::fs::write(path, change(text)).expect("written");
}

/// Writes a server that makes each mistake with which it can be listed, and returns results
/// without content.
fn write_mistaken(folder: &Path) {
    let schema = r#","inputSchema":{"type":"object"}"#;
    let tools = [
        format!(r#"{{"name":"a"{schema}}}"#),
        format!(r#"{{"name":"a","title":"again"{schema}}}"#),
        r#"{"name":"b"}"#.to_owned(),
        r#"{"name":"c","inputSchema":{"type":"object","properties":[]}}"#.to_owned(),
        format!(r#"{{"name":"slow"{schema}{TASK}}}"#),
    ];
    let tools = format!(r#""result":{{"tools":[{}]}}"#, tools.join(","));
    let result = r#""result":{"value":"of a user"}"#;
    script(folder, "hub", &[("tools/list", &tools), ("tools/call", result)]);
    change(folder, "hub", |text| {
        let text = text.replace("2025-06-18", "2025-11-25").replace(r#""completions":{}"#, TASKS);
        format!("{BEFORE}{text}")
    });
}

/// Table of such a server, which knows a secret.
fn mistaken() -> String {
    format!("{}env = {{ TOKEN = \"canary-1\" }}\n", scripted("hub"))
}

/// The notes of the only upstream in the JSON output of a command.
fn notes(out: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(out).expect(out);
    report["upstreams"][0]["notes"].as_array().expect(out).clone()
}

#[test]
fn each_mistake_of_a_server_is_a_note_that_says_what_to_do() {
    let folder = folder(&mistaken());
    write_mistaken(folder.path());
    let (code, out, err) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 0, "{out}{err}");
    let found = notes(&out).into_iter().map(|it| json!([it["kind"], it["count"], it["first"]]));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            json!(["stdout-line", 2, "Starting with ***"]),
            json!(["unknown-id", 1, "\"first\""]),
            json!(["duplicate-item", 1, "a"]),
            json!(["input-schema", 2, "b"]),
            json!(["task-only", 1, "slow"]),
        ]
    );
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.lines().all(|line| !line.contains("canary")), "{out}");
}

#[cfg(target_os = "linux")]
#[test]
fn notes_fit_a_terminal_of_80_columns() {
    use super::watching::Terminal;

    let folder = folder(&mistaken());
    write_mistaken(folder.path());
    let mut command = super::program();
    command.arg("check").current_dir(folder.path());
    let terminal = Terminal::start(&command, 50, 80);
    let is_whole = |text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        words.join(" ").ends_with("answer calls without a task")
    };
    assert_snapshot!(terminal.wait_for(|_, text| is_whole(text)), @r#"
    ok    hub  stdio 2025-11-25  4 tools (1 only as a task)
               left out: tool "a" is listed twice, the first one is used
               left out: tool "slow" can be called only as a task, so only clients
               of 2025-11-25 see it
               altered: tool "b": `inputSchema` is added, so that every client can
               read it
               altered: tool "c": `inputSchema` is repaired, so that every client
               can read it
               note: it wrote 2 lines to standard output that are no MCP message
               (first: `Starting with ***`): write such lines to standard error
               note: it sent 1 response with an id that no request has (`"first"`):
               return the id of each request as it came, a number as a number
               note: it lists 1 item under the name or URI of one before (tool "a"),
               and clients get only the one before: give each item its own
               note: it lists 2 tools without a valid `inputSchema` (first: "b"),
               which Weir repairs: give each tool one, {"type":"object"} if it takes
               no arguments
               note: it lists 1 tool that can be called only as a task ("slow"),
               which few clients do: set `taskSupport` to "optional", and answer
               calls without a task
    "#);
}

#[test]
fn a_server_that_names_no_revision_is_down_and_its_note_says_what_to_return() {
    // A second attempt before the report would be counted, too.
    let patient = "retry.backoff = \"1h\"\nretry.max_backoff = \"1h\"\n";
    let folder = folder(&format!("{}{patient}", scripted("hub")));
    script(folder.path(), "hub", &[]);
    change(folder.path(), "hub", |text| text.replace(r#""protocolVersion":"2025-06-18","#, ""));
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 4, "{out}{err}");
    assert_snapshot!(out + &err, @r#"
    down  hub  it answers `initialize` without `protocolVersion`
               note: it answered `initialize` once without `protocolVersion` (`{"capabilities":{"prompts":{},"tools":{},"resources":{},"completions":{}}}`): return the revision of the request, or the newest one that the server speaks
    weir: 1 of 1 upstreams cannot be used: hub
    "#);
}

#[test]
fn a_result_without_content_is_printed_as_it_came_with_exit_code_5() {
    let folder = folder(&format!("{}{}", scripted("hub"), scripted("next")));
    let list = r#""result":{"tools":[{"name":"d","inputSchema":{"type":"object"}}]}"#;
    for (name, result) in [
        ("hub", r#""result":{"value":1.0,"content":"text"}"#),
        ("next", r#""result":{"structuredContent":{"value":1.0}}"#),
    ] {
        script(folder.path(), name, &[("tools/list", list), ("tools/call", result)]);
    }
    let call = |arguments: &[&str]| shown(folder.path(), arguments);
    let all = [
        call(&["call", "hub__d"]),
        call(&["call", "hub__d", "--json"]),
        call(&["call", "next__d"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir call hub__d
    {"value":1.0,"content":"text"}
    ! weir: hub__d: the result has no `content`, which each result of a tool must have: it is printed as the server sent it
    => 5
    $ weir call hub__d --json
    {"value":1.0,"content":"text"}
    ! {"error":"hub__d: the result has no `content`, which each result of a tool must have: it is printed as the server sent it","exit_code":5}
    => 5
    $ weir call next__d
    {"value":1.0}
    => 0
    "#);
}

#[test]
fn status_shows_the_notes_of_a_running_server() {
    let served = Served::start_in(&mistaken(), write_mistaken);
    wait_until("it is listed", || served.post_about("tools/list", None).contains("hub__b"));
    for _ in 0..2 {
        let reply = served.post_about("tools/call", Some("hub__b"));
        assert!(reply.contains("of a user"), "{reply}");
    }
    let (code, out, err) = served.weir(&["status"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    // The page wraps long lines.
    let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for note in [
        "note: it wrote 2 lines to standard output that are no MCP message (first: `Starting with \
         ***`): write such lines to standard error",
        "note: it sent 2 results of tools without `content` (first: of \"b\"), which clients may \
         reject: return `content` with each result, [] if there is nothing to say",
    ] {
        assert!(out.contains(note), "{out}");
    }
    let (_, json, _) = served.weir(&["status", "--json"]);
    let of_results = notes(&json).pop().expect("a note");
    assert_eq!((&of_results["kind"], &of_results["count"]), (&json!("result-content"), &json!(2)));
    for secret in ["canary", "of a user"] {
        assert!(!out.contains(secret) && !json.contains(secret), "{out}{json}");
    }
}

#[test]
fn a_flood_of_mistakes_is_one_line_of_each_kind() {
    let folder = folder(&scripted("hub"));
    let tool = r#"{"name":"a\u001b[2J\u202e\n`","inputSchema":{"type":"object"}}"#;
    let tools = format!(r#""result":{{"tools":[{}]}}"#, vec![tool; 10_001].join(","));
    script(folder.path(), "hub", &[("tools/list", &tools)]);
    change(folder.path(), "hub", |text| {
        // A message comes first: with more than 64 KiB of other lines before it the server ends.
        let flood = r#"printf '%s\n' '{"jsonrpc":"2.0","id":"first","result":{}}'
line=$(head -c 65536 /dev/zero | tr '\0' x)
for number in 1 2 3 4 5 6 7 8 9 10; do
    printf '\033[2J%s\n' "$line"
done
yes junk | head -n 900
"#;
        format!("{flood}{text}")
    });
    let (code, out, err) = weir(folder.path(), &["check"]);
    assert_eq!(code, 0, "{err}");
    let notes: Vec<_> = out.lines().filter_map(|line| line.trim().strip_prefix("note: ")).collect();
    assert_eq!(notes.len(), 3, "{out}");
    assert!(notes[0].contains("910 lines") && notes[0].contains("`<U+001B>[2Jxxx"), "{out}");
    assert!(notes[1].contains("1 response with"), "{out}");
    assert!(notes[2].contains("10000 items") && notes[2].contains("a<U+001B>[2J<U+202E>"), "{out}");
    assert!(notes.iter().all(|note| note.len() < 500), "{out}");
    assert!(out.len() < 64 << 10 && !out.contains(['\u{1b}', '\u{202e}']), "{out}");
}

#[test]
fn a_server_that_writes_nothing_but_junk_is_ended_by_the_limits_on_junk() {
    let folder = folder(&scripted("hub"));
    let endless = format!("{BEFORE}exec yes junk\n");
    std::fs::write(folder.path().join("hub.sh"), endless).expect("written");
    let (code, out, err) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 4, "{err}");
    // The line beyond the limit is the last one that is read.
    assert!(out.contains("invalid messages (1001 lines, first: \\\"Starting"), "{out}");
    let lines = notes(&out)[0]["count"].as_u64().expect("a count");
    assert!(lines.is_multiple_of(1_001) && (1..100).contains(&(lines / 1_001)), "{lines}");
}
