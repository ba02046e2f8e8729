//! `weir connect` prints the entries of the generated page `docs/clients.md`.

use crate::user_home::{CLIENTS, UserHome};

#[test]
fn connect_prints_the_entries_of_the_page_of_clients() {
    let page = include_str!("../../docs/clients.md");
    let user_home = UserHome::new();
    let (url, config) = ("--url=http://127.0.0.1:8642/mcp", "--config=/home/me/weir.toml");
    for client in &CLIENTS {
        for options in [&["--stdio", config][..], &[url], &[url, "--key-env=WEIR_KEY"]] {
            let done = user_home.weir(&[&["connect", client.name], options].concat());
            assert_eq!(done.code, 0, "{}", done.err);
            let language = match client.name {
                "codex" => "toml",
                "goose" => "yaml",
                _ => "json",
            };
            let block = format!("```{language}\n{}```\n", done.out);
            assert!(page.contains(&block), "docs/clients.md lacks, of {}:\n{block}", client.name);
        }
        let row = page.lines().find(|row| row.contains(&format!("| `{}` |", client.name)));
        let file = client.user.rsplit('/').next().unwrap_or_default();
        assert!(row.is_some_and(|row| row.contains(file)), "{file}");
    }
}

#[test]
fn a_client_without_a_file_has_its_entry_printed() {
    let page = include_str!("../../docs/clients.md");
    let user_home = UserHome::new();
    let done = user_home.weir(&["connect", "jetbrains", "--stdio", "-c", "/home/me/weir.toml"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(page.contains(&format!("```json\n{}```\n", done.out)), "{}", done.out);
    assert!(done.err.contains("then: paste the entry in the IDE's settings"), "{}", done.err);
    for option in ["--write", "--take-over", "--remove"] {
        let done = user_home.weir(&["connect", "jetbrains", option]);
        assert!(done.code == 2 && done.err.contains("not in a file"), "{}", done.err);
    }
    let done = user_home.weir(&["init", "--from", "jetbrains"]);
    assert!(done.code == 2 && done.err.contains("--from FILE"), "{}", done.err);
}
