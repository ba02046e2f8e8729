//! Messages sent on a call's stream before its response: progress under the client's token, log
//! messages, and requests from its upstream to the client.
//!
//! Invariants: these messages are written before the response, in their order; after the client has
//! cancelled the call it gets no more notifications, but the requests sent for it are cancelled.

use bytes::Bytes;
use tokio::sync::mpsc;

use weir_base::json;
use weir_base::memory::memory_budget::MemoryBudget;
use weir_mcp::call_notifications::{CallNotification, NotificationSink, NotificationStream};
use weir_mcp::elicitation_complete::ElicitationCompletions;
use weir_mcp::input_request::ELICITATION_COMPLETE;
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::log_level::LogLevelSetting;

/// Messages of one call.
#[derive(Default)]
pub(crate) struct CallMessages {
    notifications: Option<CallNotifications>,
    complete: Option<mpsc::Receiver<Bytes>>,
}

/// Notifications of one call, in the form for this client.
struct CallNotifications {
    /// Progress token, if the client has sent one.
    token: Option<Id>,
    stream: NotificationStream,
    budget: MemoryBudget,
}

/// Sender for complete messages on a call's stream. Waits while the queue is full; fails once the
/// stream is lost.
pub(crate) type CallSender = mpsc::Sender<Bytes>;

impl CallMessages {
    /// Creates the sink for an upstream's notifications, and the message stream that they are read
    /// from. Progress is dropped without a `token`, log messages if the client wants none, and
    /// `elicitation/complete` without `completions`. Queued notifications count against `budget`.
    pub(crate) fn open(
        token: Option<Id>,
        logs: LogLevelSetting,
        completions: Option<&ElicitationCompletions>,
        budget: &MemoryBudget,
    ) -> (NotificationSink, Self) {
        if token.is_none() && logs.minimum().is_none() && completions.is_none() {
            return (NotificationSink::disabled(), Self::default());
        }
        let (sink, stream) = NotificationSink::open(token.is_some(), logs);
        if let Some(completions) = completions {
            sink.forward_elicitation_completions(completions);
        }
        sink.count_against(budget);
        let notifications = CallNotifications { token, stream, budget: budget.clone() };
        (sink, Self { notifications: Some(notifications), complete: None })
    }

    /// Adds a sender for complete messages.
    pub(crate) fn with_sender(self) -> (CallSender, Self) {
        let (sender, complete) = mpsc::channel(QUEUE);
        (sender, Self { complete: Some(complete), ..self })
    }

    /// Returns the next message. Never ends: race it against the response. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Bytes {
        let Self { notifications, complete } = self;
        tokio::select! {
            biased;
            Some(message) = async { complete.as_mut()?.recv().await } => message,
            Some(message) = async { Some(notifications.as_mut()?.next().await) } => message,
            // There is no source, or the only one has ended.
            else => std::future::pending().await,
        }
    }

    /// Returns the remaining messages once the response is ready. Without a response, because the
    /// call was cancelled, only the complete messages are left.
    pub(crate) fn rest(self, is_answered: bool) -> impl Iterator<Item = Bytes> {
        let Self { notifications, complete } = self;
        let notifications =
            notifications.filter(|_| is_answered).into_iter().flat_map(CallNotifications::rest);
        let complete = complete
            .into_iter()
            .flat_map(|mut complete| std::iter::from_fn(move || complete.try_recv().ok()));
        notifications.chain(complete)
    }
}

impl CallNotifications {
    async fn next(&mut self) -> Bytes {
        loop {
            let notification = self.stream.next().await;
            // A notification is dropped if the budget has no space for it.
            if let Ok(message) =
                self.budget.charge_large(message(self.token.as_ref(), notification))
            {
                return message;
            }
        }
    }

    fn rest(self) -> impl Iterator<Item = Bytes> {
        let Self { token, stream, budget } = self;
        let messages = stream
            .drain()
            .into_iter()
            .map(move |notification| message(token.as_ref(), notification));
        messages.filter_map(move |message| budget.charge_large(message).ok())
    }
}

fn message(token: Option<&Id>, notification: CallNotification) -> Bytes {
    match notification {
        CallNotification::Progress(mut params) => {
            if let Some(token) = token {
                params.set("progressToken", token.as_bytes().clone());
            }
            let params = json::on_one_line(params.to_bytes());
            jsonrpc::write_notification("notifications/progress", &params)
        }
        CallNotification::Log(params) => {
            jsonrpc::write_notification("notifications/message", &params)
        }
        CallNotification::ElicitationComplete(params) => {
            jsonrpc::write_notification(ELICITATION_COMPLETE, &params)
        }
    }
}

/// Length of a call's message queue: all requests that a session may have open, and their
/// cancellations.
const QUEUE: usize = 128;
