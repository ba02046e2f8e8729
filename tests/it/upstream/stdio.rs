//! A scripted upstream as a process: lines in, lines out.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir::jsonrpc::Message;
use weir::upstream::connect::Child;

use super::call::{Out, Sink};
use super::{Ear, QUEUE, Upstream};
use crate::checks::house::Running;

/// How much either side may write ahead of the other's reading.
const PIPE: usize = 64 * 1024;

impl Upstream {
    /// Starts the process; `between` is given its end of the pipes and gives what the house gets.
    pub(crate) fn spawn(
        &self,
        between: impl FnOnce(DuplexStream) -> DuplexStream,
    ) -> io::Result<Child> {
        let (number, stop) = self.connected()?;
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (stdout, stdin) = tokio::io::split(between(theirs));
        self.run(number, ours, stop.clone());
        Ok(Child {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: None,
            process: Box::new(Running(stop)),
        })
    }

    /// Opens a conversation without the process around it.
    pub(crate) fn pipe(&self) -> io::Result<DuplexStream> {
        let (number, stop) = self.connected()?;
        let (ours, theirs) = tokio::io::duplex(PIPE);
        self.run(number, ours, stop);
        Ok(theirs)
    }

    fn run(&self, number: u64, io: DuplexStream, stop: CancellationToken) {
        let (input, output) = tokio::io::split(io);
        let (sender, outs) = mpsc::channel(QUEUE);
        self.tasks.spawn(write(output, outs, stop.clone()));
        let upstream = self.clone();
        self.tasks.spawn(async move {
            let reading = upstream.read(number, input, Sink(sender));
            stop.run_until_cancelled(reading).await;
            upstream.ended(number);
            // A server whose input has ended exits.
            stop.cancel();
        });
    }

    /// A process has ended.
    fn ended(&self, number: u64) {
        let mut state = self.lock();
        state.subscriptions.remove(&number);
        if !state.talked.remove(&number) {
            state.cut_probes += 1;
        }
    }

    async fn read(&self, number: u64, input: ReadHalf<DuplexStream>, sink: Sink) {
        let (mut input, mut read) = (BufReader::new(input), String::new());
        let mut initialized = false;
        loop {
            read.clear();
            // Without its end it is no line: whoever wrote it was cut off.
            let Ok(1..) = input.read_line(&mut read).await else { return };
            let Some(line) = read.strip_suffix('\n').map(str::to_owned) else { return };
            self.heard(line.as_bytes());
            if !line.contains("server/discover") {
                self.lock().talked.insert(number);
            }
            match Message::parse(line.clone().into()) {
                Ok(Message::Request(request)) => {
                    let early =
                        matches!(&*request.method, "initialize" | "server/discover" | "ping");
                    if !self.side().is_modern() && !initialized && !early {
                        self.note_surprise(format!("{} before initialized", request.method));
                    }
                    self.receive(number, request, hyper::HeaderMap::new(), sink.clone());
                }
                Ok(Message::Notification(note)) => match &*note.method {
                    "notifications/initialized" if !self.side().is_modern() => {
                        initialized = true;
                        self.listened(Ear { of: number, sink: sink.clone(), listen: None });
                    }
                    "notifications/cancelled" => self.cancelled(number, &note.params),
                    other => self.note_surprise(format!("unknown notification {other}")),
                },
                Ok(Message::Answer(_)) => self.answered(line),
                Err(_) => self.note_surprise(format!("odd line {line}")),
            }
        }
    }
}

async fn write(
    mut output: WriteHalf<DuplexStream>,
    mut outs: mpsc::Receiver<Out>,
    stop: CancellationToken,
) {
    loop {
        let out = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            out = outs.recv() => out,
        };
        let bytes = match out {
            Some(Out::Note(line) | Out::Last(line)) => [&line[..], b"\n"].concat(),
            Some(Out::Piece(piece)) => piece.to_vec(),
            Some(Out::HangUp | Out::Status(..)) | None => return stop.cancel(),
        };
        let written = stop.run_until_cancelled(output.write_all(&bytes)).await;
        if !matches!(written, Some(Ok(()))) {
            return stop.cancel();
        }
    }
}
