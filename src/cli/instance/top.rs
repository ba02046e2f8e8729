//! `weir top`: what a running Weir does at this moment, once a second.
//!
//! On a terminal it draws in place, on the terminal's other screen, and leaves the terminal as it was, however it ends;
//! elsewhere it prints one sample. It outlives the Weir that it looks at: while nobody answers it says so, above what was
//! seen last, and goes on with whatever is started next.
//!
//! Knows nothing of: how a sample looks.

mod sample;
mod terminal;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Fuse, FusedFuture};
use tokio::io::AsyncReadExt;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::status::Status;
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::Running;
use crate::cli::instance::status::ask;
use crate::cli::output;
use crate::cli::query::oneshot::ConfigArgs;
use crate::cli::server::signals::Signals;
use sample::{Paper, Sample};
use terminal::{Terminal, Wish, is_drawable};

/// What `weir top` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prints one sample of a second, and ends; so it does where standard output is no terminal.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Shows what happens until somebody has seen enough.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let running = Arc::new(signals.end(ask(&args.config)).await?);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let first = signals.end(async { Ok(running.status().await?) }).await?;
    if args.once || !is_drawable() {
        let second = async {
            ticks.tick().await;
            Ok(running.status().await?)
        };
        let second = signals.end(second).await?;
        return print(&first, &second);
    }
    let mut terminal = Terminal::open()?;
    let mut screen = Screen::of(first);
    let mut input = tokio::io::stdin();
    let mut byte = [0];
    let mut is_heard = true;
    // One question at a time; a key is heard while nobody answers.
    let mut asking = pin!(Fuse::terminated());
    let mut running = Some(running);
    screen.draw(&terminal);
    loop {
        tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            read = input.read(&mut byte), if is_heard => match read {
                // Ctrl-C is a signal; Ctrl-D is what ends an input.
                Ok(1) if matches!(byte[0], b'q' | b'Q' | CTRL_D) => return Ok(()),
                Ok(1) => {}
                Ok(_) | Err(_) => is_heard = false,
            },
            wish = terminal.wish() => {
                if wish == Wish::Rest {
                    terminal.rest();
                }
                screen.draw(&terminal);
            }
            (found, told) = &mut asking => {
                running = found;
                screen.take(told);
                screen.draw(&terminal);
            }
            _ = ticks.tick() => if asking.is_terminated() {
                asking.set(look(running.take(), &args.config).fuse());
            }
        }
    }
}

/// Asks the Weir that was found; where it has ended the next one is looked for as the first was, since a configuration
/// may have changed. Returns it as long as it answers.
async fn look(
    found: Option<Arc<Running>>,
    config: &ConfigArgs,
) -> (Option<Arc<Running>>, Result<Status, Failure>) {
    let running = match found {
        Some(running) => running,
        None => match ask(config).await {
            Ok(running) => Arc::new(running),
            Err(failure) => return (None, Err(failure)),
        },
    };
    match running.status().await {
        Ok(status) => (Some(running), Ok(status)),
        Err(silence) => (None, Err(silence.into())),
    }
}

/// What is drawn: the last two looks, and why there is no newer one.
struct Screen {
    before: Status,
    after: Status,
    silence: Option<String>,
}

impl Screen {
    fn of(first: Status) -> Self {
        Self { before: first.clone(), after: first, silence: None }
    }

    fn take(&mut self, told: Result<Status, Failure>) {
        match told {
            Ok(status) => {
                self.before = std::mem::replace(&mut self.after, status);
                self.silence = None;
            }
            Err(failure) => self.silence = Some(failure.to_string()),
        }
    }

    fn draw(&self, terminal: &Terminal) {
        let (columns, rows) = terminal.size();
        let paper = Paper { columns, rows, colored: output::Color::on_stdout() };
        let sample = Sample::of(&self.before, &self.after).without(self.silence.as_deref());
        terminal.draw(&sample.to_text(paper));
    }
}

fn print(before: &Status, after: &Status) -> Result<(), Failure> {
    // What is read by a program is not cut.
    let columns = if output::is_terminal() { output::columns() } else { usize::MAX };
    let paper = Paper { columns, rows: usize::MAX, colored: output::Color::on_stdout() };
    let text = Sample::of(before, after).to_text(paper);
    output::print(|out| out.write_all(text.as_bytes()))
}

const CTRL_D: u8 = 4;
/// How often it is looked.
const EVERY: Duration = Duration::from_secs(1);
