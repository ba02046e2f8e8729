//! The prompt library as an upstream: the same questions, no wire.
//!
//! Its results have no `resultType`, so its payloads belong to the legacy era.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::library::Library;
use super::state_publisher::Board;
use super::{About, Listing, Retry};
use crate::json::{self, Object};
use crate::jsonrpc;
use crate::mcp::call::{Body, Call, Method, Outcome, Reply};
use crate::mcp::capabilities::Capabilities;
use crate::mcp::definition::item::Item;
use crate::mcp::kind::{Kind, Topic};
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::Revision;
use crate::upstream::health::backoff::Backoff;
use crate::upstream::session::connection::Connection;

/// An open library. Cheap to clone.
#[derive(Clone)]
pub(super) struct Prompts {
    about: Arc<About>,
    library: Library,
}

impl Prompts {
    fn new(library: Library) -> Self {
        let about = About {
            epoch: 1,
            revision: Revision::NEWEST_LEGACY,
            wire: "library",
            topics: Topic::ALL.map(|topic| topic == Topic::Prompts),
            capabilities: Capabilities { completions: true, ..Capabilities::default() },
            instructions: None,
        };
        Self { about: Arc::new(about), library }
    }

    pub(super) fn about(&self) -> &Arc<About> {
        &self.about
    }

    /// All prompts. The library lists nothing else, and is not asked for anything else.
    pub(super) fn list(&self, name: &UpstreamName) -> Listing {
        let mut listing = Listing::default();
        for definition in self.library.definitions() {
            match Item::parse(Kind::Prompt, definition) {
                Ok(item) => listing.items.push(item),
                Err(bad) => tracing::warn!(upstream = %name, %bad, "an item is left out"),
            }
        }
        listing
    }

    /// Answers a call at once.
    pub(super) fn call(&self, call: &Call) -> Reply {
        let result = match call.method {
            Method::GetPrompt => self.get(call),
            Method::Complete => self.complete(call),
            Method::CallTool
            | Method::ReadResource
            | Method::GetTask
            | Method::TaskResult
            | Method::UpdateTask
            | Method::CancelTask => Err("the library has prompts only".into()),
        };
        let outcome = match result {
            Ok(result) => Outcome::Result(Body::Whole(result)),
            Err(text) => {
                Outcome::Error(jsonrpc::Error::new(jsonrpc::code::INVALID_PARAMS, text).to_bytes())
            }
        };
        Reply { era: self.about.era(), scope: None, outcome }
    }

    fn get(&self, call: &Call) -> Result<Bytes, String> {
        let given = match call.params.get("arguments") {
            None => Object::new(),
            Some(_) => read_member(&call.params, "arguments")?,
        };
        let mut arguments = BTreeMap::new();
        for name in given.keys() {
            let value = given.get_string(name);
            let value = value.ok_or_else(|| format!("argument `{name}` must be a string"))?;
            arguments.insert(name.to_owned(), value.into_owned());
        }
        self.library.get(&call.subject, &arguments).map_err(|refusal| refusal.to_string())
    }

    fn complete(&self, call: &Call) -> Result<Bytes, String> {
        let argument = read_member(&call.params, "argument")?;
        let name = argument.get_string("name").ok_or("`argument.name` must be a string")?;
        let value = argument.get_string("value").ok_or("`argument.value` must be a string")?;
        let completed = self.library.complete(&call.subject, &name, &value);
        completed.map(json::on_one_line).map_err(|refusal| refusal.to_string())
    }
}

fn read_member(params: &Object, member: &str) -> Result<Object, String> {
    params.read_object(member).map_err(|malformed| malformed.in_member(member))
}

/// The task that keeps the library open.
pub(super) struct Librarian {
    pub(super) dir: PathBuf,
    pub(super) retry: Retry,
    pub(super) board: Board,
    pub(super) tasks: TaskTracker,
}

impl Librarian {
    /// Opens the library, tries again if it cannot be opened, and tells of its changes. Ends only when
    /// `stop` fires.
    pub(super) async fn run(self, stop: CancellationToken) {
        let Some(library) = stop.run_until_cancelled(self.open()).await else {
            return self.board.stopped();
        };
        self.tasks.spawn(library.clone().watch(stop.clone()));
        let mut changes = library.changes();
        self.board.up(Connection::Library(Prompts::new(library)));
        while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
            changes.mark_unchanged();
            self.board.changed(Topic::Prompts);
        }
        self.board.stopped();
    }

    async fn open(&self) -> Library {
        let mut backoff = Backoff::new(&self.retry);
        loop {
            let dir = self.dir.clone();
            // Reading a folder blocks.
            let opened = self.tasks.spawn_blocking(move || Library::open(&dir)).await;
            match opened {
                Ok(Ok(library)) => return library,
                Ok(Err(error)) => {
                    let why = &error.source;
                    let text = format!("{error}: {why}; check the path and its permissions");
                    self.board.down(&text, false);
                }
                Err(panicked) => self.board.down(&panicked.to_string(), false),
            }
            let pause = backoff.next();
            self.board.vitals.waits(pause);
            tokio::time::sleep(pause).await;
            self.board.vitals.tries_again();
        }
    }
}
