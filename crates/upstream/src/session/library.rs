//! Connection to the prompt library: the interface of an upstream session, without a transport.
//!
//! Its results have no `resultType`, so its payloads belong to the legacy era.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::{ConnectionInfo, Listing};
use weir_base::json::{self, Object};
use weir_mcp::call::{Method, Payload, ResponseOutcome, UpstreamRequest, UpstreamResponse};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::definition::item::Item;
use weir_mcp::jsonrpc;
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::Revision;
use weir_prompts::Library;

/// Connection to an open library. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LibraryConnection {
    pub(crate) about: Arc<ConnectionInfo>,
    library: Arc<Library>,
}

impl LibraryConnection {
    pub(crate) fn new(library: Arc<Library>) -> Self {
        let about = ConnectionInfo {
            epoch: 1,
            revision: Revision::NEWEST_LEGACY,
            is_era_certain: true,
            transport: "library",
            topics: ListTopic::ALL.map(|topic| topic == ListTopic::Prompts),
            capabilities: Capabilities { completions: true, ..Capabilities::default() },
            instructions: None,
            sign_in: None,
        };
        Self { about: Arc::new(about), library }
    }

    /// Lists all prompts. The library has no other lists, and the gateway requests none.
    pub(crate) fn list(&self, name: &UpstreamName) -> Listing {
        let mut listing = Listing::default();
        for definition in self.library.definitions() {
            match Item::parse(Kind::Prompt, definition) {
                Ok(item) => listing.items.push(item),
                Err(bad) => tracing::warn!(upstream = %name, %bad, "invalid prompt omitted"),
            }
        }
        listing
    }

    /// Describes the mistakes in files, each with file and line.
    pub(crate) fn mistakes(&self) -> Vec<String> {
        self.library.mistakes()
    }

    /// Executes a call without waiting.
    pub(crate) fn call(&self, call: &UpstreamRequest) -> UpstreamResponse {
        let result = match call.method {
            Method::GetPrompt => self.get(call),
            Method::Complete => self.complete(call),
            Method::CallTool
            | Method::ReadResource
            | Method::GetTask
            | Method::TaskResult
            | Method::UpdateTask
            | Method::CancelTask => Err("the prompt library supports prompts only".into()),
        };
        let outcome = match result {
            Ok(result) => ResponseOutcome::Result(Payload::Complete(result)),
            Err(text) => ResponseOutcome::Error(
                jsonrpc::Error::new(jsonrpc::code::INVALID_PARAMS, text).to_bytes(),
            ),
        };
        UpstreamResponse { era: self.about.era(), scope: None, outcome }
    }

    fn get(&self, call: &UpstreamRequest) -> Result<Bytes, String> {
        let arguments_sent = match call.params.get("arguments") {
            None => Object::new(),
            Some(_) => read_member(&call.params, "arguments")?,
        };
        let mut arguments = BTreeMap::new();
        for name in arguments_sent.keys() {
            let value = arguments_sent.get_string(name);
            let value = value.ok_or_else(|| format!("argument `{name}` must be a string"))?;
            arguments.insert(name.to_owned(), value.into_owned());
        }
        self.library.get(&call.subject, &arguments).map_err(|refusal| refusal.to_string())
    }

    fn complete(&self, call: &UpstreamRequest) -> Result<Bytes, String> {
        let argument = read_member(&call.params, "argument")?;
        let name = argument.get_string("name").ok_or("`argument.name` must be a string")?;
        let value = argument.get_string("value").ok_or("`argument.value` must be a string")?;
        let completed = self.library.complete(&call.subject, &name, &value);
        completed.map(json::on_one_line).map_err(|refusal| refusal.to_string())
    }
}

fn read_member(params: &Object, member: &str) -> Result<Object, String> {
    params.require_object(member).map_err(|malformed| malformed.in_member(member))
}
