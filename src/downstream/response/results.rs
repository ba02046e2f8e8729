//! What both dialects write alike: lists, capabilities, who Weir is, and faults that read the same in
//! every revision.
//!
//! Knows nothing of: eras. What differs between them, the dialects add.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;

use crate::catalog::View;
use crate::downstream::response::Refused;
use crate::gateway::{Guest, News, Page};
use crate::guard::Findings;
use crate::json::{self, Object};
use crate::jsonrpc::{self, code};
use crate::mcp;
use crate::mcp::call::{Method, Outcome, Reply, Uncollected};
use crate::mcp::capabilities::Capabilities;
use crate::mcp::input_request::VISIT_DONE;
use crate::mcp::kind::{Kind, RESOURCE_UPDATED, Topic};
use crate::mcp::meta;
use crate::mcp::name::UpstreamName;
use crate::mcp::task::{MAX_TASK_ID_BYTES, TOLD_TO_OWNERS};
use crate::memory_budget::Unheld;
use crate::timestamp;
use crate::upstream;

/// Weir's own codes, outside of what JSON-RPC reserves.
pub(crate) mod own_code {
    /// A rate limit, or too much at a time.
    pub(crate) const TOO_BUSY: i64 = 4290;
    /// The upstream is not there.
    pub(crate) const UNAVAILABLE: i64 = 5030;
    /// The request must be recorded, and cannot be.
    pub(crate) const UNRECORDED: i64 = 5031;
    /// The upstream took too long.
    pub(crate) const TIMED_OUT: i64 = 5040;
    /// A message is larger than allowed.
    pub(crate) const TOO_LARGE: i64 = 5130;
}

/// Reads which page of a list is asked for.
pub(crate) fn cursor(params: &Object) -> Result<Option<String>, Refused> {
    match params.get("cursor") {
        // Some clients write what they do not have as null.
        None | Some("null") => Ok(None),
        Some(raw) => match json::decode_string(raw) {
            Some(cursor) => Ok(Some(cursor.into_owned())),
            None => {
                Err(Refused::new(StatusCode::OK, code::INVALID_PARAMS, "`cursor` must be a string"))
            }
        },
    }
}

/// A page's items and where the next one begins.
pub(crate) fn page(kind: Kind, page: &Page) -> Object {
    let mut result = Object::new();
    result.set(kind.list_member(), page.items.clone());
    if let Some(cursor) = &page.next_cursor {
        result.set("nextCursor", json::quote(cursor));
    }
    result
}

/// The upstreams that a list misses, as a member of `_meta`; none if it is whole.
pub(crate) fn set_partial(meta: &mut Object, partial: &[UpstreamName]) {
    if partial.is_empty() {
        return;
    }
    // A name has no character that JSON would escape.
    let names: Vec<_> = partial.iter().map(|name| format!("\"{name}\"")).collect();
    meta.set(meta::PARTIAL, format!("[{}]", names.join(",")));
}

/// What a client can ask for. Changes of lists are always told, since Weir tells them itself; the rest is
/// written as it is given, and a dialect takes out what its revision does not have.
pub(crate) fn capabilities(given: &Capabilities) -> Object {
    let mut written = Object::new();
    for topic in Topic::ALL {
        let subscribe = given.subscribe && topic == Topic::Resources;
        written.set(
            topic.capability(),
            if subscribe {
                r#"{"subscribe":true,"listChanged":true}"#
            } else {
                r#"{"listChanged":true}"#
            },
        );
    }
    for (name, has) in [("completions", given.completions), ("logging", given.logging)] {
        if has {
            written.set(name, "{}");
        }
    }
    let settings = [
        ("tasks", given.tasks.to_object()),
        ("extensions", given.extensions.to_object()),
        ("experimental", given.experimental.to_object()),
    ];
    for (name, settings) in settings {
        if let Some(settings) = settings {
            written.set(name, settings.to_bytes());
        }
    }
    written
}

/// What upstreams tell models about their use, where they do.
pub(crate) fn set_instructions(result: &mut Object, view: &View) {
    if let Some(instructions) = view.instructions() {
        result.set("instructions", json::quote(instructions));
    }
}

/// The notification that tells a client what is new; `params` holds what its dialect adds. A task is told as its
/// owners are: who listens for it is told by its dialect.
pub(crate) fn news(news: &News, mut params: Object) -> Bytes {
    let method = match news {
        News::Lists(topic) => topic.notification(),
        News::Updated(uri) => {
            params.set("uri", json::quote(uri));
            RESOURCE_UPDATED
        }
        News::Task(task) => return jsonrpc::write_notification(TOLD_TO_OWNERS, task),
        News::Visited(params) => return jsonrpc::write_notification(VISIT_DONE, params),
    };
    jsonrpc::write_notification(method, &params.to_bytes())
}

/// Who Weir is. Revisions that do not know a title skip it.
pub(crate) fn server_info() -> Bytes {
    Bytes::from_static(
        concat!(r#"{"name":"weir","title":"Weir","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#)
            .as_bytes(),
    )
}

/// Nobody here answers to this method.
pub(crate) fn unknown_method(status: StatusCode, method: &str) -> Refused {
    let shown: String = method.chars().take(MAX_SHOWN_CHARS).collect();
    Refused::new(status, code::METHOD_NOT_FOUND, format!("Method not found: {shown}"))
}

/// The client may try again later.
pub(crate) fn too_busy(retry_after: Duration) -> Refused {
    // Whoever waits so long has waited long enough: rounded up.
    let milliseconds = retry_after.as_nanos().div_ceil(1_000_000);
    let text = format!("too many requests: try again in {milliseconds} ms");
    later(StatusCode::TOO_MANY_REQUESTS, own_code::TOO_BUSY, text, retry_after)
}

/// An error that says when the client may try again.
fn later(status: StatusCode, code: i64, text: String, retry_after: Duration) -> Refused {
    let milliseconds = retry_after.as_nanos().div_ceil(1_000_000);
    let data = format!("{{\"retryAfterMs\":{milliseconds}}}");
    let error = jsonrpc::Error { data: Some(data.into()), ..jsonrpc::Error::new(code, text) };
    Refused { error, status, retry_after: Some(retry_after) }
}

/// A call asked for something and there was no place for it to wait for the answer.
pub(crate) fn too_many_waiting() -> Refused {
    let text =
        "too many calls wait for their clients' answers: this one was cancelled after it had begun";
    Refused::new(StatusCode::OK, own_code::TOO_BUSY, text)
}

/// Everything has to be recorded here, and that fails: nothing was done.
pub(crate) fn unrecorded() -> Refused {
    let text = "the request cannot be recorded, so it was not carried out; try again later";
    Refused::new(StatusCode::OK, own_code::UNRECORDED, text)
}

/// An upstream broke, in words that name it and nothing behind it: causes may hold paths and
/// addresses, and are the operator's.
pub(crate) fn upstream_failed(name: &UpstreamName, cause: &upstream::Error) -> Refused {
    use upstream::Error;
    let refused = |code, text| Refused::new(StatusCode::OK, code, text);
    match cause {
        Error::Unavailable(_) => refused(
            own_code::UNAVAILABLE,
            format!(
                "upstream {name} is unavailable; the request was not carried out; try again later"
            ),
        ),
        Error::NoSuchTask => refused(code::INVALID_PARAMS, "Task not found".to_owned()),
        Error::HttpStatus { status, retry_after } => http_status(name, *status, *retry_after),
        Error::Broke(_) => refused(
            own_code::UNAVAILABLE,
            format!(
                "the connection to upstream {name} broke; the request may have been carried out"
            ),
        ),
        Error::TimedOut(limit) => refused(
            own_code::TIMED_OUT,
            format!("upstream {name} did not answer within {} s", timestamp::seconds(*limit)),
        ),
        Error::Busy { retry_after } => too_busy(*retry_after),
        Error::Crowded => too_many_waiting(),
        Error::TooLarge(limit) => too_large(&format!("upstream {name}"), *limit),
        Error::NoRoom => no_room(&format!("upstream {name}")),
        Error::Undeclared(_) => {
            broken(&format!("upstream {name} asks for what the client did not declare"))
        }
        Error::Protocol(_) => broken(&format!("upstream {name} broke the protocol")),
    }
}

/// An upstream answered a call with an HTTP status alone. The call was sent, so whether it was carried out is not
/// known; when the upstream wants to be asked again, its client is told.
fn http_status(name: &UpstreamName, status: StatusCode, retry_after: Option<Duration>) -> Refused {
    let number = status.as_u16();
    let text = format!(
        "upstream {name} answered with HTTP {number}; the request may have been carried out"
    );
    match retry_after {
        Some(after) if number == 429 => later(status, own_code::TOO_BUSY, text, after),
        Some(after) if number == 503 => later(status, own_code::UNAVAILABLE, text, after),
        _ => Refused::new(StatusCode::OK, own_code::UNAVAILABLE, text),
    }
}

/// There is no such resource, or none that this client may know of.
pub(crate) fn no_such_resource(code: i64, uri: &str) -> Refused {
    let mut refused = Refused::new(StatusCode::OK, code, "Resource not found");
    let mut data = Object::new();
    data.set("uri", json::quote(uri));
    refused.error.data = Some(data.to_bytes());
    refused
}

/// Whether an upstream says that a URI which nobody lists does not exist.
///
/// Such a URI is asked for where it may belong; one that is denied is not asked for. Only Weir's own
/// words for both make them look the same. (-32602 says it in the modern era, where a read has no
/// other parameter that could be wrong.) What is listed may be known to exist: its upstream's words
/// pass.
pub(crate) fn says_no_such_resource(
    guest: &Guest,
    method: Method,
    key: &str,
    reply: &Reply,
) -> bool {
    let codes = [mcp::code::RESOURCE_NOT_FOUND, code::INVALID_PARAMS];
    let Outcome::Error(error) = &reply.outcome else {
        return false;
    };
    let error = Object::parse_within(error.clone(), usize::MAX).ok();
    let says_so = error.as_ref().and_then(code_of).is_some_and(|code| codes.contains(&code));
    method == Method::ReadResource && says_so && guest.view().resolve(Kind::Resource, key).is_none()
}

/// The code of an error object, if it has one that can be read.
pub(crate) fn code_of(error: &Object) -> Option<i64> {
    error.get("code")?.parse().ok()
}

/// Somebody sent more than is taken.
pub(crate) fn too_large(who: &str, limit: usize) -> Refused {
    let text = format!("{who} sent a message of more than {limit} bytes");
    Refused::new(StatusCode::OK, own_code::TOO_LARGE, text)
}

/// Somebody sent what is too large for the room that there is at the moment.
pub(crate) fn no_room(who: &str) -> Refused {
    let text = format!(
        "there is no room for the message that {who} sent: too much is held for others at the moment; the request may have been carried out"
    );
    Refused::new(StatusCode::OK, own_code::TOO_LARGE, text)
}

/// A result that cannot be held until it is whole.
pub(crate) fn uncollected(why: &Uncollected) -> Refused {
    match why {
        Uncollected::Broken(broken) => self::broken(&broken.to_string()),
        Uncollected::Unheld(Unheld::TooLarge(limit)) => too_large("the upstream", *limit),
        Uncollected::Unheld(Unheld::NoRoom) => no_room("the upstream"),
    }
}

/// Nothing large is taken in at the moment.
pub(crate) fn full() -> Refused {
    let text = "too much is held for clients at the moment; try again";
    Refused::new(StatusCode::SERVICE_UNAVAILABLE, code::INVALID_REQUEST, text)
}

/// A reply that the operator's rules do not let through. What was found is told in Weir's own words.
pub(crate) fn refused(upstream: &UpstreamName, found: &Findings) -> Refused {
    broken(&format!("the reply of upstream {upstream} is refused here: {found}"))
}

/// A call has begun a task that its client cannot name. It goes on at the upstream.
pub(crate) fn task_id_too_long(upstream: &UpstreamName) -> Refused {
    broken(&format!(
        "upstream {upstream} has begun a task whose id has more than {MAX_TASK_ID_BYTES} bytes, \
         so it cannot be asked about; it may go on there"
    ))
}

/// A reply that cannot be passed on.
pub(crate) fn broken(text: &str) -> Refused {
    Refused::new(StatusCode::OK, code::INTERNAL_ERROR, text)
}

/// How much of a client's own text is shown back to it.
const MAX_SHOWN_CHARS: usize = 128;

#[cfg(test)]
mod tests {
    use crate::downstream::response::results::*;

    #[test]
    fn a_page_holds_its_items_as_they_are() {
        let full = Page {
            items: r#"[{"name":"a","x":1e400},{"name":"b"}]"#.into(),
            next_cursor: Some("c\"".into()),
            partial: vec!["hub".parse().expect("a name"), "wiki".parse().expect("a name")],
            ttl: Duration::ZERO,
            public: false,
        };
        let expected = r#"{"prompts":[{"name":"a","x":1e400},{"name":"b"}],"nextCursor":"c\""}"#;
        assert_eq!(page(Kind::Prompt, &full).to_bytes(), expected);
        let mut meta = Object::new();
        set_partial(&mut meta, &full.partial);
        assert_eq!(meta.to_bytes(), r#"{"weir/partial":["hub","wiki"]}"#);
        let empty =
            Page { items: Bytes::from_static(b"[]"), next_cursor: None, partial: vec![], ..full };
        assert_eq!(page(Kind::Template, &empty).to_bytes(), r#"{"resourceTemplates":[]}"#);
    }

    #[test]
    fn capabilities_are_written_as_they_are_given() {
        let lists = r#""prompts":{"listChanged":true},"tools":{"listChanged":true},"#;
        let none = format!(r#"{{{lists}"resources":{{"listChanged":true}}}}"#);
        assert_eq!(capabilities(&Capabilities::default()).to_bytes(), none);
        let declared = r#"{"completions":{},"logging":{},"tasks":{"list":{},"requests":{"tools":{"call":{}}}},"extensions":{"x/a":{"n":1e300}},"experimental":{"e":{}}}"#;
        let subscribe = declared.replacen('{', r#"{"resources":{"subscribe":true},"#, 1);
        let given = Capabilities::read(&Object::parse(subscribe).expect("an object"));
        let all = format!(
            r#"{{{lists}"resources":{{"subscribe":true,"listChanged":true}},{}"#,
            &declared[1..]
        );
        assert_eq!(capabilities(&given).to_bytes(), all);
    }

    #[test]
    fn a_cursor_is_a_string_or_absent() {
        let read = |text: &'static str| {
            let cursor = cursor(&Object::parse(text).expect("an object"));
            cursor.map_err(|refused| refused.error.code)
        };
        assert_eq!(read("{}"), Ok(None));
        assert_eq!(read(r#"{"cursor":null}"#), Ok(None));
        assert_eq!(read(r#"{"cursor":""}"#), Ok(Some(String::new())));
        assert_eq!(read(r#"{"cursor":7}"#), Err(code::INVALID_PARAMS));
    }

    /// Whether a text says that the call was not carried out, that it may have been, or neither.
    fn claim(text: &str) -> &'static str {
        let undone = ["not carried out", "nothing was sent"];
        match text {
            text if undone.iter().any(|undone| text.contains(undone)) => "undone",
            text if text.contains("may have been carried out") => "unknown",
            text if text.contains("cancelled after it had begun") => "begun",
            _ => "none",
        }
    }

    #[test]
    fn an_error_says_that_a_call_was_not_carried_out_only_if_that_is_known() {
        use upstream::Error;
        let name: UpstreamName = "hub".parse().expect("a name");
        let status = |status, seconds: Option<u64>| Error::HttpStatus {
            status: StatusCode::from_u16(status).expect("a status"),
            retry_after: seconds.map(Duration::from_secs),
        };
        for (cause, expected) in [
            (Error::Unavailable(String::new()), "undone"),
            (Error::NoSuchTask, "none"),
            (Error::Busy { retry_after: Duration::ZERO }, "none"),
            (Error::Crowded, "begun"),
            (Error::Broke(String::new()), "unknown"),
            (status(401, None), "unknown"),
            (status(403, Some(1)), "unknown"),
            (status(429, None), "unknown"),
            (status(429, Some(0)), "unknown"),
            (status(500, None), "unknown"),
            (status(503, Some(1)), "unknown"),
            (Error::TimedOut(Duration::ZERO), "none"),
            (Error::TooLarge(1), "none"),
            (Error::NoRoom, "unknown"),
            (Error::Protocol(String::new()), "none"),
        ] {
            let refused = upstream_failed(&name, &cause);
            assert_eq!(claim(&refused.error.message), expected, "{}", refused.error.message);
        }
        assert_eq!(claim(&unrecorded().error.message), "undone");
        assert_eq!(claim(&too_busy(Duration::ZERO).error.message), "none");
    }

    #[test]
    fn what_an_upstream_did_is_told_without_its_secrets() {
        use upstream::Error;
        let name: UpstreamName = "hub".parse().expect("a name");
        for (cause, code) in [
            (Error::Unavailable("/secret/path".into()), own_code::UNAVAILABLE),
            (Error::Broke("10.0.0.1:443".into()), own_code::UNAVAILABLE),
            (Error::TimedOut(Duration::from_secs(60)), own_code::TIMED_OUT),
            (Error::Busy { retry_after: Duration::from_millis(1_500) }, own_code::TOO_BUSY),
            (Error::TooLarge(8), own_code::TOO_LARGE),
            (Error::NoRoom, own_code::TOO_LARGE),
            (Error::Protocol("secret".into()), code::INTERNAL_ERROR),
        ] {
            let refused = upstream_failed(&name, &cause);
            assert_eq!(refused.error.code, code, "{cause}");
            assert!(!refused.error.message.contains("secret"), "{}", refused.error.message);
            assert!(!refused.error.message.contains("10.0"), "{}", refused.error.message);
            // Outside of what the specification reserves for itself (spec, error codes).
            assert!(code > 0 || code == crate::jsonrpc::code::INTERNAL_ERROR);
        }
    }
}
