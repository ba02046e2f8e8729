//! Results and errors that both dialects share: lists, capabilities, server info, and errors that
//! read the same in every revision. Whatever differs between the eras, the dialects add.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;

use crate::response::ErrorResponse;
use weir_access::catalog::RoleView;
use weir_access::guard::Findings;
use weir_base::json::{self, Object};
use weir_base::memory::memory_budget::BufferError;
use weir_base::time::timestamp;
use weir_gateway::{self as gateway, ClientContext, ClientNotification, ListPage};
use weir_mcp as mcp;
use weir_mcp::call::{CollectError, Method, ResponseOutcome, UpstreamResponse};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::input_request::ELICITATION_COMPLETE;
use weir_mcp::jsonrpc::{self, code};
use weir_mcp::kind::{Kind, ListTopic, RESOURCE_UPDATED};
use weir_mcp::meta;
use weir_mcp::name::UpstreamName;
use weir_mcp::task::{MAX_TASK_ID_BYTES, TASK_STATUS_NOTIFICATION};
use weir_upstream as upstream;

/// Weir's own error codes, outside the range that JSON-RPC reserves.
pub(crate) mod own_code {
    /// A rate or concurrency limit is reached.
    pub(crate) const TOO_BUSY: i64 = 4290;
    /// The upstream is unavailable.
    pub(crate) const UNAVAILABLE: i64 = 5030;
    /// The audit log is mandatory and unavailable.
    pub(crate) const UNRECORDED: i64 = 5031;
    /// The upstream timed out.
    pub(crate) const TIMED_OUT: i64 = 5040;
    /// A message is larger than allowed.
    pub(crate) const TOO_LARGE: i64 = 5130;
}

/// Error about a task whose process has ended, or that only another process could find.
const TASK_LOST: &str = "Task unavailable: the process in which it ran has ended or is out of \
                         reach, and the task may have been lost";

/// Parses the `cursor` of a list request.
pub(crate) fn cursor(params: &Object) -> Result<Option<String>, ErrorResponse> {
    match params.get("cursor") {
        // Some clients send null for an absent member.
        None | Some("null") => Ok(None),
        Some(raw) => match json::decode_string(raw) {
            Some(cursor) => Ok(Some(cursor.into_owned())),
            None => Err(invalid_params("`cursor` must be a string")),
        },
    }
}

/// Builds the result of a list request from a page.
pub(crate) fn page(kind: Kind, page: &ListPage) -> Object {
    let mut result = Object::new();
    result.set(kind.list_member(), page.items.clone());
    if let Some(cursor) = &page.next_cursor {
        result.set("nextCursor", json::quote(cursor));
    }
    result
}

/// Adds the upstreams whose items are missing to `_meta`, if there are any.
pub(crate) fn set_partial(meta: &mut Object, partial: &[UpstreamName]) {
    if partial.is_empty() {
        return;
    }
    // A name has no character that JSON would escape.
    let names: Vec<_> = partial.iter().map(|name| format!("\"{name}\"")).collect();
    meta.set(meta::PARTIAL, format!("[{}]", names.join(",")));
}

/// Builds the server capabilities. `listChanged` is always set, because Weir sends these
/// notifications itself; the rest is written as given, and a dialect removes what its revision does
/// not have.
pub(crate) fn capabilities(given: &Capabilities) -> Object {
    let mut written = Object::new();
    for topic in ListTopic::ALL {
        let declared = match given.subscribe && topic == ListTopic::Resources {
            true => r#"{"subscribe":true,"listChanged":true}"#,
            false => r#"{"listChanged":true}"#,
        };
        written.set(topic.capability(), declared);
    }
    given.add_to(&mut written);
    written
}

/// Sets the upstreams' instructions for models, if there are any.
pub(crate) fn set_instructions(result: &mut Object, view: &RoleView) {
    if let Some(instructions) = view.instructions() {
        result.set("instructions", json::quote(instructions));
    }
}

/// Builds a change notification; `params` holds the members that a dialect adds. A task
/// notification has the form for the task's owner; the modern dialect builds the form for listeners
/// itself.
pub(crate) fn change_notification(notification: &ClientNotification, mut params: Object) -> Bytes {
    let method = match notification {
        ClientNotification::Lists(topic) => topic.notification(),
        ClientNotification::Updated(uri) => {
            params.set("uri", json::quote(uri));
            RESOURCE_UPDATED
        }
        ClientNotification::Task(task) => {
            return jsonrpc::write_notification(TASK_STATUS_NOTIFICATION, task);
        }
        ClientNotification::ElicitationComplete(params) => {
            return jsonrpc::write_notification(ELICITATION_COMPLETE, params);
        }
    };
    jsonrpc::write_notification(method, &params.to_bytes())
}

/// Server info. Revisions without titles ignore the title.
pub(crate) fn server_info() -> Bytes {
    Bytes::from_static(
        concat!(r#"{"name":"weir","title":"Weir","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#)
            .as_bytes(),
    )
}

/// Error: unknown method.
pub(crate) fn unknown_method(status: StatusCode, method: &str) -> ErrorResponse {
    let shown: String = method.chars().take(MAX_SHOWN_CHARS).collect();
    ErrorResponse::new(status, code::METHOD_NOT_FOUND, format!("Method not found: {shown}"))
}

/// Error: the client may retry later.
pub(crate) fn too_busy(retry_after: Duration) -> ErrorResponse {
    // Rounded up, so that a retry is never too early.
    let milliseconds = retry_after.as_nanos().div_ceil(1_000_000);
    let text = format!("too many requests: try again in {milliseconds} ms");
    with_retry_after(StatusCode::TOO_MANY_REQUESTS, own_code::TOO_BUSY, text, retry_after)
}

/// Builds an error with a retry delay.
fn with_retry_after(
    status: StatusCode,
    code: i64,
    text: String,
    retry_after: Duration,
) -> ErrorResponse {
    let milliseconds = retry_after.as_nanos().div_ceil(1_000_000);
    let data = format!("{{\"retryAfterMs\":{milliseconds}}}");
    let error = jsonrpc::Error { data: Some(data.into()), ..jsonrpc::Error::new(code, text) };
    ErrorResponse { error, status, retry_after: Some(retry_after) }
}

/// Error: the call needed input from the client, and the table of suspended calls was full.
pub(crate) fn too_many_waiting() -> ErrorResponse {
    let text = "too many calls wait for input from their clients: \
                this one was cancelled after it had begun";
    ErrorResponse::new(StatusCode::OK, own_code::TOO_BUSY, text)
}

/// Error: the audit log is mandatory and unavailable; nothing was carried out.
pub(crate) fn unrecorded() -> ErrorResponse {
    let text = "the audit log is unavailable, so the request was not carried out; try again later";
    ErrorResponse::new(StatusCode::OK, own_code::UNRECORDED, text)
}

/// Builds the error response for an error of the gateway; `unknown_resource` is the code of an
/// unknown resource in the era of the client.
pub(crate) fn gateway_error(error: gateway::Error, unknown_resource: i64) -> ErrorResponse {
    use gateway::Error;
    match error {
        Error::Request(text) => invalid_params(&text),
        Error::NoSuchItem { kind: Kind::Resource, key } => no_such_resource(unknown_resource, &key),
        Error::NoSuchItem { kind: kind @ (Kind::Prompt | Kind::Tool | Kind::Template), key } => {
            invalid_params(&format!("Unknown {kind}: {key}"))
        }
        // Spec 2025-11-25, tasks, error handling; SEP-2663 says the same.
        Error::NoSuchTask => invalid_params("Task not found"),
        Error::TaskLost => invalid_params(TASK_LOST),
        Error::TaskIdTooLong { upstream } => task_id_too_long(&upstream),
        Error::TooBusy { retry_after } => too_busy(retry_after),
        Error::AuditUnavailable => unrecorded(),
        Error::TooManySuspended => too_many_waiting(),
        Error::Upstream { upstream, cause } => upstream_failed(&upstream, &cause),
        Error::Refused { upstream, found } => guard_refused(&upstream, &found),
    }
}

/// Error: a parameter is invalid.
pub(crate) fn invalid_params(text: &str) -> ErrorResponse {
    ErrorResponse::new(StatusCode::OK, code::INVALID_PARAMS, text)
}

/// Error of an upstream. The text names the upstream only: the cause may contain paths and
/// addresses, and is for the operator.
pub(crate) fn upstream_failed(name: &UpstreamName, cause: &upstream::Error) -> ErrorResponse {
    use upstream::Error;
    let refused = |code, text| ErrorResponse::new(StatusCode::OK, code, text);
    match cause {
        Error::Unavailable(_) => refused(
            own_code::UNAVAILABLE,
            format!(
                "upstream {name} is unavailable; the request was not carried out; try again later"
            ),
        ),
        Error::SignInNeeded(_) => refused(
            own_code::UNAVAILABLE,
            format!(
                "upstream {name} needs a sign-in; the request was not carried out; the \
                 operator of Weir signs in with `weir login {name}`"
            ),
        ),
        Error::NoSuchTask => invalid_params("Task not found"),
        Error::HttpStatus { status, retry_after } => http_status(name, *status, *retry_after),
        Error::ConnectionLost(_) => refused(
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
        Error::TooManyInputRequests => too_many_waiting(),
        Error::TooLarge(limit) => too_large(&format!("upstream {name}"), *limit),
        Error::MemoryExhausted => no_memory_for(&format!("upstream {name}")),
        Error::UndeclaredFeature(_) => internal_error(&format!(
            "upstream {name} requested a feature that the client did not declare"
        )),
        Error::Protocol(_) => internal_error(&format!("upstream {name} violated the protocol")),
    }
}

/// Error: an upstream answered a call with an HTTP status alone. The call was sent, so it is not
/// known whether it was carried out; a retry delay of the upstream is passed on.
fn http_status(
    name: &UpstreamName,
    status: StatusCode,
    retry_after: Option<Duration>,
) -> ErrorResponse {
    let number = status.as_u16();
    let text = format!(
        "upstream {name} answered with HTTP {number}; the request may have been carried out"
    );
    match retry_after {
        Some(after) if number == 429 => with_retry_after(status, own_code::TOO_BUSY, text, after),
        Some(after) if number == 503 => {
            with_retry_after(status, own_code::UNAVAILABLE, text, after)
        }
        _ => ErrorResponse::new(StatusCode::OK, own_code::UNAVAILABLE, text),
    }
}

/// Error: the resource does not exist, or the client may not know of it.
pub(crate) fn no_such_resource(code: i64, uri: &str) -> ErrorResponse {
    let mut refused = ErrorResponse::new(StatusCode::OK, code, "Resource not found");
    refused.error.data = Some(Object::new().with("uri", json::quote(uri)).to_bytes());
    refused
}

/// True if an upstream reports that an unlisted URI does not exist.
///
/// A read of an unlisted URI is forwarded to the upstream it may belong to; a denied one is not.
/// Both look the same to the client only if the text is Weir's own. (-32602 reports it in the
/// modern era, where a read has no other parameter that could be wrong.) A listed URI is known to
/// exist: its upstream's text is passed on.
pub(crate) fn says_no_such_resource(
    client: &ClientContext,
    method: Method,
    key: &str,
    upstream_response: &UpstreamResponse,
) -> bool {
    let codes = [mcp::code::RESOURCE_NOT_FOUND, code::INVALID_PARAMS];
    let ResponseOutcome::Error(error) = &upstream_response.outcome else {
        return false;
    };
    let error = Object::parse_within(error.clone(), usize::MAX).ok();
    let says_so = error.as_ref().and_then(code_of).is_some_and(|code| codes.contains(&code));
    method == Method::ReadResource
        && says_so
        && client.view().resolve(Kind::Resource, key).is_none()
}

/// Returns the code of an error object, if it can be read.
pub(crate) fn code_of(error: &Object) -> Option<i64> {
    error.get("code")?.parse().ok()
}

/// Error: a message is larger than allowed.
pub(crate) fn too_large(who: &str, limit: usize) -> ErrorResponse {
    let text = format!("{who} sent a message of more than {limit} bytes");
    ErrorResponse::new(StatusCode::OK, own_code::TOO_LARGE, text)
}

/// Error: a message does not fit into the memory budget at the moment.
pub(crate) fn no_memory_for(who: &str) -> ErrorResponse {
    let text = format!(
        "the memory budget has no space for the message from {who}; \
         the request may have been carried out"
    );
    ErrorResponse::new(StatusCode::OK, own_code::TOO_LARGE, text)
}

/// Error: a result could not be buffered.
pub(crate) fn collect_error(why: &CollectError) -> ErrorResponse {
    match why {
        CollectError::Broken(broken) => internal_error(&broken.to_string()),
        CollectError::NotBuffered(BufferError::TooLarge(limit)) => {
            too_large("the upstream", *limit)
        }
        CollectError::NotBuffered(BufferError::BudgetExhausted) => no_memory_for("the upstream"),
    }
}

/// Error: the memory budget is nearly exhausted; no large message is accepted and no stream opened.
pub(crate) fn memory_scarce() -> ErrorResponse {
    let text = "the memory budget for clients is exhausted; try again later";
    unavailable(text, MEMORY_RETRY)
}

/// Error: the request cannot be served at the moment.
pub(crate) fn unavailable(text: &str, retry_after: Duration) -> ErrorResponse {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let refused = ErrorResponse::new(status, code::INVALID_REQUEST, text);
    ErrorResponse { retry_after: Some(retry_after), ..refused }
}

/// Error: the replica that had the request is gone.
pub(crate) fn lost() -> ErrorResponse {
    let text = "the replica that ran this request is gone: it may have been executed, or not";
    ErrorResponse { status: StatusCode::BAD_GATEWAY, ..internal_error(text) }
}

/// Error: a response was refused by the guard. The text describes the findings without quoting
/// them.
pub(crate) fn guard_refused(upstream: &UpstreamName, found: &Findings) -> ErrorResponse {
    internal_error(&format!(
        "the response of upstream {upstream} was refused by the guard: {found}"
    ))
}

/// Error: a call has created a task with an id that is too long to map. The task continues at the
/// upstream.
pub(crate) fn task_id_too_long(upstream: &UpstreamName) -> ErrorResponse {
    internal_error(&format!(
        "upstream {upstream} created a task whose id has more than {MAX_TASK_ID_BYTES} bytes, \
         so it cannot be queried; it may continue there"
    ))
}

/// Error: an upstream's response cannot be passed on.
pub(crate) fn internal_error(text: &str) -> ErrorResponse {
    ErrorResponse::new(StatusCode::OK, code::INTERNAL_ERROR, text)
}

/// Delay after which a client may retry when the memory budget is nearly exhausted.
const MEMORY_RETRY: Duration = Duration::from_secs(1);
/// Length of the client's text that an error message repeats, in characters.
const MAX_SHOWN_CHARS: usize = 128;

/// Error: the memory for responses is exhausted. A client that requests much and reads nothing must
/// not fill the memory.
pub(crate) fn memory_exhausted() -> ErrorResponse {
    let what = "too many large responses are unread: read them, then retry";
    ErrorResponse::new(StatusCode::OK, code::INTERNAL_ERROR, what)
}

#[cfg(test)]
mod tests {
    use crate::response::results::*;

    #[test]
    fn a_page_holds_its_items_as_they_are() {
        let full = ListPage {
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
        let empty = ListPage {
            items: Bytes::from_static(b"[]"),
            next_cursor: None,
            partial: vec![],
            ..full
        };
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

    /// Classifies an error text: the call was not carried out, may have been, or neither is
    /// claimed.
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
            (Error::SignInNeeded(String::new()), "undone"),
            (Error::NoSuchTask, "none"),
            (Error::Busy { retry_after: Duration::ZERO }, "none"),
            (Error::TooManyInputRequests, "begun"),
            (Error::ConnectionLost(String::new()), "unknown"),
            (status(401, None), "unknown"),
            (status(403, Some(1)), "unknown"),
            (status(429, None), "unknown"),
            (status(429, Some(0)), "unknown"),
            (status(500, None), "unknown"),
            (status(503, Some(1)), "unknown"),
            (Error::TimedOut(Duration::ZERO), "none"),
            (Error::TooLarge(1), "none"),
            (Error::MemoryExhausted, "unknown"),
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
            (Error::SignInNeeded("/secret/path".into()), own_code::UNAVAILABLE),
            (Error::ConnectionLost("10.0.0.1:443".into()), own_code::UNAVAILABLE),
            (Error::TimedOut(Duration::from_secs(60)), own_code::TIMED_OUT),
            (Error::Busy { retry_after: Duration::from_millis(1_500) }, own_code::TOO_BUSY),
            (Error::TooLarge(8), own_code::TOO_LARGE),
            (Error::MemoryExhausted, own_code::TOO_LARGE),
            (Error::Protocol("secret".into()), code::INTERNAL_ERROR),
        ] {
            let refused = upstream_failed(&name, &cause);
            assert_eq!(refused.error.code, code, "{cause}");
            assert!(!refused.error.message.contains("secret"), "{}", refused.error.message);
            assert!(!refused.error.message.contains("10.0"), "{}", refused.error.message);
            // Outside of what the specification reserves for itself (spec, error codes).
            assert!(code > 0 || code == weir_mcp::jsonrpc::code::INTERNAL_ERROR);
        }
    }
}
