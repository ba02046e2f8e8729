//! A text in the place of servers: the interface of an upstream session, with one tool that returns
//! the text.
//!
//! Its results have no `resultType`, so its payloads belong to the legacy era.

use std::sync::Arc;

use bytes::Bytes;

use crate::{ConnectionInfo, Listing};
use weir_base::json;
use weir_mcp::call::{Payload, ResponseOutcome, UpstreamResponse};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::definition::item::Item;
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::revision::Revision;

/// Connection to a text. Cheap to clone.
#[derive(Clone)]
pub(crate) struct NoticeConnection {
    pub(crate) about: Arc<ConnectionInfo>,
    text: Arc<str>,
}

impl NoticeConnection {
    pub(crate) fn new(text: &str) -> Self {
        let about = ConnectionInfo {
            epoch: 1,
            revision: Revision::NEWEST_LEGACY,
            is_era_certain: true,
            transport: "notice",
            topics: ListTopic::ALL.map(|topic| topic == ListTopic::Tools),
            capabilities: Capabilities::default(),
            instructions: Some(text.into()),
            sign_in: None,
        };
        Self { about: Arc::new(about), text: text.into() }
    }

    /// Lists the tool.
    pub(crate) fn list(&self) -> Listing {
        let (name, text) = (json::quote(NAME), json::quote(&self.text));
        let definition = [
            &b"{\"name\":"[..],
            &*name,
            b",\"description\":",
            &*text,
            b",\"inputSchema\":{\"type\":\"object\",\"properties\":{}}}",
        ];
        let item = Item::parse(Kind::Tool, Bytes::from(definition.concat()));
        Listing { items: item.into_iter().collect(), ..Listing::default() }
    }

    /// Executes a call without waiting: each returns the text, as an error.
    pub(crate) fn call(&self) -> UpstreamResponse {
        let text = json::quote(&self.text);
        let parts =
            [&b"{\"content\":[{\"type\":\"text\",\"text\":"[..], &*text, b"}],\"isError\":true}"];
        let result = Payload::Complete(Bytes::from(parts.concat()));
        let outcome = ResponseOutcome::Result(result);
        UpstreamResponse { era: self.about.era(), scope: None, outcome }
    }
}

/// Name of the tool.
const NAME: &str = "configuration_error";
