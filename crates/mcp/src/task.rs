//! Tasks: mapping of their ids for one client, and the client's pending status notifications.
//!
//! The upstream side knows a task by the upstream's own id, the client by a handle.
//! [`TaskIdMapper`] maps between them, for one client and one tool; [`TaskStatusQueue`] has the
//! pending status notifications of a client.
//!
//! Invariants: adding a notification never waits. For one task only the newest status waits, and
//! together at most [`MAX_QUEUED`] statuses and [`MAX_QUEUED_BYTES`]; beyond either the oldest is
//! dropped. A client is notified of a task only while it may send requests about it, at most
//! [`PER_SECOND`] times a second.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::meta;
use crate::revision::Era;
use weir_base::json::{self, Object};
use weir_base::memory::coalescing_queue::CoalescingQueue;
use weir_base::secrets::sealing::InstanceId;
use weir_base::secrets::sha256::sha256;

/// Member that names a task.
pub const TASK_ID: &str = "taskId";
/// Member of a listen request's filter that names tasks.
pub const TASK_IDS: &str = "taskIds";
/// Task notification of the modern era's extension.
pub const TASK_NOTIFICATION: &str = "notifications/tasks";
/// Task status notification of 2025-11-25.
pub const TASK_STATUS_NOTIFICATION: &str = "notifications/tasks/status";

/// Maximum number and bytes of pending statuses of one client; a single larger status passes.
const MAX_QUEUED: usize = 1_000;
const MAX_QUEUED_BYTES: usize = 1024 * 1024;

/// Maximum status notifications to one client per second.
const PER_SECOND: u32 = 20;

/// The longest task id of an upstream that becomes a handle, in bytes.
pub const MAX_TASK_ID_BYTES: usize = 1_024;

/// Scope in which an upstream's task id is unique: one process, one session, or the server behind a
/// URL without sessions. In another scope the same id may be another client's task.
///
/// The scope of a process or session contains a part of the number of the Weir process that has it,
/// so that the other replicas of a fleet can find that one. They need not know of this form: to
/// earlier versions a scope is any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskScope(u64);

impl TaskScope {
    /// Bit that is set in scopes of servers, so that they differ from all others.
    const OF_SERVER: u64 = 1 << 63;

    /// Creates a unique scope for a process or a session of this Weir process. Handles outlive that
    /// one, and no later one may take another's session for its own: therefore both parts are
    /// random, and within a Weir process the second one counts on.
    pub fn unique(instance: InstanceId) -> Self {
        static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| {
            let mut bytes = [0; 4];
            getrandom::fill(&mut bytes).expect("the system has random numbers");
            AtomicU32::new(u32::from_be_bytes(bytes))
        });
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self((Self::part_of(instance) << 32) | u64::from(number))
    }

    /// The scope of a server without sessions, identified by the hash of its settings.
    pub fn of_server(fingerprint: &str) -> Self {
        let hash = sha256(fingerprint);
        let first = hash.first_chunk().expect("a hash has more than eight bytes");
        Self(u64::from_be_bytes(*first) | Self::OF_SERVER)
    }

    /// Whether the scope belongs to a process or session of one Weir process; the tasks of a server
    /// without sessions are good in all.
    pub fn is_local(self) -> bool {
        self.0 & Self::OF_SERVER == 0
    }

    /// Whether the scope belongs to a process or session of this Weir process.
    pub fn is_of(self, instance: InstanceId) -> bool {
        self.is_local() && self.0 >> 32 == Self::part_of(instance)
    }

    /// 31 bits of the number of a Weir process, which is random.
    fn part_of(instance: InstanceId) -> u64 {
        instance.number() >> 33
    }

    /// The scope as bytes.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// The scope with these bytes.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

/// Mapping of task ids for one client and one tool.
pub trait TaskIdMapper: fmt::Debug + Send + Sync {
    /// The client's era: tasks of the two eras differ.
    fn era(&self) -> Era;
    /// The handle of a task that the client has begun, always the same; `None` if the id is too
    /// long.
    fn new_handle(&self, scope: TaskScope, own: &str) -> Option<String>;
    /// The handle of the task with the upstream's id `own`, if the client's request has named it.
    fn handle(&self, own: &str) -> Option<&str>;
    /// The upstream's id of the task with this handle, if the client's request has named it.
    fn own(&self, handle: &str) -> Option<&str>;
    /// Whether the client may currently send requests about the tool's tasks.
    fn is_reachable(&self) -> bool;
}

/// A shared [`TaskIdMapper`].
pub(crate) type SharedTaskIdMapper = Arc<dyn TaskIdMapper>;

/// Replaces the task id of an object by the handle, if the client's request has named the task. Any
/// other id stays: it is the upstream's own and cannot be used as a handle.
pub fn rename(object: &mut Object, task_ids: &dyn TaskIdMapper) {
    let own = object.get_string(TASK_ID);
    if let Some(handle) = own.and_then(|own| task_ids.handle(&own)) {
        object.set(TASK_ID, json::quote(handle));
    }
}

/// The id of the related task in the `_meta` of `object`.
pub fn related(object: &Object) -> Option<Box<str>> {
    let related = object.get_object("_meta")?.get_object(meta::RELATED_TASK)?;
    related.get_string(TASK_ID).map(|id| id.as_ref().into())
}

/// Replaces the id of the related task in the `_meta` of `object` by the handle. An id that the
/// client's request has not named is removed, because a tool may have copied it from anywhere.
/// Returns whether the object has changed.
pub fn rename_related(object: &mut Object, task_ids: &dyn TaskIdMapper) -> bool {
    change_related(object, |own| task_ids.handle(own))
}

/// Removes the related task from the `_meta` of `object`.
pub fn drop_related(object: &mut Object) {
    change_related(object, |_| None);
}

/// Replaces the handle of the related task in the `_meta` of `object` by the upstream's id. A
/// handle that the client's request has not named is removed. Returns whether the object has
/// changed.
pub fn restore_related(object: &mut Object, task_ids: &dyn TaskIdMapper) -> bool {
    change_related(object, |handle| task_ids.own(handle))
}

fn change_related<'a>(
    object: &mut Object,
    other_name: impl FnOnce(&str) -> Option<&'a str>,
) -> bool {
    let Some(mut members) = object.get_object("_meta") else { return false };
    let Some(related) = members.get_bytes(meta::RELATED_TASK) else { return false };
    let renamed = Object::parse(related).ok().and_then(|mut related| {
        let name = other_name(&related.get_string(TASK_ID)?)?;
        related.set(TASK_ID, json::quote(name));
        Some(related)
    });
    match renamed {
        Some(related) => members.set(meta::RELATED_TASK, related.to_bytes()),
        None => _ = members.take(meta::RELATED_TASK),
    }
    object.set("_meta", members.to_bytes());
    true
}

// === TaskOwner ===

/// Client that owns a task or is subscribed to it.
#[derive(Debug, Clone)]
pub struct TaskOwner {
    task_ids: SharedTaskIdMapper,
    queue: Weak<CoalescingQueue<StatusQueue>>,
}

impl TaskOwner {
    /// Creates an owner with its mapper of task ids and its queue.
    pub fn new(task_ids: SharedTaskIdMapper, queue: &TaskStatusQueue) -> Self {
        Self { task_ids, queue: Arc::downgrade(&queue.queue) }
    }

    /// Whether the client's queue is gone.
    pub fn is_gone(&self) -> bool {
        self.queue.strong_count() == 0
    }

    /// Whether both are the same client.
    pub fn is_same(&self, other: &Self) -> bool {
        self.queue.ptr_eq(&other.queue)
    }

    /// The client's mapper of task ids.
    pub fn task_ids(&self) -> &dyn TaskIdMapper {
        &*self.task_ids
    }

    /// Queues the `params` of a notification about the task with this handle.
    pub fn notify(&self, handle: &str, params: &Object) {
        let Some(queue) = self.queue.upgrade() else { return };
        let mut params = params.clone();
        params.set(TASK_ID, json::quote(handle));
        rename_related(&mut params, &*self.task_ids);
        // A copy, because a slice would keep the whole message in memory; on one line it fits any
        // stream.
        let params = json::on_one_line(Bytes::copy_from_slice(&params.to_bytes()));
        queue.lock().push(PendingStatus {
            handle: handle.into(),
            task_ids: self.task_ids.clone(),
            params,
        });
        queue.wake();
    }
}

/// A task that a client is subscribed to.
#[derive(Debug, Clone)]
pub struct FollowedTask {
    /// The client.
    pub owner: TaskOwner,
    /// The scope in which the task began.
    pub scope: TaskScope,
    /// The client's handle of the task.
    pub handle: Box<str>,
}

// === TaskStatusQueue ===

/// Pending task notifications of one client. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct TaskStatusQueue {
    queue: Arc<CoalescingQueue<StatusQueue>>,
}

#[derive(Debug, Default)]
struct StatusQueue {
    waiting: VecDeque<PendingStatus>,
    bytes: usize,
    /// Earliest time of the next notification.
    next_at: Option<Instant>,
}

#[derive(Debug)]
struct PendingStatus {
    handle: Box<str>,
    task_ids: SharedTaskIdMapper,
    params: Bytes,
}

impl TaskStatusQueue {
    /// Waits for the `params` of the next task notification, with the handle. Never ends.
    /// Cancel-safe. For one reader at a time.
    pub async fn next(&self) -> Bytes {
        self.queue.next(StatusQueue::take).await
    }
}

impl StatusQueue {
    fn push(&mut self, status: PendingStatus) {
        if let Some(older) = self.waiting.iter_mut().find(|it| it.handle == status.handle) {
            self.bytes -= older.params.len();
            self.bytes += status.params.len();
            *older = status;
        } else {
            self.bytes += status.params.len();
            self.waiting.push_back(status);
        }
        while self.waiting.len() > MAX_QUEUED
            || (self.bytes > MAX_QUEUED_BYTES && self.waiting.len() > 1)
        {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<PendingStatus> {
        let status = self.waiting.pop_front()?;
        self.bytes -= status.params.len();
        Some(status)
    }

    /// Removes the next notification, or returns when there may be one.
    fn take(&mut self, now: Instant) -> Result<Bytes, Option<Instant>> {
        if let Some(at) = self.next_at.filter(|at| *at > now && !self.waiting.is_empty()) {
            return Err(Some(at));
        }
        while let Some(status) = self.pop() {
            if status.task_ids.is_reachable() {
                self.next_at = Some(now + Duration::from_secs(1) / PER_SECOND);
                return Ok(status.params);
            }
        }
        Err(None)
    }
}

/// Translation of task ids for tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::*;

    /// Maps every new task to its id in angle brackets, and `t` to `<t>`.
    #[derive(Debug)]
    pub struct Brackets(pub Era, pub bool);

    impl TaskIdMapper for Brackets {
        fn era(&self) -> Era {
            self.0
        }

        fn new_handle(&self, _: TaskScope, own: &str) -> Option<String> {
            (own.len() <= MAX_TASK_ID_BYTES).then(|| format!("<{own}>"))
        }

        fn handle(&self, own: &str) -> Option<&str> {
            (own == "t").then_some("<t>")
        }

        fn own(&self, handle: &str) -> Option<&str> {
            (handle == "<t>").then_some("t")
        }

        fn is_reachable(&self) -> bool {
            self.1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Brackets;
    use super::*;
    use futures::FutureExt;
    use weir_base::secrets::sealing::SealingKeys;

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect(text)
    }

    fn task_ids(is_reachable: bool) -> SharedTaskIdMapper {
        Arc::new(Brackets(Era::Legacy, is_reachable))
    }

    fn now(queue: &TaskStatusQueue) -> Option<Bytes> {
        queue.next().now_or_never()
    }

    #[test]
    fn what_is_said_to_be_related_is_renamed_and_all_else_stays() {
        let related = |id: &str| {
            format!(
                r#"{{"x":1e400,"_meta":{{"a":1.0,"io.modelcontextprotocol/related-task":{{"taskId":"{id}","b":1.0}}}}}}"#
            )
        };
        let task_ids = task_ids(true);
        let mut there = object(&related("t"));
        assert!(rename_related(&mut there, &*task_ids));
        assert_eq!(there.to_bytes(), related("<t>"));
        assert!(restore_related(&mut there, &*task_ids));
        assert_eq!(there.to_bytes(), related("t"));
        for other in [r#"{"_meta":{"a":1.0}}"#, r#"{"taskId":"t"}"#, r#"{"_meta":7}"#] {
            let mut other_object = object(other);
            assert!(!rename_related(&mut other_object, &*task_ids), "{other}");
            assert!(!restore_related(&mut other_object, &*task_ids), "{other}");
            assert_eq!(other_object.to_bytes(), other);
        }
        // No task that the request has named: no other is named, to an upstream or to a client.
        for change in [restore_related, rename_related] {
            let mut foreign = object(&related("other"));
            assert!(change(&mut foreign, &*task_ids));
            assert_eq!(foreign.to_bytes(), r#"{"x":1e400,"_meta":{"a":1.0}}"#);
        }
    }

    #[test]
    fn a_scope_is_one_process_or_one_server_and_survives_being_written() {
        let keys = SealingKeys::random();
        let (instance, other) = (keys.instance(), keys.of_another_process().instance());
        let (process, server) = (TaskScope::unique(instance), TaskScope::of_server("a"));
        assert_ne!(process, TaskScope::unique(instance));
        assert!(process.is_local() && process.is_of(instance) && !process.is_of(other));
        assert!(!server.is_local() && !server.is_of(instance));
        assert_eq!(server, TaskScope::of_server("a"));
        assert_ne!(server, TaskScope::of_server("b"));
        for scope in [process, server] {
            assert_eq!(TaskScope::from_bytes(scope.to_bytes()), scope);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_each_task_the_newest_state_is_told_within_the_rate() {
        let queue = TaskStatusQueue::default();
        let owner = TaskOwner::new(task_ids(true), &queue);
        for state in 0..100 {
            owner.notify("<a>", &object(&format!(r#"{{"taskId":"a","n":{state}}}"#)));
            owner.notify("<b>", &object(&format!(r#"{{"taskId":"b","n":{state}}}"#)));
        }
        assert_eq!(now(&queue).expect("a status"), r#"{"taskId":"<a>","n":99}"#);
        assert_eq!(now(&queue), None);
        let since = Instant::now();
        assert_eq!(queue.next().await, r#"{"taskId":"<b>","n":99}"#);
        assert_eq!(since.elapsed().as_millis() / 10, 5);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(now(&queue), None);
        assert!(!owner.is_gone());
        drop(queue);
        assert!(owner.is_gone());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_bounded_and_what_may_not_be_asked_about_is_not_told() {
        let queue = TaskStatusQueue::default();
        let owner = TaskOwner::new(task_ids(true), &queue);
        for number in 0..2 * MAX_QUEUED {
            owner.notify(&number.to_string(), &object("{}"));
        }
        assert_eq!(queue.queue.lock().waiting.len(), MAX_QUEUED);
        let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(MAX_QUEUED_BYTES));
        owner.notify("large", &object(&large));
        assert_eq!(queue.queue.lock().waiting.len(), 1);
        assert!(now(&queue).expect("a single large one passes").len() > MAX_QUEUED_BYTES);
        assert_eq!(queue.queue.lock().bytes, 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        TaskOwner::new(task_ids(false), &queue).notify("a", &object("{}"));
        assert_eq!(now(&queue), None);
    }
}
