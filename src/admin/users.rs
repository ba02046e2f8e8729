//! Role that a user of an identity provider had last, as a document.

use serde::{Deserialize, Serialize};

use super::Admin;
use super::remaining_quota::{decode_query, encode_query};
use weir_access::policy::{SeenUser, UserSearch};
use weir_base::time::timestamp;

/// Query for a user.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserQuery {
    /// Name of the user, `<provider>/<user>`.
    pub user: String,
}

/// Result of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserReport {
    /// Role of the user; `None` if the process has not seen the user.
    pub seen: Option<SeenRole>,
    /// Name of a user who was seen, if it looks like the one that was not.
    pub similar: Option<String>,
}

/// Role of a user, as last seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenRole {
    /// Name of the role; the names joined with `+` if there are several.
    pub role: String,
    /// Time of the user's last request.
    pub at: String,
    /// Whether the mapping of that time is still in use.
    pub is_current: bool,
}

impl UserQuery {
    /// Encodes the query string.
    pub fn to_query(&self) -> String {
        encode_query(self)
    }
}

/// Processes a query; `None` if it is malformed.
pub(super) fn respond(admin: &Admin, query: &str) -> Option<UserReport> {
    let UserQuery { user } = decode_query(query)?;
    Some(match admin.gateway.find_user(&user) {
        UserSearch::Seen(SeenUser { role, at, is_current }) => {
            let (role, at) = (role.to_string(), timestamp::format_rfc3339(at));
            UserReport { seen: Some(SeenRole { role, at, is_current }), similar: None }
        }
        UserSearch::Similar(name) => UserReport { seen: None, similar: Some(name.to_string()) },
        UserSearch::Unseen => UserReport::default(),
    })
}
