//! What travels through the middle of the house: an ask, a call, a reply.
//!
//! An [`Ask`] is what a client wants, under the public name. Once a view has resolved that name to an
//! item that the client may reach, it becomes a [`Call`] under the upstream's own. What comes back is
//! a [`Reply`], whose payload nobody reads.
//!
//! Knows nothing of: how either side puts it on a wire.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use hyper::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::json::{self, Malformed, Object};
use crate::mcp::call_notifications::Notes;
use crate::mcp::elicitation_complete::Visits;
use crate::mcp::input_request::Abilities;
use crate::mcp::kind::Kind;
use crate::mcp::revision::{Era, Revision};
use crate::mcp::task::{TaskNews, TaskScope};
use crate::memory_budget::{Allowance, Growing, NoRoom, Unheld};

/// A method that is answered by the upstream that owns an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// `prompts/get`
    GetPrompt,
    /// `tools/call`
    CallTool,
    /// `resources/read`
    ReadResource,
    /// `completion/complete`, about a prompt or a template
    Complete,
    /// `tasks/get`: how a call that goes on is doing
    GetTask,
    /// `tasks/result`, which waits for a call that goes on; legacy era only
    TaskResult,
    /// `tasks/update`: answers to what a call that goes on asked; modern era only
    UpdateTask,
    /// `tasks/cancel`
    CancelTask,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 8] = [
        Self::GetPrompt,
        Self::CallTool,
        Self::ReadResource,
        Self::Complete,
        Self::GetTask,
        Self::TaskResult,
        Self::UpdateTask,
        Self::CancelTask,
    ];

    /// The method's name on the wire.
    pub fn as_str(self) -> &'static str {
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

    /// The method by which an item of this kind is used; templates are read through what they stand for.
    pub fn about(kind: Kind) -> Self {
        match kind {
            Kind::Prompt => Self::GetPrompt,
            Kind::Tool => Self::CallTool,
            Kind::Resource | Kind::Template => Self::ReadResource,
        }
    }

    /// The method of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    /// The member of `params` that a modern HTTP request repeats in its `Mcp-Name` header.
    pub fn header_member(self) -> Option<&'static str> {
        match self {
            Self::GetPrompt | Self::CallTool => Some("name"),
            Self::ReadResource => Some("uri"),
            Self::Complete => None,
            // SEP-2663, routing headers: the task's id.
            Self::GetTask | Self::TaskResult | Self::UpdateTask | Self::CancelTask => {
                Some("taskId")
            }
        }
    }

    /// Whether it is about a call that goes on, which its handle names.
    pub fn is_about_a_task(self) -> bool {
        matches!(self, Self::GetTask | Self::TaskResult | Self::UpdateTask | Self::CancelTask)
    }
}

/// Who is calling, as far as an upstream may know and needs to.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The revision that the client speaks.
    pub revision: Revision,
    /// The client's own description of itself, as JSON; never used to decide anything.
    pub info: Option<Bytes>,
    /// What the client declared that it can do, as a JSON object.
    pub capabilities: Bytes,
    /// What of that is about questions.
    pub abilities: Abilities,
    /// Whose connection it is, where an upstream gives each client its own.
    pub client: Client,
    /// Where progress goes.
    pub notes: Notes,
    /// The request's `Mcp-Param-*` headers, for whoever they mean something to; those that repeat an
    /// argument have been compared with it and taken out. `None` where the wire has no headers.
    pub param_headers: Option<HeaderMap>,
}

/// A client as far as one can be told from another: a legacy session, the process at the other end of
/// standard input and output, or, where there are no sessions, all that one principal sends.
#[derive(Debug, Clone)]
pub struct Client {
    id: Arc<str>,
    /// Fires when the client is gone for good; never for one that has no sessions.
    pub gone: CancellationToken,
    /// Whether several may share its name.
    pub is_several: bool,
    /// Whose it is.
    pub owner: Owner,
    /// Where it hears of its tasks.
    pub tasks: TaskNews,
    /// The visits that are done with and that it has not been told of.
    pub visits: Visits,
}

/// Whose a client is, where something is limited by that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// What it is known by.
    pub name: Arc<str>,
    /// For how many clients it stands.
    pub clients: usize,
}

impl Client {
    /// The client that is known by `id`, which nobody else has.
    pub fn new(id: &str, gone: CancellationToken) -> Self {
        let owner = Owner { name: id.into(), clients: 1 };
        let (tasks, visits) = (TaskNews::default(), Visits::default());
        let id = Arc::clone(&owner.name);
        Self { id, gone, is_several: false, owner, tasks, visits }
    }

    /// All that comes under an owner's name, where there are no sessions to tell one from another.
    pub fn all_of(owner: Owner) -> Self {
        let id = Arc::clone(&owner.name);
        let (gone, tasks, visits) = Default::default();
        Self { id, gone, is_several: true, owner, tasks, visits }
    }

    /// The same, as one of this owner's.
    pub fn owned_by(self, owner: Owner) -> Self {
        Self { owner, ..self }
    }

    /// What it is known by.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }
}

impl Caller {
    /// A caller that declares nothing and hears nothing.
    pub fn plain(revision: Revision) -> Self {
        Self {
            revision,
            info: None,
            capabilities: Bytes::from_static(b"{}"),
            abilities: Abilities::default(),
            client: Client::new("", CancellationToken::new()),
            notes: Notes::unheard(),
            param_headers: None,
        }
    }
}

/// What a client asks of an item, under the item's public name.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What is asked.
    pub method: Method,
    /// The kind of the item.
    pub kind: Kind,
    /// The item's public name or URI, or the handle of a task.
    pub key: Box<str>,
    /// The parameters as sent, but for what Weir owns in `_meta`.
    pub params: Object,
}

/// A request's parameters are not what its method takes; the text is fit for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadParams(pub String);

impl Ask {
    /// Reads what a request asks.
    pub fn parse(method: Method, params: Object) -> Result<Self, BadParams> {
        let (kind, key) = Self::item(method, &params)?;
        Ok(Self { method, kind, key, params })
    }

    /// Reads which item a request is about.
    pub fn item(method: Method, params: &Object) -> Result<(Kind, Box<str>), BadParams> {
        let string = |object: &Object, member: &str| {
            let text = object.get_string(member).map(Box::<str>::from);
            text.ok_or_else(|| BadParams(format!("`{member}` must be a string")))
        };
        Ok(match method {
            Method::GetPrompt => (Kind::Prompt, string(params, "name")?),
            Method::CallTool => (Kind::Tool, string(params, "name")?),
            Method::ReadResource => (Kind::Resource, string(params, "uri")?),
            Method::GetTask | Method::TaskResult | Method::UpdateTask | Method::CancelTask => {
                (Kind::Tool, string(params, "taskId")?)
            }
            Method::Complete => {
                let reference = params.read_object("ref");
                let reference =
                    reference.map_err(|malformed| BadParams(malformed.in_member("ref")))?;
                match reference.get_string("type").as_deref() {
                    Some("ref/prompt") => (Kind::Prompt, string(&reference, "name")?),
                    Some("ref/resource") => (Kind::Template, string(&reference, "uri")?),
                    _ => {
                        let text = "`ref.type` must be \"ref/prompt\" or \"ref/resource\"";
                        return Err(BadParams(text.into()));
                    }
                }
            }
        })
    }

    /// Turns the ask into a call to the upstream that knows the item as `own`. Boxed: it goes from step to step.
    pub fn call(self, own: &str, caller: Caller) -> Box<Call> {
        let mut params = self.params;
        // URIs are the same on both sides; leaving them alone leaves the bytes alone.
        if *self.key != *own {
            if self.method == Method::Complete {
                let mut reference = params.get_object("ref").unwrap_or_default();
                reference.set("name", json::quote(own));
                params.set("ref", reference.to_bytes());
            } else if self.method.is_about_a_task() {
                params.set("taskId", json::quote(own));
            } else {
                params.set("name", json::quote(own));
            }
        }
        Box::new(Call { method: self.method, subject: own.into(), params, scope: None, caller })
    }
}

/// A request on its way to the upstream that owns the item.
#[derive(Debug, Clone)]
pub struct Call {
    /// What is asked.
    pub method: Method,
    /// The upstream's own name or URI of the item, or id of the task.
    pub subject: Box<str>,
    /// The parameters, under the upstream's own name.
    pub params: Object,
    /// Where the tasks began that it names: elsewhere it is not sent.
    pub scope: Option<TaskScope>,
    /// Who asks.
    pub caller: Caller,
}

/// What an upstream answered. An error object is a reply, not a fault of ours.
#[derive(Debug)]
pub struct Reply {
    /// The era of the payload: what it may leave out, and which error codes it may hold.
    pub era: Era,
    /// Where a task that it begins is known by its id; `None` where none can begin.
    pub scope: Option<TaskScope>,
    /// How the call ended.
    pub outcome: Outcome,
}

/// How a call ended.
#[derive(Debug)]
pub enum Outcome {
    /// The `result`.
    Result(Body),
    /// The `error` object.
    Error(Bytes),
}

/// A payload: JSON text on one line.
pub enum Body {
    /// All of it: an object, which has been read.
    Read(Object),
    /// All of it, whatever it is.
    Whole(Bytes),
    /// A large one that is still arriving, piece by piece. If a piece is an error the payload is cut
    /// short, and the only honest way on is to break off the connection to the client.
    Arriving(BoxStream<'static, Result<Bytes, Broken>>),
}

/// An upstream broke off in the middle of a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the upstream broke off in the middle of its reply: {0}")]
pub struct Broken(pub String);

/// Why a payload is not there as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Uncollected {
    /// Its upstream broke off.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// It cannot be held.
    #[error(transparent)]
    Unheld(#[from] Unheld),
}

impl Body {
    /// A payload that is a part of a message that was read, perhaps along with it.
    pub fn part(text: Bytes, read: Option<Object>) -> Self {
        let line = json::on_one_line(text.clone());
        let read = read.filter(|_| line.as_ptr() == text.as_ptr());
        let read = read.map_or_else(|| Object::parse_again(line.clone()), Ok);
        read.map_or(Self::Whole(line), Self::Read)
    }

    /// A payload that nobody has read.
    pub fn unread(text: Bytes) -> Self {
        Object::parse_within(text.clone(), usize::MAX).map_or(Self::Whole(text), Self::Read)
    }

    /// The whole payload as the object that it should be; as far as there is room to hold it, as with
    /// [`Body::collect`].
    pub async fn read(self, allowed: &Allowance) -> Result<Result<Object, Malformed>, Uncollected> {
        match self {
            Self::Read(object) => Ok(Ok(object)),
            body => Ok(Object::parse_within(body.collect(allowed).await?, usize::MAX)),
        }
    }

    /// The whole payload, as far as there is room to hold it. It counts while it is collected; whoever keeps it has it count from
    /// then on.
    pub async fn collect(self, allowed: &Allowance) -> Result<Bytes, Uncollected> {
        let mut pieces = match self {
            Self::Read(object) => return Ok(object.to_bytes()),
            Self::Whole(bytes) => return Ok(bytes),
            Self::Arriving(pieces) => pieces,
        };
        let (mut whole, mut growing) = (BytesMut::new(), Growing::new(&allowed.budget));
        while let Some(piece) = pieces.next().await {
            whole.extend_from_slice(&piece?);
            if whole.len() > allowed.limit {
                return Err(Unheld::TooLarge(allowed.limit).into());
            }
            growing.reach(whole.len()).map_err(|NoRoom| Unheld::NoRoom)?;
        }
        Ok(whole.freeze())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(object) => f.debug_tuple("Read").field(object).finish(),
            Self::Whole(bytes) => f.debug_tuple("Whole").field(bytes).finish(),
            Self::Arriving(_) => f.write_str("Arriving(..)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_budget::Budget;
    use futures::FutureExt;

    fn ask(method: Method, params: &'static str) -> Result<Ask, BadParams> {
        Ask::parse(method, Object::parse(params).expect(params))
    }

    fn called(method: Method, params: &'static str, own: &str) -> Bytes {
        let ask = ask(method, params).expect(params);
        ask.call(own, Caller::plain(Revision::NEWEST)).params.to_bytes()
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
                "`ref`: member \"type\" stands twice",
            ),
            (
                Method::Complete,
                r#"{"ref":{"type":"ref/tool","name":"x"}}"#,
                "`ref.type` must be \"ref/prompt\" or \"ref/resource\"",
            ),
        ] {
            assert_eq!(ask(method, params).map(|_| ()), Err(BadParams(message.into())));
        }
    }

    #[tokio::test]
    async fn a_body_that_arrives_is_collected_within_its_limit_and_where_there_is_room() {
        let arriving = |pieces: &[&'static str]| {
            let pieces = pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
            Body::Arriving(futures::stream::iter(pieces.collect::<Vec<_>>()).boxed())
        };
        let room = |limit| Allowance { limit, budget: Budget::new(1 << 20) };
        let small = ["{\"a\":", "1}"];
        assert_eq!(arriving(&small).collect(&room(7)).await, Ok("{\"a\":1}".into()));
        let too_large = Uncollected::Unheld(Unheld::TooLarge(6));
        assert_eq!(arriving(&small).collect(&room(6)).await, Err(too_large));

        let (room, large) = (room(1 << 20), [" ".repeat(60_000).leak() as &str; 3]);
        assert_eq!(arriving(&large).collect(&room).await.map(|whole| whole.len()), Ok(180_000));
        assert_eq!(room.budget.held(), 0);
        let others = room.budget.keep(vec![0; 1_000_000].into()).expect("room");
        let no_room = Uncollected::Unheld(Unheld::NoRoom);
        assert_eq!(arriving(&large).collect(&room).await, Err(no_room));
        assert!(arriving(&small).collect(&room).await.is_ok(), "what is small passes");
        drop(others);
        assert_eq!(room.budget.held(), 0);
        // Dropped on its way, too.
        let begun = futures::stream::iter([Ok(Bytes::from_static(large[0].as_bytes()))]);
        let endless = Body::Arriving(begun.chain(futures::stream::pending()).boxed());
        let mut collecting = Box::pin(endless.collect(&room));
        assert!((&mut collecting).now_or_never().is_none() && room.budget.held() > 0);
        drop(collecting);
        assert_eq!(room.budget.held(), 0);
    }
}
