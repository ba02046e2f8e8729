//! Several messages in one array: 2025-03-26 and before.
//!
//! Promises: each message is answered as if it had come alone; together their answers are no larger
//! than one may be.
//!
//! Knows nothing of: which wire a batch came on.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::{FutureExt, StreamExt, stream};
use hyper::StatusCode;
use serde::de::IgnoredAny;

use super::http::admission::unread;
use super::in_flight::Calls;
use super::legacy::{self, Peer};
use super::response::{Answer, Refused, Text, Way};
use super::{BATCH_WIDTH, MAX_BATCH};
use crate::audit::Record;
use crate::downstream::response::audit_events::recorded;
use crate::downstream::response::results;
use crate::gateway::Guest;
use crate::json;
use crate::jsonrpc::{self, Id, Invalid, Message, code};
use crate::mcp::revision::Revision;
use crate::memory_budget::{Allowance, Growing};

/// Whether a text is an array and not an object.
pub(super) fn is_batch(text: &[u8]) -> bool {
    text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// Reads the messages of a batch. One that is no message has its own error.
pub(super) fn read(
    revision: Revision,
    text: &Bytes,
) -> Result<Vec<Result<Message, Invalid>>, Refused> {
    if !revision.has_batches() {
        return Err(removed());
    }
    let Some(elements) = json::elements(text) else {
        // The library that tells the place looks at no text inside of strings.
        let error = serde_json::from_slice::<IgnoredAny>(text).err();
        let error = error.map_or_else(|| "not UTF-8".to_owned(), |error| error.to_string());
        return Err(refused(code::PARSE_ERROR, format!("not valid JSON: {error}")));
    };
    // One more than allowed tells that there are too many: the others are not collected.
    let elements: Vec<_> = elements.take(MAX_BATCH + 1).collect();
    if elements.is_empty() || elements.len() > MAX_BATCH {
        let text = format!("a batch holds 1 to {MAX_BATCH} messages");
        return Err(refused(code::INVALID_REQUEST, text));
    }
    let messages: Vec<_> = elements
        .into_iter()
        .map(|element| Message::parse_within(element, json::MAX_DEPTH - 1))
        .collect();
    // Spec 2025-03-26, lifecycle: `initialize` MUST NOT be part of a batch.
    let opens = messages
        .iter()
        .any(|message| matches!(message, Ok(Message::Request(r)) if &*r.method == legacy::OPENING));
    if opens {
        return Err(refused(code::INVALID_REQUEST, "`initialize` must come alone".to_owned()));
    }
    Ok(messages)
}

/// Answers the messages of a batch, several at a time; `None` if nothing in it wants an answer.
/// Progress of batched requests is not told. `fit` has the last word on the whole, which is what is recorded.
pub(super) fn serve(
    guest: &Guest,
    peer: &Peer,
    calls: &Arc<Calls>,
    messages: Vec<Result<Message, Invalid>>,
    allowed: &Allowance,
    fit: impl FnOnce(Bytes) -> Result<Bytes, Refused> + Send + 'static,
) -> impl Future<Output = Option<Answer>> + Send + 'static {
    guest.record().forget();
    let mut open: Vec<BoxFuture<'static, Answered>> = Vec::new();
    for message in messages {
        match message {
            Ok(Message::Request(request)) => {
                let id = request.id.clone();
                let guest = guest.recorded(held(guest));
                let record = guest.record().clone();
                let call = legacy::serve(&guest, peer, calls, request, allowed, Way::Batched);
                open.push(async move { (Some(id), call.answer.await, record) }.boxed());
            }
            Ok(Message::Notification(notification)) => {
                if &*notification.method == "notifications/cancelled" {
                    calls.cancel(&notification.params);
                }
            }
            Ok(Message::Answer(answer)) => peer.questions.settle(answer),
            Err(invalid) => {
                if let Some(answer) = invalid.as_answer() {
                    peer.questions.settle(answer);
                }
                let (record, answer) = (held(guest), Answer::from(invalid));
                open.push(future::ready((None, Some(answer), record)).boxed());
            }
        }
    }
    let allowed = allowed.clone();
    async move {
        let max_reply = allowed.limit;
        let mut growing = Growing::new(&allowed.budget);
        let mut answers = stream::iter(open).buffer_unordered(BATCH_WIDTH);
        let (mut all, mut records) = (Vec::new(), Vec::new());
        while let Some((id, answer, record)) = answers.next().await {
            let Some(answer) = answer else { continue };
            let room = max_reply.saturating_sub(all.len());
            let answer = match &answer.text {
                Text::Whole(text)
                    if text.len() <= room && growing.reach(all.len() + text.len()).is_err() =>
                {
                    Answer::refused(id.as_ref(), &unread())
                }
                // Its own status is no response's.
                Text::Whole(text) if text.len() <= room => {
                    Answer { status: StatusCode::OK, ..answer }
                }
                _ => {
                    let refused = results::too_large("all upstreams together", max_reply);
                    Answer::refused(id.as_ref(), &refused)
                }
            };
            let Text::Whole(text) = recorded(&record, answer).text else { continue };
            records.push(record);
            all.push(if all.is_empty() { b'[' } else { b',' });
            all.extend_from_slice(&text);
        }
        if all.is_empty() {
            return None;
        }
        all.push(b']');
        // From here on it counts as whatever keeps it says.
        drop(growing);
        let text = match fit(all.into()) {
            Ok(text) => text,
            Err(refused) => {
                for record in &records {
                    recorded(record, Answer::refused(None, &refused));
                }
                jsonrpc::write_error(None, &refused.error.to_bytes())
            }
        };
        let text = Text::Whole(text);
        Some(Answer { status: StatusCode::OK, retry_after: None, failure: None, text })
    }
}

/// What one message of a batch came to: whose answer it is, the answer, and the record that it ends.
type Answered = (Option<Id>, Option<Answer>, Record);

/// The record of one message, which ends with what goes out of its answer.
fn held(guest: &Guest) -> Record {
    let record = guest.record().another();
    record.hold(true);
    record
}

/// Batches do not exist in this revision.
pub(super) fn removed() -> Refused {
    let text = "batches were removed in revision 2025-06-18: send one message at a time";
    refused(code::INVALID_REQUEST, text.to_owned())
}

fn refused(code: i64, text: String) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, code, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_len(revision: Revision, text: String) -> Result<usize, i64> {
        let messages = read(revision, &text.into());
        messages.map(|messages| messages.len()).map_err(|refused| refused.error.code)
    }

    #[test]
    fn a_batch_is_a_short_array_of_messages_in_the_revisions_that_have_it() {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let many = |count: usize| format!("[{}]", vec![ping; count].join(","));
        for revision in [Revision::V2024_11_05, Revision::V2025_03_26] {
            assert_eq!(read_len(revision, many(1)), Ok(1));
            assert_eq!(read_len(revision, many(MAX_BATCH)), Ok(MAX_BATCH));
            for bad in [many(0), many(MAX_BATCH + 1), many(1).replace("ping", "initialize")] {
                assert_eq!(read_len(revision, bad), Err(code::INVALID_REQUEST));
            }
            for bad in ["[", "[{}]]", "[1,]"] {
                assert_eq!(read_len(revision, bad.into()), Err(code::PARSE_ERROR), "{bad}");
            }
        }
        for revision in [Revision::V2025_06_18, Revision::V2025_11_25] {
            assert_eq!(read_len(revision, many(1)), Err(code::INVALID_REQUEST));
        }
    }

    #[test]
    fn what_is_no_message_fails_alone() {
        let text = Bytes::from_static(b" [[], 7, {\"jsonrpc\":\"2.0\",\"method\":\"n\"}] ");
        assert!(is_batch(&text) && !is_batch(b" {}"));
        let messages = read(Revision::V2025_03_26, &text).expect("a batch");
        let good: Vec<_> = messages.iter().map(Result::is_ok).collect();
        assert_eq!(good, [false, false, true]);
    }
}
