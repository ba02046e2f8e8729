//! Notes that outlive a sign-in: the authorization server to which the credentials of a client
//! belong, and the sign-in that ran out.

use serde::{Deserialize, Deserializer, Serialize};

use super::sign_in_record::{BoundClient, SignInNumber};

/// Notes about the sign-ins to one upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignInNotes {
    /// Issuers that have issued a token for the credentials of these clients (spec 2026-07-28,
    /// authorization, authorization server binding).
    #[serde(default, deserialize_with = "bound_clients")]
    pub(crate) bound: Vec<BoundClient>,
    /// Sign-in that the authorization server has ended: its user has not signed out.
    pub(crate) ran_out: Option<SignInNumber>,
}

/// Reads a list. Earlier versions have noted one client, or null for none.
fn bound_clients<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<BoundClient>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        All(Vec<BoundClient>),
        One(Option<BoundClient>),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::All(all) => all,
        Written::One(one) => one.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_an_earlier_version_are_read() {
        for (bound, clients) in [("null", 0), (r#"{"client_id":"weir","issuer":"i"}"#, 1)] {
            let text = format!(r#"{{"bound":{bound},"ran_out":null}}"#);
            let notes: SignInNotes = serde_json::from_str(&text).expect("valid");
            assert_eq!(notes.bound.len(), clients);
            let again = serde_json::to_string(&notes).expect("JSON");
            assert_eq!(serde_json::from_str::<SignInNotes>(&again).expect("valid"), notes);
        }
    }
}
