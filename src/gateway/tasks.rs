//! Handles of tasks: an upstream's own id for work that goes on, in a form that leads back to it.
//!
//! A handle is sealed: it holds the upstream, the tool that the task is of, the era in which it was begun and the
//! upstream's id, and opens only for the principal that it was given to. There is no table to fill, so
//! tasks may be as many and live as long as their upstreams like.
//!
//! Promises: a task has one handle for its principal, wherever it is named. Nobody can guess a handle, read one, or
//! use somebody else's; whoever may not call the tool any more can neither ask about its tasks nor hear of
//! them. Handles are good for the life of the process.
//!
//! Knows nothing of: what a task is, and how it is doing.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Guest, Standing, Subscriptions};
use crate::catalog::Target;
use crate::json::{self, Object};
use crate::mcp::call::{Body, Outcome, Reply};
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::question::{Answered, Question};
use crate::mcp::revision::Era;
use crate::mcp::task::{Naming, TaskOwner, rename, rename_related, restore_related};
use crate::policy::Principal;
use crate::{rpc, upstream};

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

    fn seal(&self, principal: &Principal, task: &Task) -> String {
        let era = match task.era {
            Era::Legacy => "0",
            Era::Modern => "1",
        };
        let [upstream, tool, own] =
            [&task.upstream, &task.tool, &task.own].map(|text| json::quote(text));
        let mut sealed = [era.as_bytes(), &upstream, b",", &tool, b",", &own].concat();
        let name = json::quote(&principal.name);
        let tag = hmac::sign(&self.nonces, &[&name[..], &sealed].concat());
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&tag.as_ref()[..NONCE_LEN]);
        let aad = Aad::from(principal.name.as_bytes());
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .expect("a text this short can be sealed");
        URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())
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
        let text = std::str::from_utf8(self.key.open_in_place(nonce, aad, &mut sealed).ok()?);
        let text = text.ok()?;
        let era = match text.as_bytes().first()? {
            b'0' => Era::Legacy,
            _ => Era::Modern,
        };
        let mut parts = json::elements(&format!("[{}]", &text[1..]).into())?;
        let mut part = || {
            let text = parts.next()?;
            json::decode_string(std::str::from_utf8(&text).ok()?).map(Box::<str>::from)
        };
        Some(Task { upstream: part()?, tool: part()?, era, own: part()? })
    }
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
}

impl Dressing {
    /// Puts a handle wherever a reply names a task: in a task itself, in what announces a new one, and in
    /// a result's relation to one. A reply that still arrives is too large to be any of these but a
    /// result, and passes as it is.
    pub(super) fn dress(&self, reply: Reply) -> Reply {
        let Reply { era, outcome: Outcome::Result(Body::Read(mut result)) } = reply else {
            return reply;
        };
        if era == self.era {
            dress(&mut result, self);
        }
        Reply { era, outcome: Outcome::Result(Body::Read(result)) }
    }

    /// A question as its client is to see it.
    pub(super) fn dress_question(&self, mut question: Question) -> Question {
        rename_related(&mut question.params, self);
        question
    }

    /// An answer as the upstream is to see it.
    pub(super) fn undress(&self, answered: Answered) -> Answered {
        let Answered { key, outcome: rpc::Outcome::Result(text) } = answered else {
            return answered;
        };
        let restored =
            |mut result: Object| restore_related(&mut result, self).then(|| result.to_bytes());
        let object = Object::parse_again(text.clone()).ok();
        let text = object.and_then(restored).unwrap_or(text);
        Answered { key, outcome: rpc::Outcome::Result(text) }
    }
}

impl Naming for Dressing {
    fn era(&self) -> Era {
        self.era
    }

    fn handle(&self, own: &str) -> String {
        let (upstream, tool) = (self.upstream.as_str().into(), self.tool.clone());
        let task = Task { upstream, tool, era: self.era, own: own.into() };
        self.handles.seal(&self.standing.principal, &task)
    }

    fn own(&self, handle: &str) -> Option<Box<str>> {
        let task = self.handles.open(&self.standing.principal, handle)?;
        let is_here = *task.upstream == *self.upstream.as_str() && task.era == self.era;
        is_here.then_some(task.own)
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

/// Puts handles in place of the ids that a result has.
fn dress(result: &mut Object, names: &dyn Naming) {
    rename(result, names);
    if let Some(mut task) = result.get_object("task")
        && rename(&mut task, names)
    {
        result.set("task", task.to_bytes());
    }
    rename_related(result, names);
}

// === What a guest does with them ===

impl Guest {
    /// How this guest names the tasks of a tool.
    pub(super) fn names(&self, upstream: &UpstreamName, tool: &str, era: Era) -> Dressing {
        Dressing {
            handles: Arc::clone(&self.gateway.handles),
            standing: self.standing(),
            upstream: upstream.clone(),
            tool: tool.into(),
            era,
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
        let upstream = self.generation.upstream(&target.upstream);
        match upstream.follow_task(&task.own, owner, &self.owner()).await {
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
            tool: "hub__\"x\"".into(),
            era: Era::Modern,
            own: "t,1".into(),
        }
    }

    #[test]
    fn a_handle_opens_for_whom_it_was_given_to_and_for_nobody_else() {
        let (handles, alice) = (Handles::new(), principal("alice"));
        let handle = handles.seal(&alice, &task());
        assert_eq!(handles.open(&alice, &handle), Some(task()));
        assert_eq!(handles.seal(&alice, &task()), handle, "a task has one handle");
        assert_ne!(handles.seal(&principal("bob"), &task()), handle);
        assert_ne!(handles.seal(&alice, &Task { own: "t,2".into(), ..task() }), handle);
        assert_eq!(handles.open(&principal("bob"), &handle), None);
        assert_eq!(Handles::new().open(&alice, &handle), None, "of another process");
        for bad in ["", "x", "t,1", &handle[1..], &handle[..handle.len() - 1]] {
            assert_eq!(handles.open(&alice, bad), None, "{bad}");
        }
        assert_eq!(handles.open(&alice, &"A".repeat(MAX_HANDLE + 1)), None);
    }

    #[test]
    fn every_place_that_names_a_task_gets_the_handle_and_all_else_stays() {
        let names = Brackets(Era::Legacy, true);
        for (text, expected) in [
            (r#"{"content":[{"taskId":"t"}], "n":1e400}"#, None),
            (r#"{"taskId":7}"#, None),
            (
                r#"{"resultType":"task","taskId":"t","ttlMs":1.0}"#,
                Some(r#"{"resultType":"task","taskId":"<t>","ttlMs":1.0}"#),
            ),
            (
                r#"{"task":{"taskId":"t","status":"working"},"_meta":{"a":1}}"#,
                Some(r#"{"task":{"taskId":"<t>","status":"working"},"_meta":{"a":1}}"#),
            ),
            (
                r#"{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#,
                Some(
                    r#"{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"<t>"}}}"#,
                ),
            ),
        ] {
            let mut result = Object::parse(text).expect(text);
            dress(&mut result, &names);
            assert_eq!(result.to_bytes(), expected.unwrap_or(text));
        }
    }
}
