//! One request of the command line, sent as by a client; the response is a result, or a failure
//! with its exit code.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, Write};

use bytes::Bytes;

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::output::progress;
use crate::cli::output::render::sanitize_line;
use crate::cli::query::oneshot::OneShotGateway;
use weir_base::json::{self, Object};
use weir_base::memory::memory_budget::BufferLimit;
use weir_gateway::{Admission, Error, PreparedRequest};
use weir_mcp::call::{CallContext, CallOutcome, ItemRequest, Method, ResponseOutcome};
use weir_mcp::call_notifications::{CallNotification, NotificationSink, NotificationStream};
use weir_mcp::code;
use weir_mcp::input_request::{ClientFeatures, INPUT_REQUESTS, InputKind, InputRequest};
use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;
use weir_upstream as upstream;

/// Largest result that is read.
const MAX_RESULT_BYTES: usize = 64 << 20;

/// Result of a request.
pub(crate) struct QueryResponse {
    /// JSON text of the result, unchanged, on one line.
    text: Bytes,
    pub(crate) result: Object,
    json: bool,
}

impl QueryResponse {
    /// Prints the result: unchanged as JSON, otherwise with `write`, whose last parameter says
    /// whether standard output is a terminal.
    pub(crate) fn print(
        &self,
        write: fn(&mut dyn Write, &Object, bool) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let json = self.json.then(|| String::from_utf8_lossy(&self.text));
        output::print_as(json.as_deref(), |out| write(out, &self.result, output::is_terminal()))
    }

    /// Prints the result unchanged as JSON.
    pub(crate) fn print_unchanged(&self) -> Result<(), Failure> {
        output::print_as(Some(&String::from_utf8_lossy(&self.text)), |_| Ok(()))
    }
}

/// Creates an object of members and their JSON texts.
pub(crate) fn object<const N: usize>(members: [(&'static str, Bytes); N]) -> Object {
    let mut object = Object::new();
    members.into_iter().for_each(|(member, value)| object.set(member, value));
    object
}

/// Creates an object of texts.
pub(crate) fn texts(pairs: &[(String, String)]) -> Object {
    let mut object = Object::new();
    pairs.iter().for_each(|(name, text)| object.set(name.clone(), json::quote(text)));
    object
}

/// Sends a request and collects its result. Progress is shown on a terminal.
pub(crate) async fn send_request(
    oneshot: &OneShotGateway,
    method: Method,
    params: Object,
) -> Result<QueryResponse, Failure> {
    let request =
        ItemRequest::parse(method, params).map_err(|bad| Failure::Usage(bad.to_string()))?;
    let key = request.key.clone();
    let (sink, stream) = progress::is_shown(oneshot.json).then(NotificationSink::channel).unzip();
    let progress = RefCell::new(String::new());
    let caller = Box::new(CallContext {
        notifications: sink.unwrap_or_else(NotificationSink::disabled),
        ..CallContext::without_features(Revision::NEWEST)
    });
    let collect = async {
        let (client, mut admission) = (&oneshot.client_context, Admission::unlimited());
        let called = async {
            let item = admission.resolve(client, &request, caller.revision).await?;
            PreparedRequest::check(client, item, request)?.send(&admission, caller).await
        };
        let reply = match called.await.map_err(|fault| failure(oneshot, &key, fault))? {
            CallOutcome::Response(reply) => reply,
            CallOutcome::InputRequired(asked) => {
                return Err(input_required(&key, asked.input_requests().first()));
            }
        };
        match reply.outcome {
            ResponseOutcome::Error(error) => Err(upstream_error(&key, error)),
            ResponseOutcome::Result(body) => {
                let text = body.collect(&BufferLimit::without_budget(MAX_RESULT_BYTES)).await;
                text.map_err(|why| Failure::Unreachable(why.to_string()))
            }
        }
    };
    let work = async {
        tokio::select! {
            text = collect => text,
            never = follow_progress(stream, &progress) => match never {},
        }
    };
    let about = || format!("{}{}", sanitize_line(&key), progress.borrow());
    let text = progress::show_while(oneshot.json, about, work).await?;
    // The gateway has checked the nesting depth already.
    let result = Object::parse_within(text.clone(), usize::MAX).unwrap_or_default();
    match result.get_string("resultType").as_deref() {
        Some("input_required") => Err(input_required(&key, first_input_request(&result).as_ref())),
        _ => Ok(QueryResponse { text, result, json: oneshot.json }),
    }
}

/// Stores the text of the latest progress notification.
async fn follow_progress(
    notifications: Option<NotificationStream>,
    progress: &RefCell<String>,
) -> Infallible {
    let Some(mut notifications) = notifications else { return std::future::pending().await };
    loop {
        let CallNotification::Progress(note) = notifications.next().await else { continue };
        let of = note.get("total").map(|total| format!("/{total}")).unwrap_or_default();
        let at = note.get("progress").unwrap_or_default();
        let message = note.get_string("message").unwrap_or_default();
        *progress.borrow_mut() = sanitize_line(&format!(": {at}{of} {message}"));
    }
}

fn failure(oneshot: &OneShotGateway, key: &str, fault: Error) -> Failure {
    match fault {
        // The item was listed a moment ago.
        Error::NoSuchItem { kind, key } => match oneshot.find_item(kind, &key) {
            Err(failure) => failure,
            // Only a completion is refused although its template is visible.
            Ok(_) if kind == Kind::Template => Failure::Denied(format!(
                "rules for URIs allow no completion of this argument of `{key}`"
            )),
            Ok(item) if item.needs_task => Failure::Usage(format!(
                "the {kind} `{key}` can be called only as a task, by clients of 2025-11-25"
            )),
            Ok(_) => {
                Failure::Unreachable(format!("the {kind} `{key}` is not listed at this moment"))
            }
        },
        Error::Upstream { cause: upstream::Error::UndeclaredFeature(lacking), .. } => {
            cannot_answer(key, describe_feature(lacking))
        }
        Error::Upstream { upstream, cause } => Failure::Unreachable(format!(
            "upstream `{upstream}`: {}",
            sanitize_line(&cause.to_string())
        )),
        Error::Refused { upstream, found } => Failure::ErrorResponse(format!(
            "{key}: the guard rejects the response of `{upstream}`: {found}"
        )),
        Error::Request(text) => Failure::Usage(text),
        fault @ Error::TaskIdTooLong { .. } => Failure::ErrorResponse(format!("{key}: {fault}")),
        Error::NoSuchTask => Failure::Usage("there is no such task".to_owned()),
        fault @ Error::TaskLost => Failure::Unreachable(fault.to_string()),
        Error::AuditUnavailable => {
            Failure::Unreachable("the audit log cannot record the request".to_owned())
        }
        Error::TooBusy { .. } | Error::TooManySuspended => {
            Failure::Unreachable("too many requests, try again later".to_owned())
        }
    }
}

/// Failure for an error object of an upstream.
fn upstream_error(key: &str, error: Bytes) -> Failure {
    let error = Object::parse_within(error, usize::MAX).unwrap_or_default();
    let message = sanitize_line(&error.get_string("message").unwrap_or_default());
    let code = error.get("code").and_then(|code| code.parse::<i64>().ok());
    let hint = match code {
        Some(code::MISSING_CLIENT_CAPABILITY) => {
            "; the server needs input from its client, which the command line cannot provide"
        }
        _ => "",
    };
    Failure::ErrorResponse(format!("{key}: {message}{hint}"))
}

/// Failure for an input request (sampling, roots or elicitation) of the upstream.
fn input_required(key: &str, request: Option<&InputRequest>) -> Failure {
    let message = request.and_then(|request| request.params.get_string("message"));
    let message =
        message.map(|text| format!(" (\"{}\")", sanitize_line(&text))).unwrap_or_default();
    let what = match request.map(|request| request.kind) {
        Some(InputKind::Sampling) => "sampling",
        Some(InputKind::Roots) => "roots",
        Some(InputKind::Elicitation) | None => "input",
    };
    cannot_answer(key, &format!("{what}{message}"))
}

/// Name of the client feature that an input request needs.
fn describe_feature(lacking: ClientFeatures) -> &'static str {
    match lacking {
        ClientFeatures { sampling: true, .. } => "sampling",
        ClientFeatures { roots: true, .. } => "roots",
        ClientFeatures { url: true, .. } => "a visit to a URL",
        _ => "input",
    }
}

/// First input request of a result.
fn first_input_request(result: &Object) -> Option<InputRequest> {
    let requests = result.get_object(INPUT_REQUESTS)?;
    let key = requests.keys().next()?;
    let request = requests.get_object(key)?;
    let kind = InputKind::of_method(&request.get_string("method")?)?;
    Some(InputRequest { key: key.into(), kind, params: request.get_object("params")? })
}

fn cannot_answer(key: &str, what: &str) -> Failure {
    Failure::ErrorResponse(format!(
        "{key}: the server requests {what}, which the command line cannot provide"
    ))
}
