//! Generated page `docs/clients.md`: the files of each client and the entries for Weir in them.
//!
//! After a change: `WEIR_WRITE_DOCS=1 cargo test -p weir --lib cli::clients::connect`.

use std::fmt::Write;
use std::path::Path;

use super::entry::{ConnectMethod, PLACEHOLDER, entry};
use crate::cli::clients::document::Format;
use crate::cli::clients::edit::{EntryLocation, Insertion, insert};
use crate::cli::clients::known::CLIENTS;
use crate::cli::clients::{BaseFolder, HttpEntry, KeyPlacement, McpClient};

const INTRODUCTION: &str = include_str!("introduction.md");

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    CLIENTS.iter().for_each(|client| write_row(&mut page, client));
    CLIENTS.iter().for_each(|client| write_entries(&mut page, client));
    page
}

fn write_row(page: &mut String, client: &McpClient) {
    let McpClient { title, name, project_file, user_files, override_variable, .. } = client;
    let path = |(root, file): &(BaseFolder, &str)| {
        let folder = if matches!(root, BaseFolder::Home) { "~" } else { "~/.config" };
        format!("`{folder}/{file}`")
    };
    let files = match user_files {
        [] => "none: it has settings of its own".to_owned(),
        files => files.iter().map(path).collect::<Vec<_>>().join(", else "),
    };
    let moved = override_variable.map(|(variable, file)| match user_files.len() {
        1 => format!(", or `${variable}/{file}`"),
        // Several paths would make the cell too long.
        _ => format!(", or below `${variable}`"),
    });
    let moved = moved.unwrap_or_default();
    let project = project_file.map_or("–".to_owned(), |file| format!("`{file}`"));
    let key = match &client.http {
        HttpEntry::Bridge | HttpEntry::Url(_, KeyPlacement::ByHand) => "in the file",
        HttpEntry::Url(..) => "in a variable",
    };
    let then = client.next_step;
    writeln!(page, "| {title} | `{name}` | {files}{moved} | {project} | {key} | {then} |")
        .expect("a string");
}

fn write_entries(page: &mut String, client: &'static McpClient) {
    let http = |key: Option<&str>| ConnectMethod::Http {
        url: "http://127.0.0.1:8642/mcp".to_owned(),
        key: key.map(str::to_owned),
    };
    let stdio = ConnectMethod::Stdio {
        program: "/usr/local/bin/weir".to_owned(),
        config: "/home/me/weir.toml".to_owned(),
    };
    let language = match client.format {
        Format::Json => "json",
        Format::Toml => "toml",
        Format::Yaml => "yaml",
    };
    write!(page, "\n## {}\n", client.title).expect("a string");
    for (heading, way) in [
        ("Over standard input and output:", stdio),
        ("Over HTTP:", http(None)),
        ("Over HTTP with a key:", http(Some("WEIR_KEY"))),
    ] {
        let place = EntryLocation { client, name: "weir", path: Path::new("") };
        let entry = entry(client, "weir", &way);
        let inserted = insert("", &place, &entry, PLACEHOLDER, &|_| true);
        let Ok(Insertion::Text(text)) = inserted else { panic!("no entry for {}", client.name) };
        write!(page, "\n{heading}\n\n```{language}\n{text}```\n").expect("a string");
    }
}

#[test]
fn the_page_of_clients_is_up_to_date() {
    crate::cli::tests::check_page("docs/clients.md", &page(), "cli::connect");
}
