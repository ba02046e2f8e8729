//! Recording of a connection: each message of the requesting side, with all messages that belong to
//! it.
//!
//! Messages are recorded as they were written; payloads are not parsed. Where the transport does
//! not assign a message of the responding side to a request, its id or its progress token does.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A conversation, recorded between its two sides.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// In the order of the requests.
    pub(crate) exchanges: Vec<Exchange>,
    /// Messages of the responding side that belong to no request, in their order.
    pub(crate) unsolicited: Vec<String>,
    /// HTTP requests that carry no message: method and status.
    pub(crate) verbs: Vec<String>,
}

/// A message of the requesting side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) message: String,
    /// HTTP headers that MCP defines, except that of the session.
    pub(crate) headers: Vec<(String, String)>,
    /// Session that it belongs to, over HTTP in the legacy era.
    pub(crate) session: Option<String>,
    pub(crate) status: Option<u16>,
    /// Messages that belong to it, in their order.
    pub(crate) answers: Vec<String>,
    /// Whether the requesting side closed the stream before its end.
    pub(crate) left: bool,
}

impl Recording {
    /// Sorts the lines of a pipe by request: those that were sent, and those that were received.
    pub(crate) fn of_lines(sent: &str, came: &str) -> Self {
        let mut exchanges: Vec<_> = sent.lines().map(Exchange::of).collect();
        let mut unsolicited = Vec::new();
        for line in came.lines() {
            match exchanges.iter_mut().find(|exchange| exchange.is_for(line)) {
                Some(exchange) => exchange.answers.push(line.to_owned()),
                None => unsolicited.push(line.to_owned()),
            }
        }
        Self { exchanges, unsolicited, verbs: Vec::new() }.in_order()
    }

    /// Number of cancelled requests, each in the way of its era and transport.
    pub(crate) fn given_up(&self) -> usize {
        let given_up = |exchange: &&Exchange| {
            exchange.is_cancel() || exchange.was_left() && !exchange.is_listen()
        };
        self.exchanges.iter().filter(given_up).count()
    }

    /// Moves a cancellation behind the request that it cancels: over HTTP it may overtake, or be
    /// overtaken by, the next request. Messages of a server about a cancelled call depend on timing
    /// from then on.
    pub(crate) fn in_order(mut self) -> Self {
        let (cancels, mut rest): (Vec<_>, Vec<_>) =
            self.exchanges.into_iter().partition(Exchange::is_cancel);
        for exchange in rest.iter_mut().filter(|exchange| !exchange.is_listen()) {
            if exchange.was_left() || cancels.iter().any(|cancel| cancel.cancels(exchange)) {
                exchange.answers.truncate(1);
                self.unsolicited.retain(|notification| !exchange.is_for(notification));
            }
        }
        for cancel in cancels {
            let place = rest.iter().position(|exchange| cancel.cancels(exchange));
            rest.insert(place.map_or(rest.len(), |place| place + 1), cancel);
        }
        self.exchanges = rest;
        self
    }
}

impl Exchange {
    pub(crate) fn of(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Empty for a response.
    pub(crate) fn method(&self) -> &str {
        at(&self.message, &["method"]).unwrap_or_default().trim_matches('"')
    }

    /// Whether it lasts until its client ends it.
    pub(crate) fn is_listen(&self) -> bool {
        self.method() == "subscriptions/listen"
    }

    fn is_cancel(&self) -> bool {
        self.method() == "notifications/cancelled"
    }

    fn is_for(&self, line: &str) -> bool {
        let (id, token) = (at(&self.message, &["id"]), at(&self.message, &TOKEN));
        let is_of = |it: Option<&str>, of: &[&str]| it.is_some() && at(line, of) == it;
        match (self.method().is_empty(), at(line, &["method"]).is_none()) {
            // A server request belongs to its response.
            (true, is_answer) => !is_answer && is_of(id, &["id"]),
            (false, true) => is_of(id, &["id"]),
            (false, false) => {
                is_of(token, &["params", "progressToken"])
                    || self.is_listen() && is_of(id, &SUBSCRIPTION)
            }
        }
    }

    /// Whether a modern client cancelled it over HTTP. In the legacy era, closing the stream is not
    /// a cancellation.
    pub(crate) fn was_left(&self) -> bool {
        let is_answer = |answer: &String| at(answer, &["method"]).is_none();
        let is_answered = self.answers.iter().any(is_answer);
        self.left && !is_answered && at(&self.message, &MODERN).is_some()
    }

    /// Whether it cancels another message. Ids are those of a session: Weir has several with a
    /// server, and each counts from 1.
    pub(crate) fn cancels(&self, other: &Self) -> bool {
        self.is_cancel()
            && self.session == other.session
            && at(&self.message, &["params", "requestId"]) == at(&other.message, &["id"])
    }
}

/// Path that only a modern request has.
const MODERN: [&str; 3] = ["params", "_meta", "io.modelcontextprotocol/protocolVersion"];

/// Path of the progress token in a request.
const TOKEN: [&str; 3] = ["params", "_meta", "progressToken"];

/// Path of the subscription id in a notification on a listen stream.
const SUBSCRIPTION: [&str; 3] = ["params", "_meta", "io.modelcontextprotocol/subscriptionId"];

/// Returns the value at a path of an object, as it is written there.
pub(crate) fn at<'a>(text: &'a str, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(text, |text, name| {
        members(text)?.into_iter().find_map(|(member, value)| (member == *name).then_some(value))
    })
}

/// Returns the members of an object in their order, as they are written; `None` if it is no object.
pub(crate) fn members(text: &str) -> Option<Vec<(String, &str)>> {
    serde_json::from_str(text).ok().map(|Members(members)| members)
}

/// Returns the elements of an array, as they are written; `None` if it is no array.
pub(crate) fn elements(text: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

struct Members<'a>(Vec<(String, &'a str)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = from.next_entry::<String, &RawValue>()? {
                    members.push((name, value.get()));
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sorted_by_whom_they_are_for() {
        let call = r#"{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":7}}}"#;
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#;
        let get = r#"{"id":"1","method":"prompts/get","params":{}}"#;
        let note =
            r#"{"method":"notifications/progress","params":{"progressToken":7,"progress":1}}"#;
        let late = r#"{"id":1,"result":{}}"#;
        let (got, notification) =
            (r#"{"id":"1","result":{}}"#, r#"{"method":"notifications/message"}"#);
        let recording = Recording::of_lines(
            &[call, get, cancel].join("\n"),
            &[note, notification, note, late, got].join("\n"),
        );
        let seen: Vec<_> = recording
            .exchanges
            .iter()
            .map(|exchange| (exchange.message.as_str(), exchange.answers.as_slice()))
            .collect();
        let (first, answer) = ([note.to_owned()], [got.to_owned()]);
        assert_eq!(seen, [(call, &first[..]), (cancel, &[]), (get, &answer)]);
        assert_eq!(recording.unsolicited, [notification]);

        // A server request belongs to its response, though its id may equal a client request's;
        // notifications on a listen stream belong to the listen, and stay when it is cancelled.
        let listen = r#"{"id":2,"method":"subscriptions/listen","params":{}}"#;
        let end = r#"{"method":"notifications/cancelled","params":{"requestId":2}}"#;
        let update = r#"{"method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}"#;
        let (question, answer) = (r#"{"id":1,"method":"roots/list"}"#, r#"{"id":1,"result":{}}"#);
        let recording = Recording::of_lines(
            &[listen, call, answer, end].join("\n"),
            &[update, question, late, update].join("\n"),
        );
        let answers = recording.exchanges.iter().map(|exchange| exchange.answers.join(" "));
        let updates = [update, update].join(" ");
        assert_eq!(answers.collect::<Vec<_>>(), [&updates, "", late, question]);
        assert!(recording.unsolicited.is_empty());

        // The same id in another session is another request.
        let of_session = |message: &str, session: &str| Exchange {
            session: Some(session.to_owned()),
            ..Exchange::of(message)
        };
        let exchanges = vec![of_session(call, "a"), of_session(call, "b"), of_session(cancel, "b")];
        let recording = Recording { exchanges, ..Recording::default() }.in_order();
        let messages = recording.exchanges.iter().map(|exchange| &*exchange.message);
        assert_eq!(messages.collect::<Vec<_>>(), [call, call, cancel]);

        // Over HTTP a late notification comes on any open stream.
        let exchanges = [call, get, cancel].map(Exchange::of).to_vec();
        let unsolicited = [note, notification].map(str::to_owned).to_vec();
        let recording = Recording { exchanges, unsolicited, verbs: Vec::new() }.in_order();
        assert_eq!(recording.unsolicited, [notification]);
    }
}
