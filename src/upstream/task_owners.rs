//! The tasks that clients have begun over one connection, where the server tells their owners by itself.
//!
//! Server and client have agreed on nothing but the task, so whose it is has to be known here: from the reply
//! that began it, or from one to a question about it, which only its owner can ask.
//!
//! Promises: nobody but a task's owner is told of it. No more than [`MAX_TASKS`] are known, of one client no
//! more than [`MAX_OWN`]: beyond either the oldest is forgotten, and its owner has to ask.
//!
//! Knows nothing of: what a handle is, and how clients are told.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::json::Object;
use crate::mcp::task::{MAX_TASK_ID_BYTES, TASK_ID, TaskOwner, TaskScope};

/// How many tasks of a connection are known, and how many of one client's.
const MAX_TASKS: usize = 4_096;
const MAX_OWN: usize = 256;
/// The largest reply that is looked at: what names a task is small.
const MAX_REPLY_BYTES: usize = 64 * 1024;

/// A client's request whose reply names a task of its own.
#[derive(Debug, Clone)]
pub(super) struct TaskClaim {
    /// The client.
    pub(super) owner: TaskOwner,
    /// The upstream's id of the task that the request is about; `None` if the request begins one.
    pub(super) asked: Option<Box<str>>,
}

/// Whose the tasks of a connection are, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: Mutex<VecDeque<Known>>,
}

/// A task whose owner is told of it.
#[derive(Debug)]
struct Known {
    id: Box<str>,
    handle: Box<str>,
    owner: TaskOwner,
}

impl Tasks {
    /// Takes the reply to a request that begins a task of its client's, or asks about one. Any other task that the
    /// reply may name is not the client's.
    pub(super) fn replied(&self, reply: &Object, claim: TaskClaim, scope: TaskScope) {
        if reply.text_bytes() > MAX_REPLY_BYTES {
            return;
        }
        let TaskClaim { owner, asked } = claim;
        let begun = reply.get_object("task").filter(|_| asked.is_none());
        let task = begun.as_ref().unwrap_or(reply);
        let Some(id) = task.get_string(TASK_ID).filter(|id| id.len() <= MAX_TASK_ID_BYTES) else {
            return;
        };
        let handle: Option<Box<str>> = match &asked {
            Some(asked) if **asked == *id => owner.names().handle(&id).map(Into::into),
            Some(_) => None,
            None if begun.is_some() => owner.names().begin(scope, &id).map(Into::into),
            None => None,
        };
        let Some(handle) = handle else { return };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|other| *other.id != *id && !other.owner.is_gone());
        if is_over(task) {
            return;
        }
        let own = known.iter().filter(|other| other.owner.is_same(&owner)).count();
        let oldest = match own >= MAX_OWN {
            true => known.iter().position(|other| other.owner.is_same(&owner)),
            false => (known.len() >= MAX_TASKS).then_some(0),
        };
        if let Some(oldest) = oldest {
            known.remove(oldest);
        }
        known.push_back(Known { id: id.into(), handle, owner });
    }

    /// Whether somebody who is still there has begun one that is not known to be over.
    pub(super) fn go_on(&self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|known| !known.owner.is_gone())
    }

    /// Takes the `params` of a notification about a task: its owner is told, and nobody else.
    pub(super) fn told(&self, params: &Object) {
        let Some(id) = params.get_string(TASK_ID) else { return };
        let (owner, handle) = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(at) = known.iter().position(|known| *known.id == *id) else { return };
            let (owner, handle) = (known[at].owner.clone(), known[at].handle.clone());
            if is_over(params) {
                known.remove(at);
            }
            (owner, handle)
        };
        owner.tell(&handle, params);
    }
}

/// Whether a task's state is its last (spec 2025-11-25, tasks, status lifecycle).
fn is_over(task: &Object) -> bool {
    let status = task.get_string("status");
    matches!(status.as_deref(), Some("completed" | "failed" | "cancelled"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures::FutureExt;

    use super::*;
    use crate::mcp::revision::Era;
    use crate::mcp::task::TaskNews;
    use crate::mcp::task::testing::Brackets;

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect(text)
    }

    fn replied(tasks: &Tasks, reply: &str, asked: Option<&str>, news: &TaskNews) {
        let owner = TaskOwner::new(Arc::new(Brackets(Era::Legacy, true)), news);
        let claim = TaskClaim { owner, asked: asked.map(Into::into) };
        tasks.replied(&object(reply), claim, TaskScope::of_server("hub"));
    }

    fn begin(tasks: &Tasks, id: &str, news: &TaskNews) {
        let reply = format!(r#"{{"task":{{"taskId":"{id}","status":"working"}}}}"#);
        replied(tasks, &reply, None, news);
    }

    fn tell(tasks: &Tasks, id: &str, status: &str) {
        tasks.told(&object(&format!(r#"{{"taskId":"{id}","status":"{status}"}}"#)));
    }

    async fn told(news: &TaskNews) -> Option<Bytes> {
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        news.next().now_or_never()
    }

    #[tokio::test(start_paused = true)]
    async fn a_tasks_owner_is_told_until_it_is_over_and_nobody_else() {
        let (tasks, ann, bob) = (Tasks::default(), TaskNews::default(), TaskNews::default());
        begin(&tasks, "t", &ann);
        begin(&tasks, "b", &bob);
        tell(&tasks, "t", "working");
        tell(&tasks, "nobodys", "working");
        assert_eq!(told(&ann).await.expect("told"), r#"{"taskId":"<t>","status":"working"}"#);
        assert_eq!(told(&bob).await, None);
        tell(&tasks, "t", "completed");
        assert!(told(&ann).await.is_some());
        tell(&tasks, "t", "working");
        assert_eq!(told(&ann).await, None);
        // Whoever asks about it names it, too; one that is over has nothing to be told of.
        for (status, expected) in [("working", true), ("failed", false)] {
            let reply = format!(r#"{{"taskId":"t","status":"{status}"}}"#);
            replied(&tasks, &reply, Some("t"), &ann);
            tell(&tasks, "t", "working");
            assert_eq!(told(&ann).await.is_some(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_names_a_task_which_its_client_has_not_asked_about_makes_it_no_owner() {
        let (tasks, ann, bob) = (Tasks::default(), TaskNews::default(), TaskNews::default());
        begin(&tasks, "b", &bob);
        replied(&tasks, r#"{"taskId":"b","status":"working"}"#, Some("t"), &ann);
        replied(&tasks, r#"{"task":{"taskId":"b"}}"#, Some("t"), &ann);
        replied(&tasks, r#"{"taskId":"b","status":"working"}"#, None, &ann);
        tell(&tasks, "b", "working");
        assert_eq!(told(&ann).await, None);
        assert!(told(&bob).await.is_some());
    }

    #[test]
    fn a_task_goes_on_until_it_is_over_or_its_owner_is_gone() {
        let (tasks, ann, bob) = (Tasks::default(), TaskNews::default(), TaskNews::default());
        assert!(!tasks.go_on());
        begin(&tasks, "a", &ann);
        begin(&tasks, "b", &bob);
        tell(&tasks, "a", "completed");
        assert!(tasks.go_on());
        drop(bob);
        assert!(!tasks.go_on());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_are_forgotten_each_clients_its_own_first() {
        let (tasks, ann) = (Tasks::default(), TaskNews::default());
        for number in 0..=MAX_OWN {
            begin(&tasks, &format!("a{number}"), &ann);
        }
        tell(&tasks, "a0", "working");
        assert_eq!(told(&ann).await, None);
        tell(&tasks, "a1", "working");
        assert!(told(&ann).await.is_some());
        let others: Vec<_> = (0..MAX_TASKS / MAX_OWN).map(|_| TaskNews::default()).collect();
        for (at, other) in others.iter().enumerate() {
            for number in 0..MAX_OWN {
                begin(&tasks, &format!("{at}-{number}"), other);
            }
        }
        assert_eq!(tasks.known.lock().expect("a lock").len(), MAX_TASKS);
        drop(others);
        begin(&tasks, "last", &ann);
        assert_eq!(tasks.known.lock().expect("a lock").len(), 1);
        for odd in ["{}", r#"{"taskId":7}"#, r#"{"task":{"taskId":null}}"#] {
            replied(&tasks, odd, None, &ann);
        }
        begin(&tasks, &"x".repeat(MAX_TASK_ID_BYTES + 1), &ann);
        assert_eq!(tasks.known.lock().expect("a lock").len(), 1);
    }
}
