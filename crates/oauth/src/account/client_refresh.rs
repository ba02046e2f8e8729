//! Refresh of a token that Weir gets with credentials of its own, without a user.

use std::sync::Arc;

use super::Account;
use crate::discovery::{Discovered, discover};
use crate::token_request::{IssuedToken, TokenGrant, TokenRequest};
use crate::vault::binding;
use crate::{OAuthError, RegisteredClient};

/// Requests a token by this grant, for which the client authenticates.
pub(super) async fn request_token(
    account: &Account,
    grant: TokenGrant<'_>,
    registered: Option<&RegisteredClient>,
) -> Result<IssuedToken, OAuthError> {
    let Account { client, state, .. } = account;
    let known = state.lock().server.discovered.clone();
    let discovered = match known {
        Some(known) => known,
        None => discover_server(account).await?,
    };
    let settings = &client.settings;
    let resource = discovered.resource(settings);
    let scope = state.lock().scopes.to_request(discovered.scope(settings));
    let request = TokenRequest {
        grant,
        client: registered,
        server: &discovered.server,
        resource: resource.as_deref(),
        scope: scope.as_deref(),
    };
    let issued = request.send(&client.oauth()).await;
    if issued.is_ok() {
        // From now on the credentials belong to this server.
        let issuer = &discovered.server.issuer;
        if let Some(bound) = binding::note(&client.name, settings, issuer).await {
            state.lock().server.bind(bound);
        }
    }
    let mut state = state.lock();
    match &issued {
        Ok(_) => state.scopes.on_issued(scope),
        Err(error) => {
            // The server may have moved.
            state.server.discovered = None;
            if let OAuthError::Refused(_) = error {
                state.scopes.on_refused();
            }
        }
    }
    issued
}

/// Discovers the authorization server, which must be the one to which the credentials belong.
async fn discover_server(account: &Account) -> Result<Arc<Discovered>, OAuthError> {
    let Account { client, state, .. } = account;
    let challenge = state.lock().server.challenge.clone().unwrap_or_default();
    let found = Arc::new(discover(&client.oauth(), &challenge).await?);
    let known = state.lock().server.issuers.clone();
    binding::check(&client.name, &client.settings, &known, &found.server.issuer)?;
    state.lock().server.discovered = Some(Arc::clone(&found));
    Ok(found)
}
