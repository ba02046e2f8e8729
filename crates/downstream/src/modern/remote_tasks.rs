//! Listens at other replicas, for tasks that this one cannot reach.
//!
//! Invariant: only notifications about tasks are passed on. A listen at another replica that ends,
//! or is refused, ends nothing here.

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, ready};
use futures::stream::BoxStream;

use weir_mcp::jsonrpc::Message;
use weir_mcp::task::{TASK_IDS, TASK_NOTIFICATION};

/// Opens a listen at another replica, for tasks that this one cannot reach.
pub(crate) type RemoteListen = BoxFuture<'static, Option<RemoteTasks>>;

/// Messages of a listen at another replica.
pub(super) type RemoteMessages = BoxStream<'static, Bytes>;

/// A listen at another replica for tasks.
pub(crate) struct RemoteTasks {
    /// Accepted tasks, as the client named them.
    pub(super) accepted: Vec<Bytes>,
    pub(super) notifications: RemoteMessages,
}

impl RemoteTasks {
    /// Reads the acknowledgment of a listen, which comes first; `None` if it is refused.
    pub(crate) async fn read(mut messages: RemoteMessages) -> Option<Self> {
        let first = messages.next().await?;
        let Message::Notification(first) = Message::parse(first).ok()? else { return None };
        let accepted = first.params.get_object("notifications")?.get_elements(TASK_IDS)?.collect();
        // Its final result is not that of the client's listen.
        let is_about_task = |message: &Bytes| {
            let parsed = Message::parse(message.clone());
            matches!(parsed, Ok(Message::Notification(it)) if &*it.method == TASK_NOTIFICATION)
        };
        let notifications = messages.filter(move |it| ready(is_about_task(it))).boxed();
        Some(Self { accepted, notifications })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::stream;

    fn read(messages: &[&'static str]) -> Option<RemoteTasks> {
        let messages: Vec<_> =
            messages.iter().map(|text| Bytes::from_static(text.as_bytes())).collect();
        RemoteTasks::read(stream::iter(messages).boxed()).now_or_never().expect("all is there")
    }

    #[test]
    fn a_listen_elsewhere_gives_what_it_accepts_and_notifications_about_tasks_only() {
        let acknowledged = r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"taskIds":["a","b"]}}}"#;
        let task = r#"{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"a"}}"#;
        let other = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        let result = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let remote = read(&[acknowledged, task, other, result, task]).expect("a listen");
        assert_eq!(remote.accepted, ["\"a\"", "\"b\""]);
        let notifications: Vec<_> = remote.notifications.collect().now_or_never().expect("all");
        assert_eq!(notifications, [task, task]);
        let refused = r#"{"jsonrpc":"2.0","id":1,"error":{"code":4290,"message":"m"}}"#;
        let nothing = r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{}}}"#;
        for messages in [&[][..], &[refused], &[nothing, task]] {
            assert!(read(messages).is_none(), "{messages:?}");
        }
    }
}
