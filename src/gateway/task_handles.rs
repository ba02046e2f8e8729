//! Handles of tasks: an upstream's own id for work that goes on, in a form that leads back to it.
//!
//! A handle is sealed: it holds the upstream, its process or session in which the task began, the tool that the task
//! is of, the era, and the upstream's id, and opens only for the principal that it was given to. There is no table to
//! fill, so tasks may be as many and live as long as their upstreams like.
//!
//! Promises: a task has one handle for its principal, wherever it is named. A handle is made from nothing but the
//! result that begins a task for the client's own call; an id that stands anywhere else is replaced by the handle with
//! which the client's request named the task, or not at all. Nobody can guess a handle, read one, or
//! use somebody else's; whoever may not call the tool any more can neither ask about its tasks nor hear of
//! them. Handles are good for the life of the process, and no longer than the upstream's process or session.
//!
//! Knows nothing of: what a task is, and how it is doing.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Fault, Guest, Standing, Subscriptions};
use crate::catalog::Target;
use crate::json::{self, Object};
use crate::mcp::call::{Body, Call, Method, Outcome, Reply};
use crate::mcp::input_request::{Answered, Question};
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::{Era, Revision};
use crate::mcp::task::{
    FollowedTask, MAX_TASK_ID_BYTES, Naming, TASK_ID, TaskOwner, TaskScope, related, rename,
    rename_related, restore_related,
};
use crate::policy::Principal;
use crate::{jsonrpc, upstream};

/// The longest handle that is looked at, in characters.
const MAX_HANDLE: usize = 4 * 1024;

/// What handles are sealed with.
pub(super) struct Handles {
    key: LessSafeKey,
    /// What nonces are made with, from what is sealed: so what is the same is sealed into the same, and
    /// nothing else under the same nonce.
    nonces: hmac::Key,
}

/// What a handle leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Whose it is.
    pub(super) upstream: Box<str>,
    /// Where the upstream's id means it.
    pub(super) scope: TaskScope,
    /// The tool's public name.
    pub(super) tool: Box<str>,
    /// The era in which it was begun: the two know tasks of different shapes.
    pub(super) era: Era,
    /// The upstream's own id.
    pub(super) own: Box<str>,
}

impl Handles {
    /// Handles of this process.
    pub(super) fn new() -> Self {
        let mut keys = [0; 64];
        getrandom::fill(&mut keys).expect("the system has random numbers");
        let (key, nonces) = keys.split_at(32);
        let key = UnboundKey::new(&AES_256_GCM, key).expect("a key of the algorithm's length");
        Self { key: LessSafeKey::new(key), nonces: hmac::Key::new(hmac::HMAC_SHA256, nonces) }
    }

    /// The handle of a task; `None` where the upstream's id is too long for one.
    fn seal(&self, principal: &Principal, task: &Task) -> Option<String> {
        if task.own.len() > MAX_TASK_ID_BYTES {
            return None;
        }
        let mut sealed = task.write()?;
        let name = json::quote(&principal.name);
        let tag = hmac::sign(&self.nonces, &[&name[..], &sealed].concat());
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&tag.as_ref()[..NONCE_LEN]);
        let aad = Aad::from(principal.name.as_bytes());
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .expect("a text this short can be sealed");
        let handle = URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat());
        (handle.len() <= MAX_HANDLE).then_some(handle)
    }

    /// What this principal's handle leads to; `None` if it is not one, or somebody else's.
    pub(super) fn open(&self, principal: &Principal, handle: &str) -> Option<Task> {
        if handle.len() > MAX_HANDLE {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(handle).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let aad = Aad::from(principal.name.as_bytes());
        Task::read(self.key.open_in_place(nonce, aad, &mut sealed).ok()?)
    }
}

impl Task {
    /// The task as bytes: its era, its scope, its upstream and its tool, each behind its length, and the upstream's id.
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

/// A text behind its length, and what follows it.
fn split_text(bytes: &[u8]) -> Option<(Box<str>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    Some((std::str::from_utf8(text).ok()?.into(), rest))
}

/// Whose tasks may be named beside a call and in its reply, and of which tool.
#[derive(Clone)]
pub(super) struct Dressing {
    pub(super) handles: Arc<Handles>,
    /// Whose tasks they are.
    pub(super) standing: Standing,
    /// Who answers.
    pub(super) upstream: UpstreamName,
    /// The tool's public name.
    pub(super) tool: Box<str>,
    /// The client's era: a task of the other one means nothing to it.
    pub(super) era: Era,
    /// Whether the call can begin a task.
    begins_one: bool,
    /// The tasks that the client's request has named.
    named: Vec<Named>,
}

/// A task that the client knows already.
#[derive(Clone)]
struct Named {
    own: Box<str>,
    handle: Box<str>,
}

impl Dressing {
    /// How this call's client names the tasks of a tool. `about` is the handle of the task that the call is about.
    pub(super) fn new(guest: &Guest, target: &Target, call: &Call, about: Option<&str>) -> Self {
        let revision = call.caller.revision;
        let can_begin = match revision.era() {
            // Spec 2025-11-25, tasks: only who asks for a task gets one.
            Era::Legacy => revision == Revision::V2025_11_25 && call.params.has("task"),
            Era::Modern => true,
        };
        let begins_one = can_begin && call.method == Method::CallTool;
        let named = about.map(|handle| Named { own: call.subject.clone(), handle: handle.into() });
        let named = named.into_iter().collect();
        let (upstream, tool, era) = (&target.upstream, &target.key, revision.era());
        Self { begins_one, named, ..guest.names(upstream, tool, era) }
    }

    /// Lets a call say to which task it is related, if that is one of the client's at this upstream, which began where
    /// everything else began that the call names. What else it says of that is taken out.
    pub(super) fn relate(&mut self, call: &mut Call) {
        let task = related(&call.params).and_then(|handle| {
            let task = self.handles.open(&self.standing.principal, &handle)?;
            let is_here = *task.upstream == *self.upstream.as_str() && task.era == self.era;
            let is_same = call.scope.is_none_or(|scope| scope == task.scope);
            (is_here && is_same).then_some((task, handle))
        });
        if let Some((Task { own, scope, .. }, handle)) = task {
            call.scope = Some(scope);
            self.named.push(Named { own, handle });
        }
        restore_related(&mut call.params, self);
    }

    /// Puts a handle wherever a reply names a task of its client's: in a task itself, in what announces a new one, and
    /// in a result's relation to one. A reply that still arrives is too large to be any of these but a
    /// result, and passes as it is.
    pub(super) fn dress(mut self, reply: Reply) -> Result<Reply, Fault> {
        let Reply { era, scope, outcome: Outcome::Result(Body::Read(mut result)) } = reply else {
            return Ok(reply);
        };
        if era == self.era {
            if let Some(scope) = scope.filter(|_| self.begins_one) {
                self.begin_in(&mut result, scope)?;
            }
            if !self.begins_one {
                rename_all(&mut result, &self);
            }
            rename_related(&mut result, &self);
        }
        Ok(Reply { era, scope, outcome: Outcome::Result(Body::Read(result)) })
    }

    /// Puts a new handle in place of the id of the task that the call has begun, if it has.
    fn begin_in(&mut self, result: &mut Object, scope: TaskScope) -> Result<(), Fault> {
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
        let Some(handle) = self.begin(scope, &own) else {
            let upstream = self.upstream.clone();
            tracing::warn!(%upstream, bytes = own.len(), "the id of a new task is too long");
            return Err(Fault::TaskIdTooLong { upstream });
        };
        task.set(TASK_ID, json::quote(&handle));
        match self.era {
            Era::Legacy => result.set("task", task.to_bytes()),
            Era::Modern => *result = task,
        }
        self.named.push(Named { own, handle: handle.into() });
        Ok(())
    }

    /// A question as its client is to see it.
    pub(super) fn dress_question(&self, mut question: Question) -> Question {
        rename_related(&mut question.params, self);
        question
    }

    /// An answer as the upstream is to see it.
    pub(super) fn undress(&self, answered: Answered) -> Answered {
        let Answered { key, outcome: jsonrpc::Outcome::Result(text) } = answered else {
            return answered;
        };
        let restored =
            |mut result: Object| restore_related(&mut result, self).then(|| result.to_bytes());
        let object = Object::parse_again(text.clone()).ok();
        let text = object.and_then(restored).unwrap_or(text);
        Answered { key, outcome: jsonrpc::Outcome::Result(text) }
    }
}

impl Naming for Dressing {
    fn era(&self) -> Era {
        self.era
    }

    fn begin(&self, scope: TaskScope, own: &str) -> Option<String> {
        let (upstream, tool) = (self.upstream.as_str().into(), self.tool.clone());
        let task = Task { upstream, scope, tool, era: self.era, own: own.into() };
        self.handles.seal(&self.standing.principal, &task)
    }

    fn handle(&self, own: &str) -> Option<&str> {
        self.named.iter().find(|named| *named.own == *own).map(|named| &*named.handle)
    }

    fn own(&self, handle: &str) -> Option<&str> {
        self.named.iter().find(|named| *named.handle == *handle).map(|named| &*named.own)
    }

    fn is_reachable(&self) -> bool {
        let target = self.standing.view().and_then(|it| it.resolve(Kind::Tool, &self.tool));
        // The name may have gone to another upstream since.
        target.is_some_and(|target| target.upstream == self.upstream)
    }
}

impl fmt::Debug for Dressing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dressing").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// Puts handles in place of the ids that the reply to a question about a task has.
fn rename_all(result: &mut Object, names: &dyn Naming) {
    rename(result, names);
    if let Some(mut task) = result.get_object("task") {
        rename(&mut task, names);
        result.set("task", task.to_bytes());
    }
}

// === What a guest does with them ===

impl Guest {
    /// How this guest names the tasks of a tool.
    fn names(&self, upstream: &UpstreamName, tool: &str, era: Era) -> Dressing {
        Dressing {
            handles: Arc::clone(&self.gateway.handles),
            standing: self.standing(),
            upstream: upstream.clone(),
            tool: tool.into(),
            era,
            begins_one: false,
            named: Vec::new(),
        }
    }

    /// What one of the guest's handles leads to, in this era. Whoever may not call the tool (any more) has no
    /// such task.
    pub(super) fn open_task(&self, handle: &str, era: Era) -> Option<(Task, Arc<Target>)> {
        let task = self.gateway.handles.open(&self.principal, handle)?;
        let target = self.view().resolve(Kind::Tool, &task.tool)?;
        // The name may have gone to another upstream since.
        let is_here = task.era == era && target.upstream.as_str() == &*task.upstream;
        is_here.then_some((task, target))
    }

    /// Listens for what becomes of a task that the guest knows by this handle. Tells whether its upstream
    /// agrees; dropping the future leaves things as they were.
    pub async fn follow_task(&self, subscriptions: &Subscriptions, handle: &str) -> bool {
        self.settle().await;
        self.record.named(handle);
        let Some((task, target)) = self.open_task(handle, Era::Modern) else { return false };
        self.record_found(&target);
        if self.record_sending().await.is_err() {
            return false;
        }
        let names = Arc::new(self.names(&target.upstream, &target.key, task.era));
        let owner = TaskOwner::new(names, subscriptions.tasks());
        let followed = FollowedTask { owner, scope: task.scope, handle: handle.into() };
        let upstream = self.generation.upstream(&target.upstream);
        match upstream.follow_task(&task.own, followed, &self.owner()).await {
            Ok(upstream::Subscribed::Held(subscription)) => {
                subscriptions.hold_task(subscription);
                true
            }
            Ok(upstream::Subscribed::Refused(_)) => false,
            Err(cause) => {
                tracing::debug!(upstream = %target.upstream, %cause, "a task cannot be followed");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::task::testing::Brackets;

    fn principal(name: &str) -> Principal {
        Principal::new(name, "local")
    }

    fn task() -> Task {
        Task {
            upstream: "hub".into(),
            scope: TaskScope::of_server("hub"),
            tool: "hub__\"x\"".into(),
            era: Era::Modern,
            own: "t,1".into(),
        }
    }

    #[test]
    fn a_handle_opens_for_whom_it_was_given_to_and_for_nobody_else() {
        let (handles, alice) = (Handles::new(), principal("alice"));
        let seal =
            |principal: &Principal, task: Task| handles.seal(principal, &task).expect("a handle");
        let handle = seal(&alice, task());
        assert_eq!(handles.open(&alice, &handle), Some(task()));
        assert_eq!(seal(&alice, task()), handle, "a task has one handle");
        assert_ne!(seal(&principal("bob"), task()), handle);
        assert_ne!(seal(&alice, Task { own: "t,2".into(), ..task() }), handle);
        assert_ne!(seal(&alice, Task { scope: TaskScope::unique(), ..task() }), handle);
        assert_eq!(handles.open(&principal("bob"), &handle), None);
        assert_eq!(Handles::new().open(&alice, &handle), None, "of another process");
        for bad in ["", "x", "t,1", &handle[1..], &handle[..handle.len() - 1]] {
            assert_eq!(handles.open(&alice, bad), None, "{bad}");
        }
        assert_eq!(handles.open(&alice, &"A".repeat(MAX_HANDLE + 1)), None);
    }

    #[test]
    fn an_id_is_sealed_up_to_its_bound_and_no_further() {
        let (handles, alice) = (Handles::new(), principal("alice"));
        // Characters that JSON would escape, and a name as long as they get.
        let of = |bytes| Task { own: "\u{1}".repeat(bytes).into(), ..task() };
        let longest = of(MAX_TASK_ID_BYTES);
        let handle = handles.seal(&alice, &longest).expect("a handle");
        assert_eq!(handles.open(&alice, &handle), Some(longest));
        assert_eq!(handles.seal(&alice, &of(MAX_TASK_ID_BYTES + 1)), None);
        let named = Task { tool: "x".repeat(MAX_HANDLE).into(), ..task() };
        assert_eq!(handles.seal(&alice, &named), None, "it could not be opened");
        let named = Task { tool: "x".repeat(1 << 16).into(), ..task() };
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
            rename_all(&mut result, &names);
            assert_eq!(result.to_bytes(), expected.unwrap_or(text));
        }
    }
}
