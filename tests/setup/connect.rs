//! `weir connect`: its output, and its changes to a client's file.

use insta::assert_snapshot;

use crate::init::upstreams;
use crate::user_home::{CLIENTS, UserHome, mode};

/// Whether a text is another one with an insertion at one place.
fn is_insertion(old: &str, new: &str) -> bool {
    let head = old.bytes().zip(new.bytes()).take_while(|(a, b)| a == b).count();
    let tail = old.bytes().rev().zip(new.bytes().rev()).take_while(|(a, b)| a == b).count();
    new.len() > old.len() && head + tail >= old.len()
}

#[test]
fn written_into_a_file_everything_else_stays_byte_for_byte() {
    let ways: [&[&str]; 2] =
        [&["--stdio"], &["--url", "http://127.0.0.1:8642/mcp", "--key-env", "MY_KEY"]];
    for (client, way) in CLIENTS.iter().flat_map(|client| ways.map(|way| (client, way))) {
        let user_home = UserHome::with(client);
        user_home.write("project/weir.toml", "[upstreams.house]\nprompts_dir = \".\"\n");
        let connect = [&["connect", client.name, "--write"], way].concat();
        let done = user_home.weir(&connect);
        assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
        let (old, new) = (client.text(), user_home.read(client.user));
        assert!(is_insertion(&old, &new), "{}:\n{new}", client.name);
        let folder = client.user.rsplit_once('/').map_or("", |(folder, _)| folder);
        let backup =
            user_home.files(folder).into_iter().find(|file| file.contains(".weir-backup-"));
        assert_eq!(user_home.read(&format!("{folder}/{}", backup.expect("a copy"))), old);

        // The second time nothing changes.
        let done = user_home.weir(&connect);
        assert!(done.err.contains("points at Weir already"), "{}", done.err);
        assert_eq!(user_home.read(client.user), new);

        // And back: all servers that were there, without Weir itself.
        user_home.weir(&["init", "--from", client.name, "--force"]);
        let after = user_home.read("project/weir.toml");
        let before = UserHome::with(client);
        before.weir(&["init", "--from", client.name]);
        assert_eq!(upstreams(&after), upstreams(&before.read("project/weir.toml")));
    }
}

#[test]
fn a_file_that_is_missing_is_made() {
    for client in &CLIENTS {
        let user_home = UserHome::new();
        let printed =
            user_home.weir(&["connect", client.name, "--url", "https://mcp.example.com/mcp"]);
        let done = user_home.weir(&[
            "connect",
            client.name,
            "--url",
            "https://mcp.example.com/mcp",
            "--write",
        ]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert_eq!(user_home.read(client.user), printed.out);
    }
}

#[test]
fn a_projects_file_is_written_where_the_client_has_one() {
    for client in &CLIENTS {
        let user_home = UserHome::new();
        let done = user_home.weir(&[
            "connect",
            client.name,
            "--stdio",
            "--write",
            "--scope",
            "project",
            "-c",
            "w.toml",
        ]);
        match client.project {
            Some(file) => {
                assert_eq!(done.code, 0, "{}", done.err);
                assert!(user_home.read(&format!("project/{file}")).contains("weir"));
            }
            None => {
                assert_eq!(done.code, 2);
                assert!(done.err.contains("has no file for a project"), "{}", done.err);
            }
        }
    }
}

#[test]
fn the_configuration_decides_how_a_client_comes_in() {
    let user_home = UserHome::new();
    user_home.write("project/plain.toml", "[upstreams.house]\nprompts_dir = \".\"\n");
    let keys = "[upstreams.house]\nprompts_dir = \".\"\n[clients.me]\nkey_sha256 = \
                [\"1111111111111111111111111111111111111111111111111111111111111111\"]\nprompts.allow = [\"*\"]\n";
    user_home.write("project/keys.toml", &format!("server.listen = \"127.0.0.1:9000\"\n{keys}"));
    let public = "server.public_url = \"https://mcp.example.com\"\nserver.path = \"/weir\"\n";
    user_home.write("project/public.toml", &format!("{public}{keys}"));
    let printed = |arguments: &[&str]| user_home.weir(&[&["connect"], arguments].concat()).out;
    let all = [
        printed(&["codex", "-c", "plain.toml"]),
        printed(&["codex", "-c", "plain.toml", "--http"]),
        printed(&["codex", "-c", "keys.toml"]),
        printed(&["codex", "-c", "keys.toml", "--stdio"]),
        printed(&["codex", "-c", "public.toml", "--key-env", "TEAM_KEY", "--name", "team"]),
        printed(&["claude-desktop", "-c", "public.toml"]),
        printed(&["claude-desktop", "-c", "public.toml", "--http"]),
    ];
    assert_snapshot!(all.join("\n"), @r#"
    [mcp_servers.weir]
    command = "/usr/local/bin/weir"
    args = ["stdio", "--config", "~/project/plain.toml"]

    [mcp_servers.weir]
    url = "http://127.0.0.1:8642/mcp"

    [mcp_servers.weir]
    url = "http://127.0.0.1:9000/mcp"
    bearer_token_env_var = "WEIR_KEY"

    [mcp_servers.weir]
    command = "/usr/local/bin/weir"
    args = ["stdio", "--config", "~/project/keys.toml"]

    [mcp_servers.team]
    url = "https://mcp.example.com/weir"
    bearer_token_env_var = "TEAM_KEY"

    {
      "mcpServers": {
        "weir": {
          "command": "/usr/local/bin/weir",
          "args": ["stdio", "--config", "~/project/public.toml"]
        }
      }
    }

    {
      "mcpServers": {
        "weir": {
          "command": "npx",
          "args": ["-y", "mcp-remote", "https://mcp.example.com/weir", "--header", "Authorization:${WEIR_KEY}"],
          "env": {
            "WEIR_KEY": "Bearer THE-KEY-OF-THIS-CLIENT"
          }
        }
      }
    }
    "#);
}

#[test]
fn over_http_it_is_said_if_nothing_serves_there() {
    let user_home = UserHome::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("an address").port();
    let config =
        format!("server.listen = \"127.0.0.1:{port}\"\n[upstreams.house]\nprompts_dir = \".\"\n");
    user_home.write("project/own.toml", &config);
    let connect = ["connect", "codex", "--http", "-c", "own.toml"];
    let done = user_home.weir(&connect);
    assert!(done.code == 0 && !done.err.contains("nothing listens"), "{}", done.err);
    drop(other);
    let said = format!(
        "note: nothing listens at http://127.0.0.1:{port}/mcp now: the client needs a running `weir \
         serve --config own.toml`; `weir status --config own.toml` shows whether one runs\n"
    );
    for more in [&[][..], &["--write"]] {
        let done = user_home.weir(&[&connect[..], more].concat());
        assert!(done.code == 0 && done.err.ends_with(&said), "{}", done.err);
    }
    // Another machine is not asked.
    let done = user_home.weir(&["connect", "codex", "--url", "https://mcp.example.com/mcp"]);
    assert!(done.code == 0 && !done.err.contains("nothing listens"), "{}", done.err);
}

#[test]
fn who_logs_in_at_a_provider_is_given_no_place_for_a_key() {
    let user_home = UserHome::new();
    let config = "server.public_url = \"https://mcp.example.com\"\n[upstreams.house]\nprompts_dir = \".\"\n\
                  [auth.oidc.corp]\nissuer = \"https://id.example.com\"\naudience = [\"weir\"]\n";
    user_home.write("project/weir.toml", config);
    let done = user_home.weir(&["connect", "codex"]);
    assert_eq!(
        done.out, "[mcp_servers.weir]\nurl = \"https://mcp.example.com/mcp\"\n",
        "{}",
        done.err
    );
}

#[test]
fn a_configuration_with_mistakes_does_for_stdio_only() {
    let user_home = UserHome::new();
    user_home.write("project/weir.toml", "[upstreams.house]\nprompt_dir = \".\"\n");
    let done = user_home.weir(&["connect", "codex"]);
    assert_eq!(done.code, 0);
    assert!(done.out.contains("\"stdio\"") && done.err.contains("weir check"), "{}", done.err);
    let done = user_home.weir(&["connect", "codex", "--http"]);
    assert!(done.code == 78 && done.err.contains("did you mean `prompts_dir`?"), "{}", done.err);
    let done = user_home.weir(&["connect", "codex", "-c", "nowhere.toml"]);
    assert_eq!((done.code, done.out.as_str()), (2, ""), "{}", done.err);
    let done = user_home.weir(&["connect", "codex", "--url", "https://me:secret@a.example/mcp"]);
    assert!(done.code == 2 && !done.err.contains("secret"), "{}", done.err);
}

#[test]
fn anothers_entry_is_replaced_only_by_force_and_ones_own_always() {
    let user_home = UserHome::new();
    let other = r#"{"mcpServers": {"weir": {"command": "other"}, "x": {"command": "x"}}}"#;
    user_home.write(".cursor/mcp.json", other);
    let done = user_home.weir(&["connect", "cursor", "--stdio", "--write", "-c", "weir.toml"]);
    assert_snapshot!(format!("{}: {}", done.code, done.err), @r"
    2: note: ~/project/weir.toml does not exist yet; `weir init` writes one
    weir: ~/.cursor/mcp.json has a server `weir` already that is not Weir: choose another with --name, or replace it with --force
    ");
    assert_eq!(user_home.read(".cursor/mcp.json"), other);
    let done =
        user_home.weir(&["connect", "cursor", "--stdio", "--write", "-c", "weir.toml", "--force"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let done =
        user_home.weir(&["connect", "cursor", "--url", "http://127.0.0.1:8642/mcp", "--write"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_snapshot!(user_home.read(".cursor/mcp.json"), @r#"
    {"mcpServers": {"weir": {
          "url": "http://127.0.0.1:8642/mcp"
        }, "x": {"command": "x"}}}
    "#);
}

#[test]
fn a_key_that_was_written_by_hand_stays() {
    let user_home = UserHome::new();
    let connect = ["connect", "zed", "--url", "https://a.example/mcp", "--key-env", "K", "--write"];
    user_home.weir(&connect);
    let by_hand =
        user_home.read(".config/zed/settings.json").replace("THE-KEY-OF-THIS-CLIENT", "real");
    user_home.write(".config/zed/settings.json", &by_hand);
    let done = user_home.weir(&connect);
    assert!(done.err.contains("points at Weir already"), "{}", done.err);
    assert_eq!(user_home.read(".config/zed/settings.json"), by_hand);
}

#[test]
fn a_file_that_cannot_be_read_is_left_alone() {
    let user_home = UserHome::new();
    for (client, path, text) in [
        ("cursor", ".cursor/mcp.json", "{ \"mcpServers\": { \"a\": "),
        ("gemini", ".gemini/settings.json", "{ \"mcpServers\": [] }"),
        ("zed", ".config/zed/settings.json", "[1]"),
        ("codex", ".codex/config.toml", "mcp_servers = 1\n"),
    ] {
        user_home.write(path, text);
        let done = user_home.weir(&["connect", client, "--stdio", "--write", "-c", "weir.toml"]);
        assert_eq!(done.code, 78, "{}", done.err);
        assert_eq!(done.err.lines().filter(|line| line.starts_with("weir: ")).count(), 1);
        assert_eq!(user_home.read(path), text);
        let folder = path.rsplit_once('/').expect("it is in a folder").0;
        assert_eq!(user_home.files(folder).len(), 1, "no copy, no leftover");
    }
}

#[test]
#[cfg(unix)]
fn links_and_permissions_stay_and_so_do_marks_and_line_ends() {
    use std::os::unix::fs::PermissionsExt;
    let user_home = UserHome::new();
    let text = "\u{feff}{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": { \"command\": \"x\" }\r\n\t}\r\n}";
    user_home.write("dotfiles/mcp.json", text);
    let real = user_home.path("dotfiles/mcp.json");
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).expect("set");
    std::fs::create_dir(user_home.path(".cursor")).expect("made");
    std::os::unix::fs::symlink(&real, user_home.path(".cursor/mcp.json")).expect("linked");
    let done = user_home.weir(&["connect", "cursor", "--url", "https://a.example/mcp", "--write"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(user_home.path(".cursor/mcp.json").is_symlink());
    assert_eq!(mode(&real), 0o640);
    let backup = user_home.files("dotfiles").into_iter().find(|file| file.contains("weir-backup"));
    assert_eq!(mode(&user_home.path("dotfiles").join(backup.expect("a copy"))), 0o600);
    let expected = "\u{feff}{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": { \"command\": \"x\" },\r\n\t\t\"weir\": \
                    {\r\n\t\t\t\"url\": \"https://a.example/mcp\"\r\n\t\t}\r\n\t}\r\n}";
    assert_eq!(user_home.read("dotfiles/mcp.json"), expected);
}

#[test]
fn toml_with_other_line_ends_keeps_them() {
    let user_home = UserHome::new();
    let text = "# mine\r\nmodel = \"x\"\r\n\r\n[mcp_servers.a]\r\ncommand = \"a\" # why\r\n";
    user_home.write(".codex/config.toml", text);
    user_home.weir(&["connect", "codex", "--url", "https://a.example/mcp", "--write"]);
    let new = user_home.read(".codex/config.toml");
    assert!(new.starts_with(text), "{new:?}");
}

#[test]
fn where_a_key_stands_twice_nobody_knows_which_counts_and_nothing_is_written() {
    for text in [
        r#"{"mcpServers":{},"mcpServers":{"a":{"command":"x"}}}"#,
        r#"{"mcpServers":{"weir":{"command":"x"},"weir":{"command":"weir","args":["stdio"]}}}"#,
    ] {
        let user_home = UserHome::new();
        user_home.write("project/weir.toml", "");
        user_home.write(".cursor/mcp.json", text);
        let done = user_home.weir(&["connect", "cursor", "--stdio", "--write", "--force"]);
        assert_eq!(done.code, 78, "{}", done.err);
        assert!(done.err.contains("occurs twice"), "{}", done.err);
        assert_eq!(
            (user_home.read(".cursor/mcp.json").as_str(), user_home.files(".cursor").len()),
            (text, 1)
        );
    }
}

#[test]
fn after_the_entry_is_written_all_servers_are_listed() {
    let user_home = UserHome::new();
    let program = user_home.server("notes");
    let config = format!(
        "[upstreams.notes]\ncommand = \"{program}\"\n[upstreams.down]\ncommand = \
         \"/nowhere/server\"\n"
    );
    user_home.write("project/weir.toml", &config);
    let connect = ["connect", "cursor", "--write"];
    let done = user_home.weir(&connect);
    assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
    assert!(done.err.contains("listing all servers, at most 60 s"), "{}", done.err);
    let row = |start: &str| done.err.lines().any(|line| line.starts_with(start));
    assert!(row("ok    notes  stdio ") && row("down  down "), "{}", done.err);
    let lists = user_home.files(".local/state/weir/catalog");
    assert!(lists.iter().any(|file| file.contains("notes")), "{lists:?}");
    let done = user_home.weir(&[&connect[..], &["--no-check"]].concat());
    assert!(done.code == 0 && !done.err.contains("listing"), "{}", done.err);
    // Over HTTP a running Weir has the servers.
    let done = user_home.weir(&["connect", "cursor", "--http", "--write"]);
    assert!(done.code == 0 && !done.err.contains("listing"), "{}", done.err);
}

#[test]
fn what_cannot_be_changed_alone_is_printed() {
    let user_home = UserHome::new();
    let text = "# mine\nextensions:\n  {developer: {enabled: false, type: builtin}}\n";
    user_home.write(".config/goose/config.yaml", text);
    let url = ["--url", "https://a.example/mcp"];
    let done = user_home.weir(&[&["connect", "goose", "--write"], &url[..]].concat());
    assert!(done.code == 78 && done.err.contains("add the printed entry by hand"), "{}", done.err);
    assert!(done.out.contains("uri: \"https://a.example/mcp\""), "{}", done.out);
    assert_eq!(user_home.read(".config/goose/config.yaml"), text);
    assert_eq!(user_home.files(".config/goose").len(), 1, "no copy, no leftover");
}

#[test]
fn a_client_that_signs_in_is_written_without_a_key() {
    let user_home = UserHome::new();
    let keys = "[upstreams.house]\nprompts_dir = \".\"\n[clients.me]\nkey_sha256 = \
                [\"1111111111111111111111111111111111111111111111111111111111111111\"]\nprompts.allow = [\"*\"]\n";
    user_home.write("project/weir.toml", keys);
    let done = user_home.weir(&["connect", "cursor"]);
    assert!(done.out.contains("Bearer ${env:WEIR_KEY}"), "{}", done.out);
    let done = user_home.weir(&["connect", "cursor", "--no-key"]);
    assert!(done.code == 0 && !done.out.contains("headers"), "{}", done.out);
    assert!(done.out.contains("http://127.0.0.1:8642/mcp"), "{}", done.out);
}

#[test]
fn a_variable_without_a_name_is_an_error() {
    let user_home = UserHome::new();
    for name in ["", "A B", "1A", "A=B"] {
        let option = format!("--key-env={name}");
        let url = "--url=https://a.example/mcp";
        let done = user_home.weir(&["connect", "cursor", url, &option, "--write"]);
        assert!(done.code == 2 && done.err.contains("--no-key"), "{name}: {}", done.err);
        assert_eq!(user_home.files(".cursor"), [""; 0]);
    }
}

#[test]
fn the_list_of_servers_that_may_be_used_gets_the_name_and_loses_it() {
    for (client, path) in [("gemini", ".gemini/settings.json"), ("qwen", ".qwen/settings.json")] {
        let user_home = UserHome::new();
        let text = "{\n  \"mcp\": { \"allowed\": [\"a\"] }, // only these\n  \"mcpServers\": {\n    \
                    \"a\": { \"command\": \"a\" }\n  }\n}\n";
        user_home.write(path, text);
        let done = user_home.weir(&["connect", client, "--url=https://a.example/mcp", "--write"]);
        assert!(done.code == 0 && done.err.contains("mcp.allowed"), "{}", done.err);
        let new = user_home.read(path);
        assert!(new.contains("\"allowed\": [\"a\", \"weir\"] }, // only these\n"), "{new}");
        // An entry over HTTP is Weir's if the configuration says so.
        user_home.write("project/weir.toml", "server.public_url = \"https://a.example\"\n");
        let done = user_home.weir(&["connect", client, "--remove"]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert_eq!(user_home.read(path), text);
    }
}

#[test]
fn opencode_gets_the_form_that_its_file_has() {
    let path = ".config/opencode/opencode.jsonc";
    for (old, new) in [
        (
            "{ \"mcp\": { \"servers\": { \"a\": { \"type\": \"local\", \"command\": [\"a\"] } } } }",
            true,
        ),
        ("{ \"mcp\": { \"servers\": { \"type\": \"local\", \"command\": [\"a\"] } } }", false),
        ("{ \"mcp\": { \"a\": { \"type\": \"local\", \"command\": [\"a\"] } } }", false),
        ("{ \"model\": \"x\" }", false),
    ] {
        let user_home = UserHome::new();
        user_home.write(path, old);
        let done = user_home.weir(&["connect", "opencode", "--url=https://a.example", "--write"]);
        assert_eq!(done.code, 0, "{}", done.err);
        let text: serde_json::Value =
            serde_json::from_str(&user_home.read(path)).expect("it is JSON");
        let mcp = &text["mcp"];
        let entry = if new { &mcp["servers"]["weir"] } else { &mcp["weir"] };
        assert_eq!(entry["url"], "https://a.example", "{text}");
        let done = user_home.weir(&["init", "--from", "opencode", "--print"]);
        assert!(done.out.contains("command = \"a\"") == old.contains("\"a\""), "{}", done.out);
    }
}

#[test]
fn every_format_keeps_marks_and_ends_of_lines() {
    for (client, path, text, entry) in [
        (
            "goose",
            ".config/goose/config.yaml",
            "\u{feff}# mine\r\nextensions:\r\n  a: # why\r\n    enabled: false\r\nx: 1\n",
            "  weir:\r\n    enabled: true\r\n",
        ),
        (
            "codex",
            ".codex/config.toml",
            "\u{feff}# mine\r\nmodel = \"x\" # why\n\r\n[mcp_servers.a]\r\ncommand = \"a\"",
            "[mcp_servers.weir]\r\n",
        ),
        (
            "zed",
            ".config/zed/settings.json",
            "\u{feff}// mine\r\n{\r\n  \"x\": 1, // why\n  \"context_servers\": {},\r\n}",
            "\"weir\": {",
        ),
    ] {
        let user_home = UserHome::new();
        user_home.write(path, text);
        let url = ["--url", "http://127.0.0.1:8642/mcp"];
        let done = user_home.weir(&[&["connect", client, "--write"], &url[..]].concat());
        assert_eq!(done.code, 0, "{client}: {}", done.err);
        let new = user_home.read(path);
        assert!(is_insertion(text, &new) && new.contains(entry), "{client}: {new:?}");
        let done = user_home.weir(&["connect", client, "--remove"]);
        assert_eq!(done.code, 0, "{client}: {}", done.err);
        let back = user_home.read(path);
        assert!(!back.contains("weir"), "{client}: {back:?}");
        for part in ["mine", "why"] {
            assert!(back.contains(part), "{client}: {back:?}");
        }
    }
}
