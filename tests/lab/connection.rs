//! HTTP/1.1 connection without a library: it sends any bytes, and repeats nothing by itself.

use std::io;
use std::ops::Deref;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// Bytes that were read and not taken.
    read: Vec<u8>,
    body: Body,
    /// The last response announced the end of the connection.
    is_closing: bool,
}

/// Part of a response's body that is still to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// So many bytes.
    Length(usize),
    /// So many bytes of a chunk, and then others.
    Chunks(usize),
    /// The empty line behind the last chunk.
    End,
    /// It has been read to its end.
    Done,
}

/// Head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    text: String,
}

/// Response with its whole body.
#[derive(Debug)]
pub(crate) struct Response {
    head: Head,
    pub(crate) body: String,
}

impl Deref for Response {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

impl Head {
    /// Value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(header, value)| header.eq_ignore_ascii_case(name).then(|| value.trim()))
    }

    /// Returns whether the body is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|it| it.starts_with("text/event-stream"))
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Connection {
    pub(crate) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new(), body: Body::Done, is_closing: false })
    }

    pub(crate) async fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes()).await
    }

    /// Reads up to a mark, and returns the text including the mark. Cancel-safe.
    pub(crate) async fn until(&mut self, mark: &str) -> io::Result<String> {
        loop {
            let found = self.read.windows(mark.len()).position(|part| part == mark.as_bytes());
            if let Some(at) = found {
                let text = self.read.drain(..at + mark.len()).collect();
                return String::from_utf8(text).map_err(io::Error::other);
            }
            self.more().await?;
        }
    }

    /// Reads the head of a response. Its body is read next, piece by piece.
    pub(crate) async fn read_head(&mut self) -> io::Result<Head> {
        let text = self.until("\r\n\r\n").await?;
        let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        let head = Head { status, text };
        self.is_closing = head.header("connection").is_some_and(|it| it == "close");
        self.body = match head.header("content-length") {
            Some(length) => Body::Length(length.parse().expect("a length")),
            None if head.header("transfer-encoding").is_some() => Body::Chunks(0),
            None => Body::Done,
        };
        Ok(head)
    }

    /// Reads the next piece of a body; `None` at its end. Cancel-safe.
    pub(crate) async fn read_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let (left, is_chunk) = match self.body {
                Body::Done | Body::Length(0) => {
                    self.body = Body::Done;
                    return Ok(None);
                }
                Body::Length(left) => (left, false),
                Body::Chunks(0) => {
                    let size = self.until("\r\n").await?;
                    let size = usize::from_str_radix(size.trim(), 16).expect("a size");
                    // With the end of its line.
                    self.body = if size == 0 { Body::End } else { Body::Chunks(size + 2) };
                    continue;
                }
                Body::End => {
                    self.until("\r\n").await?;
                    self.body = Body::Done;
                    return Ok(None);
                }
                Body::Chunks(left) => (left, true),
            };
            if self.read.is_empty() {
                self.more().await?;
            }
            let taken = left.min(self.read.len());
            let mut piece: Vec<u8> = self.read.drain(..taken).collect();
            let left = left - taken;
            self.body = if is_chunk { Body::Chunks(left) } else { Body::Length(left) };
            if is_chunk {
                // The end of the line is no content.
                piece.truncate((taken + left).saturating_sub(2).min(taken));
            }
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    /// Reads a response.
    pub(crate) async fn read_response(&mut self) -> io::Result<Response> {
        let head = self.read_head().await?;
        let mut body = Vec::new();
        while let Some(piece) = self.read_piece().await? {
            body.extend(piece);
        }
        let body = String::from_utf8(body).map_err(io::Error::other)?;
        Ok(Response { head, body })
    }

    async fn more(&mut self) -> io::Result<()> {
        self.read.reserve(16 << 10);
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Whether the last response announced the end of the connection.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Waits for more bytes; returns whether the peer has closed the connection instead.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.read.is_empty() && self.more().await.is_err()
    }

    /// Returns whether the connection can take another request, as far as its end has been noticed.
    pub(crate) fn is_usable(&mut self) -> bool {
        let mut byte = [0];
        let is_silent = match self.stream.try_read(&mut byte) {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(_) => false,
        };
        is_silent && !self.is_closing && self.body == Body::Done && self.read.is_empty()
    }
}
