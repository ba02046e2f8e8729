//! Requests and responses as they pass through the gateway, independent of revision and transport.
//!
//! An [`ItemRequest`] is a client's request for an item by its public name. Once the client's view
//! has resolved the name, it becomes an [`UpstreamRequest`] with the upstream's own name. The
//! result is an [`UpstreamResponse`], whose payload is forwarded unread where possible.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use hyper::HeaderMap;
use strum::VariantArray;
use tokio_util::sync::CancellationToken;

use crate::call_notifications::NotificationSink;
use crate::elicitation_complete::ElicitationCompletions;
use crate::input_request::ClientFeatures;
use crate::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};
use crate::revision::{Era, Revision};
use crate::task::{TASK_ID, TaskScope, TaskStatusQueue};
use weir_base::json::{self, Object, ParseError};
use weir_base::memory::memory_budget::{
    BudgetExhausted, BufferError, BufferLimit, GrowingReservation,
};

/// Method that is forwarded to the upstream that owns an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub enum Method {
    /// `prompts/get`
    GetPrompt,
    /// `tools/call`
    CallTool,
    /// `resources/read`
    ReadResource,
    /// `completion/complete`, about a prompt or a template
    Complete,
    /// `tasks/get`: the status of a task
    GetTask,
    /// `tasks/result`, which waits for the end of a task; legacy era only
    TaskResult,
    /// `tasks/update`: input responses for a task; modern era only
    UpdateTask,
    /// `tasks/cancel`
    CancelTask,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; Self::VARIANTS.len()] =
        *Self::VARIANTS.as_array().expect("the length is its own");

    /// The method's name in the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GetPrompt => "prompts/get",
            Self::CallTool => "tools/call",
            Self::ReadResource => "resources/read",
            Self::Complete => "completion/complete",
            Self::GetTask => "tasks/get",
            Self::TaskResult => "tasks/result",
            Self::UpdateTask => "tasks/update",
            Self::CancelTask => "tasks/cancel",
        }
    }

    /// The method by which an item of this kind is used; templates are used by reading resources.
    pub fn for_kind(kind: Kind) -> Self {
        match kind {
            Kind::Prompt => Self::GetPrompt,
            Kind::Tool => Self::CallTool,
            Kind::Resource | Kind::Template => Self::ReadResource,
        }
    }

    /// The method with this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    /// The member of `params` that a modern HTTP request repeats in its `Mcp-Name` header.
    pub fn header_member(self) -> Option<&'static str> {
        // SEP-2663, routing headers: the task's id.
        self.item_member().map(|(_, member)| member)
    }

    /// The kind of the item that a request is about, and the member of `params` with the item's
    /// name or URI or the task's id; `None` if the member `ref` says both.
    fn item_member(self) -> Option<(Kind, &'static str)> {
        match self {
            Self::GetPrompt => Some((Kind::Prompt, "name")),
            Self::CallTool => Some((Kind::Tool, "name")),
            Self::ReadResource => Some((Kind::Resource, "uri")),
            Self::Complete => None,
            Self::GetTask | Self::TaskResult | Self::UpdateTask | Self::CancelTask => {
                Some((Kind::Tool, TASK_ID))
            }
        }
    }

    /// Whether the method is about a task, which the request names by its handle.
    pub fn is_task_method(self) -> bool {
        matches!(self, Self::GetTask | Self::TaskResult | Self::UpdateTask | Self::CancelTask)
    }
}

/// Context of a call, as far as an upstream may know it.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The client's revision.
    pub revision: Revision,
    /// The client's name and version as JSON; never used for decisions.
    pub info: Option<Bytes>,
    /// The client's declared capabilities as a JSON object.
    pub capabilities: Bytes,
    /// The input requests that the client supports, by its capabilities.
    pub features: ClientFeatures,
    /// The client, for upstreams with a connection per client.
    pub client: ClientHandle,
    /// Sink of progress and log notifications.
    pub notifications: NotificationSink,
    /// The request's `Mcp-Param-*` headers. Those that repeat an argument have been validated and
    /// removed. `None` for transports without headers.
    pub param_headers: Option<HeaderMap>,
    /// Reason of the client for cancelling the request.
    pub cancel_reason: CancelReason,
}

/// Reason that a client gives when it cancels a request, bounded. Cheap to clone; clones share it.
/// The default is that of a request that cannot be cancelled with a reason.
#[derive(Debug, Clone, Default)]
pub struct CancelReason(Option<Arc<OnceLock<Box<str>>>>);

impl CancelReason {
    /// Creates the reason of a request that may be cancelled with one.
    pub fn unset() -> Self {
        Self(Some(Arc::default()))
    }

    /// Sets the reason, of which at most [`MAX_CANCEL_REASON_BYTES`] are kept. The first one
    /// counts.
    pub fn set(&self, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(MAX_CANCEL_REASON_BYTES)];
        let _ = self.0.as_ref().map(|cell| cell.set(reason.into()));
    }

    /// The reason, if the client has given one.
    pub fn get(&self) -> Option<&str> {
        self.0.as_ref()?.get().map(AsRef::as_ref)
    }
}

/// Longest part of a client's reason for cancelling that is passed on.
pub(crate) const MAX_CANCEL_REASON_BYTES: usize = 1_024;

/// A distinguishable client: a legacy session, the process at the other end of standard input and
/// output, or, without sessions, everything that one principal sends.
#[derive(Debug, Clone)]
pub struct ClientHandle {
    id: Arc<str>,
    /// Cancelled when the session has ended; never for clients without sessions.
    pub gone: CancellationToken,
    /// Whether several clients may share the id.
    pub is_shared: bool,
    /// Whether its session was rebuilt: what upstreams with a connection per client remembered of
    /// it is lost.
    pub is_rebuilt: bool,
    /// Owner of the client's quotas.
    pub owner: QuotaOwner,
    /// Pending task notifications.
    pub tasks: TaskStatusQueue,
    /// Pending notifications of completed URL elicitations.
    pub elicitation_completions: ElicitationCompletions,
}

/// Owner of clients, for quotas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaOwner {
    /// Name of the principal.
    pub name: Arc<str>,
    /// Number of clients that the owner stands for.
    pub clients: usize,
}

impl QuotaOwner {
    /// The owner's share of a quantity that is limited to `per_client`.
    pub fn share(&self, per_client: usize) -> usize {
        per_client * self.clients
    }
}

impl ClientHandle {
    /// Creates a client with a unique `id`.
    pub fn new(id: &str, gone: CancellationToken) -> Self {
        let owner = QuotaOwner { name: id.into(), clients: 1 };
        let (tasks, elicitation_completions) =
            (TaskStatusQueue::default(), ElicitationCompletions::default());
        let id = Arc::clone(&owner.name);
        let (is_shared, is_rebuilt) = (false, false);
        Self { id, gone, is_shared, is_rebuilt, owner, tasks, elicitation_completions }
    }

    /// Creates the handle for all clients of an owner, for transports without sessions.
    pub fn shared_by(owner: QuotaOwner) -> Self {
        let id = Arc::clone(&owner.name);
        let (gone, tasks, elicitation_completions) = Default::default();
        let (is_shared, is_rebuilt) = (true, false);
        Self { id, gone, is_shared, is_rebuilt, owner, tasks, elicitation_completions }
    }

    /// Sets the owner of the client.
    pub fn owned_by(self, owner: QuotaOwner) -> Self {
        Self { owner, ..self }
    }

    /// The client's id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }
}

impl CallContext {
    /// Context of a client without capabilities and notifications.
    pub fn without_features(revision: Revision) -> Self {
        Self {
            revision,
            info: None,
            capabilities: Bytes::from_static(b"{}"),
            features: ClientFeatures::default(),
            client: ClientHandle::new("", CancellationToken::new()),
            notifications: NotificationSink::disabled(),
            param_headers: None,
            cancel_reason: CancelReason::default(),
        }
    }
}

/// Request of a client for an item, under the item's public name.
#[derive(Debug, Clone)]
pub struct ItemRequest {
    /// The method.
    pub method: Method,
    /// The kind of the item.
    pub kind: Kind,
    /// The item's public name or URI, or the handle of a task.
    pub key: Box<str>,
    /// The parameters as sent, without Weir's own members of `_meta`.
    pub params: Object,
}

/// Method, kind and key by which the item of a request is looked up.
pub type RequestedItem = (Method, Kind, Box<str>);

/// Error for parameters that do not fit the method; the text is for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidParams(pub String);

impl ItemRequest {
    /// Parses a request.
    pub fn parse(method: Method, params: Object) -> Result<Self, InvalidParams> {
        let (kind, key) = Self::item(method, &params)?;
        Ok(Self { method, kind, key, params })
    }

    /// The item that a client's request names, if it names one. A resource is subscribed to by the
    /// rules of reading it.
    pub fn requested(method: &str, params: &Object) -> Option<RequestedItem> {
        if let SUBSCRIBE | UNSUBSCRIBE = method {
            return Some((Method::ReadResource, Kind::Resource, params.get_string("uri")?.into()));
        }
        let method = Method::of(method)?;
        let (kind, key) = Self::item(method, params).ok()?;
        Some((method, kind, key))
    }

    /// Parses the kind and key of the item that a request is about.
    pub(crate) fn item(method: Method, params: &Object) -> Result<(Kind, Box<str>), InvalidParams> {
        let string = |object: &Object, member: &str| {
            let text = object.get_string(member).map(Box::<str>::from);
            text.ok_or_else(|| InvalidParams(format!("`{member}` must be a string")))
        };
        if let Some((kind, member)) = method.item_member() {
            return Ok((kind, string(params, member)?));
        }
        let reference = params.require_object("ref");
        let reference = reference.map_err(|malformed| InvalidParams(malformed.in_member("ref")))?;
        match reference.get_string("type").as_deref() {
            Some("ref/prompt") => Ok((Kind::Prompt, string(&reference, "name")?)),
            Some("ref/resource") => Ok((Kind::Template, string(&reference, "uri")?)),
            _ => {
                let text = "`ref.type` must be \"ref/prompt\" or \"ref/resource\"";
                Err(InvalidParams(text.into()))
            }
        }
    }

    /// Converts the request into one for the upstream, which knows the item as `own`. Boxed,
    /// because it is moved often.
    pub fn into_upstream_request(
        self,
        own: &str,
        caller: Box<CallContext>,
    ) -> Box<UpstreamRequest> {
        let mut params = self.params;
        // URIs are the same on both sides; then the parameters keep their bytes.
        if *self.key != *own {
            match self.method.item_member() {
                Some((_, member)) => params.set(member, json::quote(own)),
                None => {
                    let mut reference = params.get_object("ref").unwrap_or_default();
                    reference.set("name", json::quote(own));
                    params.set("ref", reference.to_bytes());
                }
            }
        }
        Box::new(UpstreamRequest {
            method: self.method,
            subject: own.into(),
            params,
            scope: None,
            caller,
        })
    }
}

/// Request to the upstream that owns the item.
#[derive(Debug, Clone)]
pub struct UpstreamRequest {
    /// The method.
    pub method: Method,
    /// The upstream's own name or URI of the item, or id of the task.
    pub subject: Box<str>,
    /// The parameters, under the upstream's own name.
    pub params: Object,
    /// Scope of the tasks that it names: it is not sent to another scope.
    pub scope: Option<TaskScope>,
    /// Context of the client.
    pub caller: Box<CallContext>,
}

/// Response of an upstream. An error object is a response, not a failure of the gateway.
#[derive(Debug)]
pub struct UpstreamResponse {
    /// The era of the payload, which decides its optional members and error codes.
    pub era: Era,
    /// Scope of the task that it begins; `None` if it cannot begin one.
    pub scope: Option<TaskScope>,
    /// Result or error.
    pub outcome: ResponseOutcome,
}

/// Outcome of a call, or of one step of it.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one value per call, matched at once")]
pub enum CallOutcome<S> {
    /// The upstream responded.
    Response(UpstreamResponse),
    /// The upstream needs input of the client first. `S` is the suspended call.
    InputRequired(S),
}

/// Result or error of a call.
#[derive(Debug)]
pub enum ResponseOutcome {
    /// The `result`.
    Result(Payload),
    /// The `error` object.
    Error(Bytes),
}

/// Payload of a response: JSON text on one line.
pub enum Payload {
    /// A complete object, which has been parsed.
    Parsed(Object),
    /// A complete text, which may be any JSON.
    Complete(Bytes),
    /// A large payload that is being received in pieces. If a piece is an error, the payload is
    /// incomplete, and the connection to the client must be aborted.
    Streaming(BoxStream<'static, Result<Bytes, PayloadBroken>>),
}

/// Error: the upstream ended its response in the middle of the payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the upstream broke off its response: {0}")]
pub struct PayloadBroken(pub String);

/// Reason for which a payload could not be collected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectError {
    /// The upstream broke off its response.
    #[error(transparent)]
    Broken(#[from] PayloadBroken),
    /// The payload could not be buffered.
    #[error(transparent)]
    NotBuffered(#[from] BufferError),
}

impl Payload {
    /// Creates a payload from a part of a parsed message; `read` is its object if it was parsed
    /// along.
    pub fn from_part(text: Bytes, read: Option<Object>) -> Self {
        let line = json::on_one_line(text.clone());
        let read = read.filter(|_| line.as_ptr() == text.as_ptr());
        let read = read.map_or_else(|| Object::parse_trusted(line.clone()), Ok);
        read.map_or(Self::Complete(line), Self::Parsed)
    }

    /// Creates a payload from unparsed text.
    pub fn from_text(text: Bytes) -> Self {
        Object::parse_within(text.clone(), usize::MAX).map_or(Self::Complete(text), Self::Parsed)
    }

    /// Collects the payload, as [`Payload::collect`] does, and parses it as an object.
    pub async fn read(
        self,
        buffer_limit: &BufferLimit,
    ) -> Result<Result<Object, ParseError>, CollectError> {
        match self {
            Self::Parsed(object) => Ok(Ok(object)),
            body => Ok(Object::parse_within(body.collect(buffer_limit).await?, usize::MAX)),
        }
    }

    /// Collects the whole payload within the limit and the memory budget. It is charged to the
    /// budget while it is collected; a caller that stores it must reserve memory for it.
    pub async fn collect(self, buffer_limit: &BufferLimit) -> Result<Bytes, CollectError> {
        let mut pieces = match self {
            Self::Parsed(object) => return Ok(object.to_bytes()),
            Self::Complete(bytes) => return Ok(bytes),
            Self::Streaming(pieces) => pieces,
        };
        let (mut whole, mut reservation) =
            (BytesMut::new(), GrowingReservation::new(&buffer_limit.budget));
        while let Some(piece) = pieces.next().await {
            whole.extend_from_slice(&piece?);
            if whole.len() > buffer_limit.limit {
                return Err(BufferError::TooLarge(buffer_limit.limit).into());
            }
            reservation
                .grow_to(whole.len())
                .map_err(|BudgetExhausted| BufferError::BudgetExhausted)?;
        }
        Ok(whole.freeze())
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parsed(object) => f.debug_tuple("Parsed").field(object).finish(),
            Self::Complete(bytes) => f.debug_tuple("Complete").field(bytes).finish(),
            Self::Streaming(_) => f.write_str("Streaming(..)"),
        }
    }
}

/// Returns whether the result of a tool has the `content` that each of them must have, in every
/// revision.
pub fn has_content(result: &Object) -> bool {
    result.get("content").is_some_and(|content| content.starts_with('['))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use weir_base::memory::memory_budget::MemoryBudget;

    fn ask(method: Method, params: &'static str) -> Result<ItemRequest, InvalidParams> {
        ItemRequest::parse(method, Object::parse(params).expect(params))
    }

    fn called(method: Method, params: &'static str, own: &str) -> Bytes {
        let ask = ask(method, params).expect(params);
        ask.into_upstream_request(own, Box::new(CallContext::without_features(Revision::NEWEST)))
            .params
            .to_bytes()
    }

    #[test]
    fn a_call_bears_the_upstreams_own_name_and_every_other_byte() {
        let text = r#"{"name":"hub__x","arguments":{"n":1.0}, "requestState":"s"}"#;
        let expected = r#"{"name":"x","arguments":{"n":1.0},"requestState":"s"}"#;
        assert_eq!(called(Method::CallTool, text, "x"), expected);
        let text = r#"{ "uri": "file:///a" , "x" : 1e400 }"#;
        assert_eq!(called(Method::ReadResource, text, "file:///a"), text);
        let text = r#"{"ref":{"type":"ref/prompt","title":"t","name":"hub__x"},"argument":{}}"#;
        let expected = r#"{"ref":{"type":"ref/prompt","title":"t","name":"x"},"argument":{}}"#;
        assert_eq!(called(Method::Complete, text, "x"), expected);
    }

    #[test]
    fn what_a_method_does_not_take_is_named() {
        for (method, params, message) in [
            (Method::GetPrompt, "{}", "`name` must be a string"),
            (Method::CallTool, r#"{"name":7}"#, "`name` must be a string"),
            (Method::ReadResource, r#"{"name":"x"}"#, "`uri` must be a string"),
            (Method::Complete, "{}", "`ref` must be an object"),
            (
                Method::Complete,
                r#"{"ref":{"type":"a","type":"b"}}"#,
                "`ref`: member \"type\" occurs twice",
            ),
            (
                Method::Complete,
                r#"{"ref":{"type":"ref/tool","name":"x"}}"#,
                "`ref.type` must be \"ref/prompt\" or \"ref/resource\"",
            ),
        ] {
            assert_eq!(ask(method, params).map(|_| ()), Err(InvalidParams(message.into())));
        }
    }

    #[tokio::test]
    async fn a_body_that_arrives_is_collected_within_its_limit_and_where_there_is_room() {
        let streaming = |pieces: &[&'static str]| {
            let pieces = pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
            Payload::Streaming(futures::stream::iter(pieces.collect::<Vec<_>>()).boxed())
        };
        let limit = |limit| BufferLimit { limit, budget: MemoryBudget::new(1 << 20) };
        let small = ["{\"a\":", "1}"];
        assert_eq!(streaming(&small).collect(&limit(7)).await, Ok("{\"a\":1}".into()));
        let too_large = CollectError::NotBuffered(BufferError::TooLarge(6));
        assert_eq!(streaming(&small).collect(&limit(6)).await, Err(too_large));

        let (limit, large) = (limit(1 << 20), [" ".repeat(60_000).leak() as &str; 3]);
        assert_eq!(streaming(&large).collect(&limit).await.map(|whole| whole.len()), Ok(180_000));
        assert_eq!(limit.budget.reserved_bytes(), 0);
        let others = limit.budget.charge(vec![0; 1_000_000].into()).expect("budget");
        let exhausted = CollectError::NotBuffered(BufferError::BudgetExhausted);
        assert_eq!(streaming(&large).collect(&limit).await, Err(exhausted));
        assert!(streaming(&small).collect(&limit).await.is_ok(), "a small payload passes");
        drop(others);
        assert_eq!(limit.budget.reserved_bytes(), 0);
        // Dropped on its way, too.
        let begun = futures::stream::iter([Ok(Bytes::from_static(large[0].as_bytes()))]);
        let endless = Payload::Streaming(begun.chain(futures::stream::pending()).boxed());
        let mut collecting = Box::pin(endless.collect(&limit));
        assert!((&mut collecting).now_or_never().is_none() && limit.budget.reserved_bytes() > 0);
        drop(collecting);
        assert_eq!(limit.budget.reserved_bytes(), 0);
    }
}
