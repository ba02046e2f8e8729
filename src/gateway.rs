//! The request, in one screen. (API skeleton.)

pub mod fault;
pub mod listen;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::catalog::View;
use crate::mcp::call::{Ask, Caller, Reply};
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::policy::{Credentials, Principal, Refusal};
pub use fault::Fault;
pub use listen::Listen;

pub struct Gateway {}

impl Gateway {
    /// Lets a client in, before a byte of its request is read.
    pub fn enter(self: &Arc<Self>, _credentials: Credentials<'_>) -> Result<Guest, Refusal> {
        unimplemented!()
    }
}

/// A client that was let in. Cheap to clone.
#[derive(Clone)]
pub struct Guest {}

/// A page of a merged list, in no dialect.
pub struct Page {
    /// The items' JSON, joined by commas.
    pub items: Bytes,
    pub next_cursor: Option<String>,
    /// Upstreams that the list misses.
    pub partial: Vec<UpstreamName>,
    pub ttl: Duration,
    /// Whether every client would see the same.
    pub public: bool,
}

impl Guest {
    pub fn principal(&self) -> &Principal {
        unimplemented!()
    }
    pub fn view(&self) -> Arc<View> {
        unimplemented!()
    }
    /// Answers a list from memory.
    pub async fn list(&self, _kind: Kind, _cursor: Option<&str>) -> Result<Page, Fault> {
        unimplemented!()
    }
    /// Sends an ask to the upstream that owns the item. Dropping the future cancels the call.
    pub async fn ask(&self, _ask: Ask, _caller: Caller) -> Result<Reply, Fault> {
        unimplemented!()
    }
    /// Waits for changes of what this guest can see.
    pub fn listen(&self) -> Listen {
        unimplemented!()
    }
}
