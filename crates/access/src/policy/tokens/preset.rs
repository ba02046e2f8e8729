//! Differences between the identity products that issue tokens.

use strum::{IntoStaticStr, VariantArray};

use super::TokenError;
use weir_base::json::Object;

/// Identity product: its user and role claims, and the marks of its access tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Preset {
    /// Any provider that follows RFC 9068.
    #[default]
    Generic,
    /// Microsoft Entra ID.
    Entra,
    /// Okta.
    Okta,
    /// Auth0.
    Auth0,
    /// Keycloak.
    Keycloak,
    /// Google: ID tokens, because only Google can read its access tokens.
    Google,
    /// Amazon Cognito.
    Cognito,
}

impl Preset {
    /// Returns the claim that identifies the user uniquely and permanently.
    pub fn user_claim(self) -> &'static str {
        match self {
            // `sub` differs between applications.
            Self::Entra => "oid",
            _ => "sub",
        }
    }

    /// Returns the claim with the values that are mapped to roles.
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

    /// Refuses a token whose claims show that it is not an access token.
    pub(super) fn check_use(self, claims: &Object) -> Result<(), TokenError> {
        let is = |claim, wanted| claims.get_string(claim).as_deref() == Some(wanted);
        let good = match self {
            Self::Cognito => is("token_use", "access"),
            Self::Keycloak => is("typ", "Bearer"),
            // Only Okta's access tokens name the client in this way.
            Self::Okta => claims.has("cid"),
            // An ID token may be bound to the request or the token beside it (OpenID Connect Core,
            // 2). Entra's access tokens name the requesting application, in either version.
            Self::Entra if !claims.has("azp") && !claims.has("appid") => false,
            Self::Generic | Self::Entra | Self::Auth0 => {
                !claims.has("nonce") && !claims.has("at_hash") && !claims.has("c_hash")
            }
            Self::Google => true,
        };
        if good { Ok(()) } else { Err(TokenError::Use) }
    }

    /// Returns whether the client id counts as the audience of a token without one.
    pub(super) fn client_is_audience(self) -> bool {
        self == Self::Cognito
    }
}
