//! Remaining quota of one client for one item, as a document.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Admin;
pub use weir_access::policy::limits::RemainingQuota;

/// Query for the remaining quota.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaQuery {
    /// Name of the client in the configuration.
    pub client: String,
    /// MCP method.
    pub method: String,
    /// Name of the upstream.
    pub upstream: String,
    /// Name or URI of the item at the upstream.
    pub item: String,
}

impl QuotaQuery {
    /// Encodes the query string; names may contain any character.
    pub fn to_query(&self) -> String {
        encode_query(self)
    }
}

/// Encodes the query string of a route that is asked about something.
pub(super) fn encode_query(about: &impl Serialize) -> String {
    let json = serde_json::to_vec(about).unwrap_or_default();
    format!("about={}", URL_SAFE_NO_PAD.encode(json))
}

/// Decodes such a query string.
pub(super) fn decode_query<T: DeserializeOwned>(query: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(query.strip_prefix("about=")?).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Processes a query; `None` if it is malformed or the client is unknown.
pub(super) fn respond(admin: &Admin, query: &str) -> Option<Vec<RemainingQuota>> {
    let QuotaQuery { client, method, upstream, item } = decode_query(query)?;
    let client_context = admin.gateway.named_client(&client)?;
    Some(client_context.remaining_limits(&method, &upstream.parse().ok()?, &item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_comes_back_out_of_its_query() {
        let text = |text: &str| text.to_owned();
        let query_value = QuotaQuery {
            client: text("ann"),
            method: text("resources/read"),
            upstream: text("wiki"),
            item: text("https://w/a b?c=d&e#\u{e4}\"%"),
        };
        let query = query_value.to_query();
        assert!(query.bytes().all(|byte| byte.is_ascii_graphic()), "{query}");
        assert_eq!(decode_query(&query), Some(query_value));
        for query in ["", "about=", "about=e30", "about=%%", "x"] {
            assert_eq!(decode_query::<QuotaQuery>(query), None, "{query}");
        }
    }
}
