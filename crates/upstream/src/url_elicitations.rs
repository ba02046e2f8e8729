//! Pending URL-mode elicitations of one connection's server, and their clients.
//!
//! A legacy server sends `notifications/elicitation/complete` when a URL-mode elicitation is done,
//! perhaps long after its call (spec 2025-11-25, elicitation, completion notifications). The
//! notification names the elicitation by the server's own id, which Weir forwards unchanged: the
//! server would not recognize an id of Weir's.
//!
//! Invariants: a completion is sent once, only to the client that received the elicitation; an
//! unknown id is ignored. At most [`MAX_PENDING`] elicitations are remembered; beyond that the
//! oldest is forgotten.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::message::error_code;
use weir_base::json::Object;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::code;
use weir_mcp::input_request::ELICITATION_ID;

/// Maximum remembered elicitations of one connection, and maximum length of their ids.
const MAX_PENDING: usize = 256;
const MAX_ID_BYTES: usize = 1024;
/// Maximum elicitations of one error.
const MAX_PER_ERROR: usize = 64;

/// Pending elicitations, oldest first, each with the sink for its completion.
#[derive(Debug, Default)]
pub(super) struct PendingUrlElicitations {
    pending: Mutex<VecDeque<(Box<str>, NotificationSink)>>,
}

impl PendingUrlElicitations {
    /// Records an elicitation with these parameters for the client behind this sink.
    pub(super) fn add(&self, params: &Object, notifications: &NotificationSink) {
        let id = params.get_string(ELICITATION_ID).filter(|id| id.len() <= MAX_ID_BYTES);
        let Some(id) = id.filter(|_| notifications.wants_elicitation_completions()) else { return };
        let mut pending = self.pending.lock();
        if pending.len() >= MAX_PENDING {
            pending.pop_front();
        }
        pending.push_back((id.into(), notifications.clone()));
    }

    /// Records each elicitation that an error requires first (spec 2025-11-25, elicitation, error
    /// handling).
    pub(super) fn add_from_error(&self, error: &Bytes, notifications: &NotificationSink) {
        if error_code(error) != Some(code::URL_ELICITATION_REQUIRED) {
            return;
        }
        let error = Object::parse_within(error.clone(), usize::MAX).ok();
        let data = error.and_then(|error| error.get_object("data"));
        let elicitations = data.and_then(|data| data.get_elements("elicitations"));
        for elicitation in elicitations.unwrap_or_default().take(MAX_PER_ERROR) {
            if let Ok(params) = Object::parse_trusted(elicitation) {
                self.add(&params, notifications);
            }
        }
    }

    /// Forwards the server's completion notification.
    pub(super) fn complete(&self, params: &Object) {
        let Some(id) = params.get_string(ELICITATION_ID) else { return };
        let mut receivers = Vec::new();
        self.pending.lock().retain(|(pending, notifications)| {
            let is_it = **pending == *id;
            receivers.extend(is_it.then(|| notifications.clone()));
            !is_it
        });
        receivers.iter().for_each(|notifications| notifications.elicitation_complete(params));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mcp::call_notifications::{CallNotification, NotificationStream};
    use weir_mcp::log_level::LogLevelSetting;

    fn params(id: &str) -> Object {
        Object::parse(format!(r#"{{"mode":"url","elicitationId":"{id}"}}"#)).expect("an object")
    }

    fn client() -> (
        NotificationSink,
        NotificationStream,
        weir_mcp::elicitation_complete::ElicitationCompletions,
    ) {
        let (notifications, stream) = NotificationSink::open(false, LogLevelSetting::disabled());
        let elicitations = weir_mcp::elicitation_complete::ElicitationCompletions::default();
        notifications.forward_elicitation_completions(&elicitations);
        (notifications, stream, elicitations)
    }

    #[tokio::test]
    async fn the_end_of_a_visit_is_told_once_to_whoever_was_asked() {
        let elicitations = PendingUrlElicitations::default();
        let ((ann, anns, _), (bob, bobs, later)) = (client(), client());
        elicitations.add(&params("of-ann"), &ann);
        elicitations.add(&params("of-bob"), &bob);
        elicitations.add(&params("of-nobody"), &NotificationSink::disabled());
        drop(bobs);
        for id in ["of-ann", "of-ann", "unknown", "of-nobody", "of-bob"] {
            elicitations.complete(&params(id));
        }
        assert_eq!(
            anns.drain(),
            [CallNotification::ElicitationComplete(params("of-ann").to_bytes())]
        );
        assert_eq!(later.next().await, params("of-bob").to_bytes());
        assert!(elicitations.pending.lock().is_empty());
    }

    #[test]
    fn what_an_error_asks_for_counts_and_what_is_remembered_is_bounded() {
        let elicitations = PendingUrlElicitations::default();
        let (notifications, _stream, _) = client();
        let error = |code: i64| {
            let one = r#"{"mode":"url","elicitationId":"e","url":"https://x.test/","message":"m"}"#;
            let data = format!(r#"{{"elicitations":[7,{one},{{}}]}}"#);
            format!(r#"{{"code":{code},"message":"m","data":{data}}}"#).into()
        };
        elicitations.add_from_error(&error(-32603), &notifications);
        assert_eq!(elicitations.pending.lock().len(), 0);
        elicitations.add_from_error(&error(-32042), &notifications);
        assert_eq!(elicitations.pending.lock().len(), 1);
        elicitations.add(&params(&"x".repeat(MAX_ID_BYTES + 1)), &notifications);
        assert_eq!(elicitations.pending.lock().len(), 1);
        (0..2 * MAX_PENDING)
            .for_each(|number| elicitations.add(&params(&number.to_string()), &notifications));
        assert_eq!(elicitations.pending.lock().len(), MAX_PENDING);
    }
}
