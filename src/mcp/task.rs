//! Tasks, calls that go on after their reply: how one client names them, and what it has yet to be told of
//! them.
//!
//! An upstream's side knows a task by the upstream's own id, a client by a handle. [`Naming`] is the way from
//! one to the other, for one client and one tool; [`TaskNews`] is where a client takes out what became of
//! its tasks.
//!
//! Promises: telling never waits. Of one task only the newest state waits, of all together no more than
//! [`MAX_TOLD`] and [`MAX_TOLD_BYTES`]; beyond either the oldest goes. A client hears of a task only while it
//! may ask about it, at most [`PER_SECOND`] times a second.
//!
//! Knows nothing of: what the states of a task mean, and how clients are told.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::json::{self, Object};
use crate::mcp::meta;
use crate::mcp::revision::Era;
use crate::sha256::sha256;

/// The member that names a task.
pub const TASK_ID: &str = "taskId";
/// The member of a listen's filter that names tasks.
pub const TASK_IDS: &str = "taskIds";
/// How clients of the extension are told of a task.
pub const TOLD_TO_LISTENERS: &str = "notifications/tasks";
/// How clients of 2025-11-25 are.
pub const TOLD_TO_OWNERS: &str = "notifications/tasks/status";

/// How many states of tasks wait for one client, and how many bytes of them; a single larger one passes.
const MAX_TOLD: usize = 1_000;
const MAX_TOLD_BYTES: usize = 1024 * 1024;

/// How many states one client is told of in a second.
const PER_SECOND: u32 = 20;

/// The longest id of an upstream's own that becomes a handle, in bytes.
pub const MAX_TASK_ID_BYTES: usize = 1_024;

/// Where an upstream's id of a task means that task: in one process, in one session, or at the server behind a URL
/// that keeps no sessions. Somewhere else the same id may be another client's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskScope(u64);

impl TaskScope {
    /// Set in those of servers, so that they are none of the others.
    const OF_SERVER: u64 = 1 << 63;

    /// The scope of a process or a session. No other one has it.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) & !Self::OF_SERVER)
    }

    /// The scope of a server without sessions, told from others by the hash of what it is configured with.
    pub fn of_server(fingerprint: &str) -> Self {
        let hash = sha256(fingerprint);
        let first = hash.first_chunk().expect("a hash has more than eight bytes");
        Self(u64::from_be_bytes(*first) | Self::OF_SERVER)
    }

    /// The scope as bytes.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// The scope that these bytes are.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

/// How one client names the tasks of one tool.
pub trait Naming: fmt::Debug + Send + Sync {
    /// In which era it does: the two know tasks of different shapes.
    fn era(&self) -> Era;
    /// The handle of a task that the client has begun, always the same; `None` where the id is too long.
    fn begin(&self, scope: TaskScope, own: &str) -> Option<String>;
    /// The handle of what its upstream calls `own`, if the client's request has named it.
    fn handle(&self, own: &str) -> Option<&str>;
    /// What the upstream calls the task of this handle, if the client's request has named it.
    fn own(&self, handle: &str) -> Option<&str>;
    /// Whether the client may ask about the tool's tasks at this moment.
    fn is_reachable(&self) -> bool;
}

/// A [`Naming`] that is shared.
pub type Names = Arc<dyn Naming>;

/// Puts the handle in place of the id in an object that names a task which the client's request has named. Any other
/// id stays: it is the upstream's own, and opens nothing.
pub fn rename(object: &mut Object, names: &dyn Naming) {
    let own = object.get_string(TASK_ID);
    if let Some(handle) = own.and_then(|own| names.handle(&own)) {
        object.set(TASK_ID, json::quote(handle));
    }
}

/// The id of the task that `object` says in its `_meta` to be about.
pub fn related(object: &Object) -> Option<Box<str>> {
    let related = object.get_object("_meta")?.get_object(meta::RELATED_TASK)?;
    related.get_string(TASK_ID).map(|id| id.as_ref().into())
}

/// Puts a handle in place of the id of the task that `object` says in its `_meta` to be about. An id that the
/// client's request has not named is taken out: a tool may have repeated it from anywhere. Tells whether the object
/// has changed.
pub fn rename_related(object: &mut Object, names: &dyn Naming) -> bool {
    change_related(object, |own| names.handle(own))
}

/// Takes out what `object` says in its `_meta` of a task that it is about.
pub fn drop_related(object: &mut Object) {
    change_related(object, |_| None);
}

/// The other way round, towards the upstream: what is not the handle of a task that the client's request has named is
/// taken out.
pub fn restore_related(object: &mut Object, names: &dyn Naming) -> bool {
    change_related(object, |handle| names.own(handle))
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

/// The client that a task belongs to, or that listens for it.
#[derive(Debug, Clone)]
pub struct TaskOwner {
    names: Names,
    news: Weak<Shared>,
}

impl TaskOwner {
    /// A client that names the task in this way and hears of it here.
    pub fn new(names: Names, news: &TaskNews) -> Self {
        Self { names, news: Arc::downgrade(&news.shared) }
    }

    /// Whether nobody will hear of anything any more.
    pub fn is_gone(&self) -> bool {
        self.news.strong_count() == 0
    }

    /// Whether it is the same client.
    pub fn is_same(&self, other: &Self) -> bool {
        self.news.ptr_eq(&other.news)
    }

    /// How the client names its tasks.
    pub fn names(&self) -> &dyn Naming {
        &*self.names
    }

    /// Takes the `params` of a notification about the task that the client knows by this handle.
    pub fn tell(&self, handle: &str, params: &Object) {
        let Some(shared) = self.news.upgrade() else { return };
        let mut params = params.clone();
        params.set(TASK_ID, json::quote(handle));
        rename_related(&mut params, &*self.names);
        // A copy: a slice would keep the whole message in memory, and on one line it fits any stream.
        let params = json::on_one_line(Bytes::copy_from_slice(&params.to_bytes()));
        shared.lock().push(Told { handle: handle.into(), names: self.names.clone(), params });
        shared.came.notify_one();
    }
}

/// A task that a client listens for.
#[derive(Debug, Clone)]
pub struct FollowedTask {
    /// Who listens.
    pub owner: TaskOwner,
    /// Where the task began.
    pub scope: TaskScope,
    /// How the client knows it.
    pub handle: Box<str>,
}

// === TaskNews ===

/// What a client has yet to be told of its tasks. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct TaskNews {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Told>,
    bytes: usize,
    /// When the next one may go out.
    next_at: Option<Instant>,
}

#[derive(Debug)]
struct Told {
    handle: Box<str>,
    names: Names,
    params: Bytes,
}

impl TaskNews {
    /// The `params` of the next notification about a task, under its handle. Never ends. Cancel-safe. For one
    /// reader at a time.
    pub async fn next(&self) -> Bytes {
        loop {
            let early = match self.shared.lock().take(Instant::now()) {
                Ok(params) => return params,
                Err(early) => early,
            };
            let rested = async {
                match early {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.shared.came.notified() => {}
                () = rested => {}
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, told: Told) {
        if let Some(older) = self.waiting.iter_mut().find(|it| it.handle == told.handle) {
            self.bytes -= older.params.len();
            self.bytes += told.params.len();
            *older = told;
        } else {
            self.bytes += told.params.len();
            self.waiting.push_back(told);
        }
        while self.waiting.len() > MAX_TOLD
            || (self.bytes > MAX_TOLD_BYTES && self.waiting.len() > 1)
        {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<Told> {
        let told = self.waiting.pop_front()?;
        self.bytes -= told.params.len();
        Some(told)
    }

    /// The next one, or when there may be one.
    fn take(&mut self, now: Instant) -> Result<Bytes, Option<Instant>> {
        if let Some(at) = self.next_at.filter(|at| *at > now && !self.waiting.is_empty()) {
            return Err(Some(at));
        }
        while let Some(told) = self.pop() {
            if told.names.is_reachable() {
                self.next_at = Some(now + Duration::from_secs(1) / PER_SECOND);
                return Ok(told.params);
            }
        }
        Err(None)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Names every new task by its id in angle brackets, and knows `t` as `<t>`.
    #[derive(Debug)]
    pub(crate) struct Brackets(pub(crate) Era, pub(crate) bool);

    impl Naming for Brackets {
        fn era(&self) -> Era {
            self.0
        }

        fn begin(&self, _: TaskScope, own: &str) -> Option<String> {
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

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect(text)
    }

    fn names(is_reachable: bool) -> Names {
        Arc::new(Brackets(Era::Legacy, is_reachable))
    }

    fn now(news: &TaskNews) -> Option<Bytes> {
        news.next().now_or_never()
    }

    #[test]
    fn what_is_said_to_be_related_is_renamed_and_all_else_stays() {
        let related = |id: &str| {
            format!(
                r#"{{"x":1e400,"_meta":{{"a":1.0,"io.modelcontextprotocol/related-task":{{"taskId":"{id}","b":1.0}}}}}}"#
            )
        };
        let names = names(true);
        let mut there = object(&related("t"));
        assert!(rename_related(&mut there, &*names));
        assert_eq!(there.to_bytes(), related("<t>"));
        assert!(restore_related(&mut there, &*names));
        assert_eq!(there.to_bytes(), related("t"));
        for other in [r#"{"_meta":{"a":1.0}}"#, r#"{"taskId":"t"}"#, r#"{"_meta":7}"#] {
            let mut other_object = object(other);
            assert!(!rename_related(&mut other_object, &*names), "{other}");
            assert!(!restore_related(&mut other_object, &*names), "{other}");
            assert_eq!(other_object.to_bytes(), other);
        }
        // No task that the request has named: no other is named, to an upstream or to a client.
        for change in [restore_related, rename_related] {
            let mut foreign = object(&related("other"));
            assert!(change(&mut foreign, &*names));
            assert_eq!(foreign.to_bytes(), r#"{"x":1e400,"_meta":{"a":1.0}}"#);
        }
    }

    #[test]
    fn a_scope_is_one_process_or_one_server_and_survives_being_written() {
        let (process, server) = (TaskScope::unique(), TaskScope::of_server("a"));
        assert_ne!(process, TaskScope::unique());
        assert_eq!(server, TaskScope::of_server("a"));
        assert_ne!(server, TaskScope::of_server("b"));
        for scope in [process, server] {
            assert_eq!(TaskScope::from_bytes(scope.to_bytes()), scope);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_each_task_the_newest_state_is_told_within_the_rate() {
        let news = TaskNews::default();
        let owner = TaskOwner::new(names(true), &news);
        for state in 0..100 {
            owner.tell("<a>", &object(&format!(r#"{{"taskId":"a","n":{state}}}"#)));
            owner.tell("<b>", &object(&format!(r#"{{"taskId":"b","n":{state}}}"#)));
        }
        assert_eq!(now(&news).expect("news"), r#"{"taskId":"<a>","n":99}"#);
        assert_eq!(now(&news), None);
        let since = Instant::now();
        assert_eq!(news.next().await, r#"{"taskId":"<b>","n":99}"#);
        assert_eq!(since.elapsed().as_millis() / 10, 5);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(now(&news), None);
        assert!(!owner.is_gone());
        drop(news);
        assert!(owner.is_gone());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_bounded_and_what_may_not_be_asked_about_is_not_told() {
        let news = TaskNews::default();
        let owner = TaskOwner::new(names(true), &news);
        for number in 0..2 * MAX_TOLD {
            owner.tell(&number.to_string(), &object("{}"));
        }
        assert_eq!(news.shared.lock().waiting.len(), MAX_TOLD);
        let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(MAX_TOLD_BYTES));
        owner.tell("large", &object(&large));
        assert_eq!(news.shared.lock().waiting.len(), 1);
        assert!(now(&news).expect("a single large one passes").len() > MAX_TOLD_BYTES);
        assert_eq!(news.shared.lock().bytes, 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        TaskOwner::new(names(false), &news).tell("a", &object("{}"));
        assert_eq!(now(&news), None);
    }
}
