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
            let language = if client.name == "codex" { "toml" } else { "json" };
            let block = format!("```{language}\n{}```\n", done.out);
            assert!(page.contains(&block), "docs/clients.md lacks, of {}:\n{block}", client.name);
        }
        let row = page.lines().find(|row| row.contains(&format!("| `{}` |", client.name)));
        let file = client.user.rsplit('/').next().unwrap_or_default();
        assert!(row.is_some_and(|row| row.contains(file)), "{file}");
    }
}
