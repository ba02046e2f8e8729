//! Raw clients of every revision over every transport: they send bytes and return bytes.
//!
//! A [`Client`] has completed its era's handshake. [`Client::start`] sends a request and returns
//! the [`Exchange`] that it opens; [`Client::request`] waits for its [`Reply`]. All responses are
//! kept as text, so that tests compare bytes.
//!

mod http;
mod pair;
mod stdio;
mod updates;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::io::DuplexStream;
use tokio_util::task::TaskTracker;
use weir_base::json::{self, Object};
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::meta;

use crate::cell::{Side, Transport};
use crate::judge::JudgedConversation;
use crate::upstream::PATIENCE;
pub(crate) use http::{AUTHORITY, Exchange as HttpExchange, Http, HttpReply, set};
pub(crate) use stdio::Stdio;

/// Time without a message after which a stream counts as silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Opens connections to the tested gateway or server.
#[derive(Clone)]
pub(crate) struct Connector {
    connect: Arc<dyn Fn() -> DuplexStream + Send + Sync>,
    /// Judge of the received messages, if they are Weir's.
    conversation: Option<Arc<JudgedConversation>>,
}

/// A client of one side.
pub(crate) struct Client {
    pub(crate) side: Side,
    pub(crate) transport: ClientTransport,
    /// Declared client capabilities, as JSON.
    capabilities: String,
    numbers: AtomicU64,
}

/// Transport of a client.
pub(crate) enum ClientTransport {
    Http(Http),
    /// Also the HTTP+SSE pair, which has one incoming stream for everything as well.
    Stdio(Stdio),
}

/// Response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The HTTP status; 200 over stdio.
    pub(crate) status: u16,
    /// The id, as received.
    pub(crate) id: String,
    /// The `result` or the `error`, as received.
    pub(crate) outcome: Result<String, String>,
    /// The messages before the response.
    pub(crate) notifications: Vec<String>,
}

/// A request in flight. Dropping it abandons the request without a notification.
pub(crate) struct Exchange<'a> {
    client: &'a Client,
    id: Id,
    transport: ExchangeTransport,
}

enum ExchangeTransport {
    Http(http::Exchange),
    Stdio(stdio::Exchange),
}

impl Connector {
    pub(crate) fn new(
        connect: impl Fn() -> DuplexStream + Send + Sync + 'static,
        conversation: Option<Arc<JudgedConversation>>,
    ) -> Self {
        Self { connect: Arc::new(connect), conversation }
    }

    pub(crate) fn connect(&self) -> DuplexStream {
        (self.connect)()
    }

    /// Shows the judge a message that the client sends over this transport.
    fn record_sent(&self, bytes: &[u8], transport: Transport) {
        if let Some(conversation) = &self.conversation {
            conversation.record_sent(bytes, transport);
        }
    }

    /// Has the judge check a message that the client receives.
    fn check_received(&self, bytes: &[u8]) {
        if let Some(conversation) = &self.conversation {
            conversation.check_received(bytes);
        }
    }
}

impl Client {
    /// Connects a client and completes its handshake.
    pub(crate) async fn open(
        side: Side,
        open: Connector,
        key: Option<&str>,
        tasks: &TaskTracker,
    ) -> Self {
        let client = Self::uninitialized(side, open, key, tasks);
        if !side.is_modern() {
            client.initialize().await;
        }
        client
    }

    /// Connects a client that has sent nothing yet.
    pub(crate) fn uninitialized(
        side: Side,
        open: Connector,
        key: Option<&str>,
        tasks: &TaskTracker,
    ) -> Self {
        let transport = match side.transport {
            Transport::Http => ClientTransport::Http(Http::new(side, open, key, tasks)),
            Transport::Stdio => ClientTransport::Stdio(Stdio::new(&open, tasks)),
            Transport::Sse => {
                ClientTransport::Stdio(pair::open(Http::new(side, open, key, tasks), tasks))
            }
        };
        Self { side, transport, capabilities: "{}".into(), numbers: AtomicU64::new(1) }
    }

    /// Sets these capabilities, before the handshake.
    pub(crate) fn declaring(self, capabilities: &str) -> Self {
        Self { capabilities: capabilities.into(), ..self }
    }

    /// Completes the handshake of the legacy era.
    pub(crate) async fn initialize(&self) {
        let params = format!(
            r#"{{"protocolVersion":"{}","capabilities":{},"clientInfo":{{"name":"raw","version":"1"}}}}"#,
            self.side.revision, self.capabilities
        );
        let reply = self.request("initialize", &params).await;
        let result = object(reply.result());
        let version = result.get_string("protocolVersion");
        assert_eq!(version.as_deref(), Some(self.side.revision.as_str()), "{reply:?}");
        self.notify("notifications/initialized", "{}").await;
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn request(&self, method: &str, params: &str) -> Reply {
        self.start(method, params).reply().await
    }

    /// Sends a request.
    pub(crate) fn start(&self, method: &str, params: &str) -> Exchange<'_> {
        let id = Id::from(self.numbers.fetch_add(1, Ordering::Relaxed));
        self.start_as(id, method, params)
    }

    /// Sends a request under this id.
    pub(crate) fn start_as(&self, id: Id, method: &str, params: &str) -> Exchange<'_> {
        let params = self.with_request_meta(params);
        let message = jsonrpc::write_request(&id, method, params.as_bytes());
        let transport = match &self.transport {
            ClientTransport::Http(http) => {
                ExchangeTransport::Http(http.post(message, &http.headers(method, &params)))
            }
            ClientTransport::Stdio(stdio) => ExchangeTransport::Stdio(stdio.ask(&id, &message)),
        };
        Exchange { client: self, id, transport }
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: &str) {
        let message = jsonrpc::write_notification(method, params.as_bytes());
        match &self.transport {
            ClientTransport::Http(http) => {
                let reply = http.post(message, &http.headers(method, params)).whole().await;
                assert_eq!(reply.status, 202, "{method}: {reply:?}");
            }
            ClientTransport::Stdio(stdio) => stdio.send(&message),
        }
    }

    /// Sends any message that has no response.
    pub(crate) async fn send(&self, message: &str) {
        match &self.transport {
            ClientTransport::Http(http) => {
                let mut posted = http.post(message.to_owned(), &http.headers("", "{}"));
                posted.opened().await;
                assert_eq!(posted.status(), 202, "{message}");
            }
            ClientTransport::Stdio(stdio) => stdio.send(message.as_bytes()),
        }
    }

    pub(crate) fn http(&self) -> &Http {
        match &self.transport {
            ClientTransport::Http(http) => http,
            ClientTransport::Stdio(_) => panic!("this client speaks over stdio"),
        }
    }

    pub(crate) fn stdio(&self) -> &Stdio {
        match &self.transport {
            ClientTransport::Stdio(stdio) => stdio,
            ClientTransport::Http(_) => panic!("this client speaks over HTTP"),
        }
    }

    /// The parameters with the `_meta` members of a modern request.
    pub(crate) fn with_request_meta(&self, params: &str) -> String {
        if !self.side.is_modern() {
            return params.to_owned();
        }
        let mut params = object(params);
        let mut inner = params.get_object("_meta").unwrap_or_default();
        if !inner.has(meta::PROTOCOL_VERSION) {
            inner.set(meta::PROTOCOL_VERSION, json::quote(self.side.revision.as_str()));
        }
        if !inner.has(meta::CLIENT_CAPABILITIES) {
            inner.set(meta::CLIENT_CAPABILITIES, self.capabilities.clone());
        }
        params.set("_meta", inner.to_bytes());
        string(params.to_bytes())
    }

    // === Requests by name ===

    /// Requests one page of a list.
    pub(crate) async fn page(&self, kind: Kind, cursor: Option<&str>) -> Object {
        let params = match cursor {
            Some(cursor) => format!(r#"{{"cursor":{}}}"#, string(json::quote(cursor))),
            None => "{}".to_owned(),
        };
        object(self.request(kind.list_method(), &params).await.result())
    }

    /// Lists the keys of all items of a kind, through all pages.
    pub(crate) async fn list_all(&self, kind: Kind) -> Vec<String> {
        let (mut keys, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let page = self.page(kind, cursor.as_deref()).await;
            keys.extend(keys_of(kind, &page));
            cursor = page.get_string("nextCursor").map(Into::into);
            if cursor.is_none() {
                return keys;
            }
        }
    }

    pub(crate) async fn prompts(&self) -> Vec<String> {
        self.list_all(Kind::Prompt).await
    }

    pub(crate) async fn get_prompt(&self, name: &str) -> Reply {
        self.request("prompts/get", &named(name)).await
    }

    pub(crate) async fn call_tool(&self, name: &str) -> Reply {
        self.request("tools/call", &named(name)).await
    }

    pub(crate) async fn read(&self, uri: &str) -> Reply {
        self.request("resources/read", &format!(r#"{{"uri":{}}}"#, string(json::quote(uri)))).await
    }

    /// Requests a completion of a prompt's argument.
    pub(crate) async fn complete(&self, prompt: &str) -> Reply {
        let name = string(json::quote(prompt));
        let params = format!(
            r#"{{"ref":{{"type":"ref/prompt","name":{name}}},"argument":{{"name":"x","value":""}}}}"#
        );
        self.request("completion/complete", &params).await
    }

    /// Opens a stream for changes of every topic.
    pub(crate) async fn listen(&self) -> ChangeStream<'_> {
        self.listen_for(&ListTopic::ALL).await
    }

    /// Opens a stream for changes; only a modern client can choose the topics.
    pub(crate) async fn listen_for(&self, topics: &[ListTopic]) -> ChangeStream<'_> {
        self.try_listen_for(topics).await.expect("a stream")
    }

    /// [`Self::listen_for`] that returns `None` if the connection ends before the stream has begun.
    pub(crate) async fn try_listen_for(&self, topics: &[ListTopic]) -> Option<ChangeStream<'_>> {
        if self.side.is_modern() {
            let filter: Vec<_> =
                topics.iter().map(|topic| format!(r#""{}":true"#, topic.filter_member())).collect();
            let params = format!(r#"{{"notifications":{{{}}}}}"#, filter.join(","));
            let mut exchange = self.start("subscriptions/listen", &params);
            let acknowledged = object(&exchange.next().await?);
            let method = acknowledged.get_string("method");
            assert_eq!(method.as_deref(), Some("notifications/subscriptions/acknowledged"));
            return Some(ChangeStream {
                id: Some(exchange.id.clone()),
                source: Source::Exchange(exchange),
            });
        }
        let source = match &self.transport {
            ClientTransport::Http(http) => {
                let stream = http.get();
                let exchange = Exchange {
                    client: self,
                    id: Id::from(0),
                    transport: ExchangeTransport::Http(stream),
                };
                Source::Exchange(exchange)
            }
            ClientTransport::Stdio(stdio) => Source::Unrouted(stdio),
        };
        let mut changes = ChangeStream { id: None, source };
        changes.opened().await.then_some(changes)
    }
}

impl Exchange<'_> {
    /// The next message: a notification or the response; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE * 10, self.next_untimed()).await.expect("a message in time")
    }

    /// Waits for the next message without a time limit.
    async fn next_untimed(&mut self) -> Option<String> {
        let next: BoxFuture<'_, Option<Bytes>> = match &mut self.transport {
            ExchangeTransport::Http(exchange) => Box::pin(exchange.next()),
            ExchangeTransport::Stdio(exchange) => Box::pin(exchange.next()),
        };
        next.await.map(string)
    }

    /// The next message of the server about this call: on its stream, or unsolicited over stdio.
    pub(crate) async fn next_server_message(&mut self) -> String {
        let question = async {
            match &self.client.transport {
                ClientTransport::Http(_) => self.next().await,
                ClientTransport::Stdio(stdio) => stdio.next_unrouted().await.map(string),
            }
        };
        let question = tokio::time::timeout(PATIENCE * 10, question).await;
        question.expect("a question in time").expect("the stream is open")
    }

    /// Waits for the response.
    pub(crate) async fn reply(mut self) -> Reply {
        self.answer()
            .await
            .unwrap_or_else(|notifications| panic!("no answer after {notifications:?}"))
    }

    /// Waits for the response; without one, returns the messages that came instead.
    pub(crate) async fn answer(&mut self) -> Result<Reply, Vec<String>> {
        let mut notifications = Vec::new();
        loop {
            let Some(message) = self.next().await else { return Err(notifications) };
            if object(&message).has("method") {
                notifications.push(message);
                continue;
            }
            return Ok(self.read(&message, notifications));
        }
    }

    /// Parses a response that came after these notifications.
    pub(crate) fn read(&self, message: &str, notifications: Vec<String>) -> Reply {
        let answer = object(message);
        let member = |name: &str| answer.get_bytes(name).map(string);
        let outcome = match (member("result"), member("error")) {
            (Some(result), None) => Ok(result),
            (None, Some(error)) => Err(error),
            _ => panic!("not an answer: {message}"),
        };
        let status = match &self.transport {
            ExchangeTransport::Http(exchange) => exchange.status(),
            ExchangeTransport::Stdio(_) => 200,
        };
        Reply { status, id: member("id").expect("an id"), outcome, notifications }
    }

    /// Asserts that no message comes for a while.
    pub(crate) async fn stays_silent(&mut self) {
        let next = tokio::time::timeout(SILENCE, self.next()).await;
        assert!(next.is_err(), "{next:?}");
    }

    /// Cancels the request in the way of its era.
    pub(crate) async fn cancel(self) {
        if self.client.side.is_modern() && self.client.side.is_http() {
            // Dropping the exchange closes its stream.
            return;
        }
        let params = format!(r#"{{"requestId":{}}}"#, self.id);
        self.client.notify("notifications/cancelled", &params).await;
    }

    /// The next chunk of an HTTP response's body, as it arrives.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        match &mut self.transport {
            ExchangeTransport::Http(exchange) => exchange.piece().await,
            ExchangeTransport::Stdio(_) => panic!("lines have no pieces"),
        }
    }
}

impl Reply {
    pub(crate) fn result(&self) -> &str {
        self.outcome.as_ref().unwrap_or_else(|error| panic!("an error: {error}"))
    }

    pub(crate) fn error(&self) -> &str {
        self.outcome.as_ref().expect_err("an error")
    }

    /// The error's code.
    pub(crate) fn code(&self) -> i64 {
        let code = object(self.error()).get("code").map(str::to_owned);
        code.expect("a code").parse().expect("a number")
    }
}

// === Change notifications ===

/// A client's stream of change notifications.
pub(crate) struct ChangeStream<'a> {
    /// Id of the listen request, in the modern era.
    id: Option<Id>,
    source: Source<'a>,
}

enum Source<'a> {
    Exchange(Exchange<'a>),
    Unrouted(&'a Stdio),
}

impl ChangeStream<'_> {
    /// Waits until the stream is open; `false` if its connection ended before that.
    async fn opened(&mut self) -> bool {
        if let Source::Exchange(Exchange { transport: ExchangeTransport::Http(exchange), .. }) =
            &mut self.source
        {
            if !exchange.opened().await {
                return false;
            }
            assert_eq!(exchange.status(), 200);
        }
        true
    }

    /// The next message of any method.
    pub(crate) async fn next(&mut self) -> Option<String> {
        match &mut self.source {
            Source::Exchange(exchange) => exchange.next().await,
            Source::Unrouted(stdio) => stdio.next_unrouted().await.map(string),
        }
    }

    /// Waits for the next message without a time limit.
    pub(crate) async fn next_untimed(&mut self) -> Option<String> {
        match &mut self.source {
            Source::Exchange(exchange) => exchange.next_untimed().await,
            Source::Unrouted(stdio) => stdio.next_unrouted().await.map(string),
        }
    }

    /// The topic of the next change.
    pub(crate) async fn next_change(&mut self) -> ListTopic {
        let next = tokio::time::timeout(PATIENCE, self.next()).await;
        let message = next.expect("a change in time").expect("the stream is open");
        let message = object(&message);
        let meta = message.get_object("params").and_then(|params| params.get_object("_meta"));
        let subscription = meta.and_then(|meta| meta.get_bytes(meta::SUBSCRIPTION_ID));
        assert_eq!(subscription.as_ref(), self.id.as_ref().map(Id::as_bytes));
        let method = message.get_string("method").expect("a method");
        ListTopic::of_notification(&method).unwrap_or_else(|| panic!("{method} is no change"))
    }

    /// Asserts that no message comes for a while.
    pub(crate) async fn stays_silent(&mut self) {
        let next = tokio::time::timeout(SILENCE, self.next()).await;
        assert!(next.is_err(), "{next:?}");
    }

    /// The next bytes of an HTTP stream, comments included.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        match &mut self.source {
            Source::Exchange(exchange) => exchange.piece().await,
            Source::Unrouted(_) => panic!("lines have no pieces"),
        }
    }

    /// Ends listening in the way of its era; a legacy stream is simply closed.
    pub(crate) async fn cancel(self) {
        if let (Source::Exchange(exchange), Some(_)) = (self.source, self.id) {
            exchange.cancel().await;
        }
    }
}

// === Text ===

/// The parameters of a get or a call of this name.
pub(crate) fn named(name: &str) -> String {
    format!(r#"{{"name":{}}}"#, string(json::quote(name)))
}

/// The keys of a page's items.
pub(crate) fn keys_of(kind: Kind, page: &Object) -> Vec<String> {
    let items = page.get_bytes(kind.list_member()).expect("a list");
    let items = json::elements(&items).expect("an array");
    items
        .map(|item| object(&string(item)).get_string(kind.key_member()).expect("a key").into())
        .collect()
}

pub(crate) fn object(text: &str) -> Object {
    Object::parse(text.to_owned()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn string(bytes: Bytes) -> String {
    String::from_utf8(bytes.into()).expect("UTF-8")
}
