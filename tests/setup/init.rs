//! `weir init`, with and without a client to take over from.

use insta::assert_snapshot;
use weir::config::{Config, Options, Source};

use crate::desk::{CLIENTS, Client, Desk, mode};

fn named(name: &str) -> &'static Client {
    CLIENTS.iter().find(|client| client.name == name).expect("a client")
}

/// The names of a configuration's upstreams, in its order.
pub(crate) fn upstreams(text: &str) -> Vec<&str> {
    let heads = text.lines().filter_map(|line| line.strip_prefix("[upstreams.")?.strip_suffix(']'));
    heads.filter(|name| !name.contains('.')).collect()
}

/// Everything that taking over left behind.
fn taken_over(desk: &Desk, err: &str) -> String {
    let mut text = format!("{err}\n--- weir.toml\n{}", desk.plain(&desk.read("project/weir.toml")));
    for name in desk.files("project/secrets") {
        let path = desk.path("project/secrets").join(&name);
        let content = desk.read(&format!("project/secrets/{name}"));
        text.push_str(&format!("--- secrets/{name} {:o}\n{content}\n", mode(&path)));
    }
    text
}

#[test]
fn each_clients_servers_become_upstreams() {
    for client in &CLIENTS {
        let desk = Desk::with(client);
        let done = desk.weir(&["init", "--from", client.name]);
        assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
        assert_snapshot!(client.name, taken_over(&desk, &done.err));
        assert_eq!(desk.read(client.user), client.text(), "the client's file is only read");
    }
}

#[test]
fn what_was_taken_over_is_a_good_configuration() {
    for client in &CLIENTS {
        let desk = Desk::with(client);
        // What one client reads from a file of the system is read from one of the desk.
        let certificate = desk.path("client.txt").display().to_string();
        desk.write("client.txt", "certificate");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(desk.path("client.txt"), private).expect("ours");
        desk.write(client.user, &client.text().replace("/etc/mcp/client.txt", &certificate));
        let done = desk.weir(&["init", "--from", client.name]);
        assert_eq!(done.code, 0, "{}", done.err);
        let text = desk.read("project/weir.toml");
        // Whoever set the variables that it names can start with it.
        let names = text.split("${").skip(1).filter_map(|part| part.split('}').next());
        let names = names.filter(|name| !name.contains(':'));
        let elsewhere = text.split("env = \"").skip(1).filter_map(|part| part.split('"').next());
        let variables = names.chain(elsewhere).filter(|name| *name != "HOME");
        let environment = variables.map(|name| (name, "set"));
        let home = desk.path("").display().to_string();
        let options = Options {
            environment: environment.chain([("HOME", home.as_str())]).collect(),
            ..Options::default()
        };
        let path = desk.path("project/weir.toml");
        let config = Config::load(&path, &options)
            .unwrap_or_else(|report| panic!("{}:\n{report}\n{text}", client.name));
        let names: Vec<_> = config.upstreams.iter().map(|one| one.name.as_str()).collect();
        let enabled: Vec<_> = upstreams(&text)
            .into_iter()
            .filter(|name| {
                let table = text.split(&format!("[upstreams.{name}]\n")).nth(1).unwrap_or_default();
                !table.split("\n\n").next().unwrap_or_default().contains("enabled = false")
            })
            .collect();
        assert_eq!(names, enabled, "{}", client.name);
        let given = format!("{:?}", config.upstreams.iter().map(secrets).collect::<Vec<_>>());
        assert_snapshot!(
            format!("{}-read", client.name),
            desk.plain(&given.replace("), (", "),\n("))
        );
    }
}

/// What an upstream's server is given, secrets included.
fn secrets(upstream: &weir::config::Upstream) -> Vec<(String, String)> {
    match &upstream.source {
        Source::Process { env, .. } => {
            env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect()
        }
        Source::Http { headers, .. } => {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect()
        }
        Source::Library { .. } => Vec::new(),
    }
}

#[test]
fn a_secret_is_in_a_file_of_its_own_and_nowhere_else() {
    for client in &CLIENTS {
        let desk = Desk::with(client);
        let done = desk.weir(&["init", "--from", client.name]);
        let text = desk.read("project/weir.toml");
        // Every secret of the fixtures says that it is one, but for the one in the middle of an address.
        for part in [&text, &done.err, &done.out] {
            let part = part.to_lowercase();
            assert!(
                !part.contains("fixture") && !part.contains("zmfrzs"),
                "{}: {part}",
                client.name
            );
        }
        let files = desk.files("project/secrets");
        if files.is_empty() {
            continue;
        }
        assert_eq!(mode(&desk.path("project/secrets")), 0o700);
        for file in files.iter().filter(|file| *file != ".gitignore") {
            assert_eq!(mode(&desk.path("project/secrets").join(file)), 0o600, "{file}");
            assert!(text.contains(&format!("secrets/{file}")), "{file}");
        }
    }
}

#[test]
fn a_secret_beside_a_variable_is_not_written_either() {
    let desk = Desk::new();
    let text = r#"{ "mcpServers": { "a": {
        "command": "a",
        "args": ["--token", "${A_TOKEN:-fixture1}", "--header", "X-Key: fixture2", "--header=Authorization: Bearer fixture0", "-e", "B_KEY=fixture3", "--x-key=fixture11",
            "https://me:fixture4@a.example/x?token=fixture5&z=1", "sk-fixture6-fixture6"],
        "env": { "C_TOKEN": "${C:-fixture7}", "D": "Basic ${U} ghp_fixture8fixture8" }
    }, "b": { "type": "http", "url": "https://me:fixture9@b.example/?key=fixture10#top" } } }"#;
    desk.write("project/.mcp.json", text);
    let done = desk.weir(&["init", "--from", ".mcp.json"]);
    assert_snapshot!(taken_over(&desk, &done.err), @r#"
    read .mcp.json: 2 servers
      a: args: a secret was the default of A_TOKEN: set that variable
      a: args: `X-Key` held a secret, now in secrets/a-x-key: before Weir starts, export A_X_KEY="$(cat secrets/a-x-key)"
      a: args: `Authorization` held a secret, now in secrets/a-authorization: before Weir starts, export A_AUTHORIZATION="$(cat secrets/a-authorization)"
      a: args: `B_KEY` held a secret, now in secrets/a-b-key: before Weir starts, export A_B_KEY="$(cat secrets/a-b-key)"
      a: args: `--x-key` held a secret, now in secrets/a-x-key_2: before Weir starts, export A_X_KEY_2="$(cat secrets/a-x-key_2)"
      a: args: the URL held a secret, now in secrets/a-password: before Weir starts, export A_PASSWORD="$(cat secrets/a-password)"
      a: args: `token` held a secret, now in secrets/a-token: before Weir starts, export A_TOKEN="$(cat secrets/a-token)"
      a: args: an argument held a secret, now in secrets/a-argument: before Weir starts, export A_ARGUMENT="$(cat secrets/a-argument)"
      a: env.C_TOKEN: a secret was the default of C: set that variable
      a: env.D: it held a secret beside a variable: set D to the whole
      b: headers.Authorization is now in secrets/b-authorization
      b: url: `key` held a secret, now in secrets/b-key: before Weir starts, export B_KEY="$(cat secrets/b-key)"
    wrote weir.toml: 2 upstreams
      still to do: upstreams.a.args: the variable A_TOKEN is not set
      still to do: upstreams.a.args: the variable A_X_KEY is not set
      still to do: upstreams.a.args: the variable A_AUTHORIZATION is not set
      still to do: upstreams.a.args: the variable A_B_KEY is not set
      still to do: upstreams.a.args: the variable A_X_KEY_2 is not set
      still to do: upstreams.a.args: the variable A_PASSWORD is not set
      still to do: upstreams.a.args: the variable A_TOKEN is not set
      still to do: upstreams.a.args: the variable A_ARGUMENT is not set
      still to do: upstreams.a.env.C_TOKEN.env: the variable C is not set
      still to do: upstreams.a.env.D.env: the variable D is not set
      still to do: upstreams.b.url: the variable B_KEY is not set
    next: `weir check` tries it
          `weir connect CLIENT --write` puts Weir into the client's file; then take the servers that Weir has now out of it

    --- weir.toml
    # Weir's configuration, taken over from Claude Code by `weir init`.
    # Secrets are not in here: { file = "…" } and { env = "…" } say where they are.
    # `weir check` tries it.

    # args: a secret was the default of A_TOKEN: set that variable
    # args: `X-Key` held a secret, now in secrets/a-x-key: before Weir starts, export A_X_KEY="$(cat secrets/a-x-key)"
    # args: `Authorization` held a secret, now in secrets/a-authorization: before Weir starts, export A_AUTHORIZATION="$(cat secrets/a-authorization)"
    # args: `B_KEY` held a secret, now in secrets/a-b-key: before Weir starts, export A_B_KEY="$(cat secrets/a-b-key)"
    # args: `--x-key` held a secret, now in secrets/a-x-key_2: before Weir starts, export A_X_KEY_2="$(cat secrets/a-x-key_2)"
    # args: the URL held a secret, now in secrets/a-password: before Weir starts, export A_PASSWORD="$(cat secrets/a-password)"
    # args: `token` held a secret, now in secrets/a-token: before Weir starts, export A_TOKEN="$(cat secrets/a-token)"
    # args: an argument held a secret, now in secrets/a-argument: before Weir starts, export A_ARGUMENT="$(cat secrets/a-argument)"
    # env.C_TOKEN: a secret was the default of C: set that variable
    # env.D: it held a secret beside a variable: set D to the whole
    [upstreams.a]
    command = "a"
    args = [
        "--token",
        "${A_TOKEN}",
        "--header",
        "X-Key: ${A_X_KEY}",
        "--header=Authorization: ${A_AUTHORIZATION}",
        "-e",
        "B_KEY=${A_B_KEY}",
        "--x-key=${A_X_KEY_2}",
        "https://me:${A_PASSWORD}@a.example/x?token=${A_TOKEN}&z=1",
        "${A_ARGUMENT}",
    ]
    env = { C_TOKEN = { env = "C" }, D = { env = "D" } }

    # url: `key` held a secret, now in secrets/b-key: before Weir starts, export B_KEY="$(cat secrets/b-key)"
    [upstreams.b]
    url = "https://b.example/?key=${B_KEY}"
    headers = { Authorization = { file = "secrets/b-authorization" } }
    --- secrets/.gitignore 644
    *

    --- secrets/a-argument 600
    sk-fixture6-fixture6
    --- secrets/a-authorization 600
    Bearer fixture0
    --- secrets/a-b-key 600
    fixture3
    --- secrets/a-password 600
    fixture4
    --- secrets/a-token 600
    fixture5
    --- secrets/a-x-key 600
    fixture2
    --- secrets/a-x-key_2 600
    fixture11
    --- secrets/b-authorization 600
    Basic bWU6Zml4dHVyZTk=
    --- secrets/b-key 600
    fixture10
    "#);
    let seen = done.err + &desk.read("project/weir.toml");
    assert!(!seen.contains("fixture"), "{seen}");
}

#[test]
fn a_file_is_recognized_by_what_is_in_it() {
    for client in &CLIENTS {
        let desk = Desk::with(client);
        desk.weir(&["init", "--from", client.name]);
        let extension = client.fixture.rsplit_once('.').expect("it has one").1;
        for file in [format!("project/any.{extension}"), "project/any".to_owned()] {
            desk.write(&file, &client.text());
            let file = file.trim_start_matches("project/");
            let done = desk.weir(&["init", "--from", file, "--output", "other/weir.toml"]);
            assert_eq!(done.code, 0, "{}", done.err);
            let (by_name, by_content) =
                (desk.read("project/weir.toml"), desk.read("project/other/weir.toml"));
            assert_eq!(upstreams(&by_name), upstreams(&by_content), "{}", client.name);
            std::fs::remove_dir_all(desk.path("project/other")).expect("removed");
        }
    }
}

#[test]
fn servers_under_a_second_key_of_a_file_are_told() {
    let desk = Desk::new();
    let file =
        r#"{ "mcpServers": { "a": { "command": "a" } }, "mcp": { "servers": { "b": {} } } }"#;
    desk.write("project/any.json", file);
    let done = desk.weir(&["init", "--from", "any.json", "--print"]);
    assert_snapshot!(done.err, @r"
    read any.json: 1 server
      `mcp.servers` of this file is left out: servers are taken from one key of a file
    nothing was written; secrets have become variables to set
    ");
}

#[test]
fn a_projects_servers_come_before_the_users() {
    let desk = Desk::new();
    let user =
        r#"{ "mcpServers": { "both": { "command": "users" }, "mine": { "command": "m" } } }"#;
    let project = r#"{ "mcpServers": {
        "both": { "command": "./run", "env": { "ROOT": "${workspaceFolder}" } },
    } }"#;
    desk.write(".cursor/mcp.json", user);
    desk.write("project/.cursor/mcp.json", project);
    let done = desk.weir(&["init", "--from", "cursor"]);
    assert_snapshot!(done.err, @r"
    read ~/project/.cursor/mcp.json (project): 1 server
    read ~/.cursor/mcp.json (user): 2 servers
      both: the project's is taken, not the user's
    wrote weir.toml: 2 upstreams
    next: `weir check` tries it
          `weir connect cursor --write` puts Weir into the client's file; then take the servers that Weir has now out of it
    ");
    assert_snapshot!(desk.plain(&desk.read("project/weir.toml")), @r#"
    # Weir's configuration, taken over from Cursor by `weir init`.
    # Secrets are not in here: { file = "…" } and { env = "…" } say where they are.
    # `weir check` tries it.

    [upstreams.both]
    command = "./run"
    cwd = "~/project"
    env = { ROOT = "~/project" }

    [upstreams.mine]
    command = "m"
    "#);
}

#[test]
fn claude_codes_servers_of_this_project_are_taken_and_those_of_others_are_not() {
    let desk = Desk::new();
    let here = desk.path("project").display().to_string();
    desk.write(
        ".claude.json",
        &format!(
            r#"{{ "projects": {{ "{here}": {{ "mcpServers": {{ "local": {{ "command": "l" }} }} }},
                "/other": {{ "mcpServers": {{ "foreign": {{ "command": "f" }} }} }} }},
                "mcpServers": {{ "user": {{ "command": "u" }} }} }}"#
        ),
    );
    desk.write("project/.mcp.json", r#"{ "mcpServers": { "team": { "command": "t" } } }"#);
    desk.weir(&["init", "--from", "claude-code"]);
    assert_eq!(upstreams(&desk.read("project/weir.toml")), ["team", "local", "user"]);
}

#[test]
fn printed_it_writes_nothing_and_secrets_are_variables() {
    let desk = Desk::with(named("zed"));
    let done = desk.weir(&["init", "--from", "zed", "--print"]);
    assert_eq!(done.code, 0);
    assert_snapshot!(done.err, @r"
    read ~/.config/zed/settings.json (user): 4 servers
      mcp-server-context7: left out: an extension of the client starts it, and knows how
      local-mcp: env.GIT_TOKEN held a secret: set the variable GIT_TOKEN
      remote: headers.Authorization held a secret: set the variable REMOTE_AUTHORIZATION
    nothing was written; secrets have become variables to set
    ");
    assert_snapshot!(done.out, @r#"
    # Weir's configuration, taken over from Zed by `weir init`.
    # Secrets are not in here: { file = "…" } and { env = "…" } say where they are.
    # `weir check` tries it.

    # env.GIT_TOKEN held a secret: set the variable GIT_TOKEN
    [upstreams.local-mcp]
    command = "uvx"
    args = ["mcp-server-git", "--repository", "/home/ada/src"]
    env = { GIT_TOKEN = { env = "GIT_TOKEN" } }
    timeouts = { call = "120s" }

    [upstreams.old-form]
    command = "node"
    args = ["/opt/mcp/server.js"]
    env = { PRICE = "$$5" }

    # headers.Authorization held a secret: set the variable REMOTE_AUTHORIZATION
    [upstreams.remote]
    url = "https://mcp.example.com/mcp"
    headers = { Authorization = { env = "REMOTE_AUTHORIZATION" } }
    enabled = false
    "#);
    assert_eq!(desk.files("project"), [""; 0]);
}

#[test]
fn nothing_is_overwritten_unasked_and_a_copy_is_kept() {
    let desk = Desk::with(named("zed"));
    desk.write("project/weir.toml", "# mine\n");
    let done = desk.weir(&["init", "--from", "zed"]);
    assert_snapshot!(format!("{}: {}", done.code, done.err), @"2: weir: weir.toml is there already: remove it, write elsewhere, or say --force to replace it and keep a copy");
    assert_eq!(desk.read("project/weir.toml"), "# mine\n");
    assert_eq!(desk.files("project"), ["weir.toml"]);
    let done = desk.weir(&["init"]);
    assert_eq!(done.code, 2);
    assert_eq!(desk.files("project"), ["weir.toml"], "not even the other file was written");

    let done = desk.weir(&["init", "--from", "zed", "--force"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let files = desk.files("project");
    let backup = files.iter().find(|file| file.contains("weir-backup-")).expect("a copy");
    assert_eq!(desk.read(&format!("project/{backup}")), "# mine\n");

    // A secret that differs is as much in the way as a configuration.
    std::fs::remove_file(desk.path("project/weir.toml")).expect("removed");
    desk.write("project/secrets/local-mcp-git-token", "another");
    let done = desk.weir(&["init", "--from", "zed"]);
    assert_snapshot!(format!("{}: {}", done.code, done.err), @"2: weir: secrets/local-mcp-git-token is there already and holds something else: remove it, write elsewhere, or say --force to replace it and keep a copy");
    assert_eq!(desk.read("project/secrets/local-mcp-git-token"), "another");

    // One that is the same is not, but others may not read it any longer.
    let path = desk.path("project/secrets/local-mcp-git-token");
    let done = desk.weir(&["init", "--from", "zed", "--force"]);
    assert_eq!(done.code, 0, "{}", done.err);
    std::fs::remove_file(desk.path("project/weir.toml")).expect("removed");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&path, open).expect("ours");
    let done = desk.weir(&["init", "--from", "zed"]);
    assert_eq!((done.code, mode(&path)), (0, 0o600), "{}", done.err);
}

#[test]
fn weir_itself_is_left_out() {
    let desk = Desk::new();
    let text = r#"{ "mcpServers": {
        "gate": { "command": "/opt/weir", "args": ["stdio", "--config", "/x/weir.toml"] },
        "there": { "type": "http", "url": "http://localhost:8642/mcp/" },
        "bridge": { "command": "npx", "args": ["-y", "mcp-remote", "http://127.0.0.1:8642/mcp"] },
        "weir": { "url": "https://mcp.example.com/mcp" },
        "weirdo": { "command": "weirdo" }
    } }"#;
    desk.write("project/all.json", text);
    let done = desk.weir(&["init", "--from", "all.json"]);
    assert_snapshot!(done.err, @r"
    read all.json: 5 servers
      gate: left out: it is Weir itself
      there: left out: it is Weir itself
      bridge: left out: it is Weir itself
      weir: left out: it is Weir itself
    wrote weir.toml: 1 upstream
    next: `weir check` tries it
          `weir connect CLIENT --write` puts Weir into the client's file; then take the servers that Weir has now out of it
    ");
    assert_eq!(upstreams(&desk.read("project/weir.toml")), ["weirdo"]);
}

#[test]
fn what_cannot_be_read_is_told_in_one_line() {
    let desk = Desk::new();
    desk.write("project/broken.json", "{\n  \"mcpServers\": {\n    \"a\": { \"command\" \"x\" }\n");
    desk.write("project/broken.toml", "[mcp_servers.a]\ncommand = hunter2\n");
    desk.write("project/none.json", "{ \"theme\": \"dark\" }");
    desk.write("project/empty.json", "");
    desk.write("project/odd.json", r#"{ "mcpServers": { "a": {}, "b": 1 } }"#);
    desk.write("project/a-file", "x");
    std::fs::write(desk.path("project/latin.json"), b"{ \"a\": \"\xe9\" }").expect("written");
    let told = |arguments: &[&str]| {
        let done = desk.weir(&[&["init"], arguments].concat());
        assert_eq!(done.out, "");
        format!("{}: {}", done.code, done.err)
    };
    let all = [
        told(&["--from", "broken.json"]),
        told(&["--from", "broken.toml"]),
        told(&["--from", "none.json"]),
        told(&["--from", "empty.json"]),
        told(&["--from", "odd.json"]),
        told(&["--from", "latin.json"]),
        told(&["--from", "nowhere.json"]),
        told(&["--from", "curser"]),
        told(&["--from", "windsurf"]),
        told(&["--from", "gemini"]),
        told(&["--dir", "a-file"]),
    ];
    assert_snapshot!(all.concat(), @r"
    78: weir: broken.json:3:22: not JSON: expected colon after the string or word in object property; correct it there and run this again
    78: weir: broken.toml:2:11: not TOML: string values must be quoted, expected literal string; correct it there and run this again
    78: weir: none.json: no MCP server to take over; name another file with --from FILE, or begin with `weir init`
    78: weir: empty.json: no MCP server to take over; name another file with --from FILE, or begin with `weir init`
    78:   a: left out: nothing says where it is
      b: left out: it is not a table of keys
    weir: odd.json: no MCP server to take over; name another file with --from FILE, or begin with `weir init`
    78: weir: latin.json is not UTF-8 at byte 8: save it as UTF-8
    2: weir: no file nowhere.json, and no client of this name; the clients are claude-desktop, claude-code, vscode, cursor, codex, gemini, zed, windsurf
    2: weir: no file curser, and no client of this name; did you mean `cursor`?
    2: weir: Windsurf has no file here, no ~/.codeium/windsurf/mcp_config.json; name its file with --from FILE
    2: weir: Gemini CLI has no file here, no ~/project/.gemini/settings.json and no ~/.gemini/settings.json; name its file with --from FILE
    2: weir: a-file/weir.toml cannot be written: File exists (os error 17); check the path and the permissions of its folder
    ");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_text() {
    let desk = Desk::new();
    desk.write(
        "project/mark.json",
        "\u{feff}{ \"mcpServers\": { \"a\": { \"command\": \"x\" } } }",
    );
    assert_eq!(desk.weir(&["init", "--from", "mark.json"]).code, 0);
    assert_eq!(upstreams(&desk.read("project/weir.toml")), ["a"]);
}

#[test]
fn the_starter_passes_the_check_and_says_what_is_next() {
    let desk = Desk::new();
    let done = desk.weir(&["init"]);
    assert_snapshot!(done.err, @r"
    wrote weir.toml
    wrote prompts/explain-error.md
    next: `weir check` tries it, `weir list` shows what clients will see
          `weir connect CLIENT` prints the entry for a client, such as claude-code or cursor
          `weir init --from CLIENT` takes over the servers that a client has already
    ");
    assert_eq!(desk.files("project"), ["prompts", "weir.toml"]);
    let done = desk.weir(&["check"]);
    assert_snapshot!(done.out, @"ok    house  library  1 prompt, 0 tools, 0 resources, 0 resource templates");
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    let done = desk.weir(&["get", "house__explain-error", "error=boom"]);
    assert!(done.code == 0 && done.out.contains("boom"), "{}", done.out);
    let done = desk.weir(&["init", "--dir", "elsewhere"]);
    assert!(done.err.contains("weir check --config elsewhere/weir.toml"), "{}", done.err);
}

#[test]
fn a_secret_with_a_very_long_name_is_written_and_none_is_left_behind() {
    let desk = Desk::new();
    let long = "N".repeat(300);
    let env = format!(r#""{long}_KEY":"one","{long}_TOKEN":"two","../../up_TOKEN":"three""#);
    desk.write(
        "project/in.json",
        &format!(r#"{{"mcpServers":{{"a":{{"command":"x","env":{{{env}}}}}}}}}"#),
    );
    let done = desk.weir(&["init", "--from", "in.json"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let files = desk.files("project/secrets");
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.iter().all(|name| name.len() < 200), "{files:?}");
    let mut held: Vec<_> =
        files.iter().map(|name| desk.read(&format!("project/secrets/{name}"))).collect();
    held.sort();
    assert_eq!(held, ["*\n", "one", "three", "two"]);
}
