//! `weir add`, `remove`, `enable` and `disable`: output and files, before and after.

use std::os::unix::fs::{PermissionsExt, symlink};

use insta::assert_snapshot;

use crate::user_home::{Done, UserHome, mode};

const PROMPT: &str = "---\ndescription: Greets.\n---\nHello!\n";

/// Configuration with a comment at each place where one can be.
const CONFIG: &str = "\
# Ours, written with care.

# The library.
[upstreams.house]   # at home
prompts_dir = \"prompts\"   # the folder

# Notes of the team.
[upstreams.notes]
# Which program:
command = \"false\" # for now
# Behind the keys.

# Its variables.
[upstreams.notes.env]
LEVEL = \"info\"

# Who may use what.
[roles.dev]
tools.allow = [\"notes/*\", \"house/*\"]   # both
# The end.
";

/// Home with a configuration in the project, and a second one that a server runs with.
fn home(config: &str) -> UserHome {
    let user_home = UserHome::new();
    user_home.write("project/weir.toml", config);
    user_home.write("project/prompts/greeting.md", PROMPT);
    user_home.write("server/prompts/greeting.md", PROMPT);
    user_home.write("server/weir.toml", "[upstreams.lib]\nprompts_dir = \"prompts\"\n");
    user_home
}

/// Runs `weir add` with a server that works.
fn add(user_home: &UserHome, arguments: &[&str]) -> Done {
    let server = user_home.path("server/weir.toml").display().to_string();
    let command = ["--", env!("CARGO_BIN_EXE_weir"), "stdio", "--config", &server];
    user_home.weir(&[&["add"], arguments, &command].concat())
}

/// Output of a command, as a terminal shows it.
fn shown(user_home: &UserHome, arguments: &[&str]) -> String {
    let done = user_home.weir(arguments);
    format!("$ weir {}\n{}{}=> {}\n", arguments.join(" "), done.out, done.err, done.code)
}

/// Lines of a change to a text, as `diff` prints them.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let mut text = String::new();
    let mut rest = &new[..];
    for line in old {
        match rest.iter().position(|new| *new == line) {
            Some(at) => {
                rest[..at].iter().for_each(|new| text.push_str(&format!("+{new}\n")));
                rest = &rest[at + 1..];
            }
            None => text.push_str(&format!("-{line}\n")),
        }
    }
    rest.iter().for_each(|new| text.push_str(&format!("+{new}\n")));
    text
}

/// Change of the main file of the project.
fn change(user_home: &UserHome) -> String {
    difference(CONFIG, &user_home.plain(&user_home.read("project/weir.toml")))
}

#[test]
fn a_program_is_added_with_its_secret_in_a_file_and_listed() {
    let user_home = home(CONFIG);
    let done = add(&user_home, &["lib", "--env", "API_TOKEN=canary", "--env", "LEVEL=info"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_snapshot!(done.err, @r"
      lib: env.API_TOKEN is now in secrets/lib-api-token
    wrote [upstreams.lib] into weir.toml
    next: a running Weir applies the file within seconds, and starts the upstream
    ");
    assert_snapshot!(done.out, @"ok    lib  stdio 2026-07-28  1 prompt");
    assert_snapshot!(change(&user_home), @r#"
    +[upstreams.lib]
    +command = "/usr/local/bin/weir"
    +args = ["stdio", "--config", "~/server/weir.toml"]
    +env = { API_TOKEN = { file = "secrets/lib-api-token" }, LEVEL = "info" }
    +
    "#);
    assert_eq!(user_home.read("project/secrets/lib-api-token"), "canary");
    assert_eq!(mode(&user_home.path("project/secrets/lib-api-token")), 0o600);
    let (text, files) = (user_home.read("project/weir.toml"), user_home.files("project"));
    assert!(![&text, &done.out, &done.err].iter().any(|text| text.contains("canary")));
    assert_eq!(files, ["prompts", "secrets", "weir.toml"]);
    let cached = user_home.files(".local/state/weir/catalog");
    assert!(!cached.is_empty(), "the check fills the cache of lists");

    // A changed secret does not replace the file of another upstream.
    let done = user_home.weir(&["remove", "lib"]);
    assert!(done.err.contains("secrets/lib-api-token was its secret"), "{}", done.err);
    let done = add(&user_home, &["lib", "--no-check", "--env", "API_TOKEN=another"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(user_home.read("project/secrets/lib-api-token"), "canary");
    assert_eq!(user_home.read("project/secrets/lib-api-token_2"), "another");
    assert!(user_home.read("project/weir.toml").contains("secrets/lib-api-token_2"));
}

#[test]
fn a_variable_without_a_value_is_that_of_weirs_environment() {
    let user_home = home(CONFIG);
    let done =
        add(&user_home, &["lib", "--no-check", "--env", "SOME_VALUE", "-e", "B=${HOME}/b$c"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let text = user_home.read("project/weir.toml");
    let line = text.lines().find(|line| line.starts_with("env = ")).expect("variables");
    assert_eq!(line, r#"env = { SOME_VALUE = { env = "SOME_VALUE" }, B = "${HOME}/b$$c" }"#);
    assert!(done.err.contains("the variable SOME_VALUE is not set"), "{}", done.err);
}

#[test]
fn a_url_is_added_with_its_headers() {
    let user_home = home(CONFIG);
    let arguments = [
        "add",
        "wiki",
        "https://me:canary1@wiki.example.com/mcp",
        "--no-check",
        "--header",
        "X-Api-Key=canary2",
        "--header",
        "X-Team: blue",
        "--header",
        "X-Who=${WHO:-me}",
    ];
    let done = user_home.weir(&arguments);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_snapshot!(change(&user_home), @r#"
    +[upstreams.wiki]
    +url = "https://wiki.example.com/mcp"
    +
    +[upstreams.wiki.headers]
    +X-Api-Key = { file = "secrets/wiki-x-api-key" }
    +X-Team = "blue"
    +X-Who = "${WHO:-me}"
    +Authorization = { file = "secrets/wiki-authorization" }
    +
    "#);
    assert_eq!(user_home.read("project/secrets/wiki-x-api-key"), "canary2");
    let text = user_home.read("project/weir.toml");
    assert!(![&text, &done.out, &done.err].iter().any(|text| text.contains("canary")));
}

#[test]
fn a_server_that_demands_oauth_is_added_for_a_sign_in() {
    let user_home = home(CONFIG);
    let url = "http://127.0.0.1:9/mcp";
    let text = shown(&user_home, &["add", "notion", url, "--oauth"]);
    assert_snapshot!(text, @r"
    $ weir add notion http://127.0.0.1:9/mcp --oauth
    needs sign-in  notion  no access token: sign in with `weir login notion`
      notion: a user signs in to it with `weir login notion`
    wrote [upstreams.notion] into weir.toml
    weir: `notion` needs a sign-in: run `weir login notion`
    => 4
    ");
    assert_snapshot!(change(&user_home), @r#"
    +# a user signs in to it with `weir login notion`
    +[upstreams.notion]
    +url = "http://127.0.0.1:9/mcp"
    +auth = { type = "oauth" }
    +
    "#);
}

#[test]
fn a_relative_path_of_a_program_starts_from_the_current_folder() {
    let user_home = home(CONFIG);
    user_home.write("project/build/index.js", "");
    let done = user_home.weir(&["add", "tool", "--no-check", "--", "node", "build/index.js"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_snapshot!(change(&user_home), @r#"
    +[upstreams.tool]
    +command = "node"
    +args = ["build/index.js"]
    +cwd = "~/project"
    +
    "#);
}

#[test]
fn without_a_configuration_one_is_created_in_the_users_folder() {
    let user_home = home(CONFIG);
    std::fs::remove_file(user_home.path("project/weir.toml")).expect("removed");
    let done = add(&user_home, &["lib", "--env", "API_TOKEN=canary"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_snapshot!(done.err, @r"
      lib: env.API_TOKEN is now in secrets/lib-api-token
    wrote [upstreams.lib] into ~/.config/weir/weir.toml
    next: a running Weir applies the file within seconds, and starts the upstream
          `weir connect CLIENT --write` points a client at Weir
    ");
    assert_snapshot!(user_home.plain(&user_home.read(".config/weir/weir.toml")), @r#"
    # Weir's configuration.
    #   weir check     checks it: each server is started, listed and reported
    #   weir serve     serves clients at http://127.0.0.1:8642/mcp
    #   weir stdio     serves one client that starts Weir itself: `weir connect CLIENT` prints its entry

    [upstreams.lib]
    command = "/usr/local/bin/weir"
    args = ["stdio", "--config", "~/server/weir.toml"]
    env = { API_TOKEN = { file = "secrets/lib-api-token" } }
    "#);
    assert_eq!(user_home.files(".config/weir"), ["secrets", "weir.toml"]);
    assert_eq!(user_home.files("project"), ["prompts"]);
    assert_eq!(user_home.weir(&["check"]).code, 0);

    let done = add(&user_home, &["lib", "--config", "here.toml", "--no-check"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(user_home.files("project").contains(&"here.toml".to_owned()));
}

#[test]
fn an_upstream_that_does_not_start_is_added_and_the_exit_code_says_so() {
    let user_home = home(CONFIG);
    let text = shown(&user_home, &["add", "broken", "--", "/nowhere/server"]);
    assert_snapshot!(text, @r"
    $ weir add broken -- /nowhere/server
    down  broken  it cannot be started: no such program: /nowhere/server; install it, or correct `command`
    wrote [upstreams.broken] into weir.toml
    weir: `broken` was added, but cannot be used: correct [upstreams.broken] and run `weir check`, or run `weir remove broken`
    => 4
    ");
    assert_snapshot!(change(&user_home), @r#"
    +[upstreams.broken]
    +command = "/nowhere/server"
    +
    "#);
    let text = shown(&user_home, &["add", "later", "--disabled", "--", "/nowhere/server"]);
    assert_snapshot!(text, @r"
    $ weir add later --disabled -- /nowhere/server
    wrote [upstreams.later] into weir.toml
    next: a running Weir applies the file within seconds
          `weir enable later` starts the upstream
    => 0
    ");
    assert!(user_home.read("project/weir.toml").contains("enabled = false"));
}

#[test]
fn a_change_can_be_printed_as_one_line_of_json() {
    let user_home = home(CONFIG);
    let done = add(&user_home, &["lib", "--json"]);
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    assert_snapshot!(done.out, @r#"{"upstream":"lib","changed":true,"files":["weir.toml"],"problems":[],"check":{"name":"lib","ok":true,"state":"stdio 2026-07-28","prompts":1,"tools":0,"resources":0,"resourceTemplates":0,"problems":[],"altered":[]}}"#);
    assert_snapshot!(shown(&user_home, &["disable", "lib", "--json"]), @r#"
    $ weir disable lib --json
    {"upstream":"lib","changed":true,"files":["weir.toml"],"problems":[]}
    => 0
    "#);
    assert_snapshot!(shown(&user_home, &["disable", "lib", "--json"]), @r#"
    $ weir disable lib --json
    {"upstream":"lib","changed":false,"files":[],"problems":[]}
    => 0
    "#);
    let done = user_home.weir(&["remove", "notes", "--json"]);
    assert_snapshot!(format!("{}{}", done.out, done.err), @r#"{"upstream":"notes","changed":true,"files":["weir.toml"],"problems":[{"severity":"warning","file":"weir.toml","line":19,"column":16,"key":"roles.dev.tools.allow","what":"there is no upstream \"notes\"","remedy":"patterns use the name of the table, [upstreams.<name>]"}]}"#);
    let done = user_home.weir(&["remove", "gone", "--json"]);
    assert_snapshot!(done.err, @r#"{"error":"no upstream `gone`; upstreams: house, lib","exit_code":2}"#);
}

#[test]
fn an_upstream_is_removed_and_every_comment_around_it_stays() {
    let user_home = home(CONFIG);
    assert_snapshot!(shown(&user_home, &["remove", "notes"]), @r#"
    $ weir remove notes
    copied weir.toml to ~/project/weir.toml.weir-backup-TIME
    removed [upstreams.notes] from weir.toml
    warning: roles.dev.tools.allow: there is no upstream "notes"
      --> weir.toml:14:16
       |
    14 | tools.allow = ["notes/*", "house/*"]   # both
       |                ^^^^^^^^^ patterns use the name of the table, [upstreams.<name>]
    next: a running Weir applies the file within seconds, and stops the upstream
    => 0
    "#);
    assert_snapshot!(change(&user_home), @r#"
    -[upstreams.notes]
    -# Which program:
    -command = "false" # for now
    -[upstreams.notes.env]
    -LEVEL = "info"
    "#);
    let files = user_home.files("project");
    let backup = files.iter().find(|file| file.contains("weir-backup-")).expect("a copy");
    assert_eq!(user_home.read(&format!("project/{backup}")), CONFIG);
}

#[test]
fn rules_of_roles_clients_and_limits_that_name_a_removed_upstream_are_reported() {
    let rules = "\n[clients.ci]\nkey_sha256 = [\"1111111111111111111111111111111111111111111111111111111111111111\"]\n\
                 prompts.allow = [\"notes/*\"]\n[[limits]]\nper = \"client\"\nmatch = \"notes/x\"\n\
                 rate = \"5/s\"\n";
    let user_home = home(&format!("{CONFIG}{rules}"));
    let done = user_home.weir(&["disable", "notes"]);
    assert!(!done.err.contains("warning"), "it is known still: {}", done.err);
    let done = user_home.weir(&["remove", "notes"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let warnings: Vec<_> = done.err.lines().filter(|line| line.starts_with("warning")).collect();
    let what = "there is no upstream \"notes\"";
    let keys = ["roles.dev.tools.allow", "clients.ci.prompts.allow", "limits.match"];
    assert_eq!(warnings, keys.map(|key| format!("warning: {key}: {what}")));
    assert!(user_home.read("project/weir.toml").ends_with(rules), "they stay");
}

#[test]
fn what_was_added_is_removed_without_a_trace() {
    for text in [CONFIG.to_owned(), CONFIG.replace('\n', "\r\n"), format!("\u{feff}{CONFIG}")] {
        let user_home = home(&text);
        let done = add(&user_home, &["lib", "--no-check"]);
        assert_eq!(done.code, 0, "{}", done.err);
        let with = user_home.read("project/weir.toml");
        assert_eq!(with.starts_with('\u{feff}'), text.starts_with('\u{feff}'));
        let (all, long) = (with.matches('\n').count(), with.matches("\r\n").count());
        assert_eq!(long, if text.contains("\r\n") { all } else { 0 }, "{with}");
        assert_eq!(user_home.weir(&["check", "--offline"]).code, 0);
        let done = user_home.weir(&["remove", "lib"]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert_eq!(user_home.read("project/weir.toml"), text);
    }
}

#[test]
fn lines_of_a_file_with_two_kinds_of_ends_keep_theirs() {
    let mixed = CONFIG.replacen("care.\n", "care.\r\n", 1).replacen("both\n", "both\r\n", 1);
    let user_home = home(&mixed);
    assert_eq!(user_home.weir(&["disable", "house"]).code, 0);
    assert_eq!(user_home.weir(&["remove", "notes"]).code, 0);
    let text = user_home.read("project/weir.toml");
    let lines: Vec<_> = text.split_inclusive('\n').filter(|it| it.ends_with("\r\n")).collect();
    assert_eq!(
        lines,
        [
            "# Ours, written with care.\r\n",
            "enabled = false\r\n",
            "tools.allow = [\"notes/*\", \"house/*\"]   # both\r\n",
        ]
    );
}

#[test]
fn an_upstream_is_disabled_and_enabled_in_whatever_form_it_is_written() {
    for (before, disabled) in [
        (
            "[upstreams.a]   # A\ncommand = \"a\"  # it\n\n# B\n[upstreams.b]\ncommand = \"b\"\n",
            "[upstreams.a]   # A\ncommand = \"a\"  # it\nenabled = false\n\n# B\n[upstreams.b]\ncommand = \"b\"\n",
        ),
        (
            "[upstreams.a]\nenabled = true # for now\ncommand = \"a\"\n[upstreams.b]\ncommand = \"b\"\n",
            "[upstreams.a]\nenabled = false # for now\ncommand = \"a\"\n[upstreams.b]\ncommand = \"b\"\n",
        ),
        (
            "# dotted\nupstreams.a.command = \"a\" # it\nupstreams.b.command = \"b\"\n",
            "# dotted\nupstreams.a.command = \"a\" # it\nupstreams.a.enabled = false\nupstreams.b.command = \"b\"\n",
        ),
        (
            "[upstreams]\na = { command = \"a\" }  # inline\nb = { command = \"b\" }\n",
            "[upstreams]\na = { command = \"a\", enabled = false }  # inline\nb = { command = \"b\" }\n",
        ),
        (
            "upstreams = { a = { command = \"a\" }, b = { command = \"b\" } }\n",
            "upstreams = { a = { command = \"a\", enabled = false }, b = { command = \"b\" } }\n",
        ),
    ] {
        let user_home = home(before);
        let done = user_home.weir(&["disable", "a"]);
        assert_eq!(done.code, 0, "{before}: {}", done.err);
        assert_eq!(user_home.read("project/weir.toml"), disabled);
        let done = user_home.weir(&["disable", "a"]);
        assert_eq!((done.code, done.err.as_str()), (0, "the upstream `a` is disabled already\n"));
        let done = user_home.weir(&["enable", "a"]);
        assert_eq!(done.code, 0, "{before}: {}", done.err);
        let enabled = disabled.replace("enabled = false", "enabled = true");
        assert_eq!(user_home.read("project/weir.toml"), enabled);
    }
}

#[test]
fn an_upstream_is_removed_in_whatever_form_it_is_written_or_nothing_is() {
    for (before, after) in [
        (
            "# one\nupstreams.a.command = \"a\"\nupstreams.a.args = [\n  \"x\", # y\n]\n# two\nupstreams.b.command = \"b\"\n",
            "# one\n# two\nupstreams.b.command = \"b\"\n",
        ),
        (
            "[upstreams]\n# A\na = { command = \"a\" } # it\n# B\nb = { command = \"b\" }\n",
            "[upstreams]\n# A\n# B\nb = { command = \"b\" }\n",
        ),
        (
            "[upstreams.b]\ncommand = \"b\"\nargs = ['''\n[upstreams.a]\n''']\n[upstreams.a]\ncommand = \"a\"\n[upstreams.a.timeouts]\ncall = \"5s\"\n",
            "[upstreams.b]\ncommand = \"b\"\nargs = ['''\n[upstreams.a]\n''']\n",
        ),
    ] {
        let user_home = home(before);
        let done = user_home.weir(&["remove", "a"]);
        assert_eq!(done.code, 0, "{before}: {}", done.err);
        assert_eq!(user_home.read("project/weir.toml"), after);
    }
    let inline = "upstreams = { a = { command = \"a\" }, b = { command = \"b\" } }\n";
    let user_home = home(inline);
    assert_snapshot!(shown(&user_home, &["remove", "a"]), @r"
    $ weir remove a
    weir: weir.toml: [upstreams.a] cannot be changed without touching other settings, so nothing was written; change it by hand: remove [upstreams.a] there
    => 78
    ");
    assert_snapshot!(shown(&user_home, &["add", "c", "--no-check", "--", "c"]), @r"
    $ weir add c --no-check -- c
    weir: weir.toml: [upstreams.c] cannot be changed without touching other settings, so nothing was written; change it by hand: write `upstreams` as tables [upstreams.<name>]
    => 78
    ");
    assert_eq!(user_home.read("project/weir.toml"), inline);
    assert_eq!(user_home.files("project"), ["prompts", "weir.toml"]);
}

#[test]
fn an_upstream_is_changed_in_the_files_that_have_it() {
    let config = "include = [\"conf.d/*.toml\"]\n[upstreams.house]\nprompts_dir = \"prompts\"\n\
                  [upstreams.notes.env]\nLEVEL = \"info\"\n";
    let user_home = home(config);
    let included = "# Notes.\n[upstreams.notes]\ncommand = \"false\"\n";
    user_home.write("project/conf.d/notes.toml", included);
    assert_eq!(user_home.weir(&["disable", "notes"]).code, 0);
    assert_eq!(user_home.read("project/weir.toml"), config);
    let disabled = format!("{included}enabled = false\n");
    assert_eq!(user_home.read("project/conf.d/notes.toml"), disabled);

    let arguments = ["lib", "--no-check", "--file", "conf.d/notes.toml", "--env", "A_KEY=canary"];
    let done = add(&user_home, &arguments);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(user_home.read("project/conf.d/secrets/lib-a-key"), "canary");
    assert_eq!(user_home.read("project/weir.toml"), config);
    let done = user_home.weir(&["add", "lib", "--", "x"]);
    assert_eq!(done.code, 2);
    assert_snapshot!(done.err, @"weir: there is an upstream `lib` already, in conf.d/notes.toml: choose another name, or run `weir remove lib` first");

    let done = user_home.weir(&["remove", "notes"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(!user_home.read("project/conf.d/notes.toml").contains("upstreams.notes"));
    let left = "include = [\"conf.d/*.toml\"]\n[upstreams.house]\nprompts_dir = \"prompts\"\n";
    assert_eq!(user_home.read("project/weir.toml"), left);
}

#[test]
fn an_upstream_in_two_files_is_removed_from_both_or_from_none() {
    let config = "include = [\"conf.d/*.toml\"]\n[upstreams.house]\nprompts_dir = \"prompts\"\n\
                  [upstreams.notes.env]\nLEVEL = \"info\"\n";
    let user_home = home(config);
    let included = "[upstreams.notes]\ncommand = \"false\"\n";
    user_home.write("project/conf.d/notes.toml", included);
    let path = user_home.path("project/conf.d/notes.toml");
    let set_mode = |mode| {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
    };
    set_mode(0o444);
    assert_snapshot!(shown(&user_home, &["remove", "notes"]), @r"
    $ weir remove notes
    weir: ~/project/conf.d/notes.toml was not written: it is read-only; `chmod u+w` makes it writable
    => 2
    ");
    assert_eq!(user_home.read("project/weir.toml"), config);
    assert_eq!(user_home.read("project/conf.d/notes.toml"), included);
    assert_eq!(user_home.files("project"), ["conf.d", "prompts", "weir.toml"]);
    set_mode(0o644);
    assert_eq!(user_home.weir(&["remove", "notes"]).code, 0);
    assert!(!user_home.read("project/weir.toml").contains("notes.env"));
    assert_eq!(user_home.read("project/conf.d/notes.toml"), "");
}

#[test]
fn secrets_of_an_upstream_that_is_not_added_are_removed_again() {
    let user_home = home(CONFIG);
    // The second secret cannot be written.
    std::fs::create_dir_all(user_home.path("project/secrets/lib-b-key")).expect("made");
    let done = add(&user_home, &["lib", "--env", "A_KEY=canary", "--env", "B_KEY=canary"]);
    assert!(done.code == 2 && done.err.contains("lib-b-key cannot be written"), "{}", done.err);
    assert_eq!(user_home.files("project/secrets"), ["lib-b-key"]);
    assert_eq!(user_home.read("project/weir.toml"), CONFIG);
}

#[test]
fn a_name_with_control_characters_is_not_printed_as_it_is() {
    let name = "red\u{1b}[31m\u{202e}";
    let table = "[upstreams.\"red\\u001b[31m\\u202e\"]\ncommand = \"false\"\n";
    for command in ["disable", "enable", "remove"] {
        let user_home = home(&format!("{CONFIG}{table}"));
        let done = user_home.weir(&[command, name]);
        assert_eq!(done.code, 0, "{}", done.err);
        let output = done.out + &done.err;
        assert!(output.contains("red"), "{output}");
        assert!(!output.contains(['\u{1b}', '\u{202e}']), "{output:?}");
    }
}

#[test]
fn permissions_and_a_link_of_the_file_stay_and_a_read_only_file_is_not_changed() {
    let user_home = home(CONFIG);
    let (path, target) = (user_home.path("project/weir.toml"), user_home.path("dotfiles.toml"));
    std::fs::rename(&path, &target).expect("moved");
    symlink(&target, &path).expect("linked");
    let set_mode = |mode| {
        std::fs::set_permissions(&target, PermissionsExt::from_mode(mode)).expect("ours");
    };
    set_mode(0o640);
    assert_eq!(user_home.weir(&["disable", "notes"]).code, 0);
    assert!(path.is_symlink() && mode(&target) == 0o640);
    assert!(user_home.read("dotfiles.toml").contains("enabled = false"));
    set_mode(0o440);
    let text = user_home.read("dotfiles.toml");
    assert_snapshot!(shown(&user_home, &["enable", "notes"]), @r"
    $ weir enable notes
    weir: ~/dotfiles.toml was not written: it is read-only; `chmod u+w` makes it writable
    => 2
    ");
    assert_eq!(add(&user_home, &["lib", "--env", "A_KEY=canary"]).code, 2);
    assert_eq!(user_home.weir(&["remove", "notes"]).code, 2);
    assert_eq!(user_home.read("dotfiles.toml"), text);
    assert_eq!(user_home.files("project"), ["prompts", "weir.toml"], "nothing is left behind");
    std::fs::remove_file(&target).expect("removed");
    let done = user_home.weir(&["add", "x", "--config", "weir.toml", "--", "x"]);
    assert!(done.code == 2 && path.is_symlink(), "{}", done.err);
}

#[test]
fn what_cannot_be_done_is_told_and_changes_nothing() {
    let user_home = home(CONFIG);
    let output = [
        &["remove", "note"][..],
        &["disable", "gone"],
        &["enable", "\u{1b}[31mred\u{202e}"],
        &["add", "My Server", "--", "x"],
        &["add", "house", "--", "x"],
        &["add", "x"],
        &["add", "x", "npx"],
        &["add", "x", "ftp://example.com/"],
        &["add", "x", "https://a.example/mcp", "--env", "A=b"],
        &["add", "x", "--header", "A=b", "--", "x"],
        &["add", "x", "--oauth", "--", "x"],
        &["add", "x", "https://a.example/mcp", "--", "x"],
        &["add", "x", "npx", "--", "x"],
        &["add", "x", "--env", "not a name", "--", "x"],
        &["add", "x", "https://a.example/mcp", "--header", "canary"],
        &["add", "x", "https://a.example/mcp", "--header", "Bad Name=x"],
        &["add", "x", "--file", "elsewhere.toml", "--", "x"],
    ];
    let output: String = output.iter().map(|arguments| shown(&user_home, arguments)).collect();
    let output = output.replace('\u{1b}', "ESC").replace('\u{202e}', "RLO");
    assert_snapshot!(output, @r#"
    $ weir remove note
    weir: no upstream `note`; did you mean `notes`?
    => 2
    $ weir disable gone
    weir: no upstream `gone`; upstreams: house, notes
    => 2
    $ weir enable ESC[31mredRLO
    weir: no upstream `�[31mred�`; upstreams: house, notes
    => 2
    $ weir add My Server -- x
    weir: `My Server` cannot name an upstream: a name is a lower-case letter, then at most 31 of a-z, 0-9 and -; `my-server` is one
    => 2
    $ weir add house -- x
    weir: there is an upstream `house` already, in weir.toml: choose another name, or run `weir remove house` first
    => 2
    $ weir add x
    weir: which server is `x`? `weir add x -- COMMAND` starts a program, `weir add x URL` connects to a server on the network
    => 2
    $ weir add x npx
    weir: `npx` is not a URL; a program stands behind two dashes: `weir add x -- npx`
    => 2
    $ weir add x ftp://example.com/
    weir: `x` cannot be added: its address is not an http or https URL
    => 2
    $ weir add x https://a.example/mcp --env A=b
    weir: --env is for a program, and a URL gets headers: use --header
    => 2
    $ weir add x --header A=b -- x
    weir: --header is for a URL, and a program gets variables: use --env
    => 2
    $ weir add x --oauth -- x
    weir: --oauth is for a URL
    => 2
    $ weir add x https://a.example/mcp -- x
    weir: a server has a URL or a command, not both
    => 2
    $ weir add x npx -- x
    weir: `npx` is not a URL; a program stands behind two dashes: `weir add x -- npx`
    => 2
    $ weir add x --env not a name -- x
    weir: --env is NAME=VALUE or NAME, and a name has letters, digits and _
    => 2
    $ weir add x https://a.example/mcp --header canary
    weir: --header is NAME=VALUE, such as --header "Authorization=Bearer TOKEN"
    => 2
    $ weir add x https://a.example/mcp --header Bad Name=x
    weir: upstreams.x.headers."Bad Name": this cannot name a header; write a name like X-Team
    => 2
    $ weir add x --file elsewhere.toml -- x
    weir: elsewhere.toml is not part of the configuration: create it, and add it to the `include` of weir.toml
    => 2
    "#);
    assert_eq!(user_home.read("project/weir.toml"), CONFIG);
    assert_eq!(user_home.files("project"), ["prompts", "weir.toml"]);
    user_home.write("project/weir.toml", "[upstreams.a\n");
    let text = shown(&user_home, &["remove", "a"]);
    assert!(text.ends_with("=> 78\n"), "{text}");
    assert_eq!(user_home.read("project/weir.toml"), "[upstreams.a\n");
}

#[test]
fn the_last_upstream_can_be_removed_and_another_added() {
    let user_home = home("# Ours.\n[upstreams.house]\nprompts_dir = \"prompts\"\n");
    assert_snapshot!(shown(&user_home, &["remove", "house"]), @r"
    $ weir remove house
    copied weir.toml to ~/project/weir.toml.weir-backup-TIME
    removed [upstreams.house] from weir.toml
    error: upstreams: there is nothing to serve
    --> weir.toml
     = help: add at least one [upstreams.<name>] table with prompts_dir, command or url
    until that is corrected, a running Weir keeps its former configuration, and Weir does not start with this one
    => 0
    ");
    assert_eq!(user_home.read("project/weir.toml"), "# Ours.\n");
    let done = add(&user_home, &["lib"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(user_home.read("project/weir.toml").starts_with("# Ours.\n\n[upstreams.lib]\n"));
}

#[test]
fn a_file_with_other_mistakes_can_be_edited() {
    let user_home = home(&format!("{CONFIG}[upstreams.old]\ncommand = \"${{UNSET}}\"\n"));
    let done = add(&user_home, &["lib"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let done = user_home.weir(&["remove", "old"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(user_home.weir(&["check", "--offline"]).code, 0);
}

#[test]
fn list_and_remove_have_the_names_that_people_type() {
    let user_home = home(CONFIG);
    let listed = |command| user_home.weir(&[command, "prompts", "--upstream", "house"]).out;
    assert_eq!(listed("ls"), listed("list"));
    assert!(listed("ls").contains("house__greeting"));
    assert_eq!(user_home.weir(&["rm", "notes"]).code, 0);
}
