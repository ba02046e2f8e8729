//! `weir top` on a real terminal: its screen at any size, and the restored terminal after its end.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::operating::Served;
use crate::lab::blocking::{pause, wait_for_exit};
use crate::lab::process::state_of;
use crate::lab::{PATIENCE, wait_until};

/// Terminal, and the program that runs on it.
pub(super) struct Terminal {
    ours: File,
    theirs: File,
    screen: Arc<Mutex<vt100::Parser>>,
    program: Child,
}

impl Terminal {
    /// Starts a command with the terminal as its controlling terminal.
    pub(super) fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("its other end");
        let path = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("text");
        let not_ours = i32::try_from(OpenptFlags::NOCTTY.bits()).expect("a flag");
        let open = || OpenOptions::new().read(true).write(true).custom_flags(not_ours).open(&path);
        let (ours, theirs) = (File::from(ours), open().expect("it opens"));
        let end = || Stdio::from(theirs.try_clone().expect("a copy"));
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
        leader.stdin(end()).stdout(end()).stderr(end());
        leader.current_dir(command.get_current_dir().expect("a folder"));
        leader.env("TERM", "xterm").env_remove("NO_COLOR");
        for (name, value) in command.get_envs() {
            leader.env(name, value.expect("it is set"));
        }
        let screen = Arc::new(Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)));
        tcsetwinsize(&ours, size(rows, columns)).expect("it has a size");
        let program = leader.spawn().expect("it starts");
        let (mut output, seen) = (ours.try_clone().expect("a copy"), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                seen.lock().expect("the lock is not poisoned").process(&bytes[..count]);
            }
        });
        Self { ours, theirs, screen, program }
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.screen
            .lock()
            .expect("the lock is not poisoned")
            .screen_mut()
            .set_size(some(rows), some(columns));
        tcsetwinsize(&self.ours, size(rows, columns)).expect("it has a size");
    }

    fn press(&mut self, keys: &[u8]) {
        self.ours.write_all(keys).expect("it listens");
    }

    /// Waits until the screen is as expected, and returns its text.
    fn wait_for(&self, expected: impl Fn(&vt100::Screen, &str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let parser = self.screen.lock().expect("the lock is not poisoned");
            let text = row_by_row(parser.screen());
            if expected(parser.screen(), &text) {
                return text;
            }
            drop(parser);
            assert!(start.elapsed() < PATIENCE, "{text}");
            pause();
        }
    }

    /// Whether the terminal is in line mode with echo, on its main screen, with a visible cursor.
    fn is_restored(&self) -> bool {
        let modes = tcgetattr(&self.theirs).expect("a terminal").local_modes;
        let is_cooked = modes.contains(LocalModes::ICANON | LocalModes::ECHO);
        let parser = self.screen.lock().expect("the lock is not poisoned");
        is_cooked && !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
    }

    fn ends_with(&mut self, code: i32) {
        assert_eq!(wait_for_exit(&mut self.program).code(), Some(code));
        // The last output may still be on its way.
        wait_until("the terminal is as it was", || self.is_restored());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn some(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("it is not 0")
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Rows of the screen. The emulator itself joins a row with the next one while text wrapped there,
/// which may have been drawn for another size.
fn row_by_row(screen: &vt100::Screen) -> String {
    let (_, columns) = screen.size();
    let rows: Vec<_> = screen.rows(0, columns.get()).map(|row| row.trim_end().to_owned()).collect();
    rows.join("\n").trim_end().to_owned()
}

const FLEET: &str = "[upstreams.house]\nprompts_dir = \"prompts\"\n\
    [upstreams.gone-and-with-a-rather-long-name]\nurl = \"http://127.0.0.1:1/mcp\"\n";

fn served() -> Served {
    Served::start_in(FLEET, |_| {})
}

fn top(served: &Served) -> Command {
    let mut command = super::program();
    command.arg("top").current_dir(served.folder.path());
    command
}

#[test]
fn top_tells_what_is_wrong_on_a_terminal_of_any_size() {
    let served = served();
    let mut terminal = Terminal::start(&top(&served), 24, 80);
    let reports = |text: &str| text.contains("gone-and-with-a-rather-long-name  down for");
    let text = terminal.wait_for(|screen, text| screen.alternate_screen() && reports(text));
    assert!(text.starts_with("weir ") && text.contains("q ends"), "{text}");
    assert!(text.lines().count() <= 24 && text.contains("refused"), "{text}");
    for (rows, columns) in [(50, 200), (10, 40), (5, 20), (24, 80)] {
        terminal.resize(rows, columns);
        // Text drawn for another size stays for a moment; it has no line that is cut at this size's
        // edge.
        let is_cut =
            |line: &str| line.ends_with('…') && line.chars().count() == usize::from(columns);
        let is_drawn = |text: &str| match columns {
            200 => text.contains("Connection refused (os error 111); again in"),
            80 => text.contains("err/s"),
            _ => text.lines().any(is_cut),
        };
        // A line that is too long would have moved the lines below it.
        let fits = |text: &str| {
            let head: Vec<_> = text.lines().take(3).collect();
            matches!(head[..], [first, second, third] if first.starts_with("weir ")
                && second.starts_with("0 connections") && third.contains(" MiB  "))
        };
        terminal.wait_for(|_, text| is_drawn(text) && fits(text));
    }
    terminal.press(b"x");
    terminal.press(b"q");
    terminal.ends_with(0);
}

#[test]
fn a_command_on_a_terminal_says_whom_it_waits_for() {
    let folder =
        super::folder("[upstreams.mute]\ncommand = \"tail\"\nargs = [\"-f\", \"/dev/null\"]\n");
    let mut command = super::program();
    command.args(["list", "tools"]).current_dir(folder.path());
    let mut terminal = Terminal::start(&command, 24, 80);
    terminal.wait_for(|_, text| text.contains(" s  ") && text.contains("mute"));
    terminal.press(b"\x03");
    terminal.ends_with(130);
}

#[test]
fn a_progress_line_is_cut_where_the_terminal_ends_and_cleared_before_anything_else() {
    let folder = super::folder(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nenabled = false\n\
         [upstreams.mute-and-with-a-long-name]\ncommand = \"tail\"\nargs = [\"-f\", \"/dev/null\"]\n",
    );
    for (arguments, code) in [(&["list", "tools"][..], 130), (&["serve"], 0)] {
        let mut command = super::program();
        command.args(arguments).current_dir(folder.path());
        let mut terminal = Terminal::start(&command, 24, 30);
        let is_line = |line: &str| line.contains(" s  waiting for mute-and");
        let text = terminal.wait_for(|_, text| text.lines().last().is_some_and(is_line));
        assert_eq!(text.lines().filter(|line| line.contains("mute")).count(), 1, "{text}");
        terminal.press(b"\x03");
        terminal.ends_with(code);
        terminal.wait_for(|_, text| !text.contains("mute"));
    }
}

#[test]
fn top_ends_at_once_by_any_way_out_and_leaves_the_terminal_as_it_was() {
    let served = served();
    for way in [&b"q"[..], b"Q", b"\x03", b"\x04"] {
        let mut terminal = Terminal::start(&top(&served), 24, 80);
        terminal.wait_for(|screen, text| screen.alternate_screen() && text.contains("house"));
        assert!(!terminal.is_restored());
        terminal.press(way);
        terminal.ends_with(0);
    }
    let mut terminal = Terminal::start(&top(&served), 24, 80);
    terminal.wait_for(|screen, text| screen.alternate_screen() && text.contains("house"));
    kill_process(Pid::from_child(&terminal.program), Signal::TERM).expect("it runs");
    terminal.ends_with(0);
}

#[test]
fn top_gives_the_terminal_back_while_it_is_suspended() {
    let served = served();
    let mut terminal = Terminal::start(&top(&served), 24, 80);
    terminal.wait_for(|screen, text| screen.alternate_screen() && text.contains("house"));
    terminal.press(b"\x1a");
    terminal.wait_for(|screen, _| !screen.alternate_screen() && !screen.hide_cursor());
    let program = terminal.program.id();
    wait_until("it is suspended", || state_of(program) == Some('T'));
    assert!(terminal.is_restored());
    kill_process(Pid::from_child(&terminal.program), Signal::CONT).expect("it is there");
    terminal.wait_for(|screen, text| screen.alternate_screen() && text.contains("house"));
    terminal.press(b"q");
    terminal.ends_with(0);
}

#[test]
fn top_outlives_the_weir_that_it_shows_and_goes_on_with_the_next() {
    let served = served();
    let mut terminal = Terminal::start(&top(&served), 24, 80);
    terminal.wait_for(|screen, text| screen.alternate_screen() && text.contains("house"));
    let mut silent = String::new();
    let served = served.again(|_| {
        silent = terminal.wait_for(|_, text| text.contains("no response"));
    });
    assert!(silent.contains("house") && silent.contains("last known state"), "{silent}");
    terminal.wait_for(|_, text| !text.contains("no response") && text.contains("house"));
    drop(served);
    terminal.wait_for(|_, text| text.contains("no response"));
    terminal.press(b"q");
    terminal.ends_with(0);
}

#[test]
fn top_has_colors_where_they_are_wanted_and_says_the_same_without() {
    let served = served();
    let is_colored = |screen: &vt100::Screen| {
        let (rows, columns) = screen.size();
        let (rows, columns) = (rows.get(), columns.get());
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        cells.into_iter().any(|(row, column)| {
            screen.cell(row, column).is_some_and(|cell| cell.fgcolor() != vt100::Color::Default)
        })
    };
    for (wanted, name, value) in [(true, "COLUMNS", "80"), (false, "NO_COLOR", "1")] {
        let mut command = top(&served);
        command.env(name, value);
        let terminal = Terminal::start(&command, 24, 80);
        terminal.wait_for(|screen, text| {
            text.contains("down for") && text.contains("ready") && is_colored(screen) == wanted
        });
    }
    // The terminal has no known type: one sample is printed, as into a pipe.
    let mut command = top(&served);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(&command, 24, 80);
    terminal.ends_with(0);
    let text = terminal.wait_for(|_, text| text.contains("err/s"));
    assert!(text.contains("weir "), "{text}");

    let output = top(&served).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && !text.contains('\u{1b}'), "{text}");
    assert!(text.contains("Connection refused (os error 111)"), "nothing is cut: {text}");
}
