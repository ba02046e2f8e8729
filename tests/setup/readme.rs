//! The README shows what `weir connect` prints.

use crate::desk::{CLIENTS, Desk};

#[test]
fn the_readme_shows_what_connect_prints() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
    let readme = readme.expect("a README");
    let section = readme.split("## Point a client at it\n").nth(1).expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let desk = Desk::new();
    let mut printed = Vec::new();
    for client in &CLIENTS {
        for way in [
            ["--stdio", "--config=/home/me/weir.toml"],
            ["--http", "--url=http://127.0.0.1:8642/mcp"],
        ] {
            let done = desk.weir(&["connect", client.name, way[0], way[1]]);
            assert_eq!(done.code, 0, "{}", done.err);
            let language = if client.name == "codex" { "toml" } else { "json" };
            let block = format!("```{language}\n{}```\n", done.out);
            assert!(section.contains(&block), "README.md lacks, of {}:\n{block}", client.name);
            printed.push(block);
        }
        assert!(section.contains(&format!("`{}`", client.name)), "{}", client.name);
        let file = client.user.rsplit('/').next().unwrap_or_default();
        assert!(section.contains(file), "{file}");
    }
    let blocks = section.split("```").skip(1).step_by(2).map(|block| format!("```{block}```\n"));
    for block in blocks.filter(|block| !block.starts_with("```sh")) {
        assert!(printed.contains(&block), "nobody prints this:\n{block}");
    }
}
