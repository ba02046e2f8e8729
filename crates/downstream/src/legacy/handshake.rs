//! Handshake of the legacy era: `initialize` opens a session, and a request that comes before it is
//! refused.

use bytes::Bytes;
use hyper::StatusCode;

use super::{Declared, INITIALIZE, LegacyClient, LegacyConnection, refuse};
use crate::era::Versions;
use crate::response::results::{self, invalid_params};
use crate::response::{ClientResponse, ErrorResponse};
use weir_base::json::Object;
use weir_gateway::{Admission, ClientContext, RequestStatus};
use weir_mcp::call::Method;
use weir_mcp::capabilities::{Capabilities, Tasks};
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::jsonrpc::{Request, code};
use weir_mcp::kind::Kind;
use weir_mcp::revision::{Era, Revision};

/// Opens a session: negotiates the revision, and returns the response with the capabilities.
pub(crate) fn initialize(
    client: &ClientContext,
    versions: &Versions,
    request: &Request,
    connection: LegacyConnection,
) -> Result<(LegacyClient, ClientResponse), ClientResponse> {
    let timing = client.timing(INITIALIZE);
    match negotiate(client, versions, &request.params, connection) {
        Ok((peer, result)) => {
            timing.end(RequestStatus::Success);
            Ok((peer, ClientResponse::object(&request.id, &result)))
        }
        Err(refused) => {
            timing.end(RequestStatus::Error(Some(refused.error.code)));
            Err(ClientResponse::refused(Some(&request.id), &refused))
        }
    }
}

fn negotiate(
    client: &ClientContext,
    versions: &Versions,
    params: &Object,
    connection: LegacyConnection,
) -> Result<(LegacyClient, Object), ErrorResponse> {
    let _permit = Admission::try_acquire(client, INITIALIZE).map_err(refuse)?;
    let requested = params
        .get_string("protocolVersion")
        .ok_or_else(|| invalid_params("`protocolVersion` must be a string"))?;
    // Spec, lifecycle: the same version if it is supported, else the latest supported one. A modern
    // version has no handshake, so it is treated like any unknown version.
    let requested = requested
        .parse()
        .ok()
        .filter(|revision: &Revision| revision.era() == Era::Legacy && versions.has(*revision));
    let revision = requested.or(versions.newest_legacy()).ok_or_else(|| {
        invalid_params(&format!("no supported version has a handshake: {}", versions.to_text()))
    })?;
    let declared_object =
        |member| copy_declared(params, member).map_err(|text| invalid_params(&text));
    let (info, declared) = (declared_object("clientInfo")?, declared_object("capabilities")?);
    let capabilities = params.get_object("capabilities").unwrap_or_default();
    let declared = Declared {
        features: ClientFeatures::read(&capabilities).within(revision),
        capabilities: declared.unwrap_or_else(|| capabilities.to_bytes()),
        info,
    };
    let peer = LegacyClient::new(client, revision, declared, connection);
    let mut result = Object::new();
    result.set("protocolVersion", format!("\"{revision}\""));
    let capabilities = capabilities_in(client.capabilities(), revision);
    result.set("capabilities", results::capabilities(&capabilities).to_bytes());
    result.set("serverInfo", results::server_info());
    results::set_instructions(&mut result, &client.view());
    Ok((peer, result))
}

/// Returns the capabilities as this revision has them.
fn capabilities_in(declared: Capabilities, revision: Revision) -> Capabilities {
    let mut capabilities = declared.without_tasks();
    // The capability came with 2025-03-26; the method is older.
    capabilities.completions &= revision >= Revision::V2025_03_26;
    if revision < Revision::V2025_11_25 {
        capabilities.tasks = Tasks::default();
    }
    capabilities
}

/// Copies an object that the client declares about itself, so that the rest of the message is not
/// kept in memory with it. The error text may be sent to the client.
fn copy_declared(params: &Object, member: &str) -> Result<Option<Bytes>, String> {
    let Some(declared) = params.get_object(member) else { return Ok(None) };
    let declared = declared.to_bytes();
    if declared.len() > MAX_DECLARED_BYTES {
        return Err(format!("`{member}` may have at most {MAX_DECLARED_BYTES} bytes"));
    }
    Ok(Some(Bytes::copy_from_slice(&declared)))
}

/// Handles a request before `initialize`; `hint` tells the client what to do first.
pub(crate) fn handle_uninitialized(
    client: &ClientContext,
    request: &Request,
    hint: &str,
) -> ClientResponse {
    let Request { id, method, .. } = request;
    if let Err(error) = Admission::try_acquire(client, method) {
        return ClientResponse::refused(Some(id), &refuse(error));
    }
    if &**method == "ping" {
        return ClientResponse::result(id, b"{}");
    }
    // A client that probes for the era has to learn that this is not the modern one.
    let known = Kind::of_list_method(method).is_some() || Method::of(method).is_some();
    let refused = match known {
        true => ErrorResponse::new(StatusCode::BAD_REQUEST, code::INVALID_REQUEST, hint),
        false => results::unknown_method(StatusCode::OK, method),
    };
    ClientResponse::refused(Some(id), &refused)
}

/// Size limit of a client's declaration: enough for one or two icons.
const MAX_DECLARED_BYTES: usize = 64 * 1024;
