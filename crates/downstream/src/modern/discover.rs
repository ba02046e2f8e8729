//! `server/discover`: the server as a client sees it, or the one server that this process runs for
//! other replicas.

use std::time::Duration;

use futures::FutureExt;

use super::{COMPLETE, PRIVATE, own_meta};
use crate::era::Versions;
use crate::request_parts::RequestParts;
use crate::response::call_stream::CallMessages;
use crate::response::results;
use crate::response::{ClientResponse, ErrorResponse, ResponseFuture};
use weir_base::json::Object;
use weir_gateway::{Admission, ClientContext};
use weir_mcp::capabilities::{Capabilities, Tasks};

/// Handles the request.
pub(super) fn discover(
    parts: RequestParts,
    admitted: Result<Admission, ErrorResponse>,
    versions: Versions,
    serves_replicas: bool,
) -> ResponseFuture {
    let response = async move {
        let discovered = match admitted {
            Ok(_admission) if serves_replicas => discovery_of_server(&parts, &versions).await,
            Ok(_admission) => Ok(discovery(&parts.client, &versions)),
            Err(refused) => Err(refused),
        };
        let response = discovered.map(|result| ClientResponse::object(&parts.id, &result));
        Some(parts.finish(response))
    };
    ResponseFuture { response: response.boxed(), messages: CallMessages::default() }
}

/// Describes the server that this process runs for other replicas, once it is connected. They use
/// the era of the server itself, whose revisions come first: what one era has and the other has
/// not, such as the tasks of 2025-11-25, would be lost otherwise.
async fn discovery_of_server(
    parts: &RequestParts,
    versions: &Versions,
) -> Result<Object, ErrorResponse> {
    let Some(era) = parts.client.era_of_only_upstream().await else {
        return Err(results::unavailable("the server is not connected", SERVER_RETRY));
    };
    parts.client.wait_for_startup().await;
    Ok(discovery(&parts.client, &versions.with_first(era)))
}

fn discovery(client: &ClientContext, versions: &Versions) -> Object {
    let mut result = Object::new();
    result.set("resultType", COMPLETE);
    result.set("supportedVersions", versions.to_json());
    // This revision has tasks as an extension only.
    let capabilities = Capabilities { tasks: Tasks::default(), ..client.capabilities() };
    result.set("capabilities", results::capabilities(&capabilities).to_bytes());
    results::set_instructions(&mut result, &client.view());
    // Capabilities change with the client's view and with the available upstreams.
    result.set("ttlMs", "0");
    result.set("cacheScope", PRIVATE);
    result.set("_meta", own_meta().to_bytes());
    result
}

/// Delay after which a replica may ask again for a server that is not connected.
const SERVER_RETRY: Duration = Duration::from_secs(1);
