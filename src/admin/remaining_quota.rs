//! What is left of the limits for one client and one item, as a document.
//!
//! Knows nothing of: who asks, and how it is shown.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::Ops;

/// What is asked.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The client, by its name in the configuration.
    pub client: String,
    /// The method, as it is called on the wire.
    pub method: String,
    /// The upstream.
    pub upstream: String,
    /// The item, by the upstream's own name or URI.
    pub item: String,
}

/// What one limit has left.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The limit, by its number in the configuration, from 0.
    pub limit: usize,
    /// How many more requests it would admit at once, where it has a rate.
    pub requests: Option<u32>,
    /// How many more may be under way, where that is limited.
    pub places: Option<usize>,
}

impl Question {
    /// The query that asks it: a name may have any character.
    pub fn to_query(&self) -> String {
        let json = serde_json::to_vec(self).unwrap_or_default();
        format!("about={}", URL_SAFE_NO_PAD.encode(json))
    }

    fn from_query(query: &str) -> Option<Self> {
        let json = URL_SAFE_NO_PAD.decode(query.strip_prefix("about=")?).ok()?;
        serde_json::from_slice(&json).ok()
    }
}

/// Reads the document.
pub fn parse(text: &[u8]) -> Result<Vec<Left>, serde_json::Error> {
    serde_json::from_slice(text)
}

/// Answers a query; `None` if it asks nothing, or for a client that nobody knows.
pub(super) fn answer(ops: &Ops, query: &str) -> Option<String> {
    let Question { client, method, upstream, item } = Question::from_query(query)?;
    let guest = ops.gateway.enter_as(&client)?;
    let left = guest.left(&method, &upstream.parse().ok()?, &item);
    let left = left.into_iter().map(|it| Left {
        limit: it.limit,
        requests: it.requests,
        places: it.places,
    });
    serde_json::to_string(&left.collect::<Vec<_>>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_comes_back_out_of_its_query() {
        let text = |text: &str| text.to_owned();
        let question = Question {
            client: text("ann"),
            method: text("resources/read"),
            upstream: text("wiki"),
            item: text("https://w/a b?c=d&e#\u{e4}\"%"),
        };
        let query = question.to_query();
        assert!(query.bytes().all(|byte| byte.is_ascii_graphic()), "{query}");
        assert_eq!(Question::from_query(&query), Some(question));
        for query in ["", "about=", "about=e30", "about=%%", "x"] {
            assert_eq!(Question::from_query(query), None, "{query}");
        }
    }
}
