//! Calls of the load tests, on connections that repeat nothing by themselves.

use std::io;
use std::ops::{Deref, DerefMut};

use crate::lab::PATIENCE;
use crate::lab::connection::{Connection, Response};
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
    connection: Connection,
    host: String,
}

impl Deref for Client {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
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
        Ok(Self { connection: Connection::open(host).await?, host: host.to_owned() })
    }

    pub(crate) async fn send(&mut self, text: &str) -> io::Result<()> {
        self.connection.send(text).await
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
}

fn judge(nonce: u64, reply: &Response) -> Outcome {
    if reply.body.contains("\"result\"") {
        assert!(reply.body.contains(&format!("\"text\":\"{nonce}.")), "{nonce} received {reply:?}");
        return Outcome::Answered;
    }
    assert!(reply.body.contains("\"error\""), "{nonce} received {reply:?}");
    let has_retry_after = reply.header("retry-after").is_some();
    let when = if has_retry_after { ", with Retry-After" } else { "" };
    Outcome::Refused(format!("{} {}{when}", reply.status, reply.body))
}
