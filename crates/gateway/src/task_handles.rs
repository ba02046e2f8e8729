//! Task handles: task ids of upstreams, sealed for one principal.
//!
//! A handle is encrypted and authenticated (AEAD). It contains the upstream, the process or session
//! of the upstream in which the task began, the tool, the era and the upstream's id, and opens only
//! for the principal that received it. There is no table, so the number and lifetime of tasks is up
//! to the upstreams.
//!
//! Invariants: a task has one handle per principal. A handle is created only from the result that
//! begins a task for the client's own call; an id anywhere else is replaced by the handle with
//! which the client's request named the task, or not at all. A client cannot guess or read a
//! handle, or use that of another principal; a client that may no longer call the tool can neither
//! send requests about its tasks nor receive their notifications. Handles are valid in each process
//! of the installation, and no longer than the upstream's process or session.
//!
//! Decision: docs/decisions/0010-tasks.md

use std::fmt;
use std::sync::Arc;

use super::{ClientContext, ClientIdentity, Error};
use weir_access::catalog::ExportedItem;
use weir_access::policy::Principal;
use weir_base::json::{self, Object};
use weir_base::secrets::sealing::{self, Sealer, SealingKeys};
use weir_mcp::call::{Method, Payload, ResponseOutcome, UpstreamRequest, UpstreamResponse};
use weir_mcp::input_request::{InputRequest, InputResponse};
use weir_mcp::jsonrpc;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::{Era, Revision};
use weir_mcp::task::{
    MAX_TASK_ID_BYTES, TASK_ID, TaskIdMapper, TaskScope, related, rename, rename_related,
    restore_related,
};
use weir_upstream::UpstreamSource;

/// Seals and opens task handles.
pub(super) struct TaskHandleCodec(Sealer);

/// Content of a handle.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TaskRef {
    /// The upstream that owns the task.
    pub(super) upstream: Box<str>,
    /// The process, session or server in which the upstream's id is valid.
    pub(super) scope: TaskScope,
    /// The tool's public name.
    pub(super) tool: Box<str>,
    /// The era in which the task began: tasks of the two eras differ.
    pub(super) era: Era,
    /// The upstream's own id.
    pub(super) own: Box<str>,
}

impl TaskHandleCodec {
    /// Creates the codec of an installation.
    pub(super) fn new(keys: &SealingKeys) -> Self {
        Self(keys.repeatable_sealer("task handle"))
    }

    /// Seals a task into a handle; `None` if that would be too long to be opened.
    fn seal(&self, principal: &Principal, task: &TaskRef) -> Option<String> {
        let handle = self.0.seal(&principal.sealing_name(), &task.write()?);
        (handle.len() <= sealing::MAX_TEXT).then_some(handle)
    }

    /// Opens a handle of this principal; `None` if it is invalid or belongs to another principal.
    pub(super) fn open(&self, principal: &Principal, handle: &str) -> Option<TaskRef> {
        TaskRef::read(&self.0.open(&principal.sealing_name(), handle)?.content)
    }
}

impl TaskRef {
    /// Opens one of the client's handles, in this era. A client that may not (or no longer) call
    /// the tool has no such task.
    pub(super) fn open(
        client: &ClientContext,
        handle: &str,
        era: Era,
    ) -> Option<(Self, Arc<ExportedItem>)> {
        let task = client.gateway.task_handles.open(&client.principal, handle)?;
        let target = client.view().resolve(Kind::Tool, &task.tool)?;
        // Another upstream may have taken over the name since.
        let is_here = task.era == era && target.upstream.as_str() == &*task.upstream;
        is_here.then_some((task, target))
    }

    /// The task as bytes: its era, its scope, its upstream and its tool, each after its length, and
    /// the upstream's id.
    fn write(&self) -> Option<Vec<u8>> {
        let era = match self.era {
            Era::Legacy => 0,
            Era::Modern => 1,
        };
        let mut written = vec![era];
        written.extend(self.scope.to_bytes());
        for text in [&self.upstream, &self.tool] {
            written.extend(u16::try_from(text.len()).ok()?.to_be_bytes());
            written.extend(text.as_bytes());
        }
        written.extend(self.own.as_bytes());
        Some(written)
    }

    fn read(written: &[u8]) -> Option<Self> {
        let (era, rest) = written.split_first()?;
        let era = match era {
            0 => Era::Legacy,
            _ => Era::Modern,
        };
        let (scope, rest) = rest.split_first_chunk()?;
        let (upstream, rest) = split_text(rest)?;
        let (tool, own) = split_text(rest)?;
        let own = std::str::from_utf8(own).ok()?.into();
        Some(Self { upstream, scope: TaskScope::from_bytes(*scope), tool, era, own })
    }
}

/// Splits off a text that follows its length.
fn split_text(bytes: &[u8]) -> Option<(Box<str>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    Some((std::str::from_utf8(text).ok()?.into(), rest))
}

/// Rewrites task ids in the messages of one call: upstream ids to handles and back.
#[derive(Clone)]
pub(super) struct TaskIdRewriter {
    codec: Arc<TaskHandleCodec>,
    /// The client that owns the tasks.
    pub(super) identity: ClientIdentity,
    /// The upstream of the call.
    pub(super) upstream: UpstreamName,
    /// The tool's public name.
    pub(super) tool: Box<str>,
    /// The client's era: a task of the other era is unusable for it.
    pub(super) era: Era,
    /// The longest id of the upstream that becomes a handle, in bytes.
    max_id: usize,
    /// Whether the call can begin a task.
    begins_task: bool,
    /// The tasks that the client's request has named.
    named: Vec<NamedTask>,
}

/// A task that the client's request has named.
#[derive(Clone)]
struct NamedTask {
    own: Box<str>,
    handle: Box<str>,
}

impl TaskIdRewriter {
    /// Creates the rewriter of task ids of a tool for a client.
    pub(super) fn of_tool(
        client: &ClientContext,
        upstream: &UpstreamName,
        tool: &str,
        era: Era,
    ) -> Self {
        let max_id = match client.config.upstream(upstream).settings().source {
            // The replica that runs the server has sealed its id, within the other bound.
            UpstreamSource::OnOneReplica { .. } => sealing::MAX_TEXT,
            _ => MAX_TASK_ID_BYTES,
        };
        Self {
            codec: Arc::clone(&client.gateway.task_handles),
            identity: ClientIdentity::of(client),
            upstream: upstream.clone(),
            tool: tool.into(),
            era,
            max_id,
            begins_task: false,
            named: Vec::new(),
        }
    }

    /// Creates the rewriter of a call. `about` is the handle of the task that the call is about.
    pub(super) fn new(
        client: &ClientContext,
        target: &ExportedItem,
        call: &UpstreamRequest,
        about: Option<&str>,
    ) -> Self {
        let revision = call.caller.revision;
        let can_begin = match revision.era() {
            // Spec 2025-11-25, tasks: only a request with `task` begins one.
            Era::Legacy => revision == Revision::V2025_11_25 && call.params.has("task"),
            Era::Modern => true,
        };
        let begins_task = can_begin && call.method == Method::CallTool;
        let named =
            about.map(|handle| NamedTask { own: call.subject.clone(), handle: handle.into() });
        let named = named.into_iter().collect();
        let (upstream, tool, era) = (&target.upstream, &target.key, revision.era());
        Self { begins_task, named, ..Self::of_tool(client, upstream, tool, era) }
    }

    /// Replaces the handle of the related task in a call by the upstream's id, if it is a task of
    /// the client at this upstream and in the same scope as the other task that the call names.
    /// Otherwise the relation is removed.
    pub(super) fn rewrite_related_task(&mut self, call: &mut UpstreamRequest) {
        let task = related(&call.params).and_then(|handle| {
            let task = self.codec.open(&self.identity.principal, &handle)?;
            let is_here = *task.upstream == *self.upstream.as_str() && task.era == self.era;
            let is_same = call.scope.is_none_or(|scope| scope == task.scope);
            (is_here && is_same).then_some((task, handle))
        });
        if let Some((TaskRef { own, scope, .. }, handle)) = task {
            call.scope = Some(scope);
            self.named.push(NamedTask { own, handle });
        }
        restore_related(&mut call.params, self);
    }

    /// Replaces task ids in a response by handles: in a task, in the announcement of a new task,
    /// and in the relation of a result to a task. A streaming response names no task, because the
    /// session collects responses that may, and passes unchanged.
    pub(super) fn rewrite_response(
        mut self,
        response: UpstreamResponse,
    ) -> Result<UpstreamResponse, Error> {
        let UpstreamResponse {
            era,
            scope,
            outcome: ResponseOutcome::Result(Payload::Parsed(mut result)),
        } = response
        else {
            return Ok(response);
        };
        if era == self.era {
            if let Some(scope) = scope.filter(|_| self.begins_task) {
                self.replace_new_task_id(&mut result, scope)?;
            }
            if !self.begins_task {
                rewrite_task_ids(&mut result, &self);
            }
            rename_related(&mut result, &self);
        }
        Ok(UpstreamResponse {
            era,
            scope,
            outcome: ResponseOutcome::Result(Payload::Parsed(result)),
        })
    }

    /// Replaces the id of the task that the call has begun, if any, by a new handle.
    fn replace_new_task_id(&mut self, result: &mut Object, scope: TaskScope) -> Result<(), Error> {
        let begun = match self.era {
            Era::Legacy => result.get_object("task"),
            Era::Modern => {
                let kind = result.get_string("resultType");
                (kind.as_deref() == Some("task")).then(|| result.clone())
            }
        };
        let Some(mut task) = begun else { return Ok(()) };
        let Some(own) = task.get_string(TASK_ID).map(Box::<str>::from) else {
            return Ok(());
        };
        let Some(handle) = self.new_handle(scope, &own) else {
            let upstream = self.upstream.clone();
            let bytes = own.len();
            tracing::warn!(%upstream, bytes, "task id of the upstream is too long for a handle");
            return Err(Error::TaskIdTooLong { upstream });
        };
        task.set(TASK_ID, json::quote(&handle));
        match self.era {
            Era::Legacy => result.set("task", task.to_bytes()),
            Era::Modern => *result = task,
        }
        self.named.push(NamedTask { own, handle: handle.into() });
        Ok(())
    }

    /// Replaces task ids in an input request by handles.
    pub(super) fn rewrite_input_request(&self, mut request: InputRequest) -> InputRequest {
        rename_related(&mut request.params, self);
        request
    }

    /// Replaces handles in an input response by the upstream's ids.
    pub(super) fn restore_input_response(&self, response: InputResponse) -> InputResponse {
        let InputResponse { key, outcome: jsonrpc::ResponsePayload::Result(text) } = response
        else {
            return response;
        };
        let restored =
            |mut result: Object| restore_related(&mut result, self).then(|| result.to_bytes());
        let object = Object::parse_trusted(text.clone()).ok();
        let text = object.and_then(restored).unwrap_or(text);
        InputResponse { key, outcome: jsonrpc::ResponsePayload::Result(text) }
    }
}

impl TaskIdMapper for TaskIdRewriter {
    fn era(&self) -> Era {
        self.era
    }

    fn new_handle(&self, scope: TaskScope, own: &str) -> Option<String> {
        if own.len() > self.max_id {
            return None;
        }
        let (upstream, tool) = (self.upstream.as_str().into(), self.tool.clone());
        let task = TaskRef { upstream, scope, tool, era: self.era, own: own.into() };
        self.codec.seal(&self.identity.principal, &task)
    }

    fn handle(&self, own: &str) -> Option<&str> {
        self.named.iter().find(|named| *named.own == *own).map(|named| &*named.handle)
    }

    fn own(&self, handle: &str) -> Option<&str> {
        self.named.iter().find(|named| *named.handle == *handle).map(|named| &*named.own)
    }

    fn is_reachable(&self) -> bool {
        let target = self.identity.view().and_then(|it| it.resolve(Kind::Tool, &self.tool));
        // Another upstream may have taken over the name since.
        target.is_some_and(|target| target.upstream == self.upstream)
    }
}

impl fmt::Debug for TaskIdRewriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskIdRewriter").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// Replaces the task ids in the response to a request about a task by handles.
fn rewrite_task_ids(result: &mut Object, names: &dyn TaskIdMapper) {
    rename(result, names);
    if let Some(mut task) = result.get_object("task") {
        rename(&mut task, names);
        result.set("task", task.to_bytes());
    }
}

/// Returns the scope of the task that a request of this era names, as [`task_scope`] does.
pub fn named_task_scope(
    client: &ClientContext,
    method: &str,
    params: &Object,
    era: Era,
) -> Option<TaskScope> {
    let handle = match Method::of(method)? {
        method if method.is_task_method() => params.get_string(TASK_ID)?.as_ref().into(),
        Method::CallTool if era == Era::Legacy => related(params)?,
        _ => return None,
    };
    task_scope(client, &handle, era)
}

/// Returns the scope of one of the client's tasks, if that is in a process or session of one Weir
/// process. What the client may do there is not decided here.
pub fn task_scope(client: &ClientContext, handle: &str, era: Era) -> Option<TaskScope> {
    let task = client.gateway.task_handles.open(&client.principal, handle)?;
    (task.era == era && task.scope.is_local()).then_some(task.scope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mcp::task::testing::Brackets;

    fn principal(name: &str) -> Principal {
        Principal::new(name, "local")
    }

    fn task() -> TaskRef {
        TaskRef {
            upstream: "hub".into(),
            scope: TaskScope::of_server("hub"),
            tool: "hub__\"x\"".into(),
            era: Era::Modern,
            own: "t,1".into(),
        }
    }

    #[test]
    fn a_handle_opens_for_whom_it_was_given_to_and_for_nobody_else() {
        let keys = SealingKeys::random();
        let (handles, alice) = (TaskHandleCodec::new(&keys), principal("alice"));
        let process = TaskScope::unique(keys.instance());
        let seal = |principal: &Principal, task: TaskRef| {
            handles.seal(principal, &task).expect("a handle")
        };
        let handle = seal(&alice, task());
        assert_eq!(handles.open(&alice, &handle), Some(task()));
        assert_eq!(seal(&alice, task()), handle, "a task has one handle");
        assert_ne!(seal(&principal("bob"), task()), handle);
        assert_ne!(seal(&alice, TaskRef { own: "t,2".into(), ..task() }), handle);
        assert_ne!(seal(&alice, TaskRef { scope: process, ..task() }), handle);
        assert_eq!(handles.open(&principal("bob"), &handle), None);
        assert_eq!(
            TaskHandleCodec::new(&SealingKeys::random()).open(&alice, &handle),
            None,
            "of another installation"
        );
        for bad in ["", "x", "t,1", &handle[1..], &handle[..handle.len() - 1]] {
            assert_eq!(handles.open(&alice, bad), None, "{bad}");
        }
        assert_eq!(handles.open(&alice, &"A".repeat(sealing::MAX_TEXT + 1)), None);
    }

    #[test]
    fn an_id_is_sealed_up_to_its_bound_and_no_further() {
        let (handles, alice) = (TaskHandleCodec::new(&SealingKeys::random()), principal("alice"));
        // Characters that JSON would escape, and a name as long as they get.
        let of = |bytes| TaskRef { own: "\u{1}".repeat(bytes).into(), ..task() };
        let longest = of(MAX_TASK_ID_BYTES);
        let handle = handles.seal(&alice, &longest).expect("a handle");
        assert_eq!(handles.open(&alice, &handle), Some(longest));
        assert_eq!(handles.seal(&alice, &of(sealing::MAX_TEXT)), None);
        let named = TaskRef { tool: "x".repeat(sealing::MAX_TEXT).into(), ..task() };
        assert_eq!(handles.seal(&alice, &named), None, "it could not be opened");
        let named = TaskRef { tool: "x".repeat(1 << 16).into(), ..task() };
        assert_eq!(handles.seal(&alice, &named), None);
    }

    #[test]
    fn the_task_that_was_asked_about_gets_its_handle_and_all_else_stays() {
        let names = Brackets(Era::Legacy, true);
        for (text, expected) in [
            (r#"{"content":[{"taskId":"t"}], "n":1e400}"#, None),
            (r#"{"taskId":7}"#, None),
            (r#"{"taskId":"other"}"#, None),
            (r#"{"task":{"taskId":"other"}}"#, None),
            (
                r#"{"taskId":"t","status":"working","ttl":1.0}"#,
                Some(r#"{"taskId":"<t>","status":"working","ttl":1.0}"#),
            ),
            (
                r#"{"task":{"taskId":"t","status":"working"},"_meta":{"a":1}}"#,
                Some(r#"{"task":{"taskId":"<t>","status":"working"},"_meta":{"a":1}}"#),
            ),
        ] {
            let mut result = Object::parse(text).expect(text);
            rewrite_task_ids(&mut result, &names);
            assert_eq!(result.to_bytes(), expected.unwrap_or(text));
        }
    }
}
