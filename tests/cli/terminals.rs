//! Commands on a real terminal: their lines break between words, and words that tell states apart
//! have colors.

use std::cell::RefCell;
use std::path::Path;

use insta::assert_snapshot;

use super::watching::Terminal;
use super::{folder, script, scripted};

/// Runs a command on a terminal of this width until it has written `last`, and returns the rows and
/// the colors of their first letters.
fn shown(folder: &Path, arguments: &[&str], columns: u16, last: &str) -> (String, String) {
    let mut command = super::program();
    command.args(arguments).current_dir(folder);
    let terminal = Terminal::start(&command, ROWS, columns);
    let colors = RefCell::new(String::new());
    let text = terminal.wait_for(|screen, text| {
        let first = (0..ROWS).filter_map(|row| screen.cell(row, 0));
        *colors.borrow_mut() = first.filter_map(color).collect();
        text.split_whitespace().collect::<Vec<_>>().join(" ").ends_with(last)
    });
    (text, colors.into_inner())
}

/// First letter of a color's name.
fn color(cell: &vt100::Cell) -> Option<char> {
    match cell.fgcolor() {
        vt100::Color::Idx(1) => Some('r'),
        vt100::Color::Idx(2) => Some('g'),
        vt100::Color::Idx(3) => Some('y'),
        _ => None,
    }
}

fn fleet() -> tempfile::TempDir {
    let folder = folder(&format!(
        "[upstreams.house]\nprompts_dir = \"prompts\"\n{}[upstreams.gone]\ncommand = \"/nonexistent/server\"\n",
        scripted("hub")
    ));
    let tools = r#""result":{"tools":[{"name":"add","description":"Adds a note, and with it a resource that can be read.","inputSchema":{"type":"object"}}]}"#;
    script(folder.path(), "hub", &[("tools/list", tools)]);
    let bad = "---\ntitel: x\n---\nHello!\n";
    std::fs::write(folder.path().join("prompts/bad.md"), bad).expect("written");
    folder
}

#[test]
fn the_report_of_a_check_fits_its_terminal() {
    let folder = fleet();
    let (wide, colors) = shown(folder.path(), &["check"], 80, "incomplete: house");
    assert_eq!(colors, "ygr");
    assert_snapshot!(wide, @r"
    incomplete  house  library  2 prompts
                       left out: file bad.md:2: unknown field `titel`, expected one
                       of name, title, description, version, arguments, messages
    ok          hub    stdio 2025-06-18  1 tool
    down        gone   it cannot be started: no such program: /nonexistent/server;
                       install it, or correct `command`
    weir: 1 of 3 upstreams cannot be used: gone; 1 of 3 upstreams incomplete: house
    ");
    let (narrow, colors) = shown(folder.path(), &["check"], 50, "incomplete: house");
    assert_eq!(colors, "ygr");
    assert_snapshot!(narrow, @r"
    incomplete  house  library  2 prompts
        left out: file bad.md:2: unknown field
        `titel`, expected one of name, title,
        description, version, arguments, messages
    ok          hub    stdio 2025-06-18  1 tool
    down        gone   it cannot be started: no such
        program: /nonexistent/server; install it, or
        correct `command`
    weir: 1 of 3 upstreams cannot be used: gone; 1 of
      3 upstreams incomplete: house
    ");
}

#[test]
fn a_list_fits_its_terminal() {
    let folder = fleet();
    let arguments = ["list", "--upstream", "house", "--upstream", "hub"];
    let (wide, _) = shown(folder.path(), &arguments, 80, "can be read.");
    assert_snapshot!(wide, @r"
    prompts
      house__greeting     Greets somebody.
      house__secret-plan  Nobody may see it.
    tools
      hub__add  Adds a note, and with it a resource that can be read.
    ");
    let (narrow, _) = shown(folder.path(), &arguments, 50, "can be read.");
    assert_snapshot!(narrow, @r"
    prompts
      house__greeting     Greets somebody.
      house__secret-plan  Nobody may see it.
    tools
      hub__add  Adds a note, and with it a resource
          that can be read.
    ");
}

#[test]
fn stdio_by_hand_says_that_a_client_starts_it() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let mut command = super::program();
    command.arg("stdio").current_dir(folder.path());
    let terminal = Terminal::start(&command, ROWS, 80);
    let said = terminal.wait_for(|_, text| text.contains("Ctrl-C"));
    assert!(said.contains("an MCP client starts this command"), "{said}");
    assert!(said.contains("`weir connect`") && said.contains("`weir check`"), "{said}");
}

#[test]
fn the_end_of_input_on_a_terminal_ends_stdio() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let mut command = super::program();
    command.arg("stdio").current_dir(folder.path());
    let mut terminal = Terminal::start(&command, ROWS, 80);
    terminal.wait_for(|_, text| text.contains("Ctrl-C"));
    // Ctrl-D, once.
    terminal.press(b"\x04");
    terminal.ends_with(0);
}

#[test]
fn messages_and_warnings_break_between_words() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"promts\"\n");
    let (text, _) = shown(folder.path(), &["check", "--offline"], 50, "is valid");
    assert_snapshot!(text, @r#"
    warning: upstreams.house.prompts_dir: there is no
      folder promts
     --> weir.toml:2:15
      |
    2 | prompts_dir = "promts"
      |               ^^^^^^^^ make it, or correct the
        path: it starts from the folder of this file
    the configuration is valid
    "#);
    std::fs::remove_file(folder.path().join("weir.toml")).expect("removed");
    let (text, _) = shown(folder.path(), &["init", "--dir", "new"], 50, "client has already");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "shows what clients will see `weir connect CLIENT --config new/weir.toml` prints \
                    the entry for a client, such as claude-code or cursor";
    assert!(words.contains(expected), "{text}");
}

#[test]
fn the_log_of_serve_is_short_on_a_terminal() {
    let folder = folder(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nenabled = false\n\
         [upstreams.house]\nprompts_dir = \"prompts\"\n",
    );
    let mut command = super::program();
    command.arg("serve").current_dir(folder.path());
    let mut terminal = Terminal::start(&command, ROWS, 80);
    let log = terminal.wait_for(|_, text| text.contains("upstream listed: house, 2 prompts"));
    assert!(log.contains("Z INFO  upstream connected: house, 2025-11-25, library"), "{log}");
    assert!(log.contains("Z INFO  ready: http://127.0.0.1:"), "{log}");
    terminal.press(b"\x03");
    terminal.ends_with(0);
}

const ROWS: u16 = 30;
