//! The legacy dialect, as a client speaks it: `initialize`, sessions, and a stream for changes.
//!
//! Mirrors `modern.rs`: the same functions in the same order. A dialect dresses what goes out and reads
//! what comes back; it holds no connection.
//!
//! Knows nothing of: the house, and how the bytes travel.

mod subscriptions;

use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::json::{self, Object};
use crate::jsonrpc;
use crate::mcp::call::{Call, Method, Outcome};
use crate::mcp::definition::item::Item;
use crate::mcp::kind::Kind;
use crate::mcp::log_level::Level;
use crate::mcp::revision::{Era, Revision};
use crate::mcp::task::TaskOwner;
use crate::upstream::message::{Answer, Cancel, Failure, Outgoing, Wire};
use crate::upstream::session::connection::{Introduction, Opening, error_text};
use crate::upstream::session::input_retry::RETRY_MEMBERS;
use crate::upstream::session::log_level::Levels;
use crate::upstream::task_owners::TaskClaim;
use crate::upstream::transport::dispatcher::{self, Ear};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// The longest session id that is taken.
const MAX_SESSION_BYTES: usize = 4 * 1024;

/// Why a connection whose session the server has forgotten must be opened again.
const SESSION_OVER: &str = "its session has ended";

/// What was agreed on in the handshake.
#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    revision: Revision,
    session: Option<HeaderValue>,
    /// What the server is asked to log; none where nobody could be told.
    pub(crate) levels: Option<Arc<Levels>>,
}

/// The request that opens a connection and declares these capabilities.
pub(crate) fn opening(declared: &Bytes) -> Outgoing {
    let mut params = Object::new();
    params.set("protocolVersion", json::quote(Revision::NEWEST_LEGACY.as_str()));
    params.set("capabilities", declared.clone());
    params.set("clientInfo", crate::upstream::client_info());
    // spec 2025-11-25, cancellation: `initialize` MUST NOT be cancelled.
    Outgoing { resume: true, ..Outgoing::new("initialize", params, HeaderMap::new()) }
}

/// Reads the answer to the opening request.
pub(crate) fn introduce(outcome: &jsonrpc::Outcome) -> Opening {
    let result = match outcome {
        jsonrpc::Outcome::Result(result) => result.clone(),
        jsonrpc::Outcome::Error(error) => {
            return Opening::Refused(format!("it refuses `initialize`: {}", error_text(error)));
        }
    };
    let Ok(result) = Object::parse(result) else {
        return Opening::Refused("it answers `initialize` with something else".into());
    };
    let version = result.get_string("protocolVersion").unwrap_or_default();
    let known = version.parse::<Revision>().ok().filter(|known| known.era() == Era::Legacy);
    let Some(revision) = known else {
        let version = crate::upstream::transport::child::quote(&version, 40);
        let text = format!("it answers `initialize` with the unknown revision \"{version}\"");
        return Opening::Refused(text);
    };
    Opening::Introduced(Introduction::read(revision, &result))
}

impl Dialect {
    /// The dialect after the opening request was answered, unless the session has too long an id: without it every
    /// request would be refused.
    pub(crate) fn new(
        introduction: &Introduction,
        headers: &HeaderMap,
        tells_whose: bool,
    ) -> Result<Self, Failure> {
        let mut session = headers.get(SESSION).cloned();
        if let Some(id) = &mut session {
            if id.len() > MAX_SESSION_BYTES {
                let text = format!("its session's id has more than {MAX_SESSION_BYTES} bytes");
                return Err(Failure::Protocol(text));
            }
            id.set_sensitive(true);
        }
        let levels = (introduction.capabilities.logging && tells_whose).then(Arc::default);
        Ok(Self { revision: introduction.revision, session, levels })
    }

    /// Whether the server keeps a session, which ends with the connection.
    pub(crate) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// What is left to do before the first request.
    pub(crate) async fn begin(&self, wire: &Wire, ear: &Ear) -> Result<(), Failure> {
        ear.tune(self.revision);
        if let Wire::Sse(wire) = wire {
            wire.agree(self.headers());
        }
        let message = jsonrpc::write_notification("notifications/initialized", b"{}");
        wire.notify(message, &self.headers()).await
    }

    /// Dresses a call.
    pub(crate) fn dress(&self, call: &Call, _wire: &Wire) -> Outgoing {
        let caller = &call.caller;
        let mut params = call.params.clone();
        for member in RETRY_MEMBERS {
            params.take(member);
        }
        // Older revisions do not know it and the newer one has taken it out: it is to be ignored (spec
        // 2025-11-25, tasks, behavior requirements; SEP-2663, backward compatibility).
        if caller.revision != Revision::V2025_11_25 {
            params.take("task");
        }
        // Spec 2025-11-25, tasks: what names a task in its reply.
        let begins_one = call.method == Method::CallTool && params.has("task");
        let asked = matches!(call.method, Method::GetTask | Method::CancelTask);
        let names = caller.notes.names().filter(|_| begins_one || asked);
        let claim = |names| TaskClaim {
            owner: TaskOwner::new(Arc::clone(names), &caller.client.tasks),
            asked: asked.then(|| call.subject.clone()),
        };
        Outgoing {
            tasks: names.map(claim),
            notes: caller.notes.given_to(self.levels.is_some()),
            cancel: Cancel::Notify,
            resume: true,
            // What names a task has to be read.
            stream: caller.revision.era() == Era::Legacy
                && !call.method.is_about_a_task()
                && !begins_one,
            ..Outgoing::new(call.method.as_str(), params, self.headers())
        }
    }

    /// Dresses the request for a page of a list. `cursor` is JSON text.
    pub(crate) fn dress_list(&self, kind: Kind, cursor: Option<&Bytes>, _wire: &Wire) -> Outgoing {
        let mut params = Object::new();
        if let Some(cursor) = cursor {
            params.set("cursor", cursor.clone());
        }
        Outgoing {
            cancel: Cancel::Notify,
            resume: true,
            ..Outgoing::new(kind.list_method(), params, self.headers())
        }
    }

    /// Learns from a list of tools which of them can be called as tasks only.
    pub(crate) fn learn(&self, tools: &mut [Item]) {
        for tool in tools {
            let execution = tool.definition.get_object("execution");
            let support = execution.as_ref().and_then(|it| it.get_string("taskSupport"));
            tool.needs_task = support.as_deref() == Some("required");
        }
    }

    /// Asks for log messages from this level on.
    pub(crate) fn dress_level(&self, level: Level) -> Outgoing {
        let mut params = Object::new();
        params.set("level", json::quote(level.as_str()));
        Outgoing {
            cancel: Cancel::Notify,
            ..Outgoing::new("logging/setLevel", params, self.headers())
        }
    }

    /// Reads what came of a request.
    pub(crate) fn read(&self, came: Result<Answer, Failure>) -> Result<Answer, Failure> {
        match came {
            // spec 2025-11-25, transports, session management: 404 to a request with a session id
            // means that the session is over. The request was refused unexecuted.
            Err(Failure::Refused { status, .. })
                if status.as_u16() == 404 && self.session.is_some() =>
            {
                Err(Failure::Stale(SESSION_OVER.into()))
            }
            // Servers built on early SDK examples say 400 for it, and those that have a single session
            // say so once they have been started again. An error that names the request is an answer to
            // it, whatever its words: only one from before the request was read is about the session.
            Err(Failure::Refused { status, error: Some(error), names_it: false, .. })
                if status.as_u16() == 400 && self.session.is_some() && is_about_session(&error) =>
            {
                Err(Failure::Stale(SESSION_OVER.into()))
            }
            Err(Failure::Refused { error: Some(error), .. }) => {
                Ok(Answer { outcome: Outcome::Error(error), headers: HeaderMap::new() })
            }
            came => came,
        }
    }

    /// Hears of changes until the connection is over. Over stdio and HTTP+SSE there is nothing to be
    /// asked for: what the server has to say stands between its answers.
    ///
    /// Returns why the connection must be opened again, if it must.
    pub(crate) async fn listen(
        &self,
        wire: Wire,
        ear: Arc<Ear>,
        _topics: [bool; 3],
    ) -> Option<String> {
        let Wire::Http(wire) = wire else {
            ear.listening();
            return None;
        };
        let (mut pause, mut last_id, mut heard_before) = (dispatcher::LISTEN_AGAIN, None, false);
        loop {
            let since = Instant::now();
            let mut retry = None;
            match wire.listen(&self.headers(), last_id.as_deref()).await {
                Ok(mut events) => {
                    if std::mem::replace(&mut heard_before, true) {
                        ear.missed_updates();
                    }
                    ear.listening();
                    while let Ok(Some(heard)) = wire.next(&mut events, None).await {
                        wire.send_back(heard.replies, &self.headers());
                    }
                    last_id = events.last_id().or(last_id);
                    retry = events.retry();
                }
                // Once there was a stream, 404 is about the session. Before that, it is how some
                // servers say that they have none.
                Err(Failure::Refused { status, .. }) if status.is_client_error() => {
                    let session_over = status.as_u16() == 404 && self.session.is_some();
                    if heard_before && session_over {
                        return Some(SESSION_OVER.into());
                    }
                    // It may not know (any more) where we left off: begin anew.
                    let begins_anew = last_id.take().is_some();
                    if !begins_anew && !matches!(status.as_u16(), 408 | 429) {
                        tracing::debug!(%status, "no stream for changes");
                        ear.listening();
                        return None;
                    }
                }
                Err(failure) => tracing::debug!(?failure, "no stream for changes for now"),
            }
            pause = dispatcher::next_pause(pause, since);
            // spec 2025-11-25, transports: the client MUST respect `retry`. Waiting longer does, and a
            // server whose streams end at once may not keep us busy.
            let least = if since.elapsed() < dispatcher::LISTEN_AGAIN {
                pause
            } else {
                dispatcher::LISTEN_AGAIN / 4
            };
            tokio::time::sleep(retry.unwrap_or(pause).max(least)).await;
        }
    }

    /// Ends the conversation.
    pub(crate) async fn end(&self, wire: &Wire) {
        if let (Wire::Http(wire), Some(_)) = (wire, &self.session) {
            wire.delete(&self.headers()).await;
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(session) = &self.session {
            headers.insert(SESSION, session.clone());
        }
        // The header came with 2025-06-18; 2025-03-26 is what its absence means.
        if self.revision >= Revision::V2025_06_18 {
            headers.insert(VERSION, HeaderValue::from_static(self.revision.as_str()));
        }
        headers
    }
}

/// Whether the text of an error says that the server does not know the session.
fn is_about_session(error: &Bytes) -> bool {
    let text = error_text(error).to_lowercase();
    text.contains("session") || text.contains("not initialized")
}
