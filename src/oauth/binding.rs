//! Binding of a client's credentials to one authorization server (spec 2026-07-28, authorization,
//! authorization server binding).
//!
//! Invariant: credentials of the configuration go to the issuer of `auth.issuer`; without it, to
//! the first one to which they were ever sent. That is noted in the state folder, and holds until
//! the issuer or the client is changed in the configuration.

use super::discovery::changed;
use super::vault::{BoundClient, Vault};
use super::{Grant, OAuthError, Settings};

/// Checks that the credentials of an upstream's configuration belong to this issuer, or to none yet.
/// Returns what they are to be bound to before they are sent; `None` where there are none.
///
/// # Errors
///
/// They belong to another issuer.
pub(super) fn check(
    upstream: &str,
    settings: &Settings,
    known: Option<&BoundClient>,
    issuer: &str,
) -> Result<Option<BoundClient>, OAuthError> {
    let client_id = match &settings.grant {
        Grant::AuthorizationCode { client: None } => return Ok(None),
        Grant::AuthorizationCode { client: Some(client) } | Grant::ClientCredentials(client) => {
            Some(client.id.clone())
        }
        Grant::JwtBearer { .. } => None,
    };
    let bound = BoundClient { client_id, issuer: issuer.to_owned() };
    if settings.issuer.is_some() || settings.token_url.is_some() {
        return Ok(Some(bound));
    }
    let vault = settings.state.as_deref().map(Vault::open_existing).transpose();
    let vault = vault.inspect_err(|error| warn(upstream, error)).unwrap_or_default().flatten();
    let noted = match vault.map(|vault| vault.notes(upstream)).transpose() {
        Ok(notes) => notes.and_then(|notes| notes.bound),
        Err(error) => return Err(OAuthError::Refused(format!("{error}: set auth.issuer"))),
    };
    // What this process knows holds where nothing can be noted.
    match noted.as_ref().or(known) {
        Some(before) if before.client_id == bound.client_id && before.issuer != bound.issuer => {
            let text = changed(&before.issuer, issuer);
            Err(OAuthError::Refused(format!("{text}: if that is right, set auth.issuer")))
        }
        _ => Ok(Some(bound)),
    }
}

/// Notes to which issuer the credentials belong, which are sent now. They are sent although that
/// cannot be noted, because the operator can set the issuer.
pub(super) async fn note(upstream: &str, settings: &Settings, bound: &BoundClient) {
    if let Some(state) = &settings.state
        && let Err(error) = Vault::bind(state, upstream, bound).await
    {
        warn(upstream, &error);
    }
}

fn warn(upstream: &str, error: &OAuthError) {
    let text = "no note is kept of the authorization server to which the credentials belong";
    tracing::warn!(upstream, %error, "{text}: set auth.issuer");
}
