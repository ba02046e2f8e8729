//! Owners of the tasks that clients have started over one connection, for servers that send task
//! status notifications without a subscription.
//!
//! Server and client share only the task id, so the owner has to be recorded here: from the
//! response that created the task, or from a response to a request about it, which only its owner
//! can send.
//!
//! Invariants: only a task's owner is notified of it. At most [`MAX_TASKS`] tasks are known, and at
//! most [`MAX_OWN`] of one client. Beyond either bound the oldest is forgotten, and its owner has
//! to poll.

use std::collections::VecDeque;

use weir_base::json::Object;
use weir_base::tasks::sync::Mutex;
use weir_mcp::task::{MAX_TASK_ID_BYTES, TASK_ID, TaskOwner, TaskScope};

/// Maximum known tasks of a connection, and of one client.
const MAX_TASKS: usize = 4_096;
const MAX_OWN: usize = 256;
/// Longest id of a known task: of one that has a handle.
const MAX_KNOWN_BYTES: usize = 2 * MAX_TASK_ID_BYTES;

/// Client request whose response names a task of that client.
#[derive(Debug, Clone)]
pub(crate) struct TaskClaim {
    /// Client that sent the request.
    pub(super) owner: TaskOwner,
    /// Upstream's id of the task that the request is about; `None` if the request creates one.
    pub(super) task_id: Option<Box<str>>,
}

/// Owners of a connection's tasks, oldest first.
#[derive(Debug, Default)]
pub(super) struct TaskOwners {
    known: Mutex<VecDeque<OwnedTask>>,
}

/// Task with a known owner.
#[derive(Debug)]
struct OwnedTask {
    id: Box<str>,
    handle: Box<str>,
    owner: TaskOwner,
}

impl TaskOwners {
    /// Records the owner from the response to a request that creates a task or is about one. Any
    /// other task that the response may name is not the client's.
    pub(super) fn on_response(&self, response: &Object, claim: TaskClaim, scope: TaskScope) {
        let TaskClaim { owner, task_id } = claim;
        let created = response.get_object("task").filter(|_| task_id.is_none());
        let task = created.as_ref().unwrap_or(response);
        let Some(id) = task.get_string(TASK_ID).filter(|id| id.len() <= MAX_KNOWN_BYTES) else {
            return;
        };
        let handle: Option<Box<str>> = match &task_id {
            Some(task_id) if **task_id == *id => owner.task_ids().handle(&id).map(Into::into),
            Some(_) => None,
            None if created.is_some() => owner.task_ids().new_handle(scope, &id).map(Into::into),
            None => None,
        };
        let Some(handle) = handle else { return };
        let mut known = self.known.lock();
        known.retain(|other| *other.id != *id && !other.owner.is_gone());
        if is_final(task) {
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
        known.push_back(OwnedTask { id: id.into(), handle, owner });
    }

    /// Whether a connected client owns a task that has not ended.
    pub(super) fn has_active(&self) -> bool {
        let known = self.known.lock();
        known.iter().any(|known| !known.owner.is_gone())
    }

    /// Passes the `params` of a task status notification to the task's owner only.
    pub(super) fn on_status(&self, params: &Object) {
        let Some(id) = params.get_string(TASK_ID) else { return };
        let (owner, handle) = {
            let mut known = self.known.lock();
            let Some(at) = known.iter().position(|known| *known.id == *id) else { return };
            let (owner, handle) = (known[at].owner.clone(), known[at].handle.clone());
            if is_final(params) {
                known.remove(at);
            }
            (owner, handle)
        };
        owner.notify(&handle, params);
    }
}

/// Whether a task's status is final (spec 2025-11-25, tasks, status lifecycle).
fn is_final(task: &Object) -> bool {
    let status = task.get_string("status");
    matches!(status.as_deref(), Some("completed" | "failed" | "cancelled"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures::FutureExt;

    use super::*;
    use weir_mcp::revision::Era;
    use weir_mcp::task::TaskStatusQueue;
    use weir_mcp::task::testing::Brackets;

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect(text)
    }

    fn respond(tasks: &TaskOwners, response: &str, about: Option<&str>, news: &TaskStatusQueue) {
        let owner = TaskOwner::new(Arc::new(Brackets(Era::Legacy, true)), news);
        let claim = TaskClaim { owner, task_id: about.map(Into::into) };
        tasks.on_response(&object(response), claim, TaskScope::of_server("hub"));
    }

    fn begin(tasks: &TaskOwners, id: &str, news: &TaskStatusQueue) {
        let response = format!(r#"{{"task":{{"taskId":"{id}","status":"working"}}}}"#);
        respond(tasks, &response, None, news);
    }

    fn send_status(tasks: &TaskOwners, id: &str, status: &str) {
        tasks.on_status(&object(&format!(r#"{{"taskId":"{id}","status":"{status}"}}"#)));
    }

    async fn next_status(news: &TaskStatusQueue) -> Option<Bytes> {
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        news.next().now_or_never()
    }

    #[tokio::test(start_paused = true)]
    async fn a_tasks_owner_is_told_until_it_is_over_and_nobody_else() {
        let (tasks, ann, bob) =
            (TaskOwners::default(), TaskStatusQueue::default(), TaskStatusQueue::default());
        begin(&tasks, "t", &ann);
        begin(&tasks, "b", &bob);
        send_status(&tasks, "t", "working");
        send_status(&tasks, "unknown", "working");
        assert_eq!(
            next_status(&ann).await.expect("a notification"),
            r#"{"taskId":"<t>","status":"working"}"#
        );
        assert_eq!(next_status(&bob).await, None);
        send_status(&tasks, "t", "completed");
        assert!(next_status(&ann).await.is_some());
        send_status(&tasks, "t", "working");
        assert_eq!(next_status(&ann).await, None);
        // A request about a task also records its owner; a task that has ended has no further
        // status.
        for (status, expected) in [("working", true), ("failed", false)] {
            let response = format!(r#"{{"taskId":"t","status":"{status}"}}"#);
            respond(&tasks, &response, Some("t"), &ann);
            send_status(&tasks, "t", "working");
            assert_eq!(next_status(&ann).await.is_some(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_names_a_task_which_its_client_has_not_asked_about_makes_it_no_owner() {
        let (tasks, ann, bob) =
            (TaskOwners::default(), TaskStatusQueue::default(), TaskStatusQueue::default());
        begin(&tasks, "b", &bob);
        respond(&tasks, r#"{"taskId":"b","status":"working"}"#, Some("t"), &ann);
        respond(&tasks, r#"{"task":{"taskId":"b"}}"#, Some("t"), &ann);
        respond(&tasks, r#"{"taskId":"b","status":"working"}"#, None, &ann);
        send_status(&tasks, "b", "working");
        assert_eq!(next_status(&ann).await, None);
        assert!(next_status(&bob).await.is_some());
    }

    #[test]
    fn a_task_goes_on_until_it_is_over_or_its_owner_is_gone() {
        let (tasks, ann, bob) =
            (TaskOwners::default(), TaskStatusQueue::default(), TaskStatusQueue::default());
        assert!(!tasks.has_active());
        begin(&tasks, "a", &ann);
        begin(&tasks, "b", &bob);
        send_status(&tasks, "a", "completed");
        assert!(tasks.has_active());
        drop(bob);
        assert!(!tasks.has_active());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_are_forgotten_each_clients_its_own_first() {
        let (tasks, ann) = (TaskOwners::default(), TaskStatusQueue::default());
        for number in 0..=MAX_OWN {
            begin(&tasks, &format!("a{number}"), &ann);
        }
        send_status(&tasks, "a0", "working");
        assert_eq!(next_status(&ann).await, None);
        send_status(&tasks, "a1", "working");
        assert!(next_status(&ann).await.is_some());
        let others: Vec<_> = (0..MAX_TASKS / MAX_OWN).map(|_| TaskStatusQueue::default()).collect();
        for (at, other) in others.iter().enumerate() {
            for number in 0..MAX_OWN {
                begin(&tasks, &format!("{at}-{number}"), other);
            }
        }
        assert_eq!(tasks.known.lock().len(), MAX_TASKS);
        drop(others);
        begin(&tasks, "last", &ann);
        assert_eq!(tasks.known.lock().len(), 1);
        for odd in ["{}", r#"{"taskId":7}"#, r#"{"task":{"taskId":null}}"#] {
            respond(&tasks, odd, None, &ann);
        }
        begin(&tasks, &"x".repeat(MAX_TASK_ID_BYTES + 1), &ann);
        assert_eq!(tasks.known.lock().len(), 1);
    }
}
