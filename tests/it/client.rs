//! Raw clients of every revision over every wire: they send bytes and hand bytes back.
//!
//! A [`Client`] has made its era's introductions. [`Client::start`] sends a request and returns the
//! [`Exchange`] that it opens; [`Client::request`] waits for its [`Reply`]. Whatever comes back is kept
//! as text, so that tests compare bytes.
//!
//! Knows nothing of: the house, and what the methods mean.

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
use weir::json::{self, Object};
use weir::jsonrpc::{self, Id};
use weir::mcp::kind::{Kind, Topic};
use weir::mcp::meta;

use crate::cell::{Side, Wire};
use crate::judge::Talk;
use crate::upstream::PATIENCE;
pub(crate) use http::{AUTHORITY, Exchange as HttpExchange, Http, HttpReply, set};
pub(crate) use stdio::Stdio;

/// How long a silence has to be before it counts as one.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Opens connections to what is tested.
#[derive(Clone)]
pub(crate) struct Open {
    connect: Arc<dyn Fn() -> DuplexStream + Send + Sync>,
    /// Who judges what comes back, if that is Weir's.
    talk: Option<Arc<Talk>>,
}

/// One client.
pub(crate) struct Client {
    pub(crate) side: Side,
    pub(crate) wire: Wired,
    /// What it declares that it can do.
    capabilities: String,
    numbers: AtomicU64,
}

/// A client's wire.
pub(crate) enum Wired {
    Http(Http),
    /// And the HTTP+SSE pair, which has one incoming stream for everything, too.
    Stdio(Stdio),
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The HTTP status; 200 over stdio.
    pub(crate) status: u16,
    /// The id, as it came back.
    pub(crate) id: String,
    /// The `result` or the `error`, as it came.
    pub(crate) outcome: Result<String, String>,
    /// The messages before it.
    pub(crate) notes: Vec<String>,
}

/// A request that is under way. Dropping it is leaving without a word.
pub(crate) struct Exchange<'a> {
    client: &'a Client,
    id: Id,
    wire: Wiring,
}

enum Wiring {
    Http(http::Exchange),
    Stdio(stdio::Exchange),
}

impl Open {
    pub(crate) fn new(
        connect: impl Fn() -> DuplexStream + Send + Sync + 'static,
        talk: Option<Arc<Talk>>,
    ) -> Self {
        Self { connect: Arc::new(connect), talk }
    }

    pub(crate) fn connect(&self) -> DuplexStream {
        (self.connect)()
    }

    /// The client says this, over this wire.
    fn said(&self, bytes: &[u8], wire: Wire) {
        if let Some(talk) = &self.talk {
            talk.said(bytes, wire);
        }
    }

    /// The client hears this.
    fn heard(&self, bytes: &[u8]) {
        if let Some(talk) = &self.talk {
            talk.heard(bytes);
        }
    }
}

impl Client {
    /// A client that has opened its conversation.
    pub(crate) async fn open(
        side: Side,
        open: Open,
        key: Option<&str>,
        tasks: &TaskTracker,
    ) -> Self {
        let client = Self::silent(side, open, key, tasks);
        if !side.is_modern() {
            client.initialize().await;
        }
        client
    }

    /// A client that has said nothing yet.
    pub(crate) fn silent(side: Side, open: Open, key: Option<&str>, tasks: &TaskTracker) -> Self {
        let wire = match side.wire {
            Wire::Http => Wired::Http(Http::new(side, open, key, tasks)),
            Wire::Stdio => Wired::Stdio(Stdio::new(&open, tasks)),
            Wire::Sse => Wired::Stdio(pair::open(Http::new(side, open, key, tasks), tasks)),
        };
        Self { side, wire, capabilities: "{}".into(), numbers: AtomicU64::new(1) }
    }

    /// The client with these capabilities, which it has not told yet.
    pub(crate) fn declaring(self, capabilities: &str) -> Self {
        Self { capabilities: capabilities.into(), ..self }
    }

    /// Opens the conversation in the legacy way.
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
        let params = self.dressed(params);
        let message = jsonrpc::write_request(&id, method, params.as_bytes());
        let wire = match &self.wire {
            Wired::Http(http) => Wiring::Http(http.post(message, &http.headers(method, &params))),
            Wired::Stdio(stdio) => Wiring::Stdio(stdio.ask(&id, &message)),
        };
        Exchange { client: self, id, wire }
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: &str) {
        let message = jsonrpc::write_notification(method, params.as_bytes());
        match &self.wire {
            Wired::Http(http) => {
                let reply = http.post(message, &http.headers(method, params)).whole().await;
                assert_eq!(reply.status, 202, "{method}: {reply:?}");
            }
            Wired::Stdio(stdio) => stdio.send(&message),
        }
    }

    /// Sends any message that has no answer.
    pub(crate) async fn send(&self, message: &str) {
        match &self.wire {
            Wired::Http(http) => {
                let mut posted = http.post(message.to_owned(), &http.headers("", "{}"));
                posted.opened().await;
                assert_eq!(posted.status(), 202, "{message}");
            }
            Wired::Stdio(stdio) => stdio.send(message.as_bytes()),
        }
    }

    pub(crate) fn http(&self) -> &Http {
        match &self.wire {
            Wired::Http(http) => http,
            Wired::Stdio(_) => panic!("this client speaks over stdio"),
        }
    }

    pub(crate) fn stdio(&self) -> &Stdio {
        match &self.wire {
            Wired::Stdio(stdio) => stdio,
            Wired::Http(_) => panic!("this client speaks over HTTP"),
        }
    }

    /// The parameters with what a modern request says about itself.
    pub(crate) fn dressed(&self, params: &str) -> String {
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

    /// One page of a list.
    pub(crate) async fn page(&self, kind: Kind, cursor: Option<&str>) -> Object {
        let params = match cursor {
            Some(cursor) => format!(r#"{{"cursor":{}}}"#, string(json::quote(cursor))),
            None => "{}".to_owned(),
        };
        object(self.request(kind.list_method(), &params).await.result())
    }

    /// The keys of all items of a kind, through all pages.
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

    /// Completes an argument of a prompt.
    pub(crate) async fn complete(&self, prompt: &str) -> Reply {
        let name = string(json::quote(prompt));
        let params = format!(
            r#"{{"ref":{{"type":"ref/prompt","name":{name}}},"argument":{{"name":"x","value":""}}}}"#
        );
        self.request("completion/complete", &params).await
    }

    /// Listens for changes of every topic.
    pub(crate) async fn listen(&self) -> Ears<'_> {
        self.listen_for(&Topic::ALL).await
    }

    /// Listens for changes; only a modern client can choose of which topics.
    pub(crate) async fn listen_for(&self, topics: &[Topic]) -> Ears<'_> {
        self.try_listen_for(topics).await.expect("a stream")
    }

    /// The same; `None` if the connection ends before the stream has begun.
    pub(crate) async fn try_listen_for(&self, topics: &[Topic]) -> Option<Ears<'_>> {
        if self.side.is_modern() {
            let filter: Vec<_> =
                topics.iter().map(|topic| format!(r#""{}":true"#, topic.filter_member())).collect();
            let params = format!(r#"{{"notifications":{{{}}}}}"#, filter.join(","));
            let mut exchange = self.start("subscriptions/listen", &params);
            let acknowledged = object(&exchange.next().await?);
            let method = acknowledged.get_string("method");
            assert_eq!(method.as_deref(), Some("notifications/subscriptions/acknowledged"));
            return Some(Ears {
                id: Some(exchange.id.clone()),
                source: Source::Exchange(exchange),
            });
        }
        let source = match &self.wire {
            Wired::Http(http) => {
                let stream = http.get();
                let exchange =
                    Exchange { client: self, id: Id::from(0), wire: Wiring::Http(stream) };
                Source::Exchange(exchange)
            }
            Wired::Stdio(stdio) => Source::Strays(stdio),
        };
        let mut ears = Ears { id: None, source };
        ears.opened().await.then_some(ears)
    }
}

impl Exchange<'_> {
    /// The next message: a note, or the answer; `None` when nothing comes any more.
    pub(crate) async fn next(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE * 10, self.whenever()).await.expect("a message in time")
    }

    /// The same, however long it takes.
    async fn whenever(&mut self) -> Option<String> {
        let next: BoxFuture<'_, Option<Bytes>> = match &mut self.wire {
            Wiring::Http(exchange) => Box::pin(exchange.next()),
            Wiring::Stdio(exchange) => Box::pin(exchange.next()),
        };
        next.await.map(string)
    }

    /// The next question to the client of this request.
    pub(crate) async fn question(&mut self) -> String {
        let question = async {
            match &self.client.wire {
                Wired::Http(_) => self.next().await,
                Wired::Stdio(stdio) => stdio.stray().await.map(string),
            }
        };
        let question = tokio::time::timeout(PATIENCE * 10, question).await;
        question.expect("a question in time").expect("the stream is open")
    }

    /// Waits for the answer.
    pub(crate) async fn reply(mut self) -> Reply {
        self.answer().await.unwrap_or_else(|notes| panic!("no answer after {notes:?}"))
    }

    /// Waits for the answer; without one returns what came instead.
    pub(crate) async fn answer(&mut self) -> Result<Reply, Vec<String>> {
        let mut notes = Vec::new();
        loop {
            let Some(message) = self.next().await else { return Err(notes) };
            if object(&message).has("method") {
                notes.push(message);
                continue;
            }
            return Ok(self.read(&message, notes));
        }
    }

    /// An answer, behind these notes.
    pub(crate) fn read(&self, message: &str, notes: Vec<String>) -> Reply {
        let answer = object(message);
        let member = |name: &str| answer.get_bytes(name).map(string);
        let outcome = match (member("result"), member("error")) {
            (Some(result), None) => Ok(result),
            (None, Some(error)) => Err(error),
            _ => panic!("not an answer: {message}"),
        };
        let status = match &self.wire {
            Wiring::Http(exchange) => exchange.status(),
            Wiring::Stdio(_) => 200,
        };
        Reply { status, id: member("id").expect("an id"), outcome, notes }
    }

    /// Whether nothing comes for a while.
    pub(crate) async fn stays_silent(&mut self) {
        let next = tokio::time::timeout(SILENCE, self.next()).await;
        assert!(next.is_err(), "{next:?}");
    }

    /// Cancels the request in its era's way.
    pub(crate) async fn cancel(self) {
        if self.client.side.is_modern() && self.client.side.is_http() {
            return; // Dropping the exchange closes its stream.
        }
        let params = format!(r#"{{"requestId":{}}}"#, self.id);
        self.client.notify("notifications/cancelled", &params).await;
    }

    /// The next piece of an HTTP response's body, as it arrives.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        match &mut self.wire {
            Wiring::Http(exchange) => exchange.piece().await,
            Wiring::Stdio(_) => panic!("lines have no pieces"),
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

// === Ears ===

/// A client's stream of change notifications.
pub(crate) struct Ears<'a> {
    /// The listen request's id, in the modern era.
    id: Option<Id>,
    source: Source<'a>,
}

enum Source<'a> {
    Exchange(Exchange<'a>),
    Strays(&'a Stdio),
}

impl Ears<'_> {
    /// Waits until the stream is open; `false` if its connection ended before.
    async fn opened(&mut self) -> bool {
        if let Source::Exchange(Exchange { wire: Wiring::Http(exchange), .. }) = &mut self.source {
            if !exchange.opened().await {
                return false;
            }
            assert_eq!(exchange.status(), 200);
        }
        true
    }

    /// The next message, whatever it is.
    pub(crate) async fn next(&mut self) -> Option<String> {
        match &mut self.source {
            Source::Exchange(exchange) => exchange.next().await,
            Source::Strays(stdio) => stdio.stray().await.map(string),
        }
    }

    /// The same, however long it takes.
    pub(crate) async fn whenever(&mut self) -> Option<String> {
        match &mut self.source {
            Source::Exchange(exchange) => exchange.whenever().await,
            Source::Strays(stdio) => stdio.stray().await.map(string),
        }
    }

    /// The topic of the next change.
    pub(crate) async fn next_change(&mut self) -> Topic {
        let next = tokio::time::timeout(PATIENCE, self.next()).await;
        let message = next.expect("a change in time").expect("the stream is open");
        let message = object(&message);
        let meta = message.get_object("params").and_then(|params| params.get_object("_meta"));
        let subscription = meta.and_then(|meta| meta.get_bytes(meta::SUBSCRIPTION_ID));
        assert_eq!(subscription.as_ref(), self.id.as_ref().map(Id::as_bytes));
        let method = message.get_string("method").expect("a method");
        Topic::of_notification(&method).unwrap_or_else(|| panic!("{method} is no change"))
    }

    /// Waits a while in which nothing must come.
    pub(crate) async fn stays_silent(&mut self) {
        let next = tokio::time::timeout(SILENCE, self.next()).await;
        assert!(next.is_err(), "{next:?}");
    }

    /// The next bytes of an HTTP stream, comments included.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        match &mut self.source {
            Source::Exchange(exchange) => exchange.piece().await,
            Source::Strays(_) => panic!("lines have no pieces"),
        }
    }

    /// Ends listening with its era's word for it; a legacy stream is simply closed.
    pub(crate) async fn cancel(self) {
        if let (Source::Exchange(exchange), Some(_)) = (self.source, self.id) {
            exchange.cancel().await;
        }
    }
}

// === Text ===

/// The parameters of a get or a call.
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
