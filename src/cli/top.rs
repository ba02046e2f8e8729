//! `weir top`: what a running Weir does at this moment, once a second.
//!
//! On a terminal it draws in place, on the terminal's other screen, and leaves the terminal as it was, however it ends;
//! elsewhere it prints one sample.
//!
//! Knows nothing of: how a sample looks.

mod sample;

use std::io::Write;
use std::time::Duration;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::io::AsyncReadExt;
use tokio::time::{MissedTickBehavior, interval};

use super::failure::Failure;
use super::house::ConfigArgs;
use super::output;
use super::signals::Signals;
use super::status::ask;
use crate::ops::status::Status;
use sample::Sample;

/// What `weir top` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prints one sample of a second, and ends; so it does where standard output is no terminal.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Shows what happens until somebody has seen enough.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let running = signals.end(ask(&args.config)).await?;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut before = signals.end(async { Ok(running.status().await?) }).await?;
    if args.once || !output::is_terminal() {
        let after = signals
            .end(async {
                ticks.tick().await;
                Ok(running.status().await?)
            })
            .await?;
        return print(&before, &after);
    }
    let _screen = Screen::open();
    let _keys = Keys::open();
    let mut input = tokio::io::stdin();
    let mut byte = [0];
    let mut is_heard = true;
    draw(&before, &before);
    loop {
        tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            read = input.read(&mut byte), if is_heard => match read {
                // Ctrl-C is a signal; Ctrl-D is what ends an input.
                Ok(1) if matches!(byte[0], b'q' | b'Q' | 4) => return Ok(()),
                Ok(1) => {}
                Ok(_) | Err(_) => is_heard = false,
            },
            _ = ticks.tick() => {
                let after = running.status().await?;
                draw(&before, &after);
                before = after;
            }
        }
    }
}

fn print(before: &Status, after: &Status) -> Result<(), Failure> {
    let text = Sample::of(before, after).to_text(output::columns(), usize::MAX);
    output::print(|out| out.write_all(text.as_bytes()))
}

fn draw(before: &Status, after: &Status) {
    let rows =
        rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| usize::from(size.ws_row));
    let rows = rows.ok().filter(|rows| *rows > 0).unwrap_or(24);
    let text = Sample::of(before, after).to_text(output::columns(), rows.saturating_sub(1));
    // Each line replaces what stood there, and nothing is left below: so nothing flickers.
    let lines = text.lines().map(|line| format!("{line}{END_OF_LINE}\r\n"));
    write(&format!("{HOME}{}{END_OF_SCREEN}", lines.collect::<String>()));
}

/// The terminal's other screen, without a cursor. Dropped, all is as before.
struct Screen;

impl Screen {
    fn open() -> Self {
        write("\u{1b}[?1049h\u{1b}[?25l");
        Self
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write("\u{1b}[?25h\u{1b}[?1049l");
    }
}

/// Keys that are heard one by one and not shown. Dropped, the terminal takes lines again.
struct Keys(Option<Termios>);

impl Keys {
    fn open() -> Self {
        let Ok(before) = tcgetattr(std::io::stdin()) else { return Self(None) };
        let mut modes = before.clone();
        modes.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        let is_set = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes).is_ok();
        Self(is_set.then_some(before))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // A terminal that is gone needs nothing any more.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) {
    let mut terminal = std::io::stdout().lock();
    // Whoever closes the terminal sees nothing any more.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

const HOME: &str = "\u{1b}[H";
const END_OF_LINE: &str = "\u{1b}[K";
const END_OF_SCREEN: &str = "\u{1b}[J";
/// How often it is looked.
const EVERY: Duration = Duration::from_secs(1);
