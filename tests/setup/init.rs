//! `weir init`, with and without a client to import from.

use insta::assert_snapshot;
use weir_config::{Config, Options};
use weir_upstream::UpstreamSource;
use weir_upstream::connect::ChildCommand;

use crate::user_home::{CLIENTS, Client, UserHome, mode};

fn named(name: &str) -> &'static Client {
    CLIENTS.iter().find(|client| client.name == name).expect("a client")
}

/// Names of a configuration's upstreams, in its order.
pub(crate) fn upstreams(text: &str) -> Vec<&str> {
    let heads = text.lines().filter_map(|line| line.strip_prefix("[upstreams.")?.strip_suffix(']'));
    heads.filter(|name| !name.contains('.')).collect()
}

/// All files and output of an import.
fn imported(user_home: &UserHome, err: &str) -> String {
    let mut text =
        format!("{err}\n--- weir.toml\n{}", user_home.plain(&user_home.read("project/weir.toml")));
    for name in user_home.files("project/secrets") {
        let path = user_home.path("project/secrets").join(&name);
        let content = user_home.read(&format!("project/secrets/{name}"));
        text.push_str(&format!("--- secrets/{name} {:o}\n{content}\n", mode(&path)));
    }
    text
}

#[test]
fn each_clients_servers_become_upstreams() {
    for client in &CLIENTS {
        let user_home = UserHome::with(client);
        let done = user_home.weir(&["init", "--from", client.name]);
        assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
        assert_snapshot!(client.name, imported(&user_home, &done.err));
        assert_eq!(user_home.read(client.user), client.text(), "the client's file is only read");
    }
}

#[test]
fn what_was_taken_over_is_a_good_configuration() {
    for client in &CLIENTS {
        let user_home = UserHome::with(client);
        // The file of the system that one client's configuration names is replaced by one in the
        // home folder.
        let certificate = user_home.path("client.txt").display().to_string();
        user_home.write("client.txt", "certificate");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(user_home.path("client.txt"), private).expect("ours");
        user_home.write(client.user, &client.text().replace("/etc/mcp/client.txt", &certificate));
        let done = user_home.weir(&["init", "--from", client.name]);
        assert_eq!(done.code, 0, "{}", done.err);
        let text = user_home.read("project/weir.toml");
        // With the variables that it names set, the configuration is complete.
        let names = text.split("${").skip(1).filter_map(|part| part.split('}').next());
        let names = names.filter(|name| !name.contains(':'));
        let elsewhere = text.split("env = \"").skip(1).filter_map(|part| part.split('"').next());
        let variables = names.chain(elsewhere).filter(|name| *name != "HOME");
        let environment = variables.map(|name| (name, "set"));
        let home = user_home.path("").display().to_string();
        let options = Options {
            environment: environment.chain([("HOME", home.as_str())]).collect(),
            ..Options::default()
        };
        let path = user_home.path("project/weir.toml");
        let config = Config::load(&path, &options)
            .unwrap_or_else(|report| panic!("{}:\n{report}\n{text}", client.name));
        let names: Vec<_> = config.upstreams.iter().map(|one| one.name()).collect();
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
            user_home.plain(&given.replace("), (", "),\n("))
        );
    }
}

/// Values that an upstream's server receives, secrets included.
fn secrets(upstream: &weir_config::UpstreamConfig) -> Vec<(String, String)> {
    match &upstream.settings.source {
        UpstreamSource::Process(ChildCommand { env, .. }) => {
            env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect()
        }
        UpstreamSource::Http { headers, .. } => {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect()
        }
        UpstreamSource::Library { .. }
        | UpstreamSource::Notice { .. }
        | UpstreamSource::Unresolved { .. }
        | UpstreamSource::OnOneReplica { .. } => Vec::new(),
    }
}

#[test]
fn a_file_of_a_project_chooses_no_file_of_the_user_for_a_server() {
    let user_home = UserHome::new();
    let server =
        r#""docs": { "url": "https://a.example", "headers": { "X-Id": "${file:/home/u/token}" } }"#;
    user_home.write("project/.vscode/mcp.json", &format!("{{ \"servers\": {{ {server} }} }}"));
    let done = user_home.weir(&["init", "--from", "vscode"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("refers to /home/u/token, which is not imported"), "{}", done.err);
    let text = user_home.read("project/weir.toml");
    assert!(!text.contains("file = \"/home"), "{text}");
}

#[test]
fn a_secret_is_in_a_file_of_its_own_and_nowhere_else() {
    for client in &CLIENTS {
        let user_home = UserHome::with(client);
        let done = user_home.weir(&["init", "--from", client.name]);
        let text = user_home.read("project/weir.toml");
        // Every secret of the fixtures contains a marker, except the one in the middle of an
        // address.
        for part in [&text, &done.err, &done.out] {
            let part = part.to_lowercase();
            assert!(
                !part.contains("fixture") && !part.contains("zmfrzs"),
                "{}: {part}",
                client.name
            );
        }
        let files = user_home.files("project/secrets");
        if files.is_empty() {
            continue;
        }
        assert_eq!(mode(&user_home.path("project/secrets")), 0o700);
        for file in files.iter().filter(|file| *file != ".gitignore") {
            assert_eq!(mode(&user_home.path("project/secrets").join(file)), 0o600, "{file}");
            assert!(text.contains(&format!("secrets/{file}")), "{file}");
        }
    }
}

#[test]
fn a_secret_beside_a_variable_is_not_written_either() {
    let user_home = UserHome::new();
    let text = r#"{ "mcpServers": { "a": {
        "command": "a",
        "args": ["--token", "${A_TOKEN:-fixture1}", "--header", "X-Key: fixture2", "--header=Authorization: Bearer fixture0", "-e", "B_KEY=fixture3", "--x-key=fixture11",
            "https://me:fixture4@a.example/x?token=fixture5&z=1", "sk-fixture6-fixture6"],
        "env": { "C_TOKEN": "${C:-fixture7}", "D": "Basic ${U} ghp_fixture8fixture8" }
    }, "b": { "type": "http", "url": "https://me:fixture9@b.example/?key=fixture10#top" } } }"#;
    user_home.write("project/.mcp.json", text);
    let done = user_home.weir(&["init", "--from", ".mcp.json"]);
    assert_snapshot!(imported(&user_home, &done.err), @r#"
    read .mcp.json: 2 servers
      a: args: `X-Key` contained a secret, which is now in secrets/a-x-key
      a: args: `Authorization` contained a secret, which is now in secrets/a-authorization
      a: args: `B_KEY` contained a secret, which is now in secrets/a-b-key
      a: args: `--x-key` contained a secret, which is now in secrets/a-x-key_2
      a: args: the URL contained a secret, which is now in secrets/a-password
      a: args: `token` contained a secret, which is now in secrets/a-token
      a: args: an argument contained a secret, which is now in secrets/a-argument
      a: args: a secret was the default of A_TOKEN: set that variable
      a: env.C_TOKEN: a secret was the default of C: set that variable
      a: env.D: it contained a secret beside a variable: set D to the whole value
      b: url: `key` contained a secret, which is now in secrets/b-key
      b: headers.Authorization is now in secrets/b-authorization
    wrote weir.toml: 2 upstreams
      still to do: upstreams.a.args: the variable A_TOKEN is not set
      still to do: upstreams.a.env.C_TOKEN.env: the variable C is not set
      still to do: upstreams.a.env.D.env: the variable D is not set
    next: `weir check` tries it
          `weir connect CLIENT --take-over` adds Weir to the client's file, and moves the servers that come up out of it

    --- weir.toml
    # Weir's configuration, imported from Claude Code by `weir init`.
    # It contains no secrets: { file = "…" } and { env = "…" } refer to them.
    # `weir check` tries it.

    # args: a secret was the default of A_TOKEN: set that variable
    # env.C_TOKEN: a secret was the default of C: set that variable
    # env.D: it contained a secret beside a variable: set D to the whole value
    [upstreams.a]
    command = "a"
    args = [
        "--token",
        "${A_TOKEN}",
        "--header",
        "X-Key: ${file:secrets/a-x-key}",
        "--header=Authorization: ${file:secrets/a-authorization}",
        "-e",
        "B_KEY=${file:secrets/a-b-key}",
        "--x-key=${file:secrets/a-x-key_2}",
        "https://me:${file:secrets/a-password}@a.example/x?token=${file:secrets/a-token}&z=1",
        "${file:secrets/a-argument}",
    ]
    env = { C_TOKEN = { env = "C" }, D = { env = "D" } }

    [upstreams.b]
    url = "https://b.example/?key=${file:secrets/b-key}"
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
    let seen = done.err + &user_home.read("project/weir.toml");
    assert!(!seen.contains("fixture"), "{seen}");
}

#[test]
fn after_an_import_of_secrets_in_arguments_and_urls_nothing_is_to_be_exported() {
    let user_home = UserHome::new();
    let text = r#"{ "mcpServers": {
        "a": { "command": "a", "args": ["--api-key", "a$b 1", "X_TOKEN=fixture2"] },
        "b": { "type": "http", "url": "https://b.example/fixture3fixture3fixture3fixture3fix/?key=fixture4" }
    } }"#;
    user_home.write("project/.mcp.json", text);
    let done = user_home.weir(&["init", "--from", ".mcp.json"]);
    assert!(!done.err.contains("still to do") && !done.err.contains("export"), "{}", done.err);
    let path = user_home.path("project/weir.toml");
    let config = Config::load(&path, &Options::default()).unwrap_or_else(|err| panic!("{err}"));
    assert_eq!(config.warnings, []);
    let [a, b] = &config.upstreams[..] else { panic!("two upstreams") };
    let UpstreamSource::Process(ChildCommand { args, .. }) = &a.settings.source else {
        panic!("a process")
    };
    let args: Vec<_> = args.iter().map(|arg| arg.expose()).collect();
    assert_eq!(args, ["--api-key", "a$b 1", "X_TOKEN=fixture2"]);
    let UpstreamSource::Http { url, .. } = &b.settings.source else { panic!("a url") };
    assert_eq!(url, "https://b.example/fixture3fixture3fixture3fixture3fix/?key=fixture4");
    for file in ["a-api-key", "a-x-token", "b-path", "b-key"] {
        assert_eq!(mode(&user_home.path("project/secrets").join(file)), 0o600, "{file}");
    }
}

#[test]
fn a_file_is_recognized_by_what_is_in_it() {
    for client in &CLIENTS {
        let user_home = UserHome::with(client);
        user_home.weir(&["init", "--from", client.name]);
        let extension = client.fixture.rsplit_once('.').expect("it has one").1;
        for file in [format!("project/any.{extension}"), "project/any".to_owned()] {
            user_home.write(&file, &client.text());
            let file = file.trim_start_matches("project/");
            let done = user_home.weir(&["init", "--from", file, "--output", "other/weir.toml"]);
            assert_eq!(done.code, 0, "{}", done.err);
            let (by_name, by_content) =
                (user_home.read("project/weir.toml"), user_home.read("project/other/weir.toml"));
            assert_eq!(upstreams(&by_name), upstreams(&by_content), "{}", client.name);
            std::fs::remove_dir_all(user_home.path("project/other")).expect("removed");
        }
    }
}

#[test]
fn a_sign_in_is_imported_only_for_a_server_that_is_reached_with_tls_or_on_this_machine() {
    let user_home = UserHome::new();
    let server = |url: &str| format!(r#"{{ "url": "{url}", "auth": {{ "CLIENT_ID": "weir" }} }}"#);
    let [plain, local, safe] =
        ["HTTP://notes.svc/mcp", "http://127.1:80/mcp", "https://a.example.com/mcp"].map(server);
    let file = format!(r#"{{ "mcpServers": {{ "a": {plain}, "b": {local}, "c": {safe} }} }}"#);
    user_home.write("project/any.json", &file);
    let done = user_home.weir(&["init", "--from", "any.json"]);
    let note = "a: its sign-in is not imported, because others could read the access tokens";
    assert!(done.err.contains(note), "{}", done.err);
    let text = user_home.read("project/weir.toml");
    assert_eq!(text.matches("auth = ").count(), 2, "{text}");
    let path = user_home.path("project/weir.toml");
    Config::load(&path, &Options::default()).unwrap_or_else(|report| panic!("{report}"));
}

#[test]
fn servers_under_a_second_key_of_a_file_are_told() {
    let user_home = UserHome::new();
    let file =
        r#"{ "mcpServers": { "a": { "command": "a" } }, "mcp": { "servers": { "b": {} } } }"#;
    user_home.write("project/any.json", file);
    let done = user_home.weir(&["init", "--from", "any.json", "--print"]);
    assert_snapshot!(done.err, @r"
    read any.json: 1 server
      `mcp.servers` of this file is left out: servers are read from one key of a file
    nothing was written; secrets are variables to set
    ");
}

#[test]
fn a_projects_servers_come_before_the_users() {
    let user_home = UserHome::new();
    let user =
        r#"{ "mcpServers": { "both": { "command": "users" }, "mine": { "command": "m" } } }"#;
    let project = r#"{ "mcpServers": {
        "both": { "command": "./run", "env": { "ROOT": "${workspaceFolder}" } },
    } }"#;
    user_home.write(".cursor/mcp.json", user);
    user_home.write("project/.cursor/mcp.json", project);
    let done = user_home.weir(&["init", "--from", "cursor"]);
    assert_snapshot!(done.err, @r"
    read ~/project/.cursor/mcp.json (project): 1 server
    read ~/.cursor/mcp.json (user): 2 servers
      both: the project's server is used, not the user's
    wrote weir.toml: 2 upstreams
    next: `weir check` tries it
          `weir connect cursor --take-over` adds Weir to the client's file, and moves the servers that come up out of it
    ");
    assert_snapshot!(user_home.plain(&user_home.read("project/weir.toml")), @r#"
    # Weir's configuration, imported from Cursor by `weir init`.
    # It contains no secrets: { file = "…" } and { env = "…" } refer to them.
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
    let user_home = UserHome::new();
    let here = user_home.path("project").display().to_string();
    user_home.write(
        ".claude.json",
        &format!(
            r#"{{ "projects": {{ "{here}": {{ "mcpServers": {{ "local": {{ "command": "l" }} }} }},
                "/other": {{ "mcpServers": {{ "foreign": {{ "command": "f" }} }} }} }},
                "mcpServers": {{ "user": {{ "command": "u" }} }} }}"#
        ),
    );
    user_home.write("project/.mcp.json", r#"{ "mcpServers": { "team": { "command": "t" } } }"#);
    user_home.weir(&["init", "--from", "claude-code"]);
    assert_eq!(upstreams(&user_home.read("project/weir.toml")), ["team", "local", "user"]);
}

/// Upstreams of the configuration that were imported and that are enabled.
fn enabled(user_home: &UserHome) -> Vec<String> {
    let text = user_home.read("project/weir.toml");
    let tables = text.split("\n[upstreams.").skip(1);
    let on = tables.filter(|table| !table.contains("enabled = false"));
    on.map(|table| table.split(']').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn gemini_lists_of_servers_count_for_all_its_files() {
    let servers = |names: &[&str]| {
        let one = |name: &&str| format!(r#""{name}": {{ "command": "c" }}"#);
        format!(r#""mcpServers": {{ {} }}"#, names.iter().map(one).collect::<Vec<_>>().join(", "))
    };
    for (user, project, expected) in [
        (r#""mcp": { "allowed": ["a", "c"] }"#, "", &["a", "c"][..]),
        (r#""mcp": { "allowed": ["a"] }"#, r#""mcp": { "allowed": ["b", "d"] }"#, &["b", "d"]),
        (r#""mcp": { "excluded": ["a", "d"] }"#, "", &["b", "c"]),
        (r#""allowMCPServers": ["d"], "mcp": {}"#, "", &["d"]),
        (r#""excludeMCPServers": ["a"]"#, r#""mcp": { "allowed": ["a", "b"] }"#, &["b"]),
        (r#""mcp": { "allowed": [] }"#, "", &[]),
    ] {
        let user_home = UserHome::new();
        let with = |lists: &str, servers: String| match lists {
            "" => format!("{{ {servers} }}"),
            lists => format!("// Settings\n{{ {lists}, {servers} }}"),
        };
        user_home.write(".gemini/settings.json", &with(user, servers(&["c", "d"])));
        user_home.write("project/.gemini/settings.json", &with(project, servers(&["a", "b"])));
        let done = user_home.weir(&["init", "--from", "gemini"]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert_eq!(enabled(&user_home), expected, "{user} {project}");
    }
}

#[test]
fn servers_that_claude_code_disables_in_its_settings_are_imported_as_disabled() {
    let user_home = UserHome::new();
    let here = user_home.path("project").display().to_string();
    user_home.write(
        ".claude.json",
        &format!(
            r#"{{ "projects": {{ "{here}": {{ "disabledMcpServers": ["user-off"],
                "mcpServers": {{ "both": {{ "command": "of-user" }} }} }} }},
                "mcpServers": {{ "user": {{ "command": "u" }}, "user-off": {{ "command": "u" }},
                    "shared-off": {{ "command": "u" }} }} }}"#
        ),
    );
    user_home.write(
        "project/.mcp.json",
        r#"{ "mcpServers": { "team": { "command": "t" }, "team-off": { "command": "t" },
            "local-off": { "command": "t" }, "both": { "command": "of-project" } } }"#,
    );
    user_home
        .write("project/.claude/settings.json", r#"{ "disabledMcpjsonServers": ["team-off"] }"#);
    let local = r#"{ "disabledMcpjsonServers": ["local-off", "shared-off"] }"#;
    user_home.write("project/.claude/settings.local.json", local);
    let done = user_home.weir(&["init", "--from", "claude-code"]);
    assert_eq!(done.code, 0, "{}", done.err);
    // The list for the project's file is not about the user's servers.
    assert_eq!(enabled(&user_home), ["team", "both", "user", "shared-off"]);
    let text = user_home.read("project/weir.toml");
    assert!(text.contains("of-user") && !text.contains("of-project"), "{text}");
    assert!(done.err.contains("both: the user's server for this project is used"), "{}", done.err);
}

#[test]
fn file_that_the_clients_own_parser_refuses_is_not_imported() {
    let commented = "{ // mine\n\"mcpServers\": { \"a\": { \"command\": \"a\" } } }";
    let trailing = r#"{ "mcpServers": { "a": { "command": "a" }, } }"#;
    for (client, text, code) in [
        ("claude-code", commented, 78),
        ("claude-code", trailing, 78),
        ("gemini", commented, 0),
        ("gemini", trailing, 78),
        ("cursor", commented, 0),
        ("cursor", trailing, 0),
    ] {
        let user_home = UserHome::new();
        user_home.write(named(client).user, text);
        let done = user_home.weir(&["init", "--from", client]);
        assert_eq!(done.code, code, "{client}: {text}: {}", done.err);
        assert!(code == 0 || done.err.contains("not JSON"), "{client}: {}", done.err);
    }
}

#[test]
fn last_of_two_entries_of_one_name_is_imported_and_what_is_dropped_is_said() {
    let user_home = UserHome::new();
    let text = r#"{ "mcpServers": {
        "a": { "command": "first" },
        "a": { "command": "second", "args": ["-y", null, ["x"]], "env": ["X=1"] },
        "b": { "command": "b", "args": "-y x" } } }"#;
    user_home.write(".cursor/mcp.json", text);
    let done = user_home.weir(&["init", "--from", "cursor"]);
    let text = user_home.read("project/weir.toml");
    assert!(text.contains("second") && !text.contains("first"), "{text}");
    for said in [
        "a: an element of `args` is not imported: it is not a string",
        "a: `env` is not imported: it is not a table",
        "b: `args` is not imported: it is not a list",
    ] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
}

#[test]
fn printed_it_writes_nothing_and_secrets_are_variables() {
    let user_home = UserHome::with(named("zed"));
    let done = user_home.weir(&["init", "--from", "zed", "--print"]);
    assert_eq!(done.code, 0);
    assert_snapshot!(done.err, @r"
    read ~/.config/zed/settings.json (user): 4 servers
      mcp-server-context7: left out: it is started by an extension of the client
      local-mcp: env.GIT_TOKEN contained a secret: set the variable GIT_TOKEN
      remote: headers.Authorization contained a secret: set the variable REMOTE_AUTHORIZATION
      remote: the client has switched it off, so it is disabled
    nothing was written; secrets are variables to set
    ");
    assert_snapshot!(done.out, @r#"
    # Weir's configuration, imported from Zed by `weir init`.
    # It contains no secrets: { file = "…" } and { env = "…" } refer to them.
    # `weir check` tries it.

    # env.GIT_TOKEN contained a secret: set the variable GIT_TOKEN
    [upstreams.local-mcp]
    command = "uvx"
    args = ["mcp-server-git", "--repository", "/home/ada/src"]
    env = { GIT_TOKEN = { env = "GIT_TOKEN" } }
    timeouts = { call = "120s" }

    [upstreams.old-form]
    command = "node"
    args = ["/opt/mcp/server.js"]
    env = { PRICE = "$$5" }

    # headers.Authorization contained a secret: set the variable REMOTE_AUTHORIZATION
    [upstreams.remote]
    url = "https://mcp.example.com/mcp"
    headers = { Authorization = { env = "REMOTE_AUTHORIZATION" } }
    enabled = false
    "#);
    assert_eq!(user_home.files("project"), [""; 0]);
}

#[test]
fn nothing_is_overwritten_unasked_and_a_copy_is_kept() {
    let user_home = UserHome::with(named("zed"));
    user_home.write("project/weir.toml", "# mine\n");
    let done = user_home.weir(&["init"]);
    assert_eq!(done.code, 2);
    assert_eq!(user_home.files("project"), ["weir.toml"], "not even the other file was written");

    let done = user_home.weir(&["init", "--from", "zed", "--force"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let files = user_home.files("project");
    let backup = files.iter().find(|file| file.contains("weir-backup-")).expect("a copy");
    assert_eq!(user_home.read(&format!("project/{backup}")), "# mine\n");

    // A different secret blocks the import just as a configuration does.
    std::fs::remove_file(user_home.path("project/weir.toml")).expect("removed");
    user_home.write("project/secrets/local-mcp-git-token", "another");
    let done = user_home.weir(&["init", "--from", "zed"]);
    assert_snapshot!(format!("{}: {}", done.code, done.err), @"2: weir: secrets/local-mcp-git-token exists already with other content: remove it, write elsewhere, or use --force to replace it and keep a copy");
    assert_eq!(user_home.read("project/secrets/local-mcp-git-token"), "another");

    // An equal secret does not, but its permissions are restricted.
    let path = user_home.path("project/secrets/local-mcp-git-token");
    let done = user_home.weir(&["init", "--from", "zed", "--force"]);
    assert_eq!(done.code, 0, "{}", done.err);
    std::fs::remove_file(user_home.path("project/weir.toml")).expect("removed");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&path, open).expect("ours");
    let done = user_home.weir(&["init", "--from", "zed"]);
    assert_eq!((done.code, mode(&path)), (0, 0o600), "{}", done.err);
}

#[test]
fn weir_itself_is_left_out() {
    let user_home = UserHome::new();
    let text = r#"{ "mcpServers": {
        "gate": { "command": "/opt/weir", "args": ["stdio", "--config", "/x/weir.toml"] },
        "there": { "type": "http", "url": "http://localhost:8642/mcp/" },
        "bridge": { "command": "npx", "args": ["-y", "mcp-remote", "http://127.0.0.1:8642/mcp"] },
        "weir": { "url": "https://mcp.example.com/mcp" },
        "weirdo": { "command": "weirdo" }
    } }"#;
    user_home.write("project/all.json", text);
    let done = user_home.weir(&["init", "--from", "all.json"]);
    assert_snapshot!(done.err, @r"
    read all.json: 5 servers
      gate: left out: it is Weir itself
      there: left out: it is Weir itself
      bridge: left out: it is Weir itself
      weir: left out: it is Weir itself
    wrote weir.toml: 1 upstream
    next: `weir check` tries it
          `weir connect CLIENT --take-over` adds Weir to the client's file, and moves the servers that come up out of it
    ");
    assert_eq!(upstreams(&user_home.read("project/weir.toml")), ["weirdo"]);
}

#[test]
fn what_cannot_be_read_is_told_in_one_line() {
    let user_home = UserHome::new();
    user_home
        .write("project/broken.json", "{\n  \"mcpServers\": {\n    \"a\": { \"command\" \"x\" }\n");
    user_home.write("project/broken.toml", "[mcp_servers.a]\ncommand = hunter2\n");
    user_home.write("project/none.json", "{ \"theme\": \"dark\" }");
    user_home.write("project/empty.json", "");
    user_home.write("project/odd.json", r#"{ "mcpServers": { "a": {}, "b": 1 } }"#);
    user_home.write("project/a-file", "x");
    std::fs::write(user_home.path("project/latin.json"), b"{ \"a\": \"\xe9\" }").expect("written");
    let output = |arguments: &[&str]| {
        let done = user_home.weir(&[&["init"], arguments].concat());
        assert_eq!(done.out, "");
        format!("{}: {}", done.code, done.err)
    };
    let all = [
        output(&["--from", "broken.json"]),
        output(&["--from", "broken.toml"]),
        output(&["--from", "none.json"]),
        output(&["--from", "empty.json"]),
        output(&["--from", "odd.json"]),
        output(&["--from", "latin.json"]),
        output(&["--from", "nowhere.json"]),
        output(&["--from", "curser"]),
        output(&["--from", "windsurf"]),
        output(&["--from", "gemini"]),
        output(&["--dir", "a-file"]),
    ];
    assert_snapshot!(all.concat(), @r"
    78: weir: broken.json:3:22: not JSON: expected colon after the string or word in object property; correct it there and run this again
    78: weir: broken.toml:2:11: not TOML: string values must be quoted, expected literal string; correct it there and run this again
    78: weir: none.json: no MCP server to import; name another file with --from FILE, or start with `weir init`
    78: weir: empty.json: no MCP server to import; name another file with --from FILE, or start with `weir init`
    78:   a: left out: it has neither a command nor a URL
      b: left out: it is not a table of keys
    weir: odd.json: no MCP server to import; name another file with --from FILE, or start with `weir init`
    78: weir: latin.json is not UTF-8 at byte 8: save it as UTF-8
    2: weir: no file nowhere.json, and no client of this name; the clients are claude-desktop, claude-code, vscode, cursor, codex, gemini, zed, windsurf, copilot, kiro, junie, cline, lm-studio, opencode, goose, qwen, jetbrains
    2: weir: no file curser, and no client of this name; did you mean `cursor`?
    2: weir: Windsurf has no file here, no ~/.codeium/windsurf/mcp_config.json; name its file with --from FILE
    2: weir: Gemini CLI has no file here, no ~/project/.gemini/settings.json and no ~/.gemini/settings.json; name its file with --from FILE
    2: weir: a-file/weir.toml cannot be written: File exists (os error 17); check the path and the permissions of its folder
    ");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_text() {
    let user_home = UserHome::new();
    user_home.write(
        "project/mark.json",
        "\u{feff}{ \"mcpServers\": { \"a\": { \"command\": \"x\" } } }",
    );
    assert_eq!(user_home.weir(&["init", "--from", "mark.json"]).code, 0);
    assert_eq!(upstreams(&user_home.read("project/weir.toml")), ["a"]);
}

#[test]
fn the_starter_passes_the_check_and_says_what_is_next() {
    let user_home = UserHome::new();
    let done = user_home.weir(&["init"]);
    assert_snapshot!(done.err, @r"
    wrote weir.toml
    wrote prompts/explain-error.md
    next: `weir check` tries it, `weir list` shows what clients will see
          `weir connect CLIENT` prints the entry for a client, such as claude-code or cursor
          `weir init --from CLIENT` imports the servers that a client has already
    ");
    assert_eq!(user_home.files("project"), ["prompts", "weir.toml"]);
    let done = user_home.weir(&["check"]);
    assert_snapshot!(done.out, @"ok    prompts  library  1 prompt");
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    let done = user_home.weir(&["get", "prompts__explain-error", "error=boom"]);
    assert!(done.code == 0 && done.out.contains("boom"), "{}", done.out);
    let done = user_home.weir(&["init", "--dir", "elsewhere"]);
    assert!(done.err.contains("weir check --config elsewhere/weir.toml"), "{}", done.err);
}

#[test]
fn a_secret_with_a_very_long_name_is_written_and_none_is_left_behind() {
    let user_home = UserHome::new();
    let long = "N".repeat(300);
    let env = format!(r#""{long}_KEY":"one","{long}_TOKEN":"two","../../up_TOKEN":"three""#);
    user_home.write(
        "project/in.json",
        &format!(r#"{{"mcpServers":{{"a":{{"command":"x","env":{{{env}}}}}}}}}"#),
    );
    let done = user_home.weir(&["init", "--from", "in.json"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let files = user_home.files("project/secrets");
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.iter().all(|name| name.len() < 200), "{files:?}");
    let mut held: Vec<_> =
        files.iter().map(|name| user_home.read(&format!("project/secrets/{name}"))).collect();
    held.sort();
    assert_eq!(held, ["*\n", "one", "three", "two"]);
}
