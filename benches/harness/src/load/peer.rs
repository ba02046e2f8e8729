//! Endpoint of a load, and the requests of a client of either era.

use std::io;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::connection::Connection;
use super::exchange::{Exchange, FIRST_ID, Want, message};

/// The two eras of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Era {
    Modern,
    Legacy,
}

impl Era {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Modern => "modern",
            Self::Legacy => "legacy",
        }
    }
}

/// An endpoint, as one client sees it.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    /// Sent as a bearer token.
    pub(crate) key: Option<String>,
    pub(crate) era: Era,
    /// Session of the legacy era, once it is open.
    session: Option<String>,
    revision: String,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, path: &str, key: Option<String>, era: Era) -> Self {
        let revision = if era == Era::Modern { MODERN } else { LEGACY };
        Self { address, path: path.to_owned(), key, era, session: None, revision: revision.into() }
    }

    /// Common beginning of each request's head.
    fn head(&self, method: &str, name: Option<&str>) -> String {
        let Self { address, path, revision, .. } = self;
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n"
        );
        let mut line = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
        if let Some(key) = &self.key {
            line("authorization", &format!("Bearer {key}"));
        }
        if method != "initialize" {
            line("mcp-protocol-version", revision);
        }
        if let Some(session) = &self.session {
            line("mcp-session-id", session);
        }
        if self.era == Era::Modern {
            line("mcp-method", method);
            if let Some(name) = name {
                line("mcp-name", name);
            }
        }
        head
    }

    /// Request for the notification stream of its legacy session.
    pub(crate) fn stream(&self) -> String {
        format!("{}\r\n", self.head("", None).replacen("POST", "GET", 1))
    }

    /// Renders a request of this client.
    pub(crate) fn request(&self, method: &str, mut params: Value, want: Want) -> Exchange {
        if self.era == Era::Modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": { "name": "load", "version": "1" },
            });
        }
        let name = params["name"].as_str().or(params["uri"].as_str()).map(str::to_owned);
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":{FIRST_ID},"method":"{method}","params":{params}}}"#);
        Exchange::new(&self.head(method, name.as_deref()), &message, want)
    }

    /// Initializes, in the legacy era.
    pub(crate) async fn open(&mut self) -> io::Result<()> {
        if self.era == Era::Modern {
            return Ok(());
        }
        let mut connection = Connection::open(self.address).await?;
        let params = json!({
            "protocolVersion": LEGACY,
            "capabilities": {},
            "clientInfo": { "name": "load", "version": "1" },
        });
        let opening = self.request("initialize", params, Want::Anything);
        let mut buffer = Vec::new();
        opening.write(FIRST_ID, &mut buffer);
        let response = connection.exchange(&buffer).await?;
        opening.check(FIRST_ID, &response).map_err(io::Error::other)?;
        let session = response.head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
        });
        let agreed = message(response.body, FIRST_ID).unwrap_or_default();
        if let Some(agreed) = agreed["result"]["protocolVersion"].as_str() {
            self.revision = agreed.to_owned();
        }
        self.session = session;
        let message = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let head = self.head("notifications/initialized", None);
        let text = format!("{head}content-length: {}\r\n\r\n{message}", message.len());
        let status = connection.exchange(text.as_bytes()).await?.status;
        match status {
            200..=204 => Ok(()),
            _ => Err(io::Error::other(format!("status {status} to notifications/initialized"))),
        }
    }

    /// Sends one request on a connection of its own, and returns the result.
    pub(crate) async fn request_once(&self, method: &str, params: Value) -> io::Result<Value> {
        let mut connection = Connection::open(self.address).await?;
        let exchange = self.request(method, params, Want::Anything);
        let mut buffer = Vec::new();
        exchange.write(FIRST_ID, &mut buffer);
        let response = connection.exchange(&buffer).await?;
        exchange.check(FIRST_ID, &response).map_err(io::Error::other)?;
        let answer = message(response.body, FIRST_ID).unwrap_or_default();
        Ok(answer["result"].clone())
    }

    /// All items of a kind, from all pages, with the cursor of each page and the names on it.
    pub(crate) async fn walk(&self, method: &str) -> io::Result<Vec<Page>> {
        let member = method.split('/').next().unwrap_or_default();
        let mut pages = Vec::new();
        let mut cursor = None;
        loop {
            let params = cursor.as_ref().map_or(json!({}), |cursor| json!({ "cursor": cursor }));
            let result = self.request_once(method, params).await?;
            let items = result[member].as_array().map(Vec::as_slice).unwrap_or_default();
            let names = items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned));
            let is_partial = !result["_meta"]["weir/partial"].is_null();
            pages.push(Page { cursor, names: names.collect(), is_partial });
            match result["nextCursor"].as_str() {
                Some(next) if pages.len() < MAX_PAGES => cursor = Some(next.to_owned()),
                Some(_) => return Err(io::Error::other("a list without end")),
                None => return Ok(pages),
            }
        }
    }
}

/// A page of a list.
pub(crate) struct Page {
    pub(crate) cursor: Option<String>,
    pub(crate) names: Vec<String>,
    pub(crate) is_partial: bool,
}

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const MAX_PAGES: usize = 2_000;
