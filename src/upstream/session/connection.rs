//! A connection that is open: a wire and the dialect that is spoken over it.
//!
//! The era was chosen once, when the connection was opened; here the two dialects meet for the last
//! time, in one `match` per function.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, select};
use hyper::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::cpu_bound;
use crate::json::Object;
use crate::jsonrpc;
use crate::mcp::call::{Call, Method, Outcome, Reply};
use crate::mcp::capabilities::Capabilities;
use crate::mcp::code;
use crate::mcp::kind::{Kind, Topic};
use crate::mcp::log_level::Level;
use crate::mcp::revision::{Era, Revision};
use crate::mcp::task::TaskScope;
use crate::upstream::input_requests::Questions;
use crate::upstream::library_upstream::Prompts;
use crate::upstream::message::{Answer, Failure, Outgoing, Sent, Wire};
use crate::upstream::session::pagination::Walk;
use crate::upstream::session::{input_retry, legacy, modern};
use crate::upstream::subscriptions::Interest;
use crate::upstream::transport::dispatcher::Ear;
use crate::upstream::{About, Listing, MAX_INSTRUCTIONS_BYTES, Settings};

/// What a server said of itself when the connection was opened.
#[derive(Debug)]
pub(crate) struct Introduction {
    pub(crate) revision: Revision,
    /// Which topics it declares.
    pub(crate) topics: [bool; 3],
    /// Of which topics it tells changes.
    pub(crate) tells: [bool; 3],
    pub(crate) capabilities: Capabilities,
    pub(crate) instructions: Option<Arc<str>>,
}

impl Introduction {
    /// Reads what a server answers to the opening request, as far as it means the same in both eras.
    pub(crate) fn read(revision: Revision, result: &Object) -> Self {
        let declared = result.get_object("capabilities").unwrap_or_default();
        let of_topic = |topic: Topic| declared.get_object(topic.capability());
        let tells = |topic: Topic| {
            of_topic(topic).is_some_and(|about| about.get("listChanged") == Some("true"))
        };
        let mut capabilities = Capabilities::read(&declared);
        // 2024-11-05 has `completion/complete` but no capability for it.
        capabilities.completions |= revision == Revision::V2024_11_05;
        // The eras know tasks of different shapes: the newer one's mean nothing from a legacy server.
        if revision.era() == Era::Legacy {
            capabilities = capabilities.without_tasks();
        }
        Self {
            revision,
            topics: Topic::ALL.map(|topic| of_topic(topic).is_some()),
            tells: Topic::ALL.map(tells),
            capabilities,
            instructions: result.get_string("instructions").and_then(|text| kept(&text)),
        }
    }
}

/// What is kept of a server's instructions: their beginning, and how much that is. `None` if they say
/// nothing.
fn kept(text: &str) -> Option<Arc<str>> {
    let text = text.trim();
    if text.len() <= MAX_INSTRUCTIONS_BYTES {
        return (!text.is_empty()).then(|| text.into());
    }
    let mut end = MAX_INSTRUCTIONS_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(format!("{}\n\n[cut here: {end} of {} bytes]", &text[..end], text.len()).into())
}

/// What the answer to an opening request means.
#[derive(Debug)]
pub(crate) enum Opening {
    /// The connection is open.
    Introduced(Introduction),
    /// The server speaks the other era.
    AnotherEra,
    /// The server refused, and names what it was spoken to in among what it speaks; in words.
    Retry(String),
    /// The server speaks this era and will not have us; in words.
    Refused(String),
}

/// How the server is spoken to.
#[derive(Debug, Clone)]
pub(crate) enum Dialect {
    Legacy(legacy::Dialect),
    Modern(modern::Dialect),
}

// === Connection ===

/// What calls go over. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Connection {
    /// To a server.
    Wired(Arc<Wired>),
    /// To the prompt library, which is in the house.
    Library(Prompts),
}

impl Connection {
    /// What the other side said of itself.
    pub(crate) fn about(&self) -> &Arc<About> {
        match self {
            Self::Wired(wired) => &wired.about,
            Self::Library(prompts) => prompts.about(),
        }
    }

    /// Where the tasks are known that begin here; `None` where none can.
    pub(crate) fn task_scope(&self) -> Option<TaskScope> {
        match self {
            Self::Wired(wired) => Some(wired.scope),
            Self::Library(_) => None,
        }
    }

    /// Sends a call, once; a tool's once more if it was refused unexecuted because its headers are not
    /// what the server wants (any more), and a new list of its tools says otherwise.
    ///
    /// What the server asks on the way goes to `questions`, and the answers from there to the server; `sent` knows
    /// whether any of it has been written.
    pub(crate) async fn call(
        &self,
        call: &Call,
        questions: &Questions,
        sent: &Sent,
        settings: &Settings,
    ) -> Result<Reply, Failure> {
        let wired = match self {
            Self::Wired(wired) => wired,
            Self::Library(prompts) => return Ok(prompts.call(call)),
        };
        if call.scope.is_some_and(|scope| scope != wired.scope) {
            return Err(Failure::NoSuchTask);
        }
        if wired.about.era() == Era::Legacy || !modern::reads(call) {
            return self.send(wired, call, questions, sent, settings).await;
        }
        let send = |call| async move { self.send(wired, &call, questions, sent, settings).await };
        // Boxed, as is all here that few calls need: the future of every call would have room for it, and is moved.
        Box::pin(input_retry::run(call, questions, send)).await
    }

    async fn send(
        &self,
        wired: &Wired,
        call: &Call,
        questions: &Questions,
        sent: &Sent,
        settings: &Settings,
    ) -> Result<Reply, Failure> {
        let request = wired.dress(call, questions, sent);
        let headers = (call.method == Method::CallTool).then(|| request.headers.clone());
        let answer = wired.ask_logging(call, request).await?;
        let is_mismatch = matches!(
            &answer.outcome,
            Outcome::Error(error) if error_code(error) == Some(code::HEADER_MISMATCH)
        );
        let Some(headers) = headers.filter(|_| is_mismatch) else {
            return Ok(wired.reply(answer));
        };
        Box::pin(self.list(Kind::Tool, settings)).await?;
        let request = wired.dress(call, questions, sent);
        if request.headers == headers {
            return Ok(wired.reply(answer));
        }
        Ok(wired.reply(wired.ask_logging(call, request).await?))
    }

    /// Lists a kind that the other side declares, through all pages.
    pub(crate) async fn list(&self, kind: Kind, settings: &Settings) -> Result<Listing, Failure> {
        match self {
            Self::Wired(connection) => {
                let (name, limits) = (&settings.name, &settings.limits);
                let time = settings.timeouts.list;
                let mut listing = Walk { name, connection, kind, limits, time }.run().await?;
                cpu_bound::run(listing.items.len(), || match &connection.dialect {
                    Dialect::Modern(dialect) if kind == Kind::Tool => {
                        dialect.learn(&mut listing.items, &connection.wire);
                    }
                    // Spec 2025-11-25, tasks, tool-level negotiation: who declares none has none.
                    Dialect::Legacy(dialect)
                        if kind == Kind::Tool && connection.about.capabilities.tasks.tools_call =>
                    {
                        dialect.learn(&mut listing.items);
                    }
                    Dialect::Legacy(_) | Dialect::Modern(_) => {}
                });
                Ok(listing)
            }
            Self::Library(prompts) => Ok(prompts.list(&settings.name)),
        }
    }
}

// === Wired ===

/// An open connection to a server.
pub(crate) struct Wired {
    pub(crate) about: Arc<About>,
    wire: Wire,
    dialect: Dialect,
    ear: Arc<Ear>,
    /// Where the tasks are known that begin here.
    pub(crate) scope: TaskScope,
    /// Of which topics the server tells changes.
    pub(crate) tells: [bool; 3],
    /// Fires when the connection is over.
    life: CancellationToken,
}

impl Wired {
    /// Begins the conversation after the opening request was answered with `introduction`.
    pub(crate) async fn begin(
        epoch: u64,
        wire: Wire,
        ear: Arc<Ear>,
        introduction: Introduction,
        headers: &HeaderMap,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let tells_whose = wire.tells_whose() || ear.is_alone();
        let dialect = match introduction.revision.era() {
            Era::Legacy => {
                Dialect::Legacy(legacy::Dialect::new(&introduction, headers, tells_whose)?)
            }
            Era::Modern => {
                Dialect::Modern(modern::Dialect::new(&introduction, headers, tells_whose))
            }
        };
        let keeps_sessions = match &dialect {
            Dialect::Legacy(dialect) => dialect.has_session(),
            Dialect::Modern(_) => false,
        };
        // A server over HTTP that keeps no sessions keeps its tasks over our connections; that it was started anew
        // cannot be seen. All other connections are one process or one session.
        let scope = match &wire {
            Wire::Http(_) if !keeps_sessions => TaskScope::of_server(&settings.fingerprint()),
            Wire::Http(_) | Wire::Stdio(_) | Wire::Sse(_) => TaskScope::unique(),
        };
        let _ = ear.scope.set(scope);
        match &dialect {
            Dialect::Legacy(dialect) => dialect.begin(&wire, &ear).await?,
            Dialect::Modern(dialect) => dialect.begin(&wire, &ear).await?,
        }
        let about = About {
            epoch,
            revision: introduction.revision,
            wire: wire.name(),
            topics: introduction.topics,
            capabilities: introduction.capabilities,
            instructions: introduction.instructions,
        };
        let life = CancellationToken::new();
        let (about, tells) = (Arc::new(about), introduction.tells);
        Ok(Self { about, wire, dialect, ear, scope, tells, life })
    }

    /// Whether a task goes on that began here, as far as the server tells.
    pub(crate) fn has_tasks(&self) -> bool {
        self.ear.has_tasks()
    }

    /// Dresses a call as this server wants it.
    fn dress(&self, call: &Call, questions: &Questions, sent: &Sent) -> Outgoing {
        let dressed = match &self.dialect {
            Dialect::Legacy(dialect) => {
                Outgoing { questions: Some(questions.clone()), ..dialect.dress(call, &self.wire) }
            }
            Dialect::Modern(dialect) => dialect.dress(call, &self.wire),
        };
        Outgoing { sent: sent.next(), ..dressed }
    }

    fn reply(&self, answer: Answer) -> Reply {
        Reply { era: self.about.era(), scope: Some(self.scope), outcome: answer.outcome }
    }

    /// Asks for one page of a list. `cursor` is JSON text.
    pub(crate) async fn page(
        &self,
        kind: Kind,
        cursor: Option<&Bytes>,
    ) -> Result<Outcome, Failure> {
        let request = match &self.dialect {
            Dialect::Legacy(dialect) => dialect.dress_list(kind, cursor, &self.wire),
            Dialect::Modern(dialect) => dialect.dress_list(kind, cursor, &self.wire),
        };
        Ok(self.ask(request).await?.outcome)
    }

    async fn ask(&self, request: Outgoing) -> Result<Answer, Failure> {
        let sent = request.sent.clone();
        let came = match request.questions.clone() {
            Some(questions) => Box::pin(self.converse(request, questions)).await,
            None => self.wire.exchange(request).await,
        };
        if let Err(Failure::Refused { status, error: Some(_), .. }) = &came
            && matches!(status.as_u16(), 401 | 403)
        {
            // The error goes to the client as it came; that credentials are missing is for the operator.
            tracing::warn!(upstream = %self.ear.name, %status, "the server refused a request");
        }
        let read = match &self.dialect {
            Dialect::Legacy(dialect) => dialect.read(came),
            Dialect::Modern(dialect) => dialect.read(came),
        };
        if let Err(Failure::Stale(_)) = &read {
            sent.take_back();
        }
        read
    }

    /// Asks what a call asks, and lets the server log as its caller wants it meanwhile.
    async fn ask_logging(&self, call: &Call, request: Outgoing) -> Result<Answer, Failure> {
        let (logs, answer) = (call.caller.notes.logs(), self.ask(request));
        match &self.dialect {
            Dialect::Legacy(legacy::Dialect { levels: Some(levels), .. }) => {
                levels.beside(logs, |level| Box::pin(self.set_level(level)), Box::pin(answer)).await
            }
            // Where there are no sessions each request says it.
            Dialect::Legacy(_) | Dialect::Modern(_) => answer.await,
        }
    }

    async fn set_level(&self, level: Level) {
        let Dialect::Legacy(dialect) = &self.dialect else { return };
        let answer = self.ask(dialect.dress_level(level)).await;
        tracing::debug!(level = level.as_str(), ?answer, "asked for log messages");
    }

    /// Sends a request whose server may ask something before it answers, and sends it the answers.
    async fn converse(&self, request: Outgoing, questions: Questions) -> Result<Answer, Failure> {
        let headers = request.headers.clone();
        questions.begin();
        // Dropped behind the exchange: first the request is cancelled, then its questions are refused.
        let unanswered = Unanswered { wire: &self.wire, headers: &headers, questions };
        let answers = async {
            loop {
                let given = unanswered.questions.answered().await;
                let Some(message) = given.write() else { continue };
                if let Err(failure) = self.wire.notify(message, &headers).await {
                    let reason = failure.into_reason();
                    break Failure::Broke(format!("an answer did not reach it: {reason}"));
                }
            }
        };
        let answer = tokio::select! {
            biased;
            answer = self.wire.exchange(request) => answer?,
            failure = answers => return Err(failure),
        };
        // Who has answered waits for nothing any more.
        unanswered.questions.close();
        Ok(answer)
    }

    /// Hears of changes until the connection is over, and subscribes to what is of `interest`. Returns why
    /// it must be opened again, if it must.
    pub(crate) async fn listen(self: Arc<Self>, interest: &Arc<Interest>) -> Option<String> {
        let (wire, ear) = (self.wire.clone(), Arc::clone(&self.ear));
        let listen = async {
            match &self.dialect {
                Dialect::Legacy(dialect) => dialect.listen(wire, ear, self.tells).await,
                Dialect::Modern(dialect) => dialect.listen(wire, ear, self.tells).await,
            }
        };
        let wire = self.wire.clone();
        let follow = async {
            match &self.dialect {
                _ if !self.about.capabilities.subscribe => std::future::pending().await,
                Dialect::Legacy(dialect) => dialect.follow(wire, interest).await,
                Dialect::Modern(dialect) => dialect.follow(wire, interest).await,
            }
        };
        let wire = self.wire.clone();
        let follow_tasks = async {
            match &self.dialect {
                Dialect::Modern(dialect) if self.about.capabilities.has_tasks() => {
                    dialect.follow_tasks(wire, interest.tasks()).await
                }
                // A server of the legacy era tells the owners by itself.
                Dialect::Legacy(_) | Dialect::Modern(_) => std::future::pending().await,
            }
        };
        let follow = async { select(pin!(follow), pin!(follow_tasks)).await.factor_first().0 };
        let both = async {
            match select(pin!(listen), pin!(follow)).await {
                Either::Left((None, follow)) => Some(follow.await),
                Either::Left((reason, _)) => reason,
                Either::Right((reason, _)) => Some(reason),
            }
        };
        self.life.run_until_cancelled(both).await.flatten()
    }

    /// Waits until the connection has ended by itself and tells why. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        self.wire.ended().await
    }

    /// Ends the conversation and the connection; returns when that is done.
    pub(crate) async fn close(&self) {
        match &self.dialect {
            Dialect::Legacy(dialect) => dialect.end(&self.wire).await,
            Dialect::Modern(dialect) => dialect.end(&self.wire).await,
        }
        self.abandon().await;
    }

    /// Ends a connection whose other side does not listen any more.
    pub(crate) async fn abandon(&self) {
        self.life.cancel();
        self.wire.close().await;
    }
}

/// The questions of a request. Dropping it refuses those that are open: nobody will answer them.
struct Unanswered<'a> {
    wire: &'a Wire,
    headers: &'a HeaderMap,
    questions: Questions,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let error = jsonrpc::Error::new(
            jsonrpc::code::INTERNAL_ERROR,
            "nobody waits for the call any more",
        );
        let error = error.to_bytes();
        let refuse = |id| jsonrpc::write_error(Some(&id), &error);
        let refusals: Vec<_> = self.questions.close().into_iter().map(refuse).collect();
        self.wire.send_back(refusals, self.headers);
    }
}

/// The code of a JSON-RPC error object.
pub(crate) fn error_code(error: &Bytes) -> Option<i64> {
    let error = Object::parse(error.clone()).ok()?;
    error.get("code")?.parse().ok()
}

/// The text of a JSON-RPC error object, bounded and without control characters.
pub(crate) fn error_text(error: &Bytes) -> String {
    let object = Object::parse(error.clone()).unwrap_or_default();
    match object.get_string("message") {
        Some(message) => crate::upstream::transport::child::quote(&message, 200),
        None => "an error without a message".into(),
    }
}
