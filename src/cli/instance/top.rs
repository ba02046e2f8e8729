//! `weir top`: shows the load of a running Weir, once a second.
//!
//! On a terminal it draws on the alternate screen and always restores the terminal; elsewhere it
//! prints one sample. If the instance ends, it shows that above the last sample, and continues
//! with the next instance.

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
use crate::cli::instance::admin_client::AdminClient;
use crate::cli::instance::status::{find_instance, or_mistakes};
use crate::cli::loading::ConfigArgs;
use crate::cli::output;
use crate::cli::server::signals::Signals;
use sample::{RenderOptions, Sample};
use terminal::{Terminal, supports_drawing};

/// Arguments of `weir top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prints one sample of one second and ends, as it does if standard output is not a terminal.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Shows samples until a key or a signal ends the command.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let first = async {
        let (running, status) = poll(None, &args.config).await;
        Ok((running, status?))
    };
    let (mut running, first) = signals.run_until_signal(first).await?;
    if args.once || !supports_drawing() {
        let second = async {
            ticks.tick().await;
            poll(running, &args.config).await.1
        };
        let second = signals.run_until_signal(second).await?;
        return print(&first, &second);
    }
    let mut terminal = Terminal::open()?;
    let mut screen = Screen::of(first);
    let mut input = tokio::io::stdin();
    let mut byte = [0];
    let mut reads_keys = true;
    // At most one request at a time; keys are read while it waits for its response.
    let mut pending_poll = pin!(Fuse::terminated());
    screen.draw(&terminal);
    loop {
        tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            read = input.read(&mut byte), if reads_keys => match read {
                // Ctrl-C arrives as a signal; Ctrl-D is the end of input.
                Ok(1) if matches!(byte[0], b'q' | b'Q' | CTRL_D) => return Ok(()),
                Ok(1) => {}
                Ok(_) | Err(_) => reads_keys = false,
            },
            () = terminal.redraw_needed() => screen.draw(&terminal),
            (found, result) = &mut pending_poll => {
                running = found;
                screen.update(result);
                screen.draw(&terminal);
            }
            _ = ticks.tick() => if pending_poll.is_terminated() {
                pending_poll.set(poll(running.take(), &args.config).fuse());
            }
        }
    }
}

/// Requests the status from the instance. If it has ended, the next one is looked up in the
/// configuration, which may have changed. Returns the client while its instance responds.
async fn poll(
    found: Option<Arc<AdminClient>>,
    config: &ConfigArgs,
) -> (Option<Arc<AdminClient>>, Result<Status, Failure>) {
    let running = match found {
        Some(running) => running,
        None => match find_instance(config).await {
            Ok(running) => Arc::new(running),
            Err(failure) => return (None, Err(failure)),
        },
    };
    match running.status().await {
        Ok(status) => (Some(running), Ok(status)),
        Err(failure) => (None, Err(or_mistakes(config, failure).await)),
    }
}

/// Drawn state: the last two statuses, and why there is no newer one.
struct Screen {
    before: Status,
    after: Status,
    failure: Option<String>,
}

impl Screen {
    fn of(first: Status) -> Self {
        Self { before: first.clone(), after: first, failure: None }
    }

    fn update(&mut self, result: Result<Status, Failure>) {
        match result {
            Ok(status) => {
                self.before = std::mem::replace(&mut self.after, status);
                self.failure = None;
            }
            Err(failure) => self.failure = Some(failure.to_string()),
        }
    }

    fn draw(&self, terminal: &Terminal) {
        let (columns, rows) = terminal.size();
        let options = RenderOptions { columns, rows, colored: output::Color::on_stdout() };
        let sample =
            Sample::between(&self.before, &self.after).with_failure(self.failure.as_deref());
        terminal.draw(&sample.to_text(options));
    }
}

fn print(before: &Status, after: &Status) -> Result<(), Failure> {
    // Output for a program is not shortened.
    let columns = if output::is_terminal() { output::columns() } else { usize::MAX };
    let options = RenderOptions { columns, rows: usize::MAX, colored: output::Color::on_stdout() };
    let text = Sample::between(before, after).to_text(options);
    output::print(|out| out.write_all(text.as_bytes()))
}

const CTRL_D: u8 = 4;
/// Interval between two requests.
const INTERVAL: Duration = Duration::from_secs(1);
