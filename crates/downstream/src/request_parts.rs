//! Parts of one request, from its arrival to its response, that both eras have.

use crate::response::{ClientResponse, ErrorResponse, ResponseFuture, finish_request, results};
use weir_base::json::Object;
use weir_base::memory::memory_budget::BufferLimit;
use weir_gateway::{Admission, ClientContext, Error, ListPage, RequestStatus, RequestTimer};
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::jsonrpc::{Id, Request};
use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;

/// One request, whose audit event and metrics its response ends.
pub(super) struct RequestParts {
    pub(super) client: ClientContext,
    pub(super) id: Id,
    pub(super) method: Box<str>,
    pub(super) params: Object,
    /// Limit of a result that is buffered.
    pub(super) buffer_limit: BufferLimit,
    timing: RequestTimer,
}

impl RequestParts {
    /// Takes over a request of this client, and its audit event.
    pub(super) fn begin(
        client: &ClientContext,
        revision: Revision,
        request: Request,
        buffer_limit: &BufferLimit,
    ) -> Self {
        let Request { id, method, params, bytes } = request;
        client.audit_event().set_request(revision, &method, &params);
        client.audit_event().set_bytes_in(bytes);
        let timing = client.timing(&method);
        Self {
            client: client.clone(),
            id,
            method,
            params,
            buffer_limit: buffer_limit.clone(),
            timing,
        }
    }

    /// Ends the audit event and the metrics with the response, and returns it.
    pub(super) fn finish(self, response: Result<ClientResponse, ErrorResponse>) -> ClientResponse {
        let response =
            response.unwrap_or_else(|refused| ClientResponse::refused(Some(&self.id), &refused));
        finish_request(self.client.audit_event(), Some(self.timing), response)
    }

    /// Ends the request with an error.
    pub(super) fn refuse(self, refused: ErrorResponse) -> ResponseFuture {
        ResponseFuture::ready(self.finish(Err(refused)))
    }

    /// Ends the metrics: the response is a stream, which ends the audit event.
    pub(super) fn finish_as_stream(self) {
        self.timing.end(RequestStatus::Success);
    }

    /// Cuts the requested page of a list; `refuse` gives an error the form of its era.
    pub(super) async fn page(
        &self,
        admission: &Admission,
        kind: Kind,
        form: DefinitionForm,
        refuse: fn(Error) -> ErrorResponse,
    ) -> Result<ListPage, ErrorResponse> {
        let cursor = results::cursor(&self.params)?;
        let page = admission.list(&self.client, kind, cursor.as_deref(), form).await;
        page.map_err(refuse)
    }
}
