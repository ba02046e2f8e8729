//! Binding of a client's credentials to one authorization server (spec 2026-07-28, authorization,
//! authorization server binding).
//!
//! Invariant: credentials of the configuration go to the issuer of `auth.issuer`; without it, to
//! the first one that has ever issued a token for them. That is noted in the state folder for each
//! client, and holds until another issuer is configured for it.

use super::{BoundClient, Vault};
use crate::discovery::changed;
use crate::metadata::is_same_issuer;
use crate::{Grant, OAuthError, Settings};

/// Checks that the credentials of an upstream's configuration belong to this issuer, or to none
/// yet.
///
/// # Errors
///
/// They belong to another issuer.
pub(crate) fn check(
    upstream: &str,
    settings: &Settings,
    known: &[BoundClient],
    issuer: &str,
) -> Result<(), OAuthError> {
    if settings.issuer.is_some() || settings.token_url.is_some() {
        return Ok(());
    }
    let Some(wanted) = binding(settings, issuer) else { return Ok(()) };
    let vault = settings.state.as_deref().map(Vault::open_existing).transpose();
    let vault = vault.inspect_err(|error| warn(upstream, error)).unwrap_or_default().flatten();
    let noted = match vault.map(|vault| vault.notes(upstream)).transpose() {
        Ok(notes) => notes.unwrap_or_default().bound,
        Err(error) => return Err(OAuthError::Refused(format!("{error}: set auth.issuer"))),
    };
    // What this process knows holds where nothing can be noted.
    match noted.iter().chain(known).find(|it| it.client_id == wanted.client_id) {
        Some(bound) if !is_same_issuer(&bound.issuer, &wanted.issuer) => {
            let text = changed(&bound.issuer, issuer);
            Err(OAuthError::Refused(format!("{text}: if that is right, set auth.issuer")))
        }
        _ => Ok(()),
    }
}

/// Notes that the credentials of an upstream's configuration belong to this issuer, which has
/// issued a token for them. Returns that; `None` where there are none.
pub(crate) async fn note(upstream: &str, settings: &Settings, issuer: &str) -> Option<BoundClient> {
    // A configured token endpoint alone names no issuer.
    if settings.token_url.is_some() && settings.issuer.is_none() {
        return None;
    }
    let bound = binding(settings, issuer)?;
    if let Some(state) = &settings.state
        && let Err(error) = Vault::bind(state, upstream, &bound).await
    {
        warn(upstream, &error);
    }
    Some(bound)
}

/// Returns the binding of the configured credentials to this issuer, if there are any.
fn binding(settings: &Settings, issuer: &str) -> Option<BoundClient> {
    if let Grant::AuthorizationCode { client: None } = settings.grant {
        return None;
    }
    let client_id = settings.grant.client().map(|client| client.id.clone());
    Some(BoundClient { client_id, issuer: issuer.to_owned() })
}

fn warn(upstream: &str, error: &OAuthError) {
    let text = "no note is kept of the authorization server to which the credentials belong";
    tracing::warn!(upstream, %error, "{text}: set auth.issuer");
}
