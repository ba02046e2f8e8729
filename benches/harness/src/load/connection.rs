//! A connection with a minimal HTTP/1.1: writes rendered requests, reads one response each.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf, BytesMut};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A persistent connection.
pub(crate) struct Connection {
    stream: TcpStream,
    read: BytesMut,
    /// Body of a chunked response, joined.
    whole: Vec<u8>,
    /// Length of the last response in `read`.
    spent: usize,
}

/// A response, valid until the next request.
#[derive(Debug)]
pub(crate) struct Response<'a> {
    pub(crate) status: u16,
    pub(crate) head: &'a str,
    pub(crate) body: &'a [u8],
}

/// End of a body.
enum Framing {
    Length(usize),
    Chunked,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: BytesMut::with_capacity(16 << 10), whole: Vec::new(), spent: 0 })
    }

    /// Sends a request and reads the response.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Response<'_>> {
        self.stream.write_all(request).await?;
        self.response().await
    }

    /// Sends a request without waiting for a response.
    pub(crate) async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// Reads until this text has arrived, and drops everything up to its end. For endless streams.
    pub(crate) async fn until(&mut self, text: &str) -> io::Result<()> {
        let finder = memmem::Finder::new(text);
        loop {
            if let Some(at) = finder.find(&self.read) {
                self.read.advance(at + text.len());
                return Ok(());
            }
            self.more().await?;
        }
    }

    async fn response(&mut self) -> io::Result<Response<'_>> {
        self.read.advance(self.spent);
        self.spent = 0;
        let (head, status, framing) = loop {
            if let Some(end) = memmem::find(&self.read, b"\r\n\r\n") {
                let (status, framing) = read_head(&self.read[..end + 4])?;
                break (end + 4, status, framing);
            }
            self.more().await?;
        };
        let body = match framing {
            Framing::Length(length) => {
                self.read.reserve((head + length).saturating_sub(self.read.len()));
                while self.read.len() < head + length {
                    self.more().await?;
                }
                self.spent = head + length;
                &self.read[head..head + length]
            }
            Framing::Chunked => {
                self.spent = self.chunks(head).await?;
                &self.whole[..]
            }
        };
        let head = std::str::from_utf8(&self.read[..head]).unwrap_or_default();
        Ok(Response { status, head, body })
    }

    /// Joins the chunks that begin at `at`; returns their end.
    async fn chunks(&mut self, mut at: usize) -> io::Result<usize> {
        self.whole.clear();
        loop {
            let line = loop {
                if let Some(end) = memmem::find(&self.read[at..], b"\r\n") {
                    break end;
                }
                self.more().await?;
            };
            let size = std::str::from_utf8(&self.read[at..at + line]).ok();
            let size = size.and_then(|text| text.split(';').next());
            let size = size.and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok());
            let size = size.ok_or_else(|| io::Error::other("a chunk without its size"))?;
            at += line + 2;
            while self.read.len() < at + size + 2 {
                self.more().await?;
            }
            self.whole.extend_from_slice(&self.read[at..at + size]);
            at += size + 2;
            if size == 0 {
                return Ok(at);
            }
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn read_head(text: &[u8]) -> io::Result<(u16, Framing)> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    response.parse(text).map_err(io::Error::other)?;
    let status = response.code.unwrap_or_default();
    let field = |name: &str| {
        let found = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        found.and_then(|field| std::str::from_utf8(field.value).ok())
    };
    let is_chunked = field("transfer-encoding").is_some_and(|value| value.contains("chunked"));
    let framing = match field("content-length").and_then(|value| value.trim().parse().ok()) {
        _ if is_chunked => Framing::Chunked,
        Some(length) => Framing::Length(length),
        None if matches!(status, 202 | 204) => Framing::Length(0),
        None => return Err(io::Error::other("a response whose end cannot be known")),
    };
    Ok((status, framing))
}
