//! Open input requests of one call: server-to-client requests that wait for the client's response.
//!
//! Three parties meet here. The dispatcher adds the requests of a legacy server and removes those
//! that the server withdraws. The owner of the call takes the requests to the client and submits
//! the responses. The call itself sends the responses to the server. None of them waits for
//! another.
//!
//! Invariants: at most [`MAX_OPEN`] input requests of a call are open, with at most
//! [`MAX_OPEN_BYTES`], and those of all calls of an upstream use no more than its [`InputBudget`].
//! An input request that the client did not declare is never accepted. Each receives one response;
//! a response to an unknown or withdrawn request is dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::Error;
use weir_base::json::Object;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::CallContext;
use weir_mcp::input_request::{ClientFeatures, InputKind, InputRequest, InputResponse};
use weir_mcp::jsonrpc::{self, Id, ResponsePayload};
use weir_mcp::meta;
use weir_mcp::revision::{Era, Revision};
use weir_mcp::trace_context;

/// Maximum calls of one upstream that wait for client input.
pub(crate) const MAX_SUSPENDED: usize = 256;

/// Maximum open input requests of one call.
pub(crate) const MAX_OPEN: usize = 16;
/// Maximum total size of a call's open input requests.
const MAX_OPEN_BYTES: usize = 16 << 20;
/// Maximum total size of the open input requests of an upstream's calls.
const MAX_UPSTREAM_BYTES: usize = 64 << 20;

/// Byte budget for the open input requests of all calls of one upstream. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct InputBudget(Arc<Semaphore>);

impl InputBudget {
    /// Creates an unused budget.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_UPSTREAM_BYTES)))
    }

    /// Reserves the bytes of an input request; `None` if too few are left.
    fn take(&self, request: &InputRequest) -> Option<OwnedSemaphorePermit> {
        let size = u32::try_from(request.params.to_bytes().len()).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(size).ok()
    }
}

/// Open input requests of one call. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct InputRequests {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signals a new input request, or that the call cannot go on.
    new_request: Notify,
    /// Signals a response for the server, or that nothing is open any more.
    responses: Notify,
    /// Signals that the call is given up.
    given_up: Notify,
}

#[derive(Debug)]
struct State {
    /// Declared client features, and the client's era.
    features: ClientFeatures,
    era: Era,
    open: Vec<OpenRequest>,
    responses: VecDeque<SubmittedResponse>,
    /// Features that an input request needs and a modern client did not declare.
    missing: Option<ClientFeatures>,
    budget: InputBudget,
    key_count: u64,
    /// Whether the server has responded, or its response is not needed any more.
    is_closed: bool,
    /// Whether the call was given up for a later call of the same client.
    is_given_up: bool,
}

#[derive(Debug)]
struct OpenRequest {
    /// JSON-RPC id of the server's request; `None` for an input request of a modern response.
    id: Option<Id>,
    request: InputRequest,
    /// Whether the input request has been sent to the client.
    is_sent: bool,
    _reserved: OwnedSemaphorePermit,
}

/// Client's response on its way to the server.
#[derive(Debug)]
pub(crate) struct SubmittedResponse {
    id: Option<Id>,
    pub(crate) key: Box<str>,
    pub(crate) kind: InputKind,
    pub(crate) outcome: ResponsePayload,
}

impl SubmittedResponse {
    /// Encodes the JSON-RPC response to a server's request; `None` for an input request of a modern
    /// response.
    pub(crate) fn write(&self) -> Option<Bytes> {
        let id = self.id.as_ref()?;
        Some(match &self.outcome {
            ResponsePayload::Result(result) => jsonrpc::write_result(id, result),
            ResponsePayload::Error(error) => jsonrpc::write_error(Some(id), error),
        })
    }
}

impl InputRequests {
    /// Creates an empty set for this caller, within the upstream's byte budget.
    pub(crate) fn new(caller: &CallContext, budget: InputBudget) -> Self {
        let state = State {
            features: caller.features,
            era: caller.revision.era(),
            open: Vec::new(),
            responses: VecDeque::new(),
            missing: None,
            budget,
            key_count: 0,
            is_closed: false,
            is_given_up: false,
        };
        let (new_request, responses, given_up) = (Notify::new(), Notify::new(), Notify::new());
        Self {
            shared: Arc::new(Shared { state: Mutex::new(state), new_request, responses, given_up }),
        }
    }

    // --- The server's side ---

    /// Accepts input requests again, since another request of the call is sent.
    pub(crate) fn reopen(&self) {
        self.shared.state.lock().is_closed = false;
    }

    /// Adds a server's request, or returns the error that the client itself would return, as
    /// defined by the `revision` of the server's connection.
    pub(crate) fn add(
        &self,
        id: Id,
        kind: InputKind,
        mut params: Object,
        revision: Revision,
    ) -> Result<(), jsonrpc::Error> {
        drop_progress_token(&mut params);
        let mut state = self.shared.state.lock();
        if state.is_closed {
            return Err(unsupported_method(kind.method()));
        }
        state.key_count += 1;
        let key = format!("q{}", state.key_count).into();
        let request = InputRequest { key, kind, params };
        let defined = features_of(revision);
        if defined.missing_for(&request).is_some() {
            return Err(rejection(defined, &request));
        }
        if let Some(missing) = state.features.missing_for(&request) {
            if state.era == Era::Modern {
                state.missing.get_or_insert(missing);
                self.shared.new_request.notify_one();
            }
            return Err(rejection(state.features, &request));
        }
        if !state.fits(&request) {
            let text = format!("at most {MAX_OPEN} input requests of a call may be open");
            return Err(jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, text));
        }
        let Some(budget) = state.budget.take(&request) else {
            return Err(jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, BUDGET_EXCEEDED));
        };
        state.open.push(OpenRequest { id: Some(id), request, is_sent: false, _reserved: budget });
        self.shared.new_request.notify_one();
        Ok(())
    }

    /// Adds the input requests of a modern response, whose keys are the server's own: all of them,
    /// or none.
    pub(crate) fn add_all(&self, requests: Vec<InputRequest>) -> Result<(), Error> {
        let mut state = self.shared.state.lock();
        if let Some(missing) = requests.iter().find_map(|it| state.features.missing_for(it)) {
            return Err(Error::UndeclaredFeature(missing));
        }
        let open = requests.into_iter().map(|request| {
            let budget = state.budget.take(&request).ok_or(Error::TooManyInputRequests)?;
            Ok(OpenRequest { id: None, request, is_sent: false, _reserved: budget })
        });
        let open: Vec<_> = open.collect::<Result<_, Error>>()?;
        state.open.extend(open);
        self.shared.new_request.notify_one();
        Ok(())
    }

    /// Whether the server's request with this id is open here.
    pub(crate) fn contains(&self, id: &Id) -> bool {
        self.shared.state.lock().open.iter().any(|open| open.id.as_ref() == Some(id))
    }

    /// Whether the call waits for its client only: every open input request has been sent.
    pub(crate) fn is_waiting_for_client(&self) -> bool {
        let state = self.shared.state.lock();
        !state.open.is_empty() && state.open.iter().all(|open| open.is_sent)
    }

    /// Gives the call up, so that a later call of the same client can request input: the call is
    /// cancelled at the server.
    pub(crate) fn give_up(&self) {
        self.shared.state.lock().is_given_up = true;
        self.shared.given_up.notify_one();
    }

    /// Whether the call is given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.shared.state.lock().is_given_up
    }

    /// Waits until the call is given up. Cancel-safe. For one waiter.
    pub(crate) async fn wait_until_given_up(&self) {
        let look = |state: &mut State| state.is_given_up.then_some(());
        self.wait_for(&self.shared.given_up, look).await;
    }

    /// Removes a withdrawn request; `false` if it is not open here.
    pub(crate) fn withdraw(&self, id: &Id) -> bool {
        let mut state = self.shared.state.lock();
        let before = state.open.len();
        state.open.retain(|open| open.id.as_ref() != Some(id));
        let withdrawn = state.open.len() < before;
        if withdrawn {
            self.shared.new_request.notify_one();
        }
        withdrawn
    }

    /// Waits for the next response to the server. Cancel-safe.
    pub(crate) async fn next_response(&self) -> SubmittedResponse {
        self.wait_for(&self.shared.responses, |state| state.responses.pop_front()).await
    }

    /// Waits until nothing is open and returns all responses. Cancel-safe.
    pub(crate) async fn all_responses(&self) -> Vec<SubmittedResponse> {
        let all =
            |state: &mut State| state.open.is_empty().then(|| state.responses.drain(..).collect());
        self.wait_for(&self.shared.responses, all).await
    }

    /// Waits until `look` finds something in the state; it looks again after each notification.
    /// Cancel-safe.
    async fn wait_for<T>(&self, notify: &Notify, look: impl Fn(&mut State) -> Option<T>) -> T {
        loop {
            let found = look(&mut self.shared.state.lock());
            if let Some(found) = found {
                return found;
            }
            notify.notified().await;
        }
    }

    /// Closes the set and returns the ids of the server's requests that will have no response.
    pub(crate) fn close(&self) -> Vec<Id> {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        let open = std::mem::take(&mut state.open).into_iter().filter_map(|open| open.id);
        let unsent =
            std::mem::take(&mut state.responses).into_iter().filter_map(|response| response.id);
        open.chain(unsent).collect()
    }

    // --- The client's side ---

    /// Waits until an input request is to be sent to the client, or (`Err`) one needs features that
    /// a modern client did not declare. Cancel-safe.
    pub(crate) async fn wait_for_new(&self) -> Result<(), ClientFeatures> {
        let look = |state: &mut State| match state.missing {
            Some(missing) => Some(Err(missing)),
            None => state.open.iter().any(|open| !open.is_sent).then_some(Ok(())),
        };
        self.wait_for(&self.shared.new_request, look).await
    }

    /// Features that an input request needs and a modern client did not declare.
    pub(crate) fn missing_features(&self) -> Option<ClientFeatures> {
        self.shared.state.lock().missing
    }

    /// Whether the open input requests arrived as separate requests, so that more may follow.
    pub(crate) fn arrive_individually(&self) -> bool {
        self.shared.state.lock().open.iter().any(|open| open.id.is_some())
    }

    /// Takes the input requests that have not been sent to the client.
    pub(crate) fn take_new(&self) -> Result<Vec<InputRequest>, ClientFeatures> {
        let mut state = self.shared.state.lock();
        if let Some(missing) = state.missing {
            return Err(missing);
        }
        Ok(state.take_new())
    }

    /// Waits for further input requests while the client handles the earlier ones. `None` once the
    /// server waits for no response any more, or has requested undeclared features. Cancel-safe.
    pub(crate) async fn next_new(&self) -> Option<Vec<InputRequest>> {
        let look = |state: &mut State| {
            if state.missing.is_some() || state.open.is_empty() {
                return Some(None);
            }
            let new = state.take_new();
            (!new.is_empty()).then_some(Some(new))
        };
        self.wait_for(&self.shared.new_request, look).await
    }

    /// Submits one response while others are still open.
    pub(crate) fn submit(&self, response: InputResponse) {
        self.shared.state.lock().record(response);
        self.shared.responses.notify_one();
    }

    /// Submits a client's responses. Input requests without a response are sent to the client
    /// again.
    pub(crate) fn submit_all(&self, responses: Vec<InputResponse>, features: ClientFeatures) {
        let mut state = self.shared.state.lock();
        state.features = features;
        responses.into_iter().for_each(|response| state.record(response));
        for open in &mut state.open {
            open.is_sent = false;
        }
        // A modern client declares its features with each request.
        if state.era == Era::Modern {
            state.missing = state.open.iter().find_map(|open| features.missing_for(&open.request));
        }
        self.shared.responses.notify_one();
    }

    /// Rejects these input requests with an error: too many calls are suspended.
    pub(crate) fn decline(&self, requests: &[InputRequest]) {
        let error = jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, BUDGET_EXCEEDED).to_bytes();
        let declined = requests.iter().map(|request| InputResponse {
            key: request.key.clone(),
            outcome: jsonrpc::ResponsePayload::Error(error.clone()),
        });
        let features = self.shared.state.lock().features;
        self.submit_all(declined.collect(), features);
    }
}

impl State {
    fn take_new(&mut self) -> Vec<InputRequest> {
        let new = self.open.iter_mut().filter(|open| !open.is_sent);
        let take = |open: &mut OpenRequest| {
            open.is_sent = true;
            open.request.clone()
        };
        new.map(take).collect()
    }

    fn record(&mut self, InputResponse { key, outcome }: InputResponse) {
        let is_answered = |open: &OpenRequest| open.is_sent && open.request.key == key;
        let Some(at) = self.open.iter().position(is_answered) else { return };
        let OpenRequest { id, request, .. } = self.open.remove(at);
        let outcome = match outcome {
            ResponsePayload::Result(text) => {
                ResponsePayload::Result(trace_context::without_malformed(text))
            }
            error @ ResponsePayload::Error(_) => error,
        };
        self.responses.push_back(SubmittedResponse { id, key, kind: request.kind, outcome });
    }

    fn fits(&self, request: &InputRequest) -> bool {
        let size = |request: &InputRequest| request.params.to_bytes().len();
        let open: usize = self.open.iter().map(|open| size(&open.request)).sum();
        self.open.len() < MAX_OPEN && open + size(request) <= MAX_OPEN_BYTES
    }
}

/// Removes the server's progress token: the tokens of two servers may be the same to their one
/// client, and Weir does not forward the client's progress to the server.
fn drop_progress_token(params: &mut Object) {
    let Some(mut meta) = params.get_object("_meta") else { return };
    if meta.take(meta::PROGRESS_TOKEN).is_none() {
        return;
    }
    if meta.is_empty() {
        params.take("_meta");
    } else {
        params.set("_meta", meta.to_bytes());
    }
}

/// Features that a revision defines.
fn features_of(revision: Revision) -> ClientFeatures {
    let elicitation = revision >= Revision::V2025_06_18;
    let newest = revision >= Revision::V2025_11_25;
    ClientFeatures {
        sampling: true,
        sampling_tools: newest,
        sampling_context: true,
        form: elicitation,
        url: newest,
        roots: true,
    }
}

/// Builds the error with which a client with these features rejects an input request that needs
/// others.
///
/// Spec 2025-11-25: -32601 for roots that are not supported, -32602 for an elicitation in a mode
/// that was not declared; an error for tools in a sampling request that were not.
fn rejection(features: ClientFeatures, request: &InputRequest) -> jsonrpc::Error {
    let method = request.kind.method();
    let supports_method = match request.kind {
        InputKind::Sampling => features.sampling,
        InputKind::Elicitation => features.form || features.url,
        InputKind::Roots => features.roots,
    };
    if supports_method {
        let text = format!("this client does not support {method} in this form");
        return jsonrpc::Error::new(jsonrpc::code::INVALID_PARAMS, text);
    }
    unsupported_method(method)
}

/// Builds the error for a method that the client does not support.
pub(crate) fn unsupported_method(method: &str) -> jsonrpc::Error {
    let text = format!("Method not found: this client does not support {method}");
    jsonrpc::Error::new(jsonrpc::code::METHOD_NOT_FOUND, text)
}

/// Error text for a server request that could belong to several calls.
pub(crate) const SEVERAL_CALLS: &str = "several calls of this client are in flight, and the \
     request cannot be attributed to one of them: retry later";

/// Error text for a server request that exceeds the budget.
const BUDGET_EXCEEDED: &str = "too many input requests are open: retry later";

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> CallContext {
        CallContext {
            features: ClientFeatures::ALL,
            ..CallContext::without_features(Revision::NEWEST_LEGACY)
        }
    }

    /// Parameters of this many MiB.
    fn large(mib: usize) -> Object {
        Object::parse(format!("{{\"x\":\"{}\"}}", "x".repeat((mib << 20) - 8))).expect("an object")
    }

    #[tokio::test]
    async fn the_input_requests_of_all_calls_of_an_upstream_share_a_limit() {
        let budget = InputBudget::new();
        let calls: Vec<_> = (0..5).map(|_| InputRequests::new(&caller(), budget.clone())).collect();
        let add = |call: usize, mib: usize| {
            let id = Id::from(u64::try_from(mib).expect("small"));
            let revision = Revision::NEWEST_LEGACY;
            let added = calls[call].add(id, InputKind::Sampling, large(mib), revision);
            added.map_err(|error| error.message.to_string())
        };
        for call in 0..4 {
            assert_eq!(add(call, 16), Ok(()));
        }
        assert_eq!(add(4, 1), Err(BUDGET_EXCEEDED.to_owned()));
        let request =
            |mib| InputRequest { key: "q".into(), kind: InputKind::Sampling, params: large(mib) };
        let rejected = calls[4].add_all(vec![request(1)]);
        assert!(matches!(rejected, Err(Error::TooManyInputRequests)), "{rejected:?}");
        // A response frees budget, and so does the end of a call.
        let key = calls[0].take_new().expect("declared").remove(0).key;
        let outcome = ResponsePayload::Result("{}".into());
        calls[0].submit_all(vec![InputResponse { key, outcome }], ClientFeatures::ALL);
        assert_eq!(add(4, 16), Ok(()));
        calls[1].close();
        assert!(calls[0].add_all(vec![request(8), request(8)]).is_ok());
        assert!(calls[0].add_all(vec![request(1)]).is_err());
    }
}
