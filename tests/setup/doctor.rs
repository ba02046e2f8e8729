//! `weir doctor`: each of its findings, with the command or edit that mends it.

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use insta::assert_snapshot;

use crate::user_home::{CLIENTS, Client, Done, UserHome};

const LIBRARY: &str = "[upstreams.house]\nprompts_dir = \".\"\n";

fn named(name: &str) -> &'static Client {
    CLIENTS.iter().find(|client| client.name == name).expect("a client")
}

/// Home in which a client starts Weir with a configuration in the project.
fn connected(client: &Client, config: &str) -> UserHome {
    let user_home = UserHome::with(client);
    connect(&user_home, client.name, config);
    user_home
}

/// Home in which Cursor has no other server than Weir.
fn cursor(config: &str) -> UserHome {
    let user_home = UserHome::new();
    connect(&user_home, "cursor", config);
    user_home
}

fn connect(user_home: &UserHome, client: &str, config: &str) {
    user_home.write("project/weir.toml", LIBRARY);
    let done = user_home.weir(&["connect", client, "--stdio", "--write", "--no-check"]);
    assert_eq!(done.code, 0, "{}", done.err);
    user_home.write("project/weir.toml", config);
}

fn offline(user_home: &UserHome, client: &str) -> Done {
    user_home.weir(&["doctor", client, "--offline"])
}

/// Replaces a text in the file of Cursor.
fn edit(user_home: &UserHome, old: &str, new: &str) {
    let text = user_home.read(".cursor/mcp.json");
    assert!(text.contains(old), "{text}");
    user_home.write(".cursor/mcp.json", &text.replacen(old, new, 1));
}

fn own_program() -> &'static str {
    env!("CARGO_BIN_EXE_weir")
}

#[test]
fn a_client_without_faults_has_one_line() {
    for client in &CLIENTS {
        let user_home = connected(client, LIBRARY);
        let done = offline(&user_home, client.name);
        let expected = format!("ok       {}  starts Weir with ~/project/weir.toml\n", client.name);
        assert_eq!((done.code, &*done.out, &*done.err), (0, &*expected, ""));
    }
}

#[test]
fn all_clients_with_files_are_looked_at_and_lists_are_made() {
    let user_home = UserHome::with(named("cursor"));
    connect(&user_home, "zed", LIBRARY);
    let done = user_home.weir(&["doctor"]);
    assert_eq!(done.err, "listing all servers of ~/project/weir.toml, at most 60 s\n");
    assert_eq!(done.code, 0, "{}", done.out);
    assert_snapshot!(done.out, @r#"
    note     cursor  there is no entry for Weir in ~/.cursor/mcp.json: `weir connect cursor --write` adds one
    ok       zed     starts Weir with ~/project/weir.toml
    "#);
    // The client that is named should have an entry.
    let done = offline(&user_home, "cursor");
    assert_eq!((done.code, &*done.err), (1, "weir: 1 finding to mend\n"));
    assert_snapshot!(done.out, @r#"
    error    cursor  there is no entry for Weir in ~/.cursor/mcp.json
                     fix: weir connect cursor --write
    "#);
    let done = offline(&user_home, "codex");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    error    codex  it has no file with an entry for Weir
                    fix: weir connect codex --write
    "#);
}

#[test]
fn json_has_the_findings_and_the_clients_without_any() {
    let user_home = UserHome::with(named("cursor"));
    connect(&user_home, "zed", LIBRARY);
    let done = user_home.weir(&["doctor", "--json", "--offline"]);
    assert_eq!((done.code, &*done.err), (0, ""));
    assert_snapshot!(done.out, @r#"
    {"findings":[{"level":"note","clients":["cursor"],"what":"there is no entry for Weir in ~/.cursor/mcp.json: `weir connect cursor --write` adds one"}],"sound":[{"name":"zed","summary":"starts Weir with ~/project/weir.toml"}]}
    "#);
    let done = user_home.weir(&["doctor", "cursor", "--json", "--offline"]);
    assert!(done.err.contains(r#""exit_code":1"#), "{}", done.err);
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("it is JSON");
    assert_eq!(json["findings"][0]["level"], "error");
    assert_eq!(json["findings"][0]["clients"][0], "cursor");
    assert_eq!(json["findings"][0]["fix"], "weir connect cursor --write");
}

#[test]
fn a_client_without_a_file_of_its_own_is_refused() {
    let done = UserHome::new().weir(&["doctor", "jetbrains"]);
    assert!(done.code == 2 && done.err.contains("in its own settings"), "{}", done.err);
}

#[test]
fn a_home_without_clients_and_configuration_says_how_to_begin() {
    let done = UserHome::new().weir(&["doctor"]);
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    error    weir  no client has a file here
                   fix: weir init; weir connect CLIENT --write
    "#);
}

#[test]
fn a_file_is_parsed_by_the_rules_of_its_client() {
    let user_home = UserHome::new();
    connect(&user_home, "claude-desktop", LIBRARY);
    let place = named("claude-desktop").user;
    let text = user_home.read(place);
    user_home.write(place, &format!("// mine\n{text}"));
    let done = offline(&user_home, "claude-desktop");
    assert_eq!(done.code, 1);
    assert!(done.out.starts_with("error    claude-desktop  ~/"), "{}", done.out);
    assert!(done.out.contains("claude_desktop_config.json:1:1: not JSON"), "{}", done.out);
    assert!(done.out.contains("fix: correct it there"), "{}", done.out);
    // What its parser takes, and what no parser takes.
    let user_home = cursor(LIBRARY);
    let text = user_home.read(".cursor/mcp.json");
    user_home.write(".cursor/mcp.json", &format!("// mine\n{text}"));
    assert_eq!(offline(&user_home, "cursor").code, 0);
    user_home.write(".cursor/mcp.json", "{ \"mcpServers\": { \"a\": hunter2 } }");
    let done = offline(&user_home, "cursor");
    assert!(done.code == 1 && done.out.contains("mcp.json:1:"), "{}", done.out);
    assert!(!done.out.contains("hunter2"), "{}", done.out);
}

#[test]
fn a_file_that_is_no_file_or_that_others_can_change_is_reported() {
    let user_home = UserHome::new();
    user_home.write("project/weir.toml", LIBRARY);
    std::fs::create_dir_all(user_home.path(".cursor")).expect("made");
    let pipe = user_home.path(".cursor/mcp.json");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let done = offline(&user_home, "cursor");
    assert!(done.code == 1 && done.out.contains("it is a named pipe"), "{}", done.out);

    let user_home = cursor(LIBRARY);
    set_permissions(user_home.path(".cursor/mcp.json"), Permissions::from_mode(0o666))
        .expect("ours");
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  cursor  ~/.cursor/mcp.json: all users of this machine can change it, and with it the programs that start
                     fix: chmod o-w ~/.cursor/mcp.json
    "#);
}

#[test]
fn an_entry_is_found_with_its_line_in_each_format() {
    for client in &CLIENTS {
        let user_home = connected(client, LIBRARY);
        std::fs::remove_file(user_home.path("project/weir.toml")).expect("removed");
        let done = offline(&user_home, client.name);
        assert_eq!(done.code, 1, "{}", done.out);
        let place = format!("{}:", client.user.rsplit('/').next().unwrap_or_default());
        let (_, rest) = done.out.split_once(&place).expect("a place");
        let number = rest.split(':').next().and_then(|number| number.parse::<usize>().ok());
        let number = number.unwrap_or_else(|| panic!("{}", done.out));
        let text = user_home.read(client.user);
        let line = text.lines().nth(number - 1).unwrap_or_default();
        assert!(line.contains("weir"), "{}: {line}", client.name);
        let what = "the configuration of the entry is not there: ~/project/weir.toml";
        assert!(done.out.contains(what), "{}", done.out);
        assert!(done.out.contains("fix: weir init --dir ~/project"), "{}", done.out);
    }
}

#[test]
fn an_entry_with_another_program_or_configuration_is_written_anew() {
    let user_home = cursor(LIBRARY);
    edit(&user_home, own_program(), "/opt/old/weir");
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    error    cursor  ~/.cursor/mcp.json:3: the entry `weir` starts /opt/old/weir, which is not there
                     fix: weir connect cursor --write
    "#);
    let done = user_home.weir(&["connect", "cursor", "--stdio", "--write", "--no-check"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(offline(&user_home, "cursor").code, 0);

    // Another program of that name.
    user_home.write("old/weir", "#!/bin/sh\n");
    let old = user_home.path("old/weir");
    set_permissions(&old, Permissions::from_mode(0o755)).expect("ours");
    edit(&user_home, own_program(), &old.display().to_string());
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  cursor  ~/.cursor/mcp.json:3: the entry `weir` starts another Weir, ~/old/weir; this one is /usr/local/bin/weir
                     fix: weir connect cursor --write
    "#);

    // A path with a variable that the client replaces.
    std::fs::remove_file(&old).expect("removed");
    std::os::unix::fs::symlink(own_program(), &old).expect("linked");
    edit(&user_home, &old.display().to_string(), "${userHome}/old/weir");
    assert_eq!(offline(&user_home, "cursor").code, 0);
    edit(&user_home, "${userHome}/old/weir", &old.display().to_string());

    // A program that only a terminal finds.
    edit(&user_home, &old.display().to_string(), "weir");
    let done = offline(&user_home, "cursor");
    assert!(done.out.contains("`weir`, which is not in the PATH of a desktop"), "{}", done.out);

    let user_home = cursor(LIBRARY);
    let whole = user_home.path("project/weir.toml").display().to_string();
    edit(&user_home, &whole, "weir.toml");
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  cursor  ~/.cursor/mcp.json:3: the entry names the configuration weir.toml, which depends on the folder in which the client starts it
                     fix: weir connect cursor --write
    "#);
    // An entry for a client of Weir would lose that.
    edit(&user_home, "\"stdio\"", "\"stdio\", \"--as\", \"ada\"");
    let done = offline(&user_home, "cursor");
    assert!(done.out.contains("keep --as ada"), "{}", done.out);
    assert!(done.out.contains("no client `ada` in the configuration"), "{}", done.out);
}

#[test]
fn an_entry_without_a_configuration_has_the_named_one() {
    let user_home = cursor(LIBRARY);
    let whole = user_home.path("project/weir.toml").display().to_string();
    edit(&user_home, &format!("\"stdio\", \"--config\", \"{whole}\""), "\"stdio\"");
    assert_eq!(offline(&user_home, "cursor").code, 0);
    user_home.write("project/other.toml", "[upstreams.a]\nagrs = []\n");
    let done = user_home.weir(&["doctor", "cursor", "--offline", "--config", "other.toml"]);
    assert!(done.code == 1 && done.out.contains("~/project/other.toml:2: "), "{}", done.out);
    std::fs::remove_file(&whole).expect("removed");
    let done = offline(&user_home, "cursor");
    assert!(
        done.out.contains("there is no configuration that the entry could find"),
        "{}",
        done.out
    );
}

#[test]
fn an_entry_that_is_switched_off_or_twice_or_without_its_key_is_reported() {
    let user_home = cursor(LIBRARY);
    edit(&user_home, "\"command\"", "\"disabled\": true, \"command\"");
    let done = offline(&user_home, "cursor");
    assert!(done.code == 1 && done.out.contains("fix: switch it on in Cursor"), "{}", done.out);

    let user_home = UserHome::new();
    user_home.write(".gemini/settings.json", "{ \"mcp\": { \"allowed\": [\"weir\"] } }\n");
    connect(&user_home, "gemini", LIBRARY);
    let text = user_home.read(".gemini/settings.json");
    user_home.write(".gemini/settings.json", &text.replacen("[\"weir\"]", "[\"other\"]", 1));
    let done = offline(&user_home, "gemini");
    assert!(done.out.contains("fix: weir connect gemini --write"), "{}", done.out);

    let user_home = cursor(LIBRARY);
    let more = ["connect", "cursor", "--stdio", "--write", "--no-check", "--name", "again"];
    assert_eq!(user_home.weir(&more).code, 0);
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  cursor  ~/.cursor/mcp.json:7: the entries `weir` and `again` lead to one configuration: its items are there twice
                     fix: weir connect cursor --remove --name again
    "#);

    let user_home = UserHome::new();
    user_home.write("project/weir.toml", LIBRARY);
    let url = ["connect", "zed", "--url", "http://127.0.0.1:8642/mcp", "--key-env", "K", "--write"];
    assert_eq!(user_home.weir(&url).code, 0);
    let done = offline(&user_home, "zed");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    error    zed  ~/.config/zed/settings.json:3: the entry `weir` has THE-KEY-OF-THIS-CLIENT in the place of a key
                  fix: write the key of this client there; `weir keys add` makes one
    error    zed  ~/.config/zed/settings.json:3: no Weir runs that the entry `weir` could connect to
                  fix: weir serve --config ~/project/weir.toml
    "#);
    let url =
        ["connect", "codex", "--url", "http://127.0.0.1:8642/mcp", "--key-env", "K", "--write"];
    assert_eq!(user_home.weir(&url).code, 0);
    let done = offline(&user_home, "codex");
    assert!(done.out.contains("takes its key from K, which is not set here"), "{}", done.out);
    let done = user_home.weir_with(&["doctor", "codex", "--offline"], &[("K", "hunter2")]);
    assert!(!done.out.contains("takes its key") && !done.out.contains("hunter2"), "{}", done.out);
}

#[test]
fn a_mistake_in_the_configuration_comes_with_its_line_and_remedy() {
    let user_home = cursor("[upstreams.house]\nprompts_dir = \".\"\npromts.allow = [\"*\"]\n");
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    error    cursor  ~/project/weir.toml:3: upstreams.house.promts: no such key
                     fix: did you mean `prompts`?
    "#);
}

const TOKEN: &str = "[upstreams.notion]\ncommand = \"sh\"\nenv.T = { env = \"NOTION_TOKEN\" }\n";

#[test]
fn a_variable_is_looked_for_where_the_client_starts_weir() {
    let user_home = cursor(TOKEN);
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  cursor  ~/project/weir.toml:3: upstreams.notion.env.T.env: the variable NOTION_TOKEN is not set
                     fix: set NOTION_TOKEN where Weir starts, or name another
    "#);
    let set = [("NOTION_TOKEN", "hunter2")];
    // A desktop may have it or not.
    let done = user_home.weir_with(&["doctor", "cursor", "--offline"], &set);
    assert_eq!(done.code, 0);
    assert_snapshot!(done.out, @r#"
    note     cursor  ~/project/weir.toml:3: upstreams.notion.env.T.env: the variable NOTION_TOKEN is set here, but perhaps not in Cursor, which the desktop starts: then add it to `env` of the entry `weir` in ~/.cursor/mcp.json:3
    ok       cursor  starts Weir with ~/project/weir.toml
    "#);
    edit(&user_home, "\"command\"", "\"env\": { \"NOTION_TOKEN\": \"canary\" }, \"command\"");
    let done = offline(&user_home, "cursor");
    assert_eq!((done.code, done.out.lines().count()), (0, 1), "{}", done.out);
    assert!(!done.out.contains("canary"), "{}", done.out);

    // Codex passes on few.
    connect(&user_home, "codex", TOKEN);
    let done = user_home.weir_with(&["doctor", "codex", "--offline"], &set);
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  codex  ~/project/weir.toml:3: upstreams.notion.env.T.env: the variable NOTION_TOKEN is not set for a Weir that Codex starts
                    fix: add it to `env_vars` of the entry `weir` in ~/.codex/config.toml:1
    "#);
    let text = user_home.read(".codex/config.toml");
    user_home.write(".codex/config.toml", &format!("{text}env_vars = [\"NOTION_TOKEN\"]\n"));
    let done = user_home.weir_with(&["doctor", "codex", "--offline"], &set);
    assert_eq!((done.code, done.out.lines().count()), (0, 1), "{}", done.out);
}

#[test]
fn a_program_is_looked_for_where_the_client_starts_weir() {
    let config = "[upstreams.hub]\ncommand = \"only-there\"\n";
    let never = format!("[defaults]\nlogin_path = \"never\"\n{config}");
    let user_home = cursor(&never);
    user_home.write("tools/only-there", "#!/bin/sh\n");
    let program = user_home.path("tools/only-there");
    set_permissions(&program, Permissions::from_mode(0o755)).expect("ours");
    let path = format!("{}:/usr/bin:/bin", user_home.path("tools").display());
    let doctor = |client| user_home.weir_with(&["doctor", client, "--offline"], &[("PATH", &path)]);
    let done = doctor("cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  cursor  ~/project/weir.toml:4: upstreams.hub: there is no program `only-there` in PATH where Cursor starts
                     fix: write its whole path: command = "~/tools/only-there"
    "#);
    // A client of the terminal has the terminal's.
    connect(&user_home, "codex", &never);
    assert_eq!(doctor("codex").code, 0);
    // The login shell knows it.
    let line = format!("export PATH=\"{path}\"\n");
    for name in [".profile", ".bash_profile", ".zprofile", ".config/fish/config.fish"] {
        user_home.write(name, &line);
    }
    user_home.write("project/weir.toml", config);
    assert_eq!(doctor("cursor").code, 0);

    user_home.write("project/weir.toml", "[upstreams.hub]\ncommand = \"/nowhere/server\"\n");
    let done = doctor("cursor");
    assert!(
        done.out.contains("upstreams.hub: there is no program /nowhere/server"),
        "{}",
        done.out
    );
    set_permissions(&program, Permissions::from_mode(0o644)).expect("ours");
    let config = format!("[upstreams.hub]\ncommand = \"{}\"\n", program.display());
    user_home.write("project/weir.toml", &config);
    let done = doctor("cursor");
    assert!(done.out.contains("fix: chmod +x ~/tools/only-there"), "{}", done.out);
}

#[test]
fn lists_that_wait_longer_than_the_client_are_reported() {
    let user_home = UserHome::new();
    connect(&user_home, "codex", &format!("[protocol]\nlist_wait = \"15s\"\n{LIBRARY}"));
    let done = offline(&user_home, "codex");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  codex  ~/project/weir.toml: lists wait for slow servers up to 15s, and the client only 10s
                    fix: set list_wait = "4s" under [protocol]
    "#);
    let text = user_home.read(".codex/config.toml");
    user_home.write(".codex/config.toml", &format!("{text}startup_timeout_sec = 30\n"));
    assert_eq!(offline(&user_home, "codex").code, 0);
}

#[test]
fn a_server_that_is_also_behind_weir_is_found_in_all_projects() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let other = user_home.path("other").display().to_string();
    let servers = |names: &[&str]| {
        let entry = |name: &&str| format!("\"{name}\": {{ \"command\": \"{program}\" }}");
        names.iter().map(entry).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        "{{\n\"projects\": {{ \"{other}\": {{ \"mcpServers\": {{ {} }} }} }},\n\"mcpServers\": {{\n{} }} }}\n",
        servers(&["notes"]),
        servers(&["notes", "same"]),
    );
    user_home.write(".claude.json", &text);
    user_home.write(
        "project/.mcp.json",
        &format!("{{ \"mcpServers\": {{ {} }} }}", servers(&["notes"])),
    );
    connect(&user_home, "claude-code", &format!("[upstreams.notes]\ncommand = \"{program}\"\n"));
    let done = offline(&user_home, "claude-code");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  claude-code  ~/.claude.json:4: the server `notes` is also [upstreams.notes] of Weir: its items are there twice
                          fix: weir connect claude-code --take-over
    warning  claude-code  ~/.claude.json:4: the server `same` is also [upstreams.notes] of Weir: its items are there twice
                          fix: weir connect claude-code --take-over
    warning  claude-code  ~/.claude.json:2: the server `notes` for the project ~/other is also [upstreams.notes] of Weir: its items are there twice
                          fix: cd ~/other && weir connect claude-code --take-over
    warning  claude-code  ~/project/.mcp.json:1: the server `notes` is also [upstreams.notes] of Weir: its items are there twice
                          fix: weir connect claude-code --take-over --scope project
    "#);
    // Another server, and one on the network.
    let user_home = cursor("[upstreams.wiki]\nurl = \"https://wiki.example.com/mcp\"\n");
    let other = "\"mcpServers\": { \"notes\": { \"command\": \"/opt/notes\" },";
    edit(&user_home, "\"mcpServers\": {", other);
    assert_eq!(offline(&user_home, "cursor").code, 0);
    let wiki =
        "\"mcpServers\": { \"w\": { \"url\": \"https://wiki.example.com/mcp/?key=hunter2\" },";
    edit(&user_home, "\"mcpServers\": {", wiki);
    let done = offline(&user_home, "cursor");
    assert!(done.out.contains("the server `w` is also [upstreams.wiki] of Weir"), "{}", done.out);
    assert!(!done.out.contains("hunter2"), "{}", done.out);
}

#[test]
fn a_server_that_came_back_after_it_was_taken_over_is_reported() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let text = format!("{{ \"mcpServers\": {{ \"notes\": {{ \"command\": \"{program}\" }} }} }}\n");
    user_home.write(".claude.json", &text);
    let done = user_home.weir(&["connect", "claude-code", "--take-over"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(offline(&user_home, "claude-code").code, 0);
    // A session that runs writes its memory.
    let taken = user_home.read(".claude.json");
    let entry = format!("{{ \"notes\": {{ \"command\": \"{program}\" }}, \"weir\"");
    user_home.write(".claude.json", &taken.replacen("{ \"weir\"", &entry, 1));
    let done = offline(&user_home, "claude-code");
    assert_eq!(done.code, 1, "{}", user_home.read(".claude.json"));
    assert_snapshot!(done.out, @r#"
    warning  claude-code  ~/.claude.json:1: the server `notes`, which Weir has taken over, is in the file again: its items are there twice
                          fix: end Claude Code, then run: weir connect claude-code --take-over
    "#);
}

#[test]
fn the_folders_that_weir_writes_to_are_checked() {
    let user_home = cursor(LIBRARY);
    let state = user_home.path(".local/state/weir");
    std::fs::create_dir_all(state.join("run")).expect("made");
    set_permissions(&state, Permissions::from_mode(0o777)).expect("ours");
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  weir    ~/.local/state/weir: all users of this machine can change it, and with it what Weir reads there
                     fix: chmod o-w ~/.local/state/weir
    ok       cursor  starts Weir with ~/project/weir.toml
    "#);
    set_permissions(&state, Permissions::from_mode(0o700)).expect("ours");
    set_permissions(state.join("run"), Permissions::from_mode(0o777)).expect("ours");
    let done = offline(&user_home, "cursor");
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  weir    ~/.local/state/weir/run: `weir status` and `weir restart` find no `weir stdio`: ~/.local/state/weir/run is not a folder that only this user can write to
                     fix: chmod go-w ~/.local/state/weir/run
    ok       cursor  starts Weir with ~/project/weir.toml
    "#);
    std::fs::remove_dir_all(&state).expect("removed");
    user_home.write(".local/state/weir", "");
    let done = offline(&user_home, "cursor");
    assert!(done.out.contains("~/.local/state/weir: it is no folder"), "{}", done.out);
    assert!(done.out.contains("fix: mv ~/.local/state/weir "), "{}", done.out);
}

/// A `weir stdio` of a program, once it has answered.
struct Window(Child);

impl Window {
    fn start(user_home: &UserHome, program: &std::path::Path) -> Self {
        let mut command = std::process::Command::new(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", user_home.path(""));
        command.current_dir(user_home.path("project")).arg("stdio").stderr(Stdio::null());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.as_mut().expect("piped");
        writeln!(input, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).expect("it reads");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("it answers");
        assert!(line.contains("\"id\":1"), "{line}");
        Self(child)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_whose_program_has_been_replaced_is_reported() {
    let user_home = cursor(LIBRARY);
    let program = user_home.path("weir");
    if std::fs::hard_link(own_program(), &program).is_err() {
        std::fs::copy(own_program(), &program).expect("copied");
    }
    let window = Window::start(&user_home, &program);
    assert_eq!(offline(&user_home, "cursor").code, 0);
    std::fs::remove_file(&program).expect("removed");
    let done = offline(&user_home, "cursor");
    let process = window.0.id();
    let expected = format!("the program of process {process} of `weir stdio` has been replaced");
    assert!(done.code == 1 && done.out.contains(&expected), "{}", done.out);
    assert!(done.out.contains("fix: start a new session of its client"), "{}", done.out);
}

#[test]
fn servers_that_are_down_come_with_their_remedies() {
    let user_home = cursor(
        "[upstreams.crash]\ncommand = \"sh\"\nargs = [\"-c\", \"echo no >&2; exit 3\"]\n\
         [upstreams.gone]\ncommand = \"/nowhere/server\"\n",
    );
    let done = user_home.weir(&["doctor", "cursor"]);
    assert_eq!(done.code, 1);
    assert_snapshot!(done.out, @r#"
    warning  cursor  ~/project/weir.toml:5: upstreams.gone: there is no program /nowhere/server
                     fix: install it, or correct `command`
    warning  weir    ~/project/weir.toml:2: upstreams.crash: the process exited with code 3; last line of standard error: "no"
                     fix: correct it; weir check --config ~/project/weir.toml tries it
    "#);
}

#[test]
fn no_secret_of_a_client_is_printed() {
    for client in &CLIENTS {
        let user_home = UserHome::with(client);
        assert_eq!(user_home.weir(&["init", "--from", client.name]).code, 0);
        let connect = ["connect", client.name, "--stdio", "--write", "--no-check"];
        assert_eq!(user_home.weir(&connect).code, 0);
        for form in [&["doctor", client.name, "--offline"][..], &["doctor", "--json", "--offline"]]
        {
            let done = user_home.weir(form);
            let said = done.out + &done.err;
            assert!(said.contains("there twice"), "{}: {said}", client.name);
            for secret in ["ixture", "IXTURE", "hunter2", "lin_api", "glpat"] {
                assert!(!said.contains(secret), "{}: {said}", client.name);
            }
        }
    }
}

#[test]
fn names_with_escapes_are_made_harmless() {
    let user_home = cursor("[upstreams.a]\ncommand = \"/opt/a\"\n");
    let evil = "\"mcpServers\": { \"a\\u001b[31m\\u202e\": { \"command\": \"/opt/a\" },";
    edit(&user_home, "\"mcpServers\": {", evil);
    let done = offline(&user_home, "cursor");
    assert!(done.out.contains("the server `a\u{fffd}[31m\u{fffd}` is also"), "{}", done.out);
}
