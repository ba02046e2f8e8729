//! `weir logs` of upstreams of a running `weir serve` and `weir stdio`.

use std::io::Write;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::operating::Served;
use super::{
    folder, own_admin, piped, processes, program, record_processes, script, scripted, stdio, weir,
};
use crate::lab::lines::Lines;
use crate::lab::ports::free_port;
use crate::lab::wait_until;
use crate::lab::weir::Weir;

/// Secrets of the server, which it writes to its standard error.
const SECRETS: &str = "\
env.TOKEN = \"hunter2-canary\"
env.DB = \"postgres://ann:p%40ss%2Fcanary@db/x\"
env.KEY = \"-----BEGIN KEY-----\\nMIIEvQIBADANcanary\\n-----END KEY-----\"
";

/// Lines of a shell that write to standard error: secrets, escapes, and a line like an event.
const OUTPUT: &str = r#"{
    echo "token $TOKEN, or hunter2%2Dcanary"
    echo "password p@ss/canary of $DB"
    echo "$KEY"
    printf '  \033[31mred\033[0m \033[2J \342\200\256\n'
    printf 'ended: \377\n'
} >&2
"#;

/// Writes a server with one tool whose call runs `on_call`, and which begins with `output`.
fn write_server(folder: &Path, output: &str, on_call: &str) {
    let tools = r#""result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#;
    let call = format!("'$({on_call})'\"result\":{{\"content\":[]}}");
    script(folder, "hub", &[("tools/list", tools), ("tools/call", &call)]);
    let path = folder.join("hub.sh");
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::write(&path, format!("{output}{text}")).expect("written");
    record_processes(folder, "hub");
}

/// Starts Weir with that server and waits until it is listed.
fn start(config: &str, output: &str, on_call: &str) -> Served {
    let served = Served::start_in(config, |folder| write_server(folder, output, on_call));
    wait_until("it is listed", || served.post_about("tools/list", None).contains("hub__t"));
    served
}

/// Follows the log in a folder, and returns the lines of its output.
fn follow(folder: &Path) -> (Weir, Lines) {
    let mut command = program();
    command.args(["logs", "hub", "-f"]).current_dir(folder);
    piped(command)
}

/// Lines without their times.
fn untimed(out: &str) -> Vec<&str> {
    let lines = out.lines().map(|line| {
        let (time, text) = line.split_once("  ").expect("a time");
        assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
        text
    });
    lines.collect()
}

#[test]
fn the_log_has_output_starts_and_ends_without_secrets_and_escapes() {
    let served = start(&(scripted("hub") + SECRETS), OUTPUT, "");
    let logs = || {
        let (code, out, err) = served.weir(&["logs", "hub"]);
        assert_eq!((code, &*err), (0, ""), "{out}");
        out
    };
    wait_until("it is connected", || logs().contains("connected"));
    let child = processes(served.folder.path(), "hub")[0].parse().expect("a number");
    kill_process(Pid::from_raw(child).expect("an id"), Signal::KILL).expect("it runs");
    wait_until("the next one starts", || logs().contains("#2  | ended"));
    let out = logs();
    assert!(!out.contains("canary"), "{out}");
    let lines = untimed(&out);
    let of = |begin| {
        let found = lines.iter().copied().filter(|line| line.starts_with(begin));
        found.collect::<Vec<_>>()
    };
    let output = [
        "#1  started",
        "#1  | token ***, or ***",
        "#1  | password *** of ***",
        "#1  | ***",
        "#1  | ***",
        "#1  | ***",
        "#1  |   red <U+001B>[2J <U+202E>",
        "#1  | ended: \u{fffd}",
        "#1  ended: was killed by signal 9",
    ];
    assert_eq!(of("#1"), output);
    let of_second: Vec<_> = of("#2").iter().map(|line| line.replace("#2", "#1")).collect();
    assert_eq!(of_second, output[..output.len() - 1]);
    assert!(!of("connected over stdio, revision 2025-06-18").is_empty(), "{out}");
    assert!(of("not connected: the process was killed by signal 9")[0].contains("last line"));

    let (code, out, _) = served.weir(&["logs", "hub", "-n", "2"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
    let (code, _, err) = served.weir(&["logs", "hab"]);
    assert_eq!((code, &*err), (2, "weir: no upstream `hab`; did you mean `hub`?\n"));
}

#[test]
fn the_route_of_a_log_needs_the_token_and_a_name() {
    let served = start(&scripted("hub"), "echo hello >&2\n", "");
    assert_eq!(served.get("/logs?upstream=hub").0, 401);
    let malformed = "malformed query: it is upstream=NAME&after=NUMBER&lines=COUNT\n";
    for (query, expected) in [
        ("", malformed),
        ("?upstream=hub&after=x", malformed),
        ("?upstream=hab", "no upstream `hab`; did you mean `hub`?\n"),
    ] {
        let answer = served.with_token(&format!("/logs{query}"));
        assert_eq!(answer, (404, expected.to_owned()));
    }
    let lines = |query: &str| {
        let (status, body) = served.with_token(&format!("/logs?upstream=hub{query}"));
        assert_eq!(status, 200, "{body}");
        let lines = body.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines.collect::<Vec<Value>>()
    };
    wait_until("it has written", || lines("").len() >= 4);
    let all = lines("");
    assert!(all[0]["source"] == "process" && all[0]["upstream"] == "hub", "{}", all[0]);
    assert_eq!(all[0]["last"], all.len() - 1);
    let events: Vec<_> = all.iter().map(|line| line["event"].as_str()).collect();
    assert_eq!(events[1], Some("started"));
    assert!(events.contains(&Some("stderr")) && events.contains(&Some("connection")));
    assert_eq!(lines("&after=1&lines=1")[1..], all[all.len() - 1..]);
    assert_eq!(lines("&lines=0"), all[..1]);
}

#[test]
fn a_followed_log_goes_on_over_restarts_and_removals_until_weir_ends() {
    let config = format!("{}[upstreams.house]\nprompts_dir = \"prompts\"\n", scripted("hub"));
    let mut served = start(&config, "echo \"begun by $$\" >&2\n", "");
    let folder = served.folder.path().to_owned();
    let (mut stopped, mut lines) = follow(&folder);
    let (mut ended, mut last) = follow(&folder);
    lines.wait_for("#1  | begun by");
    last.wait_for("#1  | begun by");
    assert_eq!(served.weir(&["restart", "hub"]).0, 0);
    lines.wait_for("begun again by a reload or a restart");
    lines.wait_for("#2  | begun by");
    wait_until("the former one ends", || {
        lines.all().iter().any(|it| it.contains("#1  ended: it was stopped, and "))
    });

    let path = folder.join("weir.toml");
    let text = std::fs::read_to_string(&path).expect("written");
    let without = text.replace(&scripted("hub"), "");
    std::fs::write(&path, without).expect("written");
    assert_eq!(served.weir(&["reload"]).0, 0);
    stopped.wait_for_log("of Weir has no upstream `hub` now; its log goes on if it comes back");
    std::fs::write(&path, text).expect("written");
    assert_eq!(served.weir(&["reload"]).0, 0);
    // A new log, whose numbers begin anew.
    lines.wait_for("#1  started");
    lines.wait_for("#1  | begun by");

    stopped.signal(Signal::INT);
    assert_eq!(stopped.wait().code(), Some(130));
    let process = served.weir.pid();
    served.weir.end();
    assert_eq!(ended.wait().code(), Some(4));
    ended.wait_for_log(&format!("Weir has ended (process {process}); start it again"));
    let (code, _, err) = served.weir(&["logs", "hub"]);
    assert!(code == 4 && err.contains("start it with `weir serve`"), "{code}: {err}");
}

#[test]
fn of_a_flood_a_followed_log_shows_how_many_lines_are_missing() {
    let flood = "i=0; while [ $i -lt 50000 ]; do echo \"line $i\" >&2; i=$((i+1)); done";
    let served = start(&scripted("hub"), "", flood);
    let (_followed, mut lines) = follow(served.folder.path());
    lines.wait_for("#1  started");
    assert!(served.post_about("tools/call", Some("hub__t")).contains("\"content\":[]"));
    lines.wait_for("  | line 49999");
    let all = lines.all();
    let shown = all.iter().filter(|line| line.contains("  | line ")).count();
    let missing = all.iter().filter_map(|line| {
        let (_, text) = line.split_once("  … ")?;
        text.split(' ').next()?.parse::<usize>().ok()
    });
    let missing: usize = missing.sum();
    assert!(missing > 0, "{shown} lines");
    assert_eq!(shown + missing, 50_000);
}

#[test]
fn of_several_weirs_each_line_says_whose_it_is() {
    let folder = folder(&format!("{}[state]\ndir = \"state\"\n{}", own_admin(), scripted("hub")));
    let folder = folder.path();
    write_server(folder, "echo \"begun by $$\" >&2\n", "");
    let (code, _, err) = weir(folder, &["logs", "hub"]);
    assert!(code == 4 && err.contains("start it with `weir serve`"), "{code}: {err}");
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let start = || {
        let (mut client, mut output) = stdio(folder, &[]);
        let mut input = client.child.stdin.take().expect("piped");
        writeln!(input, "{list}").expect("it reads");
        assert!(output.wait_for("\"id\":1").contains("hub__t"));
        (client, input)
    };
    let ((mut first, first_input), (mut second, second_input)) = (start(), start());
    let (mut followed, mut lines) = follow(folder);
    for process in [first.pid(), second.pid()] {
        let expected = format!("  weir {process}  #1  | begun by");
        wait_until("its lines are shown", || lines.all().iter().any(|it| it.contains(&expected)));
    }
    drop(first_input);
    assert!(first.wait().success());
    followed.wait_for_log(&format!("Weir has ended (process {})", first.pid()));
    assert_eq!(weir(folder, &["restart", "hub"]).0, 0);
    lines.wait_for(&format!("  weir {}  #2  | begun by", second.pid()));
    let (_, out, _) = weir(folder, &["logs", "hub"]);
    assert!(!out.contains("weir"), "only one is left: {out}");
    drop(second_input);
    assert!(second.wait().success());
    assert_eq!(followed.wait().code(), Some(4));
}

#[test]
fn what_has_no_standard_error_has_its_connections_in_its_log() {
    let port = free_port();
    let config = format!(
        "[upstreams.house]\nprompts_dir = \"prompts\"\n\
         [upstreams.far]\nurl = \"http://127.0.0.1:{port}/mcp\"\n"
    );
    let served = Served::start(&config);
    wait_until("it is down", || served.with_token("/status").1.contains("\"state\":\"down\""));
    let (code, out, err) = served.weir(&["logs", "far"]);
    assert!(untimed(&out)[0].starts_with("not connected: "), "{out}");
    let note = "weir: `far` is reached over HTTP, and has no standard error here: these are its \
                connections\n";
    assert_eq!((code, &*err), (0, note));
    let listed = || served.post_about("prompts/list", None).contains("house__greeting");
    wait_until("the library is listed", listed);
    let (code, out, err) = served.weir(&["logs", "house"]);
    assert_eq!((code, untimed(&out)), (0, vec!["prompt library opened"]));
    assert!(err.contains("is a folder of prompts, and has no standard error"), "{err}");
}

#[test]
fn an_upstream_that_was_never_started_says_so_instead_of_nothing() {
    let first = start(&format!("{}lazy = true\n", scripted("hub")), "", "");
    let lists = first.folder.path().join("state/catalog");
    wait_until("its list is stored", || lists.read_dir().is_ok_and(|files| files.count() > 0));
    let served = first.again(|_| {});
    let (code, out, err) = served.weir(&["logs", "hub"]);
    assert_eq!((code, &*out, &*err), (0, "", "weir: nothing yet: `hub` is asleep\n"));
}
