//! Colors, versions, scripts for shells, and contents of the log.

use std::io::Write;
use std::process::Stdio;

use assert_cmd::Command;
use insta::assert_snapshot;

use super::{LIBRARY_CONFIG, folder, script, scripted, serve, shown};
use crate::lab::http::exchange;
use crate::lab::lines::Lines;
use crate::lab::weir::Weir;

/// Output for a configuration with a mistake, and for a wrong argument.
fn report(arguments: &[&str], variables: &[(&str, &str)]) -> [String; 2] {
    let folder = folder("[server]\nlistn = 1\n");
    [&["list"][..], &["list", "--nonsense"]].map(|command| {
        let mut weir = Command::from_std(crate::program());
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            weir.env_remove(name);
        }
        let weir = weir.args(command).args(arguments).envs(variables.iter().copied());
        let output = weir.current_dir(folder.path()).output().expect("it runs");
        String::from_utf8(output.stderr).expect("text")
    })
}

#[test]
fn colors_are_for_terminals_that_want_them_and_for_whoever_insists() {
    let colored = |arguments: &[&str], variables: &[(&str, &str)]| {
        report(arguments, variables).map(|text| text.contains('\u{1b}'))
    };
    for (arguments, variables, expected) in [
        (&[][..], &[][..], false),
        (&["--color", "always"], &[], true),
        (&["--color=always"], &[("NO_COLOR", "1")], true),
        (&[], &[("CLICOLOR_FORCE", "1")], true),
        (&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        (&["--color=never"], &[("CLICOLOR_FORCE", "1")], false),
    ] {
        assert_eq!(colored(arguments, variables), [expected; 2], "{arguments:?} {variables:?}");
    }
}

#[test]
fn version_tells_what_is_spoken() {
    let folder = folder("");
    let all = [
        shown(folder.path(), &["version"]),
        shown(folder.path(), &["version", "--verbose"]),
        shown(folder.path(), &["version", "--json"]),
        shown(folder.path(), &["--version"]),
    ];
    let all = all.concat().replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let all = all.replace(std::env::consts::ARCH, "ARCH").replace(std::env::consts::OS, "OS");
    assert_snapshot!(all, @r#"
    $ weir version
    weir VERSION (ARCH OS)
    revisions  2026-07-28 (modern); 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25 (legacy)
    clients    http, http+sse, stdio
    upstreams  http, http+sse, stdio, prompt library
    => 0
    $ weir version --verbose
    weir VERSION (ARCH OS)
    revisions  2026-07-28 (modern); 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25 (legacy)
    clients    http, http+sse, stdio
    upstreams  http, http+sse, stdio, prompt library
    target     unknown: built without ./dev
    commit     unknown: built without ./dev
    profile    not used
    => 0
    $ weir version --json
    {"version":"VERSION","arch":"ARCH","os":"OS","revisions":["2024-11-05","2025-03-26","2025-06-18","2025-11-25","2026-07-28"],"clients":["http","http+sse","stdio"],"upstreams":["http","http+sse","stdio","prompt library"],"target":null,"commit":null,"profile_guided":false}
    => 0
    $ weir --version
    weir VERSION
    => 0
    "#);
}

#[test]
fn there_is_a_script_for_every_shell() {
    let folder = folder("");
    for (shell, word) in [
        ("bash", "complete -F _weir"),
        ("zsh", "#compdef weir"),
        ("fish", "complete -c weir"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let shown = shown(folder.path(), &["completions", shell]);
        assert!(shown.contains(word) && shown.ends_with("=> 0\n"), "{shell}");
    }
}

/// Runs `weir stdio` for a client that lists prompts; returns the ended process and the response.
pub(super) fn respond_to_list(mut command: std::process::Command) -> (Weir, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut weir = Weir::spawn(command);
    let mut output = Lines::of(weir.child.stdout.take().expect("piped"));
    let mut input = weir.child.stdin.take().expect("piped");
    writeln!(input, "{LIST}").expect("it reads");
    let reply = output.wait_for("\"id\":1");
    drop(input);
    assert!(weir.wait().success());
    (weir, reply)
}

/// Request of a modern client.
const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

#[test]
fn weir_log_overrides_the_level_of_the_configuration() {
    let config = |level: &str| {
        format!(
            "[log]\nlevel = \"{level}\"\nformat = \"json\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n"
        )
    };
    let is_debug = |level: &str, variable: Option<&str>| {
        let folder = folder(&config(level));
        let mut command = crate::program();
        command.arg("stdio").current_dir(folder.path()).env_remove("WEIR_LOG");
        command.envs(variable.map(|it| ("WEIR_LOG", it)));
        let (weir, reply) = respond_to_list(command);
        assert!(reply.contains("\"result\""), "{reply}");
        weir.wait_for_whole_log().join("\n").contains("\"level\":\"DEBUG\"")
    };
    for (level, variable, expected) in [
        ("debug", None, true),
        ("debug", Some("weir=error"), false),
        ("error", None, false),
        ("error", Some("weir=debug"), true),
    ] {
        assert_eq!(is_debug(level, variable), expected, "{level} {variable:?}");
    }
}

#[test]
fn a_log_message_of_an_upstream_that_belongs_to_no_call_goes_into_weirs_own_log() {
    let log = "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n";
    let folder = folder(&format!("{log}{}", scripted("hub")));
    let stray = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"stray"}}"#;
    let answer = format!(r#""result":{{"tools":[]}}}}' '{}"#, &stray[..stray.len() - 1]);
    script(folder.path(), "hub", &[("tools/list", &answer)]);
    let mut weir = serve(folder.path());
    let line = weir.wait_for_log("upstream log message");
    assert!(line.contains("\"upstream\":\"hub\"") && line.contains("stray"), "{line}");
    weir.end();
}

#[test]
fn only_the_log_at_debug_says_why_a_client_is_not_let_in() {
    let expired = "\n[clients.former]\nrole = \"guest\"\nexpires = 2020-01-01T00:00:00Z\n\
        key_sha256 = [\"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\"]\n";
    let log = "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n";
    let folder = folder(&format!("{log}{LIBRARY_CONFIG}{expired}"));
    let mut weir = serve(folder.path());
    let answers = [("foo", "expired key"), ("bar", "unknown key")].map(|(key, why)| {
        let headers = format!("Authorization: Bearer {key}\r\nContent-Type: application/json\r\n");
        let answer = exchange(&weir.address, "POST /mcp", &headers, "{}");
        let line = weir.wait_for_log("client not authenticated");
        assert!(line.contains(why) && line.contains("\"level\":\"DEBUG\""), "{line}");
        assert!(answer.starts_with("HTTP/1.1 401 ") && !answer.contains("expired"), "{answer}");
        let lines = answer.lines().filter(|line| !line.to_lowercase().starts_with("date:"));
        lines.collect::<Vec<_>>().join("\n")
    });
    assert_eq!(answers[0], answers[1]);
    weir.end();
}

#[test]
fn connect_says_which_file_its_entry_belongs_in() {
    let folder = folder(LIBRARY_CONFIG);
    let folder = folder.path().canonicalize().expect("it is there");
    for (scope, file) in [("user", ".claude.json"), ("project", ".mcp.json")] {
        let mut weir = Command::from_std(crate::program());
        weir.args(["connect", "claude-code", "--stdio", "--scope", scope]);
        let output = weir.current_dir(&folder).env("HOME", &folder).output().expect("it runs");
        let report = String::from_utf8(output.stderr).expect("text");
        let file = folder.join(file);
        let line = format!("for Claude Code, in {}", file.display());
        assert!(output.status.success() && report.contains(&line), "{report}");
        assert!(!file.exists());
    }
}

#[test]
fn stdio_without_a_level_logs_warnings_as_text_and_serve_logs_all_as_json() {
    let gone = "[upstreams.house]\nprompts_dir = \"prompts\"\n\
                [upstreams.gone]\ncommand = \"/nonexistent/server\"\n";
    let ping = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";
    let logged = |log: &str| {
        let folder = folder(&format!("[server]\nlisten = \"127.0.0.1:0\"\n{log}{gone}"));
        let (mut weir, mut output) = super::stdio(folder.path(), &[]);
        let mut input = weir.child.stdin.take().expect("a pipe");
        input.write_all(ping.as_bytes()).expect("it reads");
        output.wait_for("\"id\":1");
        let line = weir.wait_for_log("upstream disconnected");
        drop(input);
        assert!(weir.wait().success());
        (line, weir.wait_for_whole_log().join("\n"))
    };
    let (line, all) = logged("");
    assert!(line.contains(" WARN upstream disconnected upstream=gone"), "{line}");
    assert!(!all.contains("INFO"), "{all}");
    let (line, all) = logged("[log]\nformat = \"json\"\n");
    assert!(line.starts_with('{') && !all.contains("\"INFO\""), "{all}");
    let (line, _) = logged("[log]\nlevel = \"info\"\n");
    assert!(line.starts_with('{'), "{line}");

    let folder = folder(&format!("[server]\nlisten = \"127.0.0.1:0\"\n{gone}"));
    let mut weir = serve(folder.path());
    let line = weir.wait_for_log("upstream connected");
    assert!(line.starts_with('{') && line.contains("\"INFO\""), "{line}");
    weir.end();
}

#[test]
fn help_names_the_demonstration_only_where_its_servers_are() {
    let help = |folder: &std::path::Path| {
        let mut weir = Command::from_std(crate::program());
        let output = weir.args(["list", "--help"]).current_dir(folder).output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(help(std::path::Path::new(env!("CARGO_MANIFEST_DIR"))).contains("--demo"));
    assert!(!help(folder("").path()).contains("--demo"));
}
