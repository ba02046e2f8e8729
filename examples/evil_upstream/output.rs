//! Writing of messages, with faults: cuts, pauses, resets, floods and process exit.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Signal, getpid, kill_process};

use crate::methods::{Response, Server};
use crate::script::{Fault, Script};

/// Destination of messages.
#[derive(Clone)]
pub(crate) enum MessageSink {
    /// Standard output, one line at a time.
    Lines(Arc<Mutex<()>>),
    /// Event stream, one event at a time.
    Events(Arc<Mutex<TcpStream>>),
}

impl MessageSink {
    /// Writes a message with its fault.
    pub(crate) fn send(&self, text: &[u8], fault: &Fault) -> io::Result<()> {
        match self {
            Self::Lines(mutex) => {
                let _lock = mutex.lock().expect("no thread panics");
                let line = [text, b"\n"].concat();
                if let Some(cut) = fault.cut {
                    write_in_pieces(&mut io::stdout(), &line[..cut.min(line.len())], fault)?;
                    exit(0);
                }
                write_in_pieces(&mut io::stdout(), &line, fault)
            }
            Self::Events(stream) => {
                let mut stream = stream.lock().expect("no thread panics");
                write_or_cut(&mut stream, &event(text), fault)
            }
        }
    }

    /// Writes one long line that is not a message, or nothing if `bytes` is 0.
    fn fill(&self, bytes: usize) -> io::Result<()> {
        const PART: usize = 64 * 1024;
        let Self::Lines(mutex) = self else { return Ok(()) };
        let _lock = mutex.lock().expect("no thread panics");
        let mut out = io::stdout();
        for at in (0..bytes).step_by(PART) {
            out.write_all(&[b'x'; PART][..PART.min(bytes - at)])?;
        }
        out.write_all(if bytes == 0 { b"" } else { b"\n" })?;
        out.flush()
    }

    /// Writes a response on a shared stream, with the messages before and after it.
    pub(crate) fn send_response(&self, response: &Response) -> io::Result<()> {
        let fault = &response.fault;
        let plain = Fault::default();
        if let Some(text) = &fault.flood {
            return match self {
                Self::Lines(mutex) => {
                    let _lock = mutex.lock().expect("no thread panics");
                    flood(&mut io::stdout(), &repeated(text))
                }
                Self::Events(stream) => {
                    flood(&mut *stream.lock().expect("no thread panics"), &repeated(text))
                }
            };
        }
        for text in &response.before {
            self.send(text.as_bytes(), &plain)?;
        }
        self.fill(fault.filler_bytes)?;
        match &fault.hex {
            Some(hex) => self.send(&decode_hex(hex), fault)?,
            None => self.send(response.text.as_bytes(), fault)?,
        }
        for text in &response.after {
            self.send(text.as_bytes(), &plain)?;
        }
        Ok(())
    }
}

/// Repeats a text to the size of one write.
pub(crate) fn repeated(text: &str) -> Vec<u8> {
    const TOGETHER: usize = 64 * 1024;
    text.repeat(TOGETHER / text.len().max(1) + 1).into_bytes()
}

/// Writes these bytes repeatedly until a write fails.
pub(crate) fn flood(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    loop {
        to.write_all(bytes)?;
        to.flush()?;
    }
}

pub(crate) fn event(text: &[u8]) -> Vec<u8> {
    [b"event: message\ndata: ", text, b"\n\n"].concat()
}

/// Writes to a connection; with `cut`, writes only a part and closes it.
pub(crate) fn write_or_cut(stream: &mut TcpStream, bytes: &[u8], fault: &Fault) -> io::Result<()> {
    match fault.cut {
        Some(cut) if cut < bytes.len() => {
            write_in_pieces(stream, &bytes[..cut], fault)?;
            if fault.reset {
                // Without a delay, the reset would discard the written bytes.
                sleep(Duration::from_millis(1));
            }
            close(stream, fault.reset);
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        _ => write_in_pieces(stream, bytes, fault),
    }
}

fn write_in_pieces(to: &mut impl Write, bytes: &[u8], fault: &Fault) -> io::Result<()> {
    for piece in bytes.chunks(fault.piece.unwrap_or(bytes.len()).max(1)) {
        to.write_all(piece)?;
        to.flush()?;
        sleep(Duration::from_millis(fault.pause_ms));
    }
    Ok(())
}

/// Closes a connection with RST or FIN.
pub(crate) fn close(stream: &TcpStream, reset: bool) {
    if reset {
        // With a linger time of zero, closing the last handle of the socket sends RST.
        let _ = set_socket_linger(stream, Some(Duration::ZERO));
    } else {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Waits until the peer closes the connection.
pub(crate) fn wait_for_close(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while matches!(stream.read(&mut rest), Ok(1..)) {}
}

/// Exits with a code, or by a signal if the code is negative.
pub(crate) fn exit(code: i32) -> ! {
    if let Some(signal) = code.checked_neg().and_then(Signal::from_named_raw) {
        let _ = kill_process(getpid(), signal);
        sleep(Duration::from_secs(5));
    }
    std::process::exit(code)
}

/// Writes this many bytes as lines to standard error.
pub(crate) fn write_stderr(bytes: u64) {
    let line = [b'e'; 127].into_iter().chain([b'\n']).collect::<Vec<_>>().repeat(512);
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(line.len()).min(line.len());
        if io::stderr().write_all(&line[..part]).is_err() {
            return;
        }
        left -= part as u64;
    }
}

/// Keeps four threads busy for this time, and this much memory allocated.
pub(crate) fn consume_resources(millis: u64, bytes: usize) {
    let until = Instant::now() + Duration::from_millis(millis);
    // Filled, because untouched pages use no memory.
    let memory = vec![1_u8; bytes];
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| while Instant::now() < until {});
        }
    });
    std::hint::black_box(memory);
}

/// Sends the script's storm repeatedly. Never returns.
pub(crate) fn send_storm(server: &Server) {
    const TICK: Duration = Duration::from_millis(10);
    loop {
        sleep(TICK);
        let Some(storm) = Script::read(&server.folder).storm else {
            sleep(4 * TICK);
            continue;
        };
        let times = storm.per_second.div_ceil(100) as usize;
        if storm.on_stderr {
            let lines = format!("{}\n", storm.text).repeat(times);
            let _ = io::stderr().write_all(lines.as_bytes());
            continue;
        }
        let mut listeners = server.listeners.lock().expect("no thread panics");
        listeners.retain(|listener| {
            let text = match listener.is_listen {
                true => storm.text.replace("$SUB", &listener.owner),
                false => storm.text.clone(),
            };
            let burst = match &listener.sink {
                _ if storm.raw => text.repeat(times).into_bytes(),
                MessageSink::Lines(_) => format!("{text}\n").repeat(times).into_bytes(),
                MessageSink::Events(_) => event(text.as_bytes()).repeat(times),
            };
            match &listener.sink {
                MessageSink::Lines(mutex) => {
                    let _lock = mutex.lock().expect("no thread panics");
                    let mut out = io::stdout();
                    out.write_all(&burst).and_then(|()| out.flush()).is_ok()
                }
                MessageSink::Events(stream) => {
                    let mut stream = stream.lock().expect("no thread panics");
                    stream.write_all(&burst).is_ok()
                }
            }
        });
    }
}

pub(crate) fn decode_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let text = |pair: &[u8]| String::from_utf8_lossy(pair).into_owned();
    let pairs = digits.chunks(2).map(|pair| u8::from_str_radix(&text(pair), 16));
    pairs.map(|byte| byte.expect("hexadecimal digits")).collect()
}
