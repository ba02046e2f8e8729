//! `weir init --from` with a configuration that exists: servers are added to it.

use insta::assert_snapshot;

use crate::user_home::{CLIENTS, UserHome, mode};

/// Configuration that was imported and edited before.
const CONFIG: &str = "\
# Mine.
[upstreams.github]   # with a token
command = \"npx\"
args = [\"-y\", \"server-github\"]
env = { GITHUB_TOKEN = { file = \"secrets/github-token\" } }
timeouts = { call = \"30s\" }   # slower

[upstreams.wiki]
url = \"https://old.example.com/mcp\"

# The end.
[log]
level = \"info\"
";

const CLIENT: &str = r#"{ "mcpServers": {
    "GitHub": { "command": "npx", "args": ["-y", "server-github"], "env": { "GITHUB_TOKEN": "canary1" } },
    "wiki": { "url": "https://new.example.com/mcp" },
    "wiki-2": { "command": "third" },
    "fetch": { "command": "uvx", "args": ["mcp-server-fetch"], "env": { "A_KEY": "canary2" } },
    "broken": {}
} }"#;

fn home() -> UserHome {
    let user_home = UserHome::new();
    user_home.write("project/weir.toml", CONFIG);
    user_home.write("project/secrets/github-token", "canary1");
    user_home.write(".cursor/mcp.json", CLIENT);
    user_home
}

#[test]
fn servers_are_added_to_a_configuration_and_what_it_has_is_skipped() {
    let user_home = home();
    let done = user_home.weir(&["init", "--from", "cursor"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_snapshot!(done.err, @r"
    read ~/.cursor/mcp.json (user): 5 servers
      broken: left out: it has neither a command nor a URL
      wiki: is [upstreams.wiki-3] now: [upstreams.wiki] is another server
      wiki-2: is [upstreams.wiki-2] now
      fetch: is [upstreams.fetch] now
      fetch: env.A_KEY is now in secrets/fetch-a-key
      GitHub: skipped: it is [upstreams.github] already
    copied weir.toml to ~/project/weir.toml.weir-backup-TIME
    wrote weir.toml: added 3 upstreams to the 2 that the configuration had
    next: `weir check` tries it
          `weir connect cursor --take-over` adds Weir to the client's file, and moves the servers that come up out of it
    ");
    let text = user_home.read("project/weir.toml");
    assert_snapshot!(text, @r#"
    # Mine.
    [upstreams.github]   # with a token
    command = "npx"
    args = ["-y", "server-github"]
    env = { GITHUB_TOKEN = { file = "secrets/github-token" } }
    timeouts = { call = "30s" }   # slower

    [upstreams.wiki]
    url = "https://old.example.com/mcp"

    [upstreams.wiki-3]
    url = "https://new.example.com/mcp"

    [upstreams.wiki-2]
    command = "third"

    [upstreams.fetch]
    command = "uvx"
    args = ["mcp-server-fetch"]
    env = { A_KEY = { file = "secrets/fetch-a-key" } }

    # The end.
    [log]
    level = "info"
    "#);
    assert_eq!(user_home.read("project/secrets/fetch-a-key"), "canary2");
    assert_eq!(mode(&user_home.path("project/secrets/fetch-a-key")), 0o600);
    assert!(!text.contains("canary") && !done.err.contains("canary"));
    let files = user_home.files("project");
    let backup = files.iter().find(|file| file.contains("weir-backup-")).expect("a copy");
    assert_eq!(user_home.read(&format!("project/{backup}")), CONFIG);
    assert_eq!(user_home.read(".cursor/mcp.json"), CLIENT, "the client's file is only read");

    // A second run finds all of them.
    let done = user_home.weir(&["init", "--from", "cursor"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_snapshot!(done.err, @r"
    read ~/.cursor/mcp.json (user): 5 servers
      broken: left out: it has neither a command nor a URL
      GitHub (as github), wiki (as wiki-3), wiki-2, fetch: skipped: the configuration has them already
    weir.toml has all of them, and was not changed
    next: `weir check` tries it
          `weir connect cursor --take-over` adds Weir to the client's file, and moves the servers that come up out of it
    ");
    assert_eq!(user_home.read("project/weir.toml"), text);
    assert_eq!(user_home.files("project"), files, "nothing to copy");
}

#[test]
fn a_server_with_another_secret_is_another_server() {
    let user_home = home();
    user_home.write(".cursor/mcp.json", &CLIENT.replace("canary1", "canary3"));
    let done = user_home.weir(&["init", "--from", "cursor"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(user_home.read("project/secrets/github-token"), "canary1");
    assert_eq!(user_home.read("project/secrets/github-2-github-token"), "canary3");
    let text = user_home.read("project/weir.toml");
    assert!(text.contains("[upstreams.github-2]") && !text.contains("canary"), "{text}");
}

#[test]
fn an_import_into_a_configuration_twice_adds_nothing_the_second_time() {
    for client in &CLIENTS {
        let user_home = UserHome::with(client);
        user_home.write("project/weir.toml", "# Mine.\n\n[log]\nlevel = \"info\" # loud\n");
        let import = || user_home.weir(&["init", "--from", client.name]);
        let done = import();
        assert_eq!(done.code, 0, "{}: {}", client.name, done.err);
        let text = user_home.read("project/weir.toml");
        assert!(text.starts_with("# Mine.\n\n[log]\nlevel = \"info\" # loud\n"), "{text}");
        assert!(text.contains("[upstreams."), "{text}");
        let done = import();
        assert_eq!(done.code, 0, "{}: {}", client.name, done.err);
        assert!(done.err.contains("weir.toml has all of them"), "{}", done.err);
        assert_eq!(user_home.read("project/weir.toml"), text);
    }
}

#[test]
fn what_a_clients_file_has_in_its_names_is_neither_executed_nor_written() {
    let user_home = home();
    let client = r#"{ "mcpServers": { "a\u001b[31m\nb\u202e": { "command": "x",
        "env": { "X_KEY\n[roles.x]": "canary" }, "od\u001b[0md\n[limits]": 1 } } }"#;
    user_home.write(".cursor/mcp.json", client);
    let done = user_home.weir(&["init", "--from", "cursor"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let text = user_home.read("project/weir.toml");
    for said in [&text, &done.err] {
        assert!(!said.contains(['\u{1b}', '\u{202e}']) && !said.contains("canary"), "{said}");
    }
    assert!(text.contains("[upstreams.a-31m-b]"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("[roles") || line == "[limits]"), "{text}");
    assert_eq!(user_home.weir(&["remove", "a-31m-b"]).code, 0);
}

#[test]
fn names_of_included_files_are_taken_and_a_file_that_cannot_be_extended_is_not_changed() {
    let user_home = home();
    user_home.write(".cursor/mcp.json", r#"{ "mcpServers": { "a": { "command": "new" } } }"#);
    user_home.write("project/weir.toml", "include = [\"a.toml\"]\n");
    user_home.write("project/a.toml", "[upstreams.a]\ncommand = \"old\"\n");
    let done = user_home.weir(&["init", "--from", "cursor"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(user_home.read("project/weir.toml").contains("[upstreams.a-2]"));
    for (text, code) in [("upstreams = {}\n", 78), ("[upstreams\n", 78)] {
        user_home.write("project/weir.toml", text);
        let done = user_home.weir(&["init", "--from", "cursor"]);
        assert_eq!(
            (done.code, &*user_home.read("project/weir.toml")),
            (code, text),
            "{}",
            done.err
        );
    }
}
