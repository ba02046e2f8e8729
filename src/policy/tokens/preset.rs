//! What differs between the products that issue tokens.
//!
//! Knows nothing of: keys, and any particular provider.

use super::Bad;
use crate::json::Object;

/// A product: which claims say who it is, and what tells an access token from other ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Any provider that keeps to RFC 9068.
    Generic,
    /// Microsoft Entra ID.
    Entra,
    /// Okta.
    Okta,
    /// Auth0.
    Auth0,
    /// Keycloak.
    Keycloak,
    /// Google: ID tokens, since its access tokens say nothing to anybody but Google.
    Google,
    /// Amazon Cognito.
    Cognito,
}

impl Preset {
    /// All of them by name.
    pub const NAMED: [(&'static str, Self); 7] = [
        ("generic", Self::Generic),
        ("entra", Self::Entra),
        ("okta", Self::Okta),
        ("auth0", Self::Auth0),
        ("keycloak", Self::Keycloak),
        ("google", Self::Google),
        ("cognito", Self::Cognito),
    ];

    /// The claim that names the user, and nobody else ever.
    pub fn user_claim(self) -> &'static str {
        match self {
            // `sub` differs from application to application.
            Self::Entra => "oid",
            _ => "sub",
        }
    }

    /// The claim that holds what is mapped to roles.
    pub fn role_claim(self) -> &'static str {
        match self {
            Self::Generic | Self::Entra => "roles",
            Self::Okta => "groups",
            Self::Auth0 => "permissions",
            Self::Keycloak => "realm_access.roles",
            Self::Google => "hd",
            Self::Cognito => "cognito:groups",
        }
    }

    /// Refuses a token that says of itself that it is no access token.
    pub(super) fn check_use(self, claims: &Object) -> Result<(), Bad> {
        let is = |claim, wanted| claims.get_string(claim).as_deref() == Some(wanted);
        let good = match self {
            Self::Cognito => is("token_use", "access"),
            Self::Keycloak => is("typ", "Bearer"),
            // Only its access tokens name the client in this way.
            Self::Okta => claims.has("cid"),
            // An ID token may be bound to the request or the token beside it (OpenID Connect Core, 2).
            // Its access tokens name the application that asked for them, in either version.
            Self::Entra if !claims.has("azp") && !claims.has("appid") => false,
            Self::Generic | Self::Entra | Self::Auth0 => {
                !claims.has("nonce") && !claims.has("at_hash") && !claims.has("c_hash")
            }
            Self::Google => true,
        };
        if good { Ok(()) } else { Err(Bad::Use) }
    }

    /// Whether the client's id stands for the audience where there is none.
    pub(super) fn client_is_audience(self) -> bool {
        self == Self::Cognito
    }
}
