//! `weir connect --take-over`, and the way back with `--remove`.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::init::upstreams;
use crate::user_home::{CLIENTS, Client, UserHome, mode};

/// A client's file with a server that comes up and one that does not, in the client's format.
fn with_two_servers(client: &Client, program: &str) -> String {
    let in_json = |key: &str, entry: &dyn Fn(&str) -> String, comment: &str| {
        format!(
            "{{\n  \"theme\": \"dark\",{comment}\n  \"{key}\": {{\n    \"down\": {},\n    \"notes\": \
             {}\n  }}\n}}\n",
            entry("/nowhere/server"),
            entry(program)
        )
    };
    let common = |program: &str| format!("{{\n      \"command\": \"{program}\"\n    }}");
    match client.name {
        "codex" => format!(
            "# Mine.\nmodel = \"x\" # fast\n\n# It is down.\n[mcp_servers.down]\ncommand = \
             \"/nowhere/server\"\n\n# Of notes.\n[mcp_servers.notes]\ncommand = \"{program}\" # why\n"
        ),
        "goose" => format!(
            "# Mine.\nmodel: x # fast\nextensions:\n  notes:\n    enabled: true # why\n    type: stdio\n    \
             name: notes\n    description: ''\n    cmd: {program}\n    args: []\n  # It is down.\n  down:\n    \
             enabled: true\n    type: stdio\n    name: down\n    description: ''\n    cmd: \
             /nowhere/server\n    args: []\nlast: 1\n"
        ),
        "opencode" => {
            let entry = |program: &str| {
                let command = format!("\"command\": [\"{program}\"]");
                format!("{{ // why\n      \"type\": \"local\",\n      {command}\n    }}")
            };
            in_json("mcp", &entry, " // mine")
        }
        "vscode" => in_json("servers", &common, " // mine"),
        "zed" => in_json("context_servers", &common, " // mine"),
        "kiro" | "gemini" | "qwen" | "cursor" => in_json("mcpServers", &common, " /* mine */"),
        _ => in_json("mcpServers", &common, ""),
    }
}

#[test]
fn what_is_taken_over_comes_back_as_it_was() {
    for client in &CLIENTS {
        let user_home = UserHome::new();
        let text = with_two_servers(client, &user_home.server("notes"));
        user_home.write(client.user, &text);
        let done = user_home.weir(&["connect", client.name, "--take-over"]);
        assert_eq!((done.code, done.out.as_str()), (0, ""), "{}: {}", client.name, done.err);
        let taken = user_home.read(client.user);
        assert!(taken.contains("weir") && taken.contains("/nowhere/server"), "{taken}");
        assert!(!taken.contains("bin/notes"), "{}: {taken}", client.name);
        for comment in ["mine", "Mine.", "# fast", "# It is down.", "# Of notes."] {
            assert_eq!(taken.contains(comment), text.contains(comment), "{}: {taken}", client.name);
        }
        let config = user_home.read(".config/weir/weir.toml");
        assert_eq!(upstreams(&config).len(), 2, "{config}");

        let done = user_home.weir(&["connect", client.name, "--remove"]);
        assert_eq!(done.code, 0, "{}: {}", client.name, done.err);
        assert_eq!(user_home.read(client.user), text, "{}: {}", client.name, done.err);
        assert_eq!(user_home.files(".local/state/weir/taken-over"), [""; 0]);
    }
}

#[test]
fn servers_that_came_up_are_moved_and_come_back() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let text = format!(
        r#"{{ "mcpServers": {{
    "My Notes": {{ "command": "{program}", "env": {{ "A_TOKEN": "fixture" }} }},
    "off": {{ "command": "{program}", "disabled": true }},
    "down": {{ "command": "/nowhere/server" }}
}} }}"#
    );
    user_home.write(".cursor/mcp.json", &text);
    let done = user_home.weir(&["connect", "cursor", "--take-over"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(!done.err.contains("fixture"), "{}", done.err);
    for said in [
        "My Notes: is [upstreams.my-notes] now",
        "off: the client has switched it off, so it is disabled",
        "moved from ~/.cursor/mcp.json to Weir: My Notes",
        "off: stays in the client: the client has switched it off",
        "down: stays in the client: ",
        "`weir connect cursor --remove` puts them back",
        "then: switch it on in Cursor's settings",
    ] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    let taken = user_home.files(".local/state/weir/taken-over");
    assert_eq!(taken.len(), 1, "{taken:?}");
    let folder = user_home.path(".local/state/weir/taken-over");
    assert_eq!((mode(&folder), mode(&folder.join(&taken[0]))), (0o700, 0o600));
    let file = read_json(&user_home, ".cursor/mcp.json");
    let names: Vec<_> = file["mcpServers"].as_object().expect("a table").keys().collect();
    assert_eq!(names, ["off", "down", "weir"]);

    let done = user_home.weir(&["connect", "cursor", "--remove"]);
    let (copied, rest) = done.err.split_once('\n').expect("several lines");
    assert!(copied.starts_with("copied ~/.cursor/mcp.json to "), "{copied}");
    assert_snapshot!(rest, @"
    removed the entry `weir` from ~/.cursor/mcp.json
    put back into ~/.cursor/mcp.json: My Notes
    note: these servers are still in Weir's configuration; remove them there if only the client is to run them
    ~/.cursor/mcp.json is as it was before the take-over
    then: switch it on in Cursor's settings, under MCP
    ");
    assert_eq!(user_home.read(".cursor/mcp.json"), text);
}

/// Files with several servers that come up, and one whose program is installed later.
fn odd_files(program: &str) -> [(&'static str, String); 4] {
    let json = format!(
        "\u{feff}// Mine.\r\n{{\r\n\t\"servers\": {{\r\n\r\n\t\t/* one */ \"a\": {{\"command\":\"{program}\"}},\n\
         \t\t\"b\": {{ \"command\" : \"{program}\", }}, // two\r\n\r\n\t\t\"down\": {{ \"command\": \"/nowhere/server\" }},\r\n\
         \t\t\"c\": {{\"command\": \"{program}-2\",\"args\":[ ]}},\r\n\t}},\r\n\r\n\t\"theme\": \"dark\",\r\n}}"
    );
    let alone = format!("{{\"mcpServers\":{{\"a\":{{\"command\":\"{program}\"}}}}}}");
    let toml = format!(
        "# Mine.\n\n\n[mcp_servers]   # all\na = {{ command = \"{program}\" }} # one\n\n[mcp_servers.b]\r\n\
         command = '{program}'\n\n\n# last\n[tui]\n[mcp_servers.c]\ncommand = \"{program}-2\""
    );
    let yaml = format!(
        "# Mine.\nextensions:\n\n    a: {{type: stdio, enabled: true, name: a, cmd: {program}, args: []}}   # one\n\
         \n    b:\n        type: stdio\n        enabled: true\n        name: b\n        cmd: '{program}'\n        args: []\n\n\
         # last\nmodel: x\n"
    );
    [("vscode", json), ("cursor", alone), ("codex", toml), ("goose", yaml)]
}

#[test]
fn a_file_comes_back_byte_for_byte_however_it_was_written() {
    for number in 0..4 {
        let user_home = UserHome::new();
        let program = user_home.server("notes");
        let files = odd_files(&program);
        let (client, text) = &files[number];
        let path = CLIENTS.iter().find(|it| it.name == *client).expect("it is known").user;
        user_home.write(path, text);
        for _ in 0..2 {
            let done = user_home.weir(&["connect", client, "--take-over"]);
            assert_eq!(done.code, 0, "{client}: {}", done.err);
            assert!(done.err.contains("moved from"), "{client}: {}", done.err);
            // The second run takes over what is installed now.
            std::fs::copy(&program, format!("{program}-2")).expect("copied");
            if !text.contains("-2") {
                break;
            }
        }
        assert_ne!(user_home.read(path), *text, "{client}");
        let done = user_home.weir(&["connect", client, "--remove"]);
        assert_eq!(done.code, 0, "{client}: {}", done.err);
        assert_eq!(user_home.read(path), *text, "{client}: {}", done.err);
        assert_eq!(user_home.files(".local/state/weir/taken-over"), [""; 0]);
    }
}

#[test]
fn a_file_that_was_changed_after_the_take_over_gets_its_entries_back_and_keeps_the_change() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let text = format!(
        "{{ \"mcpServers\": {{\n  \"a\": {{ \"command\": \"{program}\" }},\n  \"b\": {{ \"command\": \
         \"{program}\" }}\n}} }}\n"
    );
    user_home.write(".cursor/mcp.json", &text);
    let done = user_home.weir(&["connect", "cursor", "--take-over"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let left = user_home.read(".cursor/mcp.json");
    user_home.write(".cursor/mcp.json", &format!("// A word.\n{left}"));
    let done = user_home.weir(&["connect", "cursor", "--remove"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let said = "note: ~/.cursor/mcp.json was changed after the take-over, so each entry goes back";
    assert!(done.err.contains(said), "{}", done.err);
    let now = user_home.read(".cursor/mcp.json");
    assert!(now.starts_with("// A word.\n") && !now.contains("weir"), "{now}");
    assert_eq!(now.matches("bin/notes").count(), 2, "{now}");
}

#[test]
fn a_second_run_takes_over_what_has_been_corrected() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let servers = |command: &str| {
        format!("{{ \"mcpServers\": {{\n  \"notes\": {{ \"command\": \"{command}\" }}\n}} }}\n")
    };
    user_home.write(".cursor/mcp.json", &servers(&format!("{program}-2")));
    let take_over = ["connect", "cursor", "--take-over", "-c", "weir.toml"];
    let done = user_home.weir(&take_over);
    assert!(done.code == 0 && done.err.contains("notes: stays in the client"), "{}", done.err);
    // The program is installed.
    std::fs::copy(&program, format!("{program}-2")).expect("copied");
    let done = user_home.weir(&take_over);
    assert_eq!(done.code, 0, "{}", done.err);
    for said in [
        "notes: skipped: it is [upstreams.notes] already",
        "Cursor points at Weir already",
        "moved from ~/.cursor/mcp.json to Weir: notes",
    ] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    assert_eq!(upstreams(&user_home.read("project/weir.toml")), ["notes"]);
    let done = user_home.weir(&take_over);
    assert!(done.code == 0 && !done.err.contains("moved"), "{}", done.err);
}

#[test]
fn a_file_that_is_read_only_keeps_its_servers() {
    use std::os::unix::fs::PermissionsExt;
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let text = format!("{{ \"mcpServers\": {{ \"notes\": {{ \"command\": \"{program}\" }} }} }}\n");
    user_home.write(".cursor/mcp.json", &text);
    let path = user_home.path(".cursor/mcp.json");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).expect("ours");
    let done = user_home.weir(&["connect", "cursor", "--take-over"]);
    assert!(done.code == 2 && done.err.contains("it is read-only"), "{}", done.err);
    assert_eq!(user_home.read(".cursor/mcp.json"), text);
    assert_eq!(user_home.files(".local/state/weir/taken-over"), [""; 0]);
}

#[test]
fn a_projects_servers_are_taken_over_alone() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let servers = |name: &str| {
        format!("{{ \"mcpServers\": {{ \"{name}\": {{ \"command\": \"{program}\" }} }} }}\n")
    };
    user_home.write(".cursor/mcp.json", &servers("mine"));
    user_home.write("project/.cursor/mcp.json", &servers("team"));
    let take_over = ["connect", "cursor", "--take-over", "--scope", "project", "-c", "weir.toml"];
    let done = user_home.weir(&take_over);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(user_home.read(".cursor/mcp.json"), servers("mine"));
    assert!(!user_home.read("project/.cursor/mcp.json").contains("team"));
    assert_eq!(upstreams(&user_home.read("project/weir.toml")), ["team"]);
}

#[test]
fn a_name_that_is_used_meanwhile_is_reported_and_nothing_is_overwritten() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let text = format!("{{ \"mcpServers\": {{ \"notes\": {{ \"command\": \"{program}\" }} }} }}\n");
    user_home.write(".cursor/mcp.json", &text);
    let done = user_home.weir(&["connect", "cursor", "--take-over"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let meanwhile = "{ \"mcpServers\": { \"notes\": { \"command\": \"another\" } } }\n";
    user_home.write(".cursor/mcp.json", meanwhile);
    let done = user_home.weir(&["connect", "cursor", "--remove"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("notes: not put back: the name is used meanwhile"), "{}", done.err);
    assert_eq!(user_home.read(".cursor/mcp.json"), meanwhile);
    // Once the name is free, the server comes back.
    user_home.write(".cursor/mcp.json", "{}\n");
    let done = user_home.weir(&["connect", "cursor", "--remove"]);
    assert!(done.code == 0 && done.err.contains("put back"), "{}", done.err);
    assert!(user_home.read(".cursor/mcp.json").contains("bin/notes"));
    assert_eq!(user_home.files(".local/state/weir/taken-over"), [""; 0]);
}

#[test]
fn a_running_claude_code_may_write_its_file_anew_and_that_is_said() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let here = user_home.path("project").display().to_string();
    let text = format!(
        "{{\n  \"projects\": {{\n    \"{here}\": {{\n      \"mcpServers\": {{\n        \"notes\": {{ \
         \"command\": \"{program}\" }}\n      }}\n    }}\n  }},\n  \"mcpServers\": {{}}\n}}\n"
    );
    user_home.write(".claude.json", &text);
    let done = user_home.weir(&["connect", "claude-code", "--take-over"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("a Claude Code that runs may write its file anew"), "{}", done.err);
    assert!(!user_home.read(".claude.json").contains("bin/notes"));
    let done = user_home.weir(&["connect", "claude-code", "--remove"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(user_home.read(".claude.json"), text);
}

/// Content of a file as JSON.
fn read_json(user_home: &UserHome, file: &str) -> Value {
    serde_json::from_str(&user_home.read(file)).expect("it is JSON")
}

#[test]
fn a_name_in_several_scopes_is_taken_over_everywhere_or_what_stays_is_said() {
    let user_home = UserHome::new();
    let (notes, tools) = (user_home.server("notes"), user_home.server("tools"));
    let here = user_home.path("project").display().to_string();
    let (notes, tools) = (json!({ "command": notes }), json!({ "command": tools }));
    let other_tools = json!({ "command": "/nowhere/tools" });
    let projects = json!({
        here.clone(): { "mcpServers": { "notes": notes, "tools": tools }, "history": [1] },
        "/elsewhere": { "mcpServers": { "notes": notes } },
    });
    let servers = json!({ "notes": notes, "tools": other_tools });
    let before = json!({ "projects": projects, "mcpServers": servers });
    user_home.write(".claude.json", &before.to_string());
    let shared = json!({ "mcpServers": { "notes": notes } }).to_string();
    user_home.write("project/.mcp.json", &shared);
    let done = user_home.weir(&["connect", "claude-code", "--take-over"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let after = read_json(&user_home, ".claude.json");
    assert_eq!(after["projects"][&here]["mcpServers"], json!({}), "{after}");
    assert_eq!(after["projects"]["/elsewhere"], before["projects"]["/elsewhere"]);
    let names: Vec<_> = after["mcpServers"].as_object().expect("a table").keys().collect();
    assert_eq!(names, ["tools", "weir"]);
    for said in [
        "  tools: another server of this name is in ~/.claude.json under `mcpServers`",
        "  notes: ~/.claude.json has one of this name for the project /elsewhere: it stays",
        "  notes: ~/project/.mcp.json has one of this name (project): it stays, and the client runs \
         it beside Weir; run this with --scope project to move it",
    ] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    let done = user_home.weir(&["connect", "claude-code", "--remove"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(read_json(&user_home, ".claude.json"), before);
    assert!(done.err.contains("put back into ~/.claude.json: notes, tools"), "{}", done.err);
    assert_eq!(user_home.read("project/.mcp.json"), shared);
    assert_eq!(user_home.files(".local/state/weir/taken-over"), [""; 0]);
}

#[test]
fn a_users_server_that_a_projects_one_hid_is_named_when_that_is_moved() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let servers = |program: &str| {
        format!("{{ \"mcpServers\": {{ \"notes\": {{ \"command\": \"{program}\" }} }} }}\n")
    };
    user_home.write(".claude.json", &servers("/nowhere/server"));
    user_home.write("project/.mcp.json", &servers(&program));
    let take_over = ["connect", "claude-code", "--take-over", "--scope", "project"];
    let done = user_home.weir(&take_over);
    assert_eq!(done.code, 0, "{}", done.err);
    let said = "  notes: ~/.claude.json has one of this name (user): it stays";
    assert!(done.err.contains(said), "{}", done.err);
    assert_eq!(user_home.read(".claude.json"), servers("/nowhere/server"));
}

#[test]
fn a_server_that_the_client_brought_back_is_recorded_once() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let text = format!("{{ \"mcpServers\": {{ \"notes\": {{\"command\":\"{program}\"}} }} }}\n");
    user_home.write(".claude.json", &text);
    let take_over = || user_home.weir(&["connect", "claude-code", "--take-over"]);
    let rewrite = |command: &str| {
        let mut file = read_json(&user_home, ".claude.json");
        file["mcpServers"]["notes"] = json!({ "command": command });
        let text = serde_json::to_string_pretty(&file).expect("JSON");
        user_home.write(".claude.json", &text);
    };
    let recorded = || {
        let folder = ".local/state/weir/taken-over";
        let record = read_json(&user_home, &format!("{folder}/{}", user_home.files(folder)[0]));
        record["servers"].as_array().expect("a list").len()
    };
    assert_eq!(take_over().code, 0);
    rewrite(&program);
    let done = take_over();
    assert!(done.err.contains("moved from ~/.claude.json to Weir: notes"), "{}", done.err);
    assert_eq!(recorded(), 1);
    // Another server of the name is another entry, and the last one comes back.
    let changed = user_home.server("changed");
    rewrite(&changed);
    let done = take_over();
    assert!(done.err.contains("moved from ~/.claude.json to Weir: notes"), "{}", done.err);
    assert_eq!(recorded(), 2);
    let done = user_home.weir(&["connect", "claude-code", "--remove"]);
    assert!(done.err.contains("another entry of this name was moved later"), "{}", done.err);
    assert_eq!(read_json(&user_home, ".claude.json")["mcpServers"]["notes"]["command"], *changed);
    // What is there already is put back.
    rewrite(&program);
    let done = user_home.weir(&["connect", "claude-code", "--remove"]);
    assert!(done.err.contains("in ~/.claude.json already, and the same: notes"), "{}", done.err);
    assert_eq!(user_home.files(".local/state/weir/taken-over"), [""; 0]);
}
