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
use crate::mcp::task::{TASK_ID, TaskOwner};

/// How many tasks of a connection are known, and how many of one client's.
const MAX_TASKS: usize = 4_096;
const MAX_OWN: usize = 256;
/// The longest id that is kept, in bytes.
const MAX_ID_BYTES: usize = 1_024;
/// The largest reply that is looked at: what names a task is small.
const MAX_REPLY_BYTES: usize = 64 * 1024;

/// Whose the tasks of a connection are, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: Mutex<VecDeque<(Box<str>, TaskOwner)>>,
}

impl Tasks {
    /// Takes a reply to `owner` that may name one of its tasks.
    pub(super) fn replied(&self, reply: &Object, owner: TaskOwner) {
        if reply.text_bytes() > MAX_REPLY_BYTES {
            return;
        }
        let task = reply.get_object("task").unwrap_or_else(|| reply.clone());
        let Some(id) = task.get_string(TASK_ID).filter(|id| id.len() <= MAX_ID_BYTES) else {
            return;
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(other, owner)| **other != *id && !owner.is_gone());
        if is_over(&task) {
            return;
        }
        let own = known.iter().filter(|(_, other)| other.is_same(&owner)).count();
        let oldest = match own >= MAX_OWN {
            true => known.iter().position(|(_, other)| other.is_same(&owner)),
            false => (known.len() >= MAX_TASKS).then_some(0),
        };
        if let Some(oldest) = oldest {
            known.remove(oldest);
        }
        known.push_back((id.into(), owner));
    }

    /// Whether somebody who is still there has begun one that is not known to be over.
    pub(super) fn go_on(&self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|(_, owner)| !owner.is_gone())
    }

    /// Takes the `params` of a notification about a task: its owner is told, and nobody else.
    pub(super) fn told(&self, params: &Object) {
        let Some(id) = params.get_string(TASK_ID) else { return };
        let owner = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(at) = known.iter().position(|(known, _)| **known == *id) else { return };
            let owner = known[at].1.clone();
            if is_over(params) {
                known.remove(at);
            }
            owner
        };
        owner.tell(&id, params);
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

    fn owner(news: &TaskNews) -> TaskOwner {
        TaskOwner::new(Arc::new(Brackets(Era::Legacy, true)), news)
    }

    fn begin(tasks: &Tasks, id: &str, news: &TaskNews) {
        let reply = format!(r#"{{"task":{{"taskId":"{id}","status":"working"}}}}"#);
        tasks.replied(&object(&reply), owner(news));
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
        begin(&tasks, "a", &ann);
        begin(&tasks, "b", &bob);
        tell(&tasks, "a", "working");
        tell(&tasks, "nobodys", "working");
        assert_eq!(told(&ann).await.expect("told"), r#"{"taskId":"<a>","status":"working"}"#);
        assert_eq!(told(&bob).await, None);
        tell(&tasks, "a", "completed");
        assert!(told(&ann).await.is_some());
        tell(&tasks, "a", "working");
        assert_eq!(told(&ann).await, None);
        // Whoever asks about it names it, too; one that is over has nothing to be told of.
        for (status, expected) in [("working", true), ("failed", false)] {
            let reply = format!(r#"{{"taskId":"a","status":"{status}"}}"#);
            tasks.replied(&object(&reply), owner(&ann));
            tell(&tasks, "a", "working");
            assert_eq!(told(&ann).await.is_some(), expected);
        }
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
            tasks.replied(&object(odd), owner(&ann));
        }
        let long = format!(r#"{{"taskId":"{}"}}"#, "x".repeat(MAX_ID_BYTES + 1));
        tasks.replied(&object(&long), owner(&ann));
        assert_eq!(tasks.known.lock().expect("a lock").len(), 1);
    }
}
