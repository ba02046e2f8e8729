//! Notes that outlive a sign-in: the authorization server to which the credentials of a client
//! belong, and the sign-in that ran out.

use serde::{Deserialize, Serialize};

use super::sign_in_record::{BoundClient, SignInNumber};

/// Notes about the sign-ins to one upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignInNotes {
    /// Issuer that has issued a token for the credentials of this client (spec 2026-07-28,
    /// authorization, authorization server binding).
    pub(in crate::oauth) bound: Option<BoundClient>,
    /// Sign-in that the authorization server has ended: its user has not signed out.
    pub(in crate::oauth) ran_out: Option<SignInNumber>,
}
