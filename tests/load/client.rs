//! HTTP client without a library, so that no request is retried implicitly.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::lab::PATIENCE;
use crate::lab::ledger::End;

/// Outcome of a call for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered with its own number.
    Answered,
    /// Rejected by an HTTP status or a JSON-RPC error.
    Refused(String),
    /// The connection broke off.
    Cut(String),
}

impl Outcome {
    /// Entry in a ledger.
    pub(crate) fn end(&self) -> End {
        match self {
            Self::Answered => End::Success,
            Self::Refused(how) => {
                let code = how.split_once("\"code\":").map_or("", |(_, rest)| rest);
                let number = code.split(|c: char| c != '-' && !c.is_ascii_digit()).next();
                End::Error(number.and_then(|it| it.parse().ok()).unwrap_or_default())
            }
            Self::Cut(how) => {
                eprintln!("a call was cut: {how}");
                End::Broken
            }
        }
    }
}

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    read: Vec<u8>,
    host: String,
    /// The last response announced the end of the connection.
    is_leaving: bool,
}

/// HTTP response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Whether it has `Retry-After`.
    has_retry_after: bool,
    /// Session that it opens.
    pub(crate) session: Option<String>,
    pub(crate) body: String,
}

/// Parameters of a call to the server's tool.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Call {
    pub(crate) nonce: u64,
    /// Duration of the call in milliseconds.
    pub(crate) wait: u64,
    /// Size of the response.
    pub(crate) bytes: usize,
    /// Additional size of the request.
    pub(crate) ballast: usize,
    /// Whether its duration begins only when [`Server::release`](crate::server::Server::release)
    /// has been called.
    pub(crate) held: bool,
}

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

impl Client {
    pub(crate) async fn connect(host: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new(), host: host.to_owned(), is_leaving: false })
    }

    /// Whether the last response announced the end of the connection.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_leaving
    }

    /// Makes one call, and returns its outcome.
    pub(crate) async fn call(&mut self, call: Call) -> Outcome {
        let exchange = async {
            self.send(&self.request(call)).await?;
            self.read_response().await
        };
        match tokio::time::timeout(PATIENCE, exchange).await {
            Ok(Ok(reply)) => judge(call.nonce, &reply),
            Ok(Err(error)) => Outcome::Cut(error.to_string()),
            Err(_) => Outcome::Cut("no answer".to_owned()),
        }
    }

    pub(crate) async fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes()).await
    }

    /// Text of a call request.
    pub(crate) fn request(&self, call: Call) -> String {
        let Call { nonce, wait, bytes, ballast, held } = call;
        let ballast = "x".repeat(ballast);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{nonce},"method":"tools/call","params":{{"name":"hub__a","arguments":{{"nonce":{nonce},"wait":{wait},"bytes":{bytes},"held":{held},"ballast":"{ballast}"}},{META}}}}}"#
        );
        let head = self.head("tools/call", "Mcp-Name: hub__a\r\n");
        format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
    }

    /// Text of a `subscriptions/listen` request.
    pub(crate) fn listen(&self, id: u64) -> String {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"notifications":{{"toolsListChanged":true}},{META}}}}}"#
        );
        let head = self.head("subscriptions/listen", "");
        format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
    }

    /// Head of a POST without its length and its final empty line.
    pub(crate) fn head(&self, method: &str, more: &str) -> String {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n{more}",
            self.host
        )
    }

    /// Reads up to a mark, and returns the text including the mark.
    pub(crate) async fn until(&mut self, mark: &str) -> io::Result<String> {
        loop {
            let found = self.read.windows(mark.len()).position(|part| part == mark.as_bytes());
            if let Some(at) = found {
                let text = self.read.drain(..at + mark.len()).collect();
                return Ok(String::from_utf8(text).expect("text"));
            }
            self.more().await?;
        }
    }

    /// Reads a response.
    pub(crate) async fn read_response(&mut self) -> io::Result<Response> {
        let head = self.until("\r\n\r\n").await?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        let lower = head.to_ascii_lowercase();
        self.is_leaving = lower.contains("connection: close");
        let length = lower.split("content-length: ").nth(1).and_then(|it| it.lines().next());
        let body = match length {
            Some(length) => {
                let length: usize = length.trim().parse().expect("a length");
                while self.read.len() < length {
                    self.more().await?;
                }
                self.read.drain(..length).collect()
            }
            None if status == 204 => Vec::new(),
            None => self.chunks().await?,
        };
        let has_retry_after = lower.contains("\r\nretry-after: ");
        let session = lower.find("\r\nmcp-session-id: ").map(|at| &head[at + 18..]);
        let session = session.and_then(|rest| rest.lines().next()).map(str::to_owned);
        let body = String::from_utf8(body).expect("text");
        Ok(Response { status, has_retry_after, session, body })
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = self.until("\r\n").await?;
            let size = usize::from_str_radix(size.trim(), 16).expect("a size");
            while self.read.len() < size + 2 {
                self.more().await?;
            }
            body.extend(self.read.drain(..size));
            self.read.drain(..2);
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Whether the peer has closed the connection without sending more.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.read.is_empty() && self.more().await.is_err()
    }
}

fn judge(nonce: u64, reply: &Response) -> Outcome {
    if reply.body.contains("\"result\"") {
        assert!(reply.body.contains(&format!("\"text\":\"{nonce}.")), "{nonce} received {reply:?}");
        return Outcome::Answered;
    }
    assert!(reply.body.contains("\"error\""), "{nonce} received {reply:?}");
    let when = if reply.has_retry_after { ", with Retry-After" } else { "" };
    Outcome::Refused(format!("{} {}{when}", reply.status, reply.body))
}
