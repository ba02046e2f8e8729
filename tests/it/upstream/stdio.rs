//! A scripted upstream as a process: lines in, lines out.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_mcp::jsonrpc::Message;
use weir_upstream::connect::Child;

use super::call::{Output, OutputSink};
use super::{Listener, QUEUE, Upstream};
use crate::checks::gateway::FakeProcess;

/// Bytes that either side may write before the other reads.
const PIPE: usize = 64 * 1024;

impl Upstream {
    /// Starts the process; `wrapper` wraps its end of the pipes and returns the gateway's end.
    pub(crate) fn spawn(
        &self,
        wrapper: impl FnOnce(DuplexStream) -> DuplexStream,
    ) -> io::Result<Child> {
        let (number, stop) = self.connected()?;
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (stdout, stdin) = tokio::io::split(wrapper(theirs));
        self.run(number, ours, stop.clone());
        Ok(Child {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: None,
            process: Box::new(FakeProcess(stop)),
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
            let reading = upstream.read(number, input, OutputSink(sender));
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
        if !state.spoken_processes.remove(&number) {
            state.aborted_probes += 1;
        }
    }

    async fn read(&self, number: u64, input: ReadHalf<DuplexStream>, sink: OutputSink) {
        let (mut input, mut read) = (BufReader::new(input), String::new());
        let mut initialized = false;
        loop {
            read.clear();
            // A line without its end is no line: its writer was cut off.
            let Ok(1..) = input.read_line(&mut read).await else { return };
            let Some(line) = read.strip_suffix('\n').map(str::to_owned) else { return };
            self.check_received(line.as_bytes());
            if !line.contains("server/discover") {
                self.lock().spoken_processes.insert(number);
            }
            match Message::parse(line.clone().into()) {
                Ok(Message::Request(request)) => {
                    let early =
                        matches!(&*request.method, "initialize" | "server/discover" | "ping");
                    if !self.side().is_modern() && !initialized && !early {
                        self.record_violation(format!("{} before initialized", request.method));
                    }
                    self.receive(number, request, hyper::HeaderMap::new(), sink.clone());
                }
                Ok(Message::Notification(note)) => match &*note.method {
                    "notifications/initialized" if !self.side().is_modern() => {
                        initialized = true;
                        self.add_listener(Listener {
                            of: number,
                            sink: sink.clone(),
                            listen: None,
                        });
                    }
                    "notifications/cancelled" => self.cancelled(number, &note.params),
                    other => self.record_violation(format!("unknown notification {other}")),
                },
                Ok(Message::Response(_)) => self.record_response(line),
                Err(_) => self.record_violation(format!("odd line {line}")),
            }
        }
    }
}

async fn write(
    mut output: WriteHalf<DuplexStream>,
    mut outs: mpsc::Receiver<Output>,
    stop: CancellationToken,
) {
    loop {
        let out = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            out = outs.recv() => out,
        };
        let bytes = match out {
            Some(Output::Note(line) | Output::Last(line)) => [&line[..], b"\n"].concat(),
            Some(Output::Piece(piece)) => piece.to_vec(),
            Some(Output::HangUp | Output::Status(..)) | None => return stop.cancel(),
        };
        let written = stop.run_until_cancelled(output.write_all(&bytes)).await;
        if !matches!(written, Some(Ok(()))) {
            return stop.cancel();
        }
    }
}
