//! How bytes get out, and how they do not.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Signal, getpid, kill_process};

use crate::methods::{Answer, Server};
use crate::script::{Fault, Script};

/// Where a message goes.
#[derive(Clone)]
pub(crate) enum Outlet {
    /// Lines of standard output, one at a time.
    Lines(Arc<Mutex<()>>),
    /// Events of a stream, one at a time.
    Events(Arc<Mutex<TcpStream>>),
}

impl Outlet {
    /// Writes a message in the way of the fault.
    pub(crate) fn send(&self, text: &[u8], fault: &Fault) -> io::Result<()> {
        match self {
            Self::Lines(turn) => {
                let _turn = turn.lock().expect("no thread panics");
                let line = [text, b"\n"].concat();
                if let Some(cut) = fault.cut {
                    write_in_pieces(&mut io::stdout(), &line[..cut.min(line.len())], fault)?;
                    end(0);
                }
                write_in_pieces(&mut io::stdout(), &line, fault)
            }
            Self::Events(stream) => {
                let mut stream = stream.lock().expect("no thread panics");
                write_or_cut(&mut stream, &event(text), fault)
            }
        }
    }

    /// Writes one long line that is no message, or nothing.
    fn fill(&self, bytes: usize) -> io::Result<()> {
        const PART: usize = 64 * 1024;
        let Self::Lines(turn) = self else { return Ok(()) };
        let _turn = turn.lock().expect("no thread panics");
        let mut out = io::stdout();
        for at in (0..bytes).step_by(PART) {
            out.write_all(&[b'x'; PART][..PART.min(bytes - at)])?;
        }
        out.write_all(if bytes == 0 { b"" } else { b"\n" })?;
        out.flush()
    }

    /// Says all of an answer that shares its way with others.
    pub(crate) fn answer(&self, answer: &Answer) -> io::Result<()> {
        let fault = &answer.fault;
        let plain = Fault::default();
        if let Some(text) = &fault.flood {
            return match self {
                Self::Lines(turn) => {
                    let _turn = turn.lock().expect("no thread panics");
                    flood(&mut io::stdout(), &many(text))
                }
                Self::Events(stream) => {
                    flood(&mut *stream.lock().expect("no thread panics"), &many(text))
                }
            };
        }
        for text in &answer.before {
            self.send(text.as_bytes(), &plain)?;
        }
        self.fill(fault.filler_bytes)?;
        match &fault.hex {
            Some(hex) => self.send(&bytes_of(hex), fault)?,
            None => self.send(answer.text.as_bytes(), fault)?,
        }
        for text in &answer.after {
            self.send(text.as_bytes(), &plain)?;
        }
        Ok(())
    }
}

/// As much of a text, again and again, as is written at a time.
pub(crate) fn many(text: &str) -> Vec<u8> {
    const TOGETHER: usize = 64 * 1024;
    text.repeat(TOGETHER / text.len().max(1) + 1).into_bytes()
}

/// Writes these bytes again and again until the other side takes no more.
pub(crate) fn flood(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    loop {
        to.write_all(bytes)?;
        to.flush()?;
    }
}

pub(crate) fn event(text: &[u8]) -> Vec<u8> {
    [b"event: message\ndata: ", text, b"\n\n"].concat()
}

/// Writes to a connection, or a part and no more.
pub(crate) fn write_or_cut(stream: &mut TcpStream, bytes: &[u8], fault: &Fault) -> io::Result<()> {
    match fault.cut {
        Some(cut) if cut < bytes.len() => {
            write_in_pieces(stream, &bytes[..cut], fault)?;
            if fault.reset {
                // What was written is to arrive: the reset would overtake it.
                sleep(Duration::from_millis(1));
            }
            hang_up(stream, fault.reset);
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

/// Ends a connection, with RST or with FIN.
pub(crate) fn hang_up(stream: &TcpStream, reset: bool) {
    if reset {
        // Closing a socket that does not linger resets it; so the last handle to it has to go.
        let _ = set_socket_linger(stream, Some(Duration::ZERO));
    } else {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Waits until the other side ends a connection.
pub(crate) fn wait_for_the_end(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while matches!(stream.read(&mut rest), Ok(1..)) {}
}

/// Ends the program: with a code, or by a signal if it is negative.
pub(crate) fn end(code: i32) -> ! {
    if let Some(signal) = code.checked_neg().and_then(Signal::from_named_raw) {
        let _ = kill_process(getpid(), signal);
        sleep(Duration::from_secs(5));
    }
    std::process::exit(code)
}

/// Writes lines to standard error until there are so many bytes.
pub(crate) fn scream(bytes: u64) {
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

/// Computes with four threads for so long, and holds so much memory meanwhile.
pub(crate) fn burn(millis: u64, bytes: usize) {
    let until = Instant::now() + Duration::from_millis(millis);
    // Written to, since what was never written to is nowhere.
    let held = vec![1_u8; bytes];
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| while Instant::now() < until {});
        }
    });
    std::hint::black_box(held);
}

/// Says what the script says again and again. Never returns.
pub(crate) fn storm(server: &Server) {
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
                true => storm.text.replace("$SUB", &listener.whose),
                false => storm.text.clone(),
            };
            let burst = match &listener.outlet {
                _ if storm.raw => text.repeat(times).into_bytes(),
                Outlet::Lines(_) => format!("{text}\n").repeat(times).into_bytes(),
                Outlet::Events(_) => event(text.as_bytes()).repeat(times),
            };
            match &listener.outlet {
                Outlet::Lines(turn) => {
                    let _turn = turn.lock().expect("no thread panics");
                    let mut out = io::stdout();
                    out.write_all(&burst).and_then(|()| out.flush()).is_ok()
                }
                Outlet::Events(stream) => {
                    let mut stream = stream.lock().expect("no thread panics");
                    stream.write_all(&burst).is_ok()
                }
            }
        });
    }
}

pub(crate) fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let text = |pair: &[u8]| String::from_utf8_lossy(pair).into_owned();
    let pairs = digits.chunks(2).map(|pair| u8::from_str_radix(&text(pair), 16));
    pairs.map(|byte| byte.expect("hexadecimal digits")).collect()
}
