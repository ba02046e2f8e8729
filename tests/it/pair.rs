//! The HTTP+SSE transport itself: its paths and their refusals, its stream, and sessions that end
//! with their stream.
//!
//! The behaviour that it shares with other legacy transports is tested in the matrix.

pub(crate) mod bounds;
mod ends;
mod paths;
mod stream;

use hyper::Method;
use tokio::io::{AsyncReadExt, DuplexStream};

use crate::cell::{LEGACY_HTTP, MODERN_HTTP};
use crate::client::{Client, Http, HttpExchange, HttpReply, object, string};
use crate::world::{World, hub, with_pair};

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;
const ROLES: &str = r#"
    [roles.ann]
    prompts.allow = ["*"]
    tools.allow = ["*"]
    [roles.bob]
    prompts.allow = ["*"]
"#;

async fn start(config: &str) -> World {
    World::start(hub(MODERN_HTTP), &with_pair(config)).await
}

/// A client for plain HTTP requests.
pub(crate) fn plain(world: &World, key: Option<&str>) -> Client {
    world.uninitialized_client(LEGACY_HTTP, key)
}

/// A stream that the test has opened by hand.
struct Stream<'a> {
    http: &'a Http,
    events: HttpExchange,
    address: String,
}

impl<'a> Stream<'a> {
    async fn open(http: &'a Http) -> Self {
        let mut events = http.send(Method::GET, "/sse", "", &http.plain_headers());
        assert!(events.opened().await);
        assert_eq!(events.status(), 200);
        let address = string(events.next().await.expect("an address"));
        Self { http, events, address }
    }

    async fn post(&self, body: impl Into<bytes::Bytes>) -> HttpReply {
        post(self.http, &self.address, body).await
    }

    /// Posts a request and returns its response from the stream.
    async fn ask(&mut self, method: &str, params: &str) -> String {
        let message = weir_mcp::jsonrpc::write_request(&7.into(), method, params.as_bytes());
        let reply = self.post(message).await;
        assert_eq!((reply.status, &*reply.body), (202, ""), "{method}");
        self.next().await
    }

    async fn initialize(&mut self, version: &str) -> String {
        let params = format!(r#"{{"protocolVersion":"{version}","capabilities":{{}}}}"#);
        self.ask("initialize", &params).await
    }

    async fn next(&mut self) -> String {
        string(self.events.next().await.expect("a message"))
    }
}

pub(crate) async fn post(http: &Http, address: &str, body: impl Into<bytes::Bytes>) -> HttpReply {
    let headers = http.headers("", "{}");
    http.send(Method::POST, address, body, &headers).whole().await
}

/// Status of the next response on a connection.
async fn status_of(raw: &mut DuplexStream) -> String {
    let mut sent = [0; 12];
    raw.read_exact(&mut sent).await.expect("an answer");
    String::from_utf8_lossy(&sent[9..]).into_owned()
}

/// Code of an error response.
fn code(answer: &str) -> i64 {
    let error = object(answer).get_object("error").unwrap_or_else(|| panic!("no error: {answer}"));
    error.get("code").expect("a code").parse().expect("a number")
}
